"""Rotated MNIST with 12,000 training images: Table 4.1 of Finzi (2023).

Rows are networks; settings and published numbers are in `rotated_mnist.toml`:

    vit               a small vision transformer
    …-pretrained      the same after masked pretraining on the training images
    convnet           a plain convolutional network
    …-c4, …-d4        what `isotropy.build` makes of it for quarter turns, and for flips too
    …-averaged        its outputs averaged over all angles, in training too
    …-augmented       every image turned anew in each epoch

Of each a record keeps the test error in per cent, the Lie derivative error of rotation (Eq. 4.4),
and what quarter turns change, which need no resampling: the mean square of the change of the
probabilities, and the share of predictions that change.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import nn

from isotropy.data.labelled import Split
from isotropy.data.variants import vary
from isotropy.experiments.runner import Job, Series, goal_lines, read_table
from isotropy.experiments.thesis.masked_pretraining import PretrainingSettings, pretrain
from isotropy.experiments.thesis.measured_networks import (
    ROTATED,
    ROTATION,
    TEST,
    numbers,
    place_of,
    read_place,
    seeded,
    tested,
    train,
    unfinished,
)
from isotropy.records import load_tensors, save_tensors
from isotropy.workflows.building import build
from isotropy.workflows.measuring import measure, measured_actions

TURNS = "quarter turns"
EXACT = 1e-8
"""Error under quarter turns up to which a network has them exactly, in single precision."""
COST = {"vit": 2.0, "convnet": 1.0}
LOSSES = "losses"

Record = Mapping[str, Any]


def jobs(table: Mapping[str, Any], quick: bool) -> list[Job]:
    """One row a network."""
    small = table["quick"] if quick else {}
    found = []
    for name in small.get("networks", table["networks"]):
        network = table["networks"][name]
        parts = ["settings"]
        parts += ["transformer"] if network["model"] == "vit" else []
        parts += [part for part in ("augmented", "averaged") if network.get(part)]
        config: dict[str, Any] = {}
        for part in parts:
            config |= {**table[part], **small.get(part, {})}
        own = {
            "network": name,
            "model": small.get("models", {}).get(network["model"], network["model"]),
            "symmetry": network.get("symmetry"),
            "averaged": network.get("averaged", False),
            "pretraining": None,
            **{key: small.get(key, table[key]) for key in ("data", "train_examples", "examples")},
            "config": config,
        }
        cost = COST[network["model"]] * (4 if network.get("symmetry") else 1)
        if network.get("pretrained"):
            own["pretraining"] = {**table["pretraining"], **small.get("pretraining", {})}
            cost *= 2
        cost *= config["samples"]
        found.append(Job(name, tuple(small.get("seeds", table["seeds"])), own, cost))
    return found


def run(job: Job, device: torch.device) -> list[dict[str, Any]]:
    """Make, train and measure the network, for each seed."""
    return [_trained(job, seed, device) for seed in job.seeds]


def _trained(job: Job, seed: int, device: torch.device) -> dict[str, Any]:
    own, started = job.settings, time.monotonic()
    split = rotated(own, seed)
    shape = tuple(split.train.inputs.shape[1:])
    network = seeded(own["model"], split, seed)
    if own["symmetry"] is not None:
        drawn = torch.Generator().manual_seed(seed)
        network = build(network, own["symmetry"], example=shape, generator=drawn).model
    losses, kept = None, _weights_file(job, seed)
    if own["pretraining"] is not None:
        losses = _pretrained(network, split, own["pretraining"], kept, seed, device)
    result = train(network, split, job, seed, device)
    if kept is not None:
        kept.unlink(missing_ok=True)
    # Copies of augmentation were for training alone; where they are the model, they stay.
    model = result.model if own["averaged"] else result.model.network
    (entry,) = measure(
        model.eval().to(device),
        {TEST: tested(split)},
        measured_actions(shape, (ROTATION,)),
        on="probabilities",
        layers=False,
        examples=own["examples"],
        seed=seed,
    ).entries
    found = numbers(entry)
    return {
        **{name: own[name] for name in ("network", "model", "symmetry", "data", "examples")},
        "train_examples": len(split.train),
        "test_examples": len(tested(split)),
        "config": own["config"],
        "parameters": entry["parameters"],
        "test_error": 100 * (1 - found["accuracy"]),
        "rotation": found["errors"][ROTATION],
        "quarter_turns": found["exact"][TURNS],
        "pretraining": own["pretraining"],
        "pretraining_loss": None if losses is None else [losses[0], losses[-1]],
        "seconds": time.monotonic() - started,
    }


def rotated(own: Mapping[str, Any], seed: int) -> Split:
    """Images at any angle, so many of them for training, drawn by the seed."""
    split = _turned(place_of(own, own["data"]))
    return replace(split, train=split.train.subset(own["train_examples"], seed))


@cache
def _turned(place: str | None) -> Split:
    """Kept for the next row of a worker."""
    return vary(read_place(place), ROTATED)


def _weights_file(job: Job, seed: int) -> Path | None:
    """Where weights lie after pretraining, beside the run folder of a row that is not done."""
    if "unfinished" not in job.settings:
        return None
    folder = unfinished(job, seed)
    return folder.with_name(f"{folder.name}-pretrained.safetensors")


def _pretrained(
    network: nn.Module,
    split: Split,
    settings: Mapping[str, Any],
    kept: Path | None,
    seed: int,
    device: torch.device,
) -> list[float]:
    """Pretrain in place, or take the weights that a row left which was cut off later."""
    if kept is not None and kept.exists():
        tensors, about = load_tensors(kept)
        network.load_state_dict(tensors)
        return list(about[LOSSES])
    images = split.train.inputs.to(device)
    losses = pretrain(network.to(device), images, PretrainingSettings(**settings), seed=seed)
    network.cpu()
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        save_tensors(kept, dict(network.state_dict()), {LOSSES: losses})
    return losses


# -- what came out -----------------------------------------------------------------------------


def grouped(records: Sequence[Record]) -> dict[str, list[Record]]:
    """{network: records of the seeds}, in the order of the table."""
    found: dict[str, list[Record]] = {}
    for name in read_table("rotated-mnist")["networks"]:
        own = [each for each in records if each["network"] == name]
        if own:
            found[name] = own
    return found


def goals(records: Sequence[Record]) -> dict[str, bool]:
    """What the table should show, and whether these records do; means over seeds."""
    found = grouped(records)
    errors = {name: mean(each["test_error"] for each in own) for name, own in found.items()}
    published = read_table("rotated-mnist")["published"]
    told: dict[str, bool] = {}

    def below(first: str, second: str, what: str) -> None:
        if first in errors and second in errors:
            numbers_told = f"{errors[first]:.2f} against {errors[second]:.2f} %"
            told[f"{what} ({numbers_told})"] = errors[first] < errors[second]

    below("vit-pretrained", "vit", "masked pretraining lowers the transformer's test error")
    below(
        "vit-pretrained-augmented",
        "vit-augmented",
        "masked pretraining lowers it with augmentation too",
    )
    below("convnet-c4", "convnet", "quarter turns built in lower the test error")
    below("convnet-averaged", "convnet", "an average over all angles lowers the test error")
    transformers = [errors[n] for n in errors if n.startswith("vit-pretrained")]
    built = [errors[n] for n in errors if n.startswith(("convnet-c4", "convnet-d4"))]
    if transformers and built:
        best, other = min(transformers), min(built)
        what = "the best pretrained transformer is as good as the best network that was built"
        told[f"{what} ({best:.2f} against {other:.2f} %)"] = best <= other
    if transformers:
        worst = published["G-CNN"]
        what = f"the best pretrained transformer is below the published G-CNN, {worst} %"
        told[f"{what} ({min(transformers):.2f} %)"] = min(transformers) < worst
    if built:
        least = published["E(2)-CNN"]
        what = f"the best network that was built is below the published E(2)-CNN, {least} %"
        told[f"{what} ({min(built):.2f} %)"] = min(built) < least
    exact = {
        name: max(each["quarter_turns"]["error"] for each in own)
        for name, own in found.items()
        if own[0]["symmetry"] is not None
    }
    if exact:
        largest = max(exact.values())
        what = "quarter turns that are built in are exact after training"
        told[f"{what} (largest error {largest:.1g})"] = largest < EXACT
    return told


def summary(records: Sequence[Record]) -> list[str]:
    """Test error, errors of rotation and quarter turns by network, and the goals."""
    if not records:
        return []
    lines = [f"{'':<28}{'test error':>12}{'rotation':>12}{'quarter turns':>15}"]
    for name, own in grouped(records).items():
        error, turned, quarters = (
            mean(each["test_error"] for each in own),
            mean(each["rotation"]["error"] for each in own),
            mean(each["quarter_turns"]["error"] for each in own),
        )
        lines.append(f"{name:<28}{error:10.2f} %{turned:12.2g}{quarters:15.2g}")
    return lines + goal_lines(goals(records))


SERIES = Series(jobs, run, summary, apart=True)
