"""A bilinear layer that commutes with a group: tensors in the input read as maps on the rest of it.

    y = s W(x) x       s = 0.1        W(x)[(k, C), (l, B)] = Σ_j w[k, l, j] x_a[j, (C, B)]

(Finzi 2023, 2.6, and the public code.) An object of the product a = c ⊗ b* *is* a map from b to c,
and it moves with the group as x does, so that W(x) x is equivariant whatever the weights w: T(2)
times T(1) gives T(1), T(1) with T(1) the inner product. The atoms of a may come in any order; its
axes are put in order. Where the group keeps a form B, V stands for V* by x ↦ B x, so that V ⊗ V is
a map from V to V, too.

Which maps act on what:

    on their own kind   c a scalar: all invariants of min(copies, size) objects with all of the kind
    on vectors          b a single atom: min(copies, size) maps on min(copies, size) objects

The public code lets maps act on everything, scalars included, and so costs several times what the
linear layer does. Gates multiply by scalars already, and what lies further apart is reached in two
steps. As there, no more than `size` objects serve as maps: more are linearly dependent. It draws
them at random; these are the first ones, which the linear layer before is free to fill.

W(x) is never formed. All maps on one kind b are applied in one batched product, and all that a
kind c receives is mixed in one matrix product with a matrix that does not depend on the batch:

    z[j, C, l] = Σ_B x_a[j, C, B] x_b[l, B]        y[k, C] = s Σ_(j, l) w[k, j, l] z[j, C, l]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from math import prod
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from isotropy.bases.maps import Kind, kinds, map_atoms
from isotropy.checks import CallerError, shape_text
from isotropy.networks.channel_allocation import keeps_form
from isotropy.networks.equivariant_linear import ExactBuffers
from isotropy.symmetry.groups import Group
from isotropy.symmetry.representations import BASE, Maps, Product, Representation

Key = TypeVar("Key")
SourceKey = tuple[int, int, tuple[int, ...]]
"""Number of a kind, how many objects of it, and their forms."""

SCALE = 0.1
"""What W(x) x is multiplied by, as in the public code: steps in w are small steps in W."""
SHARE = 0.3
"""Initial standard deviation of y, for inputs of standard deviation one."""
WORTH_A_KERNEL = 400
"""Multiplications in one item of a batched product, below which torch's is several times slower."""


@dataclass(frozen=True)
class Triple:
    """Objects of kind `map` read as maps from kind `source` to kind `target` (indices of kinds).

    used:  how many objects of kind `map`
    taken: how many objects of kind `source`
    shape: of one object of kind `map`, its atoms one by one
    axes:  the order that makes these axes those of target, then those of source*
    sizes: (C, B)
    forms: for each atom of source, what it goes through before the contraction: nothing (0), the
           form (1) or its inverse (−1)
    """

    map: int
    source: int
    target: int
    used: int
    taken: int
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    sizes: tuple[int, int]
    forms: tuple[int, ...]

    @property
    def moment(self) -> int:
        """Σ E z² over all (j, l), for entries of x independent with variance one."""
        squares = self.used * self.sizes[1] ** 2 if self.map == self.source else 0
        return self.used * self.taken * self.sizes[1] + squares


