"""Fill the results table of README.md from the raw JSON in results/.

    python scripts/results_table.py            rewrite the table
    python scripts/results_table.py --check    exit 1 if the table is not what results/ gives

A row is the mean over its seeds of what the runs recorded; nothing is typed by hand.
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


def tables(results: Path) -> str:
    """One Markdown table of the learning runs, and one of the evidence benchmark."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted((results / "learning-digits").glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        rows[record["row"]].append(record)
    lines = [
        "| row | seeds | learned ranges (half-width) | others below | test accuracy | published "
        "| epochs, S | seconds, device |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(name, records) for name, records in rows.items()),
    ]
    table = "\n".join(lines if rows else ["No results are recorded yet."])
    return table + _benchmark(results) + _elsewhere(results)


def _elsewhere(results: Path) -> str:
    """A sentence for each of the other experiments that are in docs/results.md."""
    said = [f"- {each}" for each in [*in_short(results), *layers_in_short(results)]]
    return "\n".join(["", "", "In [docs/results.md](docs/results.md):", "", *said]) if said else ""


def _row(name: str, records: list[dict[str, Any]]) -> str:
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
    return (
        f"| {name} | {len(records)} | {'; '.join(shown) or 'none'} | {max(other):.3f} | "
        f"{accuracy:.1f} % | {'' if published is None else f'{published} %'} | "
        f"{first['epochs']}, {first['samples']} | {seconds:.0f}, {device} |"
    )


def _benchmark(results: Path) -> str:
    """A table for each device that the evidence benchmark was run on, processors first."""
    paths = sorted((results / "bench").glob("evidence-*.json"))
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    reports.sort(key=lambda report: "cuda" in report["device"])
    return "".join(_evidence(report) for report in reports)


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
        "",
        "",
        f"An evidence step in plain training epochs (N = {report['examples']}, "
        f"S = {report['samples']}, {device}; published code: 12.6 for the "
        "MLP's full step), and pass one without augmentation beside the public libraries:",
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
