"""KFAC for networks averaged over transformed copies: Gauss–Newton, Monte-Carlo or empirical.

One forward pass records what enters and leaves every layer (`recording`); back-propagating the
directions of the output curvature (`kinds`) to the recorded outputs gives the layers' Jacobians;
`layer_rules` turn both into roots of the curvature blocks. Nothing else is computed: no weight
gradients, and without a graph to the inputs no gradients to them either.

With `create_graph=True` the roots are differentiable in everything the inputs depend on, the
transformation's parameters above all. Public KFAC codes detach at this point.

Rows are (batch·copies, …) with copies fastest; outputs are averaged over copies before the
likelihood sees them (Immer et al. 2022, Eq. 11). Oracles: tests/oracles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import CallerError, check_choice
from isotropy.curvature.blocks import DenseRoots, DiagonalRoots, Roots
from isotropy.curvature.functions import Met, Place, changed_rows, met_roots, places_in
from isotropy.curvature.jacobians import (
    JacobianCurvature,
    averaged_outputs,
    example_gradients,
    last_layer_names,
)
from isotropy.curvature.kinds import KINDS, BatchCurvature, Copies, CurvatureKind
from isotropy.curvature.layer_rules import (
    LayerRule,
    Use,
    check_running_statistics,
    rule_for,
    supported_layers,
)
from isotropy.curvature.recording import Call, Recording, full_name, record, seen_in
from isotropy.kernels.fused import is_plain
from isotropy.kernels.kept_slopes import elementwise_slopes, mean_slopes
from isotropy.likelihoods import Likelihood


class _Layer(NamedTuple):
    module: nn.Module
    rule: LayerRule


class _Own(NamedTuple):
    """A trainable parameter: its name, its layer, and whether the layer's rule covers it."""

    name: str
    layer: str
    module: nn.Module
    is_covered: bool


Fallback = Literal["refuse", "diagonal", "fixed"]
FALLBACKS: tuple[Fallback, ...] = ("refuse", "diagonal", "fixed")

LARGEST_DIAGONAL = 300_000
"""Entries of a tensor up to which it gets a diagonal block: every example has its own gradient."""


