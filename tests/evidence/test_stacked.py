"""Runs in lockstep end where each would have ended alone: every number of every trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.evidence.laplace import NotFiniteError
from isotropy.evidence.objectives import RECIPES
from isotropy.evidence.schedule import LearnConfig, resolve
from isotropy.evidence.stacked import StackedTrainer
from isotropy.evidence.stacked_steps import Orbits, same_action
from isotropy.evidence.training import EpochRecord, Trainer
from isotropy.likelihoods import Categorical, Gaussian
from isotropy.networks.augmentations import UniformRanges
from isotropy.networks.backbones import cnn
from isotropy.networks.invariant_model import InvariantModel
from isotropy.networks.mixtures import augmentation_over
from isotropy.symmetry.actions import compose
from isotropy.symmetry.finite_actions import flip
from isotropy.symmetry.image_actions import affine
from isotropy.symmetry.intensity_actions import intensity

SIZE, COUNT, EPOCHS = 7, 22, 4
SEEDS = (0, 5, 9)


def images(size: int = SIZE, count: int = COUNT, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Blobs with noise, labels of three classes, and real targets (count, 2)."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    grid = torch.linspace(-1, 1, size, dtype=torch.float64)
    centre = 0.4 * torch.randn(count, 2, 1, 1, generator=generator, dtype=torch.float64)
    distance = (grid - centre[:, 0]) ** 2 + (grid[:, None] - centre[:, 1]) ** 2
    blobs = torch.exp(-distance * (1.0 + labels[:, None, None]))[:, None]
    noise = torch.randn(blobs.shape, generator=generator, dtype=torch.float64)
    values = torch.randn(count, 2, generator=generator, dtype=torch.float64) + labels[:, None]
    return blobs + 0.1 * noise, labels, values


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, 6), nn.Tanh(), nn.Linear(6, 3))


def normalised() -> nn.Module:
    """Batch normalisation, and layers in front of it that are scale-invariant."""
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, bias=False), nn.GroupNorm(1, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(50, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3),
    )  # fmt: skip


def regression() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, 5), nn.Tanh(), nn.Linear(5, 2))


def made(
    seed: int,
    build: Callable[[], nn.Module] = mlp,
    objective: str = "laplace",
    augmentation: Callable[[], Any] | None = None,
    data: tuple[Tensor, Tensor, Tensor] | None = None,
    device: str = "cpu",
    **settings: Any,
) -> Trainer:
    """A trainer of this seed, weights included."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build().double()
    inputs, labels, values = data or images()
    real = build is regression
    ranges = {"rotation": 30.0} if RECIPES[objective].ranges == "given" else None
    chosen = {"epochs": EPOCHS, "samples": 3, "batch_size": 8, "burn_in": 1, "test_samples": 2,
              "gradient_batches": 0, "curvature_batch": 9, **settings}  # fmt: skip
    config = resolve(
        LearnConfig(objective=objective, ranges=ranges, seed=seed, **chosen),  # type: ignore[arg-type]
        examples=len(inputs),
        on_gpu=False,
    )
    action = affine(("rotation", "translation_x"))
    moved = (
        augmentation()
        if augmentation is not None
        else UniformRanges(action, start=ranges or 0.05, dtype=torch.float64)
    )
    return Trainer(
        InvariantModel(network, moved, config.samples or 1).to(device),
        (Gaussian() if real else Categorical()).to(device),
        config,
        inputs.to(device),
        (values if real else labels).to(device),
    )


def three(**settings: Any) -> list[Trainer]:
    """Three seeds with rates of their own."""
    rates = ((0.1, 0.01), (0.2, 0.02), (0.05, 0.005))
    return [
        made(seed, range_rate=by_range, prior_rate=0.1, weight_rate=by_weight, **settings)
        for seed, (by_range, by_weight) in zip(SEEDS, rates, strict=True)
    ]


