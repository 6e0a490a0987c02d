"""What lies beyond the border of pictures: chosen from them, and when it gives the answer away.

A turned or moved picture shows what lies beyond its border. Zeros are right where pictures end in
zeros, as digits on black do: nothing new comes in. On a photograph they are black corners that no
picture of the data has, and by which a network can tell copies from data, and how far they were
turned. The rule, on the training pictures alone:

    zeros    where at least half of the outermost pixels are near zero: |x| below a tenth of the
             spread (the deviation of all values about their channel's mean)
    border   elsewhere: the nearest pixel of the picture goes on

`reflection` and `mean` are there to be asked for. Reflection brings parts of the object in a second
time, mean has a seam around the picture.

Two things are worth a warning (`border_warnings`). Zeros, or one colour, beyond edges that are not
near it: the seam tells by how much a copy was turned. And corners that are filled already, in the
data: flat corners of one shared colour where the rest of the outline is not flat, as an earlier
rotation leaves them. Their pattern tells the angle of every picture, so that a network need not
look at the object to know it, and the learned range is about the corners as well. Told from a share
of the pictures on (`FILLED_SHARE`); fills that differ from picture to picture are not found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from isotropy.checks import check_axes, check_choice
from isotropy.symmetry.actions.warp import Padding

PaddingChoice = Literal["auto", "zeros", "border", "reflection", "mean"]
PADDING_CHOICES: tuple[PaddingChoice, ...] = ("auto", "zeros", "border", "reflection", "mean")

NEAR = 0.1
"""What counts as near, as a share of the spread."""
FLAT = 0.02
"""A corner is flat where its values deviate by less than this share of the spread."""
LEAST_OUTLINE = 0.25
"""Share of a picture's outline that must differ from the fill for it to be one."""
FILLED_SHARE = 0.2
"""Share of pictures with filled corners from which on it is told."""


@dataclass(frozen=True)
class Border:
    """What lies beyond the border, the sentence that says why, and what should be known of it.

    fill: the mean colour for padding "mean", a number per channel; else None
    """

    padding: Padding
    fill: tuple[float, ...] | None
    notes: tuple[str, ...]


def chosen_border(images: Tensor, padding: PaddingChoice = "auto") -> Border:
    """The padding for pictures (examples, channels, height, width), and notes on it.

    padding: "auto" chooses between zeros and border; others are taken, and warned about.
    """
    check_axes(images, ("examples", "channels", "height", "width"), what="images")
    check_choice(padding, PADDING_CHOICES, what="padding")
    fill = tuple(round(value, 6) for value in images.mean((0, 2, 3)).tolist())
    share = near_zero_share(images)
    if padding == "auto":
        chosen: Padding = "zeros" if share >= 0.5 else "border"
        notes: tuple[str, ...] = (
            f"padding {chosen} chosen: {100 * share:.0f} % of the outermost pixels are near zero",
        )
    else:
        chosen = padding
        notes = ()
    notes += border_warnings(images, chosen)
    return Border(chosen, fill if chosen == "mean" else None, notes)


def near_zero_share(images: Tensor, level: Sequence[float] | None = None) -> float:
    """The share of the outermost pixels whose values are all near zero, or near `level`.

    level: a number per channel
    """
    edge = _outline(images)
    if level is not None:
        edge = edge - torch.tensor(list(level), dtype=edge.dtype, device=edge.device)[:, None]
    near = edge.abs().amax(1) <= NEAR * _spread(images)
    return float(near.float().mean())


def border_warnings(images: Tensor, padding: Padding) -> tuple[str, ...]:
    """Sentences where what comes in from beyond the border would give the answer away."""
    found = []
    if padding in ("zeros", "mean"):
        level = images.mean((0, 2, 3)).tolist() if padding == "mean" else None
        share = near_zero_share(images, level)
        if share < 0.5:
            colour = "the mean colour" if padding == "mean" else "zero"
            found.append(
                f"warning: padding {padding}, but only {100 * share:.0f} % of the outermost pixels "
                f"are near {colour}: the seam of a copy tells how far it was moved; --padding "
                "border has none"
            )
    filled = filled_corner_share(images)
    if filled >= FILLED_SHARE:
        found.append(
            f"warning: {100 * filled:.0f} % of the pictures have corners of one and the same "
            "colour, as an earlier rotation leaves them: their pattern tells the angle of a "
            "picture whatever it shows; cut the corners off, or start from the pictures as taken"
        )
    return tuple(found)


def filled_corner_share(images: Tensor) -> float:
    """The share of pictures with a corner filled by the colour that such corners share.

    A corner is the triangle of its outermost pixels, an eighth of the shorter side long. It counts
    where it is flat, of the colour most flat corners have, and at least a quarter of the outline of
    its picture is of another: pictures that end in one colour nearly all around are not filled,
    they are on a background. A square turned within its frame leaves two fifths of it or more.
    """
    if len(images) < 2 or min(images.shape[2:]) < 8:
        return 0.0
    spread = _spread(images)
    side = max(3, min(images.shape[2:]) // 8)
    index = torch.arange(side)
    inside = (index[:, None] + index) < side
    corners = torch.stack(
        [
            _turned(images, turns)[..., :side, :side][..., inside.to(images.device)]
            for turns in range(4)
        ],
        1,
    )  # (examples, 4, channels, pixels)
    flat = corners.std(-1).amax(-1) <= FLAT * spread
    if not bool(flat.any()):
        return 0.0
    colours = corners.mean(-1)
    shared = colours[flat].median(0).values
    alike = (colours - shared).abs().amax(-1) <= FLAT * spread
    other = (_outline(images) - shared[:, None]).abs().amax(1) > NEAR * spread
    varied = other.float().mean(1) >= LEAST_OUTLINE
    return float(((flat & alike).any(1) & varied).float().mean())


def _turned(images: Tensor, turns: int) -> Tensor:
    """Images with another corner in the upper left: mirrored along one axis, both, or none."""
    axes = [axis for axis, bit in ((2, 1), (3, 2)) if turns & bit]
    return images.flip(axes) if axes else images


def _outline(images: Tensor) -> Tensor:
    """The outermost pixels, (examples, channels, pixels)."""
    rows = [images[:, :, 0], images[:, :, -1]]
    columns = [images[:, :, 1:-1, 0], images[:, :, 1:-1, -1]]
    return torch.cat([*rows, *columns], -1)


def _spread(images: Tensor) -> float:
    return float((images - images.mean((0, 2, 3), keepdim=True)).square().mean().sqrt())
