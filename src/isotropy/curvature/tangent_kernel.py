"""The tangent kernel of an averaged network: curvature seen from the outputs of one batch.

With j_nd = ∂(r_ndᵀ f̂_n)/∂θ, the gradient of example n along direction d of the output curvature
(Λ_n = Σ_d r_nd r_ndᵀ, any root), the Gauss–Newton H = Σ j jᵀ of a batch has the same non-zero
eigenvalues as

    K_(dn)(em) = j_nd · j_me = Σ_l K_l          one kernel K_l for each parameter tensor

which has batch·directions rows, however many parameters there are. Kernels come as (D·batch,
D·batch), directions slowest.

A network that ends Linear, elementwise φ, Linear needs no gradient of any example. With V the last
weight, v_nd = Vᵀ r_nd, and a bar for the weighted sum over copies,

    last weight      j = r_nd ⊗ ā_n                          K = (r_nd · r_me)(ā_n · ā_m)
    weight before    j = diag(v_nd) M_n                      K = Σ_h v_ndh v_meh (M_n M_mᵀ)_hh
                     M_n = Σ_s w_s φ′(z_ns) x_nsᵀ

so that directions cost next to nothing. Everything else is `example_gradients`. All is
differentiable in rows and weights of copies. Oracle: tests/oracles/function_space.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from isotropy.curvature.jacobians import example_gradients
from isotropy.curvature.kfac import elementwise_slopes
from isotropy.curvature.kinds import Copies
from isotropy.curvature.recording import Call, full_name, record

Directions = Callable[[Tensor], Tensor]
"""From averaged outputs (batch, outputs) to directions r (directions, batch, outputs)."""

EXAMPLES_AT_ONCE = 25
CACHE_BYTES = 4e6
GPU_BYTES = 4e8


def tangent_kernels(
    network: nn.Module,
    names: Sequence[str],
    rows: Tensor,
    copies: Copies,
    directions: Directions,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Averaged outputs (batch, outputs) and the kernel of each named parameter.

    rows (batch·copies, …), copies fastest. A kernel is (directions·batch, directions·batch).
    """
    needs_graph = rows.requires_grad or (
        copies.weights is not None and copies.weights.requires_grad
    )
    with torch.enable_grad():
        outputs, kernels = _kernels(network, names, rows, copies, directions, needs_graph)
    if needs_graph and torch.is_grad_enabled():
        return outputs, kernels
    return outputs.detach(), {name: kernel.detach() for name, kernel in kernels.items()}


def _kernels(
    network: nn.Module,
    names: Sequence[str],
    rows: Tensor,
    copies: Copies,
    directions: Directions,
    needs_graph: bool,
) -> tuple[Tensor, dict[str, Tensor]]:
    recording = record(network, _own_linear_layers(network), rows)
    uses = Counter(call.layer for call in recording.calls)
    head, before = recording.head(), recording.before_head()
    kernels: dict[str, Tensor] = {}
    if head is None:
        outputs = copies.mean(recording.outputs)
        chosen = _kept(directions(outputs), needs_graph)
    else:
        features = _kept(copies.mean(head.inputs), needs_graph)
        weight, bias = head.constants()
        outputs = functional.linear(features, weight, bias)
        chosen = directions(outputs)
        if uses[head.layer] == 1:
            of_directions = gram(chosen)
            of_features = _inner_products(features).repeat(len(chosen), len(chosen))
            kernels |= _named(head, of_directions * of_features, of_directions)
        if before is not None and uses[before.layer] == 1:
            slopes = elementwise_slopes(head.inputs, before.output, needs_graph)
            back = chosen @ weight
            inputs = _kept(before.inputs, needs_graph)
            kernels |= _named(
                before,
                _behind_elementwise(back, slopes, inputs, copies),
                gram(back * copies.mean(slopes)),
            )
    found = {name: kernels[name] for name in names if name in kernels}
    rest = [name for name in names if name not in kernels]
    if rest:
        gradients = _gradients(network, rest, rows, copies, chosen, needs_graph)
        for name, gradient in gradients.items():
            # (batch·directions, entries), directions fastest there
            found[name] = gram(gradient.unflatten(0, (-1, len(chosen))).transpose(0, 1))
    return outputs, found


def _kept(tensor: Tensor, needs_graph: bool) -> Tensor:
    return tensor if needs_graph else tensor.detach()


def _gradients(
    network: nn.Module,
    names: Sequence[str],
    rows: Tensor,
    copies: Copies,
    chosen: Tensor,
    needs_graph: bool,
) -> dict[str, Tensor]:
    """`example_gradients`, without a graph a few examples at a time: what is kept is the result."""
    if needs_graph:
        return example_gradients(network, names, rows, copies, chosen)
    parts = [
        example_gradients(network, names, some.flatten(0, 1), copies, directions)
        for some, directions in zip(
            copies.split(rows).split(EXAMPLES_AT_ONCE),
            chosen.split(EXAMPLES_AT_ONCE, 1),
            strict=True,
        )
    ]
    return {name: torch.cat([part[name].detach() for part in parts]) for name in names}


