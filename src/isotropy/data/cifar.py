"""CIFAR-10 in its binary form: records of 1 label byte and 3072 pixel bytes (R, G, B planes).

Images are divided by 255, then normalised per channel with the mean and standard deviation
that Immer et al. (2022) use for this set. Zero is then the mean colour, so that is what a
transformed image is padded with.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.data.files import read_bytes
from isotropy.data.labelled import LabelledData, Split

RECORD_BYTES = 1 + 3 * 32 * 32
NUM_CLASSES = 10
TEST_BATCH = "test_batch.bin"
MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
STANDARD_DEVIATION = (63.0 / 255, 62.1 / 255, 66.7 / 255)


def find_cifar_folder(folder: Path) -> Path | None:
    """Where in `folder` the binary batches lie, or None."""
    places = (folder, folder / "cifar-10-batches-bin")
    return next((each for each in places if _batches(each) or (each / TEST_BATCH).is_file()), None)


def read_cifar_folder(folder: Path, *, reference: LabelledData | None = None) -> Split:
    """Training data from `data_batch_*.bin`, test data from `test_batch.bin` where it is there.

    reference: the training data that this is a test set for; only `test_batch.bin` is read,
        where it is.

    Raises `CallerError` for a file that is not a whole number of records and for labels beyond
    the ten classes.
    """
    batches = _batches(folder)
    classes = _class_names(folder / "batches.meta.txt")
    notes = [
        "images normalised per channel: mean (125.3, 123.0, 113.9) / 255, "
        "standard deviation (63.0, 62.1, 66.7) / 255"
    ]
    test_batch = folder / TEST_BATCH
    test = _read([test_batch], classes, name="CIFAR-10 test") if test_batch.is_file() else None
    if reference is not None and test is not None:
        return Split(train=test, test=None, notes=tuple(notes))
    if not batches:
        raise CallerError(
            f"{folder / 'data_batch_1.bin'}: expected training batches here, found only "
            f"{TEST_BATCH}; put them beside it"
        )
    if len(batches) != 5:
        names = ", ".join(batch.name for batch in batches)
        notes.append(f"{len(batches)} of the 5 training batches found: {names}")
    train = _read(batches, classes, name="CIFAR-10")
    return Split(train=train, test=test, notes=tuple(notes))


def normalise(images: Tensor) -> Tensor:
    """Raw images in [0, 1], `(examples, 3, height, width)`, normalised in place and returned."""
    mean = torch.tensor(MEAN, dtype=images.dtype)[:, None, None]
    deviation = torch.tensor(STANDARD_DEVIATION, dtype=images.dtype)[:, None, None]
    return images.sub_(mean).div_(deviation)


def _batches(folder: Path) -> list[Path]:
    return sorted(folder.glob("data_batch_*.bin"))


def _class_names(path: Path) -> tuple[str, ...]:
    """The names in `batches.meta.txt`, one per line; "0" to "9" where there is no such file."""
    if not path.is_file():
        return tuple(str(label) for label in range(NUM_CLASSES))
    lines = read_bytes(path).decode("utf-8", errors="replace").splitlines()
    names = tuple(line.strip() for line in lines if line.strip())
    if len(names) != NUM_CLASSES:
        raise CallerError(
            f"{path}: expected {NUM_CLASSES} class names, one per line, got {len(names)}; "
            "correct the file or take it away"
        )
    return names


def _read(paths: list[Path], classes: tuple[str, ...], *, name: str) -> LabelledData:
    records = np.concatenate([_records(path) for path in paths])
    pixels = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32))
    return LabelledData(
        inputs=normalise(pixels.to(torch.float32).div_(255)),
        targets=torch.from_numpy(records[:, 0].astype(np.int64)),
        classes=classes,
        name=name,
    )


def _records(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """One batch, uint8 `(records, 3073)`."""
    content = read_bytes(path)
    if len(content) % RECORD_BYTES:
        raise CallerError(
            f"{path}: expected a whole number of {RECORD_BYTES}-byte records (1 label, 3072 "
            f"pixels), got {len(content)} bytes; download or copy it again"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD_BYTES)
    highest = int(records[:, 0].max())
    if highest >= NUM_CLASSES:
        raise CallerError(
            f"{path}: expected labels 0 to {NUM_CLASSES - 1}, got {highest}; "
            "this is not a batch of CIFAR-10 in binary form"
        )
    return records
