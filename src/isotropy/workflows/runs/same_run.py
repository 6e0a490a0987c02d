"""Whether two runs are one: a fingerprint of data, and what a run folder must agree with."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from isotropy.checks import CallerError
from isotropy.data.labelled import LabelledData
from isotropy.records import plain


def fingerprint(data: LabelledData) -> str:
    """A short text that differs between data sets and is the same for the same data.

    Sizes, sums over the inputs in which every place has a weight of its own (so that mirrored or
    reordered images differ), and a hash of the targets. The sums are rounded: inputs that two
    machines computed alike but for the last bits count as the same. Of streamed data it is that of
    their number and their sample.
    """
    flat = data.inputs.flatten(1)
    examples, numbers = flat.shape
    by_example = torch.linspace(1, 2, examples, dtype=torch.float64, device=flat.device)
    by_number = torch.linspace(1, 2, numbers, dtype=torch.float64, device=flat.device)
    total = size = 0.0
    for rows, weights in zip(flat.split(1024), by_example.split(1024), strict=True):
        total += float(weights @ (rows.double() @ by_number))
        size += float(weights @ (rows.double().abs() @ by_number))
    digest = hashlib.sha256(data.targets.cpu().contiguous().numpy().tobytes()).hexdigest()[:16]
    shape = "×".join(str(length) for length in data.inputs.shape)
    if examples < len(data):
        shape = f"{len(data)}:{shape}"
    return f"{shape}/{size:.8e}/{total / (size or 1.0):.8f}/{digest}"


def check_same_run(folder: Path, before: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raise unless `config` asks for the run that the folder holds, by its config `before`."""
    now = plain(config)
    if before.get("kind") != now.get("kind"):
        raise CallerError(
            f"run folder {str(folder)!r} is of another command: expected one of "
            f"{now.get('kind') or 'learn'}, got one of {before.get('kind') or 'learn'}; choose "
            "another folder"
        )
    asked = {
        "model": ("network", *now["network"]),
        "data set": ("data", "fingerprint"),
        "objective": ("schedule", "objective"),
        "schedule": ("schedule", *now["schedule"]),
    }
    for what, (part, *names) in asked.items():
        held = before.get(part)
        for name in names:
            if name not in now[part]:  # a story has no objective of its own
                continue
            old = held.get(name) if isinstance(held, dict) else None
            if old != now[part][name]:
                raise CallerError(
                    f"run folder {str(folder)!r} is of another {what}: its {part} has {name} "
                    f"{old!r}, this run has {now[part][name]!r}"
                )
    if before.get("generators") != now.get("generators"):
        raise CallerError(
            f"run folder {str(folder)!r} is of other generators: it has "
            f"{before.get('generators')!r}, this run has {now.get('generators')!r}"
        )
    if (before.get("padding") or "zeros") != (now.get("padding") or "zeros"):
        raise CallerError(
            f"run folder {str(folder)!r} is of another padding: it has {before.get('padding')!r}, "
            f"this run has {now.get('padding')!r}"
        )
