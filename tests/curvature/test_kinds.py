"""Every kind of curvature against dense oracles: structures, Fishers, copies; and choosing one."""

from __future__ import annotations

import itertools

import pytest
import torch
from curvature_problems import CurvatureProblem, label_generator
from network_cases import LIKELIHOODS, NETWORKS, NORMS, assert_equal, mlp, relative_difference
from numerics import central_slopes, numbers
from oracles.dense_ggn import average_over_samples, dense_ggn
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature import kfac
from isotropy.curvature.blocks import JOINT
from isotropy.curvature.kfac import make_curvature
from isotropy.curvature.kinds import (
    DEFAULT_KIND,
    FISHERS,
    KINDS,
    STRUCTURES,
    Copies,
    CurvatureKind,
    kind_named,
)
from isotropy.likelihoods import Categorical

# --- every kind is its formula ----------------------------------------------------------------


@pytest.mark.parametrize("copies", ["one", "three, weighted"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_its_formula(kind: str, likelihood: str, copies: str):
    given = CurvatureProblem(kind, likelihood, copies)
    assert given.curvature.parameter_names == given.expected_names()
    assert_equal(given.found_matrix(), given.expected_matrix(), kind)
    outputs = average_over_samples(given.network(given.rows).detach(), given.weights)
    assert_equal(given.found().outputs, outputs, "outputs")


def test_kinds_are_different_numbers():
    """No two kinds agree, so that the comparison above tells each from all others."""
    found = {kind: CurvatureProblem(kind, "categorical").found_matrix() for kind in KINDS}
    for one, other in itertools.combinations(KINDS, 2):
        if found[one].shape == found[other].shape:
            assert relative_difference(found[one], found[other]) > 0.05, f"{one} and {other}"


def test_weights_of_copies_are_noticed():
    weighted = CurvatureProblem("full-ggn", "categorical", "three, weighted")
    equal = CurvatureProblem("full-ggn", "categorical", "three")
    assert relative_difference(weighted.found_matrix(), equal.expected_matrix()) > 0.01


# Whatever torch.func.vmap has its own way with: fused norms and attention, in-place, reuse.
JACOBIAN_NETWORKS = ["tokens", "used twice", "in-place relu", "dropout", "cnn", "fixup", "unused",
                     "frozen first layer", "random features",
                     *NORMS, "attention", "transformer"]  # fmt: skip


@pytest.mark.parametrize("network", JACOBIAN_NETWORKS)
def test_whole_matrix_and_diagonal_of_every_network(network: str):
    case, kind = NETWORKS[network], LIKELIHOODS["categorical"]
    built, rows = case.network(), case.rows(3, 2)
    exact = dense_ggn(case.network().eval(), rows, 2, kind.curvature)
    whole, diagonal = (
        make_curvature(built, KINDS[name], "refuse", rows[:2]).batch(
            rows, Copies(2), kind.build()
        ).factors()
        for name in ("full-ggn", "diagonal-ggn")
    )  # fmt: skip
    assert_equal(whole[JOINT].matrix, exact, "whole matrix")
    entries = torch.cat([block.values for block in diagonal.values()])
    assert_equal(entries, exact.diagonal(), "diagonal")


@pytest.mark.parametrize("network", JACOBIAN_NETWORKS)
def test_gradient_of_the_whole_matrix(network: str):
    """By finite differences along one direction: fused operations have wrong ones of their own."""
    case = NETWORKS[network]
    built, rows = case.network(), case.rows(2, 2)
    curvature = make_curvature(built, KINDS["full-ggn"], "refuse", rows[:2])
    direction = numbers(*rows.shape, seed=4)
    size = sum(built.get_parameter(name).numel() for name in curvature.parameter_names)
    pattern, step = numbers(size, seed=5), torch.zeros((), dtype=torch.float64, requires_grad=True)

    def along() -> Tensor:
        moved = rows + step * direction
        found = curvature.batch(moved, Copies(2), Categorical(), create_graph=True)
        return (found.roots[JOINT].rows @ pattern).square().sum()

    (slope,) = torch.autograd.grad(along(), step)
    assert_equal(slope, central_slopes(along, step), "slope", 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_factors_add_up_over_batches(kind: str):
    """One generator of labels for both batches draws what it draws for the whole."""
    given = CurvatureProblem(kind, "gaussian", "three, weighted")
    generator = label_generator()
    parts = [
        given.curvature.batch(
            rows, given.copies, given.likelihood, targets, generator=generator
        ).factors()
        for rows, targets in zip(given.rows.split(6), given.targets.split(2), strict=True)
    ]
    for name, block in given.found().factors().items():
        assert_equal((parts[0][name] + parts[1][name]).dense(4), block.dense(4), name)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_is_kept_only_when_asked_for(kind: str, create_graph: bool):
    given = CurvatureProblem(kind, "categorical")
    given.rows.requires_grad_()
    found = given.found(create_graph=create_graph)
    tensors = [t for root in found.roots.values() for t in root.tensors()]
    assert {t.requires_grad for t in (found.outputs, *tensors)} == {create_graph}
    assert not any(t.requires_grad for r in found.roots.values() for t in r.detach().tensors())


# --- the Monte-Carlo Fisher is right on average -----------------------------------------------

DRAWS = 2000


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_mean_over_labels_is_the_ggn(structure: str, likelihood: str):
    """One example as a batch of thousands: every one of them has a label of its own."""
    once = CurvatureProblem(f"{structure}-ggn", likelihood, "three, weighted", count=1)
    many = CurvatureProblem(f"{structure}-mc", likelihood, "three, weighted", count=1)
    many.rows = many.rows.repeat(DRAWS, 1)
    many.targets = many.targets.repeat(DRAWS, *(1 for _ in many.targets.shape[1:]))
    for name, roots in many.found().roots.items():
        expected = once.found().factors()[name].tensors()
        for drawn, wanted in zip(roots.tensors(), expected, strict=True):
            rows = drawn.flatten(0, -2)  # one an example and direction, and there is one direction
            assert len(rows) == DRAWS
            outer = rows.square() if wanted.ndim == 1 else rows[:, :, None] * rows[:, None, :]
            error = outer.std(0) / DRAWS**0.5
            wanted = wanted.reshape(outer.shape[1:])
            assert bool(((outer.mean(0) - wanted).abs() <= 5 * error + 1e-12).all()), name


def test_one_label_is_not_the_ggn():
    given = CurvatureProblem("full-mc", "categorical")
    exact = CurvatureProblem("full-ggn", "categorical").expected_matrix()
    assert relative_difference(given.found_matrix(), exact) > 0.1


@pytest.mark.parametrize("structure", STRUCTURES)
def test_labels_come_from_the_generator_alone(structure: str):
    given = CurvatureProblem(f"{structure}-mc", "categorical", count=8)
    torch.manual_seed(1)
    first = given.found_matrix()
    torch.manual_seed(2)
    assert torch.equal(given.found_matrix(), first)
    other = given.curvature.batch(
        given.rows, given.copies, given.likelihood,
        generator=torch.Generator().manual_seed(99),
    )  # fmt: skip
    assert any(
        not torch.equal(mine, theirs)
        for name, root in given.found().roots.items()
        for mine, theirs in zip(root.tensors(), other.roots[name].tensors(), strict=True)
    )


# --- names --------------------------------------------------------------------------------------


def test_names():
    assert set(KINDS) == {f"{s}-{f}" for s in STRUCTURES for f in FISHERS} and len(KINDS) == 12
    assert kind_named(DEFAULT_KIND) == CurvatureKind("kfac", "ggn")
    for name, kind in KINDS.items():
        assert kind.name == name and kind_named(name) is kind
    for structure in STRUCTURES:
        assert kind_named(structure) is KINDS[f"{structure}-ggn"]
    for fisher in FISHERS:
        assert kind_named(fisher) is KINDS[f"kfac-{fisher}"]


def test_unknown_name():
    with pytest.raises(CallerError, match="unknown curvature 'kfac-gnn'.*did you mean 'kfac-ggn'"):
        kind_named("kfac-gnn")


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_empirical_fisher_needs_targets(structure: str):
    given = CurvatureProblem(f"{structure}-ef", "categorical")
    with pytest.raises(CallerError, match=f"curvature {structure}-ef: expected the targets"):
        given.curvature.batch(given.rows, given.copies, given.likelihood)


def test_a_matrix_that_would_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kfac, "LARGEST_JOINT", 38)
    case, rows = NETWORKS["mlp"], NETWORKS["mlp"].rows(2, 1)
    with pytest.raises(CallerError, match="curvature full-ef: expected at most 38 .* got 39"):
        make_curvature(case.network(), KINDS["full-ef"], "refuse", rows)
    for kind in ("kfac-ef", "diagonal-ef", "last-layer-ef"):
        make_curvature(case.network(), KINDS[kind], "refuse", rows)


@pytest.mark.parametrize("kind", ["diagonal-ggn", "full-ggn", "kfac-ggn"])
def test_nothing_to_train(kind: str):
    frozen = mlp(4, 3, 3).double().requires_grad_(False)
    with pytest.raises(CallerError, match="the network has no trainable parameters"):
        make_curvature(frozen, KINDS[kind], "refuse", torch.zeros(2, 4).double())


NO_LAST_LAYER = {
    "activation last": (NETWORKS["mlp, activation last"], "expected a network that ends with"),
    "convolution last": (NETWORKS["conv last"], "expected a network that ends with"),
    "a sum at the end": (NETWORKS["residual"], "expected a network that ends with"),
    "frozen": (NETWORKS["frozen head"], "the layer '2' is frozen"),
}


@pytest.mark.parametrize("name", NO_LAST_LAYER)
def test_no_last_layer(name: str):
    case, sentence = NO_LAST_LAYER[name]
    with pytest.raises(CallerError, match=f"curvature last-layer: {sentence}"):
        make_curvature(case.network(), KINDS["last-layer-ggn"], "refuse", case.rows(2, 1))


def test_an_activation_in_place_is_no_last_layer():
    network = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True)).double()
    with pytest.raises(CallerError, match="expected a network that ends with a Linear layer"):
        make_curvature(network, KINDS["last-layer-ggn"], "refuse", torch.ones(2, 4).double())
    ends = nn.Sequential(network, nn.Linear(3, 2)).double()
    found = make_curvature(ends, KINDS["last-layer-ggn"], "refuse", torch.ones(2, 4).double())
    assert found.parameter_names == ("1.weight", "1.bias")
    assert not any(module._forward_hooks for module in ends.modules())


