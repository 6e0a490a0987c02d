"""The table of soft symmetry, from the rows in results/soft-symmetry: for `results_page.py`.

Medians over seeds of test and equivariance errors, published numbers beside them where the thesis
prints some, the precisions that were learned, and the goals, met or not. Rows of the quick version
count where there are no others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equivariant_tables import NOT_RUN, made_with

from isotropy.experiments import soft_symmetry
from isotropy.experiments.runner import ROWS, read_rows

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
    said = [
        f"- {'Met' if met else 'Missed'}: {what}."
        for what, met in soft_symmetry.goals(records).items()
    ]
    parts = ["\n".join(lines), _precisions(records), "\n".join(said), made_with(records)]
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


TABLES = {"soft-symmetry": soft_symmetry_table}
