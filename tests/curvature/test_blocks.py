"""Curvature blocks: factors, spectra, log-determinants and their gradients, against dense matrices.

Every root of `ROOTS` inherits all of it: blocks with factors of their own and with a shared one, of
full rank, of rank one and of no rank at all. The oracle is `torch.kron`, block by block, and
autograd through `slogdet`.
"""

from __future__ import annotations

import hypothesis
import pytest
import torch
from hypothesis import strategies
from network_cases import assert_equal, relative_difference
from numerics import doubles, numbers
from torch import Tensor

from isotropy.curvature.blocks import (
    DenseFactors,
    DenseRoots,
    DiagonalRoots,
    Factors,
    JointFactors,
    JointRoots,
    KroneckerFactors,
    KroneckerRoots,
    Roots,
)
from isotropy.curvature.thin_spectra import decomposed, spectra_of_roots, squares_along
from isotropy.evidence.predictive import covariance_root
from isotropy.kernels.fused import reference_path

COUNT = 5
SCALES = ((2.5, 0.3), (1e4, 1e-2))


def kronecker(inputs: tuple[int, int, int], outputs: tuple[int, int, int]) -> KroneckerRoots:
    """Roots of these shapes, (groups, rows, features)."""
    return KroneckerRoots(numbers(*inputs), numbers(*outputs, seed=1))


def identity(size: int) -> Tensor:
    """Root with all eigenvalues the same, where autograd through eigh fails."""
    return torch.eye(size, dtype=torch.float64)


SOME_EMPTY = numbers(3, 9, 2, seed=1) * torch.tensor([1.0, 0.0, 2.0])[:, None, None]
ROOTS: dict[str, Roots] = {
    "kronecker": kronecker((1, 7, 3), (1, 9, 2)),
    "kronecker, groups": kronecker((3, 7, 2), (3, 9, 4)),
    "kronecker, rank one": kronecker((1, 1, 3), (1, 1, 2)),
    "kronecker, repeated": KroneckerRoots(identity(3)[None], identity(2)[None]),
    "kronecker, zero": KroneckerRoots(torch.zeros(1, 4, 3).double(), numbers(1, 9, 2)),
    "one G": kronecker((3, 7, 4), (1, 9, 2)),
    "one A": kronecker((1, 7, 4), (3, 9, 2)),
    "one G, few rows": kronecker((3, 2, 6), (1, 3, 5)),
    "one A, few rows": kronecker((1, 2, 6), (3, 9, 5)),
    "one A, an empty block": KroneckerRoots(numbers(1, 7, 4), SOME_EMPTY),
    "dense": DenseRoots(numbers(9, 4)),
    "dense, rank one": DenseRoots(numbers(1, 4)),
    "dense, repeated": DenseRoots(identity(4)),
    "dense, scalar": DenseRoots(numbers(6, 1)),
    "diagonal": DiagonalRoots(numbers(3, 5)),
}


@pytest.fixture(params=ROOTS)
def roots(request: pytest.FixtureRequest) -> Roots:
    return ROOTS[request.param]


def written_out(roots: Roots, tensors: tuple[Tensor, ...] | None = None) -> Tensor:
    """The blocks (groups, p, p) of these factors, or of the rows added up one by one."""
    if tensors is None:
        tensors = tuple((root[..., None] * root[..., None, :]).sum(-3) for root in roots.tensors())
        if isinstance(roots, DiagonalRoots):
            tensors = (tensors[0].diagonal(),)
    if isinstance(roots, DiagonalRoots):
        return torch.diag(tensors[0])[None]
    if isinstance(roots, DenseRoots):
        return tensors[0][None]
    inputs, outputs = tensors
    groups = range(max(len(inputs), len(outputs)))
    pairs = [(outputs[g % len(outputs)], inputs[g % len(inputs)]) for g in groups]
    return torch.stack([torch.kron(*pair) / COUNT for pair in pairs])


def posterior(block: Tensor, scale: float, precision: float) -> Tensor:
    return scale * block + precision * identity(block.shape[-1])


def test_blocks_are_the_kronecker_products_with_outputs_slow(roots: Roots) -> None:
    assert_equal(roots.factors().dense(COUNT), written_out(roots), "blocks")


