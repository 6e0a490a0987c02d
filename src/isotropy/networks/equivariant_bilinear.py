"""A bilinear layer that commutes with a group: tensors in the input read as maps on the rest of it.

    y = s W(x) x       s = 0.1        W(x)[(k, C), (l, B)] = Σ_j w[k, l, j] x_a[j, (C, B)]

(Finzi 2023, 2.6, and the public code.) An object of the product a = c ⊗ b* *is* a map from b to c,
and it moves with the group as x does, so that W(x) x is equivariant whatever the weights w: T(2)
times T(1) gives T(1), T(1) with T(1) the inner product. The atoms of a may come in any order; its
axes are put in order. Where the group keeps a form B, V stands for V* by x ↦ B x, so that V ⊗ V is
a map from V to V, too. Scalars are not used as maps: polynomials of scalars are what the
nonlinearity is for.

Of each kind a, min(copies, size) objects serve as maps, as in the public code: more of them are
linearly dependent. Two things differ from it, both for speed. The same holds here for the objects
that maps are applied to, and scalars are left out there, too: a gate multiplies each object by a
scalar already. And the objects taken are the first ones, where the public code draws them at
random: objects of a hidden layer are exchangeable at the start, so the law of the network is the
same, and these are slices.

W(x) is never formed. All maps on one kind b are applied in one batched product, and all that a
kind c receives is mixed in one matrix product with a matrix that does not depend on the batch:

    z[j, C, l] = Σ_B x_a[j, C, B] x_b[l, B]        y[k, C] = s Σ_(j, l) w[k, j, l] z[j, C, l]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
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

FEW = False
SCALE = 0.1
"""What the public code multiplies W(x) x by, for weights of variance one."""


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


class EquivariantBilinear(ExactBuffers):
    """y = 0.1 W(x) x on (…, source.size) → (…, target.size); see the module.

    source, target: representations bound to one real group
    generator: draws the initial weights, normal with variance one; torch's own if None

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
            self.coefficients.normal_(generator=generator)

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.shape[-1] != self.in_features:
            raise CallerError(f"expected inputs (…, {self.in_features}), got {shape_text(inputs)}")
        flat = inputs.reshape(-1, self.in_features)
        if self.source_order is not None:
            flat = flat.index_select(1, self.source_order)
        objects = flat.split([copies * size for copies, size in self._sources], 1)
        products: dict[Triple, Tensor] = {}
        for (_, _, forms), group in self._by_source.items():
            form = getattr(self, self._forms[forms]) if any(forms) else None
            products.update(zip(group, _products(group, objects, form), strict=True))
        weights = iter((SCALE * self.coefficients).split(self._amounts))
        columns = [flat.new_zeros(()).expand(flat.shape[0], prod(shape)) for shape in self._targets]
        for target, group in self._by_target.items():
            copies, _ = self._targets[target]
            matrix = torch.cat([_mixing(next(weights), copies, each) for each in group], 1)
            found = torch.cat([products[each] for each in group], 1)
            columns[target] = found @ matrix.T
        mixed = columns[0] if len(columns) == 1 else torch.cat(columns, 1)
        if self.target_order is not None:
            mixed = mixed.index_select(1, self.target_order)
        return mixed.view(*inputs.shape[:-1], self.out_features)

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
    """Every way to read a kind of `sources` as a map from one of them to one of `targets`."""
    found = []
    for b, source in enumerate(sources):
        if not source.atoms:
            continue
        for c, target in enumerate(targets):
            word = map_atoms(target.atoms, source.atoms, group)
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
                        taken=min(source.copies, source.size) if target.atoms or FEW else source.copies,
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


def _products(
    group: Sequence[Triple], objects: Sequence[Tensor], form: Tensor | None
) -> Iterator[Tensor]:
    """z (batch, used · C · taken) of every triple of one source."""
    taken, into = group[0].taken, group[0].sizes[1]
    source = objects[group[0].source][:, : taken * into].unflatten(1, (taken, into))
    if form is not None:
        source = source @ form.T
    maps = [_maps(triple, objects[triple.map]) for triple in group]
    together = maps[0] if len(maps) == 1 else torch.cat(maps, 1)
    found = together.unflatten(1, (-1, into)) @ source.mT  # (batch, Σ j C, l)
    return iter(found.flatten(1).split([t.used * t.sizes[0] * taken for t in group], 1))


def _maps(triple: Triple, objects: Tensor) -> Tensor:
    """The objects used as maps, (batch, j · C · B)."""
    used = objects[:, : triple.used * prod(triple.shape)]
    if triple.axes == tuple(range(len(triple.axes))):
        return used
    tensor = used.unflatten(1, (triple.used, *triple.shape))
    return tensor.permute(0, 1, *(2 + axis for axis in triple.axes)).flatten(1)


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
