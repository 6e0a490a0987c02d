"""`isotropy.load_model`: a trained model back from its run folder, ready to predict."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from isotropy.checkpoint import CHECKPOINT, CONFIG, load_module, load_tensors, read_json
from isotropy.checks import CallerError
from isotropy.networks.augmentations import UniformRanges
from isotropy.networks.invariant_model import InvariantModel
from isotropy.networks.specification import NetworkSpecification
from isotropy.symmetry.actions import Action
from isotropy.symmetry.image_actions import affine


def load_model(
    folder: str | Path, *, network: nn.Module | None = None, actions: Action | None = None
) -> InvariantModel:
    """The model of a run folder, with its weights and learned ranges, in evaluation mode.

    network  needed when the run was given a module in Python: one of the same shapes
    actions  needed when the run's generators are not those of the affine group
    """
    path = Path(folder)
    config = read_json(path / CONFIG)
    tensors, _ = load_tensors(path / CHECKPOINT)
    if network is None:
        data = config["data"]
        specification = NetworkSpecification.from_dict(config["network"], where=str(path / CONFIG))
        network = specification.build(tuple(data["shape"]), data["outputs"])
    action = actions or affine(tuple(config["generators"]))
    if list(action.names) != config["generators"]:
        raise CallerError(
            f"run folder {str(path)!r} has the generators {', '.join(config['generators'])}, got "
            f"an action with {', '.join(action.names)}"
        )
    model = InvariantModel(
        network, UniformRanges(action), samples=int(config["schedule"]["test_samples"])
    )
    load_module(path, model.network, tensors, "network")
    load_module(path, model.augmentation, tensors, "augmentation")
    return model.eval()
