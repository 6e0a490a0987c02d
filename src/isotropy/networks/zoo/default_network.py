"""Which network a run takes where nobody named one: it follows from the shape of the data.

    pictures with one channel and at most 32 pixels a side    mlp:200
    other pictures                                            compact:8   (strided convolutions)
    sequences (channels, length)                              compact:8   (1-D convolutions)
    clouds of points                                          clouds
    tables, and everything else                               mlp:200

An MLP's input factor has (channels · height · width)² entries: fine for digits, 90 GB for a
photograph of 224 pixels. Sequences and clouds are told apart as the catalogue of Actions does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from isotropy.networks.zoo.compact import data_statistics
from isotropy.networks.zoo.specification import NetworkSpecification
from isotropy.symmetry.actions.catalogue import are_clouds

AUTO = "auto"
SMALL_PICTURE = 32
"""Grey pictures of at most this many pixels a side are left to the MLP."""

_MLP = NetworkSpecification("backbone", "mlp", {"hidden": 200})
_COMPACT = NetworkSpecification("backbone", "compact", {"width": 8})


@dataclass(frozen=True)
class NetworkChoice:
    """A network and the sentence that says why it was chosen."""

    specification: NetworkSpecification
    reason: str


def default_network(inputs: Tensor, names: Sequence[str] = ()) -> NetworkChoice:
    """The network for training inputs (examples, …).

    names: of the generators, by which some sequences are known from clouds of points
    """
    shape = tuple(inputs.shape[1:])
    if len(shape) == 3:
        channels, height, width = shape
        size = f"pictures of {height}×{width} pixels and {channels} channel" + "s" * (channels > 1)
        if channels == 1 and max(height, width) <= SMALL_PICTURE:
            return _chosen(_MLP, f"{size}: small and grey, which one hidden layer can do")
        specification = fitted(_COMPACT, inputs)
        return _chosen(specification, f"{size}: convolutions, whose curvature stays small")
    if len(shape) == 2 and are_clouds(names, shape):
        clouds = NetworkSpecification("backbone", "clouds")
        return _chosen(clouds, f"clouds of {shape[0]} points: the order of points does not matter")
    if len(shape) == 2:
        specification = fitted(_COMPACT, inputs)
        return _chosen(
            specification, f"sequences of length {shape[1]}: convolutions along the sequence"
        )
    numbers = " × ".join(map(str, shape))
    return _chosen(_MLP, f"{numbers} numbers an example: no neighbours to make use of")


def fitted(specification: NetworkSpecification, inputs: Tensor) -> NetworkSpecification:
    """The specification with the statistics of the data, where its network takes them."""
    if specification.kind != "backbone" or specification.name != "compact" or inputs.ndim < 3:
        return specification
    arguments = {"width": 8, **specification.arguments, **data_statistics(inputs)}
    return replace(specification, arguments=arguments)


def _chosen(specification: NetworkSpecification, why: str) -> NetworkChoice:
    return NetworkChoice(specification, f"model {specification.text} chosen for {why}")
