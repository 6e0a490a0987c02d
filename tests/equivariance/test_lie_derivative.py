"""The derivative of whole networks: zero where it must be, closed forms, finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from measured_networks import NETWORKS, Compute, SeveralInputs, built, smooth_images
from oracles.aliasing import mean_square_of_aliasing, mean_square_of_pointwise
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.equivariance.finite_error import exact_errors
from isotropy.equivariance.layouts import Follows, Grid, Invariant, Layout, Tokens, layout_for
from isotropy.equivariance.lie_derivative import Derivatives, lie_derivatives
from isotropy.equivariance.subject import Subject
from isotropy.symmetry.actions.action import Action
from isotropy.symmetry.actions.images import affine
from isotropy.symmetry.actions.linear import linear_action
from isotropy.symmetry.actions.points import points

SHIFTS = affine(("translation_x", "translation_y"), interpolation="fourier")
IMAGE = Grid((2, 3))


def units(action: Action) -> Tensor:
    return torch.eye(action.coordinate_count, dtype=torch.float64)


def derivatives(network: nn.Module, data: Tensor, action: Action, layout: Layout) -> Derivatives:
    with torch.no_grad():
        return lie_derivatives(Subject(network), data, action, units(action), layout)


# --- zero -----------------------------------------------------------------------------------


def circular(pooled: bool, between: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    first = nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular")
    second = nn.Conv2d(4, 3, 5, padding=2, padding_mode="circular")
    last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 5)] if pooled else []
    return nn.Sequential(first, between or nn.Identity(), second, *last).double()


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("size", [7, 8])
def test_circular_convolutions_commute_with_fourier_shifts(pooled: bool, size: int) -> None:
    images = torch.randn(2, 2, size, size, dtype=torch.float64)
    layout: Layout = Invariant() if pooled else IMAGE
    found = derivatives(circular(pooled), images, SHIFTS, layout)
    assert found.derivatives.abs().max() < 1e-10
    assert found.outputs.std() > 1e-3, "a constant would pass"


def test_zero_padding_and_a_pointwise_function_do_not() -> None:
    images = torch.randn(2, 2, 8, 8, dtype=torch.float64)
    network = circular(pooled=False)
    network[0].padding_mode = "zeros"
    assert derivatives(network, images, SHIFTS, IMAGE).errors().min() > 1e-3
    bent = circular(pooled=False, between=nn.GELU())
    assert derivatives(bent, images, SHIFTS, IMAGE).errors().min() > 1e-5


class QuarterTurns(nn.Module):
    """A network averaged over the four turns of its input, turned back where `image`."""

    def __init__(self, inner: nn.Module, image: bool) -> None:
        super().__init__()
        self.inner, self.image = inner, image

    def forward(self, x: Tensor) -> Tensor:
        turned = (self.inner(torch.rot90(x, k, (2, 3))) for k in range(4))
        back = (torch.rot90(y, -k, (2, 3)) if self.image else y for k, y in enumerate(turned))
        return torch.stack(list(back)).mean(0)


@pytest.mark.parametrize("image", [False, True])
def test_a_network_averaged_over_quarter_turns(image: bool) -> None:
    inner, images = built("u-net" if image else "convolutional")
    layout: Layout = IMAGE if image else Invariant()
    turns = exact_errors(Subject(QuarterTurns(inner, image)), images, layout)[0]
    assert turns.name == "quarter turns" and turns.errors is not None
    assert turns.errors.max() < 1e-20
    plain = exact_errors(Subject(inner), images, layout)[0]
    assert plain.errors is not None and plain.errors.min() > 1e-6


def test_a_network_of_distances_does_not_see_rotations_of_points() -> None:
    action = points(3, ("rotation_x", "rotation_y", "rotation_z", "translation_x", "scale"))
    clouds = torch.randn(4, 6, 3, dtype=torch.float64)
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    network = Compute(lambda x: head(x.norm(dim=2)))
    found = derivatives(network, clouds, action, Invariant())
    assert found.derivatives[:3].abs().max() < 1e-12
    assert found.errors()[3:].min() > 1e-6, "shifts and scale change the distances"
    assert found.floors is not None and not found.floors.any(), "nothing is resampled"


def test_pairs_of_representations() -> None:
    """f(x) = (x₀² − x₁², 2 x₀ x₁) turns twice as fast as its input."""
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    action = linear_action({"turn": turn})
    vectors = torch.randn(5, 2, dtype=torch.float64)
    network = Compute(lambda x: torch.stack([x[:, 0] ** 2 - x[:, 1] ** 2, 2 * x.prod(1)], 1))
    double = Follows(linear_action({"turn": 2 * turn}))
    assert derivatives(network, vectors, action, double).derivatives.abs().max() < 1e-14
    once = derivatives(network, vectors, action, Follows(action)).derivatives
    # Left over is once the turn of the output, as long as the output itself.
    expected = network(vectors).square().sum(1)
    torch.testing.assert_close(once.square().sum(2)[0], expected, rtol=1e-12, atol=0)


# --- Theorem 4.1 ----------------------------------------------------------------------------


@pytest.mark.parametrize("size, step", [(12, 2), (14, 2), (12, 3), (15, 3), (16, 4)])
@pytest.mark.parametrize("direction", [(1.0, 0.0), (0.0, 1.0), (0.8, -0.6)])
def test_down_sampling_is_aliasing(size: int, step: int, direction: tuple[float, float]) -> None:
    """Theorem 4.1, with interference: in two dimensions several frequencies meet in one."""
    highest = (size - 1) // 2
    images = smooth_images(2, 1, size, highest)
    across, down = direction
    with torch.no_grad():
        found = lie_derivatives(
            Subject(Compute(lambda x: x[:, :, ::step, ::step])),
            images,
            SHIFTS,
            torch.tensor([direction], dtype=torch.float64),
            IMAGE,
        ).errors()[0]
    # A coordinate is half a width; axes of the array are rows, then columns.
    expected = [
        mean_square_of_aliasing(image.numpy(), size // step, (down / 2, across / 2))
        for image in images[:, 0]
    ]
    assert min(expected) > 0.1
    wanted = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=0)


def test_down_sampling_along_one_axis_and_what_was_printed() -> None:
    """In one dimension with every second sample no two frequencies interfere in the norm."""
    size = 16
    rows = smooth_images(1, 1, size, 7)[..., :1, :]
    images = rows.expand(1, 1, size, size).clone()
    with torch.no_grad():
        found = lie_derivatives(
            Subject(Compute(lambda x: x[:, :, :, ::2])), images, SHIFTS, units(SHIFTS), IMAGE
        ).errors()[:, 0]
    expected = mean_square_of_aliasing(rows[0, 0, 0].numpy(), size // 2, (0.5,))
    assert found[0].item() == pytest.approx(expected, rel=1e-8)
    assert found[1].item() == pytest.approx(0, abs=1e-20)


def test_without_interference_the_theorem_is_wrong_in_two_dimensions() -> None:
    image = smooth_images(1, 1, 12, 5)
    coefficients = np.fft.fft2(image[0, 0].numpy()) / image[0, 0].numel()
    printed = 0.0
    for row in range(12):
        for column in range(12):
            n = (column + 6) % 12 - 6
            low = (n + 3) % 6 - 3
            low = 0 if low == -3 else low
            printed += abs(2 * math.pi * (low - n) / 2 * coefficients[row, column]) ** 2
    true = mean_square_of_aliasing(image[0, 0].numpy(), 6, (0.0, 0.5))
    assert abs(printed - true) > 0.01 * true


def gelu(values: np.ndarray) -> np.ndarray:
    return F.gelu(torch.from_numpy(values)).numpy()


def test_gelu_is_aliasing_of_its_overtones() -> None:
    """GELU is smooth: on eight times the samples all of its spectrum is there."""
    images = smooth_images(2, 1, 16, 2)
    found = derivatives(nn.GELU(), images, SHIFTS, IMAGE).errors()
    for number, direction in enumerate(((0.0, 0.5), (0.5, 0.0))):
        for each, image in zip(found[number], images[:, 0].numpy(), strict=True):
            expected = mean_square_of_pointwise(image, gelu, direction, factor=8)
            assert expected > 1e-8
            assert each.item() == pytest.approx(expected, rel=1e-8)


def test_relu_is_aliasing_of_its_overtones() -> None:
    """ReLU has a kink, its spectrum falls as 1/n²: what is cut off shows, as 1/factor."""
    rows = smooth_images(3, 1, 16, 3)[..., :1, :]
    images = rows.expand(3, 1, 16, 16).clone()
    found = derivatives(nn.ReLU(), images, SHIFTS, IMAGE).errors()[0]
    for each, row in zip(found, rows[:, 0, 0].numpy(), strict=True):
        expected = mean_square_of_pointwise(row, lambda v: np.maximum(v, 0), (0.5,), factor=400)
        assert each.item() == pytest.approx(expected, rel=3e-2)


# --- finite differences -----------------------------------------------------------------------


def central_difference(
    network: nn.Module, data: Tensor, action: Action, layout: Layout, step: float
) -> Tensor:
    """d/dt ρ_out(−t) f(ρ_in(t) x) at 0 by four points, error of fourth order."""

    def at(amount: float, direction: Tensor) -> Tensor:
        coordinates = (amount * direction).expand(len(data), -1)
        moved = action.act(coordinates[:, None], data)[:, 0]
        return layout.move(action, -coordinates, network(moved))

    found = []
    with torch.no_grad():
        for each in units(action):
            near = at(step, each) - at(-step, each)
            far = at(2 * step, each) - at(-2 * step, each)
            found.append((8 * near - far) / (12 * step))
    return torch.stack(found)


NAMES = ("translation_x", "rotation", "scale", "hyperbolic_rotation")
SMOOTH = ["vit", "vit of torch", "vit to tokens", "mixer", "channels last", "u-net", "autoencoder"]


@pytest.mark.parametrize("interpolation", ["bicubic", "fourier"])
@pytest.mark.parametrize("name", SMOOTH)
def test_networks_against_finite_differences(name: str, interpolation: str) -> None:
    network, images = built(name, batch=2)
    action = affine(NAMES, interpolation=interpolation, padding="reflection")  # type: ignore[arg-type]
    with torch.no_grad():
        layout = layout_for("auto", action, network(images), what="output")
    found = derivatives(network, images, action, layout).derivatives
    # Cubics meet with different curvatures, so that the differences' error is of first order.
    step = 3e-8 if interpolation == "bicubic" else 1e-4
    expected = central_difference(network, images, action, layout, step)
    scale = expected.flatten(2).norm(dim=2).min()
    assert scale > 1e-6
    assert (found - expected).flatten(2).norm(dim=2).max() < 1e-6 * scale


def test_sequences_against_finite_differences() -> None:
    network, data = built("sequence")
    case = NETWORKS["sequence"]
    found = derivatives(network, data, case.action(), Invariant())
    # Straight lines have a kink: the central difference across it is exact to first order only.
    expected = central_difference(network, data, case.action(), Invariant(), step=1e-7)
    torch.testing.assert_close(found.derivatives, expected, rtol=1e-4, atol=1e-6)


def test_bilinear_takes_the_mean_of_both_sides() -> None:
    network, images = built("u-net", batch=1)
    action = affine(("translation_x",), padding="reflection")
    step = 1e-6

    def side(amount: float) -> Tensor:
        coordinates = torch.full((1, 1), amount, dtype=torch.float64)
        with torch.no_grad():
            moved = network(action.act(coordinates[:, None], images)[:, 0])
            return (IMAGE.move(action, -coordinates, moved) - network(images)) / amount

    found = derivatives(network, images, action, IMAGE).derivatives[0]
    left, right = side(-step), side(step)
    assert (left - right).norm() > 0.1 * found.norm(), "there is a kink"
    # Both the input's and the output's kink are met from both sides; their means add up.
    torch.testing.assert_close((left + right) / 2, found, rtol=1e-3, atol=1e-4 * found.abs().max())


# --- floors and pieces ------------------------------------------------------------------------


def test_the_floor_is_what_is_left_of_a_perfectly_equivariant_network() -> None:
    """With ideal velocities a circular network has none; all it shows is the floor."""
    images = smooth_images(2, 2, 8, 3)
    exact = derivatives(circular(pooled=False), images, SHIFTS, IMAGE)
    assert exact.floors is not None and not exact.floors.any()
    resampled = affine(("translation_x", "rotation"), padding="reflection")
    bent, pictures = built("u-net")
    found = derivatives(bent, pictures, resampled, IMAGE)
    assert found.floors is not None
    # L splits into the derivative with ideal velocities and the floor.
    for number, direction in enumerate(units(resampled)):
        tangent = resampled.ideal_velocity(direction, pictures)
        outputs, pushed = torch.func.jvp(bent, (pictures,), (tangent,))
        ideal = pushed - resampled.ideal_velocity(direction, outputs)
        total = ideal + found.floors[number]
        torch.testing.assert_close(total, found.derivatives[number], rtol=1e-12, atol=1e-12)


def test_errors_are_squares_per_dimension() -> None:
    made = Derivatives(torch.zeros(2, 3), torch.tensor([[[1.0, 2.0, 2.0], [0.0, 0.0, 3.0]]]), None)
    torch.testing.assert_close(made.errors(), torch.tensor([[3.0, 3.0]]))
    assert made.floor_errors() is None


def test_an_action_without_ideal_velocity_has_no_floor() -> None:
    from isotropy.symmetry.actions.action import Generator

    class Fade(Action):
        generators = (Generator("fade", unit="factor"),)

        def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
            return data[:, None] * coordinates[..., 0, None].exp()

    data = torch.randn(3, 4, dtype=torch.float64)
    found = derivatives(Compute(lambda x: x**3), data, Fade(), Invariant())
    assert found.floors is None and found.floor_errors() is None
    torch.testing.assert_close(found.derivatives[0], 3 * data**3)


@pytest.mark.parametrize("name", ["resnet", "vit of torch", "mixer"])
def test_directions_together_and_one_by_one_agree(name: str) -> None:
    network, images = built(name)
    action = affine(("translation_x", "rotation", "scale"), padding="reflection")
    subject = Subject(network, "probabilities")
    with torch.no_grad():
        together = lie_derivatives(subject, images, action, units(action), Invariant())
        for number, each in enumerate(units(action)):
            one = lie_derivatives(
                subject, images, action, each[None], Invariant(), with_floor=False
            )
            torch.testing.assert_close(
                one.derivatives[0], together.derivatives[number], rtol=1e-10, atol=1e-14
            )
    assert together.outputs.sum(1).allclose(torch.ones(3, dtype=torch.float64))


def test_only_the_named_input_moves() -> None:
    torch.manual_seed(0)
    network = SeveralInputs().double()
    inputs = {
        "vector": torch.randn(3, 2, dtype=torch.float64),
        "image": torch.randn(3, 3, 8, 8, dtype=torch.float64),
    }
    subject = Subject(network, "outputs", "scores", "image")
    action = affine(("rotation",), padding="reflection")
    with torch.no_grad():
        found = lie_derivatives(subject, inputs, action, units(action), Invariant())
    fixed = Compute(lambda x: network(image=x, vector=inputs["vector"])["scores"])
    alone = derivatives(fixed, inputs["image"], action, Invariant())
    assert found.errors().min() > 0
    torch.testing.assert_close(found.derivatives, alone.derivatives)


class Square(torch.autograd.Function):
    """x² with a backward pass, and none forward."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient


@pytest.mark.parametrize("count", [1, 2])
def test_a_function_without_forward_derivative_is_refused(count: int) -> None:
    subject, images = Subject(Compute(Square.apply)), torch.randn(2, 1, 4, 4)
    with pytest.raises(CallerError, match="network: an operation .*give its autograd.Function a j"):
        lie_derivatives(subject, images, SHIFTS, torch.eye(2)[:count], IMAGE)


def test_token_grids_move_as_their_grid() -> None:
    """A network of patches that averages cells is, on its tokens, what it is on its grid."""
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    action = affine(("translation_x", "rotation"), padding="reflection")
    grid = derivatives(nn.AvgPool2d(2), images, action, IMAGE)
    row = Compute(lambda x: F.avg_pool2d(x, 2).flatten(2).transpose(1, 2))
    tokens = Tokens(1, (4, 4), tuple(range(16)))
    found = derivatives(row, images, action, tokens)
    torch.testing.assert_close(
        found.derivatives, grid.derivatives.flatten(3).transpose(2, 3), rtol=1e-12, atol=1e-12
    )
