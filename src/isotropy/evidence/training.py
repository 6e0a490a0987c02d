"""Weights and hyperparameters learned in one run: the training loop of every verb that trains.

An epoch takes one weight step per mini-batch (`weight_steps`); after some of them, and after the
epoch, come hyper steps on precisions, noise and ranges (`hyper_steps`); scores on test data when
they are due. Which prior, weight steps and hyper steps a run has follows from the type of its
schedule (`PARTS`):

    LearnSchedule   ranges of an augmentation, by the evidence or a bound of it (`elbo_steps` where
                    the evidence is one); with `augerino`
                    they follow the training loss with a reward for width,  CE − w‖η‖₂  and a fixed
                    weight decay; with `fixed` and `none` only precisions are learned (`settings`)
    RelaxSchedule   the precision of every pathway of a relaxed network (`layers.training`)

The loop draws from named streams (`settings.stream`) and keeps no other state than parameters,
optimiser moments, the epoch and what hyper steps hand over, so that a saved and resumed run ends
with the numbers of an unbroken one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.kfac import make_curvature
from isotropy.curvature.kinds import Copies, kind_named
from isotropy.curvature.recording import checked_outputs, evaluation_mode
from isotropy.curvature.scale_invariance import scale_invariant_layers
from isotropy.data.streams.streamed import StreamedData
from isotropy.evidence.bound import BoundSteps
from isotropy.evidence.elbo_steps import ElboSteps, head_evidence, head_steps
from isotropy.evidence.hyper_steps import EvidenceSteps, HyperSteps
from isotropy.evidence.laplace import (
    Batch,
    EvidenceValue,
    GaussianPrior,
    LaplaceEvidence,
    NotFiniteError,
    PassProgress,
)
from isotropy.evidence.layers.settings import RelaxSchedule
from isotropy.evidence.layers.training import (
    LayerEpoch,
    PathwaySteps,
    ProximalSteps,
    Untransformed,
    pathway_prior,
)
from isotropy.evidence.predictive import Scores, plain_scores, score
from isotropy.evidence.settings import AnySchedule, LearnSchedule, Schedule, stream
from isotropy.evidence.weight_steps import FeatureSteps, OrbitSteps, WeightSteps, parts_of
from isotropy.kernels.captured import adam
from isotropy.kernels.cores import on_one_core
from isotropy.kernels.precision import multiplying_in
from isotropy.kernels.ranks import Ranks, ranks
from isotropy.likelihoods import Likelihood
from isotropy.networks.averaging.averaged_features import AveragedFeatures
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.batch_statistics import find_first_statistics, use_batch_statistics
from isotropy.networks.frozen import trained_head


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """What is known after an epoch of `isotropy.learn`; None where it was not computed then.

    test_rmse:  root mean squared error of a regression, in the unit of its targets
    own_test_…: scores by the objective's own rule, where it has one (`settings`)
    bound:      mean of the epoch's estimates of a lower bound of the evidence, in nats, where hyper
                steps follow one (`bound`); weights and ranges moved between them
    """

    epoch: int
    train_loss: float
    train_accuracy: float | None
    log_likelihood: float | None = None
    log_evidence: float | None = None
    log_evidence_per_example: float | None = None
    ranges: dict[str, float]
    prior_precision: dict[str, float]
    noise: float | None
    test_accuracy: float | None
    test_log_likelihood: float | None
    seconds: float
    own_test_accuracy: float | None = None
    own_test_log_likelihood: float | None = None
    test_rmse: float | None = None
    bound: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(
        cls, trainer: Trainer[Any], scores: Scores | None, own: Scores | None, **numbers: Any
    ) -> EpochRecord:
        """The record of the trainer's last epoch; numbers: those of weight and hyper steps."""
        evidence = numbers.get("log_evidence")
        return cls(
            **numbers,
            log_evidence_per_example=None if evidence is None else evidence / trainer.examples,
            ranges={symmetry.name: symmetry.high for symmetry in trainer.model.symmetries()},
            prior_precision=trainer.prior.by_group(),
            noise=getattr(trainer.likelihood, "noise", None),
            test_accuracy=None if scores is None else scores.accuracy,
            test_log_likelihood=None if scores is None else scores.log_likelihood,
            own_test_accuracy=None if own is None else own.accuracy,
            own_test_log_likelihood=None if own is None else own.log_likelihood,
            test_rmse=None if scores is None else scores.rmse,
        )


