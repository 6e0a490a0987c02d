"""Labelled data: inputs and targets of the same length, and how arrays of any layout become them.

`LabelledData` is checked once, when it is put together:

    classification   targets int64 (examples,), each in 0..C−1, and C class names
    regression       targets float32 (examples, outputs), and no class names
    images           inputs float32 (examples, channels, height, width)
    anything else    inputs float32 (examples, features...)

A table has names for its columns, and numbers that `standardised` brought to mean 0 and standard
deviation 1 by those of the training data; `Scaling` keeps which.

float64 is accepted too, for comparisons that need it. `labelled_from_arrays` brings other arrays to
this form: 8-bit images are divided by 255, everything else keeps its values; (examples, height,
width) gains a channel axis, (examples, height, width, channels) is turned to (examples, channels,
height, width); labels of any kind are numbered. Every change that is not plain from the data is
told in a note.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from isotropy.checks import CallerError, check_at_least, check_finite, shape_text


@dataclass(frozen=True)
class Scaling:
    """z = (x − mean) / deviation for every column of a table, by the training data.

    A column that is constant there has deviation 1. target_…: of every output; None for classes.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    target_mean: tuple[float, ...] | None = None
    target_deviation: tuple[float, ...] | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class LabelledData:
    """Examples with their targets; no instance exists that did not pass `check`.

    inputs: float32 `(examples, channels, height, width)` or `(examples, features...)`.
    targets: int64 `(examples,)` for classes, float32 `(examples, outputs)` for regression.
    classes: class names in the order of their labels; None for regression. Where labels come
        without names, the names "0", "1", … up to the largest label are put in, so that a
        subset without the last class still knows how many classes there are.
    name: how sentences and reports call this data.
    columns: of a table `(examples, columns)`, what its columns are called; else None.
    scaling: how columns and outputs were standardised; None where they keep their values.

    Raises `CallerError` as `check` does.
    """

    inputs: Tensor
    targets: Tensor
    classes: tuple[str, ...] | None
    name: str
    columns: tuple[str, ...] | None = None
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        check(self)
        if self.classes is None and self.is_classification:
            names = tuple(str(label) for label in range(int(self.targets.max()) + 1))
            object.__setattr__(self, "classes", names)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def num_outputs(self) -> int:
        """What a network for this data must put out: one logit a class, or the targets."""
        return self.num_classes if self.is_classification else int(self.targets.shape[1])

    @property
    def is_classification(self) -> bool:
        """True when targets are class labels, False when they are regression outputs."""
        return not self.targets.is_floating_point()

    @property
    def is_images(self) -> bool:
        """True when inputs are `(examples, channels, height, width)`."""
        return self.inputs.ndim == 4

    @property
    def num_classes(self) -> int:
        """C, the number of classes; raises `CallerError` for regression."""
        if self.classes is None:
            raise CallerError(
                f"{self.name}: expected class labels, got regression targets "
                f"{shape_text(self.targets)}; a regression has outputs and no classes"
            )
        return len(self.classes)

    def take(self, indices: Tensor) -> LabelledData:
        """The examples at `indices` (int64, `(count,)`), in that order."""
        return replace(self, inputs=self.inputs[indices], targets=self.targets[indices])

    def mapped(self, change: Callable[[Tensor], Tensor]) -> LabelledData:
        """With inputs (examples, …) changed one by one."""
        return replace(self, inputs=change(self.inputs))

    def subset(self, count: int, seed: int) -> LabelledData:
        """`count` examples drawn uniformly without replacement.

        The first `count` of one random permutation, so with the same `seed` a smaller subset
        lies inside a larger one. Raises `CallerError` unless 1 ≤ count ≤ len(self).
        """
        if not 1 <= count <= len(self):
            raise CallerError(
                f"{self.name}: expected a subset of 1 to {len(self)} examples, got {count}; "
                f"ask for at most {len(self)}"
            )
        return self.take(random_order(len(self), seed)[:count])

    def without_subset(self, count: int, seed: int) -> LabelledData:
        """The examples that `subset(count, seed)` leaves, in random order; at least one."""
        if not 0 <= count < len(self):
            raise CallerError(
                f"{self.name}: expected to leave out 0 to {len(self) - 1} examples, got {count}"
            )
        return self.take(random_order(len(self), seed)[count:])


