"""What fits into memory, known beforehand: weight steps, factors of curvature, evidence passes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from isotropy.checks import CallerError
from isotropy.curvature.kfac import KFAC
from isotropy.evidence import machine
from isotropy.evidence.machine import (
    CACHE_BYTES,
    GPU_BYTES,
    JACOBIAN_BYTES,
    _available_bytes,
    check_factor_memory,
    factor_memory,
    fit_curvature_batch,
    fitting_micro_batch,
    free_bytes,
    is_deep,
    kept_bytes,
    step_bytes,
)
from isotropy.evidence.settings import LearnConfig
from isotropy.networks.zoo.backbones import backbone, cnn, mlp

# --- a weight step: what does not fit goes in parts -----------------------------------------------

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


# --- factors of the curvature, from shapes alone on networks without weights ----------------------

CPU = torch.device("cpu")


def on_meta(name: str, shape, outputs: int = 3, **arguments) -> nn.Module:
    with torch.device("meta"):
        return backbone(name, shape, outputs, **arguments)


def test_photographs_in_an_mlp():
    """2 · 512 rows of 3·224·224 numbers: 4 bytes for the factor, 8 for eigenvectors, 24 to find."""
    network = on_meta("mlp", (3, 224, 224), hidden=200)
    found = factor_memory(network, "kfac-ggn")
    side = 3 * 224 * 224
    assert found.side == side and found.layer == "1"
    assert found.largest == 1024 * side * 36 + 200**2 * 12
    with pytest.raises(CallerError) as refusal:
        check_factor_memory(network, "kfac-ggn", CPU, free=4_000_000_000)
    sentence = str(refusal.value)
    for words in ("layer '1'", "150528 rows", "5.55 GB", "4 GB are free", "--image-size 32",
                  "--model compact", "--curvature diagonal-ggn"):  # fmt: skip
        assert words in sentence


def test_the_sum_over_layers_written_out():
    network = nn.Sequential(nn.Conv2d(3, 8, 5), nn.Flatten(), nn.Linear(20, 6)).double()
    kept = (75**2 + 8**2 + 20**2 + 6**2) * (8 + 8)
    assert factor_memory(network, "kfac").total == kept + 75**2 * 24
    count = sum(p.numel() for p in network.parameters())
    assert factor_memory(network, "full").total == count**2 * (4 + 8 + 24)
    assert factor_memory(network, "diagonal").total == 0


def test_convolutions_on_large_pictures_are_let_through():
    network = on_meta("compact", (3, 400, 300))
    assert check_factor_memory(network, "kfac-ggn", CPU, free=1_000_000_000).total < 1e8


def test_the_machine_s_own_memory_is_asked():
    with pytest.raises(CallerError, match="GB are free"):
        check_factor_memory(on_meta("mlp", (3, 2000, 2000)), "kfac-ggn", CPU)


def test_a_run_is_refused_before_it_is_built():
    from isotropy import learn

    network = on_meta("mlp", (3, 1000, 1000))
    data = (torch.rand(1, 3, 1, 1).expand(4, 3, 1000, 1000), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(CallerError, match="layer '1' has a factor of 3000000 rows"):
        learn(network, data, device="cpu")


def test_long_decompositions_are_told():
    """32×32 pixels in colour: 10 · 3072³ operations at 2·10¹⁰ a second; larger ones take less."""
    found = factor_memory(on_meta("mlp", (3, 32, 32), hidden=200), "kfac-ggn")
    assert found.seconds == pytest.approx(14.5, rel=0.01)
    assert "about 15 s" in found.text and "3072 rows" in found.text and "layer '1'" in found.text
    assert factor_memory(on_meta("mlp", (3, 48, 48), hidden=200), "kfac-ggn").seconds < 6
    short = factor_memory(on_meta("compact", (3, 32, 32)), "kfac-ggn").text
    assert short == "the factors of the curvature take 0.0099 GB"


# --- how many examples an evidence pass holds ----------------------------------------------------

SHAPE = (1, 28, 28)


def sized(network: nn.Module, samples: int = 16) -> int:
    config = LearnConfig(samples=samples).resolved(examples=2000, on_gpu=False)
    batch = fit_curvature_batch(config, network, torch.zeros(1, *SHAPE)).curvature_batch
    assert batch is not None
    return batch


def test_one_hidden_layer_is_served_by_shortcuts() -> None:
    network = mlp(SHAPE, 10)
    assert KFAC(network).widest_map(torch.zeros(1, *SHAPE)) == 0
    assert sized(network) == 125


def test_large_maps_lower_the_batch() -> None:
    network = cnn(SHAPE, 10)
    widest = 6 * 24 * 24
    assert KFAC(network).widest_map(torch.zeros(1, *SHAPE)) == widest
    assert sized(network) == int(CACHE_BYTES / (widest * 16 * 4)) < 125
    assert sized(network, samples=1000) == 4


def test_a_gpu_holds_as_many_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """There a pass is launched batch by batch, and the larger the better."""
    config = LearnConfig(samples=31).resolved(examples=60_000, on_gpu=True)
    place, example = torch.device("cuda"), torch.zeros(1, *SHAPE)

    def batch(network: nn.Module, free: float, **changed: Any) -> int | None:
        monkeypatch.setattr(machine, "free_bytes", lambda _: int(free))
        own = replace(config, **changed)
        return fit_curvature_batch(own, network, example, place).curvature_batch

    assert batch(mlp(SHAPE, 10), 100e9) == 8000
    assert 500 < (batch(mlp(SHAPE, 10), 2e9) or 0) < 1000
    large, small = batch(cnn(SHAPE, 10), 100e9), batch(cnn(SHAPE, 10), 2e9)
    assert large is not None and small is not None
    assert 400 < large < 2000 and small == pytest.approx(large * 1e9 / GPU_BYTES, abs=1)
    one_direction = batch(cnn(SHAPE, 10), 100e9, curvature="kfac-mc")
    assert one_direction == pytest.approx(large * 13 / 5, rel=0.01)


def test_a_network_that_does_not_fit_is_left_to_the_trainer() -> None:
    assert sized(nn.Sequential(nn.Flatten(), nn.Linear(5, 2))) == 125


@pytest.mark.parametrize("structure", ("diagonal", "full", "last-layer"))
def test_gradients_of_every_example_must_fit(structure: str) -> None:
    """Other kinds than kfac hold one gradient an example and direction."""
    network = mlp(SHAPE, 10, hidden=100)
    config = LearnConfig(curvature=structure).resolved(examples=2000, on_gpu=False)
    found = fit_curvature_batch(config, network, torch.zeros(1, *SHAPE)).curvature_batch
    numbers = 784 * 100 + 100 + 100 * 10 + 10
    assert found == int(JACOBIAN_BYTES / (40 * numbers * 4)) < 125
    small = mlp((4,), 3, hidden=5)
    assert fit_curvature_batch(config, small, torch.zeros(1, 4)).curvature_batch == 125


@pytest.mark.parametrize(
    ("name", "outputs", "deep"),
    [("mlp", 10, False), ("resnet", 10, False), ("wrn", 10, True), ("mlp", 100, True)],
)
def test_which_networks_are_deep(name: str, outputs: int, deep: bool):
    shape = (3, 32, 32) if name != "mlp" else SHAPE
    assert is_deep(backbone(name, shape, outputs), outputs) is deep
