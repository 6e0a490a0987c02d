"""Settings of a run that learns how much of each pathway a layer needs.

`RelaxConfig` holds what a caller may set; what is left at None follows from the size of the problem
and the device, and `RelaxConfig.resolved` gives the `RelaxSchedule` of a run.

The paper trains 4000 epochs on CIFAR-10 and 1000 on MNIST, on batches of 128, with 20 steps on log
precisions every 5 epochs after the first 10, from the curvature of all data. Schedules here are far
shorter: steps on precisions begin early, before weights have fitted single examples, and come
often, each from the curvature of some examples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from isotropy.checks import CallerError
from isotropy.curvature.kinds import kind_named
from isotropy.data.variants import FlipsAndShifts
from isotropy.evidence.objectives import Recipe
from isotropy.evidence.settings import Schedule, Settings
from isotropy.kernels.compiled import pays
from isotropy.kernels.precision import PRECISIONS, Precision

Objective = Literal["laplace", "map"]
OBJECTIVES: tuple[Objective, ...] = ("laplace", "map")
AUGMENTATIONS: dict[str, FlipsAndShifts | None] = {
    "none": None,
    "shifts": FlipsAndShifts(pixels=4, flip=False),
    "flips": FlipsAndShifts(pixels=4, flip=True),
}
"""Of images in weight steps: random crops after a rim of 4 pixels, and mirrored with chance ½."""
RATE = 3e-3
"""Of the weights with batches of 256; with others in proportion to the root of their size."""
FREE_SHARE = 0.02
"""Of the number of examples: δ at the start of fully connected pathways beside others. Starting at
1 they fit single images before the evidence has a say."""
STEPS_BEFORE = 500
"""Weight steps before the first step on precisions: pathways that start at zero get a size."""


def precision_of(penalty: float, *, examples: int, outputs: int, noise: float = 1.0) -> float:
    """δ of a Gaussian prior that is a penalty λ Σ θ² beside the mean squared error.

        (1/ND) Σ (y − f)² + λ ‖θ‖²  =  (2σ²/ND) [ −log p(y | f) − log p(θ) ] + constant

        δ = λ N D / σ²        N examples of D outputs, noise of standard deviation σ

    (Finzi 2023 calls 1/λ the variance of the prior; it is 1/δ.) Raises CallerError for a penalty
    below zero, or noise that is not above it.
    """
    _check_penalty(penalty, noise)
    return penalty * examples * outputs / noise**2


def penalty_of(precision: float, *, examples: int, outputs: int, noise: float = 1.0) -> float:
    """λ of a Gaussian prior of this precision δ; see `precision_of`."""
    _check_penalty(precision, noise)
    return precision * noise**2 / (examples * outputs)


def _check_penalty(given: float, noise: float) -> None:
    if not given >= 0:
        raise CallerError(f"prior: expected a penalty or precision of at least 0, got {given:g}")
    if not noise > 0:
        raise CallerError(f"noise: expected a standard deviation above 0, got {noise:g}")


@dataclass(frozen=True)
class RelaxConfig(Settings):
    """What a caller may set. None means: follow from the size of the problem (`resolved`).

    objective        laplace: the evidence learns the precisions; map: they stay
    epochs           passes over the training data
    batch_size       examples a weight step
    curvature        kfac-ggn, kfac-mc or kfac-ef (`curvature.kinds`)
    curvature_batch  examples held at once in an evidence pass; sets its memory, not its result
    micro_batch      examples held at once in a weight step; the same, unless the network normalises
                     by statistics of the batch. None: as many as fit
    curvature_examples  examples of an evidence pass during training, drawn anew for each, which
                     stand for all; 0: all. The last pass, which results are from, has all
    weight_rate      learning rate of the weights at the start; cosine to `weight_rate_end`
    burn_in          epochs before the first hyper step, which also waits until the loss has fallen
    update_every     epochs between hyper steps; `prior_steps` on log precisions in each
    prior_rate       their learning rate, cosine to `prior_rate_end`
    prior_precision  δ at the start
    free_precision   δ of fully connected pathways, and free gates, beside others: at the start with
                     laplace, throughout with map, where it is `prior_precision` unless given
    augmentation     of images in weight steps: none, shifts, flips (and shifts)
    precision        of products: float32, tf32 or bfloat16 (`settings`)
    captured         weight steps as CUDA graphs on a GPU
    compiled         convolutional networks compiled for weight steps on a GPU, where that works; by
                     default in runs long enough to gain from it (`kernels.compiled`)
    evaluate_every   epochs between scores on test data
    """

    objective: Objective = "laplace"
    epochs: int | None = None
    batch_size: int | None = None
    curvature: str = "kfac-ggn"
    curvature_batch: int | None = None
    micro_batch: int | None = None
    curvature_examples: int | None = None
    weight_rate: float | None = None
    weight_rate_end: float = 1e-6
    burn_in: int | None = None
    update_every: int | None = None
    prior_steps: int = 20
    prior_rate: float = 0.1
    prior_rate_end: float = 0.01
    prior_precision: float = 1.0
    free_precision: float | None = None
    augmentation: str = "none"
    precision: Precision | None = None
    captured: bool = True
    compiled: bool | None = None
    evaluate_every: int | None = None
    seed: int = 0

    counts: ClassVar[tuple[str, ...]] = (
        "epochs", "batch_size", "curvature_batch", "micro_batch", "update_every", "prior_steps",
        "evaluate_every",
    )  # fmt: skip
    positive: ClassVar[tuple[str, ...]] = (
        "weight_rate", "prior_rate", "prior_precision", "free_precision"
    )  # fmt: skip
    choices: ClassVar[Mapping[str, Sequence[str]]] = {
        "objective": OBJECTIVES,
        "augmentation": tuple(AUGMENTATIONS),
        "precision": PRECISIONS,
    }

    def check(self) -> None:
        """Raise CallerError for values that make no sense."""
        super().check()
        if not self.curvature.startswith("kfac"):
            raise CallerError(
                f"curvature: expected a Kronecker-factored kind such as kfac-ggn, got "
                f"{self.curvature!r}"
            )
        kind_named(self.curvature)

    def resolved(self, *, examples: int, on_gpu: bool) -> RelaxSchedule:
        """The schedule of a run on so many examples; what was given stays."""
        self.check()
        epochs = self.epochs or (100 if on_gpu else 40)
        batch_size = min(self.batch_size or (256 if on_gpu else 32), examples)
        before = max(2, math.ceil(STEPS_BEFORE / math.ceil(examples / batch_size)))
        filled = self._filled(
            RelaxSchedule,
            epochs=epochs,
            batch_size=batch_size,
            weight_rate=RATE * math.sqrt(batch_size / 256),
            curvature_batch=1000 if on_gpu else 100,
            curvature_examples=1000 if on_gpu else 250,
            free_precision=self.prior_precision
            if self.objective == "map"
            else max(self.prior_precision, FREE_SHARE * examples),
            burn_in=min(before, epochs // 3),
            update_every=1 if on_gpu else 2,
            precision="tf32" if on_gpu else "float32",
            compiled=on_gpu and pays(examples * epochs),
            evaluate_every=max(1, epochs // 10),
        )
        return replace(
            filled,
            batch_size=batch_size,
            curvature_batch=min(filled.curvature_batch, examples),
        )


@dataclass(frozen=True, kw_only=True)
class RelaxSchedule(RelaxConfig, Schedule):
    """The settings that a run was given; see `RelaxConfig`. Nothing is averaged over copies."""

    fallback = "refuse"
    test_samples = 0
    recipe = Recipe("absent", samples=1)

    epochs: int
    batch_size: int
    curvature_batch: int
    curvature_examples: int
    weight_rate: float
    burn_in: int
    update_every: int
    free_precision: float
    precision: Precision
    compiled: bool
    evaluate_every: int
