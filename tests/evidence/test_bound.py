"""The function-space bound: below the evidence, equal where it should be, unbiased by batches."""

from __future__ import annotations

import pytest
import torch
from evidence_problems import (
    SAMPLES,
    Problem,
    image_problem,
    log_likelihood_of,
    precisions_of,
    spread_prior,
)
from network_cases import LIKELIHOODS, NETWORKS, NOISE, NetworkCase, assert_equal
from network_modules import CLASSES
from numerics import central_slopes, numbers
from oracles.dense_evidence import categorical_log_likelihood, gaussian_log_likelihood
from oracles.dense_ggn import average_over_samples, averaged_jacobian
from oracles.function_space import (
    exact_log_determinant,
    gaussian_root,
    softmax_root,
    split_log_determinant,
    whole_kernel,
)
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature import jacobians
from isotropy.curvature.jacobians import gram
from isotropy.curvature.kfac import make_curvature
from isotropy.curvature.kinds import KINDS, Copies
from isotropy.evidence.bound import FunctionSpaceBound, log_determinant_above_one
from isotropy.evidence.laplace import Batch, GaussianPrior, LaplaceEvidence, NotFiniteError
from isotropy.likelihoods import Categorical, Gaussian

COUNT = 6
WEIGHTS = (0.5, 0.15, 0.35)
PARTITIONS = {
    "all": [[0, 1, 2, 3, 4, 5]],
    "halves": [[0, 1, 2], [3, 4, 5]],
    "uneven": [[4, 0], [5, 2, 1], [3]],
    "single": [[0], [1], [2], [3], [4], [5]],
}


