"""The Lie derivative of a network: how far it is from equivariance to a small transformation.

    L_X f(x) = d/dt|₀ ρ_out(g_{−t}) f(ρ_in(g_t) x) = df|ₓ(X x) − X f(x)          (Eq. 4.3)

with the velocities X of input and output (`Action.velocity`, `Layout.velocity`), and the local
equivariance error, squared and per output dimension,

    LEE = E_x ‖L_X f(x)‖² / dim f(x)                                            (Eq. 4.4)

One forward pass with a tangent, forward-mode, gives df|ₓ(X x) exactly. Several directions share
the pass: the tangents are a batch of their own and the values are computed once.

What interpolation alone contributes is measured beside it. The velocity of a resampled image is
not quite that of the band-limited picture behind it; the difference ΔX goes through the same
linear map, and L = (L with ideal velocities) + (df|ₓ(ΔX x) − ΔX f(x)). The size of the second
term is the *resampling floor*: a network that is perfectly equivariant would still show it.

The error is also a penalty for training,

    penalty = Σ_k w_k · E_x ‖L_{X_k} f(x)‖² / dim f(x) ,

back-propagated through forward mode. Elements h that no small motion reaches, as reflections and
permutations are, count by their exact differences, Σ_h w_h · E_x ‖f(h x) − h f(x)‖² / dim f(x).
Consistency regularisation is this to lowest order: for independent a and b with mean zero and
variances σ_k², drawn alike,

    E ‖f(T^a x) − f(T^b x)‖² = 2 Σ_k σ_k² ‖L_{X_k} f(x)‖² + higher orders          (A.12)

where outputs are invariant, so that w_k = 2 σ_k² · dim f(x) is what a consistency loss stands for.
The penalty needs one pass with tangents instead of two passes with samples, and has no noise.

Gruver, Finzi, Goldblum, Wilson, The Lie derivative for measuring learned equivariance (2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, shape_text
from isotropy.equivariance.bridge import Acts, Outputs, Own, Symmetry, symmetries
from isotropy.equivariance.finite_error import element_outputs, finite_layout
from isotropy.equivariance.layouts import Layout, layout_for
from isotropy.equivariance.subject import (
    Inputs,
    On,
    Subject,
    check_batch_statistics,
    differentiable_forward,
    first_of,
)
from isotropy.equivariance.tangents import push_forward
from isotropy.networks.one_output import Select
from isotropy.symmetry.actions.action import Action
from isotropy.symmetry.actions.finite import FiniteAction


@dataclass(frozen=True, eq=False)
class Derivatives:
    """Lie derivatives of one batch, in several directions.

    outputs      (batch, …)               f(x)
    derivatives  (directions, batch, …)   L_X f(x)
    floors       the same for ΔX, or None where the ideal velocity is not known
    """

    outputs: Tensor
    derivatives: Tensor
    floors: Tensor | None

    def errors(self) -> Tensor:
        """‖L‖²/dim, (directions, batch)."""
        return _mean_square(self.derivatives)

    def floor_errors(self) -> Tensor | None:
        """What interpolation alone contributes to it, (directions, batch)."""
        return None if self.floors is None else _mean_square(self.floors)


def _mean_square(vectors: Tensor) -> Tensor:
    return vectors.reshape(*vectors.shape[:2], -1).square().mean(2)


def lie_derivatives(
    subject: Subject,
    inputs: Inputs,
    action: Action,
    directions: Tensor,
    layout: Layout,
    *,
    with_floor: bool = True,
) -> Derivatives:
    """Lie derivatives of a batch in all `directions`, (directions, coordinates) or
    (directions, batch, coordinates); `layout` is the output's.
    """
    moved = subject.moved(inputs)
    velocities = [action.velocity(direction, moved) for direction in directions]
    ideal: list[Tensor] = []
    if with_floor:
        found = [action.ideal_velocity(direction, moved) for direction in directions]
        ideal = [each for each in found if each is not None]
    differences = [a - b for a, b in zip(velocities, ideal, strict=True)] if ideal else []
    # An Action that does not resample has no floor to push through the network.
    pushed = differences if any(bool(each.any()) for each in differences) else []
    outputs, tangents = _pushed(subject, inputs, [*velocities, *pushed])
    count = len(directions)
    own = torch.stack([layout.velocity(action, direction, outputs) for direction in directions])
    derivatives = tangents[:count] - own
    if not ideal:
        return Derivatives(outputs, derivatives, None)
    # An output that moves by an Action of its own may not know what is ideal.
    wanted = [layout.ideal_velocity(action, direction, outputs) for direction in directions]
    known = [each for each in wanted if each is not None]
    if len(known) < count:
        return Derivatives(outputs, derivatives, None)
    floors = torch.stack(known) - own
    return Derivatives(outputs, derivatives, floors + tangents[count:] if pushed else floors)


def _pushed(subject: Subject, inputs: Inputs, tangents: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """f(x) and df|ₓ(tangent) for several tangents: (batch, …) and (tangents, batch, …)."""
    with differentiable_forward():
        found = push_forward(
            lambda tensor: subject(subject.with_moved(inputs, tensor)),
            [(subject.moved(inputs), torch.stack(list(tangents)))],
            what="network: an operation",
        )
    (outputs,), (derivatives,) = found.floats, found.tangents
    if derivatives is None:
        return outputs, outputs.new_zeros((len(tangents), *outputs.shape))
    return outputs, derivatives


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
