"""Files with labelled data: NumPy's, IDX files and CIFAR-10's binary batches.

    npz    `x` and `y` (or `x_train`, `y_train`), optionally `x_test` and `y_test`. Pickled arrays
           are refused: opening one can run any code.
    npy    a pair of files, whose names differ in `x` and `y`, `inputs` and `targets`, `images` and
           `labels` and so on; `x_test.npy` and `y_test.npy` beside them are the test part
    IDX    the format of MNIST, plain or gzipped: two zero bytes, one byte for the number type, one
           for the number of axes, each axis as a big-endian 32-bit size, then the values,
           big-endian, last axis fastest. Gzip is recognised by its first two bytes.
    CIFAR  records of 1 label byte and 3072 pixel bytes (R, G, B planes). Images are divided by 255,
           then normalised per channel with the mean and standard deviation that Immer et al. (2022)
           use for this set. Zero is then the mean colour, with which transformed images are padded.

Whatever the file system refuses becomes a sentence with the path. Where there is a training and a
test part, `split_of` decides which are read.
"""

from __future__ import annotations

import contextlib
import gzip
import lzma
import math
import re
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib import format as npy

from isotropy.checks import CallerError, check_memory
from isotropy.data.labelled import (
    LabelledData,
    Layout,
    Notes,
    Split,
    labelled_from_arrays,
    normalised,
)

ZIP_START = b"PK"
UNPACKING = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError,
    NotImplementedError, KeyError,
)  # fmt: skip
"""What Python raises for damaged archives."""
UNPACKED_AT_ONCE = 1 << 24
SMALLER = "take part of the data"

ReadPart = Callable[[bool, LabelledData | None], tuple[LabelledData, Notes]]
"""Reads the training part, or with True the test part, given the training data it belongs to."""


def split_of(part: ReadPart, has_test: bool, reference: LabelledData | None) -> Split:
    """The training part, and the test part where there is one.

    reference: the training data that this is a test set for. Then the test part alone is read, or
        the training part in place of it where there is no other.
    """
    if has_test and reference is not None:
        test, notes = part(True, reference)
        return Split(train=test, test=None, notes=notes)
    train, notes = part(False, reference)
    split = Split(train=train, test=None, notes=notes)
    return with_test(split, *part(True, train)) if has_test else split


def with_test(split: Split, test: LabelledData, notes: Notes) -> Split:
    """`split` with another test set, and the notes on it."""
    more = tuple(f"test set: {note}" for note in notes)
    return replace(split, test=test, notes=split.notes + more)


def read_npz(
    path: Path, *, layout: Layout = "auto", reference: LabelledData | None = None
) -> Split:
    """Training data from `x`, `y`; test data from `x_test`, `y_test` where they are there.

    x: `(examples, features...)`; images as `labelled.standard_inputs` understands them.
    y: labels or outputs as `labelled.standard_targets` understands them.
    layout: what inputs are, as in `labelled.standard_inputs`.
    reference: the training data that this is a test set for.
    Raises `CallerError` where an array is missing, pickled or damaged.
    """
    with open_npz(path) as archive:

        def part(is_test: bool, known: LabelledData | None) -> tuple[LabelledData, Notes]:
            ends = ("_test",) if is_test else ("", "_train")
            x, y = (read_array(archive, [each + end for end in ends], path) for each in "xy")
            name = f"{path.stem} test" if is_test else path.stem
            return labelled_from_arrays(x, y, name=name, layout=layout, reference=known)

        return split_of(part, not {"x_test", "y_test"}.isdisjoint(archive.files), reference)


def open_npz(path: Path) -> Any:
    """An archive of arrays that opens none that are pickled; raises `CallerError` if damaged."""
    if not zipfile.is_zipfile(path):
        raise CallerError(
            f"{path}: expected an npz archive, got a damaged or truncated one; "
            "write it again with numpy.savez_compressed"
        )
    try:
        return np.load(path, allow_pickle=False)
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError) as error:
        raise _damaged(path, "the archive", error) from None


