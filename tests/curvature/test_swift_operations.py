"""Stand-ins for torch's operations while weights are trained: on a GPU, and the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.kernels import fused
from isotropy.kernels.operations import SWIFT, StandIns, swift_operations
from isotropy.networks.zoo.backbones import cnn

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
            swift = gradients(network, images, network)
    for ours, theirs in zip(swift, plain, strict=True):
        scale = float(theirs.abs().max())
        torch.testing.assert_close(ours, theirs, rtol=0.0, atol=2e-5 * scale)
    assert any(not torch.equal(one, other) for one, other in zip(swift, plain, strict=True))
