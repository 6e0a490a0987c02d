"""Groups and representations as they are written on a command line and in files.

**Groups**: `SO(3)`, `O(1,3)`, `Z(4) x Z(4)`, `Wreath(Z(3), S(2))`.

    product  = factor { "x" factor }
    factor   = name [ "(" argument { "," argument } ")" ]
    argument = whole number | product

A table says which factors there are, one pattern each: `SO(n)`, `SO(1,3)`, `Wreath(G,H)`, in which
small letters stand for whole numbers and capitals for groups; numbers must be as written. `×` and
`⁺` are read as x and +.

**Representations**:

    V >> V*V        linear maps from V to V ⊗ V; >> is loosest and comes once
    R + S           direct sum
    R*S             tensor product, the left index slow
    3R  3*R         the sum of three; closer than *, as in 3V*V, which is 3(V*V) all the same
    R^3  R'  R@1    power; dual; R of one factor of a direct product, counted from 0; closest,
                    from left to right
    ( … )           as usual
    V  T(p)  T(p,q) the group's own space; V^p ⊗ V'^q
    Scalar  P       scalar, pseudoscalar; a number n that stands alone is n scalars, 0 nothing
    irrep(l)        irreducible representation of order l of subgroups of O(2) and O(3)

Representations of your own are read by the names that are handed in.
`parse_representation(str(rep)) == rep` for every rep that is not bound to a group.

Spaces do not matter. Both are read from left to right, one method a level of the grammar, and
errors point at the place, counted from 1, where the text makes no sense.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from isotropy.checks import CallerError
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.products import direct_product
from isotropy.symmetry.groups.representations import (
    Maps,
    P,
    Representation,
    Scalar,
    T,
    V,
    irrep,
    of_factor,
)

LARGEST_ORDER = 64
"""Of T(p, q), a power and an irrep: beyond it was a slip."""
DEEPEST = 50
"""Parentheses within parentheses."""

Read = TypeVar("Read")


class _Token(NamedTuple):
    kind: str  # "number", "word", "sign" or "end"
    text: str
    place: int  # of the first character, from 1


class _Reader:
    """The tokens of a text, and how far it has been read."""

    tokens: str
    """A regular expression with the groups number, word and sign."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [
            _Token(match.lastgroup or "", match.group(), match.start() + 1)
            for match in re.finditer(self.tokens, text)
        ]
        self._tokens.append(_Token("end", "", len(text) + 1))
        self._next = 0

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _takes(self, sign: str) -> bool:
        taken = self._token.kind == "sign" and self._token.text == sign
        self._next += taken
        return taken

    def _expect(self, sign: str) -> None:
        if not self._takes(sign):
            raise self._unexpected(repr(sign))

    def _of_kind(self, kind: str, expected: str) -> _Token:
        """The next token, which is of this kind."""
        token = self._token
        if token.kind != kind:
            raise self._unexpected(expected)
        self._next += 1
        return token

    def _number(self, expected: str) -> int:
        token = self._of_kind("number", expected)
        if len(token.text) > 9:
            raise CallerError(
                f"expected a number of at most 9 digits at {self._at(token)}, got {token.text}"
            )
        return int(token.text)

    def _listed(self, read: Callable[[], Read], most: int | None = None) -> list[Read]:
        """What lies between parentheses, with commas between."""
        self._expect("(")
        found = [read()]
        while len(found) != most and self._takes(","):
            found.append(read())
        self._expect(")")
        return found

    def _finish(self, expected: str) -> None:
        if self._token.kind != "end":
            raise self._unexpected(expected)

    def _at(self, token: _Token) -> str:
        return f"position {token.place} of {self._text!r}"

    def _unexpected(self, expected: str) -> CallerError:
        token = self._token
        got = "the end" if token.kind == "end" else repr(token.text)
        return CallerError(f"expected {expected} at {self._at(token)}, got {got}")


# -- groups ------------------------------------------------------------------------------------


class NamedGroup(NamedTuple):
    """How to make a group from the letters of its pattern, and what it is."""

    make: Callable[..., Group]
    meaning: str


def read_group(text: str, table: Mapping[str, NamedGroup]) -> Group:
    """The group that `text` means; raises, naming the place, where it means none."""
    return _GroupReader(text.replace("⁺", "+").replace("×", "x"), table).whole()


