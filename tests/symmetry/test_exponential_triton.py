"""The fused affine exponential against the closed form and torch's: values, derivatives, layouts.

Runs on a CUDA device, or on a CPU if Triton interprets (`TRITON_INTERPRET=1`), which is slow: all
points are in one batch.
"""

from __future__ import annotations

import math

import pytest
import torch
from triton_cases import CAN_RUN, DEVICE, needs_cuda, needs_triton

from isotropy import fused
from isotropy.fused import reference_path
from isotropy.symmetry.affine_exponential import affine_exponential, reference_exponential
from isotropy.symmetry.image_actions import affine

if CAN_RUN:
    from isotropy.symmetry.exponential_triton import fused_exponential


SPECIAL = [
    [[0.0, 0.0], [0.0, 0.0]],
    [[0.3, 0.0], [0.0, 0.3]],
    [[-1.7, 0.0], [0.0, -1.7]],
    [[0.0, 1.0], [0.0, 0.0]],
    [[0.6, -0.9], [0.4, -0.6]],
    [[0.8, 2.0], [0.0, 0.8]],
    [[2.0, 0.0], [0.0, 0.0]],
    [[0.0, 2 * math.pi], [-2 * math.pi, 0.0]],
    [[0.0, 20.0], [-20.0, 0.0]],
    [[-0.4, 5.0], [-5.0, -0.4]],
    [[-20.0, 0.0], [0.0, -20.0]],
    [[16.0, 0.0], [0.0, -16.0]],
]


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype)


def points(*, largest: float = 20.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks of every kind with column sums up to `largest`, and translations."""
    special = torch.tensor(SPECIAL, dtype=torch.float64, device=DEVICE)
    special = special[special.abs().sum(-2).amax(-1) <= largest]
    random = draw(60, 2, 2, seed=0)
    sizes = torch.logspace(-9, math.log10(largest), 60, dtype=torch.float64).to(DEVICE)
    random = random * (sizes / random.abs().sum(-2).amax(-1))[:, None, None]
    block = torch.cat((special, random))
    return block, draw(len(block), 2, seed=1)


def whole_exponential(block: torch.Tensor, translation: torch.Tensor):
    """torch's exponential of the 3×3 matrix."""
    matrix = torch.zeros(*block.shape[:-2], 3, 3, dtype=block.dtype, device=block.device)
    matrix[..., :2, :2], matrix[..., :2, 2] = block, translation
    result = torch.linalg.matrix_exp(matrix)
    return result[..., :2, :2], result[..., :2, 2]


def assert_close(ours, right, tolerance=1e-12):
    """Each pair within `tolerance` of the size of the element's matrix and vector; a NaN fails."""
    size = torch.ones((), dtype=torch.float64, device=DEVICE)
    for each in right:
        size = torch.maximum(size, each.detach().double().abs().amax((-1,)))
    for one, other in zip(ours, right, strict=True):
        assert one.shape == other.shape
        assert ((one - other).double().abs().amax(-1) <= tolerance * size).all()


def flat(result):
    """Matrices and vectors of (elements, …) as rows of numbers."""
    return [each.flatten(1) for each in result]


def both(function, *tensors):
    """`function(exponential, *tensors)` with the kernel and with the closed form, as rows."""
    return [flat(function(each, *tensors)) for each in (fused_exponential, reference_exponential)]


def pulled(path, block, translation):
    """The gradient of a weighted sum of both results."""
    results, pull = torch.func.vjp(path, block, translation)
    return pull(tuple(torch.cos(1 + 3 * torch.arange(each.numel()).to(each)).view_as(each)
                      for each in results))  # fmt: skip


def pushed(path, block, translation):
    """The tangent of both results."""
    change = (draw(*block.shape, seed=5), draw(*translation.shape, seed=6))
    return torch.func.jvp(path, (block, translation), change)[1]


# --- values -------------------------------------------------------------------------------


@needs_triton
def test_equals_the_closed_form_and_torchs():
    given = points()
    ours = flat(fused_exponential(*given))
    assert_close(ours, flat(reference_exponential(*given)), 1e-13)
    assert_close(ours, flat(whole_exponential(*given)))


@needs_triton
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)],
    ids=str,
)
def test_types(dtype, tolerance):
    """Whatever is given is worked on in double precision: only the result is rounded."""
    given = [each.to(dtype) for each in points(largest=5.0)]
    ours = fused_exponential(*given)
    assert [each.dtype for each in ours] == [dtype] * 2
    wide = [each.double() for each in given]
    assert_close(
        flat(each.double() for each in ours), flat(reference_exponential(*wide)), tolerance
    )
    gradient = pulled(fused_exponential, *given)
    assert [each.dtype for each in gradient] == [dtype] * 2
    weights = lambda each: torch.cos(1 + 3 * torch.arange(each.numel()).to(each)).view_as(each)  # noqa: E731
    right = torch.func.vjp(reference_exponential, *wide)[1](
        tuple(weights(each).double() for each in ours)
    )
    assert_close(flat(each.double() for each in gradient), flat(right), tolerance)


