"""Every operation is seen once, under its name; afterwards nothing is left on the modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from measured_networks import NETWORKS, built
from torch import Tensor, nn

from isotropy.equivariance.operations import Operation, UniqueNames, watch


class Seen:
    """Runs every operation and writes it down."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.operations: list[Operation] = []
        self.fail_at = fail_at

    def __call__(self, operation: Operation) -> Any:
        self.operations.append(operation)
        if self.fail_at == len(self.operations):
            raise KeyboardInterrupt
        return operation.run()

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.operations]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.conv(x), 2 * x], 1)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.relu = Block(), nn.ReLU()
        self.same = self.relu

    def forward(self, x: Tensor) -> Tensor:
        y = self.same(self.relu(self.block(x)))
        y += 1
        return F.softmax(y.flatten(1), dim=1)


def test_layers_and_functions_have_names() -> None:
    seen = Seen()
    network, data = Network(), torch.randn(2, 3, 4, 4)
    with watch(network, seen):
        output = network(data)
    assert seen.names == [
        "block.conv", "block: mul", "block: cat", "relu", "relu (2)", "add_", "flatten", "softmax",
    ]  # fmt: skip
    kinds = [each.kind for each in seen.operations]
    assert kinds == ["Conv2d", "mul", "cat", "ReLU", "ReLU", "add_", "flatten", "softmax"]
    assert [each.mutates for each in seen.operations].index(True) == 5
    assert seen.operations[0].module is network.block.conv and seen.operations[1].module is None
    torch.testing.assert_close(output, network(data))
    count = len(seen.operations)
    network(data)
    assert len(seen.operations) == count, "nobody looks any more"


def test_attention_of_torch_is_one_operation() -> None:
    seen = Seen()
    network, data = built("vit of torch")
    with watch(network, seen):
        network(data)
    inner = [name for name in seen.names if ".inner" in name]
    assert inner == ["blocks.0.attention.inner", "blocks.1.attention.inner"]


def test_operations_run_with_other_tensors() -> None:
    seen = Seen()
    x, y = torch.randn(2, 3), torch.randn(2, 3)

    class Add(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.add(x, other=y)

    network = Add()
    with watch(network, seen):
        network(x)
    (operation,) = seen.operations
    assert [id(each) for each in operation.tensors()] == [id(x), id(y)]
    found = operation.with_tensors({id(y): torch.ones_like(y)})
    torch.testing.assert_close(found, x + 1)
    torch.testing.assert_close(operation.run(), x + y)


def test_in_place_operations_return_what_they_change() -> None:
    seen = Seen()

    class Assign(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = x.clone()
            x[:, 0] = 0
            x[:, 1] *= 2
            return F.relu(x, inplace=True).clamp_(max=1)

    network, data = Assign(), torch.randn(2, 3)
    with watch(network, seen):
        network(data)
    mutating = [each.kind for each in seen.operations if each.mutates]
    assert mutating == ["setitem_", "mul_", "setitem_", "relu", "clamp_"]
    assign = next(each for each in seen.operations if each.kind == "setitem_")
    copy = torch.ones(2, 3)
    found = assign.with_tensors({id(assign.arguments[0]): copy})
    assert found is copy and not copy[:, 0].any() and copy[:, 1:].all()


def test_UniqueNames() -> None:
    unique = UniqueNames()
    assert [unique(name) for name in ("a", "a", "b", "a")] == ["a", "a (2)", "b", "a (3)"]
    unique = UniqueNames()
    # Names that come with a number are not given again.
    assert [unique(name) for name in ("a", "a (2)", "a", "a")] == ["a", "a (2)", "a (3)", "a (4)"]


def traces(network: nn.Module) -> list[Any]:
    """Everything about modules that watching could leave behind."""
    return [
        (sorted(module.__dict__), module.training, len(module._forward_hooks), module.forward)
        for module in network.modules()
    ]


@pytest.mark.parametrize("name", ["resnet", "vit of torch", "u-net"])
def test_nothing_is_left_on_modules(name: str) -> None:
    network, data = built(name)
    before = traces(network)
    with watch(network, Seen()):
        network(data)
        assert traces(network) != before, "the modules carry something meanwhile"
    assert traces(network) == before


@pytest.mark.parametrize("fail_at", [1, 4, 9])
def test_nothing_is_left_after_an_exception(fail_at: int) -> None:
    network, data = built("resnet")
    before = traces(network)
    with pytest.raises(KeyboardInterrupt), watch(network, Seen(fail_at)):
        network(data)
    assert traces(network) == before
    seen = Seen()
    with watch(network, seen):
        network(data)
    assert len(seen.names) == len(set(seen.names)) or "blocks.0.relu (2)" in seen.names


def test_a_forward_pass_of_its_own_is_kept() -> None:
    """Some tools put a forward on the instance; it runs, and is there again afterwards."""
    network = nn.Sequential(nn.ReLU())
    own = lambda x: x + 10  # noqa: E731
    network[0].forward = own
    with watch(network, Seen()):
        assert network(torch.zeros(1)).item() == 10
    assert network[0].__dict__["forward"] is own


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_do_not_change_by_being_watched(name: str) -> None:
    network, data = built(name)
    with torch.no_grad():
        expected = network(data)
        with watch(network, Seen()):
            found = network(data)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
