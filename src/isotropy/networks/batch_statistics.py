"""Batch normalisation: which statistics a layer uses, when, and where the first ones come from.

    y = γ (x − μ) / √(σ² + ε) + β        μ, σ² by channel

    weight steps          μ, σ² of the rows of the step, as elsewhere in PyTorch; these rows move
                          the running statistics:  running ← (1 − m) running + m · batch
    everything else       the running statistics, which are constants of the model: the evidence,
                          the search, scores and predictions. An example's output then does not
                          depend on the others, and has a likelihood and a curvature of its own

Rows are the transformed copies of all examples that go through the network together. A layer whose
gain is frozen (`requires_grad_(False)`) is frozen with its statistics, and a step on a single row
uses running ones.

A new layer has running statistics of 0 and 1: it normalises nothing until weight steps have moved
them. Before a run they are therefore found in one pass over training examples
(`find_first_statistics`), the plain mean over its batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

FIRST_EXAMPLES = 512
"""Examples that the first statistics are found on, at most."""
EXAMPLES_AT_ONCE = 64


def batch_norms(network: nn.Module) -> dict[str, _BatchNorm]:
    """The layers of batch normalisation that keep running statistics, by name."""
    return {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    }


def is_held(layer: _BatchNorm) -> bool:
    """Whether the statistics of a layer stay what they are: its gain is frozen."""
    return layer.affine and not layer.weight.requires_grad


def fix_statistics(network: nn.Module) -> None:
    """Put every BatchNorm into evaluation mode: it uses running statistics and keeps them."""
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.eval()


def use_batch_statistics(network: nn.Module) -> None:
    """Put every BatchNorm that is not held into training mode, and those that are out of it."""
    fix_statistics(network)
    for layer in batch_norms(network).values():
        layer.train(not is_held(layer))


@contextmanager
def running_statistics(network: nn.Module) -> Iterator[None]:
    """Running statistics inside, every layer's own mode after."""
    modes = [(m, m.training) for m in network.modules() if isinstance(m, _BatchNorm)]
    fix_statistics(network)
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@torch.no_grad()
def find_first_statistics(network: nn.Module, inputs: Tensor) -> list[str]:
    """Give layers that have seen no batch the mean statistics of these inputs (examples, …).

    Returns their names. Other layers, random streams and modes are as they were; a single example
    has no statistics and changes nothing.
    """
    new = {
        name: layer
        for name, layer in batch_norms(network).items()
        if _is_new(layer) and not is_held(layer)
    }
    if not new or len(inputs) < 2:
        return []
    modes = [(module, module.training) for module in network.modules()]
    momenta = [(layer, layer.momentum) for layer in new.values()]
    devices = [inputs.device] if inputs.is_cuda else []
    try:
        network.eval()
        for layer in new.values():
            layer.train()
            layer.momentum = None  # the mean over batches
        chosen = inputs[:FIRST_EXAMPLES]
        parts = max(1, len(chosen) // EXAMPLES_AT_ONCE)
        with torch.random.fork_rng(devices=devices):
            for part in chosen.tensor_split(parts):
                network(part)
    finally:
        for layer, momentum in momenta:
            layer.momentum = momentum
        for module, training in modes:
            module.training = training
    return list(new)


def _is_new(layer: _BatchNorm) -> bool:
    """Whether a layer has seen no batch: none is counted, and its statistics are 0 and 1.

    Weights that come from another library may have statistics and no count.
    """
    if layer.num_batches_tracked is None or int(layer.num_batches_tracked):
        return False
    assert layer.running_mean is not None and layer.running_var is not None
    return not bool(layer.running_mean.any()) and bool((layer.running_var == 1).all())


def described(network: nn.Module) -> dict[str, Any] | None:
    """For a run's record: how many layers there are, and what they normalise by."""
    layers = batch_norms(network)
    if not layers:
        return None
    held = [name for name, layer in layers.items() if is_held(layer)]
    return {
        "layers": len(layers),
        "held": held,
        "training": ("running" if len(held) == len(layers) else "batch") + " statistics",
        "evaluation": "running statistics",
    }


def sentence(network: nn.Module) -> str | None:
    """The same for people; None without such layers."""
    found = described(network)
    if found is None:
        return None
    count, held = found["layers"], len(found["held"])
    layers = "1 layer" if count == 1 else f"{count} layers"
    if held == count:
        return f"batch normalisation ({layers}, frozen): running statistics throughout"
    rest = f"; {held} of them frozen, with running statistics throughout" if held else ""
    return (
        f"batch normalisation ({layers}): trained with the statistics of each batch, evaluated "
        f"with running statistics, in the evidence too{rest}"
    )
