"""Likelihoods: value, curvature and its root against autograd; noise; sentences."""

from __future__ import annotations

import math

import pytest
import torch
from network_cases import assert_equal, relative_difference
from oracles.dense_ggn import softmax_curvature
from torch import Tensor
from torch.func import hessian, vmap

from isotropy.checks import CallerError
from isotropy.likelihoods import LIKELIHOODS, Categorical, Gaussian, Likelihood, likelihood_named

CLASSES = 4


def outputs(scale: float = 1.0, count: int = 5, classes: int = CLASSES) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return scale * torch.randn(count, classes, generator=generator, dtype=torch.float64)


CASES: dict[str, tuple[Likelihood, Tensor]] = {
    "categorical": (Categorical(), torch.tensor([0, 3, 1, 1, 2])),
    "gaussian": (Gaussian(0.6), outputs(0.5).flip(0)),
}
for _likelihood, _targets in CASES.values():
    _likelihood.check_targets(_targets, outputs())

EXTREME = {
    "even": torch.zeros(2, CLASSES, dtype=torch.float64),
    "plain": outputs(),
    "sure": outputs(30.0),
    "very sure": torch.tensor([[800.0, 0, 0, -800], [0, 0, -1e4, 1e4]], dtype=torch.float64),
    "two classes": outputs(3.0, classes=2),
    "shifted": outputs() + 1e3,
}


def test_every_likelihood_is_tested():
    assert set(CASES) == set(LIKELIHOODS)


def curvature(likelihood: Likelihood, logits: Tensor) -> Tensor:
    root = likelihood.curvature_root(logits)
    assert root.shape[1:] == logits.shape
    scale = likelihood.curvature_scale().detach()
    return scale * torch.einsum("dnc,dne->nce", root, root)


def log_probability(likelihood: Likelihood, logits: Tensor, targets: Tensor) -> Tensor:
    return likelihood.log_likelihood(likelihood.statistic(logits, targets), len(logits))


@pytest.mark.parametrize("name", CASES)
def test_log_likelihood_is_that_of_torch_distributions(name: str):
    likelihood, targets = CASES[name]
    if name == "categorical":
        law = torch.distributions.Categorical(logits=outputs())
    else:
        law = torch.distributions.Normal(outputs(), 0.6)
    expected = law.log_prob(targets).sum()
    found = log_probability(likelihood, outputs(), targets).detach()
    assert_equal(found, expected, name)
    assert_equal(likelihood.training_loss(outputs(), targets).detach(), -found / 5, "the mean")
    whole, first, rest = (
        likelihood.statistic(outputs()[part], targets[part])
        for part in (slice(None), slice(2), slice(2, None))
    )
    assert_equal(first + rest, whole, "statistics add up")


@pytest.mark.parametrize("name", CASES)
def test_curvature_is_the_hessian_of_the_loss(name: str):
    """Λ = −∂² log p / ∂f², example by example, by autograd of the library's own log p."""
    likelihood, targets = CASES[name]

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return -log_probability(likelihood, logits[None], target[None])

    expected = vmap(hessian(loss))(outputs(), targets).detach()
    assert_equal(curvature(likelihood, outputs()), expected, name)


@pytest.mark.parametrize("extreme", EXTREME)
def test_root_reproduces_the_softmax_curvature(extreme: str):
    logits = EXTREME[extreme]
    found = curvature(Categorical(), logits)
    assert bool(torch.isfinite(found).all())
    torch.testing.assert_close(found, softmax_curvature(logits), rtol=1e-9, atol=1e-13)


def test_the_comparison_notices_a_wrong_root():
    """Without √p, and with one direction missing, Λ is not reproduced."""
    p = outputs().softmax(-1)
    wrong = p[None] - torch.eye(CLASSES, dtype=torch.float64)[:, None]
    right = Categorical().curvature_root(outputs())
    for root in (wrong, right[1:], right * 1.01):
        with pytest.raises(AssertionError, match="relative difference"):
            assert_equal(
                torch.einsum("dnc,dne->nce", root, root), softmax_curvature(outputs()), "Λ"
            )


@pytest.mark.parametrize("extreme", EXTREME)
def test_gradient_of_the_root(extreme: str):
    """Right, and finite also where probabilities underflow."""
    for dtype in (torch.float32, torch.float64):
        logits = EXTREME[extreme].to(dtype).requires_grad_()
        root = Categorical().curvature_root(logits)
        (gradient,) = torch.autograd.grad(root.sum(), logits)
        assert bool(torch.isfinite(root).all()) and bool(torch.isfinite(gradient).all())
    assert torch.autograd.gradcheck(Categorical().curvature_root, [logits])


