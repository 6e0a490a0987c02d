"""How a command ends: what is said of an exception, and with which status.

    0    done
    1    failed: numbers that are not finite, memory, an error in the user's code, one of ours
    2    the caller's mistake, which one sentence names
    130  interrupted, by Ctrl-C or by a request to end (SIGTERM)

Whatever was raised becomes one sentence on standard error; `--traceback` shows where it was raised.
"""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType

import click
import torch

from isotropy.checks import CallerError
from isotropy.evidence.laplace import NotFiniteError

TRACEBACK = "--traceback"
ASKED = re.compile(r"to allocate ([\d.]+) (\w+)")
"""How torch, numpy and the system tell how much memory was asked for."""
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
LONGEST = 1000
"""Letters of a sentence; messages of libraries may be pages."""
NOT_THE_USERS = tuple(
    os.path.realpath(place)
    for place in {
        str(Path(__file__).parents[2]),
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(torch.__file__).parents[1]),
        str(Path(click.__file__).parents[1]),
    }
)
"""Folders of this package, of Python and of libraries."""


@contextmanager
def one_sentence() -> Iterator[None]:
    """Inside, a request to end interrupts as Ctrl-C does, and Python is silent on what it could
    not close after that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before, hook = signal.signal(signal.SIGTERM, interrupt), sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        sys.unraisablehook = hook


def ending(error: BaseException) -> tuple[str, int]:
    """The sentence for what was raised, and the exit status; no sentence for an interruption."""
    if isinstance(error, KeyboardInterrupt | click.Abort) or _was_interrupted(error):
        return "", 130
    if isinstance(error, click.ClickException):
        return error.format_message(), 2 if isinstance(error, click.UsageError) else 1
    if isinstance(error, CallerError):
        return f"{error}{_place_in_cause(error)}", 2
    if isinstance(error, NotFiniteError):
        return str(error), 1
    if _is_about_memory(error):
        return _memory_sentence(error), 1
    if isinstance(error, OSError):
        return _file_sentence(error), 2
    place, what = users_place(error), f"{type(error).__name__}: {error}"
    if isinstance(error, SystemExit) and place is None:
        return "", error.code if isinstance(error.code, int) else 1
    if place is not None:
        return f"{place}: {what}; this is not code of isotropy; {TRACEBACK} shows how it came", 1
    return (
        f"unexpected {what} ({_place(traceback.extract_tb(error.__traceback__)[-1])}); this is a "
        f"mistake of isotropy: report what {TRACEBACK} shows"
    ), 1


def _was_interrupted(error: BaseException) -> bool:
    """Whether an import failed because it was interrupted: libraries in C raise another error."""
    cause: BaseException | None = error
    while isinstance(cause, ImportError | SystemError):
        cause = cause.__cause__ or cause.__context__
    return isinstance(cause, KeyboardInterrupt)


def say(message: str) -> None:
    """One line on standard error."""
    line = " ".join(message.split())
    line = line if len(line) <= LONGEST else f"{line[:LONGEST]} …"
    click.echo(f"isotropy: {line}", err=True)


def escape_odd_names() -> None:
    """File names that are not UTF-8 are written with escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def close_standard_output() -> None:
    """What is still to be written is given up, so that it does not fail again at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# -- memory ----------------------------------------------------------------------------------


def _is_about_memory(error: BaseException) -> bool:
    known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return known or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in OUT_OF_MEMORY)
    )


def _memory_sentence(error: BaseException) -> str:
    found = ASKED.search(str(error))
    asked = " ".join(found.groups()) if found else ""
    if found and found[2] == "bytes":
        asked = f"{int(found[1]) / 2**30:.1f} GiB"
    who = "the device" if isinstance(error, torch.OutOfMemoryError) else "this machine"
    return (
        f"{who} ran out of memory{' when asked for ' * bool(asked)}{asked}; take smaller data or a "
        "smaller network, lower --batch-size, or when learning --curvature-batch or --samples"
        + ("; or use --device cpu" if isinstance(error, torch.OutOfMemoryError) else "")
    )


# -- files -----------------------------------------------------------------------------------


def is_about_output(error: BaseException) -> bool:
    """Whether standard output could not be written: no other stream is told what came out."""
    if not isinstance(error, OSError) or error.filename is not None:
        return False
    return any(
        frame.name in ("echo", "print") for frame in traceback.extract_tb(error.__traceback__)
    )


def _file_sentence(error: OSError) -> str:
    reason = error.strerror or str(error)
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)!r} cannot be read or written: {reason}"
    if is_about_output(error):
        return f"standard output cannot be written: {reason}"
    return f"a file cannot be read or written: {reason}; {TRACEBACK} shows which"


# -- the user's code ---------------------------------------------------------------------------


def users_place(error: BaseException) -> str | None:
    """File and line of the innermost code that is neither ours nor a library's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = os.path.realpath(frame.filename)
        inside = any(path.startswith(place + os.sep) for place in NOT_THE_USERS)
        if not inside and not frame.filename.startswith("<"):
            return _place(frame)
    return None


def _place_in_cause(error: BaseException) -> str:
    """` (nets.py, line 3)` where a caller's mistake was found by running code of theirs."""
    cause = error.__cause__
    while cause is not None:
        place = users_place(cause)
        if place is not None and place not in str(error):
            return f" ({place})"
        cause = cause.__cause__
    return ""


def _place(frame: traceback.FrameSummary) -> str:
    return f"{Path(frame.filename).name}, line {frame.lineno}"


def show(trace: TracebackType | None, error: BaseException) -> None:
    """All of it, on standard error."""
    text = "".join(traceback.format_exception(type(error), error, trace))
    click.echo(text, err=True, nl=False)
