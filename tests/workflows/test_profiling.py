"""`isotropy.profile` in Python: its record, its folder, kinds that fail, mistakes."""

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
from scipy import stats
from torch import nn

import isotropy
from isotropy.checks import CallerError
from isotropy.evidence.search.amounts import peak_of
from isotropy.symmetry.actions.finite import flip
from isotropy.workflows.exploring import ProfileResult

QUICK = replace(CONFIG, epochs=2)
TURN = isotropy.affine(("rotation", "scale_x"))


def profiled(**options: Any) -> ProfileResult:
    given: dict[str, Any] = {
        "generator": "rotation", "amounts": [90.0, 0.0, 45.0], "curvatures": ["kfac-ggn"],
        "actions": TURN, "config": QUICK, **options,
    }  # fmt: skip
    model = given.pop("model", None) or small_network()
    return isotropy.profile(model, bar_tensors(), given.pop("test", None), **given)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[ProfileResult, Path, list]:
    folder = tmp_path_factory.mktemp("profile") / "run"
    told: list[Any] = []
    found = profiled(
        test=bar_tensors(seed=1),
        amounts=[90.0, 0.0, 45.0, 20.0],
        curvatures=["kfac-ggn", "diagonal"],
        folder=folder,
        truth=45.0,
        progress=lambda *what: told.append(what),
        describe={"note": "mine"},
    )
    return found, folder, told


PROFILE = {
    "curvature", "amounts", "log_evidence", "log_evidence_per_example",
    "log_likelihood_per_example", "test_log_likelihood", "test_accuracy", "evidence", "maximum",
    "interval", "held_out_maximum", "rank_correlation", "error",
}  # fmt: skip


def test_record_has_what_is_promised(saved) -> None:
    found, folder, _ = saved
    record = json.loads(json.dumps(found.record, allow_nan=False))
    assert record["command"] == "profile" and record["run_folder"] == str(folder)
    assert (record["generator"], record["unit"], record["truth"]) == ("rotation", "degrees", 45.0)
    assert record["train_examples"] == record["test_examples"] == 60
    assert [each["curvature"] for each in record["profiles"]] == ["kfac-ggn", "diagonal-ggn"]
    for each in record["profiles"]:
        assert set(each) == PROFILE and each["error"] is None
        assert each["amounts"] == [0.0, 20.0, 45.0, 90.0]
        columns = [value for value in each.values() if isinstance(value, list) and len(value) == 4]
        assert len(columns) == 7  # the amounts, and one number or record for each
        per_example = [nats / 60 for nats in each["log_evidence"]]
        assert each["log_evidence_per_example"] == pytest.approx(per_example)


def test_peaks_and_agreement_are_those_of_the_columns(saved) -> None:
    for each in saved[0].record["profiles"]:
        peak = peak_of(each["amounts"], each["log_evidence"], examples=60)
        assert (each["maximum"], each["interval"]) == (peak.maximum, list(peak.interval))
        held_out = each["test_log_likelihood"]
        assert each["held_out_maximum"] == peak_of(each["amounts"], held_out).maximum
        expected = stats.spearmanr(each["log_evidence"], held_out).statistic
        assert each["rank_correlation"] == pytest.approx(expected)


def test_rows_are_comparable(saved) -> None:
    """One noise for all amounts of a kind, so that their differences mean something."""
    for each in saved[0].record["profiles"]:
        seeds = {evidence["noise_seed"] for evidence in each["evidence"]}
        kinds = {evidence["curvature"] for evidence in each["evidence"]}
        assert len(seeds) == 1 and kinds == {each["curvature"]}


def test_progress_is_told_after_every_refit(saved) -> None:
    found, _, told = saved
    kinds = ("kfac-ggn", "diagonal-ggn")
    wanted = [(kind, amount) for kind in kinds for amount in (0.0, 20.0, 45.0, 90.0)]
    assert [(kind, amount) for kind, amount, _ in told] == wanted
    first = found.record["profiles"][0]["log_evidence"]
    assert [row["log_evidence"] for _, _, row in told[:4]] == first


def test_a_point_is_a_run_with_that_amount_fixed(saved) -> None:
    """What a profile computes at 45° is what `learn` computes with the range fixed there."""
    config = replace(QUICK, objective="fixed", ranges={"rotation": 45.0})
    result = isotropy.learn(
        small_network(), bar_tensors(), bar_tensors(seed=1), actions=TURN, config=config
    )
    profile = saved[0].record["profiles"][0]
    assert profile["test_log_likelihood"][2] == result.record["test_log_likelihood"]
    assert profile["test_accuracy"][2] == result.test_accuracy
    last = result.history[-1]
    assert profile["log_likelihood_per_example"][2] == -last["train_loss"]


