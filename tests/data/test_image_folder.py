"""Pictures in class folders: order, channels, orientation, sizes, and the test folder."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from data_files import write_picture, write_picture_set
from PIL import Image

from isotropy.checks import CallerError
from isotropy.data.image_folder import (
    LARGEST_SIDE,
    WORKING_SIZE,
    like_images,
    middle,
    picture_tensor,
    resize_images,
)
from isotropy.data.labelled import LabelledData
from isotropy.data.readers import read

LOSSLESS = [".png", ".bmp", ".tif", ".tiff", ".PNG"]
LOSSY = [".jpg", ".jpeg", ".gif", ".webp"]


def all_of(folder, **options):
    split = read(folder, hold_out_fraction=0, **options)
    return split.train, split.notes


def test_classes_and_pictures_in_sorted_order(tmp_path):
    pixels = {
        name: write_picture(tmp_path / name, seed=seed)
        for seed, name in enumerate(["dog/b.png", "ant/z.png", "dog/a.png", "cat/m/n.png"])
    }
    data, _ = all_of(tmp_path)
    assert data.classes == ("ant", "cat", "dog") and data.targets.tolist() == [0, 1, 2, 2]
    for image, name in zip(data.inputs, sorted(pixels), strict=True):
        np.testing.assert_allclose(image.permute(1, 2, 0), pixels[name] / 255, atol=1e-6)
    assert data.inputs.shape == (4, 3, 4, 5)


@pytest.mark.parametrize("suffix", LOSSLESS + LOSSY)
def test_every_suffix(tmp_path, suffix):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8), (200, 200, 200)).save(tmp_path / name / f"1{suffix}")
    data, _ = all_of(tmp_path)
    torch.testing.assert_close(data.inputs, torch.full((2, 3, 8, 8), 200 / 255), atol=0.02, rtol=0)


def test_grey_pictures_have_one_channel(tmp_path):
    write_picture_set(tmp_path, mode="L")
    assert all_of(tmp_path)[0].inputs.shape == (6, 1, 4, 5)


def test_one_picture_in_colour_makes_all_rgb(tmp_path):
    write_picture_set(tmp_path, mode="L")
    write_picture(tmp_path / "dog" / "colour.png", mode="RGB")
    data, notes = all_of(tmp_path)
    assert data.inputs.shape == (7, 3, 4, 5)
    assert torch.equal(data.inputs[0, 0], data.inputs[0, 2])
    assert "6 of 7 images are grey, read as RGB like the others" in notes


def test_sizes_become_the_most_common_one(tmp_path):
    write_picture_set(tmp_path, size=(8, 6))
    write_picture(tmp_path / "dog" / "large.png", size=(80, 60))
    data, notes = all_of(tmp_path)
    assert data.inputs.shape == (7, 3, 6, 8)
    assert any(note.startswith("1 of 7 images resized to 6 × 8 pixels") for note in notes)
    assert "the most common size" in notes[0]


def test_image_size_is_asked_for(tmp_path):
    write_picture_set(tmp_path, size=(8, 6))
    data, notes = all_of(tmp_path, image_size=5)
    assert data.inputs.shape == (6, 3, 5, 5) and "as asked" in notes[0]


def test_train_and_test_folders(tmp_path):
    write_picture_set(tmp_path / "train", mode="L", size=(6, 6))
    write_picture_set(tmp_path / "test", mode="RGB", size=(9, 9), per_class=1)
    write_picture_set(tmp_path / "val", per_class=1)
    split = read(tmp_path)
    assert split.train.inputs.shape == (6, 1, 6, 6) and split.test.inputs.shape == (2, 1, 6, 6)
    assert split.test.classes == split.train.classes == ("cat", "dog")
    assert split.notes == (
        "folders beside train and test left unread: val",
        "test set: 2 of 2 images have colour, read as grey",
        "test set: 2 of 2 images resized to 6 × 6 pixels (height × width; bilinear, "
        "antialiased), the size of the training images",
    )


def test_a_train_folder_alone_is_held_out_from(tmp_path):
    write_picture_set(tmp_path / "train", per_class=5)
    split = read(tmp_path)
    assert (len(split.train), len(split.test)) == (8, 2)


def test_a_class_may_be_called_train(tmp_path):
    write_picture_set(tmp_path, classes=("car", "train"))
    assert all_of(tmp_path)[0].classes == ("car", "train")


def test_other_files_are_left_alone_and_told(tmp_path):
    write_picture_set(tmp_path)
    (tmp_path / "cat" / "notes.txt").write_text("meow")
    (tmp_path / "cat" / ".hidden.png").write_text("no picture")
    (tmp_path / "README").write_text("cats and dogs")
    data, notes = all_of(tmp_path)
    assert len(data) == 6 and "1 files that are not pictures left unread" in notes


def test_transparency_is_dropped_and_told(tmp_path):
    write_picture_set(tmp_path, mode="RGBA")
    data, notes = all_of(tmp_path)
    assert data.inputs.shape[1] == 3 and "transparency of 6 images dropped" in notes


@pytest.mark.parametrize("orientation, turns", [(1, 0), (3, 2), (6, 3), (8, 1)])
def test_a_camera_held_sideways(tmp_path, orientation, turns):
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        picture = Image.fromarray(pixels)
        exif = picture.getexif()
        exif[0x0112] = orientation
        picture.save(tmp_path / name / "1.png", exif=exif)
    data, notes = all_of(tmp_path)
    np.testing.assert_allclose(data.inputs[0, 0], np.rot90(pixels, turns) / 255, atol=1e-6)
    assert not any("resized" in note for note in notes)


MODES = {
    "1": (Image.new("1", (2, 2), 1), (1, 2, 2), 1.0),
    "L": (Image.new("L", (2, 2), 51), (1, 2, 2), 0.2),
    "LA": (Image.new("LA", (2, 2), (51, 9)), (1, 2, 2), 0.2),
    "P": (Image.new("RGB", (2, 2), (51, 51, 51)).convert("P"), (3, 2, 2), 0.2),
    "RGB": (Image.new("RGB", (2, 2), (51, 51, 51)), (3, 2, 2), 0.2),
    "RGBA": (Image.new("RGBA", (2, 2), (51, 51, 51, 9)), (3, 2, 2), 0.2),
    "I;16": (Image.fromarray(np.full((2, 2), 13107, dtype=np.uint16)), (1, 2, 2), 0.2),
}


@pytest.mark.parametrize("mode", MODES)
def test_modes_of_pictures(mode):
    picture, shape, value = MODES[mode]
    assert picture.mode == mode
    torch.testing.assert_close(picture_tensor(picture), torch.full(shape, value))
    assert picture_tensor(picture, 3).shape == (3, 2, 2)


class Gallery(torch.utils.data.Dataset):
    """Items (PIL picture, class number)."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return Image.new("RGB", (5, 4), (index, 0, 255)), index % 2


