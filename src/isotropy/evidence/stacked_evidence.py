"""Hyper steps of several runs at once: their evidence passes share every kernel launch.

The step is that of `training`, its passes are those of `laplace`, each on stacks of tensors,
(runs, …). Every run brings its own batches, in its own order and with its own noise. What is left
is one `LaplaceFit` a run. The gradient by the ranges of all runs comes from one back-propagation:

    Σ_k ⟨V_k, ∂ factors_k⟩     and run k's ranges occur in its own term alone

Eigendecompositions are batched over runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from isotropy.curvature.batches import AnyFactors, BatchCurvature, spectra_of
from isotropy.curvature.copies import Copies
from isotropy.curvature.run_axis import over_runs, stack_runs, with_state
from isotropy.curvature.stacked_kfac import StackedKFAC
from isotropy.evidence.laplace import Batch, LaplaceFit, NotFiniteError, _joined, _times
from isotropy.evidence.sizing import fit_curvature_batch

if TYPE_CHECKING:
    from isotropy.evidence.training import Trainer

Found = TypeVar("Found")


@dataclass(frozen=True)
class StackedBatch:
    """One `Batch` of every run: rows (runs, batch·copies, …), targets (runs, batch, …).

    is_last: no other part of the same batch follows, whose graph begins with the same rows
    """

    rows: Tensor
    targets: Tensor
    copies: Copies
    generators: tuple[torch.Generator | None, ...]
    is_last: bool = True

    @property
    def size(self) -> int:
        """Examples of each run."""
        return self.targets.shape[1]

    def parts(self, size: int) -> Iterator[StackedBatch]:
        """The same in parts of at most `size` examples a run."""
        if size >= self.size:
            yield self
            return
        rows = self.rows.split(size * self.copies.count, 1)
        targets = self.targets.split(size, 1)
        for number, (part, own) in enumerate(zip(rows, targets, strict=True)):
            yield replace(self, rows=part, targets=own, is_last=number == len(rows) - 1)


class StackedHyperSteps:
    """Hyper steps of runs that all learn ranges, or none does; see `supports`."""

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self.trainers = tuple(trainers)
        first = trainers[0]
        self.evidence, self.config = first.evidence, first.config
        self.curvature = StackedKFAC(
            [trainer.evidence.curvature for trainer in trainers],  # type: ignore[misc]
            first.inputs[:1],
        )
        self._hyper = nn.ModuleDict({"prior": first.prior, "likelihood": first.likelihood})
        self._part = self._examples_at_once()

    @staticmethod
    def supports(trainers: Sequence[Trainer]) -> bool:
        """Whether the evidence passes of these runs can be stacked."""
        curvatures = [trainer.evidence.curvature for trainer in trainers]
        return all(
            StackedKFAC.supports(own) and own.kind == curvatures[0].kind for own in curvatures
        )

    def _examples_at_once(self) -> int:
        """Examples of every run that are held together; drawn labels need whole batches."""
        assert self.config.curvature_batch is not None and self.config.samples is not None
        if self.curvature.kind.fisher == "mc":
            return self.config.curvature_batch
        together = replace(self.config, samples=self.config.samples * len(self.trainers))
        first = self.trainers[0]
        found = fit_curvature_batch(together, first.network, first.inputs[:1]).curvature_batch
        assert found is not None
        return found

    # -- one step --------------------------------------------------------------------------

    def step(self) -> list[tuple[float, float]]:
        """Precisions and noise, then ranges; each run's log likelihood and evidence before."""
        config, first = self.config, self.trainers[0]
        assert config.gradient_batches is not None and config.batch_size is not None
        limit = config.gradient_batches * config.batch_size
        learns = first.recipe.ranges == "evidence" and bool(first.ranges)
        fit = self._fit(self._batches("factors"))
        log_likelihoods = self._log_likelihoods(fit.statistic, fit.count).detach().tolist()
        values = self._precision_steps(fit)
        if learns:
            shares = _Shares([trainer.ranges for trainer in self.trainers])
            state, pullbacks = self.curvature.state(), self._pullbacks(fit)
            for batch in self._batches("ranges", limit=limit, graph=True):
                found = self._curvature_of(state, batch, graph=True)
                shares.add(*self._terms(found, batch, pullbacks), batch)
            for trainer, own in zip(self.trainers, shares.scaled_to(fit.count), strict=True):
                trainer._range_step(own)
        return list(zip(log_likelihoods, values, strict=True))

    def _batches(self, purpose: str, **options: Any) -> Iterator[StackedBatch]:
        """Batches of all runs, side by side."""
        each = [trainer.orbit_batches(purpose, **options) for trainer in self.trainers]
        for own in zip(*each, strict=True):
            yield from _side_by_side(own).parts(self._part)

    def _fit(self, batches: Iterator[StackedBatch]) -> LaplaceFit:
        """A stacked fit."""
        state = self.curvature.state()
        factors: dict[str, AnyFactors] = {}
        statistics: list[Tensor] = []
        count = 0
        for batch in batches:
            found = self._curvature_of(state, batch, graph=False)
            with torch.no_grad():
                for name, block in over_runs(BatchCurvature.factors, found.detach()).items():
                    before = factors.get(name)
                    factors[name] = block if before is None else before + block  # type: ignore[operator]
                statistics.append(self._statistic(found, batch).double())
            count += batch.size
        _check_finite(factors)
        names = self.curvature.parameter_names
        return LaplaceFit(
            spectra=over_runs(lambda blocks: spectra_of(blocks, count), factors),
            squared_norms={n: state[n].double().square().flatten(1).sum(1) for n in names},
            sizes={name: state[name][0].numel() for name in names},
            statistic=torch.stack(statistics).sum(0),
            count=count,
        )

    def _curvature_of(
        self, state: dict[str, Tensor], batch: StackedBatch, *, graph: bool
    ) -> BatchCurvature:
        rows, copies = batch.rows, batch.copies
        if not graph:
            weights = None if copies.weights is None else copies.weights.detach()
            rows, copies = rows.detach(), _unchecked(copies, weights)
        return self.curvature.batch(
            state,
            rows,
            copies,
            [trainer.likelihood for trainer in self.trainers],
            batch.targets,
            generators=batch.generators,
            create_graph=graph,
        )

    def _precision_steps(self, fit: LaplaceFit) -> list[float]:
        """A few steps on log precisions and noise; the evidences before them."""
        assert self.config.prior_steps is not None
        before: list[float] = []
        for number in range(self.config.prior_steps):
            for trainer in self.trainers:
                trainer.optimisers["prior"].zero_grad(set_to_none=True)
            values = self._with_hyper(self.evidence.value, fit)
            if number == 0:
                before = values.detach().tolist()
                for trainer, value in zip(self.trainers, before, strict=True):
                    trainer._check_finite(value, "log evidence")
            (-values).sum().backward()
            for trainer in self.trainers:
                trainer.optimisers["prior"].step()
        return before

    # -- pieces of the evidence, for all runs ----------------------------------------------

    def _with_hyper(self, function: Callable[..., Found], *stacks: Any) -> Found:
        """A function of one run that reads precisions and noise, over all; differentiable."""
        live = [
            {
                **{f"prior.{name}": p for name, p in trainer.prior.named_parameters()},
                **{f"likelihood.{name}": p for name, p in trainer.likelihood.named_parameters()},
            }
            for trainer in self.trainers
        ]

        def of_one(state: dict[str, Tensor], *own: Any) -> Found:
            return with_state(self._hyper, state, function, *own)

        return over_runs(of_one, stack_runs(live), *stacks)

    def _pullbacks(self, fit: LaplaceFit) -> dict[str, list[Tensor]]:
        with torch.no_grad():
            return self._with_hyper(self.evidence._pullbacks, fit)

    def _statistic(self, found: BatchCurvature, batch: StackedBatch) -> Tensor:
        return self._with_hyper(self.evidence.likelihood.statistic, found.outputs, batch.targets)

    def _log_likelihoods(self, statistic: Tensor, count: int) -> Tensor:
        likelihood = self.evidence.likelihood
        return self._with_hyper(lambda own: likelihood.log_likelihood(own, count), statistic)

    def _terms(
        self, found: BatchCurvature, batch: StackedBatch, pullbacks: dict[str, list[Tensor]]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """What depends on the ranges, and the derivatives of Σ_k −log Z_k by it."""
        outputs = [-self._log_likelihoods(self._statistic(found, batch), batch.size)]
        cotangents = [torch.ones_like(outputs[0])]
        for name, parts in over_runs(_joined, found.detach().roots, pullbacks).items():
            for tensor, pullback in zip(found.roots[name].tensors(), parts, strict=True):
                if tensor.requires_grad:
                    outputs.append(tensor)
                    cotangents.append(over_runs(_times, tensor.detach(), pullback))
        return outputs, cotangents


class _Shares:
    """The gradients of all runs as they add up over batches."""

    def __init__(self, ranges: Sequence[Sequence[Tensor]]) -> None:
        self.sizes = [len(own) for own in ranges]
        self.inputs = [parameter for own in ranges for parameter in own]
        self.total = [torch.zeros_like(parameter) for parameter in self.inputs]
        self.seen = 0

    def add(self, outputs: list[Tensor], cotangents: list[Tensor], batch: StackedBatch) -> None:
        """One more batch, by what `_terms` says of it."""
        part = torch.autograd.grad(
            outputs,
            self.inputs,
            cotangents,
            retain_graph=not batch.is_last,
            allow_unused=True,
            materialize_grads=True,
        )
        self.total = [total + new for total, new in zip(self.total, part, strict=True)]
        self.seen += batch.size

    def scaled_to(self, count: int) -> list[list[Tensor]]:
        """Each run's gradient, for `count` examples."""
        scaled = iter([tensor * (count / self.seen) for tensor in self.total])
        return [[next(scaled) for _ in range(size)] for size in self.sizes]


def _side_by_side(batches: Sequence[Batch]) -> StackedBatch:
    return StackedBatch(
        torch.stack([batch.rows for batch in batches]),
        torch.stack([batch.targets for batch in batches]),
        stack_runs([batch.copies for batch in batches]),
        tuple(batch.generator for batch in batches),
    )


def _unchecked(copies: Copies, weights: Tensor | None) -> Copies:
    """A stack of copies with other weights (runs, copies)."""
    if weights is None:
        return copies
    return stack_runs([Copies(copies.count, own) for own in weights])


def _check_finite(factors: dict[str, AnyFactors]) -> None:
    for name, block in factors.items():
        if not all(bool(torch.isfinite(tensor).all()) for tensor in block.tensors()):
            raise NotFiniteError(
                f"the curvature of {name!r} is not finite in one of the stacked runs: outputs or "
                "their derivatives overflow; lower the learning rate or rescale the inputs"
            )
