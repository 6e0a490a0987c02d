"""Curvature blocks: spectra, log-determinants and their gradients, against dense matrices."""

from __future__ import annotations

import hypothesis
import pytest
import torch
from hypothesis import strategies
from network_cases import assert_equal, relative_difference
from torch import Tensor

from isotropy.curvature.blocks import (
    DenseFactors,
    DenseRoots,
    Factors,
    KroneckerFactors,
    KroneckerRoots,
    Roots,
)
from isotropy.kernels.fused import reference_path

COUNT = 5


def numbers(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def repeated(size: int) -> Tensor:
    """Root of the identity: all eigenvalues the same, where autograd through eigh fails."""
    return torch.eye(size, dtype=torch.float64)[None]


ROOTS: dict[str, Roots] = {
    "kronecker": KroneckerRoots(numbers(1, 7, 3), numbers(1, 9, 2, seed=1)),
    "kronecker, groups": KroneckerRoots(numbers(3, 7, 2), numbers(3, 9, 4, seed=1)),
    "kronecker, rank one": KroneckerRoots(numbers(1, 1, 3), numbers(1, 1, 2, seed=1)),
    "kronecker, repeated": KroneckerRoots(repeated(3), repeated(2)),
    "kronecker, zero": KroneckerRoots(torch.zeros(1, 4, 3).double(), numbers(1, 9, 2)),
    "dense": DenseRoots(numbers(9, 4)),
    "dense, rank one": DenseRoots(numbers(1, 4)),
    "dense, repeated": DenseRoots(repeated(4)[0]),
    "dense, scalar": DenseRoots(numbers(6, 1)),
}
SCALES = ((1.0, 1.0), (2.5, 0.3), (1e4, 1e-3))


def tensors(factors: Factors) -> tuple[Tensor, ...]:
    return factors.tensors()


def dense_log_determinant(factors: Factors, scale: Tensor, precision: Tensor) -> Tensor:
    block = factors.dense(COUNT)
    identity = torch.eye(block.shape[-1], dtype=torch.float64)
    return torch.linalg.slogdet(scale * block + precision * identity).logabsdet.sum()


@pytest.fixture(params=ROOTS)
def factors(request: pytest.FixtureRequest) -> Factors:
    return ROOTS[request.param].factors()


def test_dense_is_the_kronecker_product_with_outputs_slow():
    factors = ROOTS["kronecker, groups"].factors()
    assert isinstance(factors, KroneckerFactors)
    for group in range(3):
        product = torch.kron(factors.outputs[group], factors.inputs[group]) / COUNT
        assert_equal(factors.dense(COUNT)[group], product, "block")
        other_order = torch.kron(factors.inputs[group], factors.outputs[group]) / COUNT
        assert relative_difference(factors.dense(COUNT)[group], other_order) > 0.1


@pytest.mark.parametrize("name", ROOTS)
def test_factors_are_the_rows_added_up(name: str):
    roots = ROOTS[name]
    for root, factor in zip(roots.tensors(), tensors(roots.factors()), strict=True):
        rows = root.reshape(-1, root.shape[-2], root.shape[-1])
        for group, matrix in zip(rows, factor.reshape(-1, *factor.shape[-2:]), strict=True):
            assert_equal(matrix, sum(torch.outer(row, row) for row in group), name)


@pytest.mark.parametrize("name", ROOTS)
def test_factors_add(name: str):
    roots = ROOTS[name]
    total = roots.factors() + roots.factors()  # type: ignore[operator]
    for sum_, one in zip(tensors(total), tensors(roots.factors()), strict=True):
        assert_equal(sum_, 2 * one, name)


def test_a_dense_block_does_not_depend_on_the_count():
    factors = ROOTS["dense"].factors()
    assert torch.equal(factors.dense(1), factors.dense(100))
    assert torch.equal(factors.spectrum(1).eigenvalues(), factors.spectrum(100).eigenvalues())


def test_eigenvalues_are_those_of_the_dense_block(factors: Factors):
    found = factors.spectrum(COUNT).eigenvalues().sort().values
    expected = torch.linalg.eigvalsh(factors.dense(COUNT)).clamp_min(0).flatten().sort().values
    assert_equal(found, expected, "eigenvalues")


@pytest.mark.parametrize(("scale", "precision"), SCALES)
def test_log_determinant(factors: Factors, scale: float, precision: float):
    arguments = torch.tensor(scale).double(), torch.tensor(precision).double()
    found = factors.spectrum(COUNT).log_determinant(*arguments)
    # Dense blocks have a condition number of up to 10⁷ here.
    expected = dense_log_determinant(factors, *arguments)
    assert_equal(found, expected, "log-determinant", tolerance=1e-8)


@pytest.mark.parametrize(("scale", "precision"), SCALES)
@pytest.mark.parametrize("name", ROOTS)
def test_pullback_is_autograd_through_the_dense_block(name: str, scale: float, precision: float):
    factors = ROOTS[name].factors()
    arguments = torch.tensor(scale).double(), torch.tensor(precision).double()
    leaves = [tensor.clone().requires_grad_() for tensor in tensors(factors)]
    value = dense_log_determinant(type(factors)(*leaves), *arguments)
    expected = torch.autograd.grad(value, leaves)
    found = factors.spectrum(COUNT).pullback(*arguments)
    for ours, autograd in zip(found, expected, strict=True):
        assert_equal(ours, autograd, name, tolerance=1e-8)


@pytest.mark.parametrize("name", ROOTS)
def test_log_determinant_is_differentiable_in_scale_and_precision(name: str):
    spectrum = ROOTS[name].factors().spectrum(COUNT)
    arguments = [torch.tensor(value).double().requires_grad_() for value in (1.5, 0.4)]
    assert torch.autograd.gradcheck(spectrum.log_determinant, arguments)


def test_effective_parameters_are_a_trace(factors: Factors):
    scale, precision = torch.tensor(2.0).double(), torch.tensor(0.5).double()
    found = factors.spectrum(COUNT).effective_parameters(scale, precision)
    block = scale * factors.dense(COUNT)
    identity = torch.eye(block.shape[-1], dtype=torch.float64)
    shrink = torch.linalg.solve(block + precision * identity, block)
    expected = shrink.diagonal(dim1=-2, dim2=-1).sum()
    assert_equal(found, expected, "effective parameters")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_spectra_are_in_double_precision(dtype: torch.dtype):
    for roots in ROOTS.values():
        low = type(roots)(*(tensor.to(dtype) for tensor in roots.tensors()))
        spectrum = low.factors().spectrum(COUNT)
        assert spectrum.eigenvalues().dtype == torch.float64
        one = torch.ones((), dtype=torch.float64)
        assert all(matrix.dtype == torch.float64 for matrix in spectrum.pullback(one, one))


def test_rounding_below_zero_is_cut_off():
    """A factor that rounding left slightly indefinite has no negative eigenvalues."""
    indefinite = torch.diag(torch.tensor([1.0, -1e-9])).double()
    for factors in (DenseFactors(indefinite), KroneckerFactors(indefinite[None], indefinite[None])):
        values = factors.spectrum(1).eigenvalues()
        assert float(values.min()) == 0.0
        tiny = torch.tensor(1e-12).double()
        assert bool(torch.isfinite(factors.spectrum(1).log_determinant(tiny * 0 + 1, tiny)))


@hypothesis.given(
    seed=strategies.integers(0, 10_000),
    rows=strategies.integers(1, 5),
    factor=strategies.floats(0.1, 10),
    precision=strategies.floats(1e-2, 1e2),
)
def test_scaling_the_block_is_scaling_the_curvature(
    seed: int, rows: int, factor: float, precision: float
):
    """log|s H + δ| depends on s H only, wherever the factor s is put."""
    roots = KroneckerRoots(numbers(2, rows, 3, seed=seed), numbers(2, rows, 2, seed=seed + 1))
    larger = KroneckerRoots(roots.inputs * factor**0.5, roots.outputs)
    one, delta = torch.ones((), dtype=torch.float64), torch.tensor(precision).double()
    found = larger.factors().spectrum(COUNT).log_determinant(one, delta)
    expected = roots.factors().spectrum(COUNT).log_determinant(one * factor, delta)
    assert_equal(found, expected, "log-determinant", tolerance=1e-9)


@hypothesis.given(seed=strategies.integers(0, 10_000), precision=strategies.floats(1e-2, 1e2))
def test_more_curvature_is_a_larger_determinant(seed: int, precision: float):
    base = KroneckerRoots(numbers(1, 4, 3, seed=seed), numbers(1, 4, 2, seed=seed + 1)).factors()
    more = KroneckerRoots(numbers(1, 2, 3, seed=seed + 2), numbers(1, 2, 2, seed=seed + 3))
    one, delta = torch.ones((), dtype=torch.float64), torch.tensor(precision).double()
    low = base.spectrum(COUNT).log_determinant(one, delta)
    high = (base + more.factors()).spectrum(COUNT).log_determinant(one, delta)
    assert high >= low - 1e-9
    assert 6 * delta.log() <= low + 1e-9  # the prior's own, without any data


@pytest.mark.parametrize("size", [513, 700])
def test_a_large_gram_matrix_is_formed_by_halves(size: int) -> None:
    """The same in strips, exactly symmetric; what is differentiated is one piece."""
    rows = numbers(2, 600, size)
    found = KroneckerRoots(rows, rows).factors().inputs
    with reference_path():
        expected = KroneckerRoots(rows, rows).factors().inputs
    torch.testing.assert_close(found, expected)
    assert torch.equal(found, found.mT)
    assert DenseRoots(rows[0].requires_grad_()).factors().matrix.requires_grad


@pytest.mark.parametrize("name", ROOTS)
def test_a_pullback_in_single_precision(name: str) -> None:
    spectrum = ROOTS[name].factors().spectrum(COUNT)
    one = torch.ones((), dtype=torch.float64)
    for single, double in zip(
        spectrum.pullback(one, one, torch.float32), spectrum.pullback(one, one), strict=True
    ):
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=1e-6)