@dataclass(frozen=True, eq=False)
class Split:
    """Training and test data, and what was done to get them.

    notes: sentences to announce to the user (resized, held out 20 %, …), in the order in which
        things were done.
    """

    train: LabelledData
    test: LabelledData | None
    notes: tuple[str, ...] = ()


def check(data: LabelledData) -> None:
    """Raise `CallerError` unless inputs and targets make a data set.

    Checked: as many targets as inputs, at least one example, floating-point and finite inputs,
    and targets that are either finite outputs `(examples, outputs)` or integer labels in 0..C−1
    with C ≥ 2. Where no class names are given, C is the largest label plus one, and must not
    exceed the number of examples (labels such as 2019 are numbers of something else).
    """
    name, inputs, targets = data.name, data.inputs, data.targets
    if inputs.ndim < 2 or targets.ndim < 1:
        raise CallerError(
            f"{name}: expected inputs (examples, features...) with targets (examples,), got "
            f"{shape_text(inputs)} with {shape_text(targets)}; put the examples on the first axis"
        )
    _check_lengths(name, len(inputs), len(targets))
    if inputs.numel() == 0:
        raise CallerError(
            f"{name}: expected at least one number per example, got {shape_text(inputs)}; "
            "leave no axis of size 0"
        )
    if not inputs.is_floating_point():
        raise CallerError(
            f"{name}: expected floating-point inputs, got {inputs.dtype}; "
            "convert with inputs.float()"
        )
    # A NaN or infinity always reaches the sum, which is far cheaper than looking at each number;
    # a sum that merely overflowed passes the second, exact check.
    if not bool(inputs.sum().isfinite()):
        advice = "replace them or leave these examples out"
        check_finite(inputs, what=f"{name}, inputs", advice=advice)
    if targets.is_floating_point():
        _check_outputs(data)
    else:
        _check_labels(data)


def check_two_labels(data: LabelledData) -> None:
    """Raise `CallerError` if all examples of a classification carry the same label."""
    if data.classes is None:
        return
    present = data.targets.unique()
    if len(present) < 2:
        raise CallerError(
            f"{data.name}: expected training examples of at least two classes, got "
            f"{len(data)} of class {data.classes[int(present[0])]!r} only; "
            "add examples of another class"
        )


def hold_out(data: LabelledData, fraction: float = 0.2, seed: int = 0) -> Split:
    """Set a random `fraction` of the examples aside for testing, of every class alike.

    The test part has round(fraction · examples) examples, at least one and never all, drawn with
    `seed`; both parts keep the order of `data`. Classes are held out in proportion: each gives
    fraction · its examples, rounded down, and those whose remainder is largest one more. Every
    class keeps an example for training, unless each has only one.
    Raises `CallerError` unless 0 < fraction < 1 and there are two examples to split.
    """
    if not 0 < fraction < 1:
        raise CallerError(
            f"held-out fraction: expected a number between 0 and 1, got {fraction:g}; "
            "0.2 holds out 20 %"
        )
    if len(data) < 2:
        raise CallerError(
            f"{data.name}: expected at least 2 examples to hold some out, got 1; "
            "give a test set of its own"
        )
    count = min(max(round(fraction * len(data)), 1), len(data) - 1)
    order = random_order(len(data), seed)
    chosen = order[:count]
    if data.is_classification:
        chosen = class_shares(data.targets[order], order, count)
        count = len(chosen)
    is_test = torch.zeros(len(data), dtype=torch.bool)
    is_test[chosen] = True
    train = data.take((~is_test).nonzero()[:, 0])
    test = replace(data.take(is_test.nonzero()[:, 0]), name=f"{data.name} (held out)")
    alike = ", of every class alike" if data.is_classification else ""
    note = (
        f"{100 * fraction:g} % ({count} example{'s' if count > 1 else ''}) held out by seed "
        f"{seed}{alike}; learning never sees them"
    )
    return Split(train=train, test=test, notes=(note,))


