"""A learned augmentation as one of kornia's, so that masks, boxes and keypoints move along.

`compute_transformation` is the 3×3 matrix of the drawn element, in kornia's convention, which is
that of `laws`: from input to output pixels, (0, 0) the centre of the upper left one.
Images are moved by our own warp, exactly as in training; what goes along is moved by the matrix.

This file imports kornia and is imported by `laws.as_kornia` alone.
"""

from __future__ import annotations

from typing import Any

import torch
from kornia.augmentation import GeometricAugmentationBase2D
from kornia.constants import Resample, SamplePadding
from kornia.geometry.transform import warp_affine
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.networks.averaging.augmentations import Augmentation
from isotropy.networks.export.laws import SingleDraws
from isotropy.symmetry.actions.action import Action, Composition
from isotropy.symmetry.actions.images import AffineAction


class LearnedAugmentation(GeometricAugmentationBase2D):
    """Moves each image by one element drawn from a learned law; always applied.

    Masks are resampled by the matrix alone, nearest neighbour unless kornia is told otherwise, and
    keep their values where the law also changes brightness. `inverse` undoes the motion, and
    likewise leaves values as they are.

    same_on_batch: one draw for all images of a batch
    keepdim:       give back (channels, height, width) for such an image, and not a batch of one
    """

    def __init__(
        self, augmentation: Augmentation, *, same_on_batch: bool = False, keepdim: bool = False
    ) -> None:
        super().__init__(p=1.0, same_on_batch=same_on_batch, keepdim=keepdim)
        self.draws = SingleDraws(augmentation)
        self.draws.check_matrices()
        interpolation, padding = _resampling(self.draws.ranges.action)
        self.flags = {
            "resample": Resample.get(interpolation),
            "padding_mode": SamplePadding.get(padding),
            "align_corners": True,  # kornia's pixel coordinates; matrices are in these
        }

    def noise(self, batch: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        """What one call draws for `batch` images, (batch, numbers)."""
        return self.draws.noise(batch, generator=generator)

    def matrix(self, noise: Tensor, size: tuple[int, int], *, channels: int = 1) -> Tensor:
        """How content moves under this noise, (batch, 3, 3) in pixels of (height, width)."""
        return self.draws.matrix(noise, (channels, *size))

    def generate_parameters(self, batch_shape: tuple[int, ...]) -> dict[str, Tensor]:
        """The noise of one call, by which kornia replays it."""
        batch = batch_shape[0]
        if self.same_on_batch:
            return {"noise": self.noise(1).expand(batch, -1)}
        return {"noise": self.noise(batch)}

    def compute_transformation(
        self, input: Tensor, params: dict[str, Tensor], flags: dict[str, Any]
    ) -> Tensor:
        """(batch, 3, 3), from input to output pixels."""
        # Those of the images, also where kornia asks on behalf of a mask.
        shape = params["forward_input_shape"].tolist()
        channels, height, width = shape[-3:]
        return self.matrix(params["noise"], (height, width), channels=channels).to(input)

    def apply_transform(
        self,
        input: Tensor,
        params: dict[str, Tensor],
        flags: dict[str, Any],
        transform: Tensor | None = None,
    ) -> Tensor:
        """Images (batch, channels, height, width), as the augmentation itself moves them."""
        return self.draws.move(input, params["noise"])

    def apply_transform_mask(
        self,
        input: Tensor,
        params: dict[str, Tensor],
        flags: dict[str, Any],
        transform: Tensor | None = None,
    ) -> Tensor:
        """Masks by the matrix; their number of channels need not be that of the images."""
        if transform is None:
            transform = self.transform_matrix
        assert transform is not None
        return self._resample(input, flags, transform)

    def inverse_transform(
        self,
        input: Tensor,
        flags: dict[str, Any],
        transform: Tensor | None = None,
        size: tuple[int, int] | None = None,
    ) -> Tensor:
        """Images by the inverse matrix, which kornia hands in."""
        assert transform is not None
        return self._resample(input, flags, transform)

    def _resample(self, input: Tensor, flags: dict[str, Any], transform: Tensor) -> Tensor:
        height, width = input.shape[-2:]
        return warp_affine(
            input,
            transform.to(input)[:, :2],
            (height, width),
            mode=flags["resample"].name.lower(),
            padding_mode=flags["padding_mode"].name.lower(),
            align_corners=True,
        )


def _resampling(action: Action) -> tuple[str, str]:
    """Interpolation and padding of the affine part, or the usual where there is none."""
    for part in action.actions if isinstance(action, Composition) else (action,):
        if isinstance(part, AffineAction):
            if part.interpolation == "fourier":
                raise CallerError(
                    "as_kornia: expected bilinear or bicubic interpolation, got 'fourier', which "
                    "kornia does not have; as_torchvision resamples as the law does"
                )
            if part.padding == "mean":
                raise CallerError(
                    "as_kornia: expected the padding zeros, border or reflection, got 'mean', "
                    "which kornia does not have for masks; as_torchvision resamples as the law does"
                )
            return part.interpolation, part.padding
    return "bilinear", "zeros"