def test_pictures_from_a_dataset():
    data = read(Gallery(), hold_out_fraction=0).train
    assert data.inputs.shape == (6, 3, 4, 5)
    torch.testing.assert_close(data.inputs[:, 0, 0, 0] * 255, torch.arange(6.0))


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


# -- images of another data set ----------------------------------------------------------------


def images_of(inputs):
    return LabelledData(inputs, torch.arange(len(inputs)) % 2, ("a", "b"), "other")


def test_colours_become_grey_as_pillow_has_it():
    pixels = torch.randint(0, 256, (5, 3, 6, 6), generator=torch.Generator().manual_seed(0))
    grey = like_images(images_of(pixels / 255), (1, 6, 6)).inputs
    for image, found in zip(pixels, grey, strict=True):
        array = image.permute(1, 2, 0).numpy().astype("uint8")
        expected = torch.from_numpy(np.asarray(Image.fromarray(array).convert("L")).copy())
        assert (255 * found[0] - expected).abs().max() <= 1, "Pillow rounds to whole numbers"


def test_grey_becomes_three_colours_of_another_size():
    data = images_of(torch.rand(4, 1, 14, 14, generator=torch.Generator().manual_seed(0)))
    found = like_images(data, (3, 16, 16))
    assert found.inputs.shape == (4, 3, 16, 16) and found.classes == data.classes
    assert torch.equal(found.inputs[:, 0], found.inputs[:, 2])
    expected = resize_images(data.inputs, (16, 16))
    assert torch.equal(found.inputs[:, :1], expected)
    assert like_images(data, (1, 14, 14)) is data


def test_what_cannot_be_brought_to_the_shape_is_refused():
    with pytest.raises(CallerError, match="other: expected images of 1 channels, got 2"):
        like_images(images_of(torch.rand(4, 2, 6, 6)), (1, 6, 6))
    with pytest.raises(CallerError, match="expected images .* for a network of square images"):
        like_images(images_of(torch.rand(4, 36)), (1, 6, 6))
