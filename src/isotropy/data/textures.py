"""Pictures whose symmetry is known: smooth random textures, moved once, in noise of the same kind.

    x = g u_c + noise          g drawn from the truth's law, one motion for each picture

u_c is a Gaussian random field of correlation length `smoothness` pixels inside a disc. The noise
has the same spectrum, so that averaging over small motions does not pay for smoothing alone.

Where a range is to be found, labels depend on the pose, as they do for 6 and 9, and take turns:
with two kinds of poses A B A B … a distance S apart, an average of outputs over ±w leaves

    sin(π w/S) / (π w/S)

of what tells A from B, and nothing at w = S. (If all poses have labels of their own, a slow change
round the circle tells them apart, which much wider averages leave as it is.)

Translations get an end in the same way, and one that no rotation about the middle changes: half the
pictures are moved by `ring` in a direction drawn at random, and have the label of the next pose.

Textures are drawn and moved on a grid three times as fine and averaged down, so that moving them
leaves no trace of interpolation. All numbers follow from the seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from isotropy.checks import check_at_least
from isotropy.data.labelled import LabelledData, Split
from isotropy.data.problems import Problem
from isotropy.symmetry.image_actions import affine

FINER = 3
"""Pixels of the fine grid along a pixel's side."""
GRAIN = 0.05
"""Standard deviation of noise that is independent from pixel to pixel."""
EDGE = 30.0
"""Steepness of a disc's edge, in inverse half-widths of the picture."""
MOTIONS = ("rotation", "translation_x", "translation_y")
FLIP = "horizontal_flip"


@dataclass(frozen=True)
class TextureLaw:
    """How pictures are made.

    amounts:    half-width (or probability of the flip) by name, in reported units
    textures, poses: classes are textures × poses
    mirrored:   whether the mirror images of textures are further textures: then a flip changes
                labels, and does not look like a symmetry by chance
    turn:       degrees from one pose to the next, about the upright one; 360°/poses if None
    kinds:      labels of poses: every kinds-th pose has the same; all differ if None
    ring:       how far half the pictures are moved, in widths of the picture; none if zero
    noise:      standard deviation of the smooth noise, of textures that have 1
    smoothness: correlation length in pixels
    radius:     of the disc that holds the texture, in half-widths of the picture
    """

    amounts: Mapping[str, float] = field(default_factory=dict)
    textures: int = 2
    poses: int = 4
    mirrored: bool = False
    turn: float | None = None
    kinds: int | None = None
    ring: float = 0.0
    noise: float = 0.5
    smoothness: float = 1.2
    radius: float = 0.75
    size: int = 14
    random_labels: bool = False


def moved_textures(
    law: TextureLaw, examples: int, *, test_examples: int = 1000, seed: int = 0
) -> Problem:
    """Pictures (examples, 1, size, size) by the law; truth is what was put into them."""
    generator = torch.Generator().manual_seed(seed)
    disc, smooth = _disc(law, law.radius), _smoothing(law)
    fields = _random_fields(law.textures, smooth, generator) * disc
    if law.mirrored:
        fields = torch.cat([fields, fields.flip(-1)])
    classes = _at_poses(law, fields)
    check_at_least(examples, len(classes), what="number of pictures")
    train, test = (
        _pictures(law, classes, smooth, count, name, generator)
        for count, name in ((examples, "textures"), (test_examples, "textures, test"))
    )
    known = dict.fromkeys((*MOTIONS, FLIP), 0.0) | dict(law.amounts)
    about = (
        f"{law.textures} textures{' and their mirror images' if law.mirrored else ''} at "
        f"{law.poses} poses, each picture moved once: "
        + (", ".join(f"{name} {value:g}" for name, value in law.amounts.items()) or "not at all")
        + (", labels in random order" if law.random_labels else "")
    )
    return Problem(Split(train, test), known, about)


