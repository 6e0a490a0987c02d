"""KFAC of several networks of one architecture at once, each on rows of its own.

The networks share every kernel launch: their weights are stacked, (runs, …), and one forward pass
under `torch.func.vmap` does for all. Layer outputs cannot be handed out of such a pass and still be
differentiated by, so a zero is added to each,

    y = layer(a) + ζ ,    ζ = 0 ,    ∂f/∂y = ∂f/∂ζ ,

and gradients are taken by the ζ, outside and by plain autograd, which also gives the graph that a
gradient by the inputs needs. Everything behind that is `kfac`'s own: the head that commutes with
the average, the mean slopes in front of it, and `layer_rules`, applied run by run (`run_axis`).

Axes: rows (runs, batch·copies, …), copies fastest; directions (runs, directions, batch, outputs).
Oracle: `KFAC.batch` of each network alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from isotropy.curvature.attention import visible_projections
from isotropy.curvature.batches import BatchCurvature
from isotropy.curvature.copies import Copies
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.layer_rules import Use
from isotropy.curvature.plain_operations import plain_operations
from isotropy.curvature.recording import Call, evaluation_mode, record
from isotropy.curvature.run_axis import over_runs, stack_runs, with_state
from isotropy.likelihoods import Likelihood

State = Mapping[str, Tensor]
"""Parameters and buffers by name, (runs, …)."""


class StackedKFAC:
    """Curvature of `len(curvatures)` networks of one architecture.

    example (1, …): any one input; it shows which layers are called, in which order.
    """

    def __init__(self, curvatures: Sequence[KFAC], example: Tensor) -> None:
        self.curvatures = tuple(curvatures)
        self.network = curvatures[0].network
        self.kind = curvatures[0].kind
        self.parameter_names = curvatures[0].parameter_names
        self.layers: dict[str, nn.Module] = {
            name: layer.module for name, layer in curvatures[0]._layers.items()
        }
        recording = record(self.network, self.layers, example[:1])
        self._calls = recording.calls
        self._head = _place(recording.calls, recording.head())
        self._before = _place(recording.calls, recording.before_head())

    @staticmethod
    def supports(curvature: object) -> bool:
        """Whether blocks of this curvature can be stacked: KFAC with a rule for every layer."""
        return type(curvature) is KFAC and not curvature._diagonal

    def state(self) -> dict[str, Tensor]:
        """What the networks hold now, stacked and constant."""
        return stack_runs([state_of(curvature.network) for curvature in self.curvatures])

    @torch.enable_grad()
    def batch(
        self,
        state: State,
        rows: Tensor,
        copies: Copies,
        likelihoods: Sequence[Likelihood],
        targets: Tensor,
        *,
        generators: Sequence[torch.Generator | None] = (),
        create_graph: bool = False,
        directions_at_once: int | None = None,
    ) -> BatchCurvature:
        """Outputs (runs, batch, outputs) and stacked roots of every block; compare `KFAC.batch`.

        copies: a stack of one `Copies` a run; targets (runs, batch, …)
        """
        probes = self._probes(rows)
        outputs, entered = self._forward(state, rows, probes)
        if self._head is None:
            start = averaged = over_runs(Copies.mean, copies, outputs)
            directions = cotangents = self._directions(averaged, likelihoods, targets, generators)
        else:
            start = over_runs(Copies.mean, copies, entered[self._head])
            weight, bias = self._linear(state, self._calls[self._head].layer)
            averaged = over_runs(functional.linear, start, weight, bias)
            directions = self._directions(averaged, likelihoods, targets, generators)
            cotangents = directions @ weight[:, None]
        if not create_graph:
            averaged, directions, cotangents = (
                tensor.detach() for tensor in (averaged, directions, cotangents)
            )
        gradients: dict[int, Tensor] = {}
        if self._head is not None:
            gradients[self._head] = directions
        if self._head is not None and self._before is not None:
            values = entered[self._head]
            (slopes,) = torch.autograd.grad(
                values,
                probes[self._before],
                torch.ones_like(values),
                retain_graph=True,
                create_graph=create_graph,
            )
            gradients[self._before] = cotangents * over_runs(Copies.mean, copies, slopes)[:, None]
        others = [place for place in range(len(self._calls)) if place not in gradients]
        if directions_at_once is None:
            directions_at_once = directions.shape[1] if rows.is_cuda else 1
        chosen = {place: probes[place] for place in others}
        for chunk in cotangents.split(directions_at_once, 1) if others else ():
            found = _back_propagated(start, list(chosen.values()), chunk, create_graph)
            for place, raw in zip(chosen, found, strict=True):
                part = self._reduced_gradient(state, place, entered[place], raw, copies)
                before = gradients.get(place)
                gradients[place] = part if before is None else torch.cat([before, part], 1)
        uses: dict[str, list[Use]] = {name: [] for name in self.layers}
        for place in (*others, *(place for place in gradients if place not in others)):
            inputs = (
                start
                if place == self._head
                else self._reduced_inputs(state, place, entered[place], copies)
            )
            uses[self._calls[place].layer].append(Use(inputs, gradients[place]))
        kfac = self.curvatures[0]

        def roots(state: State, uses: dict[str, list[Use]]) -> Any:
            return with_state(self.network, state, kfac._roots, uses, True)

        found_roots = over_runs(roots, dict(state), uses)
        stack = BatchCurvature(averaged, found_roots)
        return stack if create_graph else stack.detach()

    def _probes(self, rows: Tensor) -> list[Tensor]:
        """The zeros ζ, one for each call, (runs, rows, …); they take no memory."""
        shape, zero = rows.shape[:2], rows.new_zeros(())
        return [
            zero.expand(*shape, *call.output.shape[1:]).requires_grad_() for call in self._calls
        ]

    def _forward(
        self, state: State, rows: Tensor, probes: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Outputs (runs, rows, outputs), and what entered each call."""
        entered: list[Tensor] = []
        adding: list[Tensor] = []

        def keep(name: str, module: nn.Module, inputs: Tensor, output: Tensor) -> Tensor:
            entered.append(inputs)
            place = len(entered) - 1
            return output if place == self._head else output + adding[place]

        def run(state: State, rows: Tensor, probes: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            entered.clear()
            adding[:] = probes
            outputs: Tensor = functional_call(self.network, dict(state), (rows,))
            return outputs, list(entered)

        with (
            evaluation_mode(self.network),
            plain_operations(),
            visible_projections(self.network, self.layers, keep),
            _hooked(self.layers, keep),
        ):
            return over_runs(run, dict(state), rows, probes)

    def _directions(
        self,
        outputs: Tensor,
        likelihoods: Sequence[Likelihood],
        targets: Tensor,
        generators: Sequence[torch.Generator | None],
    ) -> Tensor:
        """(runs, directions, batch, outputs); drawn ones by each run's own generator."""
        if self.kind.fisher == "mc":
            each = zip(likelihoods, outputs, targets, generators, strict=True)
            return torch.stack([self.kind.directions(*own) for own in each])
        return over_runs(
            lambda outputs, targets: self.kind.directions(likelihoods[0], outputs, targets),
            outputs,
            targets,
        )

    def _linear(self, state: State, layer: str) -> tuple[Tensor, Tensor | None]:
        prefix = f"{layer}." if layer else ""
        return state[f"{prefix}weight"], state.get(f"{prefix}bias")

    def _own(self, state: State, place: int) -> dict[str, Tensor]:
        """The state of one layer, by the layer's own names."""
        layer = self._calls[place].layer
        prefix = f"{layer}." if layer else ""
        return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}

    def _reduced_inputs(self, state: State, place: int, inputs: Tensor, copies: Copies) -> Tensor:
        call = self._calls[place]
        rule = self.curvatures[0]._layers[call.layer].rule

        def reduced(state: State, inputs: Tensor, copies: Copies) -> Tensor:
            return with_state(call.module, state, rule.reduce_inputs, call.module, inputs, copies)

        return over_runs(reduced, self._own(state, place), inputs, copies)

    def _reduced_gradient(
        self, state: State, place: int, inputs: Tensor, gradient: Tensor, copies: Copies
    ) -> Tensor:
        call = self._calls[place]
        rule = self.curvatures[0]._layers[call.layer].rule

        def reduced(state: State, inputs: Tensor, gradient: Tensor, copies: Copies) -> Tensor:
            given = (call.module, inputs, gradient, copies)
            return with_state(call.module, state, rule.reduce_gradient, *given)

        return over_runs(reduced, self._own(state, place), inputs, gradient, copies)


