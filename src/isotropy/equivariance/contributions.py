"""Judge every operation of a network by itself, at the input it really gets.

Every tensor v between two operations has a velocity X v, by its layout. An operation f with inputs
u contributes to the network's Lie derivative what is left of

    e = df|ᵤ(X u) − X f(u)                                                     (L_X f at u)

pushed through everything behind it, C = d(rest) e. Velocities cancel between neighbours, so that

    Σ_i C_i = L_X (network)                                                    (Eq. 4.5, 4.6)

exactly, whatever layouts were chosen; these only decide to whom a contribution is counted. A
result without a layout takes df(X u) for its velocity: the operation is not judged, its part is
counted at the next one whose layout is known.

Values go through the network as they are, one operation at a time; beside every tensor is kept its
velocity in all directions and, if asked for, the contributions of all operations so far, which
each operation's derivative pushes on: at the end they are the C_i, exactly, in one pass.

    velocity       (directions, batch, …)
    contributions  (rows, directions, batch, …)

An observer may look at every operation whose layouts are known, at the tensors it really gets: so
errors of finite motions come from the same pass (`translation_metrics`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.equivariance.layout_rules import Known, layouts_after
from isotropy.equivariance.layouts import Grid, Invariant, Layout, layout_for
from isotropy.equivariance.operations import (
    CUTS,
    Followed,
    Operation,
    UniqueNames,
    is_differentiable,
    tensors_of,
)
from isotropy.equivariance.subject import cut_error
from isotropy.equivariance.tangents import differentiate
from isotropy.symmetry.actions.action import Action

OUTPUT = "output"
"""The last row, where the output is meant to transform otherwise than the network makes it."""


@dataclass(eq=False)
class Row:
    """One operation in the table of layers.

    judged_at: the row where its contribution is counted, if its own layout is not known.
    """

    name: str
    kind: str
    layout: str
    judged_at: str | None = None
    remark: str | None = None


@dataclass(eq=False)
class State:
    """What is known of a tensor that depends on the network's input.

    velocity None stands for zero; rows and contributions go together, in the same order.
    """

    version: int
    layout: Layout | None
    velocity: Tensor | None = None
    lost: Layout | None = None
    size: tuple[int, ...] | None = None
    waiting: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    contributions: Tensor | None = None
    reference: weakref.ref[Tensor] | None = None


@dataclass(frozen=True, eq=False)
class _Before:
    """What operations before this one left: their rows, the inputs, and rows not counted yet."""

    rows: tuple[int, ...]
    known: list[Known]
    waiting: tuple[int, ...]


Observer = Callable[[str, Operation, Sequence[Known], Tensor, Layout | None], None]
"""Told of an operation's name, the operation, its inputs, its first result, and that one's layout.

