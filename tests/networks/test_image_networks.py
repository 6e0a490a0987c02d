"""Small image networks: halving, tokens and attention against their formulas, curvature, names."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.ndimage
import torch
from network_cases import library_blocks
from oracles.dense_ggn import averaged_jacobians, dense_ggn_blocks, gaussian_curvature
from torch import Tensor, nn
from torch.func import jvp
from torch.nn import functional

from isotropy.checks import CallerError
from isotropy.likelihoods import Gaussian
from isotropy.networks.zoo.backbones import backbone
from isotropy.networks.zoo.image_networks import (
    AttentionBlock,
    BlurPool,
    ClassToken,
    MixerBlock,
    OrientedEdges,
    Patches,
    Positions,
    SelfAttention,
    convnet,
    mixer,
    vit,
)

SMALL = {
    "oriented": {"width": 4},
    "convnet": {"width": 4},
    "convnet-blur": {"width": 4},
    "vit": {"width": 8, "depth": 2, "heads": 2},
    "mixer": {"width": 8, "depth": 2},
}


def small(name: str, shape: tuple[int, ...] = (2, 12, 12), outputs: int = 3) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return backbone(name, shape, outputs, **SMALL[name]).double()


def draw(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


# --- halving --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(13, 8), (7, 7), (3, 4)])
def test_blur_pool_is_a_mirrored_binomial_filter(size: tuple[int, int]) -> None:
    images = draw(2, 3, *size)
    expected = images.numpy()
    for axis in (2, 3):
        # scipy's mirror repeats no pixel at the border, as torch's reflect.
        taps = np.array([1, 4, 6, 4, 1]) / 16
        expected = scipy.ndimage.correlate1d(expected, taps, axis=axis, mode="mirror")
    found = BlurPool()(images)
    torch.testing.assert_close(found, torch.from_numpy(expected[:, :, ::2, ::2].copy()))


def test_blur_pool_keeps_constants_and_drops_what_would_alias() -> None:
    columns = (-1.0) ** torch.arange(11, dtype=torch.float64).expand(1, 1, 11, 11)
    assert columns[:, :, ::2, ::2].abs().min() == 1  # every second pixel takes it for a constant
    assert BlurPool()(columns).abs().max() < 1e-15
    torch.testing.assert_close(BlurPool()(torch.ones(1, 2, 6, 7)), torch.ones(1, 2, 3, 4))


@pytest.mark.parametrize("channels", [1, 3])
def test_oriented_edges_are_directed_derivatives_of_smoothed_images(channels: int) -> None:
    images = draw(2, channels, 13, 10)
    smooth = np.array([1, 6, 15, 20, 15, 6, 1]) / 64
    slope = smooth * np.arange(-3, 4)
    across, down = (
        scipy.ndimage.correlate1d(
            scipy.ndimage.correlate1d(images.numpy(), taps[0], axis=3, mode="constant"),
            taps[1], axis=2, mode="constant",
        )
        for taps in ((slope, smooth), (smooth, slope))
    )  # fmt: skip
    angles = np.arange(8) * np.pi / 4
    edges = [np.maximum(0, np.cos(a) * across + np.sin(a) * down) for a in angles]
    expected = torch.from_numpy(np.stack(edges, 2)).flatten(1, 2)
    expected = BlurPool()(BlurPool()(expected))
    size = expected.square().mean((1, 2, 3), keepdim=True).sqrt()
    found = OrientedEdges()(images)
    assert found.shape == (2, 8 * channels, 4, 3)
    # The directions are kept in float32.
    torch.testing.assert_close(found, expected / (size + 1e-3), rtol=1e-6, atol=1e-6)


def test_oriented_edges_see_no_contrast_and_no_constant() -> None:
    images = draw(2, 1, 12, 12)
    plain = OrientedEdges()(100 * images)
    torch.testing.assert_close(OrientedEdges()(1000 * images), plain, rtol=1e-3, atol=1e-3)
    assert not OrientedEdges()(torch.zeros(1, 1, 12, 12)).any()


@pytest.mark.parametrize("pooling", ["max", "blur"])
def test_both_kinds_of_halving_leave_the_same_pixels(pooling: str) -> None:
    """On a ramp the maximum of a pair is its right pixel: 2j + 1, away from mirrored borders."""
    network = convnet((1, 16, 16), 2, width=1, pooling=pooling)
    assert isinstance(network, nn.Sequential)
    place = next(k for k, layer in enumerate(network) if isinstance(layer, nn.MaxPool2d))
    halved = network[place : place + (1 if pooling == "max" else 2)]
    ramp = torch.arange(16.0).expand(1, 1, 16, 16)
    found = halved(ramp)
    assert found.shape == (1, 1, 8, 8)
    torch.testing.assert_close(found[0, 0, :, 1:-1], 2 * torch.arange(1.0, 7).expand(8, 6) + 1)


@pytest.mark.parametrize("size", [8, 9, 28, 31, 32])
@pytest.mark.parametrize("pooling", ["max", "blur"])
def test_convnet_maps_have_half_and_a_quarter_of_the_pixels(size: int, pooling: str) -> None:
    network = convnet((1, size, size), 2, width=2, pooling=pooling)
    sizes = []
    hidden = torch.zeros(1, 1, size, size)
    for layer in network.children():
        hidden = layer(hidden)
        if isinstance(layer, nn.Conv2d):
            sizes.append((hidden.shape[1], hidden.shape[2]))
    half = size // 2
    assert sizes == [(2, size)] * 2 + [(4, half)] * 2 + [(8, half // 2)] * 2


def test_the_poolings_have_the_same_weights() -> None:
    both = [small("convnet"), small("convnet-blur")]
    first, second = ([tensor for tensor in network.parameters()] for network in both)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    images = draw(2, 2, 12, 12)
    assert not torch.allclose(both[0](images), both[1](images))


def test_he_initialisation_keeps_the_size_of_activations() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        hidden = torch.randn(8, 3, 32, 32)
        network = convnet((3, 32, 32), 10, width=32)
    for layer in network.children():
        hidden = layer(hidden)
        if isinstance(layer, nn.Conv2d):
            assert 0.5 < hidden.square().mean().sqrt() < 3


# --- tokens ---------------------------------------------------------------------------------


def test_patches_are_read_row_by_row() -> None:
    layer = Patches(2, 5, 4).double()
    images = draw(3, 2, 8, 12)
    weight, bias = layer.projection.weight.flatten(1), layer.projection.bias
    for token in range(6):
        row, column = divmod(token, 3)
        patch = images[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4].flatten(1)
        torch.testing.assert_close(layer(images)[:, token], patch @ weight.T + bias)


def test_attention_is_torchs_own() -> None:
    own = SelfAttention(8, 2).double()
    other = nn.MultiheadAttention(8, 2, batch_first=True).double()
    with torch.no_grad():
        other.in_proj_weight.copy_(own.queries_keys_values.weight)
        other.in_proj_bias.copy_(own.queries_keys_values.bias)
    other.out_proj.load_state_dict(own.projection.state_dict())
    tokens = draw(3, 5, 8)
    torch.testing.assert_close(own(tokens), other(tokens, tokens, tokens)[0])


def test_transformer_knows_places_by_its_positions_only() -> None:
    network = small("vit")
    images = draw(2, 2, 12, 12)
    swapped = images.clone()
    swapped[:, :, :4, :4], swapped[:, :, 4:8, 8:] = images[:, :, 4:8, 8:], images[:, :, :4, :4]
    assert not torch.allclose(network(swapped), network(images))
    nn.init.zeros_(network.positions.vectors)
    torch.testing.assert_close(network(swapped), network(images))


def test_class_token_comes_first_and_is_what_the_head_reads() -> None:
    layer = ClassToken(8).double()
    tokens = draw(3, 5, 8)
    torch.testing.assert_close(layer(tokens)[:, 0], layer.token.expand(3, -1))
    torch.testing.assert_close(layer(tokens)[:, 1:], tokens)
    network = small("vit")
    last = network.blocks(
        network.positions(network.class_token(network.patches(draw(1, 2, 12, 12))))
    )
    expected = functional.layer_norm(last[:, 0], (8,), network.norm.weight, network.norm.bias)
    torch.testing.assert_close(network(draw(1, 2, 12, 12)), network.head(expected))


def attention_block(block: AttentionBlock, x: Tensor) -> Tensor:
    """The formula of the block, from its parameters."""
    normed = functional.layer_norm(x, (8,), block.attention_norm.weight, block.attention_norm.bias)
    x = x + block.attention(normed)
    return x + channel_part(block, x)


def mixer_block(block: MixerBlock, x: Tensor) -> Tensor:
    normed = functional.layer_norm(x, (8,), block.token_norm.weight, block.token_norm.bias)
    first, _, second = block.tokens
    hidden = torch.einsum("ht,btw->bhw", first.weight, normed) + first.bias[:, None]
    mixed = torch.einsum("th,bhw->btw", second.weight, functional.gelu(hidden))
    x = x + mixed + second.bias[:, None]
    return x + channel_part(block, x)


def channel_part(block: nn.Module, x: Tensor) -> Tensor:
    normed = functional.layer_norm(x, (8,), block.channel_norm.weight, block.channel_norm.bias)
    first, _, second = block.channels
    hidden = functional.gelu(normed @ first.weight.T + first.bias)
    return hidden @ second.weight.T + second.bias


BLOCKS = {
    "attention": (lambda: AttentionBlock(8, 2), attention_block),
    "mixer": (lambda: MixerBlock(5, 8), mixer_block),
}


@pytest.mark.parametrize(("make", "formula"), BLOCKS.values(), ids=BLOCKS)
def test_blocks_are_residual_and_normalise_first(make, formula) -> None:
    block = make().double()
    for parameter in block.parameters():  # away from norms that start as ones and zeros
        nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(3))
    tokens = draw(3, 5, 8)
    torch.testing.assert_close(block(tokens), formula(block, tokens))


# --- what is asked of all -------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_forward_mode_derivative_and_inputs_left_alone(name: str) -> None:
    """Against central differences; nothing works in place."""
    network = small(name)
    images, direction = draw(2, 2, 12, 12), draw(2, 2, 12, 12, seed=2)
    before = images.clone()
    _, tangent = jvp(network, (images,), (direction,))
    step = 1e-6
    ahead, behind = network(images + step * direction), network(images - step * direction)
    torch.testing.assert_close(tangent, (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-7)
    assert torch.equal(images, before)
    assert not any(getattr(module, "inplace", False) for module in network.modules())


@pytest.mark.parametrize("name", SMALL)
def test_every_parameter_is_used(name: str) -> None:
    network = small(name)
    network(draw(4, 2, 12, 12)).square().sum().backward()
    for label, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, label


# --- curvature of the class token and of positions ------------------------------------------


class Placed(nn.Module):
    """Both layers in front of a head that looks at all tokens, and not in the same way."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.front = ClassToken(3)
        self.positions = Positions(tokens + 1, 3)
        self.head = nn.Linear(3 * (tokens + 1), 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.positions(self.front(tokens)).tanh().flatten(1))


