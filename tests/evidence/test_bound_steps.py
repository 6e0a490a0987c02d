"""Hyper steps by a bound: what they move and when, what they draw, which passes are not made."""

from __future__ import annotations

import math
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.data.readers import digits
from isotropy.data.variants import apply_variant
from isotropy.evidence.bound import FEW, BoundSteps, distinct
from isotropy.evidence.estimate import estimate_run
from isotropy.evidence.laplace import LaplaceEvidence, NotFiniteError
from isotropy.evidence.settings import NOISY_TRAVEL, LearnConfig, too_short
from isotropy.evidence.training import EpochRecord, Trainer
from isotropy.likelihoods import Categorical, Gaussian, Likelihood
from isotropy.networks.averaging.augmentations import START, UniformRanges
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.records import load_trainer, save_trainer
from isotropy.symmetry.actions.images import affine

GENERATORS = ("rotation", "translation_x", "scale_x")


def made(bound: str = "function-space", count: int = 40, size: int = 14, likelihood: Likelihood
         | None = None, device: str = "cpu", **settings: object) -> Trainer:  # fmt: skip
    """A small network on rotated digits of few pixels."""
    data = apply_variant(digits().train, "rotated", seed=0)
    images = nn.functional.adaptive_avg_pool2d(data.inputs[:count], size)
    targets = data.targets[:count]
    likelihood = likelihood or Categorical()
    if isinstance(likelihood, Gaussian):
        targets = nn.functional.one_hot(targets, 10).to(images)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(size**2, 24), nn.Tanh(), nn.Linear(24, 10))
    chosen = {"bound": bound, "epochs": 4, "samples": 4, "batch_size": 10, "burn_in": 1,
              "bound_batch": 6, "bound_every": 2, "bound_fits": 0, **settings}  # fmt: skip
    config = LearnConfig(**chosen).resolved(examples=count, on_gpu=False)  # type: ignore[arg-type]
    model = InvariantModel(network, UniformRanges(affine(GENERATORS)), config.samples).to(device)
    place = torch.device(device)
    return Trainer(model, likelihood.to(place), config, images.to(place), targets.to(place))


def run(trainer: Trainer, epochs: int | None = None) -> list[EpochRecord]:
    return [trainer.run_epoch() for _ in range(epochs or trainer.config.epochs or 0)]


def state(trainer: Trainer) -> list[Tensor]:
    tensors = [*trainer.network.parameters(), *trainer.ranges, trainer.prior.log_precisions]
    return [tensor.detach().clone() for tensor in (*tensors, *trainer.likelihood.parameters())]


# --- what is learned ------------------------------------------------------------------------------


def bumps(count: int = 40) -> tuple[Tensor, Tensor]:
    """A bump at a random angle, float64; the label is which of two distances it has."""
    generator = torch.Generator().manual_seed(0)
    grid = torch.linspace(-1, 1, 9, dtype=torch.float64)
    angle = 2 * math.pi * torch.rand(count, 1, 1, generator=generator, dtype=torch.float64)
    labels = torch.arange(count) % 2
    radius = torch.where(labels == 0, 0.35, 0.7)[:, None, None].double()
    distance = (grid[None, None, :] - radius * angle.cos()) ** 2
    distance = distance + (grid[None, :, None] - radius * angle.sin()) ** 2
    return torch.exp(-distance / 0.05)[:, None], labels


@pytest.mark.parametrize("fits", [0, 4])
def test_rotation_is_found_where_labels_do_not_depend_on_it(fits: int) -> None:
    images, labels = bumps()
    settings = {"epochs": 20, "samples": 4, "batch_size": 10, "burn_in": 3, "bound_every": 1,
                "bound_batch": 8, "weight_rate": 0.02, "bound": "function-space",
                "bound_fits": fits}  # fmt: skip
    chosen = LearnConfig(**settings)  # type: ignore[arg-type]
    config = chosen.resolved(examples=len(images), on_gpu=False)
    augmentation = UniformRanges(affine(("rotation", "translation_x")), dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Flatten(), nn.Linear(81, 16), nn.Tanh(), nn.Linear(16, 2)]
    network = nn.Sequential(*layers).double()
    model = InvariantModel(network, augmentation, config.samples)
    last = run(Trainer(model, Categorical(), config, images, labels))[-1]
    assert last.ranges["rotation"] > 90.0
    assert last.ranges["translation_x"] < 0.05
    assert last.train_accuracy == 1.0


def test_rotation_moves_most_on_rotated_digits() -> None:
    trainer = made(count=200, samples=6, epochs=20, batch_size=25, burn_in=3, bound_batch=16,
                   bound_fits=4, prior_structure="layer")  # fmt: skip
    (half_widths,) = trainer.ranges
    start = half_widths.detach().clone()
    run(trainer)
    rotation, *others = (half_widths.detach() - start).tolist()
    assert rotation > 1.0 > 2 * max(others)