The inputs are as the operation gets them, also where it changes one of them.
"""


@dataclass(eq=False)
class Sweep:
    """Visits every operation in turn; see the module's words.

    action, directions   (directions, coordinates) or (directions, batch, coordinates)
    layouts              by operation name: what the user says of its result
    keep_contributions   push all contributions on, or only note each where it arises
    observe              told of every operation that is judged
    """

    action: Action
    directions: Tensor
    batch: int
    layouts: Mapping[str, str | Layout | Action] = field(default_factory=dict)
    keep_contributions: bool = True
    observe: Observer | None = None
    rows: list[Row] = field(default_factory=list)
    errors: list[tuple[int, int, Tensor]] = field(default_factory=list)
    """(row, number of the result, e), where contributions are not pushed on."""

    def __post_init__(self) -> None:
        self._states: dict[int, State] = {}
        self._without_derivative = Followed()  # what depends on the input, as a mask does
        self._unique = UniqueNames()

    def start(self, tensor: Tensor) -> None:
        """The network's input, with the velocity its Action gives it."""
        velocity = torch.stack([self.action.velocity(each, tensor) for each in self.directions])
        axes = tuple(range(2, 2 + self.action.grid_axes))
        layout = Grid(axes) if axes else None
        self._remember(tensor, State(tensor._version, layout, velocity))

    def state_of(self, tensor: Tensor) -> State | None:
        """What is known of a tensor; None if it does not depend on the input."""
        state = self._states.get(id(tensor))
        if state is None or state.reference is None:
            return None
        return state if state.reference() is tensor else None

    def _remember(self, tensor: Tensor, state: State) -> None:
        """Keep a state as long as its tensor lives, and not longer: contributions are large."""
        key, states = id(tensor), self._states

        def forget(reference: weakref.ref[Tensor]) -> None:
            if key in states and states[key].reference is reference:
                del states[key]

        state.reference = weakref.ref(tensor, forget)
        states[key] = state

    def __call__(self, operation: Operation) -> Any:
        """Run one operation, judge it, and return what it returns."""
        if not counts(operation):
            return operation.run()
        inputs = [t for t in operation.tensors() if self.state_of(t) is not None]
        if not inputs:
            result = operation.run()
            if self._without_derivative.is_read_by(operation):
                self._without_derivative.add(tensors_of(result))
            return result
        states = {id(tensor): self._current(tensor, operation) for tensor in inputs}
        primals = [tensor for tensor in inputs if is_differentiable(tensor)]
        if operation.mutates and is_differentiable(operation.arguments[0]):
            first = operation.arguments[0]
            primals = [first, *(t for t in primals if t is not first)]
        versions = [tensor._version for tensor in operation.tensors()]
        carried = [states[id(t)].rows for t in primals if id(t) in states]
        rows = tuple(sorted({row for each in carried for row in each}))
        tangents = [self._tangents(tensor, states.get(id(tensor)), rows) for tensor in primals]
        outcome = differentiate(operation, primals, tangents)
        if not operation.mutates and versions != [t._version for t in operation.tensors()]:
            raise _changed_in_place(operation.name)
        others = [t for t in tensors_of(outcome.result) if not is_differentiable(t)]
        self._without_derivative.add(others)
        if not outcome.floats:
            return outcome.result
        passed_on = next((t for t in inputs if outcome.result is t), None)
        if passed_on is not None:  # an identity: the same tensor, with all that is known of it
            self._row(operation, states[id(passed_on)].layout)
            return outcome.result
        known = [
            Known(t, states[id(t)].layout, states[id(t)].lost, states[id(t)].size)
            for t in operation.tensors()
            if id(t) in states
        ]
        waiting = tuple(sorted({r for state in states.values() for r in state.waiting}))
        before = _Before(rows, known, waiting)
        if not operation.mutates:
            self._judge(operation, before, outcome.floats, outcome.tangents)
            return outcome.result
        changed, given = operation.arguments[0], None
        with torch.no_grad():
            if self.observe is not None:
                given = changed.clone()
            changed.copy_(outcome.floats[0])
        self._judge(operation, before, [changed], outcome.tangents[:1], given)
        return changed

    def _current(self, tensor: Tensor, operation: Operation) -> State:
        state = self.state_of(tensor)
        assert state is not None
        if state.version != tensor._version:
            raise _changed_in_place(operation.name)
        return state

    def _tangents(
        self, tensor: Tensor, state: State | None, rows: tuple[int, ...]
    ) -> Tensor | None:
        """(1 + rows)·directions tangents of one input: its velocity, then the contributions."""
        if state is None or (state.velocity is None and state.contributions is None):
            return None
        count = len(self.directions)
        if state.rows == rows and state.velocity is not None:  # nothing to fill up with zeros
            own = state.velocity[None]
            parts = [own] if state.contributions is None else [own, state.contributions]
            return torch.cat(parts).flatten(0, 1)
        tangents = tensor.new_zeros((1 + len(rows), count, *tensor.shape))
        if state.velocity is not None:
            tangents[0] = state.velocity
        if state.contributions is not None:
            index = torch.tensor([1 + rows.index(row) for row in state.rows], device=tensor.device)
            tangents[index] = state.contributions
        return tangents.flatten(0, 1)

    def _judge(
        self,
        operation: Operation,
        before: _Before,
        results: Sequence[Tensor],
        tangents: Sequence[Tensor | None],
        given: Tensor | None = None,
    ) -> None:
        """Give every result its layout and velocity, and note what the operation contributes.

        given: a copy of the first argument where that was changed in place
        """
        if operation.kind in CUTS:
            raise cut_error(operation.name)
        layouts = layouts_after(operation, before.known, results, self.batch, self.action.grid_axes)
        row, name = self._row(operation, layouts[0])
        said = self.layouts.get(name)
        if said is not None:
            layouts = [
                layout_for(said, self.action, result, what=f"operation {name!r}")
                for result in results
            ]
            self.rows[row].layout = layouts[0].text if layouts[0] is not None else ""
        self._check_one_layout(operation, before.known, row)
        if self.observe is not None:
            self._show(name, operation, before.known, given, (results[0], layouts[0]))
        for number, (result, layout, pushed) in enumerate(
            zip(results, layouts, tangents, strict=True)
        ):
            self._settle(result, layout, pushed, (row, number), before)
        if any(layout is not None for layout in layouts):
            for earlier in before.waiting:
                self.rows[earlier].judged_at = name

    def _show(
        self,
        name: str,
        operation: Operation,
        known: list[Known],
        given: Tensor | None,
        result: tuple[Tensor, Layout | None],
    ) -> None:
        """Tell the observer, with the first argument as it was.

        An operation that reads what depends on the input without a derivative, as x * (x > 0) reads
        its mask, is left out: moving its inputs would not move the mask.
        """
        assert self.observe is not None
        if self._without_derivative.is_read_by(operation):
            return
        if given is not None:
            changed = operation.arguments[0]
            operation = replace(operation, arguments=(given, *operation.arguments[1:]))
            known = [replace(k, tensor=given) if k.tensor is changed else k for k in known]
        self.observe(name, operation, known, *result)

    def _row(self, operation: Operation, layout: Layout | None) -> tuple[int, str]:
        name = self._unique(operation.name)
        self.rows.append(Row(name, operation.kind, "" if layout is None else layout.text))
        return len(self.rows) - 1, name

    def _settle(
        self,
        result: Tensor,
        layout: Layout | None,
        pushed: Tensor | None,
        place: tuple[int, int],
        before: _Before,
    ) -> None:
        """Remember a result with its velocity; `place` is its row and its number there."""
        rows = before.rows
        stack = None
        if pushed is not None:
            stack = pushed.unflatten(0, (1 + len(rows), len(self.directions)))
        velocity = None if stack is None else stack[0]
        state = State(result._version, layout)
        if layout is None:
            gridded = next((k for k in before.known if (k.layout or k.lost) is not None), None)
            if gridded is not None:
                state.lost = gridded.layout or gridded.lost
                state.size = gridded.grid_sizes()
            state.velocity = velocity
            state.waiting = (*before.waiting, place[0])
            error = None
        else:
            own = self._velocity(layout, result)
            state.velocity = own
            error = _difference(velocity, own)
        if stack is not None and rows:
            state.rows, state.contributions = rows, stack[1:]
        if error is not None:
            self._contribute(state, *place, error)
        self._remember(result, state)

    def _contribute(self, state: State, row: int, number: int, error: Tensor) -> None:
        """Add what an operation contributes to what its result carries, or note it."""
        if not self.keep_contributions:
            self.errors.append((row, number, error))
            return
        earlier = [] if state.contributions is None else [state.contributions]
        state.contributions = torch.cat([*earlier, error[None]])
        state.rows = (*state.rows, row)

    def _velocity(self, layout: Layout, tensor: Tensor) -> Tensor | None:
        if isinstance(layout, Invariant):
            return None
        velocities = [layout.velocity(self.action, each, tensor) for each in self.directions]
        return torch.stack(velocities)

    def _check_one_layout(self, operation: Operation, known: Sequence[Known], row: int) -> None:
        """A sum makes sense only of tensors that transform alike; say where it is not so."""
        if operation.kind not in SUMS or len(known) < 2:
            return
        shape = known[0].tensor.shape
        alike = [each.layout for each in known if each.tensor.shape == shape]
        if len({str(layout) for layout in alike if layout is not None}) > 1:
            self.rows[row].remark = "adds tensors that transform differently"

    def finish(self, output: Tensor, layout: Layout) -> None:
        """Settle the output with the layout it is meant to have, as a last row if that differs."""
        state = self.state_of(output)
        if state is None:
            raise CallerError("network output: it does not depend on the input that moves")
        own = self._velocity(layout, output)
        error = _difference(state.velocity, own)
        if error is None:
            return
        self.rows.append(Row(OUTPUT, f"as {layout.text}", layout.text))
        row = len(self.rows) - 1
        for earlier in state.waiting:
            self.rows[earlier].judged_at = OUTPUT
        self._contribute(state, row, 0, error)


