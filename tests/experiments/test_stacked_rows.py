"""Seeds of a row in one process leave the records that they leave one by one."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from isotropy.checks import CallerError
from isotropy.cli.main import main
from isotropy.experiments.runner import Job, run_job, run_stack, stacks

TINY = ("--epochs", "2", "--samples", "2", "--subset", "40", "--model", "mlp:5", "--device", "cpu",
        "--verdicts", "0", "--no-search", "--test-samples", "2", "--quiet")  # fmt: skip


def job(folder: Path, seed: int, row: str = "tiny", *words: str, command: str = "learn") -> Job:
    arguments = (command, "--seed", str(seed), "--json", *TINY, *words)
    return Job(row, seed, arguments, folder / f"{row}-seed{seed}.json", {"truth": {"x": 1.0}})


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run here; that they run as processes is seen in `test_runner`."""

    def call(job: Job, arguments: Sequence[str], words: Sequence[str]) -> str:
        told = io.StringIO()
        with redirect_stdout(told), pytest.raises(SystemExit) as ended:
            main(list(words))
        if ended.value.code:
            raise CallerError(f"`{' '.join(arguments)}` ended with status {ended.value.code}")
        return told.getvalue()

    monkeypatch.setattr("isotropy.experiments.runner._call", call)


def test_seeds_of_a_row_go_together(tmp_path: Path) -> None:
    found = [job(tmp_path, seed, row) for row in ("a", "b") for seed in (0, 1)]
    measured = [job(tmp_path, seed, "c", command="measure") for seed in (0, 1)]
    followed = Job("d", 0, ("learn", "--seed", "0"), tmp_path, {}, first=("learn",))
    searched = [Job("e", seed, ("learn", "--seed", str(seed)), tmp_path, {}) for seed in (0, 1)]
    given = ("learn", "--objective", "fixed", "--ranges", "rotation=30")
    fixed = [Job("f", seed, given, tmp_path, {}) for seed in (0, 1)]
    assert stacks([*found, *measured, followed, *searched, *fixed]) == [
        found[:2], found[2:], [measured[0]], [measured[1]], [followed], [searched[0]],
        [searched[1]], fixed,
    ]  # fmt: skip


def test_a_stack_leaves_the_records_of_its_jobs(tmp_path: Path) -> None:
    together = [job(tmp_path / "together", seed) for seed in (1, 2)]
    alone = job(tmp_path / "alone", 2)
    run_stack(together, commit="abc")
    run_job(alone, commit="abc")
    first, second = (json.loads(own.destination.read_text()) for own in together)
    expected = json.loads(alone.destination.read_text())
    assert first["stacked"] == second.pop("stacked") == [1, 2]
    assert first["result"]["seed"] == 1
    assert second.keys() == expected.keys() and second["result"].keys() == expected["result"].keys()
    for same in ("row", "arguments", "truth", "published", "schedule"):
        assert second[same] == expected[same], same
    assert second["result"]["run_folder"] is None and second["result"]["commit"] == "abc"
    # single precision: a few hundred roundings in two epochs
    got, wanted = second["result"]["log_evidence"], expected["result"]["log_evidence"]
    assert got == pytest.approx(wanted, rel=1e-4)
    assert [row["epoch"] for row in second["history"]] == [1, 2]


def test_what_cannot_be_stacked_is_run_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    made = [job(tmp_path, seed, "tiny", "--objective", "augerino") for seed in (1, 2)]
    with pytest.raises(CallerError, match="learn-many --seeds 1,2 .* ended with status 2"):
        run_stack(made)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("isotropy.cli.reproduce.jobs", lambda *given, **named: iter(made))
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "any", "--stacked", "--json"])
    assert not ended.value.code
    told = capfd.readouterr()
    assert "run it by itself" in told.err and "one after the other" in told.err
    assert [result["seed"] for result in json.loads(told.out)["results"]] == [1, 2]
