"""Gaussian priors on weights, and the differentiable Laplace evidence of an averaged network.

    p(θ) = Π_l N(θ_l; 0, I/δ_l)      one δ for everything, per layer, or per parameter tensor

    log Z ≈ log p(y | f̂) − ½ [ Σ_l δ_l ‖θ_l‖² + log|H + P| − log|P| ]       P = diag(δ)

(Immer et al. 2022, Eq. 9, with the prior inside the determinant, which the paper's print omits.)
H is block diagonal, one block per parameter tensor; see `curvature`.

The value needs one pass over the data without a graph (`fit`). Its gradient in whatever the inputs
depend on, the augmentation's ranges above all, needs a second pass over all or some batches
(`gradient`), by the vector–Jacobian scheme of Section 4.3:

    ∂ log|H + P| = ⟨ V, Σ_batches ∂ factors(batch) ⟩ ,   V = ∂ log|H + P| / ∂ factors  (pass one)

so memory is set by the batch and never by the number of examples. With the same noise in both
passes this is exactly the gradient of the value; with fresh noise it is unbiased given V. A pass
that takes long says how far it is to a callback (`PassProgress`).

Weights in front of a normalisation layer are scale-invariant: a Gaussian prior says nothing of
their direction and everything of a length that changes nothing. They carry no penalty, and have
the precision on whose shell they lie (`GaussianPrior.precisions_at`). A network may declare its
own groups with a method `prior_groups()` that returns a dictionary from parameter name to group
name; roles are never guessed from names.

A log evidence is comparable only with one of the same data, curvature, number of copies, prior
structure and noise: the curvature's approximation error and the Monte-Carlo error of the average
are then common to both and cancel. `EvidenceValue` carries these, and subtracting two that
differ is refused.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_choice
from isotropy.curvature.blocks import (
    AnySpectrum,
    DenseRoots,
    Factors,
    JointRoots,
    JointSpectrum,
    Roots,
)
from isotropy.curvature.eigen import of_block
from isotropy.curvature.kfac import KFAC, Curvature
from isotropy.curvature.kinds import BatchCurvature, Copies
from isotropy.curvature.low_rank import Pullback, times
from isotropy.curvature.shared_blocks import joined_factors, shared_spectra
from isotropy.curvature.thin_spectra import spectra_of_roots
from isotropy.kernels.ranks import ALONE, Ranks
from isotropy.likelihoods import Likelihood

PriorStructure = Literal["scalar", "layer", "tensor"]
STRUCTURES = ("scalar", "layer", "tensor")


class GaussianPrior(nn.Module):
    """Zero-mean Gaussian prior; `log_precisions` (groups,) is learnable, in float64.

    names: the parameters that have a prior, in the network's own order.
    scale_invariant: layers whose length changes nothing; kept as {layer: its parameters}.
    """

    def __init__(
        self,
        network: nn.Module,
        names: tuple[str, ...],
        structure: PriorStructure = "scalar",
        precision: float = 1.0,
        scale_invariant: Collection[str] = (),
    ) -> None:
        super().__init__()
        check_choice(structure, STRUCTURES, what="prior structure")
        self.structure = structure
        self.names = names
        self.scale_invariant = {
            layer: tuple(name for name in names if name.rpartition(".")[0] == layer)
            for layer in scale_invariant
        }
        self._free = {name for members in self.scale_invariant.values() for name in members}
        self.group_of = _groups(network, names, structure)
        self.groups = tuple(dict.fromkeys(self.group_of.values()))
        start = torch.full((len(self.groups),), math.log(precision), dtype=torch.float64)
        self.log_precisions = nn.Parameter(start)

    def precisions(self) -> dict[str, Tensor]:
        """δ for each parameter tensor by name; differentiable in `log_precisions`."""
        values = dict(zip(self.groups, self.log_precisions.exp(), strict=True))
        return {name: values[self.group_of[name]] for name in self.names}

    def precisions_at(
        self, squared_norms: Mapping[str, Tensor], sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """δ by parameter name, for weights with these squared norms; differentiable in the prior's.

        The weights of a layer in front of a normalisation count by their direction alone, which
        any isotropic Gaussian prior makes uniform on the sphere. They get the precision on whose
        shell they lie, P/‖θ‖², so that the evidence depends neither on their length nor on δ.
        """
        precisions = self.precisions()
        for names in self.scale_invariant.values():
            own = [name for name in names if name in sizes]
            if own:
                length = torch.stack([squared_norms[name] for name in own]).sum()
                on_shell = sum(sizes[name] for name in own) / length
                precisions |= dict.fromkeys(own, on_shell.to(self.log_precisions))
        return precisions

    @torch.no_grad()
    def set_precision(self, names: Collection[str], precision: float) -> None:
        """Give the groups of these parameters this δ."""
        wanted = {self.group_of[name] for name in names}
        for index, group in enumerate(self.groups):
            if group in wanted:
                self.log_precisions[index] = math.log(precision)

    def by_group(self) -> dict[str, float]:
        """δ for each group, for reports."""
        return dict(zip(self.groups, self.log_precisions.detach().exp().tolist(), strict=True))

    @torch.no_grad()
    def add_penalty_gradients(self, parameters: Mapping[str, Tensor], share: float) -> None:
        """Add share · δ_l θ_l to the parameters' gradients: that of the penalty ½ Σ_l δ_l ‖θ_l‖².

        Precisions are constants. Two operations for all tensors of a group, where autograd would
        take several for each.
        """
        precisions = (self.log_precisions.detach().exp() * share).unbind()
        for group, precision in zip(self.groups, precisions, strict=True):
            own = [
                parameters[name]
                for name in self.names
                if self.group_of[name] == group and name not in self._free
            ]
            gradients = [
                torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in own
            ]
            if own:
                pulls = torch._foreach_mul(own, precision.to(own[0].dtype))
                torch._foreach_add_(gradients, list(pulls))
            for tensor, gradient in zip(own, gradients, strict=True):
                tensor.grad = gradient  # new for a weight that the loss does not depend on


def _groups(
    network: nn.Module, names: tuple[str, ...], structure: PriorStructure
) -> dict[str, str]:
    declared = getattr(network, "prior_groups", None)
    if callable(declared):
        groups: dict[str, str] = declared()
        missing = [name for name in names if name not in groups]
        if missing:
            raise CallerError(
                f"prior_groups(): expected a group for every trainable parameter, got none for "
                f"{missing[0]!r}"
            )
        return {name: groups[name] for name in names}
    if structure == "scalar":
        return dict.fromkeys(names, "all")
    if structure == "layer":
        return {name: name.rpartition(".")[0] or "network" for name in names}
    return {name: name for name in names}


class Batch(NamedTuple):
    """Orbit rows (batch·copies, …), copies fastest, targets (batch, …), and how to average.

    generator:  where the Monte-Carlo Fisher draws its labels
    is_checked: the targets are known to fit the network; asking costs a wait on a GPU
    """

    rows: Tensor
    targets: Tensor
    copies: Copies
    generator: torch.Generator | None = None
    is_checked: bool = False


class NotFiniteError(RuntimeError):
    """A loss or an evidence became NaN or infinite; the message says where and what to try."""


@dataclass(frozen=True)
class LaplaceFit:
    """What one pass over the data leaves behind: all the evidence depends on but δ and the noise.

    statistic: the likelihood's, summed over `count` examples; spectra by block, which is a
    parameter's name or, for joint curvature, one for all; norms and sizes by parameter name.
    stands_for: how many examples those are a random sample of, `count` unless said otherwise; log
    likelihood and curvature are those of the sample times stands_for/count.
    """

    spectra: dict[str, AnySpectrum]
    squared_norms: dict[str, Tensor]
    sizes: dict[str, int]
    statistic: Tensor
    count: int
    stands_for: int | None = None

    @property
    def share(self) -> float:
        """By how much sums over all examples exceed those over the sample."""
        return 1.0 if self.stands_for is None else self.stands_for / self.count


class LaplaceEvidence:
    """Evidence of `network` under a likelihood and a prior, by the given curvature (KFAC)."""

    kind = "laplace"

    def __init__(
        self,
        network: nn.Module,
        likelihood: Likelihood,
        prior: GaussianPrior,
        curvature: Curvature | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """ranks: among which the batches of `fit` and `gradient` are shared out"""
        self.network = network
        self.likelihood = likelihood
        self.prior = prior
        self.curvature: Curvature = curvature or KFAC(network)
        self.ranks = ranks

    @property
    def curvature_name(self) -> str:
        """As in records: `kfac-ggn`, …"""
        return self.curvature.kind.name

    def fit(self, batches: Iterable[Batch], *, values_only: bool = False) -> LaplaceFit:
        """Pass one: factors and likelihood statistic over all batches, then eigenvalues.

        values_only: no eigenvectors are found; enough for `value` and `effective_parameters`, and
        not for gradients.
        """
        sums = _Sums(self.likelihood)
        for batch in batches:
            sums.add(self._curvature_of(batch, graph=False), batch)
        sums.join(self.ranks, self._device)
        sums.check()
        spectra = shared_spectra(sums.factors, sums.count, self.ranks, values_only=values_only)
        return self._laplace_fit(spectra, sums.statistics, sums.count)

    def fit_of_few(self, batches: Iterable[Batch]) -> LaplaceFit:
        """`fit` of few examples by their roots, which are kept: for `value` and `steps`.

        Blocks with more columns than there are rows in all are not written out (`blocks`).
        """
        kept: list[Mapping[str, Roots]] = []
        statistics: list[Tensor] = []
        count = 0
        for batch in batches:
            found = self._curvature_of(batch, graph=False).detach()
            roots = {n: r for n, r in found.roots.items() if not isinstance(r, JointRoots)}
            if len(roots) < len(found.roots):
                raise CallerError("a joint curvature has no blocks of single parameters; use kfac")
            for name, root in roots.items():
                if not all(bool(torch.isfinite(tensor).all()) for tensor in root.tensors()):
                    raise _not_finite(name)
            kept.append(roots)
            statistics.append(self.likelihood.statistic(found.outputs, batch.targets).double())
            count += len(batch.targets)
        if self.ranks.are_many:  # those of few are small enough to be sent to all
            kept, statistics = self.ranks.in_turn(kept), self.ranks.in_turn(statistics)
            count = sum(self.ranks.gathered(count))
        if not count:
            raise CallerError("evidence: expected at least one batch of data, got none")
        return self._laplace_fit(spectra_of_roots(kept, count), torch.stack(statistics), count)

    def _curvature_of(self, batch: Batch, *, graph: bool) -> BatchCurvature:
        rows, copies = batch.rows, batch.copies
        if not graph:
            rows, copies = rows.detach(), Copies(copies.count, _constant(copies.weights))
        return self.curvature.batch(
            rows,
            copies,
            self.likelihood,
            batch.targets,
            generator=batch.generator,
            create_graph=graph,
        )

    def _laplace_fit(
        self, spectra: Mapping[str, AnySpectrum], statistics: Tensor, count: int
    ) -> LaplaceFit:
        parameters = dict(self.network.named_parameters())
        names = self.curvature.parameter_names
        return LaplaceFit(
            spectra=dict(spectra),
            squared_norms={
                name: parameters[name].detach().double().square().sum() for name in names
            },
            sizes={name: parameters[name].numel() for name in names},
            statistic=statistics.sum().detach(),
            count=count,
        )

    def value(self, fit: LaplaceFit) -> Tensor:
        """log Z in nats, summed over examples; differentiable in the precisions and the noise."""
        precisions = self.precisions(fit)
        scale = self.scale(fit)
        complexity = torch.zeros((), dtype=torch.float64, device=fit.statistic.device)
        for name in fit.sizes:
            precision = precisions[name]
            complexity = (
                complexity + precision * fit.squared_norms[name] - fit.sizes[name] * precision.log()
            )
        for block, spectrum in fit.spectra.items():
            precision = block_precision(spectrum, block, precisions)
            complexity = complexity + spectrum.log_determinant(scale, precision)
        log_likelihood = self.likelihood.log_likelihood(fit.statistic, fit.count)
        return fit.share * log_likelihood - complexity / 2

    def gradient(
        self, fit: LaplaceFit, batches: Iterable[Batch], inputs: Sequence[Tensor]
    ) -> list[Tensor]:
        """Pass two: the gradient of −log Z by `inputs`, on which the batches' rows depend.

        Some of the data suffices: the sum over the batches given is scaled up to all examples,
        an unbiased estimate when they are drawn uniformly.
        """
        pullbacks, shares = self._pullbacks(fit), Shares(inputs)
        for batch in batches:
            found = self._curvature_of(batch, graph=True)
            shares.add(self._share(found, batch, pullbacks, inputs, fit.share), batch)
        shares.join(self.ranks)
        return shares.scaled_to(fit.count)

    @property
    def _device(self) -> torch.device:
        return self.network.get_parameter(self.curvature.parameter_names[0]).device

    @torch.no_grad()
    def _pullbacks(self, fit: LaplaceFit) -> dict[str, list[Pullback]]:
        """V by block, in the network's own type."""
        precisions, scale = self.precisions(fit), self.scale(fit)
        dtype = self.network.get_parameter(self.curvature.parameter_names[0]).dtype
        return {
            block: list(
                spectrum.pullback(scale, block_precision(spectrum, block, precisions), dtype)
            )
            for block, spectrum in fit.spectra.items()
        }

    def _share(
        self,
        found: BatchCurvature,
        batch: Batch,
        pullbacks: dict[str, list[Pullback]],
        inputs: Sequence[Tensor],
        stands_for: float,
    ) -> tuple[Tensor, ...]:
        """One batch's share of the gradient of −log Z: ⟨V, ∂ factors⟩/2 and −∂ log p.

        stands_for: examples that one of the fit's stands for; V has that factor in it
        """
        statistic = self.likelihood.statistic(found.outputs, batch.targets)
        outputs = [-self.likelihood.log_likelihood(statistic, len(batch.targets))]
        cotangents = [torch.full_like(outputs[0], stands_for)]
        for name, parts in _joined(found.roots, pullbacks).items():
            for tensor, pullback in zip(found.roots[name].tensors(), parts, strict=True):
                if tensor.requires_grad:
                    outputs.append(tensor)
                    cotangents.append(times(tensor.detach(), pullback))
        return torch.autograd.grad(
            outputs, inputs, cotangents, allow_unused=True, materialize_grads=True
        )

    @torch.no_grad()
    def largest_error(self, fit: LaplaceFit) -> float:
        """Nats that log Z is too small by at most, for factors kept in parts (`low_rank`)."""
        precisions, scale = self.precisions(fit), self.scale(fit)
        gaps = [
            spectrum.log_determinant_gap(scale, precisions[block])
            for block, spectrum in fit.spectra.items()
            if not isinstance(spectrum, JointSpectrum)
        ]
        return float(sum(gaps)) / 2

    def effective_parameters(self, fit: LaplaceFit) -> dict[str, float]:
        """γ per block: how many of its parameters the data determines."""
        precisions = self.precisions(fit)
        scale = self.scale(fit)
        return {
            block: float(
                spectrum.effective_parameters(
                    scale, block_precision(spectrum, block, precisions)
                ).detach()
            )
            for block, spectrum in fit.spectra.items()
        }

    def precisions(self, fit: LaplaceFit) -> dict[str, Tensor]:
        """δ by parameter name; differentiable in the prior's."""
        return self.prior.precisions_at(fit.squared_norms, fit.sizes)

    def scale(self, fit: LaplaceFit) -> Tensor:
        """The factor between the blocks and the curvature, from the likelihood's noise."""
        return self.curvature.kind.scale(self.likelihood).to(fit.statistic) * fit.share


