"""Curvature blocks of several ranks: factors added up, eigendecompositions shared out.

Every rank has the factors of its own batches (`kernels.ranks`). Those that are written out on all
ranks are added up as numbers; where a rank keeps a factor by its root (`low_rank`), or had no batch
at all, the factors themselves travel and are added in the order of ranks. The spectra of n³
operations each are found by one rank and sent to the others, so that all have the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

from isotropy.curvature.blocks import (
    AnySpectrum,
    DenseFactors,
    Factors,
    all_spectra,
)
from isotropy.curvature.low_rank import LowRankGram
from isotropy.kernels.ranks import Ranks


def joined_factors(
    own: Mapping[str, Factors], ranks: Ranks, device: torch.device
) -> dict[str, Factors]:
    """Factors summed over ranks, by block; own: those of this rank, none without a batch."""
    if not ranks.are_many:
        return dict(own)
    kinds = ranks.gathered({name: _is_written_out(block) for name, block in own.items()})
    names = max(kinds, key=len)  # those of a rank that had a batch
    whole = [name for name in names if all(each.get(name, False) for each in kinds)]
    copies = {name: [tensor.clone() for tensor in own[name].tensors()] for name in whole}
    ranks.add_([tensor for tensors in copies.values() for tensor in tensors])
    found: dict[str, Factors] = {n: own[n].with_tensors(each) for n, each in copies.items()}
    for name in names:
        if name not in found:
            parts = ranks.gathered(_moved(own.get(name), torch.device("cpu")))
            total = reduce(add, (each for each in parts if each is not None))
            found[name] = _moved(total, device)
    return {name: found[name] for name in names}


def shared_spectra(
    factors: Mapping[str, Factors], count: int, ranks: Ranks, *, values_only: bool = False
) -> dict[str, AnySpectrum]:
    """`all_spectra`, each found by one rank."""
    if not ranks.are_many:
        return all_spectra(factors, count, values_only=values_only)
    devices = {name: block.tensors()[0].device for name, block in factors.items()}
    alone = {n: b for n, b in factors.items() if not (_follows(b) and _leader(b) in factors)}
    own = {name: alone[name] for name in _share(alone, ranks)}
    found = all_spectra(own, count, values_only=values_only)
    sent = ranks.gathered(_moved(found, torch.device("cpu")))
    spectra = {name: each for part in sent for name, each in part.items()}
    known = {name: _moved(spectra[name], devices[name]) for name in alone}
    return all_spectra(factors, count, values_only=values_only, known=known)


def _follows(block: Factors) -> bool:
    """Whether a block may have the spectrum of another."""
    return isinstance(block, DenseFactors) and block.output_of is not None


def _leader(block: Factors) -> str:
    return str(getattr(block, "output_of", ""))


def _share(blocks: Mapping[str, Factors], ranks: Ranks) -> list[str]:
    """The blocks of this rank: the most costly first, each to the rank with the least so far."""
    load = [0.0] * ranks.count
    mine = []
    costs = {name: sum(float(t.shape[-1]) ** 3 for t in b.tensors()) for name, b in blocks.items()}
    for name in sorted(costs, key=lambda each: (-costs[each], each)):
        rank = load.index(min(load))
        load[rank] += costs[name]
        mine += [name] if rank == ranks.number else []
    return mine


def _is_written_out(block: Factors) -> bool:
    parts = getattr(block, "pieces", (block,))
    return not any(isinstance(v, LowRankGram) for part in parts for v in vars(part).values())


def _moved(value: Any, device: torch.device) -> Any:
    """The same record, or dictionary or tuple of them, with its tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: _moved(each, device) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(_moved(each, device) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        moved = {f.name: _moved(getattr(value, f.name), device) for f in fields(value)}
        return replace(value, **moved)
    return value
