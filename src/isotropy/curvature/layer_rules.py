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

Convolutions and transposed convolutions in one, two and three dimensions.

A convolution is a Linear layer on patches, shared over output positions t, with one block a group:

    y_t = W a_t + b          a_t the patch that output position t sees

    A = Σ_n Σ_t ā āᵀ         G = (1/T) Σ_n Σ_d Σ_t ĝ ĝᵀ          block (1/N) G ⊗ A

A transposed convolution sends what it has at *input* position t to a patch of the output. Its
weight (in, out/groups, kernel) meets the input with its slow index, so the roles are exchanged:
x_t are the channels at input position t and ĝ_t is the patch of the output's gradient there,

    ∂/∂W = Σ_t x_t ⊗ ĝ_t     block (1/N) [Σ_n Σ_t x̄ x̄ᵀ] ⊗ [(1/T) Σ_n Σ_d Σ_t ĝ ĝᵀ]

(Grosse & Martens 2016; with copies, Immer et al. 2022, Eq. 7 and 15). Biases have exact blocks.
Patches are linear in what they are cut from, so they are cut after the reduction over copies.
Axes: images (batch, channels, *space), patches (batch, groups, positions, channels · kernel) with
the order of `weight.flatten(1)`. Oracle: tests/oracles/dense_kfac.py, position by position.

Normalisation layers: exact dense blocks for the gain γ and the shift β.

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

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import CallerError
from isotropy.curvature.blocks import DenseRoots, KroneckerRoots, Roots
from isotropy.curvature.copies import Copies


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


_Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
_Transposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d

_PADDING_MODES = ("zeros", "circular", "reflect", "replicate")


class ConvolutionRule(LayerRule):
    """nn.Conv1d, nn.Conv2d, nn.Conv3d: stride, padding of every mode, dilation, groups."""

    parameters = ("weight", "bias")

    def roots(self, module: nn.Module, uses: Sequence[Use]) -> dict[str, Roots]:
        """A from patches of the inputs, G from the gradients at output positions."""
        assert isinstance(module, _Convolution)
        into = [_patches(module, _padded(module, use.inputs)) for use in uses]
        back = [_by_position(use.gradient, module.groups, 2) for use in uses]
        roots: dict[str, Roots] = {
            "weight": KroneckerRoots(
                _rows_by_group(into), _rows_by_group(back) / _root_of_positions(into)
            )
        }
        if module.bias is not None:
            roots["bias"] = bias_roots([use.gradient.flatten(3).sum(3) for use in uses])
        return roots

    def check(self, module: nn.Module, name: str) -> None:
        assert isinstance(module, _Convolution)
        if module.padding_mode not in _PADDING_MODES:
            raise CallerError(
                f"layer {name!r}: expected one of the padding modes {', '.join(_PADDING_MODES)}, "
                f"got {module.padding_mode!r}; choose one of them"
            )


class TransposedConvolutionRule(LayerRule):
    """nn.ConvTranspose1d, 2d, 3d: positions are those of the input, roles are exchanged."""

    parameters = ("weight", "bias")

    def roots(self, module: nn.Module, uses: Sequence[Use]) -> dict[str, Roots]:
        """The slow factor from the inputs, the fast one from patches of the gradients."""
        assert isinstance(module, _Transposed)
        into = [_by_position(use.inputs, module.groups, 1) for use in uses]
        back = [_gradient_patches(module, use) for use in uses]
        roots: dict[str, Roots] = {
            "weight": KroneckerRoots(
                inputs=_rows_by_group(back) / _root_of_positions(into), outputs=_rows_by_group(into)
            )
        }
        if module.bias is not None:
            roots["bias"] = bias_roots([use.gradient.flatten(3).sum(3) for use in uses])
        return roots


def _root_of_positions(parts: Sequence[Tensor]) -> float:
    """√T, positions of all uses together, from (…, positions, features)."""
    return math.sqrt(sum(part.shape[-2] for part in parts))


def _rows_by_group(parts: Sequence[Tensor]) -> Tensor:
    """(…, groups, positions, features) of every use → (groups, rows, features)."""
    rows = [part.movedim(-3, 0).flatten(1, -2) for part in parts]
    return torch.cat(rows, 1) if len(rows) > 1 else rows[0]


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


register_rule(nn.Conv1d, ConvolutionRule())
register_rule(nn.Conv2d, ConvolutionRule())
register_rule(nn.Conv3d, ConvolutionRule())
register_rule(nn.ConvTranspose1d, TransposedConvolutionRule())
register_rule(nn.ConvTranspose2d, TransposedConvolutionRule())
register_rule(nn.ConvTranspose3d, TransposedConvolutionRule())


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