class Tied(nn.Module):
    """Two Linear layers with one and the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(CLASSES, CLASSES)
        self.head = nn.Linear(CLASSES, CLASSES)
        self.head.weight = self.inner.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.inner(inputs).tanh())


CASES = {
    name: NETWORKS[name]
    for name in (
        "network is the layer", "linear without bias", "mlp", "mlp, activation last",
        "in-place relu", "tokens", "used twice", "head used twice", "unused", "frozen weight",
        "frozen head", "cnn", "conv last", "conv, in-place relu", "layer norm", "attention",
    )
} | {"tied": NetworkCase(Tied, (CLASSES,))}  # fmt: skip


class Setting:
    """A network, data and a prior whose tensors all differ, and the same by the oracles."""

    def __init__(
        self, network: str = "mlp", likelihood: str = "categorical", weights: bool = True
    ) -> None:
        case, kind = CASES[network], LIKELIHOODS[likelihood]
        self.network = case.network().eval()
        self.rows, self.targets = case.rows(COUNT, len(WEIGHTS)), kind.targets(COUNT)
        values = WEIGHTS if weights else (1 / len(WEIGHTS),) * len(WEIGHTS)
        self.weights = torch.tensor(values, dtype=torch.float64)
        self.copies = Copies(len(WEIGHTS), self.weights if weights else None)
        self.likelihood, self.kind = kind.build(), kind
        names = tuple(n for n, p in self.network.named_parameters() if p.requires_grad)
        self.prior = spread_prior(self.network, names, "tensor", 0.4)

    def bound(self) -> FunctionSpaceBound:
        return FunctionSpaceBound(self.network, self.likelihood, self.prior)

    def batch(self, examples: list[int]) -> Batch:
        rows = self.copies.split(self.rows)[examples].flatten(0, 1)
        return Batch(rows, self.targets[examples], self.copies)

    def batches(self, partition: list[list[int]]) -> list[Batch]:
        return [self.batch(examples) for examples in partition]

    # -- by the oracles --------------------------------------------------------------------

    def precisions(self) -> Tensor:
        own = self.prior.precisions()
        sizes = {name: self.network.get_parameter(name).numel() for name in own}
        return torch.cat([d.detach().expand(sizes[name]) for name, d in own.items()])

    def fit_and_penalty(self) -> Tensor:
        """log p(y | f̂) − ½ Σ δ‖θ‖²."""
        outputs = average_over_samples(self.network(self.rows), self.weights)
        if isinstance(self.likelihood, Categorical):
            fit = categorical_log_likelihood(outputs, self.targets)
        else:
            fit = gaussian_log_likelihood(outputs, self.targets, NOISE)
        flat = torch.cat([self.network.get_parameter(n).flatten() for n in self.prior.names])
        return fit - (self.precisions() * flat.square()).sum().detach() / 2

    def jacobian(self) -> Tensor:
        return averaged_jacobian(self.network, self.rows, self.weights, self.prior.names)

    def exact(self) -> Tensor:
        """log Z with the whole Gauss–Newton matrix over the parameters."""
        outputs = average_over_samples(self.network(self.rows), self.weights)
        curvature = self.kind.curvature(outputs)
        complexity = exact_log_determinant(self.jacobian(), curvature, self.precisions())
        return self.fit_and_penalty() - complexity / 2

    def split(self, partition: list[list[int]]) -> Tensor:
        """The bound of a partition, written out."""
        outputs = average_over_samples(self.network(self.rows), self.weights)
        categorical = isinstance(self.likelihood, Categorical)
        root = softmax_root(outputs) if categorical else gaussian_root(outputs, NOISE)
        kernel = whole_kernel(self.jacobian(), root, self.precisions())
        complexity = split_log_determinant(kernel, partition)
        return self.fit_and_penalty() - complexity / 2


# --- where the bound is the evidence -----------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "likelihood"),
    [*((name, "categorical") for name in CASES), ("mlp", "gaussian"), ("cnn", "gaussian")],
)
def test_all_data_jointly_give_the_evidence(network: str, likelihood: str) -> None:
    setting = Setting(network, likelihood)
    whole = setting.batch(PARTITIONS["all"][0])
    estimate = setting.bound().estimate(whole, COUNT).value
    assert_equal(estimate.detach(), setting.exact().detach(), network)


def test_scale_invariant_weights_have_the_precision_of_their_shell() -> None:
    setting = Setting("layer norm")
    names = setting.prior.names
    setting.prior = GaussianPrior(setting.network, names, "layer", 0.3, scale_invariant=("0",))
    curvature = make_curvature(setting.network, KINDS["full-ggn"], "refuse", setting.rows[:2])
    evidence = LaplaceEvidence(setting.network, setting.likelihood, setting.prior, curvature)
    batches = setting.batches(PARTITIONS["all"])
    expected = evidence.value(evidence.fit(batches)).detach()
    assert_equal(setting.bound().value(batches), expected, "log evidence")
    setting.prior = GaussianPrior(setting.network, names, "layer", 0.3)
    assert float((setting.bound().value(batches) - expected).abs()) > 1e-3


def test_only_parameters_with_a_prior_count() -> None:
    setting = Setting("mlp")
    whole = setting.batches(PARTITIONS["all"])
    everything = setting.bound().value(whole)
    setting.prior = GaussianPrior(setting.network, ("4.weight", "4.bias"), "tensor", 0.4)
    assert_equal(setting.bound().value(whole), setting.exact().detach(), "last layer")
    assert float((everything - setting.bound().value(whole)).abs()) > 1e-3


# --- where it is below ---------------------------------------------------------------------------


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_every_partition_is_its_formula_and_a_bound(
    network: str, likelihood: str, partition: str
) -> None:
    setting = Setting(network, likelihood)
    parts = PARTITIONS[partition]
    found = setting.bound().value(setting.batches(parts))
    assert_equal(found, setting.split(parts).detach(), partition)
    gap = float(setting.exact().detach() - found)
    assert abs(gap) < 1e-8 if partition == "all" else gap > 1e-3


# --- estimates -----------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_batches_estimate_the_bound_without_bias(likelihood: str) -> None:
    setting = Setting("mlp", likelihood)
    bound = setting.bound()
    parts = PARTITIONS["uneven"]
    drawn = [bound.estimate(setting.batch(part), COUNT).value.detach() for part in parts]
    mean = sum(len(part) / COUNT * value for part, value in zip(parts, drawn, strict=True))
    assert_equal(mean, bound.value(setting.batches(parts)), "mean over batches")
    assert float(torch.stack(drawn).std()) > 1e-2


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_conditioning_is_between_the_bound_and_the_evidence(likelihood: str) -> None:
    setting = Setting("mlp", likelihood)
    bound = setting.bound()
    given, rest = [0, 1], [[2, 3], [4, 5]]
    estimates = [bound.estimate(setting.batch(given + batch), COUNT, len(given)) for batch in rest]
    mean = torch.stack([estimate.log_determinant for estimate in estimates]).mean().detach()

    def determinant(*partition: list[int]) -> Tensor:
        fit = setting.fit_and_penalty()
        return 2 * (fit - setting.split(list(partition))).detach()

    written_out = sum(determinant(given + batch) for batch in rest) - determinant(given)
    assert_equal(mean, written_out, "Schur complements", 1e-9)
    assert float(mean) > float(determinant([0, 1, 2, 3, 4, 5])) + 1e-3
    assert float(mean) < float(determinant(given, *rest)) - 1e-3


def test_parts_add_up() -> None:
    setting = Setting("mlp")
    estimate = setting.bound().estimate(setting.batch([1, 3]), COUNT)
    parts = estimate.log_likelihood - estimate.penalty / 2 - estimate.log_determinant / 2
    assert_equal(parts, estimate.value, "parts")
    assert estimate.value.dtype == torch.float64 and estimate.value.ndim == 0
    assert float(estimate.log_determinant.detach()) > 0 > float(estimate.log_likelihood.detach())


def test_one_hidden_layer_needs_no_gradient_of_any_example(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting("frozen weight")
    batches = setting.batches(PARTITIONS["halves"])
    expected = setting.split(PARTITIONS["halves"]).detach()

    def refused(*_: object) -> None:
        raise AssertionError("a gradient of every example was asked for")

    monkeypatch.setattr(jacobians, "example_gradients", refused)
    assert_equal(setting.bound().value(batches), expected, "shortcut")
    with pytest.raises(AssertionError, match="was asked for"):
        Setting("cnn").bound().value(Setting("cnn").batches(PARTITIONS["all"]))


def test_single_precision_is_close_to_double() -> None:
    setting = Setting("mlp")
    expected = setting.bound().value(setting.batches(PARTITIONS["halves"]))
    setting.network.float()
    setting.rows = setting.rows.float()
    found = setting.bound().value(setting.batches(PARTITIONS["halves"]))
    assert found.dtype == torch.float64
    assert_equal(found, expected, "single precision", 1e-5)
    assert not torch.equal(found, expected)


# --- what cannot be meant -------------------------------------------------------------------------


def test_mistakes_are_named() -> None:
    setting = Setting("mlp")
    bound = setting.bound()
    with pytest.raises(CallerError, match="expected a batch of 1 to 5 examples.*got 6"):
        bound.estimate(setting.batch([0, 1, 2, 3, 4, 5]), COUNT - 1)
    with pytest.raises(CallerError, match="got 0"):
        bound.estimate(setting.batch([]), COUNT)
    for conditioned in (-1, 2):
        with pytest.raises(CallerError, match=f"expected 0 to 1 examples.*got {conditioned}"):
            bound.estimate(setting.batch([0, 1]), COUNT, conditioned)
    with pytest.raises(CallerError, match="expected at least one batch"):
        bound.value([])
    batch = setting.batch([0, 1])
    with pytest.raises(CallerError, match="one target for every 3 rows, got 6 rows and 1 targets"):
        bound.estimate(batch._replace(targets=batch.targets[:1]), COUNT)
    with pytest.raises(CallerError, match="expected 0 to 2"):
        bound.estimate(batch._replace(targets=batch.targets + CLASSES), COUNT)


def test_a_kernel_that_is_not_finite_is_named() -> None:
    setting = Setting("mlp")
    setting.rows[0] = torch.nan
    with pytest.raises(NotFiniteError, match="tangent kernel of a batch is not finite"):
        setting.bound().estimate(setting.batch([0, 1]), COUNT)


def test_log_determinants_of_bad_kernels_are_refused() -> None:
    kernel = torch.diag(torch.tensor([1.0, 3.0], dtype=torch.float64))
    expected = torch.tensor(8.0, dtype=torch.float64).log()
    assert_equal(log_determinant_above_one(kernel), expected, "log 8")
    with pytest.raises(NotFiniteError):
        log_determinant_above_one(-2 * torch.eye(2, dtype=torch.float64))


# --- gradients: by ranges, weights of copies, precisions and noise -----------------------------


def bound_of(problem: Problem) -> FunctionSpaceBound:
    evidence = problem.evidence
    return FunctionSpaceBound(evidence.network, evidence.likelihood, evidence.prior)


def written_out(problem: Problem, partition: list[list[int]]) -> Tensor:
    """log likelihood − ½ Σ log|I + K_block| in one graph from the half-widths."""
    network, names = problem.model.network.eval(), problem.evidence.prior.names
    rows = problem.model.orbit(problem.inputs, problem.noise)
    outputs = average_over_samples(network(rows), SAMPLES)
    categorical = isinstance(problem.evidence.likelihood, Categorical)
    root = softmax_root(outputs) if categorical else gaussian_root(outputs, NOISE)
    of_name = precisions_of(problem)
    precisions = torch.cat(
        [
            torch.full((network.get_parameter(name).numel(),), of_name[name], dtype=torch.float64)
            for name in names
        ]
    )
    kernel = whole_kernel(averaged_jacobian(network, rows, SAMPLES, names), root, precisions)
    complexity = split_log_determinant(kernel, partition)
    return log_likelihood_of(problem, outputs) - complexity / 2


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("network", ["mlp", "cnn", "fixup block"])
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
    monkeypatch.setattr(jacobians, "CACHE_BYTES", units * 36 * len(problem.inputs) * 8)
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
        slopes = central_slopes(value, parameter)
        assert float(slopes.abs().min()) > 1e-3
        torch.testing.assert_close(found, slopes, rtol=1e-6, atol=0)


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
    vectors = numbers(2, 3, 4).requires_grad_()
    assert torch.autograd.gradcheck(gram, (vectors,))
    assert torch.autograd.gradgradcheck(gram, (vectors,))
