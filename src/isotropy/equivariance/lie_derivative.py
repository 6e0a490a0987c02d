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

Gruver, Finzi, Goldblum, Wilson, The Lie derivative for measuring learned equivariance (2023).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from isotropy.checks import CallerError
from isotropy.equivariance.layouts import Layout
from isotropy.equivariance.subject import Inputs, Subject, differentiable_forward
from isotropy.equivariance.tangents import linear_tangents, own_memory
from isotropy.symmetry.actions.action import Action

AtOnce = Callable[[Tensor], Tensor]


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
    outputs, tangents = push_forward(
        lambda tensor: subject(subject.with_moved(inputs, tensor)), moved, [*velocities, *pushed]
    )
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


def push_forward(
    function: AtOnce, inputs: Tensor, tangents: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """f(x) and df|ₓ(tangent) for several tangents: (batch, …) and (tangents, batch, …).

    The tangents go through together; where the network has something that cannot be batched, they
    go through one by one.
    """
    if not tangents:
        raise CallerError("directions: expected one or more, got none")
    with differentiable_forward(), linear_tangents():
        if len(tangents) > 1:
            try:
                return _together(function, inputs, torch.stack(list(tangents)))
            except (RuntimeError, NotImplementedError, ValueError) as error:
                if isinstance(error, CallerError | torch.OutOfMemoryError):
                    raise
        results = [_one(function, inputs, tangent) for tangent in tangents]
    return results[0][0], torch.stack([tangent for _, tangent in results])


def _together(function: AtOnce, inputs: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
    def along(tangent: Tensor) -> tuple[Tensor, Tensor]:
        outputs, derivative = torch.func.jvp(function, (inputs,), (tangent,))[:2]
        return outputs, derivative

    apart: Any = (None, 0)  # values once, derivatives for every tangent
    outputs, derivatives = torch.func.vmap(along, out_dims=apart)(tangents)
    return outputs, derivatives


def _one(function: AtOnce, inputs: Tensor, tangent: Tensor) -> tuple[Tensor, Tensor]:
    with forward_ad.dual_level():
        try:
            output = function(forward_ad.make_dual(own_memory(inputs), tangent))
        except NotImplementedError as error:
            raise CallerError(
                f"network: an operation has no forward-mode derivative ({_first_line(error)}); "
                "write it with torch operations, or give its autograd.Function a jvp"
            ) from error
        unpacked = forward_ad.unpack_dual(output)
    derivative = unpacked.tangent
    return unpacked.primal, torch.zeros_like(unpacked.primal) if derivative is None else derivative


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
