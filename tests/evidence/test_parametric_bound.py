"""The parametric bound: sums of dense determinants a batch, below the evidence, differentiable."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from curvature_problems import CurvatureProblem, label_generator
from network_cases import LIKELIHOODS, NETWORKS, NOISE, assert_equal
from oracles.dense_evidence import categorical_log_likelihood, gaussian_log_likelihood
from oracles.dense_fisher import weighted_outputs
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.curvature.choice import make_curvature
from isotropy.curvature.copies import Copies
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import KINDS
from isotropy.curvature.kronecker import DenseRoots, KroneckerRoots
from isotropy.evidence.laplace import Batch, LaplaceEvidence, NotFiniteError
from isotropy.evidence.parametric_bound import ParametricBound, log_determinant_of_batch
from isotropy.evidence.priors import GaussianPrior
from isotropy.evidence.stochastic import FunctionSpaceBound

COUNT = 6
PARTITIONS = {
    "all": [[0, 1, 2, 3, 4, 5]],
    "halves": [[0, 1, 2], [3, 4, 5]],
    "uneven": [[4, 0], [5, 2, 1], [3]],
    "single": [[0], [1], [2], [3], [4], [5]],
}
NESTED = [
    PARTITIONS["all"],
    [[0, 1, 2, 3], [4, 5]],
    [[0, 3], [1, 2], [4, 5]],
    PARTITIONS["single"],
]
ADDITIVE = ("full-ggn", "full-ef", "diagonal-ggn", "diagonal-ef", "last-layer-ggn")
"""Kinds whose curvature of all data is the sum of that of the batches; no labels are drawn."""
WITHOUT_DRAWS = tuple(name for name, kind in KINDS.items() if kind.fisher != "mc")


class BoundProblem(CurvatureProblem):
    """A curvature problem in batches; rows depend on `widths`, shares of the copies on `share`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        generator = torch.Generator().manual_seed(8)
        self.moves = torch.randn(self.rows.shape, generator=generator, dtype=torch.float64)
        self.widths = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
        self.share = torch.tensor(0.15, dtype=torch.float64, requires_grad=True)
        self.likelihood.check_targets(self.targets, torch.zeros(1, 3))
        self.prior = GaussianPrior(self.network, self.curvature.parameter_names, "tensor", 0.5)
        with torch.no_grad():
            self.prior.log_precisions += torch.linspace(0, 1, len(self.prior.groups)).double()
        self.bound = ParametricBound(self.network, self.likelihood, self.prior, self.curvature)
        self.evidence = LaplaceEvidence(self.network, self.likelihood, self.prior, self.curvature)

    def shares(self) -> Tensor:
        return torch.stack([0.5 - self.share * 0, self.share, 0.5 - self.share])

    def rows_of(self, examples: list[int]) -> Tensor:
        moved = self.rows + self.widths * self.moves
        return self.copies.split(moved)[examples].flatten(0, 1)

    def batch(self, examples: list[int], generator: torch.Generator | None = None) -> Batch:
        copies = Copies(self.copies.count, self.shares())
        return Batch(self.rows_of(examples), self.targets[examples], copies, generator)

    def batches(self, partition: list[list[int]]) -> list[Batch]:
        return [self.batch(examples) for examples in partition]

    # -- by the oracles --------------------------------------------------------------------

    def matrix_of(self, examples: list[int]) -> Tensor:
        """The batch's own curvature, dense, in one graph from widths and share."""
        own = copy.copy(self)
        own.targets = self.targets[examples]
        return own.expected_matrix(self.rows_of(examples), self.shares())

    def delta(self) -> Tensor:
        precisions, names = self.prior.precisions(), self.expected_names()
        sizes = [self.network.get_parameter(name).numel() for name in names]
        return torch.cat([precisions[n].expand(s) for n, s in zip(names, sizes, strict=True)])

    def determinant(self, matrix: Tensor) -> Tensor:
        """log|H + P| − log|P|."""
        sign, value = torch.linalg.slogdet(matrix + torch.diag(self.delta()))
        assert float(sign.detach()) == 1
        return value - self.delta().log().sum()

    def fit_and_penalty(self) -> Tensor:
        rows = self.rows_of(list(range(self.count)))
        outputs = weighted_outputs(self.network, rows, self.shares())
        if self.noise is None:
            fit = categorical_log_likelihood(outputs, self.targets)
        else:
            fit = gaussian_log_likelihood(outputs, self.targets, NOISE)
        names = self.expected_names()
        theta = torch.cat([self.network.get_parameter(n).detach().flatten() for n in names])
        return fit - (self.delta() * theta.square()).sum() / 2

    def written_out(self, partition: list[list[int]]) -> Tensor:
        """The bound of a partition."""
        parts = [self.determinant(self.matrix_of(examples)) for examples in partition]
        return self.fit_and_penalty() - torch.stack(parts).sum() / 2

    def of_the_sum(self, partition: list[list[int]]) -> Tensor:
        """The evidence of Σ_b H_b, which is what the bound is below."""
        total = torch.stack([self.matrix_of(examples) for examples in partition]).sum(0)
        return self.fit_and_penalty() - self.determinant(total) / 2


