"""Steps as CUDA graphs: which networks they are for, and that nothing changes by them."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import isotropy
from isotropy.data.readers import read
from isotropy.evidence.settings import LearnConfig
from isotropy.evidence.training import Trainer
from isotropy.kernels.captured import WARM_UP, CapturedFunction, can_capture
from isotropy.networks.zoo.backbones import backbone
from isotropy.networks.zoo.residual_networks import Bias, Scale
from isotropy.symmetry.actions.images import affine
from isotropy.workflows.runs.prepared import make_trainer

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = torch.device("cuda")
CONFIG = LearnConfig(epochs=6, samples=4, burn_in=2, batch_size=16, test_samples=4)


class Deciding(nn.Module):
    """A module of a user's own, which may decide anything in Python."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


class Waiting(nn.Module):
    """A module that needs a number from the GPU to go on."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * float(inputs.abs().amax() > 0)


def test_which_networks_are_captured() -> None:
    plain = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert can_capture(plain, CUDA)
    assert can_capture(backbone("resnet", (1, 8, 8), 3), CUDA)
    assert not can_capture(plain, torch.device("cpu"))
    assert not can_capture(nn.Sequential(nn.Linear(2, 2), Deciding()), CUDA)


@pytest.mark.parametrize("hook", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooks_are_not_passed_over(hook: str) -> None:
    network = nn.Sequential(nn.Linear(2, 2))
    handle = getattr(network[0], hook)(lambda *_: None)
    assert not can_capture(network, CUDA)
    handle.remove()
    assert can_capture(network, CUDA)


def bars(count: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = 0.2 * torch.rand(count, 1, 9, 9, generator=generator)
    labels = torch.arange(count) % 2
    images[labels == 0, :, :, 3:6] += 1
    images[labels == 1, :, 3:6, :] += 1
    return images, labels


def network(*extra: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layers = (nn.Flatten(), nn.Linear(81, 8), nn.Tanh(), nn.Linear(8, 2))
        return nn.Sequential(*layers, *extra).to(CUDA)


def trained(model: nn.Module, captured: bool, **settings: Any) -> Trainer:
    split = read(bars(), hold_out_fraction=0.0)
    config = dataclasses.replace(CONFIG, captured=captured, precision="float32", **settings)
    resolved = config.resolved(examples=40, on_gpu=True)
    trainer = make_trainer(model, split.train, affine(), resolved, CUDA)
    for _ in range(CONFIG.epochs or 0):
        trainer.run_epoch()
    return trainer


STEPS: dict[str, dict[str, Any]] = {
    "adam": {},
    "sgd": {"optimiser": "sgd", "weight_rate": 0.02},
    "no momentum": {"optimiser": "sgd", "weight_rate": 0.02, "momentum": 0.0},
    "nesterov and warm-up": {"optimiser": "sgd", "weight_rate": 0.02, "nesterov": True,
                             "warm_up": 2.0},
    "scalars and averages": {"optimiser": "sgd", "weight_rate": 0.02, "ema_decay": 0.9},
    "scalars of adam": {"scalar_rate": 0.1, "ema_decay": 0.9},
}  # fmt: skip


@needs_gpu
@pytest.mark.parametrize("settings", STEPS.values(), ids=STEPS)
def test_a_captured_run_is_the_run(settings: dict[str, Any]) -> None:
    extra = (Bias(), Scale()) if "ema_decay" in settings else ()
    plain, captured = (
        trained(network(*copy.deepcopy(extra)), each, **settings) for each in (False, True)
    )
    function = captured.weight_steps._captured
    assert plain.weight_steps._captured is None and function is not None
    assert function._graph is not None and function.failure is None
    for name, tensor in plain.model.state_dict().items():
        torch.testing.assert_close(captured.model.state_dict()[name], tensor, rtol=2e-4, atol=2e-5)


@needs_gpu
def test_what_cannot_be_captured_runs_as_it_is() -> None:
    seen: list[int] = []

    def step(values: Tensor) -> None:
        seen.append(int(values.sum()))  # waits for the GPU

    function = CapturedFunction(step, lambda: ())
    for number in range(WARM_UP + 3):
        function(torch.full((2,), number, device=CUDA))
    assert function.failure is not None
    assert seen == [2 * number for number in range(WARM_UP + 3)]


@needs_gpu
def test_a_graph_is_recorded_anew_when_its_state_moves() -> None:
    state = [torch.zeros(3, device=CUDA)]
    function = CapturedFunction(lambda values: state[0].add_(values), lambda: state)
    for _ in range(WARM_UP + 2):
        function(torch.ones(3, device=CUDA))
    assert state[0].tolist() == [WARM_UP + 2] * 3
    state[0] = torch.zeros(3, device=CUDA)
    function.refresh()
    for _ in range(WARM_UP + 2):
        function(torch.ones(3, device=CUDA))
    function(torch.ones(1, device=CUDA))  # another shape: as it is
    assert state[0].tolist() == [WARM_UP + 3] * 3


@needs_gpu
def test_learning_on_a_gpu_with_a_module_of_ones_own() -> None:
    result = isotropy.learn(network(Waiting()), bars(), config=CONFIG)
    assert result.trainer.weight_steps._captured is None
    assert result.log_evidence is not None
