"""The closed-form affine exponential: against scipy's, at its seams, and in every derivative; and
constants that are kept where the data are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles.affine_oracle import exponential, exponential_derivative
from triton_cases import DEVICE, needs_cuda

from isotropy.kernels.fused import reference_path
from isotropy.symmetry.actions import exponential as module
from isotropy.symmetry.actions.exponential import FEW, PlacedConstant
from isotropy.symmetry.actions.exponential import reference_exponential as affine_exponential
from isotropy.symmetry.actions.images import affine

# Relative to the size of the exponential, or one, and growing with the block's norm squared:
# that is scipy's own rounding (against 60 digits ours stays below 1e-15 where its is 1e-12).
TOLERANCE = {torch.float64: 2e-13, torch.float32: 2e-6}

DELTA_SEAM, TAU_SEAM = 0.1, 0.5
SIDES = (-1e-2, -1e-6, -1e-12, 0.0, 1e-12, 1e-6, 1e-2)


def matrix_with(tau: float, delta: float, half: float = 0.2, upper: float = 0.7) -> list:
    """A 2×2 matrix with half trace τ whose traceless part squares to δ I."""
    return [[tau + half, upper], [(delta - half**2) / upper, tau - half]]


POINTS = {
    "zero": [[0.0, 0.0], [0.0, 0.0]],
    "equal eigenvalues, small": [[0.3, 0.0], [0.0, 0.3]],
    "equal eigenvalues, at the seam": [[0.5, 0.0], [0.0, 0.5]],
    "equal eigenvalues, large": [[-1.7, 0.0], [0.0, -1.7]],
    "nilpotent": [[0.0, 1.0], [0.0, 0.0]],
    "nilpotent, full": [[0.6, -0.9], [0.4, -0.6]],
    "Jordan block": [[0.8, 2.0], [0.0, 0.8]],
    "diag(a, 0), small": [[0.2, 0.0], [0.0, 0.0]],
    "diag(a, 0), large": [[2.0, 0.0], [0.0, 0.0]],
    "diag(0, −a)": [[0.0, 0.0], [0.0, -1.3]],
    "hyperbolic": [[0.0, 0.7], [0.7, 0.0]],
    "rotation, small": [[0.0, 1e-3], [-1e-3, 0.0]],
    "rotation, a full turn": [[0.0, 2 * np.pi], [-2 * np.pi, 0.0]],
    "rotation, 20 radians": [[0.0, 20.0], [-20.0, 0.0]],
    "spiral": [[-0.4, 5.0], [-5.0, -0.4]],
    "generic": [[0.3, -1.1], [0.5, 0.9]],
    "seam δ = 0.1": matrix_with(0.1, 0.1),
    "seam δ = −0.1": matrix_with(0.1, -0.1),
    "seam τ = 0.5": matrix_with(0.5, 0.03),
    "seam τ = −0.5": matrix_with(-0.5, -0.03),
    "corner of the seams": matrix_with(0.5, 0.1),
    "eigenvalue at its seam": matrix_with(0.1, 0.36),
}
TRANSLATION = (0.7, -1.3)


def double(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def assert_equals_oracle(block, translation, *, dtype=torch.float64):
    """Compare with scipy's 3×3 exponential; a NaN fails."""
    block = torch.as_tensor(block, dtype=torch.float64).to(dtype)
    translation = torch.as_tensor(translation, dtype=torch.float64).to(dtype)
    linear, shift = affine_exponential(block, translation)
    assert linear.dtype == shift.dtype == dtype
    right_linear, right_shift = exponential(block.double().numpy(), translation.double().numpy())
    size = max(1.0, np.abs(right_linear).max())
    norm = max(1.0, float(block.double().norm()))
    tolerance = TOLERANCE[dtype] * (norm**2 if dtype == torch.float64 else 1)
    assert np.abs(linear.double().numpy() - right_linear).max() <= tolerance * size
    # V b is judged against |b|, so that tiny translations are right to all digits.
    reach = float(translation.double().norm()) * max(size, norm)
    assert np.abs(shift.double().numpy() - right_shift).max() <= tolerance * reach


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("point", POINTS)
def test_equals_the_oracle(point, dtype):
    assert_equals_oracle(POINTS[point], TRANSLATION, dtype=dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("scale", [10.0**k for k in range(-9, 1)] + [2.0, 4.0, 8.0])
def test_equals_the_oracle_at_every_scale(scale, dtype):
    generator = np.random.default_rng(0)
    for _ in range(30):
        block, translation = generator.uniform(-1, 1, (2, 2)), generator.uniform(-1, 1, 2)
        assert_equals_oracle(scale * block, scale * translation, dtype=dtype)


entry = st.floats(-8, 8)


@given(st.tuples(entry, entry, entry, entry), st.tuples(entry, entry))
def test_equals_the_oracle_anywhere(block, translation):
    assert_equals_oracle(np.reshape(block, (2, 2)), translation)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("tau_seam", [-TAU_SEAM, 0.0, TAU_SEAM])
@pytest.mark.parametrize("delta_seam", [-DELTA_SEAM, 0.0, DELTA_SEAM])
def test_both_sides_of_every_seam(delta_seam, tau_seam, dtype):
    for delta_off in SIDES:
        for tau_off in SIDES:
            block = matrix_with(tau_seam + tau_off, delta_seam + delta_off)
            assert_equals_oracle(block, TRANSLATION, dtype=dtype)


near_tau = st.builds(
    lambda seam, off: seam + off, st.sampled_from([-0.5, 0.0, 0.5]), st.floats(-0.05, 0.05)
)
near_delta = st.builds(
    lambda seam, off: seam + off, st.sampled_from([-0.1, 0.0, 0.1]), st.floats(-0.03, 0.03)
)
part = st.one_of(st.floats(-3, -0.2), st.floats(0.2, 3))


@given(near_tau, near_delta, st.floats(-1, 1), part)
def test_near_the_seams_the_value_and_the_derivative_are_right(tau, delta, half, upper):
    block = matrix_with(tau, delta, half, upper)
    assert_equals_oracle(block, TRANSLATION)
    assert_derivative_equals_oracle(block)


def assert_derivative_equals_oracle(block, tolerance=1e-11):
    direction, direction_shift = double([[0.3, -0.8], [1.1, 0.4]]), double([0.2, 0.9])
    _, (linear_dot, shift_dot) = torch.func.jvp(
        affine_exponential, (double(block), double(TRANSLATION)), (direction, direction_shift)
    )
    right = exponential_derivative(
        np.array(block), np.array(TRANSLATION), direction.numpy(), direction_shift.numpy()
    )
    size = max(1.0, *(np.abs(each).max() for each in right))
    assert np.abs(linear_dot.numpy() - right[0]).max() <= tolerance * size
    assert np.abs(shift_dot.numpy() - right[1]).max() <= tolerance * size


@pytest.mark.parametrize("point", POINTS)
def test_derivative_equals_the_oracle(point):
    assert_derivative_equals_oracle(POINTS[point])


def leaves(point: str) -> tuple[torch.Tensor, torch.Tensor]:
    return double(POINTS[point]).requires_grad_(), double(TRANSLATION).requires_grad_()


@pytest.mark.parametrize("point", POINTS)
def test_gradients_in_both_modes(point):
    assert torch.autograd.gradcheck(
        affine_exponential, leaves(point), check_forward_ad=True, atol=1e-7, rtol=1e-6
    )


TWICE = (
    "zero", "equal eigenvalues, at the seam", "nilpotent", "diag(a, 0), small", "diag(a, 0), large",
    "rotation, 20 radians", "generic", "corner of the seams",
)  # fmt: skip


@pytest.mark.parametrize("point", TWICE)
def test_second_derivatives(point):
    assert torch.autograd.gradgradcheck(
        affine_exponential, leaves(point), check_fwd_over_rev=True, atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize("point", POINTS)
def test_float32_gradient(point):
    def gradient(dtype):
        block = double(POINTS[point]).to(dtype).requires_grad_()
        linear, shift = affine_exponential(block, double(TRANSLATION).to(dtype))
        (found,) = torch.autograd.grad((linear.sum() + shift.sum()), block)
        return found.double()

    right = gradient(torch.float64)
    error = (gradient(torch.float32) - right).abs().max()
    assert error <= 1e-5 * max(1.0, float(right.abs().max()))


def test_zero_is_exactly_the_identity():
    linear, shift = affine_exponential(torch.zeros(2, 2), torch.zeros(2))
    assert torch.equal(linear, torch.eye(2)) and torch.equal(shift, torch.zeros(2))


def test_pure_translation_is_exactly_itself():
    _, shift = affine_exponential(torch.zeros(2, 2), torch.tensor(TRANSLATION))
    assert torch.equal(shift, torch.tensor(TRANSLATION))


# --- shapes and transforms ----------------------------------------------------------------


def test_leading_axes_vmap_and_jacfwd():
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(4, 3, 2, 2, generator=generator, dtype=torch.float64)
    translation = torch.randn(4, 3, 2, generator=generator, dtype=torch.float64)
    linear, shift = affine_exponential(block, translation)
    assert linear.shape == (4, 3, 2, 2) and shift.shape == (4, 3, 2)
    mapped = torch.func.vmap(torch.func.vmap(affine_exponential))(block, translation)
    torch.testing.assert_close(mapped, (linear, shift))
    forward = torch.func.jacfwd(affine_exponential, argnums=(0, 1))(block[0, 0], translation[0, 0])
    reverse = torch.func.jacrev(affine_exponential, argnums=(0, 1))(block[0, 0], translation[0, 0])
    torch.testing.assert_close(forward, reverse)


def test_one_batch_may_visit_every_branch():
    names = list(POINTS)
    together = double([POINTS[name] for name in names]).requires_grad_()
    linear, shift = affine_exponential(together, double(TRANSLATION).expand(len(names), 2))
    (gradient,) = torch.autograd.grad(linear.sum() + shift.sum(), together)
    for index, name in enumerate(names):
        alone = double(POINTS[name]).requires_grad_()
        parts = affine_exponential(alone, double(TRANSLATION))
        (right,) = torch.autograd.grad(parts[0].sum() + parts[1].sum(), alone)
        torch.testing.assert_close(gradient[index], right)


@needs_cuda
def test_on_a_gpu_it_is_no_product_in_tf32(monkeypatch):
    """Networks may multiply with 11 bits of each factor; motions are right to single precision."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    block = double(list(POINTS.values())).cuda()
    translation = double(TRANSLATION).cuda().expand(len(block), 2)

    def pulled(dtype):
        given = [each.to(dtype).requires_grad_() for each in (block, translation)]
        results = module.affine_exponential(*given)
        gradients = torch.autograd.grad(sum(each.square().sum() for each in results), given)
        return [each.detach().double().flatten(1) for each in (*results, *gradients)]

    for ours, right in zip(pulled(torch.float32), pulled(torch.float64), strict=True):
        size = right.abs().amax(1, keepdim=True).clamp(min=1.0)
        assert ((ours - right).abs() <= 2e-5 * size).all()


def test_by_squaring_is_the_closed_form():
    """What stands for it on a GPU, here on a CPU: values and gradients to single precision."""
    block = double(list(POINTS.values()))
    translation = double(TRANSLATION).expand(len(block), 2)

    def pulled(function, dtype):
        given = [each.to(dtype).requires_grad_() for each in (block, translation)]
        results = function(*given)
        gradients = torch.autograd.grad(sum(each.square().sum() for each in results), given)
        return [each.detach().double().flatten(1) for each in (*results, *gradients)]

    few = pulled(module._by_squaring, torch.float32)
    for ours, right in zip(few, pulled(affine_exponential, torch.float64), strict=True):
        size = right.abs().amax(1, keepdim=True).clamp(min=1.0)
        assert ((ours - right).abs() <= 2e-5 * size).all()


# --- few elements -------------------------------------------------------------------------


def by_either(path, point: str, dtype: torch.dtype):
    """The value and a gradient at one point."""
    block = double(POINTS[point]).to(dtype).requires_grad_()
    linear, shift = path(block, double(TRANSLATION).to(dtype))
    (gradient,) = torch.autograd.grad(linear.sum() + shift.sum(), block)
    return linear.detach(), shift.detach(), gradient


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("point", POINTS)
def test_few_elements_are_the_same_by_torchs_exponential(point, dtype):
    found = by_either(module.affine_exponential, point, dtype)
    wanted = by_either(affine_exponential, point, dtype)
    norm = max(1.0, float(double(POINTS[point]).norm()))
    for ours, right in zip(found, wanted, strict=True):
        size = max(1.0, float(right.abs().max()))
        assert (ours - right).abs().max() <= 2 * TOLERANCE[dtype] * norm**2 * size


def test_torch_is_asked_for_few_elements_only(monkeypatch):
    asked = []
    real = torch.linalg.matrix_exp
    monkeypatch.setattr(torch.linalg, "matrix_exp", lambda x: asked.append(len(x)) or real(x))
    for count in (0, 1, FEW, FEW + 1):
        linear, shift = module.affine_exponential(torch.zeros(count, 2, 2), torch.ones(count, 2))
        assert torch.equal(linear, torch.eye(2).expand(count, 2, 2))
        torch.testing.assert_close(shift, torch.ones(count, 2))
    with reference_path():
        module.affine_exponential(torch.zeros(3, 2, 2), torch.ones(3, 2))
    assert asked == [0, 1, FEW]


# --- constants where the data are ---------------------------------------------------------


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
