"""Figure 2.5: how many examples an equivariant network needs, and an MLP, and an augmented one.

Rows are PROBLEM/NETWORK/N: `inertia/EMLP-O(3)/1000`, `o5/MLP/30`, `particle/MLP-Aug/300`. The seeds
of a row are trained together. Settings are in `data_efficiency.toml`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from math import exp, log
from statistics import mean
from typing import Any

import torch
from torch import nn

from isotropy.experiments.equivariant_problems import (
    LARGEST_TRAINING,
    TEST,
    VALIDATION,
    RegressionData,
    random_elements,
    regression_problem,
)
from isotropy.experiments.regression import (
    RegressionSettings,
    augmentation,
    fit_regression,
)
from isotropy.experiments.series import Series, SeriesJob
from isotropy.networks.equivariant.emlp import EMLP, plain_mlp
from isotropy.symmetry.groups.catalogue import group_named

MLP, AUGMENTED = "MLP", "MLP-Aug"
COST = {MLP: 1.0, AUGMENTED: 1.3}
"""Seconds of a step in those of an MLP; equivariant ones cost EQUIVARIANT."""
EQUIVARIANT = 6.0


def jobs(table: Mapping[str, Any], quick: bool) -> list[SeriesJob]:
    """Every problem, network and size of the table."""
    changed = table["quick"] if quick else {}
    settings = {**table["settings"], **changed}
    seeds, sizes = (changed.get(name, table[name]) for name in ("seeds", "sizes"))
    found = []
    for problem, about in table["problems"].items():
        groups = about["groups"][-1:] if quick else about["groups"]
        for network in (*(f"EMLP-{group}" for group in groups), MLP, AUGMENTED):
            for size in sizes:
                own = {**settings, "problem": problem, "network": network, "examples": size}
                own["group"] = network.removeprefix("EMLP-")
                if network in COST:
                    own["group"] = about["augmented"] if network == AUGMENTED else None
                steps = _settings(own).epochs_in_all * -(-size // own["batch_size"])
                cost = steps * COST.get(network, EQUIVARIANT)
                found.append(SeriesJob(f"{problem}/{network}/{size}", tuple(seeds), own, cost))
    return found


def run(job: SeriesJob, device: torch.device) -> list[dict[str, Any]]:
    """Train the seeds of one row; the numbers of each."""
    own = job.settings
    settings = _settings(own)
    # As many examples for every N, so that held-out data and scales are the same for all.
    examples = LARGEST_TRAINING + settings.validation + settings.test
    data, networks, generators = [], [], []
    for seed in job.seeds:
        generator = torch.Generator().manual_seed(seed)
        data.append(_on(regression_problem(own["problem"], generator, examples), device))
        networks.append(_network(own, data[-1], seed).to(device))
        generators.append(torch.Generator(device).manual_seed(seed))
    moved = None
    if own["network"] == AUGMENTED:
        group = group_named(own["group"])
        elements = random_elements(
            group, own["elements"], torch.Generator().manual_seed(job.seeds[0])
        )
        moved = augmentation(data[0], group, elements.to(device))
    found = fit_regression(networks, data, settings, generators, moved)
    parameters = sum(each.numel() for each in networks[0].parameters())
    described = {key: own[key] for key in ("problem", "network", "examples", "channels")}
    # Seconds are a seed's share of those that the row took.
    return [
        {
            **described,
            "parameters": parameters,
            **asdict(each),
            "seconds": each.seconds / len(found),
            "seeds_together": len(found),
        }
        for each in found
    ]


def _settings(own: Mapping[str, Any]) -> RegressionSettings:
    return RegressionSettings(
        examples=own["examples"],
        batch_size=own["batch_size"],
        learning_rate=own["learning_rate"],
        epochs=own.get("epochs"),
        validation=own.get("validation", VALIDATION),
        test=own.get("test", TEST),
    )


def _network(own: Mapping[str, Any], data: RegressionData, seed: int) -> nn.Module:
    channels, layers = own["channels"], own["layers"]
    if own["network"] in COST:
        torch.manual_seed(seed)
        sizes = data.inputs.shape[1], data.targets.shape[1]
        return plain_mlp(*sizes, channels=channels, layers=layers)
    generator = torch.Generator().manual_seed(seed)
    group = group_named(own["group"])
    return EMLP(
        data.source, data.target, group, channels=channels, layers=layers, generator=generator
    )


def _on(data: RegressionData, device: torch.device) -> RegressionData:
    names = ("inputs", "targets", "input_scale", "target_mean", "target_scale")
    return replace(data, **{name: getattr(data, name).to(device) for name in names})


# -- what came out -----------------------------------------------------------------------------


def mean_errors(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[int, float]]]:
    """{problem: {network: {N: geometric mean of test errors over seeds}}}, failed ones left out."""
    found: dict[str, dict[str, dict[int, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for record in records:
        if record["test_error"]:
            by_size = found[record["problem"]][record["network"]]
            by_size[record["examples"]].append(record["test_error"])
    return {
        problem: {
            network: {size: exp(mean(map(log, values))) for size, values in sorted(sizes.items())}
            for network, sizes in networks.items()
        }
        for problem, networks in found.items()
    }


def comparisons(
    records: Sequence[Mapping[str, Any]], rivals: Sequence[str] = (MLP, AUGMENTED)
) -> Iterator[tuple[str, str, int, float]]:
    """(problem, rival, N, the rival's error over the best equivariant network's), N ≥ 100."""
    for problem, networks in mean_errors(records).items():
        equivariant = [errors for name, errors in networks.items() if name.startswith("EMLP")]
        for rival in rivals:
            for size, error in networks.get(rival, {}).items():
                own = [errors[size] for errors in equivariant if size in errors]
                if own and size >= 100:
                    yield problem, rival, size, error / min(own)


def summary(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table of errors, and the two goals."""
    lines = []
    for problem, networks in mean_errors(records).items():
        sizes = sorted({size for errors in networks.values() for size in errors})
        lines.append(f"{problem:<18}" + "".join(f"{size:>10}" for size in sizes))
        for network, errors in networks.items():
            cells = (f"{errors[size]:10.2e}" if size in errors else " " * 10 for size in sizes)
            lines.append(f"  {network:<16}" + "".join(cells))
    found = list(comparisons(records))
    if found:
        problem, rival, size, least = min(found, key=lambda each: each[3])
        lines.append(
            f"the best EMLP is better by {least:.2g} at least for N ≥ 100 ({problem}, {rival}, "
            f"N = {size})"
        )
    at_thousand = {p: ratio for p, rival, size, ratio in found if rival == MLP and size == 1000}
    if at_thousand:
        told = ", ".join(f"{problem} {ratio:.3g}" for problem, ratio in at_thousand.items())
        lines.append(f"the MLP's error over the best EMLP's at N = 1000: {told}")
    return lines


SERIES = Series(jobs, run, summary)
