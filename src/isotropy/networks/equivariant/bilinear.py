"""A bilinear layer that commutes with a group: objects in the input act on other objects in it.

    y_c = s Σ_(a, b) w_ab z_ab      s = 0.5      z_ab[j, C] = Σ_B x_a[j, (C, B)] x_b[j, B]

An object of the product a = c ⊗ b* *is* a map from b to c, and it moves with the group as x does,
so that z is equivariant, and with it y = W(x) x, whatever the weights w (Finzi 2023, 2.6): T(2)
times T(1) gives T(1), T(1) with T(1) the inner product. The atoms of a may come in any order; its
axes are put in order. Where the group keeps a form B, V stands for V* by x ↦ B x, so that V ⊗ V is
a map from V to V, too.

What acts on what:

    on their own kind   c a scalar: invariants
    on vectors          b and c single atoms
    beside vectors      a and b single atoms, c = a ⊗ b: z[j, (A, B)] = x_a[j, A] x_b[j, B]

These contractions are the same for O(n), for the group of a form, or for GL(n). With products of
rank two they and the linear layers are enough for many groups. For others they are not: a linear
map of tensors of rank two that commutes with C(k) or D(k), k ≥ 5, or with the icosahedral group
commutes with all rotations. There, and only there (`larger_symmetry`), higher ranks meet,

    on tensors          b of a rank below that of a, c a single atom: T(3) times T(2) gives T(1)
    beside tensors      T(3) = T(1) ⊗ T(2), T(4) = T(2) ⊗ T(2), …

    by a solved map     two tensors to an invariant that larger groups have not: of D(5), Re z⁵ from
                        T(2) and T(3)

up to the rank whose linear maps tell the group from larger ones. If no rank in the layer does,
objects of low rank meet by a bilinear map that does, solved for, too: SO(5), T(2) × T(2) → T(1).

The j-th object of a meets the j-th object of b; an object meets itself to give an invariant (not by
an antisymmetric form: that is zero), and vectors of the first half of a kind those of the second.
The linear layer before fills all of them as it likes, so that the pairs it wants are there, and
w (copies of c, j) mixes what comes out. In the public code all pairs meet, which costs several
times what the linear layer does, and s is 0.1. Gates multiply by scalars already, and what lies
further apart is reached in two steps.

**Curvature.** y_c is linear in w: a linear layer from all s z_ab to the copies of c, shared by the
coordinates C. Of several copies of an example the mean of z is taken, not z of the mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import torch
from torch import Tensor, nn

from isotropy.bases.maps import Kind, map_atoms
from isotropy.curvature.blocks import Roots
from isotropy.curvature.kinds import Copies
from isotropy.curvature.layer_rules import LayerRule, Use, register_rule
from isotropy.networks.equivariant.channels import (
    OfParts,
    Parts,
    Shared,
    keeps_form,
    scale_to,
    shared_roots,
)
from isotropy.networks.equivariant.larger_symmetry import Telling, telling
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import BASE, Product, Representation

SCALE = 0.5
"""What W(x) x is multiplied by: steps in w are smaller steps in W. With 0.1 invariants are learned
more slowly, with 1 tensors less well."""
SHARE = 0.3
"""Initial standard deviation of y, for inputs of standard deviation one."""


@dataclass(frozen=True)
class Contraction:
    """Objects of kind `map` acting on objects of kind `source` to give `target` (numbers of kinds).

    count: pairs
    shape: of one object of kind `map`, its atoms one by one
    axes:  the order that makes these axes those of target, then those of source*
    sizes: (C, B); B is one beside vectors, where `source` has the last axes of C
    forms: for each atom of source, what it goes through before the contraction: nothing (0), the
           form (1) or its inverse (−1)
    first: the object of `source` that the first object of `map` meets
    solved: the number of a solved contraction, whose sizes are (C, A · B); None elsewhere
    """

    map: int
    source: int
    target: int
    count: int
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    sizes: tuple[int, int]
    forms: tuple[int, ...] = ()
    first: int = 0
    solved: int | None = None

    @property
    def moment(self) -> int:
        """E z², for entries of x independent with variance one."""
        inner = self.sizes[1] if self.solved is None else 1
        return inner * (inner + 2) if self.map == self.source and not self.first else inner


class EquivariantBilinear(OfParts):
    """y = 0.5 W(x) x on (…, source.size) → (…, target.size); see the module.

    source, target: representations bound to one real group
    generator: draws the initial weights, normal, such that y starts with a standard deviation of
               about 0.3 where x has one of 1; torch's own if None

    Outputs that nothing maps to are zero. `contractions` says what meets what; if it is empty, so
    is the layer.
    """

    def __init__(
        self,
        source: Representation,
        target: Representation,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(source, target)
        group = self.source.group
        self.contractions = contractions(self.source_kinds, self.target_kinds, group)
        self._forms: dict[tuple[int, ...], str] = {}
        for forms in {each.forms for each in self.contractions if any(each.forms)}:
            self._forms[forms] = f"form_{len(self._forms)}"
            self.add_exact(self._forms[forms], torch.from_numpy(_form(group, forms)))
        for each in self.contractions:
            if each.solved is not None:
                tensor = _needed(self.source_kinds, group).solved[each.solved].tensor
                self.add_exact(f"solved_{each.solved}", torch.from_numpy(tensor))
        # Weights (copies out, Σ pairs), one kind of the target after another.
        self._by_target = {
            c: [each for each in self.contractions if each.target == c]
            for c in sorted({each.target for each in self.contractions})
        }
        self._shapes = [
            (self.target_kinds[c].copies, sum(each.count for each in own))
            for c, own in self._by_target.items()
        ]
        self.coefficients = nn.Parameter(torch.empty(sum(a * b for a, b in self._shapes)))
        self.reset_parameters(generator)

    @property
    def tells(self) -> bool:
        """Whether contractions of ranks above two, or solved ones, tell the group from a larger
        one."""
        needed = _needed(self.source_kinds, self.source.group)
        return needed.rank > 2 or bool(needed.solved)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights anew."""
        with torch.no_grad():
            for weight, group in zip(self._weights(), self._by_target.values(), strict=True):
                columns = weight.split([each.count for each in group], 1)
                for own, each in zip(columns, group, strict=True):
                    spread = SHARE / SCALE / (len(group) * each.count * each.moment) ** 0.5
                    own.normal_(0, spread, generator=generator)

    def rescale_(self, parts: Sequence[Tensor], spread: float) -> None:
        """Scale the weights so that each kind of the outputs has about this standard deviation over
        the examples `parts`, and as much by one contraction as by another. What does not vary
        stays."""
        objects = [_Objects(part) for part in parts]
        with torch.no_grad():
            for weight, group in zip(self._weights(), self._by_target.values(), strict=True):
                columns = weight.split([each.count for each in group], 1)
                for own, each in zip(columns, group, strict=True):
                    product = self._product(each, objects)
                    found = SCALE * own @ product.flatten(1)
                    share = spread / len(group) ** 0.5
                    own.mul_(scale_to(share, found.view(len(own), *product.shape[1:])))

    def of_parts(self, parts: Sequence[Tensor]) -> Parts:
        batch = parts[0].shape[-1]
        found = [
            parts[0].new_zeros(()).expand(kind.copies, kind.size, batch)
            for kind in self.target_kinds
        ]
        for target, weight, products in self._mixtures(parts):
            found[target] = ((SCALE * weight) @ products.flatten(1)).view(found[target].shape)
        return found

    def added(self, parts: Sequence[Tensor]) -> Parts:
        """x + y on parts, where source and target are one."""
        found = list(parts)
        for target, weight, products in self._mixtures(parts):
            own = parts[target].flatten(1)
            mixed = torch.addmm(own, weight, products.flatten(1), alpha=SCALE)
            found[target] = mixed.view(parts[target].shape)
        return found

    def _weights(self) -> list[Tensor]:
        pieces = self.coefficients.split([a * b for a, b in self._shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]

    def _mixtures(self, parts: Sequence[Tensor]) -> Iterator[tuple[int, Tensor, Tensor]]:
        """For each kind of the target that is reached its number, w and z (Σ pairs, C, batch)."""
        objects = [_Objects(part) for part in parts]
        for (target, group), weight in zip(self._by_target.items(), self._weights(), strict=True):
            products = [self._product(each, objects) for each in group]
            yield target, weight, products[0] if len(products) == 1 else torch.cat(products)

    def _product(self, each: Contraction, objects: Sequence[_Objects]) -> Tensor:
        """z (pairs, C, batch) of one contraction."""
        maps = objects[each.map].taken(0, each.count)
        source = objects[each.source].taken(each.first, each.count)
        batch = maps.shape[-1]
        if any(each.forms):
            form = getattr(self, self._forms[each.forms])
            source = torch.bmm(form.expand(each.count, -1, -1), source)
        outer, inner = each.sizes
        if not each.forms:
            beside = (maps[:, :, None] * source[:, None]).view(each.count, -1, batch)
            if each.solved is None:
                return beside
            tensor = getattr(self, f"solved_{each.solved}")
            return torch.bmm(tensor.expand(each.count, -1, -1), beside)
        if each.axes != tuple(range(len(each.axes))):
            tensor = maps.unflatten(1, each.shape)
            maps = tensor.permute(0, *(1 + axis for axis in each.axes), -1)
        if outer == 1 and maps is source:
            return maps.square().sum(1, keepdim=True)
        if outer == 1:
            return (maps.reshape(each.count, inner, batch) * source).sum(1, keepdim=True)
        maps = maps.reshape(each.count, outer, inner, batch)
        return (maps * source[:, None]).sum(2)

    def products(self, inputs: Tensor) -> Tensor:
        """s z of all contractions, (rows, Σ pairs · C), for inputs (rows, source.size)."""
        found = [z.flatten(0, 1) for _, _, z in self._mixtures(self.parts(inputs))]
        return SCALE * torch.cat(found).T

    def shared(self, products: Tensor, gradients: Sequence[Tensor]) -> list[Shared]:
        """w of every kind of the target, for `products` and for gradients by outputs as parts."""
        sizes = [(pairs, self.target_kinds[c].size) for c, (_, pairs) in self._by_kind()]
        pieces = products.T.split([pairs * size for pairs, size in sizes])
        found, last = [], 0
        for (c, (copies, pairs)), piece, size in zip(self._by_kind(), pieces, sizes, strict=True):
            first, last = last, last + copies * pairs
            found.append(Shared(((first, last),), piece.unflatten(0, size), gradients[c]))
        return found

    def _by_kind(self) -> list[tuple[int, tuple[int, int]]]:
        """Kinds of the target that are reached, and the shapes of their weights."""
        return list(zip(self._by_target, self._shapes, strict=True))

    def extra_repr(self) -> str:
        return (
            f"{self.source} >> {self.target}, {len(self.contractions)} contractions, "
            f"{self.coefficients.numel()} weights"
        )


class EquivariantBilinearRule(LayerRule):
    """`EquivariantBilinear`, of whose inputs s z is kept."""

    parameters = ("coefficients",)

    def reduce_inputs(self, module: nn.Module, inputs: Tensor, copies: Copies) -> Tensor:
        """s z (batch, …, Σ pairs · C), the mean over copies."""
        assert isinstance(module, EquivariantBilinear)
        flat = module.products(inputs.flatten(0, -2))
        return copies.mean(flat.unflatten(0, inputs.shape[:-1]))

    def roots(self, module: nn.Module, uses: Sequence[Use]) -> dict[str, Roots]:
        """Gradients are (directions, batch, …, out)."""
        assert isinstance(module, EquivariantBilinear)
        shared = [
            module.shared(
                use.inputs.flatten(0, -2), module.target_parts(use.gradient.flatten(0, -2))
            )
            for use in uses
        ]
        places = sum(use.gradient[0, 0, ..., 0].numel() for use in uses)
        return {"coefficients": shared_roots(shared, places)}


register_rule(EquivariantBilinear, EquivariantBilinearRule())


class _Objects:
    """Copies of one kind, (copies, size, batch), taken from its halves where these hold them.

    The gradient of a piece is padded to the length of what it was taken from, and pieces taken
    together share this: so pieces are kept, and short ones are taken from a half.
    """

    def __init__(self, part: Tensor) -> None:
        self._half = part.shape[0] // 2
        self._known = {(0, part.shape[0]): part}

    def taken(self, first: int, count: int) -> Tensor:
        """Copies first, first + 1, …, as many as `count`."""
        if (first, count) not in self._known:
            whole = next(iter(self._known.values()))
            half = self._half
            if (0, half) not in self._known:
                pieces = whole.split([half, half, whole.shape[0] - 2 * half])
                self._known |= {(0, half): pieces[0], (half, half): pieces[1]}
            if (first, count) not in self._known:
                start, within = first, whole
                if count <= half and first in (0, half):
                    start, within = 0, self._known[first, half]
                lengths = [start, count, within.shape[0] - start - count]
                self._known[first, count] = within.split(lengths)[1]
        return self._known[first, count]


def contractions(
    sources: Sequence[Kind], targets: Sequence[Kind], group: Group
) -> tuple[Contraction, ...]:
    """Every way in which kinds of `sources` meet to give one of `targets`."""
    needed = _needed(sources, group)
    found = []
    for c, target in enumerate(targets):
        for b, source in enumerate(sources):
            for a, kind in enumerate(sources):
                half = kind.copies // 2 if a == b and (target.atoms or len(kind.atoms) == 1) else 0
                is_invariant = not target.atoms
                ways = [_contraction((a, b, c), kind, source, target, group, needed.rank)]
                for number, each in enumerate(needed.solved):
                    if (kind.atoms, source.atoms, target.atoms) == each.products:
                        count = min(kind.copies, source.copies)
                        sizes = target.size, kind.size * source.size
                        ways.append(Contraction(a, b, c, count, (), (), sizes, solved=number))
                for made in ways:
                    if made is not None and half:
                        found.append(replace(made, count=min(half, made.count), first=half))
                    if made is not None and (not half or is_invariant):
                        found.append(made)
    return tuple(each for each in found if not _is_zero(each, group, needed))


def _needed(sources: Sequence[Kind], group: Group) -> Telling:
    return telling(tuple(kind.atoms for kind in sources), group)


def _is_zero(each: Contraction, group: Group, needed: Telling) -> bool:
    """Whether objects meet themselves by an antisymmetric map."""
    if each.map != each.source or each.first:
        return False
    if each.solved is not None:
        tensor = needed.solved[each.solved].tensor
        maps = tensor.reshape(len(tensor), -1, round(tensor.shape[1] ** 0.5))
        return bool(np.allclose(maps, -maps.transpose(0, 2, 1)))
    form = _form(group, each.forms) if any(each.forms) else np.ones((1, 1))
    return bool(np.allclose(form, -form.T))


def _contraction(
    numbers: tuple[int, int, int],
    kind: Kind,
    source: Kind,
    target: Kind,
    group: Group,
    largest_rank: int,
) -> Contraction | None:
    a, b, c = numbers
    count = min(kind.copies, source.copies)
    shape = tuple(atom.size(group) for atom in kind.atoms)
    of_source, of_target = len(source.atoms), len(target.atoms)
    is_beside = of_target == 2 or 2 < of_target <= largest_rank
    if is_beside and of_source and target.atoms == kind.atoms + source.atoms:
        if len(kind.atoms) != of_target // 2:
            return None
        return Contraction(a, b, c, min(count, target.copies), shape, (0,), (target.size, 1))
    is_on_vectors = of_target == 1 and (of_source == 1 or of_source < largest_rank)
    if not of_source or (of_target and not is_on_vectors):
        return None
    word = map_atoms(target.atoms, source.atoms, group)
    axes = _axes(kind.atoms, word, len(target.atoms), group)
    if axes is None:
        return None
    read = [kind.atoms[axis] for axis in axes]
    forms = tuple(
        0 if own == wanted else 1 if own == BASE else -1
        for own, wanted in zip(read, word, strict=True)
    )[len(target.atoms) :]
    return Contraction(a, b, c, count, shape, axes, (target.size, source.size), forms)


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


def _form(group: Group, forms: tuple[int, ...]) -> np.ndarray:
    """The product of B, B⁻¹ or 1 for each atom, (B, B)."""
    assert group.classical is not None and group.classical.form is not None
    form = np.asarray(group.classical.form, dtype=np.float64)
    by = {0: np.eye(len(form)), 1: form, -1: np.linalg.inv(form)}
    return np.asarray(reduce(np.kron, [by[each] for each in forms]))
