"""Pictures of an episode of a simulated robot, rendered off-screen where that works.

    frames("Walker2d-v5", {}, actions, seed=0, count=6)      uint8 (count, height, width, 3) or None

The episode is simulated again from its seed and actions, in a process of its own: a driver without
a display may end the process that asks it to draw. EGL is tried first and OSMesa second, and None
says that neither draws here. This file is run as a script there, and imports no torch.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

SIZE = 160
"""Pixels, upright and across."""
LONGEST = 120.0
"""Seconds of a try."""
ON_LINUX = (("env", "MUJOCO_GL=egl"), ("env", "MUJOCO_GL=osmesa"))
DRIVERS: tuple[tuple[str, ...], ...] = ON_LINUX if sys.platform == "linux" else ((),)


def frames(
    environment: str, options: Mapping[str, Any], actions: np.ndarray, *, seed: int, count: int
) -> np.ndarray | None:
    """`count` pictures at equal distances of an episode; None where nothing can be drawn.

    options: arguments of `gymnasium.make`; actions (steps, motors): as the environment gets them
    """
    asked = {
        "environment": environment,
        "options": dict(options),
        "actions": actions.tolist(),
        "seed": seed,
        "count": count,
    }
    for driver in DRIVERS:
        try:
            drawn = subprocess.run(
                [*driver, sys.executable, str(Path(__file__))],
                input=json.dumps(asked).encode(),
                capture_output=True,
                timeout=LONGEST,
                check=True,
            )
            found: np.ndarray = np.load(io.BytesIO(drawn.stdout), allow_pickle=False)
        except (OSError, ValueError, subprocess.SubprocessError):
            continue
        return found
    return None


def _draw(asked: Mapping[str, Any]) -> np.ndarray:
    """What `frames` returns, in the process that draws."""
    import gymnasium

    actions = np.array(asked["actions"], dtype=np.float32)
    made = gymnasium.make(
        asked["environment"], render_mode="rgb_array", width=SIZE, height=SIZE, **asked["options"]
    )
    made.reset(seed=asked["seed"])
    shown = set(np.linspace(0, len(actions) - 1, asked["count"]).round().astype(int).tolist())
    found: list[Any] = []
    for number, action in enumerate(actions):
        if number in shown:
            found.append(made.render())
        made.step(action)
    made.close()
    return np.stack(found).astype(np.uint8)


if __name__ == "__main__":
    file = io.BytesIO()
    np.save(file, _draw(json.loads(sys.stdin.buffer.read())))
    sys.stdout.buffer.write(file.getvalue())