def test_ranges_wait_for_the_burn_in_and_precisions_do_not() -> None:
    records = run(made(burn_in=2))
    start = math.degrees(START)
    turned = [record.ranges["rotation"] for record in records]
    assert turned[:2] == pytest.approx([start, start])
    assert abs(turned[2] - start) > 1.0
    precisions = [record.prior_precision["all"] for record in records]
    assert precisions[0] != 1.0 and len(set(precisions)) == len(precisions)


def test_with_fits_precisions_move_in_these_epochs_alone() -> None:
    records = run(made(epochs=7, burn_in=2, bound_fits=3))
    fitted = [record.epoch for record in records if record.log_evidence is not None]
    assert fitted == [2, 5]
    moved = [1.0] + [record.prior_precision["all"] for record in records]
    changed = [n + 1 for n in range(7) if moved[n + 1] != pytest.approx(moved[n], rel=1e-12)]
    assert changed == fitted
    assert [record.epoch for record in records if record.bound is None] == [1, 2]


def test_noise_is_learned_by_the_bound() -> None:
    records = run(made(likelihood=Gaussian(3.0)))
    noise = [record.noise for record in records if record.noise is not None]
    assert noise == sorted(noise, reverse=True) and noise[-1] < 2.4


@pytest.mark.parametrize("objective", ["fixed", "none"])
def test_objectives_with_given_ranges_keep_them(objective: str) -> None:
    ranges = {"rotation": 30.0} if objective == "fixed" else None
    trainer = made(objective=objective, ranges=ranges)
    before = [parameter.detach().clone() for parameter in trainer.ranges]
    records = run(trainer)
    after = [parameter.detach() for parameter in trainer.ranges]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert records[-1].prior_precision["all"] != 1.0 and records[-1].bound is not None


# --- which passes are made ------------------------------------------------------------------------


@pytest.mark.parametrize("fits", [0, 2])
def test_no_pass_over_all_data_but_those_asked_for(fits: int) -> None:
    trainer = made(bound_fits=fits)
    calls = {"fit": 0, "gradient": 0}
    with mock.patch.multiple(LaplaceEvidence, **{
        name: counted(getattr(LaplaceEvidence, name), calls, name) for name in calls
    }):  # fmt: skip
        records = run(trainer)
        assert calls == {"fit": 2 if fits else 0, "gradient": 0}
        trainer.final_evidence()
    assert calls["fit"] == (3 if fits else 1)
    assert all((record.log_evidence is None) == (fits == 0 or record.epoch % 2 == 0)
               for record in records)  # fmt: skip


def counted(function, calls: dict[str, int], name: str):  # type: ignore[no-untyped-def]
    def call(*arguments, **options):  # type: ignore[no-untyped-def]
        calls[name] += 1
        return function(*arguments, **options)

    return call


@pytest.mark.parametrize("every", [1, 3, 5])
def test_a_hyper_step_after_so_many_weight_steps(every: int) -> None:
    trainer = made(bound_every=every, epochs=3, burn_in=0)  # four weight steps an epoch
    steps: list[int] = []
    drawn = trainer.hyper._drawn

    def noted(step: int):  # type: ignore[no-untyped-def]
        steps.append(step)
        return drawn(step)

    with mock.patch.object(trainer.hyper, "_drawn", noted):
        run(trainer)
    assert steps == list(range(every, 13, every))


def test_an_epoch_s_bound_is_the_mean_of_its_estimates() -> None:
    trainer = made(epochs=1, burn_in=0)
    values: list[float] = []
    estimate = trainer.hyper._estimate

    def noted(*arguments):  # type: ignore[no-untyped-def]
        found = estimate(*arguments)
        values.append(float(found.value.detach()))
        return found

    with mock.patch.object(trainer.hyper, "_estimate", noted):
        (record,) = run(trainer)
    assert len(values) == 2 and values[0] != values[1]
    assert record.bound == pytest.approx(sum(values) / 2, rel=1e-12)
    assert record.log_evidence is None and record.log_evidence_per_example is None


def test_without_a_bound_there_is_none() -> None:
    trainer = made("none")
    assert not isinstance(trainer.hyper, BoundSteps)
    assert all(record.bound is None for record in run(trainer, 2))


# --- the same numbers every time ------------------------------------------------------------------


@pytest.mark.parametrize("fits", [0, 2])
def test_a_resumed_run_is_an_unbroken_one(fits: int, tmp_path: Path) -> None:
    whole = made(bound_fits=fits, bound_every=3)
    records = run(whole)
    first = made(bound_fits=fits, bound_every=3)
    history = [record.as_dict() for record in run(first, 2)]
    save_trainer(tmp_path, first, history, {})
    second = made(bound_fits=fits, bound_every=3)
    load_trainer(tmp_path, second, {})
    rest = run(second, 2)
    for mine, theirs in zip(state(second), state(whole), strict=True):
        assert torch.equal(mine, theirs)
    assert [record.bound for record in rest] == [record.bound for record in records[2:]]


