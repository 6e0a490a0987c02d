"""What every Action promises: identity at zero, one-parameter groups, derivatives, units, layout.
An Action joins `CASES` in `action_cases.py` and inherits all of it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from action_cases import CASES, Case, draw
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.symmetry.actions.action import Action, Generator
from isotropy.symmetry.actions.images import GENERATORS, INTENSITY_GENERATORS, affine, intensity
from isotropy.symmetry.actions.points import POINT_GENERATORS, points
from isotropy.symmetry.actions.sequences import SEQUENCE_GENERATORS, sequences

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_generator = pytest.mark.parametrize(
    ("case", "position"),
    [
        pytest.param(case, position, id=f"{label} {name}")
        for label, case in CASES.items()
        for position, name in enumerate(case.action.names)
    ],
)
AMOUNT = 0.2


def along(action: Action, position: int, amount: float) -> Tensor:
    """Coordinates (1, 1, count) of one generator alone; its copies differ from each other."""
    shares = [torch.zeros(each.multiplicity, dtype=torch.float64) for each in action.generators]
    size = action.generators[position].multiplicity
    shares[position] = torch.ones(1).double() if size == 1 else 2 * draw(size, seed=3) - 1
    return amount * torch.cat(shares)[None, None]


def breaches(action: Action, position: int, data: Tensor) -> dict[str, float]:
    """How far one generator is from generating a group, by what is wrong."""
    once = action.act(along(action, position, AMOUNT), data)[:, 0]
    back = action.act(along(action, position, -AMOUNT), once)[:, 0]
    twice = action.act(along(action, position, AMOUNT), once)[:, 0]
    double = action.act(along(action, position, 2 * AMOUNT), data)[:, 0]
    return {
        "there and back": float((back - data).abs().max()),
        "twice is double": float((twice - double).abs().max()),
    }


# --- the contract -------------------------------------------------------------------------


@every_case
def test_zero_is_the_identity(case: Case) -> None:
    coordinates = torch.zeros(2, 3, case.action.coordinate_count, dtype=torch.float64)
    moved = case.action.act(coordinates, case.rough)
    assert moved.shape == (2, 3, *case.rough.shape[1:])
    torch.testing.assert_close(moved, case.rough[:, None].expand_as(moved), rtol=0, atol=1e-14)


@every_generator
def test_a_generator_generates_a_group(case: Case, position: int) -> None:
    moved = case.action.act(along(case.action, position, AMOUNT), case.smooth)[:, 0]
    assert (moved - case.smooth).abs().max() > max(0.05, 5 * case.interpolation_error)
    for what, error in breaches(case.action, position, case.smooth).items():
        assert error < case.interpolation_error, what


class Squared(Action):
    """Not a group: raising a value twice by a² is not raising it by (2a)²."""

    generators = (Generator("squared", "grey level"),)

    def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
        return data[:, None] + coordinates[..., None].square()


def test_what_is_no_group_is_noticed() -> None:
    assert min(breaches(Squared(), 0, draw(1, 1, 4)).values()) > 0.05


@every_case
def test_derivatives_in_reverse_and_forward_mode(case: Case) -> None:
    coordinates = 0.6 * draw(2, 2, case.action.coordinate_count, seed=1) - 0.23
    inputs = (coordinates.requires_grad_(), case.rough.clone().requires_grad_())
    assert torch.autograd.gradcheck(case.action.act, inputs, check_forward_ad=True, fast_mode=True)
    if case.has_second_derivatives:
        assert torch.autograd.gradgradcheck(case.action.act, inputs, fast_mode=True)


SMOOTH = {label: case for label, case in CASES.items() if case.interpolation_error == 1e-12}


@pytest.mark.parametrize("case", SMOOTH.values(), ids=SMOOTH)
def test_derivatives_at_zero(case: Case) -> None:
    """Where nothing is interpolated; a straight line between samples has a kink there."""
    zero = torch.zeros(2, 1, case.action.coordinate_count, dtype=torch.float64)
    inputs = (zero.requires_grad_(), case.rough)
    assert torch.autograd.gradcheck(case.action.act, inputs, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(case.action.act, inputs, fast_mode=True)


@every_case
def test_under_vmap(case: Case) -> None:
    coordinates = draw(3, 2, 2, case.action.coordinate_count, seed=1) - 0.5
    data = torch.stack([case.rough, 2 * case.rough, case.rough.flip(-1)])
    together = torch.vmap(case.action.act)(coordinates, data)
    alone = [case.action.act(*each) for each in zip(coordinates, data, strict=True)]
    torch.testing.assert_close(together, torch.stack(alone))


@every_case
def test_samples_of_one_example_lie_together(case: Case) -> None:
    coordinates = draw(2, 3, case.action.coordinate_count, seed=1) - 0.5
    flat = case.action.act(coordinates, case.rough).flatten(0, 1)
    for n, s in itertools.product(range(2), range(3)):
        alone = case.action.act(coordinates[n : n + 1, s : s + 1], case.rough[n : n + 1])
        torch.testing.assert_close(flat[3 * n + s], alone[0, 0])


@every_case
def test_type_and_device_follow_the_data(case: Case) -> None:
    coordinates = torch.zeros(2, 1, case.action.coordinate_count)
    for dtype in (torch.float32, torch.float64):
        assert case.action.act(coordinates, case.rough.to(dtype)).dtype == dtype
    moved = case.action.act(coordinates.to("meta"), case.rough.to("meta"))
    assert moved.device.type == "meta" and moved.shape == (2, 1, *case.rough.shape[1:])


@every_generator
def test_units_and_words(case: Case, position: int) -> None:
    generator = case.action.generators[position]
    assert generator.unit and generator.meaning
    assert generator.in_units(generator.from_units(0.3)) == pytest.approx(0.3)


@every_case
def test_one_coordinate_too_many(case: Case) -> None:
    count = case.action.coordinate_count
    assert count == sum(generator.multiplicity for generator in case.action.generators)
    with pytest.raises(CallerError, match=rf"\(2, samples, {count}\) for the generators .* got"):
        case.action.act(torch.zeros(2, 1, count + 1), case.rough)


@every_case
def test_data_of_a_wrong_shape(case: Case) -> None:
    with pytest.raises(CallerError, match=case.sentence):
        case.action.act(torch.zeros(2, 1, case.action.coordinate_count), case.unfit)


@every_case
def test_whole_numbers_are_refused(case: Case) -> None:
    with pytest.raises(CallerError, match="expected floating-point .* torch.uint8; convert with"):
        case.action.act(torch.zeros(2, 1, case.action.coordinate_count), case.rough.byte())


# --- multiplicity -------------------------------------------------------------------------


@pytest.mark.parametrize("multiplicity", [0, -2])
def test_a_generator_stands_for_something(multiplicity: int) -> None:
    with pytest.raises(CallerError, match="multiplicity of 'jitter': expected at least 1, got"):
        Generator("jitter", "unit length", multiplicity=multiplicity)


def test_generators_count_as_often_as_they_say() -> None:
    class Noise(Squared):
        generators = (
            Generator("hiss", "volt", multiplicity=4),
            Generator("hum", "volt"),
        )

    action = Noise()
    assert action.coordinate_count == 5 and action.names == ("hiss", "hum")
    action.check_coordinates(torch.zeros(2, 3, 5), torch.zeros(2, 7))
    with pytest.raises(CallerError, match=r"\(2, samples, 5\) .* hiss \(4 of them\), hum, got"):
        action.check_coordinates(torch.zeros(2, 3, 2), torch.zeros(2, 7))
    assert dataclasses.replace(action.generators[0], multiplicity=2).multiplicity == 2


# --- names --------------------------------------------------------------------------------

TABLES = {
    "images": (affine, GENERATORS),
    "values": (intensity, INTENSITY_GENERATORS),
    "sequences": (sequences, SEQUENCE_GENERATORS),
    "clouds": (partial(points, 2), POINT_GENERATORS[2]),
}


@pytest.mark.parametrize(("make", "table"), TABLES.values(), ids=TABLES)
def test_names_that_are_refused(
    make: Callable[[Sequence[str]], Action], table: dict[str, Generator]
) -> None:
    name = next(iter(table))
    with pytest.raises(CallerError, match=f"unknown generator '{name}s': .*mean '{name}'"):
        make((f"{name}s",))
    with pytest.raises(CallerError, match=f"different names, got '{name}' twice"):
        make((name, name))
    with pytest.raises(CallerError, match="one or more different names, got none"):
        make(())
