"""Large pictures at a working size, and no stretching: the middle is kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from isotropy.data.image_folder import LARGEST_SIDE, WORKING_SIZE, middle, resize_images
from isotropy.data.readers import read


def arrays(height: int, width: int, count: int = 6) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    images = random.integers(0, 255, (count, height, width, 3), dtype=np.uint8)
    return images, np.arange(count) % 2


@pytest.mark.parametrize(
    ("shape", "size", "rows", "columns"),
    [
        ((6, 10), (4, 4), slice(0, 6), slice(2, 8)),
        ((11, 6), (3, 3), slice(2, 8), slice(0, 6)),
        ((6, 12), (3, 6), slice(0, 6), slice(0, 12)),
        ((5, 5), (2, 2), slice(0, 5), slice(0, 5)),
        ((1, 9), (4, 4), slice(0, 1), slice(4, 5)),
    ],
)
def test_the_middle_has_the_new_aspect_ratio(shape, size, rows, columns):
    image = torch.arange(float(np.prod(shape))).reshape(1, 1, *shape)
    assert torch.equal(middle(image, size), image[..., rows, columns])


def test_large_arrays_are_brought_to_the_working_size():
    images, labels = arrays(96, 80)
    split = read((images, labels), image_size="auto", hold_out_fraction=0)
    expected = torch.from_numpy(images).permute(0, 3, 1, 2)[:, :, 8:88] / 255
    side = (WORKING_SIZE, WORKING_SIZE)
    torch.testing.assert_close(split.train.inputs, resize_images(expected, side))
    assert any("cut to their middle square" in note for note in split.notes)
    assert any("working size" in note and "--image-size" in note for note in split.notes)


@pytest.mark.parametrize("side", [16, LARGEST_SIDE])
def test_small_arrays_and_tables_stay(side):
    images, labels = arrays(side, side)
    split = read((images, labels), image_size="auto", hold_out_fraction=0)
    assert split.train.inputs.shape == (6, 3, side, side)
    table = read((np.zeros((6, 100), np.float32), labels), image_size="auto", hold_out_fraction=0)
    assert table.train.inputs.shape == (6, 100)


def test_nothing_is_made_smaller_unless_it_is_asked_for():
    split = read(arrays(96, 80), hold_out_fraction=0)
    assert split.train.inputs.shape == (6, 3, 96, 80)


def test_a_square_in_a_long_picture_stays_a_square(tmp_path):
    """A white square in the middle of a picture twice as wide: stretched it would be narrow."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        picture = Image.new("RGB", (200, 100))
        picture.paste((255, 255, 255), (75, 25, 125, 75))
        picture.save(tmp_path / name / "1.png")
    data = read(tmp_path, image_size=20, hold_out_fraction=0).train
    lit = data.inputs[0, 0] > 0.5
    assert lit.any(0).sum() == lit.any(1).sum() == 10


def test_test_data_follow_the_training_data(tmp_path):
    for part, size in (("train", (90, 70)), ("test", (50, 120))):
        for name in ("a", "b"):
            (tmp_path / part / name).mkdir(parents=True)
            Image.new("RGB", size, (9, 99, 199)).save(tmp_path / part / name / "1.png")
    split = read(tmp_path, image_size="auto")
    assert split.test is not None
    assert split.train.inputs.shape == split.test.inputs.shape == (2, 3, 32, 32)
