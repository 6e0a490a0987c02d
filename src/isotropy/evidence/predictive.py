"""How well a model predicts: its scores, its posterior predictive, and their calibration.

Scores (`score`) are accuracy, or for a regression the squared error, and mean log likelihood, over
the model's fixed copies, of

    outputs              log p(y | Σ_s w_s f(x_s))
    log-probabilities    Σ_s w_s log p(· | f(x_s)), normalised again

For class probabilities and Gaussian means the two are one: Σ w log softmax(f) differs from
Σ w f by a number that is the same for every class, and normalising takes it away. The second is
here because it is what Augerino's authors write. Rows are (batch·copies, outputs), copies fastest.
`plain_scores` are those of a network alone.

The posterior predictive (`Predictive`) is that of the averaged network, linearised in its weights:

    f(x) ~ N( f̂(x), J(x) Σ J(x)ᵀ ) ,    Σ = (s H + diag δ)⁻¹ ,    J = ∂f̂(x)/∂θ

H, s and δ are those of a Laplace evidence: the curvature's blocks, the likelihood's scale and the
prior's precisions (Immer et al. 2022, Figure 1). The Gauss–Newton curvature is that of the network
made linear in its weights, so its posterior is read through that network, and not through the
network at sampled weights (Immer, Korzepa & Bauer 2021). No block is inverted. Each has a root R
with R Rᵀ = Σ, and J Σ Jᵀ = (J R)(J R)ᵀ:

    Kronecker    J R = (Uᵀ J W) / √(s λ ⊗ μ + δ)     J as (groups, out, in), the weight's own order
    dense        J R = J U / √(s λ + δ)
    diagonal     J R = J / √(s h + δ)
    joint        J R = J L⁻ᵀ                           s H + diag δ = L Lᵀ

Grouped convolutions have their groups slowest in the weight's own order, plain and transposed ones
alike, so that (groups, out, in) is a view of the flat weight. Parameters without a block (frozen
ones, the layers below `last-layer`) are constants. Roots and products are in float64; what is
returned has the dtype of the network's outputs. Oracle: Σ inverted densely, in
tests/evidence/test_predictive.py.

Calibration (`calibration`) says whether probabilities are as often right as they say. For p_n over
classes and true classes y_n, with confidence max_c p_nc and B bins of equal width over [0, 1], the
b-th being ((b − 1)/B, b/B]:

    accuracy                     (1/N) Σ_n [argmax p_n = y_n]
    log likelihood               (1/N) Σ_n log p_n,y_n                       in nats, at most 0
    Brier score                  (1/N) Σ_n Σ_c (p_nc − [c = y_n])²           between 0 and 2
    expected calibration error   Σ_b (|B_b|/N) |accuracy(B_b) − confidence(B_b)|

(Brier 1950; Guo et al. 2017.) The first three score each prediction, log likelihood and Brier
score properly: no probabilities do better on average than the true ones. The last one asks only
whether confidence is justified on average within a bin, depends on the bins, and is biased upwards
for few examples; a constant guess can have it zero. Axes: probabilities (examples, classes).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import (
    CallerError,
    check_at_least,
    check_axes,
    check_choice,
    check_finite,
    shape_text,
)
from isotropy.curvature.blocks import (
    AnySpectrum,
    DenseSpectrum,
    DiagonalSpectrum,
    JointSpectrum,
    KroneckerSpectrum,
    PiecewiseSpectrum,
)
from isotropy.curvature.eigen import eigenpairs
from isotropy.curvature.jacobians import averaged_outputs, example_gradients
from isotropy.curvature.kinds import Copies
from isotropy.curvature.low_rank import turned, turned_values
from isotropy.curvature.recording import evaluation_mode
from isotropy.evidence.laplace import LaplaceEvidence, LaplaceFit, block_precision
from isotropy.evidence.objectives import COMBINATIONS, Combination
from isotropy.likelihoods import Categorical, Gaussian, Likelihood
from isotropy.networks.averaging.invariant_model import InvariantModel

ROWS = 8192
"""Rows that the network is called on at once."""
EXAMPLES = 4096
"""The same of a network alone, whose maps may be many."""
PIXELS = 1024
"""Pixels of a row, or places of a sequence, up to which that many rows are taken."""


def rows_at_once(inputs: Tensor, most: int) -> int:
    """How many inputs (batch, channels, …) a network is called on: fewer of large images.

    Maps grow with the pixels: 8192 images of 224 × 224 take 26 GB in the first layer of a ResNet.
    most: of images up to `PIXELS`
    """
    return max(1, most * PIXELS // max(PIXELS, math.prod(inputs.shape[2:])))


@dataclass(frozen=True)
class Scores:
    """How well some data are predicted.

    accuracy:       share of the examples whose class is right; None for regression
    log_likelihood: mean over examples of log p(y | x), in nats
    squared_errors: mean squared error of every output; empty for classes
    """

    accuracy: float | None
    log_likelihood: float
    squared_errors: tuple[float, ...] = ()

    @property
    def rmse(self) -> float | None:
        """√(mean over examples and outputs of (f − y)²); None for classes."""
        errors = self.squared_errors
        return math.sqrt(sum(errors) / len(errors)) if errors else None

    def in_units(self, deviations: Sequence[float] | None) -> Scores:
        """The scores of targets y = deviation · z + mean, given those of z.

        Errors grow by the deviation d of their output, and log p(y) = log p(z) − Σ log d.
        """
        if deviations is None or not self.squared_errors:
            return self
        errors = zip(self.squared_errors, deviations, strict=True)
        return Scores(
            None,
            self.log_likelihood - sum(map(math.log, deviations)),
            tuple(error * deviation**2 for error, deviation in errors),
        )


def combined(rows: Tensor, copies: Copies, combination: Combination, classes: bool) -> Tensor:
    """Outputs (batch, outputs) of rows (batch·copies, outputs).

    classes: the outputs are logits; Gaussian means are averaged under either rule
    """
    check_choice(combination, COMBINATIONS, what="combination")
    if combination == "log-probabilities" and classes:
        rows = rows.log_softmax(-1)
    return copies.mean(rows)


@torch.no_grad()
def score(
    model: InvariantModel,
    likelihood: Likelihood,
    inputs: Tensor,
    targets: Tensor,
    *,
    copies: int,
    combination: Combination = "outputs",
) -> Scores:
    """Scores over `copies` fixed copies of each example (`InvariantModel.fixed_noise`).

    copies: 0 predicts the data as they are
    """
    if not copies:
        return plain_scores(model.network, likelihood, inputs, targets)
    device = inputs.device
    if model.augmentation.is_identity:
        copies = 1  # all copies are the same
    classes = targets.ndim == 1
    hits, total = torch.zeros((), device=device), torch.zeros((), device=device)
    errors = torch.zeros(0 if classes else targets.shape[1], device=device, dtype=torch.float64)
    size = max(1, rows_at_once(inputs, ROWS) // copies)
    with evaluation_mode(model.network):
        for part, wanted in zip(inputs.split(size), targets.split(size), strict=True):
            noise = model.fixed_noise(len(part), samples=copies)
            over = model.augmentation.copies(noise.shape[1])
            rows = model.network(model.orbit(part, noise))
            outputs = combined(rows, over, combination, classes)
            statistic = likelihood.statistic(outputs, wanted)
            total += likelihood.log_likelihood(statistic, len(part))
            if classes:
                hits += (outputs.argmax(1) == wanted).sum()
            else:
                errors += (outputs - wanted).double().square().sum(0)
    accuracy = float(hits) / len(inputs) if classes else None
    return Scores(accuracy, float(total) / len(inputs), _means(errors, len(inputs)))


@torch.no_grad()
def plain_scores(
    network: nn.Module, likelihood: Likelihood, inputs: Tensor, targets: Tensor
) -> Scores:
    """Scores of a network's own predictions."""
    hits, total, classes = 0.0, 0.0, targets.ndim == 1
    errors = torch.zeros(0 if classes else targets.shape[1], dtype=torch.float64)
    size = rows_at_once(inputs, EXAMPLES)
    with evaluation_mode(network):
        for part, wanted in zip(inputs.split(size), targets.split(size), strict=True):
            outputs = network(part)
            total += float(
                likelihood.log_likelihood(likelihood.statistic(outputs, wanted), len(part))
            )
            if classes:
                hits += float((outputs.argmax(1) == wanted).sum())
            else:
                errors += (outputs - wanted).double().square().sum(0).cpu()
    accuracy = hits / len(inputs) if classes else None
    return Scores(accuracy, total / len(inputs), _means(errors, len(inputs)))


