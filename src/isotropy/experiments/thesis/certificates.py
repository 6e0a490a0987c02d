"""Chapter 5 of the thesis: certificates of many networks on many data, and what changes them.

Rows are in `certificates.toml`. Each is one call of `isotropy.certify` with a declared grid, all of
which is trained. Beside the certificate a row keeps

    thesis_bits     what the printed account charges for the same levels: ⌈d H⌉ + 2 bits of an
                    entropy code, L⌈log₂ d⌉ for counts, 16 L for a codebook of L levels, 2 log₂ l
    thesis_bound    theorem A.3 with these bits
    label_bits      bits of the network and of the labels given its outputs (A.6)

Data are changed before anything else, training and test data alike: pixels in another order, labels
in another order, labels replaced by random ones. `pruned` rows keep a share of all weights instead
of a subspace (A.18): which ones costs log₂ C(D, k) bits.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.bounds.admission import drawn_by
from isotropy.bounds.certificate import account_of
from isotropy.bounds.coding import Prior
from isotropy.bounds.compressing import (
    Entry,
    Grid,
    Problem,
    Schedule,
    compress,
    train_fully,
)
from isotropy.bounds.inequalities import catoni
from isotropy.bounds.search import START_RATE
from isotropy.bounds.subspace import Projector, Subspace
from isotropy.checks import CallerError
from isotropy.data.labelled import LabelledData, Split
from isotropy.data.readers import digits, read
from isotropy.data.variants import vary
from isotropy.evidence.settings import LearnConfig
from isotropy.experiments.runner import Job, Series
from isotropy.networks.zoo.image_networks import Standardised
from isotropy.networks.zoo.specification import parse_network
from isotropy.symmetry.actions.catalogue import actions_named
from isotropy.workflows.certifying import CertifyConfig, CertifyResult, certify
from isotropy.workflows.learning import learn

DIGITS = "digits"
"""The data that come with the package."""
ROTATED, UPRIGHT, PIXELS = "rotations/rotated", "rotations/upright", "structure/cifar-10"
COMPARED = (
    ("quarter turns: 12 points lower on rotated digits", f"{ROTATED}-quarter-turns",
     f"{ROTATED}-plain", 12.0),
    ("quarter turns: higher on upright digits", f"{UPRIGHT}-plain", f"{UPRIGHT}-quarter-turns", 0),
    ("the learned law: lower on rotated digits", f"{ROTATED}-learned", f"{ROTATED}-plain", 0),
    ("shuffled pixels: the MLP below the CNN", "structure/mlp-pixels", "structure/cnn-pixels", 0),
    ("shuffled pixels of CIFAR-10: the MLP below the CNN", f"{PIXELS}-mlp-pixels",
     f"{PIXELS}-cnn-pixels", 0),
    ("transfer to MNIST: below the bound from scratch", "transfer/fashion-mnist-to-mnist",
     "table/mnist-two-cores", 0),
    ("transfer from CIFAR-10 to MNIST: below the bound from scratch", "transfer/cifar-10-to-mnist",
     "table/mnist-two-cores", 0),
    ("transfer to Fashion-MNIST: below the bound from scratch", "transfer/mnist-to-fashion-mnist",
     "table/fashion-mnist-two-cores", 0),
    ("transfer from CIFAR-10 to Fashion-MNIST: below the bound from scratch",
     "transfer/cifar-10-to-fashion-mnist", "table/fashion-mnist-two-cores", 0),
)  # fmt: skip
"""What must be seen, the row with the lower bound, the one with the higher, by how many points."""
SHUFFLED_LABELS = ("structure/cnn-labels", "structure/mlp-labels")
GUESSING = 90.0
"""Error of a guess among ten classes in per cent; a bound above it is vacuous."""
GRID = {"dimension": "dimensions", "step": "steps", "beta": "betas", "width": "widths",
        "seed": "seeds"}  # fmt: skip


def jobs(table: Mapping[str, Any], quick: bool) -> list[Job]:
    """Every row of the table that is run; with `quick` those that say so."""
    found = []
    for rank, (part, about) in enumerate(table["parts"].items()):
        for name, row in about["rows"].items():
            own = {**table["settings"], **about.get("settings", {}), **row, "part": part}
            if own.get("not_run") or (quick and not own.get("quick")):
                continue
            seeds = tuple(own.get("seeds", table["seeds"]))
            found.append(Job(f"{part}/{name}", seeds, own, cost=_cost(own), rank=rank))
    return found


def _cost(own: Mapping[str, Any]) -> float:
    return float(own.get("examples", 60000)) * len(own["grid"]["dimension"])


def run(job: Job, device: torch.device) -> list[dict[str, Any]]:
    """One certificate a seed."""
    return [_certified(job.settings, seed, device) for seed in job.seeds]


# --- data and networks ----------------------------------------------------------------------------


def _data(own: Mapping[str, Any], name: str) -> Split:
    if name == DIGITS:
        split = digits()
    elif name in own.get("places", {}):
        split = read(own["places"][name], hold_out_fraction=0.0)
    else:
        raise CallerError(
            f"row of {own['part']} needs the data set {name}; say where it is with --data "
            f"{name}=FOLDER"
        )
    split = vary(split, own.get("variant", "original"))
    if "examples" in own:
        split = replace(split, train=split.train.subset(own["examples"], 0))
    return split


def changed(split: Split, own: Mapping[str, Any], seed: int) -> Split:
    """The data with pixels or labels shuffled, or some labels drawn at random."""
    test = split.test
    train, test = (
        None if data is None else _changed(data, own, seed + place)
        for place, data in enumerate((split.train, test))
    )
    assert train is not None
    return replace(split, train=train, test=test)


def _changed(data: LabelledData, own: Mapping[str, Any], seed: int) -> LabelledData:
    generator = torch.Generator().manual_seed(seed)
    if own.get("shuffle") == "pixels":
        flat = data.inputs.flatten(2)
        order = torch.randperm(flat.shape[2], generator=torch.Generator().manual_seed(0))
        data = replace(data, inputs=flat[:, :, order].view_as(data.inputs))
    elif own.get("shuffle") == "labels":
        order = torch.randperm(len(data), generator=generator)
        data = replace(data, targets=data.targets[order])
    share = own.get("label_noise", 0.0)
    if share:
        drawn = torch.randint(data.num_classes, (len(data),), generator=generator)
        noisy = torch.rand(len(data), generator=generator) < share
        data = replace(data, targets=torch.where(noisy, drawn, data.targets))
    return data


def group_normalised(shape: Sequence[int], outputs: int, width: int) -> nn.Module:
    """The thesis's ConvNet (Table A.20) with group normalisation in place of batch statistics.

    Two 3×3 convolutions of w channels, halved by stride 2, two of 2w, halved, one of 2w; average
    over pixels; linear head. 63,738 weights with batch normalisation and w = 16 there.
    """
    channels = shape[0]
    layers: list[nn.Module] = [Standardised()]
    before = channels
    for after, stride in ((width, 1), (width, 2), (2 * width, 1), (2 * width, 2), (4 * width, 1)):
        groups = math.gcd(4, after)
        layers += [
            nn.Conv2d(before, after, 3, stride=stride, padding=1),
            nn.GroupNorm(groups, after),
            nn.ReLU(),
        ]
        before = after
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * before, outputs)
    )


class ResidualBlock(nn.Module):
    """x + two 3×3 convolutions of normalised x, halved by `stride`."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.GroupNorm(math.gcd(4, before), before), nn.ReLU(),
            nn.Conv2d(before, after, 3, stride=stride, padding=1),
            nn.GroupNorm(math.gcd(4, after), after), nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1),
        )  # fmt: skip
        self.shortcut = nn.Conv2d(before, after, 1, stride=stride)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.shortcut(inputs) + self.branch(inputs)
        return outputs


