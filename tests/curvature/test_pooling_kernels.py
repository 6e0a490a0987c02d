"""Max-pooling by kernels against torch's own: values, winners, derivatives of both orders, vmap.

They run on a CUDA device, or on a CPU if Triton interprets (`TRITON_INTERPRET=1`).
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from triton_cases import CAN_RUN, DEVICE, needs_triton

from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.kernels import fused
from isotropy.likelihoods import Categorical

if CAN_RUN:
    from isotropy.kernels import pooling
    from isotropy.kernels.pooling import can_pool, pool

pytestmark = needs_triton

# rows, channels, height, width, and the window
CASES = {
    "LeNet's": ((6, 2, 8, 8), (2, 2)),
    "rim in no window": ((2, 3, 7, 9), (2, 2)),
    "oblong": ((4, 1, 6, 11), (3, 2)),
    "one row": ((2, 2, 4, 5), (1, 5)),
    "whole image": ((2, 5, 3, 3), (3, 3)),
    "several blocks": ((4, 3, 24, 24), (2, 2)),
}
every_case = pytest.mark.parametrize(("shape", "window"), CASES.values(), ids=CASES)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype)


def derivatives(function, images: Tensor, seed: int = 1) -> tuple[Tensor, ...]:
    """Value, gradient, and what reaches the cotangent and the images from the gradient."""
    images = images.detach().requires_grad_()
    values = function(images)
    cotangent = draw(*values.shape, seed=seed).requires_grad_()
    (gradient,) = torch.autograd.grad(values, images, cotangent, create_graph=True)
    (second,) = torch.autograd.grad(gradient, cotangent, draw(*images.shape, seed=seed + 1))
    return values, gradient, second


@every_case
def test_it_is_torch_s_with_its_derivatives(shape, window) -> None:
    images = draw(*shape)
    found = derivatives(lambda z: pool(z, *window), images)
    expected = derivatives(lambda z: functional.max_pool2d(z, window), images)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_precisions(dtype: torch.dtype) -> None:
    images = draw(3, 2, 6, 6, dtype=dtype).requires_grad_()
    values, expected = pool(images, 2, 2), functional.max_pool2d(images, 2)
    assert values.dtype == dtype
    assert torch.equal(values, expected)
    cotangent = draw(*values.shape, seed=1, dtype=dtype)
    assert torch.equal(
        torch.autograd.grad(values, images, cotangent)[0],
        torch.autograd.grad(expected, images, cotangent)[0],
    )


def test_ties_and_numbers_that_are_none_are_decided_as_torch_does() -> None:
    nan, low = float("nan"), -float("inf")
    windows = [
        [1, 1, 1, 1], [0, 2, 2, 2], [low, low, low, low], [nan, 3, 1, 2], [0, nan, 3, 5],
        [nan, nan, 1, nan], [0.0, -0.0, 0, 0], [low, 1, low, 1], [5, nan, nan, 7],
    ]  # fmt: skip
    images = torch.tensor(windows, dtype=torch.float64, device=DEVICE).reshape(-1, 1, 2, 2)
    images.requires_grad_()
    values, expected = pool(images, 2, 2), functional.max_pool2d(images, 2)
    assert torch.equal(values.isnan(), expected.isnan())
    assert torch.equal(values.nan_to_num(7), expected.nan_to_num(7))
    cotangent = draw(*values.shape, seed=1)
    assert torch.equal(
        torch.autograd.grad(values, images, cotangent)[0],
        torch.autograd.grad(expected, images, cotangent)[0],
    )


@pytest.mark.parametrize("sliced", [False, True])
def test_directions_share_the_winners_of_strided_images(sliced: bool) -> None:
    images = draw(4, 2, 8, 6)
    images = (images[::2, :, :, :4] if sliced else images.transpose(2, 3)).detach()
    cotangents = draw(3, *functional.max_pool2d(images, 2).shape, seed=1)
    weights = draw(3, *images.shape, seed=2)

    def second(function) -> tuple[Tensor, Tensor]:
        points, seeds = images.clone().requires_grad_(), cotangents.clone().requires_grad_()
        values = function(points)
        found = torch.func.vmap(
            lambda seed: torch.autograd.grad(values, points, seed, create_graph=True)[0]
        )(seeds)
        return found, torch.autograd.grad(found, seeds, weights)[0]

    for one, other in zip(
        second(lambda z: pool(z, 2, 2)), second(lambda z: functional.max_pool2d(z, 2)), strict=True
    ):
        assert torch.equal(one, other)


def test_images_under_vmap_each_have_their_winners() -> None:
    images, cotangent = draw(3, 2, 2, 4, 4), draw(2, 2, 2, 2, seed=1)

    def gradients(function) -> Tensor:
        def one(points: Tensor, seed: Tensor) -> Tensor:
            return torch.func.vjp(function, points)[1](seed)[0]

        return torch.func.vmap(torch.func.vmap(one, (None, 0)), (0, None))(
            images, torch.stack((cotangent, -2 * cotangent))
        )

    assert torch.equal(
        gradients(lambda z: pool(z, 2, 2)), gradients(lambda z: functional.max_pool2d(z, 2))
    )


@pytest.mark.parametrize("copies", [1, 3, 6])
def test_the_gradient_by_a_shift_is_the_sum_over_copies(copies: int) -> None:
    images = draw(6, 2, 5, 4).requires_grad_()
    shift = torch.zeros(6 // copies, 2, 5, 4, dtype=torch.float64, device=DEVICE).requires_grad_()
    values = pool(images, 2, 2, shift)
    assert torch.equal(values, functional.max_pool2d(images, 2))
    seeds = draw(3, *values.shape, seed=1).requires_grad_()

    def both(values: Tensor):
        return torch.func.vmap(
            lambda seed: torch.autograd.grad(values, (images, shift), seed, create_graph=True)
        )(seeds)

    moved = images + shift.repeat_interleave(copies, 0)
    found, expected = both(values), both(functional.max_pool2d(moved, 2))
    weights = (draw(*found[0].shape, seed=2), draw(*found[1].shape, seed=3))
    second = [torch.autograd.grad(each, seeds, weights)[0] for each in (found, expected)]
    for one, other in zip((*found, second[0]), (*expected, second[1]), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14)


def test_no_rows() -> None:
    images = draw(0, 2, 4, 4).requires_grad_()
    values = pool(images, 2, 2)
    assert values.shape == (0, 2, 2, 2)
    assert torch.autograd.grad(values.sum(), images)[0].shape == images.shape


def test_windows_that_a_byte_cannot_number_or_that_do_not_fit_are_refused() -> None:
    assert can_pool(draw(1, 1, 20, 20), 15, 17)
    assert not can_pool(draw(1, 1, 20, 20), 16, 16)
    assert not can_pool(draw(1, 1, 2, 20), 3, 1)


# --- in the curvature of a network ----------------------------------------------------------

POOLS = {
    "side by side": (nn.MaxPool2d(2), True),
    "oblong": (nn.MaxPool2d((1, 3)), True),
    "overlapping": (nn.MaxPool2d(3, stride=2), False),
    "padded": (nn.MaxPool2d(2, padding=1), False),
    "incomplete windows": (nn.MaxPool2d(2, ceil_mode=True), False),
}


@pytest.mark.parametrize("behind", [nn.Tanh(), nn.SiLU()], ids=["monotone", "not"])
@pytest.mark.parametrize("name", POOLS)
def test_roots_and_their_gradient_are_those_of_the_reference(
    name: str, behind: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "runs_kernels", lambda device: True)
    calls: list[int] = []
    pooled = pooling.pool
    monkeypatch.setattr(pooling, "pool", lambda *given: calls.append(1) or pooled(*given))
    torch.manual_seed(0)
    pool_layer, is_fused = POOLS[name]
    network = nn.Sequential(
        nn.Conv2d(1, 2, 2), behind, pool_layer, nn.Conv2d(2, 3, 2), pool_layer, behind,
        nn.Flatten(), nn.LazyLinear(3),
    ).to(DEVICE, torch.float64)  # fmt: skip
    network(draw(1, 1, 12, 13))
    curvature = KFAC(network)

    def derivatives(directions: int) -> list[Tensor]:
        inputs = draw(4, 1, 12, 13).requires_grad_()
        found = curvature.batch(
            inputs, Copies(2), Categorical(), create_graph=True, directions_at_once=directions
        )
        tensors = [
            tensor
            for root in found.roots.values()
            for tensor in vars(root).values()
            if isinstance(tensor, Tensor)
        ]
        total = sum(each.square().sum() for each in tensors)
        return [found.outputs, *tensors, torch.autograd.grad(total, inputs)[0]]

    with fused.reference_path():
        expected = derivatives(1)
    assert not calls
    for directions in (1, 3):
        for one, other in zip(derivatives(directions), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    assert bool(calls) == is_fused
