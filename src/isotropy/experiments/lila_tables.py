"""Tables 1 and 2 of Immer et al. (2022): what learned invariances gain, network by network.

Rows are NETWORK/VERSION/METHOD; settings and published accuracies are in `lila_tables.toml`. A row
is one run of `isotropy.learn`, on the training data of a version and scored on its test data at
the end; nothing is chosen by that score. Beside the accuracy a row keeps the ranges, over epochs
too (Figure 2), and what the version imposed.

A run that is cut off leaves its run folder in `unfinished`, beside the records. The next call goes
on from there, on another machine if the folder is brought along.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from isotropy.checks import CallerError
from isotropy.data.labelled import Split
from isotropy.data.readers import digits, read
from isotropy.data.variants import TRUE_RANGES, vary
from isotropy.evidence.settings import LearnConfig
from isotropy.experiments.runner import Job, Series, goal_lines
from isotropy.networks.zoo.specification import parse_network
from isotropy.records import CHECKPOINT
from isotropy.workflows.learning import learn

NONE, AUGERINO, LILA, EF, GGN = "none", "augerino", "lila", "lila-ef", "lila-ggn"
TABLE_1, FISHERS = "1", "fishers"
METHODS = (NONE, AUGERINO, LILA)
"""Of networks that name no others."""
COST = {NONE: 1.0, AUGERINO: 8.0, LILA: 12.0, EF: 12.0, GGN: 40.0, "lila-correlated": 12.0}
"""Seconds of a run in those of one without copies."""
POINTS = 50
"""Of the ranges over epochs."""

Record = Mapping[str, Any]


def jobs(table: Mapping[str, Any], quick: bool) -> list[Job]:
    """Every network on every version of its data by every method."""
    networks = {"quick": table["quick"]} if quick else table["networks"]
    found = []
    for rank, (name, network) in enumerate(networks.items()):
        versions = network.get("versions", table["versions"])
        for method in network.get("methods", METHODS):
            published = network.get("published", {}).get(method, [None] * len(versions))
            for version, accuracy in zip(versions, published, strict=True):
                own = {
                    **{key: network[key] for key in ("data", "model")},
                    "examples": network.get("examples"),
                    "table": network.get("table", "quick"),
                    "network": name,
                    "version": version,
                    "method": method,
                    "published": accuracy,
                    "config": {
                        **table["settings"], **network["settings"], **table["methods"][method]
                    },
                }  # fmt: skip
                seeds = tuple(network.get("seeds", table["seeds"]))
                found.append(
                    Job(f"{name}/{version}/{method}", seeds, own, COST.get(method, 2), rank)
                )
    return found


def run(job: Job, device: torch.device) -> list[dict[str, Any]]:
    """One run of `isotropy.learn` for each seed."""
    return [_learned(job, seed, device) for seed in job.seeds]


def _learned(job: Job, seed: int, device: torch.device) -> dict[str, Any]:
    own = job.settings
    split = data_of(own)
    shape = tuple(split.train.inputs.shape[1:])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = parse_network(own["model"]).build(shape, split.train.num_outputs)
    if own["examples"]:
        split = replace(split, train=split.train.subset(own["examples"], seed))
    folder = None
    if "unfinished" in own:
        folder = Path(own["unfinished"]) / f"{job.row.replace('/', '-')}-seed{seed}"
    result = learn(
        network,
        split,
        config=LearnConfig(**own["config"], seed=seed),
        device=device,
        folder=folder,
        resume=folder is not None and (folder / CHECKPOINT).exists(),
        verdicts=0,
    )
    if folder is not None:
        shutil.rmtree(folder)
    record, history = result.record, result.history
    every = max(1, len(history) // POINTS)
    names = ("test_accuracy", "test_log_likelihood", "log_evidence_per_example", "seconds")
    return {
        **{name: own[name] for name in ("table", "network", "version", "method", "published")},
        **{name: own[name] for name in ("data", "model")},
        **{name: record.get(name) for name in names},
        "train_examples": len(split.train),
        "config": own["config"],
        "ranges": history[-1]["ranges"],
        "imposed": TRUE_RANGES[own["version"]],
        "ranges_by_epoch": [[each["epoch"], each["ranges"]] for each in history[::every]],
    }


def data_of(own: Mapping[str, Any]) -> Split:
    """The version of the data of a row, training and test data moved."""
    name, places = own["data"], own.get("places", {})
    if name != "digits" and name not in places:
        raise CallerError(
            f"row of {own['network']} needs the data set {name}; say where it is with --data "
            f"{name}=FOLDER"
        )
    return _version(places.get(name), own["version"])


@cache
def _version(place: str | None, version: str) -> Split:
    """Kept for the next row of a worker; None: the embedded digits."""
    return vary(digits() if place is None else read(place, hold_out_fraction=0.0), version)


# -- what came out -----------------------------------------------------------------------------


def accuracies(records: Sequence[Record]) -> dict[tuple[str, str], dict[str, float]]:
    """{(network, version): {method: mean over seeds of the accuracy in per cent}}."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for each in records:
        cell = found.setdefault((each["network"], each["version"]), {})
        cell.setdefault(each["method"], []).append(100 * each["test_accuracy"])
    return {key: {m: mean(values) for m, values in cell.items()} for key, cell in found.items()}


