"""The symmetry of trained networks: Figures 4.4 to 4.7 and A.3 of Finzi (2023), on small networks.

Rows are PROBLEM/NETWORK, such as `cifar10/vit-augmented`; settings are in `measured_networks.toml`.
A row trains a network by `isotropy.learn` and has `isotropy.measure` look at it on training data,
test data, and data from elsewhere. Of each data set a record keeps

    errors        of every generator the squared Lie derivative of the probabilities per class
                  (Eq. 4.4), its standard error over images, its floor, and the finite error
    eq_t, eq_t_frac   mean squares under shifts by whole pixels and by any amount
    exact         under quarter turns and whole-pixel shifts: the error, and the share of
                  predictions that change

and of the test data the contributions of layers under two generators. Data from elsewhere are the
test images in another variant, or those of another set brought to the same size and colours; the
labels of another set mean nothing here, and it has no accuracy.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.data.image_folder import like_images
from isotropy.data.labelled import LabelledData, Split
from isotropy.data.readers import digits, read
from isotropy.data.variants import LAWS, TEST_SEED, apply_variant
from isotropy.evidence.settings import LearnConfig
from isotropy.experiments.runner import Job, Series, goal_lines
from isotropy.networks.zoo.specification import parse_network
from isotropy.records import CHECKPOINT
from isotropy.symmetry.actions.images import affine
from isotropy.workflows.learning import LearnResult, learn
from isotropy.workflows.measuring import measure, measured_actions

TRAIN, TEST, ROTATED = "train", "test", "rotated"
TRANSLATION, ROTATION = "translation_x", "rotation"
DIGITS = "digits"
"""The data that come with the package."""
COST = {"mlp": 1.0, "convnet-untrained": 0.5, "vit": 6.0, "vit-augmented": 7.0, "mixer": 5.0}
"""Seconds of a row, roughly, in those of a perceptron; of others 3."""
KEPT = ("name", "kind", "norm", "share", "eq_t")
"""Of a layer."""
MANY = 1000
"""Images of another set that are kept, from which those that are measured are drawn."""

Record = Mapping[str, Any]


def jobs(table: Mapping[str, Any], quick: bool) -> list[Job]:
    """Every network on every problem."""
    small = table["quick"] if quick else {}
    seeds = tuple(small.get("seeds", table["seeds"]))
    config = {**table["settings"], **small.get("settings", {})}
    found = []
    for problem, about in small.get("problems", table["problems"]).items():
        for name in small.get("networks", table["networks"]):
            network = table["networks"][name]
            is_augmented = network.get("augmented", False)
            own = {
                **about,
                **{key: table[key] for key in ("generators", "layers")},
                "problem": problem,
                "network": name,
                "model": small.get("models", {}).get(network["model"], network["model"]),
                "trained": network.get("trained", True),
                "examples": small.get("examples", table["examples"]),
                "config": {**config, **(table["augmented"] if is_augmented else {})},
            }
            found.append(Job(f"{problem}/{name}", seeds, own, COST.get(name, 3.0)))
    return found


def run(job: Job, device: torch.device) -> list[dict[str, Any]]:
    """Train and measure, for each seed."""
    return [_measured(job, seed, device) for seed in job.seeds]


def _measured(job: Job, seed: int, device: torch.device) -> dict[str, Any]:
    own, started = job.settings, time.monotonic()
    split = data_named(own, own["data"])
    sets: dict[str, LabelledData | Tensor] = {TRAIN: split.train, TEST: tested(split)}
    shape = tuple(split.train.inputs.shape[1:])
    for name in own["elsewhere"]:
        if name in LAWS:
            sets[name] = apply_variant(tested(split), name, seed=TEST_SEED)
        else:
            sets[name] = _elsewhere(place_of(own, name), shape)
    network = seeded(own["model"], split, seed)
    trained = None
    if own["trained"]:
        trained = train(network, split, job, seed, device)
        network = trained.model.network
    how: dict[str, Any] = {"on": "probabilities", "examples": own["examples"], "seed": seed}
    network = network.eval().to(device)
    whole = measure(
        network, sets, measured_actions(shape, own["generators"]), layers=False, **how
    ).entries
    parts = measure(
        network, {TEST: sets[TEST]}, measured_actions(shape, own["layers"]), finite=False, **how
    ).actions
    return {
        **{name: own[name] for name in ("problem", "network", "model", "data", "examples")},
        "epochs": own["config"]["epochs"] if own["trained"] else 0,
        "config": own["config"],
        "parameters": whole[0]["parameters"],
        "training_seconds": None if trained is None else trained.record["seconds"],
        "data_sets": {entry["data"]: numbers(entry) for entry in whole},
        "layers": {
            action["name"]: [{key: layer[key] for key in KEPT} for layer in action["layers"]]
            for action in parts
        },
        "seconds": time.monotonic() - started,
    }


# -- what the series of chapter 4 share ----------------------------------------------------------


def seeded(model: str, split: Split, seed: int) -> nn.Module:
    """A network by name for the data, its weights drawn by the seed."""
    shape = tuple(split.train.inputs.shape[1:])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return parse_network(model).build(shape, split.train.num_outputs)


def train(
    network: nn.Module, split: Split, job: Job, seed: int, device: torch.device
) -> LearnResult:
    """`isotropy.learn` as the row says; a run that was cut off goes on from `unfinished`."""
    own, folder = job.settings, None
    if "unfinished" in own:
        folder = unfinished(job, seed)
    config = LearnConfig(**own["config"], seed=seed)
    result = learn(
        network,
        split,
        actions=affine(tuple(config.ranges or {})),
        config=config,
        device=device,
        folder=folder,
        resume=folder is not None and (folder / CHECKPOINT).exists(),
        verdicts=0,
    )
    if folder is not None:
        shutil.rmtree(folder)
    return result


def unfinished(job: Job, seed: int) -> Path:
    """The run folder of a row that is not done."""
    return Path(job.settings["unfinished"]) / f"{job.row.replace('/', '-')}-seed{seed}"


def numbers(entry: Record) -> dict[str, Any]:
    """What a record keeps of a network on one data set; entry: of `isotropy.measure`."""
    metrics = entry["translation_metrics"] or {}
    return {
        "accuracy": entry["accuracy"],
        "errors": {
            action["name"]: {
                **{key: action[key] for key in ("error", "standard_error")},
                "floor": action["resampling_floor"],
                "finite": action["finite"]["error"],
                "inconsistency": action["finite"]["inconsistency"],
            }
            for action in entry["actions"]
        },
        **{key: metrics[key]["error"] if metrics else None for key in ("eq_t", "eq_t_frac")},
        "exact": {
            each["name"]: {key: each[key] for key in ("error", "inconsistency")}
            for each in entry["exact"]
        },
    }


def tested(split: Split) -> LabelledData:
    """The test data, which all data here have."""
    if split.test is None:
        raise CallerError(f"{split.train.name}: expected test data beside the training data")
    return split.test


def data_named(own: Mapping[str, Any], name: str) -> Split:
    """A data set by the name that --data gives it, or the embedded digits."""
    return _kept(place_of(own, name))


def place_of(own: Mapping[str, Any], name: str) -> str | None:
    """Where a data set is; None: in the package."""
    places: Mapping[str, str] = own.get("places", {})
    if name != DIGITS and name not in places:
        raise CallerError(
            f"expected to be told where the data set {name} is; say so with --data {name}=FOLDER"
        )
    return places.get(name)


def read_place(place: str | None) -> Split:
    """Training and test data; None: the embedded digits."""
    return digits() if place is None else read(place, hold_out_fraction=0.0)


_kept = cache(read_place)
"""For the next row of a worker."""


@cache
def _elsewhere(place: str | None, shape: tuple[int, ...]) -> Tensor:
    """Test images of another set as images of `shape`."""
    data = tested(read_place(place))
    return like_images(data.subset(min(MANY, len(data)), 0), shape).inputs


# -- what came out -----------------------------------------------------------------------------

LARGEST_SHARE, ALIKE = 0.8, 0.8
"""Of the error, by what causes it; correlation of norms under two transformations."""
CLEAR = 0.6
"""Rank correlation from which two numbers go together, over eight networks."""
TRAINED = 0.2
"""Accuracy from which a network counts as trained."""


def grouped(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    """{(problem, network): records of the seeds}."""
    found: dict[tuple[str, str], list[Record]] = {}
    for each in records:
        found.setdefault((each["problem"], each["network"]), []).append(each)
    return found


def error_of(record: Record, data: str, generator: str) -> float:
    """The error of a network on a data set; NaN where it was not measured."""
    found = record["data_sets"].get(data, {}).get("errors", {}).get(generator)
    return math.nan if found is None else found["error"]


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Over seeds; one seed has no deviation."""
    return mean(values), stdev(values) if len(values) > 1 else None


