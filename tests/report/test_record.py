"""JSON becomes dataclasses once: what is missing is empty, and every stored result is read."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_pages import PAGES, learn_record, stored

from isotropy.checks import CallerError
from isotropy.report import record as records
from isotropy.report.measured import Difference, Measured
from isotropy.report.pages.learn import LearnRecord, save_samples
from isotropy.report.pages.represent import Represented
from isotropy.report.record import (
    Correlations,
    Learned,
    Profiled,
    Relaxed,
    Screened,
    Symmetry,
    read,
)

RESULTS = Path(__file__).resolve().parents[2] / "results"
KINDS: dict[str, type] = {
    "learn": Learned,
    "measure": Measured,
    "compare": Measured,
    "relax": Relaxed,
    "represent": Represented,
    "screen": Screened,
    "profile": Profiled,
}


def test_every_kind_of_page_has_its_dataclass() -> None:
    assert KINDS.keys() == PAGES.keys()


def test_what_is_missing_or_wrong_is_empty() -> None:
    for given in (None, {}, "a text", [1], {"low": None, "interval": [None, 1.0], "unit": None}):
        symmetry = read(Symmetry, given)
        assert math.isnan(symmetry.low) and symmetry.interval == () and symmetry.unit == ""
    assert math.isnan(read(Symmetry, {"low": math.inf}).low)
    assert math.isnan(read(Symmetry, {"low": True}).low)
    assert read(Symmetry, {"interval": [1, 2.5]}).interval == (1.0, 2.5)
    assert read(Symmetry, {"interval": [1, 2, 3]}).interval == ()


def test_a_truth_value_has_its_default() -> None:
    assert read(Learned, {}).settled and read(Learned, {"settled": None}).settled
    assert not read(Learned, {"settled": False}).settled
    assert not read(Learned, {}).search.nothing_learned


def test_lists_and_dictionaries() -> None:
    given = {"names": ["a", None], "matrix": [[1, None], None]}
    correlations = read(Correlations, given)
    assert correlations.names == ["a", ""]
    assert correlations.matrix[1] == [] and math.isnan(correlations.matrix[0][1])
    learned = read(Learned, {"symmetries": [{"name": "a"}, None, 3], "fallback": {"x": 1}})
    assert [symmetry.name for symmetry in learned.symmetries] == ["a"]
    assert learned.fallback == {"x": "1"}


def test_a_word_of_python_is_a_key() -> None:
    assert read(Difference, {"from": "a", "to": "b"}).from_ == "a"


def test_what_is_typed_already_stays() -> None:
    learned = read(Learned, stored("learn")["result"])
    assert read(Learned, learned) is learned


def _unread(kind: type, value: Any, place: str = "") -> list[str]:
    """Fields of the dataclass that the JSON object does not have."""
    return [
        f"{place}{each.name}"
        for each in fields(kind)
        if isinstance(value, dict) and each.name.removesuffix("_") not in value
    ]


OPTIONAL = {
    "noise", "settled", "test_accuracy", "command_line", "train_loss", "null_log_evidence",
    "test_rmse", "test_log_likelihood", "class_counts",
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_fields_are_keys_of_records(name: str) -> None:
    """A field with a wrong name would always be empty."""
    assert set(_unread(KINDS[name], stored(name)["result"])) <= OPTIONAL


def _results() -> dict[str, list[dict[str, Any]]]:
    """Records of runs in results/, by command; the rows of experiments keep them in `result`."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(RESULTS.rglob("*.json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        result = row.get("result", row) if isinstance(row, dict) else {}
        if result.get("command") in KINDS:
            found.setdefault(result["command"], []).append(result)
    return found


def test_every_stored_result_is_read() -> None:
    found = _results()
    assert {"learn", "screen", "profile"} <= found.keys()
    for learned in (read(Learned, each) for each in found["learn"]):
        assert learned.symmetries or learned.objective == "trivial-augment"
        assert all(math.isfinite(symmetry.high) for symmetry in learned.symmetries)
    assert all(read(Screened, each).screening.rows for each in found["screen"])
    assert all(read(Profiled, each).profiles[0].amounts for each in found["profile"])
    rows = (RESULTS / "layer-equivariance" / "rows.jsonl").read_text(encoding="utf-8")
    for line in rows.splitlines():
        relaxed = read(Relaxed, json.loads(line))
        assert all(layer.became and layer.effective for layer in relaxed.layers)


def test_records_are_frozen() -> None:
    kinds = [each for each in vars(records).values() if hasattr(each, "__dataclass_fields__")]
    assert len(kinds) > 20 and all(each.__dataclass_params__.frozen for each in kinds)


# --- samples --------------------------------------------------------------------------------------


def arrays_in(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def test_samples_are_kept(tmp_path: Path) -> None:
    record = learn_record()
    path = save_samples(
        tmp_path, examples=record.examples, flows=record.flows, image_shape=record.image_shape
    )
    assert path == tmp_path / "samples.npz"
    kept = arrays_in(path)
    for name in ("examples", "flows", "image_shape"):
        np.testing.assert_allclose(kept[name], getattr(record, name), rtol=1e-6)
    assert arrays_in(save_samples(tmp_path, flows=record.flows)).keys() == {"flows"}


@pytest.mark.parametrize(
    ("name", "shape"),
    [("examples", (2, 3, 28, 28)), ("examples", (0, 3, 1, 28, 28)), ("flows", (4, 7, 7, 2)),
     ("flows", (4, 3, 7, 7, 2)), ("flows", (4, 2, 7, 7, 3))],
)  # fmt: skip
def test_samples_of_another_shape_are_refused(
    tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    sizes = ", ".join(map(str, shape))
    for make in (lambda **given: LearnRecord({}, {}, (), {}, **given),
                 lambda **given: save_samples(tmp_path, **given)):  # fmt: skip
        with pytest.raises(CallerError, match=rf"{name}: expected \(.*none empty, got \({sizes}\)"):
            make(**{name: np.zeros(shape)})
