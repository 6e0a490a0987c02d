"""`isotropy.represent`: a code that ignores an unknown distortion, from samples of same entities.

    result = isotropy.represent(x, entities)      samples (samples, …), an entity each
    result.record["retrieval"]                    of held-out entities, by nearest neighbour
    invariant, varying = result.codes(x)          the code, and what varied
    result.save("runs/mine")                      `isotropy.load` gives the autoencoder back

Nobody names the distortion: two samples of one entity are brought together, those of different
entities apart (`networks.invariant_autoencoder`). With `distances` pairs (x, x′) have a distance
instead. Entities are held out, and all measures are of these. With `folder=` the run is saved as it
goes and continues with `resume=True`, ending with the numbers of an unbroken run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_at_least
from isotropy.data.labelled import LabelledData, Split, hold_out
from isotropy.data.pairs import EntityIndex, hold_out_entities, read_pairs, samples_of, triples_of
from isotropy.evidence.laplace import NotFiniteError
from isotropy.evidence.settings import Settings, stream
from isotropy.kernels.captured import adam, set_rate
from isotropy.networks.invariant_autoencoder import (
    INVARIANCE_WEIGHT,
    InvariantAutoencoder,
    best_constant,
    invariance_loss,
)
from isotropy.networks.rich_layer import NETWORKS, RICH
from isotropy.networks.zoo.specification import NetworkSpecification
from isotropy.records import alone_in_folder, check_unused, record_head, save_trainer
from isotropy.report.pages.represent import represent_page, represent_sentences
from isotropy.symmetry.groups.found_permutations import find_permutations
from isotropy.workflows.runs.prepared import KeptRun, kept_in
from isotropy.workflows.runs.result import Result
from isotropy.workflows.runs.same_run import fingerprint

KIND = "represent"
STEPS_AN_EPOCH = 100
"""Training steps between two rows of the history."""
LARGEST_GRADIENT = 0.1
"""Norm to which gradients are cut: a pair of nearly zero norm has a slope of 1/norm."""
MOST_JUDGED = 4000
"""Held-out entities that are compared with each other; more are left out."""
WORST = 8
MOST_PAIRS = 2000
"""Training pairs in which permutations are looked for."""
MOST_PERMUTED = 64
"""Features beyond which no permutations are looked for."""
LEAST_EXPLAINED = 0.5
"""The share of pairs that permutations explain where the distortion is said to be one of them."""
RANDOM_PERMUTATIONS = 32
"""Under which the code is looked at beside those that were found."""
MEASURES = (
    "judged_entities", "retrieval", "retrieval_raw", "auc", "within_over_between",
    "reconstruction_mse", "loss_share", "over_invariance", "permutation_changes", "classes_kept",
    "distances", "worst",
)  # fmt: skip
"""Of held-out entities; null where they are not known."""
HISTOGRAM = tuple(-5 + 0.15 * place for place in range(41))
"""Edges of bins of log₁₀ (distance / mean distance between entities)."""


@dataclass(frozen=True)
class RepresentConfig(Settings):
    """What a caller may set.

    steps, batch_size   training steps, and pairs in each: two samples of so many entities
    rate                of Adam at the start; cosine to 0
    invariant, varying  sizes of the two parts of the code; by default that of a sample
    network, layers     `rich` layers (2 by default) or an activation (4), of encoder and decoder
    """

    steps: int = 4000
    batch_size: int = 128
    rate: float = 1e-2
    invariant: int | None = None
    varying: int | None = None
    network: str = RICH
    layers: int | None = None
    seed: int = 0

    counts: ClassVar[tuple[str, ...]] = ("steps", "invariant", "layers")
    positive: ClassVar[tuple[str, ...]] = ("rate",)
    choices: ClassVar[Mapping[str, Sequence[str]]] = {"network": NETWORKS}

    @property
    def epochs(self) -> int:
        """Rows of the history."""
        return math.ceil(self.steps / STEPS_AN_EPOCH)


@dataclass(frozen=True)
class RepresentEpoch:
    """Means over the last steps: loss and its parts; retrieval: of held-out entities, if due."""

    epoch: int
    train_loss: float
    invariance: float
    reconstruction: float
    retrieval: float | None
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class PairTrainer:
    """Adam on pairs that are drawn anew at every step; a `records.Resumable`.

    The trainer of `evidence` has a likelihood, a prior and an evidence, and examples with targets;
    here a loss is one of pairs and there is none of these.
    """

    def __init__(
        self, network: InvariantAutoencoder, config: RepresentConfig, train: LabelledData
    ) -> None:
        self.network, self.config = network, config
        self.device = network.mean.device
        samples, self.targets = train.inputs.to(self.device), train.targets.to(self.device)
        self.index, self.unit = None, 1.0
        if train.is_classification:
            self.index = EntityIndex(train.targets)
        else:
            samples = samples.flatten(0, 1)
            # Distances above 0 get mean square 1/α, so that targets 1/(δ + α d²) lie about ½.
            mean_square = train.targets[train.targets > 0].double().square().mean()
            self.unit = float((mean_square / network.invariant).sqrt())
        network.standardise_by(samples)
        self.inputs = network.standardised(samples)
        self.optimisers = {"weights": adam(list(network.parameters()), rate=config.rate)}
        self.epoch, self.seconds = 0, 0.0

    def modules(self) -> dict[str, nn.Module]:
        return {"network": self.network}

    def own_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {}, {}

    def load_own_state(self, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """There is none."""

    def run_epoch(self, test: tuple[Tensor, Tensor] | None = None) -> RepresentEpoch:
        """So many steps; test: held-out samples and entities, to retrieve."""
        started = time.perf_counter()
        config, optimiser = self.config, self.optimisers["weights"]
        generator = stream(config.seed, "pairs", self.epoch)
        first = self.epoch * STEPS_AN_EPOCH
        steps = range(first, min(first + STEPS_AN_EPOCH, config.steps))
        self.epoch += 1
        total = torch.zeros(2, device=self.device)
        for step in steps:
            set_rate(optimiser, config.rate * (1 + math.cos(math.pi * step / config.steps)) / 2)
            invariance, reconstruction = self.network.loss(*self._pairs(generator))
            optimiser.zero_grad()
            (INVARIANCE_WEIGHT * invariance + reconstruction).backward()
            nn.utils.clip_grad_norm_(self.network.parameters(), LARGEST_GRADIENT)
            optimiser.step()
            total += torch.stack((invariance, reconstruction)).detach()
        invariance, reconstruction = (total / len(steps)).tolist()
        loss = INVARIANCE_WEIGHT * invariance + reconstruction
        if not math.isfinite(loss):
            raise NotFiniteError(
                f"the training loss became {loss} after step {steps.stop}; try a lower rate"
            )
        due = self.epoch == config.epochs or self.epoch % max(1, config.epochs // 10) == 0
        found = None
        if due and test is not None and self.index is not None:
            pairs = EntityIndex(test[1]).first_two()[:MOST_JUDGED]
            found = retrieval(self.codes(test[0][pairs[:, 0]]), self.codes(test[0][pairs[:, 1]]))
        self.seconds += time.perf_counter() - started
        return RepresentEpoch(self.epoch, loss, invariance, reconstruction, found, self.seconds)

    def _pairs(self, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor | None]:
        """Standardised samples of a step, and their distances where there are any."""
        if self.index is not None:
            chosen = self.index.draw(self.config.batch_size, generator).to(self.device)
            return self.inputs[chosen[:, 0]], self.inputs[chosen[:, 1]], None
        count = min(self.config.batch_size, len(self.targets))
        chosen = torch.randint(len(self.targets), (count,), generator=generator).to(self.device)
        own, other = self.inputs[2 * chosen], self.inputs[2 * chosen + 1]
        return own, other, self.targets[chosen, 0] / self.unit

    @torch.no_grad()
    def codes(self, samples: Tensor) -> Tensor:
        """z_inv (samples, invariant) of raw samples, float64."""
        found: Tensor = self.network(samples.to(self.device)).double()
        return found


@dataclass(frozen=True, repr=False)
class RepresentResult(Result):
    """What was learned; `model` is the `InvariantAutoencoder`, in evaluation mode."""

    SHOWN = ("data", "retrieval", "within_over_between", "reconstruction_mse")

    model: InvariantAutoencoder
    split: Split
    trainer: PairTrainer

    @property
    def sentences(self) -> list[str]:
        """What was found, in words."""
        return represent_sentences(self.record)

    def codes(self, x: Any) -> tuple[Tensor, Tensor]:
        """Invariant and varying codes (samples, …) of samples x (samples, …), on the CPU."""
        return self.model.encode(x)

    def page(self) -> str:
        return represent_page(self.record, self.config)

    def write_own(self, path: Path) -> None:
        save_trainer(path, self.trainer, self.record["epochs"], self.config)


@alone_in_folder
def represent(
    x: Any,
    entities: Any = None,
    *,
    distances: Any = None,
    classes: Mapping[str, str] | None = None,
    config: RepresentConfig | None = None,
    held_out: float = 0.2,
    device: str | torch.device = "cpu",
    folder: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[RepresentConfig, RepresentEpoch], None] | None = None,
    describe: Mapping[str, Any] | None = None,
) -> RepresentResult:
    """Learn a code that is equal for samples of an entity and tells entities apart.

    x         samples (samples, …) with `entities` (samples,); a pair of them, x and x′, with
              `distances` (pairs,); a path to a file of either (`data.pairs`); or a Split
    classes   by entity, only scored: whether neighbours in the code share theirs
    held_out  the share of entities (or pairs with distances) that only measures see; 0 has none
    folder    a run folder to write and, with `resume`, to continue
    progress  told every 100 steps
    describe  further entries of config.json, such as what the command line was asked for

    Raises CallerError for what the caller can put right (`data.pairs.samples_of`, `triples_of`).
    """
    settings = config or RepresentConfig()
    settings.check()
    check_at_least(settings.batch_size, 2, what="batch size")
    if folder is not None and not resume:
        check_unused(Path(folder))
    split = _split(x, entities, distances, held_out, settings.seed)
    run = _prepared(split, settings, torch.device(device), describe)
    if folder is not None:
        run = kept_in(run, Path(folder), resume=resume)
    for row in run.epochs():
        if progress is not None:
            progress(settings, row)
    run.save()
    trainer, record = run.trainer, _record(run, classes)
    result = RepresentResult(
        trainer.network.eval(), split, trainer, record=record, config=run.config
    )
    return result.kept_in(run.folder)


def _split(x: Any, entities: Any, distances: Any, held_out: float, seed: int) -> Split:
    """The data that were given, checked, and some of them held out."""
    if isinstance(x, Split):
        return x
    if not 0 <= held_out < 1:
        raise CallerError(f"held_out: expected a share from 0 to below 1, got {held_out:g}")
    if isinstance(x, str | Path):
        data = read_pairs(x, entities)
    elif distances is not None:
        data = triples_of(x[0], x[1], distances)
    elif entities is None:
        raise CallerError("expected entities= of the samples, or distances= of pairs, got neither")
    else:
        data = samples_of(x, entities)
    if held_out == 0:
        return Split(data, None, ("nothing held out, nothing measured",))
    if data.is_classification:
        return hold_out_entities(data, held_out, seed)
    return hold_out(data, held_out, seed)


def _prepared(
    split: Split, config: RepresentConfig, place: torch.device, describe: Mapping[str, Any] | None
) -> KeptRun[PairTrainer]:
    """A run that keeps nothing yet; torch's global generators are left as they were."""
    train = split.train
    same = train.is_classification
    arguments: dict[str, Any] = {
        "shape": list(train.inputs.shape[1 if same else 2 :]),
        "invariant": config.invariant,
        "varying": config.varying,
        "network": config.network,
        "layers": config.layers or (2 if config.network == RICH else 4),
    }
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(stream(config.seed, "weights").get_state())
        model = InvariantAutoencoder(**arguments).to(place)
    data = {
        "name": train.name,
        "shape": arguments["shape"],
        "train_entities": train.num_classes if same else None,
        "train_samples": len(train),
        "fingerprint": fingerprint(train),
        "notes": list(split.notes),
    }
    described = {
        "schema": 1,
        "kind": KIND,
        "data": data,
        "network": NetworkSpecification("autoencoder", config.network, arguments).as_dict(),
        "schedule": {"objective": "same or not" if same else "distances", **config.as_dict()},
        **(describe or {}),
    }
    return KeptRun(PairTrainer(model, config, train), split, described)


