"""Curvature blocks: from roots to factors to spectra to log-determinants and their gradients.

A parameter tensor has one block of the (approximate) GGN, in one of these forms:

    Kronecker    H = (1/N) G ⊗ A      weights of a layer, vec row-major (output index slow)
    dense        H                     biases and scalars
    diagonal     diag(h)               layers without a rule, and the diagonal curvature
    piecewise    one Kronecker block for each of several pieces of the tensor
    joint        H over several tensors: the full curvature, and that of a last layer

Layer rules deliver *roots*: matrices X whose rows add up to a factor, A = Σ XᵀX over batches.
A root is smaller than its factor for small batches, and it makes gradients cheap: the
derivative of ½⟨V, XᵀX⟩ by X is X V for symmetric V, one matrix product and no graph.

With eigenvalues λ of G, μ of A, output-curvature scale s and prior precision δ,

    log|H + δ I| = Σ_ij log(s λ_i μ_j / N + δ)          no damping, δ adds to the product
    ∂/∂G         = U diag_i( Σ_j s μ_j/N / (s λ_i μ_j/N + δ) ) Uᵀ        (likewise for A)

Grouped convolutions have one such block a group; `groups` is the first axis everywhere. Where one
of the two factors has only one group, all blocks share it (`fully_connected`).
Eigendecompositions run in float64: in lower precision they fail on ill-conditioned factors.

In a joint block each tensor keeps a prior precision of its own, repeated over its entries in δ:
log|s H + diag(δ)|. Different precisions do not commute with H, so eigenvalues of H alone do not
help; every value takes a Cholesky factorisation. H has (parameters)² entries: for networks of a
few thousand parameters.

A piece is a matrix (out, in) among the entries of its tensor, flattened: its columns lie in `spans`
(first, last), each with all rows of a part of the columns. A layer that commutes with a group has
one for each kind of irreducible part.

With few examples a root has r rows and n > r columns, and XᵀX has n − r eigenvalues of zero. The
others are those of the r × r matrix XXᵀ, with the eigenvectors Xᵀu/√μ (`spectra_of_roots`):

    eigenvalues (…, n), the last n − r of them zero        eigenvectors (…, n, r)

That takes r³ operations where the spectrum of the factor takes n³: a hundredth for a pathway that
reads every pixel of 32 × 32 and some hundred examples. What lies along eigenvectors of zero can be
asked for in sum (`squares_along`); pullbacks need all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from isotropy.curvature.eigen import eigenpairs, eigenvalues, of_block
from isotropy.curvature.low_rank import (
    Gram,
    LowRankGram,
    Pullback,
    conjugated,
    is_thin,
    without_rest,
)
from isotropy.kernels.fused import is_plain

JOINT = "(joint)"
"""The name of a joint block; others have that of their parameter."""


@dataclass(frozen=True)
class _Tensors:
    """A record of which some fields are tensors."""

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors, in the order of `Spectrum.pullback`."""
        return tuple(value for value in vars(self).values() if isinstance(value, Tensor))

    def with_tensors(self, tensors: Iterable[Tensor]) -> Self:
        """The same record of other tensors."""
        names = [name for name, value in vars(self).items() if isinstance(value, Tensor)]
        return replace(self, **dict(zip(names, tensors, strict=True)))


class _Roots(_Tensors):
    """Roots of one block."""

    def detach(self) -> Self:
        """The same roots, constant."""
        return self.with_tensors(tensor.detach() for tensor in self.tensors())


class _Factors(_Tensors):
    """Factors of one block, summed over examples."""

    def tensors(self) -> tuple[Tensor, ...]:
        grams = (v.root if isinstance(v, LowRankGram) else v for v in vars(self).values())
        return tuple(value for value in grams if isinstance(value, Tensor))

    def __add__(self, other: Self) -> Self:
        mine = {n: v for n, v in vars(self).items() if isinstance(v, Tensor | LowRankGram)}
        return replace(self, **{name: value + getattr(other, name) for name, value in mine.items()})


