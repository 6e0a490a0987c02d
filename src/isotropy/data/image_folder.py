"""A folder of pictures with one subfolder per class, named for the class.

    folder/cat/001.png  folder/dog/anything.jpg        one set, or
    folder/train/cat/…  folder/test/cat/…              a training and a test set

Classes are in sorted order of their names, pictures in sorted order of their paths. A picture
becomes float32 `(channels, height, width)` in [0, 1], grey (1 channel) or RGB (3), upright as its
camera meant it, without transparency; of a moving picture, the first frame. Where images are
brought to a size of another aspect ratio, their middle is kept and the rest cut off: stretching
would turn rotations into something else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn.functional import interpolate

from isotropy.checks import CallerError, check_at_least, check_memory, shape_text
from isotropy.data.formats import entries, split_of
from isotropy.data.labelled import LabelledData, Notes, Split

GREY_MODES = ("1", "L", "LA", "La", "I;16", "I;16L", "I;16B", "I;16N")
UNREAD_MODES = ("I", "F")
RESIZE_CHUNK = 1000
GREY = (0.299, 0.587, 0.114)
"""Of red, green and blue in grey (ITU-R 601), as Pillow has it."""
LARGEST_SIDE = 64
"""Pictures with a longer side are brought to the working size where nobody asked for another."""
WORKING_SIZE = 32
"""Side of the pictures then, in pixels: small networks see shapes, and copies cost little."""
ImageSize = int | Literal["auto"] | None
"""A side in pixels, "auto" for the working size where pictures are large, None for their own."""
_ORIENTATION_TAG = 0x0112
_TURNED_ON_THEIR_SIDE = (5, 6, 7, 8)


def is_grey(picture: Image.Image) -> bool:
    """True where the picture's mode holds no colour."""
    return picture.mode in GREY_MODES


def upright_size(picture: Image.Image) -> tuple[int, int]:
    """(height, width) in pixels once turned upright, read from the header alone."""
    width, height = picture.size
    if picture.getexif().get(_ORIENTATION_TAG) in _TURNED_ON_THEIR_SIDE:
        return width, height
    return height, width


def picture_tensor(picture: Image.Image, channels: int | None = None) -> Tensor:
    """A picture as float32 `(channels, height, width)` in [0, 1].

    channels: 1 for grey, 3 for RGB; None takes what the picture has.
    Raises `CallerError` for pictures of 32 bits per channel, whose range nothing tells.
    """
    if picture.mode in UNREAD_MODES:
        raise CallerError(
            f"expected a picture of 8 or 16 bits per channel, got PIL mode {picture.mode!r} "
            "(32 bits); store such data in an npz archive"
        )
    if channels is None:
        channels = 1 if is_grey(picture) else 3
    upright = ImageOps.exif_transpose(picture)
    if upright.mode.startswith("I;16"):  # PIL would clip at 255 instead of dividing
        pixels = np.asarray(upright).astype(np.float32) / 65535
        return torch.from_numpy(pixels)[None].expand(channels, -1, -1).clone()
    if upright.mode == "P" and "transparency" in upright.info:
        upright = upright.convert("RGBA")
    pixels = np.asarray(upright.convert("L" if channels == 1 else "RGB"), dtype=np.float32) / 255
    planes = pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(planes))


