"""The pendulum's experiment in miniature: rows, learning, rollouts, and the goals of its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from isotropy.checks import CallerError
from isotropy.cli.main import cli
from isotropy.experiments.runner import Job, read_rows, read_table
from isotropy.experiments.thesis import bases, dynamics
from isotropy.experiments.thesis.dynamics import (
    DynamicsSettings,
    fit_dynamics,
    relative_error,
    rollout,
)
from isotropy.experiments.thesis.problems import (
    ACCURATE,
    CHUNK,
    STEP,
    integrate,
    motion,
    pendulum_data,
)
from isotropy.experiments.thesis.seed_stack import SeedStack
from isotropy.networks.equivariant.emlp import plain_mlp
from isotropy.networks.zoo.backbones import NeuralODE

CPU = torch.device("cpu")
TINY: dict[str, Any] = {"channels": 12, "layers": 1, "examples": 6, "epochs": 3, "duration": 1.0}


STILL = DynamicsSettings(epochs=1, learning_rate=0.0, duration=2.0)


def data_of(seed: int, each: int = 8):
    return pendulum_data(each, torch.Generator().manual_seed(seed))


def test_every_row_of_the_table_is_a_job() -> None:
    table = read_table("dynamics")
    names = {f"{kind}/{network}" for kind in ("HNN", "ODE") for network in table["networks"]}
    found = dynamics.jobs(table, quick=False)
    assert {job.row for job in found} == names and len(names) == 10
    assert all(job.seeds == (20, 21, 22) and job.settings["epochs"] == 2000 for job in found)
    assert {job.row for job in dynamics.jobs(table, quick=True)} < names


@pytest.mark.parametrize("row", ["HNN/O(2)", "HNN/D2", "ODE/O(2)", "ODE/MLP"])
def test_rows_run(row: str) -> None:
    (job,) = (job for job in dynamics.jobs(read_table("dynamics"), False) if job.row == row)
    small = Job(row, (0, 1), {**job.settings, **TINY})
    first, second = dynamics.run(small, CPU)
    assert first["rollout_error"] != second["rollout_error"]
    for record in (first, second):
        assert 0 < record["rollout_error"] < 1 and len(record["error_by_time"]) == 5
        assert (record["momentum_error"] < 1e-5) == (row == "HNN/O(2)")


class Motion(nn.Module):
    """The true motion, off by a parameter."""

    def __init__(self, off: float) -> None:
        super().__init__()
        self.off = nn.Parameter(torch.tensor(off, dtype=torch.float64))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return (1 + self.off) * motion(states)


def test_the_true_motion_is_found_again() -> None:
    settings = DynamicsSettings(epochs=40, learning_rate=1e-2, duration=2.0)
    (before,) = fit_dynamics([Motion(0.2)], [data_of(0)], STILL)
    (found,) = fit_dynamics([Motion(0.2)], [data_of(0)], settings)
    assert before.rollout_error > 5 * found.rollout_error
    assert before.validation_loss > 100 * found.validation_loss


def test_rollouts_are_of_the_best_weights_and_in_float64() -> None:
    # Adam's first step is the rate: it lands on the truth, and later ones overshoot.
    settings = DynamicsSettings(epochs=3, learning_rate=0.2, duration=2.0)
    (found,) = fit_dynamics([Motion(0.2)], [data_of(0)], settings)
    assert found.best_epoch == 1 and found.rollout_error < 1e-5
    exact = SeedStack([Motion(0.0)], 0.0)
    start = data_of(0).test[None, :, 0]
    path = rollout(exact, exact.parameters, start, 10)
    assert path.dtype == torch.float64
    torch.testing.assert_close(path, integrate(motion, start, 10, STEP, within=ACCURATE))


def test_the_loss_is_the_mean_over_the_piece() -> None:
    data = data_of(0)
    network = Motion(0.1)
    (found,) = fit_dynamics([network], [data], STILL)
    pieces = data.validation
    with torch.no_grad():
        path = integrate(network, pieces[:, 0], CHUNK, STEP, within=1).transpose(0, 1)
    assert found.validation_loss == pytest.approx(float((path - pieces).square().mean()))


def test_seeds_together_are_seeds_alone() -> None:
    def network(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return NeuralODE(plain_mlp(12, 12, channels=6, layers=1).double())

    settings = DynamicsSettings(epochs=3, duration=1.0)
    data = [data_of(0), data_of(1)]
    both = fit_dynamics([network(0), network(1)], data, settings)
    for seed, together in enumerate(both):
        (alone,) = fit_dynamics([network(seed)], [data[seed]], settings)
        assert together.rollout_error == pytest.approx(alone.rollout_error, rel=1e-8)
        assert together.momentum_by_time == pytest.approx(alone.momentum_by_time, rel=1e-6)
    with pytest.raises(CallerError, match="1 networks and 2 data"):
        fit_dynamics([network(0)], data, settings)


def test_relative_error_is_bounded() -> None:
    one = torch.tensor([[3.0, 4.0], [3.0, 4.0], [float("nan"), 0.0], [float("inf"), 0.0]])
    other = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    assert relative_error(one, other).tolist() == pytest.approx([1e-7, 1.0, 1.0, 1.0])


def test_convergence_is_exponential_and_recorded(tmp_path: Path) -> None:
    words = ["convergence", "--quick", "--results", str(tmp_path), "--json", "--commit", "abc"]
    told: list[str] = []
    context = cli.commands["reproduce"].make_context("reproduce", words, obj="isotropy reproduce")
    with pytest.MonkeyPatch.context() as patch, context:
        patch.setattr(
            "click.echo", lambda text="", err=False, **_: None if err else told.append(text)
        )
        cli.commands["reproduce"].invoke(context)
    (line,) = told
    assert len(json.loads(line)["results"]) == 3
    kept = read_rows(tmp_path / "convergence-quick" / "rows.jsonl")
    assert [record["row"] for record in kept] == ["SO(3) T(3)", "Z(4) T(3)", "SO+(1,3) T(3)"]
    for record in kept:
        assert record["commit"] == "abc" and record["versions"]["torch"] == torch.__version__
        assert record["command"] == "isotropy reproduce" and record["seconds"] > 0
        norms = record["norms"]
        assert len(norms) == 301 and norms[-1] < 1e-10 * norms[0]
        assert bases.decades(norms) > 0.02
    assert bases.decades([1.0, 0.1, 0.01, 1e-14, 1e-14]) == pytest.approx(1.0)
