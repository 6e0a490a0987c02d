"""What a run says beyond its ranges: verdicts, calibration, predictions, a screening kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learn_runs import CONFIG, bar_tensors, outcome, small_network

import isotropy
from isotropy.checks import CallerError
from isotropy.evidence.predictive import Predictive
from isotropy.symmetry.finite_actions import flip
from isotropy.workflows import learning

ACTIONS = [isotropy.affine(("rotation", "scale_x")), flip("horizontal")]
SCREENING = {"rows": [], "ranking": ["rotation"], "wanted": ["rotation"], "start": {}}


def learned(**options: Any) -> isotropy.LearnResult:
    given = {"actions": ACTIONS, "config": CONFIG, **options}
    test = given.pop("test", bar_tensors(seed=1))
    return isotropy.learn(small_network(), bar_tensors(), test, **given)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[isotropy.LearnResult, Path, list]:
    folder = tmp_path_factory.mktemp("full") / "run"
    told: list[str] = []
    config = replace(CONFIG, start={"rotation": 30.0, "scale_x": 0.2, "horizontal_flip": 0.3})
    result = learned(
        config=config, verdicts=2, calibrate=True, folder=folder, remark=told.append,
        screening=SCREENING,
    )  # fmt: skip
    return result, folder, told


def test_verdicts_and_calibration_are_in_the_record(full) -> None:
    result, folder, told = full
    record = json.loads(json.dumps(result.record, allow_nan=False))
    assert json.loads((folder / "result.json").read_text()) == record
    verdicts = {verdict["name"]: verdict for verdict in record["verdicts"]}
    assert list(verdicts) == ["rotation", "scale_x", "horizontal_flip"]
    for verdict in verdicts.values():
        assert set(verdict) == {
            "name", "verdict", "gain", "error", "reaction", "shuffled", "group"
        }  # fmt: skip
        assert verdict["gain"] is not None and verdict["error"] > 0 and verdict["reaction"] > 0
    assert set(record["calibration"]) == {"plug-in", "probit", "monte-carlo"}
    for scores in record["calibration"].values():
        assert scores["examples"] == 60 and 0 <= scores["expected_calibration_error"] <= 1
    assert "refitting with everything that was learned" in told
    assert told[-1] == "scoring the posterior predictive"
    assert record["seconds"] >= result.trainer.seconds


def test_the_screening_of_a_run_is_kept(full) -> None:
    result, folder, _ = full
    assert result.record["screening"] == SCREENING
    assert json.loads((folder / "screening.json").read_text()) == SCREENING


def test_verdicts_leave_the_run_as_it_was(full) -> None:
    without = learned(config=full[0].trainer.config)
    assert without.record["verdicts"] is without.record["calibration"] is None
    for name in ("log_evidence", "symmetries", "test_accuracy"):
        assert getattr(without, name) == getattr(full[0], name)
    assert without.record["screening"] is None


@pytest.mark.parametrize("objective", ["none", "augerino"])
def test_verdicts_are_those_of_the_evidence_alone(objective: Any) -> None:
    config = replace(CONFIG, objective=objective)
    assert learned(config=config, verdicts=2).record["verdicts"] is None


def test_calibration_needs_classes_a_test_set_and_an_evidence() -> None:
    assert learned(calibrate=True, test=None).record["calibration"] is None
    config = replace(CONFIG, objective="augerino")
    assert learned(calibrate=True, config=config).record["calibration"] is None
    inputs, labels = bar_tensors()
    targets = torch.stack([labels - 0.5, inputs.mean((1, 2, 3))], 1)
    result = isotropy.learn(
        small_network(2), (inputs, targets), (inputs, targets), actions=ACTIONS, config=CONFIG,
        calibrate=True,
    )  # fmt: skip
    assert result.record["calibration"] is None


def test_predictive_is_that_of_the_trained_network(full) -> None:
    """Its mean is the model's output; its probabilities are less sure than the plain ones."""
    result = full[0]
    predictive = result.predictive()
    assert isinstance(predictive, Predictive)
    inputs, _ = bar_tensors(seed=1)
    noise = result.model.noise(len(inputs), generator=torch.Generator().manual_seed(0))
    mean, covariance = predictive.outputs(inputs, noise)
    with torch.no_grad():
        expected = result.model(inputs, noise)
    torch.testing.assert_close(mean.to(expected), expected, rtol=1e-4, atol=1e-5)
    assert covariance.shape == (60, 3, 3)
    assert float(torch.linalg.eigvalsh(covariance).min()) > -1e-6
    assert float(covariance.diagonal(dim1=1, dim2=2).min()) > 0
    plain = expected.softmax(1).max(1).values.mean()
    probabilities = predictive.probabilities(inputs, noise, "probit")
    torch.testing.assert_close(
        probabilities.sum(1), torch.ones(60, dtype=probabilities.dtype), rtol=1e-5, atol=1e-5
    )
    assert float(probabilities.max(1).values.mean()) < float(plain)


def test_predictive_needs_a_prior() -> None:
    result = learned(config=replace(CONFIG, objective="augerino"))
    with pytest.raises(
        CallerError, match="predictive: expected an objective with a prior, got aug"
    ):
        result.predictive()


# -- stopped while refitting -----------------------------------------------------------------------


class Stopped(Exception):
    """A run was stopped while its verdicts were made."""


def test_stopped_between_refits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All epochs are kept; the verdicts are made again, with the numbers of an unbroken run."""
    options: dict[str, Any] = {"verdicts": 2, "screening": SCREENING}
    unbroken = learned(folder=tmp_path / "unbroken", **options)
    judge = learning.judge

    def stop(*arguments: Any, **named: Any) -> None:
        raise Stopped

    monkeypatch.setattr(learning, "judge", stop)
    with pytest.raises(Stopped):
        learned(folder=tmp_path / "run", **options)
    assert not (tmp_path / "run" / "result.json").exists()
    monkeypatch.setattr(learning, "judge", judge)
    epochs: list[Any] = []
    resumed = learned(folder=tmp_path / "run", resume=True, verdicts=2, progress=epochs.append)
    assert epochs == [], "what was trained must not be trained again"
    assert resumed.record["verdicts"] == unbroken.record["verdicts"] is not None
    assert resumed.record["screening"] == SCREENING, "kept by the folder, not given again"
    assert outcome(tmp_path / "run") == outcome(tmp_path / "unbroken")
