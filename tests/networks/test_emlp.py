"""One contract for the EMLP of every group: equivariant, alive, trainable, exportable; gates."""

from __future__ import annotations

import io
import math

import pytest
import torch
from equivariant_cases import CASES, TOLERANCE, bound, elements, random_inputs
from oracles.emlp_oracle import equivariance_error
from oracles.group_oracle import icosahedral_generators, octahedral_generators
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.networks.equivariant.emlp import (
    EMLP,
    EquivariantBlock,
    GatedNonlinearity,
    gated,
    plain_mlp,
)
from isotropy.networks.equivariant.larger_symmetry import LargerSymmetryWarning
from isotropy.networks.equivariant.linear import EquivariantLinear
from isotropy.symmetry.groups.catalogue import SO, SU, D, O, S, group_named
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import P, Scalar, T, V

pytestmark = pytest.mark.filterwarnings(
    "ignore::isotropy.networks.equivariant.larger_symmetry.LargerSymmetryWarning"
)


def network_of(name: str, *, channels: int = 40, seed: int = 0) -> EMLP:
    source, target = CASES[name]
    generator = torch.Generator().manual_seed(seed)
    return EMLP(source, target, group_named(name), channels=channels, generator=generator)


def worst_error(network: nn.Module, of: EMLP, inputs: Tensor) -> float:
    """The largest equivariance error over a few elements."""
    return max(
        equivariance_error(
            network,
            of.source.element(element).to(inputs.dtype),
            of.target.element(element).to(inputs.dtype),
            inputs,
        )
        for element in elements(of.group)
    )


