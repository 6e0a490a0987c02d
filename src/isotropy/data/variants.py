"""Images of a data set moved: once and for all, so that a symmetry is known, or anew at every step.

*Variants* and *quadrants* transform every image of the training and of the test set once, with a
fixed seed, before learning begins. (Drawn anew every epoch it would be augmentation, and a network
without any symmetry would learn it too.)

    rotated             angle ~ U[−π, π]
    partially-rotated   angle ~ U[−π/2, π/2]
    translated          x, y ~ U[−8/14, 8/14] half image widths, independent
    scaled              logarithm of one factor for both axes ~ U[−ln 2, ln 2]
    flipped             left and right exchanged with probability ½

`turned` is rotated with another largest angle.

All but the last are the laws of Immer et al. (2022), "Invariance learning in deep neural networks
with differentiable Laplace approximations". Here pixels stay floating-point (there: cut to 8 bits),
all versions are resampled on one grid convention (that of `symmetry.actions.images`), and zeros
are filled in after normalisation (there: black before it), so CIFAR-10 is padded with its mean.

`quadrants` pastes every image into a quadrant of a black canvas twice its side, drawn uniformly,

    0 upper left    1 upper right    2 lower left    3 lower right

and brings the canvas to `size` pixels: bilinear, without antialiasing, as published. Two tasks
share these images:

    digit            the class is the image's                      a convolution is all it takes
    digit-quadrant   class + classes · quadrant, 4 · classes       nothing stationary can tell them

At 28 and 32 pixels no sample lies between two quadrants, so an image elsewhere is the same image
moved by 16 pixels on the torus, exactly: a strictly translation invariant network knows the second
label at a quarter of the first's accuracy. (van der Ouderaa, Immer and van der Wilk 2023, "Learning
layer-wise equivariances automatically using gradients", section 6.1.) Black is 0 before the digits
are `standardised`, so that comes last.

`FlipsAndShifts` is augmentation, drawn per image while weights are trained; evidence and test see
images as they are.

Axes: images `(examples, channels, height, width)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from isotropy.checks import CallerError, check_at_least, check_axes, check_choice, shape_text
from isotropy.data.labelled import LabelledData, Split, normalised
from isotropy.data.streams.streamed import StreamedData
from isotropy.symmetry.actions.images import AffineAction, affine

CHUNK_SIZE = 1000
"""Images that are moved at once."""


def _changed(
    split: Split,
    change: Callable[[LabelledData, int], LabelledData],
    note: str,
    *,
    seeds: tuple[int, int] = (0, 0),
) -> Split:
    """Both parts changed, training data with the first seed and test data with the second."""
    train = change(split.train, seeds[0])
    test = None if split.test is None else change(split.test, seeds[1])
    return Split(train=train, test=test, notes=(*split.notes, note))


# --- variants -----------------------------------------------------------------------------

TRAIN_SEED = 1
TEST_SEED = 0
FLIP = "horizontal_flip"

# Half-width of each generator's uniform law, in Lie-algebra coordinates; a flip's probability.
LAWS: dict[str, dict[str, float]] = {
    "original": {},
    "rotated": {"rotation": math.pi},
    "partially-rotated": {"rotation": math.pi / 2},
    "translated": {"translation_x": 8 / 14, "translation_y": 8 / 14},
    "scaled": {"scale": math.log(2)},
    "flipped": {FLIP: 0.5},
}

# The same by the symmetry that should be found, in the units in which it is reported: degrees,
# fractions of the image's width, log factors. A common factor is found as two equal ones.
TRUE_RANGES: dict[str, dict[str, float]] = {
    "original": {},
    "rotated": {"rotation": 180.0},
    "partially-rotated": {"rotation": 90.0},
    "translated": {"translation_x": 2 / 7, "translation_y": 2 / 7},
    "scaled": {"scale_x": math.log(2), "scale_y": math.log(2)},
    "flipped": {FLIP: 0.5},
}

_DONE: dict[str, str] = {
    "rotated": "turned by an angle between −180° and 180°",
    "partially-rotated": "turned by an angle between −90° and 90°",
    "translated": "moved by up to 2/7 of its width along each axis",
    "scaled": "scaled by a factor between 1/2 and 2",
    "flipped": "mirrored left to right with probability 1/2",
}


def variant_coordinates(variant: str, count: int, *, seed: int) -> Tensor:
    """The group element drawn for each image, float32 `(count, generators)`, from `LAWS`."""
    half_widths = torch.tensor(list(LAWS[variant].values()))
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.rand(count, len(half_widths), generator=generator) - 1) * half_widths


def apply_variant(data: LabelledData, variant: str, *, seed: int) -> LabelledData:
    """Every image of `data` transformed once by the law of `variant`; targets stay.

    data: images `(examples, channels, height, width)`; their dtype and device are kept.
    variant: a key of `LAWS`; "original" returns `data` itself, images or not.
    seed: with the number of examples decides all transformations.

    Bilinear with zeros outside. Raises `CallerError` for an unknown variant and for data that
    are not images. Rotations are tested against `scipy.ndimage.map_coordinates`.
    """
    law = LAWS[check_choice(variant, LAWS, what="variant")]
    if not law:
        return data
    if not data.is_images:
        raise CallerError(
            f"{data.name}: expected images (examples, channels, height, width) to make the "
            f"variant {variant!r} of, got {shape_text(data.inputs)}; variants exist for images only"
        )
    if FLIP in law:
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.rand(len(data), generator=generator) < law[FLIP]
        mirrored = chosen.to(data.inputs.device)[:, None, None, None]
        images = torch.where(mirrored, data.inputs.flip(-1), data.inputs)
    else:
        drawn = variant_coordinates(variant, len(data), seed=seed)
        images = _moved(data.inputs, affine(tuple(law)), drawn)
    return replace(data, inputs=images, name=f"{data.name}, {variant}")


def _moved(images: Tensor, action: AffineAction, coordinates: Tensor) -> Tensor:
    """Images (examples, …), each moved by its row of coordinates (examples, generators)."""
    chunks = zip(coordinates.to(images).split(CHUNK_SIZE), images.split(CHUNK_SIZE), strict=True)
    return torch.cat([action.act(each[:, None], part)[:, 0] for each, part in chunks])


def vary(split: Split, variant: str) -> Split:
    """Both parts of `split` transformed: training images by seed 1, test images by seed 0.

    Raises `CallerError` as `apply_variant` does.
    """
    if not LAWS[check_choice(variant, LAWS, what="variant")]:
        return split
    if isinstance(split.train, StreamedData):
        raise CallerError(
            f"variant {variant}: expected images in memory, got data that are read while they are "
            "used; transform them where they come from"
        )
    note = (
        f"every image {_DONE[variant]}, once and for all (seed {TRAIN_SEED} for training, "
        f"{TEST_SEED} for test)"
    )
    return _changed(
        split,
        lambda data, seed: apply_variant(data, variant, seed=seed),
        note,
        seeds=(TRAIN_SEED, TEST_SEED),
    )


def turned(split: Split, degrees: float) -> Split:
    """Every image rotated once by an angle ~ U[−degrees, degrees]; 0 leaves the data as they are.

    Seeds are those of `vary`: 180 gives "rotated" and 90 "partially-rotated". Raises `CallerError`
    for angles beyond 0 to 180 and for data that are not images.
    """
    if not 0 <= degrees <= 180:
        raise CallerError(f"degrees: expected an angle from 0 to 180, got {degrees:g}")
    if not degrees:
        return split
    half_width = math.radians(degrees)

    def change(data: LabelledData, seed: int) -> LabelledData:
        if not data.is_images:
            raise CallerError(
                f"{data.name}: expected images (examples, channels, height, width) to rotate, got "
                f"{shape_text(data.inputs)}"
            )
        drawn = torch.rand(len(data), 1, generator=torch.Generator().manual_seed(seed))
        angles = (2 * drawn - 1) * torch.tensor([half_width])
        images = _moved(data.inputs, affine(("rotation",)), angles)
        return replace(data, inputs=images, name=f"{data.name}, turned by up to {degrees:g}°")

    note = (
        f"every image turned by an angle between −{degrees:g}° and {degrees:g}°, once and for all "
        f"(seed {TRAIN_SEED} for training, {TEST_SEED} for test)"
    )
    return _changed(split, change, note, seeds=(TRAIN_SEED, TEST_SEED))


# --- quadrants ----------------------------------------------------------------------------

TASKS = ("digit", "digit-quadrant")
QUADRANTS = ("upper left", "upper right", "lower left", "lower right")
QUADRANT_SEED = 1000

DIGIT_MEAN = 0.1307
DIGIT_DEVIATION = 0.3081
"""Of the pixels of MNIST's training images in [0, 1], as the field rounds them."""


