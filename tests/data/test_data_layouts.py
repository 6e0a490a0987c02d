"""Arrays in pairs of `.npy` files, and what arrays of three axes are said to be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import assert_one_sentence

from isotropy.checks import CallerError
from isotropy.data.readers import read

X = np.random.default_rng(0).normal(size=(12, 2, 9)).astype(np.float32)
Y = np.arange(12) % 3


@pytest.mark.parametrize(
    "inputs, targets",
    [
        ("x", "y"),
        ("X", "y"),
        ("inputs", "targets"),
        ("images", "labels"),
        ("birds_x", "birds_y"),
        ("features-2024", "labels-2024"),
    ],
)
def test_pairs_of_npy_files(tmp_path, inputs, targets):
    np.save(tmp_path / f"{inputs}.npy", X)
    np.save(tmp_path / f"{targets}.npy", Y)
    data = read(tmp_path / f"{inputs}.npy", layout="sequences", hold_out_fraction=0).train
    torch.testing.assert_close(data.inputs, torch.from_numpy(X))
    assert data.targets.tolist() == Y.tolist() and data.name == tmp_path.name


def test_a_folder_of_npy_files_with_a_test_part(tmp_path):
    for part, rows in (("train", slice(0, 8)), ("test", slice(8, 12))):
        np.save(tmp_path / f"x_{part}.npy", X[rows])
        np.save(tmp_path / f"y_{part}.npy", Y[rows])
    split = read(tmp_path, layout="clouds")
    assert (len(split.train), len(split.test)) == (8, 4)
    assert split.train.inputs.shape[1:] == (2, 9)
    test = read(tmp_path, tmp_path / "x_test.npy").test
    assert len(test) == 4


def alone(folder: Path) -> Path:
    np.save(folder / "x.npy", X)
    return folder / "x.npy"


def pickled(folder: Path) -> Path:
    np.save(folder / "x.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
    np.save(folder / "y.npy", Y)
    return folder / "x.npy"


def cut(folder: Path) -> Path:
    path = alone(folder)
    np.save(folder / "y.npy", Y)
    path.write_bytes(path.read_bytes()[:-40])
    return path


@pytest.mark.parametrize(
    "make, sentence",
    [
        (alone, "expected its targets beside it, such as y.npy"),
        (pickled, "pickled Python objects, which are never opened"),
        (cut, "got a damaged one"),
    ],
)
def test_mistakes_with_npy_files(tmp_path, make, sentence):
    source = make(tmp_path)
    assert_one_sentence(source, source, sentence)


def test_layouts(tmp_path):
    np.savez(tmp_path / "waves.npz", x=X, y=Y)
    shapes = {
        layout: tuple(read(tmp_path / "waves.npz", layout=layout).train.inputs.shape[1:])
        for layout in ("auto", "images", "sequences", "clouds")
    }
    assert shapes == {
        "auto": (1, 2, 9), "images": (1, 2, 9), "sequences": (2, 9), "clouds": (2, 9),
    }  # fmt: skip
    one_channel = read((X[:, 0], Y), layout="sequences")
    assert one_channel.train.inputs.shape[1:] == (1, 9)
    assert one_channel.notes[0] == "one channel: (12, 9) became (12, 1, 9)"
    with pytest.raises(CallerError, match=r"clouds: expected \(examples, points, dimensions\)"):
        read((X[:, 0], Y), layout="clouds")
    with pytest.raises(CallerError, match="unknown layout 'waves'"):
        read((X, Y), layout="waves")