def check_contract(network: EMLP, dtype: torch.dtype) -> None:
    network = network.to(dtype)
    inputs = random_inputs(30, network.source.size, dtype)
    for layer in network.modules():
        if isinstance(layer, EquivariantLinear):
            assert layer.coefficients.numel() > 0  # there are maps
    outputs = network(inputs)
    assert outputs.shape == (30, network.target.size)
    # It varies with x, and visibly.
    assert outputs.std(0).max() > 0.05 * outputs.abs().mean()
    assert worst_error(network, network, inputs) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_it_is_equivariant_and_varies(name, dtype):
    check_contract(network_of(name), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_so_is_the_network_of_the_paper(name, dtype):
    check_contract(network_of(name, channels=384), dtype)


def turn(dimension: int, degrees: float = 20.0) -> Tensor:
    """A turn of the first two coordinates."""
    found = torch.eye(dimension, dtype=torch.float64)
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    found[:2, :2] = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    return found


def reflection(dimension: int) -> Tensor:
    return torch.diag(torch.tensor([-1.0] + [1.0] * (dimension - 1), dtype=torch.float64))


def swap(dimension: int, first: int, second: int) -> Tensor:
    found = torch.eye(dimension, dtype=torch.float64)
    found[[first, second]] = found[[second, first]]
    return found


def turn_of_differences(dimension: int) -> Tensor:
    """A turn of the vectors whose coordinates add up to zero, which leaves (1, …, 1) in place."""
    ones = torch.ones(dimension, 1, dtype=torch.float64)
    axes, _ = torch.linalg.qr(torch.cat([ones, torch.eye(dimension, dtype=torch.float64)], 1))
    axes = axes[:, :dimension]
    inner = torch.block_diag(torch.eye(1, dtype=torch.float64), turn(dimension - 1))
    return axes @ inner @ axes.T


SPACE = torch.eye(3, dtype=torch.float64)
ICOSAHEDRAL = Group("Icosahedral", discrete=icosahedral_generators())
OCTAHEDRAL = Group("Octahedral", discrete=octahedral_generators())
FOREIGN: list[tuple[Group, Tensor]] = [
    *((group_named(f"{kind}({k})"), turn(2)) for k in range(3, 9) for kind in "CD"),
    *((group_named(f"C({k})"), reflection(2)) for k in range(3, 9)),
    *((group_named(f"DkeR3({k})"), turn(3)) for k in (2, 6)),
    *((group, turn(3)) for group in (ICOSAHEDRAL, OCTAHEDRAL)),
    *((group, -SPACE) for group in (ICOSAHEDRAL, OCTAHEDRAL)),
    *((group_named("Cube"), swap(6, 0, other)) for other in range(1, 6)),
    *((group_named(f"S({n})"), turn_of_differences(n)) for n in (3, 4, 5)),
    *((group_named(f"S({n})"), reflection(n)) for n in (3, 4, 5)),
    *((SO(n), reflection(n)) for n in (2, 3, 4, 5)),
    *((group_named("SO(1,3)"), sign * reflection(4)) for sign in (1, -1)),
]


def foreign_change(network: EMLP, element: Tensor) -> float:
    """‖f(ρ_in(h) x) − ρ_out(h) f(x)‖ over ‖f(x) − mean‖, all examples together."""
    inputs = random_inputs(200, network.source.size)
    with torch.no_grad():
        outputs = network(inputs)
        moved = network(inputs @ network.source.element(element).mT)
        change = moved - outputs @ network.target.element(element).mT
    return float(change.norm() / (outputs - outputs.mean(0)).norm())


@pytest.mark.parametrize(("group", "element"), FOREIGN, ids=str)
def test_it_has_no_more_symmetry_than_its_group(group, element):
    for channels in (96, 384):
        generator = torch.Generator().manual_seed(0)
        source = max(group.dimension, 2) * V + Scalar
        network = EMLP(source, V + Scalar, group, channels=channels, generator=generator).double()
        assert not network.notes
        assert foreign_change(network, element) > 1e-3
        for own in elements(group):
            assert foreign_change(network, own) < 1e-10


@pytest.mark.parametrize(
    ("name", "element"),
    [("D(8)", turn(2)), ("SO(5)", reflection(5)), ("SO(1,3)", reflection(4))],
)
def test_low_ranks_have_more_symmetry_and_say_so(name, element):
    with pytest.warns(LargerSymmetryWarning, match=r"cannot tell .* from a larger group"):
        network = EMLP(5 * V, V + Scalar, group_named(name), channels=10 * Scalar + 6 * V)
    assert len(network.notes) == 1 and name in network.notes[0]
    assert foreign_change(network.double(), element) < 1e-10


def test_words_say_the_same_as_objects():
    first, second = (
        EMLP(*what, channels=16, layers=1, generator=torch.Generator().manual_seed(0))
        for what in (("2V + Scalar", "V", "SO(3)"), (2 * V + Scalar, V, SO(3)))
    )
    x = torch.randn(5, 7)
    assert torch.equal(first(x), second(x))
    with pytest.raises(CallerError, match="give source and target apart"):
        EMLP("V >> V", "V", "SO(3)")
    with pytest.raises(CallerError, match="pass group="):
        EMLP("2V", "V")


def test_no_tensors_tell_the_direction_of_time():
    with pytest.warns(LargerSymmetryWarning, match=r"no rank tell SO\+\(1,3\)"):
        network = EMLP(4 * V, V + Scalar, group_named("SO+(1,3)"), channels=96).double()
    assert foreign_change(network, -torch.eye(4, dtype=torch.float64)) < 1e-10
    assert foreign_change(network, reflection(4)) > 1e-3


@pytest.mark.parametrize("name", ["S(5)", "SO(3)", "O(5)", "D(6)", "SO(1,3)", "GL(2)", "O2eR3"])
def test_outputs_vary_as_much_at_any_depth(name):
    source = 2 * V + 2 * V.dual
    for layers in (1, 2, 4, 8):
        generator = torch.Generator().manual_seed(1)
        network = EMLP(
            source, V, group_named(name), channels=96, layers=layers, generator=generator
        ).double()
        outputs = network(random_inputs(500, network.source.size)).detach()
        assert 0.025 < outputs.var(0).mean().sqrt() < 0.1


@pytest.mark.parametrize(
    ("name", "spread"),
    [("O(3)", 0.05), ("SO(3)", 0.05), ("O(1,3)", 0.05), ("D(6)", 0.2), ("SO(5)", 0.2)],
)
def test_products_start_faint_where_they_tell_no_group_from_a_larger_one(name, spread):
    generator = torch.Generator().manual_seed(0)
    network = EMLP(4 * V + Scalar, V, group_named(name), channels=384, generator=generator)
    block = network.blocks[0]
    assert isinstance(block, EquivariantBlock)
    with torch.no_grad():
        inputs = random_inputs(500, network.source.size, torch.float32)
        inner = block.linear.of_parts(network.parts(inputs))
        found = [part.var(-1).mean().sqrt() for part in block.bilinear.of_parts(inner)]
    assert all(each < 1.3 * spread for each in found)
    assert max(found) > 0.7 * spread


def test_equal_generators_give_equal_networks_and_leave_others_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    first, second = network_of("SO(3)"), network_of("SO(3)")
    assert torch.equal(torch.rand(3), expected)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("k", [5, 6])
def test_it_learns_what_a_dihedral_group_leaves_in_place(k):
    """Re z^k, with the reflection of D(k) as z ↦ its conjugate."""
    generator = torch.Generator().manual_seed(0)
    places = torch.randn(600, 2, generator=generator)
    lengths = 1 + torch.rand(600, 1, generator=generator)
    places = places / places.norm(dim=1, keepdim=True) * lengths
    numbers = torch.complex(places[:, 1], places[:, 0])
    values = numbers.pow(k).real[:, None]
    values = values / values.std()
    network = EMLP(V, Scalar, group_named(f"D({k})"), channels=48, generator=generator)
    optimiser = torch.optim.Adam(network.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 400)
    for _ in range(400):
        optimiser.zero_grad()
        loss = (network(places[:400]) - values[:400]).square().mean()
        loss.backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        left = (network(places[400:]) - values[400:]).square().mean() / values[400:].var()
    assert left < 0.01


@pytest.mark.parametrize("name", [name for name in CASES if name != "Trivial(3)"])
def test_a_plain_network_fails_the_same_check(name):
    network = network_of(name)
    plain = plain_mlp(network.source.size, network.target.size, channels=40).double()
    inputs = random_inputs(30, network.source.size)
    assert worst_error(plain, network, inputs) > 1e-4


@pytest.mark.parametrize("name", ["SO(3)", "S(4)", "O(1,3)", "GL(2)", "SU(2)"])
def test_one_broken_weight_fails_the_check(name):
    network = network_of(name).double()
    inputs = random_inputs(30, network.source.size)
    exported = network.export()
    assert worst_error(exported, network, inputs) < TOLERANCE[torch.float64]
    with torch.no_grad():
        exported[1].linear.weight[0, -1] += 0.5
        exported[1].linear.weight[-1, 0] += 0.5
    assert worst_error(exported, network, inputs) > 1e-7


@pytest.mark.parametrize("name", CASES)
def test_all_parameters_get_gradients(name):
    network = network_of(name).double()
    inputs = random_inputs(30, network.source.size)
    network(inputs).square().sum().backward()
    for key, parameter in network.named_parameters():
        if parameter.numel():
            assert parameter.grad is not None and parameter.grad.isfinite().all(), key
            assert parameter.grad.any(), key


@pytest.mark.parametrize("name", CASES)
def test_export_gives_the_same_outputs(name):
    network = network_of(name)
    exported = network.export()
    inputs = random_inputs(10, network.source.size, torch.float32)
    scale = network(inputs).abs().max()
    assert (exported(inputs) - network(inputs)).abs().max() < 1e-6 * max(scale, 1)
    assert not any(isinstance(each, EquivariantLinear) for each in exported.modules())
    before = exported(inputs)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    assert torch.equal(exported(inputs), before)


@pytest.mark.slow
def test_an_exported_network_is_saved_as_a_program():
    network = network_of("SO(3)").eval()
    inputs = random_inputs(10, network.source.size, torch.float32)
    batch = torch.export.Dim("batch")
    program = torch.export.export(network.export(), (inputs,), dynamic_shapes=({0: batch},))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer).module()
    assert torch.allclose(loaded(inputs), network(inputs), atol=1e-7)
    assert torch.allclose(loaded(inputs[:4]), network(inputs[:4]), atol=1e-7)


