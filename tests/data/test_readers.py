"""`load` on every kind of source: the right numbers, the right test set, the right notes."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch
from data_files import (
    cifar_bytes,
    idx_bytes,
    images_and_labels,
    write_cifar,
    write_idx_set,
    write_picture_set,
)
from torch.utils.data import Dataset, TensorDataset

from isotropy.checks import CallerError
from isotropy.data.labelled import LabelledData
from isotropy.data.readers import read


@pytest.mark.parametrize("subfolder", [".", "raw", "MNIST/raw", "FashionMNIST/raw"])
@pytest.mark.parametrize("zipped", [False, True])
def test_idx_folder(tmp_path, subfolder, zipped):
    images, labels = write_idx_set(tmp_path / subfolder, "train", 9, zipped=zipped)
    test_images, test_labels = write_idx_set(tmp_path / subfolder, "t10k", 6, seed=1)
    split = read(tmp_path)
    torch.testing.assert_close(split.train.inputs[:, 0], torch.from_numpy(images) / 255)
    torch.testing.assert_close(split.test.inputs[:, 0], torch.from_numpy(test_images) / 255)
    assert split.train.targets.tolist() == labels.tolist()
    assert split.test.targets.tolist() == test_labels.tolist()
    assert split.train.classes == split.test.classes == ("0", "1", "2") and split.notes == ()


def test_idx_images_file_finds_its_labels(tmp_path):
    _, labels = write_idx_set(tmp_path, "emnist-letters-train", 10, zipped=True)
    split = read(tmp_path / "emnist-letters-train-images-idx3-ubyte.gz")
    both = torch.cat([split.train.targets, split.test.targets])
    assert sorted(both.tolist()) == sorted(labels.tolist())
    assert "20 % (2 examples) held out by seed 0" in split.notes[0]


@pytest.mark.parametrize("number_type", ["u1", "i1", "i2", "i4", "f4", "f8"])
def test_idx_number_types(tmp_path, number_type):
    values = np.arange(4 * 3 * 2).reshape(4, 3, 2).astype(number_type)
    (tmp_path / "images").write_bytes(idx_bytes(values))
    (tmp_path / "labels").write_bytes(idx_bytes(np.array([0, 1, 0, 1], dtype=np.uint8)))
    data = read(tmp_path / "images", hold_out_fraction=0).train
    expected = values / 255 if number_type == "u1" else values
    torch.testing.assert_close(data.inputs[:, 0], torch.tensor(expected, dtype=torch.float32))


def test_cifar(tmp_path):
    write_cifar(tmp_path / "cifar-10-batches-bin", batches=5)
    split = read(tmp_path)
    assert split.train.inputs.shape == (15, 3, 32, 32) and split.test.inputs.shape[0] == 2
    assert split.train.targets.tolist() == [0, 1, 9] * 5 and split.train.num_classes == 10
    raw = np.frombuffer(cifar_bytes([0, 1, 9], seed=2), dtype=np.uint8).reshape(3, -1)
    planes = raw[1, 1:].reshape(3, 32, 32).astype(np.float64)
    mean, deviation = np.array([125.3, 123.0, 113.9]), np.array([63.0, 62.1, 66.7])
    expected = (planes - mean[:, None, None]) / deviation[:, None, None]
    np.testing.assert_allclose(split.train.inputs[4], expected, atol=1e-5)
    assert "normalised per channel: mean (125.3, 123.0, 113.9) / 255" in split.notes[0]


def test_cifar_names_and_missing_batches(tmp_path):
    write_cifar(tmp_path, batches=2)
    names = [f"thing {number}" for number in range(10)]
    (tmp_path / "batches.meta.txt").write_text("\n".join(names) + "\n\n")
    split = read(tmp_path)
    assert split.train.classes == split.test.classes == tuple(names)
    assert "2 of the 5 training batches found: data_batch_1.bin, data_batch_2.bin" in split.notes


def test_npz_with_its_test_set(tmp_path):
    images, labels = images_and_labels(9)
    path = tmp_path / "shapes.npz"
    np.savez(path, x=images, y=labels, x_test=images[:2], y_test=labels[:2])
    split = read(str(path))
    torch.testing.assert_close(split.train.inputs[:, 0], torch.from_numpy(images) / 255)
    assert split.test.targets.tolist() == [0, 1] and split.test.classes == ("0", "1", "2")
    assert split.train.name == "shapes" and any("channel axis" in note for note in split.notes)


def test_npz_under_other_names(tmp_path):
    path = tmp_path / "renamed.data"
    with path.open("wb") as file:
        np.savez_compressed(file, x_train=np.zeros((4, 5, 5, 3), np.uint8), y_train=[0, 1, 0, 1])
    split = read(path, hold_out_fraction=0.5)
    assert split.train.inputs.shape == (2, 3, 5, 5)
    assert any("moved from last to second" in note for note in split.notes)


def test_regression_from_npz(tmp_path):
    path = tmp_path / "curve.npz"
    np.savez(path, x=np.random.rand(10, 3), y=np.linspace(0, 1, 10))
    split = read(path)
    assert split.train.targets.shape == (8, 1) and split.train.classes is None


class Squares(Dataset):
    """Items (array, int) with class names, as torchvision's data sets have."""

    classes = ("even", "odd")

    def __init__(self, count: int = 300) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        if index >= self.count:
            raise IndexError
        return torch.full((1, 2, 2), float(index)), index % 2


