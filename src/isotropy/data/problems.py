"""Made data whose symmetry is known: what should be found is in them. All follows from the seed.

    rings               points of the plane, labelled by their radius       rotation ±180°
    turned_clouds       letters drawn in points, each turned once           rotation ±range
    shifted_waves       pulses on a circle of samples, each moved once      shift ±range
    moved_textures      smooth random pictures, each moved once             what `TextureLaw` says
    write_photographs   shapes on backgrounds, as JPEG files                rotation ±180°, or none

`rings` is the illustration of Immer et al. (2022), "Invariance learning in deep neural networks
with differentiable Laplace approximations", Figure 1, as its published code draws it.

In clouds, waves and textures every example is one of a few templates, moved once by g(t),
t ~ U[−range, range], with noise on top:  x = g(t) u_c + noise. Seen from x that is

    p(x | c) = mean over t in ±range of  N(g(−t) x; u_c) ,

an average over the motions of x by exactly ±range. Averaged over less, a network must learn the
poses that are missing one by one; averaged over more, it mixes in poses that say nothing about
this class, or belong to another: some classes are the same template at another pose, as 6 and 9
are. What fits best is therefore near the range, for a network fine enough to tell poses apart; a
network of coarse features, or one that is not trained to its end, prefers another amount.

Textures are Gaussian random fields of correlation length `smoothness` pixels inside a disc. Their
noise has the same spectrum, so that averaging over small motions does not pay for smoothing alone.
Labels of poses take turns: with two kinds of poses A B A B … a distance S apart, an average of
outputs over ±w leaves

    sin(π w/S) / (π w/S)

of what tells A from B, and nothing at w = S. (If all poses have labels of their own, a slow change
round the circle tells them apart, which much wider averages leave as it is.) Translations get an
end in the same way, and one that no rotation about the middle changes: half the pictures are moved
by `ring` in a direction drawn at random, and have the label of the next pose. Textures are drawn
and moved on a grid three times as fine and averaged down, so that moving them leaves no trace of
interpolation.

Photographs show one object, lighter than its background and about half the shorter side long, on a
colour that changes across the picture, with soft blotches and fine grain. Its shape is its class: a
stem with two bars (F), with a foot (L), with a loop (P). None has a symmetry of its own, so that a
turned one is another picture, and each remains what it is when it is turned. Upright they also
differ by place (bars above, foot below), which a full turn would throw away. Shapes are signed
distances d(p) < 0, unions are minima: the coverage of a pixel is that of a straight edge, ½ − d in
pixels, cut to 0…1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from isotropy.checks import CallerError, check_at_least
from isotropy.data.labelled import LabelledData, Split
from isotropy.symmetry.actions.images import affine


@dataclass(frozen=True, eq=False)
class Problem:
    """Data made with a known symmetry.

    truth: half-width by generator name, in the units in which it is reported.
    about: how the data were made, and why the truth can be found from them.
    """

    split: Split
    truth: Mapping[str, float]
    about: str


# -- rings -------------------------------------------------------------------------------------

RING_NOISE = 0.06
RING_SPREAD = 120.0
"""Degrees, from 0 on, over which training points lie."""


def rings(examples: int = 200, seed: int = 0) -> Problem:
    """Points (examples, 1, 2), clouds of one point, in two classes by radius; truth rotation 180°.

    Class 0 is a ring of radius ½; class 1 a blob in its middle and a ring of radius 1. Half of the
    points are of class 0; two thirds of class 1 lie on its ring. Training points have angles
    U[0°, 120°], test points all around: there it shows whether the symmetry was found. On a ring
    each coordinate has its own factor: (cos t, sin t) · (radius + 0.06 ε), ε ~ N(0, 1) twice.

    Raises CallerError for fewer than 6 examples.
    """
    check_at_least(examples, 6, what="rings, number of examples")
    generator = torch.Generator().manual_seed(seed)
    train = _rings(examples, RING_SPREAD, "rings", generator)
    test = _rings(examples, 360.0, "rings, all around", generator)
    about = (
        "The label depends on the radius alone, so every rotation leaves it unchanged, ±180°; but "
        f"training points lie within {RING_SPREAD:g}° and nothing but the label says what holds "
        "beyond. Test points lie all around."
    )
    return Problem(Split(train, test), {"rotation": 180.0}, about)


def _rings(examples: int, spread: float, name: str, generator: torch.Generator) -> LabelledData:
    middle = examples // 2  # class 0
    outer = (examples - middle) * 2 // 3
    blob = examples - middle - outer
    radius = torch.cat([torch.full((middle,), 0.5), torch.zeros(blob), torch.ones(outer)])
    angle = torch.rand(examples, generator=generator) * math.radians(spread)
    noise = RING_NOISE * torch.randn(examples, 2, generator=generator)
    direction = torch.stack([angle.cos(), angle.sin()], 1)
    ring = direction * (radius[:, None] + noise)
    points = torch.where(radius[:, None] > 0, ring, noise)
    labels = (torch.arange(examples) >= middle).long()
    order = torch.randperm(examples, generator=generator)
    return LabelledData(points[order, None], labels[order], ("ring", "blob and ring"), name)


# -- turned clouds -----------------------------------------------------------------------------

# Corners of strokes, y up; none of them looks like itself at another angle.
LETTERS: dict[str, tuple[tuple[float, float], ...]] = {
    "L": ((0.0, 1.0), (0.0, -1.0), (1.2, -1.0)),
    "P": ((-0.6, -1.0), (-0.6, 1.0), (0.6, 1.0), (0.6, 0.0), (-0.6, 0.0)),
    "C": ((0.8, 1.0), (-0.6, 1.0), (-0.6, -1.0), (0.8, -1.0)),
}
CLOUD_CLASSES: tuple[tuple[str, float], ...] = (
    ("L", 0.0), ("L", 180.0), ("P", 0.0), ("P", 180.0), ("C", 0.0), ("C", 180.0),
)  # fmt: skip
"""Letter and pose in degrees of each class."""
CLOUD_NOISE = 0.08
CLUTTER_SHARE = 0.25
CLUTTER_RADIUS = 1.8


def turned_clouds(
    examples: int = 600, range: float = 60.0, points: int = 16, seed: int = 0
) -> Problem:
    """Clouds (examples, points, 2) along the strokes of letters; truth {"rotation": range}.

    Letters are centred and of root mean square radius 1. Points lie anywhere along the strokes, in
    any order, each with noise 0.08 in both coordinates; one in four is a stray, anywhere in a disc
    of radius 1.8. A class is a letter upright or on its head (`CLOUD_CLASSES`), and each cloud is
    turned by its own angle U[−range, range] degrees. A network that takes the points in their order
    has nothing to hold on to; one that counts them in places does. Ranges of 30° and less make so
    little difference that too little is found of them; from 45° on they are well determined.

    Raises CallerError unless 0 ≤ range ≤ 90: beyond, a letter and one on its head are the same.
    """
    _check_problem("turned_clouds", examples, len(CLOUD_CLASSES), range, 90.0)
    check_at_least(points, 1, what="points of a cloud")
    generator = torch.Generator().manual_seed(seed)
    train, test = (
        _clouds(examples, range, points, f"turned clouds{part}", generator)
        for part in ("", ", test")
    )
    about = (
        f"Letters in points, upright or on their heads, each turned once by up to ±{range:g}°. "
        "Turned by 180°, each is an example of another class, so a network that is averaged over "
        "all angles cannot tell them apart, and the angle alone does not tell the letter; averaged "
        "over less than the range, it has to learn the letters at every angle from few examples."
    )
    return Problem(Split(train, test), {"rotation": range}, about)


def outline(corners: Sequence[tuple[float, float]], places: Tensor) -> Tensor:
    """Points (…, 2) at `places` in [0, 1] of the length of a polygonal line.

    The line is moved and scaled so that its mean is the origin and its root mean square radius 1.
    """
    ends = torch.tensor(corners, dtype=places.dtype, device=places.device)
    start, step = ends[:-1], ends[1:] - ends[:-1]
    length = step.norm(dim=1)
    share = length / length.sum()
    # Mean and mean square over the line: each stroke by its ends (Simpson's rule is exact here).
    mean = (share[:, None] * (start + step / 2)).sum(0)
    squares = (start.square() + 4 * (start + step / 2).square() + ends[1:].square()).sum(1) / 6
    radius = ((share * squares).sum() - mean.square().sum()).sqrt()
    reached = torch.cat([share.new_zeros(1), share.cumsum(0)])
    stroke = torch.searchsorted(reached, places.contiguous(), right=True) - 1
    stroke = stroke.clamp(0, len(share) - 1)
    along = (places - reached[stroke]) / share[stroke]
    return (start[stroke] + along[..., None] * step[stroke] - mean) / radius


def _clouds(
    examples: int, range: float, points: int, name: str, generator: torch.Generator
) -> LabelledData:
    labels = _balanced(examples, len(CLOUD_CLASSES), generator)
    places = torch.rand(examples, points, generator=generator, dtype=torch.float64)
    drawn = {letter: outline(corners, places) for letter, corners in LETTERS.items()}
    each = torch.stack([drawn[letter] for letter, _ in CLOUD_CLASSES], 1)
    upright = each[torch.arange(examples), labels]
    poses = torch.tensor([pose for _, pose in CLOUD_CLASSES], dtype=torch.float64)
    angle = torch.deg2rad(poses[labels] + _uniform(examples, range, generator))
    cosine, sine = angle.cos()[:, None], angle.sin()[:, None]
    x, y = upright.unbind(2)
    turned = torch.stack([cosine * x - sine * y, sine * x + cosine * y], 2)
    noise = CLOUD_NOISE * torch.randn(turned.shape, generator=generator)
    # Clutter has no direction: uniform in a disc, before as after any turn.
    radius = CLUTTER_RADIUS * torch.rand(examples, points, generator=generator).sqrt()
    around = 2 * math.pi * torch.rand(examples, points, generator=generator)
    clutter = torch.stack([radius * around.cos(), radius * around.sin()], 2)
    stray = torch.rand(examples, points, generator=generator) < CLUTTER_SHARE
    noisy = torch.where(stray[..., None], clutter, turned + noise)
    names = tuple(f"{letter} at {pose:g}°" for letter, pose in CLOUD_CLASSES)
    return LabelledData(noisy.float(), labels, names, name)


# -- shifted waves -----------------------------------------------------------------------------

WAVE_CLASSES: tuple[tuple[int, float], ...] = ((0, 0.25), (0, 0.75), (1, 0.25), (2, 0.25))
"""Pulse (how often the bump is differentiated) and place, as a fraction of the length, of each."""
PULSE_WIDTH = 0.04
PULSE_HEIGHT = 4.0
WAVE_NOISE = 1.2


def shifted_waves(
    examples: int = 600, range: float = 0.2, length: int = 64, seed: int = 0
) -> Problem:
    """Sequences (examples, 1, length) with one pulse each; truth {"shift": range}.

    The length is a circle. Pulses are a Gaussian bump of width 0.04 of the length and its first
    two derivatives, all of height 4, in noise of 1.2. A class is a pulse at a place
    (`WAVE_CLASSES`), and each is moved by its own U[−range, range], a fraction of the length.
    Ranges near the pulse's width, and near ¼, where the two bumps meet, come out too small.

    Raises CallerError unless 0 ≤ range ≤ ¼: beyond, bumps of the two places are the same.
    """
    _check_problem("shifted_waves", examples, len(WAVE_CLASSES), range, 0.25)
    check_at_least(length, 16, what="length of a sequence")
    generator = torch.Generator().manual_seed(seed)
    train, test = (
        _waves(examples, range, length, f"shifted waves{part}", generator)
        for part in ("", ", test")
    )
    about = (
        f"Pulses in noise, each moved once by up to ±{range:g} of the length, around its end. Two "
        "classes are the same bump half a length apart, so a network that is averaged over all "
        "shifts cannot tell them apart, and three classes share a place, so the place alone does "
        "not tell the class; averaged over less than the range, a network has to learn the pulses "
        "at every place from few examples."
    )
    return Problem(Split(train, test), {"shift": range}, about)


def pulse(order: int, offset: Tensor) -> Tensor:
    """A bump exp(−u²/2), u = offset/width, or its derivative of order 1 or 2, of height 4.

    offset: places on a circle of circumference 1, measured from the pulse's.
    """
    u = (offset - offset.round()) / PULSE_WIDTH
    shape, height = {
        0: (torch.ones_like(u), 1.0),
        1: (-u, math.exp(-0.5)),  # largest at u = −1
        2: (u.square() - 1, 1.0),  # largest, downwards, at u = 0
    }[order]
    return PULSE_HEIGHT / height * shape * (-u.square() / 2).exp()


def _waves(
    examples: int, range: float, length: int, name: str, generator: torch.Generator
) -> LabelledData:
    labels = _balanced(examples, len(WAVE_CLASSES), generator)
    places = torch.tensor([place for _, place in WAVE_CLASSES], dtype=torch.float64)
    place = places[labels] + _uniform(examples, range, generator)
    offset = torch.arange(length, dtype=torch.float64) / length - place[:, None]
    each = torch.stack([pulse(order, offset) for order, _ in WAVE_CLASSES], 1)
    waves = each[torch.arange(examples), labels]
    noisy = waves + WAVE_NOISE * torch.randn(waves.shape, generator=generator)
    kinds = ("bump", "slope of a bump", "curvature of a bump")
    names = tuple(f"{kinds[order]} at {at:g}" for order, at in WAVE_CLASSES)
    return LabelledData(noisy[:, None].float(), labels, names, name)


# -- clouds, waves and textures ------------------------------------------------------------------


def _check_problem(name: str, examples: int, classes: int, range: float, most: float) -> None:
    check_at_least(examples, classes, what=f"{name}, number of examples")
    if not 0 <= range <= most:
        raise CallerError(
            f"{name}: expected a range from 0 to {most:g}, got {range:g}; beyond {most:g} two of "
            "its classes are the same"
        )


def _balanced(examples: int, classes: int, generator: torch.Generator) -> Tensor:
    """Labels (examples,) in random order, as many of each class as of any other, give or take 1."""
    return (torch.arange(examples) % classes)[torch.randperm(examples, generator=generator)]


def _uniform(examples: int, half_width: float, generator: torch.Generator) -> Tensor:
    return (2 * torch.rand(examples, generator=generator, dtype=torch.float64) - 1) * half_width


# -- textures ----------------------------------------------------------------------------------

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
    drawn = _balanced(count, len(classes), generator)
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
    coarse = avg_pool2d(pictures, FINER)
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


# -- photographs -------------------------------------------------------------------------------

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
