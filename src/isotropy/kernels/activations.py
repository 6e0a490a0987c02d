"""Elementwise functions that keep their slope: one pass over memory a direction.

    y = φ(z),   s = φ′(z)        gradient  g ⊙ s        gradient of that  h ⊙ s  to g,  h ⊙ g  to s

Back-propagation goes through the same φ once for every direction of the output curvature, and twice
with the graph that a gradient needs. Keeping s leaves one product for each; what reaches s from
all directions adds up, and φ″ is applied to the sum, once:

    to z:   g_y ⊙ s + g_s ⊙ φ″(z)

torch forms φ′ and φ″ anew each time, of many operations for GELU and SiLU.

Oracle: torch's own values and derivatives, first and second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Activation:
    """φ by its value, φ′ of (z, y), and what reaches z from y and s.

    bent: g_y ⊙ s + g_s ⊙ φ″ of (g_y, g_s, z, y, s); None: φ″ is zero almost everywhere
    is_monotone: φ never falls
    keeps_inputs: `bent` wants z, which is None otherwise
    """

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]
    bent: Callable[..., Tensor] | None = None
    is_monotone: bool = False
    keeps_inputs: bool = False

    def __call__(self, inputs: Tensor) -> Tensor:
        """φ(inputs)."""
        if not needs_own_derivative(inputs):
            return self.value(inputs)
        values: Tensor
        values, _ = _Elementwise.apply(inputs, self)
        node: Any = values.grad_fn
        node.source, node.versions = inputs, (inputs._version, values._version)
        return values


def needs_own_derivative(inputs: Tensor) -> bool:
    """Whether an operation here stands in for torch's: differentiated, and not transformed."""
    return (
        torch.is_grad_enabled()
        and inputs.requires_grad
        and inputs.is_floating_point()
        and not torch.is_autocast_enabled(inputs.device.type)
        and not torch._C._are_functorch_transforms_active()
    )


class _Elementwise(torch.autograd.Function):
    """z → φ(z), φ′(z); what it saves are its own outputs, so that φ′ can be differentiated."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, activation: Activation) -> tuple[Tensor, Tensor]:
        values = activation.value(inputs)
        slopes = activation.slope(inputs, values)
        ctx.activation = activation
        ctx.set_materialize_grads(False)
        if activation.bent is None:
            ctx.mark_non_differentiable(slopes)
        kept = (inputs, values) if activation.keeps_inputs else (None, values)
        ctx.save_for_backward(slopes, *(kept if activation.bent is not None else ()))
        return values, slopes

    @staticmethod
    def backward(
        ctx: Any, of_values: Tensor | None, of_slopes: Tensor | None
    ) -> tuple[Tensor | None, None]:
        slopes, *kept = ctx.saved_tensors
        return _pulled(ctx.activation, of_values, of_slopes, kept, slopes), None


def slopes_of(values: Tensor) -> Tensor | None:
    """φ′(z) where `values` are φ(z) of an `Activation`, in the graph; None for anything else."""
    node: Any = _node(values)
    if node is None:
        return None
    slopes: Tensor = node.saved_tensors[0]
    return slopes


class _Means(torch.autograd.Function):
    """z → means over copies of φ(z) and φ′(z), from what `_Elementwise` has made of it.

    Their gradients are broadcast over copies as they are used, and never written out.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        values: Tensor,
        slopes: Tensor,
        activation: Activation,
        copies: int,
    ) -> tuple[Tensor, Tensor]:
        ctx.activation, ctx.copies = activation, copies
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(slopes, inputs if activation.keeps_inputs else None, values)
        means = [rows.unflatten(0, (-1, copies)).sum(1) * (1 / copies) for rows in (values, slopes)]
        if activation.bent is None:
            ctx.mark_non_differentiable(means[1])
        return means[0], means[1]

    @staticmethod
    def backward(
        ctx: Any, of_values: Tensor | None, of_slopes: Tensor | None
    ) -> tuple[Tensor | None, None, None, None, None]:
        saved: list[Any] = [
            None if rows is None else rows.unflatten(0, (-1, ctx.copies))
            for rows in ctx.saved_tensors
        ]
        slopes, *kept = saved
        of_values, of_slopes = (
            None if each is None else (each * (1 / ctx.copies))[:, None]
            for each in (of_values, of_slopes)
        )
        found = _pulled(ctx.activation, of_values, of_slopes, kept, slopes)
        return None if found is None else found.flatten(0, 1), None, None, None, None


