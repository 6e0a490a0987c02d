"""Textures with a known symmetry: reproducible, of the stated law, and undone by its inverse."""

from __future__ import annotations

import pytest
import torch

from isotropy.checks import CallerError
from isotropy.data.textures import TextureLaw, moved_textures
from isotropy.symmetry.image_actions import affine

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


def test_poses_are_one_texture_turned() -> None:
    inputs, labels = inputs_of(TextureLaw(textures=1, poses=2, noise=0.0))
    upright, turned = (inputs[labels == label].mean(0) for label in (0, 1))
    half_a_turn = torch.full((1, 1, 1), torch.pi)
    back = affine(("rotation",)).act(half_a_turn, turned[None])[0, 0]
    assert (back - upright).square().mean() < 0.02 * upright.square().mean()


def test_poses_of_a_kind_share_their_label() -> None:
    law = {"textures": 1, "poses": 4, "turn": 60.0, "noise": 0.0}
    (inputs, own), (again, labels) = (inputs_of(TextureLaw(kinds=k, **law)) for k in (None, 2))
    assert torch.equal(inputs, again) and torch.equal(labels, own % 2)
    first, third = (inputs[own == pose].mean(0) for pose in (0, 2))
    back = affine(("rotation",)).act(torch.full((1, 1, 1), -2 * torch.pi / 3), third[None])[0, 0]
    change = (back - first).square().mean() / (third - first).square().mean()
    assert change < 0.1


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
