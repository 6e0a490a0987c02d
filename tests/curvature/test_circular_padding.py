"""Periodic continuation: torch's values and derivatives, of the first and of the second order."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from isotropy.kernels.operations import CIRCULAR, StandIns, circular_padding

RIMS = [(1, 1, 1, 1), (2, 0, 1, 3), (0, 0, 1, 0), (0, 0, 0, 0), (4, 4, 3, 3)]


def _maps() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 3, 3, 4, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("rim", RIMS)
def test_values_and_derivatives_are_those_of_torch(rim: tuple[int, int, int, int]) -> None:
    maps = _maps().requires_grad_()
    ours, theirs = circular_padding(maps, rim), functional.pad(maps, rim, mode="circular")
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1)).double()
    of_ours, of_theirs = (
        torch.autograd.grad((each * weight).square().sum(), maps, create_graph=True)[0]
        for each in (ours, theirs)
    )
    torch.testing.assert_close(of_ours, of_theirs)
    second = [torch.autograd.grad(each.square().sum(), maps)[0] for each in (of_ours, of_theirs)]
    torch.testing.assert_close(*second)


def test_it_can_be_batched_and_pushed_forward() -> None:
    maps, rim = _maps(), (1, 2, 1, 0)
    gradients = torch.randn(5, 2, 3, 4, 7, dtype=torch.float64)
    _, pulled = torch.func.vjp(lambda x: circular_padding(x, rim), maps)
    together = torch.func.vmap(lambda each: pulled(each)[0])(gradients)
    torch.testing.assert_close(together, torch.stack([pulled(each)[0] for each in gradients]))
    pushed = torch.func.jvp(lambda x: circular_padding(x, rim), (maps,), (maps.sin(),))[1]
    torch.testing.assert_close(pushed, circular_padding(maps.sin(), rim))


def test_it_stands_in_for_periodic_padding_alone() -> None:
    maps = _maps().requires_grad_()
    with StandIns(CIRCULAR):
        ours = functional.pad(maps, (1, 1, 1, 1), mode="circular")
        zeros = functional.pad(maps, (1, 1, 1, 1))
        line = functional.pad(maps[0], (1, 1), mode="circular")
    assert "CircularPadding" in type(ours.grad_fn).__name__
    torch.testing.assert_close(ours, functional.pad(maps, (1, 1, 1, 1), mode="circular"))
    torch.testing.assert_close(zeros, functional.pad(maps, (1, 1, 1, 1)))
    torch.testing.assert_close(line, functional.pad(maps[0], (1, 1), mode="circular"))
