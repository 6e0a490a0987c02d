"""Which layers are found to be scale-invariant: those in front of a normalisation, and no others.

Each network names the layers that must be found; the reason is the structure, not the numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from network_cases import NETWORKS
from network_modules import CLASSES, Attention, Transformer
from torch import Tensor, nn
from torch.func import functional_call

from isotropy.checks import CallerError
from isotropy.curvature import scale_invariance
from isotropy.curvature.scale_invariance import scale_invariant_layers
from isotropy.networks.zoo.residual_networks import Bias, FixupResNet, FixupWideResNet, Scale

IMAGE = (1, 6, 6)


def layer_names(network: nn.Module) -> list[str]:
    return [
        name for name, module in network.named_modules() if list(module.parameters(recurse=False))
    ]


def found_in(network: nn.Module, shape: tuple[int, ...], dtype: torch.dtype = torch.float64):
    example = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    return scale_invariant_layers(network.to(dtype), layer_names(network), example)


def convolutions(norm: nn.Module, *, zero_head: bool = False) -> nn.Sequential:
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Conv2d(4, 2, 3), nn.Tanh(), nn.Flatten(),
        nn.Linear(8, CLASSES),
    )  # fmt: skip
    if zero_head:
        nn.init.zeros_(network[6].weight)
        nn.init.zeros_(network[6].bias)
    return network


def vectors(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 6), *layers, nn.Linear(6, CLASSES))


def frozen_bias() -> nn.Sequential:
    network = vectors(nn.LayerNorm(6))
    network[0].bias.requires_grad_(False)
    return network


class ScaledBranch(nn.Module):
    """x + 10⁻⁶ · branch(x): a branch that hardly counts, with a normalisation in it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.second = nn.Conv2d(4, 1, 1)
        self.scale = Scale()
        nn.init.constant_(self.scale.scale, 1e-6)
        self.head = nn.Linear(36, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        branch = self.scale(self.second(self.norm(self.first(images)).relu()))
        return self.head((images + branch).flatten(1))


def silenced() -> nn.Module:
    """A bias below zero, larger than all that it is added to: no unit behind it is on."""
    network = nn.Sequential(nn.Linear(5, 6), Bias(), nn.ReLU(), nn.Linear(6, CLASSES))
    with torch.no_grad():
        for parameter in network[0].parameters():
            parameter.mul_(1e-3)
        network[1].bias.fill_(-0.1)
    return network


# name: (network, shape of one input, the scale-invariant layers)
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], set[str]]] = {
    "linear, layer norm": (lambda: vectors(nn.LayerNorm(6)), (5,), {"0"}),
    "linear, rms norm": (lambda: vectors(nn.RMSNorm(6), nn.Tanh()), (5,), {"0"}),
    "linear, relu, layer norm": (lambda: vectors(nn.ReLU(), nn.LayerNorm(6)), (5,), {"0"}),
    "linear, tanh, layer norm": (lambda: vectors(nn.Tanh(), nn.LayerNorm(6)), (5,), set()),
    "linear, norm, norm": (
        lambda: vectors(nn.LayerNorm(6), nn.LayerNorm(6)), (5,), {"0", "1"}),
    "two linear, relu, norm": (
        lambda: vectors(nn.ReLU(), nn.Linear(6, 6, bias=False), nn.LayerNorm(6)), (5,), {"0", "2"}),
    "two linear with biases": (
        lambda: vectors(nn.ReLU(), nn.Linear(6, 6), nn.LayerNorm(6)), (5,), {"2"}),
    "scale, norm": (lambda: vectors(nn.Tanh(), Scale(), nn.LayerNorm(6)), (5,), {"2"}),
    "frozen bias": (frozen_bias, (5,), set()),
    "plain relu": (lambda: vectors(nn.ReLU()), (5,), set()),
    "plain relu, deep": (
        lambda: vectors(nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU()),
        (5,), set()),
    "relu without biases": (
        lambda: nn.Sequential(nn.Linear(5, 6, bias=False), nn.ReLU(),
                              nn.Linear(6, CLASSES, bias=False)), (5,), set()),
    "conv, group norm": (lambda: convolutions(nn.GroupNorm(2, 4)), IMAGE, {"0"}),
    "conv, one group": (lambda: convolutions(nn.GroupNorm(1, 4)), IMAGE, {"0"}),
    "conv, instance norm": (lambda: convolutions(nn.InstanceNorm2d(4)), IMAGE, {"0"}),
    "conv, layer norm": (lambda: convolutions(nn.LayerNorm((4, 4, 4))), IMAGE, {"0"}),
    "conv, batch norm": (lambda: convolutions(nn.BatchNorm2d(4)), IMAGE, set()),
    "head of zeros": (
        lambda: convolutions(nn.GroupNorm(2, 4), zero_head=True), IMAGE, {"0"}),
    "branch that hardly counts": (ScaledBranch, IMAGE, {"first"}),
    "fixup": (lambda: FixupResNet(1, CLASSES, width=2), IMAGE, set()),
    "wide fixup": (lambda: FixupWideResNet(3, CLASSES), (3, 32, 32), set()),
    "bias that silences": (silenced, (5,), set()),
    "unused layer": (NETWORKS["unused"].build, (4,), set()),
    "attention": (Attention, (3, 4), set()),
    "transformer, norm last": (Transformer, (3, 4), set()),
    "transformer, norm first": (lambda: Transformer(norm_first=True), (3, 4), set()),
}  # fmt: skip


