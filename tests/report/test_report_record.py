"""Samples of a run: what was written comes back, and wrong axes are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from isotropy.checks import CallerError
from isotropy.report.record import LearnRecord, save_samples


def arrays_in(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def test_samples_come_back(record: LearnRecord, tmp_path: Path) -> None:
    path = save_samples(
        tmp_path, examples=record.examples, flows=record.flows, image_shape=record.image_shape
    )
    assert path == tmp_path / "samples.npz"
    found = arrays_in(path)
    assert tuple(found["image_shape"]) == record.image_shape
    np.testing.assert_allclose(found["examples"], record.examples, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found["flows"], record.flows, rtol=0, atol=1e-5)


def test_what_is_not_known_is_left_out(record: LearnRecord, tmp_path: Path) -> None:
    assert arrays_in(save_samples(tmp_path, flows=record.flows)).keys() == {"flows"}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("examples", (6, 9, 14, 14)),
        ("examples", (0, 9, 1, 14, 14)),
        ("flows", (8, 3, 7, 7, 2)),
        ("flows", (8, 2, 7, 7)),
    ],
)
def test_wrong_axes_are_refused(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(CallerError, match=f"{name}: expected"):
        save_samples(tmp_path, **{name: np.zeros(shape)})  # type: ignore[arg-type]
    with pytest.raises(CallerError, match=f"{name}: expected"):
        LearnRecord({}, {}, (), {}, **{name: np.zeros(shape)})  # type: ignore[arg-type]
