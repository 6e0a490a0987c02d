"""Networks by name: sizes, initialisation, what they refuse, and that curvature knows them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev

from isotropy.checks import CallerError
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.likelihoods import Categorical, Gaussian
from isotropy.networks.zoo.backbones import BACKBONES, Bias, FixupResNet, Scale, backbone

# name, shape of an input, arguments, parameters
CASES = {
    "mlp": ("mlp", (1, 28, 28), {}, 795_010),
    "cnn": ("cnn", (1, 28, 28), {}, 60_170),
    "cnn, 32 pixels": ("cnn", (3, 32, 32), {}, 62_006),
    "circular": ("circular", (1, 28, 28), {}, 39_210),
    "resnet": ("resnet", (3, 32, 32), {}, 74_827),
    "resnet, width 8": ("resnet", (3, 32, 32), {"width": 8}, 18_995),
    "compact": ("compact", (3, 32, 32), {}, 10 * 516 + 608 + 1168 + 4640),
    "clouds": ("clouds", (16, 2), {}, 10_360),
    "convnet": ("convnet", (3, 32, 32), {}, 288_298),
    "convnet, width 8": ("convnet", (1, 28, 28), {"width": 8}, 18_370),
    "convnet-blur": ("convnet-blur", (1, 28, 28), {"width": 8}, 18_370),
    "vit": ("vit", (3, 32, 32), {}, 809_354),
    "vit, width 32": ("vit", (1, 28, 28), {"width": 32}, 53_386),
    "mixer": ("mixer", (1, 28, 28), {}, 571_622),
}

every_case = pytest.mark.parametrize(
    ("name", "shape", "arguments", "count"), CASES.values(), ids=CASES
)


def build(name: str, shape, outputs: int = 10, **arguments) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return backbone(name, shape, outputs, **arguments)


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=dtype)


def shaken(network: nn.Module) -> nn.Module:
    """The network away from Fixup's zeros, where all curvature below the head vanishes."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return network


def test_every_backbone_has_a_case():
    assert {name for name, *_ in CASES.values()} == set(BACKBONES)


@every_case
def test_number_of_parameters(name, shape, arguments, count):
    network = build(name, shape, **arguments)
    assert sum(parameter.numel() for parameter in network.parameters()) == count
    assert all(parameter.requires_grad for parameter in network.parameters())


@every_case
def test_outputs(name, shape, arguments, count):
    outputs = build(name, shape, outputs=7, **arguments)(draw(2, *shape))
    assert outputs.shape == (2, 7) and outputs.isfinite().all()


@every_case
def test_no_layer_looks_at_other_examples(name, shape, arguments, count):
    network = shaken(build(name, shape, **arguments))
    images = draw(3, *shape)
    torch.testing.assert_close(network(images)[:1], network(images[:1]), rtol=1e-4, atol=1e-4)


@every_case
def test_curvature_knows_every_layer(name, shape, arguments, count):
    network = shaken(build(name, shape, **arguments))
    curvature = KFAC(network)
    samples, batch = 2, 2
    images = draw(batch * samples, *shape)
    found = curvature.batch(images, Copies(samples), Categorical())
    torch.testing.assert_close(
        found.outputs, network(images).reshape(batch, samples, 10).mean(1).detach()
    )
    sizes = {label: parameter.numel() for label, parameter in network.named_parameters()}
    assert set(found.roots) == set(sizes)
    for label, factors in found.factors().items():
        assert math.prod(_sides(factors)) == sizes[label], label
        for tensor in factors.tensors():
            assert tensor.isfinite().all() and tensor.abs().max() > 0, label


def _sides(factors) -> list[int]:
    """The sides of a block's factors, whose product is the number of parameters."""
    return [tensor.shape[-1] for tensor in factors.tensors()]


# --- Fixup --------------------------------------------------------------------------------


def fixup(width: int = 16, depth: int = 8) -> FixupResNet:
    return build("resnet", (3, 32, 32), width=width, depth=depth)


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
    for block, carried in ((same, 0.0), (halving, 0.25)):
        with torch.no_grad():
            block.bias_before.bias.fill_(0.25)
        shortcut = block(images)[:, :16]
        stride = block.stride
        torch.testing.assert_close(shortcut, (images[:, :, ::stride, ::stride] + carried).relu())


