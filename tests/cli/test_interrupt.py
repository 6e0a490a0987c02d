"""Ctrl-C: status 130, a sentence on how to go on, and the same numbers in the end."""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
from learn_runs import FAST, bars_file, outcome, run_here, run_process, start_process

from isotropy.evidence.search.trials import Trial, Trials

WORDS = ("--data", "bars.npz", *FAST, "--generators", "rotation,scale", "--epochs", "12")
PAUSED = """
import sys, time
import isotropy.workflows.learning as learning
import isotropy.workflows.runs.prepared as runs
from isotropy.cli.main import main

runs.CHECKPOINT_SECONDS = 0.0
whole_epoch = learning.Trainer.run_epoch

def run_epoch(trainer, test=None):
    row = whole_epoch(trainer, test)
    if trainer.epoch > 6:
        time.sleep(60)
    return row

learning.Trainer.run_epoch = run_epoch
main(sys.argv[1:])
"""
"""The command line, except that it saves after every epoch and the seventh does not end."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    bars_file(tmp_path)
    return tmp_path


def interrupt_after(
    process: Any, line_start: str, by: signal.Signals = signal.SIGINT
) -> tuple[str, str]:
    """Send a signal when a line of standard error begins so; standard output and error."""
    seen = []
    for line in process.stderr:
        seen.append(line)
        if line.startswith(line_start):
            break
    else:
        raise AssertionError(f"the run ended before {line_start!r}: {''.join(seen)}")
    process.send_signal(by)
    stdout, rest = process.communicate(timeout=60)
    return stdout, "".join(seen) + rest


@pytest.mark.slow
def test_interrupted_run_is_resumed_with_the_same_numbers(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("learn", *WORDS, "--json")
    process = start_process(*words, "--out", "a run", code=PAUSED)
    stdout, stderr = interrupt_after(process, "epoch 6/12")
    assert process.returncode == 130
    assert stdout == "", "JSON is printed only when the run has ended"
    assert "Traceback" not in stderr
    advice = next(line for line in stderr.splitlines() if "interrupted" in line)
    before, _, command = advice.partition("continue with: isotropy ")
    assert before == "isotropy: interrupted; "
    assert not Path("a run/result.json").exists()
    assert not list(Path("a run").glob("*.part"))

    resumed = run_here(capsys, *shlex.split(command), "--json")
    assert "continuing after epoch 6 of 12" in resumed.stderr
    assert "epoch 5/12" not in resumed.stderr, "what was done must not be done again"
    unbroken = run_here(capsys, *words, "--out", "unbroken")
    assert resumed.record["log_evidence"] == unbroken.record["log_evidence"]
    assert outcome(Path("a run")) == outcome(Path("unbroken"))
    for name in ("augmentation.json", "samples.npz"):
        assert Path("a run", name).read_bytes() == Path("unbroken", name).read_bytes()


def test_interrupted_in_the_search(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials are kept, and the advice says how to go on from them."""
    words = ("learn", "--data", "bars.npz", *FAST, "--search", "--generators", "horizontal_flip")
    made, count = Trials._made, [0]

    def stopped(trials: Trials, *given: Any) -> Trial:
        count[0] += 1
        if count[0] == 3:
            raise KeyboardInterrupt
        return made(trials, *given)

    monkeypatch.setattr(Trials, "_made", stopped)
    first = run_here(capsys, *words, "--out", "run")
    assert first.status == 130 and "continue with: isotropy learn --resume run" in first.stderr
    second = run_here(capsys, "learn", "--resume", "run", "--json")
    assert second.status == 0 and "continuing after 2 trials" in second.stderr
    assert count[0] == 1 + second.record["search"]["trials"]
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert run_here(capsys, *words, "--out", "unbroken").status == 0
    assert without_seconds(outcome(Path("run"))) == without_seconds(outcome(Path("unbroken")))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config.json", "search.json", "checkpoint.safetensors"])
def test_killed_between_the_search_and_the_run(
    name: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After the search several files are written; a kill between any two of them costs nothing."""
    words = ("learn", "--data", "bars.npz", *FAST, "--search", "--generators", "horizontal_flip")
    replace, seen = os.replace, [0]

    def killed(source: str, target: Path) -> None:
        seen[0] += Path(target).name == name
        if seen[0] == (2 if name == "config.json" else 1) and Path(target).name == name:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr("os.replace", killed)
    assert run_here(capsys, *words, "--out", "run").status == 130
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert run_here(capsys, "learn", "--resume", "run", "--json").status == 0
    assert run_here(capsys, *words, "--out", "unbroken").status == 0
    assert without_seconds(outcome(Path("run"))) == without_seconds(outcome(Path("unbroken")))


def without_seconds(value: Any) -> Any:
    """A record without times, at any depth."""
    if isinstance(value, dict):
        return {key: without_seconds(each) for key, each in value.items() if key != "seconds"}
    return [without_seconds(each) for each in value] if isinstance(value, list | tuple) else value


@pytest.mark.slow
def test_interrupted_before_the_run_begins(folder: Path) -> None:
    """The data is still being read: nothing was saved, and that is what the sentence says."""
    code = """
import sys
import isotropy.cli.shared.inputs as inputs
from isotropy.cli.main import main

def read(*arguments, **options):
    raise KeyboardInterrupt

inputs.read = read
main(sys.argv[1:])
"""
    finished = run_process("learn", *WORDS, "--out", "run", code=code)
    assert finished.status == 130 and finished.stdout == ""
    assert "isotropy: interrupted; nothing was saved yet" in finished.stderr
    assert "--resume" not in finished.stderr and "Traceback" not in finished.stderr
    assert not Path("run").exists()


def test_second_interruption_and_killed_between_writes(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped twice, once between history and checkpoint: still the numbers of one piece."""
    monkeypatch.setattr("isotropy.workflows.runs.prepared.CHECKPOINT_SECONDS", 0.0)
    from isotropy import records as checkpoint

    save = checkpoint.save_tensors
    saves = [0]

    def stopped_save(*arguments: Any) -> None:
        saves[0] += 1
        if saves[0] in (4, 9):
            raise KeyboardInterrupt
        save(*arguments)

    monkeypatch.setattr(checkpoint, "save_tensors", stopped_save)
    assert run_here(capsys, "learn", *WORDS, "--out", "run").status == 130
    second = run_here(capsys, "learn", "--resume", "run")
    assert second.status == 130 and "continuing after epoch 2 of 12" in second.stderr
    third = run_here(capsys, "learn", "--resume", "run", "--json")
    assert third.status == 0 and "continuing after epoch 6 of 12" in third.stderr
    run_here(capsys, "learn", *WORDS, "--out", "unbroken")
    assert outcome(Path("run")) == outcome(Path("unbroken"))