def state_of(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, constant."""
    state = {name: parameter.detach() for name, parameter in network.named_parameters()}
    return {**state, **dict(network.named_buffers())}


def _place(calls: Sequence[Call], wanted: Call | None) -> int | None:
    return next((place for place, call in enumerate(calls) if call is wanted), None)


def _back_propagated(
    start: Tensor, probes: list[Tensor], cotangents: Tensor, create_graph: bool
) -> list[Tensor]:
    """Gradients (runs, directions, rows, …) by each probe of cotangents · start.

    start (runs, batch, features), cotangents (runs, directions, batch, features)
    """
    directions = cotangents.movedim(1, 0)
    batched = len(directions) > 1
    found = torch.autograd.grad(
        start,
        probes,
        directions if batched else directions[0],
        retain_graph=True,
        create_graph=create_graph,
        is_grads_batched=batched,
        allow_unused=True,
        materialize_grads=not batched,
    )
    zeros = [probe.new_zeros(()).expand(len(directions), *probe.shape) for probe in probes]
    each = [zero if new is None else new for new, zero in zip(found, zeros, strict=True)]
    return [new.movedim(0, 1) if batched else new[:, None] for new in each]


@contextmanager
def _hooked(layers: Mapping[str, nn.Module], keep: Any) -> Iterator[None]:
    """`keep(name, module, inputs, output)` at every call of the layers; attention shows its own."""
    handles = [
        module.register_forward_hook(
            lambda module, arguments, named, output, name=name: keep(
                name, module, next(iter((*arguments, *named.values()))), output
            ),
            with_kwargs=True,
        )
        for name, module in layers.items()
        if type(module) is not nn.MultiheadAttention
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