def _pulled(
    activation: Activation,
    of_values: Tensor | None,
    of_slopes: Tensor | None,
    kept: Sequence[Tensor | None],
    slopes: Tensor,
) -> Tensor | None:
    """What reaches z from gradients by y and s, each None where there is none."""
    if of_slopes is None or activation.bent is None:
        return None if of_values is None else of_values * slopes
    if of_values is None:
        of_values = slopes.new_zeros(()).expand_as(slopes)
    return activation.bent(of_values, of_slopes, *kept, slopes)


def mean_slopes(values: Tensor, copies: int) -> tuple[Tensor, Tensor] | None:
    """Means over copies of φ(z) and φ′(z), where `values` are φ(z) of an `Activation`.

    (batch·copies, features) → two (batch, features); None for values of anything else
    """
    activation = activation_of(values)
    if activation is None:
        return None
    node: Any = values.grad_fn
    slopes = node.saved_tensors[0]
    means: tuple[Tensor, Tensor] = _Means.apply(node.source, values, slopes, activation, copies)
    return means


def activation_of(values: Tensor) -> Activation | None:
    """φ where `values` are what an `Activation` made, and untouched since; None otherwise."""
    node: Any = _node(values)
    if node is None or node.versions != (node.source._version, values._version):
        return None
    activation: Activation = node.activation
    return activation


def before_monotone(values: Tensor) -> tuple[Activation, Tensor] | None:
    """φ and z where `values` are φ(z) of a monotone `Activation`; None for anything else."""
    activation = activation_of(values)
    if activation is None or not activation.is_monotone:
        return None
    node: Any = values.grad_fn
    return activation, node.source


def _node(values: Tensor) -> Any:
    node = values.grad_fn
    found = node is not None and hasattr(node, "activation") and values.output_nr == 0
    return node if found else None


def _tanh_bent(to_y: Tensor, to_s: Tensor, z: Tensor, y: Tensor, s: Tensor) -> Tensor:
    return torch.addcmul(to_y, y, to_s, value=-2) * s  # φ″ = −2 y s


def _sigmoid_bent(to_y: Tensor, to_s: Tensor, z: Tensor, y: Tensor, s: Tensor) -> Tensor:
    return torch.addcmul(to_y + to_s, y, to_s, value=-2) * s  # φ″ = (1 − 2 y) s


def _silu_slope(z: Tensor, y: Tensor) -> Tensor:
    gate = z.sigmoid()
    return torch.addcmul(gate, y, 1 - gate)


def _silu_bent(to_y: Tensor, to_s: Tensor, z: Tensor, y: Tensor, s: Tensor) -> Tensor:
    gate = z.sigmoid()
    bend = gate * (1 - gate) * (2 + z * (1 - 2 * gate))
    return torch.addcmul(to_y * s, to_s, bend)


def _density(z: Tensor) -> Tensor:
    return (z.square() * -0.5).exp() * (1 / math.sqrt(2 * math.pi))


def _gelu_slope(z: Tensor, y: Tensor) -> Tensor:
    return torch.addcmul(torch.special.ndtr(z), z, _density(z))


def _gelu_bent(to_y: Tensor, to_s: Tensor, z: Tensor, y: Tensor, s: Tensor) -> Tensor:
    return torch.addcmul(to_y * s, to_s, _density(z) * (2 - z.square()))


def _tanh_slope(z: Tensor, y: Tensor) -> Tensor:
    return torch.addcmul(y.new_ones(()), y, y, value=-1)


TANH = Activation(torch.tanh, _tanh_slope, _tanh_bent, is_monotone=True)
SIGMOID = Activation(torch.sigmoid, lambda z, y: y * (1 - y), _sigmoid_bent, is_monotone=True)
RELU = Activation(torch.relu, lambda z, y: (z > 0).to(z.dtype), is_monotone=True)
SILU = Activation(functional.silu, _silu_slope, _silu_bent, keeps_inputs=True)
GELU = Activation(functional.gelu, _gelu_slope, _gelu_bent, keeps_inputs=True)


# Each has the arguments of the function of torch that it stands for.


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """`functional.relu`."""
    return functional.relu(input, inplace=True) if inplace else RELU(input)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """`functional.silu`."""
    return functional.silu(input, inplace=True) if inplace else SILU(input)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """`functional.gelu`."""
    return GELU(input) if approximate == "none" else functional.gelu(input, approximate=approximate)


def tanh(input: Tensor) -> Tensor:
    """`torch.tanh`."""
    return TANH(input)


def sigmoid(input: Tensor) -> Tensor:
    """`torch.sigmoid`."""
    return SIGMOID(input)