# --- one direction instead of all ----------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_empirical_root_is_the_gradient_of_the_loss(name: str):
    likelihood, targets = CASES[name]
    logits = outputs().requires_grad_()
    loss = -log_probability(likelihood, logits, targets)
    (gradient,) = torch.autograd.grad(loss, logits)
    root = likelihood.empirical_root(outputs(), targets)
    assert root.shape == (1, 5, CLASSES)
    expected = likelihood.empirical_scale().detach().sqrt() * root[0]
    assert_equal(expected, gradient, name)


@pytest.mark.parametrize("name", CASES)
def test_empirical_root_is_differentiable(name: str):
    likelihood, targets = CASES[name]
    logits = outputs().requires_grad_()
    assert torch.autograd.gradcheck(lambda f: likelihood.empirical_root(f, targets), [logits])


@pytest.mark.parametrize("name", CASES)
def test_sampled_root_has_the_mean_of_the_curvature(name: str):
    """Within five standard errors, from many draws for one example."""
    likelihood, _ = CASES[name]
    draws = 20_000
    root = likelihood.sampled_root(
        outputs(2.0)[:1].expand(draws, -1), torch.Generator().manual_seed(0)
    )
    assert root.shape == (1, draws, CLASSES)
    outer = likelihood.curvature_scale().detach() * root[0, :, :, None] * root[0, :, None, :]
    error = outer.std(0) / draws**0.5
    exact = curvature(likelihood, outputs(2.0)[:1])[0]
    assert bool(((outer.mean(0) - exact).abs() <= 5 * error).all())
    assert not bool(((outer.mean(0) - 1.2 * exact).abs() <= 5 * error).all())