# --- measures -------------------------------------------------------------------------------


def distances_between(first: Tensor, second: Tensor) -> Tensor:
    """Euclidean distances (first, second) between rows, without cancellation."""
    return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")


def retrieval(queries: Tensor, gallery: Tensor) -> float:
    """The share of queries (entities, size) whose nearest row of the gallery is their own."""
    nearest = distances_between(queries, gallery).argmin(1)
    return float((nearest == torch.arange(len(nearest), device=nearest.device)).double().mean())


def neighbours_alike(codes: Tensor, labels: Tensor) -> float:
    """The share of rows (samples, size) whose nearest other row has the same label (samples,)."""
    alike = 0
    for rows in torch.arange(len(codes), device=codes.device).split(1024):
        found = distances_between(codes[rows], codes)
        found[torch.arange(len(rows), device=codes.device), rows] = math.inf
        alike += int((labels[found.argmin(1)] == labels[rows]).sum())
    return alike / len(codes)


def area_under_curve(within: Tensor, between: Tensor) -> float:
    """The chance that a distance within an entity is below one between two; ties count half."""
    ordered = within.sort().values
    below = torch.searchsorted(ordered, between)
    upto = torch.searchsorted(ordered, between, right=True)
    return float((below + upto).double().mean() / (2 * len(within)))


