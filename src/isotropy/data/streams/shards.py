"""Tar shards in the layout of WebDataset: files of one example stand side by side, by their key.

    shard-000.tar   000000.png  000000.cls  000001.png  000001.cls  …

The key is the path up to the first dot of the file's name. An example has an input, a picture or an
array (`.npy`), and a label in `.cls`, `.json` or `.txt`, the first of these that is there: a whole
number, a name, numbers of a regression, or of a JSON object the entry `label`, `cls`, `class` or
`target`. Names are numbered in sorted order.

The headers are read once. What is kept of an example is its shard, the place and length of its
input there, and its label: 28 bytes. Inputs are then read in any order by their places. Shards must
not be compressed, which leaves no places.
"""

from __future__ import annotations

import glob
import io
import itertools
import json
import re
import tarfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from isotropy.checks import CallerError
from isotropy.data.formats import NPY_START, refused
from isotropy.data.image_folder import SUFFIXES, ImageSize, is_grey, upright_size, working_size
from isotropy.data.labelled import standard_targets, tensor_from
from isotropy.data.streams.items import picture_input

LABELS = (".cls", ".json", ".txt")
"""Files of labels, the first that is there counts."""
ENTRIES = ("label", "cls", "class", "target")
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
TRIED = 16
"""Pictures that are opened to see whether there are colours."""


def shard_paths(source: str | Path) -> list[Path] | None:
    """The shards that a folder, a file or a pattern names, in order; None where it names none."""
    text = str(source)
    try:
        path = Path(text).expanduser()
        if path.is_dir():
            found = sorted(each for each in path.iterdir() if _is_shard(each))
            return [each for each in found if each.suffix.lower() == ".tar"] or found or None
        if path.is_file():
            return [path] if _is_shard(path) else None
        if not re.search(r"[*?{\[]", text) or not _is_shard(Path(text.rstrip("}]"))):
            return None
        each = [own for braces in _without_braces(str(path)) for own in sorted(_matching(braces))]
    except (OSError, ValueError, RuntimeError):  # said where paths are looked for
        return None
    return [Path(own) for own in each]


def _is_shard(path: Path) -> bool:
    return path.name.lower().endswith((".tar", *COMPRESSED)) and not path.name.startswith(".")


def _matching(text: str) -> list[str]:
    found = glob.glob(text)
    if not found:
        raise CallerError(f"{text}: expected a tar shard, found nothing; check the pattern")
    return found


def _without_braces(text: str) -> Iterator[str]:
    """`a-{08..10}.tar` and `{a,b}.tar` written out."""
    found = re.search(r"\{([^{}]*)\}", text)
    if found is None:
        yield text
        return
    first, _, last = found[1].partition("..")
    words = found[1].split(",")
    if first.isdecimal() and last.isdecimal():
        words = [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    for word in words:
        yield from _without_braces(text[: found.start()] + word + text[found.end() :])


@dataclass(frozen=True)
class _Index:
    """Where inputs are: the number of the shard, and place and length there, one an example."""

    shards: array[int] = field(default_factory=lambda: array("i"))
    places: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))


