"""`isotropy.load_model`: a trained model back from its run folder, ready to predict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from isotropy.checkpoint import CHECKPOINT, CONFIG, load_module, load_tensors, read_json
from isotropy.checks import CallerError
from isotropy.evidence.schedule import LearnConfig
from isotropy.networks.invariant_model import InvariantModel
from isotropy.networks.mixtures import augmentation_over
from isotropy.networks.specification import NetworkSpecification
from isotropy.symmetry.catalogue import actions_named
from isotropy.workflows.preparing import Actions


def load_model(
    folder: str | Path, *, network: nn.Module | None = None, actions: Actions | None = None
) -> InvariantModel:
    """The model of a run folder, with its weights and learned ranges, in evaluation mode.

    network  needed when the run was given a module in Python: one of the same shapes
    actions  needed when the run's actions were the user's own
    """
    path = Path(folder)
    config = read_json(path / CONFIG)
    tensors, _ = load_tensors(path / CHECKPOINT)
    if network is None:
        data = config["data"]
        _, network = load_network(path, tuple(data["shape"]), data["outputs"])
    if actions is None:
        named = config.get("actions") or config["generators"]
        try:
            actions = actions_named(named, tuple(config["data"]["shape"]))
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
    """The network of a run folder with its trained weights, built for data of `shape`."""
    path = Path(folder)
    specification = NetworkSpecification.from_dict(
        read_json(path / CONFIG).get("network"), where=str(path / CONFIG)
    )
    network = specification.build(shape, outputs)
    tensors, _ = load_tensors(path / CHECKPOINT)
    load_module(path, network, tensors, "network")
    return specification, network
