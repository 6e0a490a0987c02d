"""Ranges, independent and correlated: nothing at zero, the right law, live gradients, bounds."""

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
    lattice,
    principal_axes,
)
from isotropy.symmetry.actions.images import GENERATORS, LILA_GENERATORS, affine
from isotropy.symmetry.actions.points import points

DTYPES = (torch.float32, torch.float64)


def ranges(*names: str, interpolation="bicubic", dtype=torch.float64, **arguments) -> UniformRanges:
    action = affine(names or LILA_GENERATORS, interpolation=interpolation)
    return UniformRanges(action, dtype=dtype, **arguments)


# --- at zero ------------------------------------------------------------------------------

sizes = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 6), st.integers(1, 6))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("padding", ["zeros", "reflection"])
@given(shape=sizes, samples=st.integers(1, 4), seed=st.integers(0, 99), big=st.floats(1e-30, 1e30))
def test_zero_ranges_are_exactly_the_identity(padding, dtype, shape, samples, seed, big):
    augmentation = UniformRanges(affine(padding=padding), start=0.0)
    images = (big * (draw(*shape, seed=seed) - 0.5)).to(dtype)
    noise = augmentation.noise(shape[0], samples)
    with torch.no_grad():
        copies = augmentation(images, noise)
    assert augmentation.is_identity
    assert copies.dtype == dtype and copies.shape == (shape[0], samples, *shape[1:])
    assert torch.equal(copies, images[:, None].expand_as(copies))


def test_frozen_zero_ranges_are_exactly_the_identity_with_gradients_on():
    augmentation = ranges(start=0.0).requires_grad_(False)
    images = draw(2, 1, 5, 5).requires_grad_()
    copies = augmentation(images, augmentation.noise(2, 3))
    assert torch.equal(copies, images[:, None].expand_as(copies))
    (gradient,) = torch.autograd.grad(copies.sum(), images)
    assert torch.equal(gradient, torch.full_like(images, 3))


def test_zero_ranges_stay_learnable():
    """With gradients on, zero is no shortcut: the slope by the range is there to be followed."""
    augmentation = ranges("translation_x", start=0.0)
    images = draw(2, 1, 7, 7)
    copies = augmentation(images, augmentation.noise(2, 3))
    torch.testing.assert_close(copies, images[:, None].expand_as(copies))
    (copies * draw(*copies.shape, seed=1)).sum().backward()
    assert augmentation.half_widths.grad.abs() > 1e-3


def test_one_range_above_zero_is_not_the_identity():
    augmentation = ranges(start={"rotation": 10})
    assert not augmentation.is_identity
    with torch.no_grad():
        copies = augmentation(draw(1, 1, 7, 7), torch.full((1, 1, 6), 0.5, dtype=torch.float64))
    assert (copies[:, 0] - draw(1, 1, 7, 7)).abs().max() > 0.01


# --- noise --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_noise_is_uniform_on_minus_one_to_one(dtype):
    noise = ranges(dtype=dtype).noise(400, 10, generator=torch.Generator().manual_seed(0))
    assert noise.shape == (400, 10, 6) and noise.dtype == dtype
    assert -1 <= noise.min() < -0.999 and 0.999 < noise.max() <= 1
    flat = noise.flatten(0, 1).double()
    spread = len(flat) ** -0.5
    assert flat.mean(0).abs().max() < 4 * spread
    assert (flat.square().mean(0) - 1 / 3).abs().max() < 4 * spread
    # Independent between generators, examples and samples.
    assert (flat.T @ flat / len(flat) - torch.eye(6) / 3).abs().max() < 4 * spread
    assert len(noise.flatten().unique()) > 0.99 * noise.numel()


