"""What all drawings share: sentinel colours, quiet axes, and SVG that fits into a page.

matplotlib draws with sentinel colours; in the SVG text each is then replaced by a CSS variable
(`var(--accent)`), so that light and dark both work. One unit of a drawing is one CSS pixel at its
natural width, text stays text in the page's own font, and titles and units are left to the page,
where they can wrap.

Only the object interface of matplotlib is used (no pyplot, no global figure), and it is
imported inside the functions, so that importing this file is cheap.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Sentinel colours, unlikely anywhere else, and the CSS variable each stands for.
INK, MUTED, LINE = "#01a1e1", "#02a2e2", "#03a3e3"
ACCENT, TRUTH, BAND = "#04a4e4", "#05a5e5", "#06a6e6"
COLOUR_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    LINE: "var(--line)",
    ACCENT: "var(--accent)",
    TRUTH: "var(--truth)",
    BAND: "var(--band)",
}

UNITS_PER_INCH = 72.0  # of matplotlib's SVG
TEXT_SIZE = 11.0


@contextmanager
def style(key: str) -> Iterator[None]:
    """Settings that only rcParams can carry, for the time of one drawing."""
    import matplotlib

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": key,
        "font.family": "DejaVu Sans",  # comes with matplotlib: the same layout everywhere
        "font.size": TEXT_SIZE,
        "text.parse_math": False,
        "path.simplify_threshold": 0.2,
    }
    with matplotlib.rc_context(settings):
        yield


def quiet_axes(
    *, width: float, height: float, left: float, right: float = 10
) -> tuple[Figure, Axes]:
    """A figure in CSS pixels with quiet axes; margins are fixed so that panels align."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / UNITS_PER_INCH, height / UNITS_PER_INCH))
    figure.patch.set_visible(False)
    bottom, top = 28, 10
    axes = figure.add_axes(
        (left / width, bottom / height, (width - left - right) / width,
         (height - bottom - top) / height)
    )  # fmt: skip
    axes.patch.set_visible(False)
    for side in ("left", "top", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set(color=MUTED, linewidth=0.8)
    axes.tick_params(colors=MUTED, length=0, labelsize=TEXT_SIZE, pad=7)
    axes.tick_params("x", pad=9)
    axes.grid(axis="y", color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def bare_axes(side: float) -> tuple[Figure, Axes]:
    """A square figure in CSS pixels without any axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(side / UNITS_PER_INCH, side / UNITS_PER_INCH))
    figure.patch.set_visible(False)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    return figure, axes


def set_value_axis(
    axes: Axes, symbol: str, *, horizontal: bool = False, most_ticks: int = 4
) -> None:
    """Few ticks on the upright (or horizontal) axis, all with the same number of decimals."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    if symbol == "°":
        steps: list[float] = [1, 1.5, 3, 4.5, 6, 9, 10]  # 45°, 60°, 90° rather than 50° and 100°
    else:
        steps = [1, 2, 2.5, 5, 10]
    axis = axes.xaxis if horizontal else axes.yaxis
    axis.set_major_locator(MaxNLocator(nbins=most_ticks, steps=steps))
    ticks = [float(tick) for tick in axis.get_majorticklocs()]
    exact = (d for d in range(7) if all(abs(round(tick, d) - tick) < 1e-9 for tick in ticks))
    decimals = next(exact, 7)
    axis.set_major_formatter(
        FuncFormatter(
            lambda value, _: f"{value:,.{decimals}f}{symbol}".replace("-", "\N{MINUS SIGN}")
        )
    )


def svg_of(figure: Figure, *, key: str, label: str) -> str:
    """The figure as an `<svg>` element that is safe to put into a page beside others."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    return inline_svg(buffer.getvalue(), key=key, label=label)


def inline_svg(text: str, *, key: str, label: str) -> str:
    """Make a matplotlib SVG file fit to stand inside an HTML page.

    Leaves out the XML head, metadata, comments and style sheet (its `*` rule would reach the
    whole page); lets the page set size, font and colours; keeps only ids that something refers
    to, and starts them with `key`; and gives the drawing a role and a label.
    """
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.S)
    text = re.sub(r"<defs>\s*</defs>", "", text)
    view = re.search(r'viewBox="[^"]*"', text)
    assert view is not None, "matplotlib always writes a viewBox"
    opening = f'<svg {view.group()} role="img" aria-label="{escape(label)}">'
    text = opening + text[text.index(">") + 1 :]
    text = text.replace("xlink:href", "href")
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', text))
    text = re.sub(
        r' id="([^"]+)"',
        lambda found: f' id="{key}-{found.group(1)}"' if found.group(1) in used else "",
        text,
    )
    text = re.sub(r'(url\(|href=")#', rf"\g<1>#{key}-", text)
    text = text.replace("'DejaVu Sans'", "inherit")
    for sentinel, variable in COLOUR_VARIABLES.items():
        text = text.replace(sentinel, variable)
    # Smaller, and nothing is lost: a hundredth of a pixel, turns by zero, empty groups.
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path.group()), text)
    text = re.sub(r' transform="rotate\(-?0 [^"]*"|<g/>', "", text)
    return re.sub(r"\n\s*", "\n", text).strip()
