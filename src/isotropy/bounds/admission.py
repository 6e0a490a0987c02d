"""Which networks can be certified, and how their start is drawn.

A bound holds for a function of one example that is described completely: by the network's code, the
seed of its start, and the message. So these are refused, with the layer and what to do instead:

- batch statistics: predictions that change when a batch is split. Group normalisation is fine
- random predictions: two calls in evaluation mode differ
- numbers that came from the data and are not coded: running statistics, the centre and spread of
  `compact`, buffers of a module that was handed over

A module that was handed over is begun anew: its weights are drawn by its layers' own
`reset_parameters`. What was trained into it before has no part in the certificate.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from isotropy.bounds.drawing import portable_draws
from isotropy.checks import CallerError
from isotropy.networks.one_function import TRIED, changes_with
from isotropy.networks.zoo.image_networks import CompactNetwork

TOLERANCE = 1e-6
"""Relative difference of outputs, in float64, below which they count as the same."""


def check_layers(network: nn.Module, *, trained: bool = False) -> None:
    """Raise CallerError for layers whose numbers come from the data, naming the replacement.

    trained: whether the start comes from other data, as constants of normalisation then do
    """
    for name, layer in network.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            channels = layer.num_features
            groups = next(each for each in (8, 4, 2, 1) if channels % each == 0)
            raise CallerError(
                f"layer {name!r} is {type(layer).__name__}, whose statistics come from the data "
                f"and are not coded; replace it with nn.GroupNorm({groups}, {channels})"
            )
        statistics = getattr(layer, "track_running_stats", False)
        if statistics and isinstance(layer, nn.modules.instancenorm._InstanceNorm):
            raise CallerError(
                f"layer {name!r} is {type(layer).__name__} with running statistics, which come "
                "from the data and are not coded; set track_running_stats=False"
            )
        if trained or not isinstance(layer, CompactNetwork):
            continue
        if layer.spread != 1 or bool(layer.centre.any()):
            raise CallerError(
                "model compact: its centre and spread were computed from data and are not coded; "
                "name the network without them, such as --model compact:12"
            )


@torch.no_grad()
def check_predictions(network: nn.Module, inputs: Tensor) -> None:
    """Raise CallerError unless outputs are a function of each example alone, `(batch, classes)`.

    Tried in evaluation mode and float64, on a few examples together, again, and in two parts.
    """
    trial = copy.deepcopy(network).double().eval()
    batch = inputs[:TRIED].double()
    shape = tuple(trial(batch).shape)
    if len(shape) != 2:
        raise CallerError(
            f"model: expected outputs (batch, classes), got {shape} for {len(batch)} examples"
        )
    changes = changes_with(trial, batch, TOLERANCE)
    if changes == "draws":
        raise CallerError(
            "model: its predictions are random, two calls in evaluation mode differ; a certificate "
            "is of one function, so draw by a fixed generator or leave the noise out"
        )
    if changes == "batch":
        raise CallerError(
            "model: its predictions change when a batch is split, so that it uses statistics of "
            "the batch; normalise each example by itself, for example with nn.GroupNorm"
        )


@contextmanager
def drawn_by(seed: int) -> Iterator[None]:
    """Networks made within it draw their weights by this seed, as `torch.manual_seed` does.

    They are drawn in float32, whatever torch's default is, and alike on every machine (`drawing`),
    so that a seed means the same weights everywhere. Outside nothing changes: generator and default
    are put back.
    """
    default = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(torch.Generator().manual_seed(seed).get_state())
        torch.set_default_dtype(torch.float32)
        try:
            with portable_draws():
                yield
        finally:
            torch.set_default_dtype(default)


def begun_anew(module: nn.Module, seed: int) -> nn.Module:
    """A copy of a module with newly drawn weights.

    Raises CallerError for weights that no `reset_parameters` draws and for buffers whose origin is
    unknown.
    """
    network = copy.deepcopy(module)
    owners = {name: each for name, each in network.named_modules() if _own_weights(each)}
    with drawn_by(seed):
        for name, owner in owners.items():
            reset = getattr(owner, "reset_parameters", None)
            if not callable(reset):
                raise CallerError(
                    f"layer {name!r} ({type(owner).__name__}) cannot be begun anew, because it has "
                    "no reset_parameters; pass a function that makes the network, or its name"
                )
            reset()
    for name, buffer in network.named_buffers():
        if buffer.is_floating_point() and buffer.numel() and bool((buffer != buffer.mean()).any()):
            raise CallerError(
                f"buffer {name!r} of the network may hold numbers that come from the data and are "
                "not coded; pass a function that makes the network, or its name"
            )
    return network


def _own_weights(module: nn.Module) -> bool:
    return next(iter(module.parameters(recurse=False)), None) is not None


def start_hash(network: nn.Module) -> str:
    """SHA-256 of names and values of all weights and buffers, in their order, little-endian."""
    digest = hashlib.sha256()
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        values = tensor.detach().cpu().contiguous().numpy()
        digest.update(f"{name} {tuple(tensor.shape)} {values.dtype}\n".encode())
        digest.update(values.astype(values.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()