class TarShards(Dataset[Any]):
    """Examples (input, target) of tar shards.

    name:    of the folder, or of the first shard
    classes: names, where labels are names or were given; None where they are numbers
    targets_of_all: in standard form (`labelled.standard_targets`)
    """

    def __init__(
        self,
        paths: list[Path],
        image_size: ImageSize = None,
        classes: tuple[str, ...] | None = None,
    ) -> None:
        self.paths = paths
        self.name = paths[0].parent.name if len(paths) > 1 else paths[0].stem
        index, labels = _Index(), list[Any]()
        for number, path in enumerate(paths):
            for place, size, label in _examples(path):
                index.shards.append(number)
                index.places.append(place)
                index.sizes.append(size)
                labels.append(label)
        if not labels:
            raise CallerError(
                f"{paths[0]}: expected examples such as 000001.png beside 000001.cls, got a shard "
                "without any; name other shards"
            )
        # Arrays of numpy are no Python objects, so that workers share the pages they lie in.
        self._shards = np.frombuffer(index.shards, np.int32)
        self._places = np.frombuffer(index.places, np.int64)
        self._sizes = np.frombuffer(index.sizes, np.int64)
        if len({type(label) is str for label in labels}) > 1:
            labels = [str(label) for label in labels]
        targets = standard_targets(labels, what=f"{self.name}, labels", names=classes)
        self.targets_of_all, self.classes = targets.values, targets.classes or classes
        self._channels, self._side = 1, None if isinstance(image_size, str) else image_size
        tried = [self._opened(each) for each in range(0, len(self), max(1, len(self) // TRIED))]
        pictures = [each for each in tried if isinstance(each, Image.Image)]
        if pictures:
            self._channels = 1 if all(is_grey(each) for each in pictures) else 3
            if image_size == "auto":
                self._side = working_size(*upright_size(pictures[0]))

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        found = self._opened(number)
        if isinstance(found, Image.Image):
            try:
                found = picture_input(found, self._channels, self._side)
            except CallerError as error:
                raise CallerError(f"{self._place(number)}: {error}") from None
            except Exception as error:  # PIL's many decoders raise errors of many kinds
                raise self._damaged(number, error) from None
        return found, self.targets_of_all[number]

    def _opened(self, number: int) -> Image.Image | Tensor:
        """The picture, which is not decoded yet, or the array of an example."""
        path, size = self.paths[self._shards[number]], int(self._sizes[number])
        try:
            with path.open("rb") as file:  # one opened before would be shared with workers
                file.seek(int(self._places[number]))
                content = file.read(size)
        except OSError as error:
            raise refused(path, error) from None
        try:
            if content.startswith(NPY_START):
                values = np.load(io.BytesIO(content), allow_pickle=False)
                return tensor_from(values, what=self._place(number))
            return Image.open(io.BytesIO(content))
        except CallerError:
            raise
        except Exception as error:
            raise self._damaged(number, error) from None

    def _place(self, number: int) -> str:
        return f"{self.paths[self._shards[number]]}, example {number}"

    def _damaged(self, number: int, error: Exception) -> CallerError:
        return CallerError(
            f"{self._place(number)}: expected a picture or an array, got a file that is damaged "
            f"({type(error).__name__}); write this shard again"
        )


def _examples(path: Path) -> Iterator[tuple[int, int, Any]]:
    """Place, size and label of the examples of a shard; the label as its file says it."""
    if path.name.lower().endswith(COMPRESSED):
        raise CallerError(
            f"{path}: expected a tar file that is not compressed, in which examples have places; "
            "unpack it with gunzip or the like"
        )
    try:
        length = path.stat().st_size
        with path.open("rb") as file:
            for key, group in itertools.groupby(_members(path), lambda each: each[0]):
                files = {suffix: (place, size) for _, suffix, place, size in group}
                inputs = [own for own in files if own in SUFFIXES or own == ".npy"]
                if not inputs:
                    continue
                place, size = files[inputs[0]]
                label = next((own for own in LABELS if own in files), None)
                if label is None:
                    raise CallerError(
                        f"{path}: expected a label beside {key}{inputs[0]}, such as {key}.cls, got "
                        f"none; write the files of one example one after the other"
                    )
                if max(sum(own) for own in files.values()) > length:
                    raise _broken(path, f"{key}{inputs[0]} is cut off")
                file.seek(files[label][0])
                yield place, size, _label(file.read(files[label][1]), label, f"{path}, {key}")
    except tarfile.TarError as error:
        raise _broken(path, str(error)) from None
    except OSError as error:
        raise refused(path, error) from None


def _members(path: Path) -> Iterator[tuple[str, str, int, int]]:
    """Key, suffix, place and size of the files in a shard."""
    with tarfile.open(path, "r:") as shard:
        while (member := shard.next()) is not None:
            shard.members = []  # type: ignore[attr-defined]  # it keeps all that it has seen
            folder, slash, name = member.name.rpartition("/")
            key, dot, suffix = name.partition(".")
            if member.isfile() and key:
                yield folder + slash + key, (dot + suffix).lower(), member.offset_data, member.size
        end = shard.offset
    with path.open("rb") as file:  # tarfile takes a header that is no header for the end
        file.seek(end)
        if file.read(512).strip(b"\0"):
            raise _broken(path, f"no header at byte {end}")


def _broken(path: Path, why: str) -> CallerError:
    return CallerError(
        f"{path}: expected a whole tar file, got a damaged one ({why}); write this shard again"
    )


def _label(content: bytes, suffix: str, what: str) -> Any:
    """A number, numbers or a name."""
    try:
        text = content.decode("utf-8").strip()
        value = json.loads(text) if suffix == ".json" else text
    except (UnicodeDecodeError, ValueError):
        raise CallerError(
            f"{what}{suffix}: expected a label in text, got something else; write it again"
        ) from None
    if isinstance(value, dict):
        value = next((value[entry] for entry in ENTRIES if entry in value), None)
    if value is None or value == "" or isinstance(value, bool | dict):
        raise CallerError(
            f"{what}{suffix}: expected a label, a number or a name, got none; of a JSON object the "
            f"entry {', '.join(ENTRIES)} counts"
        )
    if not isinstance(value, str):
        return value
    if re.fullmatch(r"[+-]?\d+", value, re.ASCII):
        return int(value)
    is_number = re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", value, re.ASCII)
    return float(value) if is_number else value