def _at_poses(law: TextureLaw, fields: Tensor) -> Tensor:
    """Every texture at every pose, (textures · poses, 1, side, side)."""
    turn = 360.0 / law.poses if law.turn is None else law.turn
    angles = (torch.arange(law.poses) - (law.poses - 1) / 2) * math.radians(turn)
    each = angles[None, :, None].expand(len(fields), -1, 1)
    return affine(("rotation",)).act(each, fields).flatten(0, 1)


def _pictures(
    law: TextureLaw,
    classes: Tensor,
    smooth: Tensor,
    count: int,
    name: str,
    generator: torch.Generator,
) -> LabelledData:
    drawn = (torch.arange(count) % len(classes))[torch.randperm(count, generator=generator)]
    pictures, labels = classes[drawn], _labels(law)[drawn]
    if law.ring:
        outside = torch.rand(count, generator=generator) < 0.5
        angles = 2 * math.pi * torch.rand(count, generator=generator)
        pictures = _moved_out(pictures, law.ring * outside, angles)
        labels = torch.where(outside, _labels(law, 1)[drawn], labels)
    mirrored = torch.rand(count, generator=generator) < law.amounts.get(FLIP, 0.0)
    pictures = torch.where(mirrored[:, None, None, None], pictures.flip(-1), pictures)
    action = affine(MOTIONS)
    widths = torch.tensor(
        [g.from_units(law.amounts.get(g.name, 0.0)) for g in action.generators]
    ).float()
    motions = (2 * torch.rand(count, len(MOTIONS), generator=generator) - 1) * widths
    pictures = action.act(motions[:, None], pictures)[:, 0]
    pictures = pictures + law.noise * _random_fields(count, smooth, generator) * _disc(law, 0.9)
    coarse = torch.nn.functional.avg_pool2d(pictures, FINER)
    grainy = coarse + GRAIN * torch.randn(coarse.shape, generator=generator)
    if law.random_labels:
        labels = labels[torch.randperm(count, generator=generator)]
    last = max(int(_labels(law, further).max()) for further in ((0, 1) if law.ring else (0,)))
    names = tuple(f"{label}" for label in range(last + 1))
    return LabelledData(grainy, labels, names, name)


def _moved_out(pictures: Tensor, distances: Tensor, angles: Tensor) -> Tensor:
    """Each picture moved by its distance, in widths, along its direction."""
    action = affine(("translation_x", "translation_y"))
    way = distances[:, None] * torch.stack([angles.cos(), angles.sin()], 1)
    steps = torch.stack([g.from_units(1.0) * way[:, k] for k, g in enumerate(action.generators)], 1)
    return action.act(steps[:, None], pictures)[:, 0]


def _labels(law: TextureLaw, further: int = 0) -> Tensor:
    """The label of every texture at every pose, or at the pose so many further."""
    kinds = law.kinds or law.poses
    textures = torch.arange(law.textures * (2 if law.mirrored else 1))
    poses = (torch.arange(law.poses) + further) % kinds
    return (textures[:, None] * kinds + poses).flatten()


def _smoothing(law: TextureLaw) -> Tensor:
    """A Gaussian filter's transfer function on the fine grid."""
    frequency = torch.fft.fftfreq(law.size * FINER)
    length = law.smoothness * FINER
    return (-2 * (math.pi * length) ** 2 * (frequency[:, None] ** 2 + frequency**2)).exp()


def _random_fields(count: int, smooth: Tensor, generator: torch.Generator) -> Tensor:
    """Smooth Gaussian fields (count, 1, side, side) of variance one."""
    white = torch.randn((count, 1, *smooth.shape), generator=generator)
    fields = torch.fft.ifft2(torch.fft.fft2(white) * smooth).real
    return fields / smooth.square().mean().sqrt()


def _disc(law: TextureLaw, radius: float) -> Tensor:
    side = law.size * FINER
    place = (torch.arange(side) - (side - 1) / 2) / (side / 2)
    return torch.sigmoid((radius - (place[:, None] ** 2 + place**2).sqrt()) * EDGE)
