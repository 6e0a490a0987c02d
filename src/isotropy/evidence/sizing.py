"""How many examples an evidence pass should hold at once.

The result does not depend on it, time and memory do. A pass back-propagates every direction of the
output curvature to every layer, except to those that a shortcut serves (`KFAC.batch`). On a CPU
it is fastest when what one direction writes stays in the cache. On a GPU all directions go at
once, and with the graph that a gradient needs they should fit into a few gigabytes.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import kind_named
from isotropy.evidence.schedule import LearnConfig

CACHE_BYTES = 8e6
GPU_BYTES = 8e9
JACOBIAN_BYTES = 1e9
GRAPH_COPIES = 60
"""Maps alive at once on a GPU: about ten directions, each with six tensors of its graph."""


def fit_curvature_batch(config: LearnConfig, network: nn.Module, example: Tensor) -> LearnConfig:
    """A resolved `config` with its curvature batch lowered where layer outputs are large.

    example (1, …): any one input.
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
    try:
        numbers = KFAC(network, kind, config.fallback).widest_map(example.to(first))
    except RuntimeError:  # a network that does not fit the data is named where it is trained
        return config
    example_bytes = numbers * config.samples * first.element_size()
    budget = GPU_BYTES / GRAPH_COPIES if first.is_cuda else CACHE_BYTES
    comfortable = max(4, int(budget / max(example_bytes, 1)))
    return replace(config, curvature_batch=min(config.curvature_batch, comfortable))
