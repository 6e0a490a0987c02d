"""Groups of signed permutations: elements by matrices, robots, bad maps, and what breaks them."""

from __future__ import annotations

import importlib.util
import pickle
import warnings

import numpy as np
import pytest

from isotropy.checks import CallerError
from isotropy.control import SignedGroup, ViolationWarning, group_named, group_violation
from isotropy.control.groups import known_robot, trivial_group
from isotropy.data.robots import ROBOTS, robot_named

needs_mujoco = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("mujoco", "gymnasium")),
    reason="gymnasium and mujoco are not installed",
)
PENDULUM = SignedGroup("mirror", ((1, -2, -3),), ((-1,),))


@pytest.mark.parametrize("name", ROBOTS)
def test_elements_of_a_robot_are_those_of_its_symmetry(name: str) -> None:
    """Against the matrices that `data.robots` multiplies up."""
    group, symmetry = group_named(name), robot_named(name).symmetry
    both = [(group.observation, symmetry.states), (group.action, symmetry.actions)]
    for own, theirs in both:
        expected = {each.tobytes() for each in theirs.numpy() + 0.0}
        assert {each.tobytes() for each in own.matrices() + 0.0} == expected
        assert own.elements == len(theirs)


def test_numbers_say_where_coordinates_go() -> None:
    group = SignedGroup("turn", ((2, -1, 3),), ((1,),))
    moved = group.observation.matrices()[1] @ np.array([1.0, 2.0, 3.0])
    assert moved.tolist() == [-2.0, 1.0, 3.0] and group.order == 4


def test_regular_representation_multiplies_as_the_group_does() -> None:
    group = group_named("Ant")
    regular, own = group.regular.matrices(), group.observation.matrices()
    assert group.order == 8 and (group.regular.signs == 1).all()
    for a in range(8):
        for b in range(8):
            (c,) = (k for k in range(8) if np.array_equal(own[a] @ own[b], own[k]))
            assert np.array_equal(regular[a] @ regular[b], regular[c])


def test_groups_are_found_by_robot_name_and_environment() -> None:
    assert group_named("Walker2d") == group_named("Walker2d-v5") == group_named(ROBOTS["Walker2d"])
    assert known_robot("Walker2d-v5") is ROBOTS["Walker2d"] and known_robot("Pendulum-v1") is None
    assert group_named(PENDULUM) is PENDULUM
    assert trivial_group(3, 1).order == 1


def test_groups_are_pickled_as_their_maps() -> None:
    copy = pickle.loads(pickle.dumps(group_named("Ant")))
    assert copy == group_named("Ant") and copy.order == 8


BAD = {
    "no permutation": (((1, 1),), ((1,),), "numbers 1 to 2 in any order"),
    "zero": (((0, 1),), ((1,),), "numbers 1 to 2 in any order"),
    "sizes": (((1, 2), (1, 2, 3)), ((1,), (1,)), "maps of one size, got 2 and 3"),
    "counts": (((1, -2),), (), "for each generator, got 1 and 0"),
    "none": ((), (), "for each generator, got 0 and 0"),
}


@pytest.mark.parametrize(("observations", "actions", "words"), BAD.values(), ids=BAD)
def test_bad_maps_are_refused(observations, actions, words: str) -> None:
    with pytest.raises(CallerError, match=words):
        SignedGroup("bad", observations, actions)


def test_maps_of_too_large_a_group_are_refused() -> None:
    swap, turn = (2, 1, 3, 4, 5, 6, 7), (2, 3, 4, 5, 6, 7, 1)
    with pytest.raises(CallerError, match="at most 384 elements"):
        SignedGroup("all orders", (swap, turn), ((1,), (1,)))


@pytest.mark.parametrize("name", [None, "Pendulum-v1"])
def test_environments_without_maps_need_some(name: str | None) -> None:
    with pytest.raises(CallerError, match="expected a SignedGroup or a robot with maps"):
        group_named(name)


# -- violation ---------------------------------------------------------------------------------


@needs_mujoco
@pytest.mark.parametrize("name", ["Walker2d-v5", "Swimmer", "Ant"])
def test_exact_symmetries_are_quiet(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = group_violation(name)
    assert found is not None and max(each.step for each in found) < 1e-12


@needs_mujoco
@pytest.mark.parametrize("name", ["Hopper", "Walker2d-weak-left"])
def test_broken_symmetries_are_told_in_a_sentence(name: str) -> None:
    with pytest.warns(ViolationWarning, match="no symmetry of the simulation; take model"):
        group_violation(name)


@needs_mujoco
def test_own_maps_of_any_simple_environment_are_measured() -> None:
    """A cart with a pole is mirrored by changing all signs; half of them do not do."""
    mirror = SignedGroup("mirror", ((-1, -2, -3, -4),), ((-1,),))
    (found,) = group_violation("InvertedPendulum-v5", mirror) or []
    assert found.step < 0.01  # the solver of joint limits stops early
    with pytest.warns(ViolationWarning, match="half 1"):
        group_violation("InvertedPendulum-v5", SignedGroup("half", ((-1, 2, -3, 4),), ((-1,),)))


@needs_mujoco
def test_maps_of_another_size_are_refused_and_other_simulators_not_measured() -> None:
    with pytest.raises(CallerError, match="expected maps of 17 and 6 numbers"):
        group_violation("Walker2d", PENDULUM)
    assert group_violation("Pendulum-v1", PENDULUM) is None
