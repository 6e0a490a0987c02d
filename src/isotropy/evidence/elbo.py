"""A lower bound of the evidence, solved: a Gaussian posterior over the last layer of a network.

    q(w) = Π_c N(w_c; μ_c, Σ_c) ,    p(w) = N(w; 0, I/δ) ,    f_nc = h_n · w_c

    log Z ≥ Σ_n E_q log p(y_n | f_n) − KL(q ‖ p)
    KL    = ½ Σ_c [ tr(P Σ_c) + μ_cᵀ P μ_c − K − log|Σ_c| − log|P| ]        P = diag(δ)

(van der Ouderaa & van der Wilk 2021; the divergence as printed there has no minimum.) h_n, (K,),
are the features that enter the last Linear layer, averaged over the copies of an example, with a 1
for the bias. Layers below have no prior: the bound does not price them. The prior variance is
α = 1/δ.

Under q an output is Gaussian, with mean m_nc = h_n · μ_c and variance v_nc = h_nᵀ Σ_c h_n. The
expectation is in closed form for Gaussian noise, where the bound *is* the log evidence, and else a
mean over antithetic draws  m ± √v ε,  replayed from pass to pass, so that the bound is a function
of q and can be solved. With

    g_nc = ∂E/∂m_nc  (= E[y − p])        λ_nc = −2 ∂E/∂v_nc  (= E[p_c (1 − p_c)])

taken of the same draws, the conditions of an optimum are

    Σ_c⁻¹ = P + Hᵀ diag(λ_c) H ,    Hᵀ g_c = P μ_c ,    δ = γ/‖μ‖² ,  γ = CK − δ tr Σ

and every iteration sets Σ to the first (by natural gradients of half the length as long as the
bound falls), takes Newton steps on μ along Σ_c (Hᵀ g_c − P μ_c), whose length a parabola gives, and
sets δ; the noise of a Gaussian likelihood is set where the expectation is largest. Each starts from
the last one's q. By the ranges the bound is differentiated with q held fixed: at the optimum it
does not depend on q to first order.

Axes: features (examples, features), μ (outputs, features), L (outputs, features, features) lower
triangular with Σ = L Lᵀ. μ, L and determinants are in float64, products over examples in the
network's type. Oracles, in tests/evidence/test_elbo.py: torch.distributions, the log evidence of a
Gaussian model, quadrature, L-BFGS on the same draws, sampled gradients, autograd through a solve.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.kinds import Copies
from isotropy.curvature.recording import full_name, record
from isotropy.evidence.laplace import Batch, GaussianPrior, NotFiniteError, Shares
from isotropy.evidence.machine import free_bytes
from isotropy.evidence.predictive import CHUNK, Predictive
from isotropy.likelihoods import Gaussian, Likelihood
from isotropy.networks.averaging.invariant_model import InvariantModel

PAIRS = 16
"""Antithetic pairs of draws of an example's outputs."""
ITERATIONS = 10
"""Of a solve from the prior; fewer do where the last solve was of nearly the same features."""
MEAN_STEPS = 4
"""Newton steps on the means for each covariance: they cost a small part of it."""
TOLERANCE = 1e-4
"""Nats an example by which the last iteration of a solve may still change the bound."""
HALVINGS = 8


class HeadPosterior(nn.Module):
    """μ (outputs, features) and L, the Cholesky factors of the covariances; starts as the prior."""

    def __init__(self, outputs: int, features: int, variance: float = 1.0) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(outputs, features, dtype=torch.float64))
        root = torch.eye(features, dtype=torch.float64) * variance**0.5
        self.root = nn.Parameter(root.repeat(outputs, 1, 1))

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """One w ~ q, (outputs, features); differentiable in μ and L."""
        noise = torch.randn(
            self.mean.shape, generator=generator, dtype=self.mean.dtype, device=self.mean.device
        )
        return self.mean + (self.root.tril() @ noise[..., None])[..., 0]


def divergence(mean: Tensor, root: Tensor, precisions: Tensor) -> Tensor:
    """KL(q ‖ p) in nats, for precisions (features,); see the module for shapes."""
    spread = (precisions[:, None] * root.square()).sum() + (precisions * mean.square()).sum()
    sizes = root.diagonal(dim1=1, dim2=2).abs().log().sum()
    return (spread - mean.numel() - len(mean) * precisions.log().sum()) / 2 - sizes


