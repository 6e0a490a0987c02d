"""Pairs of samples of one entity under the distortions of Zhang and Arodz (2021), section 5."""

from __future__ import annotations

import numpy as np


def distortion(kind: str, d: int, generator: np.random.Generator) -> set[tuple[int, ...]]:
    """All permutations of a distortion; coordinate i goes to place p[i].

    shift, shift-scale: around d places; two-part: around each half; permutation: along a random
    cycle of all d coordinates
    """
    half = d // 2
    if kind in ("shift", "shift-scale"):
        return {tuple((i + k) % d for i in range(d)) for k in range(d)}
    if kind == "two-part":
        return {
            tuple((i + a) % half if i < half else half + (i + b) % half for i in range(d))
            for a in range(half)
            for b in range(half)
        }
    cycle = generator.permutation(d).tolist()
    at = {coordinate: place for place, coordinate in enumerate(cycle)}
    return {tuple(cycle[(at[i] + k) % d] for i in range(d)) for k in range(d)}


def pairs(
    kind: str, d: int, noise: float, seed: int, count: int = 2000
) -> tuple[np.ndarray, np.ndarray, set[tuple[int, ...]]]:
    """x and y (count, d), uniform in [−1, 1], noise on both, and the permutations."""
    generator = np.random.default_rng(seed)
    permutations = distortion(kind, d, generator)
    listed = sorted(permutations)
    x = generator.uniform(-1, 1, (count, d))
    y = np.empty_like(x)
    for row, which in enumerate(generator.integers(len(listed), size=count)):
        for i, place in enumerate(listed[which]):
            y[row, place] = x[row, i]
    if kind == "shift-scale":
        y *= generator.uniform(0.5, 2, (count, 1))
    x = x + noise * generator.standard_normal(x.shape)
    return x, y + noise * generator.standard_normal(y.shape), permutations
