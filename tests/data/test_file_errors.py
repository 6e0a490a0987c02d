"""Every mistake with paths, IDX files and CIFAR-10: one sentence, with the culprit's path in it.

A case is a function that makes the mistake under a folder and returns (source, culprit,
sentence); None as culprit stands for one without a path.
"""

from __future__ import annotations

import builtins
import gzip
import os
import socket
from pathlib import Path

import numpy as np
import pytest
from data_files import (
    assert_one_sentence,
    cifar_bytes,
    idx_bytes,
    images_and_labels,
    write_cifar,
    write_idx_set,
    write_npz,
    write_picture_set,
)

from isotropy.checks import CallerError
from isotropy.data.readers import read

IMAGES, LABELS = images_and_labels(6)
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def idx_file(folder, content: bytes, labels=LABELS):
    """An images file with any content, and proper labels beside it."""
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(content)
    (folder / "train-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
    return path


@case
def missing_path(folder):
    return folder / "nowhere", folder / "nowhere", "found nothing; check the path"


@case
def empty_path(folder):
    return "", None, "got an empty path"


@case
def path_with_a_nul(folder):
    return f"{folder}/a\0b", folder, "found nothing"


@case
def endless_path(folder):
    return folder / ("a" * 5000), folder, "found nothing"


@case
def pipe(folder):
    os.mkfifo(folder / "pipe")
    return folder / "pipe", folder / "pipe", "got a device, pipe or socket"


@case
def empty_file(folder):
    (folder / "data.npz").touch()
    return folder / "data.npz", folder / "data.npz", "got an empty file"


@case
def empty_folder(folder):
    return folder, folder, "got an empty folder"


@case
def hidden_files_only(folder):
    (folder / ".DS_Store").write_bytes(b"x")
    return folder, folder, "got an empty folder"


@case
def unknown_folder(folder):
    for name in "abcd":
        (folder / f"{name}.csv").write_text("1,2")
    sentence = r"IDX files .* CIFAR-10 .*npz archive .* pictures .* a.csv, b.csv, c.csv and 1 more"
    return folder, folder, sentence


@case
def unknown_file(folder):
    (folder / "table.csv").write_text("1,2")
    return folder / "table.csv", folder / "table.csv", "begins with bytes 31 2c 32; convert it"


@case
def idx_truncated(folder):
    path = idx_file(folder, idx_bytes(IMAGES)[:-5])
    return folder, path, r"expected 232 bytes for 6 × 6 × 6 values, got 227 \(truncated\)"


@case
def idx_too_long(folder):
    path = idx_file(folder, idx_bytes(IMAGES) + b"x")
    return folder, path, r"expected 232 bytes .* got 233 \(too long\)"


@case
def idx_without_header(folder):
    path = idx_file(folder, idx_bytes(IMAGES)[:10])
    return folder, path, r"at least 16 bytes for the header, got 10 \(truncated\)"


@case
def idx_of_absurd_size(folder):
    path = idx_file(folder, b"\0\0\x08\x03" + b"\xff" * 12)
    return folder, path, r"got 16 \(truncated\)"


@case
def idx_bad_magic(folder):
    path = idx_file(folder, b"<html>not found</html>")
    return folder, path, "expected an IDX file, .* got bytes 3c 68 74 6d"


@case
def idx_unknown_number_type(folder):
    path = idx_file(folder, b"\0\0\x07\x01" + b"\0" * 8)
    return path, path, "expected an IDX file, .* got bytes 00 00 07 01"


@case
def idx_empty(folder):
    path = idx_file(folder, b"")
    return folder, path, "got an empty file"


@case
def idx_without_images(folder):
    path = idx_file(folder, idx_bytes(IMAGES[:0]), LABELS[:0])
    return folder, path.parent, "number of examples: expected at least 1, got 0"


@case
def gzip_truncated(folder):
    path = idx_file(folder, gzip.compress(idx_bytes(IMAGES))[:-20])
    return folder, path, "one that ends early .truncated after"


@case
def gzip_damaged(folder):
    whole = bytearray(gzip.compress(idx_bytes(IMAGES)))
    whole[-6] ^= 0xFF  # in the checksum
    path = idx_file(folder, bytes(whole))
    return folder, path, "got a damaged one"


@case
def gzip_of_something_else(folder):
    path = folder / "data.gz"
    path.write_bytes(gzip.compress(b"a,b,c"))
    return path, path, "expected an IDX file"


@case
def idx_without_labels(folder):
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(idx_bytes(IMAGES))
    return folder, path, rf"labels in {folder}/train-labels-idx1-ubyte .*unlabelled"


@case
def idx_under_an_odd_name(folder):
    path = folder / "faces"
    path.write_bytes(idx_bytes(IMAGES))
    return path, path, "expected 'images' in the name of this file, .* got faces; call the pair"


@case
def idx_labels_named_instead_of_images(folder):
    idx_file(folder, idx_bytes(IMAGES))
    path = folder / "train-labels-idx1-ubyte"
    return path, path, r"expected images .* got an array of shape \(6,\); name the images file"


@case
def idx_more_labels_than_images(folder):
    idx_file(folder, idx_bytes(IMAGES[:4]))
    return folder, folder, "more labels than examples: 6 labels for 4 examples"


@case
def idx_negative_labels(folder):
    idx_file(folder, idx_bytes(IMAGES), LABELS.astype(np.int8) - 1)
    return folder, folder, "labels from 0 up, got -1 at index 0"


@case
def idx_one_class(folder):
    idx_file(folder, idx_bytes(IMAGES), LABELS * 0)
    return folder, folder, "at least two classes, got 1"


@case
def idx_nan_pixels(folder):
    idx_file(folder, idx_bytes(np.full((6, 2, 2), np.nan, dtype=np.float32)))
    return folder, folder, "expected finite numbers, got 24 that are NaN"


@case
def idx_test_set_only(folder):
    write_idx_set(folder, "t10k", 3)
    return folder, folder / "train-images-idx3-ubyte", "found only the test images"


@case
def idx_test_labels_beyond_the_training_classes(folder):
    write_idx_set(folder, "train", 6)
    write_idx_set(folder, "t10k", 6)
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(LABELS + 1))
    return folder, folder, r"test: expected labels 0 to 2 \(3 classes\), got 3"


