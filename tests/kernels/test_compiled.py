"""The network as weight steps call it: what is compiled, what is not, and that nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from isotropy.kernels import compiled
from isotropy.kernels.compiled import LEAST_ROWS, NetworkPass, is_convolutional, pays

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)
    )


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """A compiler that notes the shapes it is called with, and leaves functions as they are."""
    shapes: list[tuple[int, ...]] = []

    def compile_(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        def noted(rows: torch.Tensor) -> Any:
            shapes.append(tuple(rows.shape))
            return function(rows)

        return noted

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: nullcontext())
    return shapes


def test_compiling_pays_from_a_number_of_rows_on() -> None:
    assert pays(LEAST_ROWS) and not pays(LEAST_ROWS - 1)


def test_convolutional_is_what_has_kernels_over_pixels() -> None:
    assert is_convolutional(convolutional()) and not is_convolutional(perceptron())


@pytest.mark.parametrize("device", [CPU, GPU])
def test_a_perceptron_is_left_as_it_is(device: torch.device, compiler: list[Any]) -> None:
    network = perceptron()
    called = NetworkPass(network, device, compiled=True, autocast=False)
    rows = torch.rand(5, 1, 4, 4)
    assert torch.equal(called(rows), network(rows)) and compiler == []
    told = {"channels_last": False, "compiled": False, "not_compiled_because": None}
    assert called.described() == {**told, "autocast": None}


def test_only_the_first_shape_is_compiled(compiler: list[Any]) -> None:
    network = convolutional().train()
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    called = NetworkPass(network, GPU, compiled=True, autocast=False)
    rows = torch.rand(5, 1, 4, 4)
    called._try(rows)
    for name, buffer in network.named_buffers():
        assert torch.equal(buffer, before[name]), name
    assert all(parameter.grad is None for parameter in network.parameters())
    network.eval()
    assert torch.equal(called(rows), network(rows))
    assert torch.equal(called(rows[:3]), network(rows[:3]))
    assert compiler == [(5, 1, 4, 4), (5, 1, 4, 4)]  # tried, called; three rows run as they are
    assert called.described()["compiled"] is True


@pytest.mark.parametrize("where", ["forwards", "backwards"])
def test_what_does_not_compile_runs_as_it_is(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, outputs: torch.Tensor) -> torch.Tensor:
            return outputs.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no code for this\nand more")

    def compile_(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        def failing(rows: torch.Tensor) -> Any:
            if where == "forwards":
                raise RuntimeError("no code for this\nand more")
            return Fails.apply(function(rows))

        return failing

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: nullcontext())
    network = convolutional().eval()
    called = NetworkPass(network, GPU, compiled=True, autocast=False)
    rows = torch.rand(5, 1, 4, 4)
    assert torch.equal(called(rows), network(rows))
    told = called.described()
    assert told["compiled"] is False
    assert told["not_compiled_because"] == "RuntimeError: no code for this"


@pytest.mark.parametrize("has_it", [False, True])
def test_bfloat16_on_a_cpu_made_for_it(has_it: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded to 8 bits and back in float32, gradients too; elsewhere nothing changes."""
    monkeypatch.setattr(compiled, "has_bfloat16", lambda *_: has_it)
    network, rows = perceptron(), torch.rand(64, 1, 4, 4)
    called = NetworkPass(network, CPU, compiled=False, autocast=True)
    found, right = called(rows), network(rows)
    assert called.described()["autocast"] == ("bfloat16" if has_it else None)
    assert found.dtype == right.dtype and torch.equal(found, right) is not has_it
    torch.testing.assert_close(found, right, rtol=2e-2, atol=2e-2)
    _have_near_gradients(network, found, right, 6e-2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("autocast", [False, True])
def test_on_a_gpu_it_is_the_network(autocast: bool) -> None:
    torch.manual_seed(0)
    network = convolutional().cuda().eval()
    called = NetworkPass(network, GPU, compiled=True, autocast=autocast)
    rows = torch.rand(64, 1, 4, 4, device="cuda")
    found, right = called(rows), network(rows)
    assert called.described()["compiled"] is True and found.dtype == right.dtype
    tolerance = 2e-2 if autocast else 2e-3
    torch.testing.assert_close(found, right, rtol=tolerance, atol=tolerance)
    _have_near_gradients(network, found, right, 3 * tolerance)


def _have_near_gradients(
    network: nn.Module, found: torch.Tensor, right: torch.Tensor, tolerance: float
) -> None:
    gradients = [
        torch.autograd.grad(outputs.square().sum(), list(network.parameters()))
        for outputs in (found, right)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        size = theirs.abs().max()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=float(tolerance * size))
