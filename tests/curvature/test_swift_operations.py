"""Stand-ins for torch's operations while weights are trained: on a GPU, and the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy import fused
from isotropy.curvature import swift_operations as swift_operations_module
from isotropy.curvature.plain_operations import StandIns
from isotropy.curvature.swift_operations import SWIFT, swift_call, swift_operations
from isotropy.networks.backbones import cnn

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = torch.device("cuda")


def test_a_cpu_and_the_reference_path_are_left_alone() -> None:
    assert isinstance(swift_operations(torch.device("cpu")), nullcontext)
    assert isinstance(swift_operations(CUDA), StandIns)
    with fused.reference_path():
        assert isinstance(swift_operations(CUDA), nullcontext)


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: functional.conv2d(x, torch.ones(2, 3, 2, 2).to(x), padding="same"),
        lambda x: functional.conv2d(x, torch.ones(2, 3, 2, 2).to(x), torch.ones(2).to(x), stride=2),
        lambda x: functional.max_pool2d(x, 2),
        lambda x: functional.max_pool2d(torch.tanh(x), 3, stride=2, padding=1),
        lambda x: functional.max_pool2d(x.relu(), (2, 1), ceil_mode=True),
        lambda x: functional.max_pool2d(functional.relu(x), 2, return_indices=True)[0],
        lambda x: functional.relu(x, inplace=False).sigmoid(),
    ],
)
def test_what_has_no_kernel_is_torchs(operation) -> None:
    """On a CPU the table is never in force; here it is, and changes nothing."""
    images = torch.linspace(-1, 1, 2 * 3 * 5 * 6, dtype=torch.float64).sin().reshape(2, 3, 5, 6)
    with StandIns(SWIFT):
        ours = operation(images)
    assert torch.equal(ours, operation(images))


def gradients(
    function: Callable[[Tensor], Tensor], images: Tensor, network: nn.Module
) -> list[Tensor]:
    outputs = function(images)
    cotangent = torch.linspace(-1, 1, outputs.numel()).reshape(outputs.shape).to(outputs)
    return [outputs, *torch.autograd.grad(outputs, list(network.parameters()), cotangent)]


@needs_gpu
@pytest.mark.parametrize("size", [28, 32])
def test_a_network_and_its_gradients_are_the_same(size: int) -> None:
    torch.manual_seed(0)
    network = cnn((1, size, size), 10).to(CUDA)
    images = torch.rand(50, 1, size, size, device=CUDA)
    with torch.backends.cudnn.flags(allow_tf32=False):
        plain = gradients(network, images, network)
        with swift_operations(CUDA):
            swift = gradients(partial(swift_call, network), images, network)
    for ours, theirs in zip(swift, plain, strict=True):
        scale = float(theirs.abs().max())
        torch.testing.assert_close(ours, theirs, rtol=0.0, atol=2e-5 * scale)
    assert any(not torch.equal(one, other) for one, other in zip(swift, plain, strict=True))


def test_maxima_are_taken_first_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order in which modules are called; on a CPU it is the network's own."""
    order: list[str] = []

    class Noted(nn.Identity):
        pass

    def network() -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.Tanh(), nn.MaxPool2d(2),
            nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)), nn.GELU(), nn.MaxPool2d(2), Noted(),
            nn.Flatten(),
        )  # fmt: skip

    images = torch.rand(3, 1, 24, 24)
    made = network()
    assert torch.equal(swift_call(made, images), made(images))
    monkeypatch.setattr(swift_operations_module, "on_gpu", lambda _: True)
    for module in made.modules():
        name, call = type(module).__name__, module.forward
        noted = partial(_noted, order, name, call)
        monkeypatch.setattr(module, "forward", noted)
    swapped = swift_call(made, images)
    assert order == ["Conv2d", "MaxPool2d", "Tanh", "MaxPool2d", "ReLU", "GELU", "MaxPool2d",
                     "Noted", "Flatten"]  # fmt: skip
    torch.testing.assert_close(swapped, network_like(made, images))


def _noted(order: list[str], name: str, call: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
    order.append(name)
    return call(*arguments)


def network_like(network: nn.Sequential, images: Tensor) -> Tensor:
    for module in network:
        images = module(images)
    return images


def test_hooks_keep_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swift_operations_module, "on_gpu", lambda _: True)
    network = nn.Sequential(nn.Tanh(), nn.MaxPool2d(2))
    seen: list[torch.Size] = []
    network[0].register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    swift_call(network, torch.rand(1, 1, 4, 4))
    assert seen == [torch.Size([1, 1, 4, 4])]
