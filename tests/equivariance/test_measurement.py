"""Means and standard errors over examples, batches, and directions of many coordinates."""

from __future__ import annotations

import math

import pytest
import torch
from measured_networks import Between, built
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.equivariance.attribution import LayerSettings, attribute
from isotropy.equivariance.contributions import Sweep
from isotropy.equivariance.layouts import Invariant
from isotropy.equivariance.lie_derivative import lie_derivatives
from isotropy.equivariance.measurement import (
    ActionMeasure,
    coordinate_unit,
    directions_of,
    mean_and_error,
    measure_action,
)
from isotropy.equivariance.operations import watch
from isotropy.equivariance.subject import Subject
from isotropy.equivariance.translation_metrics import LayerTranslations
from isotropy.symmetry.actions.action import Generator
from isotropy.symmetry.actions.images import affine
from isotropy.symmetry.actions.linear import linear_action
from isotropy.symmetry.actions.points import points

ACTION = affine(("translation_x", "rotation"), padding="reflection")
UNITS = torch.eye(2, dtype=torch.float64)


def test_means_and_standard_errors() -> None:
    mean, error = mean_and_error(torch.tensor([1.0, 2.0, 3.0, 6.0]))
    assert mean == 3.0
    assert error == pytest.approx(math.sqrt((4 + 1 + 0 + 9) / 3 / 4))
    assert mean_and_error(torch.tensor([2.5])) == (2.5, None)


def test_numbers_are_those_of_the_derivatives() -> None:
    network, data = built("convolutional", batch=5)
    subject = Subject(network, "probabilities")
    with torch.no_grad():
        whole = lie_derivatives(subject, data, ACTION, UNITS, Invariant())
    layers = attribute(subject, data, ACTION, UNITS, whole.derivatives, Invariant())
    floors = whole.floor_errors()
    assert floors is not None
    found = measure_action(subject, data, ACTION)
    assert [each.name for each in found] == ["translation_x", "rotation"]
    assert [each.unit for each in found] == ["half an image width", "radian"]
    for number, each in enumerate(found):
        errors = whole.derivatives[number].square().sum(1) / 5
        assert each.error == pytest.approx(errors.mean().item(), rel=1e-12)
        assert each.standard_error == pytest.approx((errors.std() / 5**0.5).item(), rel=1e-12)
        assert each.resampling_floor == pytest.approx(floors[number].mean().item(), rel=1e-12)
        total = whole.derivatives[number].square().sum().item()
        for row, layer in enumerate(each.layers):
            norms = layers.norms[row, number]
            assert layer.norm == pytest.approx(norms.mean().item(), rel=1e-9, abs=1e-15)
            expected = (norms.std() / 5**0.5).item()
            assert layer.norm_error == pytest.approx(expected, rel=1e-9, abs=1e-15)
            inner = layers.inner[row, number].sum().item()
            assert layer.share == pytest.approx(inner / total, rel=1e-9, abs=1e-12)
        assert sum(layer.share for layer in each.layers) == pytest.approx(1, abs=1e-9)
        assert each.attribution is not None and each.attribution["method"] == "backward"
        assert each.attribution["closure"] < 1e-12 and each.remark is None


def close(one: ActionMeasure, other: ActionMeasure, tolerance: float) -> None:
    for name in ("error", "standard_error", "resampling_floor", "resampling_floor_standard_error"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=tolerance)
    for a, b in zip(one.layers, other.layers, strict=True):
        assert (a.name, a.kind, a.layout, a.judged_at) == (b.name, b.kind, b.layout, b.judged_at)
        assert a.norm == pytest.approx(b.norm, rel=tolerance, abs=1e-14)
        assert a.share == pytest.approx(b.share, rel=tolerance, abs=1e-10)


@pytest.mark.parametrize("name", ["resnet", "vit", "mixer", "u-net"])
def test_small_batches_give_the_same_numbers(name: str) -> None:
    network, data = built(name, batch=7)
    seen = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))

    together = measure_action(Subject(network), data, ACTION)
    apart = measure_action(Subject(network), data, ACTION, batch_size=3, progress=progress)
    for one, other in zip(together, apart, strict=True):
        close(one, other, 1e-6)
    assert seen == [(3, 7), (6, 7), (7, 7)]


