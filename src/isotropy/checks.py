"""Checks on what a caller hands in: the place where error sentences are made.

A sentence says what was expected, what came, and what to do. `CallerError` marks a
mistake of the caller (wrong file, wrong shape, wrong name); the command line turns it
into exit status 2 and that one sentence. Mistakes of ours are plain `assert`.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

LARGEST = 1e30
"""Of settings: products with it are still numbers in single precision."""


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
    near = difflib.get_close_matches(str(value), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise CallerError(f"unknown {what} {value!r}: expected one of {', '.join(known)}{hint}")


def check_at_least(value: float, least: float, *, what: str) -> None:
    """Raise unless `value >= least` (a NaN raises too)."""
    if not value >= least:
        raise CallerError(f"{what}: expected at least {least:g}, got {value:g}")


def check_number(
    value: Any, least: float, *, what: str, whole: bool = False, above: bool = False
) -> None:
    """Raise unless `value` is a number from `least` to `LARGEST`, or a `whole` one below 2⁶³.

    above: `least` itself is not allowed
    """
    is_number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not is_number:
        raise CallerError(f"{what}: expected a {'whole ' * whole}number, got {value!r}")
    if not (least <= value < math.inf) or (above and value == least):
        raise CallerError(
            f"{what}: expected {'above' if above else 'at least'} {least:g}, got {value:g}"
        )
    if value > (2**63 - 1 if whole else LARGEST):
        most = "less than 2^63" if whole else f"at most {LARGEST:g}"
        raise CallerError(f"{what}: expected {most}, got {value}")


def check_numbers(values: Any, *, what: str) -> None:
    """Raise unless `values` are finite numbers of at least 0 by name."""
    if not isinstance(values, Mapping):
        raise CallerError(f"{what}: expected numbers by name, got {values!r}")
    for name, value in values.items():
        check_number(value, 0, what=f"{what} of {name!r}")


def usable_memory() -> int:
    """Bytes that this process may take: of the machine, or of the limit that was set for it."""
    found = [sys.maxsize]
    with contextlib.suppress(ImportError, ValueError, OSError, AttributeError):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        import resource  # not on every system

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        found += [limit] if limit != resource.RLIM_INFINITY else []
    return min(found)


def check_memory(size: int, *, what: str, advice: str) -> None:
    """Raise before `size` bytes are allocated that would leave no room to work with them."""
    most = usable_memory() // 2
    if size > most:
        raise CallerError(
            f"{what}: expected at most {most / 2**30:.1f} GiB, half of the memory here, got "
            f"{size / 2**30:,.1f} GiB ({size:,} bytes); {advice}"
        )


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
