"""What all pages share: the templates, the key numbers on top, the settings at the end.

A page is made of small objects of text and numbers ready to print; the words between them and the
looks are in `templates/`. Nothing on a page depends on the time or place it was written.

Arrays of pixels as PNG data URIs, so that a page carries its own pictures.

A PNG is a signature and three chunks: the header, the pixel rows (each led by a filter byte,
here 0 = none, all compressed by zlib) and the end (PNG specification, section 5).
Written by hand: a few lines, no further dependency, and no date or software name in the file.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from isotropy.report.wording import MISSING

_TEMPLATES = Path(__file__).parent / "templates"

SettingsGroup = tuple[str, list[tuple[str, str]]]


@dataclass(frozen=True)
class KeyNumber:
    """One of the numbers at the top of the page, and a note on how to take it."""

    name: str
    value: str
    note: str


@dataclass(frozen=True)
class Drawing:
    """An inline SVG with the words that go above it; width: the most in CSS pixels, or 0."""

    title: str
    note: str
    svg: Markup
    width: int = 0


def render(template: str, **context: Any) -> str:
    """The page of a template; text in the context is escaped, a missing name is an error."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**context)


def settings_groups(
    result: Mapping[str, Any], config: Mapping[str, Any], *, run: Mapping[str, Any]
) -> list[SettingsGroup]:
    """(group, [(setting, value), …]): the run itself first, then each part of the config.

    run: what the page tells of the run besides seed, device, versions and folder
    """
    told: dict[str, Any] = {
        "command": f"isotropy {result.get('command') or ''}".strip(),
        **{name: result.get(name) for name in ("seed", "device")},
        **run,
        "isotropy": result.get("isotropy"),
        **(result.get("versions") or {}),
        "commit": result.get("commit"),
        "run folder": result.get("run_folder"),
    }
    loose = {name: value for name, value in config.items() if not isinstance(value, Mapping)}
    if "command" in loose:
        told["command"] = loose.pop("command")
    groups: list[tuple[str, Mapping[str, Any]]] = [("run", told | loose)]
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

_GREY, _COLOUR = 0, 2


def picture_uri(image: np.ndarray, *, largest_side: int = LARGEST_SIDE) -> str:
    """A `data:image/png;base64,…` URI of an image (channels, height, width) in [0, 1].

    One channel is shown grey, two are averaged, of three or more the first three are red,
    green and blue. Values outside [0, 1] are clipped, what is not a number is black, and an
    image with a longer side than `largest_side` is averaged over square blocks of pixels.
    """
    pixels = _shrink(np.nan_to_num(image.astype(np.float64)), largest_side)
    channels = pixels.shape[0]
    shown = pixels[:3] if channels >= 3 else pixels.mean(axis=0, keepdims=True)
    levels = np.rint(np.clip(shown, 0.0, 1.0) * 255).astype(np.uint8)
    return "data:image/png;base64," + base64.b64encode(encode_png(levels)).decode("ascii")


def encode_png(levels: np.ndarray) -> bytes:
    """A PNG file of levels (1 or 3 channels, height, width), uint8."""
    channels, height, width = levels.shape
    assert channels in (1, 3) and levels.dtype == np.uint8
    colour_type = _COLOUR if channels == 3 else _GREY
    header = struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)
    rows = np.moveaxis(levels, 0, -1).reshape(height, width * channels)
    filtered = np.concatenate([np.zeros((height, 1), dtype=np.uint8), rows], axis=1)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", zlib.compress(filtered.tobytes(), 9))
        + _chunk(b"IEND", b"")
    )


def _chunk(name: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)


def _shrink(image: np.ndarray, largest_side: int) -> np.ndarray:
    """Average over block × block pixels; pixels left over at the right and below are dropped."""
    channels, height, width = image.shape
    block = math.ceil(max(height, width) / largest_side)
    block = min(block, height, width)
    if block <= 1:
        return image
    rows, columns = height // block, width // block
    whole = image[:, : rows * block, : columns * block]
    means: np.ndarray = whole.reshape(channels, rows, block, columns, block).mean(axis=(2, 4))
    return means
