"""How often verdicts are right and intervals hold the truth, on data sets with a known symmetry.

Rows are TRUTH/NETWORK/N (and the number of copies, where it is not the default), with a seed for
each data set. Each is learned as a user would learn it, by `isotropy.learn` with its defaults; the
final model is trained too, so that the recorded amounts are those that a user gets.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch

from isotropy.data.textures import TextureLaw, moved_textures
from isotropy.evidence.schedule import LearnConfig
from isotropy.experiments.series import Series, SeriesJob
from isotropy.networks.specification import parse_network
from isotropy.symmetry.catalogue import actions_named
from isotropy.workflows.learning import learn

NOTHING = "random labels"
"""The truth from which nothing can be learned."""
RANGES = ("rotation 45", "rotation 180")
"""Truths whose learned rotation is compared with the true one."""


def jobs(table: Mapping[str, Any], quick: bool) -> list[SeriesJob]:
    """Every truth at every size."""
    own = {**table, **table["quick"]} if quick else table
    names = own["truths"] if quick else list(table["truths"])
    found = []
    for size in own["sizes"]:
        for truth in size.get("truths", names):
            settings = {
                "truth": truth,
                "law": _law(table["truths"][truth]),
                "right": table["truths"][truth].get("right", {}),
                "candidates": table["candidates"],
                "network": size["network"],
                "examples": size["examples"],
                "test_examples": own["test_examples"],
                "samples": size.get("samples"),
            }
            row = f"{truth}/{size['network']}/{size['examples']}"
            if "samples" in size:
                row += f"/{size['samples']} copies"
            seeds = tuple(range(table["first_seed"], table["first_seed"] + size["sets"]))
            found.append(SeriesJob(row, seeds, settings, cost=_cost(size)))
    return found


def _law(entry: Mapping[str, Any]) -> dict[str, Any]:
    known = {each.name for each in fields(TextureLaw)}
    return {name: value for name, value in entry.items() if name in known}


def _cost(size: Mapping[str, Any]) -> float:
    return float(size["examples"]) * (5.0 if size["network"] == "cnn" else 1.0)


def run(job: SeriesJob, device: torch.device) -> list[dict[str, Any]]:
    """Learn each data set of the row; what was said of it, beside the truth."""
    return [_learned(job.settings, seed, device) for seed in job.seeds]


def _learned(own: Mapping[str, Any], seed: int, device: torch.device) -> dict[str, Any]:
    problem = moved_textures(
        TextureLaw(**own["law"]), own["examples"], test_examples=own["test_examples"], seed=seed
    )
    train = problem.split.train
    shape = tuple(train.inputs.shape[1:])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = parse_network(own["network"]).build(shape, train.num_outputs)
    started = time.perf_counter()
    config = LearnConfig(seed=seed, samples=own["samples"])
    actions = actions_named(own["candidates"], shape)
    result = learn(network, problem.split, actions=actions, config=config, device=device)
    record = result.record
    verdicts = {each["name"]: each for each in record["verdicts"]}
    return {
        "truth": own["truth"],
        "network": own["network"],
        "examples": own["examples"],
        "samples": own["samples"],
        "nothing_learned": record["search"]["nothing_learned"],
        "trials": record["search"]["trials"],
        "symmetries": [
            _compared(symmetry, verdicts[symmetry["name"]], problem.truth, own)
            for symmetry in record["symmetries"]
        ],
        "settled": record["settled"],
        "log_evidence": record["log_evidence"],
        "null_log_evidence": record["null_log_evidence"],
        "test_accuracy": record["test_accuracy"],
        "seconds": time.perf_counter() - started,
    }


def _compared(
    symmetry: Mapping[str, Any],
    verdict: Mapping[str, Any],
    truth: Mapping[str, float],
    own: Mapping[str, Any],
) -> dict[str, Any]:
    name = symmetry["name"]
    low, high = symmetry["interval"]
    return {
        "name": name,
        "truth": truth[name],
        "amount": symmetry["high"],
        "interval": [low, high],
        "covers": low <= truth[name] <= high * (1 + 1e-6),
        "verdict": verdict["verdict"],
        "probability": verdict["probability"],
        "gain_nats": verdict["gain_nats"],
        "gain_interval": verdict["gain_interval"],
        "right": verdict["verdict"] in own["right"].get(name, ["absent"]),
    }


def share(values: Iterable[bool]) -> float:
    """The fraction that is true; NaN of none."""
    known = list(values)
    return sum(known) / len(known) if known else float("nan")


def within(records: Iterable[Mapping[str, Any]], tolerance: float = 0.15) -> float:
    """Share of the ±45° and ±180° sets whose rotation is within the tolerance of the truth."""
    rotations = [
        symmetry
        for record in records
        if record["truth"] in RANGES
        for symmetry in record["symmetries"]
        if symmetry["name"] == "rotation"
    ]
    return share(abs(s["amount"] - s["truth"]) <= tolerance * s["truth"] for s in rotations)


def summary(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """By network and size: verdicts that are right, ranges near the truth, intervals that cover."""
    plain = [record for record in records if record["samples"] is None]
    sizes = sorted({(record["network"], record["examples"]) for record in plain})
    lines = []
    for network, examples in sizes:
        own = [r for r in plain if (r["network"], r["examples"]) == (network, examples)]
        judged = [symmetry for record in own for symmetry in record["symmetries"]]
        unsure = [s["right"] or s["verdict"] == "cannot tell" for s in judged]
        fooled = [r for r in own if r["truth"] == NOTHING and not r["nothing_learned"]]
        lines.append(
            f"{network}, N = {examples}: {len(own)} sets, "
            f"{100 * share(s['right'] for s in judged):.1f} % of verdicts right, "
            f"{100 * share(unsure):.1f} % right or cannot tell, ranges within 15 % in "
            f"{100 * within(own):.0f} %, intervals cover in {100 * coverage(own):.1f} %, "
            f"{len(fooled)} sets of random labels called learned"
        )
    return lines + samples_lines(records)


def coverage(records: Iterable[Mapping[str, Any]]) -> float:
    """Share of intervals that hold the truth, over all symmetries where something was learned."""
    return share(
        symmetry["covers"]
        for record in records
        if not record["nothing_learned"]
        for symmetry in record["symmetries"]
    )


def samples_lines(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """For each data set that was learned with several numbers of copies, the rotations."""
    found: dict[int, dict[int, float]] = {}
    known = [r for r in records if r["truth"] == "rotation 45" and r["examples"] == 200]
    for record in known:
        rotation = next(s for s in record["symmetries"] if s["name"] == "rotation")
        found.setdefault(record["seed"], {})[record["samples"] or 16] = rotation["amount"]
    return [
        f"rotation 45, seed {seed}: "
        + ", ".join(f"{amounts[count]:.1f}° with {count} copies" for count in sorted(amounts))
        for seed, amounts in sorted(found.items())
        if len(amounts) > 1
    ]


SERIES = Series(jobs, run, summary, apart=True)