def made(kind: str, likelihood: str = "categorical") -> BoundProblem:
    return BoundProblem(kind, likelihood, "three, weighted", count=COUNT)


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", WITHOUT_DRAWS)
def test_every_partition_is_its_formula_and_a_bound(
    kind: str, likelihood: str, partition: str
) -> None:
    problem, parts = made(kind, likelihood), PARTITIONS[partition]
    found = problem.bound.value(problem.batches(parts))
    assert_equal(found, problem.written_out(parts).detach(), partition)
    gap = float(problem.of_the_sum(parts).detach() - found)
    assert abs(gap) < 1e-8 if partition == "all" else gap > 1e-4


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", KINDS)
def test_one_batch_of_all_data_is_the_library_s_own_evidence(kind: str, likelihood: str) -> None:
    problem = made(kind, likelihood)
    everything = list(range(COUNT))
    fit = problem.evidence.fit([problem.batch(everything, label_generator())])
    expected = problem.evidence.value(fit).detach()
    found = problem.bound.estimate(problem.batch(everything, label_generator()), COUNT).value
    assert_equal(found.detach(), expected, "log evidence", 1e-9)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", ADDITIVE)
def test_where_curvature_adds_up_all_partitions_are_below_and_finer_ones_looser(
    kind: str, likelihood: str
) -> None:
    problem = made(kind, likelihood)
    exact = float(problem.evidence.value(problem.evidence.fit(problem.batches(NESTED[2]))).detach())
    values = [float(problem.bound.value(problem.batches(partition))) for partition in NESTED]
    assert values[0] == pytest.approx(exact, rel=1e-9)
    assert all(finer < coarser - 1e-4 for coarser, finer in itertools.pairwise(values))


def test_kfac_bounds_the_sum_of_its_batches_and_not_its_own_evidence() -> None:
    problem, parts = made("kfac-ggn"), PARTITIONS["single"]
    own = problem.evidence.value(problem.evidence.fit(problem.batches(parts))).detach()
    assert float((problem.of_the_sum(parts).detach() - own).abs()) > 1e-2


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize(
    "network", ["mlp", "linear without bias", "cnn", "layer norm", "attention", "used twice"]
)
def test_the_whole_matrix_gives_the_function_space_bound(network: str, likelihood: str) -> None:
    case, kind = NETWORKS[network], LIKELIHOODS[likelihood]
    module, rows, targets = case.network().eval(), case.rows(COUNT, 2), kind.targets(COUNT)
    curvature = make_curvature(module, KINDS["full-ggn"], "refuse", rows[:2])
    prior = GaussianPrior(module, curvature.parameter_names, "tensor", 0.4)
    with torch.no_grad():
        prior.log_precisions += torch.linspace(0, 1, len(prior.groups)).double()
    chosen, copies = kind.build(), Copies(2)
    parametric = ParametricBound(module, chosen, prior, curvature)
    function_space = FunctionSpaceBound(module, chosen, prior, "joint")
    for part in PARTITIONS["uneven"]:
        batch = Batch(copies.split(rows)[part].flatten(0, 1), targets[part], copies)
        found, expected = (b.estimate(batch, COUNT) for b in (parametric, function_space))
        for name in ("log_likelihood", "penalty", "log_determinant"):
            mine, theirs = getattr(found, name).detach(), getattr(expected, name).detach()
            assert_equal(mine, theirs, name, 1e-9)


@pytest.mark.parametrize("network", NETWORKS)
def test_kfac_of_every_kind_of_layer(network: str) -> None:
    """One batch of all data: blocks of groups, of positions, of scalars."""
    case, kind = NETWORKS[network], LIKELIHOODS["categorical"]
    module, rows, targets = case.network().eval(), case.rows(COUNT, 2), kind.targets(COUNT)
    curvature = KFAC(module)
    prior = GaussianPrior(module, curvature.parameter_names, "tensor", 0.4)
    evidence = LaplaceEvidence(module, kind.build(), prior, curvature)
    batches = [Batch(rows, targets, Copies(2))]
    expected = evidence.value(evidence.fit(batches)).detach()
    bound = ParametricBound(module, kind.build(), prior, curvature)
    assert_equal(bound.value(batches), expected, "log evidence", 1e-9)


@pytest.mark.parametrize("kind", ["full-ggn", "kfac-ggn"])
def test_batches_estimate_the_bound_without_bias(kind: str) -> None:
    problem, parts = made(kind), PARTITIONS["uneven"]
    drawn = [problem.bound.estimate(problem.batch(part), COUNT).value.detach() for part in parts]
    mean = sum(len(part) / COUNT * value for part, value in zip(parts, drawn, strict=True))
    assert_equal(mean, problem.bound.value(problem.batches(parts)), "mean over batches")
    assert float(torch.stack(drawn).std()) > 1e-2


