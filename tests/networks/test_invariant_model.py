"""The averaged network: equal to the written-out mean, for any module, and truly invariant where
the average runs over a whole group."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from user_networks import draw

from isotropy.checks import CallerError
from isotropy.networks.averaging.augmentations import UniformRanges
from isotropy.networks.averaging.invariant_model import TEST_SAMPLES, InvariantModel
from isotropy.symmetry.actions.images import affine


class Custom(nn.Module):
    """A forward pass of its own: a parameter without a layer, branches, reshaping."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(49, 3))

    def forward(self, images):
        flat = images.reshape(len(images), -1)
        return torch.sin(flat @ self.weight) + flat.amax(1, keepdim=True)


NETWORKS = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(49, 3)),
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(36, 3)
    ),
    "dropout": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(49, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3)
    ),
    "batch norm": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(100, 3)
    ),
    "custom forward": Custom,
}


def network_named(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return NETWORKS[name]().double()


def ranges(*names: str, start=0.4, **arguments) -> UniformRanges:
    action = affine(names, **arguments) if names else affine(**arguments)
    return UniformRanges(action, start=start, dtype=torch.float64)


def model_with(network: nn.Module, samples: int = 5) -> InvariantModel:
    return InvariantModel(network, ranges(), samples=samples)


@pytest.mark.parametrize("name", NETWORKS)
def test_equals_the_mean_written_out(name):
    model = model_with(network_named(name)).eval()
    images, noise = draw(3, 1, 7, 7), model.noise(3)
    assert noise.shape == (3, 5, 6)
    outputs = model(images, noise)
    assert outputs.shape == (3, 3)
    action, widths = model.augmentation.action, model.augmentation.half_widths
    for n in range(3):
        copies = [
            action.act((noise[n, s] * widths)[None, None], images[n : n + 1])[0] for s in range(5)
        ]
        mean = torch.stack([model.network(copy)[0] for copy in copies]).mean(0)
        torch.testing.assert_close(outputs[n], mean)


@pytest.mark.parametrize("name", NETWORKS)
def test_trains_the_network_and_the_ranges(name):
    model = model_with(network_named(name)).train()
    model(draw(4, 1, 7, 7)).square().sum().backward()
    for label, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), label
    assert model.augmentation.half_widths.grad.abs().min() > 0


def test_the_network_sees_samples_of_one_image_together():
    seen = []

    class Watching(nn.Module):
        def forward(self, images):
            seen.append(images)
            return images.flatten(1)[:, :2]

    model = InvariantModel(Watching(), ranges(), samples=4)
    images, noise = draw(3, 2, 5, 5), model.noise(3)
    model(images, noise)
    (called_on,) = seen
    assert called_on.shape == (12, 2, 5, 5)
    copies = model.augmentation(images, noise)
    for n in range(3):
        torch.testing.assert_close(called_on[4 * n : 4 * n + 4], copies[n])
    torch.testing.assert_close(model.orbit(images, noise), called_on)


def test_noise_is_fresh_unless_given():
    model, images = model_with(network_named("linear")), draw(2, 1, 7, 7)
    assert not torch.equal(model(images), model(images))
    one, other = (model(images, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, other)
    noise = model.noise(2, generator=torch.Generator().manual_seed(3))
    assert torch.equal(model(images, noise), one)


# --- invariance ---------------------------------------------------------------------------

# In half turns, with a range of half a turn to either side: rotations by 0, 90, 180 and −90°.
C4 = (0.0, 0.5, 1.0, -0.5)
NOT_A_GROUP = (0.0, 0.5, 1.0)


def change_under_quarter_turns(model: InvariantModel, half_turns: tuple[float, ...]) -> float:
    """The largest change of the outputs when the input is turned by 90, 180 and 270°."""
    images = draw(2, 1, 7, 7)
    noise = torch.tensor(half_turns, dtype=torch.float64)[None, :, None].expand(2, -1, 1)
    outputs = model(images, noise)
    assert outputs.abs().max() > 0.01 and (outputs[0] - outputs[1]).abs().max() > 1e-3
    changes = [
        (model(torch.rot90(images, k, (2, 3)), noise) - outputs).abs().max().item()
        for k in (1, 2, 3)
    ]
    return max(changes)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_average_over_a_group_is_invariant(name, interpolation):
    half_turn = ranges("rotation", start={"rotation": 180}, interpolation=interpolation)
    model = InvariantModel(network_named(name), half_turn, samples=4).eval()
    assert change_under_quarter_turns(model, C4) < 1e-10
    # Neither the network alone nor the average over a part of the group is.
    assert change_under_quarter_turns(model, (0.0,)) > 1e-3
    assert change_under_quarter_turns(model, NOT_A_GROUP) > 1e-3


# --- the rest -----------------------------------------------------------------------------


def test_state_dict_round_trip():
    model = model_with(network_named("batch norm")).eval()
    with torch.no_grad():
        model.augmentation.half_widths.copy_(torch.linspace(-0.4, 0.7, 6))
        for parameter in model.network.parameters():
            parameter.add_(0.01)
    other = InvariantModel(network_named("batch norm"), ranges(start=0.0), samples=5).eval()
    images, noise = draw(2, 1, 7, 7), model.noise(2)
    assert not torch.equal(other(images, noise), model(images, noise))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(images, noise), model(images, noise))
    assert other.symmetries() == model.symmetries()


