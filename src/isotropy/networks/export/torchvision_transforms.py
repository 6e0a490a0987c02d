"""A learned augmentation as a transform of torchvision (v2), for pipelines and DataLoaders.

torchvision's own RandomAffine draws an angle, a shift, a factor and a shear and multiplies them in
a fixed order, about ranges of its own; it cannot draw exp(Σ a_k G_k). So this is a transform of its
own class that draws exactly the learned law (`laws`), one element per image.

This file imports torchvision and is imported by `laws.as_torchvision` alone.
"""

from __future__ import annotations

from typing import Any, ClassVar

import PIL.Image
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from isotropy.checks import CallerError, shape_text
from isotropy.networks.averaging.augmentations import Augmentation
from isotropy.networks.export.laws import SingleDraws

PICTURES = ("L", "LA", "RGB", "RGBA")
"""Modes of PIL whose channels are amounts of light, which resampling may average."""


def _is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, tv_tensors.TVTensor)


class LearnedTransform(v2.Transform):
    """Moves each image by one element drawn from a learned law.

    (channels, height, width) or (batch, channels, height, width) tensors, plain or
    tv_tensors.Image; a batch gets independent draws. uint8 and PIL pictures are taken as
    numbers from 0 to 1, rounded and cut back. What else is in the sample is passed through, labels
    included; several images in one sample move together.
    """

    _transformed_types: ClassVar[tuple[Any, ...]] = (tv_tensors.Image, PIL.Image.Image, _is_plain)

    def __init__(self, augmentation: Augmentation) -> None:
        super().__init__()
        self.draws = SingleDraws(augmentation)
        self.law = augmentation.law()

    def noise(self, batch: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        """What one call draws for `batch` images, (batch, numbers)."""
        return self.draws.noise(batch, generator=generator)

    def matrix(self, noise: Tensor, size: tuple[int, int], *, channels: int = 1) -> Tensor:
        """How content moves under this noise, (batch, 3, 3) in pixels of (height, width)."""
        return self.draws.matrix(noise, (channels, *size))

    def move(self, images: Tensor, noise: Tensor) -> Tensor:
        """Images (batch, channels, height, width) under given noise (batch, numbers)."""
        return self.draws.move(images, noise)

    def check_inputs(self, flat_inputs: list[Any]) -> None:
        """Refuse boxes, masks and keypoints, which would be left where they were."""
        for value in flat_inputs:
            if isinstance(value, tv_tensors.TVTensor) and not isinstance(value, tv_tensors.Image):
                raise CallerError(
                    f"transform: expected images and labels, got {type(value).__name__}, which "
                    "this transform would not move along; as_kornia moves masks, boxes and "
                    "keypoints"
                )

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """Draw once for the sample."""
        counts = {_count(value) for value in flat_inputs}
        if len(counts) > 1:
            raise CallerError(
                f"images: expected equally many in one call, got {sorted(counts)}; they would have "
                "to move together"
            )
        return {"noise": self.noise(counts.pop())} if counts else {}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """One image, or a batch of them, under the call's draw."""
        noise = params["noise"]
        if isinstance(inpt, PIL.Image.Image):
            if inpt.mode not in PICTURES:
                raise CallerError(
                    f"picture: expected mode {', '.join(PICTURES)}, got {inpt.mode!r}; convert "
                    "with picture.convert('RGB')"
                )
            moved = self._tensor(v2.functional.pil_to_tensor(inpt), noise)
            return v2.functional.to_pil_image(moved, mode=inpt.mode)
        moved = self._tensor(inpt.as_subclass(Tensor), noise)
        return tv_tensors.wrap(moved, like=inpt) if isinstance(inpt, tv_tensors.Image) else moved

    def _tensor(self, images: Tensor, noise: Tensor) -> Tensor:
        single = images.ndim == 3
        batch = images[None] if single else images
        if images.dtype == torch.uint8:
            moved = self.move(batch.to(torch.float32) / 255, noise)
            moved = (moved * 255).round().clamp(0, 255).to(torch.uint8)
        else:
            moved = self.move(batch, noise)
        return moved[0] if single else moved

    def extra_repr(self) -> str:
        """The law in short: kind and generators."""
        action = self.draws.ranges.action
        names = [*action.names, *(name for each in self.draws.finite for name in each.names)]
        return f"{self.law.get('kind', '')}: {', '.join(names)}"


def _count(value: Any) -> int:
    if isinstance(value, PIL.Image.Image) or value.ndim == 3:
        return 1
    if value.ndim == 4:
        return len(value)
    raise CallerError(
        "images: expected (channels, height, width) or (batch, channels, height, width), got "
        f"{shape_text(value)}; add a channel axis with x[None]"
    )
