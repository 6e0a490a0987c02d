"""Variants: the law that is drawn, the ranges that are claimed, and the images that come out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from isotropy.checks import CallerError
from isotropy.data.labelled import LabelledData, Split
from isotropy.data.variants import (
    LAWS,
    TRUE_RANGES,
    apply_variant,
    turned,
    variant_coordinates,
    vary,
)
from isotropy.symmetry.actions.images import GENERATORS

VARIANTS = list(LAWS)
MOVING = [variant for variant in VARIANTS if variant != "original"]
CONTINUOUS = [variant for variant in VARIANTS if variant != "flipped"]


def pictures(count: int = 12, size: int = 15, channels: int = 1) -> LabelledData:
    """Smooth random images, black at the border."""
    random = np.random.default_rng(0)
    noise = (
        random.random((count, channels, size, size)) * np.hanning(size) * np.hanning(size)[:, None]
    )
    smooth = ndimage.gaussian_filter(noise, (0, 0, 1, 1)).astype(np.float32)
    return LabelledData(torch.from_numpy(smooth), torch.arange(count) % 2, None, "pictures")


@pytest.mark.parametrize("variant", CONTINUOUS)
def test_true_ranges_are_those_of_the_law_drawn(variant):
    drawn = variant_coordinates(variant, 20_000, seed=1).double()
    names = list(LAWS[variant])
    # One common log factor is the same motion as equal log factors along x and y.
    columns = {
        found: drawn[:, names.index("scale" if found.startswith("scale") else found)]
        for found in TRUE_RANGES[variant]
    }
    for found, half_width in TRUE_RANGES[variant].items():
        reported = columns[found] / GENERATORS[found].coordinate_per_unit
        assert float(reported.abs().max()) <= half_width * (1 + 1e-6)
        assert float(reported.abs().max()) == pytest.approx(half_width, rel=1e-3)
        assert float(reported.mean()) == pytest.approx(0, abs=0.02 * half_width)
        assert float(reported.std()) == pytest.approx(half_width / math.sqrt(3), rel=0.02)
    if len(names) > 1:
        assert abs(float(torch.corrcoef(drawn.T)[0, 1])) < 0.03


@pytest.mark.parametrize("variant", MOVING)
def test_determined_by_the_seed(variant):
    data = pictures()
    first, again = apply_variant(data, variant, seed=3), apply_variant(data, variant, seed=3)
    other = apply_variant(data, variant, seed=4)
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, other.inputs)
    assert torch.equal(first.targets, data.targets) and first.classes == data.classes
    assert first.inputs.dtype == torch.float32 and first.name == f"pictures, {variant}"


def inverse_map(variant: str, coordinates: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Where an output pixel (row, column) is taken from, by hand: matrix and offset in pixels.

    One unit is half the distance between the centres of the outermost pixels.
    """
    unit, centre = (size - 1) / 2, np.full(2, (size - 1) / 2)
    if "rotated" in variant:  # content turns counter-clockwise as seen, rows point down
        cosine, sine = np.cos(coordinates[0]), np.sin(coordinates[0])
        matrix, shift = np.array([[cosine, sine], [-sine, cosine]]), np.zeros(2)
    elif variant == "translated":  # (x, y) moves content right and down
        matrix, shift = np.eye(2), -unit * coordinates[::-1]
    else:
        matrix, shift = np.eye(2) * np.exp(-coordinates[0]), np.zeros(2)
    return matrix, centre - matrix @ centre + shift


def test_half_of_the_images_are_mirrored():
    """Each image is itself or its mirror image, with the probability that is claimed."""
    data = pictures(count=600)
    turned = apply_variant(data, "flipped", seed=1).inputs
    mirrored = (turned == data.inputs.flip(3)).flatten(1).all(1)
    kept = (turned == data.inputs).flatten(1).all(1)
    assert bool((mirrored ^ kept).all())
    share = float(mirrored.double().mean())
    assert TRUE_RANGES["flipped"] == {"horizontal_flip": 0.5} == LAWS["flipped"]
    assert abs(share - 0.5) < 5 * 0.5 / math.sqrt(600)
    split = vary(Split(train=data, test=None), "flipped")
    assert "mirrored left to right with probability 1/2" in split.notes[0]


