"""Make src/isotropy/data/digits.npz, the small set of digits that ships with the package.

    python scripts/make_embedded_digits.py MNIST_FOLDER [--output FILE]

MNIST_FOLDER holds train-images-idx3-ubyte, train-labels-idx1-ubyte and the two t10k files
(plain or .gz). Of each digit 200 training and 100 test images are chosen uniformly at random;
training images come from MNIST's training images and test images from its test images. The same
folder gives the same bytes (with the same zlib).
"""

from __future__ import annotations

import argparse
import io
import sys
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isotropy.checks import CallerError
from isotropy.data.formats import find_idx_folder, read_idx

SEED = 0
PER_CLASS = {"train": 200, "test": 100}
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
OUTPUT = Path(__file__).parents[1] / "src" / "isotropy" / "data" / "digits.npz"


def choose(
    labels: NDArray[np.uint8], per_class: int, random: np.random.RandomState
) -> NDArray[np.uint16]:
    """Indices of `per_class` examples of every digit, in random order."""
    chosen = []
    for digit in range(10):
        candidates = np.flatnonzero(labels == digit)
        if len(candidates) < per_class:
            raise CallerError(
                f"digit {digit}: expected at least {per_class} images, got {len(candidates)}; "
                "name a folder with all of MNIST"
            )
        chosen.append(random.permutation(candidates)[:per_class])
    return random.permutation(np.concatenate(chosen)).astype(np.uint16)


def embedded_arrays(folder: Path) -> dict[str, NDArray[np.unsignedinteger]]:
    """Images uint8 (examples, 28, 28), labels uint8 and their places in MNIST, by array name."""
    # RandomState, because its stream is frozen: every version of numpy draws the same images.
    random = np.random.RandomState(SEED)
    arrays: dict[str, NDArray[np.unsignedinteger]] = {}
    for part, (images, labels) in FILES.items():
        all_labels = read_idx(_find(folder, labels))
        index = choose(all_labels, PER_CLASS[part], random)
        arrays[f"x_{part}"] = read_idx(_find(folder, images))[index]
        arrays[f"y_{part}"] = all_labels[index]
        arrays[f"{part}_index"] = index
    return arrays


def archive_bytes(arrays: dict[str, NDArray[np.unsignedinteger]]) -> bytes:
    """An npz archive without the time and machine it was written at."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as members:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.ascontiguousarray(array), version=(1, 0))
            info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system = 3
            info.compress_type = zipfile.ZIP_DEFLATED
            members.writestr(info, member.getvalue(), compresslevel=9)
    return archive.getvalue()


def main(arguments: list[str] | None = None) -> int:
    """Write the file; exit status 0 done, 2 the caller's mistake."""
    parser = argparse.ArgumentParser(description="Make the digits that ship with the package.")
    parser.add_argument("folder", type=Path, metavar="MNIST_FOLDER")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args(arguments)
    try:
        folder = find_idx_folder(options.folder)
        if folder is None:
            raise CallerError(
                f"{options.folder}: expected MNIST's IDX files, found none; name their folder"
            )
        content = archive_bytes(embedded_arrays(folder))
    except CallerError as error:
        print(error, file=sys.stderr)
        return 2
    options.output.write_bytes(content)
    print(f"{options.output}: {len(content)} bytes")
    return 0


def _find(folder: Path, name: str) -> Path:
    plain = folder / name
    return plain if plain.is_file() else folder / f"{name}.gz"


if __name__ == "__main__":
    sys.exit(main())
