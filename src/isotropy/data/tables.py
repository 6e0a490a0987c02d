"""Tables: every row of a csv or parquet file is an example, one column is the target.

    csv      `,`, `;` or a tab between cells, plain or gzipped, with or without a header. The first
             row is a header where none of its cells is a number, or where one of them is text
             above numbers. Without a header columns are called by their number, from 0.
    parquet  by pyarrow, which is an optional extra

The target is the last column unless it is named, by its name or its number. What becomes of it:

    text             classes, numbered in sorted order
    whole numbers    classes if they are 0, 1, … or 1, 2, … with none left out and at most 100;
                     otherwise, and for all other numbers, a regression. `task` overrides this

What becomes of the other columns:

    numbers          one number an example
    text             one number for each of at most 20 different words, 1 where the cell is that
                     word and else 0, called `column=word`; a column of more words is left out
    empty cells      `?`, `NA`, `NaN`, `null`, `None` count as empty; rows with one are left out

A test file has the columns of its training file, found by name where both have names. Columns are
standardised by `labelled.standardised` once the test part is known. All that is decided is told in
notes.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

from isotropy.checks import CallerError, column_index
from isotropy.data.formats import read_bytes, read_start
from isotropy.data.labelled import LabelledData, Notes, Split, standard_targets

Task = Literal["auto", "classes", "regression"]
TASKS: tuple[Task, ...] = get_args(Task)
PARQUET_START = b"PAR1"
SUFFIXES = (".csv", ".tsv", ".data")
EMPTY = ("", "?", "na", "n/a", "nan", "null", "none")
MOST_WORDS = 20
"""Different words up to which a column of text becomes numbers."""
MOST_CLASSES = 100
"""Whole numbers up to which a target may be read as classes."""
DELIMITERS = ("\t", ";", ",")
DECIMAL_COMMA = re.compile(r"^([+-]?\d+),(\d+)$")
"""A number as `1,5`, where commas do not separate cells."""
FIRST_LINES = 20
"""Lines by which the delimiter is found."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Target:
    """Which column is the target, and what it is.

    column: its name or its number (negative from the end); None for the last
    task:   classes or regression; auto lets its values say
    """

    column: str | int | None = None
    task: Task = "auto"


@dataclass(frozen=True)
class Table:
    """Columns as text, by name, all of one length; `has_header`: names are the file's own."""

    columns: dict[str, list[str]]
    has_header: bool

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values())))


def is_table(path: Path, start: bytes) -> bool:
    """Whether a file that begins with `start`, decompressed, is a table: by its name or content."""
    if start.startswith(PARQUET_START):
        return True
    if b"\0" in start:
        return False
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(SUFFIXES):
        return True
    lines = start.decode("utf-8", errors="replace").splitlines()
    return len(lines) > 2 and _delimiter(lines[:-1]) is not None


def read_table(path: Path, target: Target, *, reference: LabelledData | None = None) -> Split:
    """Examples from the rows of a table, not yet standardised.

    reference: the training data that this is a test set for; columns and classes are its own.
    Raises `CallerError` for a file that is no table, an unknown column, and columns without
    numbers.
    """
    data, notes = data_of(read_cells(path), target, path, reference)
    return Split(train=data, test=None, notes=notes)


def read_cells(path: Path) -> Table:
    """The cells of a csv or parquet file as text; raises `CallerError` for other files."""
    is_parquet = read_start(path, len(PARQUET_START)) == PARQUET_START
    return _parquet(path) if is_parquet else _csv(path)


def data_of(
    table: Table, target: Target, path: Path, reference: LabelledData | None
) -> tuple[LabelledData, Notes]:
    """The examples of a table that was read from `path`, and notes; as `read_table`."""
    wanted = _target_column(table, target.column, path)
    table, notes = _complete(table, path)
    labels, classes, told = _targets(table.columns[wanted], wanted, target.task, path, reference)
    if reference is None or reference.columns is None:
        columns, more = _encoded(table, wanted, path)
        told += more
    else:
        columns = _like(table, reference.columns, wanted, path)
    inputs = torch.from_numpy(np.stack([*columns.values()], 1).astype(np.float32))
    data = LabelledData(inputs, labels, classes, _name(path), columns=tuple(columns))
    return data, (*notes, *told)


def _name(path: Path) -> str:
    """What a table is called: its file, or the folder of one that is called `data`."""
    stem = path.name.partition(".")[0]
    return path.resolve().parent.name if stem == "data" else stem


# --- files --------------------------------------------------------------------------------------


