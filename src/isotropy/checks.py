"""Checks on what a caller hands in: the place where error sentences are made.

A sentence says what was expected, what came, and what to do. `CallerError` marks a
mistake of the caller (wrong file, wrong shape, wrong name); the command line turns it
into exit status 2 and that one sentence. Mistakes of ours are plain `assert`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


class CallerError(ValueError):
    """Something the caller can put right; its message is one sentence naming the culprit."""


def shape_text(tensor: Tensor) -> str:
    """`(32, 28, 28)`: a shape as it is written in error sentences."""
    return "(" + ", ".join(str(size) for size in tensor.shape) + ")"


def check_axes(tensor: Tensor, axes: tuple[str, ...], *, what: str, advice: str = "") -> None:
    """Raise unless `tensor` has exactly the named `axes`.

    >>> check_axes(images, ("batch", "channels", "height", "width"), what="images",
    ...            advice="add a channel axis with x[:, None]")
    """
    if tensor.ndim != len(axes):
        hint = f"; {advice}" if advice else ""
        raise CallerError(f"{what}: expected ({', '.join(axes)}), got {shape_text(tensor)}{hint}")


def check_finite(tensor: Tensor, *, what: str, advice: str = "") -> None:
    """Raise if `tensor` holds a NaN or an infinity, and say how many and where the first is."""
    finite = torch.isfinite(tensor)
    if bool(finite.all()):
        return
    bad = (~finite).nonzero()
    first = tuple(int(i) for i in bad[0])
    hint = f"; {advice}" if advice else ""
    raise CallerError(
        f"{what}: expected finite numbers, got {len(bad)} that are NaN or infinite "
        f"(the first at index {first}){hint}"
    )


def check_choice(value: str, choices: Iterable[str], *, what: str) -> str:
    """Return `value` if it is one of `choices`; otherwise raise and suggest the nearest."""
    known = list(choices)
    if value in known:
        return value
    near = difflib.get_close_matches(value, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise CallerError(f"unknown {what} {value!r}: expected one of {', '.join(known)}{hint}")


def check_at_least(value: float, least: float, *, what: str) -> None:
    """Raise unless `value >= least` (a NaN raises too)."""
    if not value >= least:
        raise CallerError(f"{what}: expected at least {least:g}, got {value:g}")


def column_index(wanted: str | int, names: Sequence[str], *, what: str) -> int:
    """The place of a column, given by its name, or by its number (negative from the end)."""
    if str(wanted) in names:
        return list(names).index(str(wanted))
    try:
        number = int(wanted)
    except ValueError:
        number = len(names)
    if not -len(names) <= number < len(names):
        listing = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
        raise CallerError(
            f"{what}: expected a column's name or its number from 0 to {len(names) - 1}, got "
            f"{wanted!r}; the columns are {listing}"
        )
    return number % len(names)
