"""What a long computation has found so far, in a file of the run folder, one line each.

The first line says what the rows depend on besides themselves. Rows of anything else are not taken
over: those of another network, or of other data.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isotropy.records import plain, read_lines, write_lines


class KeptRows:
    """Rows of a file.

    of: what they depend on
    resume: whether to take over what the file holds; those rows are then in `before`
    """

    def __init__(self, path: Path, of: Mapping[str, Any], *, resume: bool) -> None:
        self.path = path
        self._rows: list[dict[str, Any]] = [{"of": plain(of)}]
        found = read_lines(path) if resume and path.exists() else []
        if found[:1] == self._rows:
            self._rows = found
        else:
            write_lines(path, self._rows)
        self.before = self._rows[1:]

    def add(self, row: Mapping[str, Any]) -> None:
        """Keep one more."""
        self._rows.append(dict(row))
        write_lines(self.path, self._rows)


class KeptValues(MutableMapping[str, float]):
    """Numbers by name, each kept as soon as it is set; one that is not finite comes back as NaN."""

    def __init__(self, rows: KeptRows) -> None:
        self._rows = rows
        self._values = {
            str(row["name"]): math.nan if row["value"] is None else float(row["value"])
            for row in rows.before
        }

    def __getitem__(self, name: str) -> float:
        return self._values[name]

    def __setitem__(self, name: str, value: float) -> None:
        self._values[name] = value
        self._rows.add({"name": name, "value": value})

    def __delitem__(self, name: str) -> None:
        raise TypeError("what was found is not taken back")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def made_with(config: Mapping[str, Any], network: nn.Module) -> dict[str, Any]:
    """What rows of a run depend on: its settings, data, symmetries, and the network's weights."""
    digest = hashlib.sha256()
    for tensor in network.state_dict().values():
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return {
        "schedule": config["schedule"],
        "data": config["data"]["fingerprint"],
        "generators": config["generators"],
        "weights": digest.hexdigest(),
    }