class _GroupReader(_Reader):
    tokens = r"(?P<number>[+-]?[0-9]+)|(?P<word>[A-Za-wyz][A-Za-z0-9_]*\+?)|(?P<sign>\S)"

    def __init__(self, text: str, table: Mapping[str, NamedGroup]) -> None:
        super().__init__(text)
        self.table = table

    def whole(self) -> Group:
        found = self._product()
        self._finish("'x' and another group, or the end")
        return found

    def _product(self) -> Group:
        factors = [self._factor()]
        while self._takes("x"):
            factors.append(self._factor())
        return direct_product(*factors)

    def _factor(self) -> Group:
        name = self._of_kind("word", "the name of a group").text
        patterns = _patterns(name, self.table)
        arguments = self._listed(self._argument) if self._token.text == "(" else []
        for pattern, wanted in patterns.items():
            if _fits(wanted, arguments):
                given = [
                    each for each, want in zip(arguments, wanted, strict=True) if want.isalpha()
                ]
                return self.table[pattern].make(*given)
        written = f"{name}({','.join(map(str, arguments))})" if arguments else name
        raise CallerError(f"group {written!r}: expected {' or '.join(patterns)}")

    def _argument(self) -> int | Group:
        return self._number("") if self._token.kind == "number" else self._product()


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


# -- representations ---------------------------------------------------------------------------

NAMED = MappingProxyType({"V": V, "Scalar": Scalar, "P": P})
"""Words that stand for a representation."""
FUNCTIONS: Mapping[str, tuple[Callable[..., Representation], int]] = MappingProxyType(
    {"T": (T, 2), "irrep": (irrep, 1)}
)
"""Words that take numbers, and at most how many."""


def parse_representation(
    text: str, names: Mapping[str, Representation] = MappingProxyType({})
) -> Representation | Maps:
    """What `text` says, not bound to a group; see the module for the grammar.

    names: representations of your own by the word that stands for each
    Raises `CallerError` that points at the place, counted from 1, where the text makes no sense.
    """
    taken = [name for name in names if name in NAMED or name in FUNCTIONS]
    if taken:
        raise CallerError(
            f"expected names other than {', '.join([*NAMED, *FUNCTIONS])}, got {taken}"
        )
    return _RepresentationReader(text, {**NAMED, **names}).whole()


class _RepresentationReader(_Reader):
    """whole = sum [">>" sum];  sum = product {"+" product};  product = factor {"*" factor};
    factor = number factor | number | atom {"'" | "^" number | "@" number}
    """

    tokens = r"(?P<number>[0-9]+)|(?P<word>[^\W\d]\w*)|(?P<sign>>>|\S)"

    def __init__(self, text: str, names: Mapping[str, Representation]) -> None:
        super().__init__(text)
        self._names = names
        self._depth = 0

    def whole(self) -> Representation | Maps:
        source = self._sum()
        if not self._takes(">>"):
            self._finish("'*', '+', '>>' or the end")
            return source
        target = self._sum()
        self._finish("'*', '+' or the end")
        return source >> target

    def _sum(self) -> Representation:
        found = self._product()
        while self._takes("+"):
            found = found + self._product()
        return found

    def _product(self) -> Representation:
        found = self._factor()
        while self._takes("*"):
            found = found * self._factor()
        # A number that stands alone is so many scalars; beside a factor it multiplies.
        return found * Scalar if isinstance(found, int) else found

    def _factor(self) -> Representation | int:
        if self._token.kind == "number":
            amount = self._number("a number")
            if self._token.kind == "word" or self._token.text == "(":
                return amount * self._factor()
            return amount
        found = self._atom()
        while True:
            if self._takes("'"):
                found = found.dual
            elif self._takes("^"):
                found = found ** self._order("a power")
            elif self._takes("@"):
                found = of_factor(found, self._order("a factor's number"))
            else:
                return found

    def _atom(self) -> Representation:
        if self._token.text == "(":
            return self._parenthesis()
        token = self._of_kind("word", "a factor")
        if token.text in FUNCTIONS:
            function, most = FUNCTIONS[token.text]
            return function(*self._listed(lambda: self._order(f"a number for {token.text}"), most))
        if token.text not in self._names:
            raise self._unknown(token)
        return self._names[token.text]

    def _parenthesis(self) -> Representation:
        self._depth += 1
        if self._depth > DEEPEST:
            raise CallerError(
                f"expected at most {DEEPEST} parentheses within each other, got more at "
                f"{self._at(self._token)}"
            )
        self._expect("(")
        found = self._sum()
        self._expect(")")
        self._depth -= 1
        return found

    def _order(self, what: str) -> int:
        token = self._token
        found = self._number(what)
        if found > LARGEST_ORDER:
            raise CallerError(
                f"expected {what} of at most {LARGEST_ORDER} at {self._at(token)}, got {found}"
            )
        return found

    def _unknown(self, token: _Token) -> CallerError:
        known = [*self._names, *FUNCTIONS]
        near = difflib.get_close_matches(token.text, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return CallerError(
            f"unknown representation {token.text!r} at {self._at(token)}: expected one of "
            f"{', '.join(known)}{hint}"
        )
