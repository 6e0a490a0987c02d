"""Layer-wise equivariance: Tables 1, 2, 3, 4 and 7 of van der Ouderaa et al. (2023).

Rows are TABLE/PROBLEM/PATHWAYS/OBJECTIVE: `toy/digit/ffc+conv/laplace`,
`cifar10/original/conv/map`.
Settings and published numbers are in `layer_equivariance.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

import torch

from isotropy.checks import CallerError
from isotropy.data.image_folder import resized
from isotropy.data.labelled import Split
from isotropy.data.readers import digits, read
from isotropy.data.variants import LAWS, quadrants, standardised, vary
from isotropy.evidence.layers.settings import RelaxConfig
from isotropy.experiments.runner import Job, Series
from isotropy.networks.pathways.relaxed_layer import PathwayOptions
from isotropy.report.pages.relax import UNKNOWN
from isotropy.workflows.relaxing import relax_and_learn

SIZE = 32
"""Height and width of all images."""
OWN = tuple(each.name for each in fields(RelaxConfig) if each.name != "seed")
"""Settings of a row that are fields of `RelaxConfig`."""
OF_PATHWAYS = tuple(each.name for each in fields(PathwayOptions) if each.name != "group")
"""Settings of a row that are fields of `PathwayOptions`."""
KEPT = (
    "num_parameters", "test_accuracy", "test_nll", "train_loss", "log_evidence",
    "log_evidence_per_example", "train_examples", "test_examples", "layers", "hardened", "config",
    "data",
)  # fmt: skip
"""What a row keeps of a run's record."""


def jobs(table: Mapping[str, Any], quick: bool) -> list[Job]:
    """Every table, problem, sum of pathways and objective.

    Rows that are `repeated` have several seeds and come first, the others by the rank of their
    table; the quick version of a row has one.
    """
    changed = dict(table["quick"]) if quick else {}
    repeated = [] if quick else table["repeated"]["rows"]
    chosen = changed.pop("tables", list(table["tables"]))
    found = []
    for name in chosen:
        own = {**table["settings"], **table["tables"][name], **changed, "table": name}
        published = own.pop("published", {})
        lists = {key: own.pop(key) for key in ("problems", "pathways", "objectives")}
        widths = own.pop("widths", {})
        rank = own.pop("rank")
        own.pop("title")
        for problem in lists["problems"]:
            for pathways in lists["pathways"]:
                for objective in lists["objectives"]:
                    row = f"{problem}/{pathways}/{objective}"
                    settings = {
                        **own,
                        "problem": problem,
                        "pathways": pathways,
                        "width": widths.get(pathways, own["width"]),
                        "objective": objective,
                        "published": {key: by.get(row) for key, by in published.items()},
                    }
                    first = f"{name}/{problem}/{pathways}" in repeated
                    found.append(
                        Job(
                            f"{name}/{row}",
                            tuple((table["repeated"] if first else table)["seeds"]),
                            settings,
                            _cost(settings),
                            0 if first else rank,
                        )
                    )
    return found


def _cost(settings: Mapping[str, Any]) -> float:
    """About how long a row takes beside others; fitted by eye to times on one GPU."""
    cost = settings["epochs"] * (1 + 2 * settings["pathways"].count("+"))
    cost *= 1.5 if settings["objective"] == "laplace" else 1.0
    cost *= 2.5 if settings.get("learns_lengthscale") else 1.0
    return float(cost * (0.9 if settings["data"] == "CIFAR10" else 1.0))


def run(job: Job, device: torch.device) -> list[dict[str, Any]]:
    """Train the seeds of one row; the numbers of each."""
    own = job.settings
    data = _data(own["data"], own.get("places", {}).get(own["data"]), own["problem"])
    found = []
    for seed in job.seeds:
        pathways = own["pathways"].split("+")
        result = relax_and_learn(
            data,
            pathways=pathways,
            width=own["width"],
            group=own.get("group") if any(each.startswith("gconv") for each in pathways) else None,
            config=RelaxConfig(seed=seed, **{key: own[key] for key in OWN if key in own}),
            device=device,
            hardened=bool(own.get("harden")) and len(pathways) > 1,
            options=PathwayOptions(**{key: own[key] for key in OF_PATHWAYS if key in own}),
        )
        record = result.record
        described = {
            key: own[key] for key in ("table", "problem", "pathways", "objective", "width")
        }
        scored = [row for row in record["epochs"] if row["test_accuracy"] is not None]
        found.append(
            {
                **described,
                **{key: record[key] for key in KEPT},
                "published": own["published"],
                "group": record["group"],
                "history": [
                    {key: row[key] for key in ("epoch", "train_loss", "test_accuracy", "test_nll")}
                    for row in scored
                ],
                "seconds": record["seconds"],
            }
        )
    return found


@lru_cache(maxsize=4)
def _data(name: str, place: str | None, problem: str) -> Split:
    """Images of 32 × 32 with this problem's labels or transformations."""
    if name == "digits":
        split = digits()
    elif place is None:
        raise CallerError(f"expected to be told where {name} is; use --data {name}=FOLDER")
    else:
        split = read(place)
    made = (
        resized(vary(split, problem), SIZE)
        if problem in LAWS
        else quadrants(split, problem, size=SIZE)
    )
    # Black is zero before digits are standardised, and is what versions of them are filled with.
    return standardised(made) if made.train.inputs.shape[1] == 1 else made


# -- what came out -----------------------------------------------------------------------------


def summary(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line a row: accuracy, negative log likelihood, what layers became; published beside."""
    lines = []
    for record in records:
        published = record["published"]
        name = f"{record['row']}, seed {record['seed']}"
        if record["test_accuracy"] is None or record["test_nll"] is None:
            lines.append(f"{name:<56} no finite score")
            continue
        told = [f"{100 * record['test_accuracy']:6.2f} %", f"nll {record['test_nll']:.3f}"]
        if published.get("accuracy"):
            told.append(f"(published {published['accuracy']:.2f} %)")
        if record["log_evidence_per_example"] is not None:
            told.append(f"log Z/N {record['log_evidence_per_example']:.3f}")
        if record["objective"] == "laplace":
            told.append(" | ".join(layer["became"] or UNKNOWN for layer in record["layers"]))
        if record.get("hardened"):
            hardened = record["hardened"]
            told.append(
                f"hardened {100 * hardened['test_accuracy']:.2f} % with "
                f"{hardened['num_parameters']:,} of {record['num_parameters']:,} parameters"
            )
        lines.append(f"{name:<56} " + "  ".join(told))
    return lines


SERIES = Series(jobs, run, summary, apart=True)