def residual(shape: Sequence[int], outputs: int, width: int) -> nn.Module:
    """A residual network of three stages of two blocks, widths w, 2w, 4w, group normalisation."""
    layers: list[nn.Module] = [Standardised(), nn.Conv2d(shape[0], width, 3, padding=1)]
    before = width
    for stage in range(3):
        for block in range(2):
            stride = 2 if stage and not block else 1
            layers.append(ResidualBlock(before, width << stage, stride))
            before = width << stage
    return nn.Sequential(
        *layers, nn.GroupNorm(math.gcd(4, before), before), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs),
    )  # fmt: skip


OWN = {"group-normalised": group_normalised, "residual": residual}
"""Networks of this series, by name."""


def _model(text: str, data: LabelledData) -> Any:
    name, _, width = text.partition(":")
    if name not in OWN:
        return parse_network(text)
    shape = tuple(data.inputs.shape[1:])
    return lambda: OWN[name](shape, data.num_outputs, int(width))


# --- one row --------------------------------------------------------------------------------------


def _settings(own: Mapping[str, Any], seed: int, examples: int) -> CertifyConfig:
    lists = {GRID[name]: tuple(each) for name, each in own["grid"].items() if name in GRID}
    lists["seeds"] = tuple(seed + each for each in lists.get("seeds", (0,)))
    grid = Grid(**lists, trials=own["grid"].get("trials", 1))
    batch = own.get("batch_size")
    return CertifyConfig(
        grid=grid,
        train=grid,
        projector=own.get("projector", "kronecker-product"),
        prior=Prior(own.get("prior", "gaussian")),
        epochs=own.get("epochs"),
        batch_size=examples if batch == "all" else batch,
        real_share=own.get("real_share", CertifyConfig.real_share),
        left_out=own.get("left_out", 0.0),
        augment=own.get("augment", False),
        stretch=own.get("stretch", False),
        samples=own.get("samples", 8),
        seed=seed,
    )


