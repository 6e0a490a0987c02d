"""The bilinear layer against loops over objects, and its equivariance for every group."""

from __future__ import annotations

import pytest
import torch
from equivariant_cases import CASES, TOLERANCE, bound, elements, random_inputs
from oracles.emlp_oracle import equivariance_error, tensor_bilinear

from isotropy.checks import CallerError
from isotropy.networks.equivariant_bilinear import EquivariantBilinear
from isotropy.symmetry.group_catalogue import GL, SO, SU, O, SO13p, Sp
from isotropy.symmetry.representations import P, Representation, Scalar, T, V

EXTRA: dict[str, Representation] = {
    "SO(3)": Scalar + 2 * V + 2 * T(2) + T(3) + P * V,
    "O(3)": P + P * V + T(2) + V + P * T(2),
    "SO+(1,3)": V + V.dual + V.dual * V + T(2) + T(0, 2) + T(2, 1),
    "Sp(1)": V + V.dual + V.dual * V + T(2) + T(3),
    "GL(2)": 2 * V + 2 * V.dual + V.dual * V + V * V.dual + V * V * V.dual + V.dual * V * V,
    "SL(3)": V + V.dual + V * V.dual + V.dual * V,
    "S(4)": 5 * V + 3 * T(2) + Scalar,
    "RubiksCube": 2 * V,
    "Grid(4,2)": 2 * V,
}


