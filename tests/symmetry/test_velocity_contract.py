"""What every Action promises about its velocity: the central derivative of `act` at the identity,
linear in the direction, differentiable by the data in every mode."""

from __future__ import annotations

import pytest
import torch
from action_cases import CASES, Case, draw
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.symmetry.actions.action import Action, Generator, compose
from isotropy.symmetry.actions.images import affine, intensity

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
ON_GRIDS = {label: case for label, case in CASES.items() if case.action.grid_axes}


def some_direction(action: Action, *batch: int, seed: int = 4) -> Tensor:
    return draw(*batch, action.coordinate_count, seed=seed) - 0.4


def central_difference(action: Action, direction: Tensor, data: Tensor, step: float) -> Tensor:
    coordinates = step * direction.expand(len(data), -1)[:, None]
    return ((action.act(coordinates, data) - action.act(-coordinates, data)) / (2 * step))[:, 0]


def breach(action: Action, direction: Tensor, data: Tensor) -> float:
    """How far the velocity is from central differences of `act`, relative to them."""
    wanted = central_difference(action, direction, data, 1e-5)
    velocity = action.velocity(direction, data)
    assert velocity.shape == data.shape and velocity.dtype == data.dtype
    return float((velocity - wanted).norm() / wanted.norm())


@every_case
@pytest.mark.parametrize("batch", [(), (2,)], ids=["one for all", "one for each"])
def test_velocity_is_the_central_derivative(case: Case, batch: tuple[int, ...]) -> None:
    direction = some_direction(case.action, *batch)
    assert breach(case.action, direction, case.rough) < case.difference_error


@every_case
def test_each_generator_alone(case: Case) -> None:
    for direction in torch.eye(case.action.coordinate_count, dtype=torch.float64):
        assert breach(case.action, direction, case.rough) < case.difference_error


@pytest.mark.parametrize("case", ON_GRIDS.values(), ids=ON_GRIDS)
@pytest.mark.parametrize("size", [3, 8, 11])
def test_velocity_of_hidden_maps(case: Case, size: int) -> None:
    """Another number of channels and of places than the data's."""
    data = draw(2, 7, *range(size, size + case.action.grid_axes))
    assert breach(case.action, some_direction(case.action), data) < 4 * case.difference_error


def test_grid_axes() -> None:
    told = {label: case.action.grid_axes for label, case in CASES.items() if case.action.grid_axes}
    wanted = {"circular sequence": 1, "sequence in silence": 1} | dict.fromkeys(
        ("every generator of images", "image in black", "image in its mean colour"), 2
    )
    assert told == wanted | {"periodic image": 2}
    assert compose(affine(("rotation",)), affine(("scale",))).grid_axes == 2


class OneSided(Action):
    """A kink at zero: |t| to one side, 3 t to the other, whose central slope is 2."""

    generators = (Generator("kink", "grey level"),)

    def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
        return data[:, None] + torch.where(coordinates < 0, coordinates, 3 * coordinates)


def test_a_wrong_velocity_is_noticed() -> None:
    """The default is what differentiating gives, one side of a kink."""
    direction, data = torch.ones(1).double(), draw(2, 4)
    assert breach(OneSided(), direction, data) == pytest.approx(0.5, abs=1e-6)
    action = CASES["circular sequence"].action
    wanted = action.velocity(some_direction(action), draw(2, 3, 6))
    assert (Action.velocity(action, some_direction(action), draw(2, 3, 6)) - wanted).norm() > 0.1


@every_case
def test_velocity_is_linear_in_the_direction(case: Case) -> None:
    one, other = (some_direction(case.action, 2, seed=seed) for seed in (4, 5))
    both = case.action.velocity(2 * one - 3 * other, case.rough)
    parts = [case.action.velocity(each, case.rough) for each in (one, other)]
    torch.testing.assert_close(both, 2 * parts[0] - 3 * parts[1], rtol=0, atol=1e-12)
    still = case.action.velocity(torch.zeros_like(one[0]), case.rough)
    assert float(still.abs().max()) == 0


@every_case
def test_each_example_has_its_own_direction(case: Case) -> None:
    directions = some_direction(case.action, 2)
    together = case.action.velocity(directions, case.rough)
    for n in range(2):
        alone = case.action.velocity(directions[n], case.rough[n : n + 1])
        torch.testing.assert_close(together[n : n + 1], alone, rtol=0, atol=1e-13)


@every_case
def test_derivatives_by_the_data(case: Case) -> None:
    direction = some_direction(case.action, 2)
    data = case.rough.clone().requires_grad_()
    for velocity in (case.action.velocity, case.action.ideal_velocity):
        assert torch.autograd.gradcheck(
            lambda each, velocity=velocity: velocity(direction, each),
            (data,), check_forward_ad=True, fast_mode=True,
        )  # fmt: skip


