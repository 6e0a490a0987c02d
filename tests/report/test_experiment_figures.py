"""Figures of the equivariant experiments, drawn from records."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from isotropy.report.experiment_figures import (
    Curve,
    CurvePanel,
    convergence_figure,
    curve_figure,
    data_efficiency_figure,
    dynamics_figure,
)


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


def test_every_network_of_every_problem_is_drawn_once() -> None:
    found = texts(data_efficiency_figure(efficiency_records(), {"one": "First", "two": "Second"}))
    assert found.count("EMLP-O(3)") == found.count("MLP") == found.count("test error") == 2
    assert "First" in found and "Second" in found
    # Sizes that a seed lacks, and failures, are left out; a problem without records is empty.
    partial = [*efficiency_records()[:-1], {**efficiency_records()[0], "test_error": None}]
    assert (
        texts(data_efficiency_figure(partial, {"two": "Second", "three": "Third"})).count("MLP")
        == 1
    )


def test_dynamics_has_two_panels_a_kind() -> None:
    records = [
        {"kind": kind, "network": network, "seed": 0, "error_by_time": [1e-7, 0.1, 0.2],
         "momentum_by_time": [1e-7, 1e-6, 1e-6]}
        for kind in ("HNN", "ODE") for network in ("O(2)", "MLP")
    ]  # fmt: skip
    found = texts(dynamics_figure(records, 0.2))
    assert found.count("O(2)") == found.count("MLP") == 4
    assert {"HNN: angular momentum", "ODE: state"} <= set(found)


def test_convergence_reaches_zero() -> None:
    found = texts(convergence_figure([{"row": "SO(3) T(4)", "norms": [1.0, 0.1, 0.0]}]))
    assert "SO(3) T(4)" in found


def test_drawings_are_reproducible_and_follow_the_numbers() -> None:
    def drawn(height: float) -> str:
        curve = Curve("a", [1, 2, 3], [[1, height, 3], [1, height, 4]])
        return curve_figure([CurvePanel("t", "x", "y", [curve])], key="k")

    assert drawn(2.0) == drawn(2.0) != drawn(2.5)
