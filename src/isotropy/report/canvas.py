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
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from isotropy.report.wording import power_text, shortened

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
LETTER_WIDTH = 0.56 * TEXT_SIZE  # of the page's font, on average


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


@dataclass(frozen=True)
class Drawing:
    """An inline SVG with the words that go above it; width: the most in CSS pixels, or 0."""

    title: str
    note: str
    svg: Markup
    width: int = 0


@dataclass
class Canvas:
    """Axes to draw on; `svg` is the drawing when its `with` has ended."""

    axes: Axes
    svg: Markup = field(default_factory=Markup)


@contextmanager
def canvas(
    width: float,
    height: float,
    *,
    key: str,
    label: str,
    left: float | None = None,
    right: float = 10,
) -> Iterator[Canvas]:
    """A drawing of a page, in CSS pixels; margins are fixed so that panels align.

    key:   unique within the page; ids inside the SVG start with it
    label: what a reader who cannot see it is told
    left, right: margins of quiet axes; without a left one there are no axes, and no margins
    """
    from matplotlib.figure import Figure

    with style(key):
        figure = Figure(figsize=(width / UNITS_PER_INCH, height / UNITS_PER_INCH))
        figure.patch.set_visible(False)
        if left is None:
            axes = figure.add_axes((0, 0, 1, 1))
            axes.set_axis_off()
        else:
            bottom, top = 28, 10
            across, upright = (width - left - right) / width, (height - bottom - top) / height
            axes = figure.add_axes((left / width, bottom / height, across, upright))
            _make_quiet(axes)
        drawn = Canvas(axes)
        yield drawn
        drawn.svg = Markup(svg_of(figure, key=key, label=label))


def _make_quiet(axes: Axes) -> None:
    axes.patch.set_visible(False)
    for side in ("left", "top", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set(color=MUTED, linewidth=0.8)
    axes.tick_params(colors=MUTED, length=0, labelsize=TEXT_SIZE, pad=7)
    axes.tick_params("x", pad=9)
    axes.grid(axis="y", color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)


def set_value_axis(
    axes: Axes, symbol: str = "", *, horizontal: bool = False, most_ticks: int = 4
) -> None:
    """Few ticks on the upright (or horizontal) axis, all with the same number of decimals.

    Numbers that are very small or large are three digits and a power of ten.
    """
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    steps: list[float] = [1, 2, 2.5, 5, 10]
    if symbol == "°":
        steps = [1, 1.5, 3, 4.5, 6, 9, 10]  # 45°, 60°, 90° rather than 50° and 100°
    axis = axes.xaxis if horizontal else axes.yaxis
    axis.set_major_locator(MaxNLocator(nbins=most_ticks, steps=steps))
    if not 0.01 <= max(map(abs, axis.get_view_interval())) < 1e5:
        axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
        return
    ticks = [float(tick) for tick in axis.get_majorticklocs()]
    exact = (d for d in range(7) if all(abs(round(tick, d) - tick) < 1e-9 for tick in ticks))
    decimals = next(exact, 7)
    axis.set_major_formatter(
        FuncFormatter(
            lambda value, _: f"{value:,.{decimals}f}{symbol}".replace("-", "\N{MINUS SIGN}")
        )
    )


def tick_text(value: float) -> str:
    """`0.03`, `2.5·10⁻⁶`, `10⁶`."""
    if value == 0:
        return "0"
    power = math.floor(math.log10(abs(value)) + 1e-9)
    if -3 <= power < 5:
        return f"{value:,.10f}".rstrip("0").rstrip(".").replace("-", "\N{MINUS SIGN}")
    digits = f"{value / 10.0**power:.3g}".replace("-", "\N{MINUS SIGN}")
    return power_text(power) if digits == "1" else f"{digits}·{power_text(power)}"


def set_epoch_axis(axes: Axes, epochs: Iterable[float]) -> None:
    """From the first to the last epoch of the run, so that all panels share the axis."""
    from matplotlib.ticker import MaxNLocator

    known = [epoch for epoch in epochs if math.isfinite(epoch)] or [0.0]
    first, last = min(known), max(known)
    axes.set_xlim(first, last if last > first else first + 1)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.annotate(
        "epoch", (0, 0), xycoords="axes fraction", xytext=(-7, -9), textcoords="offset points",
        ha="right", va="top", color=MUTED, annotation_clip=False,
    )  # fmt: skip


def name_rows(axes: Axes, names: Sequence[str], left: float) -> None:
    """Names of rows 0, 1, … from the top, cut to what a margin of `left` pixels holds."""
    most = int((left - 10) / LETTER_WIDTH)
    axes.grid(False, axis="y")
    axes.grid(axis="x", color=LINE, linewidth=0.8)
    axes.set_yticks(range(len(names)), [shortened(name, most) for name in names])
    axes.tick_params("y", colors=INK)


def name_ends(axes: Axes, ends: Iterable[tuple[float, str, str]]) -> None:
    """Names to the right of (height, name, colour), pushed apart where they would touch."""
    low, high = axes.get_ylim()
    height = axes.bbox.height / axes.figure.dpi * UNITS_PER_INCH
    gap = (high - low) * (TEXT_SIZE * 1.25) / height
    last = -math.inf
    for value, name, colour in sorted(ends, key=lambda end: end[0]):
        last = max(value, last + gap)
        axes.annotate(
            shortened(name, 15), (1, last), xycoords=("axes fraction", "data"), xytext=(9, 0),
            textcoords="offset points", va="center", annotation_clip=False, color=colour,
        )  # fmt: skip


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
