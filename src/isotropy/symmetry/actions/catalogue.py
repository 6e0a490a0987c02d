"""Every Action by name: what a command line or a saved run says, and what it means for data.

    images (channels, height, width)    the affine generators, brightness, contrast, amplitude;
                                        horizontal_flip, vertical_flip, quarter_turns,
                                        channel_permutations
    sequences (channels, length)        shift, stretch, amplitude; reversal
    clouds (points, dimensions)         rotation, translation_x, …, scale, jitter; reflection_x, …,
                                        point_permutation
    tables (columns,)                   scale, scale:A, sign:A, permute:A:B, the user's matrices
                                        (`columns`)
    anything                            sign_change

Names of one kind become one Action with one joint exponential; kinds act one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from isotropy.checks import CallerError, check_choice
from isotropy.symmetry.actions.action import Action
from isotropy.symmetry.actions.columns import table_actions
from isotropy.symmetry.actions.finite import (
    FiniteAction,
    channel_permutations,
    flip,
    point_permutation,
    point_reflection,
    quarter_turns,
    reversal,
    sign_change,
)
from isotropy.symmetry.actions.images import (
    GENERATORS,
    INTENSITY_GENERATORS,
    LILA_GENERATORS,
    affine,
    intensity,
)
from isotropy.symmetry.actions.points import POINT_GENERATORS, points
from isotropy.symmetry.actions.sequences import SEQUENCE_GENERATORS, sequences
from isotropy.symmetry.actions.warp import Padding

SEQUENCE_ONLY = ("shift", "stretch", "reversal")
"""Names by which data with two axes are known to be sequences and not clouds of points."""


def are_clouds(names: Sequence[str], shape: Sequence[int]) -> bool:
    """Whether data of `shape` (two axes) are clouds of points: by their width, and the names."""
    return shape[1] in POINT_GENERATORS and not set(names) & set(SEQUENCE_ONLY)


def actions_named(
    names: Sequence[str],
    shape: Sequence[int],
    *,
    padding: Padding = "zeros",
    fill: Sequence[float] | None = None,
    columns: Sequence[str] | None = None,
) -> list[Action | FiniteAction]:
    """The Actions with these names on data of `shape` (without the batch axis).

    padding, fill: of the Actions that resample images, as in `affine`; no others have a use for it
    columns: what the columns of a table are called; by default their numbers
    """
    names = [name.strip() for name in names]
    if not names or len(set(names)) < len(names):
        raise CallerError(f"generators: expected one or more different names, got {names}")
    if len(shape) == 1:
        called = [str(number) for number in range(shape[0])] if columns is None else columns
        whole = [name for name in names if name == "sign_change"]
        moving = table_actions([name for name in names if name not in whole], called)
        return [*moving, *[sign_change() for _ in whole]]
    kinds, finite = _known(names, shape, partial(affine, padding=padding, fill=fill))
    for name in names:
        check_choice(name, known_names(shape, names), what="generator")
    found: list[Action | FiniteAction] = []
    for table, make in kinds:
        own = [name for name in names if name in table]
        if own:
            found.append(make(own))
    found += [finite[name]() for name in names if name in finite]
    return found


def known_names(shape: Sequence[int], names: Sequence[str] = ()) -> list[str]:
    """All names of Actions on data of `shape`; `names` tell sequences from clouds of points."""
    kinds, finite = _known(names, shape, affine)
    return [name for table, _ in kinds for name in table] + list(finite)


Kind = tuple[Sequence[str], Callable[[Sequence[str]], Action]]


def _known(
    names: Sequence[str], shape: Sequence[int], plane: Callable[[Sequence[str]], Action]
) -> tuple[list[Kind], Mapping[str, Callable[[], FiniteAction]]]:
    everywhere: dict[str, Callable[[], FiniteAction]] = {"sign_change": sign_change}
    if len(shape) == 3:
        return (
            [(tuple(GENERATORS), plane), (tuple(INTENSITY_GENERATORS), intensity)],
            {
                "horizontal_flip": lambda: flip("horizontal"),
                "vertical_flip": lambda: flip("vertical"),
                "quarter_turns": quarter_turns,
                "channel_permutations": lambda: channel_permutations(shape[0]),
                **everywhere,
            },
        )
    if len(shape) == 2 and not are_clouds(names, shape):
        return [(tuple(SEQUENCE_GENERATORS), sequences)], {"reversal": reversal, **everywhere}
    if len(shape) == 2:
        count, dimensions = shape

        def clouds(own: Sequence[str]) -> Action:
            return points(dimensions, own, count=count)

        reflections = {
            f"reflection_{letter}": lambda axis=axis: point_reflection(axis)
            for axis, letter in enumerate("xyz"[:dimensions])
        }
        permutation = {"point_permutation": point_permutation}
        table = tuple(POINT_GENERATORS[dimensions])
        return [(table, clouds)], {**reflections, **permutation, **everywhere}
    if set(names) <= set(everywhere):
        return [], everywhere
    raise CallerError(
        f"generators by name: expected images, sequences, clouds of points or tables, got data of "
        f"shape {tuple(shape)}; give your own Action in Python"
    )


def default_names(shape: Sequence[int]) -> tuple[str, ...]:
    """What may be a symmetry of data of `shape`, where nobody named anything.

    Raises CallerError for data that are no images, sequences, clouds of points or tables.
    """
    if len(shape) == 3:
        return LILA_GENERATORS
    if len(shape) == 2 and shape[1] == 2:
        return ("rotation", "translation_x", "translation_y", "scale")
    if len(shape) == 2 and shape[1] == 3:
        turns = ("rotation_x", "rotation_y", "rotation_z")
        return (*turns, "translation_x", "translation_y", "translation_z", "scale")
    if len(shape) == 2:
        return tuple(SEQUENCE_GENERATORS)
    if len(shape) == 1:
        return ("scale", "sign_change")
    raise CallerError(
        f"actions: expected images, sequences, clouds of points or tables to choose them for, got "
        f"data of shape {tuple(shape)}; give actions="
    )
