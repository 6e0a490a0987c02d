"""The fused kernels against the reference path: values, every mode of differentiation, layouts.

They run on a CUDA device, or on a CPU if Triton interprets (`TRITON_INTERPRET=1`), which is slow:
sizes are tiny. What chooses between the paths is tested everywhere.
"""

from __future__ import annotations

import itertools
import sys

import pytest
import torch
from triton_cases import CAN_RUN, DEVICE, ON_CUDA, needs_cuda, needs_triton

from isotropy.kernels import fused
from isotropy.kernels.fused import reference_path
from isotropy.symmetry.actions.warp import affine_warp, reference_warp

if CAN_RUN:
    from isotropy.symmetry.actions.warp_triton import fused_warp


OPTIONS = {
    f"{interpolation}, {padding}, {'corners' if corners else 'edges'}": {
        "interpolation": interpolation,
        "padding": padding,
        "align_corners": corners,
    }
    for interpolation, padding, corners in itertools.product(
        ("bilinear", "bicubic"), ("zeros", "border", "reflection"), (True, False)
    )
}
TWO_OPTIONS = {name: OPTIONS[name] for name in ("bilinear, zeros, corners",
                                                "bicubic, reflection, edges")}  # fmt: skip
PLAIN = OPTIONS["bilinear, zeros, corners"]
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
two_options = pytest.mark.parametrize("options", TWO_OPTIONS.values(), ids=TWO_OPTIONS)


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype)


def inputs(*shape: int, samples: int, spread: float = 0.4, dtype=torch.float64):
    """Images of `shape` and maps about the identity that read outside too."""
    batch = shape[0]
    linear = draw(batch, samples, 2, 2, seed=1) * spread + torch.eye(2).to(DEVICE, torch.float64)
    shift = draw(batch, samples, 2, seed=2) * 2 * spread
    return draw(*shape, seed=0, dtype=dtype), linear.to(dtype), shift.to(dtype)


def both(function, *tensors, **options):
    """`function(warp, *tensors)` with the kernels and with the reference path."""
    paths = (fused_warp, reference_warp)
    return [function(lambda *given, path=path: path(*given, **options), *tensors) for path in paths]


def pulled(path, *tensors):
    """Gradients to all inputs of a weighted sum of the copies."""
    leaves = [each.clone().requires_grad_() for each in tensors]
    copies = path(*leaves)
    return torch.autograd.grad(copies, leaves, draw(*copies.shape, seed=5, dtype=copies.dtype))


def pushed(path, *tensors):
    """The tangent of the copies as all inputs change."""
    tangents = tuple(draw(*each.shape, seed=6, dtype=each.dtype) for each in tensors)
    return torch.func.jvp(path, tensors, tangents)[1]


def assert_close(pair, tolerance=1e-11):
    ours, right = pair
    torch.testing.assert_close(ours, right, rtol=tolerance, atol=tolerance)


# --- against the reference path -----------------------------------------------------------


@needs_triton
@every_option
def test_copies(options):
    assert_close(both(lambda path, *given: path(*given), *inputs(1, 2, 4, 7, samples=2), **options))


@needs_triton
@every_option
def test_copies_far_away(options):
    images, linear, _ = inputs(1, 1, 5, 4, samples=1)
    shift = torch.tensor([[[7.3, -11.9]]], dtype=torch.float64, device=DEVICE)
    assert_close(both(lambda path, *given: path(*given), images, linear, shift, **options))


@needs_triton
@every_option
def test_copies_from_places_that_32_bits_cannot_number(options):
    """Rows so far away that their number times the width is more than they hold."""
    images, linear, _ = inputs(1, 1, 5, 4, samples=1)
    shift = torch.tensor([[[4.1e8, -3.9e8]]], dtype=torch.float64, device=DEVICE)
    given = (images, linear, shift)
    assert_close(both(lambda path, *given: path(*given), *given, **options), 1e-5)


@needs_triton
@every_option
def test_gradients(options):
    assert_close(both(pulled, *inputs(1, 2, 4, 5, samples=2), **options))


