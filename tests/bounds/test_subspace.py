"""Random subspaces: the stream, the operators as dense matrices, networks moved within them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numerics import numbers
from oracles import subspace_oracle as oracle
from torch import Tensor, nn

from isotropy.bounds.subspace import (
    KINDS,
    Projector,
    Subspace,
    film_rows,
    projector,
    random_signs,
)
from isotropy.checks import CallerError

CASES = [
    (kind, num_weights, dimension)
    for num_weights, dimension in ((1, 1), (7, 3), (30, 9), (49, 13), (64, 15), (101, 10))
    for kind in (*KINDS, "film+kronecker-product", "dense+dense+kronecker-sum")
]
each_case = pytest.mark.parametrize(("kind", "num_weights", "dimension"), CASES)


def chosen_rows(num_weights: int) -> list[int]:
    return [row for row in range(num_weights) if row % 3 == 0 or row > num_weights // 2]


def made(kind: str, num_weights: int, dimension: int, seed: int = 5) -> Projector:
    rows = torch.zeros(num_weights, dtype=torch.bool)
    rows[chosen_rows(num_weights)] = True
    return projector(kind, num_weights, dimension, seed, rows if "film" in kind else None).double()


def dense(operator: Projector) -> Tensor:
    """The operator as a matrix, column by column."""
    units = torch.eye(operator.dimension, dtype=torch.float64)
    return torch.stack([operator(unit) for unit in units], 1)


# --- the stream -----------------------------------------------------------------------------------


def test_the_oracle_is_splitmix64() -> None:
    """The first outputs for the seed 1234567 that implementations in many languages agree on."""
    assert oracle.splitmix64(1234567, 3) == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@pytest.mark.parametrize("seed", [0, 1, 137, 2**63 + 5, -1])
@pytest.mark.parametrize(("stream", "rows", "columns"), [(0, 1, 1), (1, 13, 5), (6, 64, 3)])
def test_signs_are_those_of_plain_integers(seed: int, stream: int, rows: int, columns: int) -> None:
    found = random_signs(seed, stream, rows, columns)
    assert (found == oracle.signs(seed, stream, rows, columns)).all()


def test_signs_are_balanced_and_streams_differ() -> None:
    first, second = (random_signs(0, stream, 400, 250).astype(float) for stream in (0, 1))
    assert set(np.unique(first)) == {-1.0, 1.0}
    for mean in (first.mean(), (first * second).mean(), (first[1:] * first[:-1]).mean()):
        assert abs(mean) < 4 / math.sqrt(first.size)


# --- operators ------------------------------------------------------------------------------------


@each_case
def test_operators_are_their_dense_matrices(kind: str, num_weights: int, dimension: int) -> None:
    expected = oracle.operator(kind, num_weights, dimension, 5, chosen_rows(num_weights))
    operator = made(kind, num_weights, dimension)
    np.testing.assert_allclose(dense(operator).numpy(), expected, rtol=0, atol=1e-14)


@each_case
def test_gradients_are_the_transposed_matrix(kind: str, num_weights: int, dimension: int) -> None:
    operator = made(kind, num_weights, dimension)
    at = numbers(dimension).requires_grad_()
    cotangent = numbers(num_weights, seed=1)
    (slope,) = torch.autograd.grad(operator(at), at, cotangent)
    torch.testing.assert_close(slope, dense(operator).T @ cotangent)


@each_case
def test_exact_is_the_same_to_the_last_bit(kind: str, num_weights: int, dimension: int) -> None:
    """Integer sums in Python, two or three products in double precision; any dtype of the signs."""
    levels = torch.arange(dimension) * 7 - 11
    step, kinds = 0.0371, kind.split("+")
    expected = np.zeros(num_weights)
    for place, each in enumerate(kinds):
        rows = chosen_rows(num_weights)
        whole, scale = oracle.matrix(each, num_weights, dimension, 5, 2 * place, rows)
        moved = (whole @ levels.numpy()).astype(np.float64)
        part = step if len(kinds) == 1 else 1 / math.sqrt(len(kinds)) * step
        expected = expected + moved * (scale * part)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        found = made(kind, num_weights, dimension).to(dtype).exact(levels, step)
        assert found.dtype == torch.float64
        assert (found.numpy() == expected).all()


def test_no_coordinate_is_dead_for_any_size() -> None:
    """Every column of the product has the length one, of the sum it is not zero."""
    for num_weights in (*range(1, 18), 25, 36, 37):
        for dimension in range(1, num_weights + 1):
            lengths = dense(made("kronecker-product", num_weights, dimension)).norm(dim=0)
            torch.testing.assert_close(lengths, torch.ones_like(lengths))
        a, b = oracle.near_square(num_weights)
        for dimension in range(1, min(num_weights, a + b - 1) + 1):
            assert dense(made("kronecker-sum", num_weights, dimension)).norm(dim=0).min() > 0


@pytest.mark.parametrize(("num_weights", "dimension"), [(2500, 400), (1500, 277), (1000, 39)])
def test_the_product_has_full_rank_and_nearly_orthogonal_columns(
    num_weights: int, dimension: int
) -> None:
    operator = projector("kronecker-product", num_weights, dimension, 1)
    u, v = (each.numpy() for each in (operator.u, operator.v))
    whole = np.kron(u, v)[:num_weights, :dimension] * operator.scale
    assert np.linalg.matrix_rank(whole) == dimension
    overlap = whole.T @ whole - np.eye(dimension)
    assert np.sqrt((overlap**2).mean()) < 2 * num_weights**-0.25 / math.sqrt(min(u.shape[1], 10))


def test_the_sum_has_rank_two_roots_less_one() -> None:
    num_weights = 144
    most = 2 * 12 - 1
    assert int(torch.linalg.matrix_rank(dense(made("kronecker-sum", num_weights, most)))) == most
    with pytest.raises(CallerError, match="at most 23 coordinates for 144 weights.*got 24"):
        made("kronecker-sum", num_weights, most + 1)
    with pytest.raises(CallerError, match="use kronecker-product"):
        made("film+kronecker-sum", num_weights, most + 1)


def test_the_product_needs_little_memory() -> None:
    operator = projector("kronecker-product", 1_000_000, 10_000, 0)
    kept = sum(each.numel() for each in operator.buffers())
    assert kept == 2 * math.isqrt(10_000 * 1_000_000)


def test_signs_are_not_saved() -> None:
    assert not made("film+kronecker-product", 49, 9).state_dict()


# --- networks -------------------------------------------------------------------------------------


class Tied(nn.Module):
    """Two layers with one weight, a normalisation and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.GroupNorm(2, 4)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.head = nn.Linear(4, 3)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.second(self.norm(self.first(inputs)).tanh() + self.shift))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
    )


