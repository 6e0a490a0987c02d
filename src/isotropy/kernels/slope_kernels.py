"""Elementwise functions and their slopes, averaged over copies, one pass over memory, in Triton.

For z (batch·copies, features), copies fastest, and S copies:

    means    a = (1/S) Σ_s φ(z_s)              b = (1/S) Σ_s φ′(z_s)
    spread   dz_s = (1/S) (φ′(z_s) ∂a + φ″(z_s) ∂b)                    gradient of the means
    pulled   to ∂a: (1/S) Σ_s φ′(z_s) h_s      to ∂b: (1/S) Σ_s φ″(z_s) h_s
    bent     to z:  (1/S) Σ_d h_{d,s} (φ″(z_s) ∂a_d + φ‴(z_s) ∂b_d)     gradients of the spread

and φ(z), φ′(z) of z of any shape together, for where both are to be kept (`activations`).

φ and its derivatives are formed anew from z each time: cheaper than to keep and read them. A
program takes a tile of copies × features of one example and goes through the copies. Half precision
is worked on in single precision.

Axes: ∂a and ∂b (directions, batch, features), dz and h (directions, batch·copies, features), all
contiguous. `mean_slopes` makes them differentiable.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from isotropy.kernels.curves import Curve, bent_curve
from isotropy.kernels.fused import launch

_TILE = 1024
_MOST_COLUMNS = 128


def means(inputs: Tensor, curve: Curve, copies: int) -> tuple[Tensor, Tensor]:
    """a and b, (batch, features)."""
    shape = (len(inputs) // copies, inputs.shape[1])
    first, second = inputs.new_empty(shape), inputs.new_empty(shape)
    plan = _plan(inputs, curve, copies)
    launch(
        _means_kernel, plan.programs, inputs.contiguous(), inputs, first, second, *plan.sizes,
        ORDER=0, WEIGHTED=False, **plan.constants,
    )  # fmt: skip
    return first, second


def pulled(inputs: Tensor, weights: Tensor, curve: Curve, copies: int) -> tuple[Tensor, Tensor]:
    """What of h reaches ∂a and ∂b, (directions, batch, features) each."""
    shape = (len(weights), len(inputs) // copies, inputs.shape[1])
    first, second = inputs.new_empty(shape), inputs.new_empty(shape)
    plan = _plan(inputs, curve, copies)
    launch(
        _means_kernel, plan.programs * len(weights),
        inputs.contiguous(), weights.contiguous(), first, second, *plan.sizes,
        ORDER=1, WEIGHTED=True, **plan.constants,
    )  # fmt: skip
    return first, second


def spread(
    inputs: Tensor, of_values: Tensor | None, of_slopes: Tensor | None, curve: Curve, copies: int
) -> Tensor:
    """dz (directions, batch·copies, features); of ∂a and ∂b one may be None, for zero."""
    given = of_slopes if of_values is None else of_values
    assert given is not None
    result = inputs.new_empty(len(given), *inputs.shape)
    plan = _plan(inputs, curve, copies)
    launch(
        _spread_kernel, plan.programs * len(given),
        inputs.contiguous(),
        (given if of_values is None else of_values).contiguous(),
        (given if of_slopes is None else of_slopes).contiguous(),
        result, *plan.sizes,
        OF_VALUES=of_values is not None, OF_SLOPES=of_slopes is not None, **plan.constants,
    )  # fmt: skip
    return result


def bent(
    inputs: Tensor,
    weights: Tensor,
    of_values: Tensor | None,
    of_slopes: Tensor | None,
    curve: Curve,
    copies: int,
) -> Tensor:
    """What of h reaches z, summed over directions: like z. ∂a and ∂b as in `spread`."""
    result = inputs.new_empty(inputs.shape)
    plan = _plan(inputs, curve, copies)
    launch(
        _bent_kernel, plan.programs,
        inputs.contiguous(), weights.contiguous(),
        (weights if of_values is None else of_values).contiguous(),
        (weights if of_slopes is None else of_slopes).contiguous(),
        result, *plan.sizes, len(weights),
        OF_VALUES=of_values is not None, OF_SLOPES=of_slopes is not None, **plan.constants,
    )  # fmt: skip
    return result


def value_and_slope(inputs: Tensor, curve: Curve) -> tuple[Tensor, Tensor]:
    """φ and φ′ of contiguous inputs, each like them."""
    values, slopes = torch.empty_like(inputs), torch.empty_like(inputs)
    count = inputs.numel()
    launch(
        _both_kernel, -(-count // _TILE), inputs, values, slopes, count,
        BLOCK=_TILE, **_constants(curve, inputs.dtype),
    )  # fmt: skip
    return values, slopes


@dataclass(frozen=True)
class _Plan:
    """How the kernels run over one direction, and with which numbers."""

    programs: int
    sizes: tuple[int, ...]
    constants: dict[str, Any]


def _plan(inputs: Tensor, curve: Curve, copies: int) -> _Plan:
    return _plan_of(inputs.shape, inputs.dtype, curve, copies)


@lru_cache(maxsize=256)
def _plan_of(shape: torch.Size, dtype: torch.dtype, curve: Curve, copies: int) -> _Plan:
    rows, features = shape
    batch = rows // copies
    columns = min(_MOST_COLUMNS, triton.next_power_of_2(max(features, 1)))
    return _Plan(
        programs=batch * -(-features // columns),
        sizes=(batch, copies),
        constants={
            "FEATURES": features,
            "ROWS": min(_TILE // columns, triton.next_power_of_2(copies)),
            "COLUMNS": columns,
            **_constants(curve, dtype),
        },
    )


def _constants(curve: Curve, dtype: torch.dtype) -> dict[str, Any]:
    """What every kernel here is compiled for."""
    first, second, third, *_ = (*curve.constants, 0.0, 0.0, 0.0)
    return {
        "CURVE": curve.number,
        "P": float(first),
        "Q": float(second),
        "R": float(third),
        "DTYPE": tl.float64 if dtype == torch.float64 else tl.float32,
    }


# --- kernels ------------------------------------------------------------------------------


@triton.jit
def _both_kernel(
    inputs: tl.tensor, values: tl.tensor, slopes: tl.tensor, count: tl.tensor,
    BLOCK: tl.constexpr,
    CURVE: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr, DTYPE: tl.constexpr,
) -> None:  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    z = tl.load(inputs + place, mask=inside, other=0.0).to(DTYPE)
    value, slope, _, _ = bent_curve(z, CURVE, P, Q, R)
    kind = values.dtype.element_ty
    tl.store(values + place, value.to(kind), mask=inside)
    tl.store(slopes + place, slope.to(kind), mask=inside)


@triton.jit
def _place(
    batch: tl.tensor, FEATURES: tl.constexpr, COLUMNS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """A program's direction, its example, its columns, and which of these there are."""
    TILES: tl.constexpr = (FEATURES + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    column = (program % TILES) * COLUMNS + tl.arange(0, COLUMNS)
    example = (program // TILES) % batch
    direction = program // TILES // batch
    return direction.to(tl.int64), example.to(tl.int64), column, column < FEATURES


@triton.jit
def _means_kernel(
    inputs: tl.tensor, weights: tl.tensor, first: tl.tensor, second: tl.tensor,
    batch: tl.tensor, copies: tl.tensor,
    ORDER: tl.constexpr, WEIGHTED: tl.constexpr,
    FEATURES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    CURVE: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr, DTYPE: tl.constexpr,
) -> None:  # fmt: skip
    # ORDER: 0 φ and φ′, 1 φ′ and φ″; WEIGHTED: times h
    direction, example, column, exists = _place(batch, FEATURES, COLUMNS)
    start = example * copies * FEATURES
    along = direction * batch * copies * FEATURES
    lower = tl.zeros([ROWS, COLUMNS], DTYPE)
    upper = tl.zeros([ROWS, COLUMNS], DTYPE)
    for top in range(0, copies, ROWS):
        row = top + tl.arange(0, ROWS)
        inside = (row < copies)[:, None] & exists[None, :]
        place = row[:, None] * FEATURES + column[None, :]
        z = tl.load(inputs + start + place, mask=inside, other=0.0).to(DTYPE)
        value, slope, bend, _ = bent_curve(z, CURVE, P, Q, R)
        if ORDER == 1:
            value, slope = slope, bend
        if WEIGHTED:
            weight = tl.load(weights + along + start + place, mask=inside, other=0.0).to(DTYPE)
            lower += value * weight
            upper += slope * weight
        else:
            lower += tl.where(inside, value, 0.0)
            upper += tl.where(inside, slope, 0.0)
    at = (direction * batch + example) * FEATURES + column
    kind = first.dtype.element_ty
    tl.store(first + at, (tl.sum(lower, 0) / copies).to(kind), mask=exists)
    tl.store(second + at, (tl.sum(upper, 0) / copies).to(kind), mask=exists)


@triton.jit
def _spread_kernel(
    inputs: tl.tensor, of_values: tl.tensor, of_slopes: tl.tensor, result: tl.tensor,
    batch: tl.tensor, copies: tl.tensor,
    OF_VALUES: tl.constexpr, OF_SLOPES: tl.constexpr,
    FEATURES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    CURVE: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr, DTYPE: tl.constexpr,
) -> None:  # fmt: skip
    direction, example, column, exists = _place(batch, FEATURES, COLUMNS)
    start = example * copies * FEATURES
    along = direction * batch * copies * FEATURES
    at = (direction * batch + example) * FEATURES + column
    if OF_VALUES:
        lower = tl.load(of_values + at, mask=exists, other=0.0).to(DTYPE) / copies
    if OF_SLOPES:
        upper = tl.load(of_slopes + at, mask=exists, other=0.0).to(DTYPE) / copies
    for top in range(0, copies, ROWS):
        row = top + tl.arange(0, ROWS)
        inside = (row < copies)[:, None] & exists[None, :]
        place = row[:, None] * FEATURES + column[None, :]
        z = tl.load(inputs + start + place, mask=inside, other=0.0).to(DTYPE)
        _, slope, bend, _ = bent_curve(z, CURVE, P, Q, R)
        change = tl.zeros_like(z)
        if OF_VALUES:
            change += slope * lower[None, :]
        if OF_SLOPES:
            change += bend * upper[None, :]
        kind = result.dtype.element_ty
        tl.store(result + along + start + place, change.to(kind), mask=inside)


@triton.jit
def _bent_kernel(
    inputs: tl.tensor, weights: tl.tensor, of_values: tl.tensor, of_slopes: tl.tensor,
    result: tl.tensor, batch: tl.tensor, copies: tl.tensor, directions: tl.tensor,
    OF_VALUES: tl.constexpr, OF_SLOPES: tl.constexpr,
    FEATURES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    CURVE: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr, DTYPE: tl.constexpr,
) -> None:  # fmt: skip
    _first, example, column, exists = _place(batch, FEATURES, COLUMNS)
    start = example * copies * FEATURES
    for top in range(0, copies, ROWS):
        row = top + tl.arange(0, ROWS)
        inside = (row < copies)[:, None] & exists[None, :]
        place = row[:, None] * FEATURES + column[None, :]
        z = tl.load(inputs + start + place, mask=inside, other=0.0).to(DTYPE)
        _value, _slope, bend, third = bent_curve(z, CURVE, P, Q, R)
        total = tl.zeros_like(z)
        along = weights + start + place
        at = example * FEATURES + column
        for _direction in range(directions):
            change = tl.zeros_like(z)
            if OF_VALUES:
                change += bend * tl.load(of_values + at, mask=exists, other=0.0).to(DTYPE)[None, :]
            if OF_SLOPES:
                change += third * tl.load(of_slopes + at, mask=exists, other=0.0).to(DTYPE)[None, :]
            total += change * tl.load(along, mask=inside, other=0.0).to(DTYPE)
            along += tl.cast(batch, tl.int64) * copies * FEATURES
            at += batch * FEATURES
        kind = result.dtype.element_ty
        tl.store(result + start + place, (total / copies).to(kind), mask=inside)
