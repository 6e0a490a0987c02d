"""Fill the results of README.md from the raw JSON in results/.

    python scripts/results_table.py            rewrite them
    python scripts/results_table.py --check    exit 1 if they are not what results/ gives

README.md has the headline rows and a sentence for each other experiment; the whole tables of the
learning runs and of the evidence benchmark are in docs/results.md (`results_page.py`). A row is the
mean over its seeds of what the runs recorded; nothing is typed by hand.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

from equivariant_tables import in_short
from layer_tables import layers_in_short

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
UNITS = {"degrees": "°"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    page = ROOT / "README.md"
    text = page.read_text(encoding="utf-8")
    filled = fill(text, tables(ROOT / "results"))
    if options.check:
        sys.exit(0 if filled == text else "README.md: the results table is out of date")
    page.write_text(filled, encoding="utf-8")


def fill(text: str, table: str) -> str:
    """`text` with everything between the markers replaced by `table`."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


HEADLINES = {
    "embedded-rotated": "2,000 digits, rotated by any angle",
    "embedded-partially-rotated": "2,000 digits, rotated by up to ±90°",
    "embedded-translated": "2,000 digits, shifted",
    "embedded-scaled": "2,000 digits, scaled",
    "embedded-original": "2,000 digits, not moved",
    "mnist-rotated": "MNIST, rotated by any angle",
}
"""Rows of the learning runs that README.md shows, and its words for them."""


def tables(results: Path) -> str:
    """The headline rows of the learning runs, and a sentence for each other experiment."""
    rows = records(results, "learning-digits")
    lines = [
        "| data | seeds | learned (half-width) | test accuracy | published |",
        "|---|---|---|---|---|",
    ]
    for name, words in HEADLINES.items():
        if name in rows:
            seeds, learned, _, accuracy, published = _cells(rows[name])[:5]
            lines.append(f"| {words} | {seeds} | {learned} | {accuracy} | {published} |")
    said = [f"- {each}" for each in [*in_short(results), *layers_in_short(results)]]
    return "\n".join([*(lines if rows else ["No results are recorded yet."]), "", *said])


def learning_table(results: Path) -> str:
    """All rows of the learning runs."""
    lines = [
        "| row | seeds | learned ranges (half-width) | others below | test accuracy | published "
        "| epochs, S | seconds, device |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, own in records(results, "learning-digits").items():
        lines.append(f"| {' | '.join([name, *_cells(own)])} |")
    return "\n".join(lines)


def records(results: Path, experiment: str, *, start: str = "") -> dict[str, list[dict[str, Any]]]:
    """Records of an experiment by row, seeds in order; rows whose name begins with `start`."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted((results / experiment).glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["row"].startswith(start):
            rows[record["row"]].append(record)
    return rows


def _cells(records: list[dict[str, Any]]) -> list[str]:
    """Seeds, learned ranges, the largest other range, accuracy, published one, schedule, time."""
    results = [record["result"] for record in records]
    truth = records[0]["truth"]
    first = results[0]
    shown, other = [], [0.0]
    for index, symmetry in enumerate(first["symmetries"]):
        widths = [result["symmetries"][index]["high"] for result in results]
        if symmetry["name"] in truth or (symmetry["unit"] == "degrees" and max(widths) > 0):
            unit = UNITS.get(symmetry["unit"], "")
            digits = 0 if unit else 2
            listed = ", ".join(f"{width:.{digits}f}{unit}" for width in widths)
            target = truth.get(symmetry["name"])
            aim = "" if target is None else f" (imposed {target:.{digits}f}{unit})"
            shown.append(f"{symmetry['name']} {listed}{aim}")
        else:
            other.extend(widths)
    accuracy = 100 * mean(result["test_accuracy"] for result in results)
    published = (records[0]["published"] or {}).get("test_accuracy")
    seconds = mean(result["seconds"] for result in results)
    device = first["device_name"] if "cuda" in first["device"] else f"{first['threads']} CPU cores"
    return [
        str(len(records)),
        "; ".join(shown) or "none",
        f"{max(other):.3f}",
        f"{accuracy:.1f} %",
        "" if published is None else f"{published} %",
        f"{first['epochs']}, {first['samples']}",
        f"{seconds:.0f}, {device}",
    ]


def evidence_tables(results: Path) -> str:
    """Tables for each device that the evidence benchmark was run on, processors first."""
    paths = sorted((results / "bench").glob("evidence-*.json"))
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    reports.sort(key=lambda report: "cuda" in report["device"])
    return "\n\n".join(_evidence(report) for report in reports)


def _evidence(report: dict[str, Any]) -> str:
    on_gpu = "cuda" in report["device"]
    device = report["device_name"] if on_gpu else f"{report['threads']} CPU cores"
    columns = {
        "factors": "factors",
        "full": "full step",
        "recipe": "with the paper's batches",
        "recipe, kfac-mc": "the same by the Monte-Carlo Fisher, 5 N",
        "recipe, kfac-ef": "by the empirical Fisher, 5 N",
    }
    rows = report["evidence_over_epoch"]
    shown = [key for key in columns if any(key in row for row in rows.values())]
    lines = [
        f"The time of an evidence step in plain training epochs (N = {report['examples']}, "
        f"S = {report['samples']}, {device}; published code: 12.6 for the "
        "MLP's full step), and of pass one without augmentation beside public libraries:",
        "",
        f"| network | {' | '.join(columns[key] for key in shown)} |",
        "|---" * (len(shown) + 1) + "|",
    ]
    for name, row in rows.items():
        cells = " | ".join(f"{row[key]:.1f}" if key in row else "" for key in shown)
        lines.append(f"| {name} | {cells} |")
    lines += ["", "| library | time, ours = 1 | log evidence |", "|---|---|---|"]
    for name, row in report["peers"].items():
        if isinstance(row, str):
            lines.append(f"| {name} | {row} | |")
        else:
            value = row["log_evidence"]
            lines.append(
                f"| {name} | {row['over_isotropy']:.2f} | "
                f"{'(factors only)' if value is None else f'{value:.2f}'} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
