"""The lines along which a transformation carries points, from where they start and end.

A group element g = exp(A) moves a point p along the curve exp(tA) p, t from 0 to 1. A record
keeps only p and exp(A) p; for affine maps of the plane that is enough to find the curve again.
All arrays are (…, 2) with (x right, y down) in pixels; `flow` is (2, rows, columns, 2), with
[0] where points start and [1] where their content moves to.
"""

from __future__ import annotations

import numpy as np


def flow_lines(flow: np.ndarray, halvings: int = 4) -> np.ndarray:
    """Paths (points, steps + 1, 2) of exp(tA) p for t from 0 to 1, from p and exp(A) p alone.

    The map is fitted as one 3 × 3 affine matrix M; repeated square roots (Denman & Beavers
    1976) give M^(1/16), which is applied step by step. A motion that is not affine, or a half
    turn, which has no unique root, is shown by straight lines instead.
    """
    start, end = flow.reshape(2, -1, 2).astype(np.float64)
    around = start.mean(axis=0)
    ones = np.ones((len(start), 1))
    fitted, *_ = np.linalg.lstsq(np.hstack([start - around, ones]), end - around, rcond=None)
    root = np.vstack([fitted.T, [0.0, 0.0, 1.0]])
    steps = 2**halvings
    try:
        with np.errstate(all="ignore"):  # a root that does not exist is noticed below
            for _ in range(halvings):
                root = _square_root(root)
        points = [np.hstack([start - around, ones])]
        for _ in range(steps):
            points.append(points[-1] @ root.T)
        paths: np.ndarray = np.stack(points, axis=1)[..., :2] + around
    except np.linalg.LinAlgError:
        paths = np.full((len(start), steps + 1, 2), np.nan)
    size = float(np.abs(start - around).max())
    if np.allclose(paths[:, -1], end, rtol=0, atol=0.01 * size):
        return paths
    share = np.linspace(0, 1, steps + 1)[:, None]
    straight: np.ndarray = (1 - share) * start[:, None] + share * end[:, None]
    return straight


def _square_root(matrix: np.ndarray) -> np.ndarray:
    """The principal square root: Y ← (Y + Z⁻¹) / 2, Z ← (Z + Y⁻¹) / 2, from Y = M, Z = 1."""
    root, inverse = matrix, np.eye(len(matrix))
    for _ in range(30):
        root, inverse = (
            (root + np.linalg.inv(inverse)) / 2,
            (inverse + np.linalg.inv(root)) / 2,
        )
    return root


def lines_apart(lines: np.ndarray, distance: float) -> np.ndarray:
    """Those lines that keep their distance from all earlier ones, so that none hides another."""
    kept: list[np.ndarray] = []
    for line in lines:
        gaps = (np.linalg.norm(line[:, None] - other[None], axis=-1).min() for other in kept)
        if all(gap >= distance for gap in gaps):
            kept.append(line)
    return np.stack(kept)


def arrow_heads(lines: np.ndarray, size: float) -> list[np.ndarray]:
    """A triangle (3, 2) at the end of each line (steps + 1, 2), along its last step."""
    heads: list[np.ndarray] = []
    for line in lines:
        along = line[-1] - line[-2]
        along = size * along / np.hypot(*along)
        across = 0.5 * np.array([-along[1], along[0]])
        back = line[-1] - along
        heads.append(np.stack([line[-1] + 0.3 * along, back + across, back - across]))
    return heads


def thinned(flow: np.ndarray, per_side: int) -> np.ndarray:
    """A flow at no more than `per_side` rows and columns, evenly spaced by interpolation."""
    for axis in (1, 2):
        size = flow.shape[axis]
        if size <= per_side:
            continue
        places = np.linspace(0, size - 1, per_side)
        before = np.minimum(places.astype(int), size - 2)
        weight = np.expand_dims(places - before, (0, 2, 3) if axis == 1 else (0, 1, 3))
        left, right = flow.take(before, axis), flow.take(before + 1, axis)
        flow = (1 - weight) * left + weight * right
    return flow


def border(grid: np.ndarray) -> np.ndarray:
    """The closed border of a grid of points (rows, columns, 2), as (points, 2)."""
    sides = (grid[0], grid[1:, -1], grid[-1, -2::-1], grid[-2::-1, 0])
    return np.concatenate(sides)
