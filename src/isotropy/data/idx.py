"""IDX files, the format of MNIST and Fashion-MNIST, plain or gzipped.

Layout: two zero bytes, one byte for the number type, one for the number of axes, each axis as
a big-endian 32-bit size, then the values, big-endian, last axis fastest.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from isotropy.checks import CallerError
from isotropy.data.arrays import labelled_from_arrays
from isotropy.data.files import read_bytes
from isotropy.data.labelled import LabelledData, Split

NUMBER_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
SUBFOLDERS = (".", "raw", "MNIST/raw", "FashionMNIST/raw")


def read_idx(path: Path) -> np.ndarray[Any, Any]:
    """The array in an IDX file, with the axes and number type that its header names.

    Raises `CallerError` for a wrong first four bytes and for more or fewer bytes than the header
    promises. Tested against files written by hand, byte by byte.
    """
    content = read_bytes(path)
    start = content[:4]
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in NUMBER_TYPES or start[3] == 0:
        raise CallerError(
            f"{path}: expected an IDX file, which begins 00 00 (type) (axes), got bytes "
            f"{start.hex(' ')}; download it again or name another file"
        )
    number_type, axes = np.dtype(NUMBER_TYPES[start[2]]), start[3]
    header = 4 + 4 * axes
    if len(content) < header:
        raise CallerError(
            f"{path}: expected at least {header} bytes for the header, got {len(content)} "
            "(truncated); download or copy it again"
        )
    shape = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes)]
    expected = header + math.prod(shape) * number_type.itemsize
    if len(content) != expected:
        size = " × ".join(str(length) for length in shape)
        problem = "truncated" if len(content) < expected else "too long"
        raise CallerError(
            f"{path}: expected {expected} bytes for {size} values, got {len(content)} "
            f"({problem}); download or copy it again"
        )
    values = np.frombuffer(content, dtype=number_type, offset=header).reshape(shape)
    return values.astype(number_type.newbyteorder("="))


def find_idx_folder(folder: Path) -> Path | None:
    """Where in `folder` the IDX image files lie, or None; raises where two sets are found."""
    found = [
        place
        for place in (folder / subfolder for subfolder in SUBFOLDERS)
        if _find(place, "train-images-idx3-ubyte") or _find(place, "t10k-images-idx3-ubyte")
    ]
    if len(found) > 1:
        raise CallerError(
            f"{folder}: expected one data set, found several ({' and '.join(map(str, found))}); "
            "name one of these folders"
        )
    return found[0] if found else None


def read_idx_folder(folder: Path, *, reference: LabelledData | None = None) -> Split:
    """MNIST-like files: training set `train-…`, and test set `t10k-…` where it is there.

    reference: the training data that this is a test set for; only `t10k-…` is read, where it is.
    """
    name = folder.parent.name if folder.name == "raw" else folder.name
    images = _find(folder, "train-images-idx3-ubyte")
    test_images = _find(folder, "t10k-images-idx3-ubyte")
    if reference is not None and test_images is not None:
        test = read_idx_pair(test_images, name=f"{name} test", reference=reference)
        return Split(train=test, test=None)
    if images is None:
        raise CallerError(
            f"{folder / 'train-images-idx3-ubyte'}: expected the training images here (or with "
            ".gz), found only the test images; put the file beside them or name the test file"
        )
    train = read_idx_pair(images, name=name, reference=reference)
    if test_images is None:
        return Split(train=train, test=None)
    return Split(train=train, test=read_idx_pair(test_images, name=f"{name} test", reference=train))


def read_idx_pair(
    images: Path, *, name: str | None = None, reference: LabelledData | None = None
) -> LabelledData:
    """An IDX images file with the labels file beside it.

    The labels' name is that of the images with `images` → `labels` and `idx3` → `idx1`, with or
    without `.gz`. Raises `CallerError` that names the labels file where it is missing.
    """
    pixels = read_idx(images)
    if pixels.ndim not in (3, 4):
        raise CallerError(
            f"{images}: expected images (examples, height, width), got an array of shape "
            f"{pixels.shape}; name the images file, its labels are found beside it"
        )
    plain = images.name.removesuffix(".gz")
    wanted = plain.replace("images", "labels").replace("idx3", "idx1")
    if wanted == plain:
        raise CallerError(
            f"{images}: expected 'images' in the name of this file, to find its labels by, got "
            f"{images.name}; call the pair something like train-images-idx3-ubyte and "
            "train-labels-idx1-ubyte"
        )
    labels = _find(images.parent, wanted)
    if labels is None:
        raise CallerError(
            f"{images}: expected its labels in {images.parent / wanted} (or with .gz), found none; "
            "unlabelled images cannot be learned from, put the labels beside them"
        )
    data, _ = labelled_from_arrays(
        pixels, read_idx(labels), name=name or plain, reference=reference
    )
    return data


def _find(folder: Path, plain: str) -> Path | None:
    """The file called `plain` in `folder`, or its gzipped form; the plain one wins."""
    return next((path for path in (folder / plain, folder / f"{plain}.gz") if path.is_file()), None)
