"""Draw Figures 2.5, 2.6 and A.1 from results/ into docs/figures/.

    python scripts/equivariant_figures.py [--results results] [--out docs/figures]

A series that has no rows yet is left out, and said so.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from isotropy.experiments.runner import ROWS, read_rows, read_table
from isotropy.experiments.thesis_problems import STEP
from isotropy.report.experiments import (
    convergence_figure,
    data_efficiency_figure,
    dynamics_figure,
)

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures")
    options = parser.parse_args()
    problems = read_table("data-efficiency")["problems"]
    titles = {name: about["title"] for name, about in problems.items()}
    drawings = {
        "data-efficiency": lambda records: data_efficiency_figure(records, titles),
        "dynamics": lambda records: dynamics_figure(records, STEP),
        "convergence": convergence_figure,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    for name, draw in drawings.items():
        records = read_rows(options.results / name / ROWS)
        if not records:
            print(f"{name}: no rows in {options.results / name}")
            continue
        (options.out / f"{name}.svg").write_text(draw(records), encoding="utf-8")
        print(f"{name}: {len(records)} records")


if __name__ == "__main__":
    main()
