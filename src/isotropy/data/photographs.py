"""Made photographs: one object of three shapes on a coloured background, as JPEG files of any size.

    background   a colour that changes linearly across the picture, soft blotches, fine grain
    object       lighter than the background, about half the shorter side long; which class, its
                 shape tells: a stem with two bars (F), with a foot (L), with a loop (P)
    pose         turned by t ~ U[−180°, 180°], or upright; moved and scaled a little in both cases

The shapes have no symmetry of their own, so that a turned one is another picture, and each remains
what it is when it is turned: truth rotation ±180°, upright 0°. Upright they also differ by place
(bars above, foot below), which a full turn would throw away.

Shapes are signed distances d(p) < 0, unions are minima: the coverage of a pixel is that of a
straight edge, ½ − d in pixels, cut to 0…1. All numbers follow from the seed.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from isotropy.checks import check_at_least

SHAPES = ("flag", "foot", "loop")
MOVED, SCALED = 0.08, 0.1
"""How far objects are moved, in half shorter sides, and scaled, as log factors, at most."""
CONTRAST = 0.3
"""How much lighter an object is than its background, of the range from black to white."""
_QUALITY = 88


def write_photographs(
    folder: str | Path,
    count: int = 300,
    *,
    seed: int = 0,
    upright: bool = False,
    smallest: int = 300,
    largest: int = 1000,
) -> Path:
    """Write `count` pictures into `folder`, a subfolder per class, and return the folder.

    Sides are drawn from `smallest` to `largest` pixels, height and width on their own. Examples of
    one seed differ between upright and turned ones in nothing but the angle.
    """
    check_at_least(count, len(SHAPES), what="count")
    check_at_least(smallest, 8, what="smallest side, in pixels")
    check_at_least(largest, smallest, what="largest side, in pixels")
    path = Path(folder)
    generator = torch.Generator().manual_seed(seed)
    for index in range(count):
        height, width = torch.randint(smallest, largest + 1, (2,), generator=generator).tolist()
        shape = SHAPES[index % len(SHAPES)]
        image = photograph(shape, height, width, upright=upright, generator=generator)
        pixels = (255 * image).round().to(torch.uint8).permute(1, 2, 0).numpy()
        place = path / shape
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.ascontiguousarray(pixels)).save(
            place / f"{index:04d}.jpg", quality=_QUALITY
        )
    return path


def photograph(
    shape: str,
    height: int,
    width: int,
    *,
    upright: bool = False,
    generator: torch.Generator,
) -> Tensor:
    """One picture (3, height, width) in [0, 1] of an object of the given shape.

    As many numbers are drawn for upright objects as for others.
    """
    numbers = torch.rand(16, generator=generator)
    angle = 0.0 if upright else (2 * float(numbers[0]) - 1) * math.pi
    background = _background(height, width, numbers[4:], generator)
    scale = math.exp(SCALED * (2 * float(numbers[1]) - 1))
    x, y = _places(height, width)
    x, y = x - MOVED * (2 * float(numbers[2]) - 1), y - MOVED * (2 * float(numbers[3]) - 1)
    # Content turns by +angle: a pixel shows what was at the place turned back.
    cosine, sine = math.cos(angle) / scale, math.sin(angle) / scale
    distance = _distance(shape, cosine * x - sine * y, sine * x + cosine * y) * scale
    coverage = (0.5 - distance * min(height, width) / 2).clamp(0, 1)
    lightness = background.mean() + CONTRAST + 0.15 * float(numbers[13])
    tint = 0.15 * (torch.rand(3, generator=generator) - 0.5)
    colour = (lightness + tint)[:, None, None].clamp(0, 1)
    return (background + coverage * (colour - background)).clamp(0, 1)


def _places(height: int, width: int) -> tuple[Tensor, Tensor]:
    """x (1, width) and y (height, 1) of the pixels: half the shorter side is one, y downwards."""
    unit = min(height, width) / 2
    x = (torch.arange(width) - (width - 1) / 2) / unit
    y = (torch.arange(height) - (height - 1) / 2) / unit
    return x[None], y[:, None]


def _background(height: int, width: int, numbers: Tensor, generator: torch.Generator) -> Tensor:
    """A colour that changes across the picture, soft blotches and grain: (3, height, width)."""
    x, y = _places(height, width)
    hue, value = 2 * math.pi * float(numbers[0]), 0.2 + 0.2 * float(numbers[1])
    phases = torch.tensor([0.0, 2 * math.pi / 3, 4 * math.pi / 3])
    colour = value * (1 + 0.6 * torch.cos(hue + phases))[:, None, None]
    direction = 2 * math.pi * float(numbers[2])
    gradient = 0.08 * (math.cos(direction) * x + math.sin(direction) * y)
    blotches = torch.randn(1, 1, 6, 6, generator=generator)
    soft = interpolate(blotches, size=(height, width), mode="bicubic", align_corners=False)[0]
    grain = torch.randn(height, width, generator=generator)
    return (colour + gradient + 0.03 * soft + 0.02 * grain).clamp(0, 1)


def _distance(shape: str, x: Tensor, y: Tensor) -> Tensor:
    """Signed distance from a shape's outline, below zero inside, in half shorter sides."""
    stem = _box(x, y, -0.22, 0.0, 0.1, 0.55)
    if shape == "flag":
        bars = torch.minimum(_box(x, y, 0.1, -0.45, 0.3, 0.1), _box(x, y, 0.03, -0.05, 0.22, 0.1))
        return torch.minimum(stem, bars)
    if shape == "foot":
        return torch.minimum(stem, _box(x, y, 0.1, 0.45, 0.35, 0.1))
    radius = ((x - 0.07).square() + (y + 0.25).square()).sqrt()
    return torch.minimum(stem, (radius - 0.22).abs() - 0.09)


def _box(x: Tensor, y: Tensor, at_x: float, at_y: float, half_x: float, half_y: float) -> Tensor:
    """Signed distance from a rectangle with this centre and these half sides (largest norm)."""
    return torch.maximum((x - at_x).abs() - half_x, (y - at_y).abs() - half_y)
