"""Numbers that are not finite end a command with a sentence and status 1; nothing is a result."""

from __future__ import annotations

from pathlib import Path

import pytest
from learn_runs import FAST, bars_file, run_here

ENDINGS = {
    "rate of the prior": ["--set", "prior_rate=1e30"],
    "rate of the prior, in its last step": [
        *("--set", "prior_rate=1e30", "--set", "burn_in=0", "--epochs", "1"),
    ],
    "rate of the weights": ["--set", "weight_rate=1e30"],
    "rate of the weights, one step": [
        *("--set", "weight_rate=1e30", "--epochs", "1", "--batch-size", "60"),
    ],
    "rate of the weights, without an evidence": [
        *("--set", "weight_rate=1e30", "--epochs", "1", "--batch-size", "60"),
        *("--objective", "augerino"),
    ],
    "rate of the ranges": ["--set", "range_rate=1e30", "--set", "burn_in=0"],
    "reward for width": ["--objective", "augerino", "--set", "augerino_weight=1e30"],
    "precision": ["--set", "prior_precision=1e30"],
    "decay": ["--objective", "augerino", "--set", "augerino_decay=1e30"],
}


@pytest.mark.parametrize("words", ENDINGS.values(), ids=ENDINGS)
def test_no_result_without_finite_numbers(
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    bars_file(tmp_path)
    given = ("--data", "bars.npz", *FAST, "--quiet", "--out", "run", "--json", *words)
    finished = run_here(capsys, "learn", *given)
    if finished.status == 0:
        record = finished.record
        assert record["test_log_likelihood"] is not None
        assert record["log_evidence"] is not None or record["objective"] == "augerino"
        return
    assert finished.status in (1, 2) and finished.stdout == ""
    assert finished.stderr.count("\n") == 1 and "lower" in finished.stderr
    assert not Path("run/result.json").exists()
