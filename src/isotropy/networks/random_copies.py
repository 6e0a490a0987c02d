"""Copies made by a random transform as it comes: nothing is learned, and every copy is one draw.

`Mixture` asks how probable a random transform should be; here it is applied to every copy. Each
copy of each example draws by itself, from a seed that is its own noise:

    x_ns = T(x_n; ε_ns),     ε_ns ~ U[0, 1)

so that the same noise gives the same copies, whatever else is in the batch. Noise is
(batch, copies, 1), copies (batch, copies, …).

`trivial_augment` is the one of torchvision that has no settings: one of fourteen operations with
a random strength (Müller and Hutter 2021, TrivialAugment, wide). Tested in
tests/networks/test_random_copies.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, shape_text
from isotropy.networks.augmentations import Augmentation, Symmetry
from isotropy.networks.mixtures import NoRanges
from isotropy.symmetry.finite_actions import FiniteAction, RandomTransform


class RandomCopies(Augmentation):
    """Every copy is moved by the one random element of `transform`, with a draw of its own.

    transform: a `FiniteAction` that draws, such as `RandomTransform`; its first element is used
    dtype:     the type of the noise
    """

    def __init__(self, transform: FiniteAction, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        if not transform.is_random or len(transform.elements) != 1:
            raise CallerError(
                f"transform: expected one element that draws, got {transform.name!r} with "
                f"{len(transform.elements)}; a finite group belongs into a Mixture"
            )
        self.transform = transform
        self.action = NoRanges()
        # The noise's type and device, which follow the module.
        self.register_buffer("like", torch.zeros((), dtype=dtype), persistent=False)

    like: Tensor

    def noise(
        self,
        batch: int,
        samples: int,
        *,
        generator: torch.Generator | None = None,
        antithetic: bool = False,
    ) -> Tensor:
        """ε (batch, samples, 1), uniform on [0, 1); there is nothing to be antithetic."""
        shape = (batch, samples, 1)
        return torch.rand(
            shape, generator=generator, device=self.like.device, dtype=self.like.dtype
        )

    @torch.no_grad()
    def forward(self, data: Tensor, noise: Tensor) -> Tensor:
        if noise.ndim != 3 or noise.shape[0] != len(data) or noise.shape[2] != 1:
            raise CallerError(
                f"noise: expected (batch, copies, 1) = ({len(data)}, copies, 1), got "
                f"{shape_text(noise)}; draw it with noise()"
            )
        self.transform.check(data)
        generator = torch.Generator()
        copies = []
        for example, seeds in zip(data, noise[..., 0].double().cpu().tolist(), strict=True):
            for seed in seeds:
                generator.manual_seed(int(seed * 2**32))
                copies.append(self.transform.move(0, example[None], generator=generator))
        return torch.cat(copies).unflatten(0, noise.shape[:2])

    def coordinates(self, noise: Tensor) -> Tensor:
        return noise[..., :0]

    def learnable(self) -> list[nn.Parameter]:
        return []

    def project(self) -> None:
        """There is nothing to bound."""

    @property
    def is_identity(self) -> bool:
        return False

    def symmetries(self) -> list[Symmetry]:
        return [Symmetry(self.transform.names[0], "probability", 0.0, 1.0, "probability")]

    def law(self) -> dict[str, Any]:
        return {
            "kind": "transform",
            "law": f"every copy is moved by one draw of {self.transform.name}",
            "transform": self.transform.name,
        }


class EightBitTransform(RandomTransform):
    """A random transform of 8-bit images on images with values from 0 to 1, image by image.

    Pixels become ⌊255 x + ½⌋ before and are divided by 255 after. Data outside of [0, 1] is
    refused: what has been standardised cannot be told from what is broken.
    """

    def __init__(self, transform: Callable[[Tensor], Tensor], name: str, meaning: str = "") -> None:
        self.eight_bit = transform
        super().__init__(self._through_bytes, name, meaning, per_example=True)

    def check(self, data: Tensor) -> None:
        if data.ndim != 4 or data.shape[1] not in (1, 3):
            raise CallerError(
                f"{self.name}: expected grey or colour images (batch, 1 or 3, height, width), got "
                f"{shape_text(data)}"
            )
        low, high = float(data.min()), float(data.max())
        if not (low >= 0 and high <= 1):
            raise CallerError(
                f"{self.name}: expected images with values from 0 to 1, which 8-bit pixels are "
                f"made of, got {low:.3g} to {high:.3g}; hand in the images as they were before "
                "they were standardised, with the standardisation as the network's first layer"
            )

    def _through_bytes(self, image: Tensor) -> Tensor:
        pixels = (image * 255 + 0.5).to(torch.uint8)
        return self.eight_bit(pixels).to(image.dtype) / 255


def trivial_augment() -> FiniteAction:
    """torchvision's TrivialAugmentWide for images (batch, 1 or 3, height, width) in [0, 1].

    One operation of fourteen (the identity is one of them) with one of 31 strengths, drawn for
    every image. Raises CallerError where torchvision is not installed or does not fit torch.
    """
    try:
        from torchvision.transforms import v2
    except (ImportError, RuntimeError) as error:
        raise CallerError(
            f"trivial-augment: expected a torchvision that fits this torch, got {error}; "
            "install it with pip install 'isotropy[vision]'"
        ) from error
    return EightBitTransform(
        v2.TrivialAugmentWide(),
        "trivial_augment",
        "one of fourteen operations with a random strength",
    )
