"""Data sets of the `datasets` library of Hugging Face, and the folders that `save_to_disk` writes.

The library is an optional extra. A folder or a dictionary of several parts: `train` is trained on
and `test` (else `validation`) is the test set. Data sets that take much memory are streamed
(`streams`). Of the columns

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
from torch.utils.data import Dataset

from isotropy.checks import CallerError, column_index
from isotropy.data.formats import split_of
from isotropy.data.image_folder import (
    ImageSize,
    is_grey,
    middle,
    picture_tensor,
    resize_images,
    upright_size,
    working_size,
)
from isotropy.data.labelled import LabelledData, Layout, Notes, Split, labelled_from_arrays
from isotropy.data.streams.items import picture_input
from isotropy.data.tables import Table, Target, cell_text, data_of

FILES = ("dataset_dict.json", "dataset_info.json")
"""Of a folder of parts, and of one data set."""
TARGETS = ("label", "labels", "fine_label", "target", "y")
TEST_PARTS = ("test", "validation")
TRIED = 16
"""Pictures that are opened to see whether there are colours."""


def is_saved_dataset(folder: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    return any((folder / name).is_file() for name in FILES)


def saved_dataset(folder: Path) -> Any:
    """What a folder holds that `save_to_disk` wrote; raises `CallerError` without the library."""
    try:
        from datasets import load_from_disk
    except ImportError:
        raise CallerError(
            f"{folder}: folders of Hugging Face datasets need the library; install "
            "isotropy[datasets], or save the columns with numpy.savez_compressed(path, x=…, y=…)"
        ) from None
    return load_from_disk(str(folder))


def read_columns(
    found: Any, folder: Path, target: Target, layout: Layout, reference: LabelledData | None
) -> Split:
    """A data set, or a dictionary of parts, in memory.

    folder: how it is called; target, layout, reference: as for `tables.read_table` and
    `labelled.standard_inputs`. Raises `CallerError` for columns that nothing can be made of.
    """
    parts = parts_of(found)
    first, test = first_and_test(parts)

    def part(is_test: bool, known: LabelledData | None) -> tuple[LabelledData, Notes]:
        own = parts[test if is_test and test is not None else first]
        return _part(own, folder, target, layout, known)

    return split_of(part, test is not None, reference)


def parts_of(found: Any) -> Mapping[str, Any]:
    """The data sets of a dictionary, or the one that is there."""
    return found if isinstance(found, Mapping) else {"train": found}


def first_and_test(parts: Mapping[str, Any]) -> tuple[str, str | None]:
    """Which part is trained on, and which is the test set."""
    named = next((each for each in TEST_PARTS if each in parts), None)
    first = "train" if "train" in parts else next(iter(parts))
    return first, None if named == first else named


def is_hugging_face(source: Any) -> bool:
    """Whether the library made this object, a data set or a dictionary of them."""
    return type(source).__module__.partition(".")[0] == "datasets"


class ColumnItems(Dataset[Any]):
    """Items (input, target) of a data set of Hugging Face, read row by row.

    classes: names of the column of targets, where it has some
    Raises `CallerError` where no column is a picture or an array.
    """

    def __init__(self, dataset: Any, name: str, target: Target, image_size: ImageSize) -> None:
        if not hasattr(dataset, "__len__"):
            raise CallerError(
                f"{name}: expected a data set with a length, got {type(dataset).__name__}; load it "
                "without streaming=True, or write its examples to tar shards"
            )
        names, self.dataset, self.name = list(dataset.column_names), dataset, name
        self.target = _target_column(names, target, name)
        first = dataset[0]
        own = [each for each in names if each != self.target and _is_whole_input(first[each])]
        if not own or isinstance(first[own[0]], Mapping):
            raise CallerError(
                f"{name}: expected a column of pictures or arrays to read while learning, got the "
                f"columns {', '.join(names)}; take part of the data, which is held in memory"
            )
        self.input, self.classes = own[0], _class_names(dataset, self.target)
        self._channels, self._side = 1, None if isinstance(image_size, str) else image_size
        if isinstance(first[self.input], Image.Image):
            step = max(1, len(dataset) // TRIED)
            tried = [dataset[each][self.input] for each in range(0, len(dataset), step)]
            self._channels = 1 if all(is_grey(each) for each in tried) else 3
            if image_size == "auto":
                self._side = working_size(*upright_size(tried[0]))

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        row = self.dataset[number]
        values = row[self.input]
        if isinstance(values, Image.Image):
            values = picture_input(values, self._channels, self._side)
        return (values if isinstance(values, Tensor) else np.asarray(values)), row[self.target]


def _target_column(names: Sequence[str], target: Target, name: str) -> str:
    usual = next((each for each in TARGETS if each in names), names[-1])
    asked = usual if target.column is None else target.column
    return names[column_index(asked, names, what=f"{name}, target")]


def _part(
    dataset: Any, folder: Path, target: Target, layout: Layout, reference: LabelledData | None
) -> tuple[LabelledData, Notes]:
    names = list(dataset.column_names)
    if not len(dataset) or len(names) < 2:
        raise CallerError(
            f"{folder}: expected examples with an input and a target, got {len(dataset)} with the "
            f"columns {', '.join(names) or 'none'}; name another folder"
        )
    wanted = _target_column(names, target, str(folder))
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