def test_the_other_order_is_noticed() -> None:
    factors = ROOTS["kronecker"].factors()
    assert isinstance(factors, KroneckerFactors)
    other = torch.kron(factors.inputs[0], factors.outputs[0]) / COUNT
    assert relative_difference(factors.dense(COUNT)[0], other) > 0.1


def test_factors_add(roots: Roots) -> None:
    total = roots.factors() + roots.factors()  # type: ignore[operator]
    for both, one in zip(total.tensors(), roots.factors().tensors(), strict=True):
        assert_equal(both, 2 * one, "sum")


def test_a_dense_block_does_not_depend_on_the_count() -> None:
    factors = ROOTS["dense"].factors()
    assert torch.equal(factors.dense(1), factors.dense(100))
    assert torch.equal(factors.spectrum(1).eigenvalues(), factors.spectrum(100).eigenvalues())


@pytest.mark.parametrize(("scale", "precision"), SCALES)
def test_log_determinant_and_its_pullback(roots: Roots, scale: float, precision: float) -> None:
    factors = roots.factors()
    leaves = tuple(tensor.clone().requires_grad_() for tensor in factors.tensors())
    matrix = posterior(written_out(roots, leaves), scale, precision)
    expected = torch.linalg.slogdet(matrix).logabsdet.sum()
    spectrum = factors.spectrum(COUNT)
    found = spectrum.log_determinant(*doubles(scale, precision))
    # Dense blocks have a condition number of up to 10⁷ here.
    assert_equal(found, expected.detach(), "log-determinant", 1e-8)
    gradients = torch.autograd.grad(expected, leaves)
    pullbacks = spectrum.pullback(*doubles(scale, precision))
    singles = spectrum.pullback(*doubles(scale, precision), torch.float32)
    for gradient, pullback, single in zip(gradients, pullbacks, singles, strict=True):
        assert_equal(pullback, gradient, "pullback", 1e-8)
        assert single.dtype == torch.float32
        assert_equal(single.double(), pullback, "in single precision", 1e-5)


def test_log_determinant_is_differentiable_in_scale_and_precision(roots: Roots) -> None:
    arguments = [value.requires_grad_() for value in doubles(1.5, 0.4)]
    assert torch.autograd.gradcheck(roots.factors().spectrum(COUNT).log_determinant, arguments)


def test_effective_parameters_are_a_trace(roots: Roots) -> None:
    found = roots.factors().spectrum(COUNT).effective_parameters(*doubles(2.0, 0.5))
    block = written_out(roots)
    shrink = torch.linalg.solve(posterior(block, 2.0, 0.5), 2.0 * block)
    assert_equal(found, shrink.diagonal(dim1=-2, dim2=-1).sum(), "effective parameters")


