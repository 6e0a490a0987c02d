"""Tables of soft symmetry and of transition models, from the rows in results/: `results_page.py`.

Medians over seeds of test and equivariance errors, published numbers beside them where the thesis
prints some, the precisions that were learned, and the goals, met or not. Rows of the quick version
count where there are no others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equivariant_tables import NOT_RUN, made_with

from isotropy.experiments.runner import ROWS, geometric_means, read_rows
from isotropy.experiments.thesis import soft_symmetry, transitions

Record = Mapping[str, Any]


def soft_symmetry_table(results: Path) -> str:
    """Errors by problem and network, learned precisions, and what the records show."""
    records, quick = read_rows(results / "soft-symmetry" / ROWS), False
    if not records:
        records, quick = read_rows(results / "soft-symmetry-quick" / ROWS), True
    if not records:
        return NOT_RUN
    errors = soft_symmetry.medians(records, "test_error")
    broken = soft_symmetry.medians(records, "equivariance_error")
    known = {each["row"]: each for each in records}
    lines = [
        "| problem | symmetry | network | test error | published | equivariance error |",
        "|---|---|---|---|---|---|",
    ]
    for problem, own in errors.items():
        for name, error in own.items():
            record = known[f"{problem}/{name}"]
            published = "" if record["published"] is None else f"{record['published']:g}"
            second = broken.get(problem, {}).get(name)
            lines.append(
                f"| {problem} | {record['symmetry']} | {name} | {error:.3g} | {published} | "
                f"{'' if second is None else f'{second:.2g}'} |"
            )
    goals = sorted(soft_symmetry.goals(records).items(), key=lambda goal: goal[1])
    said = [f"- {'Met' if met else 'Missed'}: {what}." for what, met in goals]
    for width in soft_symmetry.WIDTHS:
        if enough := soft_symmetry.sufficient_priors(records, width):
            said.append(
                f"- {width}: all comparisons with EMLP and MLP hold for {', '.join(enough)}."
            )
    parts = ["\n".join(said), "\n".join(lines), _precisions(records), made_with(records)]
    if quick:
        parts.append("These are rows of the quick version, `--quick`.")
    return "\n\n".join(part for part in parts if part)


def _precisions(records: Sequence[Record]) -> str:
    """Medians over seeds of what `rpp-learned` found, by problem and layer."""
    learned = soft_symmetry.learned_precisions(records)
    if not learned:
        return ""
    layers = list(dict.fromkeys(name for each in learned.values() for name in each))
    lines = [f"| free precision δ | {' | '.join(layers)} |", "|---" * (1 + len(layers)) + "|"]
    for problem, own in learned.items():
        cells = (f"{own[layer]:.2g}" if layer in own else "" for layer in layers)
        lines.append(f"| {problem} | {' | '.join(cells)} |")
    return "\n".join(lines)


def transitions_table(results: Path) -> str:
    """Geometric means over seeds of errors by robot, network and length of rollouts, and goals."""
    records = read_rows(results / "transitions" / ROWS)
    if not records:
        return NOT_RUN
    spread = [
        {**each, "steps": steps, "error": error}
        for each in records
        for steps, error in each["errors"].items()
    ]
    broken = geometric_means(records, "equivariance_error", "robot", "network")
    symmetry = {each["robot"]: each["symmetry"] for each in records}
    lengths = list(dict.fromkeys(each["steps"] for each in spread))
    lines = [
        f"| robot | symmetry | network | {' | '.join(f'{each} steps' for each in lengths)} "
        "| equivariance error |",
        "|---" * (4 + len(lengths)) + "|",
    ]
    for robot, networks in geometric_means(spread, "error", "robot", "network", "steps").items():
        for network, errors in networks.items():
            cells = " | ".join(f"{100 * errors[each]:.2f}" for each in lengths)
            lines.append(
                f"| {robot} | {symmetry[robot]} | {network} | {cells} | "
                f"{100 * broken[robot].get(network, 0.0):.2g} |"
            )
    goals = sorted(transitions.goals(records).items(), key=lambda goal: goal[1])
    said = [f"- {'Holds' if holds else 'Does not hold'}: {what}." for what, holds in goals]
    return "\n\n".join(["\n".join(said), "\n".join(lines), made_with(records)])


TABLES = {"soft-symmetry": soft_symmetry_table, "transitions": transitions_table}
