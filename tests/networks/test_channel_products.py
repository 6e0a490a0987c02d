"""Products by channel: values, both orders in memory, derivatives of every kind, and vmap."""

from __future__ import annotations

import itertools

import pytest
import torch
from network_cases import assert_equal
from torch import Tensor
from user_networks import numbers

from isotropy.networks.pathways.fully_connected import products_by_channel

BATCH, CHANNELS, INNER, OUTER, DIRECTIONS = 5, 3, 4, 2, 6


def expected(rows: Tensor, matrices: Tensor) -> Tensor:
    """Channel by channel."""
    return torch.stack([rows[:, g] @ matrices[g] for g in range(len(matrices))], 1)


# Rows and matrices as they lie in memory, first axis outermost, and how they are read.
ROWS = {
    "pixels last": lambda: numbers(BATCH, CHANNELS, INNER),
    "batch last": lambda: numbers(CHANNELS, INNER, BATCH).permute(2, 0, 1),
    "channels last": lambda: numbers(BATCH, INNER, CHANNELS).mT,
}
MATRICES = {
    "as it is": lambda: numbers(CHANNELS, INNER, OUTER, seed=1),
    "transposed": lambda: numbers(CHANNELS, OUTER, INNER, seed=1).mT,
}
CASES = list(itertools.product(ROWS, MATRICES, (False, True)))


@pytest.mark.parametrize(("rows", "matrices", "batch_last"), CASES)
def test_values(rows: str, matrices: str, batch_last: bool) -> None:
    x, weight = ROWS[rows](), MATRICES[matrices]()
    found = products_by_channel(x, weight, batch_last=batch_last)
    assert_equal(found, expected(x, weight), "products")
    assert found.stride(0 if batch_last else 2) == 1


@pytest.mark.parametrize(("rows", "matrices", "batch_last"), CASES)
def test_derivatives(rows: str, matrices: str, batch_last: bool) -> None:
    """First and second, backward and forward."""
    x, weight = ROWS[rows]().requires_grad_(), MATRICES[matrices]().requires_grad_()

    def product(x: Tensor, weight: Tensor) -> Tensor:
        return products_by_channel(x, weight, batch_last=batch_last)

    assert torch.autograd.gradcheck(product, (x, weight), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(product, (x, weight))


@pytest.mark.parametrize("batch_last", [False, True])
def test_the_gradient_of_a_weight_lies_in_memory_as_the_weight(batch_last: bool) -> None:
    for weight in (numbers(CHANNELS, INNER, OUTER), numbers(CHANNELS, OUTER, INNER)):
        weight.requires_grad_()
        matrices = weight if weight.shape[1] == INNER else weight.mT
        found = products_by_channel(ROWS["pixels last"](), matrices, batch_last=batch_last)
        (gradient,) = torch.autograd.grad(found.square().sum(), weight)
        assert gradient.stride() == weight.stride()


@pytest.mark.parametrize("batch_last", [False, True])
@pytest.mark.parametrize("dims", [(0, None), (2, None), (None, 0), (None, 1), (0, 0), (3, 2)])
def test_vmap(dims: tuple[int | None, int | None], batch_last: bool) -> None:
    of_rows, of_matrices = dims
    x = numbers(BATCH, CHANNELS, INNER) if of_rows is None else numbers(
        DIRECTIONS, BATCH, CHANNELS, INNER)  # fmt: skip
    weight = numbers(CHANNELS, INNER, OUTER) if of_matrices is None else numbers(
        DIRECTIONS, CHANNELS, INNER, OUTER)  # fmt: skip
    singles = [
        expected(x if of_rows is None else x[d], weight if of_matrices is None else weight[d])
        for d in range(DIRECTIONS)
    ]
    found = torch.func.vmap(
        lambda x, weight: products_by_channel(x, weight, batch_last=batch_last), in_dims=dims
    )(
        x if of_rows is None else x.movedim(0, of_rows),
        weight if of_matrices is None else weight.movedim(0, of_matrices),
    )
    assert_equal(found, torch.stack(singles), "products")


@pytest.mark.parametrize("batch_last", [False, True])
def test_many_directions_of_back_propagation(batch_last: bool) -> None:
    """As KFAC asks for them, and differentiable once more."""
    x = numbers(BATCH, CHANNELS, INNER).requires_grad_()
    weight = numbers(CHANNELS, INNER, OUTER, seed=1).requires_grad_()
    output = products_by_channel(x, weight, batch_last=batch_last)
    cotangents = numbers(DIRECTIONS, BATCH, CHANNELS, OUTER, seed=2)

    def pulled(cotangent: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(
            output, (x, weight), cotangent, retain_graph=True, create_graph=True
        )

    of_rows, of_weight = torch.func.vmap(pulled)(cotangents)
    for direction, cotangent in enumerate(cotangents):
        by_rows, by_weight = pulled(cotangent)
        assert_equal(of_rows[direction], by_rows, "by rows")
        assert_equal(of_weight[direction], by_weight, "by matrices")
    (again,) = torch.autograd.grad(of_rows.square().sum(), weight)
    once = sum(pulled(cotangent)[0].square().sum() for cotangent in cotangents)
    assert_equal(again, torch.autograd.grad(once, weight)[0], "second derivative")