def test_one_example_has_no_standard_error() -> None:
    network, data = built("convolutional", batch=1)
    for each in measure_action(Subject(network), data, ACTION):
        assert each.standard_error is None and each.error > 0
        assert all(layer.norm_error is None for layer in each.layers)


def test_the_probes_noise_is_in_the_standard_error_once() -> None:
    """Over repetitions the mean norm scatters as its standard error says."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.GELU(), nn.Flatten(), nn.Linear(18, 4)).double()
    one = torch.randn(1, 1, 5, 5, dtype=torch.float64)
    data = one.expand(40, -1, -1, -1)  # the same example: all scatter is the probes'
    turn = affine(("rotation",), padding="reflection")
    means, stated = [], []
    for seed in range(60):
        found = measure_action(
            Subject(network), data, turn,
            layers=LayerSettings("probes", 4), generator=torch.Generator().manual_seed(seed),
        )[0].layers[2]  # fmt: skip
        assert found.norm_error is not None
        means.append(found.norm)
        stated.append(found.norm_error)
    exact = measure_action(Subject(network), one, turn)[0].layers[2].norm
    scatter = torch.tensor(means).std().item()
    assert scatter == pytest.approx(sum(stated) / 60, rel=0.3)
    assert abs(sum(means) / 60 - exact) < 4 * scatter / 60**0.5


def errors_under_whole_pixels(network: nn.Module, data: Tensor) -> dict[str, Tensor]:
    """EQ-T of every operation, (batch,), from a pass of its own."""
    direct = LayerTranslations(torch.Generator().manual_seed(3))
    sweep = Sweep(ACTION, UNITS[:1], len(data), observe=direct)
    with torch.no_grad(), watch(network, sweep):
        sweep.start(data)
        network(data)
    return {name: errors for name, (errors,) in direct.errors.items()}


def test_every_layer_has_its_error_under_whole_pixels() -> None:
    """The same beside every generator; where a layer has none, there is nothing."""
    network, data = built("convolutional", batch=5)
    generator = torch.Generator().manual_seed(3)
    found = measure_action(Subject(network), data, ACTION, generator=generator)
    direct = errors_under_whole_pixels(network, data)
    for each in found:
        named = {layer.name: layer for layer in each.layers}
        assert direct.keys() < named.keys()
        for name, layer in named.items():
            wanted = mean_and_error(direct[name]) if name in direct else (None, None)
            assert (layer.eq_t, layer.eq_t_error) == wanted
            assert layer.layout == "image" or layer.eq_t is None
    assert max(layer.eq_t or 0 for layer in found[0].layers) > 1e-6


def test_copies_of_an_example_share_its_error_under_whole_pixels() -> None:
    """As in an averaged network, where copies lie next to each other."""
    layer = nn.Conv2d(3, 2, 3, padding=1).double()
    data = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    copies = Between(
        lambda x, layer: layer(x.repeat_interleave(2, 0)).unflatten(0, (-1, 2)).mean((1, 3, 4)),
        layer,
    )
    generator = torch.Generator().manual_seed(3)
    rows = measure_action(Subject(copies), data, ACTION, generator=generator)[0].layers
    (found,) = (row for row in rows if row.eq_t is not None)
    alone = errors_under_whole_pixels(nn.Sequential(layer), data.repeat_interleave(2, 0))["0"]
    wanted = mean_and_error(alone.reshape(4, 2).mean(1))
    assert (found.name, found.eq_t, found.eq_t_error) == ("layers.0", *wanted)


def test_without_layers() -> None:
    network, data = built("convolutional")
    found = measure_action(Subject(network), data, ACTION, layers=None)[0]
    assert found.layers == () and found.attribution is None
    assert found.remark == "layers were not asked for"
    assert found.error == measure_action(Subject(network), data, ACTION)[0].error


def test_hidden_layers_of_points_are_not_known_unless_said() -> None:
    action = points(2, ("rotation", "scale"))
    clouds = torch.randn(4, 5, 2, dtype=torch.float64)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(15, 2)).double()
    found = measure_action(Subject(network), clouds, action)[0]
    assert found.layers == () and "say it with layouts=" in (found.remark or "")
    said = measure_action(
        Subject(network), clouds, action, layers=LayerSettings(layouts={"0": "invariant"})
    )[0]
    assert said.remark is None and said.layers[0].share == pytest.approx(1, abs=1e-9)


def test_directions_of_many_coordinates_have_unit_length_on_average() -> None:
    action = points(2, ("jitter", "rotation"), count=6)
    clouds = torch.randn(4000, 6, 2, dtype=torch.float64)
    drawn = directions_of(action, clouds, torch.Generator().manual_seed(0))
    assert drawn.shape == (2, 4000, 13) and drawn.dtype == torch.float64
    assert drawn[0].square().sum(1).mean().item() == pytest.approx(1, rel=0.03)
    assert not drawn[0, :, 12].any() and not drawn[1, :, :12].any() and (drawn[1, :, 12] == 1).all()
    single = directions_of(ACTION, torch.zeros(3, 1, 4, 4))
    assert torch.equal(single, torch.eye(2))


def test_the_error_of_jitter_is_the_mean_over_directions() -> None:
    """Of a linear map f(x) = Wx: E‖W a‖²/dim = ‖W‖²/(coordinates · dim)."""
    action = points(2, ("jitter",), count=3)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(6, 2)).double()
    clouds = torch.randn(6000, 3, 2, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    found = measure_action(Subject(network), clouds, action, layers=None, generator=generator)[0]
    expected = network[1].weight.square().sum().item() / 6 / 2
    assert found.standard_error is not None
    assert abs(found.error - expected) < 4 * found.standard_error


def test_units_in_words() -> None:
    assert coordinate_unit(Generator("a", unit="log factor")) == "log factor"
    assert coordinate_unit(Generator("a", unit="degrees", coordinate_per_unit=0.1)) == "radian"
    assert coordinate_unit(Generator("a", unit="metres", coordinate_per_unit=0.5)) == "2 metres"


def test_networks_whose_operations_depend_on_the_example_are_refused() -> None:
    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = torch.tanh(x) if bool(x[0, 0, 0, 0] > 0) else x.sigmoid().exp()
            return y.mean((2, 3))

    data = torch.randn(2, 1, 4, 4, dtype=torch.float64)
    data[:, 0, 0, 0] = torch.tensor([1.0, -1.0])
    with pytest.raises(CallerError, match="other operations run.*use layers=False"):
        measure_action(Subject(Branches()), data, ACTION, batch_size=1)
    found = measure_action(Subject(Branches()), data, ACTION, batch_size=1, layers=None)
    assert found[0].error > 0


def test_derivatives_that_are_not_finite_are_refused() -> None:
    class Root(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.norm(dim=(2, 3)).sqrt()

    with pytest.raises(CallerError, match="derivatives by translation_x, rotation.*leave the ex"):
        measure_action(Subject(Root()), torch.zeros(2, 1, 4, 4), ACTION)


def test_an_output_whose_action_knows_no_ideal_velocity_has_no_floor() -> None:
    own = linear_action({"a": [[0.0]], "b": [[1.0]]})
    own.ideal_velocity = lambda direction, data: None  # type: ignore[method-assign, assignment]
    network = nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten())
    data = torch.randn(3, 1, 5, 5, dtype=torch.float64)
    found = measure_action(Subject(network), data, ACTION, outputs=own)[0]
    assert found.resampling_floor is None and found.resampling_floor_standard_error is None


def test_a_batch_has_at_least_one_example() -> None:
    network, data = built("convolutional")
    with pytest.raises(CallerError, match="batch_size: expected at least 1"):
        measure_action(Subject(network), data, ACTION, batch_size=-2)
