"""The null space of all constraints by numerical linear algebra: decompositions, or an iteration.

    C = [ dρ(A_1); …; ρ(h_1) − 1; … ]        C v = 0                     (Finzi 2023, Eq. 2.6)

Both take any group, and return orthonormal columns (size, rank).

**Dense matrices** (`dense_null_space`), for small products, and the oracle of every other method.
C itself is sparse; the eigenvectors of CᴴC with eigenvalue zero are a first guess, one step of
which

    Q ← Q − P Λ⁻¹ Pᴴ Cᴴ (C Q)        CᴴC = P Λ Pᴴ on the complement

takes back what squaring has cost. Where the eigenvalues leave the rank open, for they are squares
and singular values below 1e-8 drown in rounding, the singular values of C decide.

A group of several components (`kept_by_discrete`): given an orthonormal basis Q of the vectors that
the Lie algebra annihilates, the vectors Qx that a discrete h leaves in place, too, are those with

    (ρ(h) − 1) Q x = 0

with all rows: ρ(h) need not map the span of Q into itself unless h normalises the algebra. There
are only as many unknowns as Q has columns, and fewer after every generator.

**Products with C alone** (`krylov_basis`), for large ones: Chebyshev-filtered subspace iteration.
Let CᴴC have the eigenvalues 0 = … = 0 < λ ≤ … ≤ λ_max. A round puts a block X of orthonormal
vectors through the polynomial p of degree k with p(0) = 1 that is smallest on [a, λ_max],

    |p| ≤ 1 / T_k((λ_max + a) / (λ_max − a)) ≈ 2 exp(−2k √(a / λ_max))       T_k Chebyshev,

and takes Ritz vectors of what comes out. The edge a follows the largest Ritz value of the block
down. Vectors with ‖Cx‖ ≤ `TOLERANCE` ‖C‖ are kept for good; if a whole block is, a new one twice
as large is drawn orthogonal to all that is kept, so nothing is ever found twice. The end is a
whole block of fresh directions in which no null vector shows although p, over all rounds, has
favoured it by `FAVOUR` against everything that the block has no room for. This costs about
½ √(λ_max / λ) ln(1 / ε) products, where gradient descent (Finzi 2023, Algorithm 1, here as
`convergence`) takes λ_max / λ of them. Randomness is a fixed seed: a solver is a function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np
import scipy.linalg
import scipy.sparse as sparse

from isotropy.bases.problem import Matrix, Problem, check_memory, kronecker
from isotropy.checks import CallerError

# -- dense matrices ----------------------------------------------------------------------------

LARGEST = 2000
"""Entries of v up to which constraints are written out. Where the group has weights, these are
quicker from about 100 entries on; the iteration (`krylov_basis`) is so only from about 2000 on."""
GAP = 1e3
"""By how much singular values that count as zero must fall short of the others."""
SPARSE = 0.5
"""Constraints with fewer nonzeros in a column, per entry of v, stay sparse."""
ROUNDING = 1e-10
"""The largest singular value that counts as zero, relative to the largest of all, at least 1."""
CLEAR_EIGENVALUE = 1e-8
"""Eigenvalues of CᴴC above this, relative to the largest, are certainly not zero."""


def dense_null_space(problem: Problem) -> np.ndarray:
    """An orthonormal basis (size, rank)."""
    check_memory(
        4 * problem.size**2 * problem.dtype.itemsize,
        f"a basis of {problem.size:,} entries by dense matrices",
        "use another method",
    )
    if problem.nonzeros < SPARSE * problem.size:
        return tall_null_space(problem.written_out())
    identity = np.eye(problem.size, dtype=problem.dtype)
    rows = zip(problem.constraints(identity), problem.sizes, strict=True)
    return tall_null_space(np.concatenate([left / size for left, size in rows]))


def tall_null_space(matrix: np.ndarray | Matrix) -> np.ndarray:
    """An orthonormal basis of {v : matrix v = 0} of a matrix with many more rows than columns,
    sparse or not; raises where the rank is in doubt."""
    columns = matrix.shape[1]
    adjoint = matrix.conj().T
    gram = _dense(adjoint @ matrix)
    values, vectors = scipy.linalg.eigh(gram, check_finite=False)
    largest = max(float(values[-1]), 1.0) if columns else 1.0
    is_zero = values <= 1e-4 * CLEAR_EIGENVALUE * largest
    if not (is_zero | (values >= CLEAR_EIGENVALUE * largest)).all():
        return null_space(_dense(matrix))
    found, others = vectors[:, is_zero], vectors[:, ~is_zero]
    if not found.shape[1]:
        return found
    left = adjoint @ (matrix @ found)
    found = found - others @ ((others.conj().T @ left) / values[~is_zero, None])
    found, _ = np.linalg.qr(found)
    if not np.linalg.norm(matrix @ found, axis=0).max() <= ROUNDING * largest**0.5:
        return null_space(_dense(matrix))
    return found


def null_space(matrix: np.ndarray) -> np.ndarray:
    """An orthonormal basis of {v : matrix v = 0}; raises where the rank is in doubt."""
    columns = matrix.shape[1]
    if matrix.shape[0] > columns:  # the same null space, and R is as small as it can be
        matrix = np.asarray(np.linalg.qr(matrix, mode="r"))
    _, values, rows = np.linalg.svd(matrix, full_matrices=True)
    values = np.concatenate([values, np.zeros(columns - len(values))])
    largest = max(float(values[0]), 1.0) if len(values) else 1.0
    is_zero = values <= ROUNDING * largest
    kept = values[~is_zero]
    dropped = values[is_zero].max(initial=ROUNDING * largest / GAP)
    if len(kept) and kept.min() < GAP * dropped and kept.min() < 1e-6 * largest:
        raise CallerError(
            "the rank of the constraints is in doubt: singular values "
            f"{kept.min():.1e} and {dropped:.1e} are too close to tell which is zero; rescale the "
            "generators, or give them in higher precision"
        )
    return rows[is_zero].conj().T


def _dense(matrix: Matrix) -> np.ndarray:
    return matrix.toarray() if sparse.issparse(matrix) else np.asarray(matrix)


def kept_by_discrete(problem: Problem, columns: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the vectors in the span of orthonormal columns (size, count) that
    every discrete generator leaves in place; raises where their number is in doubt."""
    count = len(problem.algebra)
    for size, factors in zip(problem.sizes[count:], problem.discrete, strict=True):
        if not columns.shape[1]:
            break
        left = (kronecker(problem.shape, factors, columns) - columns) / size
        columns = columns @ null_space(left)
    return columns


