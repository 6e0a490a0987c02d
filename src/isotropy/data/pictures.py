"""Pictures as PIL opens them, turned into tensors, and images brought to another size.

A picture becomes float32 `(channels, height, width)` in [0, 1], grey (1 channel) or RGB (3),
upright as its camera meant it, without transparency; of a moving picture, the first frame.

Where the new size has another aspect ratio, the middle of the picture is kept and the rest cut off:
a stretched picture would turn rotations into something else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn.functional import interpolate

from isotropy.checks import CallerError, shape_text
from isotropy.data.labelled import LabelledData

GREY_MODES = ("1", "L", "LA", "La", "I;16", "I;16L", "I;16B", "I;16N")
UNREAD_MODES = ("I", "F")
RESIZE_CHUNK = 1000
LARGEST_SIDE = 64
"""Pictures with a longer side are brought to the working size where nobody asked for another."""
WORKING_SIZE = 32
"""Side of the pictures then, in pixels: small networks see shapes, and copies cost little."""
ImageSize = int | Literal["auto"] | None
"""A side in pixels, "auto" for the working size where pictures are large, None for their own."""
_ORIENTATION_TAG = 0x0112
_TURNED_ON_THEIR_SIDE = (5, 6, 7, 8)


def is_grey(picture: Image.Image) -> bool:
    """True where the picture's mode holds no colour."""
    return picture.mode in GREY_MODES


def upright_size(picture: Image.Image) -> tuple[int, int]:
    """(height, width) in pixels once turned upright, read from the header alone."""
    width, height = picture.size
    if picture.getexif().get(_ORIENTATION_TAG) in _TURNED_ON_THEIR_SIDE:
        return width, height
    return height, width


def picture_tensor(picture: Image.Image, channels: int | None = None) -> Tensor:
    """A picture as float32 `(channels, height, width)` in [0, 1].

    channels: 1 for grey, 3 for RGB; None takes what the picture has.
    Raises `CallerError` for pictures of 32 bits per channel, whose range nothing tells.
    """
    if picture.mode in UNREAD_MODES:
        raise CallerError(
            f"expected a picture of 8 or 16 bits per channel, got PIL mode {picture.mode!r} "
            "(32 bits); store such data in an npz archive"
        )
    if channels is None:
        channels = 1 if is_grey(picture) else 3
    upright = ImageOps.exif_transpose(picture)
    if upright.mode.startswith("I;16"):  # PIL would clip at 255 instead of dividing
        pixels = np.asarray(upright).astype(np.float32) / 65535
        return torch.from_numpy(pixels)[None].expand(channels, -1, -1).clone()
    if upright.mode == "P" and "transparency" in upright.info:
        upright = upright.convert("RGBA")
    pixels = np.asarray(upright.convert("L" if channels == 1 else "RGB"), dtype=np.float32) / 255
    planes = pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(planes))


def resize_images(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Images `(examples, channels, height, width)` at another (height, width) in pixels.

    Bilinear; when shrinking, the kernel is widened so that fine detail does not alias.
    Images of that size already are returned as they are.
    """
    if tuple(images.shape[2:]) == size:
        return images
    parts = [
        interpolate(chunk, size=size, mode="bilinear", antialias=True, align_corners=False)
        for chunk in images.split(RESIZE_CHUNK)
    ]
    return torch.cat(parts)


def middle(images: Tensor, size: tuple[int, int]) -> Tensor:
    """The largest part of images `(…, height, width)` with the aspect ratio of `size`, centred.

    (height, width) within half a pixel of that ratio are returned as they are.
    """
    height, width = images.shape[-2:]
    kept_height = max(1, min(height, round(width * size[0] / size[1])))
    kept_width = max(1, min(width, round(height * size[1] / size[0])))
    top, left = (height - kept_height) // 2, (width - kept_width) // 2
    return images[..., top : top + kept_height, left : left + kept_width]


def resized(data: LabelledData, image_size: int) -> tuple[LabelledData, tuple[str, ...]]:
    """`data` with square images of `image_size` pixels, and a note if that changed anything.

    Raises `CallerError` for data that are not images.
    """
    if not data.is_images:
        raise CallerError(
            f"{data.name}: expected images (examples, channels, height, width) to resize to "
            f"{image_size} pixels, got {shape_text(data.inputs)}; leave image_size out"
        )
    height, width = data.inputs.shape[2:]
    if (height, width) == (image_size, image_size):
        return data, ()
    cut = "" if height == width else "cut to their middle square and "
    note = (
        f"{data.name}: images {cut}resized from {height} × {width} to {image_size} × {image_size} "
        "pixels (bilinear, antialiased)"
    )
    size = (image_size, image_size)
    return replace(data, inputs=resize_images(middle(data.inputs, size), size)), (note,)


def working_size(height: int, width: int) -> int | None:
    """The side to which pictures of this size are brought by default; None: they stay."""
    return WORKING_SIZE if max(height, width) > LARGEST_SIDE else None
