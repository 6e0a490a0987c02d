"""Data efficiency in miniature."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from isotropy.experiments.commands import experiments
from isotropy.experiments.runner import Job, read_table
from isotropy.experiments.thesis import data_efficiency

CPU = torch.device("cpu")


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


@pytest.mark.slow
def test_an_equivariant_network_needs_fewer_examples() -> None:
    table = read_table("data-efficiency")
    changed = {"channels": 32, "epochs": 100, "layers": 2, "validation": 100, "test": 300}
    records = []
    for job in data_efficiency.jobs(table, quick=True):
        if job.row.startswith("o5") and job.row.endswith("/100"):
            small = Job(job.row, (0, 1), {**job.settings, **changed})
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
