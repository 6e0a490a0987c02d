"""Point groups: their elements and tables, how they move pixels, and which groups are refused."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.symmetry.actions.finite import flip, quarter_turns
from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.point_groups import PointGroup

ORDERS = {
    "Trivial(2)": 1,
    "C(1)": 1,
    "C(2)": 2,
    "C(4)": 4,
    "D(1)": 2,
    "D(2)": 4,
    "D(4)": 8,
    "Z(2)": 2,
    "S(2)": 2,
}


def moved_by_pixel(image: Tensor, matrix: np.ndarray) -> Tensor:
    """Content at p goes to M p: x right, y up, about the centre; one pixel at a time."""
    height, width = image.shape
    moved = torch.full_like(image, float("nan"))
    for row in range(height):
        for column in range(width):
            point = np.array([column - (width - 1) / 2, (height - 1) / 2 - row])
            x, y = matrix @ point
            moved[round((height - 1) / 2 - y), round(x + (width - 1) / 2)] = image[row, column]
    return moved


def features(group: PointGroup, size: tuple[int, int] = (4, 4), channels: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, group.order * channels, *size, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", ORDERS)
def test_elements_are_those_of_the_group(name: str):
    group = PointGroup.of(name)
    elements = group.elements
    assert group.order == ORDERS[name] == len(elements) == len(elements.unique(dim=0))
    assert elements.dtype == torch.int64
    assert torch.equal(elements[0], torch.eye(2, dtype=torch.int64))
    written = {tuple(each.flatten().tolist()) for each in elements}
    for generator in group_named(name).discrete_tensor():
        assert tuple(generator.round().long().flatten().tolist()) in written


@pytest.mark.parametrize("name", ORDERS)
def test_tables_are_those_of_matrix_products(name: str):
    group = PointGroup.of(name)
    products = torch.einsum("gij,hjk->ghik", group.elements, group.elements)
    assert torch.equal(group.elements[group.product], products)
    identity = torch.eye(2, dtype=torch.int64).expand(group.order, 2, 2)
    assert torch.equal(group.elements[group.inverse] @ group.elements, identity)


@pytest.mark.parametrize("size", [(5, 5), (4, 4), (1, 1)])
@pytest.mark.parametrize("name", ORDERS)
def test_content_moves_with_the_matrix(name: str, size: tuple[int, int]):
    group = PointGroup.of(name)
    image = torch.arange(float(size[0] * size[1])).reshape(size)
    for place, matrix in enumerate(group.elements.numpy()):
        assert torch.equal(group.act(image, place), moved_by_pixel(image, matrix))


def test_elements_that_keep_the_axes_act_on_oblong_maps():
    image = torch.arange(15.0).reshape(3, 5)
    group = PointGroup.of("D(2)")
    for place, matrix in enumerate(group.elements.numpy()):
        assert torch.equal(group.act(image, place), moved_by_pixel(image, matrix))
    turns = PointGroup.of("C(4)")
    assert torch.equal(turns.act(image, 2), image.flip(0, 1))
    with pytest.raises(CallerError, match=r"C\(4\): expected square maps.*got \(3, 5\).*D\(2\)"):
        turns.act(image, 1)


def test_directions():
    """The turn is counter-clockwise as seen; the reflection exchanges left and right."""
    image = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    turned = PointGroup.of("C(4)").act(image, 1)
    assert torch.equal(turned, torch.tensor([[2.0, 4.0], [1.0, 3.0]]))
    mirrored = PointGroup.of("D(1)").act(image, 1)
    assert torch.equal(mirrored, torch.tensor([[2.0, 1.0], [4.0, 3.0]]))


@pytest.mark.parametrize("name", ORDERS)
def test_the_regular_action_is_one(name: str):
    group = PointGroup.of(name)
    maps, product = features(group), group.product
    assert torch.equal(group.act_on_features(maps, 0), maps)
    for g in range(group.order):
        for h in range(group.order):
            in_turn = group.act_on_features(group.act_on_features(maps, h), g)
            assert torch.equal(in_turn, group.act_on_features(maps, int(product[g, h])))


def test_the_regular_action_by_its_formula():
    group = PointGroup.of("D(4)")
    maps = features(group).unflatten(1, (group.order, -1))
    matrices = group.elements.numpy()
    for g, matrix in enumerate(matrices):
        moved = group.act_on_features(maps.flatten(1, 2), g).unflatten(1, (group.order, -1))
        for h, target in enumerate(matrices):
            inner = np.linalg.inv(matrix) @ target
            source = next(k for k, each in enumerate(matrices) if np.allclose(each, inner))
            assert torch.equal(moved[1, h, 1], moved_by_pixel(maps[1, source, 1], matrix))


def test_an_action_from_the_other_side_is_another():
    """f(h g, …) is no left action of a group that does not commute: the check can fail."""
    group = PointGroup.of("D(4)")
    maps, product = features(group, (1, 1)), group.product

    def from_the_right(maps: Tensor, g: int) -> Tensor:
        return maps.unflatten(1, (group.order, -1))[:, product[:, group.inverse[g]]].flatten(1, 2)

    pairs = [(g, h) for g in range(group.order) for h in range(group.order)]
    assert any(
        not torch.equal(
            from_the_right(from_the_right(maps, h), g), from_the_right(maps, int(product[g, h]))
        )
        for g, h in pairs
    )


def test_groups_with_the_same_elements_are_equal():
    quarter = PointGroup.of("C(4)")
    own = PointGroup.of(Group("turns", discrete=[[[0, -1], [1, 0]]]))
    assert quarter == own == copy.deepcopy(own)
    assert hash(quarter) == hash(own)
    assert quarter != PointGroup.of("D(2)")
    assert PointGroup.of(quarter) is quarter
    assert PointGroup.of(group_named("C(4)")) == quarter


REFUSED: dict[str, tuple[Group | str, str]] = {
    "continuous": ("SO(2)", r"SO\(2\): expected a finite group, got a continuous one; choose"),
    "continuous and discrete": ("O(2)", "got a continuous one"),
    "thirds": ("C(3)", r"C\(3\) does not act on the grid: .*does not send pixels.*choose among"),
    "sixths": ("C(6)", "does not act on the grid"),
    "eighths": ("C(8)", "does not act on the grid"),
    "triangle": ("D(3)", "does not act on the grid"),
    "four dimensions": ("Z(4)", r"expected a group on the plane R\^2, got one on R\^4"),
    "complex": (Group("i", discrete=[[[1j, 0], [0, 1]]]), r"got one on C\^2"),
    "hexagonal integers": (Group("six", discrete=[[[0, -1], [1, 1]]]), "does not act on the grid"),
    "endless": (Group("shear", discrete=[[[1, 1], [0, 1]]]), "shear does not act on the grid"),
    "scaling": (Group("twice", discrete=[[[2, 0], [0, 2]]]), "does not act on the grid"),
    "unknown": ("P(4)", "P"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str):
    group, sentence = REFUSED[name]
    with pytest.raises(CallerError, match=sentence):
        PointGroup.of(group)


@pytest.mark.parametrize("shape", [(2, 6, 4, 4), (4, 4)])
def test_maps_without_an_axis_of_elements(shape: tuple[int, ...]):
    with pytest.raises(CallerError, match=r"expected maps \(…, 4·channels, height, width\), got"):
        PointGroup.of("C(4)").act_on_features(torch.zeros(shape), 1)


@pytest.mark.parametrize(
    ("names", "group"),
    [
        (["horizontal_flip"], "D(1)"),
        (["turn_180"], "C(2)"),
        (["turn_270"], "C(4)"),
        (["vertical_flip", "horizontal_flip"], "D(2)"),
        (["turn_90", "vertical_flip"], "D(4)"),
        (["vertical_flip"], "vertical_flip"),
    ],
)
def test_elements_by_name_generate_groups(names: list[str], group: str) -> None:
    found = PointGroup.generated_by(names)
    assert found.name == group
    images = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    known = (flip("horizontal"), flip("vertical"), quarter_turns())
    moves = {name: each.move(n, images) for each in known for n, name in enumerate(each.names)}
    action = found.as_action()
    moved = [action.move(index, images) for index in range(found.order - 1)]
    for name in names:
        assert any(torch.equal(moves[name], each) for each in moved)
    assert not any(torch.equal(images, each) for each in moved)