class _Sums:
    """Factors and statistics as they add up over batches."""

    def __init__(self, likelihood: Likelihood) -> None:
        self.likelihood = likelihood
        self.factors: dict[str, Factors] = {}
        # (batches,); small tensors that are kept between large ones that are freed scatter memory
        self.statistics = torch.zeros(0, dtype=torch.float64)
        self.count = 0

    @torch.no_grad()
    def add(self, found: BatchCurvature, batch: Batch) -> None:
        """One more batch, without its graph."""
        for name, block in found.detach().factors().items():
            before = self.factors.get(name)
            with of_block(name):
                self.factors[name] = block if before is None else before + block  # type: ignore[operator]
        if not batch.is_checked:
            self.likelihood.check_targets(batch.targets, found.outputs)
        statistic = self.likelihood.statistic(found.outputs, batch.targets)
        own = statistic.double()[None]
        self.statistics = torch.cat([self.statistics, own]) if self.count else own
        self.count += len(batch.targets)

    def join(self, ranks: Ranks, device: torch.device) -> None:
        """Add up over ranks; one may have had no batch."""
        if not ranks.are_many:
            return
        self.factors = joined_factors(self.factors, ranks, device)
        own = torch.zeros(2, dtype=torch.float64, device=device)
        own[1] = self.count
        own[0] = self.statistics.sum()
        ranks.add_([own])
        self.statistics, self.count = own[:1], int(own[1])

    def check(self) -> None:
        """Raise unless there was data, and all of it finite."""
        if not self.count:
            raise CallerError("evidence: expected at least one batch of data, got none")
        for name, block in self.factors.items():
            if not all(bool(torch.isfinite(t).all()) for t in block.tensors()):
                raise _not_finite(name)


