"""Folders that the `datasets` library of Hugging Face wrote with `save_to_disk`; an optional extra.

A folder of one data set, or of several parts: `train` is trained on and `test` (else `validation`)
is the test set. Of the columns

    target   the one that is named, or `label`, `labels`, `fine_label`, `target`, `y`, or the last;
             a column of classes brings their names
    input    the first of pictures, sound (one channel, cut or filled with silence to the most
             common length) or arrays of one shape

Where no column is a picture, a sound or an array, the others are a table (`tables`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from isotropy.checks import CallerError, column_index
from isotropy.data.formats import split_of
from isotropy.data.image_folder import middle, picture_tensor, resize_images
from isotropy.data.labelled import LabelledData, Layout, Notes, Split, labelled_from_arrays
from isotropy.data.tables import Table, Target, cell_text, data_of

FILES = ("dataset_dict.json", "dataset_info.json")
"""Of a folder of parts, and of one data set."""
TARGETS = ("label", "labels", "fine_label", "target", "y")
TEST_PARTS = ("test", "validation")


def is_saved_dataset(folder: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    return any((folder / name).is_file() for name in FILES)


def read_saved_dataset(
    folder: Path, target: Target, *, layout: Layout = "auto", reference: LabelledData | None = None
) -> Split:
    """The parts of a folder that `save_to_disk` wrote.

    target, layout, reference: as for `tables.read_table` and `labelled.standard_inputs`
    Raises `CallerError` without the library, and for columns that nothing can be made of.
    """
    try:
        from datasets import load_from_disk
    except ImportError:
        raise CallerError(
            f"{folder}: folders of Hugging Face datasets need the library; install "
            "isotropy[datasets], or save the columns with numpy.savez_compressed(path, x=…, y=…)"
        ) from None
    found = load_from_disk(str(folder))
    parts: Mapping[str, Any] = found if isinstance(found, Mapping) else {"train": found}
    named = next((each for each in TEST_PARTS if each in parts), None)
    first = "train" if "train" in parts else next(iter(parts))
    test = None if named == first else named

    def part(is_test: bool, known: LabelledData | None) -> tuple[LabelledData, Notes]:
        own = parts[test if is_test and test is not None else first]
        return _part(own, folder, target, layout, known)

    return split_of(part, test is not None, reference)


def _part(
    dataset: Any, folder: Path, target: Target, layout: Layout, reference: LabelledData | None
) -> tuple[LabelledData, Notes]:
    names = list(dataset.column_names)
    if not len(dataset) or len(names) < 2:
        raise CallerError(
            f"{folder}: expected examples with an input and a target, got {len(dataset)} with the "
            f"columns {', '.join(names) or 'none'}; name another folder"
        )
    usual = next((each for each in TARGETS if each in names), names[-1])
    asked = usual if target.column is None else target.column
    wanted = names[column_index(asked, names, what=f"{folder}, target")]
    for name in names:
        if name != wanted and _is_whole_input(dataset[0][name]):
            inputs, notes = _inputs(dataset[name], f"{folder}, column {name!r}")
            is_sound = isinstance(dataset[0][name], Mapping)
            data, more = labelled_from_arrays(
                inputs,
                list(dataset[wanted]),
                name=folder.name,
                classes=_class_names(dataset, wanted),
                layout="sequences" if is_sound else layout,
                reference=reference,
            )
            return data, (*notes, *more)
    columns = {name: [cell_text(each) for each in dataset[name]] for name in names}
    classes = _class_names(dataset, wanted)
    if classes is not None:
        columns[wanted] = [classes[int(each)] for each in dataset[wanted]]
    table = Table(columns, has_header=True)
    return data_of(table, Target(wanted, target.task), folder, reference)


def _is_whole_input(value: Any) -> bool:
    """Whether one value of a column is a picture, a sound or an array."""
    if isinstance(value, Image.Image) or (isinstance(value, Mapping) and "array" in value):
        return True
    is_array = isinstance(value, np.ndarray | Tensor | list | tuple)
    return is_array and np.asarray(value).dtype.kind in "buif" and np.ndim(value) > 0


def _class_names(dataset: Any, column: str) -> tuple[str, ...] | None:
    names = getattr(dataset.features.get(column), "names", None)
    return None if names is None else tuple(map(str, names))


def _inputs(values: Sequence[Any], what: str) -> tuple[Tensor, Notes]:
    """A column of pictures, sounds or arrays in one tensor, and notes."""
    if isinstance(values[0], Image.Image):
        channels = picture_tensor(values[0]).shape[0]
        pictures = [picture_tensor(each, channels) for each in values]
        size, others = _most_common([(each.shape[1], each.shape[2]) for each in pictures])
        same = [
            each if each.shape[1:] == size else resize_images(middle(each[None], size), size)[0]
            for each in pictures
        ]
        told = (f"{others} pictures resized to {size[0]} × {size[1]}",) if others else ()
        return torch.stack(same), told
    if isinstance(values[0], Mapping):
        sounds = [
            torch.as_tensor(np.asarray(each["array"]), dtype=torch.float32) for each in values
        ]
        length, others = _most_common([len(each) for each in sounds])
        cut = [functional.pad(each, (0, length - len(each))) for each in sounds]
        told = (f"{others} sounds cut or filled to {length} samples",) if others else ()
        return torch.stack(cut)[:, None], told
    arrays = [np.asarray(each) for each in values]
    shape, others = _most_common([each.shape for each in arrays])
    if others:
        raise CallerError(
            f"{what}: expected arrays of one shape, got {others} of another than {shape}; bring "
            "them to one shape"
        )
    return torch.as_tensor(np.stack(arrays)), ()


def _most_common(sizes: Sequence[Any]) -> tuple[Any, int]:
    """The most common one, and how many are others."""
    size, count = Counter(sizes).most_common(1)[0]
    return size, len(sizes) - count
