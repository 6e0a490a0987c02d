"""Values: the group law against scipy's exponential, directions, and any shape of data."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.linalg
import torch
from action_cases import coordinates, draw

from isotropy.checks import CallerError
from isotropy.symmetry.actions.action import Generator
from isotropy.symmetry.actions.images import INTENSITY_GENERATORS, IntensityAction, intensity

EVERY = ("brightness", "contrast", "amplitude")


def flow(values: np.ndarray, brightness: float, contrast: float, amplitude: float) -> np.ndarray:
    """The flow of dv/dt = b + c (v − mean v) + a v at time one: a linear equation in (v, 1)."""
    count = values.size
    algebra = np.zeros((count + 1, count + 1))
    algebra[:count, :count] = contrast * (np.eye(count) - 1 / count) + amplitude * np.eye(count)
    algebra[:count, count] = brightness
    state = scipy.linalg.expm(algebra) @ np.append(values.ravel(), 1.0)
    return state[:count].reshape(values.shape)


@pytest.mark.parametrize("amplitude", [0.0, 1e-7, -0.4, 1.3])
def test_equals_the_flow_of_all_values(amplitude):
    data = draw(2, 3, 2, 2)
    where = torch.cat([2 * draw(2, 4, 2, seed=1) - 1, torch.full((2, 4, 1), amplitude)], -1)
    result = intensity(EVERY).act(where, data)
    for n, s in itertools.product(range(2), range(4)):
        wanted = flow(data[n].numpy(), *where[n, s].tolist())
        np.testing.assert_allclose(result[n, s].numpy(), wanted, atol=1e-12)


def test_brightness_and_contrast_add_up():
    action, data = intensity(), draw(1, 3, 4, 4)
    once = action.act(coordinates(0.3, -0.5), data)[:, 0]
    twice = action.act(coordinates(-0.1, 0.2), once)
    torch.testing.assert_close(twice, action.act(coordinates(0.2, -0.3), data))


def test_brightness_and_amplitude_do_not_commute():
    action, data = intensity(("brightness", "amplitude")), draw(1, 1, 3)
    raised_first = action.act(coordinates(0, 1), action.act(coordinates(1, 0), data)[:, 0])
    jointly = action.act(coordinates(1, 1), data)
    assert (raised_first - jointly).min() > 0.5  # e − (e − 1)


def test_the_mean_is_that_of_one_example():
    """Contrast leaves the mean of every example where it was, over channels and positions."""
    data = draw(3, 2, 4, 4) + torch.arange(3.0)[:, None, None, None]
    changed = intensity(("contrast",)).act(torch.full((3, 1, 1), 0.7), data)[:, 0]
    torch.testing.assert_close(changed.mean((1, 2, 3)), data.mean((1, 2, 3)))
    assert (changed.mean((2, 3)) - data.mean((2, 3))).abs().min() > 1e-3


# --- directions ---------------------------------------------------------------------------

FACTS = {
    "every value is raised": lambda before, after: bool((after > before).all()),
    "values move away from their mean": lambda before, after: bool(
        ((after - before) * (before - before.mean()) > 0).all()
    ),
    "every value moves away from zero": lambda before, after: bool(
        ((after - before) * before > 0).all()
    ),
}


@pytest.mark.parametrize("name", INTENSITY_GENERATORS)
def test_values_change_as_the_meaning_says(name):
    holds, data = FACTS[INTENSITY_GENERATORS[name].meaning], 2 * draw(1, 1, 5, 5) - 0.7
    assert holds(data, intensity((name,)).act(coordinates(0.1), data)[:, 0])
    assert not holds(data, intensity((name,)).act(coordinates(-0.1), data)[:, 0])


@pytest.mark.parametrize("shape", [(2, 4), (2, 1, 9), (2, 3, 4, 4), (2, 1, 3, 3, 3)], ids=str)
def test_on_data_of_many_shapes(shape):
    data = draw(*shape)
    moved = intensity(EVERY).act(torch.tensor([0.5, 0.0, 0.0]).expand(2, 3, 3), data)
    torch.testing.assert_close(moved, (data + 0.5)[:, None].expand(2, 3, *shape[1:]))


REFUSED = {
    "a generator of one's own": (
        lambda: IntensityAction([Generator("gamma", "log factor")]), "unknown generator 'gamma'",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(call, sentence):
    with pytest.raises(CallerError, match=sentence):
        call()
