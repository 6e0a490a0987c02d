"""`isotropy.load`: what a run of any kind trained, back from its run folder."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.evidence.settings import LearnConfig
from isotropy.networks.averaging.invariant_model import TEST_SAMPLES, InvariantModel
from isotropy.networks.averaging.mixtures import augmentation_over
from isotropy.networks.building import rebuilt
from isotropy.networks.frozen import with_new_head
from isotropy.networks.invariant_autoencoder import InvariantAutoencoder
from isotropy.networks.one_output import SelectedOutput
from isotropy.networks.pathways.harden import harden
from isotropy.networks.zoo.specification import NetworkSpecification
from isotropy.records import (
    CHECKPOINT,
    CONFIG,
    RESULT,
    check_run,
    load_module,
    load_tensors,
    read_json,
)
from isotropy.symmetry.actions.catalogue import actions_named
from isotropy.workflows import building, representing
from isotropy.workflows.relaxing import KIND
from isotropy.workflows.runs.prepared import Actions


@contextmanager
def _as_described(path: Path) -> Iterator[None]:
    """What cannot be built as the settings of a run folder say is told with their file."""
    try:
        yield
    except CallerError:
        raise
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        raise CallerError(
            f"{str(path / CONFIG)!r}: nothing can be built as it says ({type(error).__name__}: "
            f"{error}); restore the file"
        ) from error


def load(
    folder: str | Path, *, network: nn.Module | None = None, actions: Actions | None = None
) -> nn.Module:
    """What a run of any kind trained or built, in evaluation mode.

    learn   the network averaged over what was learned, an `InvariantModel`
    relax   the network with its relaxed layers, or after `--harden` that of plain ones
    build   the network with the symmetry built in
    represent   the `InvariantAutoencoder`, which maps samples to their invariant codes
    certify the compressed network that the certificate is about

    network  needed when the run was given a module in Python: one of the same shapes (relaxed with
             the same pathways, where layers were)
    actions  needed when a run of `learn` had actions of the user's own
    """
    with _as_described(Path(folder)):
        return _loaded(Path(folder), network, actions)


def _loaded(folder: Path, network: nn.Module | None, actions: Actions | None) -> nn.Module:
    kind = read_json(folder / CONFIG).get("kind")
    if kind == KIND:
        return _relaxed(folder, network)
    if kind == building.KIND:
        return _built(folder, network)
    if kind == representing.KIND:
        return _autoencoder(folder)
    if kind == "certify":
        from isotropy.workflows.certifying import certified_network

        return certified_network(folder, network)
    return _averaged(folder, network, actions)


def _averaged(path: Path, network: nn.Module | None, actions: Actions | None) -> InvariantModel:
    """The model of a run of `learn`, with its weights and learned ranges."""
    config = _config_of_learning(path)
    tensors = _checkpoint(path, config)
    if network is None:
        data = config["data"]
        _, network = load_network(path, tuple(data["shape"]), data["outputs"])
    elif config["network"].get("select") is not None and not isinstance(network, SelectedOutput):
        network = SelectedOutput(network, config["network"]["select"])
    head, shape = config["network"].get("head"), config["data"]["shape"]
    if head is not None:
        network = with_new_head(copy.deepcopy(network), head, torch.zeros(1, *shape))
    if actions is None:
        named = config.get("actions") or config["generators"]
        try:
            actions = actions_named(
                named,
                tuple(config["data"]["shape"]),
                padding=config.get("padding") or "zeros",
                fill=config.get("fill"),
                columns=config["data"].get("columns"),
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
    model = InvariantModel(network, augmentation, samples=schedule.test_samples or TEST_SAMPLES)
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
    with _as_described(Path(folder)):
        return _loaded_network(Path(folder), shape, outputs)


def _loaded_network(
    path: Path, shape: Sequence[int], outputs: int
) -> tuple[NetworkSpecification, nn.Module]:
    config = read_json(path / CONFIG)
    if config.get("kind") == building.KIND:
        words = f"built {config['how']}"
        return NetworkSpecification("built", words, config), _built(path, None)
    config = _config_of_learning(path)
    where = str(path / CONFIG)
    specification = NetworkSpecification.from_dict(config.get("network"), where=where)
    own = config.get("data", {}).get("outputs", outputs)
    network = specification.untrained.build(shape, own)
    tensors = _checkpoint(path, config)
    load_module(path, network, tensors, "network")
    return specification, network


def _relaxed(path: Path, network: nn.Module | None) -> nn.Module:
    """The network of a run of `relax`. What was found of each layer is in its `contributions`."""
    config = read_json(path / CONFIG)
    tensors = _checkpoint(path, config)
    model = _relaxed_network(path, config) if network is None else copy.deepcopy(network)
    load_module(path, model, tensors, "network")
    result = path / RESULT
    was_hardened = result.exists() and read_json(result).get("hardened") is not None
    return (harden(model) if was_hardened else model).eval()


def _built(path: Path, network: nn.Module | None) -> nn.Module:
    """The model of a run of `build`; network: as in `load`, or an EMLP like the one built."""
    config = read_json(path / CONFIG)
    model = rebuilt(config, network)
    tensors = _checkpoint(path, config)
    load_module(path, model, tensors, "network")
    return model.eval()


def _autoencoder(path: Path) -> InvariantAutoencoder:
    """The model of a run of `represent`."""
    config = read_json(path / CONFIG)
    model = InvariantAutoencoder(**config["network"]["arguments"])
    tensors = _checkpoint(path, config)
    load_module(path, model, tensors, "network")
    return model.eval()


def _checkpoint(path: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a run folder, which are those of the run with this config."""
    tensors, record = load_tensors(path / CHECKPOINT)
    check_run(path / CHECKPOINT, record, config)
    return tensors


def _config_of_learning(path: Path) -> dict[str, Any]:
    config = read_json(path / CONFIG)
    others = {KIND: "relaxed layers", representing.KIND: "representations"}
    if config.get("kind") in others:
        raise CallerError(
            f"run folder {str(path)!r} is one of {others[config['kind']]} "
            f"(`isotropy {config['kind']}`); isotropy.load gives its network"
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
    with torch.random.fork_rng(devices=[]):  # all weights are overwritten
        return specification.build(config["data"]["shape"], config["data"]["outputs"])
