"""The local equivariance error as a penalty in training.

    penalty = Σ_k w_k · E_x ‖L_{X_k} f(x)‖² / dim f(x)

differentiable by the network's parameters. Elements h that no small motion reaches, as reflections
and permutations are, count by their exact differences, Σ_h w_h · E_x ‖f(h x) − h f(x)‖² / dim f(x).
The Lie derivative is taken in forward mode and the
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

from isotropy.checks import CallerError, shape_text
from isotropy.equivariance.bridge import Acts, Outputs, Own, Symmetry, symmetries
from isotropy.equivariance.finite_error import element_outputs, finite_layout
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
from isotropy.symmetry.actions.action import Action
from isotropy.symmetry.actions.finite import FiniteAction


def lie_derivative_penalty(
    model: nn.Module,
    inputs: Inputs,
    action: Symmetry,
    *,
    on: On = "outputs",
    outputs: str | Layout | Acts = "auto",
    weights: Sequence[float] | Tensor | None = None,
    select: Select = None,
) -> Tensor:
    """Σ_k w_k · mean ‖L_{X_k} f‖²/dim over a batch, a scalar to be added to the loss.

    >>> loss = cross_entropy(model(x), y) + 0.1 * lie_derivative_penalty(model, x, rotation)

    action:  an Action, a finite action, a group, a representation, or a pair (input's, output's) of
             these, as in `assert_equivariant`
    on:      "outputs" as the network returns them, or "probabilities"
    outputs: how the output transforms, as in `measure`
    weights: w_k for each coordinate of the action, then for each discrete element; all one by
             default
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
    actings = symmetries(action, outputs)
    for each in actings:
        each.inputs.check(moved, what="inputs")
    count = sum(sum(each.inputs.generators) for each in actings)
    factors = moved.new_ones(count) if weights is None else _weights(weights, count, moved)
    with torch.no_grad():
        # One example tells the axes, where these are to be read off.
        said = isinstance(outputs, Layout | Action)
        shown = moved if said else subject(first_of(inputs, 1))
    squares = torch.cat(
        [
            _squares(subject, inputs, own, others, shown)
            for each in actings
            for own, others in each.fitted(shown).cases()
        ]
    )
    return (factors * squares).sum()


def _squares(subject: Subject, inputs: Inputs, own: Own, others: Outputs, shown: Tensor) -> Tensor:
    """mean ‖L_{X_k} f‖²/dim for each coordinate, or mean ‖f(h x) − h f(x)‖²/dim for each element.

    shown: outputs that tell the axes
    """
    moved = subject.moved(inputs)
    if isinstance(own, Action):
        assert not isinstance(others, FiniteAction), "an Action goes with an Action"
        follows = layout_for(others, own, shown, what="network output")
        directions = torch.eye(own.coordinate_count, device=moved.device, dtype=moved.dtype)
        found = lie_derivatives(subject, inputs, own, directions, follows, with_floor=False)
        return found.derivatives.reshape(len(directions), -1).square().mean(1)
    assert not isinstance(others, Action), "a finite action goes with a finite action"
    # Random elements draw anew at every call, from torch's generator.
    seed = int(torch.randint(2**62, ())) if own.is_random else 0
    source = torch.Generator(moved.device).manual_seed(seed)
    layout = finite_layout(own, others, shown)
    squares = []
    for element, tried in zip(
        own.elements,
        element_outputs(subject, inputs, own, layout, subject(inputs), source),
        strict=True,
    ):
        if tried is None:
            raise CallerError(
                f"{element.name}: expected an element that moves an output of {shape_text(shown)} "
                "by whole cells, got one that does not; leave it out"
            )
        squares.append((tried[0] - tried[1]).square().mean())
    return torch.stack(squares)


def _weights(weights: Sequence[float] | Tensor, count: int, like: Tensor) -> Tensor:
    found = torch.as_tensor(weights, device=like.device, dtype=like.dtype)
    if tuple(found.shape) != (count,) or bool((found < 0).any()):
        raise CallerError(
            f"weights: expected {count} numbers of at least zero, one for each coordinate of the "
            f"action and for each discrete element, got {found.tolist()}"
        )
    return found
