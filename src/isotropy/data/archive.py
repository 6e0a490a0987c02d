"""NumPy archives: `.npz` with `x` and `y`, and optionally `x_test` and `y_test`.

The names `x_train` and `y_train` are understood as well. Pickled arrays are refused: opening
one can run any code.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from isotropy.checks import CallerError
from isotropy.data.arrays import labelled_from_arrays
from isotropy.data.labelled import LabelledData, Split

ZIP_START = b"PK"


def read_npz(path: Path, *, reference: LabelledData | None = None) -> Split:
    """Training data from `x`, `y`; test data from `x_test`, `y_test` where they are there.

    x: `(examples, features...)`; images as `arrays.standard_inputs` understands them.
    y: labels or outputs as `arrays.standard_targets` understands them.
    reference: the training data that this is a test set for.
    Raises `CallerError` where an array is missing, pickled or damaged.
    """
    if not zipfile.is_zipfile(path):
        raise CallerError(
            f"{path}: expected an npz archive, got a damaged or truncated one; "
            "write it again with numpy.savez_compressed"
        )
    with np.load(path, allow_pickle=False) as archive:
        has_test = not {"x_test", "y_test"}.isdisjoint(archive.files)
        x_test = y_test = None
        if has_test:
            x_test = _read_array(archive, ("x_test",), path)
            y_test = _read_array(archive, ("y_test",), path)
        if has_test and reference is not None:
            test, notes = labelled_from_arrays(
                x_test, y_test, name=f"{path.stem} test", reference=reference
            )
            return Split(train=test, test=None, notes=notes)
        x = _read_array(archive, ("x", "x_train"), path)
        y = _read_array(archive, ("y", "y_train"), path)
    train, notes = labelled_from_arrays(x, y, name=path.stem, reference=reference)
    if not has_test:
        return Split(train=train, test=None, notes=notes)
    test, test_notes = labelled_from_arrays(
        x_test, y_test, name=f"{path.stem} test", reference=train
    )
    more = tuple(f"test set: {note}" for note in test_notes)
    return Split(train=train, test=test, notes=notes + more)


def _read_array(archive: Any, names: tuple[str, ...], path: Path) -> np.ndarray[Any, Any]:
    """The array stored under the first of `names` that is there."""
    name = next((each for each in names if each in archive.files), None)
    if name is None:
        found = ", ".join(archive.files[:6]) + (" …" if len(archive.files) > 6 else "")
        unlabelled = "unlabelled, " if names[0].startswith("y") else ""
        raise CallerError(
            f"{path}: {unlabelled}expected an array called {' or '.join(names)}, got "
            f"{found or 'no arrays'}; write it with "
            "numpy.savez_compressed(path, x=inputs, y=labels)"
        )
    try:
        array = archive[name]
    except ValueError as error:
        if "pickle" in str(error):
            raise CallerError(
                f"{path}: expected arrays of numbers, got pickled Python objects in {name!r}, "
                "which are never opened; convert it to one type, such as float32, and save again"
            ) from None
        raise _damaged(path, name, error) from None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
        raise _damaged(path, name, error) from None
    if not isinstance(array, np.ndarray):  # a member of the archive that is no array: its bytes
        raise _damaged(path, name, "not in NumPy's format")
    return array


def _damaged(path: Path, name: str, error: object) -> CallerError:
    return CallerError(
        f"{path}: expected whole arrays, got {name!r} damaged ({error}); "
        "write it again with numpy.savez_compressed"
    )
