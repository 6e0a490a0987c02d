"""The compact network and the choice of a network from data."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from isotropy.checks import CallerError
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.likelihoods import Categorical
from isotropy.networks.zoo.compact import compact, data_statistics
from isotropy.networks.zoo.default_network import default_network, fitted
from isotropy.networks.zoo.specification import NetworkSpecification, parse_network


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def test_outputs_are_those_of_the_formula():
    """Written out in plain operations from the network's own weights."""
    network = compact((2, 9, 13), 4, width=3, centre=[0.2, 0.7], spread=0.5)
    images = draw(5, 2, 9, 13)
    mean = images.numpy().mean(axis=(2, 3), keepdims=True)
    hidden = torch.from_numpy((images.numpy() - mean) / 0.5)
    convolutions = [layer for layer in network.convolutions if isinstance(layer, nn.Conv2d)]
    assert [layer.kernel_size[0] for layer in convolutions] == [5, 3]
    for layer in convolutions:
        padding = layer.kernel_size[0] // 2
        hidden = torch.conv2d(hidden, layer.weight, layer.bias, stride=2, padding=padding).tanh()
    colour = (mean[:, :, 0, 0] - np.array([0.2, 0.7])) / 0.5
    row = torch.cat([hidden.flatten(1), torch.from_numpy(colour).float()], 1)
    expected = row @ network.head.weight.mT + network.head.bias
    torch.testing.assert_close(network(images), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "layers", "features"),
    [((3, 32, 32), 3, 515), ((1, 64, 48), 4, 32 * 4 * 3 + 1), ((2, 4, 4), 1, 8 * 4 + 2),
     ((2, 100), 5, 32 * 4 + 2)],
)  # fmt: skip
def test_sides_are_halved_until_they_are_short(shape, layers, features):
    network = compact(shape, 3)
    count = sum(isinstance(each, nn.Conv1d | nn.Conv2d) for each in network.modules())
    assert (count, network.head.in_features) == (layers, features)
    assert network(draw(2, *shape)).shape == (2, 3)


@pytest.mark.parametrize("shape", [(3, 12, 12), (2, 20)])
def test_every_parameter_has_a_curvature_rule(shape):
    network = compact(shape, 3, width=2)
    names = KFAC(network).parameter_names
    assert set(names) == {name for name, _ in network.named_parameters()}
    inputs = draw(6, *shape)
    found = KFAC(network).batch(inputs, Copies(2), Categorical())
    assert set(found.roots) == set(names)


def test_the_mean_colour_alone_can_decide():
    """Two sets of flat pictures: nothing but the mean colour differs, and outputs differ."""
    network = compact((3, 16, 16), 2, centre=[0.5] * 3, spread=0.25)
    flat = torch.full((1, 3, 16, 16), 0.5)
    assert not torch.allclose(network(flat), network(flat + 0.2))


def test_statistics_are_numpy_s():
    inputs = 3 + 2 * draw(7, 2, 5, 6)
    array = inputs.double().numpy()
    found = data_statistics(inputs)
    np.testing.assert_allclose(found["centre"], array.mean(axis=(0, 2, 3)), atol=1e-5)
    within = array - array.mean(axis=(2, 3), keepdims=True)
    assert found["spread"] == pytest.approx(within.std(), rel=1e-3)
    assert data_statistics(torch.ones(3, 1, 4, 4))["spread"] == 1.0
    json.dumps(found)


CHOICES = {
    "digits": ((1, 28, 28), (), "mlp:200", "small and grey"),
    "small grey": ((1, 32, 32), (), "mlp:200", "small and grey"),
    "larger grey": ((1, 33, 30), (), "compact:8", "convolutions"),
    "colour": ((3, 16, 16), (), "compact:8", "3 channels"),
    "sequence": ((3, 128), (), "compact:8", "length 128"),
    "sequence by name": ((9, 2), ("shift",), "compact:8", "length 2"),
    "cloud": ((9, 2), ("rotation",), "clouds", "9 points"),
    "table": ((7,), (), "mlp:200", "7 numbers"),
    "other": ((2, 3, 4, 5), (), "mlp:200", "2 × 3 × 4 × 5 numbers"),
}


@pytest.mark.parametrize(("shape", "names", "text", "why"), CHOICES.values(), ids=CHOICES)
def test_the_network_follows_from_the_data(shape, names, text, why):
    choice = default_network(draw(6, *shape), names)
    assert choice.specification.text == text
    assert choice.reason.startswith(f"model {text} chosen for ") and why in choice.reason
    network = choice.specification.build(shape, 3)
    assert network(draw(2, *shape)).shape == (2, 3)


def test_a_choice_is_rebuilt_from_json():
    inputs = draw(6, 3, 16, 16)
    written = json.loads(json.dumps(default_network(inputs).specification.as_dict()))
    again = NetworkSpecification.from_dict(written, where="here")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = default_network(inputs).specification.build((3, 16, 16), 3)
        torch.manual_seed(0)
        second = again.build((3, 16, 16), 3)
    assert torch.equal(first(inputs), second(inputs))


def test_statistics_are_put_in_for_those_who_take_them():
    inputs = draw(6, 3, 16, 16)
    assert set(fitted(parse_network("compact:4"), inputs).arguments) == {
        "width", "centre", "spread"
    }  # fmt: skip
    assert fitted(parse_network("compact:4"), inputs).text == "compact:4"
    assert fitted(parse_network("mlp:50"), inputs) == parse_network("mlp:50")


@pytest.mark.parametrize(
    ("shape", "options", "sentence"),
    [
        ((7,), {}, "expected images .* got inputs of"),
        ((3, 8, 8), {"width": 0}, "width of model compact"),
        ((3, 8, 8), {"spread": 0.0}, "spread above 0"),
        ((3, 8, 8), {"centre": [0.5]}, "centre for each of 3 channels, got 1"),
    ],
)
def test_what_is_refused(shape, options, sentence):
    with pytest.raises(CallerError, match=sentence):
        compact(shape, 3, **options)
