"""Residual networks without normalisation: how they start, what they compute, the verbs."""

from __future__ import annotations

import math

import pytest
import torch
from learn_runs import bar_tensors
from torch import Tensor, nn
from torch.nn import functional
from user_networks import disturb

import isotropy
from isotropy.checks import CallerError
from isotropy.networks.zoo.backbones import backbone
from isotropy.networks.zoo.residual_networks import Bias, FixupResNet, FixupWideResNet, Scale

TURN = isotropy.affine(("rotation",))


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def fixup(width: int = 16, depth: int = 8) -> FixupResNet:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return FixupResNet(3, 10, width=width, depth=depth)


def test_fixup_starts_as_a_zero_function():
    network = fixup()
    assert not network.head.weight.any() and not network.head.bias.any()
    assert not network(draw(2, 3, 32, 32)).any()


@pytest.mark.parametrize("depth", [8, 14])
def test_fixup_initialisation_of_the_blocks(depth):
    network = fixup(depth=depth)
    blocks = len(network.blocks)
    assert blocks == (depth - 2) // 2
    for block in network.blocks:
        assert not block.conv2.weight.any()
        weight = block.conv1.weight
        deviation = math.sqrt(2 / (weight.shape[0] * 9) / blocks)
        # A standard deviation from n draws is known to 1/√(2n); five of these are allowed.
        assert weight.std().item() == pytest.approx(
            deviation, rel=5 / math.sqrt(2 * weight.numel())
        )
        assert abs(weight.mean().item()) < 5 * deviation / math.sqrt(weight.numel())


def test_fixup_scalars():
    network = fixup()
    biases = [module for module in network.modules() if isinstance(module, Bias)]
    scales = [module for module in network.modules() if isinstance(module, Scale)]
    assert len(biases) == 2 + 4 * 3 and len(scales) == 3
    assert all(module.bias.shape == (1,) and not module.bias.any() for module in biases)
    assert all(module.scale.shape == (1,) and module.scale.item() == 1 for module in scales)
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert all(module.bias is None for module in convolutions)


def test_fixup_block_is_its_shortcut_at_the_start():
    """With the second convolution at zero, only ReLU and the sub-sampled shortcut remain."""
    same, halving, _ = fixup().blocks
    images = draw(2, 16, 9, 9)
    torch.testing.assert_close(same(images), images.relu())
    smaller = halving(images)
    assert smaller.shape == (2, 32, 5, 5) and not smaller[:, 16:].any()
    torch.testing.assert_close(smaller[:, :16], images[:, :, ::2, ::2].relu())
    # Where a block halves the image, the shortcut carries the first bias too; elsewhere not.
    for block, carried, stride in ((same, 0.0, 1), (halving, 0.25, 2)):
        with torch.no_grad():
            block.bias_before.bias.fill_(0.25)
        shortcut = block(images)[:, :16]
        torch.testing.assert_close(shortcut, (images[:, :, ::stride, ::stride] + carried).relu())


# --- wide ---------------------------------------------------------------------------------


def wide(channels: int = 3, outputs: int = 10, depth: int = 16, width: int = 4) -> FixupWideResNet:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return FixupWideResNet(channels, outputs, depth=depth, width=width)


def test_a_wide_network_starts_as_a_zero_function():
    network = wide(width=1)
    assert not network.head.weight.any() and not network.head.bias.any()
    assert not network(draw(2, 3, 32, 32)).any()


def test_shapes_of_wrn_16_4():
    """Six blocks; 1×1 convolutions where the number of channels changes, strides in two stages."""
    network = wide()
    channels = [(block.conv1.in_channels, block.conv1.out_channels) for block in network.blocks]
    assert channels == [(16, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256)]
    assert [block.conv1.stride[0] for block in network.blocks] == [1, 1, 2, 1, 2, 1]
    sizes = [None if b.shortcut is None else b.shortcut.kernel_size for b in network.blocks]
    assert sizes == [(1, 1), None] * 3
    scalars = [p for m in network.modules() if isinstance(m, Bias | Scale) for p in m.parameters()]
    assert len(scalars) == 6 * 5 + 2 and all(p.shape == (1,) for p in scalars)
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert all(module.bias is None for module in convolutions)


