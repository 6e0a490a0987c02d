"""One evidence pass for both fit and gradient, with what the hyper step before left behind."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import isotropy
from isotropy.checkpoint import load_trainer, save_trainer
from isotropy.curvature.choice import make_curvature
from isotropy.curvature.copies import Copies
from isotropy.curvature.kinds import kind_named
from isotropy.evidence.fit_state import fit_from_state, fit_state
from isotropy.evidence.laplace import Batch, LaplaceEvidence, LaplaceFit
from isotropy.evidence.priors import GaussianPrior
from isotropy.evidence.schedule import LearnConfig
from isotropy.evidence.training import Trainer
from isotropy.likelihoods import Categorical
from isotropy.networks.augmentations import UniformRanges
from isotropy.networks.invariant_model import InvariantModel
from isotropy.symmetry.image_actions import affine
from isotropy.workflows.prepared_run import prepare_run
from isotropy.workflows.preparing import read_split

SIZE, EXAMPLES, SAMPLES = 7, 12, 3


class Problem:
    """A small network, its evidence, and batches that can be differentiated by the ranges."""

    def __init__(self, curvature: str = "kfac-ggn") -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.network = nn.Sequential(
                nn.Flatten(), nn.Linear(SIZE**2, 6), nn.Tanh(), nn.Linear(6, 3)
            ).double()
            self.images = torch.rand(EXAMPLES, 1, SIZE, SIZE, dtype=torch.float64)
            self.noise = 2 * torch.rand(EXAMPLES, SAMPLES, 6, dtype=torch.float64) - 1
        self.labels = torch.arange(EXAMPLES) % 3
        ranges = UniformRanges(affine(), start=0.3, dtype=torch.float64)
        self.model = InvariantModel(self.network, ranges, SAMPLES)
        self.ranges = ranges.learnable()
        form = make_curvature(self.network, kind_named(curvature), "refuse", self.images[:1])
        prior = GaussianPrior(self.network, form.parameter_names)
        self.evidence = LaplaceEvidence(self.network, Categorical(), prior, form)

    def batches(self, graph: bool = True, first: int = 0, last: int = EXAMPLES) -> list[Batch]:
        found = []
        for start in range(first, last, 4):
            part = slice(start, start + 4)
            with torch.set_grad_enabled(graph):
                rows = self.model.orbit(self.images[part], self.noise[part])
            found.append(Batch(rows, self.labels[part], Copies(SAMPLES)))
        return found

    def move(self) -> None:
        """Weights a little different, as after an epoch."""
        with torch.no_grad():
            for parameter in self.network.parameters():
                numbers = torch.arange(parameter.numel()).reshape_as(parameter)
                parameter.add_(1e-3 * numbers.sin())


CURVATURES = ["kfac-ggn", "diagonal-ggn", "full-ggn"]


@pytest.mark.parametrize("curvature", CURVATURES)
def test_one_pass_with_its_own_fit_is_two_passes(curvature: str) -> None:
    problem = Problem(curvature)
    fit = problem.evidence.fit(problem.batches(graph=False))
    expected = problem.evidence.gradient(fit, problem.batches(), problem.ranges)
    again, gradient = problem.evidence.fit_with_gradient(fit, problem.batches(), problem.ranges)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(problem.evidence.value(again), problem.evidence.value(fit))


def test_only_batches_with_a_graph_count_for_the_gradient() -> None:
    problem = Problem()
    fit = problem.evidence.fit(problem.batches(graph=False))
    mixed = problem.batches(last=4) + problem.batches(graph=False, first=4)
    again, gradient = problem.evidence.fit_with_gradient(fit, mixed, problem.ranges)
    expected = problem.evidence.gradient(fit, problem.batches(last=4), problem.ranges)
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(problem.evidence.value(again), problem.evidence.value(fit))
    assert again.count == EXAMPLES


def test_a_gradient_without_any_graph_is_refused() -> None:
    problem = Problem()
    fit = problem.evidence.fit(problem.batches(graph=False))
    with pytest.raises(isotropy.CallerError, match="at least one batch"):
        problem.evidence.fit_with_gradient(fit, problem.batches(graph=False), problem.ranges)


def test_the_previous_fit_makes_a_small_difference() -> None:
    problem = Problem()
    previous = problem.evidence.fit(problem.batches(graph=False))
    problem.move()
    exact = problem.evidence.gradient(
        problem.evidence.fit(problem.batches(graph=False)), problem.batches(), problem.ranges
    )[0]
    lagged = problem.evidence.fit_with_gradient(previous, problem.batches(), problem.ranges)[1][0]
    assert 0 < (lagged - exact).norm() < 0.02 * exact.norm()


@pytest.mark.parametrize("curvature", CURVATURES)
def test_an_earlier_basis_bounds_the_evidence_closely(curvature: str) -> None:
    problem = Problem(curvature)
    basis = problem.evidence.fit(problem.batches(graph=False))
    same = problem.evidence.fit(problem.batches(graph=False), basis)
    torch.testing.assert_close(problem.evidence.value(same), problem.evidence.value(basis))
    problem.move()
    batches = problem.batches(graph=False)
    with torch.no_grad():
        exact = float(problem.evidence.value(problem.evidence.fit(batches)))
        kept = float(problem.evidence.value(problem.evidence.fit(batches, basis)))
    assert exact - 1e-3 * abs(exact) < kept <= exact + 1e-9 * abs(exact)


@pytest.mark.parametrize("curvature", CURVATURES)
def test_a_fit_survives_being_written_down(curvature: str) -> None:
    fit = Problem(curvature).evidence.fit(Problem(curvature).batches(graph=False))
    tensors, record = fit_state(fit)
    again = fit_from_state(tensors, json.loads(json.dumps(record)), torch.device("cpu"))
    assert _flat(again).keys() == _flat(fit).keys()
    for name, tensor in _flat(fit).items():
        assert torch.equal(_flat(again)[name], tensor), name
    assert again.count == fit.count and again.sizes == fit.sizes


def _flat(fit: LaplaceFit) -> dict[str, Tensor]:
    return fit_state(fit)[0]


# --- in a run -----------------------------------------------------------------------------------

CONFIG = LearnConfig(
    epochs=12, samples=3, burn_in=1, batch_size=20, test_samples=4, reuse=2, search=False
)


def bars(count: int = 40) -> tuple[Tensor, Tensor]:
    """A bar through the middle, upright or lying, in noise."""
    generator = torch.Generator().manual_seed(0)
    images = 0.2 * torch.rand(count, 1, SIZE, SIZE, generator=generator)
    labels = torch.arange(count) % 2
    images[labels == 0, :, :, 2:5] += 1
    images[labels == 1, :, 2:5, :] += 1
    return images, labels


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, 8), nn.Tanh(), nn.Linear(8, 2))


def test_a_run_that_reuses_learns_the_same_ranges() -> None:
    found = {
        reuse: isotropy.learn(
            network(), bars(), config=dataclasses.replace(CONFIG, reuse=reuse, gradient_batches=0)
        )
        for reuse in (0, 1, 3)
    }
    plain = [symmetry.high for symmetry in found[0].symmetries]
    for reuse in (1, 3):
        widths = [symmetry.high for symmetry in found[reuse].symmetries]
        assert widths != plain  # another estimate …
        torch.testing.assert_close(widths, plain, rtol=0.15, atol=1.5)  # … of the same
        assert found[reuse].log_evidence == pytest.approx(found[0].log_evidence, rel=0.05)


@pytest.mark.parametrize("gradient_batches", [0, 1])
def test_a_resumed_run_ends_like_an_unbroken_one(tmp_path: Path, gradient_batches: int) -> None:
    config = dataclasses.replace(CONFIG, gradient_batches=gradient_batches)
    whole = isotropy.learn(network(), bars(), actions=affine(), config=config)
    stopped = isotropy.learn(network(), bars(), actions=affine(), config=config).trainer
    fresh = _fresh_trainer(config)
    for _ in range(6):
        fresh.run_epoch()
    assert fresh.previous_fit is not None
    history = [{"epoch": epoch} for epoch in range(1, 7)]
    save_trainer(tmp_path, fresh, history)
    stopped.previous_fit = None
    load_trainer(tmp_path, stopped)
    while stopped.epoch < 12:
        stopped.run_epoch()
    for name, tensor in whole.trainer.model.state_dict().items():
        assert torch.equal(stopped.model.state_dict()[name], tensor), name


def _fresh_trainer(config: LearnConfig) -> Trainer:
    split = read_split(bars(), None, config.seed)
    return prepare_run(network(), split, config, actions=affine()).trainer
