"""Whatever is raised ends a command with one sentence; --traceback shows the rest."""

from __future__ import annotations

import errno
import signal
from importlib import import_module
from pathlib import Path

import click
import pytest
import torch
from learn_runs import FAST, Finished, bars_file, outcome, run_here, start_process
from test_interrupt import PAUSED, WORDS, interrupt_after

from isotropy.cli.shared.endings import ending
from isotropy.workflows import learning

NETS = """
import torch

class Network(torch.nn.Module):
    def __init__(self, error, calls):
        super().__init__()
        self.layer, self.error, self.calls = torch.nn.Linear(64, 3), error, calls

    def forward(self, x):
        self.calls -= 1
        if self.calls < 0:
            raise self.error
        return self.layer(x.flatten(1))

def at_once():
    return Network(KeyError("a key"), 0)

def runtime():
    return Network(RuntimeError("bad shapes"), 0)

def later():
    return Network(ZeroDivisionError("in vain"), 9)

def exits():
    return Network(SystemExit(7), 3)
"""
LINE = NETS.splitlines().index("            raise self.error") + 1


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    bars_file(tmp_path)
    (tmp_path / "nets.py").write_text(NETS)
    return tmp_path


def assert_said(finished: Finished, status: int, *named: str) -> None:
    """That status, and one sentence that holds all of these."""
    assert finished.status == status, finished
    assert finished.stdout == "" and "Traceback" not in finished.stderr
    *_, last = finished.stderr.splitlines()
    assert last.startswith("isotropy: ")
    for each in named:
        assert each in last


def learned(capsys: pytest.CaptureFixture[str], *words: str) -> Finished:
    given = ("learn", "--data", "bars.npz", *FAST, "--quiet", "--json", "--out", "run", *words)
    return run_here(capsys, *given)


@pytest.mark.parametrize(
    ("factory", "status", "named"),
    [
        ("at_once", 1, "KeyError: 'a key'"),
        ("runtime", 2, "bad shapes"),
        ("later", 1, "ZeroDivisionError: in vain"),
        ("exits", 1, "SystemExit: 7"),
    ],
)
def test_the_users_code_is_named(
    factory: str, status: int, named: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = learned(capsys, "--model", f"nets.py:{factory}")
    assert_said(finished, status, f"nets.py, line {LINE}", named)


def test_a_mistake_of_ours(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "class_counts", None)
    assert_said(learned(capsys), 1, "unexpected TypeError", "learning.py, line", "--traceback")
    (folder / "run").rename("first")
    shown = learned(capsys, "--traceback")
    assert shown.status == 1 and shown.stderr.startswith("Traceback")
    assert shown.stderr.splitlines()[-2].startswith("TypeError")


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (MemoryError(), "ran out of memory;"),
        (MemoryError("Unable to allocate 7.28 TiB for an array with shape"), "for 7.28 TiB;"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate "
                         "4294967296000 bytes. Error code 12 (Cannot allocate memory)"),
            "asked for 4000.0 GiB;",
        ),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."), "20.00 GiB;"),
    ],
)  # fmt: skip
def test_memory_errors_name_what_was_asked_for(error: Exception, asked: str) -> None:
    sentence, status = ending(error)
    assert status == 1 and "ran out of memory" in sentence and asked in sentence


def test_memory_of_a_library(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "mlp:9999999999999", "--objective", "augerino")
    assert_said(learned(capsys, *words), 1, "ran out of memory", "GiB")


def test_files_are_named_and_standard_output_is_not_blamed() -> None:
    known = OSError(errno.ENOSPC, "No space left on device", "a\udcff.json")
    sentence, status = ending(known)
    assert status == 2 and "a\\udcff.json" in sentence and "No space" in sentence
    sentence, status = ending(OSError(errno.EIO, "Input/output error"))
    assert status == 2 and "standard output" not in sentence and "Input/output" in sentence


def test_usage_errors_and_interruptions() -> None:
    assert ending(click.UsageError("so not")) == ("so not", 2)
    assert ending(click.ClickException("failed")) == ("failed", 1)
    assert ending(KeyboardInterrupt()) == ("", 130)
    assert ending(SystemExit(1)) == ("", 1)


@pytest.mark.slow
def test_sigterm_as_sigint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("learn", *WORDS, "--json")
    process = start_process(*words, "--out", "run", code=PAUSED)
    stdout, stderr = interrupt_after(process, "epoch 6/12", signal.SIGTERM)
    assert process.returncode == 130 and stdout == "" and "Traceback" not in stderr
    assert "interrupted; continue with: isotropy learn --resume run" in stderr
    assert run_here(capsys, "learn", "--resume", "run", "--json").status == 0
    assert run_here(capsys, *words, "--out", "unbroken").status == 0
    assert outcome(Path("run")) == outcome(Path("unbroken"))


def test_the_handler_is_taken_back(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    run_here(capsys, "--version")
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_import_that_was_interrupted_is_an_interruption() -> None:
    try:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as interruption:
            raise ImportError("initialization failed") from interruption
    except ImportError as error:
        assert ending(error) == ("", 130)
    with pytest.raises(ImportError) as caught:
        import_module("isotropy.nothing")
    sentence, status = ending(caught.value)
    assert status == 1 and "No module named" in sentence
