"""One rule per kind of layer: how its parameters' Jacobian splits into curvature roots.

For a network whose outputs are averaged over S transformed copies of each example, the Jacobian of
a layer y = W a is (1/S) Σ_s g_s ⊗ a_s. LILA (Immer et al. 2022, Eq. 14) keeps the Kronecker form by

    (1/S) Σ_s g_s ⊗ a_s  ≈  (Σ_s ĝ_s) ⊗ (mean_s a_s)        ĝ_s = g_s/S ,

where ĝ_s is what back-propagation from the *averaged* output delivers; with weights w_s in place of
1/S it is (Σ_s w_s g_s) ⊗ (Σ_s w_s a_s). So, over examples n, directions d of the output curvature
and the T positions t where the weight is shared (pixels, tokens, repeated uses of a layer):

    A = Σ_n Σ_t ā āᵀ          G = (1/T) Σ_n Σ_d Σ_t ĝ ĝᵀ         block (1/N) G ⊗ A  (Eq. 7, 15)

    Linear          a_t is the input at position t
    convolution     a_t is the patch that output position t sees; one block a group (Grosse &
                    Martens 2016)
    transposed      the weight (in, out/groups, kernel) meets the input with its slow index, so
    convolution     the roles are exchanged: G ← Σ_n Σ_t x̄ x̄ᵀ of the channels x_t at *input*
                    position t, A ← (1/T) Σ_n Σ_d Σ_t ĝ ĝᵀ of the gradient's patch that t reaches
    normalisation   y = γ ⊙ x̂ + β has exact dense blocks H = Σ_n Σ_d j jᵀ with
                    j_γ = Σ_s Σ_t ĝ ⊙ x̂ and j_β = Σ_s Σ_t ĝ

Biases and scalars need no Kronecker form either: j is the gradient summed over copies and
positions. Patches are linear in what they are cut from, and are cut after the reduction over
copies. Axes: images (batch, channels, *space), patches (batch, groups, positions, channels ·
kernel) with the order of `weight.flatten(1)`.

BatchNorm normalises by its running statistics, which are constants, as everywhere in the library:
the statistics of a batch would make an example's output depend on its neighbours. It must
therefore have them. The statistics of the other layers come from the input, and their derivatives
are part of the graph. Which weights in front of those are scale-invariant: `scale_invariance`.

A rule for a layer of your own:

    class MyRule(LayerRule):
        parameters = ("gain",)
        def roots(self, module, uses): ...
    register_rule(MyLayer, MyRule())

Oracles: tests/oracles/dense_kfac.py, position by position, and tests/oracles/dense_ggn.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import CallerError
from isotropy.curvature.blocks import DenseRoots, KroneckerRoots, Roots
from isotropy.curvature.kinds import Copies


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

    def takes_positions(self, module: nn.Module) -> bool:
        """Whether axes between the batch and the features are positions that are shared over."""
        return False

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
    """Make `rule` the rule for modules of this type, and of subclasses with its forward pass."""
    _RULES[kind] = rule


def rule_for(module: nn.Module) -> LayerRule | None:
    """The rule for this module, or None.

    A subclass has the rule of its parent where its forward pass is the parent's own.
    """
    kind = type(module)
    for parent in kind.__mro__:
        if parent in _RULES:
            return _RULES[parent] if kind.forward is parent.forward else None
    return None


def supported_layers() -> tuple[str, ...]:
    """Names of the layer types that have a rule."""
    return tuple(sorted(kind.__name__ for kind in _RULES))


def _rows(parts: Sequence[Tensor]) -> Tensor:
    """(…, groups, positions, features) of every use → (groups, rows, features)."""
    rows = [part.movedim(-3, 0).flatten(1, -2) for part in parts]
    return torch.cat(rows, 1) if len(rows) > 1 else rows[0]


def _positions(parts: Sequence[Tensor]) -> int:
    """T, positions of all uses together, from (…, positions, features)."""
    return sum(part.shape[-2] for part in parts)


def bias_roots(position_sums: Sequence[Tensor]) -> DenseRoots:
    """Exact bias block from gradients summed over positions, one (directions, batch, out) a use."""
    return DenseRoots(sum(position_sums[1:], start=position_sums[0]).flatten(0, -2))


class LinearRule(LayerRule):
    """y = W a + b on (batch, …, in); every axis between is a position the weight is shared over.

    weight, bias: what the layer calls its W and its b (which may be None).
    """

    def __init__(self, weight: str = "weight", bias: str = "bias") -> None:
        self.parameters = (weight, bias)

    def takes_positions(self, module: nn.Module) -> bool:
        return True

    def roots(self, module: nn.Module, uses: Sequence[Use]) -> dict[str, Roots]:
        # (batch, 1, positions, in) and (directions, batch, 1, positions, out)
        into = [use.inputs.reshape(len(use.inputs), 1, -1, use.inputs.shape[-1]) for use in uses]
        back = [g.reshape(*g.shape[:2], 1, -1, g.shape[-1]) for g in (u.gradient for u in uses)]
        weight, bias = self.parameters
        root = KroneckerRoots(_rows(into), _rows(back) / math.sqrt(_positions(into)))
        roots: dict[str, Roots] = {weight: root}
        if getattr(module, bias) is not None and _positions(into) == 1:
            roots[bias] = DenseRoots(root.outputs[0], output_of=weight)
        elif getattr(module, bias) is not None:
            roots[bias] = bias_roots([part.sum((2, 3)) for part in back])
        return roots


register_rule(nn.Linear, LinearRule())


_Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
_Transposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d

_PADDING_MODES = ("zeros", "circular", "reflect", "replicate")


class ConvolutionRule(LayerRule):
    """nn.Conv1d, nn.Conv2d, nn.Conv3d: stride, padding of every mode, dilation, groups."""

    parameters = ("weight", "bias")

    def roots(self, module: nn.Module, uses: Sequence[Use]) -> dict[str, Roots]:
        """A from patches of the inputs, G from the gradients at output positions."""
        into, back = zip(*(self._by_position(module, use) for use in uses), strict=True)
        entering, leaving = _rows(into), _rows(back) / math.sqrt(_positions(into))
        roots: dict[str, Roots] = {"weight": self._weight_roots(entering, leaving)}
        if module.bias is not None:
            roots["bias"] = bias_roots([use.gradient.flatten(3).sum(3) for use in uses])
        return roots

    def _by_position(self, module: Any, use: Use) -> tuple[Tensor, Tensor]:
        """What enters and what comes back, (…, groups, positions, features)."""
        patches = _patches(module, _padded(module, use.inputs))
        return patches, _by_position(use.gradient, module.groups, 2)

    def _weight_roots(self, entering: Tensor, leaving: Tensor) -> KroneckerRoots:
        return KroneckerRoots(inputs=entering, outputs=leaving)

    def check(self, module: nn.Module, name: str) -> None:
        if module.padding_mode not in _PADDING_MODES:
            raise CallerError(
                f"layer {name!r}: expected one of the padding modes {', '.join(_PADDING_MODES)}, "
                f"got {module.padding_mode!r}; choose one of them"
            )


class TransposedConvolutionRule(ConvolutionRule):
    """nn.ConvTranspose1d, 2d, 3d: positions are those of the input, roles are exchanged."""

    def _by_position(self, module: Any, use: Use) -> tuple[Tensor, Tensor]:
        return _by_position(use.inputs, module.groups, 1), _gradient_patches(module, use)

    def _weight_roots(self, entering: Tensor, leaving: Tensor) -> KroneckerRoots:
        return KroneckerRoots(inputs=leaving, outputs=entering)


def _by_position(maps: Tensor, groups: int, leading: int) -> Tensor:
    """(*leading axes, channels, *space) → (*leading axes, groups, positions, channels a group)."""
    return maps.flatten(leading + 1).unflatten(leading, (groups, -1)).mT


def _padded(module: _Convolution, images: Tensor) -> Tensor:
    # torch keeps the padding as `functional.pad` wants it, resolved for "same" and "valid".
    padding = module._reversed_padding_repeated_twice
    if not any(padding):
        return images
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return functional.pad(images, padding, mode=mode)


def _gradient_patches(module: _Transposed, use: Use) -> Tensor:
    """What each input position reaches: (directions·batch, groups, positions, out · kernel)."""
    assert isinstance(module.padding, tuple)
    sides = [side for padding in reversed(module.padding) for side in (padding, padding)]
    gradient = functional.pad(use.gradient.flatten(0, 1), sides)
    # `output_padding` and `output_size` add a rim at the far end that no position reaches.
    for axis, size in enumerate(use.inputs.shape[2:]):
        reach = module.dilation[axis] * (module.kernel_size[axis] - 1) + 1
        gradient = gradient.narrow(axis + 2, 0, (size - 1) * module.stride[axis] + reach)
    return _patches(module, gradient)


def _patches(module: _Convolution | _Transposed, images: Tensor) -> Tensor:
    """The windows of padded images: (batch, groups, positions, channels of a group · kernel)."""
    # torch has a fast kernel for two dimensions, which on a GPU is launched once for every image.
    if images.ndim == 4 and not images.is_cuda:
        columns = functional.unfold(
            images, module.kernel_size, dilation=module.dilation, stride=module.stride
        )
        return columns.unflatten(1, (module.groups, -1)).mT
    return _windows(module, images)


def _windows(module: _Convolution | _Transposed, images: Tensor) -> Tensor:
    """`_patches` in any number of dimensions: a view, and one copy of it."""
    dimensions = images.ndim - 2
    windows = images.unflatten(1, (module.groups, -1))
    for axis in range(dimensions):
        dilation = module.dilation[axis]
        reach = dilation * (module.kernel_size[axis] - 1) + 1
        windows = windows.unfold(axis + 3, reach, module.stride[axis])
        if dilation > 1:  # the derivative of a slice is a copy into zeros
            windows = windows[..., ::dilation]
    # (batch, groups, channels, *positions, *kernel), the channels go behind the positions
    windows = windows.movedim(2, dimensions + 2)
    return windows.flatten(dimensions + 2).flatten(2, -2)


for _convolution in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
    register_rule(_convolution, ConvolutionRule())
for _transposed in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d):
    register_rule(_transposed, TransposedConvolutionRule())


class NormRule(LayerRule):
    """γ and β of a layer whose `normalised(module, inputs)` is x̂, of the shape of the input.

    trailing: whether the parameters belong to the last axes (LayerNorm) or to axis 1, channels.
    """

    parameters = ("weight", "bias")

    def __init__(self, normalised: Callable[[Any, Tensor], Tensor], *, trailing: bool) -> None:
        self.normalised = normalised
        self.trailing = trailing

    def takes_positions(self, module: nn.Module) -> bool:
        return self.trailing

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


def check_running_statistics(module: nn.Module, name: str) -> None:
    """Raise CallerError for a batch normalisation that knows the statistics of batches only."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
        raise CallerError(
            f"layer {name!r} of type {type(module).__name__}: expected running statistics, got "
            "none, so that each output depends on the whole batch and has no curvature of its own; "
            "make it with track_running_stats=True"
        )