def _csv(path: Path) -> Table:
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CallerError(
            f"{path}: expected text in UTF-8, got a byte {error.object[error.start]:#x} at "
            f"{error.start}; save the table in UTF-8"
        ) from None
    lines = [line for line in text.splitlines()[:FIRST_LINES] if line.strip()]
    delimiter = _delimiter(lines)
    if delimiter is None:
        raise CallerError(
            f"{path}: expected rows of two cells or more, separated by a comma, a semicolon or a "
            f"tab, got {lines[0][:40] if lines else ''!r}; convert it to csv"
        )
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    try:
        rows = [[cell.strip() for cell in row] for row in reader if any(map(str.strip, row))]
    except csv.Error as error:
        raise CallerError(f"{path}: expected csv, got {error}; save the table again") from None
    if delimiter != ",":
        rows = [[DECIMAL_COMMA.sub(r"\1.\2", cell) for cell in row] for row in rows]
    width = len(rows[0])
    for number, row in enumerate(rows, 1):
        if len(row) != width:
            raise CallerError(
                f"{path}: expected {width} cells in every row, as in the first, got {len(row)} in "
                f"row {number}; correct this row"
            )
    has_header = _is_header(rows)
    body = rows[1:] if has_header else rows
    if not body:
        raise CallerError(f"{path}: expected rows below the header, got none; add examples")
    names = _unique(rows[0]) if has_header else [str(number) for number in range(width)]
    return Table(dict(zip(names, map(list, zip(*body, strict=True)), strict=True)), has_header)


def _parquet(path: Path) -> Table:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise CallerError(
            f"{path}: parquet files need pyarrow; install isotropy[tables], or save it as csv"
        ) from None
    try:
        found = parquet.read_table(str(path)).to_pydict()
    except ArrowException as error:
        raise CallerError(f"{path}: expected a parquet file, got {error}; write it again") from None
    columns = {str(name): [cell_text(each) for each in cells] for name, cells in found.items()}
    if len(columns) < 2 or not next(iter(columns.values())):
        raise CallerError(f"{path}: expected two columns or more with rows, got {len(columns)}")
    return Table(columns, has_header=True)


def cell_text(value: Any) -> str:
    """A value as a csv file would have it; empty for None."""
    if isinstance(value, bool):
        return str(int(value))
    return "" if value is None else str(value).strip()


def _delimiter(lines: Sequence[str]) -> str | None:
    """What stands equally often in all these lines, quoted parts apart."""
    counts = {}
    for delimiter in DELIMITERS:
        found = {"".join(line.split('"')[::2]).count(delimiter) for line in lines}
        counts[delimiter] = found.pop() if len(found) == 1 else 0
    return next((each for each in DELIMITERS if counts[each]), None)


def _is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names the columns; see the top of this file."""
    first, body = rows[0], rows[1:]
    named = [cell.lower() not in EMPTY and _number(cell) is None for cell in first]
    if not any(named):
        return False
    if all(is_named or not cell for is_named, cell in zip(named, first, strict=True)):
        return True
    for column, is_named in enumerate(named):
        cells = [row[column] for row in body if row[column].lower() not in EMPTY]
        if is_named and cells and all(_number(cell) is not None for cell in cells):
            return True
    return False


def _unique(names: Sequence[str]) -> list[str]:
    """Names without duplicates: an empty one becomes its number, a second `a` becomes `a_2`."""
    found: list[str] = []
    for number, name in enumerate(names):
        wanted = unique = name or str(number)
        copy = 1
        while unique in found:
            copy += 1
            unique = f"{wanted}_{copy}"
        found.append(unique)
    return found


def _number(cell: str) -> float | None:
    """A cell as a number; None for text."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


# --- columns ------------------------------------------------------------------------------------


def _target_column(table: Table, wanted: str | int | None, path: Path) -> str:
    names = [*table.columns]
    place = column_index(-1 if wanted is None else wanted, names, what=f"{path}, target")
    return names[place]


def _complete(table: Table, path: Path) -> tuple[Table, Notes]:
    """The rows in which no cell is empty."""
    empty = {
        name: np.array([cell.lower() in EMPTY for cell in cells])
        for name, cells in table.columns.items()
    }
    gone = np.logical_or.reduce([*empty.values()])
    if not gone.any():
        return table, ()
    worst = max(empty, key=lambda name: int(empty[name].sum()))
    if gone.mean() > 0.5:
        raise CallerError(
            f"{path}: expected whole rows, got empty cells in {gone.sum()} of {len(gone)}; most "
            f"are in column {worst!r} ({empty[worst].sum()}): fill them, or leave this column out"
        )
    kept = np.flatnonzero(~gone)
    columns = {name: [cells[row] for row in kept] for name, cells in table.columns.items()}
    note = (
        f"{gone.sum()} of {len(gone)} rows left out for empty cells, most of them in column "
        f"{worst!r}"
    )
    return Table(columns, table.has_header), (note,)