def tied() -> nn.Module:
    torch.manual_seed(0)
    return Tied()


NETWORKS = {"convolutions": (network, (6, 1, 8, 8)), "tied": (tied, (6, 4))}
each_network = pytest.mark.parametrize(("build", "shape"), NETWORKS.values(), ids=list(NETWORKS))


def flat(module: nn.Module) -> Tensor:
    return torch.cat([each.detach().flatten() for each in module.parameters()])


@each_network
def test_a_subspace_starts_at_the_network(build, shape) -> None:
    module = build()
    inputs = torch.randn(shape)
    moved = Subspace(module, projector("kronecker-product", len(flat(module)), 20, 0))
    torch.testing.assert_close(moved(inputs), module(inputs), rtol=0, atol=0)
    assert [name for name, each in moved.named_parameters() if each.requires_grad] == [
        "coordinates"
    ]


@each_network
@pytest.mark.parametrize("kind", ["dense", "kronecker-product", "film+kronecker-product"])
def test_outputs_and_gradients_are_those_of_the_moved_weights(build, shape, kind: str) -> None:
    module = build().double()
    inputs, start = numbers(*shape), flat(module)
    operator = projector(kind, len(start), 12, 3, film_rows(module)).double()
    moved = Subspace(module, operator)
    at = (numbers(12, seed=2) * 3).requires_grad_()
    outputs = moved(inputs, at)
    (slope,) = torch.autograd.grad(outputs.square().sum(), at)

    plain = build().double()
    nn.utils.vector_to_parameters(start + dense(operator) @ at.detach(), plain.parameters())
    torch.testing.assert_close(outputs, plain(inputs))
    plain(inputs).square().sum().backward()
    gradient = torch.cat([each.grad.flatten() for each in plain.parameters()])
    torch.testing.assert_close(slope, dense(operator).T @ gradient)
    assert (flat(module) == start).all()