@dataclass(frozen=True)
class KroneckerRoots(_Roots):
    """Roots of A: `inputs` (groups, rows, in), and of G: `outputs` (groups, rows, out).

    With one group in one of them and more in the other, the one is shared by all blocks.
    """

    inputs: Tensor
    outputs: Tensor

    def factors(self) -> KroneckerFactors:
        """A and G of these rows."""
        return KroneckerFactors(_factor(self.inputs), _factor(self.outputs))


@dataclass(frozen=True)
class DenseRoots(_Roots):
    """Root of a dense block: `rows` (rows, parameters).

    output_of: the parameter whose Kronecker roots have these very rows as `outputs[0]`, if any. The
    bias of a layer without shared positions is such a case, and its factor, spectrum and
    gradient then come from its weight's at no cost.
    """

    rows: Tensor
    output_of: str | None = None

    def factors(self) -> DenseFactors:
        """H of these rows."""
        return DenseFactors(
            LowRankGram.of(self.rows[None]) if is_thin(self.rows) else _gram(self.rows)
        )


@dataclass(frozen=True)
class DiagonalRoots(_Roots):
    """Root of a diagonal block: `rows` (rows, parameters), h = Σ_rows rows²."""

    rows: Tensor

    def factors(self) -> DiagonalFactors:
        """h of these rows."""
        return DiagonalFactors(self.rows.square().sum(0))


Spans = tuple[tuple[int, int], ...]
"""Of the columns of one piece in the flattened tensor."""


class _Pieces(_Tensors):
    """A record of `pieces` that are records of tensors."""

    pieces: tuple[_Tensors, ...]

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(tensor for piece in self.pieces for tensor in piece.tensors())

    def with_tensors(self, tensors: Iterable[Tensor]) -> Self:
        left = iter(tensors)
        made = (p.with_tensors([next(left) for _ in p.tensors()]) for p in self.pieces)
        return replace(self, **{"pieces": tuple(made)})


@dataclass(frozen=True)
class PiecewiseRoots(_Pieces, _Roots):
    """Roots of the block of every piece, and where each lies."""

    pieces: tuple[KroneckerRoots, ...]
    spans: tuple[Spans, ...]

    def factors(self) -> PiecewiseFactors:
        """A and G of every piece."""
        return PiecewiseFactors(tuple(piece.factors() for piece in self.pieces), self.spans)


@dataclass(frozen=True)
class JointRoots(_Roots):
    """Root of the block: `rows` (rows, parameters); sizes of the tensors, in order."""

    rows: Tensor
    sizes: Mapping[str, int]

    def factors(self) -> JointFactors:
        """H of these rows."""
        return JointFactors(self.rows.mT @ self.rows, self.sizes)


Roots = KroneckerRoots | DenseRoots | DiagonalRoots | PiecewiseRoots | JointRoots


@dataclass(frozen=True)
class KroneckerFactors(_Factors):
    """A (groups, in, in) and G (groups, out, out), both summed over examples; large ones by their
    largest eigenvalues (`low_rank`)."""

    inputs: Gram
    outputs: Gram

    def spectrum(self, count: int, *, values_only: bool = False) -> KroneckerSpectrum:
        """Eigenvalues and eigenvectors after dividing A by the number of examples."""
        of_inputs = _decomposed(self.inputs, count, values_only)
        return KroneckerSpectrum(*_decomposed(self.outputs, 1, values_only), *of_inputs, count)

    def dense(self, count: int) -> Tensor:
        """The block written out, (groups, out·in, out·in); for small layers and tests."""
        entering, leaving = _written_out(self.inputs), _written_out(self.outputs)
        size = entering.shape[1] * leaving.shape[1]
        outer, inner = torch.broadcast_tensors(
            leaving[:, :, None, :, None], (entering / count)[:, None, :, None, :]
        )
        return (outer * inner).reshape(-1, size, size)


