"""Sequences, clouds and tables in memory: read as what the actions and the network take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from learn_runs import CONFIG
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import isotropy
from isotropy.checks import CallerError
from isotropy.workflows.learning import shown_examples

LABELS = torch.arange(40) % 2
SETTINGS = replace(CONFIG, epochs=1, samples=2, test_samples=2)


def numbers(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(40, *shape, generator=generator)


def learned(network: nn.Module, data: Any, **options: Any) -> tuple[list[int], list[str]]:
    """The shape of an example as it was learned from, and the candidates."""
    torch.manual_seed(0)
    result = isotropy.learn(network, data, config=SETTINGS, **options)
    return result.config["data"]["shape"], [each.name for each in result.symmetries]


def along_time() -> nn.Module:
    return nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 10, 2))


def flat(size: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 2))


@pytest.mark.parametrize("form", ["pair", "Dataset"])
def test_the_network_says_that_these_are_sequences(form: str) -> None:
    pair = (numbers(2, 12), LABELS)
    shape, names = learned(along_time(), pair if form == "pair" else TensorDataset(*pair))
    assert shape == [2, 12] and names == ["shift", "stretch", "amplitude"]


@pytest.mark.parametrize(
    "shape, actions",
    [
        ((2, 12), isotropy.sequences(("shift",))),
        ((6, 3), isotropy.points(3, ("rotation_z",))),
        ((6, 2), isotropy.actions_named(["point_permutation"], (6, 2))),
    ],
)
def test_the_actions_say_what_these_are(shape: tuple[int, int], actions: Any) -> None:
    test = (numbers(*shape)[:10], LABELS[:10])
    network = flat(shape[0] * shape[1])
    kept, _ = learned(network, (numbers(*shape), LABELS), test=test, actions=actions)
    assert kept == list(shape)


def test_what_nobody_says_is_an_image() -> None:
    shape, names = learned(flat(24), (numbers(2, 12), LABELS))
    assert shape == [1, 2, 12] and "rotation" in names


def test_tables_have_candidates_of_their_own() -> None:
    shape, names = learned(flat(4), (numbers(4), LABELS))
    assert shape == [4] and names == ["scale", "sign_change"]


def test_the_remedy_for_a_table_that_does_not_turn_works() -> None:
    with pytest.raises(CallerError, match=r"read as tables.*actions_named\(names, \(4,\)\)"):
        learned(flat(4), (numbers(4), LABELS), actions=isotropy.affine())
    remedy = isotropy.actions_named(["sign:0"], (4,))
    assert learned(flat(4), (numbers(4), LABELS), actions=remedy)[1] == ["sign:0"]


def test_images_of_several_classes_are_shown() -> None:
    labels = torch.tensor([2, 2, 2, 0, 2, 0, 1, 2])
    assert labels[shown_examples(labels, 3)].tolist() == [0, 1, 2]
    assert shown_examples(labels, 6).tolist() == [3, 6, 0, 5, 1, 2]
    assert shown_examples(torch.rand(4, 1), 3).tolist() == [0, 1, 2]
