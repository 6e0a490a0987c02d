"""Equivariant networks relaxed and hardened: outputs, symmetry, what is free."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from user_networks import seeded

import isotropy
from isotropy.checks import CallerError
from isotropy.networks.equivariant.emlp import EMLP, EquivariantBlock, GatedNonlinearity, gated
from isotropy.networks.equivariant.linear import EquivariantLinear
from isotropy.networks.pathways.equivariant import EquivariantPathway, FreeGate
from isotropy.networks.pathways.harden import harden
from isotropy.networks.pathways.pathway import LayerShape
from isotropy.networks.pathways.relax import relax, unrolled
from isotropy.networks.pathways.relaxed_layer import RelaxedLayer, pathway_named
from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import Representation, Scalar, T, V

O3, SWAPS = group_named("O(3)"), group_named("S(3)")
SIGNS = Group("signs", discrete=[[[0, -1], [-1, 0]]])
CASES: dict[str, tuple[Group, Representation, Representation]] = {
    "rotations": (O3, Scalar + 2 * V, T(2)),
    "permutations": (SWAPS, 2 * V, V + Scalar),
    "signed permutations": (SIGNS, 2 * V, V),
}
every_case = pytest.mark.parametrize("case", CASES)


def emlp_of(case: str, channels: int = 12, layers: int = 2) -> EMLP:
    group, source, target = CASES[case]
    made = EMLP(source, target, group, channels=channels, layers=layers, generator=seeded())
    return made.double()


def inputs_of(network: EMLP, batch: int = 6) -> Tensor:
    return torch.randn(batch, network.in_features, generator=seeded(1), dtype=torch.float64)


def layers_of(network: nn.Module) -> dict[str, RelaxedLayer]:
    return {n: m for n, m in network.named_modules() if isinstance(m, RelaxedLayer)}


def stirred(network: nn.Module, kinds: tuple[str, ...] = ("fc", "free-gate")) -> nn.Module:
    """The network with numbers in what is free."""
    drawn = seeded(3)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if any(f"pathways.{kind}." in name for kind in kinds):
                parameter.add_(torch.randn(parameter.shape, generator=drawn, dtype=torch.float64))
    return network


def both(case: str) -> tuple[Representation, Representation]:
    group, source, target = CASES[case]
    return source(group), target(group)


def all_of(network: nn.Module, kept: Callable[[str], float]) -> dict[str, dict[str, float]]:
    return {
        name: {kind: kept(kind) for kind in layer.members()}
        for name, layer in layers_of(network).items()
    }


# --- relaxing -----------------------------------------------------------------------------------


@every_case
def test_outputs_are_those_of_the_network_and_everything_learns(case: str) -> None:
    network = emlp_of(case)
    before = {name: each.clone() for name, each in network.state_dict().items()}
    soft, inputs = relax(network, generator=seeded()), inputs_of(network)
    assert torch.allclose(soft(inputs), network(inputs), rtol=1e-12, atol=1e-14)
    assert all(torch.equal(before[n], each) for n, each in network.state_dict().items())
    assert list(layers_of(soft)) == [
        "blocks.0.linear", "blocks.0.nonlinearity", "blocks.1.linear", "blocks.1.nonlinearity",
        "head",
    ]  # fmt: skip
    assert {tuple(layer.members()) for layer in layers_of(soft).values()} == {
        ("fc", "equivariant"), ("free-gate", "gate")
    }  # fmt: skip
    soft(inputs).square().sum().backward()
    for name, parameter in soft.named_parameters():
        assert not parameter.numel() or parameter.grad.any(), name
    isotropy.assert_equivariant(soft, both(case), inputs)


@every_case
def test_what_is_free_breaks_the_symmetry(case: str) -> None:
    soft = stirred(relax(emlp_of(case)))
    with pytest.raises(AssertionError, match="not equivariant"):
        isotropy.assert_equivariant(soft, both(case), inputs_of(emlp_of(case)))


def test_a_relaxed_layer_and_a_relaxed_gate_written_out() -> None:
    network = emlp_of("rotations")
    soft, inputs = stirred(relax(network)), inputs_of(network)
    layer, twin = soft.get_submodule("head"), network.head
    hidden = torch.randn(4, twin.in_features, generator=seeded(2), dtype=torch.float64)
    free = layer.members()["fc"].linear
    expected = hidden @ (twin.weight + free.weight).T + twin.bias + free.bias
    assert torch.allclose(layer(hidden), expected, atol=1e-12)
    gate = soft.get_submodule("blocks.0.nonlinearity")
    weight = gate.members()["free-gate"].gate.weight
    assert weight.any()
    inner = inputs @ torch.randn(7, gate.shape.source[0], generator=seeded(4)).double()
    objects = inner[:, -gate.shape.target[0] :]  # gated(R) begins with the gates' scalars
    kept = network.blocks[0].nonlinearity(inner)
    assert torch.allclose(gate(inner), kept + weight * functional.silu(objects), atol=1e-12)


def test_networks_that_hold_equivariant_layers_are_relaxed_where_they_lie() -> None:
    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = emlp_of("permutations", layers=1)
            self.own = EquivariantLinear(V(SWAPS) * 2, V(SWAPS) + Scalar).double()
            self.block = EquivariantBlock(*both("permutations")).double()

        def forward(self, states: Tensor) -> Tensor:
            return self.inner(states) + self.own(states) + self.block(states)

    model = Step()
    soft, inputs = relax(model), inputs_of(model.inner)
    assert isinstance(soft, Step)
    assert torch.allclose(soft(inputs), model(inputs), atol=1e-12)
    assert set(layers_of(soft)) == {
        "inner.blocks.0.linear", "inner.blocks.0.nonlinearity", "inner.head", "own",
        "block.linear", "block.nonlinearity",
    }  # fmt: skip
    some = relax(model, layers=["own", "inner.head"])
    assert set(layers_of(some)) == {"own", "inner.head"}


def test_unrolled_networks_have_the_same_outputs_and_parameters() -> None:
    network = emlp_of("rotations")
    plain = unrolled(network)
    assert torch.allclose(plain(inputs_of(network)), network(inputs_of(network)), atol=1e-14)
    assert list(dict(plain.named_parameters())) == list(dict(network.named_parameters()))


def test_group_convolutions_that_were_built_are_relaxed() -> None:
    plain = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    ).double()  # fmt: skip
    built = isotropy.build(plain, "C(4)", example=(1, 6, 6), generator=seeded()).model
    images = torch.randn(4, 1, 6, 6, generator=seeded(), dtype=torch.float64)
    soft = relax(built, ("conv", "equivariant"), example=images)
    assert torch.allclose(soft(images), built(images), atol=1e-12)
    assert set(layers_of(soft)) == {"0", "2"}
    turned = isotropy.quarter_turns()
    isotropy.assert_equivariant(soft, turned, images)
    stirred(soft, ("conv",))
    with pytest.raises(AssertionError, match="not"):
        isotropy.assert_equivariant(soft, turned, images)
    for layer in layers_of(soft).values():
        layer.bias_map = 0.0
    hard = harden(soft, all_of(soft, lambda kind: float(kind == "equivariant")))
    assert {type(hard.get_submodule(name)).__name__ for name in ("0", "2")} == {"PointGroupConv2d"}
    isotropy.assert_equivariant(hard, turned, images)
    means = soft.get_submodule("0").members()["conv"].convolution.bias.unflatten(0, (-1, 4)).mean(1)
    before, after = built.get_submodule("0").bias, hard.get_submodule("0").bias
    assert torch.allclose(after, before + means, atol=1e-12)


# --- hardening ----------------------------------------------------------------------------------


@every_case
def test_hardening_gives_equivariant_layers_back(case: str) -> None:
    network = emlp_of(case)
    soft = relax(network)
    hard = harden(soft, all_of(soft, lambda kind: float(kind in ("equivariant", "gate"))))
    assert not layers_of(hard)
    kinds = {type(each) for each in hard.modules()}
    assert {EquivariantLinear, GatedNonlinearity} <= kinds
    assert torch.allclose(hard(inputs_of(network)), network(inputs_of(network)), atol=1e-12)
    assert list(dict(hard.named_parameters())) == list(dict(network.named_parameters()))


def test_what_a_free_pathway_adds_stays_as_far_as_the_group_allows() -> None:
    """Constants of T(2) under O(3) are multiples of the identity; the rest is a bias map."""
    network = emlp_of("rotations")
    soft = relax(network, layers=["head"])
    layer = soft.get_submodule("head")
    constant = torch.randn(9, generator=seeded(5), dtype=torch.float64)
    with torch.no_grad():
        layer.members()["fc"].linear.bias.copy_(constant)
    allowed = constant.view(3, 3).trace() / 3 * torch.eye(3, dtype=torch.float64).flatten()
    assert torch.allclose(layer.varying(constant), constant - allowed, atol=1e-12)
    inputs, shares = inputs_of(network), {"head": {"fc": 0.0, "equivariant": 1.0}}
    kept = harden(soft, shares)
    assert torch.allclose(kept(inputs), soft(inputs), atol=1e-12)
    layer.bias_map = 0.001  # as small as what is taken out
    gone = harden(soft, shares)
    assert isinstance(gone.get_submodule("head"), EquivariantLinear)
    assert torch.allclose(gone(inputs), network(inputs) + allowed, atol=1e-12)
    isotropy.assert_equivariant(gone, both("rotations"), inputs)
    free = harden(soft, {"head": {"fc": 1.0, "equivariant": 0.0}})
    hidden = network.blocks(inputs)
    expected = hidden @ layer.members()["fc"].linear.weight.T + constant + network.head.bias
    assert torch.allclose(free(inputs), expected, atol=1e-12)


# --- refusals -----------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused() -> None:
    network = emlp_of("rotations")
    with pytest.raises(CallerError, match="no equivariant layer to relax.*symmetry="):
        relax(nn.Linear(3, 3), ("fc", "equivariant"))
    with pytest.raises(CallerError, match="unknown equivariant layer 'hed'.*'head'"):
        relax(network, layers=["hed"])
    with pytest.raises(CallerError, match="pathway ffc: expected maps.*take fc"):
        relax(network, ("ffc", "equivariant"))
    with pytest.raises(CallerError, match="unknown pathway 'fx'"):
        relax(network, ("fx", "equivariant"))
    with pytest.raises(CallerError, match="at least one pathway"):
        relax(network, ("equivariant",))
    with pytest.raises(CallerError, match="expected conv or equivariant"):
        relax(network, ("fc",))
    with pytest.raises(CallerError, match="no equivariant layer to relax"):
        relax(relax(network), ("fc", "equivariant"))
    shape = LayerShape((3,), (4,))
    with pytest.raises(CallerError, match=r"from \(3,\) to \(4,\): expected a layer of these"):
        EquivariantPathway(shape, EquivariantLinear(V(O3), V(O3)))
    with pytest.raises(CallerError, match="expected an EquivariantLinear.*got Linear"):
        EquivariantPathway(shape, nn.Linear(3, 4))  # type: ignore[arg-type]
    with pytest.raises(CallerError, match=r"expected vectors \(batch, 3\), got \(2, 5\)"):
        RelaxedLayer(shape, {"fc": pathway_named("fc", shape)})(torch.zeros(2, 5))


def test_gates_begin_with_their_scalars() -> None:
    """What `FreeGate` counts on: the objects are the last entries of gated(R)."""
    inner = gated((Scalar + 2 * V)(O3))
    assert inner.size == 2 + 1 + 6
    gate = FreeGate(7).double()
    with torch.no_grad():
        gate.weight.copy_(torch.arange(7.0))
    row = torch.randn(3, 9, generator=seeded(), dtype=torch.float64)
    assert torch.equal(gate(row), torch.arange(7.0).double() * functional.silu(row[:, 2:]))
