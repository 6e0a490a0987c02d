"""The same random weights on every machine.

torch draws the same integers by a seed everywhere, but turns them into numbers by instructions that
differ between machines: a + (b − a) u is rounded once where there is a fused multiplication, and
twice elsewhere; logarithms and cosines of vectors differ in their last bits. A certificate names
its start by a seed, so the start must not depend on the machine that checks it. Within
`portable_draws` uniform and normal numbers are made from torch's own integers, 24 bits u each, in
float64:

    uniform   a + (b − a) u                                      rounded once to float32
    normal    μ + σ √(−2 log(1 − u_j)) (cos, sin)(2π u_{j+8})    16 at a time, torch's order of u

Numbers are those of torch up to the last bit of float32, and uniform ones exactly those of machines
with fused multiplications. In float64 functions differ between machines by 1e-16, which changes one
of 10⁸ numbers of float32. Fewer than 16 normal numbers, numbers of other types and on other devices
are torch's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

CHUNK = 16
"""Normal numbers that torch makes together."""
_ATEN = torch.ops.aten


def portable_draws() -> TorchDispatchMode:
    """A context in which tensors of float32 on the CPU are drawn alike on every machine."""
    return _PortableDraws()


class _PortableDraws(TorchDispatchMode):
    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        draw = {_ATEN.uniform_.default: _uniform, _ATEN.normal_.default: _normal}.get(func)
        if draw is not None and _is_ours(args[0]):
            return args[0].copy_(draw(args[0], *args[1:], **given))
        if func in (_ATEN.randn.default, _ATEN.randn.generator):
            generator = given.pop("generator", None)
            empty = torch.empty(*args, **given)
            if _is_ours(empty):
                return empty.copy_(_normal(empty, generator=generator))
            return empty.normal_(generator=generator)
        return func(*args, **given)


def _is_ours(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu"


def _uniform(
    like: Tensor, low: float = 0.0, high: float = 1.0, generator: torch.Generator | None = None
) -> Tensor:
    ends = torch.tensor([low, high], dtype=torch.float32)
    unit = torch.rand(like.shape, generator=generator, dtype=torch.float32).double()
    return (unit * float(ends[1] - ends[0]) + float(ends[0])).float()


def _normal(
    like: Tensor, mean: float = 0.0, std: float = 1.0, generator: torch.Generator | None = None
) -> Tensor:
    count = like.numel()
    if count < CHUNK or not like.is_contiguous():
        return torch.empty_like(like).normal_(mean, std, generator=generator)
    unit = torch.rand(count, generator=generator, dtype=torch.float32)
    whole = count - count % CHUNK
    found = torch.empty(count, dtype=torch.float64)
    found[:whole] = _of_pairs(unit[:whole])
    if whole < count:  # torch draws the last 16 anew
        found[-CHUNK:] = _of_pairs(torch.rand(CHUNK, generator=generator, dtype=torch.float32))
    return (found * std + mean).float().view(like.shape)


def _of_pairs(unit: Tensor) -> Tensor:
    """Box and Muller's normal numbers from chunks of 16 uniform ones, in float64."""
    first, second = unit.double().view(-1, 2, CHUNK // 2).unbind(1)
    radius, angle = (-2 * (1 - first).log()).sqrt(), 2 * math.pi * second
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1).flatten()
