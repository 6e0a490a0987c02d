"""A trained model comes back from its run folder as it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from learn_runs import CONFIG
from torch import nn

import isotropy
from isotropy.checks import CallerError
from isotropy.networks.zoo.specification import parse_network
from isotropy.symmetry.actions.finite import flip, quarter_turns


def images_and_labels() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand((40, 1, 8, 8), generator=generator), torch.arange(40) % 2


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 2))


def same_predictions(one: isotropy.InvariantModel, other: isotropy.InvariantModel) -> bool:
    inputs, _ = images_and_labels()
    noise = one.noise(len(inputs), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return torch.equal(one(inputs, noise), other(inputs, noise))


def test_named_network_is_rebuilt_from_its_words(tmp_path: Path) -> None:
    specification = parse_network("mlp:5")
    built = specification.build((1, 8, 8), 2)
    result = isotropy.learn(
        built, images_and_labels(), config=CONFIG, folder=tmp_path, network=specification
    )
    model = isotropy.load(tmp_path)
    assert same_predictions(result.model, model)
    assert model.symmetries() == result.symmetries
    assert model.samples == result.model.samples == CONFIG.test_samples
    assert not model.training and not result.model.training


def test_given_network_is_given_again(tmp_path: Path) -> None:
    result = isotropy.learn(network(), images_and_labels(), config=CONFIG, folder=tmp_path)
    assert same_predictions(result.model, isotropy.load(tmp_path, network=network()))
    with pytest.raises(isotropy.CallerError, match="handed over in Python and cannot be rebuilt"):
        isotropy.load(tmp_path)
    with pytest.raises(isotropy.CallerError, match="is of another model"):
        isotropy.load(tmp_path, network=nn.Sequential(nn.Flatten(), nn.Linear(64, 2)))
    with pytest.raises(isotropy.CallerError, match="an action with rotation"):
        isotropy.load(tmp_path, network=network(), actions=isotropy.affine(("rotation",)))


@pytest.mark.parametrize("padding", ["border", "reflection", "mean"])
def test_padding_is_recorded_and_loaded(tmp_path: Path, padding: str) -> None:
    fill = [0.4] if padding == "mean" else None
    specification = parse_network("mlp:5")
    result = isotropy.learn(
        specification.build((1, 8, 8), 2),
        images_and_labels(),
        config=CONFIG,
        folder=tmp_path,
        network=specification,
        actions=isotropy.affine(("rotation",), padding=padding, fill=fill),
    )
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["padding"], config["fill"]) == (padding, fill)
    assert result.record["padding"] == padding
    model = isotropy.load(tmp_path)
    assert model.augmentation.action.padding == padding
    assert same_predictions(result.model, model)


def test_padding_follows_from_the_edges() -> None:
    inputs, labels = images_and_labels()  # uniform on [0, 1] everywhere
    found = {}
    for name, own in (("noise", inputs), ("framed", inputs.clone())):
        if name == "framed":
            own[:, :, [0, -1]] = 0
            own[:, :, :, [0, -1]] = 0
        result = isotropy.learn(network(), (own, labels), config=CONFIG)
        found[name] = result.record["padding"]
        assert any(f"padding {found[name]} chosen" in note for note in result.record["notes"])
    assert found == {"noise": "border", "framed": "zeros"}


MIXED = [isotropy.affine(("rotation",)), flip("horizontal"), quarter_turns()]
CORRELATED = isotropy.affine(("scale_x", "scale_y"))


@pytest.mark.parametrize("given", ["mixture", "correlated"])
def test_other_augmentations_come_back(given: str, tmp_path: Path) -> None:
    actions, distribution = (
        (MIXED, "independent") if given == "mixture" else (CORRELATED, "correlated")
    )
    config = replace(CONFIG, distribution=distribution)
    result = isotropy.learn(
        network(), images_and_labels(), actions=actions, config=config, folder=tmp_path
    )
    model = isotropy.load(tmp_path, network=network(), actions=actions)
    assert same_predictions(result.model, model)
    assert model.symmetries() == result.symmetries
    law = json.loads((tmp_path / "augmentation.json").read_text())
    assert law["kind"] == given
    again = json.loads(json.dumps(model.augmentation.law()))
    assert {"schema": 1, **again, "symmetries": law["symmetries"]} == law


def test_finite_actions_are_given_again(tmp_path: Path) -> None:
    isotropy.learn(network(), images_and_labels(), actions=MIXED, config=CONFIG, folder=tmp_path)
    with pytest.raises(isotropy.CallerError, match="handed over in Python .* with actions="):
        isotropy.load(tmp_path, network=network())
    with pytest.raises(isotropy.CallerError, match="has the generators rotation, horizontal_flip"):
        isotropy.load(tmp_path, network=network(), actions=MIXED[:2])


def test_not_a_run_folder(tmp_path: Path) -> None:
    with pytest.raises(isotropy.CallerError, match="is not a run folder"):
        isotropy.load(tmp_path)


@pytest.mark.parametrize("rate", [1.0, 1e-6])
def test_a_run_says_whether_it_has_settled(rate: float) -> None:
    """By what its ranges did in the last quarter of the epochs."""
    config = replace(CONFIG, range_rate=rate, range_rate_end=rate)
    result = isotropy.learn(
        network(), images_and_labels(), actions=isotropy.affine(("rotation",)), config=config
    )
    last, before = (result.history[row]["ranges"]["rotation"] for row in (-1, -2))
    assert (abs(last - before) > 3) == (rate == 1.0), "the case must move, or not"
    assert result.record["settled"] is (rate != 1.0)


def test_settings_that_build_nothing_are_named(tmp_path: Path) -> None:
    network = {"kind": "autoencoder", "name": "x", "arguments": {"size": 4, "invariant": 1.5}}
    config = {"schema": 1, "kind": "represent", "network": network}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CallerError, match="config.json.*nothing can be built as it says"):
        isotropy.load(tmp_path)
