"""Representations as they are written on a command line and in files.

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

Spaces do not matter. Representations of your own are read by the names that are handed in.
`parse_representation(str(rep)) == rep` for every rep that is not bound to a group.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from isotropy.checks import CallerError
from isotropy.symmetry.factor_representations import of_factor
from isotropy.symmetry.irreducible import irrep
from isotropy.symmetry.representations import Maps, P, Representation, Scalar, T, V

LARGEST_ORDER = 64
"""Of T(p, q), a power and an irrep: beyond it was a slip."""
DEEPEST = 50
"""Parentheses within parentheses."""

NAMED = MappingProxyType({"V": V, "Scalar": Scalar, "P": P})
"""Words that stand for a representation."""
FUNCTIONS: Mapping[str, tuple[Callable[..., Representation], int]] = MappingProxyType(
    {"T": (T, 2), "irrep": (irrep, 1)}
)
"""Words that take numbers, and at most how many."""


class _Token(NamedTuple):
    kind: str  # "number", "word", "sign" or "end"
    text: str
    place: int  # of the first character, from 1


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
    return _Parser(text, {**NAMED, **names}).whole()


class _Parser:
    """Recursive descent, one method a level of the grammar.

    whole = sum [">>" sum];  sum = product {"+" product};  product = factor {"*" factor};
    factor = number factor | number | atom {"'" | "^" number | "@" number}
    """

    def __init__(self, text: str, names: Mapping[str, Representation]) -> None:
        self._text = text
        self._names = names
        self._tokens = _tokens(text)
        self._next = 0
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
        token = self._token
        if token.kind == "number":
            amount = self._number("a number")
            following = self._token
            if following.kind == "word" or following.text == "(":
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
        token = self._token
        if token.text == "(":
            return self._parenthesis()
        if token.kind != "word":
            raise self._unexpected("a factor")
        self._next += 1
        if token.text in FUNCTIONS:
            function, most = FUNCTIONS[token.text]
            return function(*self._arguments(token.text, most))
        if token.text not in self._names:
            raise self._unknown(token)
        return self._names[token.text]

    def _parenthesis(self) -> Representation:
        self._depth += 1
        if self._depth > DEEPEST:
            raise CallerError(
                f"expected at most {DEEPEST} parentheses within each other, got more at "
                f"{self._where()}"
            )
        self._expect("(")
        found = self._sum()
        self._expect(")")
        self._depth -= 1
        return found

    def _arguments(self, name: str, most: int) -> list[int]:
        self._expect("(")
        found = [self._order(f"a number for {name}")]
        while len(found) < most and self._takes(","):
            found.append(self._order(f"a number for {name}"))
        self._expect(")")
        return found

    def _order(self, what: str) -> int:
        where = self._where()
        found = self._number(what)
        if found > LARGEST_ORDER:
            raise CallerError(f"expected {what} of at most {LARGEST_ORDER} at {where}, got {found}")
        return found

    def _number(self, what: str) -> int:
        if self._token.kind != "number":
            raise self._unexpected(what)
        self._next += 1
        return int(self._tokens[self._next - 1].text)

    # -- tokens --------------------------------------------------------------------------------

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

    def _finish(self, expected: str) -> None:
        if self._token.kind != "end":
            raise self._unexpected(expected)

    def _where(self) -> str:
        return f"position {self._token.place} of {self._text!r}"

    def _unexpected(self, expected: str) -> CallerError:
        got = "the end" if self._token.kind == "end" else repr(self._token.text)
        return CallerError(f"expected {expected} at {self._where()}, got {got}")

    def _unknown(self, token: _Token) -> CallerError:
        known = [*self._names, *FUNCTIONS]
        near = difflib.get_close_matches(token.text, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return CallerError(
            f"unknown representation {token.text!r} at position {token.place} of {self._text!r}: "
            f"expected one of {', '.join(known)}{hint}"
        )


def _tokens(text: str) -> list[_Token]:
    found = []
    for match in re.finditer(r"(?P<number>[0-9]+)|(?P<word>[^\W\d]\w*)|(?P<sign>>>|\S)", text):
        kind, token = match.lastgroup or "", match.group()
        if kind == "sign" and token not in (">>", *"+*^'@(),"):
            raise CallerError(
                f"expected a representation such as V, T(2), 3V + V*V' or V >> V*V, got {token!r} "
                f"at position {match.start() + 1} of {text!r}"
            )
        if kind == "number" and len(token) > 9:
            raise CallerError(
                f"expected a number of at most 9 digits at position {match.start() + 1} of "
                f"{text!r}, got {token}"
            )
        found.append(_Token(kind, token, match.start() + 1))
    return [*found, _Token("end", "", len(text) + 1)]
