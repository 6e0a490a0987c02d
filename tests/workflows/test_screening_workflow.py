"""`isotropy.screen` in Python: its record, its folder, what a run starts from, mistakes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learn_runs import CONFIG, bar_tensors, small_network
from torch import nn

import isotropy
from isotropy.checks import CallerError
from isotropy.data.labelled import LabelledData
from isotropy.symmetry.actions.finite import flip
from isotropy.symmetry.actions.points import points
from isotropy.workflows import exploring as room
from isotropy.workflows.exploring import ScreenResult

ACTIONS = [isotropy.affine(("rotation", "scale_x")), flip("horizontal")]


def screened(**options: Any) -> ScreenResult:
    given = {"actions": ACTIONS, "config": CONFIG, **options}
    return isotropy.screen(small_network(), bar_tensors(), **given)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[ScreenResult, Path, list]:
    """A screening in a folder, and what was told on the way."""
    folder = tmp_path_factory.mktemp("screening") / "run"
    told: list[str] = []
    config = replace(CONFIG, epochs=10)
    found = screened(config=config, folder=folder, progress=told.append, describe={"note": "mine"})
    return found, folder, told


def test_record_has_what_is_promised(saved) -> None:
    found, folder, told = saved
    record = json.loads(json.dumps(found.record, allow_nan=False))
    assert record["command"] == "screen" and record["schema"] == 1
    assert record["train_examples"] == 60 and record["run_folder"] == str(folder)
    assert record["training"]["epochs"] == 10 and record["training"]["train_loss"] > 0
    assert record["curvature"] == "kfac-ggn"
    screening = record["screening"]
    assert screening == json.loads(json.dumps(found.screening.as_dict()))
    assert sorted(screening["ranking"]) == ["horizontal_flip", "rotation", "scale_x"]
    assert screening["generators"] == ["rotation", "scale_x"]
    per_example = record["training"]["log_evidence_per_example"]
    assert per_example == pytest.approx(screening["log_evidence"] / 60)
    assert told[0] == "plain network: epoch 10 of 10"


def test_a_run_can_start_from_it(saved) -> None:
    """What is wanted starts at its amount, the rest faintly, so that it can still be learned."""
    found, _, _ = saved
    faint = {"rotation": math.degrees(0.05), "scale_x": 0.05, "horizontal_flip": 0.02}
    assert set(found.start) == set(faint)
    for name, least in faint.items():
        assert found.start[name] == pytest.approx(max(least, found.screening.start.get(name, 0)))
    config = replace(CONFIG, start=found.start, epochs=1, burn_in=1)
    result = isotropy.learn(
        small_network(),
        bar_tensors(),
        actions=ACTIONS,
        config=config,
        screening=found.screening.as_dict(),
    )
    begun = {symmetry.name: symmetry.high for symmetry in result.symmetries}
    assert begun == {name: pytest.approx(high, rel=1e-5) for name, high in found.start.items()}
    assert result.record["screening"] == found.screening.as_dict()


def test_a_seed_decides_all() -> None:
    first, again = screened(), screened()
    other = screened(config=replace(CONFIG, seed=1))
    assert first.screening == again.screening != other.screening


def test_length_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty epochs unless told otherwise, whatever a full run would take."""
    assert room.EPOCHS == 30
    monkeypatch.setattr(room, "EPOCHS", 2)
    found = screened(config=replace(CONFIG, epochs=None), actions=ACTIONS[:1])
    assert found.record["training"]["epochs"] == found.config["schedule"]["epochs"] == 2


def test_caps_bound_what_is_tried() -> None:
    config = replace(CONFIG, caps={"rotation": 1.0, "horizontal_flip": 0.05})
    found = screened(config=config).screening
    tried = {name: amount for row in found.rows for name, amount in row.amounts.items()}
    assert 0 < tried["rotation"] <= 1.0 + 1e-6
    assert 0 < tried["horizontal_flip"] <= 0.05 + 1e-6


def test_six_generators_by_default() -> None:
    found = isotropy.screen(small_network(), bar_tensors(), config=replace(CONFIG, epochs=1))
    assert found.screening.names == tuple(isotropy.affine().names)


def test_generators_of_many_coordinates_are_screened_alone() -> None:
    """A jitter has no single correlation with anything: ranges are independent then."""
    clouds = torch.rand(30, 5, 2, generator=torch.Generator().manual_seed(0))
    network = nn.Sequential(nn.Flatten(), nn.Linear(10, 4), nn.Tanh(), nn.Linear(4, 2))
    found = isotropy.screen(
        network,
        LabelledData(clouds, torch.arange(30) % 2, None, "clouds"),
        actions=points(2, ("rotation", "jitter"), count=5),
        config=CONFIG,
    )
    assert found.screening.factor is None
    assert sorted(found.screening.ranking) == ["jitter", "rotation"]


# -- mistakes ----------------------------------------------------------------------------------

MISTAKES: dict[str, tuple[Callable[..., Any], str]] = {
    "data that does not turn": (
        lambda **o: isotropy.screen(
            nn.Linear(4, 3),
            (torch.rand(60, 4), bar_tensors()[1]),
            actions=isotropy.affine(),
            config=CONFIG,
            **o,
        ),
        "rotation, .* cannot act on it",
    ),
    "data that cannot be mirrored": (
        lambda **o: isotropy.screen(
            nn.Linear(4, 3),
            (torch.rand(60, 4), bar_tensors()[1]),
            actions=flip("horizontal"),
            config=CONFIG,
            **o,
        ),
        "horizontal_flip cannot act on it",
    ),
    "no rule for a layer": (
        lambda **o: isotropy.screen(
            nn.Sequential(nn.Flatten(), nn.PReLU(), nn.Linear(64, 3)),
            bar_tensors(),
            config=replace(CONFIG, fallback="refuse"),
            **o,
        ),
        "PReLU has no curvature rule",
    ),
    "too few outputs": (
        lambda **o: isotropy.screen(small_network(2), bar_tensors(), config=CONFIG, **o),
        "2 outputs",
    ),
    "no epochs": (
        lambda **o: screened(config=replace(CONFIG, epochs=-1), **o),
        "epochs: expected at least 1",
    ),
}


@pytest.mark.parametrize(("call", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_sentences(call: Callable[..., Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(CallerError, match=sentence):
        call(folder=tmp_path / "run")
    assert not (tmp_path / "run").exists(), "a mistake must not leave a run folder behind"


def test_a_folder_that_cannot_be_written_is_told_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told: list[str] = []
    with pytest.raises(CallerError, match="cannot be written"):
        screened(
            folder=tmp_path / "file" / "run",
            config=replace(CONFIG, epochs=10),
            progress=told.append,
        )
    assert told == []
