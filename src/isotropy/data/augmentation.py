"""Flips and shifts of training images, drawn per image: what to move is a tensor of its own.

    moved(c, i, j) = image(c, i + dy, j′),   j′ = j + dx,  or  width − 1 − (j + dx) when mirrored,

with zeros outside: a mirror image with probability ½, then a random crop after padding by `pixels`
on all sides. dy and dx are whole numbers, uniform on −pixels … pixels, so nothing is interpolated.
After normalisation per channel the zeros are the mean colour.

Drawing and moving are two steps. `draw` asks a generator; `__call__` is a function of two tensors
that looks at no value, reads no generator and makes shapes from shapes alone, so that it can be
recorded once in a CUDA graph and replayed with other draws copied into the same place.

For the weights only: evidence and test see images as they are.

Axes: images `(batch, channels, height, width)`, draws `(batch, 3)` with columns mirrored (0 or 1),
dy, dx.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from isotropy.checks import CallerError, check_at_least, check_axes, shape_text


@dataclass(frozen=True)
class FlipsAndShifts:
    """The law of the draws, and the motion they cause.

    pixels: largest shift along each axis; 0 shifts nothing.
    flip:   whether half of the images are mirrored left to right.

    Raises CallerError for negative pixels.
    """

    pixels: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        check_at_least(self.pixels, 0, what="largest shift, in pixels")

    def draw(self, batch: int, generator: torch.Generator) -> Tensor:
        """What is to happen to `batch` images, int64 `(batch, 3)` on the generator's device.

        A whole epoch can be drawn at once and taken by rows.
        """
        device = generator.device
        mirrored = torch.randint(
            2 if self.flip else 1, (batch, 1), generator=generator, device=device
        )
        shifts = torch.randint(
            -self.pixels, self.pixels + 1, (batch, 2), generator=generator, device=device
        )
        return torch.cat([mirrored, shifts], 1)

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """Images moved as `draws` say, a new tensor of the same shape.

        images: `(batch, channels, height, width)`; gradients flow through.
        draws:  `(batch, 3)` integers on the same device, from `draw` with the same `pixels`; values
            beyond its range are not looked for.

        Raises CallerError for other shapes and for draws on another device.
        """
        check_axes(
            images, ("batch", "channels", "height", "width"), what="images",
            advice="add a channel axis with x[:, None]",
        )  # fmt: skip
        if draws.shape != (len(images), 3) or draws.is_floating_point():
            raise CallerError(
                f"expected draws (batch, 3) of whole numbers for {len(images)} images, got "
                f"{shape_text(draws)} of {draws.dtype}; take them from draw({len(images)}, …)"
            )
        if draws.device != images.device:
            raise CallerError(
                f"expected draws on the device of the images, {images.device}, got "
                f"{draws.device}; move them with draws.to(images.device)"
            )
        batch, channels, height, width = images.shape
        margin = self.pixels
        mirrored, down, right = draws[:, :, None].unbind(1)
        padded_width = width + 2 * margin
        rows = torch.arange(margin, margin + height, device=images.device) + down
        columns = torch.arange(margin, margin + width, device=images.device) + right
        columns = torch.where(mirrored > 0, padded_width - 1 - columns, columns)
        places = (rows[:, :, None] * padded_width + columns[:, None, :]).flatten(1)
        padded = pad(images, (margin, margin, margin, margin)).flatten(2)
        moved = padded.gather(2, places[:, None].expand(batch, channels, height * width))
        return moved.unflatten(2, (height, width))
