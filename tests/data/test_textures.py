"""Textures with a known symmetry: reproducible, of the stated law, and undone by its inverse."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.data.problems import TextureLaw, moved_textures
from isotropy.symmetry.actions.images import affine

QUIET = {"noise": 0.0, "poses": 1, "textures": 2}


def inputs_of(law: TextureLaw, examples: int = 40, seed: int = 0):
    train = moved_textures(law, examples, test_examples=4, seed=seed).split.train
    return train.inputs, train.targets


def test_all_follows_from_the_seed() -> None:
    law = TextureLaw({"rotation": 45.0})
    first, again, other = (inputs_of(law, seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.shape == (40, 1, 14, 14) and first.dtype == torch.float32


def spread_within_classes(law: TextureLaw) -> float:
    inputs, labels = inputs_of(law)
    parts = [inputs[labels == label].var(0).mean() for label in labels.unique()]
    return float(torch.stack(parts).mean() / inputs.var(0).mean())


def test_without_motion_or_noise_a_class_is_one_picture() -> None:
    assert spread_within_classes(TextureLaw(**QUIET)) < 0.02


@pytest.mark.parametrize(
    "amounts",
    [{"rotation": 45.0}, {"translation_x": 0.1}, {"translation_y": 0.1}, {"horizontal_flip": 0.5}],
    ids=lambda amounts: next(iter(amounts)),
)
def test_every_amount_moves_pictures(amounts: dict[str, float]) -> None:
    assert spread_within_classes(TextureLaw(amounts, **QUIET)) > 0.1


def turned(picture: Tensor, degrees: float) -> Tensor:
    angle = torch.full((1, 1, 1), math.radians(degrees))
    return affine(("rotation",)).act(angle, picture[None])[0, 0]


def change(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).square().mean() / expected.square().mean())


def means(law: TextureLaw) -> list[Tensor]:
    """The mean picture of every label."""
    inputs, labels = inputs_of(law)
    return [inputs[labels == label].mean(0) for label in labels.unique()]


POSES = {
    "one": (1, None, (0.0,)),
    "two": (2, None, (-90.0, 90.0)),
    "two, close": (2, 60.0, (-30.0, 30.0)),
    "three": (3, 40.0, (-40.0, 0.0, 40.0)),
}


@pytest.mark.parametrize(("poses", "turn", "angles"), POSES.values(), ids=POSES)
def test_poses_are_one_texture_turned_about_the_upright_one(poses, turn, angles) -> None:
    upright = means(TextureLaw(poses=1, textures=2, noise=0.0))
    found = means(TextureLaw(poses=poses, textures=2, turn=turn, noise=0.0))
    assert len(found) == 2 * poses
    for picture, (own, angle) in zip(found, itertools.product(upright, angles), strict=True):
        assert change(picture, turned(own, angle)) < 0.05
        assert angle == 0 or change(picture, turned(own, -angle)) > 0.5, "the direction"


def test_poses_of_a_kind_share_their_label() -> None:
    law = {"textures": 1, "poses": 4, "turn": 60.0, "noise": 0.0}
    (inputs, own), (again, labels) = (inputs_of(TextureLaw(kinds=k, **law)) for k in (None, 2))
    assert torch.equal(inputs, again) and torch.equal(labels, own % 2)
    first, third = (inputs[own == pose].mean(0) for pose in (0, 2))
    back = affine(("rotation",)).act(torch.full((1, 1, 1), -2 * torch.pi / 3), third[None])[0, 0]
    change = (back - first).square().mean() / (third - first).square().mean()
    assert change < 0.1


def test_mirror_images_are_further_textures() -> None:
    """The mirror image of a texture at one pose is the mirrored texture at the opposite one."""
    law = {"textures": 2, "poses": 3, "turn": 40.0, "noise": 0.0}
    plain, found = means(TextureLaw(**law)), means(TextureLaw(mirrored=True, **law))
    assert (len(plain), len(found)) == (6, 12)
    for texture, pose in itertools.product(range(2), range(3)):
        own, other = found[3 * texture + pose], found[3 * (texture + 2) + 2 - pose]
        assert change(own, plain[3 * texture + pose]) < 0.02
        assert change(other, own.flip(-1)) < 0.02 and change(other, own) > 0.5
    problem = moved_textures(TextureLaw(mirrored=True, **law), 12, test_examples=4)
    assert len(problem.split.train.classes) == 12
    assert "2 textures and their mirror images" in problem.about


def centres(pictures: Tensor) -> Tensor:
    """Means of positions in pixels, weighted by squares, (examples, 2)."""
    weights = pictures[:, 0].square()
    place = torch.arange(pictures.shape[-1]).float()
    both = torch.stack([weights.sum(1) @ place, weights.sum(2) @ place], 1)
    return both / weights.sum((1, 2))[:, None]


@pytest.mark.parametrize("kinds", [None, 2])
def test_a_ring_moves_half_the_pictures_to_the_next_label(kinds: int | None) -> None:
    law = {"textures": 2, "poses": 4, "kinds": kinds, "noise": 0.0}
    plain, before = inputs_of(TextureLaw(**law), 400)
    inputs, labels = inputs_of(TextureLaw(ring=0.1, **law), 400)
    number = kinds or 4
    texture, pose = before // number, before % number
    moved = labels != before
    assert torch.equal(labels[moved], (texture * number + (pose + 1) % number)[moved])
    assert 160 < int(moved.sum()) < 240, "four standard deviations"
    ways = centres(inputs) - centres(plain)
    distances = ways.norm(dim=1)
    assert float((distances[moved] - 1.4).abs().max()) < 0.4, "a tenth of the width"
    assert float(distances[moved].mean()) == pytest.approx(1.4, abs=0.05)
    assert float(distances[~moved].max()) < 0.2
    assert float(ways[moved].mean(0).norm()) < 0.4, "in all directions"


def test_random_labels_say_nothing() -> None:
    law = {"textures": 2, "poses": 1, "noise": 0.0}
    told = spread_within_classes(TextureLaw(**law))
    assert spread_within_classes(TextureLaw(random_labels=True, **law)) > 0.5 > told


def test_the_truth_has_every_name() -> None:
    problem = moved_textures(TextureLaw({"rotation": 8.0}), 20, test_examples=4)
    assert problem.truth == {
        "rotation": 8.0, "translation_x": 0.0, "translation_y": 0.0, "horizontal_flip": 0.0
    }  # fmt: skip


def test_too_few_pictures_are_refused() -> None:
    with pytest.raises(CallerError, match="number of pictures"):
        moved_textures(TextureLaw(textures=2, poses=4), 7)