@dataclass(frozen=True)
class DenseFactors(_Factors):
    """A dense block H (parameters, parameters), summed over examples.

    output_of: the parameter whose output factor this is too, as in `DenseRoots`.
    """

    matrix: Gram
    output_of: str | None = None

    def spectrum(self, count: int, *, values_only: bool = False) -> DenseSpectrum:
        del count  # a dense block is a plain sum over examples
        if isinstance(self.matrix, LowRankGram):
            values, vectors = self.matrix.decomposed(1, values_only)
            return DenseSpectrum(values[0], vectors if values_only else vectors[0])
        matrix = self.matrix.squeeze(0) if self.matrix.ndim == 3 else self.matrix
        return DenseSpectrum(*_eigh(matrix, values_only))

    def dense(self, count: int) -> Tensor:
        del count
        matrix = _written_out(self.matrix)
        return matrix if matrix.ndim == 3 else matrix[None]


@dataclass(frozen=True)
class DiagonalFactors(_Factors):
    """A diagonal block h (parameters,), summed over examples."""

    values: Tensor

    def spectrum(self, count: int, *, values_only: bool = False) -> DiagonalSpectrum:
        del count, values_only
        return DiagonalSpectrum(self.values.double())

    def dense(self, count: int) -> Tensor:
        del count
        return torch.diag(self.values)[None]


@dataclass(frozen=True)
class PiecewiseFactors(_Pieces, _Factors):
    """A and G of every piece, summed over examples."""

    pieces: tuple[KroneckerFactors, ...]
    spans: tuple[Spans, ...]

    def spectrum(self, count: int, *, values_only: bool = False) -> PiecewiseSpectrum:
        found = [piece.spectrum(count, values_only=values_only) for piece in self.pieces]
        return PiecewiseSpectrum(tuple(found), self.spans)

    def dense(self, count: int) -> Tensor:
        """(1, parameters, parameters), entries in the order of the tensor."""
        matrix = torch.block_diag(*(piece.dense(count)[0] for piece in self.pieces))
        rows = [_written_out(piece.outputs).shape[-1] for piece in self.pieces]
        places = torch.arange(len(matrix), device=matrix.device)
        order = torch.cat(
            [_piece(places, own, n).flatten() for own, n in zip(self.spans, rows, strict=True)]
        ).argsort()
        return matrix[order][:, order][None]


@dataclass(frozen=True)
class JointFactors(_Factors):
    """H (parameters, parameters), summed over examples."""

    matrix: Tensor
    sizes: Mapping[str, int]

    def spectrum(self, count: int, *, values_only: bool = False) -> JointSpectrum:
        del count, values_only
        matrix = self.matrix.double()
        return JointSpectrum((matrix + matrix.mT) / 2, self.sizes)

    def dense(self, count: int) -> Tensor:
        del count
        return self.matrix[None]


Factors = KroneckerFactors | DenseFactors | DiagonalFactors | PiecewiseFactors | JointFactors


def all_factors(roots: Mapping[str, Roots]) -> dict[str, Factors]:
    """Factors by block; what a bias shares with its weight is computed once."""
    found: dict[str, Factors] = {}
    for name, root in roots.items():
        weight = found.get(root.output_of or "") if isinstance(root, DenseRoots) else None
        if isinstance(weight, KroneckerFactors) and isinstance(root, DenseRoots):
            shared = weight.outputs
            matrix = shared if isinstance(shared, LowRankGram) else shared[0]
            found[name] = DenseFactors(matrix, root.output_of)
        else:
            with of_block(name):
                found[name] = root.factors()
    return found


