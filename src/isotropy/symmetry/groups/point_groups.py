"""Finite groups that map a grid of pixels onto itself: quarter turns, reflections, both.

A point group H is a group of 2×2 integer matrices h that keep the unit square: each exchanges axes
or not, and reverses some of them. h moves the content of an image about the image's centre,

    (h·v)(p) = v(h⁻¹ p)                 p = (x, y), x to the right, y up, 0 at the centre

by permuting pixels, so that nothing is interpolated and h·(h′·v) = (h h′)·v exactly. The generator
of C(4), [[0, −1], [1, 0]], turns content counter-clockwise as seen, and the reflection diag(−1, 1)
of D(k) exchanges left and right. Maps with an axis of group elements, f(h, c, p), transform by

    (g·f)(h, c, p) = f(g⁻¹ h, c, g⁻¹ p)       the regular action

(Cohen and Welling 2016, Eq. 7 to 9; van der Ouderaa, Immer and van der Wilk 2023, App. A). Axes:
images (…, height, width); maps on the group (…, H·channels, height, width), elements slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import scipy.sparse as sparse
import torch
from torch import Tensor

from isotropy.checks import CallerError, shape_text
from isotropy.symmetry.actions.finite import Element, FiniteAction, MapAction
from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.group import Group, signed_permutation
from isotropy.symmetry.groups.products import finite_elements

Matrix = tuple[tuple[int, int], tuple[int, int]]

ELEMENTS: dict[str, Matrix] = {
    "horizontal_flip": ((-1, 0), (0, 1)),
    "vertical_flip": ((1, 0), (0, -1)),
    "turn_90": ((0, -1), (1, 0)),
    "turn_180": ((-1, 0), (0, -1)),
    "turn_270": ((0, 1), (-1, 0)),
}
"""Elements of `flip` and `quarter_turns` by their names."""
_ADVICE = "choose among Trivial(2), C(2), C(4), D(1), D(2) and D(4)"


@dataclass(frozen=True)
class PointGroup:
    """A finite group of symmetries of the square grid; make one with `PointGroup.of`.

    name:     as it was written; groups with the same elements are equal whatever their names
    matrices: its elements, the identity first; others in the order of the words in the generators
    """

    name: str = field(compare=False)
    matrices: tuple[Matrix, ...]

    @classmethod
    def of(cls, group: PointGroup | Group | str) -> PointGroup:
        """The elements of a group on the plane, such as "C(4)" or "D(2)".

        Raises CallerError where the group is continuous, not on R², or does not act on the grid.
        """
        if isinstance(group, PointGroup):
            return group
        if isinstance(group, str):
            group = group_named(group)
        if group.algebra:
            raise CallerError(
                f"group {group.name}: expected a finite group, got a continuous one; {_ADVICE}"
            )
        if group.dimension != 2 or group.is_complex:
            field = "C" if group.is_complex else "R"
            raise CallerError(
                f"group {group.name}: expected a group on the plane R^2, got one on "
                f"{field}^{group.dimension}; {_ADVICE}"
            )
        for generator in group.discrete:
            _on_grid(generator.toarray(), group.name)
        elements = finite_elements(group, largest=8)
        assert elements is not None, "the square has eight symmetries"
        found = (_on_grid(each.toarray(), group.name) for each in elements.values())
        return cls(group.name, tuple(found))

    @classmethod
    def generated_by(cls, names: Iterable[str]) -> PointGroup:
        """The group that elements of `flip` and `quarter_turns` generate, by its usual name."""
        words = sorted(names)
        found = cls.of(Group(" and ".join(words), discrete=[ELEMENTS[name] for name in words]))
        known = [cls.of(name) for name in ("C(2)", "C(4)", "D(1)", "D(2)", "D(4)")]
        return next((each for each in known if {*each.matrices} == {*found.matrices}), found)

    def as_action(self) -> FiniteAction:
        """Its elements but the identity, acting on images (batch, …, height, width)."""
        maps: dict[Element, Callable[[Tensor], Tensor]] = {
            Element(f"{self.name}, element {h}"): partial(self.act, element=h)
            for h in range(1, self.order)
        }
        return MapAction(self.name, maps)

    @property
    def order(self) -> int:
        """|H|."""
        return len(self.matrices)

    @property
    def elements(self) -> Tensor:
        """All h, integers (|H|, 2, 2), the identity first."""
        return torch.tensor(self.matrices, device="cpu")

    @property
    def product(self) -> Tensor:
        """Places of products, (|H|, |H|): entry [g, h] is the place of g h."""
        elements = self.elements
        products = torch.einsum("gij,hjk->ghik", elements, elements)
        return (products[:, :, None] == elements).all(-1).all(-1).long().argmax(-1)

    @property
    def inverse(self) -> Tensor:
        """Places of inverses, (|H|,)."""
        return (self.product == 0).long().argmax(-1)

    @property
    def exchanges_axes(self) -> bool:
        """Whether some element makes height of width, so that it acts on square maps only."""
        return any(h[0][0] == 0 for h in self.matrices)

    def act(self, maps: Tensor, element: int) -> Tensor:
        """h·v for the element at this place, on maps (…, height, width)."""
        (of_x, y_to_x), (x_to_y, of_y) = self.matrices[element]
        if of_x == 0 and maps.shape[-2] != maps.shape[-1]:
            raise CallerError(
                f"group {self.name}: expected square maps, since elements exchange the axes, got "
                f"{shape_text(maps)}; cut or resize them, or choose D(2) or one of its subgroups"
            )
        # Rows run down, against y: what exchanges the axes gets a sign on both.
        exchanged = of_x == 0
        reverses_width = (-y_to_x if exchanged else of_x) < 0
        reverses_height = (-x_to_y if exchanged else of_y) < 0
        moved = maps.mT if exchanged else maps
        axes = [axis for axis, is_on in ((-2, reverses_height), (-1, reverses_width)) if is_on]
        return moved.flip(axes) if axes else moved

    def act_on_features(self, maps: Tensor, element: int) -> Tensor:
        """The regular action g·f on maps (…, |H|·channels, height, width), elements slow."""
        if maps.ndim < 3 or maps.shape[-3] % self.order:
            raise CallerError(
                f"group {self.name}: expected maps (…, {self.order}·channels, height, width), got "
                f"{shape_text(maps)}"
            )
        parts = maps.unflatten(-3, (self.order, -1))
        source = self.product[self.inverse[element]]  # h ↦ g⁻¹ h
        return self.act(parts.index_select(-4, source.to(maps.device)), element).flatten(-4, -3)

    def __repr__(self) -> str:
        return self.name


def _on_grid(matrix: np.ndarray, name: str) -> Matrix:
    """The generator in integers; raises if it is not a symmetry of the square."""
    whole = np.round(matrix)
    if np.abs(matrix - whole).max() > 1e-9 or signed_permutation(sparse.csr_array(whole)) is None:
        written = np.array2string(matrix, precision=3, suppress_small=True).replace("\n", "")
        raise CallerError(
            f"group {name} does not act on the grid: its generator {written} does not send pixels "
            f"of a square to pixels of it; {_ADVICE}"
        )
    (a, b), (c, d) = whole.astype(int).tolist()
    return ((a, b), (c, d))
