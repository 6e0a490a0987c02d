"""Commands in limited children of one process that has imported everything: for fuzz and soak.

A child is forked, so that a case takes milliseconds and not the seconds of an import. It may take
60 s and 6 GB, and runs in a folder of its own. Nothing here computes in the parent: torch's threads
do not survive a fork.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shlex
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isotropy.cli.main import SHORT_VARIABLE, main
from isotropy.records import provenance
from isotropy.workflows.runs import prepared

LONGEST = 60.0
"""Seconds of a child."""
LARGEST = 6 << 30
"""Bytes of a child beyond what its parent has."""
STATUSES = (0, 1, 2, 130)


@dataclass(frozen=True)
class Ended:
    """How a child ended: status is minus a signal's number where one ended it."""

    status: int
    stdout: str
    stderr: str
    seconds: float
    megabytes: int

    @property
    def last_line(self) -> str:
        return (self.stderr.strip().splitlines() or [""])[-1]


@dataclass(frozen=True)
class Signal:
    """What a child is sent, so many seconds after it began."""

    number: signal.Signals
    after: float


def run(
    words: list[str],
    folder: Path,
    *,
    sent: Signal | None = None,
    short: bool = True,
    before: Callable[[], object] = lambda: None,
) -> Ended:
    """`isotropy words…` in a child that works in `folder`.

    short: with the defaults of short runs. before: called in the child first
    """
    out, err = folder / ".stdout", folder / ".stderr"
    started = time.monotonic()
    # Signals wait until the child is ready for them.
    waiting = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    child = os.fork()
    if child == 0:
        _become(words, folder, out, err, short, before)
    signal.pthread_sigmask(signal.SIG_SETMASK, waiting)
    status, used = _wait(child, started, sent)
    texts = [path.read_text(errors="replace") if path.exists() else "" for path in (out, err)]
    return Ended(status, *texts, time.monotonic() - started, used.ru_maxrss // 1024)


def _become(
    words: list[str], folder: Path, out: Path, err: Path, short: bool, before: Callable[[], object]
) -> None:
    """The child; it does not come back."""
    status = 99
    try:
        os.chdir(folder)
        sys.stdout = open(out, "w", buffering=1)  # noqa: SIM115
        sys.stderr = open(err, "w", buffering=1)  # noqa: SIM115
        os.dup2(sys.stdout.fileno(), 1)
        os.dup2(sys.stderr.fileno(), 2)
        held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (held + LARGEST,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for number in (signal.SIGINT, signal.SIGTERM):  # before and after the command itself
            signal.signal(number, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
        os.environ.update({SHORT_VARIABLE: "1"} if short else {})
        prepared.CHECKPOINT_SECONDS = 0.0
        torch.set_num_threads(1)
        before()
        main(words)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0
    except KeyboardInterrupt:
        status = 130
    except BaseException as error:
        print(f"Traceback: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _wait(child: int, started: float, sent: Signal | None) -> tuple[int, resource.struct_rusage]:
    """The child's status and use; it is killed when its time is over."""
    while True:
        found, status, used = os.wait4(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), used
        passed = time.monotonic() - started
        if sent is not None and passed >= sent.after:
            os.kill(child, sent.number)
            sent = None
        if passed > LONGEST:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)


def keep_report(path: Path | None, name: str, numbers: dict[str, Any]) -> None:
    """Write what a long run found, with where and when it ran; None: nowhere."""
    if path is not None:
        command = shlex.join(["python", f"tests/trust/{name}.py", *sys.argv[1:]])
        told = {"name": name, "command": command, **provenance(torch.device("cpu")), **numbers}
        path.write_text(json.dumps(told, indent=1) + "\n")


def bars(count: int = 30, size: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """uint8 images (count, size, size) of upright or lying bars and their labels."""
    random = np.random.default_rng(0)
    images = random.integers(0, 60, (count, size, size), dtype=np.uint8)
    labels = np.arange(count) % 2
    for image, label in zip(images, labels, strict=True):
        place = random.integers(1, size - 1)
        image[(slice(None), place) if label == 0 else place] = 250
    return images, labels
