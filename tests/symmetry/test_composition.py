"""Several Actions as one: the order they act in, the layout of coordinates, names, nesting."""

from __future__ import annotations

import pytest
import torch
from action_cases import draw
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.symmetry.actions.action import Action, Composition, Generator, compose
from isotropy.symmetry.actions.images import affine, intensity
from isotropy.symmetry.actions.points import points
from isotropy.symmetry.actions.sequences import sequences


class Add(Action):
    generators = (Generator("add", "grey level"),)

    def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
        return data[:, None] + coordinates


class Multiply(Action):
    generators = (Generator("multiply", "factor"),)

    def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
        return data[:, None] * (1 + coordinates)


BOTH = torch.tensor([[[3.0, 1.0]]])  # add 3, and double


def test_the_first_acts_first():
    data = torch.tensor([[10.0]])
    assert compose(Add(), Multiply()).act(BOTH, data).item() == 2 * (10 + 3)
    assert compose(Multiply(), Add()).act(BOTH.flip(-1), data).item() == 2 * 10 + 3


def test_equals_one_action_after_the_other():
    first, second, third = affine(("rotation", "scale")), intensity(), affine(("shear_x",))
    action, images, where = compose(first, second, third), draw(3, 2, 6, 6), draw(3, 4, 5, seed=1)
    assert action.names == ("rotation", "scale", "brightness", "contrast", "shear_x")
    result = action.act(where, images)
    assert result.shape == (3, 4, 2, 6, 6)
    for s in range(4):
        here = where[:, s : s + 1]
        step = first.act(here[..., :2], images)[:, 0]
        step = second.act(here[..., 2:4], step)[:, 0]
        wanted = third.act(here[..., 4:], step)[:, 0]
        torch.testing.assert_close(result[:, s], wanted)


def test_every_part_gets_as_many_coordinates_as_it_has():
    jitter, turn = points(2, ("jitter",), count=3), points(2, ("rotation",))
    action = compose(turn, jitter)
    assert action.names == ("rotation", "jitter") and action.coordinate_count == 7
    clouds, where = draw(2, 3, 2), draw(2, 4, 7, seed=1)
    wanted = turn.act(where[..., :1], clouds) + where[..., 1:].reshape(2, 4, 3, 2)
    torch.testing.assert_close(action.act(where, clouds), wanted)


def test_one_action_is_itself():
    action = Add()
    assert compose(action) is action


def test_compositions_are_opened_up():
    parts = [Add(), Multiply(), intensity(), sequences(("shift",))]
    nested = compose(compose(parts[0], parts[1]), compose(parts[2], parts[3]))
    assert isinstance(nested, Composition) and list(nested.actions) == parts
    where, data = draw(2, 3, 5), draw(2, 1, 6)
    with pytest.raises(CallerError, match=r"\(2, samples, 5\) for the generators add, multiply, "):
        nested.act(where[..., 1:], data)


def test_coordinates_get_gradients():
    where = torch.zeros(2, 3, 4, dtype=torch.float64).requires_grad_()
    action = compose(affine(("rotation", "scale"), interpolation="bicubic"), intensity())
    action.act(where + 0.1, draw(2, 1, 5, 5)).square().sum().backward()
    assert where.grad is not None and bool((where.grad != 0).all())


REFUSED = {
    "nothing": (lambda: compose(), "expected one or more Actions, got none"),
    "the same twice": (lambda: compose(Add(), Add()), "different names, got 'add' twice"),
    "the same further down": (
        lambda: compose(intensity(("amplitude",)), compose(Add(), sequences(("amplitude",)))),
        "different names, got 'amplitude' twice",
    ),
}


@pytest.mark.parametrize(("call", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(call, sentence):
    with pytest.raises(CallerError, match=sentence):
        call()
