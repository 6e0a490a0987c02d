"""The calibration study: its table is complete, its counts are right, a data set can be learned."""

from __future__ import annotations

import math

import torch

from isotropy.experiments.calibration import SERIES, coverage, samples_lines, summary, within
from isotropy.experiments.series import read_table

TABLE = read_table("calibration")
WORDS = {"present", "partial", "absent", "already built in", "cannot tell"}


def test_every_truth_has_its_data_sets() -> None:
    jobs = {job.row: job for job in SERIES.jobs(TABLE, False)}
    wanted = {("mlp:50", 200): 20, ("mlp:50", 1000): 12, ("cnn", 1000): 5, ("mlp:50", 5000): 3}
    for truth in TABLE["truths"]:
        for (network, examples), sets in wanted.items():
            assert len(set(jobs[f"{truth}/{network}/{examples}"].seeds)) == sets
    assert {job.settings["samples"] for job in jobs.values()} == {None, 4, 64}


def test_right_verdicts_are_verdicts_on_candidates() -> None:
    for entry in TABLE["truths"].values():
        for name, words in entry.get("right", {}).items():
            assert name in TABLE["candidates"] and set(words) <= WORDS


def record(truth: str = "rotation 45", samples: int | None = None, **changes):
    rotation = {
        "name": "rotation", "truth": 45.0, "amount": 47.0, "interval": [40.0, 50.0],
        "covers": True, "verdict": "partial", "right": True, **changes,
    }  # fmt: skip
    return {
        "truth": truth, "network": "mlp:50", "examples": 200, "seed": 0, "samples": samples,
        "nothing_learned": truth == "random labels", "symmetries": [rotation],
    }  # fmt: skip


def test_counts() -> None:
    records = [record(), record(amount=60.0, covers=False), record(verdict="absent", right=False)]
    assert within(records) == 2 / 3 and coverage(records) == 2 / 3
    (line,) = summary(records)
    assert "3 sets, 66.7 % of verdicts right, 66.7 % right or cannot tell" in line
    assert math.isnan(within([record(truth="none")]))


def test_random_labels_count_when_something_was_claimed() -> None:
    fooled = record(truth="random labels") | {"nothing_learned": False}
    assert "1 sets of random labels called learned" in summary([fooled])[0]
    assert "0 sets of random labels called learned" in summary([record("random labels")])[0]


def test_copies_are_compared_by_data_set() -> None:
    records = [record(samples=4, amount=44.0), record(), record(samples=64, amount=46.0)]
    amounts = "44.0° with 4 copies, 47.0° with 16 copies, 46.0° with 64 copies"
    expected = f"rotation 45, seed 0: {amounts}"
    assert samples_lines(records) == [expected]
    assert samples_lines([record()]) == []


def test_a_data_set_is_learned() -> None:
    job = next(j for j in SERIES.jobs(TABLE, True) if j.settings["truth"] == "random labels")
    settings = {**job.settings, "examples": 40, "candidates": ["horizontal_flip"]}
    (found,) = SERIES.run(type(job)(job.row, (100,), settings), torch.device("cpu"))
    assert found["nothing_learned"] is True
    assert [s["verdict"] for s in found["symmetries"]] == ["cannot tell"]
    assert all(s["right"] for s in found["symmetries"])