# -- products with the constraints alone -------------------------------------------------------

TOLERANCE = 1e-10
"""‖Cx‖ of a null vector x, relative to ‖C‖."""
CLEAR_NORM = 1e-5
"""‖Cx‖ above which x is certainly not a null vector, relative to ‖C‖."""
BLOCK = 16
"""Columns of the first block, and of the last."""
FAVOUR = 1e10
"""By how much null vectors must have been favoured in a block before their absence is believed."""
MOST_PRODUCTS = 20_000
"""Products with CᴴC per block after which the iteration gives up."""
WRITTEN_OUT = 20_000_000
"""Nonzeros of C up to which it is kept as one sparse matrix, which is faster to apply."""
MORE = 4
"""How many more nonzeros it may then have than all factors of all generators applied in turn."""
ADVICE = "generators this close to the identity need a representation that dense matrices can hold"

Apply = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Operator:
    """C on columns (size, count), known by products: C x is needed for its norm only."""

    size: int
    dtype: np.dtype
    normal: Apply
    norms: Apply

    def largest(self, generator: np.random.Generator, steps: int = 16) -> float:
        """A bound on the largest eigenvalue of CᴴC, from a short Lanczos iteration."""
        vector = _random(self, 1, generator)
        vector /= np.linalg.norm(vector)
        basis, diagonal, beside = [vector], [], []
        for _ in range(min(steps, self.size)):
            image = self.normal(basis[-1])
            diagonal.append(float(np.vdot(basis[-1], image).real))
            known = np.concatenate(basis, axis=1)
            image -= known @ (known.conj().T @ image)
            image -= known @ (known.conj().T @ image)
            beside.append(float(np.linalg.norm(image)))
            if beside[-1] <= 1e-12 * max(diagonal[0], 1e-300):
                break
            basis.append(image / beside[-1])
        tridiagonal = np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1)
        return float(np.linalg.eigvalsh(tridiagonal)[-1]) + beside[-1]


