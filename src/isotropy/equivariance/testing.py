"""`assert_equivariant`: one line in a user's own tests.

    f(ρ_in(g) x) = ρ_out(g) f(x)      for all g,  up to rounding

What is checked follows from what the symmetry is:

- every generator of an Action *locally*: the Lie derivative vanishes. Where the Action resamples
  and its ideal velocity is known, what interpolation contributes is taken off first: it is not the
  network's;
- an Action that does not resample (points, vectors, intensities) also *at a distance*, at elements
  of each generator's one-parameter group up to coordinates of one; of a representation by matrices
  up to ‖A‖ = 1 in g = exp(A), on both sides;
- an Action that does resample at those elements that need no resampling: quarter turns of square
  images if it has a rotation, whole-pixel shifts if it is periodic (Fourier images, circular
  sequences). At others no network on pixels is equivariant, and failing would say nothing;
- every element of a finite action, those that are drawn several times;
- of a group and its representations every infinitesimal generator, as an Action, and every discrete
  one, as an element: together they generate the group.

Errors are root mean squares over the batch, relative to how much the output varies with the input;
an output that does not vary passes every such test and is refused. Elements of groups that are not
compact blow up rounding errors, so that errors are divided by the condition numbers of ρ_in(g)
and ρ_out(g) where these are matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_at_least
from isotropy.equivariance.bridge import Acting, Acts, Side, Symmetry, symmetries
from isotropy.equivariance.equivariance_checks import (
    Finding,
    Trial,
    findings_of,
    parts_of,
    variation_of,
)
from isotropy.equivariance.layouts import Layout
from isotropy.equivariance.subject import Inputs, Select, Subject
from isotropy.symmetry.linear_actions import LinearAction

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""The largest relative error that counts as rounding, by the input's type."""

DRAWN_EXAMPLES = 16


def assert_equivariant(
    model: nn.Module | Callable[..., Any],
    symmetry: Symmetry | list[Symmetry],
    inputs: Inputs | None = None,
    *,
    outputs: str | Layout | Acts = "auto",
    tolerance: float | None = None,
    samples: int = 8,
    generator: torch.Generator | None = None,
    select: Select = None,
) -> float:
    """Raise `AssertionError` unless the model is equivariant; return the largest relative error.

    >>> assert_equivariant(model, points(3, ("rotation_x", "rotation_y", "rotation_z")), clouds)
    >>> assert_equivariant(layer, (vector, vector))         # vectors in, vectors out
    >>> assert_equivariant(EMLP(V, T(2), O(3)), (V, T(2), O(3)))

    model:     a module in evaluation mode, or a function of the inputs
    symmetry:  an Action, a finite action, a group or a representation bound to one; a pair
               (input's, output's) with the same coordinates, elements or group; or a list of these.
               A group alone acts on inputs by V and on outputs by V where they are as large, a
               representation alone leaves outputs as they are (`bridge`)
    inputs:    a batch of them, best of several different examples; drawn where the symmetry is a
               representation or given by matrices
    outputs:   how the output transforms where no pair says so: "auto" reads it off the axes,
               "invariant", "image", "sequence", "tokens", a Layout, an Action, a representation
    tolerance: the largest relative error; 1e-4 in single and 1e-9 in double precision by default
    samples:   elements for each generator, and draws of each random element
    generator: where elements are drawn from; by default always the same ones
    select:    which of several outputs

    The message names every generator and element that failed, with its error. A `CallerError` says
    that nothing could be tested, as when the output does not depend on the input.
    """
    check_at_least(samples, 1, what="samples")
    actings = symmetries(symmetry, outputs)
    network = model if isinstance(model, nn.Module) else _Function(model)
    if inputs is None:
        inputs = _drawn_inputs(network, actings[0].inputs)
    subject = Subject(network, select=select)
    moved = subject.moved(inputs)
    for each in actings:
        each.inputs.check(moved, what="inputs")
    subject.check(inputs)
    source = torch.Generator(moved.device).manual_seed(0) if generator is None else generator
    findings: list[Finding] = []
    with torch.no_grad():
        found = subject(inputs)
        trial = Trial(
            subject, inputs, found, variation_of(subject, inputs, found, source), samples, source
        )
        actings = [each.fitted(found) for each in actings]
        for own, others in (case for each in actings for case in each.cases()):
            findings += findings_of(trial, own, others)
    allowed = TOLERANCES.get(moved.dtype, 1e-4) if tolerance is None else tolerance
    # A NaN is not within any tolerance.
    failed = [each for each in findings if not each.error <= allowed]
    if failed:
        raise AssertionError(_message(failed, len(findings), allowed, actings))
    return max(each.error for each in findings)


class _Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise CallerError(f"model: expected a module or a function, got {function!r}")
        super().__init__()
        self.function = function

    def forward(self, *arguments: Tensor, **named: Tensor) -> Any:
        return self.function(*arguments, **named)


def _drawn_inputs(network: nn.Module, own: Side) -> Tensor:
    linear = own.continuous if isinstance(own.continuous, LinearAction) else None
    size = own.size if linear is None else linear.dimensions
    if size is None:
        raise CallerError(
            "inputs: expected a batch of them, got none; only for a representation by matrices "
            "can they be drawn"
        )
    like = next((each for each in network.parameters() if each.is_floating_point()), None)
    draws = torch.Generator().manual_seed(1)
    drawn = torch.randn((DRAWN_EXAMPLES, size), generator=draws, dtype=torch.float64)
    return drawn.to(torch.get_default_dtype()) if like is None else drawn.to(like)


def _message(
    failed: list[Finding],
    count: int,
    tolerance: float,
    actings: Sequence[Acting],
) -> str:
    worst: dict[str, float] = {}
    for each in failed:
        # A NaN compares with nothing, and stays.
        if each.what not in worst or not each.error <= worst[each.what]:
            worst[each.what] = each.error
    lines = [
        f"not equivariant: {len(failed)} of {count} checks have a relative error above the "
        f"tolerance of {tolerance:g}",
        *(f"  {what}: {error:.3g}" for what, error in sorted(worst.items(), key=lambda x: -x[1])),
    ]
    lines += [each.note for each in actings if each.note is not None]
    continuous = [each.inputs.continuous for each in actings]
    if any(part.grid_axes for own in continuous if own is not None for part in parts_of(own)):
        lines.append("isotropy.measure says which layer it comes from, and what resampling adds")
    return "\n".join(lines)
