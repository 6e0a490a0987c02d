"""Errors under transformations of a definite size, against moves written out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from measured_networks import Compute, draw, seeded
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.equivariance.finite_error import (
    HALF_WIDTHS,
    OTHER_HALF_WIDTH,
    amounts_text,
    default_half_width,
    finite_errors,
    neighbourhood,
)
from isotropy.equivariance.layouts import Follows, Grid, Invariant, Tokens
from isotropy.equivariance.subject import Subject
from isotropy.symmetry.actions.action import Action, Generator, compose
from isotropy.symmetry.actions.images import GENERATORS, affine
from isotropy.symmetry.actions.intensity import INTENSITY_GENERATORS
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