def test_dataset_is_read_once_in_order():
    data = read(Squares(), hold_out_fraction=0).train
    assert data.inputs[:, 0, 0, 0].tolist() == list(range(300)) and len(data) == 300
    assert data.targets.tolist() == [0, 1] * 150 and data.classes == ("even", "odd")


def test_tensor_dataset_with_targets_as_tensors():
    inputs, targets = torch.rand(6, 3), torch.rand(6, 2)
    data = read(TensorDataset(inputs, targets), hold_out_fraction=0).train
    assert torch.equal(data.inputs, inputs) and torch.equal(data.targets, targets)


def test_pair_and_labelled_data_agree():
    inputs, targets = torch.rand(10, 1, 4, 4, requires_grad=True), torch.arange(10) % 2
    by_pair = read((inputs, targets))
    data = LabelledData(inputs.detach(), targets, None, "data")
    by_data = read(data)
    assert torch.equal(by_pair.train.inputs, by_data.train.inputs)
    assert not by_pair.train.inputs.requires_grad
    assert read(by_data).test is by_data.test


def test_data_that_are_no_images_are_taken_as_they_are():
    points = torch.rand(10, 7, 3)
    data = LabelledData(points, torch.arange(10) % 2, None, "points")
    assert read(data, hold_out_fraction=0).train is data


def test_hold_out_is_decided_by_the_seed():
    source = (torch.arange(20.0)[:, None], torch.arange(20) % 2)
    first, again, other = read(source), read(source), read(source, seed=5)
    assert torch.equal(first.test.inputs, again.test.inputs)
    assert not torch.equal(first.test.inputs, other.test.inputs)
    assert "held out by seed 5" in other.notes[-1]


def test_a_test_argument_wins_over_what_comes_along(tmp_path):
    write_idx_set(tmp_path / "one", "train", 9)
    write_idx_set(tmp_path / "one", "t10k", 6)
    write_idx_set(tmp_path / "two", "train", 12)
    write_idx_set(tmp_path / "two", "t10k", 3, seed=7)
    split = read(tmp_path / "one", test=tmp_path / "two")
    assert len(split.test) == 3 and len(split.train) == 9
    (tmp_path / "two" / "train-images-idx3-ubyte").unlink()
    assert len(read(tmp_path / "one", test=tmp_path / "two").test) == 3
    given = read(tmp_path / "one", test=(torch.rand(2, 1, 6, 6), [0, 1])).test
    assert given.classes == ("0", "1", "2")


