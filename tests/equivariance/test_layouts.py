"""How tensors move: grids on any axes, tokens with class tokens, own representations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.equivariance.layouts import (
    Follows,
    Grid,
    Invariant,
    Layout,
    Tokens,
    guess_tokens,
    layout_for,
)
from isotropy.symmetry.actions.action import Action
from isotropy.symmetry.actions.images import affine
from isotropy.symmetry.actions.linear import linear_action
from isotropy.symmetry.actions.points import points
from isotropy.symmetry.actions.sequences import sequences

ACTION = affine(("translation_x", "rotation"), interpolation="bicubic", padding="reflection")
DIRECTION = torch.tensor([0.4, -0.8], dtype=torch.float64)
MAPS = torch.randn(2, 3, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def as_tokens(maps: Tensor, extra: int) -> Tensor:
    """(batch, extra + rows·columns, channels), class tokens first."""
    row = maps.flatten(2).transpose(1, 2)
    return torch.cat([torch.full((len(maps), extra, maps.shape[1]), 7.0).to(maps), row], 1)


CASES: dict[str, tuple[Layout, Tensor, Tensor]] = {
    # layout, the tensor that MAPS makes in it, and the same of MAPS's velocity
    "image": (Grid((2, 3)), MAPS, ACTION.velocity(DIRECTION, MAPS)),
    "channels last": (
        Grid((1, 2)),
        MAPS.movedim(1, -1),
        ACTION.velocity(DIRECTION, MAPS).movedim(1, -1),
    ),
    "columns before rows": (Grid((3, 2)), MAPS.mT, ACTION.velocity(DIRECTION, MAPS).mT),
    "heads and channels": (
        Grid((2, 4)),
        MAPS[:, None].transpose(2, 3),
        ACTION.velocity(DIRECTION, MAPS)[:, None].transpose(2, 3),
    ),
    "no channels": (Grid((1, 2)), MAPS[:, 0], ACTION.velocity(DIRECTION, MAPS)[:, 0]),
    "tokens": (
        Tokens(1, (4, 6), tuple(range(24))),
        as_tokens(MAPS, 0),
        as_tokens(ACTION.velocity(DIRECTION, MAPS), 0),
    ),
    "class tokens": (
        Tokens(1, (4, 6), tuple(range(2, 26))),
        as_tokens(MAPS, 2),
        torch.cat(
            [
                torch.zeros(2, 2, 3, dtype=torch.float64),
                as_tokens(ACTION.velocity(DIRECTION, MAPS), 0),
            ],
            1,
        ),
    ),
    "tokens backwards": (
        Tokens(1, (4, 6), tuple(range(23, -1, -1))),
        as_tokens(MAPS, 0).flip(1),
        as_tokens(ACTION.velocity(DIRECTION, MAPS), 0).flip(1),
    ),
    "tokens last": (
        Tokens(2, (4, 6), tuple(range(24))),
        MAPS.flatten(2),
        ACTION.velocity(DIRECTION, MAPS).flatten(2),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_layouts_move_the_maps_within(name: str) -> None:
    layout, tensor, expected = CASES[name]
    assert tensor.shape == expected.shape
    torch.testing.assert_close(layout.velocity(ACTION, DIRECTION, tensor), expected)
    ideal = layout.ideal_velocity(ACTION, DIRECTION, tensor)
    assert ideal is not None and ideal.shape == tensor.shape
    assert not torch.allclose(ideal, expected), "cubic slopes are not the band-limited ones"


@pytest.mark.parametrize("name", CASES)
def test_velocity_is_the_derivative_of_the_motion(name: str) -> None:
    layout, tensor, _ = CASES[name]
    step = 1e-7

    def moved(amount: float) -> Tensor:
        return layout.move(ACTION, (amount * DIRECTION).expand(2, -1), tensor)

    torch.testing.assert_close(moved(0.0), tensor)
    found = layout.velocity(ACTION, DIRECTION, tensor)
    torch.testing.assert_close((moved(step) - moved(-step)) / (2 * step), found, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_maps_and_back(name: str) -> None:
    layout, tensor, _ = CASES[name]
    assert isinstance(layout, Grid | Tokens)
    maps = layout.to_maps(tensor)
    assert maps.ndim == 4 and maps.shape[-2:] == (4, 6)
    back = layout.from_maps(maps, tensor)
    if name == "class tokens":
        assert not back[:, :2].any() and torch.equal(back[:, 2:], tensor[:, 2:])
    else:
        assert torch.equal(back, tensor)


def test_class_tokens_stay_where_they_are() -> None:
    layout, tensor, _ = CASES["class tokens"]
    moved = layout.move(ACTION, torch.full((2, 2), 0.3, dtype=torch.float64), tensor)
    assert torch.equal(moved[:, :2], tensor[:, :2])
    assert not torch.allclose(moved[:, 2:], tensor[:, 2:])


def test_invariant_does_not_move() -> None:
    tensor = torch.randn(2, 5)
    layout = Invariant()
    assert not layout.velocity(ACTION, DIRECTION, tensor).any()
    found = layout.ideal_velocity(ACTION, DIRECTION, tensor)
    assert found is not None and not found.any()
    assert layout.move(ACTION, torch.ones(2, 2), tensor) is tensor


def test_follows_moves_by_its_own_action() -> None:
    own = linear_action({"a": [[0.0, -1.0], [1.0, 0.0]], "b": [[1.0, 0.0], [0.0, 1.0]]})
    layout, vectors = Follows(own), torch.randn(2, 2, dtype=torch.float64)
    assert torch.equal(
        layout.velocity(ACTION, DIRECTION, vectors), own.velocity(DIRECTION, vectors)
    )
    coordinates = torch.randn(2, 2, dtype=torch.float64)
    expected = own.act(coordinates[:, None], vectors)[:, 0]
    assert torch.equal(layout.move(ACTION, coordinates, vectors), expected)
    assert layout.text == "moved by a, b"


@pytest.mark.parametrize(
    "count, extra", [(16, 0), (17, 1), (18, 2), (19, None), (1, None), (2, None)]
)
def test_guesses_of_tokens(count: int, extra: int | None) -> None:
    found = guess_tokens(torch.zeros(1, count, 3))
    places = None if extra is None else tuple(range(extra, count))
    assert found == (None if places is None else Tokens(1, (4, 4), places))


AUTO: list[tuple[Action, tuple[int, ...], Layout]] = [
    (ACTION, (2, 5), Invariant()),
    (ACTION, (2,), Invariant()),
    (ACTION, (2, 5, 1, 1), Invariant()),
    (ACTION, (2, 5, 4, 4), Grid((2, 3))),
    (ACTION, (2, 17, 8), Tokens(1, (4, 4), tuple(range(1, 17)))),
    (sequences(("shift",)), (2, 3, 10), Grid((2,))),
    (sequences(("shift",)), (2, 3), Invariant()),
    (points(2), (2, 3), Invariant()),
]


@pytest.mark.parametrize("action, shape, expected", AUTO)
def test_layouts_by_the_axes(action: Action, shape: tuple[int, ...], expected: Layout) -> None:
    assert layout_for("auto", action, torch.zeros(shape), what="output") == expected


def test_layouts_by_name_and_by_hand() -> None:
    tensor = torch.zeros(2, 16, 8)
    assert layout_for("tokens", ACTION, tensor, what="output").text == "tokens 4×4"
    assert layout_for("sequence", ACTION, tensor, what="output") == Grid((2,))
    assert layout_for("invariant", ACTION, tensor, what="output") == Invariant()
    assert layout_for("image", ACTION, tensor[:, None], what="output") == Grid((2, 3))
    own = Tokens(1, (2, 8), tuple(range(16)))
    assert layout_for(own, ACTION, tensor, what="output") is own
    followed = layout_for(ACTION, ACTION, tensor, what="output")
    assert isinstance(followed, Follows) and followed.own is ACTION
    assert Grid((2, 3)).text == "image" and Grid((2,)).text == "sequence"


@pytest.mark.parametrize(
    "wanted, shape, sentence",
    [
        ("auto", (2, 7, 3), r'how \(2, 7, 3\) transforms under .*say it with outputs="invariant"'),
        ("auto", (2, 3, 4, 4, 4), "select a tensor with select="),
        ("picture", (2, 3), "unknown layout of output 'picture'"),
        ("tokens", (2, 7, 3), r"of a square grid, got \(2, 7, 3\); give Tokens"),
        ("tokens", (2, 16), "give Tokens"),
        ("image", (2, 7, 3), r"expected images \(batch, channels, height, width\), got"),
        ("sequence", (2, 7), r"expected sequences \(batch, channels, length\), got"),
        (points(2, ("rotation",)), (2, 3), "with 2 coordinates, as the input's, got 1"),
    ],
)
def test_layouts_that_cannot_be_are_refused(wanted, shape, sentence: str) -> None:
    with pytest.raises(CallerError, match=sentence):
        layout_for(wanted, ACTION, torch.zeros(shape), what="output")
