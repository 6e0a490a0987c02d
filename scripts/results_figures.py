"""Draw the figures of docs/results.md from the raw JSON in results/.

    python scripts/results_figures.py

For each data set of `measured-networks`: test accuracy against the error under translation and
rotation, and the networks' cumulative contributions over depth (Figures 4.4 and 4.5 of the Lie
derivative paper, in kind). Accuracies and errors are means over seeds, contributions those of the
first seed. Networks that were not trained would press all others into a corner. The drawings are
those of the report, with colours of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from statistics import mean

from isotropy.experiments.runner import ROWS, read_rows
from isotropy.experiments.thesis.measured_networks import (
    TEST,
    TRAINED,
    Record,
    error_of,
    grouped,
)
from isotropy.report.pages.measure_parts import Point, points_figure, staircases_figure

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures"
DATA = ("cifar10", "fashion-mnist")
TRANSFORMATIONS = ("translation_x", "rotation")
COLOURS = {
    "--ink": "#1b1f24", "--muted": "#57606a", "--line": "#d8dde3", "--accent": "#1455a3",
    "--truth": "#b4471f", "--band": "#eef0ea",
}  # fmt: skip


def main() -> None:
    FIGURES.mkdir(parents=True, exist_ok=True)
    found = grouped(read_rows(ROOT / "results" / "measured-networks" / ROWS))
    for data in DATA:
        networks = {name: seeds for (of, name), seeds in sorted(found.items()) if of == data}
        for name in TRANSFORMATIONS:
            points = [
                Point(network, mean(error_of(each, TEST, name) for each in seeds), score, True)
                for network, seeds in networks.items()
                if (score := accuracy(seeds)) > TRAINED
            ]
            steps = [
                (network, list(accumulate(x["norm"] for x in seeds[0]["layers"][name])))
                for network, seeds in networks.items()
            ]
            label = f"{data}, {name}"
            key = f"{data}-{name}"
            write(f"measured-{data}-accuracy-{name}", points_figure(points, key=key, label=label))
            write(f"measured-{data}-layers-{name}", staircases_figure(steps, key=key, label=label))


def accuracy(seeds: Sequence[Record]) -> float:
    return mean(each["data_sets"][TEST]["accuracy"] for each in seeds)


def write(name: str, drawing: str) -> None:
    (FIGURES / f"{name}.svg").write_text(standalone(str(drawing)), encoding="utf-8")


def standalone(drawing: str) -> str:
    """A drawing of the page as a file of its own: it needs its colours and a ground."""
    for variable, colour in COLOURS.items():
        drawing = drawing.replace(f"var({variable})", colour)
    drawing = drawing.replace("font-family: inherit", "font-family: sans-serif")
    start = drawing.index(">", drawing.index("<svg")) + 1
    if "xmlns=" not in drawing[:start]:
        drawing = drawing.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
        start = drawing.index(">", drawing.index("<svg")) + 1
    ground = '<rect width="100%" height="100%" fill="#fdfdfb"/>'
    return drawing[:start] + ground + drawing[start:] + "\n"


if __name__ == "__main__":
    main()