def test_posterior_covariance(roots: Roots) -> None:
    """R Rᵀ = (s H + δ)⁻¹ over all blocks."""
    matrix = torch.block_diag(*posterior(written_out(roots), 2.5, 0.3))
    spectrum = roots.factors().spectrum(COUNT)
    root = covariance_root(spectrum, *doubles(2.5, 0.3))(identity(len(matrix)))
    assert_equal(root @ root.mT, torch.linalg.inv(matrix), "covariance", 1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_spectra_are_in_double_precision(roots: Roots, dtype: torch.dtype) -> None:
    low = roots.with_tensors(tensor.to(dtype) for tensor in roots.tensors())
    spectrum = low.factors().spectrum(COUNT)
    assert spectrum.eigenvalues().dtype == torch.float64
    assert all(matrix.dtype == torch.float64 for matrix in spectrum.pullback(*doubles(1, 1)))


def test_rounding_below_zero_is_cut_off() -> None:
    """A factor that rounding left slightly indefinite has no negative eigenvalues."""
    indefinite = torch.diag(torch.tensor([1.0, -1e-9])).double()
    for factors in (DenseFactors(indefinite), KroneckerFactors(indefinite[None], indefinite[None])):
        assert float(factors.spectrum(1).eigenvalues().min()) == 0.0
        assert bool(torch.isfinite(factors.spectrum(1).log_determinant(*doubles(1, 1e-12))))


@hypothesis.given(
    seed=strategies.integers(0, 10_000),
    rows=strategies.integers(1, 5),
    factor=strategies.floats(0.1, 10),
    precision=strategies.floats(1e-2, 1e2),
)
def test_scale_and_more_curvature(seed: int, rows: int, factor: float, precision: float) -> None:
    """log|s H + δ| depends on s H alone, wherever the factor s is put, and grows with H."""
    roots = KroneckerRoots(numbers(2, rows, 3, seed=seed), numbers(2, rows, 2, seed=seed + 1))
    larger = KroneckerRoots(roots.inputs * factor**0.5, roots.outputs)

    def log_determinant(factors: Factors, scale: float) -> Tensor:
        return factors.spectrum(COUNT).log_determinant(*doubles(scale, precision))

    found, expected = (
        log_determinant(larger.factors(), 1.0),
        log_determinant(roots.factors(), factor),
    )
    assert_equal(found, expected, "log-determinant", tolerance=1e-9)
    assert log_determinant(larger.factors() + roots.factors(), 1.0) >= found - 1e-9
    assert 12 * doubles(precision)[0].log() <= found + 1e-9  # the prior's own, without any data


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


def test_joint_block_with_a_precision_for_each_tensor() -> None:
    rows, sizes = numbers(7, 5), {"first": 2, "second": 3}
    factors = JointRoots(rows, sizes).factors()
    spectrum = factors.spectrum(7)
    low, high, scale = doubles(0.25, 2.0, 1.7)
    repeated = spectrum.repeated({"first": low, "second": high})
    assert repeated.tolist() == [0.25, 0.25, 2.0, 2.0, 2.0]
    matrix = 1.7 * rows.T @ rows + torch.diag(repeated)
    assert_equal(spectrum.log_determinant(scale, repeated), torch.logdet(matrix), "log-det")
    gamma = torch.trace(1.7 * rows.T @ rows @ torch.linalg.inv(matrix))
    assert_equal(spectrum.effective_parameters(scale, repeated), gamma, "effective parameters")
    leaf = factors.matrix.clone().requires_grad_()
    value = JointFactors(leaf, sizes).spectrum(7).log_determinant(scale, repeated)
    (gradient,) = torch.autograd.grad(value, leaf)
    assert_equal(spectrum.pullback(scale, repeated)[0], gradient, "pullback")
    assert_equal((factors + factors).dense(7)[0], 2 * rows.T @ rows, "sum over batches")


# --- spectra from roots of few rows -------------------------------------------------------------


def halves(roots: Roots) -> list[dict[str, Roots]]:
    """The same rows in two batches."""
    pairs = zip(*(tensor.tensor_split(2, -2) for tensor in roots.tensors()), strict=True)
    return [{"block": roots.with_tensors(pair)} for pair in pairs]


def test_eigenvalues_are_those_of_the_dense_blocks(roots: Roots) -> None:
    """From factors and from roots, which may have fewer rows than columns."""
    expected = torch.linalg.eigvalsh(written_out(roots)).clamp_min(0).flatten().sort().values
    by_roots = spectra_of_roots(halves(roots), COUNT)["block"]
    for spectrum in (roots.factors().spectrum(COUNT), by_roots):
        assert_equal(spectrum.eigenvalues().sort().values, expected, "eigenvalues", 1e-9)


def test_weights_along_eigenvectors(roots: Roots) -> None:
    """Σ w² f(h) = wᵀ f(H) w for a function of the block, and nothing of w is lost."""
    dense = written_out(roots)
    weight = numbers(len(dense) * dense.shape[1], seed=2)
    spectrum = spectra_of_roots([{"block": roots}], COUNT)["block"]
    squares, values = squares_along(spectrum, weight), spectrum.eigenvalues()
    assert squares.shape == values.shape
    assert_equal(squares.sum(), weight.square().sum(), "all of w")
    each = weight.view(len(dense), -1)
    solved = torch.linalg.solve(posterior(dense, 1.0, 0.3), each[..., None])[..., 0]
    assert_equal((squares / (values + 0.3)).sum(), (each * solved).sum(), "wᵀ f(H) w")


def test_rows_that_depend_on_each_other_do_no_harm() -> None:
    row = numbers(1, 6)
    values, vectors = decomposed(torch.cat([row, row, torch.zeros(1, 6)]).double())
    assert values.max() == pytest.approx(2 * float(row.square().sum()))
    assert vectors.isfinite().all() and values.shape == (6,)
    lengths = vectors.norm(dim=0)
    assert int((lengths > 0.5).sum()) == 1 and lengths.max() == pytest.approx(1.0)
