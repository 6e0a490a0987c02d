"""A lower bound of the evidence, estimated from one mini-batch: the function-space bound.

The determinant of the Laplace evidence (`laplace`, whole Gauss–Newton matrix) can be taken over
outputs instead of parameters. With one row j for every example and direction of the output
curvature (see `curvature.tangent_kernel`) and P = diag(δ),

    log|H + P| − log|P| = log|I + K| ,      K = Σ_l K_l / δ_l ,      K_l = j_l · j_lᵀ

and leaving out everything between the blocks of a partition of the rows can only make it larger
(Fischer's inequality). A sum over mini-batches b is therefore a lower bound of log Z, and one
mini-batch drawn uniformly an unbiased estimate of it, as is its gradient:

    N/|b| log p(y_b | f̂) − ½ Σ_l δ_l ‖θ_l‖² − ½ N/|b| log|I + K_bb|

The directions of a batch are left together, in one determinant of (batch·directions)² entries: the
bound equals log Z when b is all data.

A batch may also be conditioned on its first examples c, which makes the bound tighter at no cost:
given c, what remains of K (its Schur complement) is split into batches, so that an example counts
with what it adds to c and not with what it adds to nothing. The determinant is then

    log|I + K_cc| + (N − |c|)/|b| (log|I + K_(c∪b)(c∪b)| − log|I + K_cc|)

with a larger variance, because fewer examples stand for all.

Any root of the output curvature gives the same bound. Monte-Carlo directions (`sampled_root`) would
not do: the logarithm of their determinant lies below on average, and the evidence above.

Immer, van der Ouderaa, van der Wilk, Rätsch, Schölkopf (2023), "Stochastic marginal likelihood
gradients using neural tangent kernels". Oracle: tests/oracles/function_space.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.tangent_kernel import tangent_kernels
from isotropy.evidence.laplace import Batch, NotFiniteError
from isotropy.evidence.priors import GaussianPrior
from isotropy.fused import is_capturing
from isotropy.likelihoods import Likelihood


@dataclass(frozen=True)
class BoundEstimate:
    """The parts of an estimate in nats, already scaled to all examples; 0-dimensional, float64.

    log_likelihood   N/|b| log p(y_b | f̂)
    penalty          Σ_l δ_l ‖θ_l‖²
    log_determinant  N/|b| log|I + K_bb|, or what stands for it with conditioning
    """

    log_likelihood: Tensor
    penalty: Tensor
    log_determinant: Tensor

    @property
    def value(self) -> Tensor:
        """The estimate of a lower bound of log Z."""
        return self.log_likelihood - (self.penalty + self.log_determinant) / 2


class FunctionSpaceBound:
    """Lower bound of the evidence by the whole Gauss–Newton matrix, seen from the outputs.

    The parameters that count are those with a prior, `prior.names`.

    >>> bound = FunctionSpaceBound(network, likelihood, prior)
    >>> loss = -bound.estimate(Batch(rows, targets, copies), count=60_000).value
    >>> loss.backward()                 # ranges the rows depend on, precisions, noise
    """

    def __init__(self, network: nn.Module, likelihood: Likelihood, prior: GaussianPrior) -> None:
        self.network = network
        self.likelihood = likelihood
        self.prior = prior

    def estimate(self, batch: Batch, count: int, conditioned: int = 0) -> BoundEstimate:
        """The bound for `count` examples by those of `batch`, its first `conditioned` being c.

        Unbiased if they are drawn uniformly. Differentiable in whatever rows and weights of copies
        depend on, in the prior's precisions and in the likelihood's noise; the network's weights
        are constants.
        """
        size = self._check_size(batch, count)
        if not 0 <= conditioned < size:
            raise CallerError(
                f"bound: expected 0 to {size - 1} examples to condition on, of a batch of {size}, "
                f"got {conditioned}"
            )

        def directions(outputs: Tensor) -> Tensor:
            if not batch.is_checked:
                self.likelihood.check_targets(batch.targets, outputs)
            return self.likelihood.curvature_root(outputs)

        outputs, kernels = tangent_kernels(
            self.network, self.prior.names, batch.rows, batch.copies, directions
        )
        statistic = self.likelihood.statistic(outputs, batch.targets).double()
        precisions, penalty = self._prior_terms()
        first = next(iter(kernels.values()))
        scale = self.likelihood.curvature_scale()  # a number, wherever it is
        kernel = torch.zeros(first.shape, dtype=torch.float64, device=first.device)
        for name, own in kernels.items():
            kernel = kernel + own.double() * (scale / precisions[name])
        batches = (count - conditioned) / (size - conditioned)
        determinant = batches * log_determinant_above_one(kernel)
        if conditioned:  # rows are ordered by direction, then example
            by_example = kernel.unflatten(-1, (-1, size)).unflatten(0, (-1, size))
            given = by_example[:, :conditioned, :, :conditioned].flatten(2).flatten(0, 1)
            of_given = log_determinant_above_one(given)
            determinant = determinant - (batches - 1) * of_given
        return BoundEstimate(
            log_likelihood=count / size * self.likelihood.log_likelihood(statistic, size),
            penalty=penalty,
            log_determinant=determinant,
        )

    @torch.no_grad()
    def value(self, batches: Iterable[Batch]) -> Tensor:
        """The bound itself, over batches that hold every example once; without a graph."""
        parts = [self.estimate(batch, len(batch.targets)) for batch in batches]
        if not parts:
            raise CallerError("bound: expected at least one batch of data, got none")
        fit = torch.stack([part.log_likelihood - part.log_determinant / 2 for part in parts])
        return fit.sum() - parts[0].penalty / 2

    def _check_size(self, batch: Batch, count: int) -> int:
        """Examples of the batch."""
        size = len(batch.targets)
        if not 1 <= size <= count:
            raise CallerError(
                f"bound: expected a batch of 1 to {count} examples, of {count} in all, got {size}; "
                "give as count the number of training examples"
            )
        if len(batch.rows) != size * batch.copies.count:
            raise CallerError(
                f"bound: expected one target for every {batch.copies.count} rows, got "
                f"{len(batch.rows)} rows and {size} targets"
            )
        return size

    def _prior_terms(self) -> tuple[dict[str, Tensor], Tensor]:
        """δ by parameter name and Σ_l δ_l ‖θ_l‖²."""
        weights = {name: self.network.get_parameter(name).detach() for name in self.prior.names}
        norms = {name: weight.double().square().sum() for name, weight in weights.items()}
        sizes = {name: weight.numel() for name, weight in weights.items()}
        precisions = self.prior.precisions_at(norms, sizes)
        penalty = torch.stack([precisions[name] * norms[name] for name in self.prior.names]).sum()
        return precisions, penalty


def log_determinant_above_one(kernel: Tensor) -> Tensor:
    """log|I + K|, K (rows, rows) positive semi-definite, in float64.

    Raises NotFiniteError where it cannot be told; NaN while a CUDA graph is recorded.
    """
    matrix = (kernel + kernel.mT) / 2 + torch.eye(
        kernel.shape[-1], dtype=kernel.dtype, device=kernel.device
    )
    factor, failed = torch.linalg.cholesky_ex(matrix)
    total = 2 * factor.diagonal().log().sum()
    is_bad = (failed != 0) | ~torch.isfinite(total)
    if is_capturing(kernel):
        return torch.where(is_bad, torch.nan, total)
    if bool(is_bad):
        raise NotFiniteError(
            "the tangent kernel of a batch is not finite, or too large to be told from a singular "
            "one in the network's precision; lower the learning rate, rescale the inputs, or use "
            "float64"
        )
    return total