class Shares:
    """The gradient by `inputs` as it adds up over batches."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.total = [torch.zeros_like(tensor) for tensor in inputs]
        self.seen = 0

    def add(self, part: tuple[Tensor, ...], batch: Batch) -> None:
        """One more batch."""
        self.total = [total + new for total, new in zip(self.total, part, strict=True)]
        self.seen += len(batch.targets)

    def join(self, ranks: Ranks) -> None:
        """Add up over ranks."""
        if ranks.are_many:
            seen = torch.tensor(float(self.seen), dtype=torch.float64, device=self.total[0].device)
            self.total = [each.clone() for each in self.total]
            ranks.add_([*self.total, seen])
            self.seen = int(seen)

    def scaled_to(self, count: int) -> list[Tensor]:
        """What the batches seen say of `count` examples."""
        if not self.seen:
            raise CallerError("evidence gradient: expected at least one batch of data, got none")
        return [tensor * (count / self.seen) for tensor in self.total]


def block_precision(spectrum: AnySpectrum, block: str, precisions: dict[str, Tensor]) -> Tensor:
    """The block's prior precision: one number, or one a parameter for a joint block."""
    if isinstance(spectrum, JointSpectrum):
        return spectrum.repeated(precisions)
    return precisions[block]


def _not_finite(name: str) -> NotFiniteError:
    return NotFiniteError(
        f"the curvature of {name!r} is not finite: the network's outputs or their derivatives "
        "overflow; lower the learning rate or rescale the inputs"
    )


