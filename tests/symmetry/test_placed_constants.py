"""Constants that are kept where the data are: no mode of their first use stays with them."""

from __future__ import annotations

import pytest
import torch
from triton_cases import DEVICE, needs_cuda

from isotropy.symmetry.actions.exponential import PlacedConstant
from isotropy.symmetry.actions.images import affine


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_it_is_where_the_data_are_and_copied_once(dtype):
    values = torch.tensor([1.0, 0.1], dtype=torch.float64)
    constant, data = PlacedConstant(values), draw(3, seed=0, dtype=dtype)
    first = constant.like(data)
    assert (first.device, first.dtype) == (data.device, dtype)
    assert torch.equal(first, values.to(data))
    assert constant.like(data + 1) is first


@pytest.mark.parametrize("first", ["inference mode", "reverse mode", "forward mode", "vmap"])
def test_kept_matrices_serve_later_uses(first):
    """What an action keeps for a device must not remember the mode it was made in."""
    action, coordinates = affine(), draw(2, 3, 6, seed=0)
    right = torch.func.jacrev(affine().element)(coordinates)
    if first == "inference mode":
        with torch.inference_mode():
            action.element(coordinates)
    elif first == "reverse mode":
        torch.func.grad(lambda each: action.element(each)[0].sum())(coordinates)
    elif first == "forward mode":
        torch.func.jvp(action.element, (coordinates,), (coordinates,))
    else:
        torch.func.vmap(action.element)(coordinates)
    torch.testing.assert_close(torch.func.jacrev(action.element)(coordinates), right)
    leaf = coordinates.clone().requires_grad_()
    linear, _ = action.element(leaf)
    (gradient,) = torch.autograd.grad(linear.sum(), leaf)
    torch.testing.assert_close(gradient, right[0].sum((0, 1, 2, 3)))


@needs_cuda
def test_a_cuda_graph_captures_moving_images_and_the_gradient():
    """From coordinates to copies and back: nothing waits for the device."""
    action, images = affine(), draw(2, 1, 8, 8, seed=0, dtype=torch.float32)
    coordinates = 0.1 * draw(2, 3, 6, seed=1, dtype=torch.float32)
    coordinates.requires_grad_()

    def gradient():
        copies = action.act(coordinates, images)
        return copies, *torch.autograd.grad(copies, coordinates, torch.cos(copies.detach()))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            gradient()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradient()
    with torch.no_grad():
        coordinates += 0.05
    graph.replay()
    for ours, right in zip(captured, gradient(), strict=True):
        torch.testing.assert_close(ours, right)
