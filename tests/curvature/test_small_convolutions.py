"""Small convolutions by their kernels against torch's: values, all gradients, twice, under vmap.

Runs on a CUDA device, or on a CPU if Triton interprets (`TRITON_INTERPRET=1`), which is slow: few
and small images.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch.nn.functional import conv2d
from triton_cases import CAN_RUN, DEVICE, ON_CUDA, needs_cuda, needs_triton

from isotropy.kernels import small_convolutions
from isotropy.kernels import small_convolutions as convolution_plans
from isotropy.kernels.fused import imported
from isotropy.kernels.small_convolutions import (
    Geometry,
    Tiles,
    covers_input,
    is_small,
    output_size,
    small_convolution,
    value_plan,
    weight_plan,
)

if CAN_RUN:
    from isotropy.kernels import convolution_kernels


@dataclass(frozen=True)
class Case:
    """A convolution of `count` images."""

    channels: int
    size: tuple[int, int]
    maps: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    count: int = 2

    @property
    def shape(self) -> tuple[int, ...]:
        return self.count, self.channels, *self.size

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return self.maps, self.channels, *self.kernel


CASES = {
    "LeNet's first": Case(1, (28, 28), 6, (5, 5), count=1),
    "LeNet's second": Case(6, (12, 12), 16, (3, 3)),
    "padded": Case(2, (7, 7), 3, (3, 3), padding=(1, 1)),
    "padded more than the kernel": Case(2, (5, 6), 2, (2, 2), padding=(2, 2)),
    "in steps": Case(3, (8, 9), 17, (3, 3), (2, 2), (1, 1)),
    "in steps that leave a rest": Case(2, (8, 8), 3, (2, 3), (3, 2)),
    "not square": Case(2, (9, 5), 4, (2, 3), (1, 2), (0, 2), count=3),
    "one pixel": Case(3, (4, 5), 2, (1, 1)),
    "one map": Case(1, (17, 3), 1, (2, 3), padding=(1, 1)),
    "a column": Case(2, (6, 4), 5, (6, 1)),
    "nothing": Case(2, (4, 4), 3, (3, 3), count=0),
}
SMALL = ("padded", "in steps that leave a rest", "not square")
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
small_cases = pytest.mark.parametrize("case", [CASES[name] for name in SMALL], ids=SMALL)


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype)


def drawn(case: Case, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Images, weight and bias."""
    shapes = case.shape, case.weight_shape, (case.maps,)
    return [draw(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes)]


def functions(case: Case):
    """Ours and torch's."""
    return tuple(
        partial(function, stride=case.stride, padding=case.padding)
        for function in (small_convolution, conv2d)
    )


