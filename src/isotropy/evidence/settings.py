"""Settings of a run: what a caller may leave open, and what a run was given.

`LearnConfig` holds what a caller may set. A field left at None follows from the number of examples
and the device; `LearnConfig.resolved` gives the `LearnSchedule` in which nothing is open, which is
printed and saved. Settings of other verbs have the same base (`Settings`, `Schedule`).

The paper's recipe (Immer et al. 2022, MNIST) is 1000 epochs of batches of 1000 with 31 samples, one
hyper step an epoch at learning rate 0.05; on a CPU the default budget is far smaller. Shorter runs
make larger hyper steps: a range must be able to travel its whole period twice, so
learning rate × updates ≥ 2 (π + ½), up to a rate of ¼; a run too short even for that is told so
(`too_short`). The ranges' optimiser forgets quickly (`range_memory`): gradients are much larger
while a range is small, and a long memory of them would stall it half way. With a `bound` there are
many hyper steps an epoch, each from a few examples: they may travel three times as far, because
much of it is to and fro, and the optimiser averages over more of them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self, TypeVar

import torch

from isotropy.checks import CallerError, check_choice, check_number, check_numbers
from isotropy.curvature.kfac import FALLBACKS, Fallback
from isotropy.curvature.kinds import DEEP_KIND, DEFAULT_KIND, kind_named
from isotropy.evidence.laplace import STRUCTURES, PriorStructure
from isotropy.evidence.objectives import (
    OBJECTIVES,
    OLDER_NAMES,
    RECIPES,
    Objective,
    Recipe,
    objectives_with,
)
from isotropy.kernels.compiled import pays
from isotropy.kernels.precision import PRECISIONS, Precision
from isotropy.likelihoods import LIKELIHOODS
from isotropy.networks.averaging.invariant_model import TEST_SAMPLES
from isotropy.networks.averaging.mixtures import DISTRIBUTIONS

TRAVEL = 2 * (math.pi + 0.5)
"""How far a range must be able to travel in a run, in coordinates: learning rate × updates."""

NOISY_TRAVEL = 3 * TRAVEL
"""The same where every update is an estimate from a few examples."""

BOUND_FITS = 10
"""Epochs between passes over all data for the precisions, with a bound."""

CURVATURE_EXAMPLES = 10_000
"""An evidence pass of a hyper step takes so many examples at most."""

LEAST_STEPS = 1600
"""Weight steps of a run, if 32 examples a step allow so many. With fewer, networks are averaged
over too little: of 10,000 digits turned by any angle, those with ±90° have more evidence than those
with ±180° after 240 and 480 steps, and less after 1,000; of 60,000 turned by up to ±90° the
interval holds that after 1,920 steps, and not after 480 of as many copies (results/profiles)."""
PRIOR_STEPS = 20
"""Steps on log precisions and noise of a run, at least; enough for both to settle. A run with fewer
hyper steps takes several in each."""
SEARCH_EXAMPLES = 1500
"""Trials take so many examples at most."""

Bound = Literal["none", "function-space"]
BOUNDS: tuple[Bound, ...] = ("none", "function-space")

Evidence = Literal["laplace", "elbo"]
EVIDENCES: tuple[Evidence, ...] = ("laplace", "elbo")
ElboSolver = Literal["newton", "sampled"]
ELBO_SOLVERS: tuple[ElboSolver, ...] = ("newton", "sampled")

Optimiser = Literal["adam", "sgd"]
OPTIMISERS: tuple[Optimiser, ...] = ("adam", "sgd")
RATES: dict[str, float] = {"adam": 5e-3, "sgd": 0.1}
"""Of the weights, the paper's for each."""
SCALAR_RATES: dict[str, float] = {"adam": 1.0, "sgd": 0.1}
"""Of single numbers, in multiples of the weights' rate."""

ELBO_EPOCHS = 30
"""Each has a solve and a step of the ranges."""


