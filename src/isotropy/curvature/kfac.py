"""KFAC of the generalised Gauss–Newton for networks averaged over transformed copies.

One forward pass records what enters and leaves every layer; back-propagating the roots of the
output curvature to the recorded outputs gives the layers' Jacobians; `layer_rules` turn both
into roots of the curvature blocks. Nothing else is computed: the weights are constants here, so
no weight gradient is formed, and without a graph to the inputs none to them either.

With `create_graph=True` the roots are differentiable in everything the inputs depend on, the
transformation's parameters above all. Public KFAC codes detach at this point.

Rows are (batch·samples, …) with samples fastest; outputs are averaged over samples before the
likelihood sees them (Immer et al. 2022, Eq. 11). Oracle: tests/oracles/dense_ggn.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from isotropy.checks import CallerError, shape_text
from isotropy.curvature.kronecker import Factors, Roots
from isotropy.curvature.layer_rules import (
    LayerRule,
    Use,
    rule_for,
    split_samples,
    supported_layers,
)
from isotropy.likelihoods import Likelihood


@dataclass(frozen=True)
class BatchCurvature:
    """Averaged outputs (batch, outputs) and one entry of roots per parameter name."""

    outputs: Tensor
    roots: dict[str, Roots]

    def factors(self) -> dict[str, Factors]:
        return {name: root.factors() for name, root in self.roots.items()}


@dataclass
class _Call:
    """One recorded call of a layer: its input and its output before anything else used it."""

    inputs: Tensor
    output: Tensor
    version: int


class KFAC:
    """Curvature of one network, reusable over batches.

    Raises at construction, naming the layer, if a trainable parameter belongs to a module without
    a rule. Parameters that do not require gradients are constants and get no block.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self._layers: dict[str, tuple[nn.Module, LayerRule]] = {}
        self._copy_outputs = any(getattr(m, "inplace", False) for m in network.modules())
        self.parameter_names = self._find_layers()

    def _find_layers(self) -> tuple[str, ...]:
        owner: dict[int, str] = {}
        names: list[str] = []
        for layer_name, module in self.network.named_modules():
            own = {
                name: parameter
                for name, parameter in module.named_parameters(recurse=False)
                if parameter.requires_grad
            }
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
            self._layers[layer_name] = (module, rule)
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
        outputs, calls = self._record(inputs)
        averaged = average_outputs(outputs, samples)
        directions = likelihood.curvature_root(averaged)
        if not create_graph:
            directions = directions.detach()
        if directions_at_once is None:
            directions_at_once = len(directions) if inputs.is_cuda else 1
        recorded = [(name, call) for name, found in calls.items() for call in found]
        gradients = self._gradients(
            averaged, recorded, directions, samples, create_graph, directions_at_once
        )
        roots: dict[str, Roots] = {}
        position = 0
        for layer_name, (module, rule) in self._layers.items():
            uses = []
            for call in calls.get(layer_name, []):
                reduced = rule.reduce_inputs(module, call.inputs, samples)
                uses.append(Use(reduced, gradients[position]))
                position += 1
            if not uses:
                raise CallerError(
                    f"layer {layer_name!r} has trainable parameters but was not called in the "
                    "forward pass; freeze it with requires_grad_(False) or remove it"
                )
            prefix = f"{layer_name}." if layer_name else ""
            for name, root in rule.roots(module, uses).items():
                if prefix + name in self.parameter_names:
                    roots[prefix + name] = root if create_graph else _detach(root)
        return BatchCurvature(averaged if create_graph else averaged.detach(), roots)

    def _record(self, inputs: Tensor) -> tuple[Tensor, dict[str, list[_Call]]]:
        """Run the network on constant weights; return outputs and every layer's calls."""
        calls: dict[str, list[_Call]] = {name: [] for name in self._layers}
        constants = {name: p.detach() for name, p in self.network.named_parameters()}
        with self._hooks(calls), evaluation_mode(self.network):
            outputs = functional_call(self.network, constants, (inputs,))
        if not isinstance(outputs, Tensor) or outputs.ndim != 2:
            came = shape_text(outputs) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise CallerError(f"network outputs: expected (batch, outputs), got {came}")
        for name, found in calls.items():
            if any(call.output._version != call.version for call in found):
                raise CallerError(
                    f"the output of layer {name!r} is changed in place by what follows it; use "
                    "the out-of-place form (relu instead of relu_)"
                )
        return outputs, calls

    @contextmanager
    def _hooks(self, calls: dict[str, list[_Call]]) -> Iterator[None]:
        def record(name: str, inputs: Tensor, output: Tensor) -> Tensor:
            if not output.requires_grad:
                output.requires_grad_()
            # An in-place operation must not reach the recorded output.
            handed_on = output.clone() if self._copy_outputs else output
            calls[name].append(_Call(inputs, output, output._version))
            return handed_on

        handles = [
            module.register_forward_hook(
                lambda _, arguments, output, name=name: record(name, arguments[0], output)
            )
            for name, (module, _) in self._layers.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _gradients(
        self,
        averaged: Tensor,
        recorded: list[tuple[str, _Call]],
        directions: Tensor,
        samples: int,
        create_graph: bool,
        at_once: int,
    ) -> list[Tensor]:
        """Per recorded call, gradients of r_d · f̄, reduced over samples: (directions, batch, …)."""
        parts: list[list[Tensor]] = [[] for _ in recorded]
        for chunk in directions.split(at_once):
            batched = len(chunk) > 1
            found = torch.autograd.grad(
                averaged,
                [call.output for _, call in recorded],
                chunk if batched else chunk[0],
                retain_graph=True,
                create_graph=create_graph,
                is_grads_batched=batched,
                materialize_grads=True,
            )
            for part, (name, call), gradient in zip(parts, recorded, found, strict=True):
                module, rule = self._layers[name]
                raw = gradient if batched else gradient[None]
                part.append(rule.reduce_gradient(module, call.inputs, raw, samples))
        return [torch.cat(part) for part in parts]


def average_outputs(outputs: Tensor, samples: int) -> Tensor:
    """Mean over samples: (batch·samples, outputs) → (batch, outputs)."""
    return split_samples(outputs, samples).mean(1)


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Dropout off and statistics fixed inside, every module's own mode restored after."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _detach(root: Roots) -> Roots:
    return type(root)(*(tensor.detach() for tensor in root.tensors()))
