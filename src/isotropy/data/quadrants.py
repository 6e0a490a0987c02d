"""Digits in one of four quadrants: one set of images, with and without a use for where things are.

Every image is pasted once into a quadrant of a black canvas twice its side, drawn uniformly,

    0 upper left    1 upper right    2 lower left    3 lower right

and the canvas is brought to `size` pixels: bilinear, without antialiasing, as published. Two tasks
share these images:

    digit            the class is the image's                      a convolution is all it takes
    digit-quadrant   class + classes · quadrant, 4 · classes       nothing stationary can tell them

At 28 and 32 pixels no sample lies between two quadrants, so an image elsewhere is the same image
moved by 16 pixels on the torus, exactly: a strictly translation invariant network knows the second
label at a quarter of the first's accuracy. (van der Ouderaa, Immer and van der Wilk 2023, "Learning
layer-wise equivariances automatically using gradients", section 6.1.)

Images `(examples, channels, height, width)`; black is 0, so scale the digits afterwards
(`standardised`), not before.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from isotropy.checks import CallerError, check_at_least, check_choice, shape_text
from isotropy.data import image_folder as pictures
from isotropy.data.labelled import LabelledData, Split

TASKS = ("digit", "digit-quadrant")
QUADRANTS = ("upper left", "upper right", "lower left", "lower right")
SEED = 1000
CHUNK_SIZE = 1000

DIGIT_MEAN = (0.1307,)
DIGIT_DEVIATION = (0.3081,)
"""Of the pixels of MNIST's training images in [0, 1], as the field rounds them."""


def quadrants(split: Split, task: str, *, size: int = 32, seed: int = SEED) -> Split:
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
    train = _placed(split.train, task, size, seed + 1)
    test = None if split.test is None else _placed(split.test, task, size, seed)
    side = split.train.inputs.shape[-1]
    brought = "" if size == 2 * side else f", brought to {size} × {size} (bilinear)"
    note = (
        f"every image in a quadrant of a canvas of {2 * side} × {2 * side} pixels{brought}, once "
        f"and for all (seed {seed + 1} for training, {seed} for test); the label tells "
        + ("class and quadrant" if task == "digit-quadrant" else "the class alone")
    )
    return Split(train=train, test=test, notes=(*split.notes, note))


def draw_quadrants(count: int, *, seed: int) -> Tensor:
    """The quadrant of each image, int64 `(count,)` in 0..3, uniform."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(len(QUADRANTS), (count,), generator=generator)


def paste(images: Tensor, places: Tensor) -> Tensor:
    """Images `(batch, channels, h, w)` on black canvases `(batch, channels, 2h, 2w)`.

    places: the quadrant of each, int64 `(batch,)` in 0..3.
    """
    batch, channels, height, width = images.shape
    canvas = images.new_zeros(batch, channels, 2, height, 2, width)
    # Indices with slices between them come first: the selection is (batch, channels, h, w).
    canvas[torch.arange(batch, device=images.device), :, places // 2, :, places % 2] = images
    return canvas.reshape(batch, channels, 2 * height, 2 * width)


def resized(split: Split, size: int) -> Split:
    """`split` with square images of `size` pixels; a split of that size already is returned.

    Bilinear, antialiased where it shrinks (`pictures.resized`): MNIST grows from 28 to 32 pixels,
    where that changes nothing. Raises CallerError for data that are not images and for a size
    below 1.
    """
    check_at_least(size, 1, what="image size, in pixels")
    train, notes = pictures.resized(split.train, size)
    test, test_notes = (None, ()) if split.test is None else pictures.resized(split.test, size)
    if not (notes or test_notes):
        return split
    return Split(train=train, test=test, notes=(*split.notes, *notes, *test_notes))


def standardised(
    split: Split,
    *,
    mean: tuple[float, ...] = DIGIT_MEAN,
    deviation: tuple[float, ...] = DIGIT_DEVIATION,
) -> Split:
    """`split` with images (image − mean) / deviation, by default with the statistics of MNIST.

    mean, deviation: one number a channel.

    Make variants and quadrants first: they fill in zeros, which is black only before. Resizing is
    an average of pixels, so it may come before or after. Raises CallerError for data that are not
    images of so many channels, and for a deviation that is not above 0.
    """
    if not (len(mean) == len(deviation) and all(each > 0 for each in deviation)):
        raise CallerError(
            f"expected a mean and a deviation above 0 for every channel, got mean {mean} and "
            f"deviation {deviation}; give one number a channel"
        )
    train = _standardised(split.train, mean, deviation)
    test = None if split.test is None else _standardised(split.test, mean, deviation)
    note = f"images standardised: mean {_text(mean)}, standard deviation {_text(deviation)}"
    return Split(train=train, test=test, notes=(*split.notes, note))


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
    images = torch.cat([_resampled(paste(part, each), size) for part, each in chunks])
    name = f"{data.name}, in quadrants"
    if task == "digit":
        return replace(data, inputs=images, name=name)
    return replace(
        data,
        inputs=images,
        targets=data.targets + data.num_classes * places.to(data.targets.device),
        classes=tuple(f"{label}, {place}" for place in QUADRANTS for label in data.classes),
        name=name,
    )


def _resampled(canvas: Tensor, size: int) -> Tensor:
    """A canvas at `size` pixels a side; `pictures.resize_images` would blur before it shrinks."""
    if canvas.shape[2] == size:
        return canvas
    return interpolate(canvas, size=(size, size), mode="bilinear", align_corners=False)


def _standardised(
    data: LabelledData, mean: tuple[float, ...], deviation: tuple[float, ...]
) -> LabelledData:
    if not data.is_images or data.inputs.shape[1] != len(mean):
        raise CallerError(
            f"{data.name}: expected images (examples, {len(mean)}, height, width) to standardise "
            f"with {len(mean)} means, got {shape_text(data.inputs)}; give one number a channel"
        )
    centre = data.inputs.new_tensor(mean)[:, None, None]
    scale = data.inputs.new_tensor(deviation)[:, None, None]
    return replace(data, inputs=(data.inputs - centre).div_(scale))


def _text(numbers: tuple[float, ...]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)