@each_network
def test_the_decoded_network_is_theta_to_the_last_bit(build, shape) -> None:
    module = build()
    start = flat(module)
    moved = Subspace(module, projector("kronecker-product", len(start), 30, 8))
    levels = torch.arange(30) - 15
    decoded = moved.decoded(levels, 0.125)
    whole, scale = oracle.matrix("kronecker-product", len(start), 30, 8, 0)
    shift = (whole @ levels.numpy()) * (scale * 0.125)
    expected = (start.double().numpy() + shift).astype(np.float32)
    assert (flat(decoded).numpy() == expected).all()
    assert type(decoded) is type(module) and all(
        each.requires_grad for each in decoded.parameters()
    )
    inputs = torch.randn(shape)
    torch.testing.assert_close(decoded(inputs), moved(inputs, levels * 0.125))
    assert (flat(moved.module) == start).all()


def test_training_moves_the_coordinates_alone() -> None:
    module = network()
    inputs, labels = torch.randn(40, 1, 8, 8), torch.arange(40) % 5
    moved = Subspace(module, projector("kronecker-product", len(flat(module)), 60, 0))
    losses = []
    for _ in range(40):
        loss = nn.functional.cross_entropy(moved(inputs), labels)
        (slope,) = torch.autograd.grad(loss, moved.coordinates)
        with torch.no_grad():
            moved.coordinates -= 2 * slope
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
    assert (flat(moved.module) == flat(module)).all()


def test_film_moves_normalisations_and_the_head() -> None:
    module = network()
    expected = [name.startswith(("1.", "4.")) for name, each in module.named_parameters()
                for _ in range(each.numel())]  # fmt: skip
    assert film_rows(module).tolist() == expected
    head = {"norm.weight", "norm.bias", "head.weight", "head.bias"}
    expected = [name in head for name, each in tied().named_parameters()
                for _ in range(each.numel())]  # fmt: skip
    assert film_rows(tied()).tolist() == expected


def test_dimension_zero_is_the_network_itself() -> None:
    module = network()
    for kind in KINDS:
        moved = Subspace(module, projector(kind, len(flat(module)), 0, 0))
        decoded = moved.decoded(torch.zeros(0, dtype=torch.int64), 1.0)
        assert (flat(decoded) == flat(module)).all()
        inputs = torch.randn(3, 1, 8, 8)
        torch.testing.assert_close(moved(inputs), module(inputs))


# --- refusals -------------------------------------------------------------------------------------


def test_refusals() -> None:
    with pytest.raises(CallerError, match="unknown projector 'kroneker-sum'.*kronecker-sum"):
        projector("dense+kroneker-sum", 10, 2, 0)
    for dimension in (-1, 11):
        with pytest.raises(CallerError, match=f"dimension: expected from 0 to 10.*{dimension}"):
            projector("dense", 10, dimension, 0)
    with pytest.raises(CallerError, match="number of weights"):
        projector("dense", 0, 1, 0)
    for rows in (None, torch.zeros(10, dtype=torch.bool), torch.ones(9, dtype=torch.bool)):
        with pytest.raises(CallerError, match="film: expected rows="):
            projector("film", 10, 1, 0, rows)
    rows = torch.arange(10) < 4
    with pytest.raises(CallerError, match="at most 4 coordinates.*got 5; use film"):
        projector("film", 10, 5, 0, rows)
    assert projector("film+dense", 10, 5, 0, rows).dimension == 5
    for kind in ("dense", "dense+dense"):
        with pytest.raises(CallerError, match="less than 2⁵²"):
            projector(kind, 10, 2, 0).exact(torch.tensor([2**51, -(2**51)]), 1.0)
    with pytest.raises(CallerError, match="for the 773 weights of this network, got one for 10"):
        Subspace(network(), projector("dense", 10, 2, 0))
