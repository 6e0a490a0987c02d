"""Polyphase down-sampling: which component is kept, equivariance, derivatives, refusals."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.networks.pathways.small_layers import PolyphaseDownsampling
from isotropy.symmetry.groups.point_groups import PointGroup


def some_maps(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def by_component(maps: Tensor, factor: int) -> Tensor:
    """The definition: every component of every example, the first with the largest |value|."""
    kept = []
    for example in maps:
        parts = [
            example[:, first::factor, second::factor]
            for first, second in itertools.product(range(factor), repeat=2)
        ]
        sizes = [float(part.abs().max()) for part in parts]
        kept.append(parts[sizes.index(max(sizes))])
    return torch.stack(kept)


def is_shift(found: Tensor, expected: Tensor) -> bool:
    """Whether one circular shift for each example makes the one of the other."""
    height, width = expected.shape[-2:]
    shifts = list(itertools.product(range(height), range(width)))
    return all(
        any(torch.equal(one, other.roll(shift, (-2, -1))) for shift in shifts)
        for one, other in zip(found, expected, strict=True)
    )


SIZES = {
    "halves": (2, (4, 3, 6, 8)),
    "thirds": (3, (5, 2, 6, 9)),
    "one pixel left": (2, (7, 3, 2, 2)),
    "one channel": (4, (4, 1, 8, 8)),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_largest_component_is_kept(name: str):
    factor, shape = SIZES[name]
    maps = some_maps(*shape)
    found = PolyphaseDownsampling(factor, shape[2:])(maps)
    assert torch.equal(found, by_component(maps, factor))
    chosen = {tuple(one.flatten().tolist()) for one in found}
    assert len(chosen) == shape[0]


def test_every_example_has_its_own_choice():
    maps = torch.zeros(4, 2, 4, 4)
    places = list(itertools.product(range(2), repeat=2))
    for example, (first, second) in enumerate(places):
        maps[example, 1, 2 + first, second] = -5.0 - example  # sizes count, not signs
        maps[example, 0, 1 - first, 1 - second] = 1.0
    kept = PolyphaseDownsampling(2)(maps)
    assert torch.equal(kept[:, 1, 1, 0], torch.tensor([-5.0, -6.0, -7.0, -8.0]))
    assert not kept[:, 0].any()


def test_of_equal_components_the_first_is_kept():
    maps = torch.arange(16.0).reshape(1, 1, 4, 4) % 4
    maps = torch.where(maps > 1, 1.0, maps)  # every component has a 1 somewhere
    assert torch.equal(PolyphaseDownsampling(2)(maps), maps[..., ::2, ::2])
    zeros = torch.zeros(2, 3, 4, 4)
    assert torch.equal(PolyphaseDownsampling(2)(zeros), zeros[..., ::2, ::2])


@pytest.mark.parametrize("factor", [2, 3])
def test_shifts_of_maps_are_shifts_of_what_is_kept(factor: int):
    maps, layer = some_maps(3, 2, 6, 6), PolyphaseDownsampling(factor)
    kept = layer(maps)
    for shift in itertools.product(range(6), repeat=2):
        assert is_shift(layer(maps.roll(shift, (-2, -1))), kept), shift
    whole = tuple(factor * each for each in (1, 2))
    assert torch.equal(layer(maps.roll(whole, (-2, -1))), kept.roll((1, 2), (-2, -1)))


@pytest.mark.parametrize("factor", [2, 3])
def test_turns_and_reflections_commute(factor: int):
    group = PointGroup.of("D(4)")
    maps, layer = some_maps(2, group.order * 2, 6, 6), PolyphaseDownsampling(factor)
    kept = layer(maps)
    for g in range(group.order):
        moved = group.act_on_features(maps, g)
        assert torch.equal(layer(moved), group.act_on_features(kept, g))
        assert is_shift(layer(moved.roll((1, 3), (-2, -1))), group.act_on_features(kept, g))


def test_a_fixed_component_is_not_equivariant():
    maps = some_maps(3, 2, 6, 6)
    assert not is_shift(maps.roll(1, -1)[..., ::2, ::2], maps[..., ::2, ::2])


def test_derivatives():
    layer = PolyphaseDownsampling(2)
    maps = some_maps(2, 2, 4, 4).requires_grad_()
    assert torch.autograd.gradcheck(layer, (maps,))
    assert torch.autograd.gradgradcheck(lambda m: layer(m).pow(3), (maps,))
    (gradient,) = torch.autograd.grad(layer(maps).sum(), maps)
    assert gradient.flatten(1).sum(1).tolist() == [8.0, 8.0]
    assert set(gradient.flatten().tolist()) == {0.0, 1.0}


def test_transforms_of_the_pass():
    """No choice is made in Python: the pass and its backward pass can be mapped over an axis."""
    layer, maps = PolyphaseDownsampling(2), some_maps(3, 4, 2, 4, 4)
    together = torch.func.vmap(layer)(maps)
    assert torch.equal(together, torch.stack([layer(each) for each in maps]))
    leaf = maps[0].clone().requires_grad_()
    kept = layer(leaf)
    cotangents = some_maps(5, *kept.shape)

    def pulled(cotangent: Tensor) -> Tensor:
        return torch.autograd.grad(kept, leaf, cotangent, retain_graph=True)[0]

    batched = torch.func.vmap(pulled)(cotangents)
    assert torch.equal(batched, torch.stack([pulled(each) for each in cotangents]))


def test_factor_one_keeps_everything():
    maps = some_maps(2, 3, 3, 5)
    assert torch.equal(PolyphaseDownsampling(1, (3, 5))(maps), maps)


def test_refusals():
    with pytest.raises(CallerError, match="by 2: expected maps of even sizes, got 7×7; pad or"):
        PolyphaseDownsampling(2, (7, 7))
    with pytest.raises(CallerError, match="by 3: expected maps of multiples of 3, got 6×4"):
        PolyphaseDownsampling(3)(torch.zeros(1, 1, 6, 4))
    with pytest.raises(CallerError, match="got 4×5; .*stride 1"):
        PolyphaseDownsampling(2)(torch.zeros(1, 1, 4, 5))
    with pytest.raises(CallerError, match="polyphase factor: expected at least 1, got 0"):
        PolyphaseDownsampling(0)
    with pytest.raises(
        CallerError, match=r"maps: expected \(batch, channels, height, width\), got"
    ):
        PolyphaseDownsampling(2)(torch.zeros(1, 4, 4))