@every_case
def test_under_transforms_of_functions(case: Case) -> None:
    """vmap by data and by directions, jvp by data; with and without grad mode."""
    directions = torch.stack([some_direction(case.action, seed=seed) for seed in (4, 5, 6)])
    data = torch.stack([case.rough, 2 * case.rough, case.rough.flip(-1)])
    for velocity in (case.action.velocity, case.action.ideal_velocity):
        alone = torch.stack([velocity(*each) for each in zip(directions, data, strict=True)])
        torch.testing.assert_close(torch.vmap(velocity)(directions, data), alone)
        with torch.no_grad():
            torch.testing.assert_close(torch.vmap(velocity)(directions, data), alone)
        tangent = case.rough.flip(-1)
        value, derivative = torch.func.jvp(
            lambda each, velocity=velocity: velocity(directions[0], each), (case.rough,), (tangent,)
        )
        torch.testing.assert_close(value, alone[0])
        # A velocity is affine in the data here: brightness and translations of points add to it.
        torch.testing.assert_close(
            derivative, velocity(directions[0], case.rough + tangent) - value
        )


REVERSE_OVER_FORWARD = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)
"""Of grid_sample; see `isotropy.symmetry.actions.warp`."""


@every_case
def test_the_default_under_transforms_of_functions(case: Case) -> None:
    """The forward-mode derivative of `act`, nested in all of them."""
    direction, data = some_direction(case.action, 2), case.rough.clone().requires_grad_()

    def velocity(each: Tensor) -> Tensor:
        return Action.velocity(case.action, direction, each)

    value = velocity(case.rough)
    if case.difference_error <= 1e-8:
        torch.testing.assert_close(value, case.action.velocity(direction, case.rough))
    with torch.no_grad():
        torch.testing.assert_close(velocity(case.rough), value)
    with torch.inference_mode():
        torch.testing.assert_close(velocity(case.rough), value)
    if case.has_second_derivatives or REVERSE_OVER_FORWARD:
        assert torch.autograd.gradcheck(velocity, (data,), fast_mode=True)
    stacked = torch.stack([case.rough, 2 * case.rough])
    torch.testing.assert_close(torch.vmap(velocity)(stacked)[0], value)
    if case.has_second_derivatives:  # else torch has no forward over forward mode
        tangent = case.rough.flip(-1)
        derivative = torch.func.jvp(velocity, (case.rough,), (tangent,))[1]
        torch.testing.assert_close(derivative, velocity(case.rough + tangent) - value)


@every_case
def test_type_device_and_layout_follow_the_data(case: Case) -> None:
    direction = some_direction(case.action)
    wanted = case.action.velocity(direction, case.rough)
    for velocity in (case.action.velocity, case.action.ideal_velocity):
        for dtype in (torch.bfloat16, torch.float32):
            given = velocity(direction, case.rough.to(dtype))
            assert given.dtype == dtype
        elsewhere = velocity(direction.to("meta"), case.rough.to("meta"))
        assert elsewhere.device.type == "meta" and elsewhere.shape == case.rough.shape
    single = case.action.velocity(direction, case.rough.float())
    torch.testing.assert_close(single.double(), wanted, rtol=1e-4, atol=1e-5)
    strided = torch.stack([case.rough, case.rough], -1)[..., 0]
    torch.testing.assert_close(case.action.velocity(direction, strided), wanted)


CUBIC = (CASES["composition"], CASES["every generator of images"])


@every_case
def test_ideal_velocity_is_known(case: Case) -> None:
    direction = some_direction(case.action)
    ideal = case.action.ideal_velocity(direction, case.smooth)
    velocity = case.action.velocity(direction, case.smooth)
    assert ideal is not None
    exact = case.interpolation_error == 1e-12
    # On smooth data the two differ by the error of interpolation alone; a cubic with a = −3/4
    # is too steep by half.
    allowed = 1e-12 if exact else 0.6 if case in CUBIC else 0.02
    assert (ideal - velocity).norm() <= allowed * velocity.norm()


def test_ideal_velocity_of_the_unknown() -> None:
    direction, data = torch.ones(1).double(), draw(2, 4)
    assert OneSided().ideal_velocity(direction, data) is None
    known = compose(intensity(("amplitude",)), intensity(("contrast",)))
    both = draw(2)
    assert compose(OneSided(), known).ideal_velocity(draw(3), data) is None
    torch.testing.assert_close(known.ideal_velocity(both, data), known.velocity(both, data))


@every_case
@pytest.mark.parametrize("what", ["one too many", "another batch", "samples"])
def test_a_direction_of_a_wrong_shape(case: Case, what: str) -> None:
    count = case.action.coordinate_count
    shape = {"one too many": (count + 1,), "another batch": (5, count), "samples": (2, 1, count)}
    for velocity in (case.action.velocity, case.action.ideal_velocity):
        with pytest.raises(CallerError, match=rf"direction: expected \({count}\), .* got"):
            velocity(torch.zeros(shape[what]), case.rough)
    with pytest.raises(CallerError, match=rf"direction: expected \({count}\), .* got"):
        Action.velocity(case.action, torch.zeros(shape[what]), case.rough)


@every_case
def test_data_that_do_not_fit(case: Case) -> None:
    direction = torch.zeros(case.action.coordinate_count)
    with pytest.raises(CallerError, match=case.sentence):
        case.action.velocity(direction, case.unfit)
    with pytest.raises(CallerError, match="expected floating-point .* torch.uint8; convert with"):
        case.action.velocity(direction, case.rough.byte())