SUMS = {"add", "add_", "sub", "sub_", "rsub"}


ROUNDING = 16
"""A difference of so many units in the last place is rounding, and not pushed on."""


def _difference(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """first − second, where None is zero; None where nothing but rounding is left."""
    if first is None:
        error, scale = (None if second is None else -second), 0.0
    elif second is None:
        error, scale = first, 0.0
    else:
        error = first - second
        scale = max(float(first.abs().amax()), float(second.abs().amax()))
    if error is None or not error.numel():
        return None
    largest = ROUNDING * torch.finfo(error.dtype).eps * scale
    return error if float(error.abs().amax()) > largest else None


QUESTIONS = {
    "shape", "dtype", "device", "ndim", "size", "dim", "numel", "is_floating_point", "stride",
    "requires_grad", "is_contiguous", "layout", "is_cuda", "get_device", "nelement", "len",
    "is_sparse", "is_quantized", "is_nested", "grad_fn", "is_complex", "names", "has_names",
}  # fmt: skip
"""What is asked of a tensor without computing anything."""


def counts(operation: Operation) -> bool:
    """Whether an operation computes something, if its inputs depend on the network's."""
    return operation.module is not None or operation.kind not in QUESTIONS


def _changed_in_place(name: str) -> CallerError:
    return CallerError(
        f"operation {name!r} gets a tensor that was changed in place through another name, which "
        "breaks the derivative; use the out-of-place form (x = x + y instead of x += y, relu "
        "instead of relu_)"
    )
