"""Operations of a recorded pass: torch's own values and derivatives, one by one and batched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from network_cases import assert_equal
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional

from isotropy.kernels.kept_slopes import shifted
from isotropy.kernels.operations import RECORDED, twice_differentiable

EXACTLY = 1e-12


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


Function = Callable[[Tensor], Tensor]


def convolved(
    name: str, weight: tuple[int, ...], bias: int | None = None, **options: Any
) -> Function:
    convolution: Callable[..., Tensor] = getattr(functional, name)
    kernel = drawn(*weight, seed=1)
    shift = None if bias is None else drawn(bias, seed=2)
    return lambda x: convolution(x, kernel, shift, **options)


# name: (shape of the rows, the function of torch)
CASES: dict[str, tuple[tuple[int, ...], Function]] = {
    "conv1d": ((2, 3, 7), convolved("conv1d", (4, 3, 3), 4, padding=1)),
    "conv1d, strided": ((2, 3, 8), convolved("conv1d", (4, 3, 3), stride=2, dilation=2)),
    "conv2d": ((2, 2, 5, 4), convolved("conv2d", (3, 2, 3, 2), 3)),
    "conv2d, padded": ((2, 2, 4, 4), convolved("conv2d", (3, 2, 3, 3), 3, padding=(1, 2))),
    "conv2d, wide margin": ((2, 2, 3, 3), convolved("conv2d", (3, 2, 2, 2), padding=2)),
    "conv2d, same": ((2, 2, 4, 5), convolved("conv2d", (3, 2, 3, 3), 3, padding="same")),
    "conv2d, same, even": ((2, 2, 4, 4), convolved("conv2d", (3, 2, 2, 2), padding="same")),
    "conv2d, valid": ((2, 2, 4, 4), convolved("conv2d", (3, 2, 2, 2), padding="valid")),
    "conv2d, strided": (
        (2, 2, 6, 5), convolved("conv2d", (3, 2, 3, 3), 3, stride=(2, 3), padding=1)),
    "conv2d, dilated": ((2, 2, 6, 5), convolved("conv2d", (3, 2, 2, 2), 3, dilation=(2, 3))),
    "conv2d, groups": ((2, 4, 4, 4), convolved("conv2d", (6, 2, 3, 3), 6, groups=2, padding=1)),
    "conv2d, whole image": ((3, 2, 3, 4), convolved("conv2d", (5, 2, 3, 4), 5)),
    "conv2d, whole padded": ((3, 2, 2, 2), convolved("conv2d", (5, 2, 2, 2), 5, padding=1)),
    "conv3d": ((2, 2, 3, 4, 3), convolved("conv3d", (2, 2, 2, 2, 2), 2, stride=(1, 2, 1))),
    "transposed 1d": ((2, 3, 4), convolved("conv_transpose1d", (3, 2, 3), 2, stride=2)),
    "transposed 2d": ((2, 3, 3, 4), convolved("conv_transpose2d", (3, 2, 3, 3), 2, padding=1)),
    "transposed 2d, rim": (
        (2, 4, 3, 3),
        convolved("conv_transpose2d", (4, 2, 3, 3), 4, stride=3, output_padding=(2, 1), groups=2)),
    "transposed 2d, dilated rim": (
        (2, 2, 3, 3),
        convolved("conv_transpose2d", (2, 2, 2, 2), stride=1, dilation=2, output_padding=1)),
    "transposed 2d, one pixel": ((3, 2, 1, 1), convolved("conv_transpose2d", (2, 3, 4, 4), 3)),
    "transposed 3d": ((1, 2, 2, 3, 2), convolved("conv_transpose3d", (2, 2, 2, 2, 2), 2)),
    "tanh": ((3, 4), torch.tanh),
    "tanh, method": ((3, 4), lambda x: x.tanh()),
    "tanh, functional": ((3, 4), functional.tanh),
    "sigmoid": ((3, 4), torch.sigmoid),
    "relu": ((3, 4), torch.relu),
    "relu, module": ((3, 4), nn.ReLU()),
    "silu": ((3, 4), functional.silu),
    "gelu": ((3, 4), functional.gelu),
    "gelu, approximate": ((3, 4), lambda x: functional.gelu(x, approximate="tanh")),
    "max_pool2d": ((2, 2, 4, 6), lambda x: functional.max_pool2d(x, 2)),
    "max_pool2d, by torch": ((2, 2, 4, 6), lambda x: torch.max_pool2d(x, 2)),
    "max_pool2d, remainder": ((2, 2, 5, 7), nn.MaxPool2d((2, 3))),
    "max_pool2d, remainder counts": ((2, 1, 5, 7), nn.MaxPool2d(2, ceil_mode=True)),
    "max_pool2d, overlap": ((2, 2, 5, 5), nn.MaxPool2d(3, stride=2, padding=1)),
    "max_pool2d, dilated": ((2, 2, 5, 5), nn.MaxPool2d(2, dilation=2)),
    "max_pool2d, one pixel": ((2, 2, 3, 3), nn.MaxPool2d(1)),
    "pooled tanh": ((2, 2, 4, 4), lambda x: functional.max_pool2d(x.tanh(), 2)),
    "pooled relu": ((2, 2, 4, 4), lambda x: functional.max_pool2d(functional.relu(x), 2)),
    "pooled silu": ((2, 2, 4, 4), lambda x: functional.max_pool2d(functional.silu(x), 2)),
    "pooled twice": (
        (2, 2, 4, 4), lambda x: functional.max_pool2d(functional.max_pool2d(x.tanh(), 2), 2)),
    "composed": (
        (2, 2, 6, 6),
        lambda x: functional.max_pool2d(convolved("conv2d", (3, 2, 3, 3), 3)(x).tanh(), 2)),
}  # fmt: skip

OWN = ("_Apply", "_Elementwise", "_Select")
THEIRS = {"conv2d, same, even", "transposed 2d, dilated rim", "gelu, approximate"}
"""Cases that are left to torch."""


def recorded(function: Function) -> Function:
    def call(inputs: Tensor) -> Tensor:
        with twice_differentiable(RECORDED):
            return function(inputs)

    return call


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Tensor, Function]:
    shape, function = CASES[request.param]
    return 2 * drawn(*shape), function


def gradient(function: Function, inputs: Tensor, cotangent: Tensor) -> Tensor:
    inputs = inputs.requires_grad_()
    (found,) = torch.autograd.grad(function(inputs), inputs, cotangent, create_graph=True)
    return found


@pytest.mark.parametrize("name", CASES)
def test_every_case_but_the_named_ones_is_ours(name: str) -> None:
    shape, function = CASES[name]
    node = recorded(function)(drawn(*shape).requires_grad_()).grad_fn
    assert (type(node).__name__.startswith(OWN)) == (name not in THEIRS)
    assert not type(function(drawn(*shape).requires_grad_()).grad_fn).__name__.startswith(OWN)


def test_values_and_gradients_are_those_of_torch(case: tuple[Tensor, Function]) -> None:
    inputs, function = case
    inputs = inputs.requires_grad_()
    expected = function(inputs)
    assert_equal(recorded(function)(inputs), expected, "values", EXACTLY)
    along = drawn(*expected.shape, seed=3)
    found = gradient(recorded(function), inputs, along)
    assert_equal(found, gradient(function, inputs, along), "gradient", EXACTLY)


def test_second_derivatives_are_those_of_torch(case: tuple[Tensor, Function]) -> None:
    inputs, function = case
    shape = function(inputs).shape
    directions = drawn(3, *shape, seed=3).requires_grad_()

    def twice(function: Function, batched: bool) -> list[Tensor]:
        rows = inputs.detach().requires_grad_()
        outputs = function(rows)

        def pulled(cotangent: Tensor) -> Tensor:
            return torch.autograd.grad(outputs, rows, cotangent, create_graph=True)[0]

        if batched:
            found = torch.func.vmap(pulled)(directions)
        else:
            found = torch.stack([pulled(direction) for direction in directions])
        # Not linear in the gradient, and the outputs themselves take part.
        loss = (found * drawn(*found.shape, seed=4)).sum() + found.square().sum()
        loss = loss + outputs.pow(3).sum()
        return [found, *torch.autograd.grad(loss, (rows, directions))]

    expected = twice(function, batched=False)
    for batched in (False, True):
        for ours, theirs in zip(twice(recorded(function), batched), expected, strict=True):
            assert_equal(ours, theirs, "second derivative", EXACTLY)


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "silu", "gelu", "conv2d, padded", "composed"])
def test_second_derivatives_by_differences(name: str) -> None:
    shape, function = CASES[name]
    inputs = drawn(*shape).requires_grad_()
    assert gradcheck(recorded(function), inputs, fast_mode=True)
    assert gradgradcheck(recorded(function), inputs, fast_mode=True)


@pytest.mark.parametrize("name", ["tanh", "silu", "gelu", "sigmoid"])
def test_a_slope_alone_can_be_differentiated(name: str) -> None:
    """What reaches the slopes only, with nothing for the values."""
    inputs = drawn(3, 4).requires_grad_()
    function = CASES[name][1]
    ones = torch.ones(3, 4, dtype=torch.float64)
    (found,) = torch.autograd.grad(gradient(recorded(function), inputs, ones).sum(), inputs)
    (expected,) = torch.autograd.grad(gradient(function, inputs, ones).sum(), inputs)
    assert_equal(found, expected, "φ″", EXACTLY)


def test_a_kernel_that_is_differentiated_is_left_to_torch() -> None:
    images, kernel = drawn(2, 2, 4, 4).requires_grad_(), drawn(3, 2, 2, 2).requires_grad_()
    for function in (functional.conv2d, lambda x, w: functional.conv_transpose2d(x, w.mT[:2])):
        with twice_differentiable(RECORDED):
            found = torch.autograd.grad(function(images, kernel).square().sum(), kernel)
        expected = torch.autograd.grad(function(images, kernel).square().sum(), kernel)
        assert_equal(found[0], expected[0], "gradient by the kernel", EXACTLY)


@pytest.mark.parametrize("name", ["conv2d", "tanh", "max_pool2d"])
def test_nothing_to_differentiate_is_left_to_torch(name: str) -> None:
    shape, function = CASES[name]
    inputs = drawn(*shape)
    assert torch.equal(recorded(function)(inputs), function(inputs))
    with torch.no_grad():
        assert recorded(function)(inputs.requires_grad_()).grad_fn is None


@pytest.mark.parametrize("name", ["conv2d", "tanh", "pooled relu"])
def test_a_transform_of_functions_is_left_to_torch(name: str) -> None:
    shape, function = CASES[name]
    inputs = drawn(3, *shape)

    def slopes(function: Function) -> Tensor:
        one = torch.func.grad(lambda x: function(x).square().sum())
        return torch.func.vmap(one)(inputs)

    assert_equal(slopes(recorded(function)), slopes(function), "vmap of grad", EXACTLY)


def test_half_precision_by_autocast_is_left_to_torch() -> None:
    images, kernel = drawn(2, 2, 4, 4).float().requires_grad_(), drawn(3, 2, 2, 2).float()
    with twice_differentiable(RECORDED), torch.autocast("cpu", torch.bfloat16):
        assert functional.conv2d(images, kernel).dtype == torch.bfloat16


def test_indices_of_a_maximum_are_those_of_torch() -> None:
    """Ties go to the first; NaN goes through."""
    images = torch.tensor([[0.0, 1.0, 2.0, 2.0], [1.0, 1.0, 2.0, float("nan")]])[None, None]
    images = images.double().requires_grad_()
    found = recorded(lambda x: functional.max_pool2d(x, 2))(images)
    assert found[0, 0, 0, 0] == 1 and bool(found[0, 0, 0, 1].isnan())
    (where,) = torch.autograd.grad(found[..., 0].sum(), images)
    assert where.flatten().nonzero().flatten().tolist() == [1]
    with twice_differentiable(RECORDED):
        values, indices = functional.max_pool2d(images, 2, return_indices=True)
    assert indices.flatten()[0] == 1 and values.shape == (1, 1, 1, 2)


@pytest.mark.parametrize("written", ["source", "values"])
def test_a_maximum_sees_what_was_written_in_place(written: str) -> None:
    """φ and the maximum change places only as long as nothing touched either side of φ."""
    leaf = drawn(1, 1, 4, 4).requires_grad_()

    def function(images: Tensor) -> Tensor:
        source = images * 1.0
        values = functional.relu(source)
        with torch.no_grad():
            (source if written == "source" else values).add_(drawn(1, 1, 4, 4, seed=1))
        return functional.max_pool2d(values, 2)

    assert_equal(recorded(function)(leaf), function(leaf), "values", EXACTLY)


@pytest.mark.parametrize("activation", [nn.Identity(), nn.Tanh(), nn.ReLU()])
@pytest.mark.parametrize("batched", [False, True])
def test_a_shift_has_the_gradient_summed_over_copies(activation: nn.Module, batched: bool) -> None:
    """Pooled or not, also where the map is used a second time, and differentiated once more."""
    copies, rows = 3, drawn(6, 2, 4, 4).requires_grad_()
    directions = drawn(2, 6, 2, 2, 2, seed=3).requires_grad_()
    kernel = drawn(2, 2, 1, 1, seed=4)

    def follows(maps: Tensor) -> Tensor:
        pooled = functional.max_pool2d(activation(maps), 2)
        return pooled + functional.avg_pool2d(maps.sin(), 2)

    def pulled(outputs: Tensor, by: Tensor, summed: bool) -> Tensor:
        def one(cotangent: Tensor) -> Tensor:
            (found,) = torch.autograd.grad(
                outputs, by, cotangent, create_graph=True, retain_graph=True
            )
            return found.reshape(2, copies, *found.shape[1:]).sum(1) if summed else found

        return torch.func.vmap(one)(directions) if batched else torch.stack([*map(one, directions)])

    with twice_differentiable(RECORDED):
        maps, shift = shifted(functional.conv2d(rows, kernel), copies)
        found = pulled(follows(maps), shift, summed=False)
    plain = functional.conv2d(rows, kernel)
    expected = pulled(follows(plain), plain, summed=True)
    assert_equal(found, expected, "summed", EXACTLY)
    along = drawn(*found.shape, seed=5)
    for ours, theirs in zip(
        torch.autograd.grad((found * along).sum() + found.pow(3).sum(), (rows, directions)),
        torch.autograd.grad((expected * along).sum() + expected.pow(3).sum(), (rows, directions)),
        strict=True,
    ):
        assert_equal(ours, theirs, "second derivative", EXACTLY)
