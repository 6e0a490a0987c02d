"""Items of a map-style `Dataset` as batches, and the loader that reads them ahead of time.

An item is a pair (input, target): the input a tensor, an array or a PIL picture. `ItemBatches` puts
items together by their numbers and brings inputs into standard form (`labelled.standard_inputs`);
targets stay as they are, since what they are follows from many of them. `batches_of_items` reads
batches in the order in which they are asked for, in workers of a `DataLoader` if there are any.
What is wrong with an item is said in one sentence that names its number, from workers too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from isotropy.checks import CallerError, check_finite, shape_text
from isotropy.data.image_folder import middle, picture_tensor, resize_images
from isotropy.data.labelled import Layout, standard_inputs, tensor_from

MOST_WORKERS = 4
READ_AT_ONCE = 256
"""Items of a batch where nothing else says how many."""


def several_inputs(name: str) -> CallerError:
    """The refusal of data with several inputs, and what to do with them."""
    return CallerError(
        f"{name}: expected one tensor of inputs, got several; pack them with "
        "isotropy.networks.several_inputs.packed_inputs(network, inputs, actions), which gives "
        "model, inputs and actions in place of yours"
    )


def pair_of(item: Any, index: int, name: str) -> tuple[Tensor, Any]:
    """Input and target of an item; raises `CallerError` for what is no pair."""
    if isinstance(item, Sequence) and (len(item) > 2 or isinstance(item[0], Mapping | tuple)):
        raise several_inputs(name)
    if not isinstance(item, Sequence) or len(item) != 2:
        raise CallerError(
            f"{name}: expected items (input, target), got {type(item).__name__} at item {index}; "
            "unlabelled data cannot be learned from"
        )
    values, target = item
    if isinstance(values, Image.Image):
        return picture_tensor(values), target
    return tensor_from(values, what=f"{name}, input {index}"), target


def stacked(targets: list[Any]) -> Any:
    """Targets of all items in one tensor, or as they are (numbers, names) for numpy to join."""
    shapes = {target.shape if isinstance(target, Tensor) else None for target in targets}
    return torch.stack(targets) if len(shapes) == 1 and None not in shapes else targets


def class_names_of(dataset: Any) -> tuple[str, ...] | None:
    """The attribute `classes`, which torchvision's data sets have."""
    names = getattr(dataset, "classes", None)
    if isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names):
        return tuple(names) or None
    return None


def picture_input(picture: Image.Image, channels: int, side: int | None) -> Tensor:
    """A picture (channels, height, width), of `side` pixels where that is given."""
    values = picture_tensor(picture, channels)
    if side is None:
        return values
    square = (side, side)
    return resize_images(middle(values[None], square), square)[0]


def check_countable(dataset: Any, name: str) -> None:
    """Raise `CallerError` for data whose examples have no numbers."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise CallerError(
            f"{name}: expected a data set with __len__ and __getitem__, got an iterable one, which "
            "cannot be read in another order; write its examples to tar shards, or wrap them in a "
            "map-style Dataset"
        )
    try:
        count = len(dataset)
    except TypeError:
        raise CallerError(
            f"{name}: expected a data set with a length, got {type(dataset).__name__} without "
            "__len__; define it, or write the examples to tar shards"
        ) from None
    if count == 0:
        raise CallerError(f"{name}: expected at least one example, got an empty data set; add some")


@dataclass(frozen=True)
class ItemBatches(Dataset[Any]):
    """Batches of items by their numbers; all inputs are like that of item 0.

    shape, dtype: of the input of item 0
    layout:       as in `labelled.standard_inputs`
    changes:      what is done to inputs (batch, …) after that, one by one
    """

    dataset: Any
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: Layout = "auto"
    changes: tuple[Callable[[Tensor], Tensor], ...] = ()

    def __getitem__(self, numbers: list[int]) -> Any:
        """(numbers, inputs (batch, …), targets), or the `CallerError` that came of them."""
        if not numbers:
            return numbers, None, None
        try:
            inputs, targets = self.batch(numbers)
        except CallerError as error:  # raised in a worker, its sentence would be in a traceback
            return error
        return numbers, inputs, targets

    def batch(self, numbers: list[int]) -> tuple[Tensor, Any]:
        """Inputs (batch, …), and targets as they are."""
        together = torch.empty(len(numbers), *self.shape, dtype=self.dtype)
        targets = []
        for place, number in enumerate(numbers):
            values, target = pair_of(self.dataset[number], number, self.name)
            if tuple(values.shape) != self.shape or values.dtype != self.dtype:
                first = f"{shape_text(torch.empty(self.shape, device='meta'))} of {self.dtype}"
                raise CallerError(
                    f"{self.name}: expected every input as the first, {first}, got "
                    f"{shape_text(values)} of {values.dtype} at item {number}; bring all to one "
                    "shape and type, images by image_size (--image-size) or the data set's "
                    "transform"
                )
            together[place] = values
            targets.append(target)
        together, _ = standard_inputs(together, self.layout)
        if not bool(together.sum().isfinite()):
            for number, values in zip(numbers, together, strict=True):
                what = f"{self.name}, input {number}"
                check_finite(values, what=what, advice="replace it or leave it out")
        for change in self.changes:
            together = change(together)
        return together, stacked(targets)


def default_workers() -> int:
    """Processes that read ahead: one a core but one, at most four; none where none are forked."""
    if sys.platform != "linux":  # others start Python anew, which not every script allows
        return 0
    return min(MOST_WORKERS, len(os.sched_getaffinity(0)) - 1)


def batches_of_items(
    reader: ItemBatches, batches: Iterable[Tensor], workers: int, *, pinned: bool = False
) -> Iterator[tuple[list[int], Tensor | None, Any]]:
    """What `reader` has of these numbers, batch by batch in their order; None of an empty batch.

    workers: processes that read ahead; 0 reads here when a batch is asked for
    pinned:  in memory that a GPU copies from without waiting
    """
    loader: DataLoader[Any] = DataLoader(
        reader,
        batch_size=None,
        sampler=_Numbers(batches),
        num_workers=workers,
        collate_fn=_as_it_is,
        pin_memory=pinned,
        multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
        # Without one of its own it would draw from torch's, which dropout draws from as well.
        generator=torch.Generator(),
    )
    for found in loader:
        if isinstance(found, CallerError):
            raise found
        yield found


class _Numbers:
    """A sampler that asks for batches as they are needed."""

    def __init__(self, batches: Iterable[Tensor]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return (batch.tolist() for batch in self.batches)


def _as_it_is(found: Any) -> Any:
    return found
