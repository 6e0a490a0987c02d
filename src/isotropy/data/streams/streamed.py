"""Streamed data: examples stay where they are and are read when a batch needs them.

`StreamedData` are `LabelledData` in two parts:

    inputs, targets   a sample of the examples, spread evenly, at most `SAMPLE_EXAMPLES` of them and
                      `SAMPLE_BYTES`; all of them in their order if there are no more
    read              any examples by their numbers, batch by batch, read ahead by workers

Weight steps and evidence passes read all examples in the order in which those of a tensor are
taken, so a run has the same numbers either way. What needs only some examples has the sample: the
choice of a border, statistics of the data, fingerprints, pictures. Nothing is kept of what was
read. What grows with the number of examples is 8 bytes of each in a random order, and the index of
shards.

An item must be the same every time it is read: a data set with random transforms is refused, where
the first item shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isotropy.checks import CallerError, check_at_least, usable_memory
from isotropy.data.image_folder import ImageSize
from isotropy.data.labelled import (
    LabelledData,
    Layout,
    Notes,
    Split,
    class_shares,
    random_order,
    standard_inputs,
    standard_targets,
)
from isotropy.data.saved_datasets import ColumnItems, is_hugging_face
from isotropy.data.streams.items import (
    READ_AT_ONCE,
    ItemBatches,
    batches_of_items,
    check_countable,
    class_names_of,
    default_workers,
    pair_of,
)
from isotropy.data.streams.shards import TarShards, shard_paths
from isotropy.data.tables import Target

SAMPLE_EXAMPLES = 4096
SAMPLE_BYTES = 2**28
LARGEST_SHARE = 1 / 4
"""Of memory: data that take more of it are streamed. Reading them whole takes twice as much."""


@dataclass(frozen=True, eq=False)
class StreamedData(LabelledData):
    """Examples that are read when they are needed; `inputs` and `targets` are a sample of them.

    reader:  reads items of the data set by their numbers
    numbers: which items these are, int64 (examples,); None: all
    workers: processes that read ahead
    most:    examples of the sample, at most
    notes:   on what is done to inputs and targets
    """

    reader: ItemBatches = field(kw_only=True)
    numbers: Tensor | None = field(kw_only=True, default=None)
    workers: int = field(kw_only=True, default=0)
    most: int = field(kw_only=True, default=SAMPLE_EXAMPLES)
    notes: Notes = field(kw_only=True, default=())

    def __len__(self) -> int:
        return len(self.reader.dataset) if self.numbers is None else len(self.numbers)

    @property
    def is_whole(self) -> bool:
        """Whether the sample has all examples."""
        return len(self.inputs) == len(self)

    @property
    def known_targets(self) -> Tensor | None:
        """Targets of all examples, where they are known without reading these; else None."""
        if self.is_whole:
            return self.targets
        known: Tensor | None = getattr(self.reader.dataset, "targets_of_all", None)
        return known if known is None or self.numbers is None else known[self.numbers]

    @property
    def bytes_in_memory(self) -> int:
        """What all inputs would take as one tensor."""
        return len(self) * self.inputs[0].numel() * self.inputs.element_size()

    def read(
        self, batches: Iterable[Tensor], *, pinned: bool = False
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets of examples by their numbers, (batch,) int64 each, in this order.

        Raises `CallerError` for an input unlike the first, and a label that is none of the classes.
        """
        items = batches if self.numbers is None else (self.numbers[batch] for batch in batches)
        for numbers, inputs, targets in batches_of_items(
            self.reader, items, self.workers, pinned=pinned
        ):
            if inputs is None:
                yield self.inputs[:0], self.targets[:0]
            else:
                yield inputs, self._targets(targets, numbers)

    def _targets(self, values: Any, numbers: list[int]) -> Tensor:
        """Targets of some items in the form of the sample's."""
        found = standard_targets(
            values,
            what=f"{self.name}, targets of items {numbers[0]} …",
            names=self.classes,
            regression=not self.is_classification,
        ).values
        if found.dtype != self.targets.dtype or found.shape[1:] != self.targets.shape[1:]:
            raise CallerError(
                f"{self.name}: expected targets as those of other examples, {self.targets.dtype} "
                f"{tuple(self.targets.shape[1:])} each, got {found.dtype} {tuple(found.shape[1:])} "
                f"among items {numbers[0]} …; give all in the same form"
            )
        if self.is_classification:
            wrong = ((found < 0) | (found >= self.num_classes)).nonzero()
            if len(wrong):
                first = int(wrong[0])
                raise CallerError(
                    f"{self.name}: expected labels 0 to {self.num_classes - 1} "
                    f"({self.num_classes} classes), got {int(found[first])} at item "
                    f"{numbers[first]}; correct the label, or name all classes in an attribute "
                    "`classes` of the data set"
                )
        return found

    def take(self, indices: Tensor) -> LabelledData:
        """The examples at `indices`: in memory if they are no more than a sample, else streamed."""
        if len(indices) > self.most:
            return self.part(indices)
        return self._held(indices, self.name)

    def part(self, indices: Tensor) -> StreamedData:
        """The examples at `indices`, streamed however few they are."""
        numbers = indices if self.numbers is None else self.numbers[indices]
        inputs, targets = _gathered(self, indices[_spread(len(indices), self.most)])
        return replace(self, inputs=inputs, targets=targets, numbers=numbers)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> StreamedData:
        reader = replace(self.reader, changes=(*self.reader.changes, change))
        return replace(self, inputs=change(self.inputs), reader=reader)

    def in_memory(self) -> LabelledData:
        """All examples as tensors."""
        return self._held(None, self.name)

    def sample(self) -> LabelledData:
        """The sample alone."""
        return LabelledData(self.inputs, self.targets, self.classes, self.name)

    def _held(self, indices: Tensor | None, name: str) -> LabelledData:
        if self.is_whole:
            chosen = slice(None) if indices is None else indices
            return LabelledData(self.inputs[chosen], self.targets[chosen], self.classes, name)
        inputs, targets = _gathered(self, torch.arange(len(self)) if indices is None else indices)
        return LabelledData(inputs, targets, self.classes, name)