def numbers(trainer: Trainer) -> dict[str, Tensor]:
    """All that a trainer holds."""
    found = dict(trainer.model.state_dict())
    found |= {f"prior/{name}": t for name, t in trainer.prior.state_dict().items()}
    found |= {f"likelihood/{name}": t for name, t in trainer.likelihood.state_dict().items()}
    for name, optimiser in trainer.optimisers.items():
        for index, moments in optimiser.state_dict()["state"].items():
            found |= {f"{name}/{index}/{key}": value for key, value in moments.items()}
    return found


def check_same(stacked: Trainer, alone: Trainer, tolerance: float = 1e-7) -> None:
    assert stacked.epoch == alone.epoch
    got, expected = numbers(stacked), numbers(alone)
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name].dtype == value.dtype, name
        # `inf` is a bound of what has no period, and equal to itself alone
        close = torch.isclose(got[name], value, rtol=tolerance, atol=tolerance)
        assert bool(close.all()), f"{name}: {got[name]} against {value}"


def check_records(got: Sequence[EpochRecord], expected: Sequence[EpochRecord]) -> None:
    for own, other in zip(got, expected, strict=True):
        left, right = flat(own), flat(other)
        assert left.keys() == right.keys()
        assert left == pytest.approx(right, rel=1e-6, abs=1e-7)


def flat(record: EpochRecord) -> dict[str, float]:
    """All entries of a record that there are, but for the time it took."""
    found: dict[str, float] = {}
    for name, value in record.as_dict().items():
        parts = value if isinstance(value, dict) else {"": value}
        found |= {f"{name}/{part}": n for part, n in parts.items() if n is not None}
    del found["seconds/"]
    return found


def run_both(make: Callable[[], list[Trainer]], epochs: int = EPOCHS) -> list[Trainer]:
    """Check that a stack ends as its runs alone; returns the stack's trainers."""
    stacked, alone = make(), make()
    test = images(stacked[0].inputs.shape[-1], 6, seed=1)
    tests = [
        (test[0].to(own.device), (test[2] if own.targets.ndim == 2 else test[1]).to(own.device))
        for own in alone
    ]
    stack = StackedTrainer(stacked)
    histories = list(zip(*(stack.run_epoch(tests) for _ in range(epochs)), strict=True))
    for own, other, test_of, history in zip(stacked, alone, tests, histories, strict=True):
        check_records(history, [other.run_epoch(test_of) for _ in range(epochs)])
        check_same(own, other)
        if other.recipe.evidence:
            left, right = own.final_evidence(), other.final_evidence()
            assert left is not None and right is not None
            assert left.nats == pytest.approx(right.nats, rel=1e-8)
            assert left.noise_seed == right.noise_seed
    return stacked


# --- the same numbers -----------------------------------------------------------------------------

CASES: dict[str, dict[str, Any]] = {
    "classification": {},
    "regression": {"build": regression},
    "normalisations": {"build": normalised, "prior_structure": "layer"},
    "some of the data for the ranges": {"gradient_batches": 1, "prior_steps": 2},
    "batches in parts": {"micro_batch": 3, "prior_structure": "tensor"},
    "drawn labels": {"curvature": "kfac-mc"},
    "passes that are not stacked": {"curvature": "diagonal"},
    "fixed ranges": {"objective": "fixed"},
    "no ranges": {"objective": "none"},
    "averaged losses": {"objective": "averaged-losses"},
}


@pytest.mark.parametrize("case", CASES)
def test_a_stack_ends_where_each_run_ends_alone(case: str) -> None:
    trainers = run_both(lambda: three(**CASES[case]))
    weights = [dict(trainer.network.named_parameters()) for trainer in trainers]
    first = next(iter(weights[0]))
    assert not torch.allclose(weights[0][first], weights[1][first]), "seeds make a difference"
    if trainers[0].recipe.ranges == "evidence":
        moved = [float(trainer.ranges[0].detach().abs().max()) for trainer in trainers]
        assert len({round(amount, 6) for amount in moved}) == 3 and max(moved) > 0.1


