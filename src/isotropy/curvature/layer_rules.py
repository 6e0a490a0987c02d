"""One rule per kind of layer: how its parameters' Jacobian splits into curvature roots.

For a network whose outputs are averaged over S transformed copies of each example, the
Jacobian of a layer y = W a is (1/S) Σ_s g_s ⊗ a_s. LILA (Immer et al. 2022, Eq. 14) keeps the
Kronecker form by

    (1/S) Σ_s g_s ⊗ a_s  ≈  (Σ_s ĝ_s) ⊗ (mean_s a_s)        ĝ_s = g_s/S ,

where ĝ_s is what back-propagation from the *averaged* output delivers; with weights w_s in place
of 1/S it is (Σ_s w_s g_s) ⊗ (Σ_s w_s a_s). So, over examples n,
directions d of the output curvature and positions t where the weight is shared (pixels of a
convolution, tokens, repeated uses of a layer; T in all):

    A = Σ_n Σ_t ā āᵀ          G = (1/T) Σ_n Σ_d Σ_t ĝ ĝᵀ         block (1/N) G ⊗ A  (Eq. 7, 15)

Biases and scalars need no Kronecker form; their blocks are the exact ones,
H = Σ_n Σ_d j jᵀ with j the sum of the gradient over samples and positions.

A rule for a layer of your own:

    class MyRule(LayerRule):
        parameters = ("gain",)
        def roots(self, module, uses): ...
    register_rule(MyLayer, MyRule())
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isotropy.curvature.copies import Copies
from isotropy.curvature.kronecker import DenseRoots, KroneckerRoots, Roots


@dataclass(frozen=True)
class Use:
    """One call of a layer, reduced over copies.

    inputs    (batch, …)              by default the mean over copies
    gradient  (directions, batch, …)  by default the sum over copies
    """

    inputs: Tensor
    gradient: Tensor


class LayerRule:
    """How one kind of layer contributes curvature for its `parameters`.

    The two `reduce_` methods see all copies, (batch·copies, …) with copies fastest, and
    decide what is kept of them; `roots` turns what was kept into one entry per parameter.
    """

    parameters: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    """Parameters that are trained, but constants of the evidence: no curvature and no prior."""

    def reduce_inputs(self, module: nn.Module, inputs: Tensor, copies: Copies) -> Tensor:
        """What is kept of a call's inputs (batch·copies, …): by default the mean over copies."""
        return copies.mean(inputs)

    def reduce_gradient(
        self, module: nn.Module, inputs: Tensor, gradient: Tensor, copies: Copies
    ) -> Tensor:
        """What is kept of gradients (directions, batch·copies, …): by default the sum.

        They come from the averaged output and carry the copies' weights already.
        """
        return gradient.unflatten(1, (-1, copies.count)).sum(2)

    @property
    def sums_gradients(self) -> bool:
        """Whether `reduce_gradient` is the sum."""
        return type(self).reduce_gradient is LayerRule.reduce_gradient

    def roots(self, module: nn.Module, uses: Sequence[Use]) -> dict[str, Roots]:
        """Curvature roots by parameter name, from all uses of the layer in one batch."""
        raise NotImplementedError

    def check(self, module: nn.Module, name: str) -> None:
        """Raise if this particular layer is beyond the rule."""


_RULES: dict[type[nn.Module], LayerRule] = {}


def register_rule(kind: type[nn.Module], rule: LayerRule) -> None:
    """Make `rule` the rule for modules of exactly this type (subclasses register their own)."""
    _RULES[kind] = rule


def rule_for(module: nn.Module) -> LayerRule | None:
    """The rule for this module, or None."""
    return _RULES.get(type(module))


def supported_layers() -> tuple[str, ...]:
    """Names of the layer types that have a rule."""
    return tuple(sorted(kind.__name__ for kind in _RULES))


def _rows(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate positions of several uses, (…, positions, features) → (1, rows, features)."""
    joined = torch.cat(list(parts), dim=-2) if len(parts) > 1 else parts[0]
    return joined.flatten(0, -2)[None]


def bias_roots(position_sums: Sequence[Tensor]) -> DenseRoots:
    """Exact bias block from gradients summed over positions, one (directions, batch, out) a use."""
    return DenseRoots(sum(position_sums[1:], start=position_sums[0]).flatten(0, -2))


class LinearRule(LayerRule):
    """y = W a + b on (batch, …, in); every axis between is a position the weight is shared over.

    weight, bias: what the layer calls its W and its b (which may be None).
    """

    def __init__(self, weight: str = "weight", bias: str = "bias") -> None:
        self.parameters = (weight, bias)

    def roots(self, module: nn.Module, uses: Sequence[Use]) -> dict[str, Roots]:
        inputs = [
            use.inputs.flatten(1, -2) if use.inputs.ndim > 2 else use.inputs[:, None]
            for use in uses
        ]
        gradients = [
            use.gradient.flatten(2, -2) if use.gradient.ndim > 3 else use.gradient[:, :, None]
            for use in uses
        ]
        positions = sum(part.shape[1] for part in inputs)
        weight, bias = self.parameters
        root = KroneckerRoots(_rows(inputs), _rows(gradients) / math.sqrt(positions))
        roots: dict[str, Roots] = {weight: root}
        if getattr(module, bias) is not None and positions == 1:
            roots[bias] = DenseRoots(root.outputs[0], output_of=weight)
        elif getattr(module, bias) is not None:
            roots[bias] = bias_roots([part.sum(2) for part in gradients])
        return roots


register_rule(nn.Linear, LinearRule())
