"""Every mistake with paths, files, pictures and data in memory: one sentence with the culprit.

A case is (make, culprit, sentence): `make(folder)` makes the mistake in an empty folder and returns
what is given to `read`; the culprit is a path in the folder, None for one without a path.
"""

from __future__ import annotations

import builtins
import gzip
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_files import (
    assert_one_sentence,
    cifar_bytes,
    idx_bytes,
    images_and_labels,
    write_cifar,
    write_idx_set,
    write_npz,
    write_picture,
    write_picture_set,
)
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from isotropy.checks import CallerError
from isotropy.data.readers import read

IMAGES, LABELS = images_and_labels(6)
PIXELS = idx_bytes(IMAGES)
TRAIN, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
Make = Callable[[Path], Any]


def file(name: str, content: bytes, then: Make = lambda folder: folder) -> Make:
    """One more file in the folder that `then` makes, which is named."""

    def make(folder: Path) -> Any:
        source = then(folder)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        return source

    return make


def at(name: str, make: Make) -> Make:
    """The same, with one file of the folder named in its place."""

    def named(folder: Path) -> Path:
        make(folder)
        return folder / name

    return named


def idx(content: bytes, labels: np.ndarray = LABELS) -> Make:
    """An images file with any content, and proper labels beside it."""
    return file(TRAIN, content, file(TRAIN_LABELS, idx_bytes(labels)))


def idx_sets(*parts: str) -> Make:
    def make(folder: Path) -> Path:
        for part in parts:
            place, _, name = part.rpartition("/")
            write_idx_set(folder / place, name, 6)
        return folder

    return make


def cifar(folder: Path) -> Path:
    write_cifar(folder)
    return folder


def cifar_test(folder: Path) -> Path:
    write_cifar(folder, batches=0)
    return folder


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


DAMAGED_GZIP = bytearray(gzip.compress(PIXELS))
DAMAGED_GZIP[-6] ^= 0xFF  # in the checksum
TABLES = file("d.csv", b"1", file("c.csv", b"1", file("b.csv", b"1", file("a.csv", b"1"))))

