"""What all pages share: templates, key numbers, tables, pictures, and the settings at the end.

A page is made of small objects of text and numbers ready to print; the words between them and the
looks are in `templates/`. Nothing on a page depends on the time or place it was written, and
pictures are PNG data URIs, so that a page carries them.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

from isotropy.report.record import Head
from isotropy.report.wording import MISSING, duration_text, number_text

_TEMPLATES = Path(__file__).parent / "templates"

SettingsGroup = tuple[str, list[tuple[str, str]]]


@dataclass(frozen=True)
class KeyNumber:
    """One of the numbers at the top of the page, and a note on how to take it."""

    name: str
    value: str
    note: str


def time_number(record: Head, before: str = "") -> KeyNumber:
    """How long it took, and where; before: what else the note says, with a space at its end."""
    note = before + (f"on {record.device}" if record.device else "")
    return KeyNumber("Time", duration_text(record.seconds), note)


def evidence_number(
    per_example: float, total: float, note: str, name: str = "evidence"
) -> KeyNumber:
    """The log evidence in nats; note: what is said of it, with {} for the total."""
    shown = number_text(total, 1)
    note = "not computed" if shown == MISSING else note.format(shown)
    return KeyNumber(f"Log {name} per example", number_text(per_example, 3), note)


@dataclass(frozen=True)
class Cell:
    """One cell of a table; text may be markup.

    note:  a smaller line below the text
    style: a class of the style sheet: "number", "number clear" for one to be looked at
    head:  whether it names its row
    rows, columns: how many it covers
    """

    text: str
    note: str = ""
    style: str = ""
    head: bool = False
    rows: int = 1
    columns: int = 1


@dataclass(frozen=True)
class Table:
    """A table as text: titles of the columns, and rows of cells.

    marked: rows that stand out ("large") or step back ("faint"), by number
    style:  "dense", with little space between rows, or "short", for few columns
    """

    titles: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    marked: Mapping[int, str] = field(default_factory=dict)
    style: str = ""


def named(text: str, note: str = "") -> Cell:
    """The cell that names its row."""
    return Cell(text, note, head=True)


def number(text: str, note: str = "") -> Cell:
    """A cell with a number."""
    return Cell(text, note, "number")


def render(template: str, **context: Any) -> str:
    """The HTML of a template; text in the context is escaped, a missing name is an error."""
    return _environment().get_template(template).render(**context)


def render_page(
    command: str,
    record: Head,
    sentences: Sequence[str],
    settings: Sequence[SettingsGroup],
    **context: Any,
) -> str:
    """The page of a command: the finding first, the settings last, its own parts between them."""
    headline, *remarks = sentences
    return render(
        f"{command}.html.j2", headline=headline, remarks=remarks, version=record.isotropy,
        settings=settings, **context,
    )  # fmt: skip


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def settings_groups(
    command: str, result: Mapping[str, Any], config: Mapping[str, Any], told: Sequence[str]
) -> list[SettingsGroup]:
    """(group, [(setting, value), …]): the run itself first, then each part of the config.

    told: entries of the result that are told of the run, where they are known, besides seed,
          device, versions and folder
    """
    run: dict[str, Any] = {
        "command": f"isotropy {command}",
        **{name: result.get(name) for name in ("seed", "device")},
        **{name: result[name] for name in told if result.get(name)},
        "isotropy": result.get("isotropy"),
        **(result.get("versions") or {}),
        "commit": result.get("commit"),
        "run folder": result.get("run_folder"),
    }
    loose = {name: value for name, value in config.items() if not isinstance(value, Mapping)}
    groups: list[tuple[str, Mapping[str, Any]]] = [("run", run | loose)]
    groups += [(name, value) for name, value in config.items() if isinstance(value, Mapping)]
    return [(name, flat_settings(values)) for name, values in groups if values]


def flat_settings(values: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Nested settings as (dotted name, text)."""
    rows: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            rows += flat_settings(value, f"{before}{name}.")
        else:
            rows.append((f"{before}{name}", _setting_text(value)))
    return rows


def _setting_text(value: object) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    simple = (str, int, float, type(None))
    if isinstance(value, list | tuple) and all(isinstance(each, simple) for each in value):
        return ", ".join(_setting_text(item) for item in value) or MISSING
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping | list) else str(value)


# Eight rows of nine pictures at most this wide stay below a megabyte even if they are noise.
LARGEST_SIDE = 56


def picture_uri(image: np.ndarray, *, largest_side: int = LARGEST_SIDE) -> str:
    """A `data:image/png;base64,…` URI of an image (channels, height, width) in [0, 1].

    One channel is shown grey, two are averaged, of three or more the first three are red,
    green and blue. Values outside [0, 1] are clipped, what is not a number is black, and an
    image with a longer side than `largest_side` is averaged over square blocks of pixels.
    """
    pixels = np.nan_to_num(image.astype(np.float64))
    shown = np.moveaxis(pixels[:3], 0, -1) if len(pixels) >= 3 else pixels.mean(axis=0)
    picture = Image.fromarray(np.rint(np.clip(shown, 0.0, 1.0) * 255).astype(np.uint8))
    block = min(math.ceil(max(picture.size) / largest_side), *picture.size)
    file = io.BytesIO()
    picture.reduce(block).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