def same_pairs(data: LabelledData, most: int) -> tuple[Tensor, Tensor, Sequence[str]]:
    """Two samples (entities, …) of each of the first entities, and what these are called.

    Of triples they are the pairs of distance 0.
    """
    if data.classes is not None:
        first, second = data.inputs[EntityIndex(data.targets).first_two()[:most]].unbind(1)
        return first, second, data.classes[:most]
    chosen = (data.targets[:, 0] == 0).nonzero()[:most, 0]
    first, second = data.inputs[chosen].unbind(1)
    return first, second, [f"pair {index}" for index in chosen.tolist()]


def _record(run: KeptRun[PairTrainer], classes: Mapping[str, str] | None) -> dict[str, Any]:
    """What was learned by a run that has ended."""
    trainer, split = run.trainer, run.split
    test, permutations = split.test, _permutations(split.train)
    count = None if test is None else test.num_classes if test.is_classification else len(test)
    return {
        **record_head(
            "represent",
            seed=trainer.config.seed,
            device=trainer.device,
            seconds=trainer.seconds,
            run_folder=run.folder,
        ),
        "kind": KIND,
        "data": split.train.name,
        "objective": run.config["schedule"]["objective"],
        "network": trainer.config.network,
        "steps": trainer.config.steps,
        "train_samples": len(split.train),
        "held_out_entities": count,
        **dict.fromkeys(MEASURES),
        **({} if test is None else _measures(trainer, test, classes, permutations)),
        "permutations": permutations,
        "epochs": run.history,
        "notes": list(split.notes),
    }


