"""Trials: what they share, what is off in them, and the shares of parts of the data in log Z."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from evidence_problems import dense_blocks, image_problem, log_likelihood_of, precisions_of
from network_cases import assert_equal
from oracles.dense_ggn import average_over_samples
from planar_problems import CONFIG, Turn, by_radius, mirror, mlp, points
from torch import nn

from isotropy.curvature.copies import Copies
from isotropy.curvature.jacobians import JacobianCurvature
from isotropy.curvature.kinds import kind_named
from isotropy.curvature.kronecker import KroneckerSpectrum
from isotropy.evidence import trials as room
from isotropy.evidence.laplace import Batch, LaplaceEvidence, NotFiniteError
from isotropy.evidence.priors import GaussianPrior
from isotropy.evidence.schedule import resolve
from isotropy.evidence.training import Trainer
from isotropy.evidence.trials import BLOCKS, LEAST_SAMPLES, Trial, Trials, trial_config
from isotropy.likelihoods import Categorical, Gaussian
from isotropy.networks.invariant_model import InvariantModel
from isotropy.networks.mixtures import augmentation_over
from isotropy.symmetry.finite_actions import PointPermutation, quarter_turns

EXAMPLES = 40


def network(outputs: int = 2) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return mlp(outputs).double()


def trials_of(actions=None, *, examples: int = EXAMPLES, test=None, tell=None, **changes) -> Trials:
    config = replace(CONFIG, **{"epochs": 6, **changes})
    resolved = resolve(config, examples=examples, on_gpu=False)
    inputs = points(examples)
    given = [Turn(), mirror(0)] if actions is None else actions
    return Trials(network(), given, resolved, (inputs, by_radius(inputs)), test, tell)


# --- one trial ------------------------------------------------------------------------------------


def test_each_trial_is_run_once() -> None:
    told = []
    trials = trials_of(tell=told.append)
    assert trials.known({"turn": 90.0}) is None and trials.count == 0
    first = trials.at({"turn": 90.0})
    assert trials.at({"mirror_x": 0.0, "turn": 90}) is first
    assert trials.known({"turn": 90.0, "mirror_x": 0.0}) is first
    other = trials.at({"turn": 90.0}, 1)
    plain = trials.known({})  # the first, by which the learning rate is chosen
    assert told == [plain, first, other] and trials.count == 3
    assert first.amounts == {"turn": 90.0} and (first.replicate, other.replicate) == (0, 1)
    assert trials.examples == EXAMPLES


def test_trials_are_the_same_again_and_replicates_differ() -> None:
    amounts = {"turn": 60.0, "mirror_x": 0.5}
    first, again = trials_of().at(amounts), trials_of().at(amounts)
    assert first.log_evidence == again.log_evidence and torch.equal(first.blocks, again.blocks)
    assert math.isfinite(first.log_evidence) and first.blocks.shape == (BLOCKS,)
    other, seed = trials_of().at(amounts, 1), trials_of(seed=1).at(amounts)
    assert len({first.log_evidence, other.log_evidence, seed.log_evidence}) == 3


def test_the_network_is_left_as_it_was() -> None:
    trials = trials_of()
    before = copy.deepcopy(trials.network.state_dict())
    trials.at({"turn": 60.0})
    after = trials.network.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_held_out_data_is_only_scored() -> None:
    inputs = points(30, seed=1)
    without, scored = trials_of(), trials_of(test=(inputs, by_radius(inputs)))
    plain, found = without.at({"turn": 90.0}), scored.at({"turn": 90.0})
    assert plain.test_log_likelihood is None
    assert found.test_log_likelihood is not None and -3 < found.test_log_likelihood < 0
    assert found.log_evidence == plain.log_evidence


def test_amounts_that_cannot_be_trained_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self) -> None:
        raise NotFiniteError("the loss is not finite")

    monkeypatch.setattr(room.Trainer, "run_epoch", fail)
    inputs = points(9)
    found = trials_of(examples=9, test=(inputs, by_radius(inputs))).at({"turn": 60.0})
    assert found.log_evidence == -math.inf and found.test_log_likelihood is None
    assert torch.equal(found.blocks, torch.zeros(9))


@pytest.mark.parametrize("examples", [1, 3, 19, 20, 41])
def test_no_part_of_the_data_is_empty(examples: int) -> None:
    sizes: list[int] = []

    class Watched(Trainer):
        def orbit_of(self, batches, purpose, *, graph=0):
            if purpose == "trial blocks":
                sizes.extend(map(len, batches))
            return super().orbit_of(batches, purpose, graph=graph)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "Trainer", Watched)
        patch.setattr(room, "RATES", (1.0,))
        own = {"curvature": "diagonal-ggn", "epochs": 1, "batch_size": None}
        found = trials_of(examples=examples, **own).at({})
    assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1 and sum(sizes) == examples
    assert len(found.blocks) == min(BLOCKS, examples) and bool(found.blocks.isfinite().all())


# --- what is off ----------------------------------------------------------------------------------


def test_at_zero_it_is_the_plain_network() -> None:
    """As a run without augmentation with the same schedule, and whatever there could have been."""
    own = {"curvature": "diagonal-ggn"}
    trials = trials_of(**own)
    found = trials.at({}).log_evidence
    config = replace(trials.config, objective="none", samples=1)
    identity = augmentation_over(Turn(), start={}, dtype=torch.float64)
    model = InvariantModel(copy.deepcopy(trials.network), identity, 1)
    plain = Trainer(model, Categorical(), config, *trials.data)
    for _ in range(config.epochs or 0):
        plain.run_epoch()
    assert found == pytest.approx(plain.evidence_value("trial").nats, rel=1e-12)
    assert trials_of(Turn(), **own).at({}).log_evidence == found
    every = [Turn(), mirror(0), mirror(1)]
    assert trials_of(every, **own).at({"turn": 0.0}).log_evidence == found


OFF = {
    "nothing": ({}, 1),
    "a range": ({"turn": 90.0}, LEAST_SAMPLES),
    "one element": ({"mirror_x": 0.5}, 2),
    "both elements": ({"mirror_x": 0.5, "mirror_y": 0.2}, 4),
    "a range and an element": ({"turn": 20.0, "mirror_y": 0.5}, LEAST_SAMPLES),
}


@pytest.mark.parametrize(("amounts", "copies"), OFF.values(), ids=OFF)
def test_what_is_left_out_is_exactly_off(amounts: dict[str, float], copies: int) -> None:
    trials = trials_of([Turn(), mirror(0), mirror(1)])
    model = trials._trainer(amounts).model
    found = {symmetry.name: symmetry.high for symmetry in model.symmetries()}
    expected = {"turn": 0.0, "mirror_x": 0.0, "mirror_y": 0.0, **amounts}
    assert found == pytest.approx(expected) and min(found.values()) >= 0
    assert model.noise(3).shape[1] == copies
    assert model.orbit(trials.data[0][:3], model.noise(3)).shape[0] == 3 * copies


def test_a_random_element_is_drawn_as_often_as_a_range() -> None:
    trials = trials_of([Turn(), PointPermutation()])
    for amounts, copies in (({"point_permutation": 0.5}, LEAST_SAMPLES), ({}, 1)):
        assert trials._trainer(amounts).model.noise(3).shape[1] == copies


def test_one_element_of_several() -> None:
    trials = trials_of([quarter_turns()])
    augmentation = trials._trainer({"turn_180": 0.4}).model.augmentation
    assert augmentation.elements == 2
    assert_equal(
        augmentation.element_probabilities().detach(),
        torch.tensor([0.6, 0.4], dtype=torch.float64),
        "probabilities",
    )


def test_copies_do_not_follow_small_numbers_of_samples() -> None:
    few, default, many = (trials_of(samples=count) for count in (2, LEAST_SAMPLES, 40))
    assert [t.config.samples for t in (few, default, many)] == [LEAST_SAMPLES, LEAST_SAMPLES, 40]
    amounts = {"turn": 60.0}
    assert few.at(amounts).log_evidence == default.at(amounts).log_evidence
    assert many._trainer(amounts).model.noise(1).shape[1] == 40


@pytest.mark.parametrize("examples", [30, 300, 1000, 5000])
@pytest.mark.parametrize("epochs", [2, 80])
def test_settings_of_a_trial(examples: int, epochs: int) -> None:
    given = replace(CONFIG, epochs=epochs, batch_size=None, bound="parametric", start={"a": 1.0})
    found = trial_config(resolve(given, examples=examples, on_gpu=False), examples)
    steps = math.ceil(examples / (found.batch_size or 0))
    assert found.objective == "fixed" and found.bound == "none" and found.start is None
    assert found.epochs == epochs if epochs == 2 else room.LEAST_EPOCHS <= found.epochs <= epochs
    if epochs == 80:
        wanted = max(room.STEPS, room.LEAST_EPOCHS * steps)
        assert min(wanted, 80 * steps) <= found.epochs * steps < wanted + steps
    hyper = (found.epochs - found.burn_in) / found.update_every
    assert hyper <= room.HYPER_STEPS


def test_the_largest_rate_that_costs_little_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """log Z of trials without a symmetry by rate; NaN-free, and the run's own if all fail."""

    def chosen(values: dict[float, float]) -> float:
        def run(self, amounts, replicate, config=None):
            found = values[round(config.weight_rate / own, 6)]
            return Trial(amounts, replicate, found, torch.zeros(BLOCKS), None)

        trials = trials_of()
        own = trials.config.weight_rate
        with monkeypatch.context() as patch:
            patch.setattr(Trials, "_run", run)
            found = trials.at({}).log_evidence
        factor = round(trials.config.weight_rate / own, 6)
        assert found == values[factor]
        return factor

    first, second, third = room.RATES
    assert chosen({first: -100.0, second: -90.0, third: -95.0}) == third
    assert chosen({first: -100.0, second: -90.0, third: -120.0}) == second
    assert chosen({first: -100.0, second: -300.0, third: -math.inf}) == first
    assert chosen({first: -math.inf, second: -math.inf, third: -math.inf}) == first


