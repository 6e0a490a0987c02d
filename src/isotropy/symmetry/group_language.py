"""Reads a group as it is written: `SO(3)`, `O(1,3)`, `Z(4) x Z(4)`, `Wreath(Z(3), S(2))`.

    product  = factor { "x" factor }
    factor   = name [ "(" argument { "," argument } ")" ]
    argument = whole number | product

A table says which factors there are, one pattern each: `SO(n)`, `SO(1,3)`, `Wreath(G,H)`, in which
small letters stand for whole numbers and capitals for groups; numbers must be as written. `×` and
`⁺` are read as x and +.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from isotropy.checks import CallerError
from isotropy.symmetry.group_products import direct_product
from isotropy.symmetry.groups import Group


class NamedGroup(NamedTuple):
    """How to make a group from the letters of its pattern, and what it is."""

    make: Callable[..., Group]
    meaning: str


def read_group(text: str, table: Mapping[str, NamedGroup]) -> Group:
    """The group that `text` means; raises, naming the place, where it means none."""
    reader = _Reader(text, table)
    found = reader.product()
    reader.finish()
    return found


class _Reader:
    """Reads from left to right, and knows where it is."""

    def __init__(self, text: str, table: Mapping[str, NamedGroup]) -> None:
        self.text, self.at = text.replace("⁺", "+").replace("×", "x"), 0
        self.table = table

    def product(self) -> Group:
        factors = [self.factor()]
        while self.take("x"):
            factors.append(self.factor())
        return direct_product(*factors)

    def factor(self) -> Group:
        name = self.match(r"[A-Za-z]\w*\+?")
        if name is None:
            raise self.error("the name of a group")
        patterns = _patterns(name, self.table)
        arguments: list[Any] = []
        if self.take("("):
            arguments.append(self.argument())
            while self.take(","):
                arguments.append(self.argument())
            if not self.take(")"):
                raise self.error("')'")
        for pattern, wanted in patterns.items():
            if _fits(wanted, arguments):
                given = [
                    each for each, want in zip(arguments, wanted, strict=True) if want.isalpha()
                ]
                return self.table[pattern].make(*given)
        written = f"{name}({','.join(map(str, arguments))})" if arguments else name
        raise CallerError(f"group {written!r}: expected {' or '.join(patterns)}")

    def argument(self) -> int | Group:
        number = self.match(r"[+-]?\d+")
        return self.product() if number is None else int(number)

    def match(self, pattern: str) -> str | None:
        found = re.compile(rf"\s*({pattern})", re.ASCII).match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        return found[1]

    def take(self, symbol: str) -> bool:
        return self.match(re.escape(symbol)) is not None

    def finish(self) -> None:
        if self.text[self.at :].strip():
            raise self.error("'x' and another group, or the end")

    def error(self, expected: str) -> CallerError:
        rest = self.text[self.at :].lstrip()
        got = repr(rest[0]) if rest else "the end"
        place = len(self.text) - len(rest) + 1
        return CallerError(
            f"group {self.text!r}: expected {expected} at position {place}, got {got}"
        )


def _patterns(name: str, table: Mapping[str, NamedGroup]) -> dict[str, list[str]]:
    """The rows of the table with this name, those with fixed numbers first, and their arguments."""
    heads = {pattern: pattern.partition("(")[0] for pattern in table}
    found = {
        pattern: re.findall(r"\w+", pattern.partition("(")[2])
        for pattern, head in heads.items()
        if head == name
    }
    if found:
        return dict(sorted(found.items(), key=lambda item: "".join(item[1]).isalpha()))
    spelled = {head.lower(): head for head in heads.values()}
    near = difflib.get_close_matches(name.lower(), spelled, n=1)
    likely = [pattern for pattern, head in heads.items() if near and head == spelled[near[0]]]
    hint = f"; did you mean {' or '.join(likely)}?" if likely else ""
    raise CallerError(f"unknown group {name!r}: expected one of {', '.join(table)}{hint}")


def _fits(wanted: list[str], given: list[Any]) -> bool:
    if len(wanted) != len(given):
        return False
    return all(
        isinstance(each, Group)
        if want.isupper()
        else each == int(want)
        if want.isdigit()
        else isinstance(each, int)
        for want, each in zip(wanted, given, strict=True)
    )
