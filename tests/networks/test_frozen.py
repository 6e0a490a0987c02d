"""What is frozen by which words, new last layers, and networks that are not one function."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.kernels import cores, precision
from isotropy.networks.averaging import averaged_features
from isotropy.networks.averaging.augmentations import UniformRanges
from isotropy.networks.averaging.averaged_features import (
    AveragedFeatures,
    HeadAlone,
    features_of,
    may_be_bfloat16,
    spread_evenly,
)
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.batch_statistics import find_first_statistics
from isotropy.networks.frozen import (
    freeze,
    frozen_names,
    sentence,
    trained_head,
    with_new_head,
)
from isotropy.networks.one_function import changes_with, check_one_function
from isotropy.networks.zoo.specification import NetworkSpecification, parse_network
from isotropy.symmetry.actions.images import affine

EXAMPLE = torch.zeros(1, 1, 6, 6)


class Residual(nn.Module):
    """A body with a normalisation and dropout, and a last layer called fc."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(64, outputs)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.drop(self.body(images).flatten(1)))


def test_the_backbone_is_all_but_the_last_layer():
    network = Residual()
    network.fc.bias.requires_grad_(False)
    freeze(network, "backbone", EXAMPLE)
    trained = [name for name, each in network.named_parameters() if each.requires_grad]
    assert trained == ["fc.weight", "fc.bias"]
    assert trained_head(network, EXAMPLE) == "fc"
    assert "trained: fc.weight, fc.bias" in sentence(network)


def test_patterns_and_nothing():
    network = Residual()
    freeze(network, "none", EXAMPLE)
    assert frozen_names(network) == [] and sentence(network) is None
    freeze(network, "body.0.*, *.bias", EXAMPLE)
    assert frozen_names(network) == ["body.0.weight", "body.0.bias", "body.1.bias", "fc.bias"]
    assert trained_head(network, EXAMPLE) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("layer9.*", r"'layer9.\*'.*matches nothing; there are body.\*, fc.\*"),
        ("body.*,Fc.*", r"'Fc.\*'.*matches nothing"),
        ("*", "something is left to train"),
    ],
)
def test_patterns_that_are_refused(words: str, message: str):
    with pytest.raises(CallerError, match=message):
        freeze(Residual(), words, EXAMPLE)


def test_a_backbone_without_a_last_linear_layer_is_refused():
    network = nn.Sequential(nn.Conv2d(1, 3, 6), nn.Flatten())
    with pytest.raises(CallerError, match=r"ends in '1' \(Flatten\).* of 0\.\*"):
        freeze(network, "backbone", EXAMPLE)


def test_new_heads_are_the_same_every_time_and_old_ones_stay():
    network = Residual()
    assert with_new_head(network, 3, EXAMPLE).fc is network.fc
    first, second = (with_new_head(Residual(), 5, EXAMPLE) for _ in range(2))
    assert first.fc.out_features == 5 and first(EXAMPLE).shape == (1, 5)
    assert torch.equal(first.fc.weight, second.fc.weight)
    largest = float(first.fc.weight.detach().abs().max())
    assert largest <= 64**-0.5 < 1.1 * largest
    linear = with_new_head(nn.Linear(4, 2, bias=False), 3, torch.zeros(1, 4))
    assert linear.out_features == 3 and linear.bias is None
    assert trained_head(linear, torch.zeros(1, 4)) is None  # it has nothing below


def test_words_for_a_network_with_a_new_head():
    words = NetworkSpecification("backbone", "cnn", head=4)
    assert words.as_dict()["head"] == 4
    assert NetworkSpecification.from_dict(words.as_dict(), where="x") == words
    assert "head" not in parse_network("cnn").as_dict()
    network = words.build((1, 28, 28), 10)
    assert network(torch.zeros(2, 1, 28, 28)).shape == (2, 4)


def test_a_run_of_trained_weights_is_rebuilt_without_them():
    words = parse_network("timm:resnet18:pretrained")
    assert words.is_trained and words.untrained is words  # its own classes come with the weights
    other = NetworkSpecification("timm", "resnet18:pretrained", head=4)
    assert other.untrained == NetworkSpecification("timm", "resnet18", head=4)


