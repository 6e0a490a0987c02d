"""Small data files written byte by byte, so that no reader is tested against its own writer,
and the one assertion that all mistakes with them share."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from isotropy.checks import CallerError
from isotropy.data.readers import read

IDX_CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}
RECORD = 3073


def idx_bytes(array: np.ndarray) -> bytes:
    """An IDX file: zero bytes, type, axes, sizes and values, all big-endian."""
    code = IDX_CODES[array.dtype.str[1:]]
    header = struct.pack(">BBBB", 0, 0, code, array.ndim) + struct.pack(
        f">{array.ndim}I", *array.shape
    )
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def images_and_labels(count: int, size: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """uint8 images (count, size, size) and labels that go 0, 1, 2, 0, 1, 2, …"""
    images = np.random.default_rng(seed).integers(0, 256, (count, size, size), dtype=np.uint8)
    return images, (np.arange(count) % 3).astype(np.uint8)


def write_idx_set(folder: Path, part: str, count: int, *, zipped: bool = False, seed: int = 0):
    """`part`-images and `part`-labels in `folder`; returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = images_and_labels(count, seed=seed)
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
        content = idx_bytes(array)
        if zipped:
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(content))
        else:
            (folder / f"{part}-{name}-ubyte").write_bytes(content)
    return images, labels


def cifar_bytes(labels: list[int], seed: int = 0) -> bytes:
    """Records of one label byte and 3072 random pixel bytes."""
    random = np.random.default_rng(seed)
    return b"".join(
        bytes([label]) + random.integers(0, 256, RECORD - 1, dtype=np.uint8).tobytes()
        for label in labels
    )


def write_cifar(folder: Path, batches: int = 2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, batches + 1):
        (folder / f"data_batch_{number}.bin").write_bytes(cifar_bytes([0, 1, 9], seed=number))
    (folder / "test_batch.bin").write_bytes(cifar_bytes([2, 3], seed=99))


def write_picture(path: Path, *, size=(5, 4), mode: str = "RGB", seed: int = 0) -> np.ndarray:
    """A random lossless picture; size is PIL's (width, height). Returns its pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0]) + ((len(mode),) if len(mode) > 1 else ())
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def write_picture_set(folder: Path, classes=("cat", "dog"), per_class: int = 3, **options) -> None:
    for number, name in enumerate(classes):
        for index in range(per_class):
            write_picture(folder / name / f"{index}.png", seed=10 * number + index, **options)


def write_npz(folder: Path, **arrays) -> Path:
    path = folder / "data.npz"
    np.savez(path, **arrays)
    return path


def assert_one_sentence(source, culprit: Path | None, sentence: str) -> None:
    """`read(source)` raises one short line that matches `sentence` and names the culprit."""
    with pytest.raises(CallerError, match=sentence) as caught:
        read(source)
    text = str(caught.value)
    assert "\n" not in text and len(text.replace(str(source), "")) < 500
    assert culprit is None or str(culprit) in text
