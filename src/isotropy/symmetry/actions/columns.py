"""Symmetries of tables: what may be done to the columns of (batch, columns).

    scale, scale:A        all columns, or column A, times e^a
    sign:A                column A changes its sign (`sign_change` is that of all)
    permute:A:B:C         these columns in any other order: one element for each, of two columns one
    generator:FILE.npy    the user's matrix M (columns, columns):  x ↦ exp(a M) x
    element:FILE.npy      the user's matrix itself:  x ↦ M x

A column is called by its name or its number, from 0. Tables that are read from a file are
standardised: signs change and factors act about the mean of a column, and columns exchange their
standardised values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from isotropy.checks import CallerError, column_index
from isotropy.symmetry.actions.action import Action
from isotropy.symmetry.actions.finite import MOST_CHANNELS, FiniteAction
from isotropy.symmetry.actions.linear import LinearAction, matrix_elements

Columns = Sequence[str]
TABLE_NAMES = ("scale", "scale:A", "sign:A", "permute:A:B", "generator:FILE.npy",
               "element:FILE.npy")  # fmt: skip


def table_actions(names: Sequence[str], columns: Columns) -> list[Action | FiniteAction]:
    """The Actions with these names on tables of `columns`: one Action for all generators.

    Raises CallerError for a name that is none of these, an unknown column and a file without a
    matrix of this size.
    """
    continuous = {
        name: CONTINUOUS[name.partition(":")[0]](name, columns)
        for name in names
        if name.partition(":")[0] in CONTINUOUS
    }
    found: list[Action | FiniteAction] = []
    if continuous:
        units = {name: ("log factor", 1.0) for name in continuous if name.startswith("scale")}
        meanings = {name: "values move away from zero" for name in units}
        found.append(LinearAction(continuous, units=units, meanings=meanings))
    for name in names:
        kind = name.partition(":")[0]
        if kind in FINITE:
            found.append(FINITE[kind](name, columns))
        elif kind not in CONTINUOUS:
            raise CallerError(
                f"unknown generator {name!r} of a table: expected one of "
                f"{', '.join(TABLE_NAMES)}, sign_change"
            )
    return found


def _places(name: str, columns: Columns, least: int, most: int) -> list[int]:
    """The columns that a name lists after its first word."""
    listed = name.split(":")[1:]
    if not least <= len(listed) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise CallerError(
            f"generator {name!r}: expected {wanted} columns after the first colon, got "
            f"{len(listed)}, as in {name.partition(':')[0]}:{':'.join(columns[:least])}"
        )
    places = [column_index(each, columns, what=f"generator {name!r}") for each in listed]
    if len(set(places)) < len(places):
        raise CallerError(f"generator {name!r}: expected different columns, got one of them twice")
    return places


def _scaling(name: str, columns: Columns) -> np.ndarray:
    """diag(1) of all columns, or of the one that is named."""
    if name == "scale":
        return np.eye(len(columns))
    matrix = np.zeros((len(columns),) * 2)
    (place,) = _places(name, columns, 1, 1)
    matrix[place, place] = 1
    return matrix


def _own_matrix(name: str, columns: Columns) -> np.ndarray:
    """The matrix (columns, columns) of a file."""
    path = Path(name.partition(":")[2])
    try:
        matrix: np.ndarray = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise CallerError(
            f"generator {name!r}: expected a matrix that numpy.save wrote, got {error}"
        ) from None
    if not isinstance(matrix, np.ndarray) or matrix.shape != (len(columns),) * 2:
        raise CallerError(
            f"generator {name!r}: expected a matrix of {len(columns)} rows and columns, one for "
            f"each column of the table, got shape {getattr(matrix, 'shape', None)}"
        )
    return matrix


def _sign(name: str, columns: Columns) -> FiniteAction:
    matrix = np.eye(len(columns))
    (place,) = _places(name, columns, 1, 1)
    matrix[place, place] = -1
    return matrix_elements({name: matrix}, name=name)


def _permutations(name: str, columns: Columns) -> FiniteAction:
    """All other orders of some columns; of two columns the one element has the action's name."""
    places = _places(name, columns, 2, MOST_CHANNELS)
    elements = {}
    for order in itertools.permutations(places):
        if list(order) == places:
            continue
        matrix = torch.eye(len(columns), dtype=torch.float64)
        matrix[places] = matrix[list(order)]
        words = ":".join(columns[place] for place in order)
        elements[name if len(places) == 2 else f"{name} as {words}"] = matrix
    return matrix_elements(elements, name=name)


def _own_element(name: str, columns: Columns) -> FiniteAction:
    return matrix_elements({name: _own_matrix(name, columns)}, name=name)


CONTINUOUS: dict[str, Callable[[str, Columns], np.ndarray]] = {
    "scale": _scaling,
    "generator": _own_matrix,
}
FINITE: dict[str, Callable[[str, Columns], FiniteAction]] = {
    "sign": _sign,
    "permute": _permutations,
    "element": _own_element,
}
