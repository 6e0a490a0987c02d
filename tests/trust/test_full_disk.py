"""A full disk during each kind of write: what was there is whole, and the next run goes on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from learn_runs import FAST, bars_file, outcome, run_here

from isotropy import records

BARS = ("--data", "bars.npz", "--device", "cpu", "--quiet")
LEARN = (
    "learn",
    "--data",
    "bars.npz",
    *FAST,
    "--generators",
    "rotation",
    "--quiet",
    "--out",
    "run",
)
WRITES: dict[str, tuple[tuple[str, ...], tuple[str, ...] | None, int]] = {
    "settings": (LEARN, None, 1),
    "history": (LEARN, None, 2),
    "checkpoint": (LEARN, None, 3),
    "second checkpoint": (LEARN, ("learn", "--resume", "run"), 5),
    "augmentation": (LEARN, ("learn", "--resume", "run"), 12),
    "trials": (
        (*LEARN, "--search", "--generators", "horizontal_flip"),
        ("learn", "--resume", "run"),
        3,
    ),
    "rows": (
        ("reproduce", "convergence", "--quick", "--results", "run"),
        ("reproduce", "convergence", "--quick", "--results", "run"),
        2,
    ),
}
"""What is run, how it goes on, and at which write the disk is full."""


class FullDisk:
    """`write` of files fails from the n-th whole file on, in the middle of it."""

    def __init__(self, allowed: int) -> None:
        self.left = allowed
        self.fsync = os.fsync

    def __call__(self, descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            return
        self.left -= 1
        if self.left < 0:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.fsync(descriptor)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(("words", "again", "write"), WRITES.values(), ids=WRITES)
def test_full_disk(
    words: tuple[str, ...],
    again: tuple[str, ...] | None,
    write: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("isotropy.workflows.runs.prepared.CHECKPOINT_SECONDS", 0.0)
    bars_file(tmp_path)
    seen: list[dict[str, bytes]] = []
    whole = records.write_bytes
    write_of: Callable[..., Any] = lambda path, content: (  # noqa: E731
        seen.append(contents(Path("run"))),
        whole(path, content),
    )
    for module in ("isotropy.records", "isotropy.workflows.runs.result"):
        monkeypatch.setattr(f"{module}.write_bytes", write_of)
    monkeypatch.setattr("os.fsync", FullDisk(write - 1))
    failed = run_here(capsys, *words)
    assert failed.status in (1, 2) and "No space left on device" in failed.stderr
    assert "Traceback" not in failed.stderr and "unexpected" not in failed.stderr
    assert contents(Path("run")) == {k: v for k, v in seen[-1].items() if "/.lock" not in k}
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    finished = run_here(capsys, *(again or words))
    assert finished.status == 0, finished.stderr
    if words is LEARN:
        other = (*LEARN[:-1], "unbroken")
        assert run_here(capsys, *other).status == 0
        assert outcome(Path("run")) == outcome(Path("unbroken"))
