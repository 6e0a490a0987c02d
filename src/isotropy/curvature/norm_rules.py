"""Normalisation layers: exact dense blocks for the gain γ and the shift β.

    y = γ ⊙ x̂ + β            x̂ the input normalised by the layer's own statistics

    j_γ = Σ_s Σ_t ĝ ⊙ x̂       j_β = Σ_s Σ_t ĝ           block H = Σ_n Σ_d j jᵀ

over copies s (ĝ carries their weights already), and positions t where the layer shares its
parameters: pixels of a batch, group or instance normalisation, tokens of a layer normalisation.

BatchNorm normalises by its running statistics, which are constants, as everywhere in the library:
the statistics of a batch would make an example's output depend on its neighbours. It must
therefore have them. The statistics of the other layers come from the input, and their derivatives
are part of the graph. Which weights in front of those are scale-invariant: `scale_invariance`.
Oracle: tests/oracles/dense_ggn.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import CallerError
from isotropy.curvature.copies import Copies
from isotropy.curvature.kronecker import DenseRoots, Roots
from isotropy.curvature.layer_rules import LayerRule, Use, register_rule


class NormRule(LayerRule):
    """γ and β of a layer whose `normalised(module, inputs)` is x̂, of the shape of the input.

    trailing: whether the parameters belong to the last axes (LayerNorm) or to axis 1, channels.
    """

    def __init__(
        self, normalised: Callable[[nn.Module, Tensor], Tensor], *, trailing: bool
    ) -> None:
        self.parameters = ("weight", "bias")
        self.normalised = normalised
        self.trailing = trailing

    def reduce_inputs(self, module: nn.Module, inputs: Tensor, copies: Copies) -> Tensor:
        """Nothing: `reduce_gradient` sees the inputs, copy by copy."""
        return inputs.new_zeros(())

    def reduce_gradient(
        self, module: nn.Module, inputs: Tensor, gradient: Tensor, copies: Copies
    ) -> Tensor:
        """(directions, batch·copies, …) → j_γ and j_β, (directions, batch, 2, parameters)."""
        both = torch.stack([gradient * self.normalised(module, inputs), gradient], 2)
        summed = self._over_positions(module, both)
        return summed.unflatten(1, (-1, copies.count)).sum(2)

    def _over_positions(self, module: nn.Module, both: Tensor) -> Tensor:
        """(directions, rows, 2, …) → (directions, rows, 2, parameters)."""
        if not self.trailing:
            return both.flatten(4).sum(4) if both.ndim > 4 else both
        assert isinstance(module, nn.LayerNorm | nn.RMSNorm)
        parameters = both.flatten(both.ndim - len(module.normalized_shape))
        return parameters.flatten(3, -2).sum(3) if parameters.ndim > 4 else parameters

    def roots(self, module: nn.Module, uses: Sequence[Use]) -> dict[str, Roots]:
        """The exact blocks, from the sum over uses."""
        total = sum((use.gradient for use in uses[1:]), start=uses[0].gradient).flatten(0, 1)
        present = (name for name in self.parameters if getattr(module, name, None) is not None)
        return {name: DenseRoots(total[:, self.parameters.index(name)]) for name in present}


class BatchNormRule(NormRule):
    """Batch normalisation by running statistics; refused without them."""

    def check(self, module: nn.Module, name: str) -> None:
        check_running_statistics(module, name)


def check_running_statistics(module: nn.Module, name: str) -> None:
    """Raise CallerError for a batch normalisation that knows the statistics of batches only."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
        raise CallerError(
            f"layer {name!r} of type {type(module).__name__}: expected running statistics, got "
            "none, so that each output depends on the whole batch and has no curvature of its own; "
            "make it with track_running_stats=True"
        )


def _by_running_statistics(module: nn.Module, inputs: Tensor) -> Tensor:
    assert isinstance(module, nn.modules.batchnorm._BatchNorm)
    return functional.batch_norm(inputs, module.running_mean, module.running_var, eps=module.eps)


def _by_instance(module: nn.Module, inputs: Tensor) -> Tensor:
    assert isinstance(module, nn.modules.instancenorm._InstanceNorm)
    return functional.instance_norm(
        inputs,
        module.running_mean,
        module.running_var,
        use_input_stats=not module.track_running_stats,
        eps=module.eps,
    )


def _by_group(module: nn.Module, inputs: Tensor) -> Tensor:
    assert isinstance(module, nn.GroupNorm)
    return functional.group_norm(inputs, module.num_groups, eps=module.eps)


def _by_layer(module: nn.Module, inputs: Tensor) -> Tensor:
    assert isinstance(module, nn.LayerNorm)
    return functional.layer_norm(inputs, list(module.normalized_shape), eps=module.eps)


def _by_root_mean_square(module: nn.Module, inputs: Tensor) -> Tensor:
    assert isinstance(module, nn.RMSNorm)
    return functional.rms_norm(inputs, list(module.normalized_shape), eps=module.eps)


register_rule(nn.BatchNorm1d, BatchNormRule(_by_running_statistics, trailing=False))
register_rule(nn.BatchNorm2d, BatchNormRule(_by_running_statistics, trailing=False))
register_rule(nn.BatchNorm3d, BatchNormRule(_by_running_statistics, trailing=False))
register_rule(nn.InstanceNorm1d, NormRule(_by_instance, trailing=False))
register_rule(nn.InstanceNorm2d, NormRule(_by_instance, trailing=False))
register_rule(nn.InstanceNorm3d, NormRule(_by_instance, trailing=False))
register_rule(nn.GroupNorm, NormRule(_by_group, trailing=False))
register_rule(nn.LayerNorm, NormRule(_by_layer, trailing=True))
register_rule(nn.RMSNorm, NormRule(_by_root_mean_square, trailing=True))