def read_array(archive: Any, names: Sequence[str], path: Path) -> np.ndarray[Any, Any]:
    """The array stored under the first of `names` that is there."""
    name = next((each for each in names if each in archive.files), None)
    if name is None:
        found = ", ".join(archive.files[:6]) + (" …" if len(archive.files) > 6 else "")
        unlabelled = "unlabelled, " if names[0].startswith("y") else ""
        raise CallerError(
            f"{path}: {unlabelled}expected an array called {' or '.join(names)}, got "
            f"{found or 'no arrays'}; write it with "
            "numpy.savez_compressed(path, x=inputs, y=labels)"
        )
    try:
        _check_member(archive, name, path)
        array = archive[name]
    except CallerError:
        raise
    except ValueError as error:
        if "pickle" in str(error):
            raise CallerError(
                f"{path}: expected arrays of numbers, got pickled Python objects in {name!r}, "
                "which are never opened; convert it to one type, such as float32, and save again"
            ) from None
        raise _damaged(path, name, error) from None
    except UNPACKING as error:
        raise _damaged(path, name, error) from None
    if not isinstance(array, np.ndarray):  # a member of the archive that is no array: its bytes
        raise _damaged(path, name, "not in NumPy's format")
    return array


def _check_member(archive: Any, name: str, path: Path) -> None:
    """Raise unless an array of an archive fits into memory and is as long as its header says."""
    known = {each.removesuffix(".npy"): each for each in archive.zip.namelist()}
    entry = archive.zip.getinfo(known[name])
    check_memory(entry.file_size, what=f"{path}, {name!r}", advice=SMALLER)
    with archive.zip.open(entry) as file:
        check_npy(file, entry.file_size)


def check_npy(file: IO[bytes], size: int) -> None:
    """Raise ValueError unless the header of an npy file of `size` bytes tells of as many.

    NumPy allocates what a header tells before it reads. Types without numbers are left to NumPy.
    """
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    header = read.get(npy.read_magic(file))
    if header is None:
        return
    try:
        shape, _, kind = header(file)
    except (tokenize.TokenError, SyntaxError) as error:  # a header is read as Python
        raise ValueError(f"its header cannot be read: {error}") from error
    told = file.tell() + math.prod(shape) * kind.itemsize
    if not kind.hasobject and told != size:
        raise ValueError(f"its header tells of {told:,} bytes, there are {size:,}")


NPY_START = b"\x93NUMPY"
PAIRED = {
    "x": ("y",),
    "X": ("y", "Y"),
    "inputs": ("targets", "labels", "outputs"),
    "images": ("labels", "targets"),
    "features": ("targets", "labels"),
    "data": ("targets", "labels"),
}
"""Words in the names of files with inputs, and those of the targets beside them."""


def find_npy(folder: Path) -> Path | None:
    """The file of training inputs in `folder`, or None."""
    for word in PAIRED:
        for name in (f"{word}.npy", f"{word}_train.npy"):
            if (folder / name).is_file() and _paired(folder / name) is not None:
                return folder / name
    return None


def read_npy(
    path: Path, *, layout: Layout = "auto", reference: LabelledData | None = None
) -> Split:
    """Inputs from `path`, targets from the file beside it, and a test part where there is one.

    Raises `CallerError` where targets are missing, or a file is pickled or damaged.
    """
    if _paired(path) is None:
        word = next((each for each in PAIRED if each in _words(path)), "x")
        wanted = path.with_name(path.name.replace(word, PAIRED[word][0], 1))
        raise CallerError(
            f"{path}: expected its targets beside it, such as {wanted.name}, found none; call the "
            "pair x.npy and y.npy, or write both with numpy.savez_compressed(path, x=…, y=…)"
        )
    of_test = path.with_name(f"{path.stem.removesuffix('_train')}_test.npy")

    def part(is_test: bool, known: LabelledData | None) -> tuple[LabelledData, Notes]:
        own = of_test if is_test else path
        targets = _paired(own)
        assert targets is not None
        name = f"{path.parent.name} test" if is_test else path.resolve().parent.name
        x, y = _load_npy(own), _load_npy(targets)
        return labelled_from_arrays(x, y, name=name, layout=layout, reference=known)

    return split_of(part, of_test.is_file() and _paired(of_test) is not None, reference)


def _words(path: Path) -> list[str]:
    return re.split("[_.-]", path.stem)


def _paired(path: Path) -> Path | None:
    """The file of targets that belongs to one of inputs, or None."""
    for word in _words(path):
        for other in PAIRED.get(word, ()):
            name = re.sub(rf"(^|[_.-]){word}($|[_.-])", rf"\g<1>{other}\g<2>", path.stem)
            if (path.with_name(f"{name}.npy")).is_file():
                return path.with_name(f"{name}.npy")
    return None


