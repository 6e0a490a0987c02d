"""Which layer breaks the symmetry: a network's Lie derivative as a sum over its operations.

    L_X f = Σ_i C_i                C_i = d(f_N ∘ … ∘ f_{i+1}) L_X f_i             (Eq. 4.5, 4.6)

The vectors C_i add up to L, their norms do not. Two numbers are reported for each operation, both
averages over examples: the norm ‖C_i‖, how much it contributes, and the signed share
⟨C_i, L⟩/‖L‖², how much of the whole it explains; shares add up to one.

Three ways to compute them:

    forward    every e_i = L_X f_i is pushed through all later operations as a tangent: exact, one
               pass, its cost grows with the number of operations
    backward   one backward pass per output dimension gives ⟨∂f_k/∂v_i, e_i⟩ for all i: exact, its
               cost grows with the number of outputs
    probes     K backward passes from random z ~ N(0, I): the mean of (z·C_i)² is ‖C_i‖² χ²_K/K, so
               that its root over E(χ_K)/√K is ‖C_i‖ without bias, with a known variance; the
               shares stay exact, by one backward pass from L itself
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from isotropy.checks import CallerError, check_at_least, check_choice
from isotropy.equivariance.contributions import OUTPUT, Observer, Row, Sweep, counts
from isotropy.equivariance.layouts import Layout
from isotropy.equivariance.operations import Followed, Operation, watch
from isotropy.equivariance.subject import Inputs, Subject, differentiable_forward, first_of
from isotropy.symmetry.actions.action import Action

Method = Literal["forward", "backward", "probes"]
METHODS = ("auto", "forward", "backward", "probes")

FEW_OUTPUTS = 16
"""Up to so many output dimensions one backward pass for each is cheap."""

FEW_OPERATIONS = 128
"""Up to so many judged operations pushing all of them forward is affordable."""

MOST_MISSING = 0.02
"""By how much contributions may fail to add up, relative to their size; rounding makes far less."""


@dataclass(frozen=True, eq=False)
class Attribution:
    """What every operation contributes, for one batch.

    rows         the operations, in the order they ran
    norms        (rows, directions, batch)   ‖C_i‖
    inner        (rows, directions, batch)   ⟨C_i, L⟩
    squares      (directions, batch)         ‖L‖²
    missing      (directions, batch)         ‖Σ C_i − L‖, for probes its part along L
    scale        (directions, batch)         the largest of ‖L‖ and all ‖C_i‖, to compare it with
    """

    rows: tuple[Row, ...]
    method: Method
    norms: Tensor
    inner: Tensor
    squares: Tensor
    missing: Tensor
    scale: Tensor

    @property
    def closure(self) -> Tensor:
        """Is the sum rule kept? What is missing, relative to the scale: (directions, batch)."""
        return self.missing / self.scale.clamp_min(torch.finfo(self.scale.dtype).tiny)


@dataclass(frozen=True, eq=False)
class LayerSettings:
    """How contributions of layers are computed.

    method:  "forward", "backward", "probes", or "auto" for what is cheaper
    probes:  how many, where contributions are estimated
    layouts: how the results of operations transform, by name, where the rules cannot know
    observe: told of every operation that is judged, as it runs
    """

    method: str = "auto"
    probes: int = 32
    layouts: Mapping[str, str | Layout | Action] = field(default_factory=dict)
    observe: Observer | None = None

    def __post_init__(self) -> None:
        check_choice(self.method, METHODS, what="attribution")
        check_at_least(self.probes, 1, what="probes")


def attribute(
    subject: Subject,
    inputs: Inputs,
    action: Action,
    directions: Tensor,
    derivatives: Tensor,
    layout: Layout,
    settings: LayerSettings | None = None,
    generator: torch.Generator | None = None,
) -> Attribution:
    """Attribute the Lie derivatives (directions, batch, …) of a batch to the network's operations.

    layout: the output's; generator: where probes are drawn from
    """
    settings = LayerSettings() if settings is None else settings
    # One axis of outputs, also where each example has one number and no axis for it.
    whole = derivatives.detach().reshape(*derivatives.shape[:2], -1)
    batch, outputs = whole.shape[1:]
    method = settings.method
    if method == "auto":
        method = "backward" if outputs <= FEW_OUTPUTS else "forward"
        if method == "forward":
            # How many operations contribute anything, seen on one example and one direction.
            one = directions[:1] if directions.ndim == 2 else directions[:1, :1]
            tried = Sweep(action, one, 1, settings.layouts, keep_contributions=False)
            _swept(subject, first_of(inputs, 1), tried, layout)
            count = len({row for row, _, _ in tried.errors})
            method = "forward" if count <= FEW_OPERATIONS else "probes"
    keep = method == "forward"
    sweep = Sweep(action, directions, batch, settings.layouts, keep, settings.observe)
    output = _swept(subject, inputs, sweep, layout)
    rows = tuple(sweep.rows)
    if method == "forward":
        contributions = output.new_zeros((len(rows), *whole.shape))
        state = sweep.state_of(output)
        assert state is not None
        if state.contributions is not None:
            contributions[list(state.rows)] = state.contributions.reshape(-1, *whole.shape)
        found = _exact("forward", rows, contributions, whole)
    else:
        passes = _Backward(subject, inputs, sweep, rows)
        if method == "backward":
            units = torch.eye(outputs, dtype=output.dtype, device=output.device)
            columns = [passes.along(unit.expand(batch, -1)) for unit in units]
            found = _exact("backward", rows, torch.stack(columns, -1), whole)
        else:
            found = _probed(passes, rows, whole, settings.probes, generator)
    _check_sum_rule(found, output)
    return found


def _exact(
    method: Method, rows: tuple[Row, ...], vectors: Tensor, derivatives: Tensor
) -> Attribution:
    """From all C_i, (rows, directions, batch, outputs)."""
    squares = derivatives.square().sum(2)
    inner = (vectors * derivatives).sum(3)
    missing = (vectors.sum(0) - derivatives).square().sum(2).sqrt()
    norms = vectors.square().sum(3).sqrt()
    scale = _largest(squares.sqrt(), norms)
    return Attribution(rows, method, norms, inner, squares, missing, scale)


def _probed(
    passes: _Backward,
    rows: tuple[Row, ...],
    derivatives: Tensor,
    probes: int,
    generator: torch.Generator | None,
) -> Attribution:
    """By random z, and by L itself, (directions, batch, outputs)."""
    inner = torch.stack(
        [passes.along(each)[:, number] for number, each in enumerate(derivatives)], 1
    )
    shape = tuple(derivatives.shape[1:])
    drawn = []
    for _ in range(probes):
        # Drawn on the CPU, so that a seed means the same on every device.
        z = torch.randn(shape, generator=generator, dtype=derivatives.dtype)
        drawn.append(passes.along(z.to(derivatives.device)).square())
    unbiased = mean_chi(probes)
    norms = torch.stack(drawn).mean(0).sqrt() / unbiased
    squares = derivatives.square().sum(2)
    size = squares.sqrt()
    missing = (inner.sum(0) - squares).abs() / size.clamp_min(torch.finfo(size.dtype).tiny)
    return Attribution(rows, "probes", norms, inner, squares, missing, _largest(size, norms))


def _largest(whole: Tensor, parts: Tensor) -> Tensor:
    return torch.cat([whole[None], parts]).amax(0)


def _check_sum_rule(found: Attribution, output: Tensor) -> None:
    """Raise where contributions do not add up to what they should, rounding apart."""
    least = math.sqrt(torch.finfo(output.dtype).eps) * output.reshape(len(output), -1).norm(dim=1)
    missing = torch.where(found.scale > least, found.closure, 0.0)
    if float(missing.max()) > MOST_MISSING:
        raise CallerError(
            f"layers: contributions miss the whole derivative by {float(missing.max()):.2g} of its "
            "size, since the network does something that cannot be looked into, as an "
            "autograd.Function whose jvp is not the derivative of its forward; put that into a "
            "layer of its own, or use layers=False"
        )


def mean_chi(count: int) -> float:
    """E(χ_K)/√K = √(2/K) Γ((K + 1)/2)/Γ(K/2): how short the root of a mean of K squares is."""
    return math.sqrt(2 / count) * math.exp(math.lgamma((count + 1) / 2) - math.lgamma(count / 2))


def _swept(subject: Subject, inputs: Inputs, sweep: Sweep, layout: Layout) -> Tensor:
    moved = subject.moved(inputs).detach().clone()
    with torch.no_grad(), differentiable_forward(), watch(subject.network, sweep):
        sweep.start(moved)
        output = subject(subject.with_moved(inputs, moved))
    sweep.finish(output, layout)
    return output


class _Backward:
    """One forward pass with a graph, then ⟨∂(z·f)/∂v_i, e_i⟩ for any z by a backward pass."""

    def __init__(
        self, subject: Subject, inputs: Inputs, sweep: Sweep, rows: tuple[Row, ...]
    ) -> None:
        self.errors = sweep.errors
        self.shape = (len(rows), len(sweep.directions), sweep.batch)
        with torch.enable_grad():  # not a leaf, so that a network may change its input in place
            start = subject.moved(inputs).detach().requires_grad_().clone()
        edges = _Edges(start, {(row, number) for row, number, _ in sweep.errors}, rows)
        with torch.enable_grad(), differentiable_forward(), watch(subject.network, edges):
            output = subject(subject.with_moved(inputs, start))
        if rows and rows[-1].name == OUTPUT:
            edges.found[(len(rows) - 1, 0)] = get_gradient_edge(output)
        self.output = output
        self.edges = [edges.found[(row, number)] for row, number, _ in sweep.errors]

    def along(self, cotangent: Tensor) -> Tensor:
        """z·C_i for one z (batch, outputs): (rows, directions, batch)."""
        found = torch.zeros(self.shape, dtype=self.output.dtype, device=self.output.device)
        if not self.edges:
            return found
        try:
            gradients = torch.autograd.grad(
                self.output,
                self.edges,
                cotangent.reshape(self.output.shape),
                retain_graph=True,
                allow_unused=True,
            )
        except RuntimeError as failure:
            if "modified by an inplace operation" not in str(failure):
                raise
            raise CallerError(
                "network: a tensor that a backward pass needs is changed in place; use the "
                "out-of-place form (x = x + y instead of x += y, relu instead of relu_), or "
                "attribution='forward'"
            ) from failure
        for (row, _, error), gradient in zip(self.errors, gradients, strict=True):
            if gradient is not None:
                # Copies of an example, as an averaged network has them, lie next to each other.
                products = (error * gradient).reshape(*self.shape[1:], -1)
                found[row] += products.sum(2)
        return found


class _Edges:
    """Visits the operations that the sweep visited, in the same order, and notes where in the
    graph their results are."""

    def __init__(self, start: Tensor, wanted: set[tuple[int, int]], rows: Sequence[Row]) -> None:
        self.wanted = wanted
        self.rows = rows
        self.found: dict[tuple[int, int], GradientEdge] = {}
        self._count = 0
        self._followed = Followed(start)

    def __call__(self, operation: Operation) -> Any:
        if not counts(operation) or not self._followed.is_read_by(operation):
            return operation.run()
        result = operation.run()
        floats = operation.floats(result)
        self._followed.add(floats)
        for number, tensor in enumerate(floats):
            if (self._count, number) in self.wanted:
                if not tensor.requires_grad:
                    name = self.rows[self._count].name
                    raise CallerError(
                        f"operation {name!r} runs under torch.no_grad(), or within the forward of "
                        "an autograd.Function, where backward passes cannot follow; leave no_grad "
                        "out, put the Function into a layer of its own, or use "
                        "attribution='forward'"
                    )
                self.found[(self._count, number)] = get_gradient_edge(tensor)
        self._count += bool(floats)
        return result
