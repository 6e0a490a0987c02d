"""Pictures of what was learned, as arrays for the report: transformed images and flow fields."""

from __future__ import annotations

from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from isotropy.evidence.settings import stream
from isotropy.networks.averaging.augmentations import Augmentation
from isotropy.symmetry.actions.images import AffineAction
from isotropy.symmetry.actions.warp import half_extent, pixel_centres

IMAGES = 6
COPIES = 8
FLOWS = 3
ARROWS = 9


@dataclass(frozen=True)
class Illustration:
    """examples (images, 1 + copies, channels, height, width) in [0, 1], the original first;
    flows (samples, 2, rows, columns, 2): where content is and where it goes, in pixels (x, y)."""

    examples: numpy.ndarray | None
    flows: numpy.ndarray | None
    image_shape: tuple[int, int] | None


@torch.no_grad()
def illustrate(augmentation: Augmentation, inputs: Tensor, seed: int) -> Illustration:
    """Sample the learned augmentation on the first images; nothing for data without pixels."""
    if inputs.ndim != 4 or inputs.shape[1] not in (1, 3):
        return Illustration(None, None, None)
    generator = stream(seed, "illustration", 0, inputs.device)
    chosen = inputs[:IMAGES]
    noise = augmentation.noise(len(chosen), COPIES, generator=generator)
    copies = augmentation(chosen, noise)
    examples = torch.cat([chosen[:, None], copies], 1)
    # One grey scale for all, that of the originals, so that standardised images show too.
    low, high = chosen.min(), chosen.max()
    examples = ((examples - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)
    height, width = inputs.shape[2:]
    flows = None
    if isinstance(augmentation.action, AffineAction):
        flows = _flows(augmentation, augmentation.action, height, width, generator)
    return Illustration(examples.float().cpu().numpy(), flows, (height, width))


def _flows(
    augmentation: Augmentation,
    action: AffineAction,
    height: int,
    width: int,
    generator: torch.Generator,
) -> numpy.ndarray:
    noise = augmentation.noise(1, FLOWS, generator=generator)[0]
    linear, shift = action.element(augmentation.coordinates(noise).double())
    unit = half_extent(width, action.align_corners)
    x = pixel_centres(ARROWS, ARROWS / width * unit, linear)
    y = pixel_centres(ARROWS, ARROWS / height * unit, linear)
    start = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)  # (rows, columns, 2)
    end = torch.einsum("sij,rcj->srci", linear, start) + shift[:, None, None]
    both = torch.stack([start.expand_as(end), end], 1)
    centre = torch.tensor([(width - 1) / 2, (height - 1) / 2], dtype=both.dtype)
    flows: numpy.ndarray = (both.cpu() * unit + centre).numpy()
    return flows
