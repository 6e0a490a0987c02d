"""Differences between measurements: from data set to data set, and from network to network.

The equivariance gap is how much larger the error of one network is on one data set than on
another; drift is how much it changed from the network called "before" to the one called "after",
on the same data. Two data sets have different examples, and their standard errors add up as
independent ones do; a drift is a difference for each example, whose own standard error counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from isotropy.equivariance.measurement import mean_and_error

Entry = Mapping[str, Any]


def gaps_between(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Every network's errors on later data sets against those on the first."""
    found = []
    for model in dict.fromkeys(entry["model"] for entry in entries):
        first, *others = [entry for entry in entries if entry["model"] == model]
        for other in others:
            found += _compared(first, other, "data", {"model": model}, paired=False)
    return found


def drifts_between(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """From the network called "before" to the one called "after", on each data set."""
    found = []
    for data in dict.fromkeys(entry["data"] for entry in entries):
        named = {entry["model"]: entry for entry in entries if entry["data"] == data}
        if "before" in named and "after" in named:
            pair = named["before"], named["after"]
            found += _compared(*pair, "model", {"data": data}, paired=True)
    return found


def _compared(
    first: Entry, other: Entry, along: str, same: Mapping[str, str], *, paired: bool
) -> list[dict[str, Any]]:
    rows = []
    for before, after in zip(first["actions"], other["actions"], strict=True):
        spread = [each["standard_error"] for each in (before, after)]
        error = None if None in spread else math.hypot(*spread)
        if paired:
            differences = torch.tensor(after["errors"]) - torch.tensor(before["errors"])
            error = mean_and_error(differences)[1]
        rows.append(
            {
                **same,
                "action": after["name"],
                "from": first[along],
                "to": other[along],
                "difference": after["error"] - before["error"],
                "standard_error": error,
            }
        )
    return rows
