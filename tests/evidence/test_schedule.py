"""Settings of runs and their random numbers: what is filled in, what is refused, what repeats."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from isotropy.checks import CallerError
from isotropy.evidence.layers.settings import FREE_SHARE, RelaxConfig
from isotropy.evidence.settings import (
    OBJECTIVES,
    RECIPES,
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
        search_examples=60, refine=False, compiled=True,
    )  # fmt: skip
    assert given.resolved(examples=100, on_gpu=False).as_dict() == given.as_dict()


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