def inverse_root(matrices: Tensor) -> Tensor | None:
    """Lower triangular L with L Lᵀ = M⁻¹, for M (…, n, n); None where one is not positive.

    With the order of rows and columns reversed, M = R Rᵀ gives M⁻¹ = R⁻ᵀ R⁻¹, and reversed again
    the upper triangular R⁻ᵀ is lower triangular.
    """
    factor, failed = torch.linalg.cholesky_ex(matrices.flip(-2, -1))
    if bool(failed.any()):
        return None
    identity = torch.eye(matrices.shape[-1], dtype=factor.dtype, device=factor.device)
    inverse = torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)
    return inverse.mT.flip(-2, -1)


def expected_statistic(
    likelihood: Likelihood, means: Tensor, variances: Tensor, targets: Tensor, noise: Tensor
) -> Tensor:
    """The likelihood's statistic under f ~ N(means, diag variances), each (batch, outputs).

    noise (pairs, batch, outputs): standard normal; not needed for a Gaussian likelihood
    """
    if isinstance(likelihood, Gaussian):
        return likelihood.statistic(means, targets) + variances.sum()
    spread = variances.clamp_min(torch.finfo(variances.dtype).tiny).sqrt() * noise
    drawn = torch.cat([means + spread, means - spread]).flatten(0, 1)
    copies = 2 * len(noise)
    return likelihood.statistic(drawn, targets.repeat(copies)) / copies


def head_of(network: nn.Module, inputs: Tensor) -> str:
    """The name of the Linear layer whose output is the network's."""
    layers = {n: m for n, m in network.named_modules() if type(m) is nn.Linear}
    head = record(network, layers, inputs).head() if layers else None
    if head is None:
        last = [type(m).__name__ for m in network.modules() if not list(m.children())][-1]
        raise CallerError(
            "evidence elbo: expected a network whose last layer is Linear, got one that ends in "
            f"{last}; use --evidence laplace, or append an nn.Linear"
        )
    return head.layer


@dataclass(frozen=True)
class ElboFit:
    """q and what the bound depends on but δ and the noise.

    statistic: the expectation of the likelihood's, summed over `count` examples
    loss, accuracy: of the outputs at μ, means over the examples; accuracy for class labels alone
    """

    mean: Tensor
    root: Tensor
    statistic: Tensor
    count: int
    loss: float
    accuracy: float | None