@pytest.mark.parametrize("outputs", [2, 3])
@pytest.mark.parametrize("most", [room.MOST_ROWS, 10])
def test_log_z_is_that_of_the_whole_matrix(
    outputs: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the dense Gauss-Newton matrix of all weights; a bound of it where there are many rows."""
    monkeypatch.setattr(room, "MOST_ROWS", most)
    trials = trials_of()
    inputs, labels = trials.data
    trials.network, trials.data = network(outputs), (inputs, labels % outputs)
    kept: list[Trainer] = []
    monkeypatch.setattr(Trainer, "__init__", _keeping(kept))
    found = trials.at({"turn": 60.0})
    trainer = kept[-1]
    (batch,) = trainer.orbit_of([torch.arange(EXAMPLES)], "trial")
    curvature = JacobianCurvature(
        trainer.network, kind_named("full-ggn"), trainer.evidence.prior.names
    )
    dense = LaplaceEvidence(
        trainer.network, trainer.likelihood, trainer.evidence.prior, curvature
    )
    expected = float(dense.value(dense.fit([batch])).detach())
    if most == 10 and outputs > 2:
        assert expected - 20 < found.log_evidence < expected
    else:
        assert found.log_evidence == pytest.approx(expected, rel=1e-8)


def _keeping(kept: list[Trainer]):
    make = Trainer.__init__

    def remember(self, *arguments, **options) -> None:
        make(self, *arguments, **options)
        kept.append(self)

    return remember


def test_a_curvature_of_ones_own_is_kept() -> None:
    trials = trials_of(curvature="diagonal-ggn")
    assert trials._splitting(trials._trainer({})) is None
    assert trials_of()._splitting(trials._trainer({})) == "joint"


def test_gradients_that_are_too_many_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = trials_of()
    trials.network = nn.Sequential(*network(), nn.Tanh(), nn.Linear(2, 2).double())
    trainer = trials._trainer({})
    assert trials._splitting(trainer) == "joint"
    monkeypatch.setattr(room, "MOST_ENTRIES", 100)
    assert trials._splitting(trainer) is None


# --- shares ---------------------------------------------------------------------------------------


def test_batches_by_number_are_those_of_a_pass() -> None:
    """The same examples in the same order draw the same noise."""
    trainer = trials_of()._trainer({"turn": 60.0, "mirror_x": 0.5})
    size = trainer.config.curvature_batch
    parts = torch.arange(EXAMPLES).split(size)
    whole = list(trainer.orbit_batches("some"))
    named = list(trainer.orbit_of(parts, "some"))
    assert len(whole) == len(named) == 2
    for one, other in zip(whole, named, strict=True):
        assert torch.equal(one.rows, other.rows) and torch.equal(one.targets, other.targets)
        assert torch.equal(one.copies.weights, other.copies.weights)
        assert not one.rows.requires_grad and not other.rows.requires_grad
    changed = list(trainer.orbit_of(parts, "other"))
    assert not torch.equal(changed[0].rows, whole[0].rows)
    for parameter in trainer.model.augmentation.parameters():
        parameter.requires_grad_(True)
    assert [b.has_graph for b in trainer.orbit_of(parts, "some", graph=1)] == [True, False]


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
@pytest.mark.parametrize("name", ["linear", "mlp", "cnn", "fixup block"])
def test_shares_add_up(name: str, likelihood: str) -> None:
    """Σ_b c_b = log p − ½ Σ m γ: every factor grows by ε, a Kronecker block has m = 2 of them.

    γ = p − δ tr (H + δ)⁻¹ from dense blocks.
    """
    problem = image_problem(name, likelihood, ("rotation",))
    evidence = problem.evidence
    fit = evidence.fit(problem.batches())
    shares = evidence.shares(fit, problem.batches(1, 2, 1))
    assert shares.shape == (3,) and shares.dtype == torch.float64
    rows = problem.model.orbit(problem.inputs, problem.noise)
    outputs = average_over_samples(problem.model.network.eval()(rows), problem.noise.shape[1])
    expected = log_likelihood_of(problem, outputs)
    precisions = precisions_of(problem)
    for block_name, block in dense_blocks(problem, rows).items():
        precision = precisions[block_name]
        identity = torch.eye(block.shape[-1], dtype=block.dtype)
        inverse = torch.linalg.inv(block + precision * identity)
        traces = inverse.diagonal(dim1=-2, dim2=-1).sum()
        known = block[..., 0].numel() - precision * traces
        is_product = isinstance(fit.spectra[block_name], KroneckerSpectrum)
        expected = expected - (2 if is_product else 1) * known / 2
    assert_equal(shares.sum(), expected.detach(), "sum of shares", 1e-8)
    one, two, three, four = evidence.shares(fit, problem.batches(1, 1, 1, 1))
    assert_equal(shares, torch.stack([one, two + three, four]), "by batch", 1e-9)


@pytest.mark.parametrize("copies", [1, 3])
def test_shares_are_derivatives_by_the_weights_of_examples(copies: int) -> None:
    """A linear layer with noise: log Z with weighted sums written out, by central differences."""
    count, inputs, outputs, noise, precision = 6, 3, 2, 0.7, 0.5
    random = np.random.default_rng(0)
    rows = random.standard_normal((count, copies, inputs))
    targets = random.standard_normal((count, outputs))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = nn.Linear(inputs, outputs).double()
    likelihood = Gaussian(noise)
    prior = GaussianPrior(layer, ("weight", "bias"), "tensor", precision)
    evidence = LaplaceEvidence(layer, likelihood, prior)
    own = Copies(copies)
    batches = [
        Batch(torch.tensor(rows[n]), torch.tensor(targets[n : n + 1]), own) for n in range(count)
    ]
    whole = Batch(torch.tensor(rows).flatten(0, 1), torch.tensor(targets), own)
    fit = evidence.fit([whole])
    means = rows.mean(1)
    weight, bias = (p.detach().numpy() for p in (layer.weight, layer.bias))
    residuals = targets - means @ weight.T - bias

    def log_z(weights: np.ndarray) -> float:
        """Both factors are weighted, the 1/N of their product is not."""
        log_p = -(residuals**2) / (2 * noise**2) - np.log(noise) - np.log(2 * np.pi) / 2
        of_inputs = np.einsum("n,ni,nj->ij", weights, means, means) / count
        of_outputs = weights.sum() * np.eye(outputs)
        total = (weights[:, None] * log_p).sum()
        for block in (np.kron(of_outputs, of_inputs), of_outputs):
            total -= np.linalg.slogdet(block / noise**2 + precision * np.eye(len(block)))[1] / 2
            total += len(block) * np.log(precision) / 2
        return total - precision * ((weight**2).sum() + (bias**2).sum()) / 2

    assert float(evidence.value(fit).detach()) == pytest.approx(log_z(np.ones(count)), rel=1e-10)
    step = 1e-5
    slopes = [
        (log_z(np.ones(count) + step * e) - log_z(np.ones(count) - step * e)) / (2 * step)
        for e in np.eye(count)
    ]
    np.testing.assert_allclose(evidence.shares(fit, batches).numpy(), slopes, rtol=1e-7)
