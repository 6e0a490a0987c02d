"""The search before a run on the page: profiles over amounts, and beside held-out data.

Every symmetry has a panel of the log predictive density L over its amounts, relative to none of it;
one that was taken has a second panel of the held-out log density, and a table of both and of the
log evidence. All are of the linearised network. Panels of one unit share the axis of amounts. What
a record does not hold gives no drawing and no row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from isotropy.report.page import Drawing
from isotropy.report.profile_figure import ProfilePanel, profile_figure
from isotropy.report.record import LearnRecord
from isotropy.report.search_words import disagreement, held_out_points, searched_by_name
from isotropy.report.units import interval_text, pair_of, reading_of, signed_amount
from isotropy.report.wording import finite, number_text, objects_of, title_of

_SHARES = {0.0: "none", 0.5: "½", 1.0: "1, learned", 2.0: "2"}


@dataclass(frozen=True)
class HeldOutRow:
    """The search beside held-out data at one amount, as text.

    first:     how many rows the symmetry has, on the first of them; else 0
    preferred: whether held-out data prefer this amount against L
    """

    name: str
    first: int
    times: str
    amount: str
    log_predictive: str
    log_evidence: str
    held_out: str
    preferred: bool


def search_drawings(record: LearnRecord) -> list[Drawing]:
    """The profile of each symmetry that was searched, those taken with their held-out profile."""
    searched = searched_by_name(record.result)
    units = _units(record)
    spans = _spans(searched, units)
    drawings: list[Drawing] = []
    for index, (name, own) in enumerate(searched.items()):
        unit, taken = units.get(name, ""), finite(own.get("amount")) or None
        rows = [(finite(r.get("amount")), finite(r.get("log_predictive"))) for r in _profile(own)]
        known = [(amount, value) for amount, value in rows if amount is not None]
        zero = next((value for amount, value in known if amount == 0), None)
        values = [math.nan if value is None or zero is None else value - zero for _, value in known]
        if not any(map(math.isfinite, values)):
            continue
        panel = ProfilePanel(
            amounts=[amount for amount, _ in known],
            values=values,
            span=(0.0, spans[unit]),
            maximum=taken,
            interval=pair_of(own.get("interval")),
            truth=record.truth.get(name),
            symbol=reading_of(unit).symbol,
            small=True,
        )
        best = max(
            range(len(values)), key=lambda i: -math.inf if values[i] != values[i] else values[i]
        )
        note = f"{unit or 'no unit'}; 95 % interval {interval_text(own.get('interval'), unit)}"
        label = (
            f"{title_of(name)}: log predictive density over its amount, largest at "
            f"{signed_amount(panel.amounts[best], unit)} with {number_text(values[best], 1)} nats "
            "above none"
        )
        svg = profile_figure(panel, key=f"search-{index}", label=label)
        drawings.append(Drawing(title_of(name), note, Markup(svg)))
        points = held_out_points(own)
        if points:
            beside = ProfilePanel(
                amounts=[point.amount for point in points],
                values=[point.test_log_likelihood for point in points],
                span=panel.span,
                maximum=taken,
                truth=panel.truth,
                symbol=panel.symbol,
                small=True,
            )
            ends = ", ".join(
                f"{number_text(p.test_log_likelihood, 3)} at {signed_amount(p.amount, unit)}"
                for p in points
            )
            label = f"{title_of(name)}: held-out log density per example, {ends}"
            svg = profile_figure(beside, key=f"search-{index}-held-out", label=label)
            drawings.append(
                Drawing(f"{title_of(name)}, held-out", "log density per example", Markup(svg))
            )
    return drawings


def held_out_rows(record: LearnRecord) -> list[HeldOutRow]:
    """The table of the search beside held-out data, up to four rows for each that was taken."""
    units = _units(record)
    rows: list[HeldOutRow] = []
    for name, own in searched_by_name(record.result).items():
        points = held_out_points(own)
        pair = disagreement(points)
        for place, point in enumerate(points):
            times = next((t for s, t in _SHARES.items() if abs(point.share - s) < 1e-6), None)
            rows.append(
                HeldOutRow(
                    name=title_of(name),
                    first=0 if place else len(points),
                    times=times or "the largest",
                    amount=signed_amount(point.amount, units.get(name, "")),
                    log_predictive=number_text(point.log_predictive, 1),
                    log_evidence=number_text(point.log_evidence, 1),
                    held_out=number_text(point.test_log_likelihood, 3),
                    preferred=pair is not None and point is pair[1],
                )
            )
    return rows


def _profile(own: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return objects_of(own.get("profile"))


def _units(record: LearnRecord) -> dict[str, str]:
    symmetries = record.result.get("symmetries") or ()
    return {str(s["name"]): str(s.get("unit") or "") for s in symmetries}


def _spans(searched: Mapping[str, Mapping[str, Any]], units: Mapping[str, str]) -> dict[str, float]:
    """The largest amount that was tried, by unit."""
    spans: dict[str, float] = {}
    for name, own in searched.items():
        unit = units.get(name, "")
        amounts = [finite(row.get("amount")) or 0.0 for row in _profile(own)]
        spans[unit] = max([spans.get(unit, 0.0), *amounts])
    return spans