def assert_same(ours, right, tolerance=1e-12):
    """Each pair within `tolerance` of the largest entry; a NaN fails."""
    for one, other in zip(ours, right, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        size = max(1.0, float(other.detach().abs().max())) if other.numel() else 1.0
        torch.testing.assert_close(one, other, rtol=0.0, atol=tolerance * size)


def value_and_gradients(function, inputs, cotangent=None):
    leaves = [each.clone().requires_grad_() for each in inputs]
    value = function(*leaves)
    cotangent = draw(*value.shape, seed=5, dtype=value.dtype) if cotangent is None else cotangent
    return value, *torch.autograd.grad(value, leaves, cotangent)


@needs_triton
@each_case
def test_value_and_gradients(case):
    ours, right = (value_and_gradients(each, drawn(case)) for each in functions(case))
    assert_same(ours, right)


@needs_triton
@pytest.mark.parametrize("name", ["LeNet's first", "LeNet's second", "in steps", "one map"])
def test_single_precision(name):
    """By products in blocks, which double precision does not use."""
    case = CASES[name]
    with torch.backends.cudnn.flags(allow_tf32=False):
        ours = value_and_gradients(functions(case)[0], drawn(case, torch.float32))
    right = value_and_gradients(functions(case)[1], drawn(case))
    assert_same(ours, [each.float() for each in right], 2e-6)


@needs_cuda
@each_case
def test_tf32_as_the_caller_allows(case):
    """With TF32 within its 11 bits, and without bias: the mean error is far smaller."""
    with torch.backends.cudnn.flags(allow_tf32=True):
        ours = value_and_gradients(functions(case)[0], drawn(case, torch.float32))
    right = value_and_gradients(functions(case)[1], drawn(case))
    assert_same(ours, [each.float() for each in right], 3e-3)
    for one, other in zip(ours, right, strict=True):
        if other.numel() > 1000:
            slope = (one.double() * other).sum() / (other * other).sum()
            assert abs(slope - 1.0) < 1e-4


@needs_triton
@small_cases
def test_second_derivatives(case):
    """Of the gradients by images, weight and bias, along directions of all three."""
    inputs = drawn(case)
    results = []
    for function in functions(case):
        leaves = [each.clone().requires_grad_() for each in inputs]
        value = function(*leaves)
        cotangent = draw(*value.shape, seed=5).requires_grad_()
        gradients = torch.autograd.grad(value, leaves, cotangent, create_graph=True)
        along = [draw(*each.shape, seed=7 + i) for i, each in enumerate(gradients)]
        second = torch.autograd.grad(
            gradients, (*leaves, cotangent), along, create_graph=True, materialize_grads=True
        )
        # And once more: bilinear, so that the third derivatives are the last.
        along = [draw(*each.shape, seed=17 + i) for i, each in enumerate(second)]
        kept = [(each, way) for each, way in zip(second, along, strict=True) if each.requires_grad]
        third = torch.autograd.grad(
            [each for each, _ in kept], (*leaves, cotangent), [way for _, way in kept],
            materialize_grads=True,
        )  # fmt: skip
        results.append((*second, *third))
    assert_same(*results)


@needs_triton
@small_cases
def test_forward_mode(case):
    inputs = drawn(case)
    tangents = [draw(*each.shape, seed=11 + i) for i, each in enumerate(inputs)]
    ours, right = (torch.func.jvp(each, tuple(inputs), tuple(tangents)) for each in functions(case))
    assert_same(ours, right)


@needs_triton
@pytest.mark.parametrize(
    "dims", [(0, None, None), (2, None, None), (0, 0, None), (None, 0, 0), (0, 1, 0)]
)
def test_vmap(dims):
    """A new axis of the images goes into their batch; one of the weight is taken apart."""
    case = CASES["not square"]
    inputs = [
        each if dim is None else torch.stack([each, 2.0 * each, each - 1.0], dim)
        for each, dim in zip(drawn(case), dims, strict=True)
    ]
    ours, right = (torch.func.vmap(each, dims)(*inputs) for each in functions(case))
    assert_same([ours], [right])


@needs_triton
@small_cases
def test_vmap_over_directions(case):
    """Gradients of one value along several cotangents, and the gradients of these."""
    results = []
    for function in functions(case):
        leaves = [each.requires_grad_() for each in drawn(case)]
        value = function(*leaves)
        directions = draw(3, *value.shape, seed=5).requires_grad_()
        pull = partial(torch.autograd.grad, value, leaves, create_graph=True)
        gradients = torch.func.vmap(pull)(directions)
        along = [draw(*each.shape, seed=7 + i) for i, each in enumerate(gradients)]
        second = torch.autograd.grad(gradients, (*leaves[:2], directions), along)
        results.append((*gradients, *second))
    assert_same(*results)


@needs_triton
def test_only_what_is_asked_for():
    case = CASES["padded"]
    images, weight, bias = drawn(case)
    for wanted in ((0,), (1,), (2,), (0, 2)):
        results = []
        for function in functions(case):
            leaves = [each.clone() for each in (images, weight, bias)]
            asked = [leaves[index].requires_grad_() for index in wanted]
            results.append(torch.autograd.grad(function(*leaves).square().sum(), asked))
        assert_same(*results)


@needs_triton
def test_strided_inputs_and_no_bias():
    images = draw(2, 7, 6, 3, seed=0).permute(0, 3, 1, 2)
    weight = draw(3, 3, 4, 2, seed=1).permute(3, 0, 1, 2)
    ours, right = (
        value_and_gradients(each, (images, weight)) for each in (small_convolution, conv2d)
    )
    assert_same(ours, right)
    spread = torch.ones((), dtype=torch.float64, device=DEVICE).expand(right[0].shape)
    ours, right = (
        value_and_gradients(each, (images, weight), spread) for each in (small_convolution, conv2d)
    )
    assert_same(ours, right)


@needs_triton
@pytest.mark.parametrize("strip", [1, 2, 3, 5])
@pytest.mark.parametrize("chunk", [16, 32])
def test_tiles_change_nothing(strip, chunk):
    """Whatever the strips, chunks and tiles are, also where they do not fit the image."""
    case = CASES["in steps"]
    images, weight, bias = drawn(case, torch.float32)
    gradient = draw(2, *output_shape(case), seed=5, dtype=torch.float32)
    tiles = Tiles(positions=32, warps=2, chunk=chunk, strip=strip)
    how = {"tiles": tiles, "precision": "ieee"}
    space = case.stride, case.padding
    ours = (
        convolution_kernels.convolve(images, weight, bias, *space, **how),
        convolution_kernels.convolve_to_images(gradient, weight, images.shape, *space, **how),
        *convolution_kernels.convolve_to_weight(images, gradient, case.kernel, *space, **how),
    )
    right = value_and_gradients(functions(case)[1], drawn(case), gradient.double())
    assert_same(ours, [each.float() for each in right], 2e-6)


def output_shape(case: Case) -> tuple[int, ...]:
    return case.maps, *output_size(case.size, case.kernel, case.stride, case.padding)


@needs_triton
def test_programs_of_many_steps_share_the_weight_gradient(monkeypatch):
    """Ten tiles for four programs: three steps each, and in the last a tile that is not there."""
    monkeypatch.setattr(convolution_plans, "_WARPS", 8)
    case = Case(1, (5, 5), 2, (2, 2), count=20)
    gradient = draw(20, *output_shape(case), seed=5)
    tiles = Tiles(positions=16, warps=2, strip=2)
    ours = convolution_kernels.convolve_to_weight(
        drawn(case)[0], gradient, (2, 2), (1, 1), (0, 0), tiles=tiles
    )
    assert_same(ours, value_and_gradients(conv2d, drawn(case), gradient)[2:])
    space = Geometry((5, 5), (4, 4), (2, 2), (1, 1), (1, 1), (0, 0))
    plan = weight_plan(space, 20, 1, 2, "double", tiles)
    assert (plan.programs, plan.steps) == (4, 3)


@needs_cuda
def test_a_cuda_graph_captures_value_and_gradients():
    case = CASES["LeNet's second"]
    leaves = [each.requires_grad_() for each in drawn(case, torch.float32)]

    def run():
        value = functions(case)[0](*leaves)
        return value, *torch.autograd.grad(value, leaves, torch.ones_like(value))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    with torch.no_grad():
        leaves[0].add_(0.1)
    graph.replay()
    for ours, right in zip(results, run(), strict=True):
        assert torch.equal(ours, right)


# --- without kernels ----------------------------------------------------------------------


@pytest.mark.parametrize("padding", [(0, 0), (1, 1), (0, 2)])
def test_a_kernel_that_covers_its_image(padding):
    """A matrix product, on every device; what of the kernel lies on the margins meets zeros."""
    size = 5, 4
    kernel = tuple(length + 2 * margin for length, margin in zip(size, padding, strict=True))
    case = Case(3, size, 7, kernel, padding=padding)
    assert covers_input(*drawn(case)[:2], padding)
    ours, right = (value_and_gradients(each, drawn(case)) for each in functions(case))
    assert_same(ours, right)


def test_what_does_not_cover_its_image():
    images, weight, _ = drawn(Case(1, (5, 4), 2, (5, 3)))
    assert not covers_input(images, weight, (0, 0))
    assert not covers_input(images[..., :3], weight, (1, 0))


def test_what_is_small():
    """float32 on a GPU, two axes, few channels, neither groups nor dilation."""
    images, weight, _ = drawn(CASES["LeNet's first"], torch.float32)
    assert not is_small(images.cpu(), weight.cpu())
    if not (CAN_RUN and ON_CUDA):
        pytest.skip("the rest needs Triton and a CUDA device")
    assert is_small(images, weight)
    assert not is_small(images.double(), weight.double())
    assert not is_small(images, weight, dilation=2)
    assert not is_small(images, weight, groups=2)
    assert not is_small(images, weight, padding="same")
    assert not is_small(images[..., :4], weight)
    many, large = weight.expand(6, 16, 5, 5), images.expand(-1, 16, -1, -1)
    assert not is_small(large, many)
    assert is_small(large[..., :5, :5], many)
    assert not is_small(images, weight.repeat(6, 1, 1, 1))
    with torch.autocast("cuda"):
        assert not is_small(images, weight)


def test_without_triton_it_is_torch(monkeypatch):
    """Where Triton cannot be imported, or another type comes, nothing is raised."""
    for module in ("triton", "triton.language"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "isotropy.kernels.convolution_kernels", raising=False)
    assert imported.__wrapped__("isotropy.kernels.convolution_kernels") is None
    monkeypatch.setattr(small_convolutions, "_kernels", lambda: None)
    inputs = drawn(CASES["padded"])
    ours = small_convolution(*inputs, padding=1)
    torch.testing.assert_close(ours, conv2d(*inputs, padding=1))


def test_strips_fetch_less():
    """LeNet's first: two rows at a time are 30 pixels, alone 25 each; back, 14 rows of one map."""
    first = Geometry((28, 28), (24, 24), (5, 5), (1, 1), (1, 1), (0, 0))
    assert value_plan(first, 1, 1, 6, "ieee", None).strip == 2
    back = Geometry((24, 24), (28, 28), (5, 5), (1, 1), (1, 1), (4, 4))
    assert value_plan(back, 1, 6, 1, "ieee", None).strip == 14
    assert back.is_checked(1) and not first.is_checked(2) and first.is_checked(5)
