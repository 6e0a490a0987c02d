"""Kronecker blocks that share one factor: the same as blocks with copies of it, and dense ones.

Several A with one G, and one A with several G. The oracle is `torch.kron` block by block, and
autograd through `slogdet`; `shared` and `repeated` hold the same blocks.
"""

from __future__ import annotations

import pytest
import torch
from network_cases import assert_equal, relative_difference
from torch import Tensor

from isotropy.curvature.blocks import KroneckerRoots, KroneckerSpectrum
from isotropy.evidence.predictive import covariance_root

COUNT, GROUPS = 5, 3
SCALES = ((1.0, 1.0), (2.5, 0.3), (1e4, 1e-3))


def numbers(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


SHARED = {
    "one G": KroneckerRoots(numbers(GROUPS, 7, 4), numbers(1, 9, 2, seed=1)),
    "one A": KroneckerRoots(numbers(1, 7, 4), numbers(GROUPS, 9, 2, seed=1)),
    "one G, rank one": KroneckerRoots(numbers(GROUPS, 1, 4), numbers(1, 1, 2, seed=1)),
    "one A, an empty block": KroneckerRoots(
        numbers(1, 7, 4),
        numbers(GROUPS, 9, 2, seed=1) * torch.tensor([1.0, 0.0, 2.0])[:, None, None],
    ),
}


@pytest.fixture(params=SHARED)
def roots(request: pytest.FixtureRequest) -> KroneckerRoots:
    return SHARED[request.param]


def repeated(roots: KroneckerRoots) -> KroneckerRoots:
    """The same blocks, each with a copy of what they share."""
    return KroneckerRoots(*(root.expand(GROUPS, -1, -1).clone() for root in roots.tensors()))


def numbers_of(scale: float, precision: float) -> tuple[Tensor, Tensor]:
    return torch.tensor(scale).double(), torch.tensor(precision).double()


def written_out(inputs: Tensor, outputs: Tensor) -> Tensor:
    """(groups, out·in, out·in), a Kronecker product at a time."""
    groups = max(len(inputs), len(outputs))
    return torch.stack(
        [
            torch.kron(outputs[g % len(outputs)], inputs[g % len(inputs)]) / COUNT
            for g in range(groups)
        ]
    )


def log_determinant(block: Tensor, scale: Tensor, precision: Tensor) -> Tensor:
    identity = torch.eye(block.shape[-1], dtype=torch.float64)
    return torch.linalg.slogdet(scale * block + precision * identity).logabsdet.sum()


def test_dense(roots: KroneckerRoots) -> None:
    factors = roots.factors()
    assert {len(factors.inputs), len(factors.outputs)} == {1, GROUPS}
    assert_equal(factors.dense(COUNT), written_out(*factors.tensors()), "blocks")


def test_shared_is_repeated(roots: KroneckerRoots) -> None:
    found, expected = roots.factors(), repeated(roots).factors()
    assert_equal(found.dense(COUNT), expected.dense(COUNT), "blocks")
    # In the same order, too: parameters are found by it.
    values = found.spectrum(COUNT).eigenvalues()
    assert_equal(values, expected.spectrum(COUNT).eigenvalues(), "eigenvalues")
    assert len(values) == GROUPS * 4 * 2


@pytest.mark.parametrize(("scale", "precision"), SCALES)
def test_log_determinant(roots: KroneckerRoots, scale: float, precision: float) -> None:
    arguments = numbers_of(scale, precision)
    factors = roots.factors()
    found = factors.spectrum(COUNT).log_determinant(*arguments)
    expected = log_determinant(written_out(*factors.tensors()), *arguments)
    assert_equal(found, expected, "log-determinant", tolerance=1e-8)


@pytest.mark.parametrize(("scale", "precision"), SCALES)
def test_pullback_is_autograd_through_the_dense_blocks(
    roots: KroneckerRoots, scale: float, precision: float
) -> None:
    arguments = numbers_of(scale, precision)
    factors = roots.factors()
    leaves = [tensor.clone().requires_grad_() for tensor in factors.tensors()]
    expected = torch.autograd.grad(log_determinant(written_out(*leaves), *arguments), leaves)
    found = factors.spectrum(COUNT).pullback(*arguments)
    for ours, autograd in zip(found, expected, strict=True):
        assert_equal(ours, autograd, "pullback", tolerance=1e-8)


def test_a_shared_factor_hears_from_every_block(roots: KroneckerRoots) -> None:
    """Its pullback is the sum over the copies, and not that of any single one."""
    arguments = numbers_of(2.5, 0.3)
    found = roots.factors().spectrum(COUNT).pullback(*arguments)
    expected = repeated(roots).factors().spectrum(COUNT).pullback(*arguments)
    for ours, copies in zip(found, expected, strict=True):
        if len(ours) == 1:
            assert_equal(ours[0], copies.sum(0), "shared")
            assert all(relative_difference(ours[0], copy) > 0.1 for copy in copies)
        else:
            assert_equal(ours, copies, "of each block")


def test_effective_parameters_are_a_trace(roots: KroneckerRoots) -> None:
    scale, precision = numbers_of(2.0, 0.5)
    factors = roots.factors()
    block = scale * written_out(*factors.tensors())
    identity = torch.eye(block.shape[-1], dtype=torch.float64)
    shrink = torch.linalg.solve(block + precision * identity, block)
    found = factors.spectrum(COUNT).effective_parameters(scale, precision)
    assert_equal(found, shrink.diagonal(dim1=-2, dim2=-1).sum(), "effective parameters")


def test_batches_add_up(roots: KroneckerRoots) -> None:
    twice = roots.factors() + roots.factors()
    assert_equal(twice.dense(COUNT), 4 * roots.factors().dense(COUNT), "both factors doubled")


def test_posterior_covariance(roots: KroneckerRoots) -> None:
    """R Rᵀ = (s H + δ)⁻¹ for parameters (groups, out, in)."""
    scale, precision = numbers_of(2.5, 0.3)
    spectrum = roots.factors().spectrum(COUNT)
    assert isinstance(spectrum, KroneckerSpectrum)
    size = GROUPS * 4 * 2
    root = covariance_root(spectrum, scale, precision)(torch.eye(size, dtype=torch.float64))
    dense = torch.block_diag(*written_out(*roots.factors().tensors()))
    posterior = scale * dense + precision * torch.eye(size, dtype=torch.float64)
    assert_equal(root @ root.mT, torch.linalg.inv(posterior), "covariance", tolerance=1e-9)