@needs_triton
@every_option
def test_tangents(options):
    assert_close(both(pushed, *inputs(1, 2, 5, 4, samples=1), **options))


SHAPES = {
    "one pixel wide": ((2, 1, 5, 1), 1),
    "one pixel high": ((1, 1, 1, 4), 2),
    "one pixel": ((1, 2, 1, 1), 1),
    "several tiles": ((1, 2, 34, 35), 1),
    "many channels": ((1, 7, 3, 2), 1),
    "many copies": ((2, 1, 2, 3), 3),
}


@needs_triton
@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize(("shape", "samples"), SHAPES.values(), ids=SHAPES)
def test_shapes(shape, samples, corners):
    options = {"interpolation": "bilinear", "padding": "reflection", "align_corners": corners}
    given = inputs(*shape, samples=samples)
    copies = both(lambda path, *given: path(*given), *given, **options)
    assert copies[0].shape == (shape[0], samples, *shape[1:]) and copies[0].is_contiguous()
    assert_close(copies)
    assert_close(both(pulled, *given, **options))
    if samples == 1:
        assert_close(both(pushed, *given, **options))


@needs_triton
def test_several_tiles_of_the_cubic():
    given, options = inputs(1, 1, 9, 33, samples=1), OPTIONS["bicubic, border, edges"]
    assert_close(both(lambda path, *given: path(*given), *given, **options))
    assert_close(both(pulled, *given, **options))


@needs_triton
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.float16, 2e-2), (torch.bfloat16, 2e-1)],
    ids=str,
)
@two_options
def test_types(options, dtype, tolerance):
    given = inputs(1, 1, 4, 4, samples=2, dtype=dtype)
    copies = fused_warp(*given, **options)
    assert copies.dtype == dtype
    # Positions are worked out in single precision: the right ones are those of the given numbers.
    right = reference_warp(*(each.double() for each in given), **options)
    torch.testing.assert_close(copies.double(), right, rtol=tolerance, atol=tolerance)
    gradients = pulled(lambda *each: fused_warp(*each, **options), *given)
    assert [each.dtype for each in gradients] == [dtype] * 3
    wide = [each.double() for each in given]
    cotangent = draw(*copies.shape, seed=5, dtype=dtype).double()
    leaves = [each.requires_grad_() for each in wide[1:]]
    to_maps = torch.autograd.grad(reference_warp(wide[0], *leaves, **options), leaves, cotangent)
    for ours, wanted in zip(gradients[1:], to_maps, strict=True):
        error = (ours.double() - wanted).abs().max() / wanted.abs().max()
        assert error < 10 * tolerance


@needs_triton
def test_the_identity_is_exact():
    """Nothing is rounded there, whatever the size: a copy is the image, bit by bit."""
    images = draw(1, 1, 7, 10, seed=0, dtype=torch.float32)
    linear = torch.eye(2, device=DEVICE)[None, None]
    shift = torch.zeros(1, 1, 2, device=DEVICE)
    for corners in (True, False):
        copies = fused_warp(images, linear, shift, align_corners=corners)
        assert torch.equal(copies[:, 0], images)


@needs_triton
@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_places_without_a_number(padding):
    """Nothing is read beyond the image's memory, and what is not a place is outside."""
    images, linear, shift = inputs(1, 1, 3, 3, samples=3)
    shift[0, :, 0] = torch.tensor([1e30, -torch.inf, torch.nan])
    copies = fused_warp(images, linear, shift, padding=padding)
    assert copies.isfinite().all()
    right = reference_warp(images, linear, shift, **{**PLAIN, "padding": padding})
    torch.testing.assert_close(copies[:, :1], right[:, :1])
    if padding == "zeros":
        assert not copies.any()


# --- derivatives --------------------------------------------------------------------------