LONG = ("wide fixup",)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in LONG else ()) for n in CASES]
)
def test_finds_exactly_these(name: str):
    build, shape, expected = CASES[name]
    torch.manual_seed(3)
    network = build()
    for dtype in (torch.float64, torch.float32):
        assert found_in(network, shape, dtype) == expected


def test_found_layers_are_scale_invariant_and_the_definition_is_strict():
    """f(c θ) = f(θ) for other c than were tried; a sign is no scale."""
    torch.manual_seed(0)
    network = vectors(nn.LayerNorm(6, eps=1e-12)).double()
    rows = torch.randn(7, 5, dtype=torch.float64)
    assert found_in(network, (5,)) == {"0"}
    for factor, same in ((0.1, True), (30.0, True), (-1.0, False)):
        own = {f"0.{name}": factor * p for name, p in network[0].named_parameters()}
        close = torch.allclose(functional_call(network, own, (rows,)), network(rows), atol=1e-8)
        assert close is same


def test_a_small_number_in_the_norm_that_is_not_small_is_noticed():
    torch.manual_seed(0)
    assert found_in(vectors(nn.LayerNorm(6, eps=1e-5)), (5,)) == {"0"}
    assert found_in(vectors(nn.LayerNorm(6, eps=1.0)), (5,)) == set()


def test_only_the_layers_asked_for():
    network = vectors(nn.LayerNorm(6)).double()
    example = torch.randn(3, 5, dtype=torch.float64)
    assert scale_invariant_layers(network, ["2"], example) == set()
    assert scale_invariant_layers(network, iter(["0", "2"]), example) == {"0"}
    network[0].requires_grad_(False)
    assert scale_invariant_layers(network, ["0"], example) == set()


class SinglePrecisionConstant(nn.Module):
    """A constant that no cast reaches: this network cannot run in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = vectors(nn.LayerNorm(6))
        self.constant = [torch.eye(5)]

    def forward(self, inputs: Tensor) -> Tensor:
        return self.inner(inputs @ self.constant[0])


def test_a_network_that_knows_one_precision_only():
    assert found_in(SinglePrecisionConstant(), (5,), torch.float32) == {"inner.0"}


def test_the_network_is_left_as_it_was():
    network = convolutions(nn.BatchNorm2d(4)).train()
    network[1].eval()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    identities = [id(parameter) for parameter in network.parameters()]
    found_in(network, IMAGE, torch.float32)
    assert [id(parameter) for parameter in network.parameters()] == identities
    assert [m.training for m in network.modules()] == [True, True, False, *[True] * 5]
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name]) and tensor.dtype == before[name].dtype
    assert all(parameter.grad is None for parameter in network.parameters())


def test_outputs_that_are_no_tensor_are_refused():
    class Pair(nn.Linear):
        def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            return inputs, inputs

    with pytest.raises(CallerError, match=r"network outputs: expected .* got tuple"):
        scale_invariant_layers(Pair(2, 2), [""], torch.zeros(1, 2))


def test_double_precision_is_for_what_single_precision_cannot_tell(monkeypatch: pytest.MonkeyPatch):
    """All layers of a plain case are clear; a branch that hardly counts needs double precision."""
    asked: list[tuple[torch.dtype, tuple[str, ...]]] = []
    judged = scale_invariance._Probe.judged

    def told(probe, layers, margin=1.0):
        asked.append((probe.outputs.dtype, tuple(layers)))
        return judged(probe, layers, margin)

    monkeypatch.setattr(scale_invariance._Probe, "judged", told)
    torch.manual_seed(3)
    assert found_in(convolutions(nn.GroupNorm(2, 4)), IMAGE, torch.float32) == {"0"}
    assert [dtype for dtype, _ in asked] == [torch.float32]
    asked.clear()
    assert found_in(ScaledBranch(), IMAGE, torch.float32) == {"first"}
    assert [dtype for dtype, _ in asked] == [torch.float32, torch.float64]
    assert "first" in asked[1][1] and "head" not in asked[1][1]
