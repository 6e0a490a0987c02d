"""Draw the figures of docs/bases.md: four equivariant layers, as bases found by the solver.

python scripts/basis_figures.py
"""

from __future__ import annotations

from pathlib import Path

from isotropy.workflows.basis import equivariant_basis

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "figures"
LAYERS = {
    "deep-sets": ("S(8)", "V >> V"),
    "convolution": ("Z(8)", "V >> V"),
    "convolution-2d": ("Z(4) x Z(4)", "V >> V"),
    "group-convolution": ("Grid(4,3)", "V >> V"),
    "cross-product": ("SO(3)", "V >> V*V"),
    "graphs": ("S(4)", "T(2) >> T(2)"),
}
"""Group and maps by the name of the figure (Finzi 2023, Figures 2.2 and 2.3, in kind)."""


def main() -> None:
    FIGURES.mkdir(parents=True, exist_ok=True)
    for name, (group, maps) in LAYERS.items():
        equivariant_basis(group, maps).picture(FIGURES / f"basis-{name}.svg")


if __name__ == "__main__":
    main()
