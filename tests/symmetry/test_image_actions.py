"""What every generator of the table promises beside the contract of Actions: its unit, and the
direction its `meaning` says. A new generator joins the table and inherits all of it."""

from __future__ import annotations

import math

import pytest
import torch
from action_cases import coordinates, draw
from oracles.affine_oracle import exponential, lila_transform

from isotropy.checks import CallerError
from isotropy.networks.averaging.augmentations import UniformRanges
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.symmetry.actions.action import Action, Generator, MatrixGenerator
from isotropy.symmetry.actions.images import (
    GENERATORS,
    LILA_GENERATORS,
    AffineAction,
    affine,
)

every_generator = pytest.mark.parametrize("name", GENERATORS)


def blob(size: int, right: float = 0.0, up: float = 0.0, spread: float = 0.12) -> torch.Tensor:
    """A smooth spot at a place given as it is seen, in half widths: (1, 1, size, size)."""
    place = torch.linspace(-1, 1, size, dtype=torch.float64)
    x, y = place[None, :], place[:, None]
    return torch.exp(-((x - right) ** 2 + (y + up) ** 2) / (2 * spread**2))[None, None]


def seen_at(image: torch.Tensor) -> tuple[float, float]:
    """The centroid of an image's brightness, (right, up) in half widths."""
    place = torch.linspace(-1, 1, image.shape[-1], dtype=torch.float64)
    mass = image.sum()
    right = (image.sum(-2) * place).sum() / mass
    up = -(image.sum(-1) * place).sum() / mass
    return float(right), float(up)


# --- the contract -------------------------------------------------------------------------


@every_generator
def test_element_is_the_exponential_of_the_matrix(name):
    rows = torch.tensor(GENERATORS[name].matrix, dtype=torch.float64).numpy()
    linear, shift = affine((name,)).element(torch.tensor([0.7], dtype=torch.float64))
    wanted = exponential(0.7 * rows[:, :2], 0.7 * rows[:, 2])
    torch.testing.assert_close((linear, shift), tuple(map(torch.from_numpy, wanted)))


UNITS = {
    "translation_x": 0.5,  # half of the image's width is one coordinate
    "translation_y": 0.5,
    "rotation": 180 / math.pi,
}


@every_generator
def test_one_coordinate_in_units_and_the_period(name):
    generator = GENERATORS[name]
    assert generator.in_units(1.0) == pytest.approx(UNITS.get(name, 1.0))
    assert generator.period == (math.pi if name == "rotation" else None)


# --- directions ---------------------------------------------------------------------------

RIGHT, UP, LEFT, DOWN = (0.4, 0.0), (0.0, 0.4), (-0.4, 0.0), (0.0, -0.4)
CENTRE, STAYS = (0.0, 0.0), (0.0, 0.0)
LOWER_RIGHT, UPPER_LEFT = (0.3, -0.3), (-0.3, 0.3)
UPPER_RIGHT, LOWER_LEFT = (0.3, 0.3), (-0.3, -0.3)

# What is seen: a spot there moves this way (right, up), for each sentence of the table.
MEANINGS = {
    "content moves right": {CENTRE: RIGHT, UP: RIGHT},
    "content moves down": {CENTRE: DOWN, LEFT: DOWN},
    "content turns counter-clockwise as seen": {
        CENTRE: STAYS, RIGHT: UP, UP: LEFT, LEFT: DOWN, DOWN: RIGHT,
    },
    "content grows horizontally": {CENTRE: STAYS, UP: STAYS, RIGHT: RIGHT, LEFT: LEFT},
    "content grows vertically": {CENTRE: STAYS, RIGHT: STAYS, UP: UP, DOWN: DOWN},
    "content grows along the falling diagonal and shrinks along the rising one": {
        CENTRE: STAYS, LOWER_RIGHT: LOWER_RIGHT, UPPER_LEFT: UPPER_LEFT,
        UPPER_RIGHT: LOWER_LEFT, LOWER_LEFT: UPPER_RIGHT,
    },
    "rows below the centre move right, rows above it left": {
        CENTRE: STAYS, RIGHT: STAYS, DOWN: RIGHT, UP: LEFT,
    },
    "columns right of the centre move down, columns left of it up": {
        CENTRE: STAYS, UP: STAYS, RIGHT: DOWN, LEFT: UP,
    },
    "content grows in both directions": {
        CENTRE: STAYS, RIGHT: RIGHT, UP: UP, LEFT: LEFT, DOWN: DOWN, UPPER_LEFT: UPPER_LEFT,
    },
    "content grows horizontally and shrinks vertically": {
        CENTRE: STAYS, RIGHT: RIGHT, LEFT: LEFT, UP: DOWN, DOWN: UP,
    },
}  # fmt: skip


