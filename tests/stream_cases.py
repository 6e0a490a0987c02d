"""Data sets, tar shards and stand-ins of Hugging Face for the tests of streamed data."""

from __future__ import annotations

import io
import itertools
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import Dataset


class Items(Dataset[Any]):
    """Pairs of two sequences; notes which were asked for."""

    def __init__(self, inputs: Sequence[Any], targets: Sequence[Any], classes: Any = None) -> None:
        self.inputs, self.targets, self.classes = inputs, targets, classes
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        self.asked.append(number)
        return self.inputs[number], self.targets[number]


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def npy(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def shard(path: Path, files: Sequence[tuple[str, bytes]]) -> Path:
    """A tar file with these members."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def examples(images: np.ndarray, labels: Sequence[Any], first: int = 0) -> list[tuple[str, bytes]]:
    """The members of uint8 images (count, height, width) or (…, 3) with their labels."""
    found = []
    for number, (image, label) in enumerate(zip(images, labels, strict=True), start=first):
        found += [(f"{number:06}.png", png(image)), (f"{number:06}.cls", str(label).encode())]
    return found


def shards(folder: Path, images: np.ndarray, labels: Sequence[Any], count: int = 3) -> Path:
    """A folder of so many shards with these examples in their order."""
    cuts = np.linspace(0, len(images), count + 1).astype(int)
    for number, (start, end) in enumerate(itertools.pairwise(cuts)):
        own = examples(images[start:end], labels[start:end], int(start))
        shard(folder / f"shard-{number:03}.tar", own)
    return folder


class Columns:
    """A data set of Hugging Face as it is used here."""

    class _Feature:
        def __init__(self, names: list[str]) -> None:
            self.names = names

    def __init__(self, names: dict[str, list[str]] | None = None, **columns: list[Any]) -> None:
        self.columns, self.column_names = columns, list(columns)
        self.features = {each: self._Feature(own) for each, own in (names or {}).items()}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key: str | int) -> Any:
        if isinstance(key, str):
            return self.columns[key]
        return {name: cells[key] for name, cells in self.columns.items()}


Columns.__module__ = "datasets.arrow_dataset"


class EndlessColumns:
    """The same with streaming=True: it has no length."""

    column_names = ("image", "label")


EndlessColumns.__module__ = "datasets.iterable_dataset"


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()
