"""What a run says beyond its ranges: verdicts, calibration, predictions, a screening kept."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from learn_runs import CONFIG, bar_tensors, outcome, small_network

import isotropy
from isotropy.checks import CallerError
from isotropy.evidence.predictive import Predictive
from isotropy.evidence.search.trials import Trial, Trials
from isotropy.networks.zoo.specification import parse_network
from isotropy.symmetry.actions.finite import flip
from isotropy.workflows import learning
from isotropy.workflows.runs import searching
from isotropy.workflows.runs.searching import TRIALS, KeptTrials

ACTIONS = [isotropy.affine(("rotation", "scale_x")), flip("horizontal")]
SCREENING = {"rows": [], "ranking": ["rotation"], "wanted": ["rotation"], "start": {}}


def learned(**options: Any) -> isotropy.LearnResult:
    given = {"actions": ACTIONS, "config": CONFIG, **options}
    test = given.pop("test", bar_tensors(seed=1))
    return isotropy.learn(small_network(), bar_tensors(), test, **given)


@pytest.fixture(scope="module")
def full(
    tmp_path_factory: pytest.TempPathFactory, short_rivals: int
) -> tuple[isotropy.LearnResult, Path, list]:
    folder = tmp_path_factory.mktemp("full") / "run"
    told: list[str] = []
    config = replace(CONFIG, search=True)
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
            "name", "verdict", "probability", "gain", "gain_nats", "gain_interval"
        }  # fmt: skip
        low, high = verdict["gain_interval"]
        assert low < verdict["gain_nats"] < high
        assert verdict["gain"] == pytest.approx(verdict["gain_nats"] / 60)
        own = record["search"]["symmetries"][verdict["name"]]
        assert verdict["gain_nats"] == own["gain_nats"]
        assert (verdict["probability"] is None) == record["search"]["nothing_learned"]
    assert set(record["calibration"]) == {"plug-in", "probit", "monte-carlo"}
    for scores in record["calibration"].values():
        assert scores["examples"] == 60 and 0 <= scores["expected_calibration_error"] <= 1
    assert told[0] == "searching for symmetries with trials on 60 examples"
    assert told[1].startswith("searching: trial 1, no symmetry: log predictive density ")
    assert told[-1] == "scoring the posterior predictive"
    assert record["seconds"] >= result.trainer.seconds + record["search"]["seconds"]


def test_the_search_is_in_the_record(full) -> None:
    result, folder, _ = full
    found = result.record["search"]
    assert json.loads((folder / "search.json").read_text()) == found
    assert found["examples"] == 60 and found["trials"] >= 10
    # Three equal classes. Of the trained network: 60 log ⅓. Of the linearised one: two contrasts of
    # indicators, each of variance ⅓.
    assert result.record["null_log_evidence"] == pytest.approx(60 * math.log(1 / 3))
    constant = -0.5 * 120 * (1 + math.log(2 * math.pi / 3))
    assert found["null_log_predictive"] == pytest.approx(constant)
    worth = found["log_predictive"] - constant
    assert found["nothing_learned"] is (not worth > math.log(20))
    for symmetry in result.record["symmetries"]:
        own = found["symmetries"][symmetry["name"]]
        assert symmetry["interval"] == own["interval"] and 0 <= own["probability"] <= 1
        assert own["profile"][0]["amount"] == 0.0 and len(own["profile"]) >= 2
        assert all(set(row) == {"amount", "log_predictive"} for row in own["profile"])
        kept = 0.0 if found["nothing_learned"] else own["amount"]
        assert symmetry["high"] == pytest.approx(kept, rel=1e-5)
        for row in own["beside_held_out"]:
            assert set(row) == {
                "amount", "log_predictive", "log_evidence", "test_log_likelihood"
            }  # fmt: skip
    saved = json.loads((folder / "augmentation.json").read_text())
    assert saved["symmetries"] == result.record["symmetries"]


def test_the_screening_of_a_run_is_kept(full) -> None:
    result, folder, _ = full
    assert result.record["screening"] == SCREENING
    assert json.loads((folder / "screening.json").read_text()) == SCREENING


def test_verdicts_leave_the_run_as_it_was(full) -> None:
    without = learned(config=full[0].trainer.config, verdicts=0)
    assert without.record["search"] is None, "its start is given"
    assert without.record["verdicts"] is without.record["calibration"] is None
    for name in ("log_evidence", "symmetries", "test_accuracy"):
        assert getattr(without, name) == getattr(full[0], name)
    assert without.record["screening"] is None


@pytest.mark.parametrize("objective", ["none", "augerino"])
def test_verdicts_are_those_of_the_evidence_alone(objective: Any) -> None:
    config = replace(CONFIG, objective=objective, search=True)
    record = learned(config=config, verdicts=2).record
    assert record["verdicts"] is record["search"] is None
    assert record["null_log_evidence"] == pytest.approx(60 * math.log(1 / 3))


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


# -- stopped ---------------------------------------------------------------------------------------


class Stopped(Exception):
    """A run was stopped."""


def stop(*arguments: Any, **named: Any) -> None:
    raise Stopped


def alike(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """All numbers of a run but times, those of its search included."""
    result, rows = outcome(folder)
    assert result["search"].pop("seconds") >= 0
    return result, rows


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, short_rivals: int) -> Path:
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    learned(config=SEARCHED, folder=folder, verdicts=2, screening=SCREENING, actions=FLIPPED)
    return folder


SEARCHED = replace(CONFIG, search=True)
FLIPPED = [flip("horizontal")]
STOPS = {
    "in the search": (searching, "search", False),
    "in the epochs": (learning, "_run", True),
    "in the verdicts": (learning, "judge", True),
}


@pytest.mark.parametrize(("place", "name", "is_kept"), STOPS.values(), ids=STOPS)
def test_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbroken: Path, short_rivals: int,
    place: Any, name: str, is_kept: bool,
) -> None:  # fmt: skip
    """What was found and trained is kept, and the rest ends with the numbers of an unbroken run."""
    folder = tmp_path / "run"
    options: dict[str, Any] = {"config": SEARCHED, "folder": folder, "actions": FLIPPED}
    with monkeypatch.context() as patch:
        patch.setattr(place, name, stop)
        with pytest.raises(Stopped):
            learned(verdicts=2, screening=SCREENING, **options)
    assert not (folder / "result.json").exists()
    assert (folder / "search.json").exists() is is_kept
    searches: list[Any] = []
    find_amounts = learning.find_amounts

    def found_again(*given: Any, **named: Any) -> dict[str, Any]:
        searches.append(given)
        return find_amounts(*given, **named)

    monkeypatch.setattr(learning, "find_amounts", found_again)
    epochs: list[Any] = []
    given = {} if is_kept else {"screening": SCREENING}
    learned(resume=True, verdicts=2, progress=epochs.append, **given, **options)
    assert bool(searches) is not is_kept, "what was found must not be looked for again"
    own = CONFIG.epochs or 0
    compared = 2 * math.ceil(short_rivals / 3)  # with the flip and without; 20 of 60 in a step
    assert len(epochs) == (0 if name == "judge" else compared + own)
    assert alike(folder) == alike(unbroken)
    kept = json.loads((folder / "search.json").read_text())
    assert kept["amounts"] == json.loads((unbroken / "search.json").read_text())["amounts"]


def test_a_search_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbroken: Path
) -> None:
    """Trials that were made are not made again, and the run ends like an unbroken one."""
    folder = tmp_path / "run"
    options: dict[str, Any] = {"config": SEARCHED, "folder": folder, "actions": FLIPPED}
    made, before = Trials._made, 2
    counted: list[Any] = []

    def counting(trials: Trials, *given: Any) -> Trial:
        if len(counted) == before:
            raise Stopped
        counted.append(given)
        return made(trials, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Trials, "_made", counting)
        with pytest.raises(Stopped):
            learned(verdicts=2, screening=SCREENING, **options)
    assert len((folder / TRIALS).read_text().splitlines()) == 1 + before
    before, remarks = 1000, list[str]()
    with monkeypatch.context() as patch:
        patch.setattr(Trials, "_made", counting)
        learned(resume=True, verdicts=2, remark=remarks.append, **options)
    assert "continuing after 2 trials" in remarks
    total = json.loads((unbroken / "result.json").read_text())["search"]["trials"]
    assert len(counted) == total > 2
    assert alike(folder) == alike(unbroken)
    assert not (folder / TRIALS).exists()


def trial(amount: float, value: float) -> Trial:
    return Trial({"rotation": amount}, 1, value, value - 1, torch.tensor([0.1, value]).double())


def test_trials_of_another_network_are_not_taken_over(tmp_path: Path) -> None:
    path = tmp_path / TRIALS
    kept = KeptTrials(path, {"weights": "a"}, resume=False)
    kept.add(trial(0.1 + 0.2, -1 / 3))
    (again,) = KeptTrials(path, {"weights": "a"}, resume=True).before
    expected = trial(0.1 + 0.2, -1 / 3)
    assert (again.amounts, again.replicate) == (expected.amounts, 1)
    assert again.log_evidence == expected.log_evidence, "to the last bit"
    assert torch.equal(again.blocks, expected.blocks)
    assert KeptTrials(path, {"weights": "b"}, resume=True).before == []
    assert len(path.read_text().splitlines()) == 1, "the file is of the new search"


def test_a_trial_that_failed_comes_back_as_one(tmp_path: Path) -> None:
    kept = KeptTrials(tmp_path / TRIALS, {}, resume=False)
    kept.add(Trial({}, 0, -math.inf, -math.inf, torch.zeros(2)))
    (again,) = KeptTrials(tmp_path / TRIALS, {}, resume=True).before
    assert again.log_predictive == again.log_evidence == -math.inf


@pytest.mark.parametrize(("first", "second"), [(2.0, 2.0), (4.0, 50.0)])
def test_what_a_long_search_takes_is_said_early(
    first: float, second: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a trial with copies; by the one without where that is slow; kernels take a second."""
    now, told = [0.0], list[str]()
    monkeypatch.setattr(searching, "time", SimpleNamespace(monotonic=lambda: now[0]))
    trials = SimpleNamespace(most_copies=16, seconds_of_copies=first - 1)
    tell = searching._Teller(told.append, symmetries=3, trials=trials)
    now[0] = first
    tell(Trial({}, 0, 0.0, 0.0, torch.zeros(1)))
    before = [line for line in told if line.startswith("the search will take")]
    now[0] += second
    tell(trial(1.0, 0.0))
    after = [line for line in told if line.startswith("the search will take")]
    per_symmetry = [f"about {8 * 3 * each:.0f} to {29 * 3 * each:.0f} s" for each in (49, second)]
    assert [per_symmetry[0] in line for line in before] == ([True] if first > 3 else [])
    assert per_symmetry[1] in after[-1]