@dataclass(frozen=True)
class Settings:
    """The base of settings that are frozen dataclasses: checked field by field, kept as JSON.

    counts:   fields that are whole numbers from 1; all others are from 0
    positive: fields that are numbers above 0; all others are from 0, and finite
    shares:   fields that are numbers from 0 and below 1
    choices:  the words that a field may be
    A field that is None is not checked.
    """

    counts: ClassVar[tuple[str, ...]] = ()
    positive: ClassVar[tuple[str, ...]] = ()
    shares: ClassVar[tuple[str, ...]] = ()
    choices: ClassVar[Mapping[str, Sequence[str]]] = {}

    def __post_init__(self) -> None:
        """What follows from the fields; nothing here."""

    def check(self) -> None:
        """Raise CallerError for values that make no sense, or are not of their field's type."""
        kinds = {each.name: str(each.type).partition(" ")[0] for each in fields(self)}
        for name, value in self._values().items():
            what, kind = name.replace("_", " "), kinds[name]
            if value is None:
                continue
            if name in self.choices:
                check_choice(value, self.choices[name], what=what)
            if name in self.shares and isinstance(value, int | float) and not 0 <= value < 1:
                raise CallerError(f"{what}: expected at least 0 and below 1, got {value}")
            if kind in ("int", "float"):
                least, above = int(name in self.counts), name in self.positive
                check_number(value, least, what=what, whole=kind == "int", above=above)
            if kind == "bool" and not isinstance(value, bool):
                raise CallerError(f"{what}: expected true or false, got {value!r}")
            if kind.startswith("Mapping"):
                check_numbers(value, what=what)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Settings from a record, which may hold more."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in record.items() if name in known})

    def _values(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def _filled(self, kind: type[AnySchedule], **values: Any) -> AnySchedule:
        """A schedule of these settings, with `values` where nothing was given."""
        given = {name: value for name, value in self._values().items() if value is not None}
        return kind(**{**values, **given})


class Schedule(Settings):
    """What every run was given: the base of settings in which nothing is open.

    micro_batch stays None where a weight step holds as many examples as fit into memory.
    test_samples of 0 predict the data as they are. `LearnConfig` tells what the others are.
    """

    objective: str
    evidence: Evidence = "laplace"
    epochs: int
    batch_size: int
    curvature: str
    curvature_batch: int
    micro_batch: int | None
    precision: Precision
    compiled: bool
    captured: bool
    weight_rate: float
    weight_rate_end: float
    burn_in: int
    update_every: int
    prior_rate: float
    prior_steps: int
    prior_precision: float
    evaluate_every: int
    fallback: Fallback
    test_samples: int
    seed: int

    @property
    def recipe(self) -> Recipe:
        """What the objective does."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        for each in fields(self):
            is_open = getattr(self, each.name) is None and "None" not in str(each.type)
            assert not is_open, f"schedule: nothing was given for {each.name}"


AnySchedule = TypeVar("AnySchedule", bound=Schedule)


@dataclass(frozen=True)
class LearnConfig(Settings):
    """What a caller may set. None means: follow from the size of the problem (`resolved`).

    objective        what chooses the ranges: evidence, augerino (training loss with a reward
                     for width), fixed (`ranges` as given), none (no augmentation),
                     and the baselines averaged-losses (`ranges` as given), augerino-original,
                     trivial-augment; see `RECIPES`
    evidence         laplace, of all weights by their curvature (`laplace`), or elbo, a lower bound
                     by a posterior of the last layer (`elbo`), to which `curvature`, `fallback` and
                     the settings of the search do not apply
    elbo_solver      newton: the posterior is solved for every epoch; sampled: posterior and ranges
                     follow gradients of one draw with every weight step, the prior stays
    samples          transformed copies averaged in training and in the evidence (S)
    test_samples     copies averaged when predicting
    epochs           passes over the training data
    batch_size       examples a weight step
    curvature_batch  examples held at once in an evidence pass; sets its memory, not its result
    micro_batch      examples held at once in a weight step; the same. None: as many as fit
    precision        of products: float32, on a GPU tf32, or bfloat16, that in weight steps alone
                     and on a CPU where it has instructions for it
    captured         weight steps as CUDA graphs on a GPU, where the network allows it
    compiled         convolutional networks compiled for weight steps on a GPU, where that works; by
                     default in runs long enough to gain from it (`kernels.compiled`)
    optimiser        of the weights: adam, or sgd with `momentum` and perhaps `nesterov`
    weight_rate      learning rate of the weights at the start; cosine to `weight_rate_end`
    scalar_rate      that of single numbers, as Fixup's biases and scales, in multiples of it
    warm_up          epochs, or parts of one, over which rates of weights grow from zero
    ema_decay        of an exponential moving average of the weights, at which evidence, scores and
                     checkpoints are (`weight_steps`); 0: of the weights themselves
    burn_in          epochs before the first hyper step
    update_every     epochs between hyper steps
    curvature_examples  examples of an evidence pass in a hyper step, drawn anew each time, which
                     stand for all; 0: all. None: up to 10,000. The last evidence is of all data
    gradient_batches batches of `batch_size` examples in a ranges step; 0 means as many as the pass
    range_rate       learning rate of the ranges at the start; cosine to `range_rate_end`
    range_memory     decay of the squared gradients in the ranges' Adam (β₂); that of the gradients
                     is the same, or 0.9 if less. Where the bound is solved its gradient is exact,
                     and the memory short
    prior_rate       learning rate of log precisions and log noise
    prior_steps      steps on both a hyper step. None: 1, and more in a run of fewer than 20 hyper
                     steps; 20 with a bound
    curvature        structure and Fisher, such as kfac-ggn, kfac-ef, diagonal-ggn (`kinds`). None:
                     kfac-ggn, of networks with many layers or outputs kfac-mc (`machine.is_deep`)
    fallback         what becomes of a layer without a curvature rule: refuse, diagonal, fixed
    freeze           parameters that are constants of the run: none, backbone (all but the last
                     layer), or patterns of their names (`networks.frozen`)
    distribution     independent ranges, or correlated ones with a full covariance
    prior_structure  one precision: scalar, or one per layer, or one per tensor. None: scalar; with
                     sgd on a network of convolutions tensor, as in the paper's recipe
    ranges, caps     half-widths by generator name in reported units: given, largest allowed
    start            half-widths by name that learning starts from (others start at zero)
    search           find amounts by predictions of the linearised network before the run
                     (`search`, `trials`); with a `start`, for objectives that do not learn by the
                     evidence, for a bound of the last layer and for transforms with parameters of
                     their own, there is none
    search_examples  examples of a trial, drawn at random. None: up to 1,500
    refine           move ranges along the gradient of the evidence during the run. None: unless a
                     search has found them
    bound            none: hyper steps by the evidence of all data, between epochs. Else by a lower
                     bound of it, function-space, between weight steps (`bound`)
    bound_batch      examples of an estimate of the bound
    bound_every      weight steps between hyper steps by a bound
    bound_fits       epochs between passes over all data that precisions and noise follow with a
                     bound; 0: none, they follow the bound
    augerino_weight  the reward for width in augerino and augerino-original
    augerino_decay   weight decay of the objectives that have no evidence
    """

    objective: Objective = "evidence"
    evidence: Evidence = "laplace"
    elbo_solver: ElboSolver = "newton"
    likelihood: str = "categorical"
    samples: int | None = None
    test_samples: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    curvature_batch: int | None = None
    micro_batch: int | None = None
    precision: Precision | None = None
    captured: bool = True
    compiled: bool | None = None
    optimiser: Optimiser = "adam"
    momentum: float = 0.9
    nesterov: bool = False
    weight_rate: float | None = None
    weight_rate_end: float = 1e-6
    scalar_rate: float | None = None
    warm_up: float = 0.0
    ema_decay: float = 0.0
    burn_in: int | None = None
    update_every: int = 1
    curvature_examples: int | None = None
    gradient_batches: int | None = None
    range_rate: float | None = None
    range_rate_end: float | None = None
    range_memory: float | None = None
    prior_rate: float | None = None
    prior_steps: int | None = None
    curvature: str | None = None
    fallback: Fallback = "diagonal"
    freeze: str = "none"
    distribution: str = "independent"
    prior_structure: PriorStructure | None = None
    prior_precision: float = 1.0
    evaluate_every: int | None = None
    ranges: Mapping[str, float] | None = None
    start: Mapping[str, float] | None = None
    search: bool = True
    search_examples: int | None = None
    refine: bool | None = None
    caps: Mapping[str, float] | None = None
    bound: Bound = "none"
    bound_batch: int | None = None
    bound_every: int = 4
    bound_fits: int | None = None
    augerino_weight: float = 1e-2
    augerino_decay: float = 1e-4
    seed: int = 0

    counts: ClassVar[tuple[str, ...]] = (
        "samples", "test_samples", "epochs", "batch_size", "curvature_batch", "micro_batch",
        "update_every", "prior_steps", "evaluate_every", "bound_batch", "bound_every",
        "search_examples",
    )  # fmt: skip
    positive: ClassVar[tuple[str, ...]] = (
        "weight_rate", "scalar_rate", "range_rate", "prior_rate", "prior_precision"
    )  # fmt: skip
    shares: ClassVar[tuple[str, ...]] = ("momentum", "ema_decay", "range_memory")
    choices: ClassVar[Mapping[str, Sequence[str]]] = {
        "objective": (*OBJECTIVES, *OLDER_NAMES),
        "optimiser": OPTIMISERS,
        "evidence": EVIDENCES,
        "elbo_solver": ELBO_SOLVERS,
        "fallback": FALLBACKS,
        "distribution": DISTRIBUTIONS,
        "prior_structure": STRUCTURES,
        "likelihood": tuple(LIKELIHOODS),
        "bound": BOUNDS,
        "precision": PRECISIONS,
    }

    def __post_init__(self) -> None:
        named = OLDER_NAMES.get(self.objective, self.objective)
        object.__setattr__(self, "objective", named)
        super().__post_init__()

    @property
    def recipe(self) -> Recipe:
        """What the objective does."""
        return RECIPES[self.objective]

    def check(self) -> None:
        """Raise CallerError for settings that cannot be meant."""
        super().check()
        kind_named(self.curvature or DEFAULT_KIND)
        if self.nesterov and (self.optimiser != "sgd" or not self.momentum):
            raise CallerError(
                "nesterov: expected the optimiser sgd with a momentum above 0, such as 0.9, got "
                f"{self.optimiser} with {self.momentum:g}"
            )
        needs = [f"bound {self.bound}"] if self.bound != "none" else []
        needs += ["evidence elbo"] if self.evidence == "elbo" else []
        if needs and not RECIPES[self.objective].evidence:
            raise CallerError(
                f"{needs[0]}: expected an objective with an evidence, such as evidence or fixed, "
                f"got {self.objective!r}"
            )
        if len(needs) > 1:
            raise CallerError(f"{needs[0]}: expected the evidence laplace, got elbo")
        if needs and self.ema_decay:
            raise CallerError(
                f"ema decay: expected 0 with {needs[0]}, whose hyper steps are at the weights "
                f"themselves, got {self.ema_decay:g}"
            )
        given = RECIPES[self.objective].ranges == "given"
        if given and not self.ranges:
            raise CallerError(
                f"objective {self.objective}: expected the ranges to use, got none; give them by "
                "name in reported units, such as rotation=30"
            )
        if not given and self.ranges:
            raise CallerError(
                f"ranges are given only for the objectives {objectives_with('given')}, got them "
                f"for {self.objective!r}; to bound what is learned use caps"
            )
        if self.objective == "augerino-original" and self.distribution != "independent":
            raise CallerError(
                "objective augerino-original: expected the distribution independent, got "
                f"{self.distribution!r}; use evidence or augerino"
            )

    def resolved(
        self, *, examples: int, on_gpu: bool, convolutional: bool = False, deep: bool = False
    ) -> LearnSchedule:
        """The schedule of a run on so many examples; what was given stays.

        convolutional: whether the network is one of convolutions; deep: of many layers or outputs
        """
        self.check()
        recipe = RECIPES[self.objective]
        by_elbo = self.evidence == "elbo"
        sampled = by_elbo and self.elbo_solver == "sampled"
        solved = by_elbo and not sampled
        epochs = self.epochs or (ELBO_EPOCHS if solved else default_epochs(on_gpu))
        burn_in = _given(self.burn_in, 0 if by_elbo else min(10, epochs // 6))
        # Solved weights take no steps, of which a short run could have too few.
        batch = default_batch(examples, LEAST_STEPS if solved else epochs)
        batch_size = min(self.batch_size or batch, examples)
        by_bound = self.bound != "none"
        steps = math.ceil(examples / batch_size)
        travel, least_rate = TRAVEL, 0.05
        if recipe.ranges == "loss" or sampled:  # a step on the ranges with every weight step
            updates, least_rate = epochs * steps, 0.005
        elif by_bound:
            updates = (epochs - burn_in) * steps // self.bound_every
            travel, least_rate = NOISY_TRAVEL, 0.005
        else:
            updates = (epochs - burn_in) // self.update_every
        range_rate = self.range_rate or min(0.25, max(least_rate, travel / max(1, updates)))
        bound_fits = _given(self.bound_fits, BOUND_FITS if by_bound else 0)
        # A GPU affords the paper's samples; a CPU gets fewer, and fewer epochs.
        samples = self.samples or recipe.samples or (31 if on_gpu else 16)
        filled = self._filled(
            LearnSchedule,
            samples=samples,
            test_samples=TEST_SAMPLES,
            epochs=epochs,
            batch_size=batch_size,
            curvature_batch=8000 if on_gpu else 125,
            precision="tf32" if on_gpu else "float32",
            compiled=on_gpu and pays(examples * samples * epochs),
            weight_rate=RATES[self.optimiser],
            scalar_rate=SCALAR_RATES[self.optimiser],
            burn_in=burn_in,
            curvature=DEEP_KIND if deep else DEFAULT_KIND,
            curvature_examples=CURVATURE_EXAMPLES,
            gradient_batches=0 if on_gpu or by_elbo else 5,
            range_rate=range_rate,
            range_rate_end=range_rate / 10,
            range_memory=0.99 if by_bound else 0.5 if solved else 0.9,
            prior_rate=0.1 if by_bound else range_rate,
            prior_steps=PRIOR_STEPS if bound_fits else 1 if by_elbo else _share(updates),
            # An eighth of a weight step's examples costs about as much as the step.
            bound_batch=max(4, min(16, batch_size // 12)),
            bound_fits=bound_fits,
            prior_structure="tensor" if convolutional and self.optimiser == "sgd" else "scalar",
            evaluate_every=max(1, epochs // 10),
            search_examples=SEARCH_EXAMPLES,
            refine=True,
        )
        return replace(
            filled,
            samples=1 if recipe.ranges == "absent" else filled.samples,
            batch_size=batch_size,
            curvature_batch=min(filled.curvature_batch, examples),
            curvature_examples=_fewer(filled.curvature_examples, examples),
            bound_batch=min(filled.bound_batch, examples),
            search=self.search
            and recipe.ranges == "evidence"
            and self.start is None
            and not by_elbo,
            search_examples=min(filled.search_examples, examples),
        )


@dataclass(frozen=True, kw_only=True)
class LearnSchedule(LearnConfig, Schedule):
    """The settings that a run of `isotropy.learn` was given; see `LearnConfig`."""

    samples: int
    test_samples: int
    epochs: int
    batch_size: int
    curvature_batch: int
    precision: Precision
    compiled: bool
    weight_rate: float
    scalar_rate: float
    burn_in: int
    curvature: str
    curvature_examples: int
    gradient_batches: int
    range_rate: float
    range_rate_end: float
    range_memory: float
    prior_rate: float
    prior_steps: int
    prior_structure: PriorStructure
    evaluate_every: int
    search_examples: int
    refine: bool
    bound_batch: int
    bound_fits: int


def too_short(schedule: LearnSchedule, examples: int = 0) -> bool:
    """Whether a run that learns ranges ends before they can settle.

    examples: how many there are; with a bound hyper steps depend on them, and without their number
    an epoch is taken to have one weight step.
    """
    updates = max(0, schedule.epochs - schedule.burn_in)
    sampled = schedule.evidence == "elbo" and schedule.elbo_solver == "sampled"
    if schedule.bound == "none" and not sampled:
        updates //= schedule.update_every
    else:
        steps = max(1, math.ceil(examples / schedule.batch_size))
        updates = updates * steps // (1 if sampled else schedule.bound_every)
    learns = schedule.recipe.ranges == "evidence"
    return learns and schedule.range_rate * updates < TRAVEL * (1 - 1e-9)


def _share(updates: int) -> int:
    """Steps on precisions in each of so many hyper steps."""
    return max(1, math.ceil(PRIOR_STEPS / max(1, updates)))


def default_epochs(on_gpu: bool) -> int:
    """Enough for the ranges to settle; more where epochs are cheap."""
    return 100 if on_gpu else 80


def default_batch(examples: int, epochs: int) -> int:
    """Examples a weight step: the paper's 1000, and fewer for small sets and for short runs.

    An epoch has twenty steps at least and all epochs have `LEAST_STEPS`, down to 32 examples each.
    """
    return max(32, min(1000, examples // 20, examples * epochs // LEAST_STEPS))


def cosine(start: float, end: float, progress: float) -> float:
    """From `start` to `end` along half a cosine as `progress` goes from 0 to 1."""
    return end + (start - end) * (1 + math.cos(math.pi * min(1.0, progress))) / 2


def _fewer(count: int, examples: int) -> int:
    """So many of the examples; 0 where that is all of them."""
    return count if count < examples else 0


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value


def stream(
    seed: int, purpose: str, step: int = 0, device: torch.device | str = "cpu"
) -> torch.Generator:
    """A fresh generator for this purpose and step: every draw of a run comes from one.

    A resumed run therefore draws what the uninterrupted one would have drawn, with no state to
    save, and changing how often one purpose draws leaves the others as they were.
    """
    digest = hashlib.sha256(f"{seed}/{purpose}/{step}".encode()).digest()
    generator = torch.Generator(device=device)
    generator.manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return generator
