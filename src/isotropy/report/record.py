"""What a run of `isotropy learn` left behind, read from its run folder and checked.

result.json     what `isotropy learn --json` printed
config.json     settings, nested; its "truth" is {symmetry: true half-width in its unit}
metrics.jsonl   one JSON object per epoch
samples.npz     examples, flows, image_shape; may be missing, as may each of the three

examples     (images, 1 + copies, channels, height, width)   in [0, 1]; index 0 = original
flows        (samples, 2, rows, columns, 2)   [:, 0] where points start, [:, 1] where their
             content moves to; (x right, y down) in pixels from the upper left corner
image_shape  (height, width) in pixels
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isotropy.checks import CallerError

RESULT_FILE = "result.json"
CONFIG_FILE = "config.json"
METRICS_FILE = "metrics.jsonl"
SAMPLES_FILE = "samples.npz"

SCHEMA = 1

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


def load_learn_record(run_folder: Path) -> LearnRecord:
    """Read the record of a finished run; raises CallerError naming the file that is amiss."""
    folder = Path(run_folder)
    if not folder.is_dir():
        raise CallerError(
            f"{folder}: expected a run folder, but there is no such folder; "
            "give one that `isotropy learn` wrote"
        )
    result = _read_object(folder / RESULT_FILE)
    _check_result(result, folder / RESULT_FILE)
    config = _read_object(folder / CONFIG_FILE)
    truth = _read_truth(config, folder / CONFIG_FILE)
    history = _read_lines(folder / METRICS_FILE)
    examples, flows, image_shape = _read_samples(folder / SAMPLES_FILE)
    settings = {name: value for name, value in config.items() if name != "truth"}
    return LearnRecord(result, settings, history, truth, examples, flows, image_shape)


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


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CallerError(
            f"{path.parent}: expected a finished run of `isotropy learn`, but {path.name} is "
            "missing; give its run folder, or let the run finish"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CallerError(f"{path}: expected readable UTF-8 text, got {error}") from None


def _parse_object(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise CallerError(
            f"{where}: expected JSON, got {error.msg.lower()} at column {error.colno} "
            f"of line {error.lineno}; the file may have been cut short"
        ) from None
    if not isinstance(value, dict):
        raise CallerError(f"{where}: expected a JSON object, got {type(value).__name__}")
    return value


def _read_object(path: Path) -> dict[str, Any]:
    return _parse_object(_read_text(path), str(path))


def _read_lines(path: Path) -> tuple[dict[str, Any], ...]:
    lines = _read_text(path).splitlines()
    return tuple(
        _parse_object(line, f"{path}, line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    )


def _check_result(result: Mapping[str, Any], path: Path) -> None:
    if result.get("command") != "learn":
        raise CallerError(
            f"{path}: expected the result of `isotropy learn`, got command "
            f"{result.get('command')!r}"
        )
    if result.get("schema") != SCHEMA:
        raise CallerError(
            f"{path}: expected schema {SCHEMA}, got {result.get('schema')!r}; "
            "write the report with the version of isotropy that made the run"
        )
    symmetries = result.get("symmetries")
    if not isinstance(symmetries, list) or not all(
        isinstance(symmetry, dict) and isinstance(symmetry.get("name"), str)
        for symmetry in symmetries
    ):
        raise CallerError(f"{path}: expected symmetries to be a list of objects with a name")


def _read_truth(config: Mapping[str, Any], path: Path) -> dict[str, float]:
    truth = config.get("truth") or {}
    if not isinstance(truth, dict):
        raise CallerError(f"{path}: expected truth to be an object {{name: half-width}}")
    known: dict[str, float] = {}
    for name, value in truth.items():
        if value is None:
            continue
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise CallerError(f"{path}: expected truth of {name!r} to be a number, got {value!r}")
        known[name] = float(value)
    return known


def _read_samples(
    path: Path,
) -> tuple[np.ndarray | None, np.ndarray | None, tuple[int, int] | None]:
    if not path.exists():
        return None, None, None
    try:
        with np.load(path, allow_pickle=False) as archive:
            examples, flows, shape = (
                archive[name] if name in archive.files else None
                for name in ("examples", "flows", "image_shape")
            )
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise CallerError(
            f"{path}: expected a NumPy archive, got {error}; without the file the report "
            "is written without samples"
        ) from None
    if shape is None:
        return examples, flows, None
    if shape.size != 2:
        raise CallerError(f"{path}: expected image_shape to be (height, width), got {shape}")
    height, width = (int(size) for size in shape.ravel())
    return examples, flows, (height, width)
