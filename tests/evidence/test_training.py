"""The training loop on images of a few pixels whose label does not depend on a rotation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.kinds import KINDS
from isotropy.evidence.hyper_steps import HyperSteps
from isotropy.evidence.laplace import Batch, LaplaceEvidence, LaplaceFit, NotFiniteError
from isotropy.evidence.objectives import OBJECTIVES, RECIPES
from isotropy.evidence.settings import LearnConfig
from isotropy.evidence.training import EpochRecord, Trainer
from isotropy.evidence.weight_steps import augmentation_for
from isotropy.likelihoods import Categorical, Gaussian, Likelihood
from isotropy.networks.averaging.augmentations import (
    START,
    Augmentation,
    CorrelatedRanges,
    UniformRanges,
)
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.averaging.mixtures import augmentation_over
from isotropy.records import load_trainer, save_trainer
from isotropy.symmetry.actions.finite import flip
from isotropy.symmetry.actions.images import affine

SIZE = 9
RADII = (0.35, 0.7)
NOISE = 0.1


class Antithetic(InvariantModel):
    """Noise in pairs ±ε, which leaves nothing odd in the ranges."""

    def noise(
        self, batch: int, *, samples: int | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        return self.augmentation.noise(
            batch, samples or self.samples, generator=generator, antithetic=True
        )


def bumps(count: int = 40, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """A bump at a random angle; the label is which of two distances it has from the centre.

    Returns images (count, 1, SIZE, SIZE), labels (count,) and noisy real targets (count, 1).
    """
    generator = torch.Generator().manual_seed(seed)
    grid = torch.linspace(-1, 1, SIZE, dtype=torch.float64)
    angle = 2 * math.pi * torch.rand(count, 1, 1, generator=generator, dtype=torch.float64)
    labels = torch.arange(count) % 2
    radius = torch.tensor(RADII, dtype=torch.float64)[labels][:, None, None]
    distance = (grid[None, None, :] - radius * angle.cos()) ** 2
    distance = distance + (grid[None, :, None] - radius * angle.sin()) ** 2
    disturbance = NOISE * torch.randn(count, 1, generator=generator, dtype=torch.float64)
    return torch.exp(-distance / 0.05)[:, None], labels, 2.0 * labels[:, None] - 1 + disturbance


def small_network(outputs: int = 2) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        modules = [nn.Flatten(), nn.Linear(SIZE**2, 16), nn.Tanh(), nn.Linear(16, outputs)]
        return nn.Sequential(*modules).double()


def trainer(
    objective: str = "evidence",
    *,
    start: float | dict[str, float] = START,
    kind: type[InvariantModel] = InvariantModel,
    likelihood: Likelihood | None = None,
    network: nn.Module | None = None,
    **settings: object,
) -> Trainer:
    images, labels, values = bumps()
    regression = isinstance(likelihood, Gaussian)
    network = network or small_network(1 if regression else 2)
    action = affine(("rotation", "translation_x"))
    ranges = {"rotation": 30.0} if RECIPES[objective].ranges == "given" else None
    chosen = {"epochs": 6, "samples": 4, "batch_size": 20, "burn_in": 1, "gradient_batches": 0,
              "weight_rate": 0.02, "test_samples": 4, **settings}  # fmt: skip
    config = LearnConfig(objective=objective, ranges=ranges, **chosen).resolved(  # type: ignore[arg-type]
        examples=len(images), on_gpu=False
    )
    augmentation: Augmentation = UniformRanges(action, start=ranges or start, dtype=torch.float64)
    if objective in ("augerino-original", "trivial-augment"):
        augmentation = augmentation_for(config, action, dtype=torch.float64)
    model = kind(network, augmentation, config.samples)
    return Trainer(
        model, likelihood or Categorical(), config, images, values if regression else labels
    )


def run(made: Trainer, test: tuple[Tensor, Tensor] | None = None) -> list[EpochRecord]:
    return [made.run_epoch(test) for _ in range(made.config.epochs)]


# --- leaving the start ----------------------------------------------------------------------------


def test_learning_leaves_the_start_in_double_precision_with_antithetic_noise():
    """The start is a small stated value, because nothing pulls away from exactly zero."""
    made = trainer(kind=Antithetic, epochs=25, burn_in=3)
    (half_widths,) = made.ranges
    assert half_widths.dtype == torch.float64
    assert half_widths.tolist() == [START, START] and START == 0.05
    ranges = [record.ranges for record in run(made)]
    assert ranges[0]["rotation"] == pytest.approx(math.degrees(START))
    assert ranges[-1]["rotation"] > 60.0
    assert ranges[-1]["translation_x"] < 0.1


def test_a_step_from_exactly_zero_goes_nowhere():
    """Which is why there is a start: the first hyper step from it moves, from zero it does not."""
    for start, least, most in ((0.0, 0.0, 1e-5), (START, 1.0, 20.0)):
        made = trainer(kind=Antithetic, epochs=25, burn_in=0, start=start)
        before = made.model.symmetries()[0].high
        moved = abs(made.run_epoch().ranges["rotation"] - before)
        assert least <= moved <= most


def test_ranges_stay_within_their_bounds():
    made = trainer(epochs=12, range_rate=3.0, range_rate_end=3.0)
    for record in run(made):
        assert record.ranges["rotation"] <= 180.0 + 1e-9


# --- objectives -----------------------------------------------------------------------------------


def test_none_keeps_every_range_at_exactly_zero():
    made = trainer("none", start=0.0)
    records = run(made)
    assert made.model.samples == 1 and made.model.augmentation.is_identity
    assert all(set(record.ranges.values()) == {0.0} for record in records)
    assert [parameter.grad for parameter in made.ranges] == [None]
    precisions = [record.prior_precision["all"] for record in records]
    assert precisions[0] == pytest.approx(1.0) and precisions[-1] != precisions[0]


def test_fixed_keeps_the_ranges_given():
    made = trainer("fixed")
    records = run(made)
    for record in records:
        assert record.ranges == {"rotation": pytest.approx(30.0), "translation_x": 0.0}
    assert len({record.prior_precision["all"] for record in records}) > 1


def test_augerino_follows_the_training_loss():
    made = trainer("augerino", range_rate=0.05)
    records = run(made)
    assert all(record.log_evidence is None for record in records)
    assert all(record.prior_precision["all"] == pytest.approx(1.0) for record in records)
    assert records[-1].ranges != records[0].ranges
    assert made.final_evidence() is None
    decay = made.optimisers["weights"].param_groups[0]["weight_decay"]
    assert decay == made.config.augerino_decay > 0


def test_augerino_rewards_width():
    narrow = run(trainer("augerino", range_rate=0.05, augerino_weight=0.0))[-1].ranges
    wide = run(trainer("augerino", range_rate=0.05, augerino_weight=10.0))[-1].ranges
    assert wide["rotation"] > narrow["rotation"]
    assert wide["translation_x"] > narrow["translation_x"]


def test_the_norm_of_augerino_has_no_slope_at_zero():
    """‖η‖ has no derivative at 0; taken as 0 there, so that nothing becomes NaN."""
    for start, least, most in ((0.0, 0.0, 1e-6), (START, 0.04, 0.06)):
        made = trainer("augerino", start=start, kind=Antithetic, augerino_weight=10.0,
                       epochs=1, batch_size=40, range_rate=0.05)  # fmt: skip
        made.run_epoch()  # a single step
        moved = (made.ranges[0].detach() - start).abs()
        assert least <= float(moved.min()) and float(moved.max()) <= most


def test_only_laplace_and_fixed_and_none_have_evidences():
    with_evidence = [name for name, recipe in RECIPES.items() if recipe.evidence]
    assert with_evidence == ["evidence", "fixed", "none"]
    for objective in with_evidence:
        made = trainer(objective, start=0.0 if objective == "none" else START, epochs=3)
        records = run(made)
        assert records[0].log_evidence is None  # burn-in
        for record in records[1:]:
            assert math.isfinite(record.log_evidence)
            assert record.log_evidence < record.log_likelihood < 0
            assert record.log_evidence_per_example == pytest.approx(record.log_evidence / 40)
        assert math.isfinite(made.final_evidence().nats)


@pytest.mark.parametrize(("burn_in", "update_every"), [(0, 1), (2, 1), (1, 2), (0, 4)])
def test_hyper_steps_are_taken_when_due(burn_in: int, update_every: int):
    records = run(trainer(burn_in=burn_in, update_every=update_every))
    found = [record.epoch for record in records if record.log_evidence is not None]
    assert found == list(range(burn_in + update_every, 7, update_every))


def test_prior_steps_alone_raise_the_evidence():
    """With the weights held and no noise, each hyper step climbs."""
    made = trainer(
        "none",
        start=0.0,
        weight_rate=1e-12,
        weight_rate_end=1e-12,
        epochs=8,
        burn_in=0,
        prior_precision=0.01,
        prior_rate=0.05,
    )
    values = [record.log_evidence for record in run(made)]
    assert values == sorted(values) and values[-1] > values[0]


def test_weights_and_curvature_see_no_gradient_from_each_other():
    made = trainer()
    run(made)
    assert all(parameter.requires_grad for parameter in made.network.parameters())
    assert not any(module._forward_hooks for module in made.network.modules())


# --- kinds of curvature, layers without a rule, other augmentations -------------------------------


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.slow if "full-" in k else ()) for k in KINDS]
)
def test_every_kind_of_curvature_trains(kind: str):
    made = trainer(curvature=kind, epochs=3)
    records = run(made)
    assert numbers(run(trainer(curvature=kind, epochs=3))) == numbers(records)
    assert all(math.isfinite(record.log_evidence) for record in records[1:])
    assert records[-1].ranges != records[0].ranges
    assert len({record.prior_precision["all"] for record in records}) > 1
    value = made.final_evidence()
    assert value.curvature == kind and value.examples == 40 and value.samples == 4
    assert value.prior_structure == "scalar" and math.isfinite(value.nats)


def test_evidences_of_one_setting_can_be_subtracted():
    one, other = trainer(epochs=2), trainer(epochs=2, weight_rate=0.01)
    for made in (one, other):
        run(made)
    difference = one.final_evidence() - other.final_evidence()
    assert difference == one.final_evidence().nats - other.final_evidence().nats != 0.0
    with pytest.raises(CallerError, match="evidences differ in noise seed"):
        one.final_evidence() - one.evidence_value("another")


@pytest.mark.parametrize("fallback", ["diagonal", "fixed"])
def test_a_layer_without_a_rule_trains_all_the_same(fallback: str):
    network = small_network()
    network.insert(2, nn.PReLU().double())
    before = network[2].weight.detach().clone()
    made = trainer(network=network, fallback=fallback, epochs=3)
    records = run(made)
    assert math.isfinite(records[-1].log_evidence)
    assert ("2.weight" in made.prior.precisions()) is (fallback == "diagonal")
    assert not torch.equal(network[2].weight, before)


AUGMENTATIONS = {
    "correlated": lambda: CorrelatedRanges(
        affine(("rotation", "translation_x")), dtype=torch.float64
    ),
    "flip": lambda: augmentation_over(flip("horizontal"), dtype=torch.float64),
    "flip and rotation": lambda: augmentation_over(
        [affine(("rotation",)), flip("horizontal"), flip("vertical")], dtype=torch.float64
    ),
}


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_other_augmentations_train(name: str):
    """Everything that says how much moves, the evidence is finite, and a run repeats."""

    def made() -> Trainer:
        plain = trainer(epochs=4)
        model = InvariantModel(small_network(), AUGMENTATIONS[name](), plain.config.samples)
        return Trainer(model, Categorical(), plain.config, plain.inputs, plain.targets)

    one = made()
    start = [parameter.detach().clone() for parameter in one.ranges]
    records = run(one)
    assert len(start) == len(one.model.augmentation.learnable()) > 0
    for before, after in zip(start, one.ranges, strict=True):
        assert bool((before != after).any())
    assert all(math.isfinite(record.log_evidence) for record in records[1:])
    assert set(records[-1].ranges) == {s.name for s in one.model.symmetries()}
    assert numbers(run(made())) == numbers(records)


def test_a_mirror_symmetry_is_found_and_no_other():
    """The label is which half, upper or lower, the bump lies in: left and right do not matter."""
    images, _, _ = bumps(60)
    labels = (
        images[:, 0, : SIZE // 2].sum((1, 2)) > images[:, 0, -(SIZE // 2) :].sum((1, 2))
    ).long()
    config = trainer(epochs=30, burn_in=3).config
    augmentation = augmentation_over([flip("horizontal"), flip("vertical")], dtype=torch.float64)
    model = InvariantModel(small_network(), augmentation, config.samples)
    made = Trainer(model, Categorical(), config, images, labels)
    ranges = run(made)[-1].ranges
    assert ranges["horizontal_flip"] > 0.35 and ranges["vertical_flip"] < 0.05


# --- a regression ---------------------------------------------------------------------------------


def test_a_regression_learns_its_noise():
    made = trainer(likelihood=Gaussian(), epochs=40, prior_rate=0.2)
    records = run(made)
    assert records[0].noise == pytest.approx(1.0)
    assert 0.5 * NOISE < records[-1].noise < 3 * NOISE
    assert records[-1].train_accuracy is None
    assert records[-1].log_evidence > records[1].log_evidence


def test_likelihood_and_evidence_of_a_record_belong_together():
    """Both are those before the hyper step, so also before its change of the noise."""
    made = trainer("fixed", likelihood=Gaussian(0.5), epochs=1, burn_in=0, prior_rate=1.0)
    record = made.run_epoch()
    assert made.likelihood.noise != pytest.approx(0.5)
    fit = made.evidence.fit(made.orbit_batches("factors"))
    with torch.no_grad():
        made.likelihood.log_noise.fill_(math.log(0.5))
        made.prior.log_precisions.fill_(0.0)
        expected = float(made.likelihood.log_likelihood(fit.statistic, fit.count))
        evidence = float(made.evidence.value(fit))
    assert record.log_evidence == pytest.approx(evidence)
    assert record.log_likelihood == pytest.approx(expected)


# --- repeating ------------------------------------------------------------------------------------


def numbers(records: list[EpochRecord]) -> list[dict[str, object]]:
    return [{k: v for k, v in record.as_dict().items() if k != "seconds"} for record in records]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_same_seed_gives_the_same_numbers(objective: str, request: pytest.FixtureRequest):
    if objective == "trivial-augment":
        request.getfixturevalue("torchvision_imports")
    start = 0.0 if objective == "none" else START
    images, labels, _ = bumps(20, seed=1)
    first, second, other = (
        run(trainer(objective, start=start, epochs=4, seed=seed), (images, labels))
        for seed in (3, 3, 4)
    )
    assert numbers(first) == numbers(second)
    assert numbers(first) != numbers(other)


def test_numbers_do_not_depend_on_the_global_seed():
    torch.manual_seed(1)
    first = run(trainer(epochs=3))
    torch.manual_seed(2)
    assert numbers(run(trainer(epochs=3))) == numbers(first)


def test_how_often_one_purpose_draws_changes_no_other():
    """Scores on test data are computed in between and change nothing."""
    images, labels, _ = bumps(20, seed=1)
    scored = run(trainer(epochs=3, evaluate_every=1), (images, labels))
    plain = run(trainer(epochs=3))
    assert [r.train_loss for r in scored] == [r.train_loss for r in plain]
    assert [r.ranges for r in scored] == [r.ranges for r in plain]
    assert all(r.test_accuracy is not None for r in scored)


def test_evidence_passes_see_every_example_once():
    made = trainer(curvature_batch=15)
    seen = torch.cat([batch.targets for batch in made.orbit_batches("factors")])
    assert torch.equal(seen, made.targets)
    some = [batch.targets for batch in made.orbit_batches("ranges", limit=30)]
    assert [len(part) for part in some] == [15, 15]
    more = [len(batch.targets) for batch in made.orbit_batches("ranges", limit=900)]
    assert more == [15, 15, 10]


def test_a_sample_stands_for_all_in_a_hyper_step(monkeypatch: pytest.MonkeyPatch):
    """Fresh examples every time, and numbers of the size of those of all."""
    seen: list[Tensor] = []
    whole = LaplaceEvidence.fit

    def watched(own: LaplaceEvidence, batches: Iterable[Batch], **options: bool) -> LaplaceFit:
        kept = list(batches)
        seen.append(torch.cat([batch.rows for batch in kept]))
        return whole(own, kept, **options)

    monkeypatch.setattr(LaplaceEvidence, "fit", watched)
    some, all_data = (
        run(trainer(epochs=3, burn_in=0, curvature_examples=examples)) for examples in (20, 0)
    )
    assert [len(rows) for rows in seen] == [20 * 4] * 3 + [40 * 4] * 3
    assert not torch.equal(seen[0], seen[1])
    for few, every in zip(some, all_data, strict=True):
        assert few.log_evidence != every.log_evidence
        assert few.log_evidence == pytest.approx(every.log_evidence, rel=0.3)
        assert few.log_likelihood == pytest.approx(every.log_likelihood, rel=0.5)
    assert some[-1].ranges["rotation"] != START  # and they move the ranges


# --- hyper steps of another kind ------------------------------------------------------------------


class Halving(HyperSteps):
    """Halves the prior precision after every second epoch, and counts weight steps."""

    def __init__(self) -> None:
        self.steps = 0

    def due(self, epoch: int) -> bool:
        return epoch % 2 == 0

    def take(self, trainer: Trainer) -> dict[str, object]:
        halved = float(trainer.prior.log_precisions.detach().exp()) / 2
        trainer.prior.set_precision(trainer.prior.names, halved)
        return {"bound": halved}

    def after_step(self, step: int) -> None:
        self.steps = step

    def state(self) -> dict[str, object]:
        return {"steps": self.steps}

    def load_state(self, record) -> None:
        self.steps = record["steps"]


def test_hyper_steps_can_be_exchanged(tmp_path: Path):
    """They are asked after steps and epochs, their numbers are recorded and their state is kept."""
    made, resumed = trainer(), trainer()
    for each in (made, resumed):
        each.hyper = Halving()
    records = run(made)
    assert [record.bound for record in records] == [None, 0.5, None, 0.25, None, 0.125]
    assert [r.prior_precision["all"] for r in records[1::2]] == pytest.approx([0.5, 0.25, 0.125])
    assert all(record.log_evidence is None for record in records)
    assert made.hyper.steps == 6 * 2  # two batches an epoch
    save_trainer(tmp_path, made, [record.as_dict() for record in records], {})
    load_trainer(tmp_path, resumed, {})
    assert resumed.hyper.steps == 12 and resumed.prior.by_group()["all"] == pytest.approx(0.125)


# --- scores ---------------------------------------------------------------------------------------


def test_scores_are_those_of_the_averaged_model():
    made = trainer("none", start=0.0)
    run(made)
    images, labels, _ = bumps(30, seed=2)
    found = made.score(images, labels)
    with torch.no_grad():
        log_p = made.network(images).log_softmax(1)
    hits = (log_p.argmax(1) == labels).double().mean()
    assert found.accuracy == pytest.approx(float(hits))
    expected = log_p[torch.arange(30), labels].mean()
    assert found.log_likelihood == pytest.approx(float(expected), rel=1e-5)
    assert made.score(images, labels) == found


# --- what stops a run -----------------------------------------------------------------------------


def test_a_loss_that_is_not_a_number_stops_the_run():
    made = trainer()
    made.run_epoch()
    made.weight_steps.inputs = made.inputs.clone()
    made.weight_steps.inputs[3, 0, 4, 4] = float("nan")
    with pytest.raises(NotFiniteError, match=r"training loss became nan in epoch 2.*lower weight"):
        made.run_epoch()


@pytest.mark.parametrize(
    ("method", "result", "sentence"),
    [
        ("value", lambda *_: torch.tensor(float("nan"), requires_grad=True), "log evidence became"),
        ("gradient", lambda *_: [torch.tensor([0.0, float("inf")]).double()],
         "gradient of the evidence by the ranges became inf"),
        ("gradient", lambda *_: [torch.tensor([1.0, float("nan")]).double()],
         "gradient of the evidence by the ranges became nan in epoch 2"),
    ],
)  # fmt: skip
def test_an_evidence_that_is_not_finite_stops_the_run(
    monkeypatch: pytest.MonkeyPatch, method: str, result, sentence: str
):
    made = trainer()
    made.run_epoch()
    (half_widths,) = made.ranges
    before = half_widths.detach().clone()
    monkeypatch.setattr(made.evidence, method, result)
    with pytest.raises(NotFiniteError, match=sentence):
        made.run_epoch()
    assert torch.equal(half_widths, before)


class Pair(nn.Sequential):
    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        outputs = super().forward(inputs)
        return outputs, outputs


REFUSED = {
    "wrong input size": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(5, 2)).double(),
        r"the network cannot be run on inputs of shape \(1, 9, 9\)",
    ),
    "outputs not two axes": (
        lambda: nn.Conv2d(1, 2, 3).double(),
        r"network outputs: expected \(batch, outputs\), got \(2, 2, 7, 7\)",
    ),
    "a pair of outputs": (
        lambda: Pair(*small_network()), r"network outputs: expected \(batch, outputs\), got tuple"),
    "too few outputs": (
        lambda: small_network(1),
        "labels: expected 0 to 0 for a network with 1 outputs, got 0 to 1",
    ),
    "a batch norm without running statistics": (
        lambda: nn.Sequential(
            small_network(), nn.BatchNorm1d(2, track_running_stats=False).double()
        ),
        "layer '1' of type BatchNorm1d: expected running statistics",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_network_that_does_not_fit_is_refused_at_once(name: str):
    build, sentence = REFUSED[name]
    with pytest.raises(CallerError, match=sentence):
        trainer(network=build())


# --- parts of a batch -----------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["evidence", "augerino", "averaged-losses"])
@pytest.mark.parametrize("micro_batch", [1, 7])
def test_a_batch_in_parts_learns_the_same(objective: str, micro_batch: int):
    """Noise is drawn for the whole batch, and gradients of parts add up: rounding apart."""
    images, labels, _ = bumps()
    whole, parts = trainer(objective), trainer(objective, micro_batch=micro_batch)
    assert whole.weight_steps.micro_batch == 20
    assert parts.weight_steps.micro_batch == micro_batch
    for expected, found in zip(
        run(whole, (images, labels)), run(parts, (images, labels)), strict=True
    ):
        assert found.train_loss == pytest.approx(expected.train_loss, rel=1e-9)
        assert found.train_accuracy == expected.train_accuracy
        assert found.ranges == pytest.approx(expected.ranges, rel=1e-6)
        assert (found.log_evidence is None) == (expected.log_evidence is None)
        if expected.log_evidence is not None:
            assert found.log_evidence == pytest.approx(expected.log_evidence, rel=1e-9)
    for first, second in zip(whole.network.parameters(), parts.network.parameters(), strict=True):
        torch.testing.assert_close(second, first, rtol=1e-6, atol=1e-9)