@pytest.mark.parametrize("places", [1, 3])
def test_blocks_of_tokens_and_positions(places: int) -> None:
    """That of the class token is exact, that of positions its formula: I ⊗ G, exact for one."""
    network, rows = Placed(places - 1).double(), draw(4 * 2, places - 1, 3)
    found = library_blocks(network, rows, 2, Gaussian())
    exact = dense_ggn_blocks(network, rows, 2, gaussian_curvature(1.0))
    torch.testing.assert_close(found["front.token"][0], exact["front.token"])
    block, whole = found["positions.vectors"][0], exact["positions.vectors"]
    jacobian = averaged_jacobians(network, rows, 2)["positions.vectors"].unflatten(2, (places, 3))
    shared = torch.einsum("noti,notj->ij", jacobian, jacobian) / places
    torch.testing.assert_close(block, torch.kron(torch.eye(places, dtype=torch.float64), shared))
    torch.testing.assert_close(block.trace(), whole.trace())
    assert torch.allclose(block, whole, rtol=0.1) == (places == 1)


# --- what is refused ------------------------------------------------------------------------

REFUSED = {
    "no images": (lambda: convnet((64,), 10), r"expected images \(channels, height, width\)"),
    "no images for tokens": (lambda: mixer((64,), 10), "expected images"),
    "images too small": (
        lambda: convnet((1, 7, 28), 10),
        "model convnet: expected images of at least 8×8 pixels, got 7×28; use --image-size 8",
    ),
    "no such pooling": (lambda: convnet((1, 8, 8), 10, pooling="mean"), "unknown pooling 'mean'"),
    "no width": (lambda: convnet((1, 8, 8), 10, width=0), "width of model convnet: expected at"),
    "no depth": (lambda: vit((1, 8, 8), 10, depth=0), "depth of model vit: expected at least 1"),
    "part of a patch": (
        lambda: vit((1, 30, 30), 10),
        "model vit: expected images whose sides are multiples of 4 pixels, got 30×30; use "
        "--image-size 32",
    ),
    "part of a patch, mixer": (lambda: mixer((1, 8, 9), 10), "model mixer: expected images whose"),
    "heads that do not share": (
        lambda: vit((1, 8, 8), 10, width=10),
        "model vit: expected a width that is a multiple of its 4 heads, got 10",
    ),
}


@pytest.mark.parametrize(("call", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(call, sentence: str) -> None:
    with pytest.raises(CallerError, match=sentence):
        call()
