"""Likelihoods: how probable the targets are given the network's outputs, and how sharply.

A likelihood here is what the Laplace evidence needs to know of it:

    statistic(f, y)         a number that adds up over examples …
    log_likelihood(t, N)    … and from which log p(y_1..N | f_1..N) follows, in nats
    curvature_root(f)       r_nd with  Λ_n ∝ Σ_d r_nd r_ndᵀ,  Λ = −∂² log p / ∂f²
    curvature_scale()       the factor of proportionality (1/σ² for Gaussian noise)

    sampled_root(f)         one direction whose outer product has the mean Λ_n: labels are drawn
    empirical_root(f, y)    the gradient of −log p at the true target, the empirical Fisher's
                            direction, with `empirical_scale` for its outer product

    constant_log_likelihood(y)   what a prediction that is the same for all examples can reach

The noise is kept out of statistic and roots, so that it can be learned from one pass.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import CallerError, check_choice, shape_text


class Likelihood(nn.Module):
    """What the evidence needs to know of p(y | f). Hyperparameters are `parameters()`."""

    name: str

    @abstractmethod
    def statistic(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """A 0-dimensional tensor that adds up over examples; outputs (batch, outputs)."""

    @abstractmethod
    def log_likelihood(self, statistic: Tensor, count: int) -> Tensor:
        """Sum over `count` examples of log p(y | f), in nats; differentiable in the noise."""

    @abstractmethod
    def curvature_root(self, outputs: Tensor) -> Tensor:
        """r (directions, batch, outputs) with Λ_n = curvature_scale · Σ_d r_dn r_dnᵀ."""

    def curvature_scale(self) -> Tensor:
        """Factor between Σ r rᵀ and the output curvature Λ (0-dimensional)."""
        return torch.ones(())

    @abstractmethod
    def sampled_root(self, outputs: Tensor, generator: torch.Generator | None) -> Tensor:
        """r (1, batch, outputs), drawn, with E[r rᵀ] · curvature_scale = Λ.

        Its gradient is unbiased too: E[∂(r rᵀ)] = ∂Λ / curvature_scale.
        """

    @abstractmethod
    def empirical_root(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """r (1, batch, outputs) with ∂(−log p(y | f))/∂f = √empirical_scale · r."""

    def empirical_scale(self) -> Tensor:
        """Factor between r rᵀ and the outer product of the loss's gradient (0-dimensional)."""
        return torch.ones(())

    def training_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean over the batch of −log p(y | f), in nats; the noise is a constant here."""
        count = len(outputs)
        noiseless = self.log_likelihood(self.statistic(outputs, targets), count)
        return -noiseless / count

    @abstractmethod
    def constant_log_likelihood(self, targets: Tensor) -> float:
        """The largest log likelihood of these targets by one prediction for all, in nats.

        An upper bound of the evidence of every model that does not look at its inputs.
        """

    @abstractmethod
    def check_targets(self, targets: Tensor, outputs: Tensor) -> None:
        """Raise unless targets (examples, …) fit network outputs (batch, outputs)."""


class Categorical(Likelihood):
    """Class labels y given logits f: p(y | f) = softmax(f)_y."""

    name = "categorical"

    def statistic(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return -functional.cross_entropy(outputs, targets, reduction="sum")

    def log_likelihood(self, statistic: Tensor, count: int) -> Tensor:
        return statistic

    def curvature_root(self, outputs: Tensor) -> Tensor:
        """C − 1 directions with Σ_d r_d r_dᵀ = diag(p) − p pᵀ = Λ.

        One direction a class does it, ρ_c = √p_c (p − e_c), the gradient of −log p_c scaled by
        √p_c. But Σ_c √p_c ρ_c = 0, so a Householder reflection that takes (√p_1 … √p_C) to the
        last axis leaves nothing there:  r_c = ρ_c − ρ_C √p_c / (1 + √p_C),  c < C.
        √p comes as exp(½ log p), whose derivative stays finite as p goes to zero.
        """
        log_p = outputs.log_softmax(-1)
        root_p = (log_p / 2).exp().T[..., None]  # (classes, batch, 1)
        identity = torch.eye(outputs.shape[-1], device=outputs.device, dtype=outputs.dtype)
        full = root_p * (log_p.exp() - identity[:, None])
        return full[:-1] - full[-1] * (root_p[:-1] / (1 + root_p[-1]))

    def sampled_root(self, outputs: Tensor, generator: torch.Generator | None) -> Tensor:
        """√(p_c/q_c) (p − e_c) for a class c drawn from q = p, held constant.

        The ratio is one; it carries the derivative of p, which a drawn label would lose.
        """
        log_p = outputs.log_softmax(-1)
        fixed = log_p.detach()
        drawn = torch.multinomial(fixed.exp(), 1, generator=generator)
        ratio = ((log_p - fixed).gather(1, drawn) / 2).exp()
        return (ratio * self.empirical_root(outputs, drawn[:, 0])[0])[None]

    def empirical_root(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """p − e_y."""
        classes = outputs.shape[-1]
        return (outputs.softmax(-1) - functional.one_hot(targets, classes).to(outputs))[None]

    def constant_log_likelihood(self, targets: Tensor) -> float:
        """Class frequencies: Σ_c n_c log(n_c / N)."""
        counts = targets.bincount().double()
        return float(torch.special.xlogy(counts, counts / len(targets)).sum())

    def check_targets(self, targets: Tensor, outputs: Tensor) -> None:
        if targets.ndim != 1 or targets.is_floating_point():
            raise CallerError(
                f"targets: expected whole-number class labels (examples,), got {targets.dtype} "
                f"{shape_text(targets)}; for real-valued targets use the gaussian likelihood"
            )
        classes = outputs.shape[-1]
        low, high = int(targets.min()), int(targets.max())
        if low < 0 or high >= classes:
            raise CallerError(
                f"labels: expected 0 to {classes - 1} for a network with {classes} outputs, got "
                f"{low} to {high}; "
                + ("" if low < 0 else f"give the network {high + 1} outputs or ")
                + "renumber the labels"
            )


class Gaussian(Likelihood):
    """Real targets y given means f: p(y | f) = N(y; f, σ² I), σ learned by the evidence."""

    name = "gaussian"

    def __init__(self, noise: float = 1.0) -> None:
        super().__init__()
        self.log_noise = nn.Parameter(torch.tensor(math.log(noise), dtype=torch.float64))
        self.outputs = 1

    @property
    def noise(self) -> float:
        """The noise's standard deviation σ."""
        return float(self.log_noise.detach().exp())

    def statistic(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().sum()

    def log_likelihood(self, statistic: Tensor, count: int) -> Tensor:
        return self._log_likelihood(statistic, count, self.log_noise.to(statistic))

    def training_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        count, log_noise = len(outputs), self.log_noise.detach().to(outputs)
        return -self._log_likelihood(self.statistic(outputs, targets), count, log_noise) / count

    def _log_likelihood(self, statistic: Tensor, count: int, log_noise: Tensor) -> Tensor:
        terms = count * self.outputs
        return -statistic / 2 * (-2 * log_noise).exp() - terms * (
            log_noise + math.log(2 * math.pi) / 2
        )

    def curvature_root(self, outputs: Tensor) -> Tensor:
        """The unit vectors: Λ = I/σ², the 1/σ² kept in `curvature_scale`."""
        batch, count = outputs.shape
        identity = torch.eye(count, device=outputs.device, dtype=outputs.dtype)
        return identity[:, None].expand(count, batch, count)

    def curvature_scale(self) -> Tensor:
        return (-2 * self.log_noise).exp()

    def sampled_root(self, outputs: Tensor, generator: torch.Generator | None) -> Tensor:
        """(f − ŷ)/σ for a drawn ŷ: standard normal numbers."""
        return torch.randn(
            (1, *outputs.shape), generator=generator, device=outputs.device, dtype=outputs.dtype
        )

    def empirical_root(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """f − y; the gradient of −log p is 1/σ² times it."""
        return (outputs - targets)[None]

    def empirical_scale(self) -> Tensor:
        return (-4 * self.log_noise).exp()

    def constant_log_likelihood(self, targets: Tensor) -> float:
        """The mean of the targets, with the noise that suits it: −½ N outputs (log 2πσ² + 1)."""
        variance = (targets - targets.mean(0)).double().square().mean()
        return float(-targets.numel() / 2 * ((2 * math.pi * variance).log() + 1))

    def check_targets(self, targets: Tensor, outputs: Tensor) -> None:
        if targets.ndim != 2 or targets.shape[1:] != outputs.shape[1:]:
            raise CallerError(
                f"targets: expected (examples, {outputs.shape[-1]}) like the network's outputs, "
                f"got {shape_text(targets)}"
            )
        self.outputs = int(targets.shape[1])


LIKELIHOODS: dict[str, type[Likelihood]] = {"categorical": Categorical, "gaussian": Gaussian}


def likelihood_named(name: str) -> Likelihood:
    """A fresh likelihood by name."""
    return LIKELIHOODS[check_choice(name, LIKELIHOODS, what="likelihood")]()
