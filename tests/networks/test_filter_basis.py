"""The basis of sparse filters: φ against its formula, its derivatives, anchors, and fits."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from oracles import filter_basis_oracle as oracle
from user_networks import seeded

from isotropy.checks import CallerError
from isotropy.networks.pathways.filter_basis import (
    NOISE,
    VARIANCE,
    BasisOptions,
    FilterBasis,
    anchor_count,
    basis_functions,
    basis_slopes,
    grid_points,
)

SIZES = [(1, 1), (3, 3), (2, 5), (8, 8)]
LEARNED = BasisOptions(learns_lengthscale=True, learns_anchors=True)


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def basis(size: tuple[int, int], options: BasisOptions | None = None, seed: int = 0) -> FilterBasis:
    return FilterBasis(size, options, generator=seeded(seed))


@pytest.mark.parametrize("omega", [0.0, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("size", SIZES)
def test_functions_are_those_of_the_formula(size: tuple[int, int], omega: float):
    made = basis(size)
    found = basis_functions(made.anchors, torch.tensor(omega), grid_points(*size))
    expected = oracle.functions(made.anchors.numpy(), omega, *size)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-10)
    if omega == 1.0:
        np.testing.assert_allclose(made.functions().numpy(), expected, rtol=0, atol=1e-10)


def test_filters_interpolate_values_at_anchors_on_the_grid():
    """φ = K (K + σ²)⁻¹ there: a share σ²/(λ + σ²) of each eigenvector of K is missing."""
    points = grid_points(4, 4)
    sharp = basis_functions(points, torch.tensor(3.0), points)
    assert (sharp - torch.eye(16)).abs().max() < 1.1 * NOISE**2
    smooth = basis_functions(points, torch.tensor(1.0), points)
    least = np.linalg.eigvalsh(oracle.kernel(points.numpy(), points.numpy(), 1.0))[0]
    missing = torch.linalg.matrix_norm(smooth - torch.eye(16), 2)
    torch.testing.assert_close(missing, torch.tensor(NOISE**2 / (least + NOISE**2)))
    assert missing > 20 * NOISE**2  # far more where neighbours overlap


@pytest.mark.parametrize("size", SIZES)
def test_without_frequency_all_functions_are_constant(size: tuple[int, int]):
    made = basis(size, LEARNED)
    with torch.no_grad():
        made.lengthscale.zero_()
    found = made.functions()
    share = VARIANCE / (made.count * VARIANCE + NOISE**2)
    torch.testing.assert_close(found.detach(), torch.full_like(found, share))
    found.square().sum().backward()
    assert made.lengthscale.grad.abs().max() == 0  # even in ω: a stationary point


def test_functions_are_even_in_the_lengthscale():
    made = basis((3, 3))
    both = [basis_functions(made.anchors, torch.tensor(w), made.points) for w in (0.7, -0.7)]
    assert torch.equal(*both)


@pytest.mark.parametrize("omega", [0.0, 0.8, 2.0])
@pytest.mark.parametrize("size", SIZES)
def test_slopes_are_derivatives_by_the_lengthscale(size: tuple[int, int], omega: float):
    made, given, step = basis(size), torch.tensor(omega), 1e-5
    functions, slopes = basis_slopes(made.anchors, given, made.points)
    ahead, behind = (
        oracle.functions(made.anchors.numpy(), omega + sign * step, *size) for sign in (1, -1)
    )
    np.testing.assert_allclose(slopes.numpy(), (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-5)
    values, by_autograd = torch.func.jvp(
        lambda w: basis_functions(made.anchors, w, made.points), (given,), (torch.ones(()),)
    )
    torch.testing.assert_close(slopes, by_autograd, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(functions, values)


def test_functions_can_be_differentiated_by_anchors_and_lengthscale():
    made = basis((3, 2), LEARNED)
    torch.autograd.gradcheck(
        lambda z, w: basis_functions(z, w, made.points), (made.anchors, made.lengthscale)
    )


def test_a_layer_that_learns_the_lengthscale_alone_has_the_same_derivative_by_it():
    alone, both = basis((4, 5), BasisOptions(learns_lengthscale=True)), basis((4, 5), LEARNED)
    weights = torch.randn(10, 20, generator=seeded(1))
    for made in (alone, both):
        made.lengthscale.data.fill_(0.7)
        (made.functions() * weights).sum().backward()
    torch.testing.assert_close(alone.functions(), both.functions(), rtol=0, atol=1e-12)
    torch.testing.assert_close(alone.lengthscale.grad, both.lengthscale.grad, rtol=1e-10, atol=0)


@pytest.mark.parametrize(
    ("sparsity", "pixels", "expected"),
    [(0.5, 9, 5), (0.5, 1024, 512), (0.5, 1, 1), (0.01, 4, 1), (1.0, 9, 9), (0.1, 30, 3)],
)
def test_anchors_are_counted_rounding_up(sparsity: float, pixels: int, expected: int):
    assert anchor_count(sparsity, pixels) == expected


@pytest.mark.parametrize("sparsity", [0.0, -0.5, 1.5, float("nan")])
def test_a_sparsity_out_of_range_is_refused(sparsity: float):
    with pytest.raises(CallerError, match="above 0 and at most 1"):
        FilterBasis((3, 3), BasisOptions(sparsity))


def test_anchors_are_spread_over_the_box_of_the_pixels():
    anchors = basis((9, 33)).anchors
    assert anchors.shape == (149, 2)
    ends = torch.tensor([4.0, 16.0])
    assert (anchors.abs() <= ends).all()
    assert (anchors.amax(0) > 0.9 * ends).all()
    assert (anchors.amin(0) < -0.9 * ends).all()


@pytest.mark.parametrize("size", [(3, 3), (4, 4), (8, 8), (5, 16)])
def test_all_values_move_filters_by_about_as_much(size: tuple[int, int]):
    """Independent anchors would make the largest singular value of φ 10 to 35."""
    for seed in range(5):
        singular = torch.linalg.svdvals(basis(size, seed=seed).functions())
        assert singular[0] < 3
        assert singular[-1] > 0.8


def test_no_two_anchors_are_close():
    """Half as many as pixels: squares of side √2 for each, of which discs of 0.35 fill 19 %."""
    anchors = basis((16, 16)).anchors
    between = torch.cdist(anchors, anchors) + torch.diag(torch.full((128,), torch.inf))
    assert between.min() > 0.7


@pytest.mark.parametrize("options", [BasisOptions(), LEARNED])
def test_precision_changes_rounding_alone(options: BasisOptions):
    """Made in float32 and converted, a basis is the one made in float64, and vice versa."""
    exact = basis((8, 8), options)
    torch.set_default_dtype(torch.float32)
    single = basis((8, 8), options)
    assert single.functions().dtype == torch.float32
    assert torch.equal(single.functions(), exact.functions().float())
    assert torch.equal(copy.deepcopy(exact).float().functions(), single.functions())
    assert torch.equal(single.double().functions(), exact.functions())


def test_what_is_learned_is_a_parameter():
    assert not dict(basis((3, 3)).named_parameters())
    one = basis((3, 3), BasisOptions(learns_lengthscale=True))
    assert [name for name, _ in one.named_parameters()] == ["lengthscale"]
    other = basis((3, 3), BasisOptions(learns_anchors=True))
    assert [name for name, _ in other.named_parameters()] == ["anchors"]
    for made in (one, other):
        made.functions().sum().backward()
        assert all(p.grad is not None for p in made.parameters())


@pytest.mark.parametrize("options", [BasisOptions(), LEARNED])
def test_a_saved_basis_is_restored(options: BasisOptions):
    saved, other = basis((4, 4), LEARNED, seed=3), basis((4, 4), options, seed=4)
    with torch.no_grad():
        saved.lengthscale.fill_(0.6)
    assert not torch.allclose(saved.functions(), other.functions())
    other.load_state_dict(saved.state_dict())
    assert torch.equal(saved.functions(), other.functions())
    assert torch.equal(copy.deepcopy(other).functions(), other.functions())


def test_a_fixed_basis_keeps_what_was_learned():
    made = basis((4, 4), LEARNED)
    with torch.no_grad():
        made.lengthscale.fill_(0.6)
        made.anchors.add_(0.1)
    before = made.functions().detach()
    made.fix()
    assert not list(made.parameters())
    assert torch.equal(made.functions(), before)
    assert set(made.state_dict()) == {"anchors", "lengthscale"}


def test_fits_are_those_of_least_squares():
    made = basis((8, 8))
    phi, filters = made.functions(), torch.randn(3, 2, 64, generator=seeded(5))
    expected = oracle.nearest_values(phi.numpy(), filters.flatten(0, 1).numpy())
    found = made.fitted(filters)
    np.testing.assert_allclose(found.flatten(0, 1).numpy(), expected, atol=1e-9)
    again = made.fitted(found @ phi)
    torch.testing.assert_close(again, found)


def test_fits_keep_half_of_the_variance_with_half_of_the_anchors():
    made = basis((16, 16))
    filters = torch.randn(200, 256, generator=seeded(5))
    assert abs((made.fitted(filters) @ made.functions()).var().item() - 0.5) < 0.02


def test_fits_do_without_what_hardly_changes_filters():
    """Exact fits of noise by as many anchors as pixels need values of hundreds."""
    made = basis((8, 8), BasisOptions(1.0), seed=2)
    filters = torch.randn(50, 64, generator=seeded(5))
    exact = oracle.nearest_values(made.functions().numpy(), filters.numpy())
    found = made.fitted(filters)
    assert np.abs(exact).max() > 50
    assert found.abs().max() < 20
    assert (found @ made.functions() - filters).square().mean() < 0.3


@pytest.mark.parametrize("options", [BasisOptions(), LEARNED])
def test_a_basis_can_be_made_without_memory_and_filled_later(options: BasisOptions):
    with torch.device("meta"):
        made = FilterBasis((32, 32), options)
    assert made.anchors.shape == (512, 2)
    assert made.functions().shape == (512, 1024)
    assert made.functions().is_meta
    wanted = basis((32, 32), options)
    made.to_empty(device="cpu").load_state_dict(wanted.state_dict())
    assert torch.equal(made.functions(), wanted.functions())
