"""Ranges with softplus widths: Augerino's formula, its law, its reward, and what is reported."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from oracles.augerino_oracle import augerino_transform
from torch.autograd import gradcheck
from user_networks import seeded

from isotropy.checks import CallerError
from isotropy.networks.averaging.augmentations import UniformRanges
from isotropy.networks.averaging.baselines import (
    AUGERINO_GENERATORS,
    LARGEST_WIDTH,
    SMALLEST_START,
    SoftplusRanges,
)
from isotropy.networks.export.laws import augmentation_from_law
from isotropy.symmetry.actions.images import affine

# The content of an image moves against its grid, and theirs turns the other way.
SIGNS = torch.tensor([-1.0, -1.0, 1.0, -1.0, -1.0, -1.0], dtype=torch.float64)


def made(raw: list[float] | None = None, **options: object) -> SoftplusRanges:
    ranges = SoftplusRanges(affine(AUGERINO_GENERATORS), dtype=torch.float64, **options)  # type: ignore[arg-type]
    if raw is not None:
        with torch.no_grad():
            ranges.raw.copy_(torch.tensor(raw, dtype=torch.float64))
    return ranges


def softplus(numbers: object) -> np.ndarray:
    return np.log1p(np.exp(np.asarray(numbers, dtype=float)))


RAW = [0.3, -0.5, 1.1, -2.0, -1.0, -1.5]


def test_copies_are_those_of_the_formula():
    ranges, images = made(RAW), torch.rand(3, 2, 9, 9, generator=seeded(), dtype=torch.float64)
    noise = ranges.noise(3, 4, generator=seeded(1))
    copies = ranges(images, noise)
    width = torch.from_numpy(softplus(RAW))
    for sample in range(4):
        weights = SIGNS * width * noise[:, sample] / 2
        expected = augerino_transform(images, weights)
        torch.testing.assert_close(copies[:, sample], expected, rtol=0, atol=1e-10)
        wrong = augerino_transform(images, 2 * weights)
        assert (copies[:, sample] - wrong).abs().max() > 0.05


def test_the_law_is_uniform_on_half_the_width_to_each_side():
    ranges = made(RAW)
    drawn = ranges.coordinates(ranges.noise(5000, 1, generator=seeded(2)))[:, 0].detach().numpy()
    halves = softplus(RAW) / 2 * np.array([0.1, 0.1, 1, 1, 1, 1])
    for numbers, half in zip(drawn.T, halves, strict=True):
        assert scipy.stats.kstest(numbers, scipy.stats.uniform(-half, 2 * half).cdf).pvalue > 1e-3
        wider = scipy.stats.uniform(-2 * half, 4 * half)
        assert scipy.stats.kstest(numbers, wider.cdf).pvalue < 1e-6
    correlations = np.corrcoef(drawn.T) - np.eye(6)
    assert np.abs(correlations).max() < 0.06


def test_half_of_the_width_is_reported_in_the_units_users_read():
    width = softplus(RAW)
    found = {symmetry.name: symmetry for symmetry in made(RAW).symmetries()}
    assert tuple(found) == AUGERINO_GENERATORS
    assert found["translation_x"].high == pytest.approx(0.1 * width[0] / 2 / 2)
    assert found["rotation"].high == pytest.approx(math.degrees(width[2] / 2))
    assert found["aspect"].high == pytest.approx(width[4] / 2)
    assert all(symmetry.low == -symmetry.high for symmetry in found.values())


def test_a_rotation_beyond_its_period_is_reported_as_it_is():
    found = {symmetry.name: symmetry for symmetry in made([0, 0, 8.0, 0, 0, 0]).symmetries()}
    assert found["rotation"].high == pytest.approx(math.degrees(softplus(8.0) / 2))
    assert found["rotation"].high > 180


def test_learning_starts_at_the_authors_widths_or_at_those_given():
    assert made().widths().tolist() == pytest.approx([math.log(2)] * 6)
    ranges = made(start={"rotation": 45.0, "translation_y": 0.02})
    found = {symmetry.name: symmetry.high for symmetry in ranges.symmetries()}
    assert found["rotation"] == pytest.approx(45.0)
    assert found["translation_y"] == pytest.approx(0.02)
    assert ranges.raw[3].item() == SMALLEST_START and 0 < found["scale"] < 0.004


def test_caps_bound_a_width_when_projected():
    ranges = made(caps={"rotation": 30.0, "scale": 0.0})
    with torch.no_grad():
        ranges.raw.fill_(5.0)
    ranges.project()
    found = {symmetry.name: symmetry.high for symmetry in ranges.symmetries()}
    assert found["rotation"] == pytest.approx(30.0) and found["scale"] == 0.0
    assert found["aspect"] == pytest.approx(softplus(5.0) / 2)
    images = torch.rand(2, 1, 5, 5, dtype=torch.float64)
    ranges(images, ranges.noise(2, 3)).square().sum().backward()
    assert torch.isfinite(ranges.raw.grad).all() and ranges.raw.grad[3] == 0
    for bad in ({"rotation": -1.0}, {"rotation": float("nan")}):
        with pytest.raises(CallerError, match="cap for 'rotation': expected a half-width of at"):
            made(caps=bad)
    with pytest.raises(CallerError, match="unknown generator 'rotatoin'"):
        made(start={"rotatoin": 3.0})


def test_the_reward_is_the_norm_of_the_widths_and_its_gradient():
    ranges = made(RAW)
    width = softplus(RAW)
    assert float(ranges.reward().detach()) == pytest.approx(np.linalg.norm(width))
    (gradient,) = torch.autograd.grad(ranges.reward(), ranges.raw)
    sigmoid = 1 / (1 + np.exp(-np.asarray(RAW)))
    np.testing.assert_allclose(gradient.numpy(), width / np.linalg.norm(width) * sigmoid)

    def of_raw(raw: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(_Reward(ranges), {"ranges.raw": raw})

    assert gradcheck(of_raw, torch.tensor(RAW, dtype=torch.float64, requires_grad=True))


class _Reward(torch.nn.Module):
    def __init__(self, ranges: SoftplusRanges) -> None:
        super().__init__()
        self.ranges = ranges

    def forward(self) -> torch.Tensor:
        return self.ranges.reward()


def test_no_width_is_rewarded_once_one_is_very_wide():
    below, beyond = made([9.9, *RAW[1:]]), made([10.1, *RAW[1:]])
    assert below.widths()[0] < LARGEST_WIDTH <= beyond.widths()[0]
    assert float(below.reward().detach()) > 9
    (gradient,) = torch.autograd.grad(beyond.reward(), beyond.raw)
    assert float(beyond.reward().detach()) == 0 and not gradient.any()


def test_the_law_is_one_of_independent_ranges():
    ranges, images = made(RAW), torch.rand(2, 1, 7, 7, dtype=torch.float64)
    again = augmentation_from_law(ranges.law(), (1, 7, 7)).double()
    assert isinstance(again, UniformRanges)
    noise = ranges.noise(2, 3, generator=seeded(3))
    torch.testing.assert_close(again(images, noise), ranges(images, noise), rtol=0, atol=1e-6)