@case
def two_sets_in_one_folder(folder):
    write_idx_set(folder / "MNIST" / "raw", "train", 6)
    write_idx_set(folder / "FashionMNIST" / "raw", "train", 6)
    return folder, folder, "expected one data set, found several"


@case
def cifar_wrong_size(folder):
    write_cifar(folder)
    path = folder / "data_batch_2.bin"
    path.write_bytes(cifar_bytes([1, 2])[:-1])
    return folder, path, "whole number of 3073-byte records .* got 6145 bytes"


@case
def cifar_empty_batch(folder):
    write_cifar(folder)
    (folder / "test_batch.bin").write_bytes(b"")
    return folder, folder / "test_batch.bin", "got an empty file"


@case
def cifar_wrong_label(folder):
    write_cifar(folder)
    (folder / "data_batch_1.bin").write_bytes(cifar_bytes([3, 77]))
    return folder, folder / "data_batch_1.bin", "expected labels 0 to 9, got 77"


@case
def cifar_wrong_names(folder):
    write_cifar(folder)
    (folder / "batches.meta.txt").write_text("cat\ndog\n")
    return folder, folder / "batches.meta.txt", "expected 10 class names, .* got 2"


@case
def cifar_test_set_only(folder):
    write_cifar(folder, batches=0)
    return folder, folder / "data_batch_1.bin", "found only test_batch.bin"


@pytest.mark.parametrize("name", CASES)
def test_one_sentence_that_names_the_culprit(name, tmp_path):
    assert_one_sentence(*CASES[name](tmp_path))


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