def test_without_test_data_there_is_nothing_held_out() -> None:
    found = profiled(actions=[TURN, flip("horizontal")], generator="horizontal_flip",
                     amounts=[0.0, 0.25, 0.5])  # fmt: skip
    (each,) = found.record["profiles"]
    assert found.record["test_examples"] is None and found.record["unit"] == "probability"
    assert each["test_log_likelihood"] == [None] * 3
    assert each["held_out_maximum"] is None and each["rank_correlation"] is None
    assert json.dumps(found.record, allow_nan=False)
    assert found.record["run_folder"] is None


AMOUNTS = {
    "a period": ("rotation", [180.0 * k / 8 for k in range(9)]),
    "none": ("scale_x", [k / 8 for k in range(9)]),
    "a probability": ("horizontal_flip", [k / 16 for k in range(9)]),
}


@pytest.mark.parametrize(("generator", "expected"), AMOUNTS.values(), ids=AMOUNTS)
def test_amounts_by_default(generator: str, expected: list[float]) -> None:
    config = replace(QUICK, epochs=1, samples=2)
    found = profiled(
        generator=generator, amounts=None, actions=[TURN, flip("horizontal")], config=config
    )
    assert found.record["profiles"][0]["amounts"] == pytest.approx(expected)


# -- kinds that cannot be computed ---------------------------------------------------------------


class Gain(nn.Module):
    """A layer of our own, without a curvature rule."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(64))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features * self.factor


def without_rule() -> nn.Module:
    return nn.Sequential(nn.Flatten(), Gain(), nn.Linear(64, 3))


def test_a_kind_that_cannot_be_computed_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    kinds = ["kfac-ggn", "diagonal-ggn"]
    strict = replace(QUICK, fallback="refuse")
    found = profiled(model=without_rule(), curvatures=kinds, config=strict, folder=tmp_path)
    refused, computed = json.loads((tmp_path / "result.json").read_text())["profiles"]
    assert set(refused) == {"curvature", "error"}
    assert "layer '1' of type Gain has no curvature rule" in refused["error"]
    assert computed["error"] is None and computed["curvature"] == "diagonal-ggn"
    assert all(math.isfinite(nats) for nats in computed["log_evidence"])
    assert "Gain" in found.report(tmp_path / "again.html").read_text()


# -- mistakes ------------------------------------------------------------------------------------

MISTAKES: dict[str, tuple[Callable[..., Any], str]] = {
    "unknown generator": (
        lambda **o: profiled(generator="rotaton", **o),
        "unknown generator 'rotaton'.*did you mean 'rotation'",
    ),
    "generator of another action": (
        lambda **o: profiled(generator="shear_x", **o),
        "unknown generator 'shear_x'",
    ),
    "two amounts": (lambda **o: profiled(amounts=[0.0, 1.0], **o), "three or more different"),
    "one amount three times": (lambda **o: profiled(amounts=[1.0] * 3, **o), "three or more"),
    "negative amount": (lambda **o: profiled(amounts=[-1.0, 0.0, 1.0], **o), "of at least 0"),
    "amount not a number": (lambda **o: profiled(amounts=[0.0, math.nan, 1, 2], **o), "nan"),
    "infinite amount": (lambda **o: profiled(amounts=[0.0, 1.0, math.inf], **o), "inf"),
    "unknown kind": (
        lambda **o: profiled(curvatures=["kfac-ggn", "kfac-gnn"], **o),
        "unknown curvature 'kfac-gnn'",
    ),
    "no kind": (lambda **o: profiled(curvatures=[], **o), "curvatures: expected one or more"),
    "no kind that can be computed": (
        lambda **o: profiled(
            model=without_rule(), config=replace(QUICK, fallback="refuse"), **o
        ),
        "Gain has no curvature rule",
    ),
    "network does not fit": (lambda **o: profiled(model=nn.Linear(3, 3), **o), r"\(1, 8, 8\)"),
    "no samples": (lambda **o: profiled(config=replace(QUICK, samples=0), **o), "samples"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_sentences(call: Callable[..., Any], sentence: str, tmp_path: Path) -> None:
    told: list[Any] = []
    with pytest.raises(CallerError, match=sentence):
        call(folder=tmp_path / "run", progress=lambda *what: told.append(what))
    assert not (tmp_path / "run").exists(), "a mistake must not leave a run folder behind"
    assert told == [], "a mistake is told before anything is trained"
