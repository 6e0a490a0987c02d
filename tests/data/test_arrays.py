"""Arrays of any layout and type: what they become, which notes they leave, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from isotropy.checks import CallerError
from isotropy.data.labelled import (
    LabelledData,
    labelled_from_arrays,
    standard_inputs,
    standard_targets,
)

BYTES = np.arange(2 * 4 * 5 * 3, dtype=np.uint8)

LAYOUTS = {
    "grey": (BYTES[:40].reshape(2, 4, 5), (2, 1, 4, 5), "channel axis added"),
    "channels last": (BYTES.reshape(2, 4, 5, 3), (2, 3, 4, 5), "channels moved from last"),
    "one channel last": (BYTES[:40].reshape(2, 4, 5, 1), (2, 1, 4, 5), "channels moved"),
    "channels first": (BYTES.reshape(2, 3, 4, 5), (2, 3, 4, 5), None),
    "three columns": (BYTES.reshape(2, 3, 4, 5)[..., :3], (2, 3, 4, 3), None),
    "features": (BYTES[:40].reshape(8, 5).astype(float), (8, 5), None),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_layout(case):
    array, shape, note = LAYOUTS[case]
    values, notes = standard_inputs(torch.from_numpy(np.ascontiguousarray(array)))
    assert values.shape == shape and values.dtype == torch.float32
    told = any("channel" in each for each in notes)
    assert told == (note is not None) and (note is None or any(note in each for each in notes))


def test_channels_last_keeps_every_pixel_in_its_place():
    pixels = BYTES.reshape(2, 4, 5, 3)
    values, _ = standard_inputs(torch.from_numpy(pixels))
    assert values[1, 2, 3, 4] == pytest.approx(pixels[1, 3, 4, 2] / 255)


VALUES = {
    "8-bit image": (torch.full((1, 1, 2, 2), 51, dtype=torch.uint8), 0.2, "divided by 255"),
    "float image": (torch.full((1, 1, 2, 2), 51.0), 51.0, None),
    "double image": (torch.full((1, 1, 2, 2), 51.0, dtype=torch.float64), 51.0, None),
    "int64 image": (torch.full((1, 1, 2, 2), 51), 51.0, "torch.int64 kept at their values"),
    "8-bit features": (torch.full((1, 4), 51, dtype=torch.uint8), 51.0, "not scaled"),
    "boolean features": (torch.ones(1, 4, dtype=torch.bool), 1.0, None),
}


@pytest.mark.parametrize("case", VALUES)
def test_values(case):
    tensor, value, note = VALUES[case]
    values, notes = standard_inputs(tensor)
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, torch.full_like(values, value))
    assert (note is None and not notes) or note in notes[0]


LABELS = {
    "uint8": np.array([0, 2, 1], dtype=np.uint8),
    "uint16": np.array([0, 2, 1], dtype=np.uint16),
    "big-endian": np.array([0, 2, 1], dtype=">i4"),
    "reversed view": np.array([1, 2, 0])[::-1],
    "list": [0, 2, 1],
    "column": np.array([[0], [2], [1]]),
    "tensor": torch.tensor([0, 2, 1], dtype=torch.int32),
    "whole floats": np.array([0.0, 2.0, 1.0]),
    "one-hot": np.array([[1, 0, 0], [0, 0, 1], [0, 1, 0]]),
    "one-hot floats": torch.tensor([[1.0, 0, 0], [0, 0, 1], [0, 1, 0]]),
    "one-hot booleans": torch.tensor([[1, 0, 0], [0, 0, 1], [0, 1, 0]], dtype=torch.bool),
    "names": np.array(["ant", "cow", "bee"]),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels_of_every_kind(case):
    values, classes, notes = standard_targets(LABELS[case], what="y")
    assert values.dtype == torch.int64 and values.tolist() == [0, 2, 1]
    assert classes == (("ant", "bee", "cow") if case == "names" else None)
    assert bool(notes) == (
        case in ("whole floats", "one-hot", "one-hot floats", "one-hot booleans")
    )


OUTPUTS = {
    "one output": (np.array([0.5, 1.0, -2.0]), (3, 1)),
    "one column, whole": (np.array([[0.0], [1.0], [7.0]]), (3, 1)),
    "two outputs": (torch.rand(3, 2, dtype=torch.float64), (3, 2)),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_outputs_of_every_kind(case):
    given, shape = OUTPUTS[case]
    values, classes, _ = standard_targets(given, what="y")
    assert values.dtype == torch.float32 and values.shape == shape and classes is None
    np.testing.assert_allclose(values.flatten(), np.asarray(given).flatten(), rtol=1e-6)


X = np.zeros((4, 2))
REFUSED = {
    "complex": (X.astype(complex), [0, 1, 0, 1], "inputs: expected an array of numbers"),
    "complex tensor": (torch.zeros(4, 2, dtype=torch.complex64), [0, 1, 0, 1], "real numbers"),
    "text inputs": (np.array([["a"]] * 4), [0, 1, 0, 1], "inputs: expected an array of numbers"),
    "ragged": ([[1, 2], [3]], [0, 1], "inputs: expected a tensor or an array, got list"),
    "several labels": (X, np.full((4, 2), 3), "targets: expected one class label per example"),
    "cube of targets": (X, np.zeros((4, 2, 2)), r"\(examples,\) or \(examples, outputs\), got"),
    "NaN labels": (X, [0.0, 1.0, np.nan, 1.0], "targets: expected finite.*unlabelled"),
    "objects": (X, np.array([None] * 4), "targets: expected an array of numbers"),
    "grid of names": (X, np.array([["a", "b"]] * 4), "targets: expected one class name per exam"),
    "NaN pixel": (np.full((4, 2), np.nan), [0, 1, 0, 1], "inputs: expected finite numbers"),
    "too large": (np.full((4, 2), 1e300), [0, 1, 0, 1], "inputs: expected finite numbers"),
    "more labels": (X, [0, 1, 0, 1, 0], "5 labels for 4 examples"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_what_is_refused(case):
    inputs, targets, sentence = REFUSED[case]
    with pytest.raises(CallerError, match=sentence) as caught:
        labelled_from_arrays(inputs, targets, name="the culprit")
    assert str(caught.value).startswith("the culprit")


def test_a_test_set_takes_the_classes_of_its_training_set():
    train, _ = labelled_from_arrays(X, ["b", "a", "c", "a"], name="train")
    test, _ = labelled_from_arrays(X[:1], ["c"], name="test", reference=train)
    assert test.classes == ("a", "b", "c") and test.targets.tolist() == [2]
    with pytest.raises(CallerError, match="expected the classes a, b, c, got 'd'"):
        labelled_from_arrays(X[:1], ["d"], name="test", reference=train)


def test_whole_numbers_are_outputs_when_the_training_set_is_a_regression():
    train = LabelledData(torch.zeros(2, 2), torch.tensor([[0.5], [1.5]]), None, "train")
    test, notes = labelled_from_arrays(X, [1.0, 2.0, -3.0, 4.0], name="test", reference=train)
    assert test.targets.tolist() == [[1.0], [2.0], [-3.0], [4.0]] and notes == ()


def test_a_read_only_array_is_copied():
    array = np.zeros((4, 2), dtype=np.float32)
    array.flags.writeable = False
    data, _ = labelled_from_arrays(array, [0, 1, 0, 1], name="data")
    data.inputs[0, 0] = 1
    assert array[0, 0] == 0
