"""`--seeds`: which seeds, what each is called with, and what they agree on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from learn_runs import FAST, bars_file, run_here

from isotropy.checks import CallerError
from isotropy.cli.shared import seeds
from isotropy.experiments.runner import Job

LEARN = ("learn", "--data", "bars.npz", *FAST, "--generators", "rotation", "--json")


@pytest.mark.parametrize(
    ("text", "found"), [("0-3", (0, 1, 2, 3)), ("7", (7,)), ("0, 2,5-6", (0, 2, 5, 6))]
)
def test_seeds_in_words(text: str, found: tuple[int, ...]) -> None:
    assert seeds.seeds_from(text) == found


@pytest.mark.parametrize(
    "text", ["", "a", "-1", "1-", "4-2", "1,1", "1.5", "0-99999999999", "9" * 5000, "0-1000"]
)
def test_seeds_that_cannot_be(text: str) -> None:
    with pytest.raises(CallerError, match="--seeds: expected"):
        seeds.seeds_from(text)


def test_every_seed_has_its_own_words() -> None:
    typed = "isotropy learn --data 'my data' --seeds 0-4 --out=here --json --workers 2 --epochs 3"
    assert seeds._without_seeds(typed) == ["--data", "my data", "--epochs", "3"]


def record(seed: int, amount: float, verdict: str | None = "present") -> dict[str, Any]:
    verdicts = None if verdict is None else [{"name": "rotation", "verdict": verdict}]
    return {
        "data": "bars", "seed": seed, "verdicts": verdicts, "test_accuracy": 0.5 + seed / 10,
        "symmetries": [{"name": "rotation", "unit": "degrees", "high": amount, "kind": "range"}],
    }  # fmt: skip


def test_what_seeds_agree_on() -> None:
    found = seeds.agreement([record(0, 10.0), record(2, 20.0, "partial"), record(4, 30.0)])
    (rotation,) = found["symmetries"]
    assert rotation["mean"] == 20.0 and rotation["deviation"] == 10.0
    assert rotation["verdicts"] == {"present": 2, "partial": 1}
    assert found["test_accuracy"]["mean"] == pytest.approx(0.7) and found["test_rmse"] is None
    results = [record(0, 1.0, None)]
    told = seeds.agreement_sentences({**found, "seeds": [0, 2, 4], "results": results})
    assert told[1] == "rotation: ±10°, ±20°, ±30°; present in 2, partial in 1."


def test_a_seed_that_has_a_result_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "seed-3").mkdir()
    (tmp_path / "seed-3" / "result.json").write_text(json.dumps({"schema": 1, "seed": 3}))
    job = Job("learn", (3,), {"words": ["--nonsense"], "folder": str(tmp_path)})
    assert seeds.one_seed(job, torch.device("cpu"))[0]["seed"] == 3


@pytest.mark.slow
def test_seeds_are_runs_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bars_file(tmp_path)
    many = (*LEARN, "--seeds", "0,2", "--out", "several")
    several = run_here(capsys, *many).record
    assert several["seeds"] == [0, 2] and len(several["results"]) == 2
    one = run_here(capsys, *LEARN, "--seed", "2", "--out", "one").record
    other = several["results"][1]  # by another number of threads
    for name in ("log_evidence", "test_log_likelihood"):
        assert other[name] == pytest.approx(one[name], rel=1e-4)
    ranges = [each["symmetries"][0]["high"] for each in (other, one)]
    assert ranges[0] == pytest.approx(ranges[1], rel=1e-4)
    assert (tmp_path / "several" / "seed-2" / "report.html").exists()
    again = run_here(capsys, *many).record
    assert again["results"] == several["results"] and again["seconds"] < several["seconds"]


def test_seeds_are_not_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = run_here(capsys, "learn", "--seeds", "0-1", "--resume", str(tmp_path))
    assert ended.status == 2 and "call the same command again" in ended.stderr
