"""Which layers are scale-invariant: only the direction of their parameters matters.

    f(c·θ_l) = f(θ_l)   for all c > 0            weights and biases of layer l together

That is what a normalisation by the statistics of its own input does to the layers in front of it.
Under a Gaussian prior such a layer has no posterior mode, since shrinking it costs nothing, while
its direction has the same prior, uniform on the sphere, whatever the precision is (van Laarhoven
2017; Antorán et al. 2022). An evidence needs to know these layers.

They are found by asking the network, not by reading its structure, at a few points for each layer:

    radial   largest change of the outputs under θ_l → 2 θ_l and θ_l → ½ θ_l
    other    largest change under θ_l → c ⊙ θ_l, with numbers c between −1 and 1, one an entry

A layer is scale-invariant if `radial` is less than a hundredth of `other`, and the change from
c ⊙ θ_l to twice that as well: a bias that silences all ReLUs behind it does so at twice its size
too, but not with the other sign. The small number inside
a normalisation makes `radial` a little larger than zero, and the quotient is blind to how much of
the output the layer makes up: a layer of a branch that hardly counts is no more invariant than
others. A tensor of zeros, the usual start of biases and of last layers, would hide what it
multiplies; in its place the network is asked with small numbers.

A network in single precision is asked in it first, which takes a tenth of the time on large images.
Layers that are within a factor of ten of one of the limits are then asked in double precision.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from isotropy.checks import CallerError
from isotropy.curvature.recording import evaluation_mode, full_name

LARGEST_QUOTIENT = 1e-2
"""Of `radial` and `other`, for a layer that counts as scale-invariant."""

_SMALLEST_EFFECT = 1e4
"""Changes below this many roundings of the outputs are no changes."""
_MARGIN = 10.0
"""How far from both limits a layer must be to be judged in single precision."""


@torch.no_grad()
def scale_invariant_layers(
    network: nn.Module,
    layers: Iterable[str],
    example: Tensor,
    prepare: Callable[[nn.Module], None] | None = None,
) -> frozenset[str]:
    """Those of the named `layers` whose trainable parameters matter by their direction only.

    layers: names of modules as in `named_modules`, "" for the network itself; each is judged by
    the parameters of its own. example (rows, …): inputs of the network, a few are enough.
    Evaluation mode; the network is left as it was.
    prepare: puts single layers into another mode; a batch normalisation that is trained with the
    statistics of the batch makes layers invariant, one with running statistics does not.
    """
    layers = tuple(layers)
    found: dict[str, bool] = {}
    if example.dtype == torch.float32:
        with contextlib.suppress(RuntimeError, TypeError):  # a constant in double precision
            found = _Probe(network, example, torch.float32, prepare).judged(layers, _MARGIN)
    left = [name for name in layers if name not in found]
    try:
        if left:
            found |= _Probe(network, example, torch.float64, prepare).judged(left)
    except (RuntimeError, TypeError):  # a constant of its own in single precision, or the device
        found |= _Probe(network, example, example.dtype, prepare).judged(left)
    return frozenset(name for name, is_invariant in found.items() if is_invariant)


class _Probe:
    """A network with parameters in one precision, none of them all zero, and its outputs."""

    def __init__(
        self,
        network: nn.Module,
        example: Tensor,
        dtype: torch.dtype,
        prepare: Callable[[nn.Module], None] | None,
    ) -> None:
        self.network = network
        self.prepare = prepare if prepare and len(example) > 1 else lambda _: None
        self.example = _cast(example, dtype)
        self.state = {name: _cast(tensor, dtype) for name, tensor in network.named_buffers()}
        for name, parameter in network.named_parameters():
            given = _cast(parameter.detach(), dtype)
            self.state[name] = given if bool(given.any()) else 0.1 * _factors(given)
        self.outputs = self._with({})

    def judged(self, layers: Iterable[str], margin: float = 1.0) -> dict[str, bool]:
        """Whether a layer is scale-invariant, for those that are so far from the limits."""
        found = {name: self._is_invariant(name, margin) for name in layers}
        return {name: answer for name, answer in found.items() if answer is not None}

    def _is_invariant(self, layer: str, margin: float) -> bool | None:
        """None where that cannot be told within the margin."""
        own = {
            full_name(layer, name): self.state[full_name(layer, name)]
            for name, parameter in self.network.get_submodule(layer).named_parameters(recurse=False)
            if parameter.requires_grad and full_name(layer, name) in self.state  # else another's
        }
        if not own:
            return False
        turned = {name: value * _factors(value) for name, value in own.items()}
        there = self._with(turned)
        other = _largest(there - self.outputs)
        rounding = torch.finfo(self.outputs.dtype).eps * float(self.outputs.abs().max())
        if not other > margin * _SMALLEST_EFFECT * rounding:
            return False if margin == 1 else None
        is_clear = True
        for start, before, factor in (
            (own, self.outputs, 2.0),
            (own, self.outputs, 0.5),
            (turned, there, 2.0),
        ):
            moved = self._with({name: factor * value for name, value in start.items()})
            radial = _largest(moved - before)
            if not radial < LARGEST_QUOTIENT * margin * other:
                return False
            is_clear &= radial < LARGEST_QUOTIENT / margin * other
        return True if is_clear else None

    def _with(self, replaced: dict[str, Tensor]) -> Tensor:
        moving = {name: self.state[name].clone() for name, _ in self.network.named_buffers()}
        state = {**self.state, **moving, **replaced}
        with evaluation_mode(self.network):
            self.prepare(self.network)  # statistics that move are those of the copy
            outputs = functional_call(self.network, state, (self.example,))
        if not isinstance(outputs, Tensor):
            raise CallerError(
                f"network outputs: expected (batch, outputs), got {type(outputs).__name__}"
            )
        return outputs


def _largest(change: Tensor) -> float:
    return float(change.abs().max())


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _factors(like: Tensor) -> Tensor:
    """Numbers between −1 and 1 without a pattern, the first of them −1."""
    count = torch.arange(like.numel(), dtype=like.dtype, device=like.device)
    return -count.cos().reshape(like.shape)
