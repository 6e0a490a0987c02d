"""A `torch.utils.data.Dataset` of pairs (input, target), read once, in its own order.

Learning the amount of symmetry passes over the same examples many times and must see the same
pixels every time, so what the data set gives at the first reading is what is learned from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from isotropy.checks import CallerError, shape_text
from isotropy.data.arrays import Notes, labelled_from_arrays, tensor_from
from isotropy.data.image_folder import picture_tensor
from isotropy.data.labelled import LabelledData

BATCH_SIZE = 256


def read_dataset(
    dataset: Dataset[Any], *, reference: LabelledData | None = None
) -> tuple[LabelledData, Notes]:
    """All items of `dataset` in memory, and notes on what was changed.

    dataset: items (input, target); an input is a tensor, an array or a PIL picture, all of one
        shape; targets as `arrays.standard_targets` understands them. Class names are taken from
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
            values, target = _pair(item, len(inputs), name)
            if inputs and values.shape != inputs[0].shape:
                raise CallerError(
                    f"{name}: expected every input as the first, {shape_text(inputs[0])}, got "
                    f"{shape_text(values)} at item {len(inputs)}; resize them in the data set's "
                    "transform"
                )
            inputs.append(values)
            targets.append(target)
    if not inputs:
        raise CallerError(f"{name}: expected at least one example, got an empty data set; add some")
    return labelled_from_arrays(
        torch.stack(inputs), _stack(targets), name=name,
        classes=_class_names(dataset), reference=reference,
    )  # fmt: skip


def _pair(item: Any, index: int, name: str) -> tuple[Tensor, Any]:
    if not isinstance(item, Sequence) or len(item) != 2:
        raise CallerError(
            f"{name}: expected items (input, target), got {type(item).__name__} at item {index}; "
            "unlabelled data cannot be learned from"
        )
    values, target = item
    if isinstance(values, Image.Image):
        return picture_tensor(values), target
    return tensor_from(values, what=f"{name}, input {index}"), target


def _stack(targets: list[Any]) -> Any:
    """Targets of all items in one tensor, or as they are (numbers, names) for numpy to join."""
    shapes = {target.shape if isinstance(target, Tensor) else None for target in targets}
    return torch.stack(targets) if len(shapes) == 1 and None not in shapes else targets


def _class_names(dataset: Dataset[Any]) -> tuple[str, ...] | None:
    names = getattr(dataset, "classes", None)
    if isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names):
        return tuple(names) or None
    return None