def test_draws_are_the_step_s_own() -> None:
    trainer, other = made(), made(seed=1)
    values = [float(trainer.hyper.estimate(step, False).value.detach()) for step in (1, 2, 1)]
    assert values[0] == values[2] != values[1]
    assert float(other.hyper.estimate(1, False).value.detach()) != values[0]


def test_trying_a_run_out_leaves_it_as_it_was() -> None:
    trainer, plain = made(bound_fits=2), made(bound_fits=2)
    assert estimate_run(trainer).seconds > 0
    run(trainer)
    run(plain)
    assert all(torch.equal(a, b) for a, b in zip(state(trainer), state(plain), strict=True))


# --- settings -------------------------------------------------------------------------------------


def test_what_a_bound_leaves_open_is_filled_in() -> None:
    plain, chosen = (
        LearnConfig(bound=bound).resolved(examples=2000, on_gpu=False)  # type: ignore[arg-type]
        for bound in ("none", "function-space")
    )
    assert (plain.range_memory, plain.bound_fits, plain.prior_steps) == (0.9, 0, 1)
    assert (chosen.range_memory, chosen.bound_batch, chosen.bound_every) == (0.99, 8, 4)
    assert chosen.bound_fits and chosen.prior_steps and chosen.prior_steps > 1
    updates = (80 - 10) * 20 // 4
    assert chosen.range_rate == pytest.approx(NOISY_TRAVEL / updates)
    for examples, size in ((3, 3), (100, 4), (20_000, 16)):
        assert LearnConfig().resolved(examples=examples, on_gpu=False).bound_batch == size


def test_too_short_counts_the_steps_of_a_bound() -> None:
    config = LearnConfig(bound="function-space").resolved(examples=2000, on_gpu=False)
    assert not too_short(config, 2000)
    short = LearnConfig(bound="function-space", epochs=2).resolved(examples=100, on_gpu=False)
    assert too_short(short, 100)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bound": "functionspace"}, "unknown bound 'functionspace'.*function-space"),
        ({"bound_batch": 0}, "bound batch: expected at least 1, got 0"),
        ({"bound_every": 0}, "bound every: expected at least 1, got 0"),
        ({"bound_fits": -1}, "bound fits: expected at least 0, got -1"),
        ({"range_memory": 1.0}, "range memory: expected at least 0 and below 1, got 1.0"),
        ({"bound": "function-space", "objective": "augerino"}, "function-space: expected an obj"),
    ],
)
def test_settings_that_cannot_be_meant(settings: dict[str, object], message: str) -> None:
    with pytest.raises(CallerError, match=message):
        LearnConfig(**settings).check()  # type: ignore[arg-type]


def test_numbers_that_are_not_finite_are_named_before_a_step() -> None:
    trainer = made()
    with torch.no_grad():
        trainer.inputs[:] = torch.nan
    before = state(trainer)
    with pytest.raises(NotFiniteError, match="not finite"):
        trainer.hyper.after_step(2)
    after = state(trainer)[-2:]
    assert all(torch.equal(old, new) for old, new in zip(before[-2:], after, strict=True))


def test_the_estimate_counts_the_steps_that_are_made() -> None:
    """Seconds from a clock that ticks once a task: one an estimate, and so many passes."""
    with mock.patch("isotropy.evidence.estimate._timed", lambda _, task: (task(), (1.0, 0.0))[1]):
        by_bound = estimate_run(made()).evidence
        assert by_bound == 8.0  # four weight steps an epoch, four epochs, every second one
        with_fits = estimate_run(made(bound_fits=2)).evidence
    # three epochs of ranges; passes after epochs 1 and 3, one batch each and its spectra
    assert with_fits == pytest.approx(6.0 + 2 * 1.0)


# --- a few of many --------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [20, FEW, FEW + 1, 60_000])
def test_examples_are_drawn_once_each(count: int) -> None:
    draws = [distinct(count, 16, torch.Generator().manual_seed(seed)) for seed in range(50)]
    assert all(len(set(drawn.tolist())) == 16 for drawn in draws)
    every = torch.cat(draws)
    assert every.min() >= 0 and every.max() < count
    assert every.double().mean() == pytest.approx((count - 1) / 2, rel=0.1)


def test_a_draw_with_a_repetition_is_drawn_again() -> None:
    """Of 5,001 numbers some 100 of 120 are rarely all different."""
    for seed in range(5):
        drawn = distinct(FEW + 1, 120, torch.Generator().manual_seed(seed))
        assert len(drawn.unique()) == 120


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_hyper_step_is_the_hyper_step() -> None:
    moved = {}
    for captured in (False, True):
        trainer = made(epochs=6, burn_in=1, captured=captured, device="cuda")
        run(trainer)
        assert isinstance(trainer.hyper, BoundSteps)
        if captured:
            function = trainer.hyper._captured
            assert function is not None and function.failure is None
            assert function._graph is not None
        moved[captured] = torch.cat([each.detach().flatten() for each in trainer.ranges])
    torch.testing.assert_close(moved[True], moved[False], rtol=1e-5, atol=1e-7)