@pytest.mark.parametrize("name", CASES)
def test_sampled_root_follows_its_generator(name: str):
    likelihood, _ = CASES[name]
    logits = outputs(count=50)
    first, again, other = (
        likelihood.sampled_root(logits, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert likelihood.sampled_root(logits, None).shape == (1, 50, CLASSES)


@pytest.mark.parametrize("extreme", ["even", "plain", "two classes", "shifted"])
def test_the_gradient_of_a_sampled_root_is_unbiased(extreme: str, monkeypatch: pytest.MonkeyPatch):
    """Σ_c p_c ∂(r_c r_cᵀ) = ∂Λ: every class in turn is what was drawn."""
    logits = EXTREME[extreme].clone().requires_grad_()
    count, classes = logits.shape
    generator = torch.Generator().manual_seed(1)
    pattern = torch.randn(count, classes, classes, generator=generator, dtype=torch.float64)
    value, slope = torch.zeros_like(softmax_curvature(logits)), torch.zeros_like(logits)
    for drawn in range(classes):
        monkeypatch.setattr(
            torch, "multinomial", lambda p, n, drawn=drawn, **_: torch.full((len(p), n), drawn)
        )
        root = Categorical().sampled_root(logits, None)[0]
        outer = root[:, :, None] * root[:, None, :]
        probability = logits.detach().softmax(1)[:, drawn]
        value = value + probability[:, None, None] * outer.detach()
        weighted = (probability[:, None, None] * pattern * outer).sum()
        slope = slope + torch.autograd.grad(weighted, logits)[0]
    exact = softmax_curvature(logits)
    assert_equal(value, exact.detach(), "Λ")
    (expected,) = torch.autograd.grad((pattern * exact).sum(), logits)
    assert_equal(slope, expected, "∂Λ", 1e-9)


def test_drawn_labels_alone_would_lose_a_part_of_the_gradient():
    """With p − e_c for drawn labels, and nothing else, the mean of the gradients is another one."""
    logits = outputs().requires_grad_()
    pattern = torch.ones(CLASSES, CLASSES, dtype=torch.float64).triu()
    slope = torch.zeros_like(logits)
    for drawn in range(CLASSES):
        root = Categorical().empirical_root(logits, torch.full((5,), drawn))[0]
        probability = logits.detach().softmax(1)[:, drawn]
        outer = probability[:, None, None] * root[:, :, None] * root[:, None, :]
        slope = slope + torch.autograd.grad((pattern * outer).sum(), logits)[0]
    (exact,) = torch.autograd.grad((pattern * softmax_curvature(logits)).sum(), logits)
    assert relative_difference(slope, exact) > 0.1


# --- noise ---------------------------------------------------------------------------------------


def test_the_best_noise_is_the_root_mean_square_error():
    targets = outputs(0.7).flip(1)
    likelihood = Gaussian(3.0)
    likelihood.check_targets(targets, outputs())
    optimiser = torch.optim.LBFGS(
        likelihood.parameters(), max_iter=100, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )
    statistic = likelihood.statistic(outputs(), targets)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = -likelihood.log_likelihood(statistic, 5)
        loss.backward()
        return loss

    optimiser.step(closure)
    expected = float((outputs() - targets).square().mean().sqrt())
    assert math.isclose(likelihood.noise, expected, rel_tol=1e-6)


def test_noise_is_a_positive_number_in_double_precision():
    likelihood = Gaussian(0.25)
    assert math.isclose(likelihood.noise, 0.25)
    assert likelihood.log_noise.dtype == torch.float64
    assert math.isclose(float(likelihood.curvature_scale().detach()), 16.0)
    assert torch.autograd.gradcheck(lambda _: likelihood.curvature_scale(), [likelihood.log_noise])


def test_noise_is_a_constant_of_the_training_loss():
    likelihood, targets = Gaussian(0.6), outputs(0.5)
    means = outputs().requires_grad_()
    likelihood.training_loss(means, targets).backward()
    assert means.grad is not None and likelihood.log_noise.grad is None


def test_categorical_has_nothing_to_learn():
    assert list(Categorical().parameters()) == []
    assert float(Categorical().curvature_scale()) == 1.0


# --- predictions that are the same for all --------------------------------------------------------

CONSTANT: dict[str, list[Tensor]] = {
    "categorical": [
        torch.tensor([0, 3, 1, 1, 2]), torch.tensor([0, 0, 2, 2, 2]), torch.tensor([1, 1, 1])],
    "gaussian": [outputs(0.5), 7 + 3 * outputs(count=40, classes=1), outputs().float()],
}  # fmt: skip


@pytest.mark.parametrize(("name", "case"), [(n, k) for n in CASES for k in range(3)])
def test_constant_log_likelihood_is_the_largest_of_any_constant(name: str, case: int):
    """By minimising the library's own loss over one prediction, and over the noise."""
    targets = CONSTANT[name][case]
    likelihood = likelihood_named(name)
    width = CLASSES if name == "categorical" else targets.shape[1]
    prediction = torch.zeros(1, width, dtype=torch.float64, requires_grad=True)
    real = targets.double() if targets.is_floating_point() else targets
    likelihood.check_targets(real, prediction)
    chosen = [prediction, *likelihood.parameters()]
    optimiser = torch.optim.LBFGS(
        chosen, max_iter=500, tolerance_change=0.0, tolerance_grad=1e-10,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = -log_probability(likelihood, prediction.expand(len(real), -1), real)
        loss.backward()
        return loss

    optimiser.step(closure)
    best = -float(closure().detach())
    found = likelihood_named(name).constant_log_likelihood(targets)
    # A class that never occurs has its logit at minus infinity, which is not quite reached.
    assert found == pytest.approx(best, rel=1e-6, abs=1e-4)
    assert found >= best - 1e-6
    random = torch.Generator().manual_seed(0)
    for _ in range(20):
        shifted = prediction.detach() + torch.randn(1, width, generator=random)
        value = log_probability(likelihood, shifted.expand(len(real), -1), real)
        assert float(value.detach()) < found


def test_constant_log_likelihood_of_frequencies():
    """Three of four: 3 log ¾ + log ¼; one class alone is certain."""
    found = Categorical().constant_log_likelihood(torch.tensor([1, 0, 1, 1]))
    assert found == pytest.approx(3 * math.log(0.75) + math.log(0.25))
    assert Categorical().constant_log_likelihood(torch.tensor([2, 2])) == 0.0


def test_constant_log_likelihood_does_not_follow_the_noise_at_hand():
    targets = outputs(0.5)
    assert Gaussian(0.1).constant_log_likelihood(targets) == Gaussian(9.0).constant_log_likelihood(
        targets
    )


# --- sentences -----------------------------------------------------------------------------------


REFUSED: dict[str, tuple[str, Tensor, str]] = {
    "real labels": (
        "categorical", torch.zeros(5),
        r"whole-number class labels \(examples,\), got torch.float32 \(5\); for real-valued "
        "targets use the gaussian likelihood"),
    "one-hot labels": (
        "categorical", torch.zeros(5, 4, dtype=torch.int64), r"got torch.int64 \(5, 4\)"),
    "label too large": (
        "categorical", torch.tensor([0, 4]),
        "labels: expected 0 to 3 for a network with 4 outputs, got 0 to 4; give the network 5"),
    "label below zero": (
        "categorical", torch.tensor([-1, 2]),
        "expected 0 to 3 .* got -1 to 2; (?!.*give the network).*renumber"),
    "targets with one axis": (
        "gaussian", torch.zeros(5), r"\(examples, 4\) like the network's outputs, got \(5\)"),
    "too few targets": (
        "gaussian", torch.zeros(5, 3), r"expected \(examples, 4\) .* got \(5, 3\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_targets_that_do_not_fit(name: str):
    kind, targets, sentence = REFUSED[name]
    with pytest.raises(CallerError, match=sentence):
        likelihood_named(kind).check_targets(targets, outputs())


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_by_name(name: str):
    first, second = likelihood_named(name), likelihood_named(name)
    assert type(first) is LIKELIHOODS[name] and first.name == name
    assert first is not second


def test_unknown_name():
    with pytest.raises(CallerError, match="unknown likelihood 'gausian'.*did you mean 'gaussian'"):
        likelihood_named("gausian")
