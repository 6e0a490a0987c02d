"""Figure A.1: how fast Algorithm 1 finds a basis, ‖C X_t‖ over iterations of gradient descent.

Rows are GROUP REPRESENTATION: `SO(3) T(4)`. There is one start, so one seed, and no device: it
runs in float64 on the CPU.

The rate is that of the spectral gap, −log10(1 − λ / λ_max) decades an iteration, where λ is the
smallest eigenvalue of CᴴC that is not zero. Of the table's cases D(6) T(6) is the fastest, with
λ_max / λ = 7/3 and 0.24 decades, and flat from about iteration 65 on because only rounding is left.
Three cases are still on their way after 300 iterations: O(3) T(5), the slowest, with a ratio of 17
and 0.026 decades, has 2e-9 of the start left, the Rubik's cube on T(2), with 13.2, 2e-11, and SO(3)
T(4), with 10, 4e-15. For SO(3) on T(k) the ratio is k (k + 1) / 2, so that iterations grow with the
square of the order.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from math import log10
from typing import Any

import torch

from isotropy.bases.krylov import convergence
from isotropy.bases.problem import Problem
from isotropy.experiments.series import Series, SeriesJob
from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.language import parse_representation
from isotropy.symmetry.groups.representations import Representation

FLOOR = 1e-12
"""‖C X_t‖ over ‖C X_0‖ below which nothing but rounding is left."""


def jobs(table: Mapping[str, Any], quick: bool) -> list[SeriesJob]:
    """Every case of the table."""
    cases = table["quick"]["cases"] if quick else table["cases"]
    found = []
    for group, representation in cases:
        own = {
            "group": group,
            "representation": representation,
            "columns": table["columns"],
            "iterations": table["iterations"],
        }
        found.append(SeriesJob(f"{group} {representation}", (0,), own))
    return found


def run(job: SeriesJob, device: torch.device) -> list[dict[str, Any]]:
    """‖C X_t‖ of one case."""
    own = job.settings
    started = time.perf_counter()
    representation = parse_representation(own["representation"])
    assert isinstance(representation, Representation)
    (product,) = representation.products
    problem = Problem(group_named(own["group"]), product)
    sizes = convergence(problem, own["columns"], own["iterations"])
    seconds = time.perf_counter() - started
    return [{**own, "size": problem.size, "norms": sizes, "seconds": seconds}]


def decades(norms: Sequence[float]) -> float:
    """Factors of ten by which ‖C X_t‖ falls in an iteration, over those before the floor."""
    above = [norm for norm in norms if norm > FLOOR * norms[0]]
    return log10(above[0] / above[-1]) / max(len(above) - 1, 1)


def summary(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each case how far it came, and how fast."""
    return [
        f"{record['row']:<18} {record['norms'][-1] / record['norms'][0]:8.1e} of the start after "
        f"{len(record['norms']) - 1} iterations, {decades(record['norms']):.3f} decades each"
        for record in records
    ]


SERIES = Series(jobs, run, summary)
