"""The local equivariance error as a penalty in training.

    penalty = Σ_k w_k · E_x ‖L_{X_k} f(x)‖² / dim f(x)

differentiable by the network's parameters: the Lie derivative is taken in forward mode and the
penalty is back-propagated through it. Consistency regularisation is this to lowest order: for
independent a and b with mean zero and variances σ_k², drawn alike,

    E ‖f(T^a x) − f(T^b x)‖² = 2 Σ_k σ_k² ‖L_{X_k} f(x)‖² + higher orders          (A.12)

where outputs are invariant, so that w_k = 2 σ_k² · dim f(x) is what a consistency loss stands for.
The penalty needs one pass with tangents instead of two passes with samples, and has no noise.

Gruver, Finzi, Goldblum, Wilson, The Lie derivative for measuring learned equivariance (2023).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.equivariance.layouts import Layout, layout_for
from isotropy.equivariance.lie_derivative import lie_derivatives
from isotropy.equivariance.subject import (
    Inputs,
    On,
    Select,
    Subject,
    check_batch_statistics,
    first_of,
)
from isotropy.symmetry.actions import Action


def lie_derivative_penalty(
    model: nn.Module,
    inputs: Inputs,
    action: Action,
    *,
    on: On = "outputs",
    outputs: str | Layout | Action = "auto",
    weights: Sequence[float] | Tensor | None = None,
    select: Select = None,
) -> Tensor:
    """Σ_k w_k · mean ‖L_{X_k} f‖²/dim over a batch, a scalar to be added to the loss.

    >>> loss = cross_entropy(model(x), y) + 0.1 * lie_derivative_penalty(model, x, rotation)

    on:      "outputs" as the network returns them, or "probabilities"
    outputs: how the output transforms, as in `measure`
    weights: w_k for each coordinate of the action; all one by default
    select:  which of several outputs

    The model may be in training mode; dropout then draws for this pass. Layers that normalise by
    the statistics of the batch are refused: no example would have a derivative of its own.
    Tested against `lie_derivatives`, and its gradient against finite differences.
    """
    check_batch_statistics(model)
    subject = Subject(model, on=on, select=select)
    moved = subject.moved(inputs)
    if not moved.is_floating_point():
        raise CallerError(f"inputs: expected floating-point numbers, got {moved.dtype}")
    count = action.coordinate_count
    factors = moved.new_ones(count) if weights is None else _weights(weights, count, moved)
    with torch.no_grad():
        # One example tells the axes, where these are to be read off.
        shown = subject(first_of(inputs, 1)) if isinstance(outputs, str) else moved
    layout = layout_for(outputs, action, shown, what="network output")
    directions = torch.eye(count, device=moved.device, dtype=moved.dtype)
    found = lie_derivatives(subject, inputs, action, directions, layout, with_floor=False)
    return (factors * found.derivatives.reshape(count, -1).square().mean(1)).sum()


def _weights(weights: Sequence[float] | Tensor, count: int, like: Tensor) -> Tensor:
    found = torch.as_tensor(weights, device=like.device, dtype=like.dtype)
    if tuple(found.shape) != (count,) or bool((found < 0).any()):
        raise CallerError(
            f"weights: expected {count} numbers of at least zero, one for each coordinate of the "
            f"action, got {found.tolist()}"
        )
    return found
