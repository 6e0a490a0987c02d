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

from isotropy.data.problems import TextureLaw, moved_textures
from isotropy.evidence.settings import LearnConfig
from isotropy.experiments.runner import Job, Series
from isotropy.networks.zoo.specification import parse_network
from isotropy.symmetry.actions.catalogue import actions_named
from isotropy.workflows.learning import learn

NOTHING = "random labels"
"""The truth from which nothing can be learned."""
MLP, MANY = "mlp:50", 1000
"""The network that the goals are about, and from how many examples on there must be no doubt."""
COPIES = (MLP, 200)
"""Network and examples of the sets that are learned with several numbers of copies."""
RANGES = ("rotation 45", "rotation 180")
"""Truths whose learned rotation is compared with the true one."""


def jobs(table: Mapping[str, Any], quick: bool) -> list[Job]:
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
                "epochs": size.get("epochs"),
            }
            row = f"{truth}/{size['network']}/{size['examples']}"
            if "samples" in size:
                row += f"/{size['samples']} copies"
            seeds = tuple(range(table["first_seed"], table["first_seed"] + size["sets"]))
            rank = (size["network"] != MLP) + (size["examples"] >= MANY)
            found.append(Job(row, seeds, settings, cost=_cost(size), rank=rank))
    return found


def _law(entry: Mapping[str, Any]) -> dict[str, Any]:
    known = {each.name for each in fields(TextureLaw)}
    return {name: value for name, value in entry.items() if name in known}


def _cost(size: Mapping[str, Any]) -> float:
    return float(size["examples"]) * (5.0 if size["network"] == "compact" else 1.0)


def run(job: Job, device: torch.device) -> list[dict[str, Any]]:
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
    config = LearnConfig(seed=seed, samples=own["samples"], epochs=own["epochs"])
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


def by_size(
    records: Iterable[Mapping[str, Any]],
) -> dict[tuple[str, int], list[Mapping[str, Any]]]:
    """The records with the usual number of copies, by network and number of examples."""
    found: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for record in records:
        if record["samples"] is None:
            found.setdefault((record["network"], record["examples"]), []).append(record)
    return dict(sorted(found.items()))


def shares_of(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What one network and size comes to.

    right, right or cannot tell: of all verdicts
    within:  see `within`
    covers:  of the intervals of all symmetries where something was learned, those with the truth
    covers what is there: the same of symmetries that the data have; the others have zero in their
             intervals unless they were taken
    fooled:  how many sets of random labels were said to have been learned
    claimed: how many of these were said to have a symmetry
    """
    judged = [symmetry for record in records for symmetry in record["symmetries"]]
    learned = [record for record in records if not record["nothing_learned"]]
    return {
        "right": share(s["right"] for s in judged),
        "right or cannot tell": share(s["right"] or s["verdict"] == "cannot tell" for s in judged),
        "within": within(records),
        "covers": share(s["covers"] for record in learned for s in record["symmetries"]),
        "covers what is there": share(
            s["covers"]
            for record in learned
            if record["truth"] != NOTHING
            for s in record["symmetries"]
            if s["truth"] > 0
        ),
        "fooled": float(sum(record["truth"] == NOTHING for record in learned)),
        "claimed": float(sum(_claims(record) for record in learned)),
    }


def _claims(record: Mapping[str, Any]) -> bool:
    """Whether a symmetry is claimed of random labels."""
    claims = any(s["verdict"] in ("present", "partial") for s in record["symmetries"])
    return record["truth"] == NOTHING and claims


def by_copies(records: Iterable[Mapping[str, Any]]) -> dict[int, dict[int, float]]:
    """Rotations of the ±45° sets that were learned with several numbers of copies, by seed."""
    found: dict[int, dict[int, float]] = {}
    for record in records:
        if record["truth"] == "rotation 45" and (record["network"], record["examples"]) == COPIES:
            rotation = next(s for s in record["symmetries"] if s["name"] == "rotation")
            found.setdefault(record["seed"], {})[record["samples"] or 16] = rotation["amount"]
    return {seed: amounts for seed, amounts in found.items() if len(amounts) > 1}


def goals(records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """What the study was made to show, and whether these records do."""
    found: dict[str, bool] = {}
    for (network, examples), own in by_size(records).items():
        if network != MLP:
            continue
        shares, few = shares_of(own), examples < MANY
        verdicts = shares["right or cannot tell" if few else "right"]
        least, near = (0.85, 0.75) if few else (0.95, 0.9)
        doubt = " or cannot tell" if few else ""
        at = f"at N = {examples:,}"
        found |= {
            f"{least:.0%} of verdicts are right{doubt} {at} ({verdicts:.1%})": verdicts >= least,
            f"ranges are within 15 % of ±45° and ±180° in {near:.0%} of the sets {at} "
            f"({shares['within']:.0%})": shares["within"] >= near,
            f"95 % intervals cover in 90 to 99 % {at} ({shares['covers']:.1%})": 0.9
            <= shares["covers"]
            <= 0.99,
            f"no set of random labels is called symmetric {at}": shares["claimed"] == 0,
        }
    spread = [max(a.values()) / min(a.values()) - 1 for a in by_copies(records).values()]
    if spread:
        found[f"4, 16 and 64 copies give ranges within 10 % (largest {max(spread):.1%})"] = (
            max(spread) <= 0.1
        )
    return found


def summary(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Goals, and by network and size what share of verdicts, ranges and intervals is right."""
    lines = [f"{'holds' if holds else 'FAILS'}: {what}" for what, holds in goals(records).items()]
    for (network, examples), own in by_size(records).items():
        told = ", ".join(f"{name} {value:.3g}" for name, value in shares_of(own).items())
        lines.append(f"{network}, N = {examples}: {len(own)} sets, {told}")
    return lines


SERIES = Series(jobs, run, summary, apart=True)
