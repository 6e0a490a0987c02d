"""Data from wherever they are: `read` recognises what it is given, `digits` come with the package.

A path is recognised by what lies there: IDX files, CIFAR-10 binary batches, an `.npz` archive, a
pair of `.npy` files, a table (`tables`), a folder of Hugging Face datasets, tar shards, or a folder
of pictures per class. In memory: a `torch.utils.data.Dataset` of pairs (input, target), a data set
of Hugging Face, a pair (inputs, targets), or `LabelledData`. A data set is read once, in its own
order: learning passes over the same examples many times and must see the same pixels. Data sets and
shards that would take more than a quarter of memory are not held but streamed (`streams`).

The digits are 200 training and 100 test images of each class, 28 × 28, chosen at random from the
training and the test images of MNIST (Y. LeCun and C. Cortes, CC BY-SA 3.0).
`scripts/make_embedded_digits.py` makes the file; `train_index` and `test_index` in it say which
images of MNIST these are.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from isotropy.checks import CallerError, check_at_least, check_choice, shape_text
from isotropy.data.formats import (
    GZIP_START,
    NPY_START,
    ZIP_START,
    entries,
    existing_path,
    find_cifar_folder,
    find_idx_folder,
    find_npy,
    read_cifar_folder,
    read_idx_folder,
    read_idx_pair,
    read_npy,
    read_npz,
    read_start,
    refused,
    with_test,
)
from isotropy.data.image_folder import (
    LARGEST_SIDE,
    SUFFIXES,
    ImageSize,
    is_image_folder,
    read_image_folder,
    resized,
    working_size,
)
from isotropy.data.labelled import (
    LAYOUTS,
    LabelledData,
    Layout,
    Notes,
    Split,
    check_two_labels,
    hold_out,
    labelled_from_arrays,
    standardised,
)
from isotropy.data.saved_datasets import (
    ColumnItems,
    first_and_test,
    is_hugging_face,
    is_saved_dataset,
    parts_of,
    read_columns,
    saved_dataset,
)
from isotropy.data.streams.items import class_names_of, pair_of, several_inputs, stacked
from isotropy.data.streams.shards import shard_paths
from isotropy.data.streams.streamed import (
    StreamedData,
    as_test,
    hold_out_streamed,
    is_large,
    stream_note,
    streamed,
)
from isotropy.data.tables import TASKS, Target, Task, is_table, read_table

KNOWN_KINDS = (
    "IDX files (train-images-idx3-ubyte), CIFAR-10 binary batches (data_batch_1.bin), an .npz "
    "archive with x and y, x.npy beside y.npy, a table (csv, parquet), a folder of Hugging Face "
    "datasets, tar shards, or a folder of pictures per class"
)
OPENING = 4096
"""Bytes of a file by which it is recognised."""


def read(
    source: Any,
    test: Any = None,
    *,
    image_size: ImageSize = None,
    seed: int = 0,
    hold_out_fraction: float = 0.2,
    target: str | int | None = None,
    task: Task = "auto",
    layout: Layout = "auto",
) -> Split:
    """Training and test data, checked and in standard form.

    source: a path (str or Path), a `torch.utils.data.Dataset`, a data set of Hugging Face, a pair
        (inputs, targets) of tensors or arrays, or a `Split` or `LabelledData` (`streamed` ones
        among them), which is taken as it is.
    test: the same kinds. Of a source that has a training and a test part, the test part is
        taken. None takes the test set that comes with `source`; where none does, some examples
        are held out.
    image_size: side in pixels to which all images are resized; None leaves images as they are,
        except that pictures of different sizes in one folder are resized to the most common one;
        "auto" does the same, and brings images of more than 64 pixels to 32.
    seed: decides which examples are held out.
    hold_out_fraction: share of the examples to hold out, of every class alike; 0 holds out none
        and leaves `test` None.
    target: of a table, the column of targets by its name or its number; the last one by default.
    task: of a table, whether targets are classes or numbers of a regression; auto lets the column
        say (`tables`).
    layout: what arrays of three axes are: images, which auto takes them for, sequences
        `(examples, channels, length)`, or clouds `(examples, points, dimensions)`.

    Returns a `Split` whose notes are sentences on everything that was decided here.
    Raises `CallerError` with one sentence that names the path, or the data, at fault.
    """
    if isinstance(image_size, str):
        check_choice(image_size, ("auto",), what="image_size")
    elif image_size is not None:
        check_at_least(image_size, 1, what="image_size, in pixels")
    if not 0 <= hold_out_fraction < 1:
        raise CallerError(
            f"hold_out_fraction: expected a number from 0 to below 1, got {hold_out_fraction:g}; "
            "0.2 holds out 20 %"
        )
    check_choice(task, TASKS, what="task")
    check_choice(layout, LAYOUTS, what="layout")
    how = _How(image_size, Target(target, task), layout)
    split = _read(source, how, None)
    if test is not None:
        given = _read(test, how, split.train)
        tested, more = as_test(given.test or given.train)
        split = with_test(split, tested, (*given.notes, *more))
    side = _side(split.train, image_size)
    if side is not None:
        split = resized(split, side)
        if image_size == "auto":
            note = (
                f"{side} pixels are the working size for images of more than {LARGEST_SIDE}; "
                "--image-size sets another"
            )
            split = replace(split, notes=(*split.notes, note))
    check_two_labels(split.train)
    split = replace(split, notes=split.notes + _absent_classes(split.train))
    if split.test is not None:
        split = replace(split, test=_conform(split.test, split.train))
    elif hold_out_fraction == 0:
        split = replace(split, notes=(*split.notes, "no test set, and nothing held out"))
    else:
        data, share = split.train, hold_out_fraction
        if isinstance(data, StreamedData):
            parts = hold_out_streamed(data, share, seed)
        else:
            parts = hold_out(data, share, seed)
        check_two_labels(parts.train)
        split = replace(parts, notes=split.notes + parts.notes)
    is_raw_table = split.train.columns is not None and split.train.scaling is None
    return standardised(split) if is_raw_table else split


@dataclass(frozen=True)
class _How:
    """What a caller said of the data."""

    image_size: ImageSize
    target: Target
    layout: Layout


def _read(source: Any, how: _How, reference: LabelledData | None) -> Split:
    """Whatever `source` holds; `reference` is the training data where this is the test set."""
    if isinstance(source, StreamedData):
        return Split(train=source, test=None, notes=(*source.notes, stream_note(source)))
    if isinstance(source, LabelledData):
        return Split(train=source, test=None)
    if isinstance(source, Split):
        return source
    if isinstance(source, (str, Path)):
        if shard_paths(source) is not None and not Path(source).expanduser().is_dir():
            return _streamed(source, how, reference)
        path = existing_path(source)
        try:
            return _read_path(path, how, reference)
        except OSError as error:
            raise refused(Path(error.filename or path), error) from None
        except CallerError as error:
            if str(path) in str(error):
                raise
            raise CallerError(f"{path}: {error}") from None
    if is_hugging_face(source):
        return _read_columns(source, Path("data"), how, reference)
    if isinstance(source, Dataset):
        if _is_large(source):
            return _streamed(source, how, reference)
        data, notes = read_dataset(source, reference=reference)
        return Split(train=data, test=None, notes=notes)
    if isinstance(source, (tuple, list)) and _has_several_inputs(source):
        raise several_inputs("data")
    if isinstance(source, (tuple, list)) and len(source) == 2:
        name = "data" if reference is None else "test data"
        data, notes = labelled_from_arrays(
            source[0], source[1], name=name, layout=how.layout, reference=reference
        )
        return Split(train=data, test=None, notes=notes)
    raise CallerError(
        "expected a path, a torch Dataset, a pair (inputs, targets) or LabelledData, got "
        f"{type(source).__name__}; unlabelled inputs need their targets beside them"
    )


def _streamed(source: Any, how: _How, reference: LabelledData | None) -> Split:
    """Data that are read while they are used, or in memory if they are small."""
    data = streamed(source, image_size=how.image_size, layout=how.layout, reference=reference)
    if is_large(len(data), data.inputs[0]):
        return _read(data, how, reference)
    return Split(train=data.in_memory(), test=None, notes=data.notes)


def _is_large(dataset: Any) -> bool:
    """Whether a data set takes too much memory; one whose first item says nothing does not."""
    try:
        count = len(dataset)
        return count > 0 and is_large(count, pair_of(dataset[0], 0, "data")[0])
    except (CallerError, TypeError, NotImplementedError):  # said where it is read
        return False


def _read_columns(found: Any, folder: Path, how: _How, reference: LabelledData | None) -> Split:
    """A data set of Hugging Face, or a dictionary of them; folder: how it is called."""
    parts = parts_of(found)
    first, test = first_and_test(parts)
    own = [each for each in (first, test) if each is not None]
    try:
        items = [ColumnItems(parts[e], folder.name, how.target, how.image_size) for e in own]
    except CallerError:  # no pictures and no arrays
        items = []
    if not items or not any(_is_large(each) for each in items):
        return read_columns(found, folder, how.target, how.layout, reference)
    if reference is not None:
        return _streamed(items[-1], how, reference)
    split = _streamed(items[0], how, None)
    if test is None:
        return split
    given = _streamed(items[1], how, split.train)
    tested, more = as_test(given.train)
    return with_test(split, tested, (*given.notes, *more))


def _has_several_inputs(source: Sequence[Any]) -> bool:
    """((first, second), targets), ({"image": first, …}, targets) or (first, second, targets)."""
    if len(source) > 2 and all(hasattr(each, "shape") for each in source):
        return True
    inputs: Any = source[0] if len(source) == 2 else ()
    if isinstance(inputs, Mapping):
        return len(inputs) > 1
    if not isinstance(inputs, tuple | list):
        return False
    shapes = {tuple(each.shape) if hasattr(each, "shape") else () for each in inputs}
    return len(shapes) > 1 and () not in shapes


def _read_path(path: Path, how: _How, reference: LabelledData | None) -> Split:
    if path.is_dir():
        return _read_folder(path, how, reference)
    start = read_start(path, OPENING)
    if start.startswith(ZIP_START) or path.suffix == ".npz":
        return read_npz(path, layout=how.layout, reference=reference)
    if start.startswith(NPY_START):
        return read_npy(path, layout=how.layout, reference=reference)
    if is_table(path, start) and "idx" not in path.name:
        return read_table(path, how.target, reference=reference)
    looks_like_idx = start.startswith(b"\0\0") or start.startswith(GZIP_START)
    if looks_like_idx or "idx" in path.name or path.suffix == ".gz":
        return Split(train=read_idx_pair(path, reference=reference), test=None)
    raise CallerError(
        f"{path}: expected {KNOWN_KINDS}, got a file that begins with bytes {start[:4].hex(' ')}; "
        "convert it with numpy.savez_compressed(path, x=inputs, y=labels)"
    )


def _read_folder(folder: Path, how: _How, reference: LabelledData | None) -> Split:
    found = entries(folder)
    if not found:
        raise CallerError(f"{folder}: expected {KNOWN_KINDS}, got an empty folder; name another")
    if is_saved_dataset(folder):
        return _read_columns(saved_dataset(folder), folder, how, reference)
    idx_folder = find_idx_folder(folder)
    if idx_folder is not None:
        return read_idx_folder(idx_folder, reference=reference)
    cifar_folder = find_cifar_folder(folder)
    if cifar_folder is not None:
        return read_cifar_folder(cifar_folder, reference=reference)
    if is_image_folder(folder):
        return read_image_folder(folder, image_size=how.image_size, reference=reference)
    inputs = find_npy(folder)
    if inputs is not None:
        return read_npy(inputs, layout=how.layout, reference=reference)
    if shard_paths(folder) is not None:
        return _streamed(folder, how, reference)
    if any(entry.suffix.lower() in SUFFIXES for entry in found):
        raise CallerError(
            f"{folder}: expected a subfolder of pictures per class, got pictures in no subfolder, "
            "which are unlabelled; sort them into folders named for their classes"
        )
    listing = ", ".join(entry.name for entry in itertools.islice(found, 3))
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    raise CallerError(
        f"{folder}: expected {KNOWN_KINDS}, got a folder with {listing}{more}; "
        "name the folder or file that holds the data"
    )


def _side(data: LabelledData, image_size: ImageSize) -> int | None:
    """The side in pixels that images are to have; None: the one they have."""
    if image_size != "auto":
        return image_size
    return working_size(*data.inputs.shape[2:]) if data.is_images else None


def _conform(test: LabelledData, train: LabelledData) -> LabelledData:
    """`test` under the class names of `train`; raises `CallerError` where they do not fit."""
    if test.inputs.shape[1:] != train.inputs.shape[1:]:
        advice = "; image_size resizes both" if test.is_images and train.is_images else ""
        raise CallerError(
            f"{test.name}: expected test inputs like the training inputs, "
            f"{shape_text(train.inputs[0])} each, got {shape_text(test.inputs[0])}{advice}"
        )
    if test.classes is None or train.classes is None:
        if test.classes is not train.classes or test.targets.shape[1:] != train.targets.shape[1:]:
            raise CallerError(
                f"{test.name}: expected test targets like the training targets, {_kind(train)}, "
                f"got {_kind(test)}; give both in the same form"
            )
        return test
    if test.classes == train.classes:
        return test
    unnamed = tuple(str(label) for label in range(test.num_classes))
    if test.classes == unnamed and test.num_classes <= train.num_classes:
        return replace(test, classes=train.classes)
    raise CallerError(
        f"{test.name}: expected the {train.num_classes} classes of the training data "
        f"({', '.join(train.classes)}), got {test.num_classes} ({', '.join(test.classes)}); "
        "give both the same classes in the same order"
    )


def _absent_classes(data: LabelledData) -> tuple[str, ...]:
    """A note on classes without an example: labels that begin at 1 show up here."""
    if data.classes is None or len(data.targets) < len(data):  # of a sample, rare ones may be
        return ()
    counts = data.targets.bincount(minlength=data.num_classes)
    absent = [name for name, count in zip(data.classes, counts, strict=True) if count == 0]
    if not absent:
        return ()
    listing = ", ".join(absent[:5]) + (" …" if len(absent) > 5 else "")
    return (f"{len(absent)} of {data.num_classes} classes have no training example: {listing}",)


def _kind(data: LabelledData) -> str:
    if data.classes is not None:
        return f"labels of {data.num_classes} classes"
    return f"regression targets {shape_text(data.targets)}"


BATCH_SIZE = 256


def read_dataset(
    dataset: Dataset[Any], *, reference: LabelledData | None = None
) -> tuple[LabelledData, Notes]:
    """All items of `dataset` in memory, and notes on what was changed.

    dataset: items (input, target); an input is a tensor, an array or a PIL picture, all of one
        shape; targets as `labelled.standard_targets` understands them. Class names are taken from
        an attribute `classes`, which torchvision's data sets have.
    reference: the training data that this is a test set for.

    Raises `CallerError` for items that are no pairs or differ in shape, and for an empty set.
    Whatever the data set itself raises passes through.
    """
    name = type(dataset).__name__
    inputs: list[Tensor] = []
    targets: list[Any] = []
    # The batches are not collated by torch: its message for unequal shapes names no item.
    for batch in DataLoader(dataset, batch_size=BATCH_SIZE, collate_fn=list):
        for item in batch:
            values, target = pair_of(item, len(inputs), name)
            if inputs and values.shape != inputs[0].shape:
                raise CallerError(
                    f"{name}: expected every input as the first, {shape_text(inputs[0])}, got "
                    f"{shape_text(values)} at item {len(inputs)}; resize them in the data set's "
                    "transform"
                )
            inputs.append(values)
            targets.append(target)
        if is_large(len(inputs), inputs[0]):  # a data set with a length is not read here then
            raise CallerError(
                f"{name}: expected data that fit into memory or have a length, got {len(inputs):,} "
                "examples and no end; write them to tar shards, or wrap them in a map-style Dataset"
            )
    if not inputs:
        raise CallerError(f"{name}: expected at least one example, got an empty data set; add some")
    return labelled_from_arrays(
        torch.stack(inputs), stacked(targets), name=name,
        classes=class_names_of(dataset), reference=reference,
    )  # fmt: skip


DIGITS_FILE = "digits.npz"


def digits() -> Split:
    """2,000 training and 1,000 test images `(examples, 1, 28, 28)` in [0, 1], ten classes.

    Both parts are in random order, so the first n examples are a random sample.
    """
    with (
        resources.files("isotropy.data").joinpath(DIGITS_FILE).open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        train, test = (
            labelled_from_arrays(archive[f"x_{part}"], archive[f"y_{part}"], name=name)[0]
            for part, name in (("train", "MNIST digits"), ("test", "MNIST digits test"))
        )
    note = f"{len(train)} training and {len(test)} test images of MNIST that come with the package"
    return Split(train=train, test=test, notes=(note,))
