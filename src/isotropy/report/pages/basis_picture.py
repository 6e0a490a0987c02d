"""A basis as a picture of one matrix (Finzi 2023, Figures 2.2 and 2.3).

Every entry of the matrix is a row of the basis Q (size, rank), and the equivariant matrices are
Q β: entries with equal rows are equal in all of them. A colour stands for one such class of
entries, its darker twin for the class of its negatives, and bare ground for what is always zero.
For permutations a class is an orbit, so that the r solutions are the r colours; elsewhere there may
be more classes than solutions. The classes do not depend on which basis of the space was found.

Rows are told apart by their products with fixed generic vectors, so that a sparse basis stays
sparse. A matrix with more than `LARGEST` rows or columns is shown by its upper left corner.
"""

from __future__ import annotations

import colorsys
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import scipy.sparse as sparse

from isotropy.bases.problem import Basis
from isotropy.report.canvas import TEXT_SIZE, UNITS_PER_INCH, style

LARGEST = 512
"""Rows and columns that are drawn."""
OUTSIDE = np.iinfo(np.int64).max
"""The class of places that no block covers."""
ZERO = (0.90, 0.91, 0.93)
NOTHING = (1.0, 1.0, 1.0)
FEW = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#dd8833", "#997755")
"""Colours that can be told apart, also by the colour-blind, where that is enough."""
TEXT = "#6e7781"
_DARKER = 0.55
_LONGEST = 60
_EQUAL, _ZERO = 1e-10, 1e-9
"""Relative differences and sizes below which numbers are equal, or zero."""


@dataclass(frozen=True)
class Tile:
    """A basis and where its block of height × width entries lies, row-major."""

    top: int
    left: int
    height: int
    width: int
    basis: Basis


def basis_picture(
    shape: tuple[int, int], tiles: Sequence[Tile], *, title: str, kind: str = "svg"
) -> bytes:
    """The picture as an SVG or PNG file: `shape` entries covered by tiles, title underneath."""
    from matplotlib.figure import Figure

    colours = coloured(*classes(shape, tiles))
    height, width = colours.shape[:2]
    notes = [title if len(title) <= _LONGEST else title[: _LONGEST - 1] + "…"]
    if (height, width) != tuple(shape):
        notes.append(f"the first {height} × {width} entries of {shape[0]:,} × {shape[1]:,}")
    across, down = _drawn_size(height, width)
    below = 8 + 1.5 * TEXT_SIZE * len(notes)
    longest = max(len(note) for note in notes)
    whole = max(across, 0.62 * TEXT_SIZE * longest)
    with style(f"basis {title}"):
        figure = Figure(figsize=(whole / UNITS_PER_INCH, (down + below) / UNITS_PER_INCH))
        figure.patch.set_visible(False)
        axes = figure.add_axes(
            ((whole - across) / 2 / whole, below / (down + below), across / whole,
             down / (down + below))
        )  # fmt: skip
        axes.set_axis_off()
        axes.imshow(colours, interpolation="none" if kind == "svg" else "nearest", aspect="auto")
        for number, note in enumerate(notes):
            place = (below - 6 - 1.5 * TEXT_SIZE * number) / (down + below)
            figure.text(0.5, place, note, ha="center", va="top", color=TEXT)
        buffer = io.BytesIO()
        if kind == "svg":
            nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            figure.savefig(buffer, format="svg", metadata=nothing)
            opening = f'<svg role="img" aria-label="{escape(title)}" '
            return buffer.getvalue().replace(b"<svg ", opening.encode(), 1)
        figure.savefig(buffer, format="png", dpi=144, metadata={"Software": None})
        return buffer.getvalue()


