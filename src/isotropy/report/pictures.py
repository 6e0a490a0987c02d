"""Arrays of pixels as PNG data URIs, so that a page carries its own pictures.

A PNG is a signature and three chunks: the header, the pixel rows (each led by a filter byte,
here 0 = none, all compressed by zlib) and the end (PNG specification, section 5).
Written by hand: a few lines, no further dependency, and no date or software name in the file.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib

import numpy as np

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