def _permutations(train: LabelledData) -> list[list[int]] | None:
    """The permutations that explain most training pairs; None where there are none."""
    first, second, _ = same_pairs(train, MOST_PAIRS)
    if first.ndim != 2 or first.shape[1] > MOST_PERMUTED:
        return None
    try:
        found = find_permutations(first, second)
    except CallerError:  # too few features, or pairs that are not constant
        return None
    return found.permutations if found.explained > LEAST_EXPLAINED else None


@torch.no_grad()
def _measures(
    trainer: PairTrainer,
    test: LabelledData,
    classes: Mapping[str, str] | None,
    permutations: list[list[int]] | None,
) -> dict[str, Any]:
    """Of held-out entities: one sample of each is looked for among another sample of all."""
    model, device = trainer.network, trainer.device
    first, second, names = same_pairs(test, MOST_JUDGED)
    own, other = trainer.codes(first), trainer.codes(second)
    pairs, distances, samples = (own, other), None, test.inputs
    if not test.is_classification:
        samples, distances = samples.flatten(0, 1), test.targets[:, 0].to(device).double()
        distances /= trainer.unit
        pairs = trainer.codes(samples[0::2]), trainer.codes(samples[1::2])
    constant = best_constant(model.invariant, distances)
    standard = model.standardised(samples.to(device))
    loss = float(invariance_loss(*pairs, distances))
    found: dict[str, Any] = {
        "loss_share": loss / constant if constant > 0 else None,
        "reconstruction_mse": float((model.rebuilt(standard) - standard).square().mean()),
    }
    if len(first) < 2:
        return found
    raw = [each.flatten(1).to(device).double() for each in (first, second)]
    between = distances_between(own, other)
    within = between.diagonal().clone()
    apart = between[~torch.eye(len(own), dtype=torch.bool, device=device)]
    scale = float(apart.mean()) or math.nan  # where all codes are equal
    queries = model.standardised(first.to(device))

    def change(moved: Tensor) -> float:
        """How far codes of standardised samples move, over the distance between entities."""
        return float((model.codes(moved)[0].double() - own).norm(dim=1).mean()) / scale

    if permutations:
        generator = stream(trainer.config.seed, "permutations")
        size = first.shape[1]
        random = [torch.randperm(size, generator=generator) for _ in range(RANDOM_PERMUTATIONS)]
        places = {"found": torch.tensor(permutations).argsort(1), "random": torch.stack(random)}
        changes = {
            name: [change(model.standardised(first[:, order].to(device))) for order in orders]
            for name, orders in places.items()
        }
        found["permutation_changes"] = {
            "found": max(changes["found"]), "random": sum(changes["random"]) / len(random)
        }  # fmt: skip
    if classes is not None:
        _, numbers = np.unique([classes[name] for name in names], return_inverse=True)
        labels = torch.from_numpy(numbers).to(device)
        found["classes_kept"] = {
            "code": neighbours_alike(own, labels),
            "raw": neighbours_alike(raw[0], labels),
        }
    return {
        **found,
        "judged_entities": len(first),
        "retrieval": retrieval(own, other),
        "retrieval_raw": retrieval(*raw),
        "auc": area_under_curve(within, apart),
        "within_over_between": float(within.mean()) / scale,
        "over_invariance": {"reversal": change(queries.flip(1)), "sign": change(-queries)},
        "distances": {
            "log_edges": list(HISTOGRAM),
            "within": _shares(within / scale),
            "between": _shares(apart / scale),
        },
        "worst": _worst(between / scale, names),
    }


def _shares(distances: Tensor) -> list[float]:
    """The share of distances in every bin of `HISTOGRAM`; those beyond count in the last ones."""
    logs = distances.cpu().clamp(min=1e-300).log10().clamp(HISTOGRAM[0], HISTOGRAM[-1])
    counts = torch.histogram(logs, torch.tensor(HISTOGRAM, dtype=logs.dtype)).hist
    return [float(count) for count in counts / len(logs)]


def _worst(between: Tensor, names: Sequence[str]) -> list[dict[str, Any]]:
    """Entities whose own sample is farthest compared with the nearest of another entity."""
    own = between.diagonal()
    nearest, which = (between + torch.diag(torch.full_like(own, math.inf))).min(1)
    order = (own / nearest.clamp(min=1e-300)).argsort(descending=True)[:WORST].tolist()
    return [
        {
            "entity": names[index],
            "nearest": names[int(which[index])],
            "own_distance": float(own[index]),
            "nearest_distance": float(nearest[index]),
        }
        for index in order
    ]