def quadrants(split: Split, task: str, *, size: int = 32, seed: int = QUADRANT_SEED) -> Split:
    """`split` with every image in one quadrant of a canvas of `size` × `size` pixels.

    split: square images with class labels, black = 0; their dtype and device are kept.
    task:  one of `TASKS`; both have the same images under the same seed.
    seed:  decides the quadrants of test images, seed + 1 those of training images.

    Labels of "digit-quadrant" are class + classes · quadrant, named such as "3, upper left".
    Raises CallerError for an unknown task, for data that are not square images with class labels,
    and for a size below 2. Tested against `scipy.ndimage.map_coordinates`.
    """
    check_choice(task, TASKS, what="task")
    check_at_least(size, 2, what="size of the canvas, in pixels")
    side = split.train.inputs.shape[-1]
    brought = "" if size == 2 * side else f", brought to {size} × {size} (bilinear)"
    note = (
        f"every image in a quadrant of a canvas of {2 * side} × {2 * side} pixels{brought}, once "
        f"and for all (seed {seed + 1} for training, {seed} for test); the label tells "
        + ("class and quadrant" if task == "digit-quadrant" else "the class alone")
    )
    return _changed(
        split, lambda data, own: _placed(data, task, size, own), note, seeds=(seed + 1, seed)
    )