def streamed(
    source: Any,
    *,
    workers: int | None = None,
    sample: int = SAMPLE_EXAMPLES,
    image_size: ImageSize = None,
    layout: Layout = "auto",
    reference: LabelledData | None = None,
) -> StreamedData:
    """Data that are read while they are used, for `isotropy.learn`.

    source:     a map-style `torch.utils.data.Dataset` of pairs (input, target), a data set of
                Hugging Face, or tar shards: their folder, a file, or a pattern of files such as
                `shard-{000..009}.tar` (`shards`)
    workers:    processes that read ahead; by default one a core but one, at most four
    sample:     examples that are held in memory, at most
    image_size: side of pictures of shards and of Hugging Face in pixels, as in `isotropy.read`
    layout:     as in `isotropy.read`
    reference:  the training data that this is a test set for

    Raises `CallerError` for data without numbers and for what the first examples show.
    """
    check_at_least(sample, 2, what="sample, in examples")
    dataset, name = _items(source, image_size, reference)
    check_countable(dataset, name)
    first, again = (pair_of(dataset[0], 0, name)[0] for _ in range(2))
    if not torch.equal(first, again):
        raise CallerError(
            f"{name}: expected the same example every time it is read, got another item 0 the "
            "second time; take random transforms out of the data set"
        )
    reader = ItemBatches(dataset, name, tuple(first.shape), first.dtype, layout)
    standard, _ = reader.batch([0])
    every = torch.empty(len(dataset), *first.shape, dtype=first.dtype, device="meta")
    notes = standard_inputs(every, layout)[1]
    chosen = _spread(len(dataset), _most(sample, standard))
    workers = default_workers() if workers is None else workers
    parts = list(batches_of_items(reader, chosen.split(READ_AT_ONCE), workers))
    classes = class_names_of(dataset) if reference is None else reference.classes
    targets = standard_targets(
        _joined([targets for _, _, targets in parts]),
        what=f"{name}, targets",
        names=classes,
        regression=reference is not None and not reference.is_classification,
    )
    brought, known = targets.classes, getattr(dataset, "targets_of_all", targets.values)
    if brought is None and not targets.values.is_floating_point():
        brought = classes or tuple(str(label) for label in range(int(known.max()) + 1))
    return StreamedData(
        torch.cat([inputs for _, inputs, _ in parts if inputs is not None]),
        targets.values,
        brought,
        name,
        reader=reader,
        workers=workers,
        most=_most(sample, standard),
        notes=(*notes, *targets.notes),
    )


