"""Files that claim or unpack to more than there is memory, and files with damaged bytes."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from data_files import idx_bytes, images_and_labels, write_npz, write_picture_set

from isotropy import checks
from isotropy.checks import CallerError
from isotropy.data.readers import read

IMAGES, LABELS = images_and_labels(12)


def npy_bytes(array: np.ndarray, shape: tuple[int, ...] | None = None) -> bytes:
    """An npy file, whose header may tell of another shape."""
    file = io.BytesIO()
    told = np.lib.format.header_data_from_array_1_0(array)
    np.lib.format.write_array_header_1_0(file, {**told, "shape": shape or array.shape})
    return file.getvalue() + array.tobytes()


def archive(path: Path, **entries: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in entries.items():
            file.writestr(f"{name}.npy", content)
    return path


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "usable_memory", lambda: 1 << 20)


def test_header_of_terabytes(tmp_path: Path) -> None:
    told = (10**6, 10**6, 3)
    labels = npy_bytes(LABELS)
    path = archive(tmp_path / "data.npz", x=npy_bytes(IMAGES, told), y=labels)
    with pytest.raises(CallerError, match=r"data.npz.*'x' damaged .*3,000,000,000,\d+ bytes"):
        read(path)
    (tmp_path / "x.npy").write_bytes(npy_bytes(IMAGES, told))
    (tmp_path / "y.npy").write_bytes(labels)
    with pytest.raises(CallerError, match=r"x.npy.*damaged.*3,000,000,000,\d+ bytes"):
        read(tmp_path / "x.npy")


@pytest.mark.parametrize("header", [b"{'descr': (", b"{", b"((", b"{'descr': 3}", b"\xff"])
def test_headers_that_are_no_python(header: bytes, tmp_path: Path) -> None:
    content = b"\x93NUMPY\x01\x00" + (len(header) + 1).to_bytes(2, "little") + header + b"\n"
    (tmp_path / "x.npy").write_bytes(content + bytes(100))
    (tmp_path / "y.npy").write_bytes(npy_bytes(LABELS))
    with pytest.raises(CallerError, match="x.npy.*damaged"):
        read(tmp_path / "x.npy")


@pytest.mark.usefixtures("small_machine")
def test_bombs(tmp_path: Path) -> None:
    zeros = np.zeros((12, 1000, 1000), np.uint8)
    path = archive(tmp_path / "data.npz", x=npy_bytes(zeros), y=npy_bytes(LABELS))
    assert path.stat().st_size < 100_000
    with pytest.raises(CallerError, match=r"data.npz, 'x': expected at most .*\(12,000,\d+ bytes"):
        read(path)
    packed = tmp_path / "a-idx3-ubyte.gz"
    packed.write_bytes(gzip.compress(idx_bytes(zeros)))
    with pytest.raises(CallerError, match=r"idx3-ubyte.gz, unpacked.* bytes\)"):
        read(packed)


def test_images_that_would_not_fit(tmp_path: Path) -> None:
    write_picture_set(tmp_path / "pictures")
    whole = read(write_npz(tmp_path, x=IMAGES, y=LABELS))
    for source in (whole, tmp_path / "pictures"):
        with pytest.raises(CallerError, match=r"1,000,000 × 1,000,000 pixels: .*--image-size"):
            read(source, image_size=10**6)


def test_whole_numbers_that_would_wrap() -> None:
    large = np.full((4, 2), 2**63, np.uint64)
    with pytest.raises(CallerError, match=r"below 2\^63, got 9223372036854775808"):
        read((large, np.array([0, 1, 0, 1])))
    with pytest.raises(CallerError, match=r"below 2\^63"):
        read((np.zeros((4, 2), np.float32), np.array([0, 1, 0, 2**64 - 1], np.uint64)))


@pytest.mark.parametrize("start", range(0, 300, 30))
def test_damaged_archives(start: int, tmp_path: Path) -> None:
    """Every byte in turn: read as before, read with other numbers, or refused with the path."""
    np.savez_compressed(tmp_path / "whole.npz", x=IMAGES, y=LABELS)
    whole = (tmp_path / "whole.npz").read_bytes()
    path = tmp_path / "data.npz"
    places = [*range(start, start + 30), *range(len(whole) - 330 + start, len(whole) - 300 + start)]
    for place in places:
        content = bytearray(whole)
        content[place] ^= 0xFF
        path.write_bytes(content)
        try:
            read(path)
        except CallerError as error:
            assert "data" in str(error)