def _constant(weights: Tensor | None) -> Tensor | None:
    return None if weights is None else weights.detach()


def _joined(
    roots: Mapping[str, Roots], pullbacks: dict[str, list[Pullback]]
) -> dict[str, list[Pullback]]:
    """Pullbacks by parameter, those of a bias added to its weight's where both share a root."""
    joined = {name: list(parts) for name, parts in pullbacks.items()}
    for name, root in roots.items():
        if isinstance(root, DenseRoots) and root.output_of in joined:
            (of_bias,) = joined.pop(name)
            of_inputs, of_outputs = joined[root.output_of]
            joined[root.output_of] = [of_inputs, of_outputs + of_bias]  # type: ignore[operator]
    return joined


@dataclass(frozen=True)
class EvidenceValue:
    """log Z in nats over `examples` examples, and what it depends on besides the model.

    curvature        kind, such as kfac-ggn; none for a bound
    samples          copies averaged (S)
    prior_structure  scalar, layer, tensor or declared
    noise_seed       which draws of the noise (and of labels, for a Monte-Carlo Fisher)
    data             a fingerprint of the training data
    kind             laplace, or elbo for a lower bound
    error            nats that it is too small by at most, as large factors are kept in parts
    """

    nats: float
    examples: int
    curvature: str
    samples: int
    prior_structure: str
    noise_seed: str
    data: str = ""
    kind: str = "laplace"
    error: float = 0.0

    def __sub__(self, other: EvidenceValue) -> float:
        """The difference in nats; refused if anything but the model differs."""
        if not isinstance(other, EvidenceValue):
            return NotImplemented
        for field in fields(self):
            here, there = getattr(self, field.name), getattr(other, field.name)
            if field.name not in ("nats", "error") and here != there:
                raise CallerError(
                    f"evidences differ in {field.name.replace('_', ' ')}: {here!r} and {there!r}; "
                    "their difference would compare approximations, not models; compute both "
                    "with the same"
                )
        return self.nats - other.nats

    @property
    def per_example(self) -> float:
        """Nats per example."""
        return self.nats / self.examples

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


FIRST_SECONDS = 5.0
"""A pass says nothing before this."""
EVERY_SECONDS = 15.0
"""Between two lines of one pass."""


class PassProgress:
    """Counts the examples of one pass and tells `remark` about them; None tells nobody."""

    def __init__(
        self,
        remark: Callable[[str], None] | None,
        what: str,
        examples: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.remark = remark
        self.what = what
        self.examples = examples
        self.done = 0
        self.clock = clock
        self.started = clock()
        self.due = self.started + FIRST_SECONDS

    def add(self, examples: int) -> None:
        """So many more examples are about to be worked on; those before them are done."""
        if self.remark is not None and self.done and self.clock() >= self.due:
            seconds = self.clock() - self.started
            left = seconds / self.done * (self.examples - self.done)
            self.remark(
                f"{self.what}: {self.done} of {self.examples} examples, {seconds:.0f} s, about "
                f"{left:.0f} s left"
            )
            self.due = self.clock() + EVERY_SECONDS
        self.done += examples