def _items(source: Any, image_size: ImageSize, reference: LabelledData | None) -> tuple[Any, str]:
    """A data set of pairs with what it is called."""
    if isinstance(source, str | Path):
        paths = shard_paths(source)
        if paths is None:
            raise CallerError(
                f"{source}: expected tar shards, a folder of them or a pattern such as "
                "shard-{000..009}.tar, got something else; other files are held in memory"
            )
        source = TarShards(paths, image_size, None if reference is None else reference.classes)
    elif isinstance(source, Mapping):
        raise CallerError(
            f"data: expected one data set, got the parts {', '.join(map(str, source))}; take one "
            "of them"
        )
    elif is_hugging_face(source):
        source = ColumnItems(source, "data", Target(), image_size)
    named = isinstance(source, TarShards | ColumnItems)
    return source, source.name if named else type(source).__name__


def stream_note(data: StreamedData) -> str:
    """The sentence on data that are not held."""
    some = "all" if data.is_whole else f"{len(data.inputs):,} spread evenly"
    return (
        f"{len(data):,} examples are read while they are used; {some} of them are held, for "
        "what needs no more than a sample"
    )


def is_large(count: int, example: Tensor) -> bool:
    """Whether so many inputs like this one are better streamed than held, as float32."""
    return 4 * count * example.numel() > LARGEST_SHARE * usable_memory()


def held(split: Split) -> Split:
    """A split in memory: of streamed training data the sample, with a note."""
    data = split.train
    if not isinstance(data, StreamedData):
        return split
    notes = split.notes
    if not data.is_whole:
        note = (
            f"a sample of {len(data.inputs):,} of {len(data):,} examples, spread evenly: only "
            "learn reads data while it uses them"
        )
        notes = (*notes, note)
    return replace(split, train=data.sample(), notes=notes)


def as_test(data: LabelledData) -> tuple[LabelledData, Notes]:
    """Test data in memory: of streamed ones the sample, with a note."""
    if not isinstance(data, StreamedData):
        return data, ()
    if data.is_whole:
        return data.sample(), ()
    note = f"{len(data.inputs):,} of {len(data):,} test examples are scored, spread evenly"
    return data.sample(), (note,)


def hold_out_streamed(data: StreamedData, fraction: float, seed: int) -> Split:
    """As `labelled.hold_out`, with a test part in memory that is no larger than a sample.

    Of every class alike where the labels are known without reading the examples.
    """
    if len(data) < 2:
        raise CallerError(
            f"{data.name}: expected at least 2 examples to hold some out, got 1; "
            "give a test set of its own"
        )
    count = min(max(round(fraction * len(data)), 1), len(data) - 1, data.most)
    order = random_order(len(data), seed)
    chosen, known = order[:count], data.known_targets
    alike = known is not None and data.is_classification
    if known is not None and alike:
        chosen = class_shares(known[order], order, count)
    is_test = torch.zeros(len(data), dtype=torch.bool)
    is_test[chosen] = True
    test = data._held(is_test.nonzero()[:, 0], f"{data.name} (held out)")
    note = (
        f"{100 * len(test) / len(data):.3g} % ({len(test)} example{'s' if len(test) > 1 else ''}) "
        f"held out by seed {seed}{', of every class alike' if alike else ''}; learning never sees "
        "them"
    )
    return Split(train=data.part((~is_test).nonzero()[:, 0]), test=test, notes=(note,))


def _most(sample: int, example: Tensor) -> int:
    """Examples of a sample; example (1, …)"""
    return max(2, min(sample, SAMPLE_BYTES // (example.numel() * example.element_size())))


def _spread(count: int, most: int) -> Tensor:
    """At most so many of `count` numbers, in their order: one at random of each of equal parts.

    The middles of the parts would be at even distances, and may all be of the same class.
    """
    if count <= most:
        return torch.arange(count)
    ends = torch.arange(most + 1) * count // most
    drawn = torch.rand(most, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return ends[:-1] + (drawn * ends.diff()).long()


def _gathered(data: StreamedData, indices: Tensor) -> tuple[Tensor, Tensor]:
    parts = list(data.read(indices.split(READ_AT_ONCE)))
    return torch.cat([inputs for inputs, _ in parts]), torch.cat([targets for _, targets in parts])


def _joined(parts: list[Any]) -> Any:
    """Targets of several batches together, as `items.stacked` has those of one."""
    if all(isinstance(part, Tensor) for part in parts):
        return torch.cat(parts)
    return [target for part in parts for target in part]