class Spectrum(ABC):
    """Eigenvalues of a block, and gradients of its log-determinant."""

    @abstractmethod
    def eigenvalues(self) -> Tensor:
        """All eigenvalues of the block, one axis, float64, none negative."""

    @abstractmethod
    def pullback(
        self, scale: Tensor, precision: Tensor, dtype: torch.dtype = torch.float64
    ) -> tuple[Pullback, ...]:
        """∂ log|scale·H + precision·I| by each factor, in the order of `Roots.tensors()`.

        Contracted with one batch's factors these give that batch's share of the gradient. One
        axis a parameter (parameters,) for a diagonal block, else square matrices, those of large
        factors in parts (`low_rank`); in `dtype`, eigenvalues of them in float64 all the same.
        """

    def log_determinant_gap(self, scale: Tensor, precision: Tensor) -> Tensor:
        """By how much the log-determinant is too large at most, where factors have a rest."""
        return torch.zeros_like(precision)

    def log_determinant(self, scale: Tensor, precision: Tensor) -> Tensor:
        """log|scale·H + precision·I|, differentiable in both."""
        return (scale * self.eigenvalues() + precision).log().sum()

    def effective_parameters(self, scale: Tensor, precision: Tensor) -> Tensor:
        """γ = Σ scale·h/(scale·h + precision): how many parameters the data determines."""
        curvature = scale * self.eigenvalues()
        return (curvature / (curvature + precision)).sum()


@dataclass(frozen=True)
class KroneckerSpectrum(Spectrum):
    """Spectra of G (groups, out) and of A/N (groups, in), with their eigenvectors."""

    output_values: Tensor
    output_vectors: Tensor
    input_values: Tensor
    input_vectors: Tensor
    count: int

    def eigenvalues(self) -> Tensor:
        return (self.output_values[:, :, None] * self.input_values[:, None, :]).flatten()

    def pullback(
        self, scale: Tensor, precision: Tensor, dtype: torch.dtype = torch.float64
    ) -> tuple[Pullback, ...]:
        outer = self.output_values[:, :, None]
        inner = self.input_values[:, None, :]
        inverse = scale / (scale * outer * inner + precision)
        of_outputs = _over_shared((inner * inverse).sum(2), self.output_values)
        of_inputs = _over_shared((outer * inverse).sum(1) / self.count, self.input_values)
        for_outputs = conjugated(self.output_vectors, of_outputs, dtype)
        for_inputs = conjugated(self.input_vectors, of_inputs, dtype)
        return for_inputs, for_outputs

    def log_determinant_gap(self, scale: Tensor, precision: Tensor) -> Tensor:
        outer = without_rest(self.output_values, _rank(self.output_vectors))
        inner = without_rest(self.input_values, _rank(self.input_vectors))
        least = (scale * (outer[:, :, None] * inner[:, None, :]).flatten() + precision).log().sum()
        return self.log_determinant(scale, precision) - least


@dataclass(frozen=True)
class DenseSpectrum(Spectrum):
    """Spectrum of a dense block."""

    values: Tensor
    vectors: Tensor

    def eigenvalues(self) -> Tensor:
        return self.values

    def pullback(
        self, scale: Tensor, precision: Tensor, dtype: torch.dtype = torch.float64
    ) -> tuple[Pullback, ...]:
        return (conjugated(self.vectors, scale / (scale * self.values + precision), dtype),)

    def log_determinant_gap(self, scale: Tensor, precision: Tensor) -> Tensor:
        least = (scale * without_rest(self.values, _rank(self.vectors)) + precision).log().sum()
        return self.log_determinant(scale, precision) - least


@dataclass(frozen=True)
class DiagonalSpectrum(Spectrum):
    """A diagonal block: its own spectrum."""

    values: Tensor

    def eigenvalues(self) -> Tensor:
        return self.values

    def pullback(
        self, scale: Tensor, precision: Tensor, dtype: torch.dtype = torch.float64
    ) -> tuple[Pullback, ...]:
        return ((scale / (scale * self.values + precision)).to(dtype),)


@dataclass(frozen=True)
class PiecewiseSpectrum(Spectrum):
    """The spectrum of every piece."""

    pieces: tuple[KroneckerSpectrum, ...]
    spans: tuple[Spans, ...]

    def eigenvalues(self) -> Tensor:
        return torch.cat([piece.eigenvalues() for piece in self.pieces])

    def pullback(
        self, scale: Tensor, precision: Tensor, dtype: torch.dtype = torch.float64
    ) -> tuple[Pullback, ...]:
        found = (piece.pullback(scale, precision, dtype) for piece in self.pieces)
        return tuple(tensor for each in found for tensor in each)

    def split(self, weight: Tensor) -> list[Tensor]:
        """The matrix (…, out, in) of every piece of a tensor (…, parameters)."""
        return [
            _piece(weight, own, piece.output_values.shape[-1])
            for own, piece in zip(self.spans, self.pieces, strict=True)
        ]


