"""Simulated robots and how they are mirrored.

A robot of gymnasium is mirrored by a signed permutation of its joints. That one table entry moves
positions, velocities and motors alike:

    joint j goes to ±k:     q'_k = ±q_j      q̇'_k = ±q̇_j      u'_k = ±u_j

A free root has two maps of three axes, both signed permutations: A of the world and B of the body,

    p' = A p     R' = A R Bᵀ     v' = A v     ω' = det(B) B ω        det A = det B

with R the orientation, v in the world's axes and ω in the body's, as the simulator has them. A
quaternion is not permuted by quarter turns of the body, so that `state` holds R (9 numbers, row by
row) in its place:

    state = (positions without x and y, velocities)      Ant: 27 numbers become 32, Humanoid: 45, 50

in the order of the observation, and without its clipping of velocities (Walker2d, Hopper), which
commutes with the maps. Contact forces and inertias, which some observations add, are left out.

The maps follow from the axes of the joints in the models. They differ from Table A.10 of Finzi
(2023), where Swimmer has 10 numbers for 8 observations, the legs of Ant are relabelled without the
signs of ankles 2 and 3 and without the torso's frame, and Hopper and HalfCheetah are mirrored front
to back, which is no symmetry of either; these two are kept as false symmetries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.linalg import block_diag
from torch import Tensor

from isotropy.checks import CallerError, check_choice
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import Representation, Scalar, custom

UNMOVED = (1, 2, 3)
LARGEST_GROUP = 384
"""Elements beyond which maps are refused; more than any robot here has by far."""


@dataclass(frozen=True)
class RobotMap:
    """One generator of a robot's group.

    joints: where joints go, {"hip_1": "-hip_4"}; those not named stay
    world, body: where the axes x, y, z (1, 2, 3) of a free root go: (2, -1, 3) turns x to y and
                 y to −x
    """

    name: str
    joints: Mapping[str, str]
    world: tuple[int, ...] = UNMOVED
    body: tuple[int, ...] = UNMOVED


@dataclass(frozen=True)
class Robot:
    """An environment of gymnasium with the maps that mirror it.

    environment: its name with version, "Ant-v5"
    joints:   all that have one coordinate, in the simulator's order
    motors:   the joint that each number of the action drives
    unobserved: positions at the front that are not observed
    maps:     generators
    has_free_root: whether a free joint comes before the others
    strength: factors of motors that are not 1, by joint
    options:  of `gymnasium.make`
    """

    environment: str
    joints: tuple[str, ...]
    motors: tuple[str, ...]
    unobserved: int
    maps: tuple[RobotMap, ...]
    has_free_root: bool = False
    strength: Mapping[str, float] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def observation_size(self) -> int:
        """Numbers of the observation that are used: positions and velocities."""
        root = 13 if self.has_free_root else 0
        return root + 2 * len(self.joints) - self.unobserved

    @property
    def state_size(self) -> int:
        """Numbers of a state: the orientation is a matrix."""
        return self.observation_size + (5 if self.has_free_root else 0)

    def state_matrix(self, map: RobotMap) -> np.ndarray:
        """The signed permutation of states (size, size)."""
        joints = _signed(map.joints, self.joints, f"{self.environment}, map {map.name}, joints")
        if not self.has_free_root:
            position = joints[self.unobserved :, self.unobserved :]
            if np.abs(position).sum() < len(position):
                raise CallerError(
                    f"{self.environment}, map {map.name}: expected coordinates that are observed "
                    "to go to observed ones, got one that goes to the robot's place"
                )
            return block_diag(position, joints)
        world, body = (
            _axes(axes, f"{self.environment}, map {map.name}, {what}")
            for axes, what in ((map.world, "world"), (map.body, "body"))
        )
        handedness = round(np.linalg.det(world))
        if handedness != round(np.linalg.det(body)) or world[2, 2] != 1:
            raise CallerError(
                f"{self.environment}, map {map.name}: expected maps of world and body that are "
                f"both turns or both mirrorings and leave the vertical as it is, got {map.world} "
                f"and {map.body}"
            )
        orientation, spin = np.kron(world, body), handedness * body
        return block_diag(world[2:, 2:], orientation, joints, world, spin, joints)

    def action_matrix(self, map: RobotMap) -> np.ndarray:
        """The signed permutation of actions (motors, motors)."""
        where = f"{self.environment}, map {map.name}, motors"
        chosen = {name: goal for name, goal in map.joints.items() if name in self.motors}
        return _signed(chosen, self.motors, where)

    @cached_property
    def symmetry(self) -> RobotSymmetry:
        """The group that the maps generate. Raises CallerError without maps, or for maps that are
        no group."""
        return _symmetry(self)


def _signed(goals: Mapping[str, str], names: Sequence[str], where: str) -> np.ndarray:
    """The matrix that takes coordinate `name` to ±goals[name], others to themselves."""
    matrix = np.zeros((len(names), len(names)))
    for place, name in enumerate(names):
        goal = goals.get(name, name)
        check_choice(goal.removeprefix("-"), names, what=f"name ({where})")
        matrix[names.index(goal.removeprefix("-")), place] = -1.0 if goal[0] == "-" else 1.0
    for name in goals:
        check_choice(name, names, what=f"name ({where})")
    _check_invertible(matrix, where)
    return matrix


def _axes(axes: tuple[int, ...], where: str) -> np.ndarray:
    if len(axes) != 3 or sorted(map(abs, axes)) != [1, 2, 3]:
        raise CallerError(f"{where}: expected the axes 1, 2, 3 in any order, signed, got {axes}")
    matrix = np.zeros((3, 3))
    for place, goal in enumerate(axes):
        matrix[abs(goal) - 1, place] = math.copysign(1, goal)
    return matrix


def _check_invertible(matrix: np.ndarray, where: str) -> None:
    if (np.abs(matrix).sum(1) != 1).any():
        raise CallerError(
            f"{where}: expected a map that is undone by another, as elements of a group are, got "
            "two coordinates that go to one"
        )


# -- the group ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RobotSymmetry:
    """All elements that a robot's maps generate, the identity first.

    group:   acts on V = R^elements by permuting the elements (its regular representation), so that
             functions of single entries of V commute with it
    state, action: representations bound to it
    states, actions: matrices (elements, size, size) of every element
    """

    group: Group
    state: Representation
    action: Representation
    states: Tensor
    actions: Tensor


def _symmetry(robot: Robot) -> RobotSymmetry:
    if not robot.maps:
        raise CallerError(
            f"{robot.environment}: expected maps that generate a group, got none; give the robot "
            "maps=, or use a network without symmetry"
        )
    pairs = [(robot.state_matrix(each), robot.action_matrix(each)) for each in robot.maps]
    generators = [block_diag(*pair) for pair in pairs]
    elements = [np.eye(len(generators[0]))]
    places = {elements[0].tobytes(): 0}
    for element in elements:  # grows while it is gone through
        for generator in generators:
            product = generator @ element + 0.0  # no −0, which has other bytes
            if product.tobytes() not in places:
                places[product.tobytes()] = len(elements)
                elements.append(product)
        if len(elements) > LARGEST_GROUP:
            raise CallerError(
                f"{robot.environment}: expected maps of a group of at most {LARGEST_GROUP} "
                "elements, got more; a map must send left to right and right to left"
            )
    regular = [
        [places[(generator @ each + 0.0).tobytes()] for each in elements]
        for generator in generators
    ]
    both = torch.from_numpy(np.stack(elements))
    size = robot.state_size
    states, actions = both[:, :size, :size], both[:, size:, size:]
    names = ", ".join(each.name for each in robot.maps)
    group = Group(f"{robot.environment} ({names})", discrete=regular)
    return RobotSymmetry(
        group,
        _of_elements(f"{robot.environment} state", states)(group),
        _of_elements(f"{robot.environment} action", actions)(group),
        states,
        actions,
    )


def _of_elements(name: str, matrices: Tensor) -> Representation:
    """ρ(g) = matrices[k] where g takes the identity to element k: linear in g."""
    word = "".join(letter if letter.isalnum() else "_" for letter in name)
    return custom(word, lambda g: torch.einsum("k,kij->ij", g[:, 0], matrices.to(g)))


def without_symmetry(robot: Robot) -> RobotSymmetry:
    """The trivial group in the same place, for controls."""
    group = Group("Trivial(1)", dimension=1)
    sizes = robot.state_size, len(robot.motors)
    states, actions = (torch.eye(size, dtype=torch.float64)[None] for size in sizes)
    return RobotSymmetry(
        group, (sizes[0] * Scalar)(group), (sizes[1] * Scalar)(group), states, actions
    )


# -- the robots --------------------------------------------------------------------------------


def _swapped(pairs: Mapping[str, str]) -> dict[str, str]:
    """Both directions of pairs of joints; a sign holds for both."""
    found = dict(pairs)
    for name, goal in pairs.items():
        found[goal.removeprefix("-")] = ("-" if goal[0] == "-" else "") + name
    return found


def _negated(*names: str) -> dict[str, str]:
    return {name: f"-{name}" for name in names}


_WALKER_RIGHT = ("thigh_joint", "leg_joint", "foot_joint")
_WALKER_LEFT = ("thigh_left_joint", "leg_left_joint", "foot_left_joint")
_PLANAR_ROOT = ("rootx", "rootz", "rooty")
_CHEETAH = ("bthigh", "bshin", "bfoot", "fthigh", "fshin", "ffoot")
_ANT = tuple(f"{part}_{leg}" for leg in (1, 2, 3, 4) for part in ("hip", "ankle"))
_SIDE = ("hip_x", "hip_z", "hip_y", "knee")
_ARM = ("shoulder1", "shoulder2", "elbow")
_HUMANOID = (
    *("abdomen_z", "abdomen_y", "abdomen_x"),
    *(f"{side}_{part}" for parts in (_SIDE, _ARM) for side in ("right", "left") for part in parts),
)


def _walker(**changed: Any) -> Robot:
    legs = RobotMap("legs", _swapped(dict(zip(_WALKER_RIGHT, _WALKER_LEFT, strict=True))))
    motors = (*_WALKER_RIGHT, *_WALKER_LEFT)
    return Robot("Walker2d-v5", (*_PLANAR_ROOT, *motors), motors, 1, (legs,), **changed)


ROBOTS: Mapping[str, Robot] = {
    "Walker2d": _walker(),
    "Walker2d-weak-left": _walker(strength=dict.fromkeys(_WALKER_LEFT, 0.5)),
    "Swimmer": Robot(
        "Swimmer-v5",
        ("slider1", "slider2", "free_body_rot", "motor1_rot", "motor2_rot"),
        ("motor1_rot", "motor2_rot"),
        2,
        (RobotMap("y", _negated("slider2", "free_body_rot", "motor1_rot", "motor2_rot")),),
    ),
    "Ant": Robot(
        "Ant-v5",
        _ANT,
        ("hip_4", "ankle_4", *_ANT[:6]),
        2,
        (
            RobotMap(
                "y",
                _swapped({"hip_1": "-hip_4", "hip_2": "-hip_3"})
                | _swapped({"ankle_1": "ankle_4", "ankle_2": "ankle_3"}),
                world=(1, -2, 3),
                body=(1, -2, 3),
            ),
            RobotMap(
                "legs",
                {"hip_1": "hip_2", "hip_2": "hip_3", "hip_3": "hip_4", "hip_4": "hip_1"}
                | {"ankle_1": "-ankle_2", "ankle_2": "ankle_3"}
                | {"ankle_3": "-ankle_4", "ankle_4": "ankle_1"},
                body=(2, -1, 3),
            ),
        ),
        has_free_root=True,
        options={"include_cfrc_ext_in_observation": False},
    ),
    "Humanoid": Robot(
        "Humanoid-v5",
        _HUMANOID,
        ("abdomen_y", "abdomen_z", *_HUMANOID[2:]),
        2,
        (
            RobotMap(
                "y",
                _negated("abdomen_z", "abdomen_x")
                | _swapped({f"right_{part}": f"left_{part}" for part in (*_SIDE, "elbow")})
                | _swapped({f"right_{part}": f"-left_{part}" for part in _ARM[:2]}),
                world=(1, -2, 3),
                body=(1, -2, 3),
            ),
        ),
        has_free_root=True,
        options={
            "include_cinert_in_observation": False,
            "include_cvel_in_observation": False,
            "include_qfrc_actuator_in_observation": False,
            "include_cfrc_ext_in_observation": False,
        },
    ),
    "HalfCheetah": Robot(
        "HalfCheetah-v5",
        (*_PLANAR_ROOT, *_CHEETAH),
        _CHEETAH,
        1,
        (RobotMap("x", _negated("rootx", "rooty", *_CHEETAH)),),
    ),
    "Hopper": Robot(
        "Hopper-v5",
        (*_PLANAR_ROOT, *_WALKER_RIGHT),
        _WALKER_RIGHT,
        1,
        (RobotMap("x", _negated("rootx", "rooty", *_WALKER_RIGHT)),),
    ),
}
"""Robots by name. HalfCheetah and Hopper have false symmetries; `Walker2d-weak-left` has motors of
half the strength on its left, so that the symmetry of its legs is approximate."""


def robot_named(name: str) -> Robot:
    """A robot of `ROBOTS`."""
    return ROBOTS[check_choice(name, ROBOTS, what="robot")]