def averaged(network: nn.Module, inputs: Tensor) -> AveragedFeatures:
    freeze(network, "backbone", inputs[:1])
    augmentation = UniformRanges(affine(("rotation",)), start={"rotation": 40.0})
    model = InvariantModel(network, augmentation.to(inputs.dtype), samples=5)
    return AveragedFeatures(model, "fc", inputs, lambda: torch.Generator().manual_seed(1))


def test_averaged_features_give_the_averaged_outputs_whatever_the_mode():
    network, inputs = Residual().double().train(), torch.rand(60, 1, 6, 6, dtype=torch.float64)
    find_first_statistics(network, inputs)
    features = averaged(network, inputs)
    generator = torch.Generator().manual_seed(1)
    augmentation = features.model.augmentation
    parts = [features.model.noise(len(part), generator=generator) for part in inputs.split(51)]
    noise = torch.cat([spread_evenly(augmentation, part) for part in parts])
    found = features.head(features.now())
    assert network.training  # it was put back
    torch.testing.assert_close(found, features.model.eval()(inputs, noise))
    names = dict(HeadAlone(network, "fc").named_parameters())
    assert list(names) == ["fc.weight", "fc.bias"] and names["fc.weight"] is network.fc.weight


def test_even_copies_are_evenly_spaced_and_differ_between_examples():
    """A whole period in equal steps, from a place of each example's own."""
    augmentation = UniformRanges(affine(("rotation",)), start={"rotation": 180.0})
    drawn = augmentation.noise(4, 8, generator=torch.Generator().manual_seed(0))
    noise = spread_evenly(augmentation, drawn)[..., 0]
    steps = noise.sort(1).values.diff(dim=1)
    torch.testing.assert_close(steps, torch.full((4, 7), 0.25))
    assert float(noise.abs().max()) <= 1 and len(set(noise[:, 0].tolist())) == 4


def test_copies_are_even_along_every_one_of_several_ranges():
    names = ("rotation", "scale_x", "scale_y")
    start = {"rotation": 180.0, "scale_x": 0.3}
    augmentation = UniformRanges(affine(names), start={**start, "scale_y": 0.0})
    drawn = augmentation.noise(3, 8, generator=torch.Generator().manual_seed(0))
    noise = spread_evenly(augmentation, drawn)
    steps = noise[..., :2].sort(1).values.diff(dim=1)
    torch.testing.assert_close(steps, torch.full((3, 7, 2), 0.25))
    ranks = noise[..., :2].argsort(1)
    assert not torch.equal(ranks[..., 0], ranks[..., 1])  # not along a diagonal
    expected = torch.remainder(drawn[:, :1, 2] + 1, 2) - 1
    torch.testing.assert_close(noise[..., 2], expected.expand(-1, 8))  # it does not move anything


