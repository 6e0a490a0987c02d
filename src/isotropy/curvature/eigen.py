"""Eigendecompositions of symmetric matrices, tried again where LAPACK does not converge.

    A = U diag(λ) Uᵀ        A (…, n, n), λ (…, n) in ascending order, U (…, n, n), all in float64

Divide and conquer, the method behind `torch.linalg.eigh`, fails on rare matrices that are finite
and well scaled. The one that was met is the input factor of a convolution of res2net: 1008 rows,
of which all but 111 are zero. It succeeds on nearly the same numbers, so further forms are tried
in turn:

    A                as it is
    A / s            s the largest entry, λ multiplied by it
    A / s + I        one subtracted from λ before that
    A on the CPU     by the QR method, and by relatively robust representations (scipy)

All of them are differentiable in A, as the first is, wherever eigenvalues differ. Only the lower
triangle of A is read. Oracles: numpy, and torch's own derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import scipy.linalg
import torch
from torch import Tensor

from isotropy.checks import CallerError

NOT_CONVERGED = (torch.linalg.LinAlgError, numpy.linalg.LinAlgError)  # type: ignore[attr-defined]
DRIVERS = ("ev", "evr")
"""LAPACK's other methods, by their names in scipy: QR, relatively robust representations."""
ADVICE = (
    "lower the learning rate, rescale the inputs, or take another curvature, such as diagonal-ggn"
)


class EigenError(CallerError):
    """A matrix without eigenvalues: not finite, or beyond every method."""


def eigenpairs(matrix: Tensor, *, what: str = "the matrix") -> tuple[Tensor, Tensor]:
    """λ (…, n) and U (…, n, n) of a symmetric matrix.

    what: how error messages call the matrix
    Raises CallerError if it is not finite, or if no method converges.
    """
    matrix = _checked(matrix, what)
    for attempt in _ATTEMPTS:
        try:
            return attempt(matrix)
        except NOT_CONVERGED:
            continue
    raise EigenError(_unsolved(matrix, what))


def eigenvalues(matrix: Tensor, *, what: str = "the matrix") -> Tensor:
    """λ (…, n) alone, which is faster; otherwise as `eigenpairs`."""
    checked = _checked(matrix, what)
    try:
        return torch.linalg.eigvalsh(checked)
    except NOT_CONVERGED:
        return eigenpairs(checked, what=what)[0]


@contextmanager
def of_block(name: str) -> Iterator[None]:
    """Have errors of eigendecompositions name the block of curvature that they are of."""
    try:
        yield
    except EigenError as error:
        raise CallerError(f"the curvature of {name!r}: {error}") from error


def _checked(matrix: Tensor, what: str) -> Tensor:
    matrix = matrix.double()
    if not bool(torch.isfinite(matrix).all()):
        count = int((~torch.isfinite(matrix)).sum())
        raise EigenError(
            f"{what} to decompose: expected finite numbers, got {count} of {matrix.numel()} that "
            f"are NaN or infinite; {ADVICE}"
        )
    return matrix


def _unsolved(matrix: Tensor, what: str) -> str:
    size, largest = matrix.shape[-1], float(matrix.detach().abs().max())
    return (
        f"{what} to decompose: expected eigenvalues, got none by any method for {size} rows with "
        f"entries up to {largest:.3g}; {ADVICE}"
    )


def _as_it_is(matrix: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(matrix)
    return values, vectors


def _scaled(matrix: Tensor, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    """From A / s + shift · I; a matrix of zeros is not scaled."""
    size = matrix.detach().abs().amax((-2, -1), keepdim=True)
    size = torch.where(size > 0, size, torch.ones_like(size))
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    values, vectors = torch.linalg.eigh(matrix / size + shift * identity)
    return (values - shift) * size[..., 0], vectors


class _OnCPU(torch.autograd.Function):
    """One matrix after the other on the CPU, by a method of scipy."""

    @staticmethod
    def forward(context: Any, matrix: Tensor, driver: str) -> tuple[Tensor, Tensor]:
        size = matrix.shape[-1]
        plain = matrix.detach().cpu().reshape(-1, size, size).numpy()
        found = [scipy.linalg.eigh(each, driver=driver) for each in plain]
        values = torch.stack([torch.from_numpy(own) for own, _ in found])
        vectors = torch.stack([torch.from_numpy(own) for _, own in found])
        values = values.view(matrix.shape[:-1]).to(matrix)
        vectors = vectors.view(matrix.shape).to(matrix)
        context.save_for_backward(values, vectors)
        return values, vectors

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """U (diag(∂λ) + (Uᵀ∂U) / (λ_j − λ_i)) Uᵀ, without the diagonal of the second term."""
        values, vectors = context.saved_tensors
        of_values, of_vectors = gradients
        apart = values[..., None, :] - values[..., :, None]
        apart.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
        inner = vectors.mT @ of_vectors / apart + torch.diag_embed(of_values)
        return vectors @ inner @ vectors.mT, None


def _by(driver: str) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    def attempt(matrix: Tensor) -> tuple[Tensor, Tensor]:
        values, vectors = _OnCPU.apply(matrix, driver)
        return values, vectors

    return attempt


_ATTEMPTS: tuple[Callable[[Tensor], tuple[Tensor, Tensor]], ...] = (
    _as_it_is,
    _scaled,
    lambda matrix: _scaled(matrix, 1.0),
    *map(_by, DRIVERS),
)
