"""Elements that need no resampling: zero for equivariant networks, written out for others."""

from __future__ import annotations

import pytest
import torch
from measured_networks import Compute, draw, filled
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.equivariance.finite_error import PixelShifts, element_errors, exact_errors
from isotropy.equivariance.layouts import Follows, Grid, Invariant, Layout, Tokens
from isotropy.equivariance.subject import Subject
from isotropy.symmetry.actions.finite import (
    channel_permutations,
    flip,
    point_permutation,
    quarter_turns,
    sign_change,
)
from isotropy.symmetry.actions.linear import linear_action

IMAGE = Grid((2, 3))


def convolution(padding: str, *, stride: int = 1, size: int = 3) -> nn.Module:
    layer = nn.Conv2d(1, 2, size, stride=stride, padding=size // 2, padding_mode=padding)
    return filled(nn.Sequential(layer, nn.ReLU()))


def test_turned_and_shifted_outputs_against_arrays_turned_by_hand() -> None:
    images, weight = draw(3, 1, 6, 6), draw(6, 6, seed=1)
    turns, shifts = exact_errors(Subject(Compute(lambda data: weight * data)), images, IMAGE)
    # f(g x) − g f(x) = (w − g w) · g x
    wanted = torch.stack(
        [
            ((weight - weight.rot90(k)) * images.rot90(k, (2, 3))).square().mean((1, 2, 3))
            for k in (1, 2, 3)
        ]
    ).mean(0)
    torch.testing.assert_close(turns.errors, wanted)
    assert (turns.name, turns.what) == ("quarter turns", "90°, 180°, 270°")
    assert turns.inconsistency is None
    wanted = torch.stack(
        [
            ((weight - weight.roll(k, axis)) * images.roll(k, axis + 2)).square().mean((1, 2, 3))
            for axis in (0, 1)
            for k in (1, 2, 3, 4)
        ]
    ).mean(0)
    torch.testing.assert_close(shifts.errors, wanted)
    assert shifts.what == "1 to 4 pixels, round the borders"
    assert shifts.remark is None


def test_class_scores_that_change_are_counted() -> None:
    images, weight = draw(5, 1, 4, 4), draw(16, 3, seed=1)
    turns, shifts = exact_errors(
        Subject(Compute(lambda data: data.flatten(1) @ weight)), images, Invariant()
    )
    before = (images.flatten(1) @ weight).argmax(1)
    moved = [images.rot90(k, (2, 3)) for k in (1, 2, 3)]
    wanted = torch.stack([(each.flatten(1) @ weight).argmax(1) != before for each in moved])
    torch.testing.assert_close(turns.inconsistency, wanted.double().mean(0))
    assert 0 < float(wanted.double().mean()) < 1
    assert shifts.inconsistency is not None and float(shifts.inconsistency.mean()) > 0


def test_a_network_made_symmetric_has_no_error_under_quarter_turns() -> None:
    inner = filled(nn.Sequential(convolution("zeros"), nn.Flatten(), nn.Linear(72, 4)))

    def symmetric(data: Tensor) -> Tensor:
        return torch.stack([inner(data.rot90(k, (2, 3))) for k in range(4)]).mean(0)

    images = draw(3, 1, 6, 6)
    turns, shifts = exact_errors(Subject(Compute(symmetric)), images, Invariant())
    assert float(turns.errors.max()) < 1e-28
    assert float(shifts.errors.min()) > 1e-6
    plain = exact_errors(Subject(inner), images, Invariant())[0]
    assert float(plain.errors.min()) > 1e-6


@pytest.mark.parametrize(("padding", "is_exact"), [("circular", True), ("zeros", False)])
def test_circular_convolution_follows_whole_pixels(padding: str, is_exact: bool) -> None:
    found = exact_errors(Subject(convolution(padding)), draw(2, 1, 8, 8), IMAGE)[1]
    assert (float(found.errors.max()) < 1e-28) == is_exact


def test_coarser_outputs_follow_by_whole_cells() -> None:
    subject, images = Subject(convolution("circular", stride=2)), draw(2, 1, 8, 8)
    found = element_errors(subject, images, PixelShifts(), IMAGE)
    assert found.names == ("shift_x_2", "shift_x_4", "shift_y_2", "shift_y_4")
    assert found.skipped == ("shift_x_1", "shift_x_3", "shift_y_1", "shift_y_3")
    assert float(found.errors.max()) < 1e-28
    shifts = exact_errors(subject, images, IMAGE)[1]
    assert "no whole number of cells" in shifts.remark and "shift_x_1" in shifts.remark
    coarse = Subject(nn.AvgPool2d(8))  # no shift by four pixels or fewer is a cell of it
    none = exact_errors(coarse, draw(2, 1, 16, 16), IMAGE)[1]
    assert none.errors is None and none.what == "1 to 4 pixels, round the borders"


def test_tokens_turn_and_their_class_token_stays() -> None:
    images = draw(2, 3, 4, 4)

    def tokens(data: Tensor) -> Tensor:
        cells = data.flatten(2).transpose(1, 2)
        return torch.cat((cells.square().mean(1, keepdim=True), cells), 1)

    layout = Tokens(1, (4, 4), tuple(range(1, 17)))
    for each in exact_errors(Subject(Compute(tokens)), images, layout):
        assert float(each.errors.max()) < 1e-28, each.name
    wrong = Tokens(1, (4, 4), tuple(range(16)))
    for each in exact_errors(Subject(Compute(tokens)), images, wrong):
        assert float(each.errors.min()) > 1e-3, each.name


@pytest.mark.parametrize(
    ("shape", "layout", "remark", "tried"),
    [
        ((2, 1, 4, 6), IMAGE, "images and outputs are not square", [False, True]),
        ((2, 1, 4, 6), Invariant(), "images are not square", [False, True]),
        ((2, 5, 3), Invariant(), "no images (batch, channels, height, width)", [False, False]),
        ((2, 1, 4, 4), Follows(linear_action({"a": [[0.0]]})), "is not known", [False, False]),
        ((2, 1, 4, 4), Grid((2,)), "no image", [False, False]),
        ((2, 1, 4, 4), Tokens(1, (1,), (0,)), "no grid of rows and columns", [False, False]),
    ],
)
def test_what_cannot_be_tried_is_said(
    shape: tuple[int, ...], layout: Layout, remark: str, tried: list[bool]
) -> None:
    found = exact_errors(Subject(Compute(lambda data: data)), draw(*shape), layout)
    assert [each.errors is not None for each in found] == tried
    assert found[0].remark is not None and remark in found[0].remark


# --- finite actions -----------------------------------------------------------------------


def test_flips_of_image_outputs_against_arrays_flipped_by_hand() -> None:
    images, weight = draw(3, 1, 4, 6), draw(4, 6, seed=1)
    found = element_errors(
        Subject(Compute(lambda data: weight * data)), images, flip("horizontal"), IMAGE
    )
    wanted = ((weight - weight.flip(1)) * images.flip(3)).square().mean((1, 2, 3))
    torch.testing.assert_close(found.errors, wanted[None])
    assert found.names == ("horizontal_flip",)


def test_an_output_may_have_a_finite_action_of_its_own() -> None:
    vectors = draw(4, 5)
    odd, even = Subject(Compute(lambda x: x**3)), Subject(Compute(lambda x: x**2))
    changes = sign_change()
    assert float(element_errors(odd, vectors, changes, changes).errors.max()) < 1e-28
    assert float(element_errors(even, vectors, changes, changes).errors.min()) > 1e-3
    assert float(element_errors(even, vectors, changes, Invariant()).errors.max()) < 1e-28


def test_random_elements_draw_alike_on_both_sides() -> None:
    clouds, order = draw(3, 7, 2), point_permutation()
    subject = Subject(Compute(lambda data: data.sin() + data.mean(1, keepdim=True)))
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        before = generator.get_state()
        found = element_errors(subject, clouds, order, order, generator=generator)
        assert float(found.errors.max()) < 1e-28
        assert not torch.equal(before, generator.get_state()), "the next draw is another one"
    place = torch.arange(7.0)[None, :, None]
    wrong = Subject(Compute(lambda data: data * place))
    assert float(element_errors(wrong, clouds, order, order).errors.min()) > 1e-3


def test_one_number_for_each_example() -> None:
    images = draw(3, 1, 4, 4)
    subject = Subject(Compute(lambda data: data[:, 0, 0, 0]))
    found = element_errors(subject, images, flip("horizontal"), Invariant())
    torch.testing.assert_close(found.errors[0], (images[:, 0, 0, 3] - images[:, 0, 0, 0]) ** 2)
    assert found.inconsistency is None


def test_motions_that_are_not_known_are_refused() -> None:
    identity, images = Subject(Compute(lambda data: data)), draw(2, 3, 4, 4)
    with pytest.raises(CallerError, match="what channel_permutations does to an output that is im"):
        element_errors(identity, images, channel_permutations(3), IMAGE)
    with pytest.raises(CallerError, match="finite action with 3 elements, as the input's, got 1"):
        element_errors(identity, images, quarter_turns(), flip("vertical"))
    with pytest.raises(CallerError, match="as many rows as columns"):
        element_errors(identity, draw(2, 3, 4, 5), quarter_turns(), Invariant())


def test_pixel_shifts_move_content_right_and_down() -> None:
    shifts, image = PixelShifts((1, -2)), torch.arange(12.0).reshape(1, 3, 4)
    assert shifts.names == ("shift_x_1", "shift_x_-2", "shift_y_1", "shift_y_-2")
    assert shifts.move(0, image)[0, 0].tolist() == [3, 0, 1, 2]
    assert shifts.move(1, image)[0, 0].tolist() == [2, 3, 0, 1]
    assert shifts.move(2, image)[0, :, 0].tolist() == [8, 0, 4]
    with pytest.raises(CallerError, match="whole pixels other than zero"):
        PixelShifts((0, 1))
    with pytest.raises(CallerError, match=r"expected \(batch, …, height, width\), got \(3, 4\)"):
        shifts.move(0, image[0])
