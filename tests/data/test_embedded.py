"""The digits that come with the package, and the script that makes them."""

from __future__ import annotations

import io
import runpy
import zipfile
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from isotropy.checks import CallerError
from isotropy.data.readers import digits

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_embedded_digits.py"


@pytest.fixture(scope="module")
def split():
    return digits()


@pytest.fixture(scope="module")
def script():
    if not SCRIPT.is_file():
        pytest.skip("scripts are not part of an installed package")
    return runpy.run_path(str(SCRIPT))


def stored() -> dict[str, np.ndarray]:
    with resources.files("isotropy.data").joinpath("digits.npz").open("rb") as file:
        return dict(np.load(file, allow_pickle=False))


def test_shapes_and_values(split):
    assert split.train.inputs.shape == (2000, 1, 28, 28)
    assert split.test.inputs.shape == (1000, 1, 28, 28)
    for data in (split.train, split.test):
        assert data.inputs.dtype == torch.float32
        assert float(data.inputs.min()) == 0 and float(data.inputs.max()) == 1
        assert data.classes == tuple("0123456789")
    assert float(split.train.inputs.mean()) == pytest.approx(0.1307, abs=0.005)  # MNIST's mean


def test_classes_are_balanced_and_mixed(split):
    assert split.train.targets.bincount().tolist() == [200] * 10
    assert split.test.targets.bincount().tolist() == [100] * 10
    assert len(split.train.targets[:60].unique()) == 10


def test_no_image_is_in_both_parts_or_twice(split):
    seen = [image.numpy().tobytes() for data in (split.train, split.test) for image in data.inputs]
    assert len(set(seen)) == len(seen) == 3000
    assert all(len(set(stored()[f"{part}_index"])) > 999 for part in ("train", "test"))


def test_size_of_the_file():
    assert len(resources.files("isotropy.data").joinpath("digits.npz").read_bytes()) < 1_500_000


def test_images_match_their_labels(split):
    """Nearest class mean: about 80 % on MNIST, 10 % if labels had been shuffled."""
    means = torch.stack([split.train.inputs[split.train.targets == k].mean(0) for k in range(10)])
    distances = torch.cdist(split.test.inputs.flatten(1), means.flatten(1))
    assert float((distances.argmin(1) == split.test.targets).float().mean()) > 0.75


def test_the_shipped_file_is_packed_as_the_script_packs(script):
    """Same members, times and checksums; the compressed bytes may differ with another zlib."""
    arrays = stored()
    assert arrays["train_index"].max() < 60_000 and arrays["test_index"].max() < 10_000
    shipped = resources.files("isotropy.data").joinpath("digits.npz").read_bytes()
    members = [
        [
            (each.filename, each.date_time, each.CRC, each.file_size)
            for each in zipfile.ZipFile(io.BytesIO(content)).infolist()
        ]
        for content in (shipped, script["archive_bytes"](arrays))
    ]
    assert members[0] == members[1]


def test_the_script_refuses_a_folder_without_mnist(script, tmp_path, capsys):
    assert script["main"]([str(tmp_path)]) == 2
    assert "expected MNIST's IDX files, found none" in capsys.readouterr().err


def test_the_script_needs_enough_of_every_digit(script):
    with pytest.raises(CallerError, match="digit 0: expected at least 3 images, got 2"):
        script["choose"](np.array([0, 0, 1], dtype=np.uint8), 3, np.random.RandomState(0))
