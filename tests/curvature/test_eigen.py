"""Eigendecompositions that are tried again: against numpy, torch's derivative, and sentences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch
from learn_runs import CONFIG, bar_tensors, small_network
from network_cases import assert_equal
from numerics import numbers
from torch import Tensor

import isotropy
from isotropy.checks import CallerError
from isotropy.curvature import eigen, low_rank
from isotropy.curvature.blocks import DenseRoots, KroneckerRoots, all_factors, all_spectra
from isotropy.curvature.eigen import eigenpairs, eigenvalues
from isotropy.curvature.thin_spectra import spectra_of_roots

EIGH = torch.linalg.eigh
ALL = len(eigen._ATTEMPTS)
BY_TORCH = ALL - len(eigen.DRIVERS)


def failing(count: int) -> Callable[..., Any]:
    """torch's eigh, which does not converge the first `count` times that it is called."""
    calls = [0]

    def eigh(*given: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] <= count:
            raise torch.linalg.LinAlgError("linalg.eigh: The algorithm failed to converge")
        return EIGH(*given, **named)

    return eigh


def symmetric(*shape: int, seed: int = 0) -> Tensor:
    found = numbers(*shape, shape[-1], seed=seed)
    return found + found.mT


def mostly_zero() -> Tensor:
    """Like the factor that failed: rows of some places of a filter, and zeros."""
    root = numbers(5, 40)
    root[:, 4:] = 0
    return root.mT @ root


MATRICES = {
    "one": symmetric(6),
    "a stack": symmetric(3, 2, 5),
    "mostly zero": mostly_zero(),
    "zero": torch.zeros(4, 4).double(),
    "small numbers": 1e-200 * symmetric(5, seed=3),
    "large numbers": 1e200 * symmetric(5, seed=4),
    "float32": symmetric(5, seed=5).float(),
}


@pytest.mark.parametrize("attempt", range(ALL))
@pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
def test_eigenpairs(matrix: Tensor, attempt: int) -> None:
    """Every form gives the eigenvalues that numpy does, and vectors that rebuild the matrix."""
    values, vectors = eigen._ATTEMPTS[attempt](matrix.double())
    assert values.dtype == vectors.dtype == torch.float64
    size = float(matrix.double().abs().max()) or 1.0
    expected = torch.from_numpy(numpy.linalg.eigvalsh(matrix.double().numpy()))
    assert_equal(values / size, expected / size, "eigenvalues", 1e-12)
    rebuilt = (vectors * (values / size)[..., None, :]) @ vectors.mT
    assert_equal(rebuilt, matrix.double() / size, "matrix", 1e-12)
    identity = torch.eye(matrix.shape[-1]).double().expand_as(vectors)
    assert_equal(vectors.mT @ vectors, identity, "orthonormal vectors", 1e-12)


@pytest.mark.parametrize("failures", [0, 1, 2, BY_TORCH])
def test_what_does_not_converge_is_tried_again(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = symmetric(3, 7)
    monkeypatch.setattr(torch.linalg, "eigh", failing(failures))
    values, vectors = eigenpairs(matrix)
    assert_equal((vectors * values[..., None, :]) @ vectors.mT, matrix, "matrix", 1e-12)


def test_the_other_methods_are_tried_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of scipy's fails as well, and the second gives the eigenvalues."""
    by_scipy = eigen.scipy.linalg.eigh
    asked: list[str] = []

    def eigh(matrix: Any, driver: str) -> Any:
        asked.append(driver)
        if driver == eigen.DRIVERS[0]:
            raise numpy.linalg.LinAlgError("no convergence")
        return by_scipy(matrix, driver=driver)

    monkeypatch.setattr(torch.linalg, "eigh", failing(1000))
    monkeypatch.setattr(eigen.scipy.linalg, "eigh", eigh)
    values, _ = eigenpairs(symmetric(4))
    assert asked == list(eigen.DRIVERS)
    assert_equal(values, EIGH(symmetric(4)).eigenvalues, "eigenvalues", 1e-12)


def test_eigenvalues_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = eigenvalues(symmetric(2, 6))
    monkeypatch.setattr(torch.linalg, "eigvalsh", failing(1))
    monkeypatch.setattr(torch.linalg, "eigh", failing(1))
    assert_equal(eigenvalues(symmetric(2, 6)), expected, "eigenvalues", 1e-12)


@pytest.mark.parametrize("attempt", range(ALL))
def test_derivatives(attempt: int) -> None:
    """Of a function that signs of eigenvectors do not change; torch's own is the oracle."""
    matrix = symmetric(2, 5, seed=2)
    weights = numbers(2, 5, 5, seed=3)

    def value(decompose: Callable[[Tensor], Any], given: Tensor) -> Tensor:
        values, vectors = decompose((given + given.mT) / 2)
        return (values.exp().sum() + (weights * (vectors * vectors)).sum()).sin()

    slopes = []
    for decompose in (eigen._ATTEMPTS[attempt], EIGH):
        given = matrix.clone().requires_grad_()
        slopes += torch.autograd.grad(value(decompose, given), given)
    assert_equal(slopes[0], slopes[1], "gradient", 1e-10)
    start = matrix.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda given: value(eigen._ATTEMPTS[attempt], given), start)
    again = torch.autograd.gradgradcheck(
        lambda given: value(eigen._ATTEMPTS[attempt], given), start
    )
    assert again


