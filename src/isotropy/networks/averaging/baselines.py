"""What others average over: Augerino's ranges, and the copies of a random transform as it comes.

**Augerino** (Benton et al. 2020, Equation 9, and the authors' code) has a positive width for every
generator,

    w_k = softplus(r_k),   a_k = c_k w_k u_k,   u_k ~ U[−½, ½]

so generator k ranges over ±c_k w_k / 2 in the action's coordinates. The factor c is 0.1 for
translations and 1 for all others: widths of one size then move content by distances of one size.
The raw parameter r starts at zero, w = ln 2. Two things differ from `UniformRanges`. A softplus is
never zero, so the identity is approached and not reached; and r has a slope everywhere, so learning
may start anywhere. A rotation is not bounded by its period, and is reported as wide as it is. What
keeps widths from growing without end is that they are no longer rewarded once one of them reaches
`LARGEST_WIDTH`.

**Random copies** learn nothing: every copy is one draw. `Mixture` asks how probable a random
transform should be; here it is applied to every copy. Each copy of each example draws by itself,
from a seed that is its own noise, (batch, copies, 1):

    x_ns = T(x_n; ε_ns),     ε_ns ~ U[0, 1)

so that the same noise gives the same copies, whatever else is in the batch. `trivial_augment` is
the transform of torchvision that has no settings: one of fourteen operations with a random strength
(Müller and Hutter 2021, TrivialAugment, wide).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import CallerError, shape_text
from isotropy.networks.averaging.augmentations import (
    Augmentation,
    Ranges,
    Symmetry,
    range_bounds,
    start_widths,
)
from isotropy.networks.averaging.mixtures import NoRanges
from isotropy.symmetry.actions.action import Action
from isotropy.symmetry.actions.finite import FiniteAction, RandomTransform

AUGERINO_GENERATORS = (
    "translation_x",
    "translation_y",
    "rotation",
    "scale",
    "aspect",
    "hyperbolic_rotation",
)
"""The generators of the authors' code, in its order."""

AUGERINO_FACTORS = {"translation_x": 0.1, "translation_y": 0.1}
"""What the authors' code multiplies generators by; others by one."""

SMALLEST_START = -5.0
"""The raw parameter of a range that starts next to nothing, w = 0.0067, and still has a slope."""

LARGEST_WIDTH = 10.0
"""A width from which on no width is rewarded any more."""


class SoftplusRanges(Ranges):
    """Independent uniform ranges of width softplus(raw) over the generators of an action.

    raw:      the learnable parameter r (generators,).
    start:    half-widths by name in reported units; those not named start at `SMALLEST_START`,
              which is next to nothing. By default r = 0 for all.
    caps:     largest half-width by generator name, in reported units.
    factors:  c by generator name; others have 1.
    """

    def __init__(
        self,
        action: Action,
        *,
        start: Mapping[str, float] | None = None,
        caps: Mapping[str, float] | None = None,
        factors: Mapping[str, float] = AUGERINO_FACTORS,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.action = action
        generators = action.generators
        scales = torch.tensor([factors.get(each.name, 1.0) for each in generators], dtype=dtype)
        raw = torch.zeros(len(generators), dtype=dtype)
        if start is not None:
            given = torch.tensor(start_widths(action, start), dtype=dtype)
            raw = _raw(2 * given / scales).clamp(min=SMALLEST_START)
        most = range_bounds(action, caps or {}, periodic=False).to(dtype)
        self.raw = nn.Parameter(raw)
        self.register_buffer("bounds", _raw(2 * most / scales))
        self.register_buffer("scales", scales, persistent=False)
        counts = torch.tensor([each.multiplicity for each in generators])
        self.register_buffer("counts", counts, persistent=False)
        self.project()

    bounds: Tensor
    scales: Tensor
    counts: Tensor

    def widths(self) -> Tensor:
        """w = softplus(r) (generators,), positive; differentiable."""
        return functional.softplus(self.raw)

    def reward(self) -> Tensor:
        """‖w‖₂, or zero once a width has reached `LARGEST_WIDTH`."""
        widths = self.widths()
        return widths.norm() * bool((widths < LARGEST_WIDTH).all())

    def reach(self) -> Tensor:
        """c w / 2 (generators,), in the action's coordinates."""
        return self.widths() * self.scales / 2

    def learnable(self) -> list[nn.Parameter]:
        return [self.raw]

    @torch.no_grad()
    def project(self) -> None:
        self.raw.copy_(self.raw.minimum(self.bounds))

    def coordinates(self, noise: Tensor) -> Tensor:
        return noise * self.reach().repeat_interleave(self.counts)

    def symmetries(self) -> list[Symmetry]:
        """Widths as they are: a rotation has no bound here, as in the authors' code."""
        found = []
        halves = self.reach().detach().tolist()
        for generator, half in zip(self.action.generators, halves, strict=True):
            reach = generator.in_units(half)
            found.append(Symmetry(generator.name, "range", -reach, reach, generator.unit))
        return found


def _raw(widths: Tensor) -> Tensor:
    """r with softplus(r) = w:  r = w + log(1 − e^−w); −∞ for a width of zero."""
    return widths + torch.log(-torch.expm1(-widths))


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
