"""A bias for every pixel, and polyphase down-sampling: values, equivariance, derivatives."""

from __future__ import annotations

import itertools

import pytest
import torch
from network_cases import assert_equal, library_blocks
from oracles.dense_ggn import averaged_jacobians, dense_ggn_blocks, gaussian_curvature
from torch import Tensor, nn
from user_networks import numbers

from isotropy.checks import CallerError
from isotropy.likelihoods import Gaussian
from isotropy.networks.equivariant.point_group_layers import PolyphaseDownsampling
from isotropy.networks.pathways.pathway import NOTHING, BiasMap, varying_part
from isotropy.symmetry.groups.point_groups import PointGroup

CHANNELS, HEIGHT, WIDTH = 3, 4, 5


def test_it_adds_its_numbers_to_every_example() -> None:
    bias, maps = numbers(CHANNELS, HEIGHT, WIDTH), numbers(2, CHANNELS, HEIGHT, WIDTH, seed=1)
    outputs = BiasMap(bias)(maps)
    for example in range(2):
        for channel in range(CHANNELS):
            expected = maps[example, channel] + bias[channel]
            assert torch.equal(outputs[example, channel], expected)


def test_nothing_is_no_layer() -> None:
    assert BiasMap.of(torch.zeros(CHANNELS, HEIGHT, WIDTH)) is None
    assert BiasMap.of(torch.full((CHANNELS, HEIGHT, WIDTH), -0.9 * NOTHING)) is None
    little = torch.zeros(CHANNELS, HEIGHT, WIDTH)
    little[1, 2, 3] = -2 * NOTHING
    assert BiasMap.of(little) is not None


def test_a_constant_that_is_equal_everywhere_has_one_number_a_channel() -> None:
    means = numbers(CHANNELS)
    layer = BiasMap.of(means[:, None, None].expand(-1, HEIGHT, WIDTH))
    assert layer is not None and layer.bias.shape == (CHANNELS, 1, 1)
    maps = numbers(2, CHANNELS, HEIGHT, WIDTH, seed=1)
    expected = maps + means[None, :, None, None]
    assert torch.allclose(layer(maps), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("difference", [0.9, 3.0])
def test_one_pixel_of_one_channel_makes_the_difference(difference: float) -> None:
    constant = numbers(CHANNELS)[:, None, None].repeat(1, HEIGHT, WIDTH)
    constant[2, 0, 4] += difference * NOTHING
    layer = BiasMap.of(constant)
    whole = (CHANNELS, HEIGHT, WIDTH)
    assert layer is not None
    assert layer.bias.shape == (whole if difference > 1 else (CHANNELS, 1, 1))
    assert (layer.bias - constant).abs().max() <= NOTHING


def test_other_constants_stay_as_they_are() -> None:
    constant = numbers(CHANNELS, HEIGHT, WIDTH)
    layer = BiasMap.of(constant)
    assert layer is not None and torch.equal(layer.bias, constant)
    constant.zero_()
    assert layer.bias.any(), "a copy"


def test_numbers_that_are_none_are_not_lost() -> None:
    constant = torch.zeros(CHANNELS, HEIGHT, WIDTH)
    constant[0, 0, 0] = torch.nan
    layer = BiasMap.of(constant)
    assert layer is not None and layer.bias.isnan().any()


@pytest.mark.parametrize("shape", [(), (HEIGHT, WIDTH), (1, CHANNELS, HEIGHT, WIDTH)])
def test_other_axes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(CallerError, match=r"\(channels, height, width\), or \(n,\).*got \("):
        BiasMap(torch.zeros(shape))


def test_maps_of_another_size_get_the_bias_resampled() -> None:
    ramp = torch.arange(8.0).expand(CHANNELS, 4, 8).clone()
    layer = BiasMap(ramp)
    assert torch.equal(layer(torch.zeros(1, CHANNELS, 4, 8))[0], ramp)
    wide = layer(torch.zeros(1, CHANNELS, 8, 16))[0]
    # Pixel i of 16 has its centre at (i + ½) / 2 − ½ of the 8, cut to the outermost centres.
    centres = ((torch.arange(16) + 0.5) / 2 - 0.5).clamp(0, 7)
    torch.testing.assert_close(wide, centres.expand(CHANNELS, 8, 16))


def test_the_varying_part_is_the_rest_beside_means() -> None:
    constant = numbers(CHANNELS, HEIGHT, WIDTH)
    found = varying_part(constant)
    for channel in range(CHANNELS):
        mean = float(constant[channel].sum()) / (HEIGHT * WIDTH)
        assert torch.allclose(found[channel], constant[channel] - mean)
    assert not varying_part(torch.ones(CHANNELS, HEIGHT, WIDTH)).any()


# --- curvature ------------------------------------------------------------------------------


class Placed(nn.Module):
    """A bias map in front of a head that looks at all pixels, and not in the same way."""

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        self.map = BiasMap(bias)
        self.head = nn.Linear(CHANNELS * HEIGHT * WIDTH, 2).double()

    def forward(self, maps: Tensor) -> Tensor:
        found: Tensor = self.head(self.map(maps).tanh().flatten(1))
        return found


def test_blocks() -> None:
    """Of one number a channel the exact one, of a map its formula G ⊗ I."""
    places, rows = HEIGHT * WIDTH, numbers(4 * 2, CHANNELS, HEIGHT, WIDTH, seed=3)
    for pixels in (1, places):
        shape = (CHANNELS, 1, 1) if pixels == 1 else (CHANNELS, HEIGHT, WIDTH)
        network = Placed(numbers(*shape))
        found = library_blocks(network, rows, 2, Gaussian())["map.bias"][0]
        exact = dense_ggn_blocks(network, rows, 2, gaussian_curvature(1.0))["map.bias"]
        jacobian = averaged_jacobians(network, rows, 2)["map.bias"].unflatten(2, (CHANNELS, -1))
        shared = torch.einsum("noct,nodt->cd", jacobian, jacobian) / pixels
        assert_equal(found, torch.kron(shared, torch.eye(pixels, dtype=torch.float64)), "formula")
        torch.testing.assert_close(exact.trace(), found.trace())
        assert torch.allclose(found, exact, rtol=0.1) == (pixels == 1)


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