def classes(shape: tuple[int, int], tiles: Sequence[Tile]) -> tuple[np.ndarray, int]:
    """The class of every entry drawn, and how many there are up to sign.

    0 where an entry is always zero, ±1, ±2, … in the order in which classes come, the sign that of
    the entry relative to the first of its class; `OUTSIDE` where there is no tile.
    """
    height, width = min(shape[0], LARGEST), min(shape[1], LARGEST)
    found = np.full((height, width), OUTSIDE)
    count = 0
    for tile in tiles:
        rows = np.arange(min(tile.height, height - tile.top))
        columns = np.arange(min(tile.width, width - tile.left))
        if not len(rows) or not len(columns) or tile.top >= height or tile.left >= width:
            continue
        entries = (rows[:, None] * tile.width + columns).ravel()
        numbers, own = _row_classes(tile.basis, entries)
        numbers = np.where(numbers != 0, numbers + np.sign(numbers) * count, 0)
        block = numbers.reshape(len(rows), len(columns))
        found[tile.top : tile.top + len(rows), tile.left : tile.left + len(columns)] = block
        count += own
    return found, count


def _row_classes(basis: Basis, entries: np.ndarray) -> tuple[np.ndarray, int]:
    """Signed classes 1, 2, … of these rows of a basis, 0 for zero rows."""
    columns = basis.columns
    assert columns is not None
    if basis.rank == 0:
        return np.zeros(len(entries), np.int64), 0
    is_sparse = sparse.issparse(columns)
    taken = columns.tocsr()[entries] if is_sparse else columns[entries]
    largest = abs(taken).max(axis=1)
    largest = largest.toarray().ravel() if is_sparse else largest
    is_zero = largest <= _ZERO * largest.max(initial=0.0)
    # One number tells a row, up to sign, from every other: its product with generic vectors.
    probes = np.random.default_rng(0).uniform(1.0, 2.0, (basis.rank, 2))
    products = np.asarray(taken @ probes)
    keys = np.where(is_zero, 0.0, products[:, 0].real + products[:, 1].imag)
    sizes = np.abs(keys)
    order = np.argsort(sizes, kind="stable")
    steps = np.diff(sizes[order], prepend=0.0) > _EQUAL * sizes.max(initial=0.0)
    numbers = np.empty(len(entries), np.int64)
    numbers[order] = np.cumsum(steps)
    # Renumbered in the order in which classes come, each with the sign of its first entry.
    kinds, firsts, numbers = np.unique(numbers, return_index=True, return_inverse=True)
    renumbered = np.empty(len(kinds), np.int64)
    ordered = sorted((k for k in range(len(kinds)) if kinds[k]), key=lambda k: firsts[k])
    renumbered[ordered] = np.arange(1, len(ordered) + 1)
    renumbered[kinds == 0] = 0
    signs = np.where(keys * keys[firsts][numbers] < 0, -1, 1)
    return renumbered[numbers] * signs, len(ordered)


def coloured(numbers: np.ndarray, count: int) -> np.ndarray:
    """Classes as (height, width, 3) in [0, 1]."""
    palette = np.array(_palette(count)).reshape(count, 3)
    shown = np.empty((*numbers.shape, 3))
    shown[:] = NOTHING
    shown[numbers == 0] = ZERO
    is_class = (numbers != 0) & (np.abs(numbers) <= count)
    picked = numbers[is_class]
    shown[is_class] = palette[np.abs(picked) - 1] * np.where(picked < 0, _DARKER, 1.0)[:, None]
    return shown


def _palette(count: int) -> list[tuple[float, float, float]]:
    """Colours: few that differ much, or a turn of the wheel in three shades."""
    if count <= len(FEW):
        return [
            tuple(int(each[i : i + 2], 16) / 255 for i in (1, 3, 5))  # type: ignore[misc]
            for each in FEW[:count]
        ]
    return [
        colorsys.hls_to_rgb(0.86 * index / (count - 1), (0.45, 0.58, 0.7)[index % 3], 0.65)
        for index in range(count)
    ]


def _drawn_size(height: int, width: int) -> tuple[float, float]:
    """(across, down) in CSS pixels: square entries where possible, nothing thinner than 24."""
    longest = max(height, width)
    side = min(24.0, 320.0 / longest)
    return max(side * width, 24.0), max(side * height, 24.0)
