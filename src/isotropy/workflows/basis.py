"""The user's verb for bases: `equivariant_basis(group, representation)`.

Of a representation U it finds the vectors that the group leaves in place, of maps U >> W the
equivariant matrices. Sums are solved per pair of products (Finzi 2023, 2.5.1), equal pairs once:

    rank = Σ_pairs copies · rank(pair)

`BasisResult` has the pairs with their bases, the totals as one JSON record, and the picture.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import torch

from isotropy.bases.maps import map_atoms, normal_form
from isotropy.bases.problem import Basis
from isotropy.bases.solving import rank as solve_rank
from isotropy.bases.solving import solve
from isotropy.checks import CallerError
from isotropy.records import record_head, write_bytes
from isotropy.report.pages.basis_picture import LARGEST, Tile, basis_picture
from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.language import parse_representation
from isotropy.symmetry.groups.representations import Maps, Product, Representation, Term
from isotropy.workflows.runs.result import Result

PICTURE = "basis.svg"


@dataclass(frozen=True)
class Part:
    """One product of atoms, or the maps of one pair of products, and its basis.

    target, source: the products; source is None where vectors were asked for, not maps
    copies: how often it comes
    basis:  of target ⊗ source*, see `isotropy.bases`
    """

    target: Product
    source: Product | None
    copies: int
    basis: Basis

    @property
    def text(self) -> str:
        """`V >> V*V`."""
        if self.source is None:
            return str(Term(1, self.target))
        return f"{Term(1, self.source)} >> {Term(1, self.target)}"

    @property
    def record(self) -> dict[str, Any]:
        return {
            "representation": self.text,
            "copies": self.copies,
            "rank": self.basis.rank,
            "size": self.basis.size,
            "seconds": self.basis.seconds,
            "method": self.basis.method,
            "residual": self.basis.residual,
        }


@dataclass(frozen=True, repr=False)
class BasisResult(Result):
    """What was found, pair by pair; the record has everything but the vectors."""

    SHOWN = ("group", "representation", "rank")

    group: Group
    representation: Representation | Maps
    parts: tuple[Part, ...]

    @property
    def rank(self) -> int:
        """How many free parameters an equivariant vector or matrix has."""
        return sum(part.copies * part.basis.rank for part in self.parts)

    @property
    def size(self) -> int:
        """Entries of the vector or matrix."""
        return self.representation.size

    @property
    def seconds(self) -> float:
        """What solving took, each different product once; 0 for what was known already."""
        return sum(part.basis.seconds for part in self.parts)

    @property
    def method(self) -> str:
        """The methods that were used."""
        return ", ".join(dict.fromkeys(part.basis.method for part in self.parts))

    @property
    def residual(self) -> float | None:
        """The largest violation of a constraint; None unless all parts have one."""
        found = [part.basis.residual for part in self.parts]
        known = [each for each in found if each is not None]
        return max(known, default=0.0) if len(known) == len(found) else None

    @property
    def has_vectors(self) -> bool:
        """Whether there is a basis to draw: entries, and not only a rank."""
        return self.size > 0 and all(part.basis.columns is not None for part in self.parts)

    @property
    def totals(self) -> dict[str, Any]:
        """Everything but the vectors, in JSON."""
        return {
            "group": str(self.group),
            "representation": str(self.representation),
            "rank": self.rank,
            "size": self.size,
            "method": self.method,
            "residual": self.residual,
            "parts": [part.record for part in self.parts],
        }

    def picture(self, path: str | Path) -> Path:
        """Write the picture: entries of one colour are equal in every solution. SVG or PNG."""
        path = Path(path)
        kind = path.suffix.lower().removeprefix(".")
        if kind not in ("svg", "png"):
            raise CallerError(f"picture: expected a name in .svg or .png, got {str(path)!r}")
        if not self.size:
            raise CallerError(f"picture: {self.representation} has no entries to draw")
        if not self.has_vectors:
            raise CallerError(
                "picture: only the rank was asked for; solve without rank_only to draw the basis"
            )
        title = f"{self.group}, {self.representation}: rank {self.rank:,}"
        write_bytes(path, basis_picture(*self._tiles(), title=title, kind=kind))
        return path

    def write_own(self, path: Path) -> None:
        if self.has_vectors:
            self.picture(path / PICTURE)

    def _tiles(self) -> tuple[tuple[int, int], list[Tile]]:
        """The shape of what is drawn, and the blocks that are seen of it, with their places."""
        by_products = {(part.target, part.source): part.basis for part in self.parts}
        tiles: list[Tile] = []
        if isinstance(self.representation, Maps):
            top = 0
            for target in _each_product(self.representation.target):
                left = height = 0
                for source in _each_product(self.representation.source):
                    basis = by_products[target, source]
                    height, width = _split(basis, len(target))
                    tiles.append(Tile(top, left, height, width, basis))
                    left += width
                    if left >= LARGEST:
                        break
                top += height
                if top >= LARGEST:
                    break
            return (self.representation.target.size, self.representation.source.size), tiles
        top = across = 0
        rows = 0
        for term in self.representation.terms:
            basis = by_products[term.atoms, None]
            height, width = _split(basis, (len(term.atoms) + 1) // 2)
            rows, across = rows + term.amount * height, max(across, width)
            for _ in range(min(term.amount, -(-(LARGEST - top) // height))):
                tiles.append(Tile(top, 0, height, width, basis))
                top += height
        return (rows, across), tiles


def equivariant_basis(
    group: Group | str,
    representation: Representation | Maps | str,
    rank_only: bool = False,
    *,
    folder: str | Path | None = None,
    seed: int = 0,
    describe: Mapping[str, Any] | None = None,
) -> BasisResult:
    """A basis of all vectors, or linear maps, that commute with the group.

    group:          a `Group`, or its name: "SO(3)", "Z(4) x Z(4)"
    representation: bound to the group or to none, or in words: "T(4)", "V >> V*V"
    rank_only:      count, without vectors, where a method can; for what is too large to write down
    folder:         a run folder to write, with the picture
    seed, describe: kept in the record and in config.json; nothing here is random
    Raises `CallerError` for what is not a group or representation, and before anything that does
    not fit into memory is allocated.
    """
    chosen = group_named(group) if isinstance(group, str) else group
    wanted = (
        parse_representation(representation) if isinstance(representation, str) else representation
    )
    bound = wanted(chosen)
    parts = []
    for target, source, copies in _pairs(bound):
        # In normal form V* is V where the group is orthogonal: T(1,1) and T(2) share a solution.
        if source is None:
            atoms = normal_form(target, chosen)
        else:
            atoms = map_atoms(target, source, chosen)
        found = solve_rank(chosen, atoms) if rank_only else solve(chosen, atoms)
        parts.append(Part(target, source, copies, found))
    config = {"schema": 1, **(describe or {})}
    result = BasisResult(chosen, bound, tuple(parts), record={}, config=config)
    head = record_head("basis", seed=seed, device=torch.device("cpu"), seconds=result.seconds)
    return replace(result, record={**head, **result.totals}).kept_in(folder)


def _pairs(wanted: Representation | Maps) -> Iterator[tuple[Product, Product | None, int]]:
    """Different (target, source) and how often each comes, in order."""
    counts: dict[tuple[Product, Product | None], int] = {}
    if isinstance(wanted, Maps):
        for target in wanted.target.terms:
            for source in wanted.source.terms:
                pair = (target.atoms, source.atoms)
                counts[pair] = counts.get(pair, 0) + target.amount * source.amount
    else:
        for term in wanted.terms:
            counts[term.atoms, None] = counts.get((term.atoms, None), 0) + term.amount
    for (target_atoms, source_atoms), copies in counts.items():
        yield target_atoms, source_atoms, copies


def _each_product(representation: Representation) -> Iterator[Product]:
    """Every product of a sum, as often as it comes; only some of a long one are drawn."""
    for term in representation.terms:
        yield from repeat(term.atoms, term.amount)


def _split(basis: Basis, rows: int) -> tuple[int, int]:
    """(height, width) of a tensor drawn as a matrix: this many axes down, the others across."""
    height = math.prod(basis.shape[:rows])
    return height, basis.size // height
