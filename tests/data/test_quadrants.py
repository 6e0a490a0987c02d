"""Quadrants: where images are put, how the canvas shrinks, and which labels come out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage

from isotropy.checks import CallerError
from isotropy.data.image_folder import resized
from isotropy.data.labelled import LabelledData, Split
from isotropy.data.readers import digits
from isotropy.data.variants import (
    QUADRANTS,
    TASKS,
    draw_quadrants,
    quadrants,
    standardised,
    vary,
)

CORNERS = {"upper left": (0, 0), "upper right": (0, 1), "lower left": (1, 0), "lower right": (1, 1)}


def pictures(count: int = 24, side: int = 6, channels: int = 2) -> LabelledData:
    """Random images without a black pixel, float64, in three classes."""
    random = np.random.default_rng(count)
    images = torch.from_numpy(random.uniform(0.1, 1, (count, channels, side, side)))
    return LabelledData(images, torch.arange(count) % 3, ("a", "b", "c"), f"{count} pictures")


def both(**options: int) -> Split:
    return Split(train=pictures(24, **options), test=pictures(15, **options), notes=("before",))


def resampled(images: torch.Tensor, size: int) -> np.ndarray:
    """Bilinear without antialiasing, one plane at a time."""
    places = (np.arange(size) + 0.5) * images.shape[2] / size - 0.5
    grid = np.stack(np.meshgrid(places, places, indexing="ij"))
    planes = images.flatten(0, 1).double().numpy()
    found = [ndimage.map_coordinates(each, grid, order=1, mode="nearest") for each in planes]
    return np.stack(found).reshape(*images.shape[:2], size, size)


@pytest.mark.parametrize("side", [6, 7])
def test_an_image_lies_in_its_quadrant_and_the_rest_is_black(side):
    split = both(side=side)
    placed = quadrants(split, "digit-quadrant", size=2 * side)
    for before, after in ((split.train, placed.train), (split.test, placed.test)):
        assert after.inputs.shape == (len(before), 2, 2 * side, 2 * side)
        for image, canvas, label, target in zip(
            before.inputs, after.inputs, before.targets, after.targets, strict=True
        ):
            name, corner = after.classes[int(target)].split(", ")
            assert name == before.classes[int(label)]
            row, column = (side * each for each in CORNERS[corner])
            expected = torch.zeros_like(canvas)
            expected[:, row : row + side, column : column + side] = image
            assert torch.equal(canvas, expected)


@pytest.mark.parametrize(("side", "size"), [(28, 32), (6, 7), (5, 16)])
def test_the_canvas_is_resampled_as_scipy_does_it(side, size):
    """Pixel i of the result is at (i + ½) · 2 side / size − ½; no blur before shrinking."""
    split = both(side=side, channels=1)
    whole = quadrants(split, "digit", size=2 * side).test.inputs
    result = quadrants(split, "digit", size=size).test.inputs
    np.testing.assert_allclose(result, resampled(whole, size), atol=1e-12)


def test_both_tasks_share_their_images_and_the_digit_can_be_read_off():
    split = both()
    plain, located = (quadrants(split, task, size=8) for task in TASKS)
    for part in ("train", "test"):
        data, other = getattr(plain, part), getattr(located, part)
        assert torch.equal(data.inputs, other.inputs)
        assert torch.equal(data.targets, getattr(split, part).targets)
        assert torch.equal(other.targets % 3, data.targets)
        assert data.classes == ("a", "b", "c") and other.num_classes == 12
        assert data.name == other.name == f"{len(data)} pictures, in quadrants"
    assert located.train.classes[3 * 2 + 1] == "b, lower left"


def test_quadrants_are_uniform_and_follow_from_the_seed():
    drawn = draw_quadrants(40_000, seed=3)
    shares = drawn.bincount(minlength=4).double() / 40_000
    assert len(shares) == len(QUADRANTS)
    assert float((shares - 0.25).abs().max()) < 5 * (0.25 * 0.75 / 40_000) ** 0.5
    assert torch.equal(drawn, draw_quadrants(40_000, seed=3))
    assert not torch.equal(drawn, draw_quadrants(40_000, seed=4))


def test_training_and_test_images_have_seeds_of_their_own():
    split = both()
    for seed in (1000, 5):
        located = quadrants(split, "digit-quadrant", seed=seed)
        assert torch.equal(located.train.targets // 3, draw_quadrants(24, seed=seed + 1))
        assert torch.equal(located.test.targets // 3, draw_quadrants(15, seed=seed))
        assert f"seed {seed + 1} for training, {seed} for test" in located.notes[1]
    default = quadrants(split, "digit-quadrant")
    assert torch.equal(default.train.targets // 3, draw_quadrants(24, seed=1001))


def test_notes_say_what_was_done():
    split = both()
    assert quadrants(split, "digit").notes[0] == "before"
    assert "12 × 12 pixels, brought to 32 × 32 (bilinear)" in quadrants(split, "digit").notes[1]
    assert "brought" not in quadrants(split, "digit", size=12).notes[1]
    assert quadrants(split, "digit").notes[1].endswith("the class alone")
    assert quadrants(split, "digit-quadrant").notes[1].endswith("class and quadrant")


def test_chunks_leave_no_trace(monkeypatch):
    whole = quadrants(both(), "digit", size=8)
    monkeypatch.setattr("isotropy.data.variants.CHUNK_SIZE", 7)
    parts = quadrants(both(), "digit", size=8)
    torch.testing.assert_close(parts.train.inputs, whole.train.inputs)


def test_the_embedded_digits():
    """40 classes, all present; most ink of every image in the quadrant that its label names."""
    split = quadrants(digits(), "digit-quadrant")
    assert split.train.inputs.shape == (2000, 1, 32, 32)
    assert split.train.inputs.dtype == torch.float32
    assert split.test.num_classes == 40 and split.train.classes[3] == "3, upper left"
    assert int(split.train.targets.bincount().min()) > 0
    for data in (split.train, split.test):
        ink = data.inputs.unflatten(2, (2, 16)).unflatten(4, (2, 16)).sum((1, 3, 5)).flatten(1)
        assert torch.equal(ink.argmax(1), data.targets // 10)


def test_quadrants_differ_by_a_translation_of_the_torus():
    """What a strictly equivariant network cannot tell apart is the same to the last bit."""
    train = digits().train
    first = quadrants(Split(train, None), "digit-quadrant", seed=0).train
    other = quadrants(Split(train, None), "digit-quadrant", seed=1).train
    here, there = first.targets // 10, other.targets // 10
    assert 0.2 < float((here == there).double().mean()) < 0.3
    for image, moved, start, end in zip(first.inputs, other.inputs, here, there, strict=True):
        shifts = 16 * int(end // 2 - start // 2), 16 * int(end % 2 - start % 2)
        assert torch.equal(image.roll(shifts, (1, 2)), moved)


def test_no_test_set_stays_none():
    only = Split(train=pictures(), test=None)
    assert quadrants(only, "digit").test is None
    assert standardised(Split(train=pictures(channels=1), test=None)).test is None


WIDE = LabelledData(torch.rand(4, 1, 6, 8), torch.tensor([0, 1, 0, 1]), None, "wide")
FEATURES = LabelledData(torch.rand(4, 6), torch.tensor([0, 1, 0, 1]), None, "features")
OUTPUTS = LabelledData(torch.rand(4, 1, 6, 6), torch.rand(4, 1), None, "outputs")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (WIDE, r"wide: expected square images .* got \(4, 1, 6, 8\); resize"),
        (FEATURES, r"features: expected square images .* got \(4, 6\)"),
        (OUTPUTS, r"outputs: expected class labels .* regression targets \(4, 1\)"),
    ],
)
def test_data_without_quadrants_are_refused(data, sentence):
    with pytest.raises(CallerError, match=sentence):
        quadrants(Split(train=data, test=None), "digit")


def test_an_unknown_task_and_an_empty_canvas_are_refused():
    with pytest.raises(CallerError, match="unknown task 'digit-quadrants': .* 'digit-quadrant'?"):
        quadrants(both(), "digit-quadrants")
    with pytest.raises(CallerError, match="size of the canvas, in pixels: expected at least 2"):
        quadrants(both(), "digit", size=1)


# -- resized and standardised -------------------------------------------------------------------


def test_growing_is_bilinear_and_needs_no_antialiasing():
    split = both(side=28)
    result = resized(split, 32)
    np.testing.assert_allclose(result.train.inputs, resampled(split.train.inputs, 32), atol=1e-12)
    np.testing.assert_allclose(result.test.inputs, resampled(split.test.inputs, 32), atol=1e-12)
    assert torch.equal(result.test.targets, split.test.targets)
    assert [note.split(":")[0] for note in result.notes] == ["before", "24 pictures", "15 pictures"]


def test_the_same_size_is_the_same_split():
    split = both()
    assert resized(split, 6) is split
    assert resized(Split(train=pictures(), test=None), 8).test is None


def test_sizes_that_are_none_are_refused():
    with pytest.raises(CallerError, match="image size, in pixels: expected at least 1, got 0"):
        resized(both(), 0)
    with pytest.raises(CallerError, match=r"features: expected images .* got \(4, 6\)"):
        resized(Split(train=FEATURES, test=None), 8)


def test_standardised_by_the_statistics_of_the_digits():
    split = both(channels=1)
    result = standardised(split)
    for before, after in ((split.train, result.train), (split.test, result.test)):
        torch.testing.assert_close(after.inputs, (before.inputs - 0.1307) / 0.3081)
        assert torch.equal(after.targets, before.targets) and after.name == before.name
    sentence = "images standardised: mean 0.1307, standard deviation 0.3081"
    assert result.notes == ("before", sentence)


def test_digits_get_mean_zero_and_deviation_one():
    images = standardised(digits()).train.inputs
    assert abs(float(images.mean())) < 0.02 and abs(float(images.std()) - 1) < 0.02
    assert float(images.min()) == pytest.approx(-0.1307 / 0.3081, rel=1e-6)


def test_resizing_and_standardising_commute():
    split = Split(train=pictures(channels=1), test=None)
    first, last = resized(standardised(split), 8), standardised(resized(split, 8))
    torch.testing.assert_close(first.train.inputs, last.train.inputs)


def test_turning_comes_before_standardising():
    """The other way round, what is filled in is grey: no image is turned into a brighter corner."""
    split = Split(train=pictures(side=9, channels=1), test=None)
    turned = standardised(vary(split, "rotated")).train.inputs
    black = -0.1307 / 0.3081
    assert float(turned.min()) == pytest.approx(black)
    wrong = vary(standardised(split), "rotated").train.inputs
    assert float(wrong.min()) > 0.9 * black


def test_only_grey_images_are_standardised():
    with pytest.raises(CallerError, match=r"24 pictures: .*\(examples, 1, .* got \(24, 2, 6, 6\)"):
        standardised(both())
    with pytest.raises(CallerError, match=r"features: expected images .* got \(4, 6\)"):
        standardised(Split(train=FEATURES, test=None))