def test_the_papers_convolutional_network() -> None:
    data = images(28, 12)
    run_both(
        lambda: [
            made(seed, lambda: cnn((1, 28, 28), 3), data=data, samples=2, batch_size=6, epochs=2,
                 burn_in=0, range_rate=0.05 * (1 + seed))
            for seed in range(2)
        ],
        epochs=2,
    )  # fmt: skip


def test_objectives_and_data_of_one_shape_side_by_side() -> None:
    other = images(seed=3)
    objectives = ("laplace", "fixed", "laplace")
    trainers = run_both(
        lambda: [
            made(seed, objective=objective, data=other if seed == 9 else None)
            for seed, objective in zip(SEEDS, objectives, strict=True)
        ]
    )
    assert trainers[1].model.symmetries()[0].high == pytest.approx(30.0)
    assert not torch.equal(trainers[0].inputs, trainers[2].inputs)


@pytest.mark.parametrize(
    "augmentation",
    [
        lambda: augmentation_over([affine(("rotation",)), flip("horizontal")], dtype=torch.float64),
        lambda: augmentation_over(
            affine(("rotation", "scale")), distribution="correlated", dtype=torch.float64
        ),
        lambda: UniformRanges(
            compose(affine(("rotation",)), intensity(("brightness",))), dtype=torch.float64
        ),
    ],
    ids=["a finite group, weighted copies", "correlated ranges", "a composition"],
)
def test_any_augmentation(augmentation: Callable[[], Any]) -> None:
    run_both(lambda: three(augmentation=augmentation, samples=4))


def test_single_precision_agrees_to_its_own_precision() -> None:
    def make() -> list[Trainer]:
        trainers = []
        for seed in SEEDS:
            of_double = made(seed)
            model = InvariantModel(
                of_double.network.float(),
                UniformRanges(affine(("rotation", "translation_x"))),
                of_double.model.samples,
            )
            trainers.append(
                Trainer(model, Categorical(), of_double.config, of_double.inputs.float(),
                        of_double.targets)
            )  # fmt: skip
        return trainers

    stacked, alone = make(), make()
    stack = StackedTrainer(stacked)
    for _ in range(EPOCHS):
        stack.run_epoch()
    for own, other in zip(stacked, alone, strict=True):
        for _ in range(EPOCHS):
            other.run_epoch()
        # 24 bits, a few hundred operations a number, and Adam divides by small roots
        check_same(own, other, tolerance=2e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("build", [mlp, regression, normalised])
def test_on_a_gpu_too(build: Callable[[], nn.Module], captured: bool) -> None:
    """With graphs: three calls warm up, so that from the second epoch on they are replayed."""
    settings = {"build": build, "captured": captured, "precision": "float32", "device": "cuda"}
    run_both(lambda: three(**settings))
    if captured:
        stack = StackedTrainer(three(**settings))
        stack.run_epoch()
        stack.run_epoch()
        graph = stack.weight_steps._captured
        assert graph is not None and graph.failure is None and graph._graph is not None


# --- each run is its own --------------------------------------------------------------------------


def test_each_trainer_can_continue_alone_and_be_stacked_again() -> None:
    stacked, alone = three(), three()
    stack = StackedTrainer(stacked)
    stack.run_epoch()
    stack.run_epoch()
    for trainer in stacked:
        trainer.run_epoch()
    again = StackedTrainer(stacked)
    again.run_epoch()
    for own, other in zip(stacked, alone, strict=True):
        for _ in range(4):
            other.run_epoch()
        check_same(own, other)


def test_a_run_does_not_depend_on_its_company() -> None:
    together, pair = three(), three()[::2]
    for stack in (StackedTrainer(together), StackedTrainer(pair)):
        for _ in range(2):
            stack.run_epoch()
    for own, other in zip(together[::2], pair, strict=True):
        check_same(own, other, tolerance=1e-9)


def test_the_comparison_sees_a_difference() -> None:
    one, other = three()[:2]
    with pytest.raises(AssertionError):
        check_same(one, other)


def test_a_run_that_diverges_says_so() -> None:
    trainers = [made(0), made(1, weight_rate=1e300)]
    with pytest.raises(NotFiniteError, match="the training loss became nan in epoch 1"):
        StackedTrainer(trainers).run_epoch()


# --- refusals -------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """A network with a number that is no parameter."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.inner, self.factor = mlp(), factor

    def forward(self, inputs: Tensor) -> Tensor:
        return self.factor * self.inner(inputs)


def wider() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, 7), nn.Tanh(), nn.Linear(7, 3))


