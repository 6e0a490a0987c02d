"""Tables of the calibration study, from its rows in results/: for `results_page.py`.

Goals first, those that are missed before the others; then shares by network and number of examples,
what was said of each symmetry under each truth, and amounts by the number of copies.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equivariant_tables import NOT_RUN, made_with

from isotropy.experiments import calibration
from isotropy.experiments.runner import ROWS, read_rows, read_table

Record = Mapping[str, Any]


def calibration_table(results: Path) -> str:
    """Goals, and a row for each network and size."""
    records = read_rows(results / "calibration" / ROWS)
    if not records:
        return NOT_RUN
    reached = calibration.goals(records)
    lines = [f"- Does not hold: {what}." for what, holds in reached.items() if not holds]
    lines += [f"- Holds: {what}." for what, holds in reached.items() if holds]
    lines += [
        "",
        "| network, N | sets | verdicts right | right or cannot tell | ±45° and ±180° within 15 % "
        "| intervals that cover | of symmetries that are there "
        "| random labels: sets called learned, called symmetric |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (network, examples), own in calibration.by_size(records).items():
        shares = calibration.shares_of(own)
        lines.append(
            f"| {network}, {examples:,} | {len(own)} | {shares['right']:.1%} | "
            f"{shares['right or cannot tell']:.1%} | {_percent(shares['within'])} | "
            f"{shares['covers']:.1%} | {_percent(shares['covers what is there'])} | "
            f"{shares['fooled']:.0f}, {shares['claimed']:.0f} |"
        )
    return "\n".join([*lines, "", made_with(records)])


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{share:.0%}"


def confusion_table(results: Path) -> str:
    """How often each verdict was given to each symmetry under each truth, by network and size."""
    records = read_rows(results / "calibration" / ROWS)
    if not records:
        return NOT_RUN
    sizes = calibration.by_size(records)
    names = read_table("calibration")["candidates"]
    heads = [f"{network}, {examples:,}" for network, examples in sizes]
    lines = [f"| truth | symmetry | {' | '.join(heads)} |", "|---" * (2 + len(heads)) + "|"]
    for truth in read_table("calibration")["truths"]:
        for name in names:
            cells = [_verdicts(own, truth, name) for own in sizes.values()]
            lines.append(f"| {truth} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _verdicts(records: Sequence[Record], truth: str, name: str) -> str:
    """`18 partial, 2 *absent*`: those that are wrong in italics."""
    found = [
        symmetry
        for record in records
        if record["truth"] == truth
        for symmetry in record["symmetries"]
        if symmetry["name"] == name
    ]
    counts = Counter((each["verdict"], each["right"]) for each in found)
    cells = []
    for (verdict, right), count in sorted(counts.items(), key=lambda pair: -pair[1]):
        cells.append(f"{count} {verdict}" if right else f"{count} *{verdict}*")
    return ", ".join(cells)


def copies_table(results: Path) -> str:
    """The rotation that was found, by the number of copies of the run."""
    found = calibration.by_copies(read_rows(results / "calibration" / ROWS))
    if not found:
        return NOT_RUN
    counts = sorted({count for amounts in found.values() for count in amounts})
    lines = [
        f"| data set | {' | '.join(f'{count} copies' for count in counts)} |",
        "|---" * (1 + len(counts)) + "|",
    ]
    for seed, amounts in sorted(found.items()):
        cells = [f"±{amounts[count]:.1f}°" if count in amounts else "" for count in counts]
        lines.append(f"| {seed} | {' | '.join(cells)} |")
    return "\n".join(lines)


TABLES = {
    "calibration": calibration_table,
    "calibration-verdicts": confusion_table,
    "calibration-copies": copies_table,
}
