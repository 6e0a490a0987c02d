"""From the name of a curvature kind to the object that computes it for a network."""

from __future__ import annotations

from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.jacobians import JacobianCurvature, last_layer_names
from isotropy.curvature.kfac import KFAC, Fallback
from isotropy.curvature.kinds import Curvature, CurvatureKind

LARGEST_JOINT = 12_000
"""Parameters up to which a full matrix is made: 1.2 GB in float64."""


def make_curvature(
    network: nn.Module, kind: CurvatureKind, fallback: Fallback, example: Tensor
) -> Curvature:
    """The curvature of `network` of this kind.

    example (rows, …): an input, to find the last layer by. The fallback concerns kfac alone: the
    other kinds need no layer rules.
    """
    if kind.structure == "kfac":
        return KFAC(network, kind, fallback)
    if kind.structure == "last-layer":
        names = last_layer_names(network, example)
    else:
        names = tuple(n for n, parameter in network.named_parameters() if parameter.requires_grad)
    if not names:
        raise CallerError("the network has no trainable parameters")
    size = sum(network.get_parameter(name).numel() for name in names)
    if kind.structure != "diagonal" and size > LARGEST_JOINT:
        raise CallerError(
            f"curvature {kind.name}: expected at most {LARGEST_JOINT:,} parameters, got {size:,}: "
            "the whole matrix would not fit; use kfac, or a smaller network"
        )
    return JacobianCurvature(network, kind, names)
