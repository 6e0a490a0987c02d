"""One curvature problem in every kind: what the library finds, and what the oracles say it is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from network_cases import LIKELIHOODS, NETWORKS, NOISE, assert_equal
from numerics import central_slopes
from oracles.dense_fisher import drawn_targets, empirical_curvature, sampled_curvature
from oracles.dense_ggn import averaged_jacobian, averaged_outputs, sandwich, trainable
from oracles.dense_kfac import dense_kfac
from torch import Tensor, nn

from isotropy.curvature.blocks import JOINT
from isotropy.curvature.kfac import KFAC, Curvature, make_curvature
from isotropy.curvature.kinds import KINDS, BatchCurvature, Copies, CurvatureKind
from isotropy.evidence.laplace import Batch, GaussianPrior, LaplaceEvidence
from isotropy.likelihoods import Likelihood

COUNT = 4
LABELS_SEED = 11

COPIES: dict[str, tuple[float, ...] | int] = {
    "one": 1, "three": 3, "three, weighted": (0.5, 0.15, 0.35)
}  # fmt: skip


def copies_named(name: str) -> tuple[Copies, Tensor]:
    """The library's copies, and the weights the oracle uses."""
    given = COPIES[name]
    if isinstance(given, int):
        return Copies(given), torch.full((given,), 1 / given, dtype=torch.float64)
    weights = torch.tensor(given, dtype=torch.float64)
    return Copies(len(given), weights), weights


def label_generator() -> torch.Generator:
    return torch.Generator().manual_seed(LABELS_SEED)


@dataclass
class CurvatureProblem:
    """A kind, a network of `NETWORKS`, a likelihood of `LIKELIHOODS`, and copies."""

    kind: str
    likelihood_name: str
    copies_name: str = "three"
    network_name: str = "mlp"
    count: int = COUNT

    def __post_init__(self) -> None:
        case = NETWORKS[self.network_name]
        self.copies, self.weights = copies_named(self.copies_name)
        self.network: nn.Module = case.network().eval()
        self.rows = case.rows(self.count, self.copies.count)
        chosen = LIKELIHOODS[self.likelihood_name]
        self.likelihood: Likelihood = chosen.build()
        self.targets = chosen.targets(self.count)
        self.noise = None if self.likelihood_name == "categorical" else NOISE
        self.curvature: Curvature = make_curvature(
            self.network, self.chosen, "refuse", self.rows[:2]
        )

    @property
    def chosen(self) -> CurvatureKind:
        return KINDS[self.kind]

    def found(self, **options: object) -> BatchCurvature:
        return self.curvature.batch(
            self.rows, self.copies, self.likelihood, self.targets,
            generator=label_generator(), **options,
        )  # type: ignore[arg-type]  # fmt: skip

    def found_matrix(self) -> Tensor:
        """The library's curvature as one matrix over its parameters."""
        factors = self.found().factors()
        scale = self.chosen.scale(self.likelihood).detach()
        if JOINT in factors:
            return scale * factors[JOINT].dense(self.count)[0]
        blocks = [factors[name].dense(self.count) for name in self.curvature.parameter_names]
        return scale * torch.block_diag(*(part for block in blocks for part in block))

    # -- the oracle ------------------------------------------------------------------------

    def output_curvature(self, outputs: Tensor) -> Tensor:
        """Λ (batch, outputs, outputs) of this kind's Fisher."""
        if self.chosen.fisher == "ggn":
            return LIKELIHOODS[self.likelihood_name].curvature(outputs)
        if self.chosen.fisher == "ef":
            return empirical_curvature(outputs, self.targets, self.noise)
        drawn = drawn_targets(outputs, self.noise, label_generator())
        return sampled_curvature(outputs, drawn, self.noise)

    def expected_matrix(self, rows: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        """The same by the oracles; differentiable in rows and weights."""
        rows = self.rows if rows is None else rows
        weights = self.weights if weights is None else weights
        names = self.expected_names()
        if self.chosen.structure == "kfac":
            blocks: dict[str, Tensor] = {}
            for layer in dict.fromkeys(name.rpartition(".")[0] for name in names):
                own = dense_kfac(self.network, layer, rows, weights, self.output_curvature)
                blocks |= {f"{layer}.{n}": block.squeeze(0) for n, block in own.items()}
            return torch.block_diag(*(blocks[name] for name in names))
        outputs = averaged_outputs(self.network, trainable(self.network), rows, weights)
        jacobian = averaged_jacobian(self.network, rows, weights, names)
        matrix = sandwich(jacobian, self.output_curvature(outputs))
        return matrix.diagonal().diag() if self.chosen.structure == "diagonal" else matrix

    def expected_names(self) -> tuple[str, ...]:
        names = tuple(name for name, _ in self.network.named_parameters())
        if self.chosen.structure == "last-layer":
            last = names[-1].rpartition(".")[0]
            return tuple(name for name in names if name.rpartition(".")[0] == last)
        return names


def assert_gradient_is_the_slope(
    network: nn.Module, kfac: KFAC, likelihood: Likelihood, data: Tensor, targets: Tensor
) -> None:
    """Of the evidence, by an amount on which all inputs depend; two copies of each example."""
    prior = GaussianPrior(network, kfac.parameter_names, "tensor", 0.5)
    evidence = LaplaceEvidence(network, likelihood, prior, kfac)
    amount = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def batch() -> Batch:
        return Batch(data * (1 + amount * data.cos()), targets, Copies(2))

    (found,) = evidence.gradient(evidence.fit([batch()]), [batch()], [amount])
    slope = central_slopes(lambda: evidence.value(evidence.fit([batch()])), amount)
    assert_equal(found, -slope, "gradient", 1e-6)
