"""Spectra of blocks from few examples: from roots with fewer rows than columns.

A factor XᵀX of n columns and r < n rows has n − r eigenvalues of zero. The others are those of the
r × r matrix XXᵀ, with the eigenvectors Xᵀu/√μ:

    eigenvalues (…, n), the last n − r of them zero        eigenvectors (…, n, r)

Values are those of `KroneckerFactors.spectrum` and the like, at r³ in place of n³ operations: for a
pathway that reads every pixel of 32 × 32, and some hundred examples, a hundredth. What lies along
eigenvectors of zero can be asked for in sum (`squares_along`); pullbacks need all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.curvature.kronecker import (
    DenseRoots,
    DenseSpectrum,
    DiagonalRoots,
    DiagonalSpectrum,
    KroneckerRoots,
    KroneckerSpectrum,
    Roots,
    Spectrum,
)


def spectra_of_roots(roots: Sequence[Mapping[str, Roots]], count: int) -> dict[str, Spectrum]:
    """The spectrum of every block, from the roots of all batches of `count` examples."""
    return {name: _spectrum([batch[name] for batch in roots], count) for name in roots[0]}


def _spectrum(parts: Sequence[Roots], count: int) -> Spectrum:
    first = parts[0]
    if isinstance(first, KroneckerRoots):
        inputs = torch.cat([part.inputs for part in parts if isinstance(part, KroneckerRoots)], 1)
        outputs = torch.cat([p.outputs for p in parts if isinstance(p, KroneckerRoots)], 1)
        of_inputs = decomposed(inputs.double() / count**0.5)
        return KroneckerSpectrum(*decomposed(outputs), *of_inputs, count)
    if isinstance(first, DenseRoots):
        rows = torch.cat([part.rows for part in parts if isinstance(part, DenseRoots)])
        return DenseSpectrum(*decomposed(rows))
    sums = [p.rows.double().square().sum(0) for p in parts if isinstance(p, DiagonalRoots)]
    return DiagonalSpectrum(torch.stack(sums).sum(0))


def decomposed(root: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (…, n) and eigenvectors (…, n, min(rows, n)) of XᵀX, X (…, rows, n)."""
    rows, size = root.shape[-2:]
    if rows >= size:
        values, vectors = torch.linalg.eigh((root.mT @ root).double())
        return values.clamp_min(0.0), vectors
    root = root.double()
    values, turns = torch.linalg.eigh(root @ root.mT)
    values = values.clamp_min(0.0)
    vectors = root.mT @ turns
    # Rounding leaves a root of zero where rows depend on each other; nothing lies along it.
    lengths = vectors.norm(dim=-2, keepdim=True)
    vectors = torch.where(lengths > 1e-12 * lengths.amax(-1, keepdim=True), vectors / lengths, 0.0)
    return torch.nn.functional.pad(values, (0, size - rows)), vectors


def squares_along(spectrum: Spectrum, weight: Tensor) -> Tensor:
    """w² along every eigenvector of a block, in the order of its `eigenvalues()`.

    What lies along eigenvectors of zero that were not found is added up, at one of them.
    """
    weight = weight.double()
    if isinstance(spectrum, KroneckerSpectrum):
        outer, inner = spectrum.output_vectors, spectrum.input_vectors
        if not outer.numel() or not inner.numel():
            raise CallerError("expected a fit with eigenvectors, got one of eigenvalues alone")
        groups = max(len(outer), len(inner))
        matrix = weight.reshape(groups, outer.shape[1], inner.shape[1])
        found = (outer.mT @ matrix @ inner).square()
        along = matrix.new_zeros(matrix.shape)
        along[:, : found.shape[1], : found.shape[2]] = found
        rest = (matrix.square().sum((1, 2)) - found.sum((1, 2))).clamp_min(0.0)
        if found.shape[2] < matrix.shape[2]:
            along[:, 0, found.shape[2]] = rest
        elif found.shape[1] < matrix.shape[1]:
            along[:, found.shape[1], 0] = rest
        return along.flatten()
    if isinstance(spectrum, DenseSpectrum):
        flat = weight.flatten()
        found = (spectrum.vectors.mT @ flat).square()
        along = torch.zeros_like(flat)
        along[: len(found)] = found
        if len(found) < len(flat):
            along[len(found)] = (flat.square().sum() - found.sum()).clamp_min(0.0)
        return along
    assert isinstance(spectrum, DiagonalSpectrum)
    return weight.flatten().square()