def published(records: Sequence[Record]) -> dict[tuple[str, str], dict[str, float]]:
    """{(network, version): {method: the published accuracy}}."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for each in records:
        if each["published"] is not None:
            cell = found.setdefault((each["network"], each["version"]), {})
            cell[each["method"]] = each["published"]
    return found


NEAR = {"mnist": (0.7, 8, 10), "fashion-mnist": (1.5, 8, 10), "cifar-10": (2.5, 4, 5)}
"""By data: points from the published accuracy, in so many cells of so many."""
HALF_GAIN, BUT = 0.5, 2
RANGE_ERROR = 0.1
WRN_ACCURACY, WRN_GAIN, EF_POINTS = 90.5, 4.0, 1.0
DEGREES_APART, OTHERS_APART = 5.0, 0.03


def goals(records: Sequence[Record]) -> dict[str, bool]:
    """What the tables must show, and whether these records do; only of cells that are filled."""
    ours, theirs = accuracies(records), published(records)
    of_table = {each["network"]: each["table"] for each in records}
    cells = {
        key: cell
        for key, cell in ours.items()
        if of_table[key[0]] == TABLE_1 and LILA in cell and NONE in cell
    }
    told: dict[str, bool] = {}
    if cells:
        gains = {key: cell[LILA] - cell[NONE] for key, cell in cells.items()}
        above = sum(gain > 0 for gain in gains.values())
        told[f"Table 1: LILA above none ({above} of {len(cells)} cells)"] = above == len(cells)
        half = sum(
            gain >= HALF_GAIN * (theirs[key][LILA] - theirs[key][NONE])
            for key, gain in gains.items()
        )
        what = f"Table 1: half of the published gain in all cells but {BUT}"
        told[f"{what} ({half} of {len(cells)})"] = half >= len(cells) - BUT
        told[f"Table 1: 20 of 25 cells of LILA filled ({len(cells)})"] = len(cells) >= 20
    for data, (points, needed, of) in NEAR.items():
        own = [key for key in cells if key[0].rpartition("-")[0] == data]
        near = sum(abs(cells[key][LILA] - theirs[key][LILA]) <= points for key in own)
        if own:
            what = f"{data}: LILA within {points:g} points of the paper in {needed} of {of} cells"
            told[f"{what} ({near} of {len(own)})"] = near >= needed
    return told | _of_ranges(records) | _of_wide(ours) | _of_fishers(records)


def _of_ranges(records: Sequence[Record]) -> dict[str, bool]:
    """Rotations that MLPs find, beside those imposed; means over seeds of their size."""
    found: dict[tuple[str, str], list[float]] = {}
    for each in records:
        turned = each["imposed"].get("rotation")
        if turned and each["method"] == LILA and each["network"].endswith("-mlp"):
            key = each["network"], each["version"]
            found.setdefault(key, []).append(abs(each["ranges"]["rotation"]) / turned)
    return {
        f"{network}, {version}: the rotation within 10 % ({mean(shares):.2f} of it)": (
            abs(mean(shares) - 1) <= RANGE_ERROR
        )
        for (network, version), shares in found.items()
    }


def _of_wide(ours: Mapping[tuple[str, str], Mapping[str, float]]) -> dict[str, bool]:
    cell = ours.get(("cifar-10-wrn", "original"), {})
    told = {}
    if LILA in cell:
        told[f"Table 2: LILA at least {WRN_ACCURACY} % ({cell[LILA]:.1f})"] = (
            cell[LILA] >= WRN_ACCURACY
        )
        if NONE in cell:
            gain = cell[LILA] - cell[NONE]
            told[f"Table 2: LILA {WRN_GAIN:g} points above none ({gain:.1f})"] = gain >= WRN_GAIN
        if EF in cell:
            apart = abs(cell[EF] - cell[LILA])
            told[f"Table 2: the empirical Fisher within a point ({apart:.2f})"] = apart <= EF_POINTS
    return told


def _of_fishers(records: Sequence[Record]) -> dict[str, bool]:
    """Ranges by one direction beside those by all, means over seeds that have both."""
    found: dict[tuple[str, int], dict[str, Mapping[str, float]]] = {}
    for each in records:
        if each["table"] == FISHERS:
            found.setdefault((each["version"], each["seed"]), {})[each["method"]] = each["ranges"]
    apart: dict[str, dict[str, list[float]]] = {}
    for (version, _), cell in found.items():
        if LILA in cell and GGN in cell:
            for name, value in cell[LILA].items():
                difference = abs(value) - abs(cell[GGN][name])
                apart.setdefault(version, {}).setdefault(name, []).append(difference)
    told = {}
    for version, own in apart.items():
        largest = {name: abs(mean(each)) for name, each in own.items()}
        turned = largest.pop("rotation", 0.0)
        others = max(largest.values(), default=0.0)
        what = f"{version}: ranges by one direction within 5° and 0.03 of the exact ones"
        near = turned <= DEGREES_APART and others <= OTHERS_APART
        told[f"{what} ({turned:.1f}° and {others:.3f})"] = near
    return told


def summary(records: Sequence[Record]) -> list[str]:
    """A line a network and version with what each method reaches, and the goals."""
    theirs, lines = published(records), []
    for (network, version), cell in accuracies(records).items():
        told = []
        for method, accuracy in cell.items():
            paper = theirs.get((network, version), {}).get(method)
            told.append(f"{method} {accuracy:.2f}" + (f" ({paper:.2f})" if paper else ""))
        lines.append(f"{network:<22}{version:<19}{', '.join(told)}")
    return lines + goal_lines(goals(records))


SERIES = Series(jobs, run, summary, apart=True)