class Shifted(nn.Module):
    """Features that are nearly the same for all inputs, which 8 bits do not tell apart."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Conv2d(1, 4, 6), nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(1e3 + self.body(images).flatten(1))


def test_bfloat16_is_for_features_that_are_precise_in_it(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    inputs = torch.rand(20, 1, 6, 6)
    monkeypatch.setattr(averaged_features, "has_bfloat16", lambda *_: True)
    assert may_be_bfloat16(Residual(), "fc", inputs)
    assert not may_be_bfloat16(Shifted(), "fc", inputs)
    network = Residual()
    one, other = (features_of(network, "fc", inputs, bfloat16=each) for each in (False, True))
    assert other.dtype == torch.float32 and not torch.equal(one, other)
    torch.testing.assert_close(one, other, atol=0.03, rtol=0.03)
    monkeypatch.setattr(averaged_features, "has_bfloat16", lambda *_: False)
    assert not may_be_bfloat16(network, "fc", inputs)


def test_only_float32_on_a_cpu_is_faster_in_bfloat16(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(precision, "_cpu_multiplies_bfloat16", lambda: True)
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert precision.has_bfloat16(cpu, torch.float32)
    assert not precision.has_bfloat16(cpu, torch.float64)
    assert not precision.has_bfloat16(gpu, torch.float32)
    monkeypatch.setattr(precision, "_cpu_multiplies_bfloat16", lambda: False)
    assert not precision.has_bfloat16(cpu, torch.float32)


def test_one_core_inside_and_as_many_as_before_after():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyError), cores.on_one_core():
            assert torch.get_num_threads() == 1
            raise KeyError
        assert torch.get_num_threads() == 2
        with cores.on_one_core(False):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_features_do_not_depend_on_how_many_rows_go_together(monkeypatch):
    network, inputs = Residual(), torch.rand(50, 1, 6, 6)
    features, found, fixed = averaged(network, inputs), [], []
    for rows in (8, 1000):
        monkeypatch.setattr(averaged_features, "ROWS_AT_ONCE", rows)
        fixed.append(features.fixed(inputs[:40], 4))
        own = spread_evenly(features.model.augmentation, features.model.fixed_noise(50, samples=4))
        found.append(averaged_features.averaged(
            features.model.network, features.name, features.model.augmentation, [(inputs, own)]
        ))  # fmt: skip
    torch.testing.assert_close(*found)
    torch.testing.assert_close(*fixed)
    model = features.model.eval()
    expected = model(inputs[:40], model.fixed_noise(40, samples=4))
    torch.testing.assert_close(features.head(fixed[0]), expected)


def test_features_are_computed_again_only_when_ranges_move():
    network, inputs = Residual(), torch.rand(7, 1, 6, 6)
    features, calls = averaged(network, inputs), []
    network.register_forward_hook(lambda *_: calls.append(1))
    first = features.now()
    assert features.now() is first and features.is_known and len(calls) == 1
    with torch.no_grad():
        features.model.augmentation.learnable()[0].mul_(1.5)
    assert not features.is_known
    assert not torch.equal(features.now(), first) and len(calls) == 2


def test_features_are_differentiated_by_ranges_and_not_by_frozen_weights():
    network, inputs = Residual().double(), torch.rand(3, 1, 6, 6, dtype=torch.float64)
    features = averaged(network, inputs)
    (ranges,) = features.model.augmentation.learnable()
    noise = features.model.noise(3, generator=torch.Generator().manual_seed(2))

    def total() -> Tensor:
        return features.of(inputs, noise).square().sum()

    total().backward()
    assert all(each.grad is None for each in network.parameters())
    gradient = float(ranges.grad.sum())
    with torch.no_grad():
        ranges.add_(1e-6)
        above = total()
        ranges.sub_(2e-6)
        below = total()
    assert gradient == pytest.approx(float(above - below) / 2e-6, rel=1e-4)


class Noisy(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return rows + 0.1 * torch.randn_like(rows)


class Centred(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return rows - rows.mean(0)


@pytest.mark.parametrize(("layer", "changes"), [(Noisy, "draws"), (Centred, "batch")])
def test_networks_that_are_not_one_function_are_refused(layer: type[nn.Module], changes: str):
    network, inputs = nn.Sequential(nn.Linear(4, 3), layer()), torch.randn(8, 4)
    assert changes_with(network, inputs, 1e-3) == changes
    with pytest.raises(CallerError, match="evaluation mode"):
        check_one_function(network, inputs)


def test_dropout_that_follows_the_mode_is_one_function_and_batch_statistics_are_not():
    inputs = torch.randn(8, 4)
    network = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    check_one_function(network.train(), inputs)
    assert network.training
    statistics = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(CallerError, match="'1'"):
        check_one_function(statistics, inputs)


def test_statistics_without_a_count_are_kept():
    """Weights from elsewhere may have running statistics and count no batch."""
    network = Residual()
    with torch.no_grad():
        network.body[1].running_mean.add_(0.5)
    assert find_first_statistics(network, torch.rand(9, 1, 6, 6)) == []
    assert find_first_statistics(Residual(), torch.rand(9, 1, 6, 6)) == ["body.1"]
