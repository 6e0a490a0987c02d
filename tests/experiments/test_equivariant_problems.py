"""Regression problems with a known group: formulas by loops, symmetry, scales, random elements."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from isotropy.checks import CallerError
from isotropy.experiments.thesis.problems import (
    invariant_function,
    matrix_element,
    moment_of_inertia,
    random_elements,
    regression_problem,
)
from isotropy.symmetry.groups.catalogue import O13, DkeR3, O, S, SO13p
from isotropy.symmetry.groups.group import Group

ETA = np.diag([1.0, -1.0, -1.0, -1.0])
GROUPS = {"o5": O(5), "inertia": O(3), "particle": O13()}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_moment_of_inertia_is_the_sum_over_points() -> None:
    masses = torch.rand(4, 5, generator=generator(), dtype=torch.float64)
    places = torch.randn(4, 5, 3, generator=generator(1), dtype=torch.float64)
    expected = np.zeros((4, 3, 3))
    for n in range(4):
        for m, x in zip(masses[n].numpy(), places[n].numpy(), strict=True):
            expected[n] += m * (x @ x * np.eye(3) - np.outer(x, x))
    np.testing.assert_allclose(moment_of_inertia(masses, places).numpy(), expected, atol=1e-12)


def test_matrix_element_contracts_upper_with_lower_indices() -> None:
    momenta = torch.randn(6, 4, 4, generator=generator(), dtype=torch.float64)
    for p, found in zip(momenta.numpy(), matrix_element(momenta).tolist(), strict=True):
        p1, p2, p3, p4 = p
        total = 0.0
        for mu in range(4):
            for nu in range(4):
                electron = p1[mu] * p3[nu] - (p1 @ ETA @ p3 - p1 @ ETA @ p1) * ETA[mu, nu]
                lowered = (ETA @ p2)[mu] * (ETA @ p4)[nu]
                muon = lowered - (p2 @ ETA @ p4 - p2 @ ETA @ p2) * ETA[mu, nu]
                total += 4 * electron * muon
        assert found == pytest.approx(total, rel=1e-10)


def test_invariant_function_by_hand() -> None:
    vectors = torch.zeros(2, 5, dtype=torch.float64)
    vectors[0, 0], vectors[1, 0], vectors[1, 1] = 2.0, 3.0, 4.0
    expected = np.sin(2.0) - 5.0**3 / 2 + 6.0 / 10.0
    assert float(invariant_function(vectors)) == pytest.approx(expected, abs=1e-12)


def values(name: str, inputs: torch.Tensor) -> torch.Tensor:
    """Targets of inputs as a network gets them, before scaling."""
    if name == "o5":
        return invariant_function(inputs.unflatten(1, (2, 5)))[:, None]
    if name == "particle":
        return matrix_element(inputs.unflatten(1, (4, 4)))[:, None]
    return moment_of_inertia(inputs[:, :5], inputs[:, 5:].unflatten(1, (5, 3))).flatten(1)


@pytest.mark.parametrize("name", GROUPS)
def test_targets_transform_as_is_said(name: str) -> None:
    data, group = regression_problem(name, generator(), 50), GROUPS[name]
    elements = random_elements(group, 50, generator(1))
    inputs = data.inputs.double()
    moved = torch.einsum("nij,nj->ni", data.source(group).element(elements), inputs)
    expected = data.target(group).element(elements) @ values(name, inputs)[..., None]
    torch.testing.assert_close(values(name, moved), expected[..., 0], rtol=1e-8, atol=1e-8)
    # ... and by no other maps: a stretch is in none of the groups.
    stretch = torch.diag(torch.arange(1.0, group.dimension + 1, dtype=torch.float64))
    moved = inputs @ data.source(group).element(stretch).T
    assert not torch.allclose(values(name, moved), values(name, inputs), rtol=0.1)


@pytest.mark.parametrize("name", GROUPS)
def test_data_follow_their_seed_and_formula(name: str) -> None:
    first, again, other = (regression_problem(name, generator(seed), 40) for seed in (0, 0, 1))
    assert torch.equal(first.inputs, again.inputs) and not torch.equal(first.inputs, other.inputs)
    torch.testing.assert_close(first.targets, values(name, first.inputs), rtol=1e-4, atol=1e-4)
    group = GROUPS[name]
    assert first.inputs.shape == (40, first.source(group).size)
    assert first.targets.shape == (40, first.target(group).size)


def test_scales_commute_with_the_group_and_standardise() -> None:
    data = regression_problem("o5", generator(), 2000)
    vectors = (data.inputs / data.input_scale).unflatten(1, (2, 5))
    torch.testing.assert_close(vectors.square().mean((0, 2)), torch.ones(2))
    scaled = (data.targets - data.target_mean) / data.target_scale
    assert float(scaled.mean().abs()) < 1e-4 and float(scaled.square().mean()) == pytest.approx(1)
    particle = regression_problem("particle", generator(), 2000)
    momenta = (particle.inputs / particle.input_scale).unflatten(1, (4, 4))
    squares = (momenta.square() * torch.tensor([1.0, -1.0, -1.0, -1.0])).sum(-1)
    torch.testing.assert_close(squares.abs().mean(0), torch.ones(4))
    for each in (data, particle):  # one number a vector
        size = 5 if each is data else 4
        assert len(each.input_scale.unflatten(0, (-1, size)).unique(dim=1)[0]) == 1
    inertia = regression_problem("inertia", generator(), 10)
    assert bool((inertia.input_scale == 1).all() and (inertia.target_scale == 1).all())


def test_random_elements_are_elements_of_every_component() -> None:
    turns = random_elements(O(5), 200, generator())
    identity = torch.eye(5, dtype=torch.float64).expand(200, 5, 5)
    torch.testing.assert_close(turns @ turns.mT, identity)
    assert 50 < int((torch.linalg.det(turns) > 0).sum()) < 150
    boosts = random_elements(O13(), 200, generator())
    eta = torch.from_numpy(ETA)
    torch.testing.assert_close(boosts.mT @ eta @ boosts, eta.expand(200, 4, 4), rtol=0, atol=1e-7)
    signs = {(float(g[0, 0]) > 0, float(torch.linalg.det(g)) > 0) for g in boosts}
    assert len(signs) == 4
    # Boosts are kept small: the time component is cosh of the rapidity.
    proper = random_elements(SO13p(), 500, generator())[:, 0, 0]
    assert float(proper.min()) >= 1 - 1e-9 and 1.05 < float(proper.mean()) < 1.3


def test_random_elements_of_finite_groups() -> None:
    found = {tuple(g.flatten().tolist()) for g in random_elements(S(3), 200, generator()).round()}
    assert len(found) == 6
    turned = random_elements(DkeR3(6), 300, generator())
    assert len({tuple((1e6 * g).round().flatten().tolist()) for g in turned + 0.0}) == 12
    assert torch.equal(random_elements(Group("one", dimension=2), 3, generator())[0], torch.eye(2))


def test_refused() -> None:
    with pytest.raises(CallerError, match="did you mean 'inertia'"):
        regression_problem("inertial", generator())
    with pytest.raises(CallerError, match="at least 2 examples, got 1"):
        regression_problem("o5", generator(), 1)