class KFAC:
    """Curvature of one network, reusable over batches.

    fallback: what becomes of a trainable parameter without a rule.
        refuse    raise at construction, naming the layer
        diagonal  it gets an exact diagonal block (`jacobians`)
        fixed     it is trained, but a constant of the evidence: no curvature and no prior
    example (rows, …): inputs, by which parameters that have no rule by the type of their layer are
    looked for in functions of torch (`functions`), and rows in other axes than the first. Without
    it, layers are judged by their types alone.

    `fallen_back` lists the layers and parameters the fallback was used for, with their types, and
    `constants` those that are constants of the evidence all the same, with the reason. Parameters
    that do not require gradients are constants and get no block.
    """

    def __init__(
        self,
        network: nn.Module,
        kind: CurvatureKind = KINDS["kfac-ggn"],
        fallback: Fallback = "refuse",
        example: Tensor | None = None,
    ) -> None:
        self.network = network
        self.kind = kind
        self.fallback = check_choice(fallback, FALLBACKS, what="fallback")
        self.fallen_back: dict[str, str] = {}
        self.constants: dict[str, str] = {}
        self._layers: dict[str, _Layer] = {}
        self._met: frozenset[str] = frozenset()
        self._places: dict[str, Place] = {}
        self._diagonal: list[str] = []
        own = self._find_layers(looks=example is not None)
        if example is not None:
            own = self._look(own, example)
        names = self._with_fallback(own, example)
        if not names:
            raise CallerError("the network has no trainable parameters")
        self.parameter_names = names

    def _find_layers(self, *, looks: bool) -> list[_Own]:
        """All trainable parameters, each once, in the network's order.

        looks: whether what types do not say can be found out by looking
        """
        owner: dict[int, str] = {}
        found: list[_Own] = []
        shared = _shared(self.network)
        for layer_name, module in self.network.named_modules():
            own = {
                name: parameter
                for name, parameter in module.named_parameters(recurse=False)
                if parameter.requires_grad and parameter.numel()
            }
            check_running_statistics(module, layer_name)
            if not own:
                continue
            for name, parameter in own.items():
                if id(parameter) in owner and not looks:
                    raise CallerError(
                        f"parameter {name!r} is shared by the layers {owner[id(parameter)]!r} and "
                        f"{layer_name!r}; call one layer twice instead of tying two"
                    )
            rule = rule_for(module)
            if rule is not None and self._is_beyond(rule, module, layer_name, own, looks=looks):
                rule = None
            if rule is not None and shared.isdisjoint(map(id, own.values())):
                self._layers[layer_name] = _Layer(module, rule)
            for name, parameter in own.items():
                if id(parameter) not in owner and name not in (rule.constants if rule else ()):
                    full = full_name(layer_name, name)
                    found.append(_Own(full, layer_name, module, layer_name in self._layers))
                owner[id(parameter)] = layer_name
        return found

    def _is_beyond(
        self,
        rule: LayerRule,
        module: nn.Module,
        layer: str,
        own: Mapping[str, Tensor],
        *,
        looks: bool,
    ) -> bool:
        """Whether the rule does not cover this layer; raises where there is no other way."""
        try:
            rule.check(module, layer)
            for name in own:
                if name not in rule.parameters and name not in rule.constants:
                    raise CallerError(
                        f"layer {layer!r}: the rule for {type(module).__name__} knows the "
                        f"parameters {', '.join(rule.parameters)}, got {name!r} too"
                    )
        except CallerError:
            if not looks or self.fallback == "refuse":
                raise
            return True
        return False

    def _look(self, own: list[_Own], example: Tensor) -> list[_Own]:
        """Find functions that meet parameters, and rows in other axes; what is covered now."""
        modules = {name: layer.module for name, layer in self._layers.items()}
        uncovered = [each.name for each in own if not each.is_covered]
        two, other = changed_rows(example)
        before, others = seen_in(self.network, modules, two, uncovered)
        places: dict[str, Place | None] = {n: Place.FIRST for each in before for n in each.names}
        if uncovered or any(len(each.entered) != len(two) for each in before):
            after, _ = seen_in(self.network, modules, other, uncovered)
            places = places_in(before, after) if len(after) == len(before) else {}
        lost = [name for name in self._layers if places.get(name, Place.FIRST) is None]
        if self.fallback != "refuse":
            unused = [name for name in self._layers if name not in places]
            for name in (*unused, *lost):
                del self._layers[name]
            for each in own:
                if each.layer in unused:
                    self.constants[each.layer] = "not called in evaluation mode"
            own = [each for each in own if each.layer not in unused]
        met = {n for n in uncovered if places.get(n) is not None and n not in others}
        self._met = frozenset(met)
        self._places = {name: place for name, place in places.items() if place is not None}
        return [
            each._replace(is_covered=each.name in met or each.layer in self._layers) for each in own
        ]

    def _with_fallback(self, own: list[_Own], example: Tensor | None) -> tuple[str, ...]:
        """Names of the parameters that get a block; the fallback for those without a rule."""
        open_ones = [each for each in own if not each.is_covered]
        left_out: set[str] = set()
        for each in open_ones:
            if self.fallback == "refuse":
                raise _no_rule(each)
            is_layer = next(each.module.children(), None) is None
            key = each.layer if is_layer and each.layer else each.name
            self.fallen_back[key] = type(each.module).__name__
            if self.fallback == "fixed":
                left_out.add(each.name)
        if self.fallback == "diagonal" and example is not None:
            left_out |= self._without_diagonal([each.name for each in open_ones], example)
        names = [each.name for each in own if each.name not in left_out]
        self._diagonal = [each.name for each in open_ones if each.name not in left_out]
        return tuple(names)

    def _without_diagonal(self, names: list[str], example: Tensor) -> set[str]:
        """Those that cannot have a diagonal block, with the reason in `constants`."""
        found = set()
        for name in names:
            entries = self.network.get_parameter(name).numel()
            if entries > LARGEST_DIAGONAL:
                self.constants[name] = f"{entries:,} entries without a rule"
                found.add(name)
        rest = [name for name in names if name not in found]
        if rest:
            rows, copies = example[:2].detach(), Copies(len(example[:2]))
            outputs = averaged_outputs(self.network, rows, copies).detach()
            try:
                example_gradients(self.network, rest, rows, copies, torch.stack([outputs] * 2))
            except CallerError:
                reason = "no rule, and no gradient example by example"
                self.constants |= dict.fromkeys(rest, reason)
                found |= set(rest)
        return found

    @torch.enable_grad()
    def batch(
        self,
        inputs: Tensor,
        copies: Copies,
        likelihood: Likelihood,
        targets: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        create_graph: bool = False,
        directions_at_once: int | None = None,
    ) -> BatchCurvature:
        """Roots of every block from one batch of inputs (batch·copies, …).

        targets (batch, …): for the empirical Fisher; generator: for the Monte-Carlo one.
        directions_at_once: how many directions of the output curvature are back-propagated in
        one batched pass (None: all on a GPU, one on a CPU, where that is faster).
        """
        recording = self._record(inputs, copies.count)
        head = recording.head()
        if head is None:
            start = averaged = copies.mean(recording.outputs)
            directions = cotangents = self.kind.directions(likelihood, averaged, targets, generator)
        else:
            # f̄ = W mean_s(a_s) + b: gradients start from the averaged input of the last layer,
            # and a Linear layer that reaches it through an elementwise φ has the gradient
            # Σ_s ĝ_s = Wᵀr ⊙ mean_s φ′(z_s). Both cost one example, not one sample, a direction.
            start, slopes = _averaged(recording, copies, create_graph)
            weight, bias = head.constants()
            averaged = functional.linear(start, weight, bias)
            directions = self.kind.directions(likelihood, averaged, targets, generator)
            cotangents = directions @ weight
        if not create_graph:
            averaged, directions, cotangents = (
                tensor.detach() for tensor in (averaged, directions, cotangents)
            )
        if directions_at_once is None:
            directions_at_once = len(directions) if inputs.is_cuda else 1

        uses: dict[str, list[Use]] = {name: [] for name in self._layers}
        shortcuts: dict[Call, Tensor] = {}
        if head is not None:
            shortcuts[head] = directions
            before = recording.before_head()
            if before is not None and slopes is not None:
                shortcuts[before] = cotangents * slopes
        others = [call for call in recording.calls if call not in shortcuts]
        gradients = self._gradients(
            start, others, cotangents, copies, create_graph, directions_at_once
        )
        met: list[tuple[Met, Use]] = []
        rows_in = len(inputs)
        for call, pieces in zip(others, gradients, strict=True):
            for entering, gradient in zip(self._entering(call, rows_in), pieces, strict=True):
                use = Use(self._rule(call).reduce_inputs(call.module, entering, copies), gradient)
                if call.met is not None:
                    met.append((call.met, use))
                else:
                    uses[call.layer].append(use)
        for call, gradient in shortcuts.items():
            rule = self._layers[call.layer].rule
            entered = (
                start if call is head else rule.reduce_inputs(call.module, call.inputs, copies)
            )
            uses[call.layer].append(Use(entered, gradient))
        roots = self._roots(uses, create_graph) | self._met_roots(met, create_graph)
        if self._diagonal:
            rows = inputs if create_graph else inputs.detach()
            found = example_gradients(self.network, self._diagonal, rows, copies, directions)
            diagonal = {name: DiagonalRoots(row) for name, row in found.items()}
            roots |= {n: r if create_graph else r.detach() for n, r in diagonal.items()}
        return BatchCurvature(averaged, roots)

    def _record(self, inputs: Tensor, copies: int = 1) -> Recording:
        modules = {name: layer.module for name, layer in self._layers.items()}
        summed: list[str] = []
        if copies > 1 and not is_plain():
            summed = [name for name, layer in self._layers.items() if layer.rule.sums_gradients]
        return record(self.network, modules, inputs, copies, summed, self._met, self._places)

    def _rule(self, call: Call) -> LayerRule:
        return self._layers[call.layer].rule if call.met is None else call.met.rule

    def _place(self, call: Call) -> Place:
        """Where the rows of a call are."""
        if call.met is None:
            return self._places.get(call.layer, Place.FIRST)
        return self._places[call.met.weight or call.met.bias or ""]

    def _entering(self, call: Call, rows: int) -> Sequence[Tensor]:
        """What entered, with rows first; several where a rule cannot take them as positions."""
        return self._pieces(call, call.inputs, rows, 0)

    def _pieces(self, call: Call, tensor: Tensor, rows: int, axis: int) -> Sequence[Tensor]:
        place = self._place(call)
        arranged = place.arranged(tensor, rows, axis)
        if place is Place.FIRST or self._rule(call).takes_positions(call.module):
            return [arranged]
        return arranged.unbind(axis + 1)

    @property
    def diagonal_entries(self) -> int:
        """How many numbers the diagonal blocks of parameters without a rule have."""
        return sum(self.network.get_parameter(name).numel() for name in self._diagonal)

    def widest_map(self, example: Tensor) -> int:
        """Numbers per row in the largest layer output that is back-propagated once a direction.

        example (1, …). Zero if every layer is served by a shortcut (see `batch`).
        """
        recording = self._record(example)
        served = (recording.head(), recording.before_head())
        return max((c.output.numel() for c in recording.calls if c not in served), default=0)

    def _gradients(
        self,
        start: Tensor,
        calls: list[Call],
        cotangents: Tensor,
        copies: Copies,
        create_graph: bool,
        at_once: int,
    ) -> list[list[Tensor]]:
        """Per call, the gradients of each cotangent · start, reduced over copies.

        cotangents (directions, batch, features) → lists of (directions, batch, …), one a piece of
        the call.
        """
        if not calls:
            return []
        rows = cotangents.shape[1] * copies.count
        parts: list[list[list[Tensor]]] = [[] for _ in calls]
        wanted = [call.output if call.shift is None else call.shift for call in calls]

        def pulled(cotangent: Tensor) -> tuple[Tensor, ...]:
            # What a layer returned and nobody uses has the gradient zero.
            return torch.autograd.grad(
                start,
                wanted,
                cotangent,
                retain_graph=True,
                create_graph=create_graph,
                materialize_grads=True,
            )

        for chunk in cotangents.split(at_once):
            batched = len(chunk) > 1
            found = torch.func.vmap(pulled)(chunk) if batched else pulled(chunk[0])
            for part, call, gradient in zip(parts, calls, found, strict=True):
                raw = gradient if batched else gradient[None]
                if call.shift is not None:
                    part.append([raw])
                    continue
                pieces = zip(
                    self._entering(call, rows), self._pieces(call, raw, rows, 1), strict=True
                )
                reduce = self._rule(call).reduce_gradient
                part.append([reduce(call.module, a, g, copies) for a, g in pieces])
        return [[torch.cat(each) for each in zip(*part, strict=True)] for part in parts]

    def _met_roots(self, met: Sequence[tuple[Met, Use]], create_graph: bool) -> dict[str, Roots]:
        roots = met_roots(met)
        missing = next(iter(sorted(self._met - set(roots))), None)
        if missing is not None:
            raise _not_called(missing.rpartition(".")[0])
        return {
            name: root if create_graph else root.detach()
            for name, root in roots.items()
            if name in self._met
        }

    def _roots(self, uses: dict[str, list[Use]], create_graph: bool) -> dict[str, Roots]:
        roots: dict[str, Roots] = {}
        for layer_name, (module, rule) in self._layers.items():
            if not uses[layer_name]:
                raise _not_called(layer_name)
            for name, root in rule.roots(module, uses[layer_name]).items():
                if full_name(layer_name, name) in self.parameter_names:
                    if isinstance(root, DenseRoots) and root.output_of is not None:
                        root = replace(root, output_of=full_name(layer_name, root.output_of))
                    roots[full_name(layer_name, name)] = root if create_graph else root.detach()
        return roots


