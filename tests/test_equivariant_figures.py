"""Figures of the equivariant experiments, drawn from records by their script."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("equivariant_figures")


def texts(svg: str) -> list[str]:
    """Words in a drawing, which must be well-formed."""
    return [text for each in ElementTree.fromstring(svg).itertext() if (text := each.strip())]


def efficiency_records() -> list[dict[str, Any]]:
    return [
        {
            "problem": problem,
            "network": network,
            "examples": size,
            "seed": seed,
            "test_error": error,
        }
        for problem in ("one", "two")
        for network, error in (("EMLP-O(3)", 0.1), ("MLP", 1.0))
        for size in (30, 100)
        for seed in (0, 1)
    ]


def test_every_network_of_every_problem_is_drawn_once(figures: ModuleType) -> None:
    found = texts(
        figures.data_efficiency_figure(efficiency_records(), {"one": "First", "two": "Second"})
    )
    labels = found.count("EMLP-O(3)"), found.count("MLP"), found.count("mean squared test error")
    assert labels == (2, 2, 2)
    assert "First" in found and "Second" in found
    # Sizes that a seed lacks, and failures, are left out; a problem without records is empty.
    partial = [*efficiency_records()[:-1], {**efficiency_records()[0], "test_error": None}]
    assert (
        texts(figures.data_efficiency_figure(partial, {"two": "Second", "three": "Third"})).count(
            "MLP"
        )
        == 1
    )


def test_ticks_are_powers_of_ten_and_the_sizes_in_plain_text(figures: ModuleType) -> None:
    found = texts(figures.data_efficiency_figure(efficiency_records(), {"one": "First"}))
    assert {"30", "100", "10⁻¹", "10⁰"} <= set(found)
    many = [{**each, "examples": 100 * each["examples"]} for each in efficiency_records()]
    assert {"3k", "10k"} <= set(texts(figures.data_efficiency_figure(many, {"one": "First"})))
    assert not any("$" in text for text in found)


def line_widths(svg: str, colour: str) -> list[float]:
    """Widths of the lines of this colour, in the drawing and its legend."""
    found = re.findall(rf"stroke: {colour}; stroke-width: ([\d.]+)", svg)
    return [float(each) for each in found]


def test_a_line_that_another_covers_shows_on_both_sides(figures: ModuleType) -> None:
    def widths(second: float) -> tuple[float, float]:
        curves = [
            figures.Curve("a", [1, 2, 3], [[1, 2, 3]]),
            figures.Curve("b", [1, 2, 3], [[1, second, 3]]),
        ]
        svg = figures.curve_figure([figures.CurvePanel("t", "x", "y", curves)], key="k")
        first, later = (max(line_widths(svg, colour)) for colour in figures.COLOURS[:2])
        return first, later

    assert widths(2.01)[0] > 2 * widths(2.01)[1]
    assert widths(2.5)[0] == widths(2.5)[1] == widths(2.01)[1]


def test_dynamics_has_two_panels_a_kind_and_one_legend(figures: ModuleType) -> None:
    records = [
        {"kind": kind, "network": network, "seed": 0, "error_by_time": [1e-7, 0.1, 0.2],
         "momentum_by_time": [1e-7, 1e-6, 1e-6]}
        for kind in ("HNN", "ODE") for network in ("O(2)", "MLP")
    ]  # fmt: skip
    found = texts(figures.dynamics_figure(records, 0.2))
    assert found.count("O(2)") == found.count("MLP") == 1
    titles = {f"{k}: {q}" for k in ("Hamiltonian network", "neural ODE")
              for q in ("angular momentum", "state")}  # fmt: skip
    assert titles <= set(found)


def test_convergence_reaches_zero_and_lists_the_slowest_first(figures: ModuleType) -> None:
    rows = [{"row": "SO(3) T(4)", "norms": [1.0, 0.1, 0.0]}]
    rows += [{"row": f"case {n}", "norms": [1.0, 0.1, 0.01 * n]} for n in range(1, 13)]
    svg = figures.convergence_figure(rows)
    named = [text for text in texts(svg) if text.startswith(("case", "SO"))]
    assert named == [f"case {n}" for n in range(12, 0, -1)] + ["SO(3) T(4)"]
    # No two lines look alike: where colours begin again lines are dashed.
    assert "stroke-dasharray" in svg and len(rows) <= 2 * len(figures.COLOURS)


def test_drawings_are_reproducible_and_follow_the_numbers(figures: ModuleType) -> None:
    def drawn(height: float) -> str:
        curve = figures.Curve("a", [1, 2, 3], [[1, height, 3], [1, height, 4]])
        return figures.curve_figure([figures.CurvePanel("t", "x", "y", [curve])], key="k")

    assert drawn(2.0) == drawn(2.0) != drawn(2.5)
