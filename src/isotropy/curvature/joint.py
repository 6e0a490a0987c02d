"""One block over several parameter tensors: the full curvature, and that of a last layer.

    log|s H + diag(δ)|        δ repeats each tensor's own prior precision over its entries

Precisions that differ between tensors do not commute with H, so that eigenvalues of H alone do not
help; a Cholesky factorisation in float64 is made for every value asked for. The matrix has
(parameters)² entries: for networks of a few thousand parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

JOINT = "(joint)"
"""The name of the one block in roots, factors and spectra."""


@dataclass(frozen=True)
class JointRoots:
    """Root of the block: `rows` (rows, parameters); sizes of the tensors, in order."""

    rows: Tensor
    sizes: Mapping[str, int]

    def factors(self) -> JointFactors:
        """H of these rows."""
        return JointFactors(self.rows.mT @ self.rows, self.sizes)

    def tensors(self) -> tuple[Tensor, ...]:
        """The root, as `JointSpectrum.pullback` orders it."""
        return (self.rows,)

    def detach(self) -> JointRoots:
        """The same root, constant."""
        return JointRoots(self.rows.detach(), self.sizes)


@dataclass(frozen=True)
class JointFactors:
    """H (parameters, parameters), summed over examples."""

    matrix: Tensor
    sizes: Mapping[str, int]

    def __add__(self, other: JointFactors) -> JointFactors:
        return JointFactors(self.matrix + other.matrix, self.sizes)

    def tensors(self) -> tuple[Tensor, ...]:
        """H."""
        return (self.matrix,)

    def spectrum(self, count: int) -> JointSpectrum:
        """The block as the evidence uses it."""
        del count  # a plain sum over examples
        matrix = self.matrix.double()
        return JointSpectrum((matrix + matrix.mT) / 2, self.sizes)

    def dense(self, count: int) -> Tensor:
        """The block itself, (1, parameters, parameters)."""
        del count
        return self.matrix[None]


@dataclass(frozen=True)
class JointSpectrum:
    """H with what a log-determinant needs; precisions come as one entry a parameter."""

    matrix: Tensor
    sizes: Mapping[str, int]

    def repeated(self, precisions: Mapping[str, Tensor]) -> Tensor:
        """δ (parameters,): each tensor's precision over its entries."""
        return torch.cat([precisions[name].expand(size) for name, size in self.sizes.items()])

    def posterior_precision(self, scale: Tensor, precision: Tensor) -> Tensor:
        """s H + diag(δ)."""
        return scale * self.matrix + torch.diag(precision)

    def log_determinant(self, scale: Tensor, precision: Tensor) -> Tensor:
        """log|s H + diag(δ)|, differentiable in both."""
        factor = torch.linalg.cholesky(self.posterior_precision(scale, precision))
        return 2 * factor.diagonal().log().sum()

    def pullback(
        self, scale: Tensor, precision: Tensor, dtype: torch.dtype = torch.float64
    ) -> tuple[Tensor, ...]:
        """s (s H + diag(δ))⁻¹, the derivative of the log-determinant by H, in `dtype`."""
        factor = torch.linalg.cholesky(self.posterior_precision(scale, precision))
        return ((scale * torch.cholesky_inverse(factor)).to(dtype),)

    def effective_parameters(self, scale: Tensor, precision: Tensor) -> Tensor:
        """γ = tr[s H (s H + diag(δ))⁻¹]: how many parameters the data determines."""
        factor = torch.linalg.cholesky(self.posterior_precision(scale, precision))
        return (torch.cholesky_inverse(factor) * (scale * self.matrix)).sum()