PATHS = {
    "missing": (lambda folder: folder / "nowhere", "nowhere", "found nothing; check the path"),
    "empty path": (lambda folder: "", None, "got an empty path"),
    "a NUL": (lambda folder: f"{folder}/a\0b", "", "found nothing"),
    "endless": (lambda folder: folder / ("a" * 5000), "", "found nothing"),
    "pipe": (pipe, "pipe", "got a device, pipe or socket"),
    "empty file": (at("data.npz", file("data.npz", b"")), "data.npz", "got an empty file"),
    "empty folder": (lambda folder: folder, "", "got an empty folder"),
    "hidden files only": (file(".DS_Store", b"x"), "", "got an empty folder"),
    "unknown folder": (
        TABLES, "",
        r"IDX files .* CIFAR-10 .*npz archive .* pictures .* a.csv, b.csv, c.csv and 1 more"),
    "unknown file": (
        at("music.mp3", file("music.mp3", b"ID3\x03\0")), "music.mp3",
        "begins with bytes 49 44 33 03; convert it"),
}  # fmt: skip
IDX = {
    "truncated": (
        idx(PIXELS[:-5]), TRAIN, r"expected 232 bytes for 6 × 6 × 6 values, got 227 \(truncated\)"),
    "too long": (idx(PIXELS + b"x"), TRAIN, r"expected 232 bytes .* got 233 \(too long\)"),
    "no header": (
        idx(PIXELS[:10]), TRAIN, r"at least 16 bytes for the header, got 10 \(truncated\)"),
    "absurd size": (idx(b"\0\0\x08\x03" + b"\xff" * 12), TRAIN, r"got 16 \(truncated\)"),
    "bad magic": (
        idx(b"<html>not found</html>"), TRAIN, "expected an IDX file, .* got bytes 3c 68 74 6d"),
    "unknown number type": (
        at(TRAIN, idx(b"\0\0\x07\x01" + b"\0" * 8)), TRAIN,
        "expected an IDX file, .* got bytes 00 00 07 01"),
    "empty": (idx(b""), TRAIN, "got an empty file"),
    "no images": (
        idx(idx_bytes(IMAGES[:0]), LABELS[:0]), "",
        "number of examples: expected at least 1, got 0"),
    "gzip truncated": (
        idx(gzip.compress(PIXELS)[:-20]), TRAIN, "one that ends early .truncated after"),
    "gzip damaged": (idx(bytes(DAMAGED_GZIP)), TRAIN, "got a damaged one"),
    "gzip of something else": (
        at("data.gz", file("data.gz", gzip.compress(b"a,b,c"))), "data.gz", "expected an IDX file"),
    "no labels": (file(TRAIN, PIXELS), TRAIN, rf"labels in .*/{TRAIN_LABELS} .*unlabelled"),
    "odd name": (
        at("faces", file("faces", PIXELS)), "faces",
        "expected 'images' in the name of this file, .* got faces; call the pair"),
    "labels named instead of images": (
        at(TRAIN_LABELS, idx(PIXELS)), TRAIN_LABELS,
        r"expected images .* got an array of shape \(6,\); name the images file"),
    "more labels": (
        idx(idx_bytes(IMAGES[:4])), "", "more labels than examples: 6 labels for 4 examples"),
    "negative labels": (
        idx(PIXELS, LABELS.astype(np.int8) - 1), "", "labels from 0 up, got -1 at index 0"),
    "one class": (idx(PIXELS, LABELS * 0), "", "at least two classes, got 1"),
    "NaN pixels": (
        idx(idx_bytes(np.full((6, 2, 2), np.nan, dtype=np.float32))), "",
        "expected finite numbers, got 24 that are NaN"),
    "test set only": (idx_sets("t10k"), TRAIN, "found only the test images"),
    "test labels beyond the training classes": (
        file("t10k-labels-idx1-ubyte", idx_bytes(LABELS + 1), idx_sets("train", "t10k")), "",
        r"test: expected labels 0 to 2 \(3 classes\), got 3"),
    "two sets": (
        idx_sets("MNIST/raw/train", "FashionMNIST/raw/train"), "",
        "expected one data set, found several"),
}  # fmt: skip
CIFAR = {
    "wrong size": (
        file("data_batch_2.bin", cifar_bytes([1, 2])[:-1], cifar), "data_batch_2.bin",
        "whole number of 3073-byte records .* got 6145 bytes"),
    "empty batch": (file("test_batch.bin", b"", cifar), "test_batch.bin", "got an empty file"),
    "wrong label": (
        file("data_batch_1.bin", cifar_bytes([3, 77]), cifar), "data_batch_1.bin",
        "expected labels 0 to 9, got 77"),
    "wrong names": (
        file("batches.meta.txt", b"cat\ndog\n", cifar), "batches.meta.txt",
        "expected 10 class names, .* got 2"),
    "test set only": (cifar_test, "data_batch_1.bin", "found only test_batch.bin"),
}  # fmt: skip


def npz(change: Callable[[bytearray], Any] | None = None, **arrays: Any) -> Make:
    """An archive, with its bytes changed."""

    def make(folder: Path) -> Path:
        path = write_npz(folder, **arrays)
        if change is not None:
            content = bytearray(path.read_bytes())
            change(content)
            path.write_bytes(content)
        return path

    return make


def cut_off(content: bytearray) -> None:
    del content[-30:]


def damage(content: bytearray) -> None:
    content[200] ^= 0xFF  # among the pixels: the checksum tells


