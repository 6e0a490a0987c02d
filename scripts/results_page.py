"""Fill docs/results.md, and docs/relax.md where it tells what was measured, from results/.

    python scripts/results_page.py            rewrite the tables
    python scripts/results_page.py --check    exit 1 if they are not what results/ gives

Every number is one that a run recorded; nothing is typed by hand.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from calibration_tables import TABLES as CALIBRATION_TABLES
from certificate_tables import TABLES as CERTIFICATE_TABLES
from equivariant_tables import TABLES as EQUIVARIANT_TABLES
from equivariant_tables import device_text
from invariant_weights import TABLES as INVARIANT_WEIGHTS_TABLES
from layer_figures import figure_link
from layer_tables import TABLES as LAYER_TABLES
from lila_tables import TABLES as LILA_TABLES
from measuring_tables import TABLES as MEASURING_TABLES
from representation_tables import TABLES as REPRESENTATION_TABLES
from results_table import evidence_tables, learning_table, records
from robot_tables import TABLES as ROBOT_TABLES
from soft_tables import TABLES as SOFT_TABLES
from story_figure import TABLES as STORY_TABLES

from isotropy.evidence.search.amounts import peak_of

ROOT = Path(__file__).resolve().parent.parent
Record = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale = []
    for page, tables in PAGES.items():
        path = ROOT / "docs" / page
        text = path.read_text(encoding="utf-8")
        filled = fill(text, {name: make(ROOT / "results") for name, make in tables.items()})
        if filled != text:
            stale.append(f"docs/{page} is out of date")
        if not options.check:
            path.write_text(filled, encoding="utf-8")
    if options.check:
        sys.exit("; ".join(stale) or 0)


def fill(text: str, tables: Mapping[str, str]) -> str:
    """`text` with everything between the two comments of each table replaced by it."""
    for name, table in tables.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}"
    return text


def distributions(results: Path) -> str:
    lines = [
        "| row | learned | correlation of scale_x and scale_y | log evidence per example "
        "| test accuracy | seconds, device |",
        "|---|---|---|---|---|---|",
    ]
    for name, rows in records(results, "invariances").items():
        result = rows[0]["result"]
        if result["command"] != "learn" or name.startswith(("verdicts", "built")):
            continue
        lines.append(
            f"| {name} | {_amounts(result)} | {_correlation(result)} | "
            f"{result['log_evidence_per_example']:.3f} | {100 * result['test_accuracy']:.1f} % | "
            f"{result['seconds']:.0f}, {device_text(result)} |"
        )
    return _or_none(lines)


def verdicts(results: Path) -> str:
    lines = [
        "| row | seed | verdicts (gain, nats per example ± standard error, or nats in total with "
        "its 95 % interval) | absent | seconds |",
        "|---|---|---|---|---|",
    ]
    chosen = {
        **records(results, "invariances", start="verdicts"),
        **records(results, "invariances", start="built"),
    }
    for name, rows in chosen.items():
        for record in rows:
            result = record["result"]
            said, absent = [], []
            for verdict in result["verdicts"]:
                if verdict["verdict"] == "absent":
                    absent.append(verdict["name"])
                    continue
                amount = next(s for s in result["symmetries"] if s["name"] == verdict["name"])
                said.append(
                    f"{verdict['name']} {_amount(amount)}: **{verdict['verdict']}**{_gain(verdict)}"
                )
            lines.append(
                f"| {name} | {result['seed']} | {'; '.join(said) or 'none'} | "
                f"{', '.join(absent) or 'none'} | {result['seconds']:.0f} |"
            )
    return _or_none(lines)


def _gain(verdict: Record) -> str:
    """In total nats with its interval; by records of refits per example with its error."""
    if verdict["gain"] is None:
        return ""
    if "gain_nats" not in verdict:
        return f" ({verdict['gain']:.3f} ± {verdict['error']:.3f})"
    low, high = verdict["gain_interval"]
    return f" ({verdict['gain_nats']:.0f}, {low:.0f} to {high:.0f})"


def photographs(results: Path) -> str:
    """Rotation and its verdict on each set, beside the run without any symmetry."""
    lines = [
        "| set | rotation (95 % interval) | verdict | others claimed | test accuracy "
        "| without any symmetry | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    found = records(results, "photographs")
    for name in (name for name in found if name.endswith("-learned")):
        result = found[name][0]["result"]
        symmetries = {each["name"]: each for each in result["symmetries"]}
        verdicts = {each["name"]: each["verdict"] for each in result["verdicts"]}
        low, high = symmetries["rotation"]["interval"]
        claimed = [
            f"{other} {_amount(symmetries[other])}"
            for other, verdict in verdicts.items()
            if other != "rotation" and verdict in ("present", "partial")
        ]
        plain = found.get(name.replace("-learned", "-none"))
        without = f"{100 * plain[0]['result']['test_accuracy']:.1f} %" if plain else ""
        lines.append(
            f"| {name.removesuffix('-learned')} | {_amount(symmetries['rotation'])} "
            f"(±{low:.0f}° to ±{high:.0f}°) | {verdicts['rotation']} | "
            f"{', '.join(claimed) or 'none'} | {100 * result['test_accuracy']:.1f} % | {without} | "
            f"{result['seconds']:.0f} |"
        )
    return _or_none(lines)


def screens(results: Path) -> str:
    lines = ["| row | wanted, in order (gain) | next (gain) | seconds |", "|---|---|---|---|"]
    for name, rows in records(results, "invariances", start="screen").items():
        result = rows[0]["result"]
        found = result["screening"]["rows"]
        wanted = [f"{r['direction']} ({r['gain']:.4f})" for r in found if r["wanted"]]
        left = [f"{r['direction']} ({r['gain']:.4f})" for r in found if not r["wanted"]]
        lines.append(
            f"| {name} | {'; '.join(wanted) or 'nothing'} | {left[0] if left else ''} | "
            f"{result['seconds']:.0f} |"
        )
    return _or_none(lines)


def profiles(results: Path) -> str:
    lines = [
        "| row | ranges tried | evidence largest at | 95 % interval | imposed | off by "
        "| held-out likelihood "
        "largest at | rank correlation | seconds, device |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, rows in records(results, "profiles").items():
        result = rows[0]["result"]
        for found in result["profiles"]:
            if found["error"]:
                lines.append(f"| {name} | {found['error']} | | | | | | | |")
                continue
            truth, maximum = result["truth"], found["maximum"]
            evidences, examples = found["log_evidence"], result["train_examples"]
            low, high = peak_of(found["amounts"], evidences, examples=examples).interval
            tried = ", ".join(f"{amount:g}" for amount in found["amounts"])
            imposed = (
                "none |"
                if truth is None
                else (f"±{truth:.0f}° | {100 * abs(maximum - truth) / truth:.0f} %")
            )
            lines.append(
                f"| {name} | {tried} | ±{maximum:.0f}° | {low:.0f}° to {high:.0f}° "
                f"| {imposed} | "
                f"±{found['held_out_maximum']:.0f}° | {found['rank_correlation']:.2f} | "
                f"{result['seconds']:.0f}, {device_text(result)} |"
            )
    return _or_none(lines)


def comparisons(results: Path) -> str:
    lines = [
        "| experiment | row | seeds | learned or given | test accuracy | seconds, device |",
        "|---|---|---|---|---|---|",
    ]
    for experiment in ("baselines", "ablations"):
        for name, rows in records(results, experiment).items():
            outcome = [record["result"] for record in rows]
            first = outcome[0]
            accuracy = 100 * mean(result["test_accuracy"] for result in outcome)
            lines.append(
                f"| {experiment} | {name} | {len(outcome)} | {_amounts(first)} | {accuracy:.1f} % "
                f"| {mean(result['seconds'] for result in outcome):.0f}, {device_text(first)} |"
            )
    return _or_none(lines)


def _amounts(result: Record) -> str:
    shown = [f"{s['name']} {_amount(s)}" for s in result["symmetries"] if s["high"] > 0.005]
    return ", ".join(shown) or "nothing"


def _amount(symmetry: Record) -> str:
    if symmetry["kind"] == "probability":
        return f"p = {symmetry['high']:.2f}"
    if symmetry["unit"] == "degrees":
        return f"±{symmetry['high']:.0f}°"
    return f"±{symmetry['high']:.2f}"


def _correlation(result: Record) -> str:
    found = result["correlations"]
    if not found:
        return ""
    names = found["names"]
    return f"{found['matrix'][names.index('scale_x')][names.index('scale_y')]:.3f}"


def _or_none(lines: list[str]) -> str:
    return "\n".join(lines) if len(lines) > 2 else "Not run yet."


TABLES = {
    "learning": learning_table,
    "evidence": evidence_tables,
    "distributions": distributions,
    "verdicts": verdicts,
    "photographs": photographs,
    "screens": screens,
    "profiles": profiles,
    "comparisons": comparisons,
    **EQUIVARIANT_TABLES,
    **SOFT_TABLES,
    **CERTIFICATE_TABLES,
    **LILA_TABLES,
    **ROBOT_TABLES,
    **CALIBRATION_TABLES,
    **INVARIANT_WEIGHTS_TABLES,
    **REPRESENTATION_TABLES,
    **MEASURING_TABLES,
}
PAGES: dict[str, Mapping[str, Callable[[Path], str]]] = {
    "results.md": TABLES,
    "relax.md": {**LAYER_TABLES, "layers-figure": figure_link},
    "story.md": STORY_TABLES,
}


if __name__ == "__main__":
    main()
