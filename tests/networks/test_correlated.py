"""Correlated ranges: the law of a = L ε, bounds, and what they share with independent ranges."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from user_networks import draw

from isotropy.checks import CallerError
from isotropy.networks.averaging.augmentations import (
    START,
    CorrelatedRanges,
    UniformRanges,
    principal_axes,
)
from isotropy.symmetry.actions.images import affine
from isotropy.symmetry.actions.points import points

NAMES = ("rotation", "scale_x", "scale_y")
FACTOR = torch.tensor([[0.5, 0.0, -0.25], [0.1, 0.3, 0.0], [-0.2, 0.3, 0.05]], dtype=torch.float64)


def correlated(start: object = FACTOR, **arguments: object) -> CorrelatedRanges:
    return CorrelatedRanges(affine(NAMES), start=start, dtype=torch.float64, **arguments)  # type: ignore[arg-type]


# --- the law ----------------------------------------------------------------------------------


def test_covariance_by_simulation():
    """Cov(a) = L Lᵀ/3, within five standard errors of what was drawn."""
    augmentation = correlated()
    noise = augmentation.noise(20_000, 2, generator=torch.Generator().manual_seed(0))
    assert noise.shape == (20_000, 2, 3) and float(noise.abs().max()) <= 1
    drawn = augmentation.coordinates(noise).detach().flatten(0, 1)
    products = drawn[:, :, None] * drawn[:, None, :]
    error = products.std(0) / math.sqrt(len(drawn))
    expected = FACTOR @ FACTOR.T / 3
    assert bool(((products.mean(0) - expected).abs() < 5 * error).all())
    assert bool((drawn.mean(0).abs() < 5 * drawn.std(0) / math.sqrt(len(drawn))).all())
    wrong = FACTOR.T @ FACTOR / 3
    assert not bool(((products.mean(0) - wrong).abs() < 5 * error).all())


@given(st.lists(st.floats(-2, 2), min_size=9, max_size=9))
def test_half_widths_are_the_largest_coordinates_that_occur(entries: list[float]):
    """Over the corners of the cube that ε fills."""
    factor = torch.tensor(entries, dtype=torch.float64).reshape(3, 3)
    augmentation = CorrelatedRanges(
        affine(("scale_x", "scale_y", "shear_x")), start=factor, dtype=torch.float64
    )
    corners = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=3)), dtype=torch.float64)
    largest = augmentation.coordinates(corners[None]).detach()[0].max(0).values
    torch.testing.assert_close(augmentation.half_widths.detach(), largest)


def test_correlations():
    found = correlated().correlations()
    deviation = (FACTOR @ FACTOR.T).diagonal().sqrt()
    expected = FACTOR @ FACTOR.T / deviation[:, None] / deviation
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.diagonal(), torch.ones(3, dtype=torch.float64))


def test_one_factor_of_two_generators_is_a_perfect_correlation():
    factor = torch.tensor([[0.2, 0.0], [0.2, 0.0]])
    augmentation = CorrelatedRanges(affine(("scale_x", "scale_y")), start=factor)
    assert float(augmentation.correlations()[0, 1]) == pytest.approx(1.0)
    noise = augmentation.noise(50, 2)
    coordinates = augmentation.coordinates(noise)
    assert torch.equal(coordinates[..., 0], coordinates[..., 1])


def test_a_range_of_zero_has_no_correlations():
    factor = FACTOR.clone()
    factor[1] = 0
    found = correlated(factor).correlations()
    assert bool(found.isfinite().all()) and not found[1].any() and not found[:, 1].any()


def test_neither_order_nor_sign_of_columns_is_reported():
    other = correlated(FACTOR[:, [2, 0, 1]] * torch.tensor([1, -1, -1]))
    torch.testing.assert_close(other.correlations(), correlated().correlations())
    torch.testing.assert_close(other.half_widths, correlated().half_widths)


# --- independent ranges are the diagonal ------------------------------------------------------


@pytest.mark.parametrize("start", [START, {"rotation": 30.0, "scale_y": 0.2}])
def test_a_diagonal_factor_is_independent_ranges(start: float | dict[str, float]):
    independent = UniformRanges(affine(NAMES), start=start, dtype=torch.float64)
    augmentation = correlated(start)
    noise = independent.noise(2, 4, generator=torch.Generator().manual_seed(0))
    replayed = augmentation.noise(2, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(noise, replayed)
    images = draw(2, 1, 7, 7)
    assert torch.equal(augmentation.half_widths.detach(), independent.half_widths.detach())
    torch.testing.assert_close(
        augmentation(images, noise), independent(images, noise), rtol=1e-12, atol=1e-12
    )
    assert augmentation.symmetries() == independent.symmetries()


def test_copies_depend_on_every_entry():
    augmentation = correlated()
    images, noise = draw(2, 1, 7, 7), 2 * draw(2, 4, 3, seed=1) - 1
    (augmentation(images, noise) * draw(2, 4, 1, 7, 7, seed=2)).sum().backward()
    assert augmentation.learnable() == [augmentation.factor]
    assert bool((augmentation.factor.grad.abs() > 1e-4).all())


def test_zero_is_exactly_the_identity():
    augmentation = correlated(0.0)
    images, noise = draw(2, 1, 5, 5), augmentation.noise(2, 3)
    assert augmentation.is_identity and not correlated().is_identity
    with torch.no_grad():
        copies = augmentation(images, noise)
    assert torch.equal(copies, images[:, None].expand_as(copies))
    torch.testing.assert_close(augmentation(images, noise), copies)


# --- bounds -----------------------------------------------------------------------------------


def test_projection_scales_rows_down_to_their_bounds():
    augmentation = correlated(caps={"scale_x": 0.2, "scale_y": 0.0})
    found = augmentation.factor.detach()
    torch.testing.assert_close(found[0], FACTOR[0])  # below its period
    torch.testing.assert_close(found[1], FACTOR[1] / 2)  # 0.4 cut to 0.2
    assert not found[2].any()
    with torch.no_grad():
        augmentation.factor.mul_(100.0)
    augmentation.project()
    widths = augmentation.half_widths.detach()
    torch.testing.assert_close(widths, torch.tensor([math.pi, 0.2, 0.0], dtype=torch.float64))
    # Rows scaled by a number each: what is wanted together with what is not changed by that.
    assert augmentation.correlations()[0, 1] == pytest.approx(float(correlations(FACTOR)[0, 1]))


def correlations(factor: Tensor) -> Tensor:
    covariance = factor @ factor.mT
    deviation = covariance.diagonal().sqrt()
    return covariance / deviation / deviation[:, None]


@given(st.lists(st.floats(-2, 2), min_size=9, max_size=9))
def test_projection_keeps_the_covariance_and_makes_columns_orthogonal(entries: list[float]):
    factor = torch.tensor(entries, dtype=torch.float64).reshape(3, 3)
    augmentation = CorrelatedRanges(
        affine(("scale_x", "scale_y", "shear_x")), start=factor, dtype=torch.float64
    )
    assert torch.equal(augmentation.factor.detach(), factor)  # as it was given
    augmentation.project()
    found = augmentation.factor.detach()
    torch.testing.assert_close(found @ found.mT, factor @ factor.mT, rtol=1e-9, atol=1e-12)
    products = found.mT @ found
    # The columns' squared lengths are the eigenvalues of L Lᵀ; axes of nearly equal length may
    # stand a little askew, by no more than their lengths differ.
    expected = torch.linalg.eigvalsh(factor @ factor.mT)
    apart = bool((expected[:-1] < 0.9 * expected[1:]).all())
    askew = 1e-12 if apart else 0.1 * float(expected[-1]) + 1e-12
    assert float((products - products.diagonal().diag()).abs().max()) < askew
    lengths = products.diagonal().sort().values
    torch.testing.assert_close(lengths, expected, rtol=1e-9, atol=askew)


def test_projection_leaves_axes_of_equal_length_where_they_are():
    noise = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    factor = 0.3 * torch.eye(3, dtype=torch.float64) + 1e-7 * noise
    torch.testing.assert_close(principal_axes(factor), factor, rtol=0, atol=1e-6)


def test_projection_leaves_orthogonal_columns_where_they_are():
    columns = torch.tensor([[0.0, -0.3, 0.2], [0.1, 0.0, 0.0], [0.0, 0.3, 0.2]]).double()
    torch.testing.assert_close(principal_axes(columns), columns, rtol=1e-12, atol=1e-12)
    assert principal_axes(columns.float()).dtype == torch.float32


def test_parallel_columns_become_one():
    """Their noises would add up; the sum of squares stays in the longer one's place."""
    parallel = torch.tensor([[0.3, 0.4], [0.3, 0.4]], dtype=torch.float64)
    expected = torch.tensor([[0.0, 0.5], [0.0, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(principal_axes(parallel), expected, rtol=1e-12, atol=1e-12)


def test_projection_leaves_nothing_undefined():
    augmentation = correlated(0.0, caps={"rotation": 0.0})
    augmentation.project()
    assert torch.equal(augmentation.factor.detach(), torch.zeros(3, 3, dtype=torch.float64))


# --- states and records -----------------------------------------------------------------------


REFUSED = {
    "shape": (lambda: correlated(torch.ones(2, 3)), r"= \(3, 3\), got \(2, 3\)"),
    "start": (lambda: correlated({"rotaton": 3.0}), "unknown generator 'rotaton'"),
    "caps": (lambda: correlated(caps={"rotaton": 3.0}), "unknown generator 'rotaton'"),
    "negative cap": (lambda: correlated(caps={"rotation": -1.0}), "cap for 'rotation'"),
    "jitter": (
        lambda: CorrelatedRanges(points(2, ("rotation", "jitter"), count=5)),
        "'jitter' stands for many equal coordinates .* use independent ranges",
    ),
    "noise": (lambda: correlated()(draw(2, 1, 5, 5), draw(2, 4, 2)), r"\(2, samples, 3\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str):
    call, sentence = REFUSED[case]
    with pytest.raises(CallerError, match=sentence):
        call()