def _certified(own: Mapping[str, Any], seed: int, device: torch.device) -> dict[str, Any]:
    started = time.perf_counter()
    split = changed(_data(own, own["data"]), own, seed)
    settings = _settings(own, seed, len(split.train))
    told = {name: own[name] for name in ("part", "data", "model") if name in own}
    told |= {"published": own.get("published"), "goal": own.get("goal")}
    if "pruned" in own:
        found = _pruned(own, split, settings, device)
        return {**told, **found, "seconds": time.perf_counter() - started}
    model: Any = _model(own["model"], split.train)
    start = None
    if "transfer" in own:
        start = _transferred(own, model, split, seed, device)
        model = None
    result = certify(
        model,
        split,
        config=settings,
        symmetry=_symmetry(own, split, seed, device),
        start=start,
        device=device,
    )
    record = result.record
    names = ("bound", "train_error", "test_error", "errors", "n", "delta", "kind", "dimension",
             "bits", "message_bits", "bounds", "num_weights", "symmetry_text",
             "trained")  # fmt: skip
    told |= {name: record[name] for name in names}
    return {
        **told,
        **thesis_account(result),
        "label_bits": _label_bits(result, split.train, device),
        "seconds": time.perf_counter() - started,
    }


def _symmetry(own: Mapping[str, Any], split: Split, seed: int, device: torch.device) -> Any:
    """The group of a row, or the law that a run of `learn` finds on some of the same data."""
    if "learned" not in own:
        return own.get("group")
    about = own["learned"]
    train = split.train.subset(min(about["examples"], len(split.train)), seed)
    shape = tuple(train.inputs.shape[1:])
    with drawn_by(seed):
        network = parse_network(about["model"]).build(shape, train.num_outputs)
    config = LearnConfig(seed=seed, epochs=about["epochs"])
    actions = actions_named(about["actions"], shape)
    return learn(network, train, actions=actions, config=config, device=device)


