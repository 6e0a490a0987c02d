"""KFAC of the generalised Gauss–Newton for networks averaged over transformed copies.

One forward pass records what enters and leaves every layer (`recording`); back-propagating the
roots of the output curvature to the recorded outputs gives the layers' Jacobians; `layer_rules`
turn both into roots of the curvature blocks. Nothing else is computed: no weight gradients, and
without a graph to the inputs no gradients to them either.

With `create_graph=True` the roots are differentiable in everything the inputs depend on, the
transformation's parameters above all. Public KFAC codes detach at this point.

Rows are (batch·samples, …) with samples fastest; outputs are averaged over samples before the
likelihood sees them (Immer et al. 2022, Eq. 11). Oracles: tests/oracles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import CallerError
from isotropy.curvature.kronecker import DenseRoots, Factors, Roots, all_factors
from isotropy.curvature.layer_rules import (
    LayerRule,
    Use,
    rule_for,
    split_samples,
    supported_layers,
)
from isotropy.curvature.recording import Call, Recording, record
from isotropy.likelihoods import Likelihood


@dataclass(frozen=True)
class BatchCurvature:
    """Averaged outputs (batch, outputs) and one entry of roots per parameter name."""

    outputs: Tensor
    roots: dict[str, Roots]

    def factors(self) -> dict[str, Factors]:
        """Factors of every block from this batch."""
        return all_factors(self.roots)


_NORMALISATIONS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


class _Layer(NamedTuple):
    module: nn.Module
    rule: LayerRule


class KFAC:
    """Curvature of one network, reusable over batches.

    Raises at construction, naming the layer, if a trainable parameter belongs to a module without
    a rule. Parameters that do not require gradients are constants and get no block.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self._layers: dict[str, _Layer] = {}
        self.parameter_names = self._find_layers()

    def _find_layers(self) -> tuple[str, ...]:
        owner: dict[int, str] = {}
        names: list[str] = []
        # A parameter tied between modules is listed once by default; here both owners count.
        for layer_name, module in self.network.named_modules():
            own = {
                name: parameter
                for name, parameter in module.named_parameters(recurse=False)
                if parameter.requires_grad
            }
            # Trainable layers come before it in the order of registration, or it trains itself.
            if isinstance(module, _NORMALISATIONS) and (names or own):
                raise CallerError(
                    f"layer {layer_name!r} of type {type(module).__name__} normalises: the weights "
                    "in front of it are scale-invariant and have no posterior mode under a "
                    "Gaussian prior, hence no evidence; use a network without such layers, or "
                    "freeze everything in front of it"
                )
            if not own:
                continue
            rule = rule_for(module)
            if rule is None:
                raise CallerError(
                    f"layer {layer_name or '(the network itself)'!r} of type "
                    f"{type(module).__name__} has no curvature rule (there are rules for "
                    f"{', '.join(supported_layers())}); register one with "
                    "isotropy.register_rule, or freeze the layer with requires_grad_(False)"
                )
            rule.check(module, layer_name)
            for name, parameter in own.items():
                if name not in rule.parameters:
                    raise CallerError(
                        f"layer {layer_name!r}: the rule for {type(module).__name__} knows the "
                        f"parameters {', '.join(rule.parameters)}, got {name!r} too"
                    )
                if id(parameter) in owner:
                    raise CallerError(
                        f"parameter {name!r} is shared by the layers {owner[id(parameter)]!r} and "
                        f"{layer_name!r}; call one layer twice instead of tying two"
                    )
                owner[id(parameter)] = layer_name
                names.append(f"{layer_name}.{name}" if layer_name else name)
            self._layers[layer_name] = _Layer(module, rule)
        if not names:
            raise CallerError("the network has no trainable parameters")
        return tuple(names)

    @torch.enable_grad()
    def batch(
        self,
        inputs: Tensor,
        samples: int,
        likelihood: Likelihood,
        *,
        create_graph: bool = False,
        directions_at_once: int | None = None,
    ) -> BatchCurvature:
        """Roots of every block from one batch of inputs (batch·samples, …).

        directions_at_once: how many directions of the output curvature are back-propagated in
        one batched pass (None: all on a GPU, one on a CPU, where that is faster).
        """
        recording = self._record(inputs)
        head = recording.head()
        if head is None:
            start = averaged = average_samples(recording.outputs, samples)
            directions = cotangents = likelihood.curvature_root(averaged)
        else:
            # f̄ = W mean_s(a_s) + b: gradients start from the averaged input of the last layer,
            # and a Linear layer that reaches it through an elementwise φ has the gradient
            # Σ_s ĝ_s = Wᵀr ⊙ mean_s φ′(z_s). Both cost one example, not one sample, a direction.
            start = average_samples(head.inputs, samples)
            weight, bias = _constants(head.module)
            averaged = functional.linear(start, weight, bias)
            directions = likelihood.curvature_root(averaged)
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
            if before is not None:
                slopes = _elementwise_slopes(head.inputs, before.output, create_graph)
                shortcuts[before] = cotangents * average_samples(slopes, samples)
        others = [call for call in recording.calls if call not in shortcuts]
        gradients = self._gradients(
            start, others, cotangents, samples, create_graph, directions_at_once
        )
        for call, gradient in (*zip(others, gradients, strict=True), *shortcuts.items()):
            rule = self._layers[call.layer].rule
            reduced = rule.reduce_inputs(call.module, call.inputs, samples)
            uses[call.layer].append(Use(start if call is head else reduced, gradient))
        return BatchCurvature(averaged, self._roots(uses, create_graph))

    def _record(self, inputs: Tensor) -> Recording:
        modules = {name: layer.module for name, layer in self._layers.items()}
        return record(self.network, modules, inputs)

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
        samples: int,
        create_graph: bool,
        at_once: int,
    ) -> list[Tensor]:
        """Per call, the gradients of each cotangent · start, reduced over samples.

        cotangents (directions, batch, features) → a list of (directions, batch, …).
        """
        if not calls:
            return []
        parts: list[list[Tensor]] = [[] for _ in calls]
        for chunk in cotangents.split(at_once):
            batched = len(chunk) > 1
            found: Sequence[Tensor | None] = torch.autograd.grad(
                start,
                [call.output for call in calls],
                chunk if batched else chunk[0],
                retain_graph=True,
                create_graph=create_graph,
                is_grads_batched=batched,
                allow_unused=True,
            )
            for part, call, gradient in zip(parts, calls, found, strict=True):
                if gradient is None:  # what the layer returned is not used
                    raw = call.output.new_zeros(len(chunk), *call.output.shape)
                else:
                    raw = gradient if batched else gradient[None]
                rule = self._layers[call.layer].rule
                part.append(rule.reduce_gradient(call.module, call.inputs, raw, samples))
        return [torch.cat(part) for part in parts]

    def _roots(self, uses: dict[str, list[Use]], create_graph: bool) -> dict[str, Roots]:
        roots: dict[str, Roots] = {}
        for layer_name, (module, rule) in self._layers.items():
            if not uses[layer_name]:
                raise CallerError(
                    f"layer {layer_name!r} has trainable parameters but was not called in the "
                    "forward pass; freeze it with requires_grad_(False) or remove it"
                )
            prefix = f"{layer_name}." if layer_name else ""
            for name, root in rule.roots(module, uses[layer_name]).items():
                if prefix + name in self.parameter_names:
                    if isinstance(root, DenseRoots) and root.output_of is not None:
                        root = replace(root, output_of=prefix + root.output_of)
                    roots[prefix + name] = root if create_graph else _detach(root)
        return roots


def average_samples(rows: Tensor, samples: int) -> Tensor:
    """Mean over samples: (batch·samples, …) → (batch, …).

    Scaled after the sum: its gradient is then a broadcast view, where that of `mean` is divided
    and written out once per sample.
    """
    return split_samples(rows, samples).sum(1) * (1 / samples)


def _elementwise_slopes(values: Tensor, arguments: Tensor, create_graph: bool) -> Tensor:
    """φ′(z) where values = φ(arguments) elementwise."""
    (slopes,) = torch.autograd.grad(
        values, arguments, torch.ones_like(values), retain_graph=True, create_graph=create_graph
    )
    return slopes


def _constants(linear: nn.Module) -> tuple[Tensor, Tensor | None]:
    assert isinstance(linear, nn.Linear)
    return linear.weight.detach(), None if linear.bias is None else linear.bias.detach()


def _detach(root: Roots) -> Roots:
    if isinstance(root, DenseRoots):
        return replace(root, rows=root.rows.detach())
    return replace(root, inputs=root.inputs.detach(), outputs=root.outputs.detach())
