"""Versions of a data set whose symmetry is known, so that what was learned can be compared to it.

Every image of the training and of the test set is transformed once, with a fixed seed, before
learning begins (drawn anew every epoch it would be augmentation, and a network without any
symmetry would learn it too):

    rotated             angle ~ U[−π, π]
    partially-rotated   angle ~ U[−π/2, π/2]
    translated          x, y ~ U[−8/14, 8/14] half image widths, independent
    scaled              logarithm of one factor for both axes ~ U[−ln 2, ln 2]
    flipped             left and right exchanged with probability ½

All but the last are the laws of Immer et al. (2022), "Invariance learning in deep neural networks
with differentiable Laplace approximations". Here pixels stay floating-point (there: cut to 8 bits),
all versions are resampled on one grid convention (that of `symmetry.actions.images`), and zeros
are filled in after normalisation (there: black before it), so CIFAR-10 is padded with its mean.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from isotropy.checks import CallerError, check_choice, shape_text
from isotropy.data.labelled import LabelledData, Split
from isotropy.symmetry.actions.images import affine

TRAIN_SEED = 1
TEST_SEED = 0
CHUNK_SIZE = 1000

# Half-width of each generator's uniform law, in Lie-algebra coordinates; a flip's probability.
LAWS: dict[str, dict[str, float]] = {
    "original": {},
    "rotated": {"rotation": math.pi},
    "partially-rotated": {"rotation": math.pi / 2},
    "translated": {"translation_x": 8 / 14, "translation_y": 8 / 14},
    "scaled": {"scale": math.log(2)},
    "flipped": {"horizontal_flip": 0.5},
}
FLIP = "horizontal_flip"

# The same by the symmetry that should be found, in the units in which it is reported: degrees,
# fractions of the image's width, log factors. A common factor is found as two equal ones.
TRUE_RANGES: dict[str, dict[str, float]] = {
    "original": {},
    "rotated": {"rotation": 180.0},
    "partially-rotated": {"rotation": 90.0},
    "translated": {"translation_x": 2 / 7, "translation_y": 2 / 7},
    "scaled": {"scale_x": math.log(2), "scale_y": math.log(2)},
    "flipped": {"horizontal_flip": 0.5},
}

_DONE: dict[str, str] = {
    "rotated": "turned by an angle between −180° and 180°",
    "partially-rotated": "turned by an angle between −90° and 90°",
    "translated": "moved by up to 2/7 of its width along each axis",
    "scaled": "scaled by a factor between 1/2 and 2",
    "flipped": "mirrored left to right with probability 1/2",
}


def variant_coordinates(variant: str, count: int, *, seed: int) -> Tensor:
    """The group element drawn for each image, float32 `(count, generators)`, from `LAWS`."""
    half_widths = torch.tensor(list(LAWS[_known(variant)].values()))
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.rand(count, len(half_widths), generator=generator) - 1) * half_widths


def apply_variant(data: LabelledData, variant: str, *, seed: int) -> LabelledData:
    """Every image of `data` transformed once by the law of `variant`; targets stay.

    data: images `(examples, channels, height, width)`; their dtype and device are kept.
    variant: a key of `LAWS`; "original" returns `data` itself, images or not.
    seed: with the number of examples decides all transformations.

    Bilinear with zeros outside. Raises `CallerError` for an unknown variant and for data that
    are not images. Rotations are tested against `scipy.ndimage.map_coordinates`.
    """
    law = LAWS[_known(variant)]
    if not law:
        return data
    if not data.is_images:
        raise CallerError(
            f"{data.name}: expected images (examples, channels, height, width) to make the "
            f"variant {variant!r} of, got {shape_text(data.inputs)}; variants exist for images only"
        )
    if FLIP in law:
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.rand(len(data), generator=generator) < law[FLIP]
        turned = torch.where(
            chosen.to(data.inputs.device)[:, None, None, None], data.inputs.flip(-1), data.inputs
        )
        return replace(data, inputs=turned, name=f"{data.name}, {variant}")
    action = affine(tuple(law))
    coordinates = variant_coordinates(variant, len(data), seed=seed).to(data.inputs)
    chunks = zip(coordinates.split(CHUNK_SIZE), data.inputs.split(CHUNK_SIZE), strict=True)
    images = torch.cat([action.act(each[:, None], images)[:, 0] for each, images in chunks])
    return replace(data, inputs=images, name=f"{data.name}, {variant}")


def vary(split: Split, variant: str) -> Split:
    """Both parts of `split` transformed: training images by seed 1, test images by seed 0.

    Raises `CallerError` as `apply_variant` does.
    """
    train = apply_variant(split.train, variant, seed=TRAIN_SEED)
    test = None
    if split.test is not None:
        test = apply_variant(split.test, variant, seed=TEST_SEED)
    if train is split.train:
        return split
    note = (
        f"every image {_DONE[variant]}, once and for all (seed {TRAIN_SEED} for training, "
        f"{TEST_SEED} for test)"
    )
    return Split(train=train, test=test, notes=(*split.notes, note))


def _known(variant: str) -> str:
    return check_choice(variant, LAWS, what="variant")
