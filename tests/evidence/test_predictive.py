"""The linearised predictive against closed forms and densely inverted posteriors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from evidence_problems import Brightness, spread_prior
from network_cases import (
    CLASSES,
    EVERY_RULE,
    LIKELIHOODS,
    NETWORKS,
    NOISE,
    NetworkCase,
    assert_equal,
    mlp,
)
from oracles.dense_ggn import (
    average_over_samples,
    averaged_jacobian,
    dense_ggn,
)
from scipy import integrate
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.kfac import make_curvature
from isotropy.curvature.kinds import KINDS, kind_named
from isotropy.evidence import predictive as module
from isotropy.evidence.laplace import Batch, LaplaceEvidence, LaplaceFit
from isotropy.evidence.predictive import METHODS, Predictive, monte_carlo, probit
from isotropy.likelihoods import Categorical, Gaussian, Likelihood
from isotropy.networks.averaging.augmentations import UniformRanges
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.averaging.mixtures import Mixture
from isotropy.symmetry.actions.finite import flip
from isotropy.symmetry.actions.images import affine

COUNT, SAMPLES, NEW = 6, 3, 5
POINTS = (4,)


class Case:
    """A network with a fit to data under ranges of brightness and contrast, and new inputs."""

    def __init__(
        self,
        network: nn.Module,
        shape: tuple[int, ...],
        *,
        kind: str = "kfac-ggn",
        likelihood: Likelihood | None = None,
        start: float = 0.3,
        count: int = COUNT,
        scale_invariant: tuple[str, ...] = (),
        augmentation: nn.Module | None = None,
    ) -> None:
        generator = torch.Generator().manual_seed(11)
        dtype = next(network.parameters()).dtype
        self.network = network
        self.likelihood = likelihood or Categorical()
        ranges = UniformRanges(Brightness(), start=start, dtype=dtype)
        self.model = InvariantModel(network, augmentation or ranges, SAMPLES)  # type: ignore[arg-type]
        draw = torch.randn(count + NEW, *shape, generator=generator, dtype=torch.float64)
        self.inputs, self.new = draw.to(dtype)[:count], draw.to(dtype)[count:]
        self.targets = LIKELIHOODS[self.likelihood.name].targets(count, dtype)
        shape = self.model.noise(count + NEW).shape
        noise = 2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1
        self.noise, self.new_noise = noise.to(dtype)[:count], noise.to(dtype)[count:]
        curvature = make_curvature(network, kind_named(kind), "refuse", self.inputs[:2])
        names = curvature.parameter_names
        prior = spread_prior(network, names, "layer", 0.4, scale_invariant=scale_invariant)
        self.evidence = LaplaceEvidence(network, self.likelihood, prior, curvature)

    def batch(self) -> Batch:
        with torch.no_grad():
            rows = self.model.orbit(self.inputs, self.noise)
        copies = self.model.augmentation.copies(self.noise.shape[1])
        return Batch(rows, self.targets, copies, torch.Generator().manual_seed(12))

    def fit(self) -> LaplaceFit:
        return self.evidence.fit([self.batch()])

    def predictive(self) -> Predictive:
        return Predictive(self.evidence, self.fit(), self.model)

    def new_rows(self) -> Tensor:
        with torch.no_grad():
            return self.model.orbit(self.new, self.new_noise)

    def precision(self) -> Tensor:
        """δ over all parameters with a block, (parameters,)."""
        of_layer = self.evidence.prior.precisions()
        names = self.evidence.curvature.parameter_names
        sizes = [self.network.get_parameter(name).numel() for name in names]
        return torch.cat(
            [of_layer[n].detach().expand(s) for n, s in zip(names, sizes, strict=True)]
        )

    def jacobian(self) -> Tensor:
        """Ĵ of the new inputs over all parameters with a block, (new, outputs, parameters)."""
        names = self.evidence.curvature.parameter_names
        return averaged_jacobian(self.network, self.new_rows(), SAMPLES, names)

    def written_out(self) -> Tensor:
        """The library's curvature over all parameters with a block, from its factors."""
        batch = self.batch()
        found = self.evidence.curvature.batch(
            batch.rows, batch.copies, self.likelihood, batch.targets, generator=batch.generator
        )
        blocks = [b for f in found.factors().values() for b in f.dense(len(self.inputs))]
        scale = self.evidence.curvature.kind.scale(self.likelihood).detach()
        return scale * torch.block_diag(*blocks)