@pytest.mark.parametrize("name", ["SO(3)", "S(4)", "SO+(1,3)"])
def test_the_state_is_its_coefficients_and_comes_back(name):
    first, second = network_of(name), network_of(name, seed=1)
    inputs = random_inputs(10, first.source.size, torch.float32)
    assert not torch.equal(first(inputs), second(inputs))
    state = first.state_dict()
    assert all(key.endswith("coefficients") for key in state)
    second.load_state_dict(state)
    assert torch.equal(first(inputs), second(inputs))


@pytest.mark.slow
def test_it_compiles_to_machine_code():
    network = network_of("SO(3)")
    inputs = random_inputs(6, network.source.size, torch.float32)
    compiled = torch.compile(network, fullgraph=True)
    assert torch.allclose(compiled(inputs), network(inputs), atol=1e-6)
    compiled(inputs).sum().backward()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_it_gives_the_same():
    network = network_of("SO(3)").double()
    inputs = random_inputs(6, network.source.size)
    expected = network(inputs)
    found = network.cuda()(inputs.cuda())
    assert torch.allclose(found.cpu(), expected, atol=1e-12)


def test_it_learns_the_inertia_of_points():
    generator = torch.Generator().manual_seed(0)
    masses = torch.rand(300, 3, generator=generator)
    places = torch.randn(300, 3, 3, generator=generator)
    second = torch.einsum("nm,nmi,nmj->nij", masses, places, places)
    traces = second.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    inertia = (traces * torch.eye(3) - second).flatten(1)
    inputs = torch.cat([masses, places.flatten(1)], 1)
    network = EMLP(3 * Scalar + 3 * V, T(2), O(3), channels=110, layers=2, generator=generator)
    optimiser = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(200):
        optimiser.zero_grad()
        loss = (network(inputs[:200]) - inertia[:200]).square().mean()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        error = (network(inputs[200:]) - inertia[200:]).square().mean()
    assert error < 0.2 * inertia[200:].var()


