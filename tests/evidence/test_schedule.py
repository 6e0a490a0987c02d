"""Settings of runs and their random numbers: what is filled in, what is refused, what repeats."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from isotropy.checks import CallerError
from isotropy.evidence.layers.settings import FREE_SHARE, RelaxConfig
from isotropy.evidence.objectives import OBJECTIVES, RECIPES
from isotropy.evidence.settings import (
    PRIOR_STEPS,
    TRAVEL,
    LearnConfig,
    cosine,
    stream,
    too_short,
)

MAY_STAY_EMPTY = {"ranges", "caps", "start", "micro_batch"}
LARGEST_RATE = 0.25


def complete(config: LearnConfig) -> bool:
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return all(value is not None for name, value in values.items() if name not in MAY_STAY_EMPTY)


def config_for(objective: str, **settings: object) -> LearnConfig:
    ranges = {"rotation": 30.0} if RECIPES[objective].ranges == "given" else None
    return LearnConfig(objective=objective, ranges=ranges, **settings)  # type: ignore[arg-type]


# --- what is left open is filled in ---------------------------------------------------------------


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("examples", [1, 10, 312, 5000, 60_000])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_none_is_filled_in(objective: str, examples: int, on_gpu: bool):
    assert not complete(config_for(objective))
    resolved = config_for(objective).resolved(examples=examples, on_gpu=on_gpu)
    assert complete(resolved)
    resolved.check()
    assert resolved.batch_size <= examples and resolved.curvature_batch <= examples
    assert resolved.burn_in < resolved.epochs
    wanted = RECIPES[objective].samples
    assert resolved.samples > 1 if wanted is None else resolved.samples == wanted
    assert resolved.resolved(examples=examples, on_gpu=on_gpu) == resolved


def test_what_was_given_is_kept():
    given = LearnConfig(
        samples=5, test_samples=7, epochs=40, batch_size=16, curvature_batch=9, burn_in=0,
        gradient_batches=0, range_rate=0.01, range_rate_end=0.001, prior_rate=0.2, prior_steps=3,
        evaluate_every=2, precision="tf32", range_memory=0.5, bound_batch=4, bound_fits=3, seed=11,
        search_examples=60, refine=False, compiled=True, weight_rate=0.2, scalar_rate=0.3,
        prior_structure="layer", curvature="kfac-ef", curvature_examples=30,
    )  # fmt: skip
    assert given.resolved(examples=100, on_gpu=False).as_dict() == given.as_dict()


RATES = {
    "adam": ({}, (5e-3, 1.0)),
    "sgd": ({"optimiser": "sgd"}, (0.1, 0.1)),
    "sgd, as given": ({"optimiser": "sgd", "weight_rate": 0.3, "scalar_rate": 1.0}, (0.3, 1.0)),
}


@pytest.mark.parametrize(("settings", "expected"), RATES.values(), ids=RATES)
def test_rates_follow_from_the_optimiser(settings, expected: tuple[float, float]):
    """The paper's: 5e-3 of Adam on digits; 0.1 of SGD, a tenth for Fixup's scalars."""
    resolved = LearnConfig(**settings).resolved(examples=100, on_gpu=False)
    assert (resolved.weight_rate, resolved.scalar_rate) == expected
    assert resolved.momentum == 0.9 and not resolved.nesterov


@pytest.mark.parametrize(
    ("settings", "convolutional", "expected"),
    [
        ({}, True, "scalar"),
        ({"optimiser": "sgd"}, False, "scalar"),
        ({"optimiser": "sgd"}, True, "tensor"),
        ({"optimiser": "sgd", "prior_structure": "layer"}, True, "layer"),
    ],
)
def test_the_structure_of_the_prior(settings, convolutional: bool, expected: str):
    resolved = LearnConfig(**settings).resolved(
        examples=100, on_gpu=False, convolutional=convolutional
    )
    assert resolved.prior_structure == expected


PASSES = {
    "all of few": ({}, 10_000, False, 0, "kfac-ggn"),
    "some of many": ({}, 10_001, False, 10_000, "kfac-ggn"),
    "all of many": ({"curvature_examples": 0}, 60_000, False, 0, "kfac-ggn"),
    "as many as asked": ({"curvature_examples": 300}, 1000, False, 300, "kfac-ggn"),
    "no more than there are": ({"curvature_examples": 300}, 200, False, 0, "kfac-ggn"),
    "one direction of deep networks": ({}, 200, True, 0, "kfac-mc"),
    "all directions, as asked": ({"curvature": "kfac-ggn"}, 200, True, 0, "kfac-ggn"),
}


@pytest.mark.parametrize(
    ("settings", "examples", "deep", "some", "curvature"), PASSES.values(), ids=PASSES
)
def test_evidence_passes(settings, examples: int, deep: bool, some: int, curvature: str):
    resolved = LearnConfig(**settings).resolved(examples=examples, on_gpu=False, deep=deep)
    assert (resolved.curvature_examples, resolved.curvature) == (some, curvature)


PRIORS = {
    # Settings, hyper steps of the run, and steps on precisions in each.
    "many hyper steps": ({}, 70, 1),
    "as many as are needed": ({"epochs": 30}, 25, 1),
    "few epochs": ({"epochs": 7}, 6, 4),
    "rare hyper steps": ({"update_every": 7}, 10, 2),
    "none at all": ({"epochs": 1, "update_every": 2}, 0, PRIOR_STEPS),
    "as asked": ({"epochs": 7, "prior_steps": 1}, 6, 1),
}


@pytest.mark.parametrize(("settings", "updates", "steps"), PRIORS.values(), ids=PRIORS)
def test_precisions_take_twenty_steps_at_least(settings, updates: int, steps: int):
    resolved = LearnConfig(**settings).resolved(examples=60_000, on_gpu=False)
    assert (resolved.epochs - resolved.burn_in) // resolved.update_every == updates
    assert resolved.prior_steps == steps
    assert steps == 1 or steps * max(1, updates) >= PRIOR_STEPS


SEARCHES = {
    "by default": ({}, 1500, True, 1500),
    "of many": ({}, 1501, True, 1500),
    "of as many as asked": ({"search_examples": 700}, 5000, True, 700),
    "of no more than there are": ({"search_examples": 700}, 300, True, 300),
    "not asked for": ({"search": False}, 300, False, 300),
    "with a start": ({"start": {"rotation": 20.0}}, 300, False, 300),
    "with an empty start": ({"start": {}}, 300, False, 300),
    "of another objective": ({"objective": "augerino"}, 300, False, 300),
}


@pytest.mark.parametrize(
    ("settings", "examples", "search", "part"), SEARCHES.values(), ids=SEARCHES
)
def test_which_runs_search(settings, examples: int, search: bool, part: int):
    resolved = LearnConfig(**settings).resolved(examples=examples, on_gpu=False)
    assert resolved.search is search and resolved.search_examples == part
    assert resolved.refine is True


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("update_every", [1, 2, 5])
@pytest.mark.parametrize("burn_in", [None, 0, 10])
@pytest.mark.parametrize("epochs", [None, 12, 30, 60, 100, 1000])
def test_ranges_can_travel_their_period_twice(epochs, burn_in, update_every, on_gpu):
    """Learning rate × updates ≥ 2 (π + ½), or the run is told to be too short."""
    config = LearnConfig(epochs=epochs, burn_in=burn_in, update_every=update_every)
    resolved = config.resolved(examples=1000, on_gpu=on_gpu)
    due = [e for e in range(1, resolved.epochs + 1)
           if e > resolved.burn_in and (e - resolved.burn_in) % update_every == 0]  # fmt: skip
    travel = resolved.range_rate * len(due)
    if too_short(resolved):
        assert resolved.range_rate == LARGEST_RATE and travel < 2 * (math.pi + 0.5)
    else:
        assert travel >= 2 * (math.pi + 0.5) * (1 - 1e-9)
    assert 0.05 <= resolved.range_rate <= LARGEST_RATE


@pytest.mark.parametrize("on_gpu", [False, True])
def test_the_default_run_is_long_enough(on_gpu: bool):
    assert not too_short(LearnConfig().resolved(examples=1000, on_gpu=on_gpu))


def test_a_short_run_is_called_too_short_only_where_ranges_are_learned():
    for objective in OBJECTIVES:
        resolved = config_for(objective, epochs=5).resolved(examples=100, on_gpu=False)
        assert too_short(resolved) is (objective == "evidence")


@pytest.mark.parametrize(
    "config",
    [config_for("fixed", caps={"rotation": 90.0}), RelaxConfig(free_precision=3.0)],
    ids=["learn", "relax"],
)
def test_as_dict_and_back(config: LearnConfig | RelaxConfig):
    schedule = config.resolved(examples=100, on_gpu=False)
    record = schedule.as_dict()
    assert type(schedule).from_dict({**record, "of a later version": 1}) == schedule
    again = type(config).from_dict(record)
    assert again.resolved(examples=100, on_gpu=True) == schedule, "what a run was given stays"
    assert type(config).from_dict({}) == type(config)(), "of an earlier version"


@pytest.mark.parametrize("config", [LearnConfig(), RelaxConfig()], ids=["learn", "relax"])
def test_a_schedule_leaves_nothing_open(config: LearnConfig | RelaxConfig):
    """A field may be None only where that says something: no ranges, or as many as fit."""
    schedule = config.resolved(examples=100, on_gpu=False)
    for field in dataclasses.fields(schedule):
        if field.name in MAY_STAY_EMPTY:
            assert "None" in str(field.type)
        else:
            with pytest.raises(AssertionError, match=f"nothing was given for {field.name}"):
                dataclasses.replace(schedule, **{field.name: None})


FREE = {
    "a share of the examples": (100_000, {}, FREE_SHARE * 100_000),
    "of twice as many": (200_000, {}, 2 * FREE_SHARE * 100_000),
    "not below that of the others": (3, {}, 1.0),
    "whatever that is": (3, {"prior_precision": 5.0}, 5.0),
    "of many examples too": (100_000, {"prior_precision": 1e6}, 1e6),
    "as given, even if low": (100_000, {"free_precision": 0.01}, 0.01),
}


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize(("examples", "settings", "expected"), FREE.values(), ids=FREE)
def test_the_precision_that_fully_connected_pathways_start_at(
    examples: int, settings: dict[str, float], expected: float, on_gpu: bool
):
    found = RelaxConfig(**settings).resolved(examples=examples, on_gpu=on_gpu).free_precision
    assert 0 < FREE_SHARE < 1 and found == pytest.approx(expected)


def test_cosine():
    assert cosine(1.0, 0.1, 0.0) == 1.0
    assert math.isclose(cosine(1.0, 0.1, 0.5), 0.55)
    assert math.isclose(cosine(1.0, 0.1, 1.0), 0.1)
    assert math.isclose(cosine(1.0, 0.1, 7.0), 0.1)


# --- refused --------------------------------------------------------------------------------------


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "objective": ({"objective": "laplas"}, "unknown objective 'laplas'.*did you mean 'laplace'"),
    "prior": ({"prior_structure": "layers"}, "unknown prior structure 'layers'"),
    "curvature": ({"curvature": "kfac-gnn"}, "unknown curvature 'kfac-gnn'.*'kfac-ggn'"),
    "fallback": ({"fallback": "diagnal"}, "unknown fallback 'diagnal'.*'diagonal'"),
    "distribution": ({"distribution": "corelated"}, "unknown distribution.*'correlated'"),
    "likelihood": ({"likelihood": "poisson"}, "unknown likelihood 'poisson'"),
    "epochs": ({"epochs": 0}, "epochs: expected at least 1, got 0"),
    "samples": ({"samples": -3}, "samples: expected at least 1, got -3"),
    "batch size": ({"batch_size": 0}, "batch size: expected at least 1"),
    "update every": ({"update_every": 0}, "update every: expected at least 1"),
    "burn in": ({"burn_in": -1}, "burn in: expected at least 0, got -1"),
    "gradient batches": ({"gradient_batches": -1}, "gradient batches: expected at least 0"),
    "weight rate": ({"weight_rate": 0.0}, "weight rate: expected above 0, got 0"),
    "weight rate below 0": ({"weight_rate": -0.1}, "weight rate: expected above 0, got -0.1"),
    "weight rate nan": ({"weight_rate": math.nan}, "weight rate: expected above 0, got nan"),
    "last weight rate": ({"weight_rate_end": -1e-6}, "weight rate end: expected at least 0"),
    "last weight rate nan": ({"weight_rate_end": math.nan}, "weight rate end: expected at least 0"),
    "last range rate": ({"range_rate_end": math.inf}, "range rate end: .* at least 0, got inf"),
    "scalar rate": ({"scalar_rate": 0.0}, "scalar rate: expected above 0, got 0"),
    "scalar rate nan": ({"scalar_rate": math.nan}, "scalar rate: expected above 0, got nan"),
    "optimiser": ({"optimiser": "sdg"}, "unknown optimiser 'sdg'.*did you mean 'sgd'"),
    "momentum of 1": ({"momentum": 1.0}, "momentum: expected at least 0 and below 1, got 1.0"),
    "momentum below 0": ({"momentum": -0.1}, "momentum: expected at least 0 and below 1, got -0.1"),
    "momentum nan": ({"momentum": math.nan}, "momentum: expected at least 0 and below 1, got nan"),
    "nesterov without momentum": (
        {"optimiser": "sgd", "nesterov": True, "momentum": 0.0},
        "nesterov: expected the optimiser sgd with a momentum above 0, .* got sgd with 0",
    ),
    "nesterov of adam": (
        {"nesterov": True},
        "nesterov: expected the optimiser sgd with a momentum above 0, .* got adam with 0.9",
    ),
    "warm up": ({"warm_up": -1.0}, "warm up: expected at least 0, got -1"),
    "warm up nan": ({"warm_up": math.nan}, "warm up: expected at least 0, got nan"),
    "ema decay of 1": ({"ema_decay": 1.0}, "ema decay: expected at least 0 and below 1, got 1.0"),
    "ema decay below 0": ({"ema_decay": -0.5}, "ema decay: expected at least 0 and below 1"),
    "ema decay nan": ({"ema_decay": math.nan}, "ema decay: .* below 1, got nan"),
    "an average beside a bound": (
        {"ema_decay": 0.9, "bound": "function-space"},
        "ema decay: expected 0 with bound function-space, .* got 0.9",
    ),
    "an average beside a solve": (
        {"ema_decay": 0.9, "evidence": "elbo"},
        "ema decay: expected 0 with evidence elbo, .* got 0.9",
    ),
    "range memory": ({"range_memory": 1.0}, "range memory: expected at least 0 and below 1"),
    "range rate": ({"range_rate": float("nan")}, "range rate: expected above 0, got nan"),
    "prior rate": ({"prior_rate": float("inf")}, "prior rate: expected above 0, got inf"),
    "precision": ({"prior_precision": -1.0}, "prior precision: expected above 0"),
    "fixed without ranges": ({"objective": "fixed"}, "objective fixed: expected the ranges"),
    "ranges to learn": (
        {"ranges": {"rotation": 3.0}},
        "ranges are given only for the objectives fixed and averaged-losses, .* use caps",
    ),
    "averaged losses without ranges": (
        {"objective": "averaged-losses"},
        "objective averaged-losses: expected the ranges",
    ),
    "augerino-original with a covariance": (
        {"objective": "augerino-original", "distribution": "correlated"},
        "expected the distribution independent, got 'correlated'; use evidence or augerino",
    ),
}


OF_LAYERS: dict[str, tuple[dict[str, object], str]] = {
    "objective": ({"objective": "maximum"}, "unknown objective 'maximum'"),
    "augmentation": ({"augmentation": "cutout"}, "unknown augmentation 'cutout'"),
    "precision": ({"precision": "float16"}, "unknown precision 'float16'"),
    "curvature": ({"curvature": "diagonal-ggn"}, "Kronecker-factored"),
    "epochs": ({"epochs": 0}, "epochs: expected at least 1, got 0"),
    "burn in": ({"burn_in": -1}, "burn in: expected at least 0, got -1"),
    "weight rate": ({"weight_rate": -1.0}, "weight rate: expected above 0"),
    **{
        f"free precision {value}": ({"free_precision": value}, "free precision: expected above 0")
        for value in (0.0, -1.0, math.inf, math.nan)
    },
}


@pytest.mark.parametrize(
    ("kind", "settings", "sentence"),
    [
        pytest.param(kind, *row, id=f"{kind.__name__} {name}")
        for kind, rows in ((LearnConfig, REFUSED), (RelaxConfig, OF_LAYERS))
        for name, row in rows.items()
    ],
)
def test_refused(kind: type, settings: dict[str, object], sentence: str):
    with pytest.raises(CallerError, match=sentence):
        kind(**settings).resolved(examples=100, on_gpu=False)


# --- random numbers -------------------------------------------------------------------------------


def draw(*address: object) -> float:
    return float(torch.rand((), generator=stream(*address), dtype=torch.float64))


def test_streams_repeat():
    assert draw(3, "noise", 7) == draw(3, "noise", 7)


def test_streams_differ_by_seed_purpose_and_step():
    addresses = [(seed, purpose, step) for seed in (0, 1, 10) for purpose in ("noise", "noise ")
                 for step in (0, 1, 11)]  # fmt: skip
    drawn = {draw(*address) for address in addresses}
    assert len(drawn) == len(addresses)


def test_streams_leave_the_global_one_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    draw(0, "noise")
    assert torch.equal(torch.rand(3), expected)


def test_augerino_steps_with_every_weight_step_so_its_rate_is_lower() -> None:
    resolved = LearnConfig(objective="augerino").resolved(examples=2000, on_gpu=False)
    assert resolved.range_rate == 0.005  # the paper's, and enough to travel twice the period
    assert resolved.range_rate * resolved.epochs * 2000 / resolved.batch_size >= TRAVEL


# --- every number is checked, whichever field it is in ------------------------------------------

NUMBERS = [
    (settings, field.name)
    for settings in (LearnConfig, RelaxConfig)
    for field in dataclasses.fields(settings)
    if str(field.type).startswith(("int", "float", "Mapping"))
]


@pytest.mark.parametrize(("settings", "name"), NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -1, "1", True, 2**63])
def test_numbers_that_no_field_takes(settings: type, name: str, value: object) -> None:
    kind = str(next(f.type for f in dataclasses.fields(settings) if f.name == name))
    if value == 2**63 and not kind.startswith("int"):
        pytest.skip("a number like any other")
    given = {"rotation": value} if kind.startswith("Mapping") else value
    with pytest.raises(CallerError, match=name.replace("_", " ")):
        settings(**{name: given}).check()


def test_a_flag_is_no_number() -> None:
    with pytest.raises(CallerError, match="search: expected true or false, got 1"):
        LearnConfig(search=1).check()  # type: ignore[arg-type]
