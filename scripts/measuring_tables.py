"""Tables of chapter 4 of Finzi (2023): what symmetry networks have, and rotated MNIST.

For `results_page.py`. Numbers are means over seeds, ± their standard deviation over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from equivariant_tables import NOT_RUN, goals_told, made_with

from isotropy.experiments.runner import ROWS, read_rows, read_table
from isotropy.experiments.thesis import measured_networks, rotated_mnist
from isotropy.experiments.thesis.measured_networks import (
    ROTATION,
    TEST,
    TRAIN,
    TRANSLATION,
    error_of,
    mean_and_deviation,
)

Record = Mapping[str, Any]
SHIFTS, TURNS = "whole-pixel shifts", "quarter turns"
OURS, PUBLISHED = "measured here", "published"


def measured(results: Path) -> str:
    """What the chapter finds, and the main numbers on test data."""
    records = _records(results)
    if not records:
        return NOT_RUN
    lines = [
        "| data | network | epochs | test accuracy (training) | translation error (floor) "
        "| rotation error (floor) | EQ-T | EQ-T_frac | predictions changed by shifts of 1–4 pixels "
        "| by quarter turns |",
        "|---" * 10 + "|",
    ]
    for (problem, network), seeds in measured_networks.grouped(records).items():
        score, trained = (_over(seeds, lambda e, d=d: 100 * e["data_sets"][d]["accuracy"])
                          for d in (TEST, TRAIN))  # fmt: skip
        cells = [f"{_points(score)} ({trained[0]:.1f} %)"]
        for name in (TRANSLATION, ROTATION):
            floor = mean(each["data_sets"][TEST]["errors"][name]["floor"] for each in seeds)
            cells.append(f"{_told(_errors(seeds, TEST, name))} ({floor:.2g})")
        cells += [
            _told(_over(seeds, lambda e, key=key: e["data_sets"][TEST][key]))
            for key in ("eq_t", "eq_t_frac")
        ]
        for name in (SHIFTS, TURNS):
            cells.append(_points(_over(
                seeds, lambda e, n=name: 100 * e["data_sets"][TEST]["exact"][n]["inconsistency"]
            )))  # fmt: skip
        epochs = ", ".join(sorted({str(each["epochs"]) for each in seeds}))
        lines.append(f"| {problem} | {network} | {epochs} | {' | '.join(cells)} |")
    told = goals_told(measured_networks.goals(records))
    return "\n\n".join([told, "\n".join(lines), made_with(records)])


def generators(results: Path) -> str:
    """Errors on test data under every generator."""
    records = _records(results)
    if not records:
        return NOT_RUN
    names = list(dict.fromkeys(n for each in records for n in each["data_sets"][TEST]["errors"]))
    lines = [f"| data | network | {' | '.join(names)} |", "|---" * (2 + len(names)) + "|"]
    for (problem, network), seeds in measured_networks.grouped(records).items():
        cells = [_told(_errors(seeds, TEST, name)) for name in names]
        lines.append(f"| {problem} | {network} | {' | '.join(cells)} |")
    return "\n".join(lines)


def elsewhere(results: Path) -> str:
    """Errors on training data, test data, and data from elsewhere (Figure 4.7)."""
    records = _records(results)
    if not any(set(each["data_sets"]) - {TRAIN, TEST} for each in records):
        return NOT_RUN
    tables = []
    for problem in dict.fromkeys(each["problem"] for each in records):
        own = [each for each in records if each["problem"] == problem]
        sets = list(dict.fromkeys(name for each in own for name in each["data_sets"]))
        lines = [
            f"| trained on {problem} | error under | {' | '.join(sets)} |",
            "|---" * (2 + len(sets)) + "|",
        ]
        for (_, network), seeds in measured_networks.grouped(own).items():
            for generator in (TRANSLATION, ROTATION):
                cells = [_told(_errors(seeds, name, generator)) for name in sets]
                lines.append(f"| {network} | {generator} | {' | '.join(cells)} |")
            for key, title in (("eq_t", "EQ-T"), ("eq_t_frac", "EQ-T_frac")):
                cells = [_told(_over(seeds, lambda e, n=n, k=key: e["data_sets"][n][k]
                               if n in e["data_sets"] else None)) for n in sets]  # fmt: skip
                lines.append(f"| {network} | {title} | {' | '.join(cells)} |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def culprits(results: Path) -> str:
    """Layers with the largest contributions, shares by kind, and how alike two motions are."""
    records = _records(results)
    if not records:
        return NOT_RUN
    lines = [
        "| data | network | largest contributions under translation (share) "
        "| shares by kind of operation | norms alike under rotation |",
        "|---|---|---|---|---|",
    ]
    for (problem, network), seeds in measured_networks.grouped(records).items():
        layers = list(zip(*(each["layers"][TRANSLATION] for each in seeds), strict=True))
        largest = sorted(layers, key=lambda own: -mean(x["norm"] for x in own))[:3]
        shown = [
            f"`{own[0]['name']}` ({own[0]['kind']}) {100 * mean(x['share'] for x in own):.0f} %"
            for own in largest
        ]
        shares = [measured_networks.shares_by_kind(each) for each in seeds]
        kinds = {kind: mean(each[kind] for each in shares) for kind in shares[0]}
        ordered = sorted(kinds.items(), key=lambda pair: -abs(pair[1]))[:4]
        by_kind = [f"{kind} {100 * share:.0f} %" for kind, share in ordered]
        alike = mean(map(measured_networks.likeness, seeds))
        lines.append(
            f"| {problem} | {network} | {', '.join(shown)} | {', '.join(by_kind)} | {alike:.2f} |"
        )
    return "\n".join(lines)


def rotated_table(results: Path) -> str:
    """Table 4.1: ours and the published networks, by test error."""
    records = read_rows(results / "rotated-mnist" / ROWS)
    if not records:
        return NOT_RUN
    rows = [
        (error, f"| {name} | {PUBLISHED} | | {error:.2f} % | | | |")
        for name, error in read_table("rotated-mnist")["published"].items()
    ]
    for name, seeds in rotated_mnist.grouped(records).items():
        error = _over(seeds, lambda each: each["test_error"])
        turned = _over(seeds, lambda each: each["rotation"]["error"])
        floor = mean(each["rotation"]["floor"] for each in seeds)
        quarters = _over(seeds, lambda each: each["quarter_turns"]["error"])
        changed = _over(seeds, lambda each: 100 * each["quarter_turns"]["inconsistency"])
        spread = "" if error[1] is None else f" ± {error[1]:.2f}"
        cells = [
            name,
            OURS,
            f"{seeds[0]['parameters']:,}",
            f"{error[0]:.2f}{spread} %",
            f"{_told(turned)} ({floor:.2g})",
            _told(quarters),
            _points(changed),
        ]
        rows.append((error[0], f"| {' | '.join(cells)} |"))
    lines = [
        "| network | | parameters | test error | rotation error (floor) "
        "| error under quarter turns | predictions they change |",
        "|---" * 7 + "|",
        *(line for _, line in sorted(rows)),
    ]
    told = goals_told(rotated_mnist.goals(records))
    return "\n\n".join([told, "\n".join(lines), made_with(records)])


def _records(results: Path) -> list[dict[str, Any]]:
    """In the order of the table's problems and networks."""
    table = read_table("measured-networks")
    rows = [f"{problem}/{name}" for problem in table["problems"] for name in table["networks"]]
    records = read_rows(results / "measured-networks" / ROWS)
    return sorted(records, key=lambda each: (rows.index(each["row"]), each["seed"]))


Spread = tuple[float, float | None]


def _over(seeds: Iterable[Record], number: Callable[[Record], float | None]) -> Spread | None:
    """Mean and deviation over the seeds that have the number."""
    values = [value for value in map(number, seeds) if value is not None and value == value]
    return mean_and_deviation(values) if values else None


def _errors(seeds: Sequence[Record], data: str, generator: str) -> Spread | None:
    return _over(seeds, lambda each: error_of(each, data, generator))


def _told(spread: Spread | None) -> str:
    if spread is None:
        return ""
    average, deviation = spread
    return f"{average:.2g}" if deviation is None else f"{average:.2g} ± {deviation:.1g}"


def _points(spread: Spread | None) -> str:
    """Per cent."""
    if spread is None:
        return ""
    average, deviation = spread
    return f"{average:.1f}" + (" %" if deviation is None else f" ± {deviation:.1f} %")


TABLES = {
    "measured": measured,
    "generators": generators,
    "elsewhere": elsewhere,
    "culprits": culprits,
    "rotated-mnist": rotated_table,
}