def krylov_basis(problem: Problem) -> np.ndarray:
    """An orthonormal basis (size, rank); raises if it does not converge or is in doubt."""
    return krylov_null_space(_operator(problem), str(problem))


def krylov_null_space(
    operator: Operator, what: str, *, generator: np.random.Generator | None = None
) -> np.ndarray:
    """An orthonormal basis of {v : C v = 0}.

    what: its name in errors
    """
    generator = generator or np.random.default_rng(0)
    largest = operator.largest(generator)
    kept = np.zeros((operator.size, 0), operator.dtype)
    if not largest > CLEAR_NORM**2:  # every constraint vanishes; each is of size one
        _check_memory(operator, operator.size)
        return np.eye(operator.size, dtype=operator.dtype)
    search = _Search(operator, largest, what)
    width, edge = BLOCK, largest / 4
    while kept.shape[1] < operator.size:
        width = min(width, operator.size - kept.shape[1])
        _check_memory(operator, kept.shape[1] + 4 * width)
        found, edge = search.run(_random(operator, width, generator), kept, edge)
        kept = np.concatenate([kept, found], axis=1)
        if not found.shape[1]:
            break
        width = 2 * width if found.shape[1] == width else BLOCK
    # One more round brings all of them from the tolerance down to rounding.
    return _orthonormal(search.filtered(kept, edge), kept[:, :0]) if kept.shape[1] else kept


@dataclass(frozen=True)
class _Search:
    """The null vectors within one block of fresh directions."""

    operator: Operator
    largest: float
    what: str

    def run(self, block: np.ndarray, kept: np.ndarray, edge: float) -> tuple[np.ndarray, float]:
        """Null vectors (size, count) orthogonal to `kept`, and the edge that the filter had last.

        edge: where the filter's interval begins at first
        """
        block = _orthonormal(block, kept)
        rounds: list[tuple[float, int]] = []
        top, smallest = self.largest, 1.0
        while sum(degree for _, degree in rounds) < MOST_PRODUCTS:
            rounds.append((edge, self.degree(edge)))
            block = _orthonormal(self.filtered(block, edge), kept)
            ritz, turn = np.linalg.eigh(block.conj().T @ self.operator.normal(block))
            block = block @ turn
            norms = self.operator.norms(block) / sqrt(self.largest)
            others = np.flatnonzero(norms > TOLERANCE)
            if not len(others):
                return block, edge
            first = int(others[0])
            # Eigenvectors outside the block have eigenvalues above those inside, and by so much
            # have null vectors grown against them; inside, Ritz vectors tell them apart.
            favour = sum(self.favour(float(ritz[-1]) / 2, *each) for each in rounds)
            is_settled = ritz[-1] > 0.7 * top and norms[first] > 0.8 * smallest
            if is_settled and favour >= np.log(FAVOUR):
                if norms[first] > CLEAR_NORM:
                    return block[:, :first], edge
                if favour >= 2 * np.log(FAVOUR):
                    raise CallerError(
                        f"the rank of {self.what} is in doubt: a vector violates its constraints "
                        f"by {norms[first]:.1e} of their norm, above {TOLERANCE:.0e}, which counts "
                        f"as zero, and below {CLEAR_NORM:.0e}, which certainly does not; {ADVICE}"
                    )
            # Where everything sinks quickly the edge is good, and all of the block may be null.
            if ritz[-1] > 0.1 * top:
                edge = min(edge, max(float(ritz[-1]), edge / 4))
            top, smallest = float(ritz[-1]), float(norms[first])
        raise CallerError(
            f"the iteration for {self.what} did not converge: after {MOST_PRODUCTS:,} products a "
            f"vector violates its constraints by {smallest:.1e} of their norm, more than "
            f"{TOLERANCE:.0e}, and may yet sink; {ADVICE}"
        )

    def degree(self, edge: float) -> int:
        """Such that p is below about 1/200 from the edge on."""
        return max(int(np.ceil(3 * sqrt(self.largest / edge))), 6)

    def filtered(self, block: np.ndarray, edge: float) -> np.ndarray:
        """p(G) X by the three-term recurrence, scaled so that p(0) = 1."""
        half, centre = (self.largest - edge) / 2, (self.largest + edge) / 2
        first = ratio = -half / centre  # T_{j−1} / T_j at the place of eigenvalue zero
        last, block = block, (self.operator.normal(block) - centre * block) * (first / half)
        for _ in range(self.degree(edge) - 1):
            following = 1 / (2 / first - ratio)
            image = self.operator.normal(block) - centre * block
            last, block = block, image * (2 * following / half) - last * (ratio * following)
            ratio = following
        return block

    def favour(self, value: float, edge: float, degree: int) -> float:
        """ln p(0) / |p| at an eigenvalue and, at least, at all above it."""
        half, centre = (self.largest - edge) / 2, (self.largest + edge) / 2
        at = np.arccosh(max((centre - value) / half, 1.0))
        zero = np.arccosh(centre / half)
        return float(np.log(np.cosh(degree * zero) / np.cosh(degree * at)))