@pytest.mark.parametrize("variant", [v for v in MOVING if v in CONTINUOUS])
def test_images_agree_with_scipy(variant):
    data, size = pictures(channels=2), 15
    moved = apply_variant(data, variant, seed=5).inputs
    coordinates = variant_coordinates(variant, len(data), seed=5).double().numpy()
    pixels = np.stack(np.meshgrid(np.arange(size), np.arange(size), indexing="ij"))
    for image, result, drawn in zip(data.inputs, moved, coordinates, strict=True):
        matrix, offset = inverse_map(variant, drawn, size)
        places = np.einsum("ij,jrc->irc", matrix, pixels) + offset[:, None, None]
        for plane, plane_result in zip(image, result, strict=True):
            expected = ndimage.map_coordinates(
                plane.double().numpy(), places, order=1, mode="grid-constant", cval=0.0
            )
            np.testing.assert_allclose(plane_result, expected, atol=1e-5)


def test_a_quarter_turn_turns_counter_clockwise(monkeypatch):
    monkeypatch.setattr(
        "isotropy.data.variants.variant_coordinates",
        lambda variant, count, *, seed: torch.full((count, 1), math.pi / 2),
    )
    data = pictures()
    turned = apply_variant(data, "rotated", seed=0)
    torch.testing.assert_close(turned.inputs, data.inputs.rot90(1, (2, 3)), atol=1e-5, rtol=0)


def test_chunks_leave_no_trace(monkeypatch):
    data = pictures(count=11)
    whole = apply_variant(data, "translated", seed=0)
    monkeypatch.setattr("isotropy.data.variants.CHUNK_SIZE", 4)
    torch.testing.assert_close(apply_variant(data, "translated", seed=0).inputs, whole.inputs)


def test_original_is_the_same_object():
    data = pictures()
    assert apply_variant(data, "original", seed=0) is data
    features = LabelledData(torch.rand(2, 3), torch.tensor([0, 1]), None, "features")
    assert apply_variant(features, "original", seed=0) is features
    split = Split(train=data, test=data)
    assert vary(split, "original") is split


def test_vary_uses_seed_1_for_training_and_0_for_test():
    data = pictures()
    split = vary(Split(train=data, test=data, notes=("before",)), "rotated")
    assert torch.equal(split.train.inputs, apply_variant(data, "rotated", seed=1).inputs)
    assert torch.equal(split.test.inputs, apply_variant(data, "rotated", seed=0).inputs)
    assert split.notes[0] == "before" and "between −180° and 180°" in split.notes[1]
    assert vary(Split(train=data, test=None), "scaled").test is None


def test_float64_is_kept():
    data = pictures()
    double = LabelledData(data.inputs.double(), data.targets, data.classes, data.name)
    moved = apply_variant(double, "scaled", seed=0)
    assert moved.inputs.dtype == torch.float64
    torch.testing.assert_close(moved.inputs.float(), apply_variant(data, "scaled", seed=0).inputs)


@pytest.mark.parametrize("variant", MOVING)
def test_only_images_have_variants(variant):
    data = LabelledData(torch.rand(4, 3), torch.tensor([0, 1, 0, 1]), None, "features")
    with pytest.raises(CallerError, match=rf"features: .*variant '{variant}' of, got \(4, 3\)"):
        apply_variant(data, variant, seed=0)


def test_an_unknown_variant_suggests_the_nearest():
    with pytest.raises(CallerError, match=r"unknown variant 'rotate': .* did you mean 'rotated'"):
        apply_variant(pictures(), "rotate", seed=0)


def test_turned_by_other_angles():
    """The named variants are two of its angles; beyond a half turn nothing more can be asked."""
    split = Split(train=pictures(), test=pictures(6))
    for degrees, variant in ((180, "rotated"), (90, "partially-rotated")):
        made, known = turned(split, degrees), vary(split, variant)
        assert torch.equal(made.train.inputs, known.train.inputs)
        assert torch.equal(made.test.inputs, known.test.inputs)
    assert turned(split, 0) is split
    assert not torch.equal(turned(split, 45).train.inputs, split.train.inputs)
    for degrees in (-1, 181, math.nan):
        with pytest.raises(CallerError, match="angle from 0 to 180"):
            turned(split, degrees)
    vectors = LabelledData(torch.rand(4, 3), torch.arange(4) % 2, None, "vectors")
    with pytest.raises(CallerError, match="vectors: expected images"):
        turned(Split(train=vectors, test=None), 45)
