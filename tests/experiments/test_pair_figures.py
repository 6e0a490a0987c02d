"""Representations: rows, the supervised target, goals that can fail, and tables of the page."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isotropy.experiments.representations import (
    SERIES,
    best_rates,
    code_of,
    goals,
    summary,
    turning_bins,
)
from isotropy.experiments.runner import ROWS, Job, keep, read_table

TABLE = read_table("representations")
ROOT = Path(__file__).resolve().parents[2]


def test_every_figure_has_its_rows() -> None:
    jobs = SERIES.jobs(TABLE, False)
    assert len({job.row for job in jobs}) == len(jobs)
    assert {job.settings["figure"] for job in jobs} == {"1", "2", "3", "4-5", "same"}
    rows = {job.row: job for job in jobs}
    for name in ("shift", "two-part", "permutation", "shift-scale"):
        for size in (10, 20):
            assert rows[f"same/{name}/rich/{size}"].seeds == (0, 1, 2)
            assert rows[f"4-5/{name}/rich/{size}"].settings["distances"]
    standard = {job.settings["network"] for job in jobs if job.settings["figure"] == "1"}
    assert standard == {"sigmoid", "tanh", "relu", "selu"}


def test_the_code_is_the_fourier_transform() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (4, 6))
    places = np.arange(6)
    transform = x @ np.exp(-2j * np.pi * np.outer(places, places) / 6)
    sine = code_of(torch.from_numpy(x), "sine").numpy()
    modulus = np.abs(transform)
    expected = np.concatenate([modulus, transform.imag / modulus, transform.real / modulus], 1)
    np.testing.assert_allclose(sine, expected, atol=1e-12)
    phase = code_of(torch.from_numpy(x), "phase").numpy()[:, 6:]
    np.testing.assert_allclose(np.exp(1j * phase), transform / modulus, atol=1e-12)


@pytest.mark.parametrize("part", ["encoder", "decoder", "autoencoder"])
def test_a_supervised_row_learns(part: str) -> None:
    own = {
        **TABLE["settings"], "figure": "2", "part": part, "task": "sine", "network": "rich",
        "size": 4, "rate": 1e-2, "layers": 1, "samples": 200, "test_samples": 50, "batch_size": 32,
    }  # fmt: skip

    def error(steps: int) -> dict[str, Any]:
        job = Job("row", (0,), {**own, "steps": steps})
        (found,) = SERIES.run(job, torch.device("cpu"))
        return found

    before, after = error(1), error(80)
    for name in ("code_mse", "reconstruction_mse"):
        is_trained = part == "autoencoder" or (name == "code_mse") == (part == "encoder")
        assert (after[name] is not None) == is_trained
        if is_trained:
            assert after[name] < before[name]
    if part != "decoder":
        assert set(after["parts_mse"]) == {"modulus", "sine", "cosine"}
        assert sum(after["parts_mse"].values()) / 3 == pytest.approx(after["code_mse"], rel=1e-5)
        assert 0 < after["turning_mse"] < after["code_mse"]


def supervised(network: str, layers: int, rate: float, error: float, **changes: Any) -> dict:
    return {
        "row": f"3/{network}-{layers}/{rate}/{changes}", "seed": 0, "figure": "3", "task": "sine",
        "part": "encoder", "network": network, "layers": layers, "size": 10, "rate": rate,
        "code_mse": error, "turning_mse": error, "reconstruction_mse": None, "device": "cpu",
        "device_name": "x86",
        "threads": 1, "commit": "abc", "seconds": 1.0, **changes,
    }  # fmt: skip


def pairs(retrieval: float = 0.99, figure: str = "same", **changes: Any) -> dict[str, Any]:
    return {
        "row": f"{figure}/shift/rich/10", "seed": 0, "figure": figure, "part": None,
        "task": "shift", "network": "rich", "size": 10, "retrieval": retrieval,
        "retrieval_raw": 0.1, "within_over_between": 0.01, "reconstruction_mse": 1e-4,
        "loss_share": 0.03, "over_invariance": {"reversal": 0.003, "sign": 1.2}, "seconds": 30.0,
        "permutation_changes": {"found": 0.003, "random": 0.35}, "classes_kept": None,
        "device": "cpu", "device_name": "x86", "threads": 1, "commit": "abc", **changes,
    }  # fmt: skip


def test_goals_hold_and_fail() -> None:
    records = [
        supervised("rich", 2, 0.01, 1e-4), supervised("rich", 2, 0.001, 1e-2),
        supervised("selu", 5, 0.01, 2e-3), supervised("selu", 5, 0.001, 4e-3),
        supervised("selu", 5, 0.01, None, part="decoder", reconstruction_mse=1e-4),
        pairs(), pairs(figure="4-5"),
    ]  # fmt: skip
    best = best_rates(records, "encoder", "sine", "code_mse")[10]
    assert best == pytest.approx({"rich-2": 1e-4, "selu-5": 2e-3})
    assert len(goals(records)) == 9 and all(goals(records).values())
    changes = {"permutation_changes": {"found": 0.03, "random": 0.1}, "seconds": 200.0}
    bad = [
        *records[1:4], supervised("selu", 5, 0.01, None, part="decoder", reconstruction_mse=1.0),
        pairs(), pairs(0.9, within_over_between=0.03, reconstruction_mse=0.01, seed=1, **changes),
        pairs(figure="4-5", loss_share=0.2),
    ]  # fmt: skip
    assert len(goals(bad)) == 9 and not any(goals(bad).values())
    assert sum(line.startswith("FAILS") for line in summary(bad)) == 9


@pytest.mark.parametrize(
    ("row", "least"),
    [("shift/rich/10", 0.95), ("shift/rich/20", 0.9), ("digits/rich/48", 0.97)],
)
def test_the_least_that_must_be_found(row: str, least: float) -> None:
    task, _, size = row.split("/")
    for retrieval in (least - 0.01, least):
        record = pairs(retrieval, task=task, size=int(size), row=row)
        (reached,) = [
            holds for what, holds in goals([record]).items() if what.startswith("at least 9")
        ]
        assert reached == (retrieval >= least)


def test_tables_follow_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    tables = importlib.import_module("representation_tables").TABLES
    assert {make(tmp_path) for make in tables.values()} == {"Not run yet."}
    rows = [
        supervised("rich", 2, 0.01, 1e-4),
        pairs(),
        pairs(figure="4-5"),
        {**pairs(0.95), "seed": 1},
        pairs(task="digits", row="same/digits/rich/48", classes_kept={"code": 0.4, "raw": 0.7}),
        pairs(0.9, task="two-part", row="same/two-part/rich/10"),
    ]
    keep(tmp_path / "representations" / ROWS, rows)
    told = {name: make(tmp_path) for name, make in tables.items()}
    assert "| shift | rich | 10 | 2 | 97.0% (95.0%) |" in told["representations-same"]
    assert "| shift | rich | 10 | 1 | 99.0% (99.0%) |" in told["representations-distances"]
    assert "| rich-2 | 1.0e-04 |" in told["representations-supervised"]
    assert "class in 40% by code and 70% by the data" in told["representations-same"]
    first, *others = told["representations-goals"].splitlines()
    assert (
        first
        == "- Does not hold: at least 95 % found at d = 10 (0.9: same/two-part/rich/10, seed 0)."
    )
    assert others and all(line.startswith("- Holds: ") for line in others)


@pytest.mark.parametrize(("size", "real"), [(10, {0, 5}), (7, {0})])
def test_bins_whose_phase_turns_are_those_that_are_not_real(size: int, real: set[int]) -> None:
    transform = torch.fft.fft(torch.rand(size, dtype=torch.float64))
    found = {place for place in range(size) if abs(transform[place].imag) < 1e-12}
    assert found == real and set(turning_bins(size)) == set(range(size)) - real
