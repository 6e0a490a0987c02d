"""Numbers that are not finite end a command with a sentence and status 1; nothing is a result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from learn_runs import FAST, Finished, bars_file, run_here

FAILS = {
    "rate of the prior": ["--set", "prior_rate=1e30"],
    "rate of the prior, in its last step": [
        *("--set", "prior_rate=1e30", "--set", "burn_in=0", "--epochs", "1"),
    ],
    "rate of the weights": ["--set", "weight_rate=1e30"],
    "rate of the weights, one step": [
        *("--set", "weight_rate=1e30", "--epochs", "1", "--batch-size", "60"),
    ],
    "rate of the ranges": ["--set", "range_rate=1e30", "--set", "burn_in=0"],
}
LARGE = {
    "rate of the weights, without an evidence": [
        *("--set", "weight_rate=1e30", "--epochs", "1", "--batch-size", "60"),
        *("--objective", "augerino"),
    ],
    "reward for width": ["--objective", "augerino", "--set", "augerino_weight=1e30"],
    "precision": ["--set", "prior_precision=1e30"],
    "decay": ["--objective", "augerino", "--set", "augerino_decay=1e30"],
}
"""Settings that nobody would choose, whose numbers are finite all the same."""


@pytest.fixture
def learn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[list[str]], Finished]:
    """A short run with more options."""
    monkeypatch.chdir(tmp_path)
    bars_file(tmp_path)
    given = ("--data", "bars.npz", *FAST, "--quiet", "--out", "run", "--json")
    return lambda words: run_here(capsys, "learn", *given, *words)


@pytest.mark.parametrize("words", FAILS.values(), ids=FAILS)
def test_no_result_without_finite_numbers(
    words: list[str], learn: Callable[[list[str]], Finished]
) -> None:
    finished = learn(words)
    assert finished.status == 1 and finished.stdout == ""
    assert finished.stderr.count("\n") == 1 and "lower" in finished.stderr
    assert not Path("run/result.json").exists()


@pytest.mark.parametrize("words", LARGE.values(), ids=LARGE)
def test_large_settings_give_finite_numbers(
    words: list[str], learn: Callable[[list[str]], Finished]
) -> None:
    record = learn(words).record
    assert record["test_log_likelihood"] is not None
    assert record["log_evidence"] is not None or record["objective"] == "augerino"


@pytest.mark.parametrize("value", ["1e308", "-1", "nan", "inf"])
def test_absurd_rates_are_refused(value: str, learn: Callable[[list[str]], Finished]) -> None:
    finished = learn(["--set", f"prior_rate={value}"])
    assert finished.status == 2 and finished.stderr.count("\n") == 1
    assert "expected" in finished.stderr and value.lower() in finished.stderr.replace("+", "")
    assert not Path("run/result.json").exists()
