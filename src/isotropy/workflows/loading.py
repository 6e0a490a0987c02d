"""`isotropy.load_model`, `load_layers`, `load_built`: a model back from its run folder."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isotropy.checks import CallerError
from isotropy.evidence.settings import LearnConfig
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.averaging.mixtures import augmentation_over
from isotropy.networks.pathways.relax import relax, relaxed_cnn
from isotropy.networks.pathways.relaxed_layer import PathwayOptions
from isotropy.networks.zoo.specification import NetworkSpecification
from isotropy.records import CHECKPOINT, CONFIG, load_module, load_tensors, read_json
from isotropy.symmetry.actions.catalogue import actions_named
from isotropy.workflows import building
from isotropy.workflows.relaxing import KIND
from isotropy.workflows.runs import Actions


def load_model(
    folder: str | Path, *, network: nn.Module | None = None, actions: Actions | None = None
) -> InvariantModel:
    """The model of a run folder, with its weights and learned ranges, in evaluation mode.

    network  needed when the run was given a module in Python: one of the same shapes
    actions  needed when the run's actions were the user's own
    """
    path = Path(folder)
    config = _config_of_learning(path)
    tensors, _ = load_tensors(path / CHECKPOINT)
    if network is None:
        data = config["data"]
        _, network = load_network(path, tuple(data["shape"]), data["outputs"])
    if actions is None:
        named = config.get("actions") or config["generators"]
        try:
            actions = actions_named(
                named,
                tuple(config["data"]["shape"]),
                padding=config.get("padding") or "zeros",
                fill=config.get("fill"),
            )
        except CallerError as error:
            raise CallerError(
                f"run folder {str(path)!r}: its actions were handed over in Python and cannot be "
                f"rebuilt from the names {', '.join(named)}; give them again with actions="
            ) from error
    schedule = LearnConfig.from_dict(config["schedule"])
    augmentation = augmentation_over(actions, distribution=schedule.distribution)
    names = [symmetry.name for symmetry in augmentation.symmetries()]
    if names != config["generators"]:
        raise CallerError(
            f"run folder {str(path)!r} has the generators {', '.join(config['generators'])}, got "
            f"an action with {', '.join(names)}"
        )
    assert schedule.test_samples is not None
    model = InvariantModel(network, augmentation, samples=schedule.test_samples)
    load_module(path, model.network, tensors, "network")
    load_module(path, model.augmentation, tensors, "augmentation")
    return model.eval()


def load_network(
    folder: str | Path, shape: Sequence[int], outputs: int
) -> tuple[NetworkSpecification, nn.Module]:
    """The network of a run folder with its trained weights, built for data of `shape`.

    That of `isotropy build` is the whole model, with the symmetry that was built in. Raises
    CallerError for a run of relaxed layers: their data are prepared in other ways.
    """
    path = Path(folder)
    config = read_json(path / CONFIG)
    if config.get("kind") != building.KIND:
        config = _config_of_learning(path)
    where = str(path / CONFIG)
    specification = NetworkSpecification.from_dict(config.get("network"), where=where)
    if config.get("kind") == building.KIND:
        return specification, load_built(path)
    network = specification.build(shape, outputs)
    tensors, _ = load_tensors(path / CHECKPOINT)
    load_module(path, network, tensors, "network")
    return specification, network


def load_layers(folder: str | Path, *, network: nn.Module | None = None) -> nn.Module:
    """The network of a run folder of `isotropy relax` or `RelaxResult.save`, in evaluation mode.

    network  needed when the run was given a module in Python: one of the same shapes, relaxed with
             the same pathways; a copy of it gets the weights

    What learning found of each layer is in its `contributions`: the network can be hardened.
    Raises CallerError for a folder of another kind, and for a network of other shapes.
    """
    path = Path(folder)
    config = read_json(path / CONFIG)
    if config.get("kind") != KIND:
        raise CallerError(
            f"run folder {str(path)!r} is not one of relaxed layers; isotropy.load_model reads "
            "those of `isotropy learn`"
        )
    tensors, _ = load_tensors(path / CHECKPOINT)
    model = _relaxed_network(path, config) if network is None else copy.deepcopy(network)
    load_module(path, model, tensors, "network")
    return model.eval()


def load_built(folder: str | Path, *, network: nn.Module | None = None) -> nn.Module:
    """The model of a run folder of `isotropy build` or `BuildResult.save`, in evaluation mode.

    network  needed when a module was handed over in Python: one of the same shapes. Of vectors and
             tensors whose group has no name, an EMLP of the same shapes
    Raises CallerError for a folder of another kind, and for a network of other shapes.
    """
    path = Path(folder)
    config = read_json(path / CONFIG)
    if config.get("kind") != building.KIND:
        raise CallerError(
            f"run folder {str(path)!r} is not one of `isotropy build`; isotropy.load_model reads "
            "those of `isotropy learn`"
        )
    tensors, _ = load_tensors(path / CHECKPOINT)
    if config["how"] == "equivariant layers":
        model = building.rebuilt_emlp(config) if network is None else copy.deepcopy(network)
    else:
        if network is None:
            where = str(path / CONFIG)
            specification = NetworkSpecification.from_dict(config.get("network"), where=where)
            network = specification.build(config["shape"], config["outputs"])
        model = building.rebuilt(config, network)
    load_module(path, model, tensors, "network")
    return model.eval()


def _config_of_learning(path: Path) -> dict[str, Any]:
    config = read_json(path / CONFIG)
    if config.get("kind") == building.KIND:
        raise CallerError(
            f"run folder {str(path)!r} is one of `isotropy build`; isotropy.load_built gives its "
            "model"
        )
    if config.get("kind") == KIND:
        raise CallerError(
            f"run folder {str(path)!r} is one of relaxed layers (`isotropy relax`); "
            "isotropy.load_layers gives its network, to be used in Python"
        )
    return config


def _relaxed_network(path: Path, config: Mapping[str, Any]) -> nn.Module:
    """A new network as the run's own was built."""
    where = str(path / CONFIG)
    specification = NetworkSpecification.from_dict(config.get("network"), where=where)
    if specification.kind != "relaxed":
        raise CallerError(
            f"run folder {str(path)!r}: its network {specification.name!r} was handed over in "
            "Python and cannot be rebuilt from its name; give it again, relaxed in the same way, "
            "with network="
        )
    arguments, data = specification.arguments, config["data"]
    shape, outputs = data["shape"], data["outputs"]
    own: dict[str, Any] = {
        "pathways": arguments["pathways"],
        "group": arguments["group"],
        "options": PathwayOptions(**arguments["options"]),
        "generator": torch.Generator().manual_seed(0),  # all is overwritten
    }
    if "network" not in arguments:
        return relaxed_cnn(shape, outputs, width=arguments["width"], **own)
    before = NetworkSpecification.from_dict(arguments["network"], where=where)
    with torch.random.fork_rng(devices=[]):
        return relax(before.build(shape, outputs), example=shape, **own)
