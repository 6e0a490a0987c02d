"""Spectra from the roots of all batches, where the examples are fewer than the rows of a factor.

A root X (rows, n) with rows < n has a Gram matrix XᵀX of rank at most `rows`. Its eigenvalues are
those of XXᵀ and zeros, and its eigenvectors the rows of X turned: nothing of size n × n is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.curvature.blocks import (
    DenseSpectrum,
    DiagonalRoots,
    DiagonalSpectrum,
    KroneckerRoots,
    KroneckerSpectrum,
    PiecewiseRoots,
    PiecewiseSpectrum,
    Roots,
    Spectrum,
)
from isotropy.curvature.eigen import eigenpairs, of_block


def spectra_of_roots(roots: Sequence[Mapping[str, Roots]], count: int) -> dict[str, Spectrum]:
    """The spectrum of every block, from the roots of all batches of `count` examples."""
    found = {}
    for name in roots[0]:
        with of_block(name):
            found[name] = _spectrum([batch[name] for batch in roots], count)
    return found


def _spectrum(parts: Sequence[Roots], count: int) -> Spectrum:
    if isinstance(parts[0], DiagonalRoots):
        squares = [root.double().square().sum(0) for part in parts for root in part.tensors()]
        return DiagonalSpectrum(torch.stack(squares).sum(0))
    if isinstance(parts[0], PiecewiseRoots):
        split = [part.pieces for part in parts if isinstance(part, PiecewiseRoots)]
        found = [_kronecker_spectrum(own, count) for own in zip(*split, strict=True)]
        return PiecewiseSpectrum(tuple(found), parts[0].spans)
    if isinstance(parts[0], KroneckerRoots):
        return _kronecker_spectrum(parts, count)
    return DenseSpectrum(*decomposed(torch.cat([p.tensors()[0] for p in parts], -2)))


def _kronecker_spectrum(parts: Sequence[Roots], count: int) -> KroneckerSpectrum:
    roots = [torch.cat(each, -2) for each in zip(*(p.tensors() for p in parts), strict=True)]
    inputs, outputs = roots
    of_inputs = decomposed(inputs.double() / count**0.5)
    return KroneckerSpectrum(*decomposed(outputs), *of_inputs, count)


def decomposed(root: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (…, n) and eigenvectors (…, n, min(rows, n)) of XᵀX, X (…, rows, n)."""
    rows, size = root.shape[-2:]
    if rows >= size:
        values, vectors = eigenpairs(root.mT @ root, what="a factor")
        return values.clamp_min(0.0), vectors
    root = root.double()
    values, turns = eigenpairs(root @ root.mT, what="a factor")
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
    if isinstance(spectrum, PiecewiseSpectrum):
        split = zip(spectrum.pieces, spectrum.split(weight), strict=True)
        return torch.cat([squares_along(piece, matrix) for piece, matrix in split])
    if isinstance(spectrum, KroneckerSpectrum):
        outer, inner = spectrum.output_vectors, spectrum.input_vectors
    elif isinstance(spectrum, DenseSpectrum):
        outer, inner = spectrum.vectors[None], weight.new_ones(1, 1, 1)
    else:
        return weight.flatten().square()
    if not outer.numel() or not inner.numel():
        raise CallerError("expected a fit with eigenvectors, got one of eigenvalues alone")
    matrix = weight.reshape(max(len(outer), len(inner)), outer.shape[1], inner.shape[1])
    found = (outer.mT @ matrix @ inner).square()
    along = matrix.new_zeros(matrix.shape)
    along[:, : found.shape[1], : found.shape[2]] = found
    rest = (matrix.square().sum((1, 2)) - found.sum((1, 2))).clamp_min(0.0)
    if found.shape[2] < matrix.shape[2]:
        along[:, 0, found.shape[2]] = rest
    elif found.shape[1] < matrix.shape[1]:
        along[:, found.shape[1], 0] = rest
    return along.flatten()