def test_fixup_curvature_of_scalars_is_exact():
    """Their 1×1 blocks equal the dense generalised Gauss–Newton of the averaged outputs."""
    network = shaken(build("resnet", (2, 5, 5), outputs=3, width=4)).double()
    samples, batch = 2, 3
    images = draw(batch * samples, 2, 5, 5, dtype=torch.float64)
    found = KFAC(network).batch(images, Copies(samples), Gaussian()).factors()
    parameters = {label: parameter.detach() for label, parameter in network.named_parameters()}
    scalars = {label: value for label, value in parameters.items() if value.shape == (1,)}
    assert len(scalars) == 2 + 4 * 3 + 3

    def averaged(some):
        outputs = functional_call(network, {**parameters, **some}, (images,))
        return outputs.reshape(batch, samples, -1).mean(1)

    jacobians = jacrev(averaged)(scalars)
    for label, jacobian in jacobians.items():
        torch.testing.assert_close(
            found[label].matrix, jacobian.square().sum().reshape(1, 1), rtol=1e-9, atol=1e-12
        )


# --- the other two ------------------------------------------------------------------------

KERNELS = {28: ([5, 3, 5], nn.Tanh), 31: ([5, 3, 5], nn.Tanh), 32: ([5, 5, 5], nn.ReLU),
           64: ([5, 5, 5], nn.ReLU)}  # fmt: skip


@pytest.mark.parametrize("size", KERNELS)
def test_cnn_kernels_and_activation_by_size(size):
    kernels, activation = KERNELS[size]
    network = build("cnn", (1, size, size))
    convolutions = [layer for layer in network if isinstance(layer, nn.Conv2d)]
    assert [layer.kernel_size[0] for layer in convolutions] == kernels
    assert [layer.out_channels for layer in convolutions] == [6, 16, 120]
    assert [layer.padding for layer in convolutions] == [(0, 0)] * 3
    kinds = {type(layer) for layer in network if isinstance(layer, nn.Tanh | nn.ReLU)}
    assert kinds == {activation}
    assert network(draw(2, 1, size, size)).shape == (2, 10)


@pytest.mark.parametrize("size", [28, 32])
def test_cnn_has_nothing_left_to_average(size):
    network = build("cnn", (1, size, size))
    place = next(k for k, layer in enumerate(network) if isinstance(layer, nn.AdaptiveAvgPool2d))
    assert network[:place](draw(1, 1, size, size)).shape == (1, 120, 1, 1)


def test_mlp_takes_any_shape_and_width():
    network = build("mlp", (5,), outputs=2, hidden=7)
    assert network(draw(3, 5)).shape == (3, 2)
    assert [layer.out_features for layer in network if isinstance(layer, nn.Linear)] == [7, 2]


REFUSED = {
    "cnn on small images": (
        lambda: backbone("cnn", (1, 8, 27), 10),
        "model cnn: expected images of at least 28×28 pixels, got 8×27; use --image-size 28 or "
        "--model mlp",
    ),
    "cnn on features": (
        lambda: backbone("cnn", (64,), 10),
        r"expected images \(channels, height, width\), got inputs of \(64,\)",
    ),
    "resnet on features": (lambda: backbone("resnet", (64,), 10), "expected images"),
    "unknown": (
        lambda: backbone("resnt", (3, 32, 32), 10),
        "unknown model 'resnt': expected one of mlp, cnn, circular, resnet, clouds, compact, "
        "convnet, convnet-blur, vit, mixer; did you mean 'resnet'",
    ),
    "depth between two networks": (
        lambda: backbone("resnet", (3, 32, 32), 10, depth=10), "depth: expected .* got 10",
    ),
    "depth without a block": (
        lambda: backbone("resnet", (3, 32, 32), 10, depth=2), "depth: expected .* got 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(call, sentence):
    with pytest.raises(CallerError, match=sentence):
        call()


def test_circular_does_not_see_whole_pixel_translations():
    network = build("circular", (1, 12, 12), width=4).double()
    images = draw(3, 1, 12, 12, dtype=torch.float64)
    moved = images.roll((5, -3), (2, 3))
    torch.testing.assert_close(network(moved), network(images), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(network(images.flip(-1)), network(images))
