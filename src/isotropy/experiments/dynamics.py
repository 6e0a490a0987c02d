"""Table 2.2 and Figure 2.6: a double spring pendulum learned with and without its symmetry.

Rows are KIND/NETWORK: `HNN/O(2)`, `ODE/MLP`. The seeds of a row are trained together. Settings and
published numbers are in `dynamics.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import exp, log
from statistics import mean
from typing import Any

import torch
from torch import nn

from isotropy.experiments.dynamics_fitting import DynamicsSettings, fit_dynamics
from isotropy.experiments.pendulum import DURATION, STATE, PendulumData, pendulum_data
from isotropy.experiments.series import Series, SeriesJob, read_table
from isotropy.networks.equivariant.emlp import EMLP, plain_mlp
from isotropy.networks.zoo.backbones import HamiltonianNetwork, NeuralODE
from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.representations import Scalar

KINDS = {"HNN": HamiltonianNetwork, "ODE": NeuralODE}
STATE_SIZE = 12


def jobs(table: Mapping[str, Any], quick: bool) -> list[SeriesJob]:
    """Every kind and network of the table."""
    changed = dict(table["quick"]) if quick else {}
    networks = changed.pop("networks", list(table["networks"]))
    seeds = tuple(changed.pop("seeds", table["seeds"]))
    settings = {**table["settings"], **changed}
    found = []
    for kind in table["kinds"]:
        for network in networks:
            own = {**settings, "kind": kind, "network": network}
            own["group"] = table["networks"][network]
            # A Hamiltonian network is differentiated twice, and an MLP has fewer kernels.
            cost = (3.0 if kind == "HNN" else 1.0) * (4.0 if own["group"] else 1.0)
            found.append(SeriesJob(f"{kind}/{network}", seeds, own, cost))
    return found


def run(job: SeriesJob, device: torch.device) -> list[dict[str, Any]]:
    """Train the seeds of one row and roll them out; the numbers of each."""
    own = job.settings
    settings = DynamicsSettings(
        epochs=own["epochs"],
        learning_rate=own["learning_rate"],
        within=own["within"],
        duration=own.get("duration", DURATION),
    )
    data, networks = [], []
    for seed in job.seeds:
        generator = torch.Generator().manual_seed(seed)
        made = pendulum_data(own["examples"], generator)
        parts = (made.training, made.validation, made.test)
        data.append(PendulumData(*(part.to(device) for part in parts)))
        networks.append(_network(own, seed).to(device))
    found = fit_dynamics(networks, data, settings)
    described = {key: own[key] for key in ("kind", "network", "channels", "examples", "within")}
    described["parameters"] = sum(each.numel() for each in networks[0].parameters())
    return [
        {
            **described,
            **asdict(each),
            "seconds": each.seconds / len(found),
            "seeds_together": len(found),
        }
        for each in found
    ]


def _network(own: Mapping[str, Any], seed: int) -> nn.Module:
    outputs = 1 if own["kind"] == "HNN" else STATE_SIZE
    channels, layers = own["channels"], own["layers"]
    if not own["group"]:
        torch.manual_seed(seed)
        inner: nn.Module = plain_mlp(STATE_SIZE, outputs, channels=channels, layers=layers)
    else:
        inner = EMLP(
            STATE,
            Scalar if own["kind"] == "HNN" else STATE,
            group_named(own["group"]),
            channels=channels,
            layers=layers,
            generator=torch.Generator().manual_seed(seed),
        )
    return KINDS[own["kind"]](inner)


# -- what came out -----------------------------------------------------------------------------


def table_of(records: Sequence[Mapping[str, Any]], number: str) -> dict[str, dict[str, float]]:
    """{kind: {network: geometric mean over seeds of this number}}."""
    values: dict[str, dict[str, list[float]]] = {}
    for record in records:
        if record[number]:
            by_network = values.setdefault(record["kind"], {})
            by_network.setdefault(record["network"], []).append(record[number])
    return {
        kind: {network: exp(mean(map(log, each))) for network, each in networks.items()}
        for kind, networks in values.items()
    }


def goals(records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """What the thesis's table and figure show, and whether these records do."""
    errors, drifts = table_of(records, "rollout_error"), table_of(records, "momentum_error")
    if set(errors) != set(KINDS) or any(
        not {"O(2)", "D6", "D2", "MLP"} <= set(networks) for networks in errors.values()
    ):
        return {}
    hamiltonian, ode = errors["HNN"], errors["ODE"]
    return {
        "O(2) is best among Hamiltonian networks": min(hamiltonian, key=hamiltonian.get) == "O(2)",  # type: ignore[arg-type]
        "O(2) is best among neural ODEs": min(ode, key=ode.get) == "O(2)",  # type: ignore[arg-type]
        "every Hamiltonian network is better than its neural ODE": all(
            hamiltonian[network] < error for network, error in ode.items()
        ),
        "the MLP is worst among Hamiltonian networks": max(hamiltonian, key=hamiltonian.get)  # type: ignore[arg-type]
        == "MLP",
        "D6 conserves angular momentum ten times better than D2": 10 * drifts["HNN"]["D6"]
        < drifts["HNN"]["D2"],
    }


def summary(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Both tables, published numbers beside them, and the goals."""
    lines = []
    published = read_table("dynamics")["published"]
    for number in ("rollout_error", "momentum_error"):
        for kind, networks in table_of(records, number).items():
            lines.append(f"{kind}, {number.replace('_', ' ')}, geometric mean over seeds")
            for network, value in networks.items():
                known = published[kind].get(network) if number == "rollout_error" else None
                beside = "" if known is None else f"   published {known:g}"
                lines.append(f"  {network:<8}{value:10.2e}{beside}")
    told = goals(records).items()
    return lines + [f"  {'met   ' if met else 'MISSED'} {what}" for what, met in told]


SERIES = Series(jobs, run, summary)
