"""What every JSON record begins with: what was asked, and what the result was made with."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy
import torch

from isotropy._version import __version__


def record_head(
    command: str,
    *,
    seed: int,
    device: torch.device,
    seconds: float,
    run_folder: str | Path | None,
) -> dict[str, Any]:
    """The first entries of a command's record, in their order; `seconds` are those of its work."""
    return {
        "schema": 1,
        "command": command,
        "seed": seed,
        **provenance(device),
        "seconds": seconds,
        "run_folder": None if run_folder is None else str(run_folder),
    }


def provenance(device: torch.device) -> dict[str, Any]:
    """Version of the library, of what it runs on, the commit (null when installed) and device."""
    return {
        "isotropy": __version__,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
        "commit": commit(),
        "device": str(device),
        "device_name": device_name(device),
        "threads": torch.get_num_threads(),
    }


def commit() -> str | None:
    """The git commit of the source this runs from, or None outside a checkout."""
    here = Path(__file__).resolve().parent
    if not any((parent / ".git").exists() for parent in here.parents):
        return None
    try:
        found = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def device_name(device: torch.device) -> str:
    """The GPU's name, or the processor's kind."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()