class EquivariantBilinear(ExactBuffers):
    """y = 0.1 W(x) x on (…, source.size) → (…, target.size); see the module.

    source, target: representations bound to one real group
    generator: draws the initial weights, normal, such that y starts with a standard deviation of
               about 0.3 where x has one of 1; torch's own if None

    Outputs that nothing maps to are zero. `triples` says what is contracted with what; if it is
    empty, so is the layer.
    """

    def __init__(
        self,
        source: Representation,
        target: Representation,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        maps = Maps(source, target)
        if maps.group.is_complex:
            raise CallerError(
                f"a bilinear layer needs a real group, got {maps.group}; bind the representations "
                "to group.real_form()"
            )
        source_kinds, target_kinds = kinds(maps.source), kinds(maps.target)
        self.triples = contractions(source_kinds, target_kinds, maps.group)
        self.in_features, self.out_features = maps.source.size, maps.target.size
        self._sources = [(kind.copies, kind.size) for kind in source_kinds]
        self._targets = [(kind.copies, kind.size) for kind in target_kinds]
        self._by_source = _grouped(
            [(each.source, each.taken, each.forms) for each in self.triples], self.triples
        )
        self._by_target = _grouped([each.target for each in self.triples], self.triples)
        self._forms: dict[tuple[int, ...], str] = {}
        for forms in {each.forms for each in self.triples if any(each.forms)}:
            self._forms[forms] = f"form_{len(self._forms)}"
            self.add_exact(self._forms[forms], _form(maps.group, forms))
        # Weights (copies out, used, taken) one triple after another, as by target.
        self._amounts = [
            target_kinds[c].copies * triple.used * triple.taken
            for c, group in self._by_target.items()
            for triple in group
        ]
        self.coefficients = nn.Parameter(torch.empty(sum(self._amounts)))
        self._add_order("source_order", source_kinds, inverse=False)
        self._add_order("target_order", target_kinds, inverse=True)
        self.reset_parameters(generator)

    source_order: Tensor | None
    target_order: Tensor | None

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights anew."""
        with torch.no_grad():
            parts = iter(self.coefficients.split(self._amounts))
            for group in self._by_target.values():
                for each in group:
                    spread = SHARE / SCALE / (len(group) * each.moment) ** 0.5
                    next(parts).normal_(0, spread, generator=generator)

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.shape[-1] != self.in_features:
            raise CallerError(f"expected inputs (…, {self.in_features}), got {shape_text(inputs)}")
        flat = inputs.reshape(-1, self.in_features)
        if self.source_order is not None:
            flat = flat.index_select(1, self.source_order)
        mixed = self._mixed(flat)
        if self.target_order is not None:
            mixed = mixed.index_select(1, self.target_order)
        return mixed.view(*inputs.shape[:-1], self.out_features)

    def _mixed(self, inputs: Tensor) -> Tensor:
        """W(x) x, inputs and outputs with copies of a kind together."""
        objects = inputs.split([copies * size for copies, size in self._sources], 1)
        products: dict[Triple, Tensor] = {}
        for key, group in self._by_source.items():
            found = _maps(group, objects) @ self._source(key, objects).mT  # (batch, Σ j C, l)
            products.update(zip(group, _pieces(found.flatten(1), group), strict=True))
        weights = iter((SCALE * self.coefficients).split(self._amounts))
        columns = [
            inputs.new_zeros(()).expand(inputs.shape[0], prod(shape)) for shape in self._targets
        ]
        for target, group in self._by_target.items():
            copies, _ = self._targets[target]
            matrix = _joined([_mixing(next(weights), copies, each) for each in group])
            columns[target] = _joined([products[each] for each in group]) @ matrix.T
        return _joined(columns)

    def _source(self, key: SourceKey, objects: Sequence[Tensor]) -> Tensor:
        """x_b (batch, l, B), through the form where there is one."""
        number, taken, forms = key
        size = self._sources[number][1]
        source = objects[number][:, : taken * size].unflatten(1, (taken, size))
        return source @ getattr(self, self._forms[forms]).T if any(forms) else source

    def _add_order(self, name: str, kinds: tuple[Kind, ...], *, inverse: bool) -> None:
        places = np.concatenate([kind.places.ravel() for kind in kinds] or [np.zeros(0, int)])
        ordered = np.array_equal(places, np.arange(len(places)))
        order = torch.from_numpy(np.argsort(places) if inverse else places)
        self.register_buffer(name, None if ordered else order, persistent=False)

    def extra_repr(self) -> str:
        return (
            f"{self.in_features} to {self.out_features}, {len(self.triples)} contractions, "
            f"{self.coefficients.numel()} weights"
        )


def contractions(
    sources: Sequence[Kind], targets: Sequence[Kind], group: Group
) -> tuple[Triple, ...]:
    """Every way in which a kind of `sources` acts on one of them to give one of `targets`."""
    found = []
    for b, source in enumerate(sources):
        for c, target in enumerate(targets):
            word = map_atoms(target.atoms, source.atoms, group)
            if target.atoms and len(source.atoms) != 1:
                continue
            for a, kind in enumerate(sources):
                axes = _axes(kind.atoms, word, len(target.atoms), group)
                if axes is None:
                    continue
                read = [kind.atoms[axis] for axis in axes]
                found.append(
                    Triple(
                        map=a,
                        source=b,
                        target=c,
                        used=min(kind.copies, kind.size),
                        taken=min(source.copies, source.size) if target.atoms else source.copies,
                        shape=tuple(atom.size(group) for atom in kind.atoms),
                        axes=axes,
                        sizes=(target.size, source.size),
                        forms=tuple(
                            0 if own == wanted else 1 if own == BASE else -1
                            for own, wanted in zip(read, word, strict=True)
                        )[len(target.atoms) :],
                    )
                )
    return tuple(found)


def _maps(group: Sequence[Triple], objects: Sequence[Tensor]) -> Tensor:
    """The objects that act on one source, (batch, Σ j C, B), and rows of zeros where these help."""
    taken, into = group[0].taken, group[0].sizes[1]
    pieces = []
    for triple in group:
        used = objects[triple.map][:, : triple.used * prod(triple.shape)]
        if triple.axes != tuple(range(len(triple.axes))):
            tensor = used.unflatten(1, (triple.used, *triple.shape))
            used = tensor.permute(0, 1, *(2 + axis for axis in triple.axes)).flatten(1)
        pieces.append(used)
    rows = sum(triple.used * triple.sizes[0] for triple in group)
    missing = -(-WORTH_A_KERNEL // (taken * into)) - rows
    if 0 < missing <= 2 * rows:
        pieces.append(pieces[0].new_zeros(()).expand(pieces[0].shape[0], missing * into))
    return _joined(pieces).unflatten(1, (-1, into))


def _pieces(found: Tensor, group: Sequence[Triple]) -> list[Tensor]:
    """The columns of each triple, used · C · taken of them."""
    lengths = [each.used * each.sizes[0] * each.taken for each in group]
    starts = accumulate([0, *lengths[:-1]])
    return [found[:, start : start + length] for start, length in zip(starts, lengths, strict=True)]


def _joined(pieces: Sequence[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces), 1)


def _mixing(weight: Tensor, copies: int, triple: Triple) -> Tensor:
    """The matrix (k C, j D l) whose entries are w[k, j, l] where C = D, and zero elsewhere."""
    out = triple.sizes[0]
    if out == 1:
        return weight.view(copies, triple.used * triple.taken)
    same = torch.eye(out, dtype=weight.dtype, device=weight.device)
    tensor = weight.view(copies, 1, triple.used, 1, triple.taken) * same[:, None, :, None]
    return tensor.view(copies * out, triple.used * out * triple.taken)


def _axes(atoms: Product, word: Product, of_target: int, group: Group) -> tuple[int, ...] | None:
    """For each atom of `word` the first place in `atoms` not taken yet that holds it; None if there
    is none. After the first `of_target`, V and its dual may stand for each other by a form."""
    if not atoms or len(atoms) != len(word):
        return None
    left = list(range(len(atoms)))
    found = []
    for number, atom in enumerate(word):
        places = [place for place in left if atoms[place] == atom]
        by_form = keeps_form(group) and number >= of_target and atom in (BASE, BASE.dual)
        if not places and by_form:
            places = [place for place in left if atoms[place] == atom.dual]
        if not places:
            return None
        left.remove(places[0])
        found.append(places[0])
    return tuple(found)


def _form(group: Group, forms: tuple[int, ...]) -> Tensor:
    """The product of B, B⁻¹ or 1 for each atom, (B, B)."""
    assert group.classical is not None and group.classical.form is not None
    form = np.asarray(group.classical.form, dtype=np.float64)
    by = {0: np.eye(len(form)), 1: form, -1: np.linalg.inv(form)}
    return torch.from_numpy(reduce(np.kron, [by[each] for each in forms]))


def _grouped(keys: Sequence[Key], triples: Sequence[Triple]) -> dict[Key, list[Triple]]:
    groups: dict[Key, list[Triple]] = {}
    for key, triple in zip(keys, triples, strict=True):
        groups.setdefault(key, []).append(triple)
    return groups