class Trainer(Generic[AnySchedule]):
    """One run: `run_epoch` until `epoch == config.epochs`, then `final_evidence`.

    model: averaged over copies, or a network alone, whose only copy is the input itself
    inputs (examples, …) and targets lie on the model's device
    stream: where all examples are read from, if inputs and targets are a sample of them
    remark: told how far an evidence pass is that takes long; may be set at any time
    target_deviation: by which outputs were divided; scores on test data are in the unit before
    features: averaged over copies, where the last layer alone is trained; weight steps and evidence
              see these in place of the inputs
    """

    remark: Callable[[str], None] | None = None
    target_deviation: tuple[float, ...] | None = None

    def __init__(
        self,
        model: InvariantModel | nn.Module,
        likelihood: Likelihood,
        config: AnySchedule,
        inputs: Tensor,
        targets: Tensor,
        stream: StreamedData | None = None,
    ) -> None:
        if not isinstance(model, InvariantModel):
            model = InvariantModel(model, Untransformed(), samples=1)
        self.model, self.network = model, model.network
        self.likelihood, self.config, self.recipe = likelihood, config, config.recipe
        self.inputs, self.targets, self.stream = inputs, targets, stream
        self.device = inputs.device
        self.ranks = _ranks_of(config)
        _check_stream(config, stream)
        self._check_outputs()
        find_first_statistics(self.network, inputs)
        self.features = _features(self)
        parts = ELBO if config.evidence == "elbo" else PARTS[type(config)]
        parts = parts if self.features is None else FEATURES
        self.evidence = parts.evidence(self)
        self.prior = self.evidence.prior
        self.ranks.agree_([*model.parameters(), *model.buffers()])
        self.ranges = model.augmentation.learnable()
        for parameter in self.ranges:
            parameter.requires_grad_(self.recipe.learns)
        hyper = [self.prior.log_precisions, *likelihood.parameters()]
        self.optimisers: dict[str, Any] = {"prior": adam(hyper, rate=config.prior_rate)}
        self.weight_steps = parts.weight_steps(self)
        self.optimisers["weights"] = self.weight_steps.optimiser
        self.hyper = parts.hyper_steps(self)
        self._record = parts.record
        self.epoch = 0
        self.seconds = 0.0

    @property
    def examples(self) -> int:
        """How many there are to learn from."""
        return len(self.inputs) if self.stream is None else len(self.stream)

    def read(self, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets by the numbers of their examples, batch by batch.

        Of a stream, batches are read ahead and may be asked for before those in front are used.
        """
        if self.stream is None:
            for batch in batches:
                yield self.inputs[batch], self.targets[batch]
            return
        on_gpu, dtype = self.device.type == "cuda", self.inputs.dtype
        for inputs, targets in self.stream.read(batches, pinned=on_gpu):
            own = targets.to(self.device, self.targets.dtype, non_blocking=on_gpu)
            yield inputs.to(self.device, dtype, non_blocking=on_gpu), own

    @property
    def follows_evidence(self) -> bool:
        """Whether there are ranges that the evidence moves."""
        return self.recipe.ranges == "evidence" and bool(self.ranges)

    def _check_outputs(self) -> None:
        """Run a few examples, so that a network that does not fit the data is named at once."""
        with torch.no_grad(), evaluation_mode(self.network):
            try:
                outputs = self.network(self.inputs[:2])
            except RuntimeError as error:
                shape = tuple(self.inputs.shape[1:])
                raise CallerError(
                    f"the network cannot be run on inputs of shape {shape}: {error}"
                ) from error
        self.likelihood.check_targets(self.targets, checked_outputs(outputs))
        if self.stream is not None and self.stream.classes is not None:
            last = self.targets.new_tensor([self.stream.num_classes - 1])
            self.likelihood.check_targets(last, outputs)
        self.outputs = outputs.shape[1]

    # -- what a checkpoint holds -----------------------------------------------------------

    def modules(self) -> dict[str, nn.Module]:
        return {
            "network": self.network,
            "augmentation": self.model.augmentation,
            "prior": self.prior,
            "likelihood": self.likelihood,
        } | ({"posterior": self.evidence.posterior} if self.evidence.kind == "elbo" else {})

    def own_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return self.weight_steps.state(), self.hyper.state()

    def load_own_state(self, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        self.weight_steps.load_state(tensors)
        self.hyper.load_state(record)

    # -- one epoch -------------------------------------------------------------------------

    def run_epoch(self, test: tuple[Tensor, Tensor] | None = None) -> Any:
        """One pass of weight steps, hyper steps and scores on `test` when they are due.

        Returns the epoch's record, an `EpochRecord` or a `LayerEpoch`.
        """
        with multiplying_in(self.config.precision, self.device):
            return self._run_epoch(test)

    def _run_epoch(self, test: tuple[Tensor, Tensor] | None) -> Any:
        started = time.perf_counter()
        self.epoch += 1
        with on_one_core(self._is_small()):
            loss, accuracy = self.weight_steps.epoch(self.epoch, self.hyper.after_step)
            self.check_finite(loss, "training loss")
            self.check_finite(float(sum(each.detach().sum() for each in self.ranges)), "ranges")
            found = self.hyper.after_epoch(self, loss)
        self.ranks.agree_([*self.ranges, self.prior.log_precisions, *self.likelihood.parameters()])
        due = self.epoch == self.config.epochs or self.epoch % self.config.evaluate_every == 0
        scores = self.score(*test) if test is not None and due else None
        own = self.own_score(*test) if test is not None and due else None
        self.seconds += time.perf_counter() - started
        return self._record(
            self,
            scores,
            own,
            epoch=self.epoch,
            seconds=self.seconds,
            **{"train_loss": loss, "train_accuracy": accuracy, **found},
        )

    def _is_small(self) -> bool:
        """Whether steps see the features of a small last layer alone, which are known then."""
        if self.features is None or self.hyper.moves_ranges:
            return False
        self.features.now()
        return all(max(each.shape) <= SMALL_LAYER for each in self.features.head.parameters())

    def check_finite(self, value: float, what: str) -> None:
        """Raise NotFiniteError for a number that is not finite."""
        if not torch.isfinite(torch.tensor(value)):
            raise NotFiniteError(
                f"the {what} became {value} in epoch {self.epoch}; the last good state is kept; "
                "try a lower weight rate or prior rate, or rescale inputs far from unit size"
            )

    # -- the evidence ----------------------------------------------------------------------

    def orbit_batches(
        self,
        purpose: str,
        *,
        limit: int = 0,
        graph: bool = False,
        order: str | None = None,
        labels: str | None = None,
        of_epoch: int | None = None,
    ) -> Iterator[Batch]:
        """Batches for an evidence pass, in the epoch's own order and noise for this purpose.

        Of several ranks each has its share of the batches, with the draws that these have anyway.
        limit: at most so many examples, drawn at random (0: all data in order).
        graph: whether rows can be differentiated by the ranges
        order, labels: the streams of the order and of drawn labels, if not the purpose's own
        of_epoch: whose order and noise, if not this epoch's
        """
        epoch = self.epoch if of_epoch is None else of_epoch
        seed, size = self.config.seed, self.config.curvature_batch
        chosen = torch.arange(self.examples)
        if limit:
            generator = stream(seed, order or purpose + " order", epoch)
            chosen = torch.randperm(self.examples, generator=generator)[:limit]
        noise_stream = stream(seed, purpose, epoch, self.device)
        told = PassProgress(self.remark, f"evidence pass ({purpose})", len(chosen))
        chosen = chosen.to(self.device) if self.stream is None else chosen
        mine = (b for index, b in enumerate(parts_of(chosen, size)) if self.ranks.is_mine(index))
        reading = self.read(mine)
        for index, batch in enumerate(parts_of(chosen, size)):
            told.add(len(batch))
            drawn_for = f"{labels or purpose + ' labels'}{f' {index}' if index else ''}"
            label_stream = stream(seed, drawn_for, epoch, self.device)
            if self.features is not None and not graph:
                if self.ranks.is_mine(index):
                    rows = self.features.now()[batch]
                    yield Batch(rows, self.targets[batch], Copies(1), label_stream, is_checked=True)
                continue
            noise = self.model.noise(len(batch), generator=noise_stream)
            if not self.ranks.is_mine(index):
                continue
            inputs, targets = next(reading)
            with torch.set_grad_enabled(graph):
                if self.features is not None:
                    rows, copies = self.features.of(inputs, noise), Copies(1)
                else:
                    rows = self.model.orbit(inputs, noise)
                    copies = self.model.augmentation.copies(noise.shape[1])
            yield Batch(rows, targets, copies, label_stream, is_checked=True)

    def final_evidence(self) -> EvidenceValue | None:
        """log Z of the model as it stands (None for objectives that have no prior)."""
        return self.evidence_value("final") if self.recipe.evidence else None

    @torch.no_grad()
    def evidence_value(self, purpose: str) -> EvidenceValue:
        """log Z with the noise of this purpose and epoch, and what it depends on."""
        one_core = on_one_core(self._is_small())
        with multiplying_in(self.config.precision, self.device), one_core:
            fit = self.evidence.fit(self.orbit_batches(purpose))
            value = self.evidence.value(fit)
            self.check_finite(float(value), "log evidence")
            error = self.evidence.largest_error(fit) if self.evidence.kind == "laplace" else 0.0
        return EvidenceValue(
            nats=float(value),
            examples=self.examples,
            curvature=self.evidence.curvature_name,
            samples=self.model.samples,
            prior_structure=self.prior.structure,
            noise_seed=f"{self.config.seed}/{FEATURES_STREAM}/0"
            if self.features is not None
            else f"{self.config.seed}/{purpose}/{self.epoch}",
            kind=self.evidence.kind,
            error=error,
        )

    # -- scoring ---------------------------------------------------------------------------

    def score(self, inputs: Tensor, targets: Tensor) -> Scores:
        """Averaged predictions over the same `test_samples` copies every time."""
        copies = self.config.test_samples
        if self.features is not None and copies:
            features, head = self.features.fixed(inputs, copies), self.features.head
            scores = plain_scores(head, self.likelihood, features, targets)
            return scores.in_units(self.target_deviation)
        scores = score(self.model, self.likelihood, inputs, targets, copies=copies)
        return scores.in_units(self.target_deviation)

    def own_score(self, inputs: Tensor, targets: Tensor) -> Scores | None:
        """Scores as the objective itself predicts; None where that is how all are scored."""
        own = self.recipe.own
        if own is None:
            return None
        scores = score(
            self.model,
            self.likelihood,
            inputs,
            targets,
            copies=own.copies,
            combination=own.combination,
        )
        return scores.in_units(self.target_deviation)


# -- what a run is made of -----------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """What differs between the runs of two verbs.

    evidence:     of a trainer that has its model, with a prior
    weight_steps: of a trainer that has its prior; hyper_steps: of one that has both
    record:       an epoch in the fields that the verb records
    """

    evidence: Callable[[Any], Any]
    weight_steps: Callable[[Any], WeightSteps]
    hyper_steps: Callable[[Any], HyperSteps]
    record: Callable[..., Any]


def _laplace(prior: Callable[..., GaussianPrior]) -> Callable[[Any], LaplaceEvidence]:
    """prior: of a schedule, a network, the names of the parameters that have one, and inputs"""

    def evidence(trainer: Trainer[Any]) -> LaplaceEvidence:
        config, network, inputs = trainer.config, trainer.network, trainer.inputs
        if trainer.features is not None:
            network, inputs = trainer.features.head, trainer.features.some()
        kind = kind_named(config.curvature)
        curvature = make_curvature(network, kind, config.fallback, inputs[:2])
        own = prior(config, network, curvature.parameter_names, inputs).to(trainer.device)
        return LaplaceEvidence(network, trainer.likelihood, own, curvature, trainer.ranks)

    return evidence


def _learn_prior(
    config: LearnSchedule, network: nn.Module, names: tuple[str, ...], inputs: Tensor
) -> GaussianPrior:
    """Weights in front of a normalisation count by their direction."""
    layers = {name.rpartition(".")[0] for name in names}
    return GaussianPrior(
        network,
        names,
        config.prior_structure,
        config.prior_precision,
        scale_invariant=sorted(
            scale_invariant_layers(network, layers, inputs[:4], prepare=use_batch_statistics)
        ),
    )


def _learn_steps(trainer: Trainer[LearnSchedule]) -> HyperSteps:
    return EvidenceSteps(trainer) if trainer.config.bound == "none" else BoundSteps(trainer)


def _ranks_of(config: Schedule) -> Ranks:
    """The ranks that a run is shared by. Raises CallerError for one that cannot be shared."""
    found = ranks()
    shared = config.evidence == "laplace" and getattr(config, "bound", "none") == "none"
    if found.are_many and not shared:
        raise CallerError(
            f"{found.count} processes: expected a run with the Laplace evidence and no bound, "
            "which processes can share; start this one in a single process"
        )
    return found


def _check_stream(config: Schedule, found: StreamedData | None) -> None:
    """Raise CallerError for a run that needs all examples at once, where they are streamed."""
    if found is None:
        return
    if config.evidence != "laplace" or getattr(config, "bound", "none") != "none":
        raise CallerError(
            f"{found.name}: expected the Laplace evidence and no bound for data that are read "
            "while they are used, got a run that holds all of them; take part of the data "
            "(--subset), or leave evidence and bound at their defaults"
        )


SMALL_LAYER = 1024
"""Inputs and outputs of a last layer up to which its steps are taken on one core."""
FEATURES_STREAM = "features"
"""Where the copies behind features are drawn from."""


def _features(trainer: Trainer[Any]) -> AveragedFeatures | None:
    """Where a part of the network was frozen on request, and the last layer alone is left.

    Not with a bound, nor where copies have a loss each or ranges follow the loss: these need the
    outputs of every copy.
    """
    config = trainer.config
    if not isinstance(config, LearnSchedule) or config.freeze == "none":
        return None
    if trainer.stream is not None:  # features of all examples would be held
        return None
    outputs = config.recipe.averaged == "outputs" and config.recipe.ranges != "loss"
    if config.evidence != "laplace" or config.bound != "none" or not outputs:
        return None
    head = trained_head(trainer.network, trainer.inputs[:1])
    if head is None:
        return None
    seed, place = config.seed, trainer.device
    return AveragedFeatures(
        trainer.model, head, trainer.inputs, lambda: stream(seed, FEATURES_STREAM, 0, place)
    )


PARTS: dict[type[Schedule], Parts] = {
    LearnSchedule: Parts(_laplace(_learn_prior), OrbitSteps, _learn_steps, EpochRecord.of),
    RelaxSchedule: Parts(_laplace(pathway_prior), ProximalSteps, PathwaySteps, LayerEpoch.of),
}
"""By the type of a run's schedule."""
FEATURES = Parts(_laplace(_learn_prior), FeatureSteps, _learn_steps, EpochRecord.of)
"""Of a `LearnSchedule` whose last layer alone is trained."""
ELBO = Parts(head_evidence, head_steps, ElboSteps, EpochRecord.of)
"""Of a `LearnSchedule` with the evidence elbo."""
