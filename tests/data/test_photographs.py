"""Made photographs: files as promised, the same from the same seed, truly turned or upright."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from isotropy.checks import CallerError
from isotropy.data.image_folder import WORKING_SIZE
from isotropy.data.problems import SHAPES, photograph, write_photographs
from isotropy.data.readers import read


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def object_of(image: torch.Tensor) -> torch.Tensor:
    """Where the object is: lighter than the background by half the least contrast."""
    return image.mean(0) > image.mean(0).median() + 0.15


def test_files_by_class_of_mixed_sizes(tmp_path):
    folder = write_photographs(tmp_path / "set", 9, smallest=40, largest=90)
    sizes = set()
    for shape in SHAPES:
        files = sorted((folder / shape).iterdir())
        assert len(files) == 3
        for file in files:
            with Image.open(file) as picture:
                assert picture.format == "JPEG" and picture.mode == "RGB"
                assert all(40 <= side <= 90 for side in picture.size)
                sizes.add(picture.size)
    assert len(sizes) > 5


def test_the_seed_is_everything(tmp_path):
    pixels = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        folder = write_photographs(tmp_path / name, 3, seed=seed, smallest=40, largest=60)
        pixels[name] = (folder / "loop" / "0002.jpg").read_bytes()
    assert pixels["a"] == pixels["b"] != pixels["c"]


@pytest.mark.parametrize("shape", SHAPES)
def test_upright_objects_are_turned_ones_turned_back(shape):
    """Pillow turns the one into the other by the angle that was drawn."""
    upright = object_of(photograph(shape, 160, 160, upright=True, generator=generator(3)))
    turned = object_of(photograph(shape, 160, 160, generator=generator(3)))
    degrees = (2 * float(torch.rand(16, generator=generator(3))[0]) - 1) * 180
    moved = 2 * torch.rand(16, generator=generator(3))[2:4] - 1
    middle = tuple(80 + 0.08 * 80 * float(shift) for shift in moved)  # Pillow counts from edges
    picture = Image.fromarray(upright.byte().numpy() * 255)
    expected = np.asarray(picture.rotate(degrees, center=middle)) > 127
    different = (expected != turned.numpy()).sum()
    assert abs(degrees) > 10 and different < 0.1 * expected.sum()


def test_shapes_have_no_symmetry_and_differ():
    upright = {
        shape: object_of(photograph(shape, 96, 96, upright=True, generator=generator(5)))
        for shape in SHAPES
    }
    for shape, image in upright.items():
        for other in (image.rot90(2), image.rot90(1), image.flip(1)):
            assert (image != other).sum() > 0.3 * image.sum()
        for name in set(SHAPES) - {shape}:
            assert (image != upright[name]).sum() > 0.2 * image.sum()


def test_they_are_read_at_the_working_size(tmp_path):
    folder = write_photographs(tmp_path / "set", 12, smallest=80, largest=120)
    split = read(folder, image_size="auto")
    assert split.train.inputs.shape[1:] == (3, WORKING_SIZE, WORKING_SIZE)
    assert split.train.classes == SHAPES
    assert any("working size" in note for note in split.notes)
    assert any("cut to their middle" in note for note in split.notes)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"count": 2}, "count"),
        ({"count": 3, "smallest": 4}, "smallest side"),
        ({"count": 3, "smallest": 60, "largest": 50}, "largest side"),
    ],
)
def test_what_is_refused(tmp_path, options, sentence):
    with pytest.raises(CallerError, match=sentence):
        write_photographs(tmp_path, **options)