def seeded(number: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(number)


@pytest.mark.parametrize("name", CASES)
def test_it_is_equivariant(name):
    group, source, target = bound(name)
    representation = source + target + EXTRA.get(name, T(2))(group) + Scalar(group)
    layer = EquivariantBilinear(representation, representation, generator=seeded()).double()
    inputs = random_inputs(10, representation.size)
    assert layer.triples and layer(inputs).var(0).max() > 1e-3
    for element in elements(group):
        matrix = representation.element(element)
        assert equivariance_error(layer, matrix, matrix, inputs) < TOLERANCE[torch.float64]


def test_against_loops_over_objects():
    dimension, amounts = 3, {0: 4, 1: 5, 2: 2, 3: 1}
    representation = (4 * Scalar + 5 * V + 2 * T(2) + T(3))(O(3))
    layer = EquivariantBilinear(representation, representation, generator=seeded()).double()
    inputs = random_inputs(1, representation.size)
    lengths = [n * dimension**rank for rank, n in amounts.items()]
    parts = inputs[0].split(lengths)
    objects = {rank: part.view(amounts[rank], -1) for rank, part in enumerate(parts)}
    used = {rank: min(n, dimension**rank) for rank, n in amounts.items()}
    # (map, source, target): on their own kind with all of it, on vectors with as many as maps.
    triples = {(1, 1, 0): 5, (2, 2, 0): 2, (3, 3, 0): 1, (2, 1, 1): used[1], (3, 1, 2): used[1]}
    weights, start = {}, 0
    for triple in sorted(triples, key=lambda each: (each[2], each[1])):
        shape = amounts[triple[2]], used[triple[0]], triples[triple]
        end = start + shape[0] * shape[1] * shape[2]
        weights[triple] = layer.coefficients.detach()[start:end].view(shape)
        start = end
    assert start == layer.coefficients.numel()
    expected = tensor_bilinear(objects, weights, dimension)
    found = layer(inputs)[0].split(lengths)
    for rank in (0, 1, 2):
        assert torch.allclose(found[rank], expected[rank].ravel(), atol=1e-13)
    assert not found[3].any()  # nothing of rank four maps a vector to it


def test_order_of_the_sum_does_not_matter():
    together = (2 * Scalar + 3 * V + T(2))(SO(3))
    apart = (V + Scalar + T(2) + 2 * V + Scalar)(SO(3))
    to_apart = torch.tensor([2, 3, 4, 0, *range(11, 20), *range(5, 11), 1])
    first = EquivariantBilinear(together, together, generator=seeded()).double()
    second = EquivariantBilinear(apart, apart, generator=seeded()).double()
    assert len(first.triples) == len(second.triples) == 3
    of_second = {0: 1, 1: 0, 2: 2}  # kinds of the second as they are numbered in the first
    own = _weights(first)
    with torch.no_grad():
        second.coefficients.copy_(
            torch.cat([own[tuple(of_second[kind] for kind in key)] for key in _weights(second)])
        )
    inputs = random_inputs(4, 20)
    assert torch.allclose(second(inputs[:, to_apart]), first(inputs)[:, to_apart], atol=1e-13)


def _weights(layer: EquivariantBilinear) -> dict[tuple[int, int, int], torch.Tensor]:
    """The weights of each triple, in the order in which they lie."""
    ordered = [t for group in layer._by_target.values() for t in group]
    parts = layer.coefficients.detach().split(layer._amounts)
    return {(t.map, t.source, t.target): p for t, p in zip(ordered, parts, strict=True)}


def test_it_starts_with_about_a_third_of_its_input():
    representation = (20 * Scalar + 9 * V + 9 * T(2) + 2 * T(3))(SO(3))
    layer = EquivariantBilinear(representation, representation, generator=seeded()).double()
    outputs = layer(random_inputs(2000, representation.size))
    for part in outputs.split([20, 27, 81, 54], 1)[:3]:
        assert 0.15 < part.std() < 0.7  # lengths squared vary more than products


def test_it_is_quadratic_and_takes_any_leading_axes():
    representation = (Scalar + 2 * V + T(2))(SO(3))
    layer = EquivariantBilinear(representation, representation, generator=seeded()).double()
    inputs = random_inputs(6, representation.size)
    assert torch.allclose(layer(3 * inputs), 9 * layer(inputs), atol=1e-12)
    assert torch.allclose(layer(inputs.view(2, 3, -1)).view(6, -1), layer(inputs), atol=1e-14)
    assert torch.allclose(layer(inputs[0]), layer(inputs)[0], atol=1e-14)


@pytest.mark.parametrize("group", [SO13p(), Sp(1)], ids=str)
def test_a_form_makes_vectors_of_their_own_kind_into_maps(group):
    layer = EquivariantBilinear((2 * V)(group), Scalar(group), generator=seeded()).double()
    (triple,) = layer.triples
    assert triple.forms == (1,)
    form = torch.from_numpy(group.classical.form)
    first, second = random_inputs(2, group.dimension)
    weight = layer.coefficients.detach().view(2, 2)
    vectors = torch.stack([first, second])
    expected = 0.1 * (weight * (vectors @ form @ vectors.T)).sum()
    assert torch.allclose(layer(torch.cat([first, second]))[0], expected, atol=1e-13)


def test_without_a_form_vectors_need_covectors():
    assert not EquivariantBilinear((2 * V)(GL(2)), Scalar(GL(2))).triples
    assert len(EquivariantBilinear((V + V.dual)(GL(2)), Scalar(GL(2))).triples) == 2


def test_nothing_to_contract_gives_zeros():
    layer = EquivariantBilinear((3 * Scalar)(SO(3)), (2 * Scalar + V)(SO(3)))
    assert layer.coefficients.numel() == 0
    assert torch.equal(layer(torch.ones(4, 3)), torch.zeros(4, 5))


def test_gradients_and_second_gradients():
    representation = (Scalar + 2 * V + T(2))(SO(3))
    layer = EquivariantBilinear(representation, representation, generator=seeded()).double()
    inputs = random_inputs(2, representation.size).requires_grad_()

    def outputs(coefficients, inputs):
        return torch.func.functional_call(layer, {"coefficients": coefficients}, (inputs,))

    assert torch.autograd.gradcheck(outputs, (layer.coefficients, inputs))
    assert torch.autograd.gradgradcheck(outputs, (layer.coefficients, inputs))


def test_it_is_one_graph_and_saves_its_weights_alone():
    representation = (3 * Scalar + 4 * V + T(2))(SO13p())
    layer = EquivariantBilinear(representation, representation, generator=seeded())
    inputs = random_inputs(6, representation.size, torch.float32)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(inputs), layer(inputs), atol=1e-6)
    assert set(layer.state_dict()) == {"coefficients"}


def test_refusals():
    with pytest.raises(CallerError, match="needs a real group, got SU\\(2\\)"):
        EquivariantBilinear(V(SU(2)), V(SU(2)))
    with pytest.raises(CallerError, match=r"expected inputs \(…, 3\), got \(2, 4\)"):
        EquivariantBilinear(V(SO(3)), V(SO(3)))(torch.zeros(2, 4))