def _transferred(
    own: Mapping[str, Any], model: Any, split: Split, seed: int, device: torch.device
) -> tuple[nn.Module, LabelledData]:
    """A network with all weights trained on another data set, but for its last layer.

    That one is as it was drawn: it says which of the other classes is seen.
    """
    other = _as_large(_data(own, own["transfer"]).train, split.train)
    schedule = Schedule.of(len(other), epochs=own.get("start_epochs"))
    network, _ = _fully_trained(model, other, split.train.num_outputs, schedule, seed, device)
    drawn = _drawn(model, other, split.train.num_outputs, seed)
    last = [name for name, module in drawn.named_modules() if isinstance(module, nn.Linear)][-1]
    network.get_submodule(last).load_state_dict(drawn.get_submodule(last).state_dict())
    return network.cpu(), other


def _as_large(data: LabelledData, like: LabelledData) -> LabelledData:
    """Images with the size and the number of channels of others; colours become grey."""
    images, (channels, *size) = data.inputs, like.inputs.shape[1:]
    if images.shape[1:] == like.inputs.shape[1:]:
        return data
    if channels == 1:
        images = images.mean(1, keepdim=True)
    resized = functional.interpolate(images, size=size, mode="bilinear", antialias=True)
    return replace(data, inputs=resized.expand(-1, channels, -1, -1).contiguous())


def _drawn(model: Any, data: LabelledData, outputs: int, seed: int) -> nn.Module:
    """The network before training."""
    with drawn_by(seed):
        network: nn.Module = (
            model() if callable(model) else model.build(tuple(data.inputs.shape[1:]), outputs)
        )
    return network


def _fully_trained(
    model: Any,
    data: LabelledData,
    outputs: int,
    schedule: Schedule,
    seed: int,
    device: torch.device,
) -> tuple[nn.Module, Problem]:
    """A network with all weights trained, and on what."""
    network = _drawn(model, data, outputs, seed).to(device)
    problem = Problem(data.inputs.to(device), data.targets.to(device), Prior(), 0.0, 0.05)
    train_fully(network, problem, replace(schedule, rate=START_RATE), seed=seed)
    return network, problem


def thesis_account(result: CertifyResult) -> dict[str, float]:
    """The printed account of the same levels, and theorem A.3 with it."""
    claim = result.claim
    levels = claim.levels().numpy()
    if not len(levels):
        return {"thesis_bits": result.record["bits"]["total"], "thesis_bound": result.bound}
    counts = np.unique(levels, return_counts=True)[1]
    shares = counts / counts.sum()
    entropy = -float((shares * np.log2(shares)).sum())
    length = math.ceil(len(levels) * entropy) + 2
    length += len(counts) * math.ceil(math.log2(len(levels))) + 16 * len(counts)
    choices = result.record["bits"]["total"] - result.record["bits"]["weights"]
    bits = length + 2 * math.log2(length) + choices
    return {"thesis_bits": bits, "thesis_bound": catoni(claim.errors, claim.n, bits, claim.delta)}


@torch.no_grad()
def _label_bits(result: CertifyResult, data: LabelledData, device: torch.device) -> float:
    """Bits of the network and, given its outputs, of the labels of the examples counted."""
    left_out = int(result.claim.start.get("left_out") or 0)
    if left_out:
        data = data.without_subset(left_out, result.claim.start["left_out_seed"])
    model = result.model.to(device).eval()
    nats = 0.0
    for inputs, targets in zip(data.inputs.split(2000), data.targets.split(2000), strict=True):
        outputs = model(inputs.to(device))
        nats += float(functional.cross_entropy(outputs, targets.to(device), reduction="sum"))
    return float(result.record["bits"]["total"]) + nats / math.log(2)


# --- pruning --------------------------------------------------------------------------------------


