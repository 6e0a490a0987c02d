"""What the report of `isotropy learn` is made of, and the samples that a run folder keeps of it.

samples.npz holds, each where it is known:

examples     (images, 1 + copies, channels, height, width)   in [0, 1]; index 0 = original
flows        (samples, 2, rows, columns, 2)   [:, 0] where points start, [:, 1] where their
             content moves to; (x right, y down) in pixels from the upper left corner
image_shape  (height, width) in pixels
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isotropy.checks import CallerError

SAMPLES_FILE = "samples.npz"

_EXAMPLE_AXES = ("images", "1 + copies", "channels", "height", "width")
_FLOW_AXES = ("samples", "2", "rows", "columns", "2")


@dataclass(frozen=True)
class LearnRecord:
    """A finished run: its result, its settings, its history, and samples to look at.

    result:   as printed by `isotropy learn --json`; any number may be None
    config:   nested JSON settings (data, network, schedule, …), without the truth
    history:  one mapping per epoch
    truth:    true half-width by symmetry name, in its unit; empty when unknown
    examples, flows, image_shape: as in the module's docstring; None when not kept

    Raises CallerError where an array has the wrong axes.
    """

    result: Mapping[str, Any]
    config: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]
    truth: Mapping[str, float]
    examples: np.ndarray | None = None
    flows: np.ndarray | None = None
    image_shape: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        _check_samples(self.examples, self.flows)


def save_samples(
    run_folder: Path,
    *,
    examples: np.ndarray | None = None,
    flows: np.ndarray | None = None,
    image_shape: tuple[int, int] | None = None,
) -> Path:
    """Write `samples.npz` into a run folder and return its path; what is None is left out."""
    _check_samples(examples, flows)
    arrays: dict[str, np.ndarray] = {}
    if examples is not None:
        arrays["examples"] = np.asarray(examples, dtype=np.float32)
    if flows is not None:
        arrays["flows"] = np.asarray(flows, dtype=np.float32)
    if image_shape is not None:
        arrays["image_shape"] = np.asarray(image_shape, dtype=np.int64)
    path = Path(run_folder) / SAMPLES_FILE
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    return path


def _check_samples(examples: np.ndarray | None, flows: np.ndarray | None) -> None:
    if examples is not None and (examples.ndim != 5 or 0 in examples.shape):
        _refuse_shape("examples", _EXAMPLE_AXES, examples)
    if flows is not None and (
        flows.ndim != 5 or flows.shape[1] != 2 or flows.shape[4] != 2 or 0 in flows.shape
    ):
        _refuse_shape("flows", _FLOW_AXES, flows)


def _refuse_shape(what: str, axes: tuple[str, ...], array: np.ndarray) -> None:
    came = ", ".join(str(size) for size in array.shape)
    raise CallerError(f"{what}: expected ({', '.join(axes)}), none empty, got ({came})")