@needs_triton
def test_what_is_exact():
    """The identity at zero, and a translation by itself."""
    translation = draw(3, 2, seed=1, dtype=torch.float32)
    linear, shift = fused_exponential(translation.new_zeros(3, 2, 2), translation)
    assert torch.equal(linear, torch.eye(2, device=DEVICE).expand(3, 2, 2))
    assert torch.equal(shift, translation)


@needs_triton
def test_a_tiny_translation_is_right_to_all_digits():
    block, translation = points(largest=5.0)
    _, shift = fused_exponential(block, translation * 1e-30)
    _, right = fused_exponential(block, translation)
    torch.testing.assert_close(shift * 1e30, right, rtol=1e-13, atol=1e-13)


@needs_triton
def test_an_element_does_not_see_its_neighbours():
    """Also not if these are many, huge or no numbers."""
    block, translation = points()
    together = fused_exponential(block, translation)
    spoiled = block.clone()
    spoiled[0], spoiled[1], spoiled[2] = torch.nan, torch.inf, 1e200
    beside = fused_exponential(spoiled, translation)
    alone = fused_exponential(block[20:22], translation[20:22])
    for one, other, single in zip(together, beside, alone, strict=True):
        assert torch.equal(one[3:], other[3:])
        assert torch.equal(one[20:22], single)
        assert not other[:2].isfinite().any()


# --- derivatives --------------------------------------------------------------------------


@needs_triton
@pytest.mark.parametrize("mode", [pulled, pushed])
def test_first_derivatives(mode):
    assert_close(*both(mode, *points()), 1e-12)


@needs_triton
def test_derivatives_equal_differences():
    block, translation = points(largest=2.0)
    tangent = pushed(fused_exponential, block, translation)
    step = 1e-6
    ahead, behind = (
        fused_exponential(
            block + sign * step * draw(*block.shape, seed=5),
            translation + sign * step * draw(*translation.shape, seed=6),
        )
        for sign in (1, -1)
    )
    central = [(one - other) / (2 * step) for one, other in zip(ahead, behind, strict=True)]
    assert_close(flat(tangent), flat(central), 1e-8)


@needs_triton
@pytest.mark.parametrize("which", [0, 1], ids=["block", "translation"])
def test_one_input_changes(which):
    given = points(largest=5.0)

    def of_one(path):
        return lambda one: path(*given[:which], one, *given[which + 1 :])

    one, way = given[which], draw(*given[which].shape, seed=7)
    for tangent in (True, False):

        def derivative(path, tangent=tangent):
            if tangent:
                return torch.func.jvp(of_one(path), (one,), (way,))[1]
            leaf = one.clone().requires_grad_()
            return torch.autograd.grad(of_one(path)(leaf)[1].sum(), leaf)

        assert_close(*both(derivative))


def energy(path):
    """A number that is not linear in the exponential."""
    return lambda *given: sum((each**2).sum() for each in path(*given))


def pushed_energy(path):
    return lambda *given: sum((each**2).sum() for each in pushed(path, *given))


def along(function):
    """The derivative of a function of block and translation by forward mode, as its outputs."""

    def derivative(block, translation):
        change = (draw(*block.shape, seed=8), draw(*translation.shape, seed=9))
        return torch.func.jvp(function, (block, translation), change)[1]

    return derivative


SECOND = {
    "reverse over reverse": lambda path: torch.func.grad(
        lambda *given: sum((g**2).sum() for g in torch.func.grad(energy(path), (0, 1))(*given)),
        (0, 1),
    ),
    "reverse over forward": lambda path: torch.func.grad(pushed_energy(path), (0, 1)),
    "forward over reverse": lambda path: along(torch.func.grad(energy(path), (0, 1))),
    "forward over forward": lambda path: along(lambda *given: pushed(path, *given)),
}


@needs_triton
@pytest.mark.parametrize("kind", SECOND)
def test_second_derivatives(kind):
    assert_close(
        *both(lambda path, *given: SECOND[kind](path)(*given), *points(largest=3.0)), 1e-10
    )


@needs_triton
def test_a_second_derivative_in_single_precision():
    given = points(largest=1.0)
    right = flat(SECOND["reverse over reverse"](reference_exponential)(*given))
    ours = SECOND["reverse over reverse"](fused_exponential)(*(each.float() for each in given))
    assert {each.dtype for each in ours} == {torch.float32}
    assert_close(flat(each.double() for each in ours), right, 1e-4)


@needs_triton
def test_a_third_derivative():
    given = points(largest=1.0)

    def third(path, *given):
        def size(*given):
            return sum((each**2).sum() for each in SECOND["reverse over reverse"](path)(*given))

        return torch.func.grad(size, (0, 1))(*given)

    assert_close(*both(third, *given), 1e-9)