def gram(vectors: Tensor) -> Tensor:
    """Inner products of vectors (directions, batch, entries), as kernels are ordered."""
    return _inner_products(vectors.flatten(0, 1))


class _InnerProducts(torch.autograd.Function):
    """X Xᵀ, whose gradient (G + Gᵀ) X is one product where autograd would make two and add."""

    @staticmethod
    def forward(context: Any, vectors: Tensor) -> Tensor:
        context.save_for_backward(vectors)
        return vectors @ vectors.mT

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (vectors,) = context.saved_tensors
        return (gradient + gradient.mT) @ vectors


class _UnitProducts(torch.autograd.Function):
    """(M_n M_mᵀ)_hh as (hidden, batch, batch), M_n = slopes_nᵀ inputs_n, a few units at a time.

    slopes (batch, copies, hidden), weighted; inputs (batch, copies, features). M has the size of
    the layer's weight for every example: it is made again for the gradient and never kept.
    """

    @staticmethod
    def forward(context: Any, slopes: Tensor, inputs: Tensor) -> Tensor:
        context.save_for_backward(slopes, inputs)
        parts = []
        for some in slopes.split(_units_at_once(inputs), 2):
            by_unit = (some.mT @ inputs).transpose(0, 1)  # (units, batch, features)
            parts.append(by_unit @ by_unit.mT)
        return torch.cat(parts)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        slopes, inputs = context.saved_tensors
        units = _units_at_once(inputs)
        of_slopes, of_inputs = [], torch.zeros_like(inputs)
        both = (gradient + gradient.mT).split(units)
        for some, products in zip(slopes.split(units, 2), both, strict=True):
            by_unit = (some.mT @ inputs).transpose(0, 1)
            mixed = (products @ by_unit).transpose(0, 1)  # the gradient by M
            of_slopes.append(inputs @ mixed.mT)
            of_inputs += some @ mixed
        return torch.cat(of_slopes, 2), of_inputs


def _units_at_once(inputs: Tensor) -> int:
    """So many that M of these fits into a CPU's cache, or easily into a GPU's memory."""
    examples, _, features = inputs.shape
    room = GPU_BYTES if inputs.is_cuda else CACHE_BYTES
    return max(1, int(room / (examples * features * inputs.element_size())))


def _inner_products(vectors: Tensor) -> Tensor:
    products: Tensor = _InnerProducts.apply(vectors)
    return products


def _behind_elementwise(back: Tensor, slopes: Tensor, inputs: Tensor, copies: Copies) -> Tensor:
    """Σ_h v_ndh v_meh (M_n M_mᵀ)_hh.

    back v (directions, batch, hidden), slopes φ′ (batch·copies, hidden), inputs
    (batch·copies, features).
    """
    weighted = copies.split(slopes)  # (batch, copies, hidden)
    if copies.weights is None:
        weighted = weighted * (1 / copies.count)
    else:
        weighted = weighted * copies.weights.to(weighted.dtype)[:, None]
    split = copies.split(inputs)
    if not any(tensor.requires_grad for tensor in (back, weighted, split)):
        return _unit_by_unit(back, weighted, split)
    # (M_n M_mᵀ)_hh as (batch, batch, hidden)
    products: Tensor = _UnitProducts.apply(weighted, split).permute(1, 2, 0)
    by_example = back.transpose(0, 1)  # (batch, directions, hidden)
    left = by_example[:, None] * products[:, :, None]  # (batch, batch, directions, hidden)
    kernel = left @ by_example.mT[None]  # (n, m, d, e)
    return kernel.permute(2, 0, 3, 1).flatten(2).flatten(0, 1)


def _unit_by_unit(back: Tensor, weighted: Tensor, inputs: Tensor) -> Tensor:
    """The same without a graph: what is kept is the result, and a few units at a time."""
    directions, batch, _ = back.shape
    total = back.new_zeros(directions, batch, directions, batch)
    units = 4 * _units_at_once(inputs)
    for some, values in zip(weighted.split(units, 2), back.split(units, 2), strict=True):
        by_unit = (some.mT @ inputs).transpose(0, 1)
        for products, v in zip(by_unit @ by_unit.mT, values.unbind(2), strict=True):
            left = v[:, :, None, None] * products[:, None]  # (directions, batch, 1, batch)
            total.addcmul_(left, v)
    return total.flatten(2).flatten(0, 1)


def _named(call: Call, of_weight: Tensor, of_bias: Tensor) -> dict[str, Tensor]:
    return {full_name(call.layer, "weight"): of_weight, full_name(call.layer, "bias"): of_bias}


def _own_linear_layers(network: nn.Module) -> dict[str, nn.Module]:
    """Linear layers whose parameters no other module uses."""
    owners = Counter(
        id(parameter)
        for module in network.modules()
        for parameter in module.parameters(recurse=False)
    )
    return {
        name: module
        for name, module in network.named_modules()
        if type(module) is nn.Linear
        and all(owners[id(parameter)] == 1 for parameter in module.parameters())
    }
