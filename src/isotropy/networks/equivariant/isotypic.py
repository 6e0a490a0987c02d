"""Equivariant maps in coordinates of irreducible parts: small matrices, and nothing to assemble.

    x_b = Σ_(λ, m) F_bλmᵀ u_λm        F_bλm (d_λ, size of b), all rows of a product orthonormal

Equal irreducible parts λ get equal coordinates u (d_λ), whichever product they lie in. By Schur's
lemma an equivariant map then mixes parts of one λ and leaves their coordinates alone,

    u_λm ↦ Σ_n θ_mn u_λn              and where λ has complex or quaternionic type
    u_λm ↦ Σ_n Σ_t θ_mnt E_t u_λn     E_1 = 1, E_t antisymmetric with E_t² = −1  (t ≤ 2 or 4)

so that it takes d_λ θ-products instead of a dense matrix: for SO(3) and 384 channels 24,000
multiplications an example instead of 147,000.

**Splitting.** Parts are eigenspaces of a random symmetric matrix that commutes with the group: a
random matrix, projected onto the solver's basis of such matrices. They are irreducible if the
transpose of what commutes commutes: so it is for orthogonal representations, and for tensors of GL,
SL, Sp and the Lorentz groups, too, whose generators' transposes are generators. The same
projections of random matrices, from a generator that is the same everywhere, tie the coordinates of
all parts together: they depend on nothing that a library for linear algebra is free to choose. What
comes out is put back into the bases; where it does not reproduce them, there is no splitting.

**The map.**    u_b = F_b x_b        v_λ = θ_λ u_λ + β_λ        y_c = F_cᵀ v_c

u_λ (parts, d_λ · batch) holds the coordinates of every part of type λ in the input, of all products
together; θ_λ (parts out, parts in) mixes them. β is there for the trivial λ alone: the bias.
Coefficients are the entries of θ_λ, one λ after another, (parts out, parts in, degree) row-major;
parts lie by kind, then by multiplicity, then by copy. One unit of a coefficient moves coordinates
of size one by one: that is the unit of a matrix entry, in which a learning rate is thought.

**Curvature.** θ_λ is the matrix of a linear layer from E_t u_λn, of all n and t, to v_λm that is
shared by the d_λ coordinates. Frames are orthonormal and parts of different λ have no coordinate in
common: with a Gaussian likelihood the block of one layer is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy.sparse as sparse
import torch
from torch import Tensor

from isotropy.bases.maps import Kind, MapBasis, Pair, map_basis
from isotropy.networks.equivariant.channels import ExactBuffers, Parts, Shared, scale_to
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import Product, Representation, Term, product_size

LARGEST_PRODUCT = 128
"""Size of a product from which on it is not split: changing coordinates would cost too much."""
SAME = 1e-7
"""Eigenvalues closer than this, relative to the largest, are one."""
EXACT = 1e-9
"""How far what is built may be from what it should be."""


@dataclass(frozen=True, eq=False)
class Irreducible:
    """ends: what commutes with it, (1, 2 or 4, d, d), the identity first."""

    ends: np.ndarray

    @property
    def size(self) -> int:
        return int(self.ends.shape[1])

    @property
    def degree(self) -> int:
        """1, 2 or 4: real, complex or quaternionic."""
        return int(self.ends.shape[0])


@dataclass(frozen=True, eq=False)
class Splitting:
    """frames: for each product and each irreducible the coordinates (multiplicity, d, size).

    irreducibles: the first one is the trivial one
    """

    irreducibles: tuple[Irreducible, ...]
    frames: dict[Product, tuple[np.ndarray, ...]]


def splitting(group: Group, products: Sequence[Product]) -> Splitting | None:
    """These products of a real group in common coordinates; None where there are none.

    products: in the normal form of `isotropy.bases.maps`
    """
    if any(product_size(atoms, group) > LARGEST_PRODUCT for atoms in products):
        return None
    each = dict.fromkeys([(), *products])
    ordered = sorted(each, key=lambda atoms: (len(atoms), [a.name for a in atoms]))
    return _splitting(group, tuple(ordered), tuple(a.key(group) for p in ordered for a in p))


@lru_cache(maxsize=64)
def _splitting(
    group: Group, products: tuple[Product, ...], keys: tuple[str, ...]
) -> Splitting | None:
    terms = tuple(Term(1, atoms) for atoms in products)
    one_of_each = Representation(terms, group)
    homs = _Homomorphisms(map_basis(one_of_each >> one_of_each))
    found: list[Irreducible] = []
    homes: list[tuple[Product, np.ndarray]] = []  # where each was found, and its frame there
    frames: dict[Product, tuple[np.ndarray, ...]] = {}
    for atoms in products:
        spaces = _eigenspaces(homs, atoms)
        if spaces is None:
            return None
        own: dict[int, list[np.ndarray]] = {}
        for space in spaces:
            number, shared = _shared(homs, homes, atoms, space)
            if number == len(homes):
                ends = _ends([space @ homs.random(atoms, atoms, k) @ space.T for k in range(4)])
                if ends is None:
                    return None
                homes.append((atoms, space))
                found.append(Irreducible(ends))
            turned = _orthogonal(shared)
            if turned is None:
                return None
            own.setdefault(number, []).append(turned @ space)
        size = product_size(atoms, group)
        frames[atoms] = tuple(
            np.array(own.get(k, np.zeros((0, each.size, size)))) for k, each in enumerate(found)
        )
    padded = {
        atoms: (*own, *(np.zeros((0, e.size, own[0].shape[2])) for e in found[len(own) :]))
        for atoms, own in frames.items()
    }
    complete = Splitting(tuple(found), padded)
    return complete if _reproduces(complete, homs) else None


def _shared(
    homs: _Homomorphisms,
    homes: Sequence[tuple[Product, np.ndarray]],
    atoms: Product,
    space: np.ndarray,
) -> tuple[int, np.ndarray]:
    """The irreducible that this part of a product is, and a map (d, d) from the part to it: its
    own identity if it is a new one, which gets the next number."""
    for number, (home, frame) in enumerate(homes):
        shared = frame @ homs.random(home, atoms) @ space.T
        if np.abs(shared).max(initial=0) > SAME:
            return number, shared
    return len(homes), np.eye(len(space))


class _Homomorphisms:
    """Random equivariant maps, the same for the same question."""

    def __init__(self, basis: MapBasis) -> None:
        self.pairs: dict[tuple[Product, Product], Pair] = {
            (pair.target.atoms, pair.source.atoms): pair for pair in basis.pairs
        }
        self.sizes = {kind.atoms: kind.size for kind in basis.sources}
        self._known: dict[tuple[Product, Product, int], np.ndarray] = {}

    def random(self, target: Product, source: Product, number: int = 0) -> np.ndarray:
        """A map (size of target, size of source)."""
        key = target, source, number
        if key not in self._known:
            shape = self.sizes[target], self.sizes[source]
            matrix = np.random.RandomState(number).standard_normal(shape)
            self._known[key] = self.projected(target, source, matrix)
        return self._known[key]

    def projected(self, target: Product, source: Product, matrix: np.ndarray) -> np.ndarray:
        """The nearest equivariant map."""
        pair = self.pairs.get((target, source))
        if pair is None:
            return np.zeros_like(matrix)
        columns = pair.columns
        found = columns @ (columns.T @ matrix.ravel())
        return np.asarray(found.toarray() if sparse.issparse(found) else found).reshape(
            matrix.shape
        )


def _eigenspaces(homs: _Homomorphisms, atoms: Product) -> list[np.ndarray] | None:
    """Orthonormal rows (d, size) of each; None if transposes of maps are no maps."""
    drawn = homs.random(atoms, atoms, 9)
    symmetric = (drawn + drawn.T) / 2
    if not np.allclose(homs.projected(atoms, atoms, symmetric), symmetric, atol=EXACT):
        return None
    values, vectors = np.linalg.eigh(symmetric)
    gaps = np.diff(values) > SAME * np.abs(values).max(initial=0)
    if not gaps.any():
        return [np.eye(len(values))]
    return [vectors[:, part].T for part in np.split(np.arange(len(values)), 1 + np.where(gaps)[0])]


def _orthogonal(matrix: np.ndarray) -> np.ndarray | None:
    """The matrix over a number that makes it orthogonal; None if no number does."""
    if matrix.shape[0] != matrix.shape[1]:
        return None
    scaled = matrix * (len(matrix) ** 0.5 / np.linalg.norm(matrix))
    if not np.allclose(scaled @ scaled.T, np.eye(len(scaled)), atol=EXACT):
        return None
    return np.asarray(scaled)


def _ends(drawn: Sequence[np.ndarray]) -> np.ndarray | None:
    """What commutes with an irreducible part, from random elements of it."""
    size = len(drawn[0])
    found = [np.eye(size)]
    for each in drawn:
        left = each - sum(np.vdot(one, each) / size * one for one in found)
        norm = np.linalg.norm(left) / size**0.5
        if norm > SAME:
            if not np.allclose(left, -left.T, atol=EXACT):
                return None  # not irreducible: an eigenvalue that two parts share
            found.append(left / norm)
    return np.array(found)


def _reproduces(splitting: Splitting, homs: _Homomorphisms) -> bool:
    """Whether maps in these coordinates are those of the bases, as many and the same."""
    for target, outs in splitting.frames.items():
        for source, ins in splitting.frames.items():
            built = np.zeros((homs.sizes[target], homs.sizes[source]))
            count = 0
            draw = np.random.RandomState(1)
            for out, into, each in zip(outs, ins, splitting.irreducibles, strict=True):
                count += len(out) * len(into) * each.degree
                weights = draw.standard_normal((len(out), len(into), each.degree))
                built += np.einsum(
                    "mio,mnt,tij,njs->os", out, weights, each.ends, into, optimize=True
                )
            pair = homs.pairs.get((target, source))
            if count != (0 if pair is None else pair.rank):
                return False
            if not np.allclose(homs.projected(target, source, built), built, atol=EXACT):
                return False
    return True


TRIVIAL = 0
"""Number of the irreducible that does not move."""


@dataclass(frozen=True)
class _Type:
    """An irreducible that maps reach. runs: copies for each (kind, multiplicity) of the target."""

    number: int
    size: int
    degree: int
    parts_out: int
    parts_in: int
    runs: tuple[int, ...]

    @property
    def amount(self) -> int:
        """Coefficients."""
        return self.parts_out * self.parts_in * self.degree


class IsotypicMap(ExactBuffers):
    """y = W x + b on parts (`channels`), from coefficients of W (rank,) and of b (bias_rank,)."""

    def __init__(
        self,
        sources: Sequence[Kind],
        targets: Sequence[Kind],
        splitting: Splitting,
        *,
        bias: bool,
    ) -> None:
        super().__init__()
        self._sources, self._targets = sources, targets
        self._types: list[_Type] = []
        of_target = [[len(f) for f in splitting.frames[kind.atoms]] for kind in targets]
        of_source = [[len(f) for f in splitting.frames[kind.atoms]] for kind in sources]
        for number, each in enumerate(splitting.irreducibles):
            runs = [
                k.copies for k, m in zip(targets, of_target, strict=True) for _ in range(m[number])
            ]
            parts_in = sum(k.copies * m[number] for k, m in zip(sources, of_source, strict=True))
            if runs and (parts_in or (bias and number == TRIVIAL)):
                self._types.append(
                    _Type(number, each.size, each.degree, sum(runs), parts_in, tuple(runs))
                )
            if each.degree > 1:
                self.add_exact(
                    f"ends_{number}", torch.from_numpy(each.ends.reshape(each.degree, -1))
                )
        self.rank = sum(each.amount for each in self._types)
        self.bias_rank = next(
            (each.parts_out for each in self._types if bias and each.number == TRIVIAL), 0
        )
        self._into = [
            self._add_frame(
                f"into_{k}", splitting.frames[kind.atoms], [t for t in self._types if t.parts_in]
            )
            for k, kind in enumerate(sources)
        ]
        self._out = [
            self._add_frame(f"out_{k}", splitting.frames[kind.atoms], self._types)
            for k, kind in enumerate(targets)
        ]

    def forward(self, coefficients: Tensor, bias: Tensor | None, parts: Sequence[Tensor]) -> Parts:
        batch = parts[0].shape[-1]
        pieces: dict[int, list[Tensor]] = {}
        matrices = self._by_amount(coefficients)
        by_type = self._by_type(self._into, parts)
        for each, matrix, own in zip(self._types, matrices, by_type, strict=True):
            found = self._mixed(each, matrix, bias, own, batch)
            pieces[each.number] = list(found.split(each.runs)) if len(each.runs) > 1 else [found]
        return [self._together(k, pieces, parts[0]) for k in range(len(self._targets))]

    def _by_amount(self, coefficients: Tensor) -> Sequence[Tensor]:
        return coefficients.split([each.amount for each in self._types])

    def _by_type(self, frames: Sequence[_Frame], parts: Sequence[Tensor]) -> list[Parts]:
        """For each irreducible that maps reach, its parts (copies, d, batch) in the features that
        have these frames."""
        found: dict[int, Parts] = {each.number: [] for each in self._types}
        for frame, part in zip(frames, parts, strict=True):
            if frame.numbers:
                for number, piece in zip(frame.numbers, self._split(frame, part), strict=True):
                    found[number].append(piece)
        return list(found.values())

    def _split(self, frame: _Frame, part: Tensor) -> Sequence[Tensor]:
        """Every irreducible part (copies, d, batch) of one kind."""
        if frame.name is not None:
            matrix = getattr(self, frame.name)
            part = torch.bmm(matrix.expand(part.shape[0], -1, -1), part)
        return part.split(frame.sizes, 1) if len(frame.sizes) > 1 else [part]

    def _mixed(
        self, each: _Type, matrix: Tensor, bias: Tensor | None, pieces: Parts, batch: int
    ) -> Tensor:
        """v_λ, (parts out, d, batch)."""
        own = bias if each.number == TRIVIAL else None
        if not pieces:  # a bias alone
            only = matrix.new_zeros(each.parts_out) if own is None else own
            return only[:, None, None].expand(-1, -1, batch)
        inputs = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        if each.degree > 1:
            weight = matrix.view(-1, each.degree) @ getattr(self, f"ends_{each.number}")
            weight = weight.view(each.parts_out, each.parts_in, each.size, each.size)
            weight = weight.transpose(1, 2).reshape(
                each.parts_out * each.size, each.parts_in * each.size
            )
            found = weight @ inputs.flatten(0, 1)
        else:
            weight = matrix.view(each.parts_out, each.parts_in)
            flat = inputs.flatten(1)
            found = weight @ flat if own is None else torch.addmm(own[:, None], weight, flat)
        return found.view(each.parts_out, each.size, batch)

    def _together(self, k: int, pieces: dict[int, list[Tensor]], like: Tensor) -> Tensor:
        """One kind of the target from its irreducible parts, which are taken away from `pieces`."""
        frame, kind = self._out[k], self._targets[k]
        if not frame.numbers:
            return like.new_zeros(kind.copies, kind.size, like.shape[-1])
        own = [pieces[number].pop(0) for number in frame.numbers]
        found = own[0] if len(own) == 1 else torch.cat(own, 1)
        if frame.name is None:
            return found
        return torch.bmm(getattr(self, frame.name).T.expand(kind.copies, -1, -1), found)

    def draw(
        self,
        coefficients: Tensor,
        bias: Tensor | None,
        gain: float,
        bias_spread: float,
        generator: torch.Generator | None,
    ) -> None:
        """Fill with normal numbers: see `EquivariantLinear`."""
        fans = [
            sum(self._type(n).parts_in * self._type(n).degree for n in f.numbers) for f in self._out
        ]
        for each, flat in zip(self._types, self._by_amount(coefficients), strict=True):
            matrix, row = flat.view(each.parts_out, -1), 0
            for kind, frame, fan in zip(self._targets, self._out, fans, strict=True):
                rows = kind.copies * frame.numbers.count(each.number)
                if rows and each.parts_in:
                    spread = gain * (kind.size / fan / each.size) ** 0.5
                    matrix[row : row + rows].normal_(0, spread, generator=generator)
                if rows and each.number == TRIVIAL and bias is not None:
                    own = bias_spread * (kind.size / frame.numbers.count(TRIVIAL)) ** 0.5
                    bias[row : row + rows].normal_(0, own, generator=generator)
                row += rows

    def rescale_(self, coefficients: Tensor, parts: Sequence[Tensor], spread: float) -> None:
        """Scale W so that the coordinates of each irreducible part of the outputs have this
        standard deviation over examples. Parts that do not vary stay."""
        matrices, by_type = self._by_amount(coefficients), self._by_type(self._into, parts)
        for each, matrix, pieces in zip(self._types, matrices, by_type, strict=True):
            if pieces:
                found = self._mixed(each, matrix, None, pieces, parts[0].shape[-1])
                rows = matrix.view(each.parts_out, -1).split(each.runs)
                for own, values in zip(rows, found.split(each.runs), strict=True):
                    own.mul_(scale_to(spread, values))

    def shared(self, parts: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Shared]:
        """θ_λ of every λ, for inputs and for gradients by outputs, both as parts."""
        into, out = self._by_type(self._into, parts), self._by_type(self._out, gradients)
        found, last = [], 0
        for each, pieces, back in zip(self._types, into, out, strict=True):
            first, last = last, last + each.amount
            if not each.amount:
                continue
            inputs = torch.cat(pieces)
            if each.degree > 1:
                ends = getattr(self, f"ends_{each.number}").unflatten(1, (each.size, each.size))
                inputs = torch.einsum("tij,njb->ntib", ends, inputs).flatten(0, 1)
            found.append(Shared(((first, last),), inputs, torch.cat(back)))
        return found

    def _type(self, number: int) -> _Type:
        return next(each for each in self._types if each.number == number)

    def _add_frame(self, name: str, frames: Sequence[np.ndarray], types: list[_Type]) -> _Frame:
        chosen = [(t.number, t.size, each) for t in types for each in frames[t.number]]
        numbers = tuple(number for number, _, _ in chosen)
        sizes = [size for _, size, _ in chosen]
        if not chosen:
            return _Frame(None, numbers, sizes)
        matrix = np.concatenate([each for _, _, each in chosen])
        if np.array_equal(matrix, np.eye(matrix.shape[1])):
            return _Frame(None, numbers, sizes)
        self.add_exact(name, torch.from_numpy(matrix))
        return _Frame(name, numbers, sizes)


@dataclass(frozen=True)
class _Frame:
    """Irreducible parts of one kind: their numbers, their sizes, and the buffer of coordinates
    (Σ sizes, size), None where they are the kind's own."""

    name: str | None
    numbers: tuple[int, ...]
    sizes: list[int]
