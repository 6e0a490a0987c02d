"""Data efficiency in miniature, and the series that runs it: rows kept at once, workers, limits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from isotropy.checks import CallerError
from isotropy.experiments import data_efficiency
from isotropy.experiments.runner import experiments
from isotropy.experiments.series import (
    SeriesJob,
    SeriesOptions,
    missing,
    read_rows,
    read_table,
    run_series,
)

CPU = torch.device("cpu")
OPTIONS = SeriesOptions(CPU, command="isotropy reproduce it", commit="abc")


def ignore(line: str) -> None:
    pass


# -- the experiment ----------------------------------------------------------------------------


def test_every_network_problem_and_size_is_a_job() -> None:
    found = data_efficiency.jobs(read_table("data-efficiency"), quick=False)
    rows = {job.row: job for job in found}
    assert len(rows) == len(found) == (4 + 4 + 5) * 7
    for name in ("o5/EMLP-SO(5)/30", "particle/EMLP-SO+(1,3)/30000", "inertia/MLP-Aug/1000"):
        assert rows[name].seeds == (20, 21, 22)
    assert rows["inertia/MLP-Aug/1000"].settings["group"] == "O(3)"
    assert rows["o5/MLP/30"].settings["group"] is None
    assert rows["o5/EMLP-O(5)/3000"].cost > rows["o5/EMLP-O(5)/30"].cost > rows["o5/MLP/30"].cost
    assert set(experiments()).isdisjoint({"data-efficiency", "dynamics", "convergence"})


def test_an_equivariant_network_needs_fewer_examples() -> None:
    table = read_table("data-efficiency")
    changed = {"channels": 32, "epochs": 100, "layers": 2, "validation": 100, "test": 300}
    records = []
    for job in data_efficiency.jobs(table, quick=True):
        if job.row.startswith("o5") and job.row.endswith("/100"):
            small = SeriesJob(job.row, (0, 1), {**job.settings, **changed})
            found = data_efficiency.run(small, CPU)
            assert found[0]["test_error"] != found[1]["test_error"]
            records += [{"row": job.row, "seed": s, **each} for s, each in enumerate(found)]
    errors = data_efficiency.mean_errors(records)["o5"]
    assert set(errors) == {"EMLP-O(5)", "MLP", "MLP-Aug"}
    assert errors["EMLP-O(5)"][100] < errors["MLP-Aug"][100] < errors["MLP"][100]
    again = data_efficiency.run(small, CPU)
    assert [each["test_error"] for each in again] == [each["test_error"] for each in found]


def record(network: str, size: int, error: float, seed: int = 0) -> dict[str, Any]:
    row = {"row": f"o5/{network}/{size}", "problem": "o5", "network": network, "examples": size}
    return {**row, "seed": seed, "test_error": error}


def test_comparisons_take_the_best_equivariant_network() -> None:
    records = [
        record("EMLP-SO(5)", 1000, 0.2), record("EMLP-O(5)", 1000, 0.1, 0),
        record("EMLP-O(5)", 1000, 0.4, 1), record("MLP", 1000, 2.0), record("MLP-Aug", 1000, 0.1),
        record("MLP", 30, 5.0), record("EMLP-O(5)", 30, 1.0), record("MLP", 300, 5.0),
    ]  # fmt: skip
    assert data_efficiency.mean_errors(records)["o5"]["EMLP-O(5)"][1000] == pytest.approx(0.2)
    found = {(rival, size): ratio for _, rival, size, ratio in data_efficiency.comparisons(records)}
    assert found == pytest.approx({("MLP", 1000): 10.0, ("MLP-Aug", 1000): 0.5})
    lines = "\n".join(data_efficiency.summary(records))
    assert "better by 0.5 at least" in lines and "N = 1000: o5 10" in lines
    assert data_efficiency.summary([]) == []
    failed = [{**record("MLP", 1000, 1.0), "test_error": None}]
    assert data_efficiency.mean_errors(failed) == {}


# -- the series --------------------------------------------------------------------------------


def stand_in(job: SeriesJob, device: torch.device) -> list[dict[str, Any]]:
    """A run of no time; rows called "bad" fail."""
    if job.row == "bad":
        raise RuntimeError("no such luck")
    return [{"value": job.settings["value"] + seed, "seconds": 0.0} for seed in job.seeds]


def jobs(*rows: str) -> list[SeriesJob]:
    return [SeriesJob(row, (0, 1), {"value": 10.0 * n}, float(n)) for n, row in enumerate(rows)]


def test_rows_are_kept_with_where_they_were_made(tmp_path: Path) -> None:
    path = tmp_path / "it" / "rows.jsonl"
    found = run_series(stand_in, jobs("a", "b"), path, OPTIONS, ignore)
    kept = read_rows(path)
    assert kept == found
    assert [(r["row"], r["seed"], r["value"]) for r in kept] == [
        ("b", 0, 10.0), ("b", 1, 11.0), ("a", 0, 0.0), ("a", 1, 1.0),
    ]  # fmt: skip
    assert all(r["commit"] == "abc" and r["device"] == "cpu" and "versions" in r for r in kept)
    assert missing(jobs("a", "b", "c"), kept) == jobs("a", "b", "c")[2:]
    assert missing(jobs("a"), kept[:3])[0].seeds == (1,)
    run_series(stand_in, [SeriesJob("a", (1,), {"value": 70.0})], path, OPTIONS, ignore)
    assert {r["value"] for r in read_rows(path) if r["row"] == "a"} == {0.0, 71.0}
    assert read_rows(tmp_path / "nothing") == []


def test_a_row_that_fails_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(CallerError, match="1 rows failed: bad"):
        run_series(stand_in, jobs("a", "bad", "b"), tmp_path / "rows", OPTIONS, told.append)
    assert {r["row"] for r in read_rows(tmp_path / "rows")} == {"a", "b"}
    assert any("no such luck" in line for line in told)


def test_after_the_limit_no_row_starts(tmp_path: Path) -> None:
    told: list[str] = []
    late = SeriesOptions(CPU, limit=-1.0)
    assert run_series(stand_in, jobs("a", "b"), tmp_path / "rows", late, told.append) == []
    assert told == ["the time limit left 2 rows; call again for them"]


@pytest.mark.slow
def test_workers_share_the_rows(tmp_path: Path) -> None:
    shared = SeriesOptions(CPU, workers=2)
    rows = jobs("a", "bad", "b", "c")
    with pytest.raises(CallerError, match="bad"):
        run_series(stand_in, rows, tmp_path / "rows", shared, ignore)
    assert {(r["row"], r["seed"]) for r in read_rows(tmp_path / "rows")} == {
        (row, seed) for row in "abc" for seed in (0, 1)
    }
    with pytest.raises(CallerError, match="at least 1 worker, got 0"):
        run_series(stand_in, rows, tmp_path / "rows", SeriesOptions(CPU, workers=0), ignore)


def test_numbers_that_json_has_not_become_null(tmp_path: Path) -> None:
    job = [SeriesJob("a", (0,), {"value": math.nan})]
    run_series(stand_in, job, tmp_path / "rows", OPTIONS, ignore)
    assert read_rows(tmp_path / "rows")[0]["value"] is None
