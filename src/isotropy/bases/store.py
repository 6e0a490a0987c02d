"""Solutions on disk: one safetensors file each, found by the content of the problem it solves.

    folder/KEY.safetensors      KEY = sha256 of the format's version and all factors of the problem
        columns                 (size, rank), dense; or
        data, indices, indptr   their nonzeros, by columns
        metadata "solution"     JSON: version, key, shape, rank, method, seconds, dtype, digest

Complex numbers are written as pairs of real ones. No code is ever read from a file, and nothing in
one is trusted: it must be complete, have this version and key, hold finite numbers in the right
shapes, and have the sha256 that was written with it. Anything else counts as absent and is
written anew. `solve` puts what was loaded into the constraints like what it found itself.

A file appears whole or not at all (written beside, then renamed), so that any number of processes
may share a folder. Beyond `largest_bytes` the files that were not used for longest are removed.

    >>> store = Store("solutions")
    >>> key = solution_key(problem)
    >>> basis = store.load(key, problem.shape)      # None if it is not there
    >>> store.save(key, basis)
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import time
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sparse
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from isotropy.bases.problem import Columns, Problem
from isotropy.bases.solution import Basis
from isotropy.checks import CallerError

VERSION = 1
"""Of the format; a file of another one counts as absent."""
LARGEST_BYTES = 2e9
DTYPES = ("float32", "float64", "complex64", "complex128")
ABANDONED_SECONDS = 3600.0
"""Age at which a file that was begun and never finished is removed."""
_OURS = re.compile(r"[0-9a-f]{64}\.safetensors")
_BEGUN = re.compile(r"\.[0-9a-f]{64}\..*\.part")


def solution_key(problem: Problem) -> str:
    """A digest of all that the solution depends on: the matrices of every generator on every axis.

    Exact, to the last bit: names do not matter, neither the group's nor those of atoms.
    """
    digest = hashlib.sha256(f"isotropy basis {VERSION} {problem.shape} {problem.dtype};".encode())
    known: dict[int, bytes] = {}
    for kind, generators in (("algebra", problem.algebra), ("discrete", problem.discrete)):
        digest.update(f"{kind} {len(generators)};".encode())
        for factors in generators:
            for factor in factors:
                if id(factor) not in known:
                    known[id(factor)] = _matrix_digest(factor)
                digest.update(known[id(factor)])
    return digest.hexdigest()


class Store:
    """Solutions in a folder, which is made when the first is saved.

    largest_bytes: what all files together may take
    """

    def __init__(
        self, folder: str | os.PathLike[str], largest_bytes: float = LARGEST_BYTES
    ) -> None:
        self.folder = Path(folder)
        self.largest_bytes = largest_bytes
        if self.folder.exists() and not self.folder.is_dir():
            raise CallerError(f"solutions are kept in a folder, and {self.folder} is a file")

    def __contains__(self, key: str) -> bool:
        """Whether there is a file under this key, sound or not."""
        return self._path(key).exists()

    def load(self, key: str, shape: tuple[int, ...]) -> Basis | None:
        """The solution saved under this key, of a problem of this shape, without a residual.

        None if there is none, or if the file is damaged or not one of ours.
        """
        path = self._path(key)
        try:
            with safe_open(path, framework="numpy") as file:
                record = json.loads((file.metadata() or {})["solution"])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            found = _read(key, shape, record, arrays)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, AttributeError):
            return None
        if found is not None:
            with suppress(OSError):
                os.utime(path)  # used now, and so kept for longer
        return found

    def save(self, key: str, basis: Basis) -> bool:
        """Whether the solution was kept: it has columns, fits, and the folder could be written."""
        path = self._path(key)
        if basis.columns is None:
            return False
        arrays, record = _written(key, basis, basis.columns)
        if sum(array.nbytes for array in arrays.values()) > self.largest_bytes:
            return False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, begun = tempfile.mkstemp(".part", f".{key}.", self.folder)
            os.close(handle)
            try:
                save_file(arrays, begun, metadata={"solution": json.dumps(record)})
                os.replace(begun, path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(begun)
                raise
        except (OSError, SafetensorError):
            return False
        self._remove_oldest(path)
        return path.exists()

    def _path(self, key: str) -> Path:
        name = f"{key}.safetensors"
        if not _OURS.fullmatch(name):
            raise CallerError(f"expected a key of 64 hexadecimal digits, got {key!r}")
        return self.folder / name

    def _remove_oldest(self, newest: Path) -> None:
        """Files of ours, least recently used first, until the rest fit; and abandoned ones."""
        files: list[tuple[float, int, Path]] = []
        with suppress(OSError):
            for entry in os.scandir(self.folder):
                with suppress(OSError):  # another process may have removed it
                    status = entry.stat(follow_symlinks=False)
                    if _OURS.fullmatch(entry.name):
                        files.append((status.st_mtime, status.st_size, Path(entry.path)))
                    age = time.time() - status.st_mtime
                    if _BEGUN.fullmatch(entry.name) and age > ABANDONED_SECONDS:
                        os.unlink(entry.path)
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files, key=lambda each: (each[2] == newest, each[0])):
            if total <= self.largest_bytes:
                break
            with suppress(OSError):
                path.unlink()
            total -= size


def _written(
    key: str, basis: Basis, columns: Columns
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    if sparse.issparse(columns):
        entries = sparse.csc_array(columns)
        arrays = {
            "data": _as_real(entries.data),
            "indices": np.ascontiguousarray(entries.indices),
            "indptr": np.ascontiguousarray(entries.indptr),
        }
    else:
        arrays = {"columns": _as_real(columns)}
    record = {
        "version": VERSION,
        "key": key,
        "shape": list(basis.shape),
        "rank": basis.rank,
        "method": basis.method,
        "seconds": basis.seconds,
        "dtype": str(columns.dtype),
    }
    if record["dtype"] not in DTYPES:
        raise CallerError(f"expected columns of {', '.join(DTYPES)}, got {columns.dtype}")
    return arrays, record | {"digest": _digest(record, arrays)}


def _read(
    key: str, shape: tuple[int, ...], record: dict[str, Any], arrays: dict[str, np.ndarray]
) -> Basis | None:
    """The solution of a file, or None if anything about it is not as it was written."""
    if record.pop("digest") != _digest(record, arrays):
        return None
    as_expected = {"version": VERSION, "key": key, "shape": list(shape)}
    if any(record[name] != value for name, value in as_expected.items()):
        return None
    if record["dtype"] not in DTYPES:
        return None
    rank, size, dtype = int(record["rank"]), prod(shape), np.dtype(record["dtype"])
    columns: Columns
    if set(arrays) == {"columns"}:
        columns = _as_dtype(arrays["columns"], dtype)
        numbers = columns
    elif set(arrays) == {"data", "indices", "indptr"}:
        numbers = _as_dtype(arrays["data"], dtype)
        parts = (numbers, arrays["indices"], arrays["indptr"])
        columns = sparse.csc_array(parts, shape=(size, rank), copy=False)
        columns.check_format(full_check=True)  # ValueError
    else:
        return None
    if columns.shape != (size, rank) or not np.isfinite(numbers).all():
        return None
    return Basis(rank, size, shape, str(record["method"]), None, float(record["seconds"]), columns)


def _as_real(numbers: np.ndarray) -> np.ndarray:
    """Contiguous; complex numbers (…) as (…, 2)."""
    numbers = np.ascontiguousarray(numbers)
    if not np.iscomplexobj(numbers):
        return numbers
    return np.stack([numbers.real, numbers.imag], -1)


def _as_dtype(numbers: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The inverse of `_as_real`; raises ValueError where the numbers are of another kind."""
    real = np.empty(0, dtype).real.dtype
    if numbers.dtype != real:
        raise ValueError(f"expected {real}, got {numbers.dtype}")
    if dtype == real:
        return numbers
    if numbers.shape[-1:] != (2,):
        raise ValueError("expected pairs of real numbers")
    return np.ascontiguousarray(numbers).view(dtype)[..., 0]


def _digest(record: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape};".encode())
        digest.update(array.data)
    return digest.hexdigest()


def _matrix_digest(matrix: sparse.csr_array) -> bytes:
    entries = sparse.coo_array(matrix)
    entries.sum_duplicates()  # which puts them in order
    entries.eliminate_zeros()
    numbers = entries.data.astype(complex) + 0.0
    digest = hashlib.sha256(f"{entries.shape};".encode())
    for part in (entries.row.astype(np.int64), entries.col.astype(np.int64), numbers):
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.digest()