OBJECTS = np.array([{"a": 1}] * 6, dtype=object)
NPZ = {
    "no labels": (npz(x=IMAGES), "unlabelled, expected an array called y or y_train, got x"),
    "no inputs": (
        npz(images=IMAGES, y=LABELS), "expected an array called x or x_train, got images, y"),
    "test without labels": (
        npz(x=IMAGES, y=LABELS, x_test=IMAGES), "unlabelled, expected an array called y_test"),
    "pickled": (
        npz(x=IMAGES, y=OBJECTS), "got pickled Python objects in 'y', which are never opened"),
    "truncated": (npz(cut_off, x=IMAGES, y=LABELS), "got a damaged or truncated one"),
    "damaged": (npz(damage, x=IMAGES, y=LABELS), "got 'x' damaged"),
    "text": (at("data.npz", file("data.npz", b"no archive")), "expected an npz archive"),
    "no arrays": (npz(), "got no arrays"),
    "NaN": (
        npz(x=np.full((4, 2), np.nan), y=[0, 1, 0, 1]),
        "expected finite numbers, got 8 that are NaN"),
    "more labels": (npz(x=IMAGES[:2], y=LABELS), "6 labels for 2 examples"),
    "absurd labels": (
        npz(x=IMAGES, y=LABELS.astype(int) * 1000), "got 2000 with only 6 examples; renumber"),
}  # fmt: skip


def pictures(*folders: str, **options: Any) -> Make:
    """Three pictures in each of these folders; a cat and a dog without any."""

    def make(folder: Path) -> Path:
        write_picture_set(folder, folders or ("cat", "dog"), **options)
        return folder

    return make


def truncated_picture(folder: Path) -> Path:
    write_picture_set(folder, size=(40, 40))
    path = folder / "dog" / "1.png"
    path.write_bytes(path.read_bytes()[:-2000])
    return folder


def float_picture(folder: Path) -> Path:
    write_picture_set(folder)
    Image.fromarray(np.ones((4, 4), dtype=np.float32)).save(folder / "cat" / "f.tiff")
    return folder


def class_without_pictures(folder: Path) -> Path:
    write_picture_set(folder)
    (folder / "emu").mkdir()
    return folder


def unlabelled_picture(place: str, then: Make = lambda folder: folder) -> Make:
    def make(folder: Path) -> Path:
        then(folder)
        write_picture(folder / place / "a.png")
        return folder

    return make


PICTURES = {
    "in no class": (unlabelled_picture(""), "", "pictures in no subfolder, which are unlabelled"),
    "one class": (pictures("cat"), "", "at least two classes, got 1"),
    "class without": (
        class_without_pictures, "emu", "expected pictures of class 'emu' .* found none"),
    "empty": (file("cat/bad.png", b"", pictures()), "cat/bad.png", "got an empty file"),
    "text": (
        file("cat/bad.jpg", b"no picture", pictures()), "cat/bad.jpg",
        "expected a readable picture"),
    "truncated": (truncated_picture, "dog/1.png", "expected a readable picture"),
    "of 32 bits": (float_picture, "cat/f.tiff", r"got PIL mode 'F' \(32 bits\)"),
    "other classes in test": (
        pictures("train/cat", "train/dog", "test/cat", "test/emu"), "test",
        r"\(cat, dog\), got cat, emu \(unknown: emu; missing: dog\)"),
    "no class in test": (
        unlabelled_picture("test", pictures("train/cat", "train/dog")), "test", "unlabelled"),
}  # fmt: skip


class Items(Dataset):
    def __init__(self, items: list[Any], classes: list[str] | None = None) -> None:
        self.items, self.classes = items, classes

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


IN_MEMORY = {
    "empty": (Items([]), "Items: expected at least one example, got an empty data set"),
    "no targets": (
        TensorDataset(torch.rand(3, 2)), r"expected items \(input, target\), got tuple"),
    "bare tensors": (
        Items([torch.rand(2)] * 3), r"\(input, target\), got Tensor at item 0; unlabelled"),
    "unequal shapes": (
        Items([(torch.rand(1, 2, 2), 0), (torch.rand(1, 3, 3), 1)]),
        r"as the first, \(1, 2, 2\), got \(1, 3, 3\) at item 1; resize"),
    "labels beyond its classes": (
        Items([(torch.rand(2), 0), (torch.rand(2), 2)], ["a", "b"]),
        r"labels 0 to 1 \(2 classes\), got 2"),
    "one label": ((IMAGES, LABELS * 0 + 1), "at least two classes, got 6 of class '1' only"),
    "unlabelled tensor": (torch.rand(4, 2), "got Tensor; unlabelled inputs need their targets"),
    "three arrays": ((1, 2, 3), r"a pair \(inputs, targets\) or LabelledData, got tuple"),
    "nothing": (None, "got NoneType"),
}  # fmt: skip