@pytest.mark.parametrize("kind", ["full-ggn", "kfac-ggn"])
def test_outputs_that_are_not_two_axes(kind: str):
    network = nn.Conv2d(1, 2, 2).double()
    rows = torch.zeros(2, 1, 4, 4, dtype=torch.float64)
    with pytest.raises(CallerError, match=r"expected \(batch, outputs\), got \(2, 2, 3, 3\)"):
        make_curvature(network, KINDS[kind], "refuse", rows).batch(rows, Copies(1), Categorical())


class Decides(nn.Linear):
    """Looks at its numbers before it computes, which vmap cannot follow."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs if float(inputs.sum()) > 0 else -inputs)


def test_a_network_that_vmap_cannot_follow_is_told():
    network = Decides(4, 3).double()
    curvature = make_curvature(network, KINDS["full-ggn"], "refuse", torch.ones(2, 4).double())
    with pytest.raises(CallerError, match="cannot be differentiated example by example: .*kfac"):
        curvature.batch(torch.ones(2, 4).double(), Copies(1), Categorical())


def test_the_network_is_left_as_it_was():
    case = NETWORKS["dropout"]
    for kind in KINDS:
        built = case.network().train()
        curvature = make_curvature(built, KINDS[kind], "refuse", case.rows(2, 1))
        targets = torch.tensor([0, 1])
        curvature.batch(case.rows(2, 3), Copies(3), Categorical(), targets)
        assert all(module.training for module in built.modules())
        assert all(p.requires_grad and p.grad is None for p in built.parameters())
