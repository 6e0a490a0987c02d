"""Tables as zero-padded images."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch

from isotropy.checks import CallerError
from isotropy.data.table_images import as_images, table_images

ROWS = np.arange(45.0).reshape(5, 9) / 4  # 8 features and a target


def write(folder, **tables):
    folder.mkdir(exist_ok=True)
    for name, table in tables.items():
        text = "\n".join(",".join(f"{v:g}" for v in row) for row in table)
        with gzip.open(folder / f"{name}.csv.gz", "wt") as file:
            file.write(text)
    return folder


@pytest.mark.parametrize(
    ("features", "size"), [(4, (2, 2)), (7, (3, 3)), (8, (3, 3)), (9, (3, 3)), (11, (4, 3))]
)
def test_features_fill_rows_of_pixels(features, size):
    values = torch.arange(1.0, 2 * features + 1).reshape(2, features)
    images = as_images(values)
    assert images.shape == (2, 1, *size)
    flat = images.flatten(1)
    assert torch.equal(flat[:, :features], values) and not flat[:, features:].any()


def test_the_first_rows_are_for_training(tmp_path):
    split = table_images(write(tmp_path / "energy", data=ROWS))
    assert split.train.inputs.shape == (4, 1, 3, 3) and split.test.inputs.shape == (1, 1, 3, 3)
    np.testing.assert_array_equal(split.train.inputs.flatten(1)[:, :8], ROWS[:4, :8])
    np.testing.assert_array_equal(split.test.targets, ROWS[4:, 8:])
    assert not split.train.is_classification and split.train.name == "energy"


def test_known_splits(tmp_path):
    folder = write(tmp_path / "wine", data=ROWS, test_mask=np.eye(5)[:, [3, 1]])
    split = table_images(folder, split=1)
    np.testing.assert_array_equal(split.test.targets[:, 0], ROWS[[1], 8])
    assert len(split.train) == 4


def test_a_convolution_sees_neighbours_that_mean_nothing(tmp_path):
    """Misspecified: shifted by a pixel, the features of a linear target are others."""
    generator = np.random.default_rng(0)
    features = generator.standard_normal((200, 8))
    table = np.column_stack([features, features @ np.arange(8)])
    split = table_images(write(tmp_path / "made", data=table))
    images = split.train.inputs
    weights = torch.arange(8.0)
    shifted = images.roll(1, -1).flatten(1)[:, :8] @ weights
    own = images.flatten(1)[:, :8] @ weights  # files hold six digits
    torch.testing.assert_close(own, split.train.targets[:, 0], rtol=1e-3, atol=1e-3)
    assert (shifted - split.train.targets[:, 0]).std() > 0.5 * split.train.targets.std()


@pytest.mark.parametrize(
    ("tables", "split", "message"),
    [
        ({}, None, "expected data.csv.gz or data.csv, got neither"),
        ({"data": ROWS[:, :1]}, None, "expected features and a target, got 1 column"),
        ({"data": ROWS}, 0, "expected test_mask.csv.gz"),
        ({"data": ROWS, "test_mask": np.eye(5)}, 5, "a split from 0 to 4 of 5 rows, got split 5"),
        ({"data": ROWS, "test_mask": np.eye(4)}, 0, "got split 0 of a mask with 4 rows"),
        ({"data": ROWS, "test_mask": 0 * np.eye(5)}, 0, "for training and for test"),
        ({"data": np.full((2, 3), np.nan)}, None, "rows of finite numbers"),
    ],
)
def test_refusals(tmp_path, tables, split, message):
    with pytest.raises(CallerError, match=message):
        table_images(write(tmp_path / "table", **tables), split=split)


def test_a_header_is_refused(tmp_path):
    (tmp_path / "data.csv").write_text("a,b\n1,2\n")
    with pytest.raises(CallerError, match="expected rows of numbers with commas"):
        table_images(tmp_path)