class Chosen(Projector):
    """Coordinates that are weights themselves: places (d,) of D."""

    def __init__(self, num_weights: int, places: Tensor) -> None:
        super().__init__(num_weights, len(places), 1.0)
        self.register_buffer("places", places, False)

    places: Tensor

    def signs_times(self, coordinates: Tensor) -> Tensor:
        return coordinates.new_zeros(self.num_weights).index_copy(0, self.places, coordinates)


def _pruned(
    own: Mapping[str, Any], split: Split, settings: CertifyConfig, device: torch.device
) -> dict[str, Any]:
    """All weights are trained, the largest kept, and these quantised; all others are zero."""
    data, seed, grid = split.train, settings.seed, settings.grid
    schedule = Schedule.of(len(data), epochs=settings.epochs, batch_size=settings.batch_size)
    model = _model(own["model"], data)
    network, problem = _fully_trained(model, data, data.num_outputs, schedule, seed, device)
    weights = torch.cat([each.detach().flatten() for each in network.parameters()])
    rows = []
    for kept in grid.dimensions:
        places = weights.abs().topk(kept).indices.sort().values
        bits = account_of(grid, settings.prior, kept, 0.0, None).total
        bits += _log2_binomial(len(weights), kept)
        for weight in network.parameters():
            nn.init.zeros_(weight)
        subspace = Subspace(network, Chosen(len(weights), places))
        subspace.coordinates.data.copy_(weights[places])
        entry = Entry(kept, grid.betas[0], 0, seed)
        found = replace(problem, other_bits=bits, prior=settings.prior, delta=settings.delta)
        fine = replace(schedule, rate=START_RATE, level_rate=0.02)
        for each in compress(subspace, found, [entry], grid.steps, fine):
            own_numbers = {"train_error": each.errors / len(data), "total": bits + each.weights}
            rows.append({**each.as_dict(), **own_numbers})
    best = min(rows, key=lambda row: row["bound"])
    return {"bound": best["bound"], "train_error": best["train_error"], "n": len(data),
            "kind": "pruned", "dimension": best["dimension"], "bits": {"total": best["total"]},
            "num_weights": len(weights), "trained": rows}  # fmt: skip


def _log2_binomial(whole: int, part: int) -> float:
    nats = math.lgamma(whole + 1) - math.lgamma(part + 1) - math.lgamma(whole - part + 1)
    return nats / math.log(2)


# --- what they show -------------------------------------------------------------------------------


def goals(records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """What the rows must show, and whether these records do; bounds are means over seeds."""
    bounds: dict[str, list[float]] = defaultdict(list)
    for record in records:
        bounds[record["row"]].append(100 * record["bound"])
    means = {row: sum(each) / len(each) for row, each in bounds.items()}
    found = {}
    for row, goal in {record["row"]: record.get("goal") for record in records}.items():
        if goal is not None:
            found[f"{row}: at most {goal:g} % ({means[row]:.1f})"] = means[row] <= goal
    for what, low, high, points in COMPARED:
        if low in means and high in means:
            lead = means[high] - means[low]
            found[f"{what} ({means[low]:.1f} and {means[high]:.1f})"] = lead > 0 and lead >= points
    labels = [bound for row, bound in means.items() if row in SHUFFLED_LABELS]
    if labels:
        holds = min(labels) >= GUESSING
        found[f"shuffled labels: all bounds are vacuous (at least {min(labels):.1f})"] = holds
    return found


def summary(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Goals, and one line a row: bound, training error, bits, what was published."""
    lines = [f"{'holds' if holds else 'FAILS'}: {what}" for what, holds in goals(records).items()]
    for record in records:
        published = record.get("published")
        lines.append(
            f"{record['row']}, seed {record['seed']}: bound {100 * record['bound']:.1f} %, "
            f"training error {100 * record['train_error']:.1f} %, "
            f"{record['bits']['total']:.0f} bits, d = {record['dimension']}"
            + ("" if published is None else f"; published {published}")
        )
    return lines


SERIES = Series(jobs, run, summary, apart=True)