def _shared(network: nn.Module) -> set[int]:
    """Ids of the trainable parameters that several modules own."""
    owners = Counter(
        id(parameter)
        for module in network.modules()
        for parameter in module.parameters(recurse=False)
        if parameter.requires_grad
    )
    return {number for number, count in owners.items() if count > 1}


def _no_rule(own: _Own) -> CallerError:
    kind = type(own.module).__name__
    return CallerError(
        f"layer {own.layer or '(the network itself)'!r} of type {kind} has no curvature rule "
        f"(there are rules for {', '.join(supported_layers())}); register one with "
        "isotropy.curvature.layer_rules.register_rule, choose a fallback (diagonal or "
        "fixed), or freeze the layer with requires_grad_(False)"
    )


def _not_called(layer: str) -> CallerError:
    return CallerError(
        f"layer {layer!r} has trainable parameters but was not called in the "
        "forward pass; freeze it with requires_grad_(False) or remove it"
    )


def _averaged(
    recording: Recording, copies: Copies, create_graph: bool
) -> tuple[Tensor, Tensor | None]:
    """Means over copies of the head's input φ(z), and of φ′(z) if `before_head` is there."""
    head, before = recording.head(), recording.before_head()
    assert head is not None
    if before is None:
        return copies.mean(head.inputs), None
    means = mean_slopes(head.inputs, copies.count) if copies.weights is None else None
    if means is not None:
        return means
    slopes = elementwise_slopes(head.inputs, before.output, create_graph)
    return copies.mean(head.inputs), copies.mean(slopes)


Curvature = KFAC | JacobianCurvature

LARGEST_JOINT = 12_000
"""Parameters up to which a full matrix is made: 1.2 GB in float64."""


def make_curvature(
    network: nn.Module, kind: CurvatureKind, fallback: Fallback, example: Tensor
) -> Curvature:
    """The curvature of `network` of this kind.

    example (rows, …): an input, to find the last layer by. The fallback concerns kfac alone: the
    other kinds need no layer rules.
    """
    if kind.structure == "kfac":
        return KFAC(network, kind, fallback, example)
    if kind.structure == "last-layer":
        names = last_layer_names(network, example)
    else:
        names = tuple(n for n, parameter in network.named_parameters() if parameter.requires_grad)
    if not names:
        raise CallerError("the network has no trainable parameters")
    size = sum(network.get_parameter(name).numel() for name in names)
    if kind.structure != "diagonal" and size > LARGEST_JOINT:
        raise CallerError(
            f"curvature {kind.name}: expected at most {LARGEST_JOINT:,} parameters, got {size:,}: "
            "the whole matrix would not fit; use kfac, or a smaller network"
        )
    return JacobianCurvature(network, kind, names)