@pytest.mark.parametrize("depth", [10, 16])
def test_initialisation_of_wide_blocks(depth):
    network = wide(depth=depth, width=2)
    blocks = len(network.blocks)
    assert blocks == (depth - 4) // 2
    for block in network.blocks:
        assert not block.conv2.weight.any() and block.scale.scale.item() == 1
        outputs = block.conv1.out_channels
        expected = {block.conv1: math.sqrt(2 / (outputs * 9) / blocks)}
        if block.shortcut is not None:
            expected[block.shortcut] = math.sqrt(2 / outputs)
        for layer, deviation in expected.items():
            # A standard deviation from n draws is known to 1/√(2n); five of these are allowed.
            count = layer.weight.numel()
            found = layer.weight.std().item()
            assert found == pytest.approx(deviation, rel=5 / math.sqrt(2 * count))


def wide_written_out(weights: dict[str, Tensor], images: Tensor, blocks: int) -> Tensor:
    """The network from its tensors by name, as the formula has it."""
    maps = functional.conv2d(images, weights["stem.weight"], padding=1) + weights["stem_bias.bias"]
    for index in range(blocks):
        own = {n.removeprefix(f"blocks.{index}."): w for n, w in weights.items()}
        widens = "shortcut.weight" in own
        stride = 2 if widens and index > 0 else 1
        active = (maps + own["bias_before.bias"]).clamp(min=0)
        if widens:
            maps = functional.conv2d(active, own["shortcut.weight"], stride=stride)
        inner = functional.conv2d(active, own["conv1.weight"], stride=stride, padding=1)
        inner = (inner + own["bias_middle.bias"]).clamp(min=0) + own["bias_between.bias"]
        inner = functional.conv2d(inner, own["conv2.weight"], padding=1) * own["scale.scale"]
        maps = maps + inner + own["bias_after.bias"]
    pooled = maps.clamp(min=0).flatten(2).mean(2) + weights["head_bias.bias"]
    return pooled @ weights["head.weight"].T + weights["head.bias"]


@pytest.mark.parametrize(("depth", "size"), [(10, 8), (16, 9)])
def test_a_wide_network_is_its_formula(depth: int, size: int):
    network = wide(2, 3, depth=depth, width=2).double()
    disturb(network)
    images = draw(3, 2, size, size).double()
    weights = {name: parameter.detach() for name, parameter in network.named_parameters()}
    expected = wide_written_out(weights, images, len(network.blocks))
    torch.testing.assert_close(network(images).detach(), expected, rtol=1e-10, atol=1e-10)
    assert expected.std() > 1e-3


# --- what the verbs make of it --------------------------------------------------------------


def test_a_wide_network_learns_without_a_fallback():
    inputs, labels = bar_tensors(16)
    network = wide(1, 3, depth=10, width=1)
    config = isotropy.LearnConfig(
        epochs=1, burn_in=0, samples=2, test_samples=2, batch_size=8, fallback="refuse",
        search=False, prior_structure="tensor",
    )  # fmt: skip
    result = isotropy.learn(network, (inputs, labels), actions=TURN, config=config, verdicts=0)
    assert result.log_evidence is not None and math.isfinite(result.log_evidence)
    assert not result.record["fallback"] and not result.record["constants"]
    assert set(result.trainer.prior.names) == {name for name, _ in network.named_parameters()}


def test_a_wide_network_is_measured():
    network = wide(1, 3, depth=10, width=1)
    disturb(network)
    found = isotropy.measure(network, bar_tensors(4)[0], TURN, finite=False)
    assert found.actions[0]["error"] > 0
    names = {layer["name"] for layer in found.actions[0]["layers"]}
    assert any("shortcut" in name for name in names)


@pytest.mark.parametrize("group", ["C(4)", "D(4)"])
def test_a_wide_network_is_built(group: str):
    network = wide(1, 3, depth=10, width=1)
    built = isotropy.build(network, group, example=(1, 8, 8))
    assert built.exact and built.record["error"] < 1e-5


@pytest.mark.parametrize("depth", [2, 4, 8, 14, 15])
def test_depths_of_wide_networks(depth: int):
    with pytest.raises(CallerError, match=rf"wide ResNet: expected 6·n \+ 4 .* got {depth}"):
        backbone("wrn", (3, 32, 32), 10, depth=depth)


@pytest.mark.parametrize("depth", [2, 10])
def test_depths_of_networks(depth: int):
    with pytest.raises(CallerError, match=f"depth: expected .* got {depth}"):
        backbone("resnet", (3, 32, 32), 10, depth=depth)


def test_a_width_of_nothing_is_refused():
    with pytest.raises(CallerError, match="width of a wide ResNet: expected at least 1, got 0"):
        backbone("wrn", (3, 32, 32), 10, width=0)
