"""Gradients summed over copies: by a shift that all copies of a layer's output have in common.

    z_s + ε,   ε = 0        ∂/∂ε = Σ_s ∂/∂z_s

The Kronecker form keeps only this sum of what back-propagation brings to a layer (`layer_rules`).
Asking for the gradient by ε lets an operation that follows the layer add up as it goes, where it
can (`max_pooling`). Axes: outputs (batch·copies, …), shifts (batch, …), copies fastest.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: Tensor, shift: Tensor) -> Tensor:
        ctx.batch = len(shift)
        # No view: what the network does to it in place is seen by its version alone.
        return outputs.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.reshape(ctx.batch, -1, *gradient.shape[1:]).sum(1)


def shifted(outputs: Tensor, copies: int) -> tuple[Tensor, Tensor]:
    """outputs + ε with rows (batch·copies, …), and ε (batch, …), a zero to differentiate by."""
    shape = (len(outputs) // copies, *outputs.shape[1:])
    shift = outputs.new_zeros(()).expand(shape).requires_grad_()
    moved: Tensor = _Shift.apply(outputs, shift)
    node: Any = moved.grad_fn
    node.source, node.shift, node.version = outputs, shift, moved._version
    return moved, shift


def before_shift(outputs: Tensor) -> tuple[Tensor, Tensor] | None:
    """What `shifted` was given, and ε; None for anything else, or if it was written to since."""
    node: Any = outputs.grad_fn
    if node is None or not hasattr(node, "shift") or outputs._version != node.version:
        return None
    return node.source, node.shift
