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
- every element of a finite action, those that are drawn several times.

Errors are root mean squares over the batch, relative to how much the output varies with the input;
an output that does not vary passes every such test and is refused. Elements of groups that are not
compact blow up rounding errors, so that errors are divided by the condition numbers of ρ_in(g)
and ρ_out(g) where these are matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_at_least
from isotropy.equivariance.equivariance_checks import (
    Finding,
    Outputs,
    Representation,
    Trial,
    findings_of,
    parts_of,
    variation_of,
)
from isotropy.equivariance.subject import Inputs, Select, Subject
from isotropy.symmetry.actions import Action
from isotropy.symmetry.finite_actions import FiniteAction
from isotropy.symmetry.linear_actions import LinearAction

Symmetry = Representation | tuple[Representation, Representation]

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""The largest relative error that counts as rounding, by the input's type."""

DRAWN_EXAMPLES = 16


def assert_equivariant(
    model: nn.Module | Callable[..., Any],
    symmetry: Symmetry | list[Symmetry],
    inputs: Inputs | None = None,
    *,
    outputs: Outputs = "auto",
    tolerance: float | None = None,
    samples: int = 8,
    generator: torch.Generator | None = None,
    select: Select = None,
) -> float:
    """Raise `AssertionError` unless the model is equivariant; return the largest relative error.

    >>> assert_equivariant(model, points(3, ("rotation_x", "rotation_y", "rotation_z")), clouds)
    >>> assert_equivariant(layer, (vector, vector))         # vectors in, vectors out

    model:     a module in evaluation mode, or a function of the inputs
    symmetry:  an Action or a finite action; a pair (input's, output's) with the same coordinates or
               elements; or a list of these
    inputs:    a batch of them, best of several different examples; drawn where the symmetry is a
               representation by matrices
    outputs:   how the output transforms where no pair says so: "auto" reads it off the axes,
               "invariant", "image", "sequence", "tokens", a Layout, or an Action
    tolerance: the largest relative error; 1e-4 in single and 1e-9 in double precision by default
    samples:   elements for each generator, and draws of each random element
    generator: where elements are drawn from; by default always the same ones
    select:    which of several outputs

    The message names every generator and element that failed, with its error. A `CallerError` says
    that nothing could be tested, as when the output does not depend on the input.
    """
    check_at_least(samples, 1, what="samples")
    cases = list(_cases(symmetry, outputs))
    network = model if isinstance(model, nn.Module) else _Function(model)
    if inputs is None:
        inputs = _drawn_inputs(network, cases[0][0])
    subject = Subject(network, select=select)
    subject.check(inputs)
    moved = subject.moved(inputs)
    source = torch.Generator(moved.device).manual_seed(0) if generator is None else generator
    findings: list[Finding] = []
    with torch.no_grad():
        found = subject(inputs)
        trial = Trial(
            subject, inputs, found, variation_of(subject, inputs, found, source), samples, source
        )
        for own, others in cases:
            findings += findings_of(trial, own, others)
    allowed = TOLERANCES.get(moved.dtype, 1e-4) if tolerance is None else tolerance
    # A NaN is not within any tolerance.
    failed = [each for each in findings if not each.error <= allowed]
    if failed:
        raise AssertionError(_message(failed, len(findings), allowed, cases))
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


def _cases(
    symmetry: Symmetry | list[Symmetry], outputs: Outputs
) -> Iterator[tuple[Representation, Outputs]]:
    """Each symmetry of the input, with how the output transforms."""
    if isinstance(symmetry, Action | FiniteAction):
        if isinstance(outputs, Action | FiniteAction):
            _check_alike(symmetry, outputs)
        yield symmetry, outputs
    elif isinstance(symmetry, tuple) and len(symmetry) == 2:
        own: Any
        others: Any
        own, others = symmetry
        if outputs != "auto":
            raise CallerError(
                "outputs: the pair (input's, output's) says how the output transforms; expected "
                f"no outputs= beside it, got {outputs!r}"
            )
        _check_alike(own, others)
        yield own, others
    elif isinstance(symmetry, list | tuple) and symmetry:
        for each in symmetry:
            yield from _cases(each, outputs)
    else:
        raise CallerError(
            "symmetry: expected an Action, a finite action, a pair (input's, output's) of these, "
            f"or a list, got {symmetry!r}"
        )


def _check_alike(own: Any, others: Any) -> None:
    for kind in (Action, FiniteAction):
        if isinstance(own, kind) and isinstance(others, kind):
            return
    raise CallerError(
        "symmetry: expected two Actions or two finite actions, for the input and for the output, "
        f"got {type(own).__name__} and {type(others).__name__}"
    )


def _drawn_inputs(network: nn.Module, symmetry: Representation) -> Tensor:
    if not isinstance(symmetry, LinearAction):
        raise CallerError(
            "inputs: expected a batch of them, got none; only for a representation by matrices "
            "can they be drawn"
        )
    like = next((each for each in network.parameters() if each.is_floating_point()), None)
    shape, draws = (DRAWN_EXAMPLES, symmetry.dimensions), torch.Generator().manual_seed(1)
    drawn = torch.randn(shape, generator=draws, dtype=torch.float64)
    return drawn.to(torch.get_default_dtype()) if like is None else drawn.to(like)


def _message(
    failed: list[Finding],
    count: int,
    tolerance: float,
    cases: Sequence[tuple[Representation, Outputs]],
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
    if any(part.grid_axes for own, _ in cases if isinstance(own, Action) for part in parts_of(own)):
        lines.append("isotropy.measure says which layer it comes from, and what resampling adds")
    return "\n".join(lines)