@pytest.mark.parametrize("kind", ["cifar", "npz", "pictures"])
def test_a_test_source_with_two_parts_gives_its_test_part(tmp_path, kind):
    if kind == "cifar":
        write_cifar(tmp_path, batches=5)
        source, count = tmp_path, 2
    elif kind == "pictures":
        write_picture_set(tmp_path / "train", per_class=3)
        write_picture_set(tmp_path / "test", per_class=1)
        source, count = tmp_path, 2
    else:
        source, count = tmp_path / "a.npz", 3
        np.savez(source, x=np.ones((6, 2)), y=[0, 1] * 3, x_test=np.ones((3, 2)), y_test=[0, 1, 1])
    assert len(read(source, test=source).test) == len(read(source).test) == count


def test_cifar_test_batch_alone_serves_as_test_set(tmp_path):
    write_cifar(tmp_path / "train")
    write_cifar(tmp_path / "test", batches=0)
    assert len(read(tmp_path / "train", test=tmp_path / "test").test) == 2


def test_labelled_test_data_without_the_last_class():
    train = LabelledData(torch.rand(6, 2), torch.arange(6) % 3, ("a", "b", "c"), "train")
    test = LabelledData(torch.rand(2, 2), torch.tensor([0, 1]), None, "test")
    assert read(train, test=test).test.classes == ("a", "b", "c")


@pytest.mark.parametrize("kind", ["idx", "cifar", "pair"])
def test_image_size_resizes_everything(tmp_path, kind):
    source: object = tmp_path
    if kind == "idx":
        write_idx_set(tmp_path, "train", 9)
        write_idx_set(tmp_path, "t10k", 3)
    elif kind == "cifar":
        write_cifar(tmp_path)
    else:
        source = (torch.rand(10, 5, 7), [0, 1] * 5)
    split = read(source, image_size=4)
    assert split.train.inputs.shape[2:] == split.test.inputs.shape[2:] == (4, 4)
    assert any("to 4 × 4 pixels (bilinear, antialiased)" in note for note in split.notes)


def test_halving_a_smooth_image_averages_it():
    ramp = torch.arange(16.0).repeat(16, 1)[None, None].repeat(2, 1, 1, 1)
    split = read((ramp, [0, 1]), image_size=8, hold_out_fraction=0)
    inside = split.train.inputs[0, 0, 4, 1:-1]
    torch.testing.assert_close(inside, 2 * torch.arange(1.0, 7.0) + 0.5)


def test_image_size_already_right_changes_nothing():
    images = torch.rand(4, 1, 8, 8)
    split = read((images, [0, 1, 0, 1]), image_size=8, hold_out_fraction=0)
    assert split.train.inputs.data_ptr() == images.data_ptr()
    assert split.notes == ("no test set, and nothing held out",)


def test_absent_classes_are_told():
    split = read((torch.rand(9, 2), [1, 2, 3] * 3))
    assert "1 of 4 classes have no training example: 0" in split.notes


def test_unfit_test_sets_are_refused():
    images = (torch.rand(6, 1, 5, 5), [0, 1, 2] * 2)
    named = LabelledData(torch.rand(2, 1, 5, 5), torch.tensor([0, 1]), ("x", "y"), "others")
    cases = {
        r"training inputs, \(1, 5, 5\) each, got \(1, 6, 6\); image_size": (
            torch.rand(1, 6, 6),
            [0],
        ),
        r"labels 0 to 2 \(3 classes\), got 3": (torch.rand(1, 5, 5), [3]),
        r"labels of 3 classes, got regression targets \(1, 1\)": (torch.rand(1, 5, 5), [0.5]),
        r"others: expected the 3 classes .*\(0, 1, 2\), got 2 \(x, y\)": named,
    }
    for sentence, test in cases.items():
        with pytest.raises(CallerError, match=sentence):
            read(images, test=test)


def test_gzip_is_recognised_without_its_suffix(tmp_path):
    images, labels = images_and_labels(6)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(gzip.compress(idx_bytes(images)))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(gzip.compress(idx_bytes(labels)))
    assert len(read(tmp_path, hold_out_fraction=0).train) == 6