def with_dropout() -> nn.Module:
    return nn.Sequential(mlp(), nn.Dropout(0.2))


REFUSED: dict[str, tuple[Callable[[], list[Trainer]], str]] = {
    "none": (lambda: [], "expected at least one"),
    "samples": (lambda: [made(0), made(1, samples=2)], "same samples"),
    "batch size": (lambda: [made(0), made(1, batch_size=7)], "same batch size"),
    "epochs": (lambda: [made(0), made(1, epochs=9)], "same epochs"),
    "burn-in": (lambda: [made(0), made(1, burn_in=0)], "same burn in"),
    "shapes": (lambda: [made(0), made(1, data=images(count=20))], "same shape of the inputs"),
    "prior": (lambda: [made(0), made(1, prior_structure="layer")], "same prior structure"),
    "width": (lambda: [made(0), made(1, wider)], "same network's parameters"),
    "architecture": (
        lambda: [made(0, lambda: Scaled(1.0)), made(1, lambda: Scaled(2.0))],
        "of one architecture, got in run 1",
    ),
    "randomness": (lambda: [made(0, with_dropout), made(1, with_dropout)], "cannot be stacked"),
    "ranges by the loss": (
        lambda: [made(0, objective="augerino"), made(1, objective="augerino")],
        "got augerino; run it by itself",
    ),
    "two losses": (
        lambda: [made(0, objective="fixed"), made(1, objective="averaged-losses")],
        "one training loss, got averaged-losses beside fixed",
    ),
    "a bound": (
        lambda: [made(0, bound="function-space"), made(1, bound="function-space")],
        "got the bound function-space",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_stacked_is_refused(case: str) -> None:
    make, sentence = REFUSED[case]
    with pytest.raises(CallerError, match=sentence):
        StackedTrainer(make())


def test_a_trainer_twice_or_at_another_epoch_is_refused() -> None:
    one, other = made(0), made(1)
    with pytest.raises(CallerError, match="twice"):
        StackedTrainer([one, one])
    other.run_epoch()
    with pytest.raises(CallerError, match="same epochs done"):
        StackedTrainer([one, other])


# --- orbits ---------------------------------------------------------------------------------------


def test_orbits_together_are_those_of_each_run() -> None:
    augmentations = [UniformRanges(affine(("rotation",)), start=0.3 * k) for k in range(3)]
    data = torch.rand(3, 4, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    noise = torch.rand(3, 4, 2, 1, generator=torch.Generator().manual_seed(1))
    orbits = Orbits(augmentations)
    assert orbits._together
    rows, copies = orbits(data, noise)
    assert copies.count == 2 and rows.shape == (3, 8, 1, 5, 5)
    for run, augmentation in enumerate(augmentations):
        expected = augmentation(data[run], noise[run]).flatten(0, 1)
        torch.testing.assert_close(rows[run], expected.detach())


def test_actions_are_the_same_if_they_move_data_alike() -> None:
    assert same_action(affine(("rotation",)), affine(("rotation",)))
    assert not same_action(affine(("rotation",)), affine(("rotation",), padding="border"))
    assert not same_action(affine(("rotation",)), affine(("scale",)))
    both = [compose(affine(("rotation",)), intensity(("brightness",))) for _ in range(2)]
    assert same_action(*both)
    assert not same_action(both[0], affine(("rotation",)))