@needs_triton
@two_options
def test_derivatives_equal_differences(options):
    """Forward and reverse mode against central differences along one direction of the maps."""
    images, *maps = inputs(1, 1, 4, 5, samples=1)
    direction = [draw(*each.shape, seed=7) for each in maps]
    step = 1e-7
    ahead, behind = (
        fused_warp(
            images,
            *(each + sign * step * way for each, way in zip(maps, direction, strict=True)),
            **options,
        )
        for sign in (1, -1)
    )
    central = (ahead - behind) / (2 * step)
    _, tangent = torch.func.jvp(
        lambda *maps: fused_warp(images, *maps, **options), tuple(maps), tuple(direction)
    )
    torch.testing.assert_close(tangent, central, rtol=0, atol=1e-6)
    to_maps = pulled(lambda *given: fused_warp(*given, **options), images, *maps)[1:]
    along = sum((each * way).sum() for each, way in zip(to_maps, direction, strict=True))
    weights = draw(*central.shape, seed=5)
    torch.testing.assert_close(along, (central * weights).sum(), rtol=0, atol=1e-5)


@needs_triton
@pytest.mark.parametrize("which", [0, 1, 2], ids=["images", "linear", "shift"])
def test_one_input_changes(which):
    given = inputs(1, 1, 3, 4, samples=1)

    def of_one(path, one):
        return path(*given[:which], one, *given[which + 1 :])

    for mode in (pulled, pushed):
        assert_close(
            both(lambda path, one, mode=mode: mode(lambda x: of_one(path, x), one), given[which],
                 **PLAIN)
        )  # fmt: skip


@needs_triton
def test_both_modes_take_the_same_side_of_a_kink():
    """⟨w, J v⟩ = ⟨Jᵀ w, v⟩ at the identity, where every pixel sits on one."""
    images = draw(1, 1, 4, 5, seed=0)
    linear = torch.eye(2, dtype=torch.float64, device=DEVICE)[None, None]
    given = (images, linear, linear.new_zeros(1, 1, 2))
    tangent = pushed(fused_warp, *given)
    forward = (tangent * draw(*tangent.shape, seed=5)).sum()
    gradients = pulled(fused_warp, *given)
    reverse = sum((g * draw(*g.shape, seed=6)).sum() for g in gradients)
    torch.testing.assert_close(forward, reverse, rtol=1e-11, atol=1e-11)


def has_second_derivative() -> bool:
    """Whether this torch differentiates the backward pass of `grid_sampler_2d`."""
    images, grid = torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 1, 2, requires_grad=True)
    slope = torch.autograd.grad(
        torch.nn.functional.grid_sample(images, grid, align_corners=True).sum(),
        grid,
        create_graph=True,
    )[0]
    try:
        torch.autograd.grad(slope.sum(), grid, allow_unused=True)
    except RuntimeError:
        return False
    return True


@needs_triton
@two_options
def test_second_derivatives_are_those_of_the_reference(options):
    if not has_second_derivative():
        pytest.skip("this torch has no second derivative of grid_sampler_2d")
    given = inputs(1, 1, 3, 4, samples=1)

    def twice(path, *tensors):
        leaves = [each.clone().requires_grad_() for each in tensors]
        copies = path(*leaves)
        first = torch.autograd.grad((copies**2).sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum((each**2).sum() for each in first), leaves)

    assert_close(both(twice, *given, **options))

    def reverse_over_forward(path, *tensors):
        def tangent(*tensors):
            return (pushed(path, *tensors) ** 2).sum()

        return torch.func.grad(tangent, argnums=(0, 1, 2))(*tensors)

    assert_close(both(reverse_over_forward, *given, **options))


@needs_triton
def test_a_change_of_the_maps_can_be_learned():
    """The tangent is linear in the change of the maps: its gradient needs no second derivative."""
    images, linear, shift = inputs(1, 1, 3, 4, samples=1)

    def gradient(path, *change):
        def size(*change):
            _, tangent = torch.func.jvp(lambda *maps: path(images, *maps), (linear, shift), change)
            return (tangent**2).sum()

        return torch.func.grad(size, argnums=(0, 1))(*change)

    change = (draw(1, 1, 2, 2, seed=3), draw(1, 1, 2, seed=4))
    if has_second_derivative():
        assert_close(both(gradient, *change, **PLAIN))
    step, ways = 1e-6, (torch.ones_like(change[0]), torch.ones_like(change[1]))
    sizes = []
    for sign in (1, -1):
        moved = tuple(c + sign * step * w for c, w in zip(change, ways, strict=True))
        _, tangent = torch.func.jvp(
            lambda *maps: fused_warp(images, *maps, **PLAIN), (linear, shift), moved
        )
        sizes.append((tangent**2).sum())
    along = sum(each.sum() for each in gradient(lambda *g: fused_warp(*g, **PLAIN), *change))
    torch.testing.assert_close(along, (sizes[0] - sizes[1]) / (2 * step), rtol=1e-6, atol=1e-6)


