"""The evidence of every kind of curvature, and its gradient, against one dense matrix in one graph.

    log Z = log p(y | f̂) − ½ [ Σ δ_i θ_i² + log|H + diag(δ)| − Σ log δ_i ]

with H written out by `oracles.dense_fisher`, for autograd to go through. The gradient is asked for
in what the rows depend on and in the weights of the copies.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from curvature_problems import CurvatureProblem, label_generator
from network_cases import LIKELIHOODS, NOISE, assert_equal, relative_difference
from oracles.dense_evidence import categorical_log_likelihood, gaussian_log_likelihood
from oracles.dense_fisher import weighted_outputs
from torch import Tensor

from isotropy.curvature.blocks import JOINT
from isotropy.curvature.kinds import KINDS, Copies
from isotropy.evidence.laplace import Batch, LaplaceEvidence
from isotropy.evidence.priors import GaussianPrior

TOLERANCE = 1e-8


class EvidenceProblem(CurvatureProblem):
    """A curvature problem whose rows depend on `widths` and whose copies have learnable weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        shape = self.rows.shape
        generator = torch.Generator().manual_seed(8)
        self.base = self.rows.clone()
        self.moves = torch.randn(shape, generator=generator, dtype=torch.float64)
        self.widths = torch.tensor([0.3, 0.1, 0.5, 0.2], dtype=torch.float64, requires_grad=True)
        self.chances = self.weights[1:].clone().requires_grad_()
        self.likelihood.check_targets(self.targets, torch.zeros(1, 3))
        self.prior = GaussianPrior(self.network, self.curvature.parameter_names, "tensor", 0.5)
        with torch.no_grad():
            self.prior.log_precisions += torch.linspace(0, 1, len(self.prior.groups)).double()
        self.evidence = LaplaceEvidence(self.network, self.likelihood, self.prior, self.curvature)

    @property
    def learnable(self) -> list[Tensor]:
        return [self.widths, self.chances][: min(2, self.copies.count)]

    def shares(self) -> Tensor:
        """Weights of the copies, which add up to one: the first has what the others leave."""
        return torch.cat([1 - self.chances.sum(0, keepdim=True), self.chances])

    def moved(self, part: slice = slice(None)) -> Tensor:
        return self.base[part] + self.widths * self.moves[part]

    def batches(self, *sizes: int, weighted: bool = True) -> Iterator[Batch]:
        """With labels drawn from one generator, so that every pass draws the same."""
        generator = label_generator()
        count = self.copies.count
        sizes = sizes or (self.count,)
        ends = list(itertools.accumulate(sizes))
        for size, end in zip(sizes, ends, strict=True):
            rows = self.moved(slice(count * (end - size), count * end))
            copies = Copies(count, self.shares() if weighted else None)
            yield Batch(rows, self.targets[end - size : end], copies, generator)

    def dense_log_evidence(self) -> Tensor:
        """log Z in one graph from widths and chances."""
        rows, shares = self.moved(), self.shares()
        outputs = weighted_outputs(self.network, rows, shares)
        log_likelihood = (
            categorical_log_likelihood(outputs, self.targets)
            if self.noise is None
            else gaussian_log_likelihood(outputs, self.targets, NOISE)
        )
        matrix = self.expected_matrix(rows, shares)
        parameters = dict(self.network.named_parameters())
        names, precisions = self.expected_names(), self.prior.precisions()
        theta = torch.cat([parameters[name].detach().flatten() for name in names])
        delta = torch.cat([precisions[n].detach().expand(parameters[n].numel()) for n in names])
        sign, log_determinant = torch.linalg.slogdet(matrix + torch.diag(delta))
        assert float(sign.detach()) == 1
        complexity = (delta * theta.square()).sum() + log_determinant - delta.log().sum()
        return log_likelihood - complexity / 2


