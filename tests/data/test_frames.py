"""Pictures of episodes: drawn where a driver is, and never at the cost of the process that asks."""

from __future__ import annotations

import numpy as np
import pytest

from isotropy.data.frames import SIZE, frames

pytest.importorskip("mujoco", reason="mujoco is not installed")
ACTIONS = np.zeros((12, 6))


def test_pictures_of_an_episode() -> None:
    found = frames("Walker2d-v5", {}, ACTIONS, seed=3, count=4)
    if found is None:
        pytest.skip("nothing can be drawn without a display here")
    assert found.shape == (4, SIZE, SIZE, 3) and found.dtype == np.uint8
    assert np.array_equal(found, frames("Walker2d-v5", {}, ACTIONS, seed=3, count=4))
    assert (found[0] != found[-1]).any() and found.std() > 5  # it falls, and is not one colour


def test_what_cannot_be_drawn_is_none() -> None:
    assert frames("Nothing-v0", {}, ACTIONS, seed=0, count=2) is None
    assert frames("Walker2d-v5", {}, np.zeros((3, 2)), seed=0, count=2) is None