def class_shares(labels: Tensor, order: Tensor, count: int) -> Tensor:
    """`count` entries of `order`, a random order with these `labels`: the first of each class."""
    sizes = labels.bincount()
    most = (sizes - 1).clamp_min(0)
    if not most.any():
        return order[:count]
    count = min(count, int(most.sum()))
    wanted = sizes * (count / len(labels))
    shares = torch.minimum(wanted.floor().long(), most)
    while int(shares.sum()) < count:
        remainders = torch.where(shares < most, wanted - shares, -torch.inf)
        shares[int(remainders.argmax())] += 1
    parts = [order[labels == each][: int(share)] for each, share in enumerate(shares)]
    return torch.cat(parts)


def standardised(split: Split) -> Split:
    """A table with every column, and every output, at mean 0 and deviation 1 in training.

    The numbers are those of the training part, so that nothing is learned of the test part.
    """
    train = split.train
    mean, deviation = _moments(train.inputs)
    targets = None if train.is_classification else _moments(train.targets)
    scaling = Scaling(
        _floats(mean),
        _floats(deviation),
        None if targets is None else _floats(targets[0]),
        None if targets is None else _floats(targets[1]),
    )

    def scaled(data: LabelledData) -> LabelledData:
        outputs = data.targets if targets is None else _scaled(data.targets, *targets)
        inputs = _scaled(data.inputs, mean, deviation)
        return replace(data, inputs=inputs, targets=outputs, scaling=scaling)

    what = "columns" if targets is None else "columns and target"
    note = (
        f"{what} standardised to mean 0 and standard deviation 1 by the training examples; scores "
        "are in the target's own unit"
    )
    if targets is None:
        note = note.partition(";")[0]
    test = None if split.test is None else scaled(split.test)
    return Split(train=scaled(train), test=test, notes=(*split.notes, note))


