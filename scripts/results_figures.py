"""Draw the figures of docs/results.md from the raw JSON in results/.

    python scripts/results_figures.py

For each data set of `measured-networks`: test accuracy against the error under translation and
rotation, and the networks' cumulative contributions over depth (Figures 4.4 and 4.5 of the Lie
derivative paper, in kind). The drawings are those of the report, with colours of their own.
"""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

from isotropy.report.pages.measure_parts import Point, points_figure, staircases_figure

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures"
DATA = ("cifar10", "fashion-mnist")
TRANSFORMATIONS = ("translation_x", "rotation")
LEAST_ACCURACY = 0.2
"""Networks that were not trained would press all others into a corner."""
COLOURS = {
    "--ink": "#1b1f24", "--muted": "#57606a", "--line": "#d8dde3", "--accent": "#1455a3",
    "--truth": "#b4471f", "--band": "#eef0ea",
}  # fmt: skip


def main() -> None:
    FIGURES.mkdir(parents=True, exist_ok=True)
    for data in DATA:
        networks = measured(data)
        for name in TRANSFORMATIONS:
            points = [
                Point(network, action(entry, name)["error"], entry["accuracy"], True)
                for network, entry in networks.items()
                if entry["accuracy"] > LEAST_ACCURACY
            ]
            steps = [
                (network, list(accumulate(x["norm"] for x in action(entry, name)["layers"])))
                for network, entry in networks.items()
            ]
            label = f"{data}, {name}"
            key = f"{data}-{name}"
            write(f"measured-{data}-accuracy-{name}", points_figure(points, key=key, label=label))
            write(f"measured-{data}-layers-{name}", staircases_figure(steps, key=key, label=label))


def measured(data: str) -> dict[str, dict[str, Any]]:
    """What was measured on test data, by network."""
    found = {}
    for path in sorted((ROOT / "results" / "measured-networks").glob(f"{data}-*-seed0.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        entries = record["result"]["entries"]
        network = record["row"].removeprefix(f"{data}-")
        found[network] = next(each for each in entries if each["data"] == "test")
    return found


def action(entry: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in entry["actions"] if each["name"] == name)


def write(name: str, drawing: str) -> None:
    (FIGURES / f"{name}.svg").write_text(standalone(drawing), encoding="utf-8")


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