def shifted(record: Record) -> float:
    """The share of predictions on test data that shifts by whole pixels change."""
    return float(record["data_sets"][TEST]["exact"]["whole-pixel shifts"]["inconsistency"])


def shares_by_kind(record: Record, generator: str = TRANSLATION) -> dict[str, float]:
    """{kind of operation: its share of the error}."""
    found: dict[str, float] = {}
    for layer in record["layers"][generator]:
        found[layer["kind"]] = found.get(layer["kind"], 0.0) + layer["share"]
    return found


def likeness(record: Record) -> float:
    """Pearson's correlation of the norms under translation and rotation, over operations."""
    norms = [[x["norm"] for x in record["layers"][name]] for name in (TRANSLATION, ROTATION)]
    return float(torch.corrcoef(torch.tensor(norms, dtype=torch.float64))[0, 1])


def goals(records: Sequence[Record]) -> dict[str, bool]:
    """What chapter 4 finds, and whether these records show it; means over seeds."""
    told: dict[str, bool] = {}
    found = grouped(records)
    for problem in dict.fromkeys(problem for problem, _ in found):
        own = {network: seeds for (of, network), seeds in found.items() if of == problem}
        trained = {
            network: seeds
            for network, seeds in own.items()
            if mean(each["data_sets"][TEST]["accuracy"] for each in seeds) > TRAINED
        }
        for what, holds in {**_of_layers(trained), **_of_errors(trained)}.items():
            told[f"{problem}: {what}"] = holds
    return told


