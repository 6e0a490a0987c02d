"""Means over copies of φ(z) and φ′(z), without either of them for all copies at once.

    a = (1/S) Σ_s φ(z_s)     b = (1/S) Σ_s φ′(z_s)     dz = (1/S) (φ′(z) ∂a + φ″(z) ∂b)

A network that ends Linear → φ → Linear needs no more of its hidden layer than a and b (`kfac`),
and y = φ(z) is there already. On a CPU all of this is bound by memory: a few examples at a time
stay in the cache, and slopes are formed anew for the gradient. For networks with no other layer
before these, since the gradient cannot be differentiated again. Axes: z, y (batch·copies,
features), copies fastest. Oracle: torch's derivatives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from isotropy.curvature.activations import Activation

CHUNK = 1 << 18
"""Numbers of z at a time: about a megabyte in single precision."""


class _Means(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, values: Tensor, activation: Activation, copies: int
    ) -> tuple[Tensor, Tensor]:
        ctx.activation, ctx.copies = activation, copies
        ctx.save_for_backward(inputs, values)
        mean_values, mean_slopes = inputs.new_empty(2, len(inputs) // copies, inputs.shape[1])
        for here in _chunks(inputs, copies):
            rows = _rows(here, copies)
            value = values[rows]
            slope = activation.slope(inputs[rows], value)
            torch.sum(value.unflatten(0, (-1, copies)), 1, out=mean_values[here])
            torch.sum(slope.unflatten(0, (-1, copies)), 1, out=mean_slopes[here])
        return mean_values.mul_(1 / copies), mean_slopes.mul_(1 / copies)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_values: Tensor, of_slopes: Tensor) -> tuple[Tensor, None, None, None]:
        inputs, values = ctx.saved_tensors
        activation, copies = ctx.activation, ctx.copies
        found = torch.empty_like(inputs)
        for here in _chunks(inputs, copies):
            rows = _rows(here, copies)
            part = inputs[rows].unflatten(0, (-1, copies))
            value = values[rows].unflatten(0, (-1, copies))
            slope = activation.slope(part, value)
            to_value, to_slope = (of[here, None] / copies for of in (of_values, of_slopes))
            spread = found[rows].unflatten(0, (-1, copies))
            if activation.bent is None:
                torch.mul(to_value, slope, out=spread)
            else:
                activation.bent(to_value, to_slope, part, value, slope, out=spread)
        return found, None, None, None


def means_over_copies(
    inputs: Tensor, values: Tensor, activation: Activation, copies: int
) -> tuple[Tensor, Tensor]:
    """a and b (batch, features) of z and φ(z) (batch·copies, features); differentiable once."""
    mean_values, mean_slopes = _Means.apply(inputs, values.detach(), activation, copies)
    return mean_values, mean_slopes


def _chunks(inputs: Tensor, copies: int) -> Iterator[slice]:
    """Slices of examples."""
    examples = len(inputs) // copies
    size = max(1, CHUNK // (copies * inputs.shape[1]))
    return (slice(first, min(first + size, examples)) for first in range(0, examples, size))


def _rows(examples: slice, copies: int) -> slice:
    return slice(examples.start * copies, examples.stop * copies)