@pytest.mark.parametrize("rows", [2, 9])
def test_either_side_of_a_root_gives_the_same(rows: int) -> None:
    """More rows than features and fewer, against Kronecker products written out."""
    generator = torch.Generator().manual_seed(3)
    inputs, outputs = (
        torch.randn(2, rows, width, generator=generator, dtype=torch.float64) for width in (4, 3)
    )
    roots = {"weight": KroneckerRoots(inputs, outputs), "bias": DenseRoots(outputs[0])}
    scale, size = torch.tensor(1.7, dtype=torch.float64), 5
    precisions = {name: torch.tensor(d).double() for name, d in (("weight", 0.6), ("bias", 2.0))}
    found = log_determinant_of_batch(roots, scale, precisions, size)
    expected = torch.zeros((), dtype=torch.float64)
    for a, g in zip(inputs, outputs, strict=True):
        matrix = torch.kron(g.T @ g, a.T @ a) * scale / (size * precisions["weight"])
        expected += torch.linalg.slogdet(torch.eye(12).double() + matrix)[1]
    bias = outputs[0].T @ outputs[0] * scale / precisions["bias"]
    expected += torch.linalg.slogdet(torch.eye(3).double() + bias)[1]
    assert_equal(found, expected, "log determinant")


# --- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", WITHOUT_DRAWS)
def test_gradients_are_those_of_the_dense_formula(kind: str, likelihood: str) -> None:
    problem, parts = made(kind, likelihood), PARTITIONS["uneven"]
    learnable = [problem.widths, problem.share, problem.prior.log_precisions]
    estimates = [problem.bound.estimate(batch, len(batch.targets)) for batch in
                 problem.batches(parts)]  # fmt: skip
    fit = torch.stack([e.log_likelihood - e.log_determinant / 2 for e in estimates]).sum()
    found = torch.autograd.grad(fit - estimates[0].penalty / 2, learnable)
    wanted = torch.autograd.grad(problem.written_out(parts), learnable)
    for name, mine, theirs in zip(("widths", "share", "precisions"), found, wanted, strict=True):
        assert float(theirs.abs().min()) > 1e-6
        assert_equal(mine, theirs, f"gradient by the {name}", 1e-8)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", ["kfac-ggn", "full-ggn", "diagonal-ef"])
def test_gradients_are_finite_differences(kind: str, likelihood: str) -> None:
    problem, step = made(kind, likelihood), 1e-5
    parameters = [problem.widths, problem.share, problem.prior.log_precisions]
    parameters += list(problem.likelihood.parameters())

    def value() -> Tensor:
        return problem.bound.estimate(problem.batch([5, 0, 2]), 17).value

    for parameter, found in zip(parameters, torch.autograd.grad(value(), parameters), strict=True):
        for entry in range(parameter.numel()):
            values = []
            for sign in (1, -1):
                with torch.no_grad():
                    parameter.view(-1)[entry] += sign * step
                    values.append(value())
                    parameter.view(-1)[entry] -= sign * step
            difference = (values[0] - values[1]) / (2 * step)
            assert float(difference.abs()) > 1e-4
            assert_equal(found.reshape(-1)[entry], difference, "finite difference", 1e-5)


def test_weights_of_the_network_are_constants() -> None:
    problem = made("kfac-ggn")
    problem.bound.estimate(problem.batch([0, 1]), COUNT).value.backward()
    assert all(parameter.grad is None for parameter in problem.network.parameters())
    assert problem.widths.grad is not None and problem.prior.log_precisions.grad is not None


# --- precision and mistakes ----------------------------------------------------------------------


def test_single_precision_is_close_to_double() -> None:
    case, kind = NETWORKS["mlp"], LIKELIHOODS["categorical"]
    values = []
    for dtype in (torch.float64, torch.float32):
        module = case.network(dtype)
        rows, targets = case.rows(COUNT, 2, dtype), kind.targets(COUNT)
        prior = GaussianPrior(module, KFAC(module).parameter_names, "tensor", 0.4)
        bound = ParametricBound(module, kind.build(), prior, KFAC(module))
        values.append(bound.value([Batch(rows, targets, Copies(2))]))
    assert values[1].dtype == torch.float64
    assert_equal(values[1], values[0], "single precision", 1e-5)
    assert not torch.equal(values[1], values[0])


def test_mistakes_are_named() -> None:
    problem = made("kfac-ggn")
    with pytest.raises(CallerError, match="expected a batch of 1 to 1 examples.*got 2"):
        problem.bound.estimate(problem.batch([0, 1]), 1)
    with pytest.raises(CallerError, match="one target for every 3 rows, got 6 rows and 1 targets"):
        batch = problem.batch([0, 1])
        problem.bound.estimate(batch._replace(targets=batch.targets[:1]), COUNT)
    with pytest.raises(CallerError, match="expected at least one batch"):
        problem.bound.value([])


@pytest.mark.parametrize("kind", ["kfac-ggn", "full-ggn"])
def test_curvature_that_is_not_finite_is_named(kind: str) -> None:
    problem = made(kind)
    problem.rows[0] = torch.nan
    with pytest.raises(NotFiniteError, match="not finite"):
        problem.bound.estimate(problem.batch([0, 1]), COUNT)
