"""Arrays of any layout and number type, brought to the standard form of `LabelledData`.

Inputs become float32: 8-bit images are divided by 255, everything else keeps its values;
`(examples, height, width)` gains a channel axis, `(examples, height, width, channels)` is
turned to `(examples, channels, height, width)`. Targets become class labels int64
`(examples,)` or regression outputs float32 `(examples, outputs)`. Every change that is not
plain from the data is told in a note.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from isotropy.checks import CallerError, check_finite, shape_text
from isotropy.data.labelled import LabelledData

Notes = tuple[str, ...]


class Targets(NamedTuple):
    """Targets in standard form, with the class names they brought (None where they had none)."""

    values: Tensor
    classes: tuple[str, ...] | None
    notes: Notes


def labelled_from_arrays(
    inputs: Any,
    targets: Any,
    *,
    name: str,
    classes: tuple[str, ...] | None = None,
    reference: LabelledData | None = None,
) -> tuple[LabelledData, Notes]:
    """Data from tensors or arrays, and notes on what was changed.

    inputs: `(examples, features...)`; see the top of this file for images.
    targets: integer, boolean or whole-number labels `(examples,)` or `(examples, 1)`, one-hot
        rows, class names (strings), or floating-point outputs `(examples,)` or
        `(examples, outputs)`.
    classes: class names, where they are known beforehand.
    reference: the training data that a test set belongs to; its classes, or its being a
        regression, are taken over.

    Raises `CallerError` for anything else, and as `LabelledData` does.
    """
    if classes is None and reference is not None:
        classes = reference.classes
    values, input_notes = standard_inputs(tensor_from(inputs, what=f"{name}, inputs"))
    standard = standard_targets(
        targets,
        what=f"{name}, targets",
        names=classes,
        regression=reference is not None and not reference.is_classification,
    )
    labels, brought = standard.values, standard.classes
    if brought is None and not labels.is_floating_point():
        brought = classes
    data = LabelledData(inputs=values, targets=labels, classes=brought, name=name)
    return data, input_notes + standard.notes


def tensor_from(values: Any, *, what: str) -> Tensor:
    """A tensor with the numbers of `values`; raises `CallerError` for text, objects, complex."""
    if isinstance(values, Tensor):
        tensor = values.detach()
        if tensor.is_complex():
            raise CallerError(f"{what}: expected real numbers, got {tensor.dtype}; take .real")
        return tensor
    array = _array_from(values, what)
    if array.dtype.kind not in "buif":
        raise CallerError(
            f"{what}: expected an array of numbers, got one of type {array.dtype}; "
            "convert it to float32 or uint8"
        )
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    elif array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    # torch takes neither foreign byte order nor negative strides; a read-only array is copied,
    # so that nobody writes through the tensor into it.
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def standard_inputs(values: Tensor) -> tuple[Tensor, Notes]:
    """Inputs as float32, images as `(examples, channels, height, width)`, with notes."""
    notes: list[str] = []
    before = shape_text(values)
    if values.ndim == 3:
        values = values[:, None]
        notes.append(
            f"channel axis added: {before} read as grey images {shape_text(values)}; "
            "hand data that are no images over as LabelledData, which is taken as it is"
        )
    elif values.ndim == 4 and values.shape[3] in (1, 3) and values.shape[1] not in (1, 3):
        values = values.permute(0, 3, 1, 2).contiguous()
        notes.append(f"channels moved from last to second: {before} became {shape_text(values)}")
    if values.dtype == torch.uint8 and values.ndim == 4:
        notes.append("8-bit images divided by 255, to lie between 0 and 1")
        return values.to(torch.float32).div_(255), tuple(notes)
    if not values.is_floating_point() and values.dtype != torch.bool:
        notes.append(f"inputs of type {values.dtype} kept at their values, not scaled")
    return values.to(torch.float32), tuple(notes)


def normalised(images: Tensor, mean: Sequence[float], deviation: Sequence[float]) -> Tensor:
    """(images − mean) / deviation for images `(examples, channels, height, width)`, by channel."""
    centre, scale = (images.new_tensor(each)[:, None, None] for each in (mean, deviation))
    return (images - centre).div_(scale)


def standard_targets(
    values: Any, *, what: str, names: tuple[str, ...] | None = None, regression: bool = False
) -> Targets:
    """Targets as class labels or regression outputs; which of the two, their values tell.

    names: known class names, in label order, to number text labels by; otherwise text labels
        are numbered in sorted order.
    regression: True where it is known beforehand that targets are outputs, whole or not.
    """
    if not isinstance(values, Tensor):
        values = _array_from(values, what)
        if values.dtype.kind == "U":
            return _named_labels(values, what, names)
    tensor = tensor_from(values, what=what)
    if tensor.ndim not in (1, 2):
        raise CallerError(
            f"{what}: expected (examples,) or (examples, outputs), got {shape_text(tensor)}; "
            "give one label or one row of outputs per example"
        )
    if tensor.is_floating_point():
        check_finite(tensor, what=what, advice="leave unlabelled examples out")
    if regression:
        return Targets(_outputs(tensor), None, ())
    if _is_one_hot(tensor):
        labels = tensor.to(torch.int64).argmax(dim=1)
        return Targets(labels, None, ("one-hot targets read as class labels",))
    if not tensor.is_floating_point():
        if tensor.ndim == 2 and tensor.shape[1] != 1:
            raise CallerError(
                f"{what}: expected one class label per example, got {shape_text(tensor)} of type "
                f"{tensor.dtype}; for regression convert them to float"
            )
        return Targets(tensor.reshape(-1).to(torch.int64), None, ())
    if tensor.ndim == 1 and bool((tensor == tensor.round()).all()):
        note = (
            f"whole-number targets of type {tensor.dtype} read as class labels; "
            "for regression give them as (examples, 1)"
        )
        return Targets(tensor.to(torch.int64), None, (note,))
    return Targets(_outputs(tensor), None, ())


def _array_from(values: Any, what: str) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(values)
    except (ValueError, TypeError) as error:
        raise CallerError(
            f"{what}: expected a tensor or an array, got {type(values).__name__} ({error}); "
            "convert it with torch.as_tensor"
        ) from None


def _outputs(tensor: Tensor) -> Tensor:
    """Regression targets float32 `(examples, outputs)`."""
    return (tensor[:, None] if tensor.ndim == 1 else tensor).to(torch.float32)


def _is_one_hot(tensor: Tensor) -> bool:
    """Rows of zeros with a single one, in two columns or more."""
    if tensor.ndim != 2 or tensor.shape[1] < 2 or len(tensor) == 0:
        return False
    binary = ((tensor == 0) | (tensor == 1)).all()
    return bool(binary and (tensor.sum(dim=1) == 1).all())


def _named_labels(
    values: np.ndarray[Any, Any], what: str, names: tuple[str, ...] | None
) -> Targets:
    """Text labels `(examples,)`, numbered by `names` or in sorted order."""
    if values.ndim != 1:
        raise CallerError(
            f"{what}: expected one class name per example, got an array of shape {values.shape}; "
            "give them as (examples,)"
        )
    if names is None:
        names = tuple(str(name) for name in np.unique(values))
    numbers = {name: number for number, name in enumerate(names)}
    unknown = sorted({str(name) for name in values} - set(numbers))
    if unknown:
        raise CallerError(
            f"{what}: expected the classes {', '.join(names)}, got {unknown[0]!r}; "
            "use the class names of the training data"
        )
    return Targets(torch.tensor([numbers[str(name)] for name in values]), names, ())
