"""Solutions on disk: what is saved comes back, and nothing else does."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from isotropy.bases import store as store_module
from isotropy.bases.orbits import orbit_basis
from isotropy.bases.problem import Columns, Problem
from isotropy.bases.residual import residual
from isotropy.bases.solution import Basis
from isotropy.bases.store import Store, solution_key
from isotropy.checks import CallerError
from isotropy.symmetry.groups import Group
from isotropy.symmetry.representations import Representation, T, V, custom

KEY, OTHER = "ab" * 32, "cd" * 32
SHAPE = (2, 3)
SPARSE = sparse.csc_array(np.array([[0.5, 0], [0, -1], [0.25, 0], [0, 0], [0, 0], [0, 3]]))
DENSE = np.asfortranarray(np.arange(12.0).reshape(6, 2) / 7)
COLUMNS: dict[str, Columns] = {
    "sparse": SPARSE,
    "sparse, complex": SPARSE * (1 - 2j),
    "sparse, 64-bit indices": sparse.csc_array(
        (SPARSE.data, SPARSE.indices.astype(np.int64), SPARSE.indptr.astype(np.int64)), (6, 2)
    ),
    "dense": DENSE,
    "dense, complex": DENSE * (1 - 2j),
    "dense, float32": DENSE.astype(np.float32),
    "none": np.zeros((6, 0)),
    "none, sparse": sparse.csc_array((6, 0), dtype=complex),
}


def basis_of(columns: Columns) -> Basis:
    return Basis(columns.shape[1], 6, SHAPE, "dense", 1e-16, 0.25, columns)


def saved(folder: Path, columns: Columns = SPARSE) -> Store:
    store = Store(folder)
    assert store.save(KEY, basis_of(columns))
    return store


def file_of(folder: Path, key: str = KEY) -> Path:
    return folder / f"{key}.safetensors"


@pytest.mark.parametrize("name", COLUMNS)
def test_what_is_saved_comes_back(name: str, tmp_path: Path) -> None:
    columns = COLUMNS[name]
    found = saved(tmp_path / "new" / "folder", columns).load(KEY, SHAPE)
    assert found is not None and found.columns is not None
    assert sparse.issparse(found.columns) == sparse.issparse(columns)
    assert found.columns.dtype == columns.dtype
    difference = found.columns - columns
    assert abs(difference).sum() == 0 and found.columns.shape == columns.shape
    assert found == replace(basis_of(columns), residual=None, columns=found.columns)
    if sparse.issparse(columns):
        assert found.columns.format == "csc" and found.columns.nnz == columns.nnz
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == [f"{KEY}.safetensors"]


def test_what_was_not_saved_is_absent(tmp_path: Path) -> None:
    assert Store(tmp_path / "nowhere").load(KEY, SHAPE) is None
    assert not (tmp_path / "nowhere").exists()
    assert saved(tmp_path).load(OTHER, SHAPE) is None
    assert saved(tmp_path).load(KEY, (3, 2)) is None


def test_a_rank_alone_is_not_kept(tmp_path: Path) -> None:
    assert not Store(tmp_path).save(KEY, Basis(2, 6, (2, 3), "dense", None, 0.1))
    assert not list(tmp_path.iterdir())


# --- files that are not to be trusted -----------------------------------------------------


def rewritten(folder: Path, arrays: dict[str, np.ndarray] | None = None, **changes: Any) -> None:
    """The saved file with other arrays or entries, and a digest that fits."""
    path = file_of(folder)
    with safe_open(path, framework="numpy") as file:
        record = json.loads(file.metadata()["solution"])
    found = load_file(path) if arrays is None else arrays
    del record["digest"]
    record |= changes
    record = {"digest": store_module._digest(record, found)} | record
    save_file(found, path, metadata={"solution": json.dumps(record)})


def parts(**changes: Any) -> dict[str, np.ndarray]:
    found = {"data": SPARSE.data, "indices": SPARSE.indices, "indptr": SPARSE.indptr}
    return found | {name: np.asarray(value) for name, value in changes.items()}


def test_rewriting_without_a_change_is_accepted(tmp_path: Path) -> None:
    store = saved(tmp_path)
    rewritten(tmp_path)
    assert store.load(KEY, SHAPE) is not None
    rewritten(tmp_path, parts())
    assert store.load(KEY, SHAPE) is not None


FOREIGN: dict[str, dict[str, Any]] = {
    "another version": {"version": store_module.VERSION + 1},
    "another key": {"key": OTHER},
    "a digest that does not fit": {"digest": "0" * 64},
    "another size": {"shape": [2, 4]},
    "another rank": {"rank": 3},
    "a rank that is no number": {"rank": None},
    "a shape that is none": {"shape": 6},
    "an unknown kind of numbers": {"dtype": "object"},
    "another kind of numbers": {"dtype": "complex128"},
    "a NaN": {"arrays": parts(data=[0.5, 0.25, np.nan, 3])},
    "an infinity": {"arrays": parts(data=[0.5, 0.25, np.inf, 3])},
    "a row beyond the last": {"arrays": parts(indices=np.array([0, 2, 1, 6], np.int32))},
    "a negative row": {"arrays": parts(indices=np.array([0, 2, 1, -1], np.int32))},
    "columns that overlap": {"arrays": parts(indptr=np.array([0, 5, 4], np.int32))},
    "too few numbers": {"arrays": parts(data=[0.5, 0.25, 1])},
    "other arrays": {"arrays": {"weights": np.ones(3)}},
    "dense of the wrong shape": {"arrays": {"columns": np.ones((2, 6))}},
    "dense with a NaN": {"arrays": {"columns": np.full((6, 2), np.nan)}},
}


@pytest.mark.parametrize("what", FOREIGN)
def test_foreign_files_are_ignored_and_rewritten(what: str, tmp_path: Path) -> None:
    store = saved(tmp_path)
    rewritten(tmp_path, **FOREIGN[what])
    assert store.load(KEY, SHAPE) is None
    assert store.save(KEY, basis_of(SPARSE))
    assert store.load(KEY, SHAPE) is not None


def test_damaged_files_are_ignored_and_rewritten(tmp_path: Path) -> None:
    store = saved(tmp_path)
    whole = file_of(tmp_path).read_bytes()
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    damaged = [whole[:-1], whole[:20], b"", b"not a solution", whole + b"!", bytes(flipped)]
    for content in damaged:
        file_of(tmp_path).write_bytes(content)
        assert store.load(KEY, SHAPE) is None
        assert store.save(KEY, basis_of(SPARSE))
        assert file_of(tmp_path).read_bytes() == whole
    assert store.load(KEY, SHAPE) is not None


def test_files_without_a_record_and_folders_are_ignored(tmp_path: Path) -> None:
    store = Store(tmp_path)
    save_file(parts(), file_of(tmp_path))
    assert store.load(KEY, SHAPE) is None
    save_file(parts(), file_of(tmp_path), metadata={"solution": "{"})
    assert store.load(KEY, SHAPE) is None
    save_file(parts(), file_of(tmp_path), metadata={"solution": "[]"})
    assert store.load(KEY, SHAPE) is None
    file_of(tmp_path, OTHER).mkdir()
    assert store.load(OTHER, SHAPE) is None
    assert not store.save(OTHER, basis_of(SPARSE))
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_keys_name_no_other_files(tmp_path: Path) -> None:
    for key in ("../../etc", "", "ab", KEY.upper(), KEY + "\n"):
        with pytest.raises(CallerError, match="64 hexadecimal digits"):
            Store(tmp_path).load(key, SHAPE)
        with pytest.raises(CallerError, match="64 hexadecimal digits"):
            Store(tmp_path).save(key, basis_of(SPARSE))


# --- the folder ---------------------------------------------------------------------------


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CallerError, match="is a file"):
        Store(tmp_path / "file")
    assert not Store(tmp_path / "file" / "inside").save(KEY, basis_of(SPARSE))


def test_nothing_is_left_when_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(store_module, "save_file", full)
    assert not Store(tmp_path).save(KEY, basis_of(SPARSE))
    assert not list(tmp_path.iterdir())


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    keys = [f"{number:064x}" for number in range(4)]
    store = Store(tmp_path)
    for age, key in enumerate(keys[:3]):
        store.save(key, basis_of(SPARSE))
        os.utime(file_of(tmp_path, key), (1000 + age, 1000 + age))
    (tmp_path / "notes.txt").write_text("not a solution" * 1000)
    assert store.load(keys[0], SHAPE) is not None  # and so used now
    size = file_of(tmp_path, keys[0]).stat().st_size
    small = Store(tmp_path, largest_bytes=2.5 * size)
    assert small.save(keys[3], basis_of(SPARSE))
    kept = {path.stem for path in tmp_path.glob("*.safetensors")}
    assert kept == {keys[0], keys[3]}
    assert (tmp_path / "notes.txt").exists()


def test_a_solution_larger_than_all_is_not_kept(tmp_path: Path) -> None:
    saved(tmp_path)
    tiny = Store(tmp_path, largest_bytes=50)
    assert not tiny.save(OTHER, basis_of(DENSE))
    assert tiny.load(KEY, SHAPE) is not None
    above = Store(tmp_path, largest_bytes=DENSE.nbytes)  # its header is above the limit
    assert not above.save(OTHER, basis_of(DENSE))
    assert not list(tmp_path.glob(f"{OTHER}*"))


def test_files_begun_long_ago_are_removed(tmp_path: Path) -> None:
    old, new = tmp_path / f".{KEY}.old.part", tmp_path / f".{KEY}.new.part"
    foreign = tmp_path / ".foreign.part"
    for path in (old, new, foreign):
        path.write_text("")
    os.utime(old, (1000, 1000))
    os.utime(foreign, (1000, 1000))
    saved(tmp_path)
    assert not old.exists() and new.exists() and foreign.exists()


def test_many_writers_and_readers_at_once(tmp_path: Path) -> None:
    """Every load gives nothing or one whole solution, while files come and go."""
    many = [sparse.csc_array(np.full((6, 2), float(value))) for value in range(1, 5)]
    wrong: list[object] = []

    def work(value: int) -> None:
        store = Store(tmp_path, largest_bytes=3000)
        for turn in range(15):
            store.save(KEY, basis_of(many[value]))
            store.save(f"{10 * value + turn:064x}", basis_of(many[value]))
            found = store.load(KEY, SHAPE)
            if found is not None and found.columns is not None:
                numbers = set(found.columns.data.tolist())
                if len(numbers) != 1 or not numbers <= {1.0, 2.0, 3.0, 4.0}:
                    wrong.append(numbers)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not list(tmp_path.glob(".*.part"))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3000


# --- keys ---------------------------------------------------------------------------------


def key_of(group: Group, representation: Representation) -> str:
    return solution_key(Problem(group, representation.products[0]))


def twice(elements: torch.Tensor) -> torch.Tensor:
    return torch.block_diag(elements, elements)


def unmoved(elements: torch.Tensor) -> torch.Tensor:
    return torch.eye(2 * elements.shape[-1], dtype=elements.dtype)


def test_keys_tell_problems_apart() -> None:
    shift, back = Group("Z(3)", discrete=[[1, 2, 0]]), Group("Z(3)", discrete=[[2, 0, 1]])
    turn = Group("SO(2)", algebra=[[[0, -1], [1, 0]]])
    as_discrete = Group("SO(2)", discrete=[[[0, -1], [1, 0]]])
    tiny = Group("SO(2)", algebra=[[[0, -1e-13], [1e-13, 0]]])
    nothing = Group("nothing", algebra=[np.zeros((2, 2))])
    scaling = Group("scaling", algebra=[np.eye(2)])
    phase = Group("phase", algebra=[1j * np.eye(2)])
    keys = [
        key_of(shift, T(2)),
        key_of(shift, T(3)),
        key_of(back, T(2)),
        key_of(shift, custom("W", twice)),
        key_of(shift, custom("W", unmoved)),  # the same name
        key_of(shift, V * custom("W", twice)),
        key_of(shift, custom("W", twice) * V),
        *(key_of(group, T(2)) for group in (turn, as_discrete, tiny, nothing, scaling, phase)),
        key_of(scaling, T(1, 1)),
        key_of(Group("none", dimension=2), T(2)),
        key_of(Group("none", dimension=4), V),
    ]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 64 for key in keys)


def test_keys_depend_on_matrices_alone() -> None:
    as_places = Group("one", discrete=[[1, 2, 0]])
    as_matrix = Group("another", discrete=[[[0.0, -0.0, 1], [1, 0, 0], [0, 1, -0.0]]])
    assert key_of(as_places, T(2)) == key_of(as_matrix, T(2))
    assert key_of(as_places, T(2)) == key_of(as_places, T(1, 1))  # orthogonal


def test_a_solution_of_a_solver_and_back(tmp_path: Path) -> None:
    problem = Problem(Group("Z(5)", discrete=[[1, 2, 3, 4, 0]]), T(3).products[0])
    columns = orbit_basis(problem)
    assert columns is not None
    basis = Basis(columns.shape[1], problem.size, problem.shape, "orbits", 0.0, 0.1, columns)
    key = solution_key(problem)
    assert Store(tmp_path).save(key, basis)
    found = Store(tmp_path).load(key, problem.shape)
    assert found is not None and found.columns is not None
    assert residual(problem, found.columns) == 0.0
    assert (found.rank, found.size, found.shape) == (25, 125, (5, 5, 5))
