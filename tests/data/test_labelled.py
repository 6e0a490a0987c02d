"""LabelledData and Split: what is refused, and that subsets and hold-outs are determined."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from isotropy.checks import CallerError
from isotropy.data.labelled import LabelledData, check_two_labels, hold_out


def numbered(count: int = 20, num_classes: int = 4) -> LabelledData:
    """Example i holds the number i, so that examples can be told apart."""
    inputs = torch.arange(count, dtype=torch.float32)[:, None]
    return LabelledData(inputs, torch.arange(count) % num_classes, None, "numbers")


def members(data: LabelledData) -> list[int]:
    return [int(value) for value in data.inputs[:, 0]]


X, Y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
NOT_A_NUMBER = torch.tensor([[0.0, float("nan")], [0, 0], [0, 0], [float("inf"), 0]])

MISTAKES = {
    "more labels": (X, torch.zeros(5, dtype=torch.int64), None, "more labels than examples: 5 lab"),
    "fewer labels": (X, Y[:3], None, "more examples than labels: 3 labels for 4 examples"),
    "no examples": (X[:0], Y[:0], None, "number of examples: expected at least 1, got 0"),
    "no features": (X[:, :0], Y, None, r"at least one number per example, got \(4, 0\)"),
    "no feature axis": (X[:, 0], Y, None, r"\(examples, features...\)"),
    "scalar targets": (X, torch.tensor(1), None, "put the examples on the first axis"),
    "integer inputs": (X.long(), Y, None, "floating-point inputs, got torch.int64"),
    "not finite": (NOT_A_NUMBER, Y, None, r"got 2 that are NaN.*first at index \(0, 1\)"),
    "negative label": (X, Y - 1, None, "labels from 0 up, got -1 at index 0"),
    "label too high": (X, Y + 1, ("a", "b"), r"labels 0 to 1 \(2 classes\), got 2 at index 1"),
    "label absurd": (X, Y * 2019, None, "got 2019 with only 4 examples; renumber"),
    "one class": (X, Y * 0, None, "at least two classes, got 1"),
    "one class name": (X, Y * 0, ("a",), "at least two classes, got 1"),
    "int32 labels": (X, Y.int(), None, "int64 labels, got torch.int32"),
    "label rows": (X, Y[:, None], None, r"labels \(examples,\), got \(4, 1\)"),
    "flat outputs": (X, X[:, 0], None, r"\(examples, outputs\), got \(4\).*targets\[:, None\]"),
    "named outputs": (X, X, ("a", "b"), "no class names beside floating-point targets"),
    "NaN output": (X, NOT_A_NUMBER, None, "targets: expected finite.*unlabelled"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_gives_one_sentence_with_the_name(case):
    inputs, targets, classes, sentence = MISTAKES[case]
    with pytest.raises(CallerError, match=sentence) as caught:
        LabelledData(inputs, targets, classes, "the culprit")
    assert str(caught.value).startswith("the culprit") and "\n" not in str(caught.value)


def test_classes_are_numbered_where_no_names_come():
    data = numbered(num_classes=4)
    assert data.classes == ("0", "1", "2", "3") and data.num_classes == 4 and len(data) == 20
    assert data.subset(1, seed=0).num_classes == 4


def test_regression_has_outputs_and_no_classes():
    data = LabelledData(X, torch.randn(4, 3), None, "outputs")
    assert not data.is_classification and data.classes is None
    check_two_labels(data)
    with pytest.raises(CallerError, match="outputs: expected class labels, got regression"):
        _ = data.num_classes


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_no_bad_number_hides_among_many(bad):
    inputs = torch.rand(1000, 50)
    inputs[123, 45], inputs[7, 7] = bad, -bad
    with pytest.raises(CallerError, match=r"got 2 that are NaN .* first at index \(7, 7\)"):
        LabelledData(inputs, torch.arange(1000) % 2, None, "many")


def test_large_numbers_are_no_mistake():
    inputs = torch.full((4, 2), 3e38)  # finite, but their sum is not
    assert len(LabelledData(inputs, Y, None, "large")) == 4


def test_data_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        numbered().name = "other"  # type: ignore[misc]


def test_subset_is_the_head_of_one_permutation():
    data = numbered()
    small, large = members(data.subset(5, seed=3)), members(data.subset(12, seed=3))
    assert large[:5] == small and len(set(large)) == 12
    assert members(data.subset(12, seed=4)) != large
    assert sorted(members(data.subset(20, seed=3))) == list(range(20))
    order = torch.randperm(20, generator=torch.Generator().manual_seed(3))
    assert small == order[:5].tolist()


def test_inputs_and_targets_stay_together():
    part = numbered(num_classes=4).subset(10, seed=0)
    assert part.targets.tolist() == [number % 4 for number in members(part)]


@pytest.mark.parametrize("seed", [-1, 2**63, 2**70])
def test_subset_by_an_impossible_seed(seed):
    with pytest.raises(CallerError, match="seed: expected a number from 0"):
        numbered().subset(2, seed)


@pytest.mark.parametrize("count", [-1, 0, 21])
def test_subset_of_an_impossible_size(count):
    with pytest.raises(CallerError, match=f"1 to 20 examples, got {count}"):
        numbered().subset(count, seed=0)


def test_hold_out_splits_by_seed():
    data = numbered()
    first, again, other = hold_out(data), hold_out(data), hold_out(data, seed=1)
    assert members(first.test) == members(again.test) != members(other.test)
    assert len(first.test) == 4
    assert sorted(members(first.train) + members(first.test)) == list(range(20))
    alike = "of every class alike; learning never sees them"
    assert first.notes == (f"20 % (4 examples) held out by seed 0, {alike}",)


@pytest.mark.parametrize(
    "sizes, fraction, held_out",
    [
        ((60, 3), 0.2, [12, 1]),
        ((5, 5, 5), 0.2, [1, 1, 1]),
        ((90, 9, 1), 0.1, [9, 1, 0]),
        ((2, 2), 0.9, [1, 1]),
        ((7, 1), 0.5, [4, 0]),
    ],
)
def test_classes_are_held_out_in_proportion(sizes, fraction, held_out):
    labels = torch.cat([torch.full((size,), label) for label, size in enumerate(sizes)])
    inputs = torch.arange(len(labels), dtype=torch.float32)[:, None]
    classes = tuple(map(str, range(len(sizes))))
    data = LabelledData(inputs, labels, classes, name="uneven")
    drawn = set()
    for seed in range(5):
        split = hold_out(data, fraction, seed)
        assert split.test.targets.bincount(minlength=len(sizes)).tolist() == held_out
        assert len(split.train) + len(split.test) == len(labels)
        assert not set(members(split.train)) & set(members(split.test))
        drawn.add(tuple(members(split.test)))
    assert len(drawn) > 1


def test_the_hold_out_of_a_regression_is_of_all_examples():
    data = LabelledData(torch.arange(20.0)[:, None], torch.rand(20, 1), None, name="numbers")
    split = hold_out(data, 0.25)
    assert len(split.test) == 5 and "alike" not in split.notes[0]


def test_classes_of_one_example_each_can_still_be_split():
    data = LabelledData(torch.arange(4.0)[:, None], torch.arange(4), tuple("abcd"), name="single")
    assert len(hold_out(data, 0.5).test) == 2


@pytest.mark.parametrize("fraction, count", [(0.001, 1), (0.5, 10), (0.999, 16)])
def test_hold_out_leaves_something_on_both_sides(fraction, count):
    split = hold_out(numbered(), fraction)
    assert (len(split.train), len(split.test)) == (20 - count, count)


@pytest.mark.parametrize("fraction", [0, 1, -0.2, float("nan")])
def test_hold_out_of_an_impossible_fraction(fraction):
    with pytest.raises(CallerError, match="between 0 and 1"):
        hold_out(numbered(), fraction)


def test_one_example_cannot_be_split():
    with pytest.raises(CallerError, match="at least 2 examples"):
        hold_out(numbered().subset(1, seed=0))


def test_training_on_one_label_is_refused():
    with pytest.raises(CallerError, match="at least two classes, got 5 of class '2' only"):
        check_two_labels(numbered().take(torch.arange(2, 20, 4)))
