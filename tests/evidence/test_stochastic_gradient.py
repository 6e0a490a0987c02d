"""Gradients of the function-space bound: by ranges, weights of copies, precisions and noise."""

from __future__ import annotations

import pytest
import torch
from evidence_problems import SAMPLES, Problem, image_problem, log_likelihood_of, precisions_of
from network_cases import LIKELIHOODS, NETWORKS, NOISE, assert_equal
from oracles.dense_fisher import weighted_jacobian, weighted_outputs
from oracles.function_space import (
    gaussian_root,
    softmax_root,
    split_log_determinant,
    whole_kernel,
)
from torch import Tensor

from isotropy.curvature import tangent_kernel
from isotropy.curvature.kinds import Copies
from isotropy.curvature.tangent_kernel import gram
from isotropy.evidence.bound import FunctionSpaceBound
from isotropy.evidence.laplace import Batch
from isotropy.evidence.priors import GaussianPrior
from isotropy.likelihoods import Categorical, Gaussian

EQUAL = torch.full((SAMPLES,), 1 / SAMPLES, dtype=torch.float64)
STEP = 1e-5


def bound_of(problem: Problem) -> FunctionSpaceBound:
    evidence = problem.evidence
    return FunctionSpaceBound(evidence.network, evidence.likelihood, evidence.prior)


def written_out(problem: Problem, partition: list[list[int]]) -> Tensor:
    """log likelihood − ½ Σ log|I + K_block| in one graph from the half-widths."""
    network, names = problem.model.network.eval(), problem.evidence.prior.names
    rows = problem.model.orbit(problem.inputs, problem.noise)
    outputs = weighted_outputs(network, rows, EQUAL)
    categorical = isinstance(problem.evidence.likelihood, Categorical)
    root = softmax_root(outputs) if categorical else gaussian_root(outputs, NOISE)
    of_name = precisions_of(problem)
    precisions = torch.cat(
        [
            torch.full((network.get_parameter(name).numel(),), of_name[name], dtype=torch.float64)
            for name in names
        ]
    )
    kernel = whole_kernel(weighted_jacobian(network, names, rows, EQUAL), root, precisions)
    complexity = split_log_determinant(kernel, partition)
    return log_likelihood_of(problem, outputs) - complexity / 2


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("network", ["mlp", "relu, in place", "cnn", "fixup block"])
def test_by_ranges(network: str, likelihood: str) -> None:
    problem = image_problem(network, likelihood)
    bound = bound_of(problem)
    value = sum(bound.estimate(batch, len(batch.targets)).value for batch in problem.batches(3, 1))
    (found,) = torch.autograd.grad(value, problem.half_widths)
    expected = written_out(problem, [[0, 1, 2], [3]])
    (gradient,) = torch.autograd.grad(expected, problem.half_widths)
    assert float(gradient.abs().min()) > 1e-6
    assert_equal(found, gradient, "gradient by the half-widths", 1e-8)


@pytest.mark.parametrize("units", [1, 3])
def test_a_few_units_at_a_time_give_the_same(units: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = image_problem("mlp", "categorical")  # four hidden units on 36 numbers
    batches = list(problem.batches())
    monkeypatch.setattr(tangent_kernel, "CACHE_BYTES", units * 36 * len(problem.inputs) * 8)
    bound = bound_of(problem)
    expected = written_out(problem, [[0, 1, 2, 3]])
    value = bound.estimate(batches[0], len(problem.inputs))
    assert_equal(value.log_likelihood - value.log_determinant / 2, expected, "value")
    (found,) = torch.autograd.grad(value.value, problem.half_widths)
    (gradient,) = torch.autograd.grad(expected, problem.half_widths)
    assert_equal(found, gradient, "gradient by the half-widths", 1e-8)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_by_precisions_and_noise(likelihood: str) -> None:
    problem = image_problem("mlp", likelihood)
    bound = bound_of(problem)
    (batch,) = problem.batches()

    def value() -> Tensor:
        return bound.estimate(batch, 17).value

    parameters: list[Tensor] = [bound.prior.log_precisions]
    if isinstance(bound.likelihood, Gaussian):
        parameters.append(bound.likelihood.log_noise)
    for parameter, found in zip(parameters, torch.autograd.grad(value(), parameters), strict=True):
        for entry in range(parameter.numel()):
            with torch.no_grad():
                flat = parameter.view(-1)
                flat[entry] += STEP
                above = value()
                flat[entry] -= 2 * STEP
                below = value()
                flat[entry] += STEP
            difference = (above - below) / (2 * STEP)
            assert float(difference.abs()) > 1e-3
            assert_equal(found.reshape(-1)[entry], difference, "finite difference", 1e-6)


@pytest.mark.parametrize("conditioned", [0, 1])
@pytest.mark.parametrize("network", ["mlp", "cnn", "network is the layer"])
def test_by_weights_of_copies(network: str, conditioned: int) -> None:
    case, kind = NETWORKS[network], LIKELIHOODS["categorical"]
    module, rows, targets = case.network(), case.rows(3, 2), kind.targets(3)
    names = tuple(name for name, _ in module.named_parameters())
    prior = GaussianPrior(module, names, "tensor", 0.4)
    bound = FunctionSpaceBound(module, kind.build(), prior)

    def value(share: Tensor) -> Tensor:
        copies = Copies(2, torch.stack([share, 1 - share]))
        return bound.estimate(Batch(rows, targets, copies), 7, conditioned).value

    share = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(value, (share,))


def test_weights_of_the_network_are_constants() -> None:
    problem = image_problem("cnn", "categorical")
    (batch,) = problem.batches()
    value = bound_of(problem).estimate(batch, 9).value
    assert value.requires_grad
    value.backward()
    assert all(parameter.grad is None for parameter in problem.model.network.parameters())
    assert problem.half_widths.grad is not None


def test_inner_products_have_first_and_second_derivatives() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(gram, (vectors,))
    assert torch.autograd.gradgradcheck(gram, (vectors,))
