"""The baselines: one step of each by hand, resuming, and how they are scored."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import torch
from numerics import uniform
from oracles.augerino_oracle import augerino_transform
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import CallerError
from isotropy.cli.shared.inputs import settings_from
from isotropy.curvature.kinds import Copies
from isotropy.evidence.objectives import COMBINATIONS, OBJECTIVES, RECIPES
from isotropy.evidence.predictive import combined
from isotropy.evidence.settings import LearnConfig, stream
from isotropy.evidence.training import EpochRecord, Trainer
from isotropy.evidence.weight_steps import augmentation_for, average_of_losses, reward_for_width
from isotropy.likelihoods import Categorical, Gaussian
from isotropy.networks.averaging.augmentations import UniformRanges
from isotropy.networks.averaging.baselines import AUGERINO_GENERATORS, RandomCopies, SoftplusRanges
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.records import load_trainer, save_trainer
from isotropy.symmetry.actions.finite import flip
from isotropy.symmetry.actions.images import affine

BASELINES = ("averaged-losses", "augerino-original", "trivial-augment")
SIZE, COUNT, CLASSES = 8, 24, 3
SIGNS = torch.tensor([-1.0, -1.0, 1.0, -1.0, -1.0, -1.0], dtype=torch.float64)


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layers = [nn.Flatten(), nn.Linear(SIZE**2, 6), nn.Tanh(), nn.Linear(6, CLASSES)]
        return nn.Sequential(*layers).double()


def trainer(objective: str, **settings: object) -> Trainer:
    ranges = {"rotation": 40.0, "scale": 0.2} if objective == "averaged-losses" else None
    chosen = {"epochs": 4, "batch_size": 10, "test_samples": 5, **settings}
    config = LearnConfig(objective=objective, ranges=ranges, **chosen).resolved(  # type: ignore[arg-type]
        examples=COUNT, on_gpu=False
    )
    augmentation = augmentation_for(config, affine(AUGERINO_GENERATORS), dtype=torch.float64)
    model = InvariantModel(network(), augmentation, config.samples)
    labels = torch.arange(COUNT) % CLASSES
    return Trainer(model, Categorical(), config, uniform(COUNT, 1, SIZE, SIZE), labels)


@pytest.fixture(params=BASELINES)
def objective(request: pytest.FixtureRequest) -> str:
    if request.param == "trivial-augment":
        request.getfixturevalue("torchvision_imports")
    return request.param


def numbers(record: EpochRecord) -> dict[str, object]:
    return {key: value for key, value in record.as_dict().items() if key != "seconds"}


# --- one step by hand -----------------------------------------------------------------------------


def first_batch(made: Trainer) -> tuple[Tensor, Tensor, Tensor]:
    """Images, labels and noise of the first step, when a batch is everything."""
    order = torch.randperm(COUNT, generator=stream(made.config.seed, "order", 1))
    noise = made.model.noise(COUNT, generator=stream(made.config.seed, "noise", 1))
    return made.inputs[order], made.targets[order], noise


def hand_step(rows: Tensor, labels: Tensor, copies: int, decay: float) -> tuple[float, nn.Module]:
    """One Adam step on the plain cross entropy of every copy; the loss before it."""
    by_hand = network()
    optimiser = torch.optim.Adam(by_hand.parameters(), lr=5e-3, weight_decay=decay)
    losses = functional.cross_entropy(
        by_hand(rows), labels.repeat_interleave(copies), reduction="none"
    )
    loss = losses.reshape(COUNT, copies).mean(1).mean()
    loss.backward()
    optimiser.step()
    return float(loss.detach()), by_hand


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-9, atol=1e-9)


def test_a_step_on_averaged_losses():
    made = trainer("averaged-losses", epochs=1, batch_size=COUNT, samples=3)
    images, labels, noise = first_batch(made)
    # In Augerino's coordinates ±40° and ±0.2 are weights of these sizes.
    sizes = torch.tensor([0, 0, np.radians(40.0), 0.2, 0, 0], dtype=torch.float64)
    weights = (SIGNS * sizes * noise).flatten(0, 1)
    rows = augerino_transform(images.repeat_interleave(3, 0), weights)
    loss, by_hand = hand_step(rows, labels, 3, decay=1e-4)
    record = made.run_epoch()
    assert record.train_loss == pytest.approx(loss, rel=1e-9)
    assert_same_weights(made.network, by_hand)
    averaged = functional.cross_entropy(network()(rows).reshape(COUNT, 3, -1).mean(1), labels)
    assert float(averaged) < loss * (1 - 1e-6)  # the loss of the average is another one


def test_a_step_of_the_original_augerino():
    made = trainer("augerino-original", epochs=1, batch_size=COUNT, augerino_weight=0.3)
    assert made.model.samples == 1
    images, labels, noise = first_batch(made)
    raw = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    widths = functional.softplus(raw)
    rows = augerino_transform(images, SIGNS * widths.detach() * noise[:, 0] / 2)
    loss, by_hand = hand_step(rows, labels, 1, decay=1e-4)
    record = made.run_epoch()
    assert record.train_loss == pytest.approx(loss, rel=1e-9)
    assert_same_weights(made.network, by_hand)

    # The slope by the raw widths, by central differences of the whole objective.
    def whole(values: Tensor) -> float:
        at = functional.softplus(values)
        moved = augerino_transform(images, SIGNS * at * noise[:, 0] / 2)
        return float(functional.cross_entropy(network()(moved), labels) - 0.3 * at.norm())

    step = 1e-5 * torch.eye(6, dtype=torch.float64)
    start = raw.detach()
    slopes = [(whole(start + each) - whole(start - each)) / 2e-5 for each in step]
    with torch.no_grad():
        expected = start.clone()
    expected.requires_grad_()
    expected.grad = torch.tensor(slopes, dtype=torch.float64)
    rate = made.config.range_rate
    torch.optim.Adam([expected], lr=rate, betas=(0.9, 0.9)).step()
    (found,) = made.ranges
    torch.testing.assert_close(found.detach(), expected.detach(), rtol=0, atol=1e-5 * rate)
    (gradient,) = (parameter.grad for parameter in made.ranges)
    np.testing.assert_allclose(gradient.numpy(), slopes, rtol=1e-4, atol=1e-6)


# --- a run ----------------------------------------------------------------------------------------


def test_baselines_have_no_evidence_and_no_hyper_step(objective: str):
    made = trainer(objective, burn_in=0)
    records = [made.run_epoch() for _ in range(4)]
    assert made.final_evidence() is None
    for record in records:
        assert record.log_evidence is None and record.log_likelihood is None
        assert record.prior_precision["all"] == pytest.approx(1.0)
    moved = records[0].ranges != records[-1].ranges
    assert moved == (objective == "augerino-original")


def test_a_stopped_run_ends_as_an_unbroken_one(objective: str, tmp_path: Path):
    test = (uniform(9, 1, SIZE, SIZE, seed=3), torch.arange(9) % CLASSES)
    unbroken = trainer(objective)
    expected = [numbers(unbroken.run_epoch(test)) for _ in range(4)]
    stopped = trainer(objective)
    rows = [stopped.run_epoch(test).as_dict() for _ in range(2)]
    save_trainer(tmp_path, stopped, rows, {})
    resumed = trainer(objective)
    load_trainer(tmp_path, resumed, {})
    assert [numbers(resumed.run_epoch(test)) for _ in range(2)] == expected[2:]
    assert_same_weights(resumed.network, unbroken.network)


def test_a_record_is_json_with_its_own_scores(objective: str):
    test = (uniform(9, 1, SIZE, SIZE, seed=3), torch.arange(9) % CLASSES)
    record = json.loads(json.dumps(trainer(objective, epochs=1).run_epoch(test).as_dict()))
    own = record["own_test_accuracy"], record["own_test_log_likelihood"]
    assert (own == (None, None)) == (objective == "averaged-losses")
    assert record["test_accuracy"] is not None


# --- losses over copies, rewards ------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", [Categorical(), Gaussian(0.7)], ids=["classes", "real"])
def test_weighted_losses_are_those_enumerated(likelihood):
    rows, weights = uniform(5 * 4, 3), torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    classes = isinstance(likelihood, Categorical)
    targets = torch.arange(5) % 3 if classes else uniform(5, 3, seed=1)
    likelihood.check_targets(targets, rows)
    for shares in (weights, torch.full((4,), 0.25, dtype=torch.float64)):
        expected = sum(
            float(share) * float(likelihood.training_loss(rows[n * 4 + s][None], targets[n][None]))
            for n in range(5)
            for s, share in enumerate(shares)
        )
        given = Copies(4, shares)
        found = average_of_losses(likelihood, rows, targets, given)
        assert float(found) == pytest.approx(expected / 5)
        of_the_average = likelihood.training_loss(given.mean(rows), targets)
        assert float(of_the_average) < float(found)
    equal = average_of_losses(likelihood, rows, targets, Copies(4))
    torch.testing.assert_close(equal, found)


def test_each_parameterisation_is_rewarded_for_its_own_width():
    uniform = UniformRanges(affine(("rotation", "scale")), start={"rotation": 20.0, "scale": 0.3})
    expected = np.hypot(np.radians(20.0), 0.3)
    assert float(reward_for_width(uniform)) == pytest.approx(expected, rel=1e-6)
    softplus = SoftplusRanges(affine(("rotation", "scale")))
    assert float(reward_for_width(softplus)) == pytest.approx(np.log(2) * np.sqrt(2), rel=1e-6)


def test_what_augments_follows_the_objective(request: pytest.FixtureRequest):
    request.getfixturevalue("torchvision_imports")
    kinds = {"augerino-original": SoftplusRanges, "trivial-augment": RandomCopies}
    for name in OBJECTIVES:
        ranges = {"rotation": 30.0} if RECIPES[name].ranges == "given" else None
        config = LearnConfig(objective=name, ranges=ranges)  # type: ignore[arg-type]
        made = augmentation_for(config, affine(("rotation",)))
        assert type(made) is kinds.get(name, UniformRanges)
        assert made.is_identity == (name == "none")


def test_the_original_augerino_has_no_finite_groups():
    config = LearnConfig(objective="augerino-original")
    with pytest.raises(CallerError, match="expected Actions with ranges, got 'horizontal_flip'"):
        augmentation_for(config, [affine(("rotation",)), flip("horizontal")])


# --- scores ---------------------------------------------------------------------------------------


def test_the_own_score_of_trivial_augment_is_of_images_as_they_are(torchvision_imports: None):
    made = trainer("trivial-augment")
    images, labels = uniform(30, 1, SIZE, SIZE, seed=4), torch.arange(30) % CLASSES
    own, common = made.own_score(images, labels), made.score(images, labels)
    with torch.no_grad():
        log_p = scipy.special.log_softmax(made.network(images).numpy(), axis=1)
    expected = log_p[np.arange(30), labels.numpy()].mean()
    assert own.log_likelihood == pytest.approx(expected, rel=1e-5)
    assert own.accuracy == pytest.approx((log_p.argmax(1) == labels.numpy()).mean())
    assert common.log_likelihood != pytest.approx(expected, rel=1e-4)


def test_the_own_score_of_augerino_is_of_four_copies():
    made = trainer("augerino-original")
    images, labels = uniform(30, 1, SIZE, SIZE, seed=4), torch.arange(30) % CLASSES
    noise = made.model.fixed_noise(30, samples=4)
    with torch.no_grad():
        rows = made.network(made.model.orbit(images, noise)).numpy()
    mean = scipy.special.log_softmax(rows, axis=1).reshape(30, 4, CLASSES).mean(1)
    expected = scipy.special.log_softmax(mean, axis=1)[np.arange(30), labels.numpy()].mean()
    own = made.own_score(images, labels)
    assert own.log_likelihood == pytest.approx(expected, rel=1e-5)
    assert own.accuracy == pytest.approx((mean.argmax(1) == labels.numpy()).mean())
    assert own != made.score(images, labels)  # over test_samples copies


def test_averaged_log_probabilities_predict_what_averaged_logits_do():
    """They differ by one number an example, which normalising takes away."""
    rows, copies = 3 * uniform(7 * 4, CLASSES, seed=5), Copies(4)
    logits = combined(rows, copies, "outputs", True)
    log_p = combined(rows, copies, "log-probabilities", True)
    assert (logits - log_p).abs().min() > 0.1
    torch.testing.assert_close(log_p.log_softmax(1), logits.log_softmax(1), rtol=0, atol=1e-12)
    as_means = [combined(rows, copies, each, False) for each in COMBINATIONS]
    assert torch.equal(as_means[0], as_means[1])
    with pytest.raises(CallerError, match="unknown combination 'logits'"):
        combined(rows, copies, "logits", True)  # type: ignore[arg-type]


# --- settings in words ----------------------------------------------------------------------------


def test_settings_are_read_by_the_field_they_belong_to():
    found = settings_from(["augerino_weight=1", "curvature=kfac-ef", "burn_in=3", "burn_in=4",
                           'caps={"rotation": 90}', "distribution=correlated",
                           "captured=false"])  # fmt: skip
    assert found == {"augerino_weight": 1.0, "curvature": "kfac-ef", "burn_in": 4,
                     "caps": {"rotation": 90}, "distribution": "correlated",
                     "captured": False}  # fmt: skip
    assert isinstance(found["augerino_weight"], float)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("augerino_weight", "setting: expected FIELD=VALUE, got 'augerino_weight'"),
        ("augerino_wieght=1", "unknown setting 'augerino_wieght'.*did you mean 'augerino_weight'"),
        ("augerino_weight=much", "setting augerino_weight: expected a number, got 'much'"),
        ("epochs=2.5", "setting epochs: expected a whole number, got '2.5'"),
        ("epochs=true", "setting epochs: expected a whole number, got 'true'"),
        ("captured=no", "setting captured: expected true or false, got 'no'"),
        ("captured=1", "setting captured: expected true or false, got '1'"),
        ("caps=3", "setting caps: expected a JSON object, got '3'"),
    ],
)
def test_settings_that_cannot_be_read(text: str, sentence: str):
    with pytest.raises(CallerError, match=sentence):
        settings_from([text])