def test_hidden_channels_are_numbers_or_representations():
    hidden = 5 * Scalar + 3 * V
    same = EMLP(V, V, O(3), channels=hidden, layers=2)
    assert [str(each) for each in same.hidden] == [str(hidden)] * 2
    each = EMLP(V, V, O(3), channels=[hidden, 20], layers=2)
    assert [one.size for one in each.hidden] == [14, 20]
    assert isinstance(each.blocks[0], EquivariantBlock)
    assert each.blocks[0].linear.target.size == 14 + 3


def test_the_group_comes_from_the_representations():
    assert EMLP(V(O(3)), V, channels=8, layers=1).group == O(3)
    assert EMLP(V(O(3)), V(O(3)), SO(3), channels=8, layers=1).group == SO(3)
    real = EMLP(V, V, SU(2), channels=8, layers=1)
    assert real.group == SU(2).real_form() and real.source.size == 4


def test_the_plain_network_has_the_same_widths():
    plain = plain_mlp(7, 2, channels=11, layers=2)
    sizes = [tuple(p.shape) for p in plain.parameters() if p.ndim == 2]
    assert sizes == [(11, 7), (11, 11), (2, 11)]
    assert sum(isinstance(layer, nn.SiLU) for layer in plain) == 2


def test_refusals():
    with pytest.raises(CallerError, match="neither V nor Scalar is bound to a group"):
        EMLP(V, Scalar)
    with pytest.raises(CallerError, match="representations of one group"):
        EMLP(V(O(3)), V(SO(3)))
    with pytest.raises(CallerError, match="at least one hidden layer, got 0"):
        EMLP(V, V, O(3), layers=0)
    with pytest.raises(CallerError, match="channels for 3 hidden layers, got 2"):
        EMLP(V, V, O(3), channels=[8, 8])
    with pytest.raises(CallerError, match=r"expected inputs \(…, 3\)"):
        EMLP(V, V, O(3), channels=8, layers=1)(torch.zeros(2, 4))


@pytest.mark.parametrize("name", CASES)
def test_gates_commute_with_the_group(name):
    group, source, target = bound(name)
    representation = source + target + source
    layer = GatedNonlinearity(representation).double()
    inputs = random_inputs(20, gated(representation).size)
    assert layer(inputs).std() > 0.1
    for element in elements(group):
        error = equivariance_error(
            layer, gated(representation).element(element), representation.element(element), inputs
        )
        assert error < TOLERANCE[torch.float64]


def test_by_hand():
    representation = (Scalar + V + Scalar + T(2))(O(2))
    assert gated(representation) == (3 * Scalar + V + Scalar + T(2))(O(2))
    first, second, *rest = torch.randn(10, dtype=torch.float64).tolist()
    inputs = torch.tensor([first, second, *rest], dtype=torch.float64)
    layer = GatedNonlinearity(representation).double()
    a, v, b, t = torch.tensor(rest, dtype=torch.float64).split([1, 2, 1, 4])
    gates = inputs[:2].sigmoid()
    expected = torch.cat([a * a.sigmoid(), v * gates[0], b * b.sigmoid(), t * gates[1]])
    assert torch.allclose(layer(inputs), expected, atol=1e-14)
    assert torch.allclose(layer(inputs.expand(3, 2, 10)), expected.expand(3, 2, 8), atol=1e-14)


def test_permutations_need_no_gates_and_signs_do():
    representation = (V + V * V)(S(3))
    assert gated(representation) == representation
    inputs = random_inputs(4, 12)
    expected = torch.nn.functional.silu(inputs)
    assert torch.equal(GatedNonlinearity(representation)(inputs), expected)
    assert gated(V(D(4))).size == 3
    assert gated((P + Scalar)(S(3))).size == 3
