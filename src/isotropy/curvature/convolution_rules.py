"""Convolutions and transposed convolutions in one, two and three dimensions.

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
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import CallerError
from isotropy.curvature.kronecker import KroneckerRoots, Roots
from isotropy.curvature.layer_rules import LayerRule, Use, bias_roots, register_rule

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