def _load_npy(path: Path) -> np.ndarray[Any, Any]:
    size = path.stat().st_size
    check_memory(size, what=str(path), advice=SMALLER)
    try:
        with path.open("rb") as file:
            check_npy(file, size)
        array: np.ndarray[Any, Any] = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        if "pickle" in str(error):
            raise CallerError(
                f"{path}: expected an array of numbers, got pickled Python objects, which are "
                "never opened; convert it to one type, such as float32, and save again"
            ) from None
        raise CallerError(
            f"{path}: expected a whole array, got a damaged one ({error}); write it again with "
            "numpy.save"
        ) from None
    return array


def _damaged(path: Path, name: str, error: object) -> CallerError:
    return CallerError(
        f"{path}: expected whole arrays, got {name!r} damaged ({error}); "
        "write it again with numpy.savez_compressed"
    )


GZIP_START = b"\x1f\x8b"


def existing_path(source: str | Path) -> Path:
    """`source` as a path with `~` written out; raises `CallerError` unless a file or folder."""
    if not str(source):
        raise CallerError("expected the path of a file or folder, got an empty path; name one")
    try:
        path = Path(source).expanduser()
        if path.is_file() or path.is_dir():
            return path
        found = path.exists()
    except PermissionError as error:
        raise refused(Path(source), error) from None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL in it, no home folder
        found = False
    if found:
        raise CallerError(
            f"{source}: expected a file or a folder, got a device, pipe or socket; "
            "copy the data to a file first"
        )
    raise CallerError(f"{source}: expected a file or folder, found nothing; check the path")


def entries(folder: Path) -> list[Path]:
    """What lies in `folder`, sorted by name, without hidden entries and `__MACOSX`."""
    return [
        entry for entry in sorted(folder.iterdir()) if not entry.name.startswith((".", "__MACOSX"))
    ]


def read_start(path: Path, count: int) -> bytes:
    """The first `count` bytes, of a gzipped file those of its content.

    Raises `CallerError` for an empty file. A damaged gzip file gives its own bytes.
    """
    with path.open("rb") as file:
        start = file.read(count)
    if start.startswith(GZIP_START):
        with contextlib.suppress(OSError, EOFError, zlib.error), gzip.open(path) as unpacked:
            start = unpacked.read(count) or start
    if not start:
        raise CallerError(f"{path}: expected data, got an empty file; download or copy it again")
    return start


def read_bytes(path: Path) -> bytes:
    """All bytes of a file, decompressed if it is gzip; raises `CallerError` where that fails."""
    read_start(path, 1)
    size = path.stat().st_size
    check_memory(size, what=str(path), advice=SMALLER)
    with path.open("rb") as file:
        if file.read(len(GZIP_START)) != GZIP_START:
            return path.read_bytes()
    try:
        return _unpacked(path)
    except EOFError:
        raise CallerError(
            f"{path}: expected a whole gzip file, got one that ends early (truncated after "
            f"{size} bytes); download or copy it again"
        ) from None
    except (OSError, zlib.error) as error:
        raise CallerError(
            f"{path}: expected a gzip file, got a damaged one ({error}); download or copy it again"
        ) from None


def _unpacked(path: Path) -> bytes:
    """The content of a gzip file, which may be a thousand times as long."""
    content = bytearray()
    with gzip.open(path) as file:
        while part := file.read(UNPACKED_AT_ONCE):
            content += part
            check_memory(4 * len(content), what=f"{path}, unpacked and read", advice=SMALLER)
    return bytes(content)


def refused(path: Path, error: OSError) -> CallerError:
    """The sentence for a file or folder that the file system does not let us read."""
    if isinstance(error, PermissionError):
        return CallerError(
            f"{path}: permission denied; make it readable for this user, or name another path"
        )
    return CallerError(
        f"{path}: expected to read it, got {error.strerror or error}; check it or name another path"
    )


NUMBER_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
TRAINING_IMAGES, TEST_IMAGES = "train-images-idx3-ubyte", "t10k-images-idx3-ubyte"
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
        if _find(place, TRAINING_IMAGES) or _find(place, TEST_IMAGES)
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

    def part(is_test: bool, known: LabelledData | None) -> tuple[LabelledData, Notes]:
        images = _find(folder, TEST_IMAGES if is_test else TRAINING_IMAGES)
        if images is None:
            raise CallerError(
                f"{folder / TRAINING_IMAGES}: expected the training images here (or with .gz), "
                "found only the test images; put the file beside them or name the test file"
            )
        called = f"{name} test" if is_test else name
        return read_idx_pair(images, name=called, reference=known), ()

    return split_of(part, _find(folder, TEST_IMAGES) is not None, reference)


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
        inputs=normalised(pixels.to(torch.float32).div_(255), MEAN, STANDARD_DEVIATION),
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