def test_the_copies_of_an_example_fall_one_into_each_part_of_the_range():
    """A Latin hypercube: S equal parts of [−1, 1], one copy in each, by every generator."""
    noise = ranges(dtype=torch.float64).noise(50, 8, generator=torch.Generator().manual_seed(0))
    parts = ((noise + 1) / 2 * 8).floor()
    every = torch.arange(8.0, dtype=torch.float64)[None, :, None].expand_as(parts)
    assert torch.equal(parts.sort(1).values, every)
    # The order differs from example to example and from generator to generator.
    assert len(parts[:, :, 0].unique(dim=0)) == 8 and len(parts[:, :, 2].unique(dim=0)) > 40
    assert not torch.equal(parts[:, :, 0], parts[:, :, 1])


@pytest.mark.parametrize(("points", "numbers"), [(1, 3), (2, 2), (4, 6), (16, 3), (31, 6), (64, 6)])
def test_lattices_are_permutations_with_well_filled_planes(points: int, numbers: int):
    factors = lattice(points, numbers)
    assert len(factors) == numbers and factors[0] == 1
    places = [torch.arange(points) * factor % points for factor in factors if factor]
    assert all(torch.equal(place.sort().values, torch.arange(points)) for place in places)
    for one, other in itertools.combinations(places, 2):
        steps = torch.stack([one, other], 1)[1:]
        nearest = torch.minimum(steps, points - steps).square().sum(1).min()
        assert nearest >= min(5, points / 2), "those of a diagonal line are 2"


def test_copies_along_several_generators_vary_less_than_in_random_order():
    """Means over 16 copies of a product of two generators' functions: a fifth of a random order."""
    noise = ranges(dtype=torch.float64).noise(2000, 16, generator=torch.Generator().manual_seed(1))
    order = torch.rand(2000, 16, generator=torch.Generator().manual_seed(2)).argsort(1)
    shuffled = noise[..., 1].gather(1, order)
    lattice_means, random_means = (
        ((3 * noise[..., 0]).cos() * (2 * other).cos()).mean(1)
        for other in (noise[..., 1], shuffled)
    )
    assert lattice_means.var() < 0.2 * random_means.var()
    assert abs(lattice_means.mean() - random_means.mean()) < 5 * random_means.std() / 2000**0.5


def test_noise_is_replayed_by_its_generator():
    augmentation = ranges()
    state = torch.get_rng_state()
    first, again, other = (
        augmentation.noise(3, 4, generator=torch.Generator().manual_seed(seed))
        for seed in (5, 5, 6)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())
    images = draw(3, 1, 5, 5)
    assert torch.equal(augmentation(images, first), augmentation(images, again))