@needs_triton
@pytest.mark.parametrize("inner", [torch.func.jacfwd, torch.func.jacrev])
def test_forward_over_a_derivative_is_refused(inner):
    """What torch's own backward pass cannot do either is an error, not a wrong number."""
    images, linear, shift = inputs(1, 1, 2, 3, samples=1)
    with pytest.raises(NotImplementedError):
        torch.func.jacfwd(inner(lambda shift: fused_warp(images, linear, shift)))(shift)


# --- vmap, layout, emptiness --------------------------------------------------------------


@needs_triton
@pytest.mark.parametrize(
    "dims", [(0, 0, 0), (None, 0, 0), (None, 0, None), (0, None, None), (1, 0, 2)], ids=str
)
def test_vmap(dims):
    """Mapped inputs, in any combination, in value, both modes, and mapped cotangents."""
    single = inputs(2, 1, 2, 3, samples=1)
    mapped = [
        each if dim is None else torch.stack([each, each.flip(0) * 0.9], dim)
        for each, dim in zip(single, dims, strict=True)
    ]
    for function in (lambda path, *given: path(*given), pulled_purely, pushed_purely):
        assert_close(
            both(
                lambda path, *given, function=function: torch.func.vmap(
                    lambda *each: function(path, *each), dims
                )(*given),
                *mapped,
                **PLAIN,
            )
        )


def pulled_purely(path, *tensors):
    """Gradients to all inputs, without drawing and by torch.func alone."""
    copies, pull = torch.func.vjp(path, *tensors)
    return pull(copies * 0.5 + 1)


def pushed_purely(path, *tensors):
    """A tangent of the copies, likewise."""
    return torch.func.jvp(path, tensors, tuple(torch.cos(3 * each) for each in tensors))[1]


@needs_triton
def test_jacobians():
    images, linear, shift = inputs(1, 1, 2, 2, samples=1)
    for jacobian in (torch.func.jacfwd, torch.func.jacrev):
        assert_close(
            both(
                lambda path, *given, jacobian=jacobian: jacobian(path, argnums=(1, 2))(*given),
                images, linear, shift, **PLAIN,
            )
        )  # fmt: skip


@needs_triton
def test_any_layout():
    images, linear, shift = inputs(2, 2, 4, 3, samples=2)
    right = reference_warp(images, linear, shift, **PLAIN)
    strided = (
        images.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
        linear.mT.contiguous().mT,
        shift.transpose(0, 1).contiguous().transpose(0, 1),
    )
    assert not any(each.is_contiguous() for each in strided)
    assert_close((fused_warp(*strided, **PLAIN), right))
    assert_close(both(pulled, *strided, **PLAIN))


@needs_triton
def test_an_expanded_cotangent():
    """`copies.sum()` hands back a cotangent without memory of its own."""

    def of_sum(path, images, linear, shift):
        linear = linear.clone().requires_grad_()
        return torch.autograd.grad(path(images, linear, shift).sum(), linear)

    assert_close(both(of_sum, *inputs(1, 2, 3, 4, samples=2), **PLAIN))  # fmt: skip


@needs_triton
@pytest.mark.parametrize(("batch", "samples"), [(0, 3), (2, 0)])
def test_nothing_to_do(batch, samples):
    given = inputs(batch, 1, 4, 4, samples=samples)
    assert fused_warp(*given).shape == (batch, samples, 1, 4, 4)
    assert pushed(fused_warp, *given).shape == (batch, samples, 1, 4, 4)
    gradients = pulled(fused_warp, *given)
    assert [each.shape for each in gradients] == [each.shape for each in given]
    assert not any(each.any() for each in gradients)


