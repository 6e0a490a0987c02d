"""Actions by name: what each name means for images, sequences and clouds, and what is refused."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.symmetry.actions.action import Action
from isotropy.symmetry.actions.catalogue import actions_named
from isotropy.symmetry.actions.finite import (
    FiniteAction,
    channel_permutations,
    flip,
    point_reflection,
    quarter_turns,
    reversal,
    sign_change,
)
from isotropy.symmetry.actions.images import (
    GENERATORS,
    INTENSITY_GENERATORS,
    AffineAction,
    IntensityAction,
)
from isotropy.symmetry.actions.points import POINT_GENERATORS, PointAction
from isotropy.symmetry.actions.sequences import SEQUENCE_GENERATORS, SequenceAction

IMAGE, SEQUENCE, PLANE, SPACE = (3, 6, 6), (2, 9), (7, 2), (5, 3)


def data_of(shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, *shape, generator=generator, dtype=torch.float64)


CONTINUOUS: dict[str, tuple[tuple[int, ...], str, type[Action]]] = {
    **{f"image {name}": (IMAGE, name, AffineAction) for name in GENERATORS},
    **{f"image {name}": (IMAGE, name, IntensityAction) for name in INTENSITY_GENERATORS},
    **{f"sequence {n}": (SEQUENCE, n, SequenceAction) for n in SEQUENCE_GENERATORS},
    **{f"cloud in the plane {n}": (PLANE, n, PointAction) for n in POINT_GENERATORS[2]},
    **{f"cloud in space {n}": (SPACE, n, PointAction) for n in POINT_GENERATORS[3]},
}


@pytest.mark.parametrize("case", CONTINUOUS)
def test_one_generator(case: str):
    shape, name, kind = CONTINUOUS[case]
    (action,) = actions_named([name], shape)
    assert type(action) is kind and isinstance(action, Action) and action.names == (name,)
    coordinates = torch.full((2, 3, action.coordinate_count), 0.1, dtype=torch.float64)
    moved = action.act(coordinates, data_of(shape))
    assert moved.shape == (2, 3, *shape)
    assert float((moved[:, 0] - data_of(shape)).abs().max()) > 1e-3


FINITE: dict[str, tuple[tuple[int, ...], FiniteAction]] = {
    "horizontal_flip": (IMAGE, flip("horizontal")),
    "vertical_flip": (IMAGE, flip("vertical")),
    "quarter_turns": (IMAGE, quarter_turns()),
    "channel_permutations": (IMAGE, channel_permutations(3)),
    "sign_change of images": (IMAGE, sign_change()),
    "sign_change of clouds": (PLANE, sign_change()),
    "sign_change of sequences": (SEQUENCE, sign_change()),
    "reversal": (SEQUENCE, reversal()),
    "reflection_x": (PLANE, point_reflection(0)),
    "reflection_y": (PLANE, point_reflection(1)),
    "reflection_z": (SPACE, point_reflection(2)),
    "reflection_y in space": (SPACE, point_reflection(1)),
}


@pytest.mark.parametrize("case", FINITE)
def test_one_finite_action(case: str):
    shape, wanted = FINITE[case]
    (action,) = actions_named([case.split()[0]], shape)
    assert isinstance(action, FiniteAction) and action.elements == wanted.elements
    data = data_of(shape)
    for index in range(len(wanted.elements)):
        assert torch.equal(action.move(index, data), wanted.move(index, data))


def test_permutations_of_points_are_drawn():
    (action,) = actions_named(["point_permutation"], PLANE)
    assert isinstance(action, FiniteAction) and action.is_random
    data = data_of(PLANE)
    moved = action.move(0, data, generator=torch.Generator().manual_seed(1))
    assert not torch.equal(moved, data)
    assert torch.equal(moved.sort(1).values, data.sort(1).values)


def test_names_of_one_kind_share_an_action_in_the_order_given():
    """One joint exponential for the affine names, another action for values, then finite ones."""
    names = ["vertical_flip", "contrast", "scale", " rotation ", "brightness", "quarter_turns"]
    plane, values, flip, turns = actions_named(names, IMAGE)
    assert isinstance(plane, AffineAction) and plane.names == ("scale", "rotation")
    assert isinstance(values, IntensityAction) and values.names == ("contrast", "brightness")
    assert flip.names == ("vertical_flip",)
    assert turns.names == ("turn_90", "turn_180", "turn_270")


def test_jitter_knows_the_size_of_the_cloud():
    (action,) = actions_named(["rotation", "jitter"], PLANE)
    assert isinstance(action, Action) and action.coordinate_count == 1 + 7 * 2


def test_two_axes_are_a_cloud_unless_the_names_or_the_shape_say_sequence():
    (cloud,) = actions_named(["scale"], (9, 2))
    assert isinstance(cloud, PointAction)
    for names in (["shift"], ["stretch", "amplitude"]):
        (line,) = actions_named(names, (9, 2))
        assert isinstance(line, SequenceAction)
    line, backwards = actions_named(["amplitude", "reversal"], (9, 3))
    assert isinstance(line, SequenceAction) and backwards.names == ("reversal",)
    (line,) = actions_named(["amplitude"], (3, 128))
    assert isinstance(line, SequenceAction)


REFUSED = {
    "none": ([], IMAGE, r"expected one or more different names, got \[\]"),
    "twice": (["rotation", "rotation "], IMAGE, "one or more different names"),
    "misspelt": (["rotaton"], IMAGE, "unknown generator 'rotaton'.*did you mean 'rotation'"),
    "of images, for clouds": (["horizontal_flip"], PLANE, "unknown generator 'horizontal_flip'"),
    "of images, for sequences": (["rotation"], SEQUENCE, "unknown generator 'rotation'.*shift"),
    "of space, in the plane": (["reflection_z"], PLANE, "did you mean 'reflection_"),
    "of clouds, for sequences": (["shift", "scale"], PLANE, "unknown generator 'scale'"),
    "of images, for tables": (["rotation"], (8,), "unknown generator 'rotation' of a table"),
    "volumes": (["rotation"], (1, 4, 4, 4), r"got data of shape \(1, 4, 4, 4\)"),
    "many channels": (["channel_permutations"], (9, 5, 5), "channels: expected 2 to 4"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str):
    names, shape, sentence = REFUSED[case]
    with pytest.raises(CallerError, match=sentence):
        actions_named(names, shape)


def test_the_error_lists_every_name_that_would_do():
    with pytest.raises(CallerError) as refused:
        actions_named(["nothing"], IMAGE)
    listed = set(re.split(r", |: expected one of |;", str(refused.value)))
    wanted = {*GENERATORS, *INTENSITY_GENERATORS, "horizontal_flip", "vertical_flip"}
    assert wanted | {"quarter_turns", "channel_permutations", "sign_change"} <= listed
