"""Folders of Hugging Face datasets, by a stand-in for the library, which is an optional extra."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_files import assert_one_sentence
from PIL import Image
from stream_cases import Columns

from isotropy.data.readers import read


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder that holds what it is given."""

    def save(found: Any) -> Path:
        (tmp_path / "dataset_info.json").write_text("{}")
        datasets = types.ModuleType("datasets")
        datasets.load_from_disk = lambda path: found if path == str(tmp_path) else None
        monkeypatch.setitem(sys.modules, "datasets", datasets)
        return tmp_path

    return save


def picture(value: int, size: int = 4) -> Image.Image:
    return Image.fromarray(np.full((size, size), value, np.uint8))


def test_pictures_with_parts_and_class_names(saved):
    names = {"label": ["cat", "dog"]}
    train = Columns(names, image=[picture(0), picture(255, 8), picture(51)], label=[0, 1, 1])
    test = Columns(names, image=[picture(102)], label=[0])
    split = read(saved({"train": train, "test": test}))
    assert split.train.classes == split.test.classes == ("cat", "dog")
    assert split.train.inputs.shape == (3, 1, 4, 4) and split.train.targets.tolist() == [0, 1, 1]
    assert split.train.inputs.mean((1, 2, 3)).tolist() == pytest.approx([0, 1, 0.2])
    assert split.test.inputs.mean() == pytest.approx(0.4)
    assert "1 pictures resized to 4 × 4" in split.notes


def test_sounds_are_sequences(saved):
    sounds = [{"array": np.arange(n, dtype=float), "sampling_rate": 8000} for n in (5, 5, 7, 3)]
    split = read(saved(Columns(audio=sounds, label=[0, 1, 0, 1])), hold_out_fraction=0)
    assert split.train.inputs.shape == (4, 1, 5)
    assert split.train.inputs[3, 0].tolist() == [0, 1, 2, 0, 0]
    assert "2 sounds cut or filled to 5 samples" in split.notes


def test_arrays(saved):
    values = np.random.default_rng(0).normal(size=(4, 2, 6)).tolist()
    folder = saved(Columns(x=values, y=[0, 1, 0, 1]))
    data = read(folder, layout="sequences", hold_out_fraction=0).train
    torch.testing.assert_close(data.inputs, torch.tensor(values))


def test_a_table(saved):
    columns = {"a": [1.0, 2.0, None, 4.0], "b": [0.5, 0.1, 0.2, 0.3], "label": [1, 0, 1, 1]}
    folder = saved(Columns({"label": ["no", "yes"]}, **columns))
    data = read(folder, hold_out_fraction=0).train
    assert data.columns == ("a", "b") and data.classes == ("no", "yes")
    assert data.targets.tolist() == [1, 0, 1] and data.scaling.mean[0] == pytest.approx(7 / 3)
    assert not read(folder, target="b", hold_out_fraction=0).train.is_classification


def test_mistakes(saved, monkeypatch):
    assert_one_sentence(saved(Columns(x=[[1, 2], [3]], y=[0, 1])), None, "arrays of one shape")
    assert_one_sentence(saved(Columns(y=[0, 1])), None, "an input and a target")
    folder = saved(Columns(x=[[1.0], [2.0]], y=[0, 1]))
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert_one_sentence(folder, folder, r"install isotropy\[datasets\]")
