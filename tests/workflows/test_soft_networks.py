"""`learn_layers` of relaxed equivariant networks: both priors, what the evidence opens, records."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import isotropy
from isotropy.checks import CallerError
from isotropy.evidence.layers.settings import penalty_of, precision_of
from isotropy.evidence.layers.training import PathwaySteps
from isotropy.networks.equivariant.linear import EquivariantLinear
from isotropy.symmetry.groups.representations import V
from isotropy.workflows.relaxing import CLOSED_PENALTY

GROUP = isotropy.group_named("SO(3)")
BROKEN = torch.diag(torch.tensor([0.0, 0.0, 1.0]))


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def problem(broken: float, examples: int = 60) -> tuple[Tensor, Tensor]:
    """y = 2x + broken · z e_z + noise of 0.1: one number and what no rotation allows."""
    inputs = drawn(examples, 3)
    matrix = 2 * torch.eye(3) + broken * BROKEN
    return inputs, inputs @ matrix.T + 0.1 * drawn(examples, 3, seed=1)


def layer() -> EquivariantLinear:
    return EquivariantLinear(V(GROUP), V(GROUP), generator=torch.Generator().manual_seed(2))


def test_with_map_both_priors_count_as_in_ridge_regression() -> None:
    """θ₁ x + W x + b with penalties beside the mean squared error has a closed form."""
    inputs, targets = problem(0.7)
    penalties = {"bound": 1e-3, "free": 0.05}
    sizes = {"examples": len(inputs), "outputs": 3}
    config = isotropy.RelaxConfig(
        objective="map", epochs=800, batch_size=60, weight_rate=0.1, weight_rate_end=1e-5,
        prior_precision=precision_of(penalties["bound"], **sizes),
        free_precision=precision_of(penalties["free"], **sizes), evaluate_every=999,
    )  # fmt: skip
    result = isotropy.learn_layers(isotropy.relax(layer()), (inputs, targets), config=config)
    (found,) = result.layers
    assert found["penalty"] == pytest.approx(
        {"fc": penalties["free"], "equivariant": penalties["bound"]}
    )
    assert result.record["noise"] == 1.0
    # Columns: θ₁, then W row by row, then b; rows: examples and outputs.
    one = torch.eye(3)
    free = torch.einsum("ni,oc->noci", inputs, one).flatten(0, 1).flatten(1)
    design = torch.cat([inputs.flatten()[:, None], free, one.repeat(len(inputs), 1)], 1).double()
    ridge = torch.diag(torch.tensor([penalties["bound"]] + [penalties["free"]] * 12).double())
    gram = design.T @ design / len(design) + ridge
    best = torch.linalg.solve(gram, design.T @ targets.flatten().double() / len(design))
    linear = result.model.get_submodule("pathways.fc.linear")
    bound = result.model.get_submodule("pathways.equivariant.layer")
    total = (bound.weight + linear.weight).flatten().double()
    assert torch.allclose(total, best[0] * torch.eye(3).flatten() + best[1:10], atol=0.01)
    # The two share a number, which training tells apart slowly.
    assert bound.weight[0, 0].item() == pytest.approx(best[0].item(), abs=0.05)
    assert torch.allclose(linear.bias.double(), best[10:], atol=0.01)


def test_penalties_and_precisions_are_two_units_of_one_thing() -> None:
    given = {"examples": 1000, "outputs": 9, "noise": 0.5}
    assert precision_of(1.0, **given) == 36_000
    assert penalty_of(precision_of(0.3, **given), **given) == pytest.approx(0.3)
    with pytest.raises(CallerError, match="at least 0, got -1"):
        precision_of(-1.0, **given)
    with pytest.raises(CallerError, match="above 0, got 0"):
        penalty_of(1.0, examples=2, outputs=1, noise=0.0)
    with pytest.raises(CallerError, match="free precision: expected above 0"):
        isotropy.RelaxConfig(free_precision=-1.0).check()


@pytest.fixture(scope="module")
def results() -> dict[float, isotropy.RelaxResult]:
    config = isotropy.RelaxConfig(
        epochs=80, batch_size=6, weight_rate=0.02, burn_in=30, update_every=4, evaluate_every=999
    )
    return {
        broken: isotropy.learn_layers(isotropy.relax(layer()), problem(broken), config=config)
        for broken in (0.0, 0.7)
    }


def test_the_evidence_opens_what_the_data_asks_for(
    results: dict[float, isotropy.RelaxResult],
) -> None:
    free = {broken: result.layers[0]["prior_precision"]["fc"] for broken, result in results.items()}
    assert free[0.0] > 100 * free[0.7]
    assert results[0.0].layers[0]["became"] == "equivariant"
    assert set(results[0.7].layers[0]["became"].split(" + ")) == {"equivariant", "fc"}
    expected = 2 * torch.eye(3) + 0.7 * BROKEN
    model = results[0.7].model
    assert torch.allclose(model(torch.eye(3)) - model(torch.zeros(3, 3)), expected.T, atol=0.1)
    assert results[0.7].trainer.likelihood.noise == pytest.approx(0.1, rel=0.2)


def test_what_is_free_starts_all_but_closed(results: dict[float, isotropy.RelaxResult]) -> None:
    assert results[0.0].trainer.config.free_precision == CLOSED_PENALTY * 60 * 3
    given = isotropy.RelaxConfig(epochs=1, free_precision=7.0)
    result = isotropy.learn_layers(isotropy.relax(layer()), problem(0.0), config=given)
    assert result.trainer.config.free_precision == 7.0


def test_runs_are_saved_told_and_loaded(
    results: dict[float, isotropy.RelaxResult], tmp_path: Path
) -> None:
    result = results[0.7]
    folder = result.save(tmp_path / "run")
    model = isotropy.load(folder, network=isotropy.relax(layer()))
    assert torch.equal(model(torch.eye(3)), result.model(torch.eye(3)))
    assert "equivariant" in result.page()
    hard = results[0.0].harden()
    assert isinstance(hard, EquivariantLinear)
    isotropy.assert_equivariant(hard.double(), (V(GROUP), V(GROUP)), drawn(4, 3).double())


@pytest.mark.parametrize("unit", [1.0, 30.0])
def test_noise_starts_in_the_unit_of_the_targets(unit: float) -> None:
    inputs, targets = problem(0.0)
    config = isotropy.RelaxConfig(epochs=1, burn_in=5)
    result = isotropy.learn_layers(isotropy.relax(layer()), (inputs, unit * targets), config=config)
    size = float((unit * targets).square().mean().sqrt())
    assert result.record["noise"] == pytest.approx(0.2 * size, rel=1e-5)


@pytest.mark.parametrize(("burn_in", "first"), [(3, 6), (8, 9)])
def test_pathways_are_switched_off_after_weights_had_time_to_follow(
    monkeypatch: pytest.MonkeyPatch, burn_in: int, first: int
) -> None:
    """After half of the epochs, and a quarter of those with steps on precisions."""
    seen = []
    monkeypatch.setattr(
        PathwaySteps, "_switch_off", lambda _, trainer, __: seen.append(trainer.epoch)
    )
    config = isotropy.RelaxConfig(
        epochs=12, batch_size=30, burn_in=burn_in, update_every=1, evaluate_every=999
    )
    isotropy.learn_layers(isotropy.relax(layer()), problem(0.7), config=config)
    assert seen == list(range(first, 13))
