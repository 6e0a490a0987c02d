"""Gates commute with the group, where a function of single entries does not."""

from __future__ import annotations

import pytest
import torch
from equivariant_cases import CASES, TOLERANCE, bound, elements, random_inputs
from oracles.emlp_oracle import equivariance_error

from isotropy.networks.equivariant.emlp import GatedNonlinearity, gated
from isotropy.symmetry.groups.catalogue import D, O, S
from isotropy.symmetry.groups.representations import P, Scalar, T, V


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
