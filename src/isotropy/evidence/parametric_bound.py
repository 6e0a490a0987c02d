"""A lower bound of the evidence, estimated from one mini-batch: the parametric bound.

With H_b the curvature of one mini-batch by itself, of any kind (`curvature.kinds`), P = diag(δ),

    log|Σ_b H_b + P| − log|P| ≤ Σ_b ( log|H_b + P| − log|P| ) = Σ_b log|I + P⁻¹ H_b|

so that a sum over mini-batches is a lower bound of log Z, and N/|b| times one of them, drawn
uniformly, an unbiased estimate of it, as is its gradient. For the whole Gauss–Newton matrix it is
the function-space bound with joint directions (`stochastic`), number by number.

What it bounds is the evidence of Σ_b H_b. For the whole matrix, the last layer's and the diagonal
that is the curvature of all data, and finer partitions are looser. KFAC's blocks do not add up,
G_b ⊗ A_b/|b| over batches is another matrix than G ⊗ A/N: the bound is then one of a finer sum
of Kronecker products, and not of the evidence that KFAC of all data gives. Drawn labels (mc) give a
bound of the evidence by those very labels.

A batch's curvature has low rank, and every determinant is taken on the smaller side of its root:

    Kronecker   Σ_ij log(1 + s λ_i μ_j / (|b| δ))     λ, μ of X Xᵀ or XᵀX, the smaller one
    dense       log|I + s X Xᵀ/δ|  or  log|I + s XᵀX/δ|
    joint       the same with X diag(δ)^-½
    diagonal    Σ_i log(1 + s h_i/δ)

Eigenvalues that belong to no side add nothing, and the derivative of an eigenvalue needs no gap to
the next one. Immer, van der Ouderaa, van der Wilk, Rätsch, Schölkopf (2023), "Stochastic marginal
likelihood gradients using neural tangent kernels". Oracle: dense matrices in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from isotropy.curvature.batches import AnyRoots, Curvature
from isotropy.curvature.joint import JointRoots
from isotropy.curvature.kronecker import DenseRoots, DiagonalRoots, KroneckerRoots
from isotropy.evidence.laplace import Batch, NotFiniteError
from isotropy.evidence.priors import GaussianPrior
from isotropy.evidence.stochastic import BoundEstimate, EvidenceBound, log_determinant_above_one
from isotropy.likelihoods import Likelihood


class ParametricBound(EvidenceBound):
    """Lower bound of the evidence by the curvature of each mini-batch on its own.

    The parameters that count are those of the curvature, which have a prior.

    >>> bound = ParametricBound(network, likelihood, prior, KFAC(network))
    >>> loss = -bound.estimate(Batch(rows, targets, copies), count=60_000).value
    >>> loss.backward()                 # ranges the rows depend on, precisions, noise
    """

    def __init__(
        self,
        network: nn.Module,
        likelihood: Likelihood,
        prior: GaussianPrior,
        curvature: Curvature,
    ) -> None:
        super().__init__(network, likelihood, prior)
        self.curvature = curvature

    def estimate(self, batch: Batch, count: int) -> BoundEstimate:
        """See `EvidenceBound.estimate`; drawn labels come from the batch's generator."""
        size = self._check_size(batch, count)
        found = self.curvature.batch(
            batch.rows,
            batch.copies,
            self.likelihood,
            batch.targets,
            generator=batch.generator,
            create_graph=torch.is_grad_enabled() and batch.has_graph,
        )
        if not batch.is_checked:
            self.likelihood.check_targets(batch.targets, found.outputs)
        statistic = self.likelihood.statistic(found.outputs, batch.targets).double()
        precisions, penalty = self._prior_terms()
        scale = self.curvature.kind.scale(self.likelihood).to(statistic)
        determinant = log_determinant_of_batch(found.roots, scale, precisions, size)
        return BoundEstimate(
            log_likelihood=count / size * self.likelihood.log_likelihood(statistic, size),
            penalty=penalty,
            log_determinant=count / size * determinant,
        )


def log_determinant_of_batch(
    roots: Mapping[str, AnyRoots], scale: Tensor, precisions: Mapping[str, Tensor], size: int
) -> Tensor:
    """Σ over blocks of log|I + s H/δ| from the roots of `size` examples; float64.

    scale s (0-dimensional), precisions δ by parameter name. Differentiable in all of them.
    """
    total = torch.zeros((), dtype=torch.float64, device=scale.device)
    spectra: dict[str, tuple[Tensor, Tensor]] = {}
    for name, root in roots.items():
        if isinstance(root, KroneckerRoots):
            spectra[name] = _eigenvalues(root.outputs, name), _eigenvalues(root.inputs, name)
            outputs, inputs = spectra[name]
            products = outputs[:, :, None] * inputs[:, None, :]
            part = (products * (scale / (size * precisions[name]))).log1p().sum()
        elif isinstance(root, DiagonalRoots):
            values = root.factors().values.double()
            part = (values * (scale / precisions[name])).log1p().sum()
        elif isinstance(root, DenseRoots) and root.output_of in spectra:
            outputs, _ = spectra[root.output_of]
            part = (outputs * (scale / precisions[name])).log1p().sum()
        elif isinstance(root, JointRoots):
            repeated = torch.cat([precisions[n].expand(count) for n, count in root.sizes.items()])
            part = log_determinant_above_one(_gram(root.rows.double() / repeated.sqrt()) * scale)
        else:
            kernel = _gram(root.rows).double()
            part = log_determinant_above_one(kernel * (scale / precisions[name]))
        total = total + part
    return total


def _gram(rows: Tensor) -> Tensor:
    """X Xᵀ or XᵀX, whichever is smaller, (blocks, side, side); X (…, rows, features)."""
    rows = rows if rows.ndim == 3 else rows[None]
    return rows @ rows.mT if rows.shape[-2] <= rows.shape[-1] else rows.mT @ rows


def _eigenvalues(rows: Tensor, name: str) -> Tensor:
    """Eigenvalues of XᵀX that can differ from zero, (groups, side), none negative."""
    matrix = _gram(rows).double()
    if not bool(torch.isfinite(matrix).all()):
        raise NotFiniteError(
            f"the curvature of {name!r} is not finite: the network's outputs or their derivatives "
            "overflow; lower the learning rate or rescale the inputs"
        )
    values: Tensor = torch.linalg.eigvalsh((matrix + matrix.mT) / 2)
    return values.clamp_min(0.0)
