"""The commands of README and docs, and stand-ins for the files that they name.

A command is a line of a fenced block that calls `isotropy`. A block behind `<!-- not run: why -->`
is listed with its reason.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from isotropy.data.readers import digits

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("howto/*.md"))]
BLOCK = re.compile(r"^(?:<!-- not run: ([^>]+) -->\n)?```(\w*)\n(.*?)^```$", flags=re.M | re.S)
CALL = re.compile(r"(?:\.venv/bin/)?isotropy ")


@dataclass(frozen=True)
class Command:
    """One command as it stands on a page; `why_not` where it is not to be run."""

    page: str
    line: int
    words: tuple[str, ...]
    why_not: str | None

    @property
    def verb(self) -> str:
        return self.words[0]

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {' '.join(self.words)}"


def commands_of(text: str, page: str) -> Iterator[Command]:
    """All commands of a page, in order."""
    for block in BLOCK.finditer(text):
        why_not, language, body = block.groups()
        first = text[: block.start(3)].count("\n") + 1
        if language in ("python", "text"):
            continue
        for number, line in enumerate(body.splitlines(), first):
            if CALL.match(line):
                yield Command(page, number, tuple(shlex.split(line, comments=True)[1:]), why_not)


def spans_of(text: str, page: str) -> Iterator[Command]:
    """Commands with options within a sentence or a table, for which nobody says what is there."""
    for span in re.finditer(r"`isotropy ([a-z]+ --[^`…]+)`", text):
        line = text[: span.start()].count("\n") + 1
        words = tuple(shlex.split(span[1]))
        yield Command(page, line, words, "within a sentence or a table")


def all_spans() -> list[Command]:
    """Those of all pages."""
    return [each for page in PAGES for each in spans_of(page.read_text("utf-8"), page.name)]


def all_commands() -> list[Command]:
    """The commands of all pages, page by page."""
    return [each for page in PAGES for each in commands_of(page.read_text("utf-8"), page.name)]


# -- stand-ins ---------------------------------------------------------------------------------

MODEL_FILE = """
from torch import nn


def build(shape, outputs):
    return nn.Sequential(
        nn.Conv2d(shape[0], 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(2, outputs),
    )
"""


def make_files(place: Path) -> None:
    """Small files under the names of the documents."""
    split = digits()
    images = (split.train.inputs[:260, 0] * 255).byte().numpy()
    small, labels = images[:, ::2, ::2].copy(), split.train.targets[:260].byte().numpy()
    np.savez(place / "rotated.npz", x=images, y=labels)
    np.savez(place / "archive.npz", x=small, y=labels)
    for name in ("MNIST", "mnist"):
        _write_idx(place / name, small, labels)
    generator = np.random.default_rng(0)
    for kind, bright in {"cat": 60, "dog": 200}.items():
        (place / "pictures" / kind).mkdir(parents=True)
        for number in range(30):
            pixels = generator.integers(bright - 50, bright + 50, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / "pictures" / kind / f"{number}.png")
    folder = place / "cifar-10-batches-bin"
    folder.mkdir()
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        rows = generator.integers(0, 256, (10, 3073), dtype=np.uint8)
        rows[:, 0] = np.arange(10)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    (place / "net.py").write_text(MODEL_FILE)
    sides = generator.uniform(1, 10, (80, 2)).round(3)
    houses = [f"{a},{b},{a * b:.3f}" for a, b in sides]
    (place / "houses.csv").write_text("\n".join(["width,height,price", *houses]) + "\n")
    values = torch.rand(60, 4, generator=torch.Generator().manual_seed(0)).tolist()
    rows = [",".join(f"{value:.4f}" for value in row) for row in values]
    named = [f"{row},{number % 20}" for number, row in enumerate(rows)]
    (place / "samples.csv").write_text("\n".join(["a,b,c,d,patient", *named]) + "\n")
    (place / "new.csv").write_text("\n".join(["a,b,c,d", *rows[:5]]) + "\n")


def _write_idx(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    folder.mkdir()
    for part in ("train", "t10k"):
        for name, array in {"images-idx3": images, "labels-idx1": labels}.items():
            head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
            (folder / f"{part}-{name}-ubyte").write_bytes(head + array.tobytes())
