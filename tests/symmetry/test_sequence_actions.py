"""Sequences: against the definition sample by sample, directions, units, and the boundary."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from action_cases import bump, coordinates, draw
from oracles.sequence_oracle import line_map, moved
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.symmetry.actions.action import Generator
from isotropy.symmetry.actions.exponential import line_exponential
from isotropy.symmetry.actions.sequences import (
    BOUNDARIES,
    SEQUENCE_GENERATORS,
    SequenceAction,
    sequences,
)


def centre_and_spread(sequence: Tensor) -> tuple[float, float]:
    """Where the mass of a sequence is, in half lengths after the middle, and how wide it is."""
    mass = sequence.flatten() / sequence.sum()
    length = len(mass)
    place = (torch.arange(length, dtype=torch.float64) - (length - 1) / 2) / (length / 2)
    centre = (mass * place).sum()
    return float(centre), float((mass * (place - centre) ** 2).sum().sqrt())


# --- the exponential of the line ----------------------------------------------------------


@pytest.mark.parametrize("rate", [-3.0, -0.5, -1e-4, 0.0, 1e-9, 0.3, 0.5, 2.0])
def test_the_exponential_of_the_line(rate):
    ours = line_exponential(*torch.tensor([[rate], [0.7]], dtype=torch.float64))
    assert tuple(map(float, ours)) == pytest.approx(line_map(rate, 0.7), rel=1e-13)


@pytest.mark.parametrize("rate", [0.0, 0.4999, 0.5001, 2.0])
def test_the_exponential_of_the_line_has_derivatives(rate):
    inputs = torch.tensor([[rate], [0.7]], dtype=torch.float64).requires_grad_().unbind(0)
    assert torch.autograd.gradcheck(line_exponential, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(line_exponential, inputs)


# --- against the definition ---------------------------------------------------------------


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("length", [1, 6, 7])
def test_equals_the_definition(boundary, length):
    data, where = draw(2, 3, length), 3 * draw(2, 4, 3, seed=1) - 1.5
    result = sequences(boundary=boundary).act(where, data)
    for (n, s, c), _ in np.ndenumerate(np.empty((2, 4, 3))):
        shift, stretch, amplitude = where[n, s].tolist()
        wanted = moved(
            data[n, c].numpy(),
            shift=shift,
            stretch=stretch,
            amplitude=amplitude,
            boundary=boundary,
        )
        np.testing.assert_allclose(result[n, s, c].numpy(), wanted, atol=1e-12)


def test_shift_and_stretch_are_exponentiated_together():
    action, data = sequences(("shift", "stretch")), bump(101)
    jointly = action.act(coordinates(0.3, 0.8), data)
    shifted = action.act(coordinates(0.3, 0.0), data)[:, 0]
    stretched_after = action.act(coordinates(0.0, 0.8), shifted)
    stretched = action.act(coordinates(0.0, 0.8), data)[:, 0]
    shifted_after = action.act(coordinates(0.3, 0.0), stretched)
    for product in (stretched_after, shifted_after):
        assert (jointly - product).abs().max() > 0.1


# --- the boundary -------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [-7, -1, 1, 3, 6])
def test_a_whole_number_of_samples_is_a_roll(samples):
    data = draw(1, 2, 6)
    shift = coordinates(SEQUENCE_GENERATORS["shift"].from_units(samples / 6))
    rolled = sequences(("shift",)).act(shift, data)
    torch.testing.assert_close(rolled[:, 0], data.roll(samples, -1), rtol=0, atol=1e-12)
    silent = sequences(("shift",), boundary="zeros").act(shift, data)[0, 0]
    lost = torch.arange(6) < samples if samples > 0 else torch.arange(6) >= 6 + samples
    torch.testing.assert_close(silent, torch.where(lost, 0.0, rolled[0, 0]), rtol=0, atol=1e-12)


def test_half_a_length_each_way_is_every_shift():
    (shift,) = sequences(("shift",)).generators
    assert shift.in_units(shift.period) == 0.5
    data, reach = draw(1, 1, 8), coordinates(shift.period)
    later, earlier = (sequences(("shift",)).act(sign * reach, data) for sign in (1, -1))
    torch.testing.assert_close(later, earlier, rtol=0, atol=1e-12)


def test_without_a_circle_there_is_no_period():
    assert [g.period for g in sequences(boundary="zeros").generators] == [None] * 3
    assert [g.period for g in sequences().generators] == [1.0, None, None]


def test_numbers_beyond_reason_are_read_somewhere():
    """A place that is not a number gives values that are not, and no index out of range."""
    for boundary in BOUNDARIES:
        action = sequences(("shift",), boundary=boundary)
        assert action.act(coordinates(math.nan), draw(1, 1, 5)).isnan().all()
        assert action.act(coordinates(1e6 + 0.1), draw(1, 1, 5)).isfinite().all()


# --- directions and units -----------------------------------------------------------------


def wrong_motions(name: str, amount: float) -> list[str]:
    """What does not happen to a hill after the middle, of what the table says."""
    before = bump(201, 0.2, spread=0.08)
    after = sequences((name,)).act(coordinates(amount), before)[0, 0]
    (was_at, was_wide), (is_at, is_wide) = centre_and_spread(before), centre_and_spread(after)
    grows = float(after.max() / before.max())
    facts = {
        "content comes later": is_at > was_at + 0.05 and abs(is_wide - was_wide) < 1e-3,
        "content is drawn out about the middle": is_at > was_at * 1.05 and is_wide > was_wide,
        "every value moves away from zero": grows > 1.05 and abs(is_at - was_at) < 1e-9,
    }
    meaning = SEQUENCE_GENERATORS[name].meaning
    return [] if facts[meaning] else [meaning]


@pytest.mark.parametrize("name", SEQUENCE_GENERATORS)
def test_content_moves_as_the_meaning_says(name):
    assert wrong_motions(name, 0.1) == []
    assert wrong_motions(name, -0.1) != []


def test_reported_numbers():
    before = bump(201, 0.0, spread=0.05)
    quarter = SEQUENCE_GENERATORS["shift"].from_units(0.25)  # a quarter of the length
    after = sequences(("shift",)).act(coordinates(quarter), before)
    assert centre_and_spread(after)[0] == pytest.approx(0.5, abs=1e-6)
    double = SEQUENCE_GENERATORS["stretch"].from_units(math.log(2))
    after = sequences(("stretch",)).act(coordinates(double), before)
    assert centre_and_spread(after)[1] == pytest.approx(0.1, abs=1e-3)
    after = sequences(("amplitude",)).act(coordinates(math.log(3)), before)
    torch.testing.assert_close(after[:, 0], 3 * before)


REFUSED = {
    "unknown boundary": (lambda: sequences(boundary="circle"), "unknown boundary 'circle'.*mean"),
    "a generator of one's own": (
        lambda: SequenceAction([Generator("warble", "hertz")]), "unknown generator 'warble'",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(call, sentence):
    with pytest.raises(CallerError, match=sentence):
        call()
