"""A network with a symmetry built in, made again from the settings of a run folder.

Weights are new. Settings are what `isotropy.build` writes into config.json: how it was built, the
words of the network that was given, and the group, the law or the representations.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.averaging.mixtures import uniform_over
from isotropy.networks.building import group_network
from isotropy.networks.equivariant.emlp import EMLP
from isotropy.networks.export.laws import augmentation_from_law
from isotropy.networks.zoo.specification import NetworkSpecification
from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.language import parse_representation
from isotropy.symmetry.groups.point_groups import PointGroup
from isotropy.symmetry.groups.representations import Representation


def rebuilt(config: Mapping[str, Any], network: nn.Module | None = None) -> nn.Module:
    """The model of these settings.

    network: one like that which was given then, where it has no words of its own; an EMLP like the
             one built, where layers are equivariant
    """
    how, where = config["how"], "config.json"
    if how == "equivariant layers":
        return _equivariant(config) if network is None else copy.deepcopy(network)
    if network is None:
        specification = NetworkSpecification.from_dict(config.get("network"), where=where)
        network = specification.build(config["shape"], config["outputs"])
    law, shape, model = config["law"], config["shape"], copy.deepcopy(network)
    matrices: Any = tuple(tuple(map(tuple, each)) for each in config["matrices"] or ())
    group = PointGroup(str(config["group"]), matrices)
    if how == "group convolutions":
        model = group_network(network, group, shape, width=config["width"]).model
    if law is not None:
        return InvariantModel(model, augmentation_from_law(law, shape), config["samples"])
    if how == "average":
        return InvariantModel(model, uniform_over([group.as_action()]))
    return model


def _equivariant(config: Mapping[str, Any]) -> EMLP:
    source, target = (parse_representation(config[each]) for each in ("source", "target"))
    assert isinstance(source, Representation) and isinstance(target, Representation)
    channels, group = config["channels"], group_named(config["group"])
    return EMLP(source, target, group, channels=channels, layers=len(channels))