def _numbers(cells: Sequence[str]) -> Array | None:
    """A column of numbers in float64; None where it has text."""
    found = [_number(cell) for cell in cells]
    if any(each is None for each in found):
        return None
    return np.array(found, dtype=np.float64)


def _encoded(table: Table, target: str, path: Path) -> tuple[dict[str, Array], Notes]:
    """The input columns as numbers, and notes on those that were text."""
    columns: dict[str, Array] = {}
    notes: list[str] = []
    for name, cells in table.columns.items():
        if name == target:
            continue
        numbers = _numbers(cells)
        if numbers is not None:
            columns[name] = numbers
            continue
        words = sorted(set(cells))
        if len(words) > MOST_WORDS:
            notes.append(f"column {name!r} left out: text with {len(words)} different values")
            continue
        notes.append(f"column {name!r} is text: one column for each of its {len(words)} values")
        for word in words:
            columns[f"{name}={word}"] = np.array([cell == word for cell in cells], dtype=np.float64)
    if not columns:
        raise CallerError(
            f"{path}: expected columns of numbers beside the target {target!r}, got none; "
            "add some, or name another target"
        )
    return columns, tuple(notes)


def _like(table: Table, wanted: Sequence[str], target: str, path: Path) -> dict[str, Array]:
    """The columns of the training data, by name, or by place where this file has no header."""
    names = {name: name for name in table.columns}
    if not table.has_header:
        own = [name for name in table.columns if name != target]
        asked = list(dict.fromkeys(_parts(name, {})[0] for name in wanted))
        names = dict(zip(asked, own, strict=False))
    columns: dict[str, Array] = {}
    for name in wanted:
        source, word = _parts(name, names)
        cells = table.columns.get(names.get(source, ""))
        if cells is None:
            raise CallerError(
                f"{path}: expected the column {source!r} of the training data, got "
                f"{', '.join(table.columns)}; give both tables the same columns"
            )
        if word is not None:
            columns[name] = np.array([cell == word for cell in cells], dtype=np.float64)
            continue
        numbers = _numbers(cells)
        if numbers is None:
            raise CallerError(
                f"{path}: expected numbers in column {source!r}, as in the training data, got text"
            )
        columns[name] = numbers
    return columns


def _parts(name: str, names: dict[str, str]) -> tuple[str, str | None]:
    """`colour=red` as (colour, red); a name that is a column itself stays whole."""
    source, equals, word = name.partition("=")
    return (source, word) if equals and name not in names else (name, None)


def _targets(
    cells: Sequence[str], name: str, task: Task, path: Path, reference: LabelledData | None
) -> tuple[torch.Tensor, tuple[str, ...] | None, Notes]:
    """Labels with their classes, or outputs `(rows, 1)`, and notes."""
    what = f"{path}, target {name!r}"
    if reference is not None:
        task = "classes" if reference.is_classification else "regression"
    numbers = _numbers(cells)
    if numbers is None and task == "regression":
        raise CallerError(f"{what}: expected numbers for a regression, got text; name another")
    if task == "auto":
        task = "classes" if numbers is None or _are_labels(numbers) else "regression"
        kind = "text" if numbers is None else "numbers" if task == "regression" else "labels"
        said = {
            "text": "text: its values are classes",
            "numbers": "numbers: a regression; --task classes reads them as classes",
            "labels": "whole numbers without gaps: classes; --task regression reads them as "
            "numbers",
        }[kind]
        notes: Notes = (f"target: column {name!r}, {said}",)
    else:
        notes = ()
    if task == "regression":
        assert numbers is not None
        return torch.from_numpy(numbers.astype(np.float32))[:, None], None, notes
    words = [cell if numbers is None else _word(numbers[row]) for row, cell in enumerate(cells)]
    classes = None if reference is None else reference.classes
    if classes is None and numbers is not None:
        classes = tuple(_word(each) for each in np.unique(numbers))
    found = standard_targets(np.array(words), what=what, names=classes)
    return found.values, found.classes, notes


def _are_labels(numbers: Array) -> bool:
    values = np.unique(numbers)
    if len(values) > MOST_CLASSES or values[0] not in (0, 1) or len(values) < 2:
        return False
    return bool((np.diff(values) == 1).all())


def _word(number: float) -> str:
    """A number as a class is called: `3` and not `3.0`."""
    return str(int(number)) if math.isfinite(number) and number == int(number) else str(number)
