"""Functions of one run over a stack of runs: any structure in, any structure out."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from isotropy.curvature.run_axis import of_run, over_runs, stack_runs, with_state


@dataclass(frozen=True)
class Pair:
    """A checked dataclass with a number that is the same for all runs."""

    values: Tensor
    others: dict[str, list[Tensor]]
    power: int

    def __post_init__(self) -> None:
        if self.values.ndim != 1:
            raise ValueError("one axis")


def pair(seed: int) -> Pair:
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(3, generator=generator, dtype=torch.float64) for _ in range(3)]
    return Pair(drawn[0], {"a": drawn[1:]}, 2)


def product(one: Pair, scale: Tensor) -> tuple[Pair, Tensor]:
    moved = Pair(one.values**one.power, {"b": [one.others["a"][1] * scale]}, one.power + 1)
    return moved, one.values @ one.others["a"][0]


def test_over_runs_is_the_function_of_each_run():
    pairs, scales = [pair(seed) for seed in range(4)], torch.arange(4.0, dtype=torch.float64)
    found, numbers = over_runs(product, stack_runs(pairs), scales)
    assert isinstance(found, Pair) and found.power == 3
    for run, own in enumerate(pairs):
        moved, number = product(own, scales[run])
        assert torch.equal(of_run(found, run).values, moved.values)
        assert torch.equal(of_run(found, run).others["b"][0], moved.others["b"][0])
        assert torch.allclose(numbers[run], number, rtol=1e-14)


def test_a_stack_is_taken_apart_again():
    pairs = [pair(seed) for seed in range(3)]
    again = of_run(stack_runs(pairs), 1)
    assert torch.equal(again.values, pairs[1].values) and again.power == 2
    assert torch.equal(again.others["a"][1], pairs[1].others["a"][1])


def test_structures_that_differ_are_not_stacked():
    with pytest.raises(ValueError, match="zip"):
        stack_runs([{"a": torch.zeros(2)}, {}])


def test_a_module_holds_other_tensors_for_the_length_of_a_call():
    linear = nn.Linear(2, 1).double()
    before = linear.weight.detach().clone()
    states = [{"weight": torch.full((1, 2), 1.0 + run).double()} for run in range(3)]

    def total(state: dict[str, Tensor], inputs: Tensor) -> Tensor:
        return with_state(linear, state, lambda own: linear.weight @ own, inputs)

    inputs = torch.ones(3, 2, dtype=torch.float64)
    assert over_runs(total, stack_runs(states), inputs).flatten().tolist() == [2.0, 4.0, 6.0]
    assert torch.equal(linear.weight, before)
