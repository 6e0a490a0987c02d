"""Draw the figure at the top of README.md: what was learned from digits that were moved.

    python scripts/learned_figure.py [--out docs/figures]

A row for each data set: some training images, and one test digit under the ranges that seed 0
learned from them (`results/learning-digits`), in equal steps from one end to the other.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from torch import Tensor

from isotropy.data.readers import digits
from isotropy.data.variants import vary
from isotropy.symmetry.actions.images import affine

ROOT = Path(__file__).resolve().parent.parent
ROWS = {
    "rotated": "rotated by any angle",
    "partially-rotated": "rotated by up to ±90°",
    "translated": "shifted in x and y by up to 0.29 of the width",
}
"""Variants of the digits, and what was done to them."""
SHOWN, COPIES, DIGIT = (0, 1, 3, 4), 7, 4
"""Which training images are in a row, how many copies, and of which test digit."""
INK, MUTED, GROUND = "#1b1f24", "#57606a", "#fdfdfb"
WORDS = {"rotation": "rotation", "translation_x": "shift x", "translation_y": "y"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures")
    options = parser.parse_args()
    style = {"svg.fonttype": "none", "svg.hashsalt": "learned", "font.family": "sans-serif"}
    with matplotlib.rc_context(style):
        path = options.out / "learned-ranges.svg"
        FigureCanvasSVG(drawn()).print_svg(path, metadata={"Date": None})


def drawn() -> Figure:
    """All rows: training images at the left, copies under the learned ranges at the right."""
    figure = Figure(figsize=(9, 4.2), facecolor=GROUND)
    columns = [1.0] * len(SHOWN) + [0.7] + [1.0] * COPIES
    grid = figure.add_gridspec(
        len(ROWS), len(columns), width_ratios=columns,
        left=0.02, right=0.98, top=0.86, bottom=0.02, hspace=0.42, wspace=0.06,
    )  # fmt: skip
    digit = digits().test.inputs[DIGIT : DIGIT + 1]
    for row, (variant, done) in enumerate(ROWS.items()):
        learned = learned_ranges(variant)
        images = vary(digits(), variant).train.inputs[list(SHOWN)]
        moved = copies(digit, learned)
        for column, image in enumerate([*images, None, *moved]):
            if image is None:
                continue
            axes = figure.add_subplot(grid[row, column])
            axes.imshow(image[0].numpy(), cmap="gray_r", interpolation="none")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_color("#d8dde3")
            if column == 0:
                axes.set_title(f"digits {done}", loc="left", fontsize=9, color=MUTED)
            if column == len(SHOWN) + 1:
                said = ", ".join(_words(name, high) for name, (high, _) in learned.items())
                axes.set_title(f"learned: {said}", loc="left", fontsize=9, color=INK)
    for place, title in ((0.02, "training images"), (0.408, "one digit under the learned range")):
        figure.text(place, 0.945, title, fontsize=11, color=INK, weight="bold")
    return figure


def learned_ranges(variant: str) -> dict[str, tuple[float, float]]:
    """Half-width in the reported unit and in coordinates, of every range that is not zero."""
    path = ROOT / "results" / "learning-digits" / f"embedded-{variant}-seed0.json"
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    units = {each.name: each.coordinate_per_unit for each in affine().generators}
    return {
        each["name"]: (each["high"], each["high"] * units[each["name"]])
        for each in record["result"]["symmetries"]
        if each["high"] > 0
    }


def copies(digit: Tensor, learned: dict[str, tuple[float, float]]) -> Tensor:
    """(copies, 1, height, width): `digit` moved by equal steps through all ranges together."""
    action = affine(tuple(learned))
    widths = torch.tensor([coordinate for _, coordinate in learned.values()])
    steps = torch.linspace(-1, 1, COPIES)[None, :, None] * widths
    return action.act(steps, digit)[0]


def _words(name: str, high: float) -> str:
    amount = f"±{high:.0f}°" if name == "rotation" else f"±{high:.2f}"
    return f"{WORDS[name]} {amount}"


if __name__ == "__main__":
    main()