def test_a_short_search_says_nothing_of_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told = [0.0], list[str]()
    monkeypatch.setattr(searching, "time", SimpleNamespace(monotonic=lambda: now[0]))
    trials = SimpleNamespace(most_copies=16, seconds_of_copies=0.1)
    tell = searching._Teller(told.append, symmetries=1, trials=trials)
    for each in (Trial({}, 0, 0.0, 0.0, torch.zeros(1)), trial(1.0, 0.0)):
        now[0] += 0.1
        tell(each)
    assert len(told) == 1 and told[0].startswith("searching: trial 1, no symmetry")


# --- random features, and the bank of a run by the evidence bound ---------------------------------


def features_run(folder: Path, **options: Any) -> isotropy.LearnResult:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        network = parse_network("rff:12").build((1, 8, 8), 3)
    config = replace(CONFIG, evidence="elbo", **options)
    rotation = isotropy.affine(("rotation",))
    specification = parse_network("rff:12")
    return isotropy.learn(network, bar_tensors(), actions=rotation, config=config, folder=folder,
                          network=specification)  # fmt: skip


def test_features_of_a_run_come_back_with_it(tmp_path: Path) -> None:
    result = features_run(tmp_path / "run")
    loaded = isotropy.load(tmp_path / "run")
    images, _ = bar_tensors(seed=1)
    assert torch.equal(loaded(images), result.model(images))
    assert torch.equal(loaded.network[1].weight, result.model.network[1].weight)


def test_the_bank_is_kept_before_and_after(tmp_path: Path, drawn_pages: None) -> None:
    result = features_run(tmp_path / "run", start={"rotation": 30.0})
    filters = np.load(tmp_path / "run" / "samples.npz")["filters"]
    assert filters.shape == (2, 6, 7, 1, 8, 8)
    weights = result.model.network[1].weight[:6].reshape(6, 1, 8, 8).numpy()
    # The element in the middle is the identity, before and after; others have moved with the range.
    assert np.allclose(filters[:, :, 3], weights, atol=1e-6)
    assert not np.allclose(filters[0, :, 0], filters[1, :, 0], atol=1e-3)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Feature bank" in page and "After: filter 6, element 7" in page
    assert "Log evidence bound per example" in page


def test_only_such_runs_have_a_bank(tmp_path: Path) -> None:
    result = learned(folder=tmp_path / "run")
    assert result.illustration.filters is None and result.record["elbo"] is None
    assert "filters" not in np.load(tmp_path / "run" / "samples.npz")