def wrong_motions(action: Action, meaning: str, amount: float = 0.05) -> list[str]:
    """Spots that do not move as the sentence says; the amount is small, so motions are straight."""
    complaints = []
    for place, way in MEANINGS[meaning].items():
        spot = blob(41, *place)
        before, after = seen_at(spot), seen_at(action.act(coordinates(amount), spot)[0, 0, 0])
        motion = (after[0] - before[0], after[1] - before[1])
        length = math.hypot(*motion)
        if way == STAYS:
            right = length < 2e-3
        else:
            along = (motion[0] * way[0] + motion[1] * way[1]) / math.hypot(*way)
            right = along > 0.01 and along > 0.97 * length
        if not right:
            complaints.append(f"{place} moved by {motion}")
    return complaints


@every_generator
def test_content_moves_as_the_meaning_says(name):
    assert wrong_motions(affine((name,)), GENERATORS[name].meaning) == []


@every_generator
def test_a_wrong_direction_is_noticed(name):
    assert wrong_motions(affine((name,)), GENERATORS[name].meaning, amount=-0.05) != []


def test_half_a_width_is_half_a_width():
    """A translation of 0.25 in reported units moves content by a quarter of the width."""
    moved = GENERATORS["translation_x"].from_units(0.25)
    after = affine(("translation_x",)).act(coordinates(moved), blob(41))
    assert seen_at(after[0, 0, 0])[0] == pytest.approx(0.5, abs=1e-3)


def test_a_quarter_turn_is_rot90():
    image = draw(1, 2, 7, 7)
    quarter = GENERATORS["rotation"].from_units(90)
    turned = affine(("rotation",)).act(coordinates(quarter), image)
    torch.testing.assert_close(turned[:, 0], torch.rot90(image, 1, (2, 3)), rtol=0, atol=1e-12)


# --- the papers' construction -------------------------------------------------------------


def sign_in_lila(name: str) -> int:
    papers = GENERATORS[name].papers
    assert "LILA" in papers and ("sign −" in papers) != ("same sign" in papers)
    return -1 if "sign −" in papers else 1


def test_six_generators_are_lilas_in_its_order():
    for number, name in enumerate(LILA_GENERATORS, start=1):
        assert f"LILA η{number} " in GENERATORS[name].papers
    assert affine().names == LILA_GENERATORS
    others = set(GENERATORS) - set(LILA_GENERATORS)
    assert not any("LILA" in GENERATORS[name].papers for name in others)


@pytest.mark.parametrize("name", LILA_GENERATORS)
@pytest.mark.parametrize("amount", [-0.4, 0.13, 0.9])
def test_equals_lilas_grid_with_the_sign_of_the_table(name, amount):
    image = draw(1, 2, 9, 9)
    theirs = torch.zeros(1, 6, dtype=torch.float64)
    theirs[0, LILA_GENERATORS.index(name)] = sign_in_lila(name) * amount
    ours = affine((name,)).act(coordinates(amount), image)
    torch.testing.assert_close(ours[:, 0], lila_transform(image, theirs), rtol=0, atol=1e-12)
    wrong = lila_transform(image, -theirs)
    assert (ours[:, 0] - wrong).abs().max() > 0.05


def test_equals_lilas_grid_for_all_six_together():
    images = draw(4, 1, 8, 8)
    theirs = 1.4 * draw(4, 6, seed=1) - 0.7
    signs = torch.tensor([sign_in_lila(name) for name in LILA_GENERATORS], dtype=torch.float64)
    ours = affine().act((theirs * signs)[:, None], images)
    torch.testing.assert_close(ours[:, 0], lila_transform(images, theirs), rtol=0, atol=1e-12)


def test_coordinates_are_exponentiated_together():
    """Rotation and translation at once is one flow, not a turn followed by a shift."""
    image = blob(33, spread=0.2)
    turn, shift = coordinates(1.2), coordinates(0.5)
    jointly = affine(("rotation", "translation_x")).act(torch.cat([turn, shift], -1), image)
    rotation, translation = affine(("rotation",)), affine(("translation_x",))
    turned_first = translation.act(shift, rotation.act(turn, image)[:, 0])
    shifted_first = rotation.act(turn, translation.act(shift, image)[:, 0])
    for product in (turned_first, shifted_first):
        assert (jointly - product).abs().max() > 0.1


