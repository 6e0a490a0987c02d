"""Every mistake with archives, pictures and data in memory, and with the options of `load`.

A case is a function that makes the mistake under a folder and returns (source, culprit,
sentence); None as culprit stands for one without a path.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from data_files import (
    assert_one_sentence,
    images_and_labels,
    write_npz,
    write_picture,
    write_picture_set,
)
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from isotropy.checks import CallerError
from isotropy.data.readers import read

IMAGES, LABELS = images_and_labels(6)
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


@case
def npz_without_labels(folder):
    path = write_npz(folder, x=IMAGES)
    return path, path, "unlabelled, expected an array called y or y_train, got x"


@case
def npz_without_inputs(folder):
    path = write_npz(folder, images=IMAGES, y=LABELS)
    return path, path, "expected an array called x or x_train, got images, y"


@case
def npz_test_without_labels(folder):
    path = write_npz(folder, x=IMAGES, y=LABELS, x_test=IMAGES)
    return path, path, "unlabelled, expected an array called y_test"


@case
def npz_pickled(folder):
    path = write_npz(folder, x=IMAGES, y=np.array([{"a": 1}] * 6, dtype=object))
    return path, path, "got pickled Python objects in 'y', which are never opened"


@case
def npz_truncated(folder):
    path = write_npz(folder, x=IMAGES, y=LABELS)
    path.write_bytes(path.read_bytes()[:-30])
    return path, path, "got a damaged or truncated one"


@case
def npz_damaged(folder):
    path = write_npz(folder, x=IMAGES, y=LABELS)
    whole = bytearray(path.read_bytes())
    whole[200] ^= 0xFF  # among the pixels: the checksum tells
    path.write_bytes(bytes(whole))
    return path, path, "got 'x' damaged"


@case
def npz_that_is_text(folder):
    path = folder / "data.npz"
    path.write_text("no archive")
    return path, path, "expected an npz archive"


@case
def npz_of_no_arrays(folder):
    path = folder / "data.npz"
    np.savez(path)
    return path, path, "got no arrays"


@case
def npz_nan(folder):
    path = write_npz(folder, x=np.full((4, 2), np.nan), y=[0, 1, 0, 1])
    return path, path, "expected finite numbers, got 8 that are NaN"


@case
def npz_more_labels(folder):
    path = write_npz(folder, x=IMAGES[:2], y=LABELS)
    return path, path, "6 labels for 2 examples"


@case
def npz_labels_absurd(folder):
    path = write_npz(folder, x=IMAGES, y=LABELS.astype(int) * 1000)
    return path, path, "got 2000 with only 6 examples; renumber"


@case
def one_label_in_training(folder):
    path = write_npz(folder, x=IMAGES, y=LABELS * 0 + 1)
    return path, None, "at least two classes, got 6 of class '1' only"


@case
def pictures_in_no_class(folder):
    write_picture(folder / "a.png")
    return folder, folder, "pictures in no subfolder, which are unlabelled"


@case
def pictures_of_one_class(folder):
    write_picture_set(folder, classes=("cat",))
    return folder, folder, "at least two classes, got 1"


@case
def class_without_pictures(folder):
    write_picture_set(folder)
    (folder / "emu").mkdir()
    return folder, folder / "emu", "expected pictures of class 'emu' .* found none"


@case
def picture_empty(folder):
    write_picture_set(folder)
    (folder / "cat" / "bad.png").touch()
    return folder, folder / "cat" / "bad.png", "got an empty file"


@case
def picture_that_is_text(folder):
    write_picture_set(folder)
    (folder / "cat" / "bad.jpg").write_text("no picture")
    return folder, folder / "cat" / "bad.jpg", "expected a readable picture"


@case
def picture_truncated(folder):
    write_picture_set(folder, size=(40, 40))
    path = folder / "dog" / "1.png"
    path.write_bytes(path.read_bytes()[:-2000])
    return folder, path, "expected a readable picture"


@case
def picture_of_32_bits(folder):
    write_picture_set(folder)
    Image.fromarray(np.ones((4, 4), dtype=np.float32)).save(folder / "cat" / "f.tiff")
    return folder, folder / "cat" / "f.tiff", r"got PIL mode 'F' \(32 bits\)"


@case
def pictures_of_other_classes_in_test(folder):
    write_picture_set(folder / "train", classes=("cat", "dog"))
    write_picture_set(folder / "test", classes=("cat", "emu"))
    return folder, folder / "test", r"\(cat, dog\), got cat, emu \(unknown: emu; missing: dog\)"


@case
def pictures_of_no_class_in_test(folder):
    write_picture_set(folder / "train")
    write_picture(folder / "test" / "a.png")
    return folder, folder / "test", "unlabelled"


class Items(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


@case
def dataset_empty(folder):
    return Items([]), None, "Items: expected at least one example, got an empty data set"


@case
def dataset_without_targets(folder):
    return TensorDataset(torch.rand(3, 2)), None, r"expected items \(input, target\), got tuple"


@case
def dataset_of_bare_tensors(folder):
    return Items([torch.rand(2)] * 3), None, r"\(input, target\), got Tensor at item 0; unlabelled"


@case
def dataset_of_unequal_shapes(folder):
    items = [(torch.rand(1, 2, 2), 0), (torch.rand(1, 3, 3), 1)]
    return Items(items), None, r"as the first, \(1, 2, 2\), got \(1, 3, 3\) at item 1; resize"


@case
def dataset_with_labels_beyond_its_classes(folder):
    items = Items([(torch.rand(2), 0), (torch.rand(2), 2)])
    items.classes = ["a", "b"]
    return items, None, r"labels 0 to 1 \(2 classes\), got 2"


@case
def unlabelled_tensor(folder):
    return torch.rand(4, 2), None, "got Tensor; unlabelled inputs need their targets"


@case
def three_arrays(folder):
    return (1, 2, 3), None, r"a pair \(inputs, targets\) or LabelledData, got tuple"


@case
def nothing(folder):
    return None, None, "got NoneType"


@pytest.mark.parametrize("name", CASES)
def test_one_sentence_that_names_the_culprit(name, tmp_path):
    assert_one_sentence(*CASES[name](tmp_path))


def test_a_mistake_in_the_test_argument_names_its_path(tmp_path):
    (tmp_path / "bad.npz").touch()
    with pytest.raises(CallerError, match=rf"{tmp_path}/bad.npz: expected data, got an empty file"):
        read((IMAGES, LABELS), test=tmp_path / "bad.npz")


BAD_OPTIONS = {
    "image_size": ({"image_size": 0}, "image_size, in pixels: expected at least 1, got 0"),
    "hold out all": ({"hold_out_fraction": 1}, "from 0 to below 1, got 1"),
    "hold out less than nothing": ({"hold_out_fraction": -0.1}, "from 0 to below 1, got -0.1"),
    "hold out NaN": ({"hold_out_fraction": float("nan")}, "from 0 to below 1, got nan"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_options(name):
    options, sentence = BAD_OPTIONS[name]
    with pytest.raises(CallerError, match=sentence):
        read((IMAGES, LABELS), **options)


def test_only_images_are_resized():
    with pytest.raises(CallerError, match=r"to resize to 8 pixels, got \(4, 2\); leave image_size"):
        read((torch.rand(4, 2), [0, 1, 0, 1]), image_size=8)