@pytest.mark.parametrize("samples", [2, 6])
def test_antithetic_noise_is_symmetric(samples):
    noise = ranges().noise(5, samples, antithetic=True)
    assert noise.shape == (5, samples, 6)
    assert torch.equal(noise[:, samples // 2 :], -noise[:, : samples // 2])
    assert noise.abs().max() <= 1 and len(noise.abs().unique()) == noise.numel() // 2


def test_antithetic_noise_needs_pairs():
    with pytest.raises(CallerError, match="antithetic noise: expected even samples, got 31"):
        ranges().noise(2, 31, antithetic=True)


def averaged(augmentation: UniformRanges, noise: torch.Tensor) -> torch.Tensor:
    """The mean over samples of some function of the copies that is not linear in them."""
    images, weight = draw(2, 1, 7, 7), draw(7, 7, seed=3) - 0.5
    return (augmentation(images, noise) * weight).sum((2, 3, 4)).sin().mean()


@pytest.mark.parametrize("antithetic", [True, False])
def test_antithetic_averages_have_no_odd_orders(antithetic):
    """Even in η, so that no slope is left at zero; plain noise leaves one (of mean zero)."""
    noise = ranges().noise(2, 4, generator=torch.Generator().manual_seed(0), antithetic=antithetic)
    plus, minus = (averaged(ranges(start=amount), noise) for amount in (0.2, -0.2))
    at_zero, at_start = ranges(start=0.0), ranges()
    slope = torch.autograd.grad(averaged(at_zero, noise), at_zero.half_widths)[0].abs().max()
    assert (abs(plus - minus) < 1e-12) == antithetic
    assert (slope < 1e-12) == antithetic
    # Which is why learning starts at START, where there is a slope to follow.
    started = torch.autograd.grad(averaged(at_start, noise), at_start.half_widths)[0]
    assert started.abs().min() > 1e-8


# --- the parameter ------------------------------------------------------------------------


@pytest.mark.parametrize("name", GENERATORS)
def test_gradient_equals_finite_differences_with_the_same_noise(name):
    augmentation = ranges(name, start=0.3)
    noise = augmentation.noise(2, 3, generator=torch.Generator().manual_seed(1))
    (gradient,) = torch.autograd.grad(averaged(augmentation, noise), augmentation.half_widths)
    step = 1e-6
    with torch.no_grad():
        ahead, behind = (averaged(ranges(name, start=0.3 + s), noise) for s in (step, -step))
    assert gradient.item() == pytest.approx((ahead - behind).item() / (2 * step), abs=1e-7)
    assert abs(gradient.item()) > 1e-4


@given(
    widths=st.lists(st.floats(-0.8, 0.8), min_size=6, max_size=6), flips=st.integers(0, 2**6 - 1)
)
def test_only_the_size_of_a_range_matters(widths, flips):
    """Flipping the sign of η_k with that of ε_k changes nothing, and ε is symmetric."""
    signs = torch.tensor([1.0 if flips >> k & 1 else -1.0 for k in range(6)], dtype=torch.float64)
    one, other = ranges(), ranges()
    with torch.no_grad():
        one.half_widths.copy_(torch.tensor(widths))
        other.half_widths.copy_(one.half_widths * signs)
    images, noise = draw(1, 1, 5, 5), 2 * draw(1, 3, 6, seed=1) - 1
    torch.testing.assert_close(one(images, noise), other(images, noise * signs))
    assert one.symmetries() == other.symmetries()


def test_coordinates_are_half_widths_times_noise():
    augmentation = ranges("rotation", "scale", start={"rotation": 40, "scale": 0.3})
    images, noise = draw(2, 1, 6, 6), 2 * draw(2, 3, 2, seed=1) - 1
    widths = torch.tensor([math.radians(40), 0.3], dtype=torch.float64)
    torch.testing.assert_close(
        augmentation(images, noise), augmentation.action.act(noise * widths, images)
    )


def test_start_by_name_is_in_reported_units():
    augmentation = ranges(start={"rotation": 90, "translation_y": 0.25, "scale_x": -0.7})
    wanted = [0.0, 0.5, math.pi / 2, -0.7, 0.0, 0.0]
    assert augmentation.half_widths.tolist() == pytest.approx(wanted)


@pytest.mark.parametrize("sign", [1, -1])
def test_bounds_are_the_period_and_the_caps(sign):
    caps = {"rotation": 45, "translation_x": 0.25, "scale_y": 0.0}
    free, capped = ranges(), ranges(caps=caps)
    for augmentation in (free, capped):
        with torch.no_grad():
            augmentation.half_widths.fill_(sign * 9.0)
        augmentation.project()
    assert free.half_widths.tolist() == pytest.approx([sign * w for w in (9, 9, math.pi, 9, 9, 9)])
    wanted = [sign * w for w in (0.5, 9, math.pi / 4, 9, 0, 9)]
    assert capped.half_widths.tolist() == pytest.approx(wanted)
    # A start is brought within them, and a cap above the period does not lift it.
    for start, cap, kept in (
        (sign * 9.0, 400, math.pi),
        ({"rotation": sign * 60}, 45, math.pi / 4),
    ):
        bounded = ranges("rotation", start=start, caps={"rotation": cap})
        assert bounded.half_widths.item() == pytest.approx(sign * kept)


def test_the_gradient_lives_at_the_bound():
    """The parameter is bounded, not the forward pass, which a clamp would make flat there."""
    augmentation = ranges("rotation", start=math.pi)
    assert augmentation.half_widths.item() == augmentation.bounds.item() == math.pi
    noise = augmentation.noise(2, 5, generator=torch.Generator().manual_seed(0))
    optimiser = torch.optim.SGD(augmentation.parameters(), lr=0.1)
    loss = averaged(augmentation, noise)
    loss.backward()
    gradient = augmentation.half_widths.grad.item()
    assert abs(gradient) > 1e-3
    optimiser.step()
    augmentation.project()
    wanted = min(math.pi, math.pi - 0.1 * gradient)
    assert augmentation.half_widths.item() == pytest.approx(wanted)
    assert augmentation.half_widths.requires_grad
    # Beyond the bound too: a step out of it can be taken back.
    with torch.no_grad():
        augmentation.half_widths.fill_(3.5)
    (beyond,) = torch.autograd.grad(averaged(augmentation, noise), augmentation.half_widths)
    assert beyond.abs() > 1e-3


def test_symmetries_are_reported_in_units_and_without_sign():
    widths = {"rotation": -30.0, "translation_x": 0.125, "scale_x": 0.7}
    found = {each.name: each for each in ranges(start=widths).symmetries()}
    assert tuple(found) == LILA_GENERATORS
    for name, symmetry in found.items():
        reach = abs(widths.get(name, 0.0))
        assert (symmetry.low, symmetry.high) == pytest.approx((-reach, reach))
        assert symmetry.kind == "range" and symmetry.unit == GENERATORS[name].unit
        assert symmetry.as_dict() == {
            "name": name,
            "kind": "range",
            "low": symmetry.low,
            "high": symmetry.high,
            "unit": symmetry.unit,
        }


def test_ranges_survive_a_state_dict_and_a_change_of_type():
    augmentation = ranges(start={"rotation": 20}, caps={"scale_x": 0.5}, dtype=torch.float32)
    other = ranges(dtype=torch.float32)
    other.load_state_dict(augmentation.state_dict())
    assert torch.equal(other.half_widths, augmentation.half_widths)
    assert torch.equal(other.bounds, augmentation.bounds)
    other.double()
    assert other.noise(1, 1).dtype == torch.float64
    assert [name for name, _ in other.named_parameters()] == ["half_widths"]


IMAGES = torch.zeros(2, 1, 5, 5)
REFUSED = {
    "negative cap": (
        lambda: ranges(caps={"rotation": -1.0}),
        "cap for 'rotation': expected a half-width of at least 0 degrees, got -1.0",
    ),
    "cap that is no number": (lambda: ranges(caps={"scale_x": math.nan}), "cap for 'scale_x'"),
    "unknown cap": (
        lambda: ranges(caps={"rotatoin": 1.0}), "unknown generator 'rotatoin'.*mean 'rotation'",
    ),
    "unknown start": (lambda: ranges(start={"zoom": 1.0}), "unknown generator 'zoom'"),
    "noise for one generator of six": (
        lambda: ranges()(IMAGES.double(), torch.zeros(2, 3, 1).double()),
        r"expected \(batch, samples, generators\)",
    ),
    "noise for one generator of six, at zero": (
        lambda: ranges(start=0.0).requires_grad_(False)(IMAGES, torch.zeros(2, 3, 1)),
        r"expected \(batch, samples, generators\)",
    ),
    "noise for another batch, at zero": (
        lambda: ranges(start=0.0).requires_grad_(False)(IMAGES, torch.zeros(7, 3, 6)),
        r"expected \(batch, samples, generators\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(call, sentence):
    with pytest.raises(CallerError, match=sentence):
        call()


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


REFUSED_WITH_CORRELATIONS = {
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


@pytest.mark.parametrize("case", REFUSED_WITH_CORRELATIONS)
def test_what_correlated_ranges_refuse(case: str):
    call, sentence = REFUSED_WITH_CORRELATIONS[case]
    with pytest.raises(CallerError, match=sentence):
        call()