# --- layout and mistakes ------------------------------------------------------------------


def test_order_of_names_is_order_of_coordinates():
    image, both = draw(1, 1, 6, 6), torch.tensor([[[0.3, -0.2]]], dtype=torch.float64)
    one = affine(("scale_x", "rotation")).act(both, image)
    other = affine(("rotation", "scale_x")).act(both.flip(-1), image)
    torch.testing.assert_close(one, other)


REFUSED = {
    "LILA's word": (lambda: affine(("shear",)), "unknown generator 'shear': expected one of"),
    "unknown padding": (lambda: affine(padding="black"), "unknown padding 'black'"),
    "no colour to fill with": (lambda: affine(padding="mean"), "'mean': expected the colour"),
    "colour not a number": (lambda: affine(padding="mean", fill=[float("nan")]), "finite number"),
    "colour without use": (lambda: affine(fill=[0.5]), "fill: expected none with padding 'zeros'"),
    "unknown interpolation": (
        lambda: affine(interpolation="nearest"), "unknown interpolation 'nearest'",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(call, sentence):
    with pytest.raises(CallerError, match=sentence):
        call()


# --- beyond the border --------------------------------------------------------------------


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_mean_is_a_picture_in_a_frame_of_that_colour(interpolation):
    """The oracle has the colour around the image as pixels, and looks at the middle of it."""
    fill, frame = (0.2, 0.9), 20
    images = draw(3, 2, 9, 9)
    framed = torch.tensor(fill, dtype=torch.float64)[:, None, None].expand(3, 2, 49, 49).clone()
    framed[:, :, frame:-frame, frame:-frame] = images
    amounts = 0.6 * draw(3, 4, 2, seed=1) - 0.3
    names = ("rotation", "scale")
    action = affine(names, interpolation=interpolation, padding="mean", fill=fill)
    around = affine(names, interpolation=interpolation, padding="border")
    expected = around.act(amounts, framed)[..., frame:-frame, frame:-frame]
    torch.testing.assert_close(action.act(amounts, images), expected, atol=1e-12, rtol=0)


def test_maps_with_other_channels_go_on_as_their_border():
    mean, border = (
        affine(("rotation",), padding="mean", fill=(0.2, 0.9)),
        affine(("rotation",), padding="border"),
    )
    maps, amounts = draw(2, 5, 7, 7), draw(2, 3, 1, seed=1)
    direction = torch.ones(1, dtype=torch.float64)
    assert torch.equal(mean.act(amounts, maps), border.act(amounts, maps))
    assert torch.equal(mean.velocity(direction, maps), border.velocity(direction, maps))


# --- of one's own -------------------------------------------------------------------------


class Brightness(Action):
    generators = (Generator("brightness", unit="grey level"),)

    def act(self, coordinates, data):
        return data[:, None] + coordinates[..., 0, None, None, None]


def test_an_action_of_ones_own_in_five_lines():
    ranges = UniformRanges(Brightness(), start={"brightness": 0.5}, caps={"brightness": 2.0})
    model = InvariantModel(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(9, 2)), ranges)
    images, noise = torch.rand(4, 1, 3, 3), model.noise(4)
    copies = ranges(images, noise)
    torch.testing.assert_close(copies, images[:, None] + 0.5 * noise[..., None, None])
    torch.testing.assert_close(
        model(images, noise), model.network(copies.flatten(0, 1)).reshape(4, -1, 2).mean(1)
    )
    model(images, noise).square().sum().backward()
    assert ranges.half_widths.grad.abs().item() > 0
    (found,) = model.symmetries()
    assert (found.name, found.low, found.high, found.unit) == (
        "brightness",
        -0.5,
        0.5,
        "grey level",
    )


def test_a_generator_of_ones_own():
    """Any 2×3 matrix is a generator: here the turn about the upper left corner, clockwise."""
    corner = MatrixGenerator("corner", unit="radians", matrix=((0, -1, -1), (1, 0, 1)))
    action = AffineAction([corner])
    # Clockwise about the upper left corner, what is at the middle passes below it.
    after = action.act(coordinates(math.pi / 4), blob(41))
    right, up = seen_at(after[0, 0, 0])
    assert (right, up) == pytest.approx((-1.0, 1 - math.sqrt(2)), abs=0.12)
