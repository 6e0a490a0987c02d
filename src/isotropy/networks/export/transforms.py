"""Taking what was learned away: into JSON and back, torchvision, kornia, one exported program.

    augmentation_from_law(json, shape)   the augmentation of a saved run, without its network
    as_torchvision(augmentation)         a v2 transform, for datasets and DataLoaders
    as_kornia(augmentation)              an augmentation of kornia's: masks, boxes, keypoints too
    export_model(model, example)         the averaged network as one program of torch.export

Transforms draw one element per image from exactly the learned law; how, and in which pixel
coordinates, `laws` says. Images should be what the network was trained on: where data
were standardised, put the transform behind the standardisation, because zeros are what comes in at
the edges and grey levels are in the data's own unit.

torchvision and kornia are optional and imported when asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isotropy.checks import CallerError
from isotropy.networks.averaging.augmentations import Augmentation
from isotropy.networks.export.laws import augmentation_from_law
from isotropy.networks.export.program import export_model

if TYPE_CHECKING:
    from isotropy.networks.export.kornia_transforms import LearnedAugmentation
    from isotropy.networks.export.torchvision_transforms import LearnedTransform

__all__ = ["as_kornia", "as_torchvision", "augmentation_from_law", "export_model"]


def as_torchvision(augmentation: Augmentation) -> LearnedTransform:
    """A transform for torchvision.transforms.v2 that draws one element per image.

    >>> transform = as_torchvision(result.model.augmentation)
    >>> image, label = transform(image, label)

    Tensors (channels, height, width), batches of them with independent draws, tv_tensors.Image and
    PIL pictures. Draws come from torch's global generator; `transform.noise` and `transform.move`
    replay them, `transform.matrix` gives them as 3×3 matrices in pixels. The law is copied as it is
    now. Raises CallerError where torchvision is not installed.
    """
    try:
        from isotropy.networks.export.torchvision_transforms import LearnedTransform
    except (ImportError, RuntimeError) as error:  # a torchvision built for another torch
        raise _not_importable("torchvision", "vision", error) from error
    return LearnedTransform(augmentation)


def as_kornia(
    augmentation: Augmentation, *, same_on_batch: bool = False, keepdim: bool = False
) -> LearnedAugmentation:
    """An augmentation for kornia, alone or in an AugmentationSequential.

    >>> both = AugmentationSequential(as_kornia(augmentation), data_keys=["input", "keypoints"])

    Images move as in training; `transform_matrix` is the homography of the drawn element, flips and
    quarter turns included, and moves masks, boxes and keypoints along. Raises CallerError where
    kornia is not installed, and for a law with a part that has no such matrix.
    """
    try:
        from isotropy.networks.export.kornia_transforms import LearnedAugmentation
    except (ImportError, RuntimeError) as error:  # a torchvision built for another torch
        raise _not_importable("kornia", "kornia", error) from error
    return LearnedAugmentation(augmentation, same_on_batch=same_on_batch, keepdim=keepdim)


def _not_importable(library: str, extra: str, error: Exception) -> CallerError:
    return CallerError(
        f"as_{library}: expected {library} to be installed and to suit this torch, got: {error}; "
        f"install it with pip install 'isotropy[{extra}]'"
    )
