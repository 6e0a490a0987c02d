"""Groups and representations in `measure`, `assert_equivariant` and `lie_derivative_penalty`.

The oracles know generators alone: representations are written out as Kronecker products by hand,
elements are matrix exponentials by scipy, derivatives are dense Jacobians.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from measured_networks import Compute, draw
from scipy.linalg import block_diag, expm
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.equivariance.bridge import symmetries
from isotropy.equivariance.lie_derivative import lie_derivative_penalty
from isotropy.equivariance.testing import assert_equivariant
from isotropy.networks.equivariant.emlp import EMLP, plain_mlp
from isotropy.report.pages.measure import measure_sentences
from isotropy.symmetry.actions.finite import flip
from isotropy.symmetry.actions.linear import linear_action, matrix_elements
from isotropy.symmetry.actions.points import points
from isotropy.symmetry.groups.catalogue import SO as Rotations
from isotropy.symmetry.groups.catalogue import SO13, SU, D, O, S, Trivial, group_named
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import P, Representation, Scalar, T, V
from isotropy.workflows.measuring import measure

Matrix = np.ndarray
METRIC = torch.tensor([1.0, -1.0, -1.0, -1.0], dtype=torch.float64)


def mlp(inputs: int, outputs: int, seed: int = 0) -> nn.Sequential:
    """A network with no symmetry, the same every time."""
    network = nn.Sequential(nn.Linear(inputs, 7), nn.Tanh(), nn.Linear(7, outputs)).double()
    for number, parameter in enumerate(network.parameters()):
        parameter.data = 0.5 * draw(*parameter.shape, seed=100 * seed + number)
    return network


# --- representations by hand: ρ of an element, from which dρ follows --------------------------


def once(g: Matrix) -> Matrix:
    return g


def twice(g: Matrix) -> Matrix:
    return block_diag(g, g)


def square(g: Matrix) -> Matrix:
    return np.kron(g, g)


def still(g: Matrix) -> Matrix:
    return np.eye(1)


def dual(g: Matrix) -> Matrix:
    return np.linalg.inv(g).T


def vector_and_still(g: Matrix) -> Matrix:
    return block_diag(g, 1.0)


def sign(g: Matrix) -> Matrix:
    return np.sign(np.linalg.det(g)).reshape(1, 1)


def derivative(rho: Callable[[Matrix], Matrix], generator: Matrix) -> Matrix:
    """dρ(A), by a central difference of ρ(exp tA): error t² ≈ 10⁻¹⁰ of the third derivative."""
    step = 1e-5
    return (rho(expm(step * generator)) - rho(expm(-step * generator))) / (2 * step)


@dataclass(frozen=True)
class Case:
    group: Group
    source: Representation
    target: Representation
    source_by_hand: Callable[[Matrix], Matrix]
    target_by_hand: Callable[[Matrix], Matrix]
    good: Callable[[Tensor], Tensor]


def cross(pairs: Tensor) -> Tensor:
    return torch.linalg.cross(pairs[:, :3], pairs[:, 3:])


def from_norm(vectors: Tensor) -> Tensor:
    return vectors * vectors.norm(dim=1, keepdim=True).sin()


def deep_set(x: Tensor) -> Tensor:
    return x.tanh() + x.square().mean(1, keepdim=True)


def fourth_power(z: Tensor) -> Tensor:
    """i times the conjugate of z⁴, which turns with z by 72° and is mirrored with it."""
    angle, radius = 4 * torch.atan2(z[:, 1], z[:, 0]), z.norm(dim=1) ** 4
    return torch.stack((radius * angle.sin(), radius * angle.cos()), 1)


def interval(x: Tensor) -> Tensor:
    return (METRIC * x * x).sum(1, keepdim=True)


def volume(triples: Tensor) -> Tensor:
    return torch.linalg.det(triples.unflatten(1, (3, 3)))[:, None]


CASES = {
    "SO(3): cross product": Case(Rotations(3), 2 * V, V, twice, once, cross),
    "O(3): vectors": Case(O(3), V, V, once, once, from_norm),
    "O(3): tensors": Case(
        O(3), V, T(2), once, square, lambda v: (v[:, :, None] * v[:, None]).flatten(1)),
    "O(3): scalar": Case(O(3), V, Scalar, once, still, lambda v: v.norm(dim=1, keepdim=True)),
    "O(3): pseudoscalar": Case(
        O(3), 3 * V, P, lambda g: block_diag(g, g, g), sign, volume),
    "O(3): sums": Case(
        O(3), V + Scalar, V + Scalar, vector_and_still, vector_and_still,
        lambda x: torch.cat((x[:, :3] * x[:, 3:].cos(), x[:, :3].norm(dim=1, keepdim=True)), 1)),
    "S(4): vectors": Case(S(4), V, V, once, once, deep_set),
    "S(4): tensors": Case(
        S(4), V, T(2), once, square, lambda x: (x[:, :, None] - x[:, None]).exp().flatten(1)),
    "SO(1,3): vectors": Case(SO13(), V, V, once, once, lambda x: x * interval(x).sin()),
    "SO(1,3): dual": Case(SO13(), V, V.dual, once, dual, lambda x: METRIC * x * interval(x)),
    "D(5): conjugate fourth power": Case(D(5), V, V, once, once, fourth_power),
}  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES.values(), ids=CASES)


def pair(case: Case) -> tuple[Representation, Representation]:
    return case.source(case.group), case.target(case.group)


def sizes(case: Case) -> tuple[int, int]:
    identity = np.eye(case.group.dimension)
    return len(case.source_by_hand(identity)), len(case.target_by_hand(identity))


def worst_by_hand(case: Case, function: Callable[[Tensor], Tensor]) -> float:
    """max |f(ρ_in(g) x) − ρ_out(g) f(x)| over elements g = exp(Σ z A) Π h."""
    algebra, discrete = case.group.algebra_tensor().numpy(), case.group.discrete_tensor().numpy()
    draws, x, worst = np.random.default_rng(0), draw(6, sizes(case)[0]), 0.0
    for _ in range(6):
        g = np.eye(case.group.dimension)
        if len(algebra):
            g = expm(np.tensordot(0.4 * draws.standard_normal(len(algebra)), algebra, 1))
        for index in draws.integers(0, len(discrete), 3) if len(discrete) else ():
            g = g @ discrete[index]
        inside = torch.from_numpy(case.source_by_hand(g))
        outside = torch.from_numpy(case.target_by_hand(g))
        difference = function(x @ inside.T) - function(x) @ outside.T
        worst = max(worst, float(difference.detach().abs().max()))
    return worst


# --- testing ------------------------------------------------------------------------------


def test_what_is_equivariant_by_hand_passes(case: Case) -> None:
    assert worst_by_hand(case, case.good) < 1e-10
    x = draw(12, sizes(case)[0], seed=3)
    assert assert_equivariant(case.good, pair(case), x) < 1e-9


def test_what_is_not_fails_in_every_generator(case: Case) -> None:
    network = mlp(*sizes(case))
    assert worst_by_hand(case, network) > 1e-2
    with pytest.raises(AssertionError) as caught:
        assert_equivariant(network, pair(case))
    for index in range(len(case.group.algebra)):
        assert f"A{index} of {case.group}, Lie derivative" in str(caught.value)
        assert f"A{index} of {case.group}, finite elements" in str(caught.value)
    for index in range(len(case.group.discrete)):
        assert f"h{index} of {case.group}: " in str(caught.value)


def test_generators_of_a_representation_are_those_by_hand(case: Case) -> None:
    for given, rho in zip(pair(case), (case.source_by_hand, case.target_by_hand), strict=True):
        for a, image in zip(case.group.algebra_tensor().numpy(), given.algebra, strict=True):
            np.testing.assert_allclose(image.toarray(), derivative(rho, a), atol=1e-9)
        for h, image in zip(case.group.discrete_tensor().numpy(), given.discrete, strict=True):
            np.testing.assert_allclose(image.toarray(), rho(h), atol=1e-14)


def test_networks_of_a_group_have_its_symmetry_and_others_do_not() -> None:
    group, draws = O(3), torch.Generator().manual_seed(0)
    network = EMLP(V, V, group, channels=32, layers=2, generator=draws).double().eval()
    assert assert_equivariant(network, (V(group), V(group))) < 1e-9
    with pytest.raises(AssertionError, match="h0 of O"):
        assert_equivariant(plain_mlp(3, 3, channels=16).double(), (V(group), V(group)))


def test_a_smaller_symmetry_fails_by_the_discrete_part_alone() -> None:
    draws = torch.Generator().manual_seed(0)
    network = EMLP(2 * V, V, Rotations(3), channels=32, layers=2, generator=draws).double().eval()
    assert_equivariant(network, (2 * V, V, Rotations(3)))
    with pytest.raises(AssertionError, match="h0 of O") as caught:
        assert_equivariant(network, (2 * V, V, O(3)))
    assert "1 of 28 checks" in str(caught.value)
    assert "Lie derivative" not in str(caught.value)


def test_fourth_power_has_no_larger_symmetry() -> None:
    assert_equivariant(fourth_power, (V, V, D(5)), draw(9, 2))
    with pytest.raises(AssertionError, match="A0 of SO"):
        assert_equivariant(fourth_power, (V, V, Rotations(2)), draw(9, 2))


def test_elements_that_leave_inputs_in_place_still_count() -> None:
    """−1 does nothing to pairs of vectors, so that no vector can come out of them."""
    group = SO13()
    with pytest.raises(AssertionError, match=r"h0 of SO\(1,3\): "):
        assert_equivariant(lambda t: t[:, :4], (T(2), V, group), draw(6, 16))
    trace = METRIC.diag().flatten()
    assert_equivariant(lambda t: (t * trace).sum(1, keepdim=True), (T(2), Scalar, group))


def test_copies_of_a_representation_on_axes_between() -> None:
    clouds = draw(4, 5, 3)
    assert_equivariant(lambda x: x - x.mean(1, keepdim=True), (V, V, O(3)), clouds)
    assert_equivariant(lambda x: (x @ x.mT).flatten(1), V(O(3)), clouds)


# --- what may be given --------------------------------------------------------------------


def test_all_ways_to_say_vectors_to_vectors_are_the_same() -> None:
    group, x, network = O(3), draw(5, 3), mlp(3, 3)
    forms: list[tuple[Any, dict[str, Any]]] = [
        ((V(group), V(group)), {}),
        ((V, V(group)), {}),
        ((V(group), V), {}),
        ((V, group), {}),
        ((group, group), {}),
        ((V, V, group), {}),
        ((V >> V)(group), {}),
        (group, {}),
        (V(group), {"outputs": V(group)}),
        (group, {"outputs": V}),
    ]
    penalties = {lie_derivative_penalty(network, x, form, **how).item() for form, how in forms}
    assert len(penalties) == 1
    errors = {measure(network, x, form, **how).actions[0]["error"] for form, how in forms}
    assert len(errors) == 1
    tested = {assert_equivariant(network, form, x, tolerance=99, **how) for form, how in forms}
    assert len(tested) == 1


def test_representation_alone_leaves_the_output_in_place() -> None:
    group, x, network = O(3), draw(5, 3), mlp(3, 3)
    alone = measure(network, x, V(group)).entries[0]
    assert alone["output"] == "invariant"
    said = measure(network, x, (V(group), 3 * Scalar(group))).entries[0]
    assert alone["actions"][0]["error"] == pytest.approx(said["actions"][0]["error"], rel=1e-12)
    assert alone["exact"][0]["error"] == pytest.approx(said["exact"][0]["error"], rel=1e-12)


def test_group_alone_says_what_it_takes_the_output_for() -> None:
    group, x = O(3), draw(5, 3)
    alike, other = (measure(mlp(3, size), x, group).entries[0] for size in (3, 2))
    assert (alike["output"], other["output"]) == ("V of O(3)", "invariant")
    assert "V of O(3) alone: it acts on 3 numbers" in alike["remarks"][0]
    assert "taken to move alike" in alike["remarks"][0]
    assert "(1, 2) and taken to be invariant" in other["remarks"][0]
    assert measure(mlp(3, 3), x, group, outputs="invariant").entries[0]["output"] == "invariant"
    with pytest.raises(AssertionError, match="taken to be invariant; a pair"):
        assert_equivariant(mlp(3, 2), group, x)


def test_actions_and_representations_in_one_pair() -> None:
    axes = ("rotation_x", "rotation_y", "rotation_z")
    turns, clouds = points(3, axes), draw(4, 5, 3)
    matrices = {axis: np.zeros((3, 3)) for axis in axes}
    for axis, (i, j) in zip(axes, ((2, 1), (0, 2), (1, 0)), strict=True):
        matrices[axis][i, j], matrices[axis][j, i] = 1, -1
    group = Group("turns", algebra=list(matrices.values()))
    assert_equivariant(lambda x: x.mean(1), (turns, V(group)), clouds)
    assert_equivariant(lambda x: x.mean(1), (turns, linear_action(matrices)), clouds)
    with pytest.raises(AssertionError, match="rotation_x, Lie derivative"):
        assert_equivariant(lambda x: x.mean(1), (turns, 3 * Scalar(group)), clouds)
    swap = matrix_elements({"swap": [[0, 1], [1, 0]]})
    mirror = Group("mirror", discrete=[[[0, 1], [1, 0]]])
    assert_equivariant(lambda x: x.square(), (swap, V(mirror)), draw(4, 2))


def test_several_symmetries_in_a_list() -> None:
    group, x, network = O(3), draw(5, 3), mlp(3, 3)
    found = measure(
        network, x, [(V(group), V(group)), V(group), matrix_elements({"m": -np.eye(3)})]
    )
    one, two = (measure(network, x, each) for each in ((V, V, group), V(group)))
    errors = [row["error"] for row in found.actions]
    assert errors == [row["error"] for each in (one, two) for row in each.actions]
    assert [row["name"] for row in found.entries[0]["exact"]] == [
        "discrete generators of O(3)", "discrete generators of O(3)", "matrix_elements"
    ]  # fmt: skip


def test_actions_in_a_tuple_stay_two_symmetries_to_measure() -> None:
    first = linear_action({"a": [[0, 1], [-1, 0]]})
    second = linear_action({"b": [[1, 0], [0, 1]]})
    assert [row["name"] for row in measure(mlp(2, 2), draw(4, 2), (first, second)).actions] == [
        "a", "b"
    ]  # fmt: skip
    as_pair = measure(mlp(2, 2), draw(4, 2), [(first, second)])
    assert [row["name"] for row in as_pair.actions] == ["a"]
    assert as_pair.entries[0]["output"] == "moved by b"


# --- measuring and training ---------------------------------------------------------------


def errors_by_hand(case: Case, network: nn.Module, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """mean ‖J ρ'x − ρ'f‖²/dim for each A, mean ‖f(ρ(h)x) − ρ(h)f‖²/dim for each h."""
    local, exact, outputs = [], [], network(x)
    jacobian = torch.func.vmap(torch.func.jacrev(network))(x)
    for a in case.group.algebra_tensor().numpy():
        inside, outside = (
            torch.from_numpy(derivative(rho, a))
            for rho in (case.source_by_hand, case.target_by_hand)
        )
        lie = torch.einsum("bij,bj->bi", jacobian, x @ inside.T) - outputs @ outside.T
        local.append(lie.square().mean())
    for h in case.group.discrete_tensor().numpy():
        inside, outside = (
            torch.from_numpy(rho(h)) for rho in (case.source_by_hand, case.target_by_hand)
        )
        exact.append((network(x @ inside.T) - outputs @ outside.T).square().mean())
    return local, exact


def test_measured_errors_are_those_by_hand(case: Case) -> None:
    network, x = mlp(*sizes(case)), draw(9, sizes(case)[0], seed=5)
    local, exact = errors_by_hand(case, network, x)
    found = measure(network, x, pair(case))
    assert [row["error"] for row in found.actions] == pytest.approx(
        [each.item() for each in local], rel=1e-7
    )
    rows = found.entries[0]["exact"]
    assert len(rows) == bool(exact)
    if exact:
        assert rows[0]["error"] == pytest.approx(float(torch.stack(exact).mean()), rel=1e-12)
    assert found.entries[0]["output"] == f"{case.target} of {case.group}"


def test_measured_errors_of_the_equivariant_are_rounding(case: Case) -> None:
    found = measure(torch.nn.Sequential(Compute(case.good)), draw(9, sizes(case)[0]), pair(case))
    rows = [*found.actions, *(row["finite"] for row in found.actions), *found.entries[0]["exact"]]
    assert rows
    assert max(row["error"] for row in rows) < 1e-18


def test_penalty_and_its_gradient_are_those_by_hand(case: Case) -> None:
    network, x = mlp(*sizes(case)), draw(5, sizes(case)[0], seed=5)
    errors = [each for part in errors_by_hand(case, network, x) for each in part]
    weights = [0.5 + index for index in range(len(errors))]
    wanted = sum(weight * each for weight, each in zip(weights, errors, strict=True))
    assert isinstance(wanted, Tensor)
    penalty = lie_derivative_penalty(network, x, pair(case), weights=weights)
    assert penalty.item() == pytest.approx(wanted.item(), rel=1e-7)
    parameters = list(network.parameters())
    by_hand = torch.autograd.grad(wanted, parameters)
    for one, other in zip(torch.autograd.grad(penalty, parameters), by_hand, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


def test_penalty_takes_finite_actions() -> None:
    images, network = draw(3, 1, 4, 4), nn.Conv2d(1, 2, 3, padding=1).double()
    mirrored = network(images.flip(-1)) - network(images).flip(-1)
    penalty = lie_derivative_penalty(network, images, flip("horizontal"))
    assert penalty.item() == pytest.approx(mirrored.square().mean().item(), rel=1e-12)


def test_report_of_a_network_of_a_group(tmp_path: Path) -> None:
    group, draws = O(3), torch.Generator().manual_seed(0)
    network = EMLP(V, V, group, channels=32, layers=1, generator=draws).double().eval()
    found = measure(network, draw(6, 3), (T(1)(group), T(1)(group)))
    assert max(row["error"] for row in found.actions) < 1e-20
    assert found.actions[0]["layers"] == []
    assert "how hidden layers transform under A0 of O(3)" in found.actions[0]["remark"]
    page = found.report(tmp_path / "report.html").read_text()
    assert "Discrete generators of O(3)" in page
    assert "how hidden layers transform" in page
    guessed = measure(network, draw(6, 3), group).report(tmp_path / "guess.html").read_text()
    assert "taken to move alike" in guessed


def test_report_of_a_finite_group(tmp_path: Path) -> None:
    found = measure(mlp(4, 4), draw(6, 4), S(4))
    assert found.actions == []
    assert any("Discrete generators of S(4)" in each for each in measure_sentences(found.record))
    assert "V of S(4)" in found.report(tmp_path / "report.html").read_text()
    without = measure(mlp(4, 4), draw(6, 4), S(4), finite=False).entries[0]
    assert "discrete generators of S(4) left out: finite=False" in without["remarks"]


def test_hidden_layers_that_move_by_a_representation_have_rows() -> None:
    group, network = Rotations(3), nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3))
    network = network.double()
    with torch.no_grad():
        network[0].weight.copy_(2 * torch.eye(3))
    found = measure(network, draw(6, 3), group, layouts={"0": V(group), "1": V(group)})
    rows = {row["name"]: row for row in found.actions[0]["layers"]}
    assert rows["0"]["layout"] == "V of SO(3)"
    assert rows["0"]["norm"] < 1e-12
    assert rows["1"]["share"] == pytest.approx(1.0)
    assert found.actions[0]["attribution"]["closure"] < 1e-12


def test_precision_and_drawn_inputs_follow_the_network() -> None:
    draws = torch.Generator().manual_seed(0)
    network = EMLP(V, V, S(4), channels=16, layers=1, generator=draws).eval()
    assert 1e-12 < assert_equivariant(network, (V, V, S(4))) < 1e-4


# --- what is refused ----------------------------------------------------------------------

REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "input too large": (
        V(S(4)), {}, r"inputs: V of S\(4\) acts on 4 numbers, \(batch, …, 4\), got 3"),
    "output too small": (
        (V, T(2), Rotations(3)), {}, r"network output: V\*V of SO\(3\) acts on 9 .* got 3"),
    "two groups": ((V(Rotations(3)), V(O(3))), {}, r"expected one group .* got SO\(3\) and O\(3\)"),
    "two groups alone": ((Rotations(3), O(3)), {}, r"expected one group"),
    "complex": (SU(2), {}, r"V of SU\(2\): expected real matrices, .* SU\(2\)\.real_form\(\)"),
    "no group": ((V, V), {}, "V is not bound to a group"),
    "no group alone": (V, {}, "V is not bound to a group"),
    "no generators": (Trivial(3), {}, "got 3 numbers and 0 generators"),
    "nothing to move": ((0 * V)(O(3)), {}, "got 0 numbers and 4 generators"),
    "a partner without reflections": (
        (points(3, ("rotation_x",)), V(O(3))), {}, "got rotation_x with 1 infinitesimal and 0"),
    "fewer generators": (
        (linear_action({"a": np.eye(3)}), V(Rotations(3))), {}, "V of SO.3. with 3 and 0"),
    "elements for an Action": (
        (V(Rotations(3)), matrix_elements({"inversion": -np.eye(3)})), {},
        "V of SO.3. with 3 infinitesimal and 0 discrete ones and matrix_elements with 0 and 1"),
    "outputs beside a pair": (
        (V, V, O(3)), {"outputs": "invariant"}, "expected no outputs= beside it"),
    "something else": ((V(O(3)), 3), {}, "symmetry: expected an Action, a finite action, a group"),
}  # fmt: skip


@pytest.mark.parametrize(("symmetry", "how", "sentence"), REFUSED.values(), ids=REFUSED)
def test_refusals_are_the_same_everywhere(symmetry: Any, how: Any, sentence: str) -> None:
    network, x = mlp(3, 3), draw(5, 3)
    with pytest.raises(CallerError, match=sentence):
        assert_equivariant(network, symmetry, x, **how)
    with pytest.raises(CallerError, match=sentence):
        measure(network, x, symmetry, **how)
    with pytest.raises(CallerError, match=sentence):
        lie_derivative_penalty(network, x, symmetry, **how)


def test_real_form_of_a_complex_group_is_taken() -> None:
    group = SU(2).real_form()
    assert_equivariant(lambda x: x * x.norm(dim=1, keepdim=True), group, draw(5, 4))
    with pytest.raises(AssertionError, match="Lie derivative"):
        assert_equivariant(mlp(4, 4), group)


def test_weights_are_for_coordinates_and_elements() -> None:
    with pytest.raises(CallerError, match="expected 4 numbers of at least zero"):
        lie_derivative_penalty(mlp(3, 3), draw(5, 3), O(3), weights=[1.0, 1.0, 1.0])


def test_names_of_generators_are_those_of_the_group() -> None:
    group = group_named("O(2)")
    acting = symmetries(group)[0]
    assert acting.inputs.continuous is not None
    assert acting.inputs.finite is not None
    assert acting.inputs.continuous.names == ("A0 of O(2)",)
    assert acting.inputs.finite.names == ("h0 of O(2)",)
    turned = acting.inputs.continuous.act(torch.full((1, 1, 1), math.pi / 2), torch.eye(2)[:1])
    expected = expm(math.pi / 2 * group.algebra_tensor()[0].numpy())[:, 0]
    torch.testing.assert_close(turned[0, 0], torch.from_numpy(expected).float())