@pytest.mark.parametrize("copies", ["one", "three", "three, weighted"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", KINDS)
def test_value_and_gradient_are_those_of_the_dense_evidence(
    kind: str, likelihood: str, copies: str
):
    given = EvidenceProblem(kind, likelihood, copies)
    fit = given.evidence.fit(given.batches(3, 1))
    expected = given.dense_log_evidence()
    assert_equal(given.evidence.value(fit).detach(), expected.detach(), "log Z", TOLERANCE)
    found = given.evidence.gradient(fit, given.batches(1, 3), given.learnable)
    wanted = torch.autograd.grad(-expected, given.learnable)
    names = ("widths", "chances")[: len(found)]
    for name, mine, theirs in zip(names, found, wanted, strict=True):
        assert_equal(mine, theirs, f"gradient by the {name}", TOLERANCE)


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.fisher != "mc"])
def test_the_gradient_is_that_of_the_value_by_finite_differences(kind: str):
    given = EvidenceProblem(kind, "categorical", "three, weighted")
    fit = given.evidence.fit(given.batches())
    found = given.evidence.gradient(fit, given.batches(), given.learnable)
    step = 1e-5
    for tensor, gradient in zip(given.learnable, found, strict=True):
        for index in range(len(tensor)):
            values = []
            for sign in (1, -1):
                with torch.no_grad():
                    tensor[index] += sign * step
                    values.append(given.evidence.value(given.evidence.fit(given.batches())))
                    tensor[index] -= sign * step
            slope = -(values[0] - values[1]).detach() / (2 * step)
            assert_equal(gradient[index], slope, f"slope {index}", 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_without_weights_nothing_depends_on_them(kind: str):
    given = EvidenceProblem(kind, "categorical", "three")
    fit = given.evidence.fit(given.batches(weighted=False))
    weighted = given.evidence.fit(given.batches())
    assert_equal(given.evidence.value(fit), given.evidence.value(weighted).detach(), "log Z")
    by_widths, by_chances = given.evidence.gradient(
        fit, given.batches(weighted=False), given.learnable
    )
    same, _ = given.evidence.gradient(weighted, given.batches(), given.learnable)
    assert_equal(by_widths, same, "gradient by the widths", TOLERANCE)
    assert torch.equal(by_chances, torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_other_targets_are_another_evidence(kind: str):
    """Of the empirical Fisher in its curvature, of all kinds in the likelihood."""
    given = EvidenceProblem(kind, "gaussian", "three")
    before = given.evidence.fit(given.batches())
    given.targets = given.targets + 1.0
    after = given.evidence.fit(given.batches())
    same = all(
        torch.equal(mine, theirs)
        for name, spectrum in before.spectra.items()
        for mine, theirs in zip(_tensors(spectrum), _tensors(after.spectra[name]), strict=True)
    )
    assert same is (KINDS[kind].fisher != "ef")
    assert relative_difference(after.statistic, before.statistic) > 1e-2


def _tensors(spectrum: object) -> list[Tensor]:
    return [value for value in vars(spectrum).values() if isinstance(value, Tensor)]


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", KINDS)
def test_differentiable_in_precisions_and_noise(kind: str, likelihood: str):
    given = EvidenceProblem(kind, likelihood, "three, weighted")
    fit = given.evidence.fit(given.batches())
    parameters = [given.prior.log_precisions, *given.likelihood.parameters()]
    gradients = torch.autograd.grad(given.evidence.value(fit), parameters)
    step = 1e-5
    for parameter, gradient in zip(parameters, gradients, strict=True):
        for index in range(parameter.numel()):
            values = []
            for sign in (1, -1):
                with torch.no_grad():
                    parameter.view(-1)[index] += sign * step
                    values.append(given.evidence.value(fit).detach())
                    parameter.view(-1)[index] -= sign * step
            slope = (values[0] - values[1]) / (2 * step)
            torch.testing.assert_close(gradient.view(-1)[index], slope, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_effective_parameters_lie_between_none_and_all(kind: str):
    given = EvidenceProblem(kind, "categorical", "three")
    fit = given.evidence.fit(given.batches())
    found = given.evidence.effective_parameters(fit)
    joint = KINDS[kind].structure in ("full", "last-layer")
    assert set(found) == ({JOINT} if joint else set(given.expected_names()))
    assert 0 < sum(found.values()) < sum(fit.sizes.values())


def test_names_of_kinds():
    for kind in KINDS:
        assert EvidenceProblem(kind, "categorical").evidence.curvature_name == kind