def _by_running_statistics(module: Any, inputs: Tensor) -> Tensor:
    return functional.batch_norm(inputs, module.running_mean, module.running_var, eps=module.eps)


def _by_instance(module: Any, inputs: Tensor) -> Tensor:
    own = not module.track_running_stats
    mean, variance = module.running_mean, module.running_var
    return functional.instance_norm(inputs, mean, variance, use_input_stats=own, eps=module.eps)


def _by_group(module: Any, inputs: Tensor) -> Tensor:
    return functional.group_norm(inputs, module.num_groups, eps=module.eps)


def _by_layer(module: Any, inputs: Tensor) -> Tensor:
    return functional.layer_norm(inputs, list(module.normalized_shape), eps=module.eps)


def _by_root_mean_square(module: Any, inputs: Tensor) -> Tensor:
    return functional.rms_norm(inputs, list(module.normalized_shape), eps=module.eps)


for _batch in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
    register_rule(_batch, NormRule(_by_running_statistics, trailing=False))
for _instance in (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d):
    register_rule(_instance, NormRule(_by_instance, trailing=False))
register_rule(nn.GroupNorm, NormRule(_by_group, trailing=False))
register_rule(nn.LayerNorm, NormRule(_by_layer, trailing=True))
register_rule(nn.RMSNorm, NormRule(_by_root_mean_square, trailing=True))