def _means(sums: Tensor, count: int) -> tuple[float, ...]:
    return tuple((sums / count).tolist())


Method = Literal["probit", "monte-carlo", "plug-in"]
METHODS: tuple[Method, ...] = ("probit", "monte-carlo", "plug-in")

CHUNK = 2**23
"""Numbers held at once in Jacobians, and in drawn outputs; one example at least."""

_Root = Callable[[Tensor], Tensor]


class Predictive:
    """What `model` predicts, and how surely, under the posterior that `fit` describes.

    evidence, fit: a Laplace evidence of the model's network and a pass over the training data
    model:         the averaged network, with the weights that the fit was made with

    >>> predictive = Predictive(evidence, evidence.fit(batches), model)
    >>> mean, covariance = predictive.outputs(inputs, generator=generator)
    >>> noise = model.noise(len(inputs), generator=generator)
    >>> probabilities = predictive.probabilities(inputs, noise)        # replayable

    Every method takes noise (batch, copies, numbers) from `model.noise` or draws it anew.

    Raises CallerError if evidence, fit and model do not belong together.
    """

    def __init__(self, evidence: LaplaceEvidence, fit: LaplaceFit, model: InvariantModel) -> None:
        _check_together(evidence, fit, model)
        self.model = model
        self.likelihood = evidence.likelihood
        self._names = tuple(fit.sizes)
        self._parameters = sum(fit.sizes.values())
        self._members: dict[str, tuple[str, ...]] = {}
        self._roots: dict[str, _Root] = {}
        with torch.no_grad():
            precisions, scale = evidence.precisions(fit), evidence.scale(fit)
            for block, spectrum in fit.spectra.items():
                own = spectrum.sizes if isinstance(spectrum, JointSpectrum) else (block,)
                self._members[block] = tuple(own)
                precision = block_precision(spectrum, block, precisions)
                self._roots[block] = covariance_root(spectrum, scale, precision)

    @torch.no_grad()
    def outputs(
        self,
        inputs: Tensor,
        noise: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Mean f̂ (batch, outputs) and covariance J Σ Jᵀ (batch, outputs, outputs) at inputs.

        Inputs (batch, …) are taken in chunks; one example's Jacobian, outputs × parameters, is
        the least that is held.
        """
        parts = self._chunks(inputs, self._noise(inputs, noise, generator), jacobians=True)
        pairs = [self._of_chunk(rows, copies) for rows, copies in parts]
        means, covariances = zip(*pairs, strict=True)
        return torch.cat(means), torch.cat(covariances)

    @torch.no_grad()
    def means(
        self,
        inputs: Tensor,
        noise: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """f̂ (batch, outputs) alone, at the cost of a forward pass."""
        parts = self._chunks(inputs, self._noise(inputs, noise, generator), jacobians=False)
        return torch.cat([averaged_outputs(self.model.network, *part) for part in parts])

    @torch.no_grad()
    def probabilities(
        self,
        inputs: Tensor,
        noise: Tensor | None = None,
        method: Method = "probit",
        *,
        draws: int = 1000,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Class probabilities E[softmax(f)], (batch, classes), for a categorical likelihood.

        method  probit       in closed form from mean and covariance (`probit`)
                monte-carlo  the mean over `draws` draws of f (`monte_carlo`)
                plug-in      softmax(f̂), without the posterior
        """
        check_choice(method, METHODS, what="method")
        if not isinstance(self.likelihood, Categorical):
            raise CallerError(
                f"probabilities: expected a categorical likelihood, got {self.likelihood.name}; "
                "for real-valued targets use observations()"
            )
        if method == "plug-in":
            return self.means(inputs, noise, generator=generator).softmax(-1)
        mean, covariance = self.outputs(inputs, noise, generator=generator)
        if method == "probit":
            return probit(mean, covariance)
        return monte_carlo(mean, covariance, draws=draws, generator=generator)

    @torch.no_grad()
    def observations(
        self,
        inputs: Tensor,
        noise: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of real-valued targets, each (batch, outputs).

        variance = diag(J Σ Jᵀ) + σ²: what the weights leave open, and the noise of an observation.
        """
        if not isinstance(self.likelihood, Gaussian):
            raise CallerError(
                f"observations: expected a gaussian likelihood, got {self.likelihood.name}; for "
                "classes use probabilities()"
            )
        mean, covariance = self.outputs(inputs, noise, generator=generator)
        return mean, covariance.diagonal(dim1=1, dim2=2) + self.likelihood.noise**2

    def _noise(
        self, inputs: Tensor, noise: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        if not len(inputs):
            raise CallerError(f"predictive: expected at least one input, got {shape_text(inputs)}")
        if noise is None:
            return self.model.noise(len(inputs), generator=generator)
        if len(inputs) != len(noise):
            raise CallerError(
                f"predictive: expected noise for each input, got inputs {shape_text(inputs)} and "
                f"noise {shape_text(noise)}; draw it with model.noise(len(inputs))"
            )
        return noise

    def _chunks(
        self, inputs: Tensor, noise: Tensor, *, jacobians: bool
    ) -> Iterator[tuple[Tensor, Copies]]:
        """Orbit rows (chunk·copies, …) and how they are averaged, chunk by chunk."""
        copies = Copies(1)
        moved = not self.model.augmentation.is_identity  # else all copies are the same
        if moved:
            given = self.model.augmentation.copies(noise.shape[1])
            copies = Copies(given.count, None if given.weights is None else given.weights.detach())
        size = max(1, CHUNK // (copies.count * inputs[0].numel()))
        if jacobians:
            first = self.model.orbit(inputs[:1], noise[:1]) if moved else inputs[:1]
            outputs = averaged_outputs(self.model.network, first, copies).shape[1]
            each = outputs * (self._parameters + copies.count * inputs[0].numel())
            size = max(1, CHUNK // each)
        for part, own in zip(inputs.split(size), noise.split(size), strict=True):
            yield (self.model.orbit(part, own) if moved else part), copies

    def _of_chunk(self, rows: Tensor, copies: Copies) -> tuple[Tensor, Tensor]:
        mean = averaged_outputs(self.model.network, rows, copies)
        batch, count = mean.shape
        identity = torch.eye(count, dtype=mean.dtype, device=mean.device)
        units = identity[:, None].expand(count, batch, count)
        found = example_gradients(self.model.network, self._names, rows, copies, units)
        covariance = torch.zeros(batch, count, count, dtype=torch.float64, device=mean.device)
        for block, root in self._roots.items():
            jacobian = torch.cat([found.pop(name) for name in self._members[block]], 1).double()
            half = root(jacobian).unflatten(0, (batch, count))
            covariance += half @ half.mT
        return mean, covariance.to(mean.dtype)


def covariance_root(spectrum: AnySpectrum, scale: Tensor, precision: Tensor) -> _Root:
    """X ↦ X R for rows X (rows, parameters) of a block, where R Rᵀ = (scale·H + precision)⁻¹.

    precision: one number, or (parameters,) for a joint block. Everything in float64.
    """
    if isinstance(spectrum, JointSpectrum):
        factor = torch.linalg.cholesky(spectrum.posterior_precision(scale, precision))
        return lambda rows: torch.linalg.solve_triangular(factor, rows.mT, upper=False).mT
    if isinstance(spectrum, PiecewiseSpectrum):
        roots = [covariance_root(piece, scale, precision) for piece in spectrum.pieces]

        def piecewise_root(rows: Tensor) -> Tensor:
            split = zip(roots, spectrum.split(rows), strict=True)
            return torch.cat([root(matrix.flatten(1)) for root, matrix in split], 1)

        return piecewise_root
    if isinstance(spectrum, KroneckerSpectrum):
        outer, inner = spectrum.output_vectors, spectrum.input_vectors
        shape = (max(len(outer), len(inner)), outer.shape[1], inner.shape[1])
        of_outer = turned_values(spectrum.output_values, outer)[:, :, None]
        of_inner = turned_values(spectrum.input_values, inner)[:, None, :]
        by_shape = (scale * (of_outer * of_inner) + precision).rsqrt()

        def kronecker_root(rows: Tensor) -> Tensor:
            along = turned(turned(rows.unflatten(1, shape), inner).mT, outer).mT
            return (along * by_shape).flatten(1)

        return kronecker_root
    if isinstance(spectrum, DenseSpectrum):
        vectors = spectrum.vectors
        spread = (scale * turned_values(spectrum.values, vectors) + precision).rsqrt()
        return lambda rows: turned(rows, vectors) * spread
    assert isinstance(spectrum, DiagonalSpectrum)
    spread = (scale * spectrum.eigenvalues() + precision).rsqrt()
    return lambda rows: rows * spread


def probit(mean: Tensor, covariance: Tensor) -> Tensor:
    """E[softmax(f)] for f ~ N(mean, covariance), approximately: (batch, classes).

        1/p_c ∝ Σ_k exp( −(m_c − m_k) / √(1 + π v_ck / 8) ) ,   v_ck = Var(f_c − f_k)

    The probit approximation of a logistic–Gaussian integral (MacKay 1992) for every pair of
    classes (Lu, Ie & Sha 2020), normalised to sum to one. For two classes it is MacKay's own
    formula. Differences alone enter, so that uncertainty common to all outputs, which softmax does
    not see, has no effect; formulas in the variances without the covariances lack this. For more
    classes it is off by about 0.01 at unit variances, more at large ones; `monte_carlo` is not.
    """
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    of_pairs = (variance[..., :, None] + variance[..., None, :] - 2 * covariance).clamp_min(0.0)
    between = mean[..., :, None] - mean[..., None, :]
    logits = -(-between / (1 + math.pi / 8 * of_pairs).sqrt()).logsumexp(-1)
    return logits.softmax(-1)


def monte_carlo(
    mean: Tensor, covariance: Tensor, *, draws: int = 1000, generator: torch.Generator | None = None
) -> Tensor:
    """E[softmax(f)] for f ~ N(mean, covariance) by `draws` draws: (batch, classes).

    f = mean + C^½ ε with the symmetric root, and the same ε for every example: each probability is
    an unbiased estimate, it varies smoothly from input to input, and chunks change nothing.
    """
    check_at_least(draws, 1, what="draws")
    values, vectors = eigenpairs(covariance, what="the covariance of outputs")
    root = (vectors * values.clamp_min(0.0).sqrt()[..., None, :]) @ vectors.mT
    classes = mean.shape[-1]
    epsilon = torch.randn(
        (draws, classes), generator=generator, dtype=mean.dtype, device=mean.device
    )
    parts = []
    size = max(1, CHUNK // (draws * classes))
    for centre, spread in zip(mean.split(size), root.to(mean.dtype).split(size), strict=True):
        drawn = centre[:, None] + epsilon @ spread  # (chunk, draws, classes)
        parts.append(drawn.softmax(-1).mean(1))
    return torch.cat(parts)


def _check_together(evidence: LaplaceEvidence, fit: LaplaceFit, model: InvariantModel) -> None:
    if model.network is not evidence.network:
        raise CallerError(
            "predictive: expected the model of the evidence's own network, got another network; "
            "build the evidence from model.network"
        )
    names = set(evidence.curvature.parameter_names)
    if set(fit.sizes) != names:
        odd = min(set(fit.sizes) ^ names)
        raise CallerError(
            f"predictive: expected a fit by the curvature {evidence.curvature_name}, got one that "
            f"differs in the parameter {odd!r}; make it with evidence.fit"
        )
    for name, before in fit.squared_norms.items():
        now = evidence.network.get_parameter(name).detach().double().square().sum()
        if not torch.isclose(now, before.to(now), rtol=1e-6, atol=0.0):
            raise CallerError(
                f"predictive: expected the weights that the fit was made with, got others in "
                f"{name!r}; make the fit again with evidence.fit"
            )


_SUM_TOLERANCE = 1e-3


@dataclass(frozen=True)
class CalibrationBin:
    """One bar of a reliability diagram: predictions with a confidence in (low, high].

    confidence, accuracy: means over the bin's `count` predictions; None in an empty one.
    """

    low: float
    high: float
    count: int
    confidence: float | None
    accuracy: float | None


@dataclass(frozen=True)
class Calibration:
    """Scores of probabilistic predictions (formulas above), and the bins from low to high."""

    examples: int
    accuracy: float
    log_likelihood: float
    brier_score: float
    expected_calibration_error: float
    bins: tuple[CalibrationBin, ...]

    def as_dict(self) -> dict[str, Any]:
        """For records: plain numbers, lists and dictionaries."""
        return {**asdict(self), "bins": [asdict(each) for each in self.bins]}


@torch.no_grad()
def calibration(probabilities: Tensor, targets: Tensor, bins: int = 15) -> Calibration:
    """Scores of probabilities (examples, classes) against class labels (examples,).

    The log likelihood is −∞ if a true class was given probability zero. Raises CallerError for
    rows that are no probabilities and labels that are no classes. Oracle: cases by hand,
    tests/evidence/test_calibration.py.
    """
    _check(probabilities, targets)
    check_at_least(bins, 1, what="bins")
    p, targets = probabilities.double(), targets.long()
    true = functional.one_hot(targets, p.shape[1]).to(p)
    confidence, predicted = p.max(1)
    hits = (predicted == targets).to(p)
    edges = torch.linspace(0, 1, bins + 1, dtype=p.dtype, device=p.device)
    # Inner edges only: what rounding puts outside [0, 1] belongs to the first or the last bin.
    index = torch.bucketize(confidence, edges[1:-1])
    counts = torch.bincount(index, minlength=bins)
    in_bins = torch.stack([confidence, hits], 1)
    sums = p.new_zeros(bins, 2).index_add_(0, index, in_bins)
    error = (sums[:, 0] - sums[:, 1]).abs().sum() / len(p)
    return Calibration(
        examples=len(p),
        accuracy=float(hits.mean()),
        log_likelihood=float(p.gather(1, targets[:, None]).log().mean()),
        brier_score=float((p - true).square().sum(1).mean()),
        expected_calibration_error=float(error),
        bins=tuple(
            CalibrationBin(
                low=float(edges[b]),
                high=float(edges[b + 1]),
                count=count,
                confidence=float(sums[b, 0]) / count if count else None,
                accuracy=float(sums[b, 1]) / count if count else None,
            )
            for b, count in enumerate(counts.tolist())
        ),
    )


def _check(probabilities: Tensor, targets: Tensor) -> None:
    check_axes(probabilities, ("examples", "classes"), what="probabilities")
    if not probabilities.is_floating_point() or not len(probabilities):
        raise CallerError(
            f"probabilities: expected numbers for at least one example, got {probabilities.dtype} "
            f"{shape_text(probabilities)}"
        )
    check_finite(probabilities, what="probabilities")
    sums = probabilities.double().sum(1)
    if float(probabilities.min()) < 0 or float((sums - 1).abs().max()) > _SUM_TOLERANCE:
        raise CallerError(
            "probabilities: expected rows of numbers from 0 that sum to 1, got the smallest "
            f"{float(probabilities.min()):.4g} and sums from {float(sums.min()):.4g} to "
            f"{float(sums.max()):.4g}; take softmax(-1) of logits first"
        )
    whole = not (targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool)
    if not whole or targets.shape != probabilities.shape[:1]:
        raise CallerError(
            f"targets: expected whole-number class labels ({len(probabilities)},), got "
            f"{targets.dtype} {shape_text(targets)}"
        )
    classes, low, high = probabilities.shape[1], int(targets.min()), int(targets.max())
    if low < 0 or high >= classes:
        raise CallerError(
            f"labels: expected 0 to {classes - 1} for {classes} columns of probabilities, got "
            f"{low} to {high}"
        )