CASES = {
    **{f"path, {name}": case for name, case in PATHS.items()},
    **{f"IDX, {name}": case for name, case in IDX.items()},
    **{f"CIFAR, {name}": case for name, case in CIFAR.items()},
    **{f"npz, {name}": (make, "data.npz", told) for name, (make, told) in NPZ.items()},
    **{f"pictures, {name}": case for name, case in PICTURES.items()},
}


@pytest.mark.parametrize(("make", "culprit", "sentence"), CASES.values(), ids=CASES)
def test_one_sentence_that_names_the_culprit(make, culprit, sentence, tmp_path):
    source = make(tmp_path)
    assert_one_sentence(source, None if culprit is None else tmp_path / culprit, sentence)


@pytest.mark.parametrize(("source", "sentence"), IN_MEMORY.values(), ids=IN_MEMORY)
def test_mistakes_in_memory(source, sentence):
    assert_one_sentence(source, None, sentence)


@pytest.mark.parametrize("kind", ["file", "folder", "picture", "class folder"])
def test_permission_denied(tmp_path, kind, monkeypatch):
    """Simulated, because the superuser may read everything."""
    source = tmp_path
    if kind == "file":
        source = culprit = write_npz(tmp_path, x=IMAGES, y=LABELS)
    else:
        write_picture_set(tmp_path)
        culprit = tmp_path / {"picture": "cat/1.png", "folder": ""}.get(kind, "dog")

    def refuse(function):
        def wrapped(path, *arguments, **options):
            if str(path) == str(culprit):
                raise PermissionError(13, "Permission denied", str(path))
            return function(path, *arguments, **options)

        return wrapped

    monkeypatch.setattr(builtins, "open", refuse(open))
    monkeypatch.setattr(Path, "open", refuse(Path.open))
    monkeypatch.setattr(Path, "iterdir", refuse(Path.iterdir))
    with pytest.raises(CallerError, match="permission denied") as caught:
        read(source)
    assert str(culprit) in str(caught.value)


@pytest.mark.skipif(os.getuid() == 0, reason="the superuser may read everything")
def test_permission_denied_by_the_file_system(tmp_path):
    path = write_npz(tmp_path, x=IMAGES, y=LABELS)
    path.chmod(0)
    with pytest.raises(CallerError, match="permission denied"):
        read(path)


def test_a_socket_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        with pytest.raises(CallerError, match="got a device, pipe or socket"):
            read("s")


def test_a_mistake_in_the_test_argument_names_its_path(tmp_path):
    (tmp_path / "bad.npz").touch()
    with pytest.raises(CallerError, match=rf"{tmp_path}/bad.npz: expected data, got an empty file"):
        read((IMAGES, LABELS), test=tmp_path / "bad.npz")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"image_size": 0}, "image_size, in pixels: expected at least 1, got 0"),
        ({"image_size": "large"}, "unknown image_size 'large'"),
        ({"hold_out_fraction": 1}, "from 0 to below 1, got 1"),
        ({"hold_out_fraction": -0.1}, "from 0 to below 1, got -0.1"),
        ({"hold_out_fraction": float("nan")}, "from 0 to below 1, got nan"),
    ],
)
def test_bad_options(options, sentence):
    with pytest.raises(CallerError, match=sentence):
        read((IMAGES, LABELS), **options)


def test_only_images_are_resized():
    with pytest.raises(CallerError, match=r"to resize to 8 pixels, got \(4, 2\); leave image_size"):
        read((torch.rand(4, 2), [0, 1, 0, 1]), image_size=8)
