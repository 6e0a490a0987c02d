"""How many examples an evidence pass should hold at once.

The result does not depend on it, time and memory do. A pass back-propagates every direction of the
output curvature to every layer, except to those that a shortcut serves (`KFAC.batch`). On a CPU
it is fastest when what one direction writes stays in the cache. On a GPU all directions go at
once, and the larger the batch the fewer launches; with the graph that a gradient needs it takes

    bytes of a batch ≈ examples · (3 · bytes kept by a forward pass + 6 · bytes of the widest map)

(measured for the paper's MLP and CNN), which should be a few gigabytes, or half of what is free.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import kind_named
from isotropy.evidence.memory import SHARE_OF_FREE, free_bytes, kept_bytes
from isotropy.evidence.schedule import LearnConfig

CACHE_BYTES = 8e6
GPU_BYTES = 6e9
JACOBIAN_BYTES = 1e9


def fit_curvature_batch(
    config: LearnConfig, network: nn.Module, example: Tensor, device: torch.device | None = None
) -> LearnConfig:
    """A resolved `config` with its curvature batch lowered where layer outputs are large.

    example (1, …): any one input. device: where the run will be, if not where the network is.
    """
    assert config.samples is not None and config.curvature_batch is not None
    first = next(network.parameters(), None)
    if first is None:
        return config
    kind = kind_named(config.curvature)
    if kind.structure != "kfac":
        # Every example's own gradient, one a direction (about ten), and a graph of it.
        trainable = sum(p.numel() for p in network.parameters() if p.requires_grad)
        comfortable = max(1, int(JACOBIAN_BYTES / (40 * trainable * first.element_size())))
        return replace(config, curvature_batch=min(config.curvature_batch, comfortable))
    device = device or first.device
    rows = example.to(first).expand(config.samples, *example.shape[1:]).clone()
    try:
        numbers = KFAC(network, kind, config.fallback).widest_map(rows[:1])
        kept = kept_bytes(network, rows) if device.type == "cuda" else 0
    except RuntimeError:  # a network that does not fit the data is named where it is trained
        return config
    budget, of_map = CACHE_BYTES, numbers * config.samples * first.element_size()
    if device.type == "cuda":
        budget = min(GPU_BYTES, SHARE_OF_FREE * (free_bytes(device) or GPU_BYTES))
        of_map = 6 * of_map + 3 * (kept + rows.numel() * rows.element_size())
    comfortable = max(4, int(budget / max(of_map, 1)))
    return replace(config, curvature_batch=min(config.curvature_batch, comfortable))