@pytest.mark.parametrize("search", [False, True])
def test_a_run_goes_on(search: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every place of a run that decomposes a matrix is safe: it ends with the same evidence."""
    config = replace(CONFIG, search=search, search_examples=30)
    actions = isotropy.affine(("rotation",))

    def run() -> isotropy.LearnResult:
        data = bar_tensors()
        return isotropy.learn(
            small_network(), data, data, actions=actions, config=config, verdicts=2, calibrate=True
        )

    expected = run()
    monkeypatch.setattr(torch.linalg, "eigh", failing(10**6))
    monkeypatch.setattr(torch.linalg, "eigvalsh", failing(10**6))
    found = run()
    assert found.log_evidence == pytest.approx(expected.log_evidence, rel=1e-3)
    assert found.symmetries[0].high == pytest.approx(expected.symmetries[0].high, rel=1e-2)


# -- what cannot be decomposed ---------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("decompose", [eigenpairs, eigenvalues])
def test_numbers_that_are_not_finite(decompose: Callable[..., Any], bad: float) -> None:
    matrix = symmetric(3)
    matrix[1, 2] = bad
    sentence = "the kernel to decompose: expected finite numbers, got 1 of 9 .*; lower the learning"
    with pytest.raises(CallerError, match=sentence):
        decompose(matrix, what="the kernel")


def test_no_method_converges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.linalg, "eigh", failing(1000))
    monkeypatch.setattr(eigen, "_ATTEMPTS", eigen._ATTEMPTS[:BY_TORCH])
    with pytest.raises(CallerError, match="got none by any method for 4 rows .* diagonal-ggn"):
        eigenpairs(symmetric(4))


def _root(bad: float, *shape: int) -> Tensor:
    found = numbers(*shape)
    found[..., 0, 0] = bad
    return found


BLOCKS: dict[str, Callable[[], Any]] = {
    "a factor": lambda: all_spectra(
        all_factors({"0.weight": KroneckerRoots(_root(torch.nan, 1, 4, 3), numbers(1, 4, 2))}), 4
    ),
    "values alone": lambda: all_spectra(
        all_factors({"0.weight": DenseRoots(_root(torch.inf, 4, 3))}), 4, values_only=True
    ),
    "a large factor": lambda: all_factors({"0.weight": DenseRoots(_root(torch.nan, 30, 12))}),
    "few examples": lambda: spectra_of_roots(
        [{"0.weight": KroneckerRoots(_root(torch.nan, 1, 2, 3), numbers(1, 2, 2))}], 2
    ),
    "squares that overflow": lambda: spectra_of_roots(
        [{"0.weight": DenseRoots(_root(1e30, 4, 3).float())}], 4
    ),
}  # fmt: skip


@pytest.mark.parametrize("decompose", BLOCKS.values(), ids=BLOCKS)
def test_a_block_that_is_not_finite_is_named(
    decompose: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(low_rank, "LARGEST_EXACT", 10)
    monkeypatch.setattr(low_rank, "RANK", 6)
    with pytest.raises(CallerError, match=r"curvature of '0.weight': a factor .*; lower the learn"):
        decompose()