@needs_triton
def test_autograd_twice():
    """The same by `torch.autograd`, where a graph is kept."""
    block, translation = (each.requires_grad_() for each in points(largest=3.0))

    def twice(path):
        first = torch.autograd.grad(energy(path)(block, translation), (block, translation),
                                    create_graph=True)  # fmt: skip
        return torch.autograd.grad(sum((g**2).sum() for g in first), (block, translation))

    assert_close(*both(twice), 1e-10)


# --- vmap, layout, emptiness --------------------------------------------------------------


@needs_triton
@pytest.mark.parametrize("dims", [(0, 0), (None, 0), (0, None), (2, 1)], ids=str)
def test_vmap(dims):
    """Mapped inputs, in any combination, in value and in both modes."""
    single = (draw(3, 2, 2, seed=0), draw(3, 2, seed=1))
    mapped = [
        each if dim is None else torch.stack([each, each.flip(0) * 0.9], dim)
        for each, dim in zip(single, dims, strict=True)
    ]

    def purely_pushed(path, *given):
        return torch.func.jvp(path, given, tuple(torch.cos(3 * each) for each in given))[1]

    for function in (lambda path, *given: path(*given), pulled, purely_pushed):
        ours, right = (
            torch.func.vmap(lambda *each, path=path: function(path, *each), dims)(*mapped)  # noqa: B023
            for path in (fused_exponential, reference_exponential)
        )
        torch.testing.assert_close(ours, right, rtol=1e-12, atol=1e-12)


@needs_triton
def test_jacobians():
    given = (draw(2, 2, seed=0), draw(2, seed=1))
    for jacobian in (torch.func.jacfwd, torch.func.jacrev):
        ours, right = (
            jacobian(path, (0, 1))(*given) for path in (fused_exponential, reference_exponential)
        )
        torch.testing.assert_close(ours, right, rtol=1e-12, atol=1e-12)


@needs_triton
def test_any_layout():
    """Parts of one matrix, transposed axes, one number for all; results are contiguous."""
    algebra = draw(3, 4, 2, 3, seed=0)
    layouts = {
        "parts": (algebra[..., :2], algebra[..., 2]),
        "transposed": (draw(3, 4, 2, 2, seed=0).mT, draw(2, 3, 4, seed=1).movedim(0, -1)),
        "leading axes exchanged": (
            draw(4, 3, 2, 2, seed=0).transpose(0, 1),
            draw(4, 3, 2, seed=1).transpose(0, 1),
        ),
        "expanded": (draw(2, 2, seed=0).expand(3, 4, 2, 2), draw(2, seed=1).expand(3, 4, 2)),
    }
    for block, translation in layouts.values():
        assert not (block.is_contiguous() and translation.is_contiguous())
        ours = fused_exponential(block, translation)
        assert all(each.is_contiguous() for each in ours)
        torch.testing.assert_close(ours, reference_exponential(block, translation))
    leaf = algebra.clone().requires_grad_()
    linear, shift = fused_exponential(leaf[..., :2], leaf[..., 2])
    (gradient,) = torch.autograd.grad(linear.sum() + shift.sum(), leaf)
    linear, shift = reference_exponential(leaf[..., :2], leaf[..., 2])
    torch.testing.assert_close(gradient, torch.autograd.grad(linear.sum() + shift.sum(), leaf)[0])


@needs_triton
def test_leading_axes():
    """None, several, and such that are repeated for one another."""
    for first, second in (((), ()), ((2, 3), (2, 3)), ((3,), (2, 1)), ((2, 1), ())):
        given = (draw(*first, 2, 2, seed=0), draw(*second, 2, seed=1))
        linear, shift = fused_exponential(*given)
        leading = torch.broadcast_shapes(first, second)
        assert linear.shape == (*leading, 2, 2) and shift.shape == (*leading, 2)
        right = reference_exponential(*given)
        torch.testing.assert_close(linear, right[0].expand_as(linear), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(shift, right[1].expand_as(shift), rtol=1e-12, atol=1e-12)


@needs_triton
@pytest.mark.parametrize("leading", [(0,), (3, 0), (0, 3)], ids=str)
def test_nothing_to_do(leading):
    given = (draw(*leading, 2, 2, seed=0), draw(*leading, 2, seed=1))
    shapes = [each.shape for each in given]
    for results in (fused_exponential(*given), pulled(fused_exponential, *given),
                    pushed(fused_exponential, *given)):  # fmt: skip
        assert [each.shape for each in results] == shapes


# --- which path is taken ------------------------------------------------------------------


@needs_cuda
def test_taken_on_a_gpu(monkeypatch):
    given = [each.float() for each in points(largest=2.0)]
    called = []
    monkeypatch.setattr(
        fused.imported("isotropy.symmetry.exponential_triton"),
        "fused_exponential",
        lambda *g: called.append(1) or fused_exponential(*g),
    )
    ours = affine_exponential(*given)
    assert called == [1]
    with reference_path():
        right = affine_exponential(*given)
    affine_exponential(given[0].cpu(), given[1].cpu())
    assert called == [1]
    torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-5)


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