def _piece(flat: Tensor, spans: Spans, rows: int) -> Tensor:
    """The matrix (…, rows, columns) in these places of (…, parameters)."""
    parts = [flat[..., first:last].unflatten(-1, (rows, -1)) for first, last in spans]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


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


AnySpectrum = Spectrum | JointSpectrum


def all_spectra(
    factors: Mapping[str, Factors],
    count: int,
    *,
    values_only: bool = False,
    known: Mapping[str, AnySpectrum] | None = None,
) -> dict[str, AnySpectrum]:
    """Spectra by block; what a bias shares with its weight is decomposed once.

    count: the examples that the factors were summed over
    values_only: no eigenvectors are found, which is faster; there are no pullbacks then
    known: spectra that somebody found before
    """
    found: dict[str, AnySpectrum] = {}
    for name, block in factors.items():
        if known is not None and name in known:
            found[name] = known[name]
            continue
        weight = found.get(block.output_of or "") if isinstance(block, DenseFactors) else None
        if isinstance(weight, KroneckerSpectrum):
            vectors = weight.output_vectors if values_only else weight.output_vectors[0]
            found[name] = DenseSpectrum(weight.output_values[0], vectors)
        else:
            with of_block(name):
                found[name] = block.spectrum(count, values_only=values_only)
    return found


STRIP = 256
"""Columns of a Gram matrix at a time, where it is formed by halves."""


def _gram(root: Tensor) -> Tensor:
    """XᵀX; on a CPU large ones strip by strip, each from the diagonal on, and mirrored."""
    size = root.shape[-1]
    in_parts = (
        root.device.type == "cpu"
        and min(root.shape[-2:]) > 2 * STRIP
        and not (root.requires_grad and torch.is_grad_enabled())
        and not is_plain()
    )
    if not in_parts:
        return root.mT @ root
    found = root.new_empty(*root.shape[:-2], size, size)
    for first in range(0, size, STRIP):
        last = min(first + STRIP, size)
        strip = root[..., first:last].mT @ root[..., first:]
        square = strip[..., : last - first]
        strip[..., : last - first] = (square + square.mT) / 2  # products may round unevenly
        found[..., first:last, first:] = strip
        found[..., last:, first:last] = strip[..., last - first :].mT
    return found


def _over_shared(weights: Tensor, values: Tensor) -> Tensor:
    """Weights (groups, size) summed over groups where these share the factor with `values`."""
    return weights.sum(0, keepdim=True) if len(values) < len(weights) else weights


def _rank(vectors: Tensor) -> int:
    """How many eigenvectors there are."""
    return int(vectors.shape[-1])


def _factor(root: Tensor) -> Gram:
    return LowRankGram.of(root) if is_thin(root) else _gram(root)


def _decomposed(gram: Gram, count: int, values_only: bool) -> tuple[Tensor, Tensor]:
    if isinstance(gram, LowRankGram):
        return gram.decomposed(count, values_only)
    return _eigh(gram if count == 1 else gram / count, values_only)


def _written_out(gram: Gram) -> Tensor:
    return gram.dense() if isinstance(gram, LowRankGram) else gram


def _eigh(matrix: Tensor, values_only: bool) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors, (0,) where only the values are asked for."""
    matrix = matrix.double()
    matrix = (matrix + matrix.mT) / 2
    if values_only:
        values, vectors = eigenvalues(matrix, what="a factor"), matrix.new_empty(0)
    else:
        values, vectors = eigenpairs(matrix, what="a factor")
    # Row-major from here on: products of LAPACK's column-major layout round differently.
    return values.clamp_min(0.0), vectors.contiguous()