def drawn(case: NetworkCase) -> tuple[nn.Module, tuple[int, ...]]:
    return case.network(), case.shape


def dense_covariance(jacobian: Tensor, curvature: Tensor, precision: Tensor) -> Tensor:
    """J (H + diag δ)⁻¹ Jᵀ, example by example."""
    posterior = torch.linalg.inv(curvature + torch.diag(precision))
    return torch.stack([each @ posterior @ each.T for each in jacobian])


# --- where everything is exact --------------------------------------------------------------------


@pytest.mark.parametrize("start", [0.0, 0.3])
@pytest.mark.parametrize(("kind", "bias"), [("full-ggn", True), ("kfac-ggn", False)])
def test_bayesian_linear_regression(kind: str, bias: bool, start: float) -> None:
    network = nn.Linear(4, CLASSES, bias=bias).double()
    case = Case(network, POINTS, kind=kind, likelihood=Gaussian(NOISE), start=start)

    def design(inputs: Tensor, noise: Tensor) -> np.ndarray:
        with torch.no_grad():  # the average of a linear network is the network of the average
            mean = case.model.orbit(inputs, noise).unflatten(0, (-1, SAMPLES)).mean(1).numpy()
        return np.hstack([mean, np.ones((len(mean), 1))]) if bias else mean

    x, x_new = design(case.inputs, case.noise), design(case.new, case.new_noise)
    delta = float(case.precision()[0])
    posterior = np.linalg.inv(x.T @ x / NOISE**2 + delta * np.eye(x.shape[1]))
    best = posterior @ x.T @ case.targets.numpy() / NOISE**2
    with torch.no_grad():
        network.weight.copy_(torch.from_numpy(best[:4].T))
        if bias:
            network.bias.copy_(torch.from_numpy(best[4]))
    mean, variance = case.predictive().observations(case.new, case.new_noise)
    expected = np.einsum("np,pq,nq->n", x_new, posterior, x_new) + NOISE**2
    np.testing.assert_allclose(mean, x_new @ best, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(variance, expected[:, None].repeat(CLASSES, 1), rtol=1e-10)


@pytest.mark.parametrize("name", ["categorical", "gaussian"])
def test_full_curvature_is_the_whole_posterior(name: str) -> None:
    likelihood = LIKELIHOODS[name]
    network = NetworkCase(lambda: mlp(4, 3, CLASSES), POINTS).network()
    case = Case(network, POINTS, kind="full", likelihood=likelihood.build())
    curvature = dense_ggn(network, case.batch().rows, SAMPLES, likelihood.curvature)
    expected = dense_covariance(case.jacobian(), curvature, case.precision())
    mean, covariance = case.predictive().outputs(case.new, case.new_noise)
    assert_equal(mean, case.model(case.new, case.new_noise), "mean")
    assert_equal(covariance, expected, "covariance")


# --- every kind, against the same blocks inverted densely -----------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_every_kind(kind: str, likelihood: str) -> None:
    network = NetworkCase(lambda: mlp(4, 3, 3, CLASSES), POINTS).network()
    case = Case(network, POINTS, kind=kind, likelihood=LIKELIHOODS[likelihood].build())
    expected = dense_covariance(case.jacobian(), case.written_out(), case.precision())
    assert_equal(case.predictive().outputs(case.new, case.new_noise)[1], expected, kind)


@pytest.mark.parametrize("name", [*EVERY_RULE, "conv1d all together", "frozen weight"])
def test_every_layout(name: str) -> None:
    case = Case(*drawn(NETWORKS[name]))
    expected = dense_covariance(case.jacobian(), case.written_out(), case.precision())
    assert_equal(case.predictive().outputs(case.new, case.new_noise)[1], expected, name)


def test_scale_invariant_layers_have_the_precision_of_their_shell() -> None:
    network, shape = drawn(NETWORKS["layer norm"])
    case = Case(network, shape, scale_invariant=("0",))
    own = torch.cat([p.detach().flatten() for p in network[0].parameters()])  # type: ignore[index]
    precision = case.precision()
    precision[: len(own)] = len(own) / own.square().sum()
    expected = dense_covariance(case.jacobian(), case.written_out(), precision)
    assert_equal(case.predictive().outputs(case.new, case.new_noise)[1], expected, "covariance")


def test_weights_of_copies() -> None:
    images = (1, 3, 4)
    network = NetworkCase(lambda: nn.Sequential(nn.Flatten(), *mlp(12, 3, CLASSES)), images)
    ranges = UniformRanges(Brightness(), start=0.3, dtype=torch.float64)
    mixture = Mixture(ranges, [flip("horizontal")], default=0.25)
    case = Case(network.network(), images, augmentation=mixture)
    rows = case.new_rows()
    each = rows.shape[0] // NEW // 2
    weights = torch.tensor([0.75 / each] * each + [0.25 / each] * each, dtype=torch.float64)

    jacobian = averaged_jacobian(case.network, rows, weights)
    expected = dense_covariance(jacobian, case.written_out(), case.precision())
    mean, covariance = case.predictive().outputs(case.new, case.new_noise)
    assert_equal(mean, average_over_samples(case.network(rows).detach(), weights), "mean")
    assert_equal(covariance, expected, "covariance")


# --- how it behaves -------------------------------------------------------------------------------


def small(**options: object) -> Case:
    network = NetworkCase(lambda: mlp(4, 3, CLASSES), POINTS).network()
    return Case(network, POINTS, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("start", [0.0, 0.3])
def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch, start: float) -> None:
    predictive, case = small(start=start).predictive(), small(start=start)

    def everything() -> list[Tensor]:
        probabilities = [
            predictive.probabilities(
                case.new, case.new_noise, method, generator=torch.Generator().manual_seed(1)
            )
            for method in METHODS
        ]
        return [*predictive.outputs(case.new, case.new_noise), *probabilities]

    whole = everything()
    calls: list[int] = []
    gradients = module.example_gradients

    def counted(*arguments: object) -> dict[str, Tensor]:
        calls.append(1)
        return gradients(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "example_gradients", counted)
    monkeypatch.setattr(module, "CHUNK", 1)
    for got, expected in zip(everything(), whole, strict=True):
        assert_equal(got, expected, "in chunks")
    assert len(calls) == 3 * NEW  # an example at a time, in all but the plug-in


def test_without_a_symmetry_copies_are_not_made() -> None:
    case = small(start=0.0)
    predictive = case.predictive()
    rows: list[int] = []
    case.network.register_forward_hook(lambda _, given, __: rows.append(len(given[0])))
    many = case.model.noise(NEW, samples=50)
    mean, covariance = predictive.outputs(case.new, many)
    assert max(rows) == NEW
    for got, expected in zip(
        (mean, covariance), predictive.outputs(case.new, case.new_noise), strict=True
    ):
        assert_equal(got, expected, "identity")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_follows_and_the_network_is_left_as_it_was(dtype: torch.dtype) -> None:
    network = NetworkCase(lambda: mlp(4, 3, CLASSES), POINTS).network(dtype).train()
    case = Case(network, POINTS)
    predictive = case.predictive()
    for found in (
        *predictive.outputs(case.new, case.new_noise),
        *(predictive.probabilities(case.new, case.new_noise, method) for method in METHODS),
    ):
        assert found.dtype == dtype and not found.requires_grad
    assert all(each.training for each in network.modules())
    assert all(parameter.grad is None for parameter in network.parameters())
    exact = small().predictive().outputs(case.new.double(), case.new_noise.double())[1]
    assert_equal(
        predictive.outputs(case.new, case.new_noise)[1].double(), exact, "covariance", 1e-4
    )


# --- probabilities --------------------------------------------------------------------------------


def logistic_normal(mean: float, variance: float) -> float:
    """E[1/(1 + e^−z)] for z ~ N(mean, variance), by quadrature."""
    spread = math.sqrt(variance)

    def integrand(t: float) -> float:
        return math.exp(-t * t / 2) / math.sqrt(2 * math.pi) / (1 + math.exp(-mean - spread * t))

    return integrate.quad(integrand, -10, 10)[0]


# logits whose difference has the given mean and variance; common variance has no effect on softmax
TWO_CLASSES = [(0.5, 0.3), (2.0, 4.0), (-1.0, 20.0), (6.0, 10.0)]


def two_logits(mean: float, variance: float, common: float) -> tuple[Tensor, Tensor]:
    """Mean and covariance of (z + c, c)."""
    both = [[variance + common, common], [common, common]]
    return torch.tensor([[mean, 0.0]]).double(), torch.tensor([both]).double()


@pytest.mark.parametrize("common", [0.0, 30.0])
@pytest.mark.parametrize(("mean", "variance"), TWO_CLASSES)
def test_two_classes_against_quadrature(mean: float, variance: float, common: float) -> None:
    exact = logistic_normal(mean, variance)
    logits = two_logits(mean, variance, common)
    closed = probit(*logits)
    mackay = torch.tensor(mean / math.sqrt(1 + math.pi * variance / 8)).double().sigmoid()
    torch.testing.assert_close(closed[0, 0], mackay)
    assert abs(float(closed[0, 0]) - exact) < 0.015
    drawn = monte_carlo(*logits, draws=40_000, generator=torch.Generator().manual_seed(2))
    assert abs(float(drawn[0, 0]) - exact) < 4 * 0.5 / math.sqrt(40_000)


def random_outputs(count: int, classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    mean = 2 * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    root = torch.randn(count, classes, classes, generator=generator, dtype=torch.float64)
    return mean, root @ root.mT / classes


def test_probit_agrees_with_monte_carlo() -> None:
    mean, covariance = random_outputs(100, 4)
    closed = probit(mean, covariance)
    drawn = monte_carlo(mean, covariance, draws=20_000, generator=torch.Generator().manual_seed(5))
    plug_in = mean.softmax(-1)
    for each in (closed, drawn):
        torch.testing.assert_close(each.sum(1), torch.ones(100).double())
    error = float((closed - drawn).abs().mean())
    assert error < 0.02
    assert float((plug_in - drawn).abs().mean()) > 2 * error  # the posterior matters here
    variances = covariance.diagonal(dim1=1, dim2=2)
    without = (mean / (1 + math.pi / 8 * variances).sqrt()).softmax(-1)
    assert float((without - drawn).abs().mean()) > 1.5 * error  # and so do covariances


def test_certain_outputs_give_the_plug_in() -> None:
    mean, covariance = random_outputs(10, 3)
    nothing = torch.zeros_like(covariance)
    common = torch.full_like(covariance, 3.0)  # singular: all outputs move together
    for spread in (nothing, common):
        torch.testing.assert_close(probit(mean, spread), mean.softmax(-1))
        torch.testing.assert_close(monte_carlo(mean, spread, draws=3), mean.softmax(-1))


def test_methods_of_the_model() -> None:
    case = small()
    predictive = case.predictive()
    mean, covariance = predictive.outputs(case.new, case.new_noise)
    got = {
        method: predictive.probabilities(
            case.new, case.new_noise, method, draws=70, generator=torch.Generator().manual_seed(6)
        )
        for method in METHODS
    }
    expected = {
        "probit": probit(mean, covariance),
        "monte-carlo": monte_carlo(
            mean, covariance, draws=70, generator=torch.Generator().manual_seed(6)
        ),
        "plug-in": mean.softmax(-1),
    }
    assert list(expected) == list(METHODS)
    for method, values in expected.items():
        assert_equal(got[method], values, method)
    assert float((got["plug-in"] - got["probit"]).abs().max()) > 0.01


def test_noise_is_drawn_from_the_generator() -> None:
    case = small()
    predictive = case.predictive()

    def seeded() -> torch.Generator:
        return torch.Generator().manual_seed(8)

    noise = case.model.noise(NEW, generator=seeded())
    assert_equal(
        predictive.outputs(case.new, generator=seeded())[1],
        predictive.outputs(case.new, noise)[1],
        "covariance",
    )
    for method in ("probit", "plug-in"):
        got = predictive.probabilities(case.new, None, method, generator=seeded())
        assert_equal(got, predictive.probabilities(case.new, noise, method), method)
    first, second = (predictive.means(case.new) for _ in range(2))
    assert float((first - second).abs().max()) > 0  # fresh each time, unless told otherwise


# --- mistakes -------------------------------------------------------------------------------------


def test_mistakes_are_named() -> None:
    case = small()
    fit, predictive = case.fit(), case.predictive()
    with pytest.raises(CallerError, match="got another network; build the evidence from"):
        Predictive(case.evidence, fit, small().model)
    with pytest.raises(CallerError, match="differs in the parameter '0.bias'"):
        Predictive(case.evidence, small(kind="last-layer").fit(), case.model)
    with pytest.raises(CallerError, match=r"inputs \(5, 4\) and noise \(6, 3, 2\)"):
        predictive.outputs(case.new, case.noise)
    with pytest.raises(CallerError, match="at least one input"):
        predictive.means(case.new[:0], case.noise[:0])
    with pytest.raises(CallerError, match="unknown method 'probits'.*did you mean 'probit'"):
        predictive.probabilities(case.new, case.new_noise, "probits")  # type: ignore[arg-type]
    with pytest.raises(CallerError, match="draws: expected at least 1, got 0"):
        predictive.probabilities(case.new, case.new_noise, "monte-carlo", draws=0)
    with pytest.raises(CallerError, match=r"gaussian likelihood, got categorical; .*probabilities"):
        predictive.observations(case.new, case.new_noise)
    with torch.no_grad():
        case.network[2].weight += 0.01  # type: ignore[index]
    with pytest.raises(CallerError, match="got others in '2.weight'; make the fit again"):
        Predictive(case.evidence, fit, case.model)
    regression = small(likelihood=Gaussian())
    with pytest.raises(CallerError, match=r"categorical likelihood, got gaussian; .*observations"):
        regression.predictive().probabilities(case.new, case.new_noise)


class Widest(nn.Module):
    """A network that knows how many rows it was called on at most."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0
        self.layers = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4, 3))

    def forward(self, images: Tensor) -> Tensor:
        self.rows = max(self.rows, len(images))
        return self.layers(images)


@pytest.mark.parametrize("copies", [0, 2])
@pytest.mark.parametrize(("side", "most"), [(8, 24), (64, 6), (200, 1)])
def test_large_images_are_scored_in_smaller_parts(
    copies: int, side: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 rows of at most 32 × 32 pixels at once, a quarter of 64 × 64; the scores are the same."""
    monkeypatch.setattr(module, "ROWS", 24)
    monkeypatch.setattr(module, "EXAMPLES", 24)
    images = torch.rand(30, 1, side, side, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(30) % 3
    network = Widest()
    model = InvariantModel(network, UniformRanges(affine(("rotation",))), 2)
    given = (model, Categorical(), images, labels)
    found = module.score(*given, copies=copies)
    assert network.rows == max(most, copies)
    monkeypatch.setattr(module, "PIXELS", 10**6)
    expected = module.score(*given, copies=copies)
    assert network.rows > most or side == 8
    assert found.accuracy == expected.accuracy
    assert found.log_likelihood == pytest.approx(expected.log_likelihood, rel=1e-5)
