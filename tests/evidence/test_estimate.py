"""A run's time and memory before it starts: every part counted, and nothing changed by trying."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

from isotropy.evidence import estimate, laplace
from isotropy.evidence.estimate import Estimate, estimate_run
from isotropy.evidence.machine import step_bytes
from isotropy.evidence.settings import LearnConfig
from isotropy.evidence.training import Trainer
from isotropy.likelihoods import Categorical
from isotropy.networks.averaging.augmentations import UniformRanges
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.symmetry.actions.images import affine


def trainer(**settings: Any) -> Trainer:
    chosen = {"epochs": 10, "samples": 3, "batch_size": 8, "burn_in": 4, "curvature_batch": 6,
              "gradient_batches": 1, "test_samples": 5, "evaluate_every": 5} | settings  # fmt: skip
    config = LearnConfig(**chosen).resolved(examples=20, on_gpu=False)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(20, 1, 5, 5, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(25, 6), nn.Tanh(), nn.Linear(6, 2))
    model = InvariantModel(network, UniformRanges(affine(("rotation",))), 3)
    return Trainer(model, Categorical(), config, images, torch.arange(20) % 2)


def counted(monkeypatch: pytest.MonkeyPatch, seconds: list[float]) -> None:
    """Every try takes as long as the list says."""
    left = iter(seconds)

    def timed(device: torch.device, task: Any) -> tuple[float, float]:
        task()
        return next(left), 0.0

    monkeypatch.setattr(estimate, "_timed", timed)
    monkeypatch.setattr(estimate, "SLOW", math.inf)


def test_parts_are_multiplied_by_how_often_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors of one batch take 7 s and of two 10 s: 3 s each, and 4 s once."""
    counted(monkeypatch, [2.0, 7.0, 10.0, 5.0])
    found = estimate_run(trainer(), test_examples=12)
    assert found.weight_steps == pytest.approx(2 * 3 * 10)  # 20 examples in batches of 8, 10 epochs
    # 6 hyper steps after the burn-in; 4 batches of 6; the gradient of 8 examples in 2 of them.
    assert found.evidence == pytest.approx(6 * (3 * 4 + 4 + 5 * 2))
    assert found.scoring == pytest.approx(2 / (8 * 3) / 3 * 12 * 5 * 2)
    assert found.seconds == pytest.approx(found.weight_steps + found.evidence + found.scoring)


def test_a_pass_for_the_record_is_over_all_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no hyper step takes all, or where there is none."""
    counted(monkeypatch, [2.0, 7.0, 10.0, 5.0])
    made = trainer(curvature_examples=10)
    assert made.hyper.few == 10
    made.hyper.closing_passes = 1
    once = 3 * 4 + 4  # 4 batches of 6 of 20 examples
    assert estimate_run(made).evidence == pytest.approx(6 * (3 * 2 + 4 + 5 * 2) + once)
    counted(monkeypatch, [2.0, 7.0, 10.0])
    made = trainer(objective="augerino")
    made.hyper.closing_passes = 1
    assert estimate_run(made).evidence == pytest.approx(once)


def test_no_evidence_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    counted(monkeypatch, [2.0])
    found = estimate_run(trainer(objective="augerino"))
    assert (found.evidence, found.scoring) == (0.0, 0.0)


def test_what_is_done_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counted(monkeypatch, [2.0, 7.0, 10.0, 5.0])
    made = trainer()
    made.epoch = 7
    found = estimate_run(made)
    assert found.weight_steps == pytest.approx(2 * 3 * 3)
    assert found.evidence == pytest.approx(3 * (3 * 4 + 4 + 5 * 2))


def test_memory_is_that_of_the_part_that_is_held() -> None:
    made = trainer(micro_batch=4, objective="augerino")
    assert estimate_run(made).memory == step_bytes(made.network, made.inputs, 3, 4)


def test_memory_of_a_pass_with_a_graph_counts() -> None:
    """Six times what a row takes, as shortcuts serve both layers; 6 examples with 3 copies.

    Beside them the factors with their eigenvectors, and the workspace of the largest.
    """
    made = trainer()
    of_copy = 4 * (25 + 6 + 2)  # the image, which is not counted twice, tanh and the outputs
    factors = 12 * (25**2 + 6**2 + 6**2 + 2**2) + 24 * 25**2
    assert estimate_run(made).memory == 6 * 6 * 3 * of_copy + factors


def test_trying_changes_nothing() -> None:
    first, second = trainer(), trainer()
    state = torch.get_rng_state()
    estimate_run(first, test_examples=20)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in first.network.parameters())
    records = [[each.run_epoch() for _ in range(6)] for each in (first, second)]
    for one, other in zip(*records, strict=True):
        ours, theirs = copy.copy(one.as_dict()), other.as_dict()
        ours.pop("seconds"), theirs.pop("seconds")
        assert ours == theirs


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (80, "80 s"), (100, "2 min"), (3000, "50 min"), (7200, "2.0 h")],
)
def test_in_words(seconds: float, text: str) -> None:
    assert Estimate(seconds, 0, 0, 2.34e9).text == f"about {text} and 2.3 GB"


def test_what_is_slow_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight step of 4 s; factors of a batch 5 s and their eigenvalues 40 s; a gradient 6 s."""
    now, calls = [0.0], dict.fromkeys(("loss_of", "batch", "shared_spectra"), 0)
    monkeypatch.setattr(estimate.time, "perf_counter", lambda: now[0])
    made = trainer()

    def slow(owner: Any, name: str, seconds: float) -> None:
        own = getattr(owner, name)

        def taking(*given: Any, **named: Any) -> Any:
            now[0] += 6.0 if named.get("create_graph") else seconds
            calls[name] += 1
            return own(*given, **named)

        monkeypatch.setattr(owner, name, taking)

    slow(made.weight_steps, "loss_of", 4.0)
    slow(made.evidence.curvature, "batch", 5.0)
    slow(laplace, "shared_spectra", 40.0)
    found = estimate_run(made)
    assert calls == {"loss_of": 1, "batch": 2, "shared_spectra": 1}
    assert found.weight_steps == pytest.approx(4 * 3 * 10)
    assert found.evidence == pytest.approx(6 * (5 * 4 + 40 + 6 * 2))
