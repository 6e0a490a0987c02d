"""A small set of handwritten digits that comes with the package, for first steps and tests.

200 training and 100 test images of each digit, 28 × 28, chosen at random from the training and
the test images of MNIST (Y. LeCun and C. Cortes, CC BY-SA 3.0). `scripts/make_embedded_digits.py`
makes the file; `train_index` and `test_index` in it say which images of MNIST these are.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

import numpy as np

from isotropy.data.arrays import labelled_from_arrays
from isotropy.data.labelled import LabelledData, Split

FILE = "digits.npz"


def digits() -> Split:
    """2,000 training and 1,000 test images `(examples, 1, 28, 28)` in [0, 1], ten classes.

    Both parts are in random order, so the first n examples are a random sample.
    """
    with (
        resources.files("isotropy.data").joinpath(FILE).open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        train = _part(archive, "train", "MNIST digits", None)
        test = _part(archive, "test", "MNIST digits test", train)
    note = f"{len(train)} training and {len(test)} test images of MNIST that come with the package"
    return Split(train=train, test=test, notes=(note,))


def _part(archive: Any, part: str, name: str, reference: LabelledData | None) -> LabelledData:
    data, _ = labelled_from_arrays(
        archive[f"x_{part}"], archive[f"y_{part}"], name=name, reference=reference
    )
    return data
