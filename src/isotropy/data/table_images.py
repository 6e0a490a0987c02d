"""Tables of numbers as images: a row's features, zeros after them, in rows of pixels.

    (f₁ … f₈) on 3 × 3          f₁ f₂ f₃
                                f₄ f₅ f₆
                                f₇ f₈ 0

so that convolutions can be tried where neighbourhood means nothing: translations are a misspecified
symmetry (Finzi 2023, 3.5.3 and Table 3.1). A folder holds `data.csv` or `data.csv.gz`, numbers
without a header, the target in the last column, and, if there are known splits,
`test_mask.csv` or `test_mask.csv.gz`: a row an example, a column a split, 1 for test.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from isotropy.checks import CallerError
from isotropy.data.formats import existing_path
from isotropy.data.labelled import LabelledData, Split

TRAIN_SHARE = 0.8


def table_images(folder: str | Path, *, split: int | None = None) -> Split:
    """A table as images (examples, 1, height, width) with targets (examples, 1).

    split: a column of the test mask; None: the first 80 % of rows for training, the others for
           test, as the published code has it
    The image is the smallest that is square or one row higher. Values are as in the file.

    Raises CallerError for files that are missing or no tables of numbers, and unknown splits.
    """
    place = existing_path(folder)
    table = _numbers(place, "data")
    if table.shape[1] < 2:
        raise CallerError(f"{place}: expected features and a target, got {table.shape[1]} column")
    test = np.arange(len(table)) >= round(TRAIN_SHARE * len(table))
    if split is not None:
        masks = _numbers(place, "test_mask")
        if len(masks) != len(table) or not 0 <= split < masks.shape[1]:
            raise CallerError(
                f"{place}: expected a split from 0 to {masks.shape[1] - 1} of {len(table)} rows, "
                f"got split {split} of a mask with {len(masks)} rows"
            )
        test = masks[:, split] > 0.5
    if test.all() or not test.any():
        raise CallerError(f"{place}: expected rows for training and for test, got one of them only")
    images = as_images(torch.from_numpy(table[:, :-1]).float())
    targets = torch.from_numpy(table[:, -1:]).float()
    train, testing = (
        LabelledData(images[where], targets[where], None, place.name + told)
        for where, told in ((torch.from_numpy(~test), ""), (torch.from_numpy(test), ", test"))
    )
    return Split(train, testing)


def as_images(features: torch.Tensor) -> torch.Tensor:
    """(examples, features) → (examples, 1, height, width), zeros behind the last feature."""
    count = features.shape[1]
    width = math.isqrt(count)
    height = -(-count // width)
    if height > width + 1:  # 7 features are 3 × 3 rather than 4 × 2
        width, height = width + 1, -(-count // (width + 1))
    padded = torch.nn.functional.pad(features, (0, height * width - count))
    return padded.unflatten(1, (1, height, width))


def _numbers(folder: Path, name: str) -> np.ndarray:
    """The table of this name, (rows, columns), all of it finite."""
    for path in (folder / f"{name}.csv.gz", folder / f"{name}.csv"):
        if path.is_file():
            try:
                table = np.loadtxt(path, delimiter=",", ndmin=2)
            except (ValueError, OSError, EOFError) as error:
                raise CallerError(
                    f"{path}: expected rows of numbers with commas between, got {error}"
                ) from error
            if not table.size or not np.isfinite(table).all():
                raise CallerError(f"{path}: expected rows of finite numbers, got others or none")
            return table
    raise CallerError(f"{folder}: expected {name}.csv.gz or {name}.csv, got neither")