def _moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column, float64 `(columns,)`; 1 for a constant one."""
    mean = values.double().mean(0)
    deviation = (values.double() - mean).square().mean(0).sqrt()
    # Rounding leaves a constant column a deviation of its last bits.
    is_constant = deviation <= 1e-9 * values.double().abs().amax(0)
    return mean, torch.where(is_constant, 1.0, deviation)


def _scaled(values: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    return ((values.double() - mean) / deviation).to(values.dtype)


def _floats(values: Tensor) -> tuple[float, ...]:
    return tuple(values.tolist())


def random_order(count: int, seed: int) -> Tensor:
    """A uniformly random order of `count` examples, int64 `(count,)`."""
    if not 0 <= seed < 2**63:
        raise CallerError(f"seed: expected a number from 0 and below 2^63, got {seed}")
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def _check_lengths(name: str, num_inputs: int, num_targets: int) -> None:
    if num_inputs != num_targets:
        more, fewer = ("labels", "examples") if num_targets > num_inputs else ("examples", "labels")
        raise CallerError(
            f"{name}: expected one label per example, got more {more} than {fewer}: "
            f"{num_targets} labels for {num_inputs} examples; "
            "check that both come from the same set"
        )
    check_at_least(num_inputs, 1, what=f"{name}, number of examples")


def _check_outputs(data: LabelledData) -> None:
    name, targets = data.name, data.targets
    if targets.ndim != 2 or targets.shape[1] == 0:
        raise CallerError(
            f"{name}: expected regression targets (examples, outputs), got "
            f"{shape_text(targets)}; for one output write targets[:, None]"
        )
    if data.classes is not None:
        raise CallerError(
            f"{name}: expected no class names beside floating-point targets, got "
            f"{len(data.classes)}; pass classes=None for regression or targets.long() for classes"
        )
    check_finite(targets, what=f"{name}, targets", advice="leave unlabelled examples out")


def _check_labels(data: LabelledData) -> None:
    name, targets, classes = data.name, data.targets, data.classes
    if targets.dtype != torch.int64:
        raise CallerError(
            f"{name}: expected int64 labels, got {targets.dtype}; convert with targets.long()"
        )
    if targets.ndim != 1:
        raise CallerError(
            f"{name}: expected labels (examples,), got {shape_text(targets)}; "
            "give one class number per example"
        )
    lowest, highest = int(targets.min()), int(targets.max())
    if lowest < 0:
        raise CallerError(
            f"{name}: expected labels from 0 up, got {lowest} at index {int(targets.argmin())}; "
            "leave unlabelled examples out, or renumber the classes"
        )
    if classes is None and highest >= 2 and highest >= len(targets):
        raise CallerError(
            f"{name}: expected labels 0 to C−1, got {highest} with only {len(targets)} examples; "
            "renumber them with numpy.unique(labels, return_inverse=True)"
        )
    num_classes = highest + 1 if classes is None else len(classes)
    if num_classes < 2:
        raise CallerError(
            f"{name}: expected at least two classes, got {num_classes}; "
            "with one class there is nothing to learn"
        )
    if highest >= num_classes:
        raise CallerError(
            f"{name}: expected labels 0 to {num_classes - 1} ({num_classes} classes), got "
            f"{highest} at index {int(targets.argmax())}; correct the label or add the class"
        )


# --- from arrays --------------------------------------------------------------------------

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
    layout: Layout = "auto",
    reference: LabelledData | None = None,
) -> tuple[LabelledData, Notes]:
    """Data from tensors or arrays, and notes on what was changed.

    inputs: `(examples, features...)`; see the top of this file for images.
    targets: integer, boolean or whole-number labels `(examples,)` or `(examples, 1)`, one-hot
        rows, class names (strings), or floating-point outputs `(examples,)` or
        `(examples, outputs)`.
    classes: class names, where they are known beforehand.
    layout: what inputs are, as in `standard_inputs`.
    reference: the training data that a test set belongs to; its classes, or its being a
        regression, are taken over.

    Raises `CallerError` for anything else, and as `LabelledData` does.
    """
    if classes is None and reference is not None:
        classes = reference.classes
    values, input_notes = standard_inputs(tensor_from(inputs, what=f"{name}, inputs"), layout)
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
        if array.dtype.itemsize == 8 and array.size and array.max() >= 2**63:
            raise CallerError(
                f"{what}: expected whole numbers below 2^63, got {array.max()}; convert it to "
                "float64"
            )
        array = array.astype(np.int64)
    elif array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    # torch takes neither foreign byte order nor negative strides; a read-only array is copied,
    # so that nobody writes through the tensor into it.
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    return torch.from_numpy(array if array.flags.writeable else array.copy())


CHANNEL_ADDED = "channel axis added"
"""How the note begins that inputs of three axes were read as images."""
Layout = Literal["auto", "images", "sequences", "clouds"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)


def standard_inputs(values: Tensor, layout: Layout = "auto") -> tuple[Tensor, Notes]:
    """Inputs as float32, images as `(examples, channels, height, width)`, with notes.

    layout: what inputs of three axes are: grey images, which gain a channel axis (auto takes them
        for these), sequences `(examples, channels, length)` or clouds `(examples, points,
        dimensions)`, which stay as they are. Sequences of two axes have one channel.
    """
    notes: list[str] = []
    before = shape_text(values)
    if layout in ("sequences", "clouds"):
        axes = {"sequences": "channels, length", "clouds": "points, dimensions"}[layout]
        if layout == "sequences" and values.ndim == 2:
            values = values[:, None]
            notes.append(f"one channel: {before} became {shape_text(values)}")
        if values.ndim != 3:
            raise CallerError(
                f"{layout}: expected (examples, {axes}), got {before}; name another layout"
            )
        return values.to(torch.float32), tuple(notes)
    if values.ndim == 3:
        values = values[:, None]
        notes.append(
            f"{CHANNEL_ADDED}: {before} read as grey images {shape_text(values)}; "
            "layout (--layout) says that they are sequences or clouds of points"
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
