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

from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import CallerError, check_choice
from isotropy.curvature.blocks import DenseRoots, DiagonalRoots, Roots
from isotropy.curvature.jacobians import JacobianCurvature, example_gradients, last_layer_names
from isotropy.curvature.kinds import KINDS, BatchCurvature, Copies, CurvatureKind
from isotropy.curvature.layer_rules import (
    LayerRule,
    Use,
    check_running_statistics,
    rule_for,
    supported_layers,
)
from isotropy.curvature.recording import Call, Recording, full_name, record
from isotropy.kernels.fused import is_plain
from isotropy.kernels.kept_slopes import elementwise_slopes, mean_slopes
from isotropy.likelihoods import Likelihood


class _Layer(NamedTuple):
    module: nn.Module
    rule: LayerRule


Fallback = Literal["refuse", "diagonal", "fixed"]
FALLBACKS: tuple[Fallback, ...] = ("refuse", "diagonal", "fixed")


class KFAC:
    """Curvature of one network, reusable over batches.

    fallback: what becomes of a trainable layer without a rule.
        refuse    raise at construction, naming the layer
        diagonal  its parameters get exact diagonal blocks (`jacobians`)
        fixed     they are trained, but constants of the evidence: no curvature and no prior
    `fallen_back` lists the layers it was used for. Parameters that do not require gradients are
    constants and get no block.
    """

    def __init__(
        self,
        network: nn.Module,
        kind: CurvatureKind = KINDS["kfac-ggn"],
        fallback: Fallback = "refuse",
    ) -> None:
        self.network = network
        self.kind = kind
        self.fallback = check_choice(fallback, FALLBACKS, what="fallback")
        self.fallen_back: dict[str, str] = {}
        self._layers: dict[str, _Layer] = {}
        self._diagonal: list[str] = []
        self.parameter_names = self._find_layers()

    def _find_layers(self) -> tuple[str, ...]:
        owner: dict[int, str] = {}
        names: list[str] = []
        # A parameter tied between modules is listed once by default; here both owners count.
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
                if id(parameter) in owner:
                    raise CallerError(
                        f"parameter {name!r} is shared by the layers {owner[id(parameter)]!r} and "
                        f"{layer_name!r}; call one layer twice instead of tying two"
                    )
                owner[id(parameter)] = layer_name
            rule = rule_for(module)
            if rule is None:
                names += self._without_rule(layer_name, module, list(own))
                continue
            rule.check(module, layer_name)
            for name in own:
                if name in rule.constants:
                    continue
                if name not in rule.parameters:
                    raise CallerError(
                        f"layer {layer_name!r}: the rule for {type(module).__name__} knows the "
                        f"parameters {', '.join(rule.parameters)}, got {name!r} too"
                    )
                names.append(full_name(layer_name, name))
            self._layers[layer_name] = _Layer(module, rule)
        if not names:
            raise CallerError("the network has no trainable parameters")
        return tuple(names)

    def _without_rule(self, layer: str, module: nn.Module, own: list[str]) -> list[str]:
        """Names of the layer's parameters that get a block all the same."""
        kind = type(module).__name__
        if self.fallback == "refuse":
            raise CallerError(
                f"layer {layer or '(the network itself)'!r} of type {kind} has no curvature rule "
                f"(there are rules for {', '.join(supported_layers())}); register one with "
                "isotropy.curvature.layer_rules.register_rule, choose a fallback (diagonal or "
                "fixed), or freeze the layer with requires_grad_(False)"
            )
        self.fallen_back[layer] = kind
        if self.fallback == "fixed":
            return []
        named = [full_name(layer, name) for name in own]
        self._diagonal += named
        return named

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
        for call, gradient in (*zip(others, gradients, strict=True), *shortcuts.items()):
            rule = self._layers[call.layer].rule
            entered = (
                start if call is head else rule.reduce_inputs(call.module, call.inputs, copies)
            )
            uses[call.layer].append(Use(entered, gradient))
        roots = self._roots(uses, create_graph)
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
        return record(self.network, modules, inputs, copies, summed)

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
    ) -> list[Tensor]:
        """Per call, the gradients of each cotangent · start, reduced over copies.

        cotangents (directions, batch, features) → a list of (directions, batch, …).
        """
        if not calls:
            return []
        parts: list[list[Tensor]] = [[] for _ in calls]
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
                if call.shift is None:
                    rule = self._layers[call.layer].rule
                    raw = rule.reduce_gradient(call.module, call.inputs, raw, copies)
                part.append(raw)
        return [torch.cat(part) for part in parts]

    def _roots(self, uses: dict[str, list[Use]], create_graph: bool) -> dict[str, Roots]:
        roots: dict[str, Roots] = {}
        for layer_name, (module, rule) in self._layers.items():
            if not uses[layer_name]:
                raise CallerError(
                    f"layer {layer_name!r} has trainable parameters but was not called in the "
                    "forward pass; freeze it with requires_grad_(False) or remove it"
                )
            for name, root in rule.roots(module, uses[layer_name]).items():
                if full_name(layer_name, name) in self.parameter_names:
                    if isinstance(root, DenseRoots) and root.output_of is not None:
                        root = replace(root, output_of=full_name(layer_name, root.output_of))
                    roots[full_name(layer_name, name)] = root if create_graph else root.detach()
        return roots


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
        return KFAC(network, kind, fallback)
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