@pytest.mark.parametrize("samples", [0, -3, math.nan])
def test_fewer_than_one_sample_is_refused(samples):
    with pytest.raises(CallerError, match=f"samples: expected at least 1, got {samples}"):
        InvariantModel(nn.Identity(), ranges(), samples=samples)


def test_noise_for_no_samples_is_refused():
    """Zero is not the same as not saying: it must not fall back to the model's own number."""
    with pytest.raises(CallerError, match="samples: expected at least 1, got 0"):
        model_with(nn.Identity()).noise(2, samples=0)


def test_in_evaluation_mode_it_is_one_function():
    """The same output twice, alone or in a batch, and nothing drawn from the global generator."""
    model = model_with(network_named("linear"), samples=7).eval()
    images = draw(5, 1, 7, 7)
    state = torch.get_rng_state()
    outputs = model(images)
    assert torch.equal(outputs, model(images))
    torch.testing.assert_close(model(images[2:3])[0], outputs[2], rtol=0, atol=1e-13)
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(model.train()(images), outputs)


def test_its_seed_scrambles_the_fixed_copies():
    network = network_named("linear")
    first, same, other = (
        InvariantModel(network, ranges(), samples=7, seed=seed).eval() for seed in (0, 0, 1)
    )
    images = draw(3, 1, 7, 7)
    assert torch.equal(first(images), same(images))
    assert not torch.equal(first(images), other(images))


def test_fixed_copies_of_several_ranges_are_sobol_points():
    model = InvariantModel(network_named("linear"), ranges("rotation", "scale_x", "scale_y"))
    assert model.samples == TEST_SAMPLES == 16
    noise = model.fixed_noise(2)
    engine = torch.quasirandom.SobolEngine(3, scramble=True, seed=0)
    expected = 2 * engine.draw(16, dtype=torch.float64) - 1
    assert torch.equal(noise[0], expected) and torch.equal(noise[1], expected)
    strata = ((noise[0] + 1) * 8).floor().sort(0).values
    assert torch.equal(strata, torch.arange(16.0).double()[:, None].expand(-1, 3))


def test_fixed_copies_of_one_range_have_equal_steps():
    only_rotation = ranges(start={"rotation": 30.0})
    noise = InvariantModel(network_named("linear"), only_rotation).fixed_noise(1, samples=4)[0]
    column = only_rotation.action.names.index("rotation")
    assert noise[:, column].tolist() == [-0.75, -0.25, 0.25, 0.75]
    others = [number for number in range(noise.shape[1]) if number != column]
    assert not noise[:, others].any()


def test_fixed_copies_are_nearer_to_the_average_than_drawn_ones():
    model = InvariantModel(network_named("convolutions"), ranges("rotation", start=1.0)).eval()
    images = draw(20, 1, 7, 7)
    with torch.no_grad():
        whole = model(images, model.fixed_noise(20, samples=2048))
        fixed = (model(images, model.fixed_noise(20, samples=8)) - whole).square().mean()
        independent = torch.rand((20, 8, 1), generator=torch.Generator().manual_seed(0)).double()
        drawn = (model(images, 2 * independent - 1) - whole).square().mean()
    assert 4 * fixed < drawn