class _Data(NamedTuple):
    """All examples: features (examples, features), targets, noise (pairs, examples, outputs)."""

    features: Tensor
    targets: Tensor
    noise: Tensor

    def chunks(self) -> Iterable[slice]:
        """Parts of which the draws are held at once."""
        size = max(1, CHUNK // max(1, 4 * self.noise[:, :1].numel()))
        return [slice(i, i + size) for i in range(0, len(self.features), size)]


class ElboEvidence:
    """The bound for `network` under a likelihood and a prior on the layer `head`.

    solver: newton solves for q in every fit; sampled leaves q to be learned by gradients
    """

    kind = "elbo"
    curvature_name = "none"
    curvature = None

    def __init__(
        self,
        network: nn.Module,
        likelihood: Likelihood,
        prior: GaussianPrior,
        head: str,
        *,
        solver: str = "newton",
        pairs: int = PAIRS,
        tolerance: float = TOLERANCE,
    ) -> None:
        self.network, self.likelihood, self.prior = network, likelihood, prior
        self.name, self.solver, self.pairs, self.tolerance = head, solver, pairs, tolerance
        layer = network.get_submodule(head)
        assert isinstance(layer, nn.Linear)
        self.layer = layer
        self.features = layer.in_features + (layer.bias is not None)
        groups = [prior.groups.index(prior.group_of[full_name(head, "weight")])]
        groups *= layer.in_features
        if layer.bias is not None:
            groups.append(prior.groups.index(prior.group_of[full_name(head, "bias")]))
        place = layer.weight.device
        self._group = torch.tensor(groups, device=place)
        variance = 1 / float(prior.log_precisions.detach().exp().mean())
        self.posterior = HeadPosterior(layer.out_features, self.features, variance).to(place)
        for parameter in self.posterior.parameters():
            parameter.requires_grad_(solver == "sampled")
        self.latest: ElboFit | None = None

    def precisions(self) -> Tensor:
        """δ of every feature, (features,); differentiable in the prior's."""
        return self.prior.log_precisions.exp()[self._group]

    def with_bias(self, features: Tensor) -> Tensor:
        """Features with a 1 appended where the layer has a bias."""
        return features if self.layer.bias is None else nn.functional.pad(features, (0, 1), value=1)

    # -- what readers of an evidence call ----------------------------------------------------

    @torch.no_grad()
    def fit(self, batches: Iterable[Batch], *, values_only: bool = False) -> ElboFit:
        """q of all batches, for the prior and the noise as they are. Nothing else is changed.

        values_only: as for `LaplaceEvidence`, and of no consequence
        """
        return self._fit(self._data(batches), learns=False)

    @torch.no_grad()
    def solve(self, batches: Iterable[Batch], iterations: int = ITERATIONS) -> ElboFit:
        """The same with δ and the noise learned; the network's last layer becomes μ."""
        learns = self.solver == "newton"
        fit = self._fit(self._data(batches), learns=learns, iterations=iterations)
        self.posterior.mean.copy_(fit.mean)
        self.posterior.root.copy_(fit.root)
        self.set_head(fit.mean)
        return fit

    def value(self, fit: ElboFit) -> Tensor:
        """The bound in nats, summed over examples; differentiable in the precisions and noise."""
        expected = self.likelihood.log_likelihood(fit.statistic, fit.count)
        return expected - divergence(fit.mean, fit.root, self.precisions())

    def gradient(
        self, fit: ElboFit, batches: Iterable[Batch], inputs: Sequence[Tensor]
    ) -> list[Tensor]:
        """The gradient of minus the bound by `inputs`, on which the batches' rows depend.

        Some of the data suffices: the sum is scaled up to all examples of the fit.
        """
        shares = Shares(inputs)
        for batch in batches:
            features, noise = self._features(batch), self._noise(batch)
            moments = self._moments(features, fit.mean, fit.root)
            statistic = expected_statistic(self.likelihood, *moments, batch.targets, noise)
            loss = -self.likelihood.log_likelihood(statistic, len(batch.targets))
            found = torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)
            shares.add(found, batch)
        return shares.scaled_to(fit.count)

    @torch.no_grad()
    def parts(self) -> dict[str, Any] | None:
        """Expected log likelihood and divergence of the last fit, per example, and α."""
        fit = self.latest
        if fit is None:
            return None
        expected = float(self.likelihood.log_likelihood(fit.statistic, fit.count))
        variances = {name: 1 / value for name, value in self.prior.by_group().items()}
        alone = next(iter(variances.values())) if len(variances) == 1 else variances
        return {
            "expected_log_likelihood": expected / fit.count,
            "kl": float(divergence(fit.mean, fit.root, self.precisions())) / fit.count,
            "prior_variance": alone,
        }

    @torch.no_grad()
    def set_head(self, weights: Tensor) -> None:
        """Weights (outputs, features) become those of the network's last layer."""
        self.layer.weight.copy_(weights[:, : self.layer.in_features])
        if self.layer.bias is not None:
            self.layer.bias.copy_(weights[:, -1])

    # -- a pass over the data ----------------------------------------------------------------

    def _features(self, batch: Batch) -> Tensor:
        """h (batch, features), with a graph where the batch has one."""
        calls = record(self.network, {self.name: self.layer}, batch.rows).calls
        return self.with_bias(batch.copies.mean(calls[-1].inputs))

    def _noise(self, batch: Batch) -> Tensor:
        weight = self.layer.weight
        shape = (self.pairs, len(batch.targets), self.layer.out_features)
        if isinstance(self.likelihood, Gaussian):
            shape = (0, *shape[1:])
        return torch.randn(
            shape, generator=batch.generator, dtype=weight.dtype, device=weight.device
        )

    def _data(self, batches: Iterable[Batch]) -> _Data:
        parts = [
            (self._features(batch).detach(), batch.targets, self._noise(batch)) for batch in batches
        ]
        if not parts:
            raise CallerError("evidence: expected at least one batch of data, got none")
        features, targets, noise = zip(*parts, strict=True)
        data = _Data(torch.cat(features), torch.cat(targets), torch.cat(noise, 1))
        if not bool(torch.isfinite(data.features).all()):
            raise NotFiniteError(
                f"the features that enter {self.name!r} are not finite; rescale the inputs"
            )
        return data

    def _moments(self, features: Tensor, mean: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of the outputs, each (batch, outputs)."""
        halves = [features @ own.to(features.dtype) for own in root]
        variances = torch.stack([half.square().sum(1) for half in halves], 1)
        return features @ mean.to(features.dtype).mT, variances

    # -- the solve ---------------------------------------------------------------------------

    def _fit(self, data: _Data, *, learns: bool, iterations: int = ITERATIONS) -> ElboFit:
        mean, root = self.posterior.mean.detach(), self.posterior.root.detach().tril()
        moments = self._moments(data.features, mean, root)
        before = float("-inf")
        for _ in range(iterations if self.solver == "newton" else 0):
            value = self._bound(data, mean, root, *moments)
            if abs(value - before) <= self.tolerance * len(data.targets):
                break
            before = value
            root, moments = self._covariance_step(data, mean, root, moments, value)
            mean, moments = self._mean_steps(data, mean, root, moments)
            if learns:
                self._set_prior(data, mean, root, moments)
        statistic = self._statistic(data, *moments)
        outputs, targets = moments[0], data.targets
        hits = (outputs.argmax(1) == targets).double().mean() if targets.ndim == 1 else None
        self.latest = ElboFit(
            mean=mean.clone(),
            root=root.clone(),
            statistic=statistic,
            count=len(targets),
            loss=float(self.likelihood.training_loss(outputs, targets)),
            accuracy=None if hits is None else float(hits),
        )
        return self.latest

    def _statistic(self, data: _Data, means: Tensor, variances: Tensor) -> Tensor:
        parts = [
            expected_statistic(
                self.likelihood, means[own], variances[own], data.targets[own], data.noise[:, own]
            ).double()
            for own in data.chunks()
        ]
        return torch.stack(parts).sum()

    def _expected(self, data: _Data, means: Tensor, variances: Tensor) -> float:
        statistic = self._statistic(data, means, variances)
        return float(self.likelihood.log_likelihood(statistic, len(data.targets)))

    def _bound(
        self, data: _Data, mean: Tensor, root: Tensor, means: Tensor, variances: Tensor
    ) -> float:
        price = divergence(mean, root, self.precisions())
        return self._expected(data, means, variances) - float(price)

    def _slopes(self, data: _Data, means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
        """g and λ, each (examples, outputs), of the very draws that the bound has."""
        found = []
        for own in data.chunks():
            point = [each[own].detach().requires_grad_() for each in (means, variances)]
            with torch.enable_grad():
                statistic = expected_statistic(
                    self.likelihood, point[0], point[1], data.targets[own], data.noise[:, own]
                )
                expected = self.likelihood.log_likelihood(statistic, len(data.targets[own]))
            found.append(torch.autograd.grad(expected, point))
        by_mean, by_variance = (torch.cat(parts) for parts in zip(*found, strict=True))
        return by_mean, -2 * by_variance

    def _covariance_step(
        self,
        data: _Data,
        mean: Tensor,
        root: Tensor,
        moments: tuple[Tensor, Tensor],
        value: float,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Σ⁻¹ ← P + Hᵀ diag(λ) H, less far where the bound would fall."""
        features, (_, curvatures) = data.features, self._slopes(data, *moments)
        grams = [
            ((features * weights[:, None]).mT @ features).double() for weights in curvatures.mT
        ]
        wanted = torch.stack(grams) + self.precisions().diag()
        step = 1.0
        for _ in range(HALVINGS):
            blend = wanted if step == 1 else wanted.lerp(torch.cholesky_inverse(root), 1 - step)
            new = inverse_root(blend)
            if new is not None:
                variances = self._moments(features, mean, new)[1]
                if self._bound(data, mean, new, moments[0], variances) >= value:
                    return new, (moments[0], variances)
            step /= 2
        return root, moments

    def _mean_steps(
        self, data: _Data, mean: Tensor, root: Tensor, moments: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Newton steps on μ with Σ as it is; outputs change by H Σ (Hᵀ g − P μ)."""
        features, variances, precisions = data.features, moments[1], self.precisions()
        means = moments[0]

        def height(mean: Tensor, means: Tensor) -> float:  # the bound, but for what Σ alone adds
            price = float((precisions * mean.square()).sum()) / 2
            return self._expected(data, means, variances) - price

        value = height(mean, means)
        for _ in range(MEAN_STEPS):
            slopes = self._slopes(data, means, variances)[0]
            gradient = (slopes.mT @ features).double() - precisions * mean
            direction = (root @ (root.mT @ gradient[..., None]))[..., 0]
            change = features @ direction.to(features.dtype).mT
            rise = float((gradient * direction).sum())
            best, length = value, 1.0
            for _ in range(HALVINGS):
                stepped = mean + length * direction, means + length * change
                new = height(*stepped)
                if new > best:
                    best, taken = new, stepped
                elif best > value:
                    break
                lack = length * rise - (new - value)  # the parabola's curvature, times length²
                top = length * length * rise / (2 * lack) if lack > 0 else 2 * length
                if best > value and 0.8 * length <= top <= 1.25 * length:
                    break
                length = min(max(top, length / 8), 2 * length)
            if best == value:
                break
            value, (mean, means) = best, taken
        return mean, (means, variances)

    def _set_prior(
        self, data: _Data, mean: Tensor, root: Tensor, moments: tuple[Tensor, Tensor]
    ) -> None:
        """δ ← γ/‖μ‖² for each group, and the noise of a Gaussian likelihood to its best."""
        precisions, variances = self.precisions(), root.square().sum(2)
        groups = len(self.prior.groups)
        determined = (1 - precisions * variances).clamp_min(1e-6).sum(0)
        sums = torch.zeros(2, groups, dtype=mean.dtype, device=mean.device)
        sums[0].index_add_(0, self._group, determined)
        sums[1].index_add_(0, self._group, mean.square().sum(0).clamp_min(1e-12))
        self.prior.log_precisions.copy_((sums[0] / sums[1]).log())
        if isinstance(self.likelihood, Gaussian):
            mean_square = self._statistic(data, *moments) / moments[0].numel()
            self.likelihood.log_noise.copy_(mean_square.log() / 2)


def check_head_memory(
    examples: int, features: int, outputs: int, item: int, device: torch.device
) -> None:
    """Raise CallerError where features of all examples and q do not fit into what is free."""
    needed = 2 * examples * features * item + 5 * outputs * features**2 * 8
    free = free_bytes(device)
    if free is not None and needed > free:
        raise CallerError(
            f"evidence elbo: {examples:,} examples × {features:,} features and {outputs} "
            f"covariances of {features:,} × {features:,} take {needed / 1e9:,.3g} GB, and "
            f"{free / 1e9:,.3g} GB are free; take fewer features or fewer examples (--subset)"
        )


class HeadPredictive(Predictive):
    """Predictions under q: outputs are Gaussian with mean h · μ_c and variance hᵀ Σ_c h.

    Nothing is linearised. Oracle: draws of the last layer.
    """

    def __init__(self, evidence: ElboEvidence, fit: ElboFit, model: InvariantModel) -> None:
        if model.network is not evidence.network:
            raise CallerError(
                "predictive: expected the model of the evidence's own network, got another "
                "network; build the evidence from model.network"
            )
        self.model, self.likelihood = model, evidence.likelihood
        self._evidence, self._fit = evidence, fit
        self._parameters = evidence.features

    def _of_chunk(self, rows: Tensor, copies: Copies) -> tuple[Tensor, Tensor]:
        targets = rows[:: copies.count, 0]  # one a row; not read
        features = self._evidence._features(Batch(rows, targets, copies))
        mean, variances = self._evidence._moments(features, self._fit.mean, self._fit.root)
        return mean, variances.diag_embed()

    def means(
        self,
        inputs: Tensor,
        noise: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """h · μ, (batch, outputs)."""
        return self.outputs(inputs, noise, generator=generator)[0]