def _of_layers(own: Mapping[str, Sequence[Record]]) -> dict[str, bool]:
    told: dict[str, bool] = {}
    kinds = {network: [shares_by_kind(each) for each in seeds] for network, seeds in own.items()}
    aliased = {
        network: 1 - mean(each.get("Conv2d", 0.0) for each in shares)
        for network, shares in kinds.items()
        if network.startswith("convnet")
    }
    if aliased:
        least = min(aliased.values())
        what = f"convolutional networks: all but convolutions cause {LARGEST_SHARE:.0%} or more"
        told[f"{what} (least {least:.0%})"] = least >= LARGEST_SHARE
    patches = {
        network: mean(each["Conv2d"] for each in shares)
        for network, shares in kinds.items()
        if network.startswith(("vit", "mixer"))
    }
    if patches:
        least = min(patches.values())
        what = f"transformers and mixers: patches cause {LARGEST_SHARE:.0%} or more"
        told[f"{what} (least {least:.0%})"] = least >= LARGEST_SHARE
    if own:
        least = min(mean(map(likeness, seeds)) for seeds in own.values())
        what = "norms of layers under translation and rotation correlate"
        told[f"{what} at {ALIKE} or more (least {least:.2f})"] = least >= ALIKE
    return told


def _of_errors(own: Mapping[str, Sequence[Record]]) -> dict[str, bool]:
    told: dict[str, bool] = {}
    names = dict.fromkeys(
        name for seeds in own.values() for each in seeds for name in each["data_sets"]
    )
    errors = {
        name: {n: mean(error_of(each, name, TRANSLATION) for each in seeds) for n, seeds in
               own.items()}
        for name in names
    }  # fmt: skip
    test = errors.get(TEST, {})
    for better, worse, what in (
        ("convnet-blur", "convnet", "blur-pooling lowers the translation error"),
        ("vit-augmented", "vit", "augmentation lowers the transformer's translation error"),
    ):
        if better in test and worse in test:
            ratio = test[better] / test[worse]
            told[f"{what} (to {ratio:.2g} of it)"] = ratio < 1
    if len(test) > 2:
        scores = [mean(each["data_sets"][TEST]["accuracy"] for each in own[n]) for n in test]
        rank = float(spearmanr(scores, list(test.values())).statistic)
        what = "more accurate networks are more equivariant"
        told[f"{what} (rank correlation of accuracy and error {rank:.2f})"] = rank <= -CLEAR
        changed = [mean(map(shifted, own[n])) for n in test]
        rank = float(spearmanr(changed, list(test.values())).statistic)
        what = "a smaller translation error goes with fewer predictions changed by whole pixels"
        told[f"{what} (rank correlation {rank:.2f})"] = rank >= CLEAR
    for name in (each for each in names if each != TEST):
        pair = (TRAIN, TEST) if name == TRAIN else (TEST, name)
        before, after = errors[pair[0]], errors[pair[1]]
        above = sum(after[n] > before[n] for n in own)
        what = f"the translation error is larger on {pair[1]} than on {pair[0]} data"
        told[f"{what} ({above} of {len(own)} networks)"] = above == len(own)
    return told


def summary(records: Sequence[Record]) -> list[str]:
    """Accuracy, errors on all data sets, and the goals."""
    lines = []
    for (problem, network), seeds in grouped(records).items():
        told = []
        for name, found in seeds[0]["data_sets"].items():
            known = [mean(error_of(each, name, g) for each in seeds) for g in found["errors"]]
            told.append(f"{name} {known[0]:.2g}")
        accuracy = mean(each["data_sets"][TEST]["accuracy"] for each in seeds)
        lines.append(f"{problem:<15}{network:<19}{100 * accuracy:5.1f} %  {', '.join(told)}")
    return lines + goal_lines(goals(records))


SERIES = Series(jobs, run, summary, apart=True)
