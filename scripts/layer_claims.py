"""Claims about relaxed layers, and whether they hold: for `layer_tables.py`.

A claim compares means over seeds. With several seeds of both sides it holds, or does not, if the
margin is larger than its 95 % half-width t · s, with s the standard error of the margin and t of
Student's distribution; in between it is undecided. With one seed the value alone decides, and
that is said. Rows that were not made alike, by one commit with one configuration, are not compared.
What does not hold comes first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from layer_rows import Record, Rows, error, number

from isotropy.report.wording import joined, number_text

VERDICTS = ("Does not hold", "Not compared", "Undecided", "Holds")
"""In the order in which they are told."""
FAILED, UNLIKE, OPEN, HOLDS = VERDICTS
STUDENT = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306}
"""The 97.5 % quantile by degrees of freedom."""


@dataclass(frozen=True)
class Claim:
    """A verdict on one thing that was to be shown, the numbers behind it, and what to add."""

    verdict: str
    what: str
    numbers: str
    more: str = ""

    def text(self) -> str:
        return f"- {self.verdict}: {self.what} ({self.numbers}).{self.more}"


@dataclass(frozen=True)
class Scale:
    """A number of records as it is told: its key, times a factor, with decimals and unit."""

    key: str
    factor: float = 1.0
    decimals: int = 3
    unit: str = ""

    def text(self, rows: Rows, row: str) -> str:
        """`76.39 ± 0.21 %`."""
        value, spread = number(rows, row, self.key), error(rows, row, self.key)
        shown = number_text(None if value is None else self.factor * value, self.decimals)
        if spread is not None:
            shown += f" ± {number_text(self.factor * spread, self.decimals)}"
        return shown + self.unit


ACCURACY = Scale("test_accuracy", 100.0, 2, " %")
NLL = Scale("test_nll")
EVIDENCE = Scale("log_evidence_per_example")


def told(claims: Iterable[Claim]) -> list[str]:
    """Their texts, what does not hold first."""
    return [claim.text() for claim in sorted(claims, key=lambda c: VERDICTS.index(c.verdict))]


def verdict_on(holds: bool) -> str:
    return HOLDS if holds else FAILED


def compared(
    rows: Rows,
    what: str,
    pair: tuple[str, str],
    scale: Scale,
    *,
    weights: tuple[float, float] = (1.0, -1.0),
    least: float = 0.0,
) -> list[Claim]:
    """Whether weights · (first, second) ≥ least, in units of the scale; none if a row is missing.

    weights: (1, −1) asks for the first to be larger by `least`, (−1, ½) for at most half
    """
    values = [number(rows, row, scale.key) for row in pair]
    if None in values:
        return []
    numbers = " and ".join(scale.text(rows, row) for row in pair)
    if not alike(rows, pair):
        return [Claim(UNLIKE, what, f"{numbers}, of {_commits(rows, pair)}")]
    margin = (
        sum(w * scale.factor * v for w, v in zip(weights, values, strict=True) if v is not None)
        - least
    )
    spreads = [error(rows, row, scale.key) for row in pair]
    seeds = [len(rows[row]) for row in pair]
    if None in spreads:
        # Points are whole images over their number, and differences of them are rounded.
        return [Claim(verdict_on(margin >= -1e-9), what, f"{numbers}, {_seeds_text(seeds)}")]
    spread = math.hypot(
        *(w * scale.factor * s for w, s in zip(weights, spreads, strict=True) if s is not None)
    )
    half = STUDENT.get(sum(seeds) - 2, 2.306) * spread
    verdict = OPEN if abs(margin) < half - 1e-9 else verdict_on(margin >= -1e-9)
    return [Claim(verdict, what, f"{numbers}, {_seeds_text(seeds)}")]


def alike(rows: Rows, names: Sequence[str]) -> bool:
    """Whether rows were made by one commit with one configuration, or seed by seed by the same."""
    each = [{(r["seed"], *_how(r)) for r in rows[name]} for name in names]
    return all(own == each[0] for own in each) or len({how[1:] for own in each for how in own}) == 1


def _how(record: Record) -> tuple[object, str]:
    own: Mapping[str, object] = record["config"]
    free = ("seed", "objective", "curvature_batch")  # the last is memory alone
    return record.get("commit"), str(sorted((k, v) for k, v in own.items() if k not in free))


def _commits(rows: Rows, names: Sequence[str]) -> str:
    found = [str(r.get("commit"))[:7] for name in names for r in rows[name]]
    kinds = list(dict.fromkeys(found))
    if len(kinds) == 1:
        return f"one commit, {kinds[0]}, and two configurations"
    return f"commits {joined(kinds)}"


def _seeds_text(counts: Sequence[int]) -> str:
    if set(counts) == {1}:
        return "one seed"
    if len(set(counts)) == 1:
        return f"{counts[0]} seeds each"
    return f"{joined(map(str, counts))} seeds"
