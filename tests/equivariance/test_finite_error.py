"""Errors under motions of a definite size, and under elements that need no resampling, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from measured_networks import Compute, draw, filled, seeded
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.equivariance.finite_error import (
    HALF_WIDTHS,
    OTHER_HALF_WIDTH,
    PixelShifts,
    amounts_text,
    default_half_width,
    element_errors,
    exact_errors,
    finite_errors,
    neighbourhood,
)
from isotropy.equivariance.layouts import Follows, Grid, Invariant, Layout, Tokens
from isotropy.equivariance.subject import Subject
from isotropy.symmetry.actions.action import Action, Generator, compose
from isotropy.symmetry.actions.finite import (
    channel_permutations,
    flip,
    point_permutation,
    quarter_turns,
    sign_change,
)
from isotropy.symmetry.actions.images import GENERATORS, INTENSITY_GENERATORS, affine
from isotropy.symmetry.actions.linear import linear_action
from isotropy.symmetry.actions.points import POINT_GENERATORS, points
from isotropy.symmetry.actions.sequences import SEQUENCE_GENERATORS


def turned(cloud: Tensor, angle: float) -> Tensor:
    """Points of one cloud (points, 2), counter-clockwise."""
    x, y = cloud.unbind(1)
    cosine, sine = math.cos(angle), math.sin(angle)
    return torch.stack((cosine * x - sine * y, sine * x + cosine * y), 1)


# --- elements near the identity -----------------------------------------------------------


def test_neighbourhood_moves_one_generator_within_its_half_width() -> None:
    action = points(2, ("rotation", "jitter", "scale"), count=3)
    drawn = neighbourhood(action, 1, 0.2, 50, 4, generator=seeded())
    assert drawn.shape == (50, 4, 1 + 6 + 1)
    assert not drawn[..., 0].any() and not drawn[..., 7].any()
    jitter = drawn[..., 1:7]
    assert 0.19 < jitter.abs().max() <= 0.2
    assert jitter.min() < -0.15
    assert jitter.unique().numel() == jitter.numel()
    torch.testing.assert_close(
        drawn, neighbourhood(action, 1, 0.2, 50, 4, generator=seeded()), rtol=0, atol=0
    )


@pytest.mark.parametrize("index", [-1, 1])
def test_neighbourhood_refuses_a_generator_that_is_not_there(index: int) -> None:
    with pytest.raises(CallerError, match=r"generator_index: expected 0 to 0 \(rotation\), got"):
        neighbourhood(affine(("rotation",)), index, 0.1, 2, 2, generator=seeded())


def test_every_unit_of_the_package_has_a_half_width_of_its_own() -> None:
    tables = (GENERATORS, INTENSITY_GENERATORS, SEQUENCE_GENERATORS, *POINT_GENERATORS.values())
    units = {generator.unit for table in tables for generator in table.values()}
    assert units == set(HALF_WIDTHS)


def test_half_widths_are_in_coordinates() -> None:
    assert default_half_width(GENERATORS["rotation"]) == pytest.approx(math.radians(15))
    assert default_half_width(GENERATORS["translation_x"]) == pytest.approx(0.25)
    assert default_half_width(Generator("own", "parsec")) == OTHER_HALF_WIDTH
    assert amounts_text(GENERATORS["rotation"], math.radians(15)) == "±15 degrees"


# --- errors -------------------------------------------------------------------------------


def test_invariant_output_of_clouds_against_moves_by_hand() -> None:
    clouds, weight = draw(3, 4, 2), draw(8, 5, seed=1)
    network = Compute(lambda data: data.flatten(1) @ weight)
    coordinates = neighbourhood(points(2, ("rotation",)), 0, 1.0, 6, 3, generator=seeded(2))
    found = finite_errors(
        Subject(network), clouds, points(2, ("rotation",)), Invariant(), coordinates
    )
    errors, changes = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for example in range(3):
        before = clouds[example].flatten() @ weight
        for sample in range(6):
            moved = turned(clouds[example], float(coordinates[sample, example, 0]))
            after = moved.flatten() @ weight
            errors[example] += (after - before).square().sum() / 5 / 6
            changes[example] += float(after.argmax() != before.argmax()) / 6
    torch.testing.assert_close(found.errors, errors)
    assert found.inconsistency is not None
    torch.testing.assert_close(found.inconsistency, changes)
    assert 0 < float(changes.mean()) < 1, "the oracle should see both"
    assert float(found.floors.max()) < 1e-28


def test_an_output_that_follows_is_brought_back() -> None:
    clouds, action = draw(3, 4, 2), points(2, ("rotation",))
    coordinates = neighbourhood(action, 0, 1.0, 4, 3, generator=seeded())
    subject = Subject(Compute(lambda data: data * data.norm(dim=-1, keepdim=True)))
    found = finite_errors(subject, clouds, action, Follows(action), coordinates)
    assert float(found.errors.max()) < 1e-28
    assert found.inconsistency is None
    still = finite_errors(subject, clouds, action, Invariant(), coordinates)
    assert float(still.errors.min()) > 1e-3


def test_parts_that_do_not_commute_are_undone_in_reverse_order() -> None:
    first = linear_action({"shear": [[0, 1], [0, 0]]})
    second = linear_action({"shrink": [[1, 0], [0, -1]]})
    action, vectors = compose(first, second), draw(3, 2)
    coordinates = torch.full((2, 3, 2), 0.7, dtype=torch.float64)
    subject = Subject(Compute(lambda data: data * 2))
    found = finite_errors(subject, vectors, action, Follows(action), coordinates)
    assert float(found.floors.max()) < 1e-28
    assert float(found.errors.max()) < 1e-28


@pytest.mark.parametrize("pixels", [2, -3])
def test_image_outputs_are_compared_where_content_is_left(pixels: int) -> None:
    """By whole pixels bilinear resampling is a shift with zeros, and the mask is its overlap."""
    width = 9
    images, weight = draw(2, 1, width, width), draw(1, 1, width, width, seed=1)
    action = affine(("translation_x",))
    coordinates = torch.full((1, 2, 1), pixels / ((width - 1) / 2), dtype=torch.float64)
    found = finite_errors(
        Subject(Compute(lambda data: weight * data)), images, action, Grid((2, 3)), coordinates
    )
    # T⁻¹ f(T x)(p) = w(p + t) x(p) wherever p and p + t are in the frame.
    kept = range(width - pixels) if pixels > 0 else range(-pixels, width)
    wanted = torch.stack(
        [(weight[0, 0, :, p + pixels] - weight[0, 0, :, p]) * images[:, 0, :, p] for p in kept]
    )
    torch.testing.assert_close(found.errors, wanted.square().mean((0, 2)))
    assert float(found.floors.max()) < 1e-20


def test_tokens_are_masked_like_images_and_class_tokens_are_kept() -> None:
    images = draw(2, 1, 6, 6)
    layout = Tokens(1, (6, 6), tuple(range(1, 37)))

    def tokens(data: Tensor) -> Tensor:
        cells = data.flatten(2).transpose(1, 2)
        return torch.cat((cells[:, :1] * 0 + data.sum((1, 2, 3))[:, None, None], cells), 1)

    action = affine(("translation_x",))
    coordinates = torch.full((1, 2, 1), 1 / 2.5, dtype=torch.float64)
    found = finite_errors(Subject(Compute(tokens)), images, action, layout, coordinates)
    lost = images[:, 0, :, -1].sum(1)  # the sum over an image misses the column that left it
    torch.testing.assert_close(found.errors, lost.square() / (1 + 30))


def test_identity_has_the_error_of_its_floor() -> None:
    images, action = draw(2, 1, 8, 8), affine(("rotation",))
    coordinates = neighbourhood(action, 0, 0.2, 3, 2, generator=seeded())
    found = finite_errors(
        Subject(Compute(lambda data: data)), images, action, Grid((2, 3)), coordinates
    )
    torch.testing.assert_close(found.errors, found.floors)
    assert float(found.floors.min()) > 1e-3, "rough pixels are damaged by resampling"


def test_padding_without_zeros_keeps_everything() -> None:
    action = affine(("translation_x",), padding="border")
    coordinates = torch.full((1, 1, 1), 10.0, dtype=torch.float64)
    subject = Subject(Compute(lambda data: data))
    found = finite_errors(subject, draw(1, 1, 4, 4), action, Grid((2, 3)), coordinates)
    assert float(found.errors) > 0
    with pytest.raises(CallerError, match="moves all of it out; take smaller ones"):
        finite_errors(
            subject, draw(1, 1, 4, 4), affine(("translation_x",)), Grid((2, 3)), coordinates
        )


def test_coordinates_follow_the_type_of_the_data() -> None:
    class Raise(Action):
        generators = (Generator("raise", "grey level"),)

        def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
            return data[:, None] + coordinates

    data = draw(3, 4).float()
    coordinates = neighbourhood(Raise(), 0, 0.1, 2, 3, generator=seeded())
    network = nn.Linear(4, 2)
    found = finite_errors(Subject(network), data, Raise(), Invariant(), coordinates)
    assert found.errors.dtype == torch.float32
    assert not found.errors.requires_grad


def test_one_number_for_each_example() -> None:
    clouds, action = draw(3, 4, 2), points(2, ("translation_x",))
    coordinates = torch.full((2, 3, 1), 0.5, dtype=torch.float64)
    subject = Subject(Compute(lambda data: data[..., 0].mean(1)))
    found = finite_errors(subject, clouds, action, Invariant(), coordinates)
    torch.testing.assert_close(found.errors, torch.full((3,), 0.25, dtype=torch.float64))
    assert found.inconsistency is None


def test_wrong_coordinates_are_refused() -> None:
    with pytest.raises(CallerError, match=r"\(samples, batch, coordinates\) = \(samples, 3, 1\)"):
        finite_errors(
            Subject(Compute(lambda data: data)), draw(3, 4, 2), points(2, ("rotation",)),
            Invariant(), torch.zeros(3, 1),
        )  # fmt: skip


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


def test_elements_of_one_number_for_each_example() -> None:
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
