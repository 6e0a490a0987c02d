"""What a weight step keeps is known before it is taken, and what does not fit goes in parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from isotropy.evidence.machine import (
    _available_bytes,
    fitting_micro_batch,
    free_bytes,
    kept_bytes,
    step_bytes,
)

WIDTH = 50


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(20, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3))


@pytest.mark.parametrize("rows", [1, 8])
def test_what_is_kept_of_a_perceptron_is_counted_by_hand(rows: int) -> None:
    """Tanh keeps its output, which the second layer keeps too; outputs are held by the caller."""
    assert kept_bytes(network(), torch.randn(rows, 20)) == 4 * rows * (WIDTH + 3)


def test_parameters_are_not_counted_with_the_examples() -> None:
    model, inputs = network(), torch.randn(6, 20)
    parameters = sum(p.numel() for p in model.parameters())
    assert step_bytes(model, inputs, 5, 0) == 4 * 4 * parameters
    one = 4 * 5 * (WIDTH + 3 + 20)
    assert step_bytes(model, inputs, 5, 6) == 6 * one + 16 * parameters


def test_as_many_as_fit() -> None:
    model, inputs = network(), torch.randn(6, 20)
    whole, fixed = step_bytes(model, inputs, 5, 100), step_bytes(model, inputs, 5, 0)
    one = (whole - fixed) // 100
    assert fitting_micro_batch(model, inputs, 5, 100) == 100  # there is room for this one
    assert fitting_micro_batch(model, inputs, 5, 100, free=whole) == 100
    assert fitting_micro_batch(model, inputs, 5, 100, free=whole - 1) == 99
    assert fitting_micro_batch(model, inputs, 5, 100, free=fixed + 7 * one) == 7
    assert fitting_micro_batch(model, inputs, 5, 100, free=0) == 1


def test_looking_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    kept_bytes(model, torch.randn(5, 4, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), state)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())


def test_some_memory_is_free() -> None:
    free = free_bytes(torch.device("cpu"))
    assert free is None or 2**20 < free < 2**50


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MemTotal:  100 kB\nMemFree:  7 kB\nMemAvailable:   64 kB\n", 64 * 1024),
        ("MemTotal:  100 kB\nMemFree:  7 kB\n", None),
        ("MemAvailable:\n", None),
    ],
)
def test_what_linux_could_hand_out_is_read(tmp_path: Path, text: str, expected: int | None) -> None:
    (tmp_path / "meminfo").write_text(text)
    assert _available_bytes(tmp_path / "meminfo") == expected
    assert _available_bytes(tmp_path / "nowhere") is None