def resize_images(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Images `(examples, channels, height, width)` at another (height, width) in pixels.

    Bilinear; when shrinking, the kernel is widened so that fine detail does not alias.
    Images of that size already are returned as they are.
    """
    if tuple(images.shape[2:]) == size:
        return images
    parts = [
        interpolate(chunk, size=size, mode="bilinear", antialias=True, align_corners=False)
        for chunk in images.split(RESIZE_CHUNK)
    ]
    return torch.cat(parts)


def middle(images: Tensor, size: tuple[int, int]) -> Tensor:
    """The largest part of images `(…, height, width)` with the aspect ratio of `size`, centred.

    (height, width) within half a pixel of that ratio are returned as they are.
    """
    height, width = images.shape[-2:]
    kept_height = max(1, min(height, round(width * size[0] / size[1])))
    kept_width = max(1, min(width, round(height * size[1] / size[0])))
    top, left = (height - kept_height) // 2, (width - kept_width) // 2
    return images[..., top : top + kept_height, left : left + kept_width]


def resized(split: Split, size: int) -> Split:
    """`split` with square images of `size` pixels; a split of that size already is returned.

    Bilinear, antialiased where it shrinks, as `resize_images`. Raises `CallerError` for data that
    are not images and for a size below 1.
    """
    check_at_least(size, 1, what="image size, in pixels")
    train, notes = _resized(split.train, size)
    test, test_notes = (None, ()) if split.test is None else _resized(split.test, size)
    if not (notes or test_notes):
        return split
    return Split(train=train, test=test, notes=(*split.notes, *notes, *test_notes))


def _resized(data: LabelledData, size: int) -> tuple[LabelledData, Notes]:
    if not data.is_images:
        raise CallerError(
            f"{data.name}: expected images (examples, channels, height, width) to resize to "
            f"{size} pixels, got {shape_text(data.inputs)}; leave image_size out"
        )
    height, width = data.inputs.shape[2:]
    if (height, width) == (size, size):
        return data, ()
    cut = "" if height == width else "cut to their middle square and "
    note = (
        f"{data.name}: images {cut}resized from {height} × {width} to {size} × {size} pixels "
        "(bilinear, antialiased)"
    )
    _check_size(len(data.inputs), data.inputs.shape[1], (size, size), data.name)
    return data.mapped(partial(_square, size=size)), (note,)


def _square(images: Tensor, size: int) -> Tensor:
    """The middle square of images in `size` pixels."""
    return resize_images(middle(images, (size, size)), (size, size))


def like_images(data: LabelledData, shape: Sequence[int]) -> LabelledData:
    """Images of another data set as a network for images of `shape` takes them.

    shape: (channels, height, width), channels 1 or 3; square images
    Colours become grey by ITU-R 601, 0.299 R + 0.587 G + 0.114 B; grey becomes three equal
    colours; sizes as by `resized`. Raises CallerError for data that are not images, and for
    channels that are neither grey nor colours.
    """
    if not data.is_images or len(shape) != 3 or shape[1] != shape[2]:
        raise CallerError(
            f"{data.name}: expected images (examples, channels, height, width) for a network of "
            f"square images, got {shape_text(data.inputs)} for {tuple(shape)}; name data of that "
            "shape"
        )
    given, wanted = data.inputs.shape[1], shape[0]
    if given != wanted and {given, wanted} != {1, 3}:
        raise CallerError(
            f"{data.name}: expected images of {wanted} channels, got {given}; only grey and "
            "colours can stand for each other"
        )
    data = _resized(data, shape[1])[0]
    if (given, wanted) == (1, 3):
        return data.mapped(lambda images: images.expand(-1, 3, -1, -1))
    if (given, wanted) == (3, 1):
        weights = torch.tensor(GREY)[:, None, None]
        return data.mapped(lambda images: (images * weights.to(images)).sum(1, keepdim=True))
    return data


def _check_size(count: int, channels: int, size: tuple[int, int], name: str) -> None:
    """Raise before images are allocated that do not fit into memory."""
    what = f"{name} of {channels} channels and {size[0]:,} × {size[1]:,} pixels"
    check_memory(4 * count * channels * math.prod(size), what=what, advice="lower --image-size")


def working_size(height: int, width: int) -> int | None:
    """The side to which pictures of this size are brought by default; None: they stay."""
    return WORKING_SIZE if max(height, width) > LARGEST_SIDE else None


SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")


@dataclass(frozen=True)
class _Header:
    """What a picture file says about itself before it is decoded; size is (height, width)."""

    size: tuple[int, int]
    grey: bool
    transparent: bool


def is_image_folder(folder: Path) -> bool:
    """True where a subfolder, or a subfolder of one, holds pictures."""
    return _has_class_folders(folder) or any(map(_has_class_folders, _subfolders(folder)))


def read_image_folder(
    folder: Path, *, image_size: ImageSize = None, reference: LabelledData | None = None
) -> Split:
    """Pictures by class, with the test set from `test/` where there is a `train/` beside it.

    image_size: side in pixels that every picture is resized to; None takes the size of
        `reference`, or else the most common one; "auto" the same, or the working size where that
        is large. Pictures of another aspect ratio are cut to their middle. The notes tell it.
    reference: the training data this is a test set for; classes must be the same, and size and
        channels are taken over. Of `train/` and `test/` only the latter is read.

    All grey pictures give 1 channel, otherwise 3. Raises `CallerError` for unreadable pictures,
    a class without pictures, and classes other than those of the training data.
    """
    has_parts = _is_training_folder(folder / "train")

    def part(is_test: bool, known: LabelledData | None) -> tuple[LabelledData, Notes]:
        place = folder / ("test" if is_test else "train") if has_parts else folder
        name = f"{folder.name} test" if is_test else folder.name
        data, notes = _read_classes(place, name, image_size, known)
        others = [each.name for each in _subfolders(folder) if each.name not in ("train", "test")]
        if has_parts and others and not is_test:
            notes += (f"folders beside train and test left unread: {', '.join(others)}",)
        return data, notes

    return split_of(part, has_parts and (folder / "test").is_dir(), reference)


def _read_classes(
    folder: Path, name: str, image_size: ImageSize, reference: LabelledData | None
) -> tuple[LabelledData, Notes]:
    class_folders = _subfolders(folder)
    classes = tuple(each.name for each in class_folders)
    _check_classes(folder, classes, reference)
    paths: list[Path] = []
    labels: list[int] = []
    num_others = 0
    for label, class_folder in enumerate(class_folders):
        files = _files(class_folder)
        pictures = [path for path in files if _is_picture(path)]
        if not pictures:
            raise CallerError(
                f"{class_folder}: expected pictures of class {class_folder.name!r} "
                f"({' '.join(SUFFIXES)}), found none; add some or take the folder away"
            )
        num_others += len(files) - len(pictures)
        paths += pictures
        labels += [label] * len(pictures)
    headers = [_read_header(path) for path in paths]
    inputs, notes = _read_pictures(paths, headers, image_size, reference)
    if num_others:
        notes += (f"{num_others} files that are not pictures left unread",)
    data = LabelledData(inputs=inputs, targets=torch.tensor(labels), classes=classes, name=name)
    return data, notes


def _check_classes(folder: Path, classes: tuple[str, ...], reference: LabelledData | None) -> None:
    if not classes:
        raise CallerError(
            f"{folder}: expected a subfolder of pictures per class, found none; pictures that lie "
            "in no class folder are unlabelled, sort them into folders named for their classes"
        )
    if reference is not None and classes != reference.classes:
        known = reference.classes or ()
        unknown = [each for each in classes if each not in known]
        missing = [each for each in known if each not in classes]
        raise CallerError(
            f"{folder}: expected the classes of the training data ({', '.join(known)}), got "
            f"{', '.join(classes)} (unknown: {', '.join(unknown) or 'none'}; missing: "
            f"{', '.join(missing) or 'none'}); give both the same class folders"
        )


def _read_pictures(
    paths: list[Path],
    headers: list[_Header],
    image_size: ImageSize,
    reference: LabelledData | None,
) -> tuple[Tensor, Notes]:
    """Images float32 `(examples, channels, height, width)` in [0, 1], and notes."""
    notes: list[str] = []
    num_grey = sum(header.grey for header in headers)
    if reference is not None and reference.is_images and reference.inputs.shape[1] in (1, 3):
        channels = reference.inputs.shape[1]
    else:
        channels = 1 if num_grey == len(paths) else 3
    if channels == 3 and num_grey:
        notes.append(f"{num_grey} of {len(paths)} images are grey, read as RGB like the others")
    if channels == 1 and num_grey < len(paths):
        notes.append(f"{len(paths) - num_grey} of {len(paths)} images have colour, read as grey")
    num_transparent = sum(header.transparent for header in headers)
    if num_transparent:
        notes.append(f"transparency of {num_transparent} images dropped")
    size, why = _common_size(headers, image_size, reference)
    num_resized = sum(header.size != size for header in headers)
    if num_resized:
        notes.append(
            f"{num_resized} of {len(paths)} images resized to {size[0]} × {size[1]} pixels "
            f"(height × width; bilinear, antialiased), {why}"
        )
    _check_size(len(paths), channels, size, f"{len(paths)} pictures")
    images = torch.empty(len(paths), channels, *size)
    num_cut = 0
    for image, path in zip(images, paths, strict=True):
        whole = _decode(path, channels)
        kept = middle(whole, size)
        num_cut += kept.shape != whole.shape
        image.copy_(resize_images(kept[None], size)[0])
    if num_cut:
        notes.append(
            f"{num_cut} of {len(paths)} images have another aspect ratio and were cut to their "
            "middle: stretching would change what a rotation is"
        )
    return images, tuple(notes)


def _common_size(
    headers: list[_Header], image_size: ImageSize, reference: LabelledData | None
) -> tuple[tuple[int, int], str]:
    """The (height, width) for all pictures, and the reason for it in words."""
    if isinstance(image_size, int):
        return (image_size, image_size), "as asked"
    if reference is not None and reference.is_images:
        height, width = reference.inputs.shape[2:]
        return (height, width), "the size of the training images"
    counts = Counter(header.size for header in headers)
    # The smaller of two equally common sizes: resizing down invents no detail.
    common = min(counts, key=lambda size: (-counts[size], size))
    side = working_size(*common) if image_size == "auto" else None
    if side is None:
        return common, "the most common size"
    return (side, side), (
        f"the working size for pictures of more than {LARGEST_SIDE} pixels; --image-size sets "
        "another"
    )


def _read_header(path: Path) -> _Header:
    try:
        with Image.open(path) as picture:
            transparent = picture.has_transparency_data
            return _Header(upright_size(picture), is_grey(picture), transparent)
    except Exception as error:  # PIL's many decoders raise errors of many kinds
        raise _unreadable(path, error) from None


def _decode(path: Path, channels: int) -> Tensor:
    try:
        with Image.open(path) as picture:
            return picture_tensor(picture, channels)
    except CallerError as error:
        raise CallerError(f"{path}: {error}") from None
    except Exception as error:  # PIL's many decoders raise errors of many kinds
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> CallerError:
    if isinstance(error, PermissionError):
        return CallerError(f"{path}: permission denied; make this picture readable for this user")
    if isinstance(error, Image.DecompressionBombError):
        return CallerError(f"{path}: expected a smaller picture, got one too large: {error}")
    if path.stat().st_size == 0:
        return CallerError(f"{path}: expected a picture, got an empty file; replace or remove it")
    return CallerError(
        f"{path}: expected a readable picture, got {type(error).__name__} on opening it "
        "(damaged, truncated, or of another kind than its name says); replace or remove it"
    )


def _subfolders(folder: Path) -> list[Path]:
    return [entry for entry in entries(folder) if entry.is_dir()]


def _files(folder: Path) -> list[Path]:
    """All files below `folder`, in sorted order; links to folders could go round, and are not
    followed."""
    found: list[Path] = []
    for entry in entries(folder):
        if entry.is_file():
            found.append(entry)
        elif entry.is_dir() and not entry.is_symlink():
            found += _files(entry)
    return found


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def _has_pictures(folder: Path) -> bool:
    return any(_is_picture(entry) for entry in entries(folder))


def _has_class_folders(folder: Path) -> bool:
    return any(_has_pictures(subfolder) for subfolder in _subfolders(folder))


def _is_training_folder(folder: Path) -> bool:
    """True for `train/` with class folders in it; a class that is called train has pictures."""
    return folder.is_dir() and not _has_pictures(folder) and _has_class_folders(folder)
