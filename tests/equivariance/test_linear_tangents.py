"""Linear layers take the short way forward, to the same values and derivatives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional

from isotropy.equivariance.tangents import linear_tangents


def norm(dimensions: int, affine: bool = True) -> nn.Module:
    kinds = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
    layer = kinds[dimensions](4, affine=affine)
    assert layer.running_mean is not None and layer.running_var is not None
    nn.init.normal_(layer.running_mean)
    nn.init.uniform_(layer.running_var, 0.5, 2.0)
    if affine:
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    return layer.eval()


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(5, 3), (2, 4, 5)),
    "linear without bias": (lambda: nn.Linear(5, 3, bias=False), (2, 5)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1, groups=2), (2, 4, 7)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, dilation=2), (2, 4, 9, 8)),
    "circular": (lambda: nn.Conv2d(4, 2, 3, padding=1, padding_mode="circular"), (2, 4, 6, 6)),
    "conv3d": (lambda: nn.Conv3d(4, 2, 2), (2, 4, 3, 4, 5)),
    "transposed1d": (lambda: nn.ConvTranspose1d(4, 2, 3, stride=2), (2, 4, 5)),
    "transposed2d": (
        lambda: nn.ConvTranspose2d(4, 2, 3, stride=2, output_padding=1),
        (2, 4, 5, 4),
    ),
    "transposed3d": (lambda: nn.ConvTranspose3d(4, 2, 2), (2, 4, 2, 3, 4)),
    "batch norm 1d": (lambda: norm(1), (2, 4, 7)),
    "batch norm 2d": (lambda: norm(2), (2, 4, 3, 5)),
    "batch norm 3d": (lambda: norm(3), (2, 4, 3, 2, 2)),
    "batch norm without affine": (lambda: norm(2, affine=False), (3, 4, 2, 2)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("way", ["one", "together"])
def test_values_and_derivatives_are_those_of_forward_mode(name: str, way: str) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer = make().double()
    inputs = torch.randn(shape, dtype=torch.float64)
    tangents = torch.randn(3, *shape, dtype=torch.float64)

    def along(tangent: Tensor) -> tuple[Tensor, Tensor]:
        values, derivative = torch.func.jvp(layer, (inputs,), (tangent,))
        return values, derivative

    plain = [along(tangent) for tangent in tangents]
    with linear_tangents():
        if way == "one":
            with forward_ad.dual_level():
                short = [
                    forward_ad.unpack_dual(layer(forward_ad.make_dual(inputs, tangent)))
                    for tangent in tangents
                ]
            values = short[0].primal
            derivatives = torch.stack([each.tangent for each in short])
        else:
            values, derivatives = torch.func.vmap(along, out_dims=(None, 0))(tangents)
    torch.testing.assert_close(values, layer(inputs), rtol=1e-12, atol=1e-12)
    expected = torch.stack([derivative for _, derivative in plain])
    torch.testing.assert_close(derivatives, expected, rtol=1e-12, atol=1e-12)


def test_a_weight_that_moves_is_not_forgotten() -> None:
    weight, inputs = torch.randn(3, 5, dtype=torch.float64), torch.randn(2, 5, dtype=torch.float64)
    along = torch.ones_like(inputs), torch.ones_like(weight)
    expected = torch.func.jvp(functional.linear, (inputs, weight), along)[1]
    with linear_tangents():
        found = torch.func.jvp(functional.linear, (inputs, weight), along)[1]
    torch.testing.assert_close(found, expected)


def test_batch_statistics_are_left_to_torch() -> None:
    layer = nn.BatchNorm1d(3, track_running_stats=False).double()
    inputs, tangent = torch.randn(2, 6, 3, dtype=torch.float64).unbind(0)
    expected = torch.func.jvp(layer, (inputs,), (tangent,))[1]
    with linear_tangents():
        found = torch.func.jvp(layer, (inputs,), (tangent,))[1]
    torch.testing.assert_close(found, expected)


def test_a_convolution_runs_twice_and_not_three_times() -> None:
    calls = []

    class Counting(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if "convolution" in str(func):
                calls.append(str(func))
            return func(*args, **(kwargs or {}))

    layer, inputs = nn.Conv2d(2, 2, 3), torch.randn(1, 2, 5, 5)
    with torch.no_grad(), forward_ad.dual_level(), linear_tangents(), Counting():
        layer(forward_ad.make_dual(inputs, inputs))
    assert len(calls) == 2


def test_group_norm_of_channels_last_has_the_derivative_of_the_usual_order() -> None:
    """torch's own forward mode refuses this order of memory."""
    torch.manual_seed(0)
    layer = nn.GroupNorm(2, 4).double()
    inputs, tangent = torch.randn(2, 2, 4, 3, 5, dtype=torch.float64)
    expected = torch.func.jvp(layer, (inputs,), (tangent,))
    last = [each.contiguous(memory_format=torch.channels_last) for each in (inputs, tangent)]
    with linear_tangents():
        found = torch.func.jvp(layer, (last[0],), (last[1],))
    torch.testing.assert_close(found, expected)