@needs_triton
def test_the_same_gradient_in_every_run():
    given = inputs(2, 1, 33, 4, samples=1, dtype=torch.float32)
    first, second = (pulled(fused_warp, *given)[1:] for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


# --- which path is taken ------------------------------------------------------------------


@needs_cuda
def test_taken_on_a_gpu(monkeypatch):
    given = inputs(2, 1, 8, 8, samples=3, dtype=torch.float32)
    called = []
    monkeypatch.setattr(
        fused.imported("isotropy.symmetry.actions.warp_triton"),
        "fused_warp",
        lambda *g, **o: called.append(1) or fused_warp(*g, **o),
    )
    ours = affine_warp(*given)
    assert called == [1]
    with reference_path():
        right = affine_warp(*given)
    affine_warp(given[0].cpu(), given[1].cpu(), given[2].cpu())
    affine_warp(*given, interpolation="fourier")
    assert called == [1]
    torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-5)


def test_without_triton(monkeypatch):
    """Where Triton cannot be imported there is no fused path, and nothing is raised."""
    for module in ("triton", "triton.language"):
        monkeypatch.setitem(sys.modules, module, None)
    for module in ("warp_triton", "warp_kernels"):
        monkeypatch.delitem(sys.modules, f"isotropy.symmetry.actions.{module}", raising=False)
    assert fused.imported.__wrapped__("isotropy.symmetry.actions.warp_triton") is None


class Marked(torch.Tensor):
    """A tensor that stands for something else than its numbers."""


def test_what_the_kernels_take():
    """One type, one device, plain tensors, on a GPU; anything else is left to the reference."""
    cpu = torch.zeros(2)
    assert fused.fused_module("isotropy.symmetry.actions.warp_triton", cpu, cpu) is None
    if not (CAN_RUN and ON_CUDA):
        pytest.skip("the rest needs Triton and a CUDA device")
    cuda = cpu.cuda()
    taken = fused.fused_module(
        "isotropy.symmetry.actions.warp_triton", cuda, torch.nn.Parameter(cuda)
    )
    assert taken is fused.imported("isotropy.symmetry.actions.warp_triton")
    for others in ((cuda.double(),), (cpu,), (cuda.as_subclass(Marked),)):
        assert fused.fused_module("isotropy.symmetry.actions.warp_triton", cuda, *others) is None
    assert (
        fused.fused_module("isotropy.symmetry.actions.warp_triton", cuda.int(), cuda.int()) is None
    )
    with reference_path():
        assert fused.fused_module("isotropy.symmetry.actions.warp_triton", cuda, cuda) is None


def test_the_reference_path_ends_with_its_context():
    assert not fused.is_plain()
    with pytest.raises(KeyError), reference_path():
        assert fused.is_plain()
        raise KeyError
    assert not fused.is_plain()


@needs_cuda
def test_a_cuda_graph_captures_value_and_gradient():
    images, linear, shift = inputs(2, 1, 8, 8, samples=3, dtype=torch.float32)
    leaves = [each.requires_grad_() for each in (linear, shift)]

    def gradients():
        copies = affine_warp(images, *leaves)
        return copies, *torch.autograd.grad(copies, leaves, torch.ones_like(copies))

    replayed = captured(gradients)
    with torch.no_grad():
        shift += 0.1
    for ours, right in zip(replayed(), gradients(), strict=True):
        assert torch.equal(ours, right)


def captured(function):
    """`function` as a CUDA graph, after a warm-up."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = function()

    def replayed():
        graph.replay()
        return results

    return replayed


def test_the_reference_path_is_the_reference():
    images, linear, shift = (each.cpu() for each in inputs(2, 2, 4, 5, samples=3))
    right = reference_warp(images, linear, shift, **PLAIN)
    with reference_path():
        assert torch.equal(affine_warp(images, linear, shift), right)
