"""Fill the table of docs/performance.md from the benchmarks' JSON in results/bench.

    python scripts/speed_table.py            rewrite the table
    python scripts/speed_table.py --check    exit 1 if it is not what results/bench gives

A row is one goal of one benchmark on one device, with what was measured; nothing is typed by hand.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- speed:begin -->", "<!-- speed:end -->"
Report = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    filled = f"{before}{BEGIN}\n{table(ROOT / 'results' / 'bench')}\n{END}{rest.split(END)[1]}"
    if options.check:
        sys.exit(0 if filled == text else "docs/performance.md is out of date")
    PAGE.write_text(filled, encoding="utf-8")


def table(folder: Path) -> str:
    """One Markdown table of all goals, and a line on reports that have none."""
    lines = [
        "| benchmark | what | device | measured | goal | |",
        "|---|---|---|---|---|---|",
    ]
    without = []
    for path in sorted(folder.glob("*.json")):
        report = json.loads(path.read_text(encoding="utf-8"))
        goals = report.get("goals")
        if not isinstance(goals, list) or not goals:
            without.append(f"`{path.stem}`")
            continue
        name = f"`{report['benchmark']}`"
        for goal in goals:
            lines.append(
                f"| {name} | {goal['what']} | {device(report)} | {_amount(goal, 'measured')} | "
                f"at {goal['at']} {_amount(goal, 'goal')} | {'met' if goal['met'] else 'missed'} |"
            )
    if len(lines) == 2:
        return "Not run yet."
    if without:
        lines += ["", f"Recorded without goals: {', '.join(without)}."]
    return "\n".join(lines)


def device(report: Report) -> str:
    """The GPU's name, or how many threads of which processor."""
    if "cuda" in report["device"]:
        return str(report["device_name"])
    return f"{report['threads']} CPU threads ({report['device_name']})"


def _amount(goal: Report, which: str) -> str:
    number = f"{goal[which]:.3g}" if which == "measured" else f"{goal[which]:g}"
    return f"{number} {goal['unit']}".strip()


if __name__ == "__main__":
    main()