def draw_quadrants(count: int, *, seed: int) -> Tensor:
    """The quadrant of each image, int64 `(count,)` in 0..3, uniform."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(len(QUADRANTS), (count,), generator=generator)


def _placed(data: LabelledData, task: str, size: int, seed: int) -> LabelledData:
    if not data.is_images or data.inputs.shape[2] != data.inputs.shape[3]:
        raise CallerError(
            f"{data.name}: expected square images (examples, channels, side, side) to put in "
            f"quadrants, got {shape_text(data.inputs)}; resize them first"
        )
    if data.classes is None:
        raise CallerError(
            f"{data.name}: expected class labels to put in quadrants, got regression targets "
            f"{shape_text(data.targets)}; give images with classes"
        )
    places = draw_quadrants(len(data), seed=seed).to(data.inputs.device)
    chunks = zip(data.inputs.split(CHUNK_SIZE), places.split(CHUNK_SIZE), strict=True)
    images = torch.cat([_canvas(part, each, size) for part, each in chunks])
    placed = replace(data, inputs=images, name=f"{data.name}, in quadrants")
    if task == "digit":
        return placed
    return replace(
        placed,
        targets=data.targets + data.num_classes * places.to(data.targets.device),
        classes=tuple(f"{label}, {place}" for place in QUADRANTS for label in data.classes),
    )


def _canvas(images: Tensor, places: Tensor, size: int) -> Tensor:
    """Images `(batch, channels, h, w)` in their quadrants, `(batch, channels, size, size)`."""
    batch, channels, height, width = images.shape
    canvas = images.new_zeros(batch, channels, 2, height, 2, width)
    # Indices with slices between them come first: the selection is (batch, channels, h, w).
    canvas[torch.arange(batch, device=images.device), :, places // 2, :, places % 2] = images
    whole = canvas.reshape(batch, channels, 2 * height, 2 * width)
    if whole.shape[2] == size:
        return whole
    # Not `image_folder.resize_images`, which would blur before it shrinks.
    return interpolate(whole, size=(size, size), mode="bilinear", align_corners=False)


def standardised(split: Split) -> Split:
    """`split` with grey images (image − mean) / deviation, by the statistics of MNIST.

    Make variants and quadrants first: they fill in zeros, which is black only before. Resizing is
    an average of pixels, so it may come before or after. Raises CallerError for data that are not
    images of one channel.
    """

    def change(data: LabelledData, seed: int) -> LabelledData:
        if not data.is_images or data.inputs.shape[1] != 1:
            raise CallerError(
                f"{data.name}: expected images (examples, 1, height, width) to standardise with "
                f"the statistics of MNIST, got {shape_text(data.inputs)}"
            )
        return replace(data, inputs=normalised(data.inputs, (DIGIT_MEAN,), (DIGIT_DEVIATION,)))

    note = f"images standardised: mean {DIGIT_MEAN:g}, standard deviation {DIGIT_DEVIATION:g}"
    return _changed(split, change, note)


# --- augmentation -------------------------------------------------------------------------


PLACES = 1 << 20
"""Of the centre of an erased square, along each axis."""


@dataclass(frozen=True)
class FlipsAndShifts:
    """Flips and shifts of training images: the law of the draws, and the motion they cause.

        moved(c, i, j) = image(c, i + dy, j′),   j′ = j + dx,  or  width − 1 − (j + dx) mirrored,

    with zeros outside: a mirror image with probability ½, then a random crop after padding by
    `pixels` on all sides. dy and dx are whole numbers, uniform on −pixels … pixels, so nothing is
    interpolated. After normalisation per channel the zeros are the mean colour. With `erased` a
    square of that side, around a pixel drawn uniformly and cut off at the borders, is zero too
    (cutout, DeVries and Taylor 2017).

    Drawing and moving are two steps. `draw` asks a generator; `__call__` is a function of two
    tensors that looks at no value, reads no generator and makes shapes from shapes alone, so that
    it can be recorded once in a CUDA graph and replayed with other draws copied into its place.

    pixels: largest shift along each axis; 0 shifts nothing.
    flip:   whether half of the images are mirrored left to right.
    erased: side of the square that is set to zero, in pixels; 0 erases nothing.

    Raises CallerError for negative numbers.
    """

    pixels: int = 4
    flip: bool = True
    erased: int = 0

    def __post_init__(self) -> None:
        check_at_least(self.pixels, 0, what="largest shift, in pixels")
        check_at_least(self.erased, 0, what="side of the erased square, in pixels")

    def draw(self, batch: int, generator: torch.Generator) -> Tensor:
        """What is to happen to `batch` images, int64 `(batch, 3)` on the generator's device.

        Columns are mirrored (0 or 1), dy, dx; with `erased` also the centre of the square, row and
        column, below `PLACES` and taken as shares of the height and width. A whole epoch can be
        drawn at once and taken by rows.
        """
        device = generator.device
        mirrored = torch.randint(
            2 if self.flip else 1, (batch, 1), generator=generator, device=device
        )
        shifts = torch.randint(
            -self.pixels, self.pixels + 1, (batch, 2), generator=generator, device=device
        )
        if not self.erased:
            return torch.cat([mirrored, shifts], 1)
        centres = torch.randint(PLACES, (batch, 2), generator=generator, device=device)
        return torch.cat([mirrored, shifts, centres], 1)

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """Images moved as `draws` say, a new tensor of the same shape.

        images: `(batch, channels, height, width)`; gradients flow through.
        draws:  `(batch, 3)` integers on the same device, `(batch, 5)` with `erased`, from `draw` of
            the same law; values beyond its range are not looked for.

        Raises CallerError for other shapes and for draws on another device.
        """
        check_axes(
            images, ("batch", "channels", "height", "width"), what="images",
            advice="add a channel axis with x[:, None]",
        )  # fmt: skip
        wanted = 5 if self.erased else 3
        if draws.shape != (len(images), wanted) or draws.is_floating_point():
            raise CallerError(
                f"expected draws (batch, {wanted}) of whole numbers for {len(images)} images, got "
                f"{shape_text(draws)} of {draws.dtype}; take them from draw({len(images)}, …)"
            )
        if draws.device != images.device:
            raise CallerError(
                f"expected draws on the device of the images, {images.device}, got "
                f"{draws.device}; move them with draws.to(images.device)"
            )
        batch, channels, height, width = images.shape
        margin = self.pixels
        mirrored, down, right = draws[:, :3, None].unbind(1)
        padded_width = width + 2 * margin
        rows = torch.arange(margin, margin + height, device=images.device) + down
        columns = torch.arange(margin, margin + width, device=images.device) + right
        columns = torch.where(mirrored > 0, padded_width - 1 - columns, columns)
        places = (rows[:, :, None] * padded_width + columns[:, None, :]).flatten(1)
        padded = pad(images, (margin, margin, margin, margin)).flatten(2)
        moved = padded.gather(2, places[:, None].expand(batch, channels, height * width))
        moved = moved.unflatten(2, (height, width))
        return moved * self._kept(draws, height, width)[:, None] if self.erased else moved

    def _kept(self, draws: Tensor, height: int, width: int) -> Tensor:
        """Which pixels are not erased, `(batch, height, width)`."""
        inside = []
        for place, side in ((draws[:, 3], height), (draws[:, 4], width)):
            first = place * side // PLACES - self.erased // 2
            pixels = torch.arange(side, device=draws.device) - first[:, None]
            inside.append((pixels >= 0) & (pixels < self.erased))
        rows, columns = inside
        return ~(rows[:, :, None] & columns[:, None, :])
