"""Refits: what they change (nothing of the run), what they repeat, what one copy stands for."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from planar_problems import Turn, by_radius, mirror, mlp, trainer_of
from torch import Tensor

from isotropy.evidence.refitting import RefitPlan, plan_for, refit, refit_evidence
from isotropy.evidence.training import Trainer
from isotropy.networks.invariant_model import InvariantModel

PLAN = RefitPlan(epochs=3, weight_rate=0.02, prior_rate=0.1)


@pytest.fixture(scope="module")
def trained() -> Trainer:
    actions = [Turn("turn", "spin"), mirror(0)]
    return trainer_of(
        mlp, by_radius, actions, ranges={"turn": 40.0, "spin": 5.0, "mirror_x": 0.2}, epochs=4
    )


def everything(trainer: Trainer) -> dict[str, Any]:
    """All of a trainer's state that a run folder would keep."""
    return copy.deepcopy(
        {
            "network": trainer.network.state_dict(),
            "augmentation": trainer.model.augmentation.state_dict(),
            "prior": trainer.prior.state_dict(),
            "likelihood": trainer.likelihood.state_dict(),
            "optimisers": {n: o.state_dict() for n, o in trainer.optimisers.items()},
            "epoch": trainer.epoch,
            "samples": trainer.model.samples,
            "training": [module.training for module in trainer.model.modules()],
            "learns": [p.requires_grad for p in trainer.model.parameters()],
            "config": trainer.config,
        }
    )


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def all_on(trainer: Trainer) -> dict[str, Tensor]:
    return dict(trainer.model.augmentation.switched_off(()))


def test_the_run_is_left_as_it_was(trained: Trainer) -> None:
    before, random = everything(trained), torch.get_rng_state()
    again = refit(trained, trained.model.augmentation.switched_off(["turn"]), PLAN, seed=1)
    after = everything(trained)
    assert same(before, after)
    assert torch.equal(torch.get_rng_state(), random)
    assert not same(before["network"], again.network.state_dict()), "a refit trains"
    assert not same(before["prior"], again.prior.state_dict()), "a refit learns precisions"


def test_a_seed_decides_all(trained: Trainer) -> None:
    first, second, other = (refit(trained, all_on(trained), PLAN, seed=seed) for seed in (3, 3, 4))
    assert same(everything(first), everything(second))
    assert not same(first.network.state_dict(), other.network.state_dict())
    values = [refit_evidence(each, 16) for each in (first, second, other)]
    assert values[0] == values[1] and values[0].nats != values[2].nats
    assert values[0].noise_seed != values[2].noise_seed


def test_ranges_stay_fixed(trained: Trainer) -> None:
    state = trained.model.augmentation.switched_off(["spin"])
    again = refit(trained, state, PLAN, seed=1)
    assert same(dict(again.model.augmentation.state_dict()), dict(state))
    found = {s.name: s.high for s in again.model.symmetries()}
    expected = {"turn": 40.0, "spin": 0.0, "mirror_x": 0.2}
    assert found == {name: pytest.approx(amount) for name, amount in expected.items()}
    assert again.model.samples == trained.model.samples


def test_starts_from_where_the_run_stands(trained: Trainer) -> None:
    """With steps of no size nothing moves: weights, precisions and noise are those of the run."""
    still = RefitPlan(epochs=1, weight_rate=1e-30, prior_rate=1e-30)
    again = refit(trained, all_on(trained), still, seed=1)
    torch.testing.assert_close(
        dict(again.network.state_dict()), dict(trained.network.state_dict()), rtol=0, atol=1e-5
    )  # the rate ends at its usual small value
    assert torch.equal(again.prior.log_precisions, trained.prior.log_precisions)


def test_one_copy_stands_for_many_equal_ones(trained: Trainer) -> None:
    """Without any symmetry S copies are the same, and so are all numbers of the refit."""
    names = [symmetry.name for symmetry in trained.model.symmetries()]
    nothing = trained.model.augmentation.switched_off(names)
    one = refit(trained, nothing, PLAN, seed=1)
    assert one.model.samples == 1 and one.model.augmentation.is_identity
    many = Trainer(
        InvariantModel(copy.deepcopy(trained.network), one.model.augmentation, 16),
        copy.deepcopy(trained.likelihood),
        one.config,
        trained.inputs,
        trained.targets,
    )
    with torch.no_grad():
        many.prior.log_precisions.copy_(trained.prior.log_precisions)
    for _ in range(PLAN.epochs):
        many.run_epoch()
    torch.testing.assert_close(
        dict(one.network.state_dict()), dict(many.network.state_dict()), rtol=1e-9, atol=1e-12
    )
    alone, together = refit_evidence(one, 16), many.evidence_value("refit")
    assert alone.nats == pytest.approx(together.nats, rel=1e-10)
    assert alone - together == pytest.approx(0.0, abs=1e-6), "comparable: the same copies count"


def test_progress_is_told_every_epoch(trained: Trainer) -> None:
    told: list[int] = []
    refit(trained, all_on(trained), PLAN, seed=1, progress=told.append)
    assert told == [1, 2, 3]


def test_plan_follows_from_the_run(trained: Trainer) -> None:
    plan = plan_for(trained)
    assert plan.epochs == 2  # of 4, and never less
    assert plan.weight_rate == trained.config.weight_rate / 2
    assert plan.prior_rate == trained.config.prior_rate
