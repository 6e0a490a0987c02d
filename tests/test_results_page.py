"""Tables of the equivariant experiments follow their records, and say where these fall short."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results.md"
GPU = {"device": "cuda", "device_name": "NVIDIA H200", "threads": 16, "seconds": 2.0}


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("equivariant_tables")


def write_rows(results: Path, series: str, records: list[dict[str, Any]]) -> Path:
    folder = results / series
    folder.mkdir(parents=True)
    lines = [json.dumps({"row": str(n), "seed": 0, **GPU, **r}) for n, r in enumerate(records)]
    (folder / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return results


def cells(table: str, *begin: str) -> list[str]:
    """The other cells of the one row that begins with these."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    (found,) = (row[len(begin) :] for row in rows if row[: len(begin)] == list(begin))
    return found


def efficiency(network: str, examples: int, seed: int, error: float | None) -> dict[str, Any]:
    return {"problem": "inertia", "network": network, "examples": examples, "seed": seed,
            "parameters": 1234, "test_error": error}  # fmt: skip


def test_nothing_run_is_said(tables: ModuleType, tmp_path: Path) -> None:
    assert {make(tmp_path) for make in tables.TABLES.values()} == {"Not run yet."}
    assert tables.in_short(tmp_path) == []


def test_errors_are_geometric_means_and_ratios_are_to_the_own_group(
    tables: ModuleType, tmp_path: Path
) -> None:
    records = [
        efficiency("EMLP-SO(3)", 100, 0, 1e-4),  # better, and not the problem's own group
        efficiency("EMLP-O(3)", 100, 0, 0.01),
        efficiency("EMLP-O(3)", 100, 1, 0.0001),
        efficiency("MLP", 100, 0, 0.27),
        efficiency("MLP", 1000, 0, 0.02),
        efficiency("EMLP-O(3)", 1000, 0, 0.001),
        efficiency("EMLP-O(3)", 30, 0, None),  # training failed
        efficiency("MLP-Aug", 100, 0, 0.004),
    ]
    table = tables.data_efficiency_table(write_rows(tmp_path, "data-efficiency", records))
    title = "Moment of inertia, O(3)"
    assert cells(table, title, "EMLP-O(3)") == ["1,234", "", "0.001", "0.001"]
    assert cells(table, title, "MLP") == ["1,234", "", "0.27", "0.02"]
    assert cells(table, "", "*MLP over EMLP-O(3)*") == ["", "", "*270*", "*20*"]
    assert cells(table, "", "*MLP-Aug over EMLP-O(3)*") == ["", "", "*4*", ""]
    assert "by a factor of 4 or more" in table and "larger by 20 (Moment" in table
    assert "8 records, seeds 0, 1, NVIDIA H200, 16 s in all" in table
    (said,) = tables.in_short(tmp_path)
    assert said in table


def test_a_lead_that_is_none_is_not_claimed(tables: ModuleType, tmp_path: Path) -> None:
    records = [efficiency("EMLP-O(3)", 100, 0, 0.2), efficiency("MLP", 100, 0, 0.1)]
    table = tables.data_efficiency_table(write_rows(tmp_path, "data-efficiency", records))
    assert "not everywhere (least: 0.5, Moment" in table and "or more" not in table


def pendulum(kind: str, network: str, error: float, momentum: float) -> dict[str, Any]:
    return {"kind": kind, "network": network, "parameters": 10, "rollout_error": error,
            "momentum_error": momentum}  # fmt: skip


def test_pendulum_has_published_numbers_and_says_what_fails(
    tables: ModuleType, tmp_path: Path
) -> None:
    records = [
        pendulum(kind, network, error * (1 if kind == "HNN" else 2), momentum)
        for kind in ("HNN", "ODE")
        for network, error, momentum in (
            ("MLP", 0.3, 0.1), ("O(2)", 0.1, 1e-6), ("D2", 0.2, 0.1), ("D6", 0.2, 0.05),
        )
    ]  # fmt: skip
    table = tables.dynamics_table(write_rows(tmp_path, "dynamics", records))
    assert cells(table, "HNN", "O(2)") == ["10", "0.1", "0.1 to 0.1", "0.012", "1e-06"]
    assert cells(table, "ODE", "D2") == ["10", "0.4", "0.4 to 0.4", "", "0.1"]
    assert "- Holds: O(2) is best among neural ODEs." in table
    assert "- Does not hold: D6 conserves angular momentum ten times better than D2." in table
    networks = [line.split("|")[2].strip() for line in table.splitlines() if "| HNN" in line]
    assert networks == ["O(2)", "D6", "D2", "MLP"]  # those of the table, in its order


def test_convergence_tells_what_still_falls(tables: ModuleType, tmp_path: Path) -> None:
    falling = [10.0 ** (-n / 10) for n in range(101)]
    flat = [max(10.0**-n, 1e-16) for n in range(101)]
    records = [
        {"row": "quick", "size": 81, "norms": flat, "seed": 0},
        {"row": "slow", "size": 2304, "norms": falling, "seed": 0},
    ]
    table = tables.convergence_table(write_rows(tmp_path, "convergence", records))
    assert cells(table, "slow") == ["2,304", "0.100", "1e-10", "not after 100 iterations"]
    assert cells(table, "quick") == ["81", "1.000", "1e-16", "from iteration 16"]
    assert table.index("slow") < table.index("quick")


def test_gains_of_trials_and_of_refits(tables: ModuleType, tmp_path: Path) -> None:
    page = importlib.import_module("results_page")
    found = [
        {"verdict": "present", "gain": 0.937, "error": 0.004},
        {"verdict": "present", "gain": 0.566, "gain_nats": 283.1, "gain_interval": [257.7, 308.5]},
        {"verdict": "cannot tell", "gain": None},
    ]
    rotation = {"name": "rotation", "kind": "range", "high": 178.2, "unit": "degrees"}
    folder = tmp_path / "invariances"
    folder.mkdir()
    for seed, verdict in enumerate(found):
        judged = [{"name": "rotation", **verdict}, {"name": "scale_x", "verdict": "absent"}]
        result = {"seed": seed, "seconds": 100, "verdicts": judged, "symmetries": [rotation]}
        record = {"row": "verdicts-rotated", "result": result}
        (folder / f"{seed}.json").write_text(json.dumps(record), encoding="utf-8")
    table = page.verdicts(tmp_path)
    shown = [cells(table, "verdicts-rotated", str(seed))[0] for seed in range(3)]
    assert shown == [
        "rotation ±178°: **present** (0.937 ± 0.004)",
        "rotation ±178°: **present** (283, 258 to 308)",
        "rotation ±178°: **cannot tell**",
    ]


def words(svg: str) -> list[str]:
    return sorted(text for each in ElementTree.fromstring(svg).itertext() if (text := each.strip()))


def test_figures_are_shown_and_those_of_the_script(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tables: ModuleType
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    script = importlib.import_module("equivariant_figures")
    monkeypatch.setattr("sys.argv", ["equivariant_figures.py", "--out", str(tmp_path)])
    script.main()
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn == sorted(f"{name}.svg" for name in tables.TABLES)
    for name in drawn:
        assert re.search(rf"!\[[^\]]+\]\(figures/{name}\)", text)
        # Another matplotlib may write other coordinates; words and ticks stay the same.
        kept = (ROOT / "docs" / "figures" / name).read_text(encoding="utf-8")
        assert words((tmp_path / name).read_text(encoding="utf-8")) == words(kept)