def convergence(problem: Problem, columns: int = 20, iterations: int = 300) -> list[float]:
    """‖C X_t‖ of gradient descent on ½‖CX‖² (Finzi 2023, Algorithm 1 and Figure A.1).

    X_0 is normal (size, columns), X_{t+1} = X_t − η CᴴC X_t; one number before every step and one
    after the last. Constraints are divided by their sizes. 1 / η is `Operator.largest`, a bound on
    λ_max that is met or at most about a quarter above it. With λ the smallest eigenvalue of CᴴC
    that is not zero, each step in the end takes ‖C X‖ to 1 − η λ of what it was, until rounding,
    1e-17 of the start: what decides is λ_max / λ alone, not the group's or the tensor's size.
    """
    generator = np.random.default_rng(0)
    operator = _operator(problem)
    rate = 1 / max(operator.largest(generator, steps=60), 1e-300)
    block = _random(operator, columns, generator)
    found = [float(np.linalg.norm(operator.norms(block)))]
    for _ in range(iterations):
        block = block - rate * operator.normal(block)
        found.append(float(np.linalg.norm(operator.norms(block))))
    return found


def _operator(problem: Problem) -> Operator:
    steps = sum(f.nnz / f.shape[0] for each in (*problem.algebra, *problem.discrete) for f in each)
    is_quicker = problem.nonzeros <= MORE * steps + 1
    if is_quicker and problem.nonzeros * problem.size <= WRITTEN_OUT:
        return sparse_operator(problem.written_out())

    def norms(vectors: np.ndarray) -> np.ndarray:
        squares = np.zeros(vectors.shape[1])
        for size, left in zip(problem.sizes, problem.constraints(vectors), strict=True):
            squares += (np.abs(left / size) ** 2).sum(0)
        return np.sqrt(squares)

    return Operator(problem.size, problem.dtype, problem.normal, norms)


def sparse_operator(matrix: sparse.csr_array) -> Operator:
    """C as a sparse matrix."""
    adjoint = sparse.csr_array(matrix.conj().T)
    return Operator(
        matrix.shape[1],
        matrix.dtype,
        lambda vectors: np.asarray(adjoint @ (matrix @ vectors)),
        lambda vectors: np.linalg.norm(matrix @ vectors, axis=0),
    )


def _random(operator: Operator, count: int, generator: np.random.Generator) -> np.ndarray:
    shape = (operator.size, count)
    found = generator.standard_normal(shape)
    if operator.dtype.kind == "c":
        return found + 1j * generator.standard_normal(shape)
    return found


def _orthonormal(block: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the block's part orthogonal to `kept`; twice, against rounding."""
    for _ in range(2):
        block, _ = np.linalg.qr(block - kept @ (kept.conj().T @ block))
    return block


def _check_memory(operator: Operator, columns: int) -> None:
    check_memory(
        float(operator.size) * columns * operator.dtype.itemsize,
        f"an iteration on {columns:,} vectors of {operator.size:,} entries",
        "split the representation",
    )
