"""Spectra from roots of few rows: those of the factors, and what lies along their eigenvectors."""

from __future__ import annotations

import pytest
import torch

from isotropy.curvature.blocks import (
    DenseRoots,
    DiagonalRoots,
    KroneckerRoots,
    Roots,
    decomposed,
    spectra_of_roots,
    squares_along,
)

COUNT = 7


def _rows(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# groups, rows of inputs and outputs, in, out: thick, thin in one factor or both, shared factors
KRONECKER = [
    ((2, 9, 4), (2, 8, 3)),
    ((2, 3, 6), (2, 8, 3)),
    ((1, 9, 4), (1, 2, 5)),
    ((3, 2, 6), (1, 3, 5)),
    ((1, 2, 6), (3, 9, 5)),
]
CASES: list[Roots] = [
    *(KroneckerRoots(_rows(*inputs), _rows(*outputs, seed=1)) for inputs, outputs in KRONECKER),
    DenseRoots(_rows(9, 4)),
    DenseRoots(_rows(3, 5)),
    DiagonalRoots(_rows(3, 5)),
]


def _halves(root: Roots) -> list[dict[str, Roots]]:
    """The same rows in two batches."""
    if isinstance(root, KroneckerRoots):
        pairs = zip(root.inputs.tensor_split(2, 1), root.outputs.tensor_split(2, 1), strict=True)
        return [{"block": KroneckerRoots(inputs, outputs)} for inputs, outputs in pairs]
    return [{"block": type(root)(rows)} for rows in root.rows.tensor_split(2)]


@pytest.mark.parametrize("root", CASES, ids=lambda root: type(root).__name__)
def test_eigenvalues_are_those_of_the_factors(root: Roots) -> None:
    found = spectra_of_roots(_halves(root), COUNT)["block"].eigenvalues()
    wanted = root.factors().spectrum(COUNT).eigenvalues()
    torch.testing.assert_close(found.sort().values, wanted.sort().values, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("root", CASES, ids=lambda root: type(root).__name__)
def test_weights_along_eigenvectors(root: Roots) -> None:
    """Σ w² f(h) = wᵀ f(H) w for a function of the block, and nothing of w is lost."""
    dense = root.factors().dense(COUNT)
    weight = _rows(len(dense) * dense.shape[1], seed=2)
    spectrum = spectra_of_roots([{"block": root}], COUNT)["block"]
    squares, values = squares_along(spectrum, weight), spectrum.eigenvalues()
    assert squares.shape == values.shape
    assert float(squares.sum()) == pytest.approx(float(weight.square().sum()))
    each = weight.view(len(dense), -1)
    identity = torch.eye(dense.shape[1], dtype=torch.float64)
    wanted = (each * torch.linalg.solve(dense + 0.3 * identity, each[..., None])[..., 0]).sum()
    assert float((squares / (values + 0.3)).sum()) == pytest.approx(float(wanted))


def test_rows_that_depend_on_each_other_do_no_harm() -> None:
    row = _rows(1, 6)
    values, vectors = decomposed(torch.cat([row, row, torch.zeros(1, 6)]).double())
    assert values.max() == pytest.approx(2 * float(row.square().sum()))
    assert vectors.isfinite().all() and values.shape == (6,)
    lengths = vectors.norm(dim=0)
    assert int((lengths > 0.5).sum()) == 1 and lengths.max() == pytest.approx(1.0)
