"""The bilinear layer against loops over objects, and its equivariance for every group."""

from __future__ import annotations

import pytest
import torch
from equivariant_cases import CASES, TOLERANCE, bound, elements, random_inputs
from oracles.emlp_oracle import equivariance_error, tensor_bilinear
from user_networks import seeded

from isotropy.networks.equivariant.bilinear import Contraction, EquivariantBilinear
from isotropy.symmetry.groups.catalogue import GL, SO, D, O, SO13p, Sp
from isotropy.symmetry.groups.representations import P, Representation, Scalar, T, V

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


@pytest.mark.parametrize("name", CASES)
def test_it_is_equivariant(name):
    group, source, target = bound(name)
    representation = source + target + EXTRA.get(name, T(2))(group) + Scalar(group)
    layer = EquivariantBilinear(representation, representation, generator=seeded()).double()
    inputs = random_inputs(10, representation.size)
    assert layer.contractions and layer(inputs).var(0).max() > 1e-3
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
    # (map, source, target, shift), pairs: within a kind, maps on vectors, vectors beside vectors.
    pairs = {
        **{(1, 1, 0, 0): 5, (1, 1, 0, 2): 2, (2, 2, 0, 0): 2, (3, 3, 0, 0): 1},
        **{(2, 1, 1, 0): 2, (1, 1, 2, 2): 2},
    }
    weights = {_key(each): own for each, own in _weights(layer).items()}
    assert {key: own.shape for key, own in weights.items()} == {
        key: (amounts[key[2]], count) for key, count in pairs.items()
    }
    assert sum(own.numel() for own in weights.values()) == layer.coefficients.numel()
    expected = tensor_bilinear(objects, weights, dimension)
    found = layer(inputs)[0].split(lengths)
    for rank in (0, 1, 2):
        assert torch.allclose(found[rank], expected[rank].ravel(), atol=1e-13)
    assert not found[3].any()  # nothing gives a tensor of rank three


def test_tensors_of_higher_ranks_against_loops_over_objects():
    dimension, amounts = 2, {0: 3, 1: 4, 2: 4, 3: 2}
    representation = (3 * Scalar + 4 * V + 4 * T(2) + 2 * T(3))(D(5))
    layer = EquivariantBilinear(representation, representation, generator=seeded()).double()
    inputs = random_inputs(1, representation.size)
    lengths = [n * dimension**rank for rank, n in amounts.items()]
    parts = inputs[0].split(lengths)
    objects = {rank: part.view(amounts[rank], -1) for rank, part in enumerate(parts)}
    weights = {_key(e): own for e, own in _weights(layer).items() if e.solved is None}
    plain = {(1, 1, 0, 0), (1, 1, 0, 2), (2, 2, 0, 0), (3, 3, 0, 0), (2, 1, 1, 0), (1, 1, 2, 2)}
    assert set(weights) == plain | {(3, 2, 1, 0), (1, 2, 3, 0)}
    expected = tensor_bilinear(objects, weights, dimension)
    # T(2) and T(3) have one invariant of D(5) that O(2) has not: Re (a + ib)⁵ of five vectors.
    ((solved, own),) = [(e, w) for e, w in _weights(layer).items() if e.solved is not None]
    assert (solved.map, solved.source, solved.target) == (2, 3, 0)
    corner = torch.tensor([1, 1j], dtype=torch.complex128)
    fifth = torch.einsum("a,b,c,d,e->abcde", *[corner * 1j] * 5).real.reshape(4, 8)
    fifth = fifth / fifth.norm()
    drawn = torch.einsum("ja,ab,jb->j", objects[2][:2], fifth, objects[3])
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64)
    ways = [expected[0].ravel() + 0.5 * sign * (own @ drawn) for sign in signs]
    assert any(torch.allclose(layer(inputs)[0, :3], way, atol=1e-13) for way in ways)
    for rank, found in list(enumerate(layer(inputs)[0].split(lengths)))[1:]:
        assert torch.allclose(found, expected[rank].ravel(), atol=1e-13)


def test_higher_ranks_meet_only_where_they_are_needed():
    for group, most in ((O(2), 2), (D(4), 2), (D(5), 3), (D(7), 4)):
        representation = (Scalar + 2 * V + 2 * T(2) + 2 * T(3) + 2 * T(4))(group)
        layer = EquivariantBilinear(representation, representation)
        reached = {len(layer.target_kinds[each.target].atoms) for each in layer.contractions}
        assert max(reached) == most


def test_vectors_of_a_rotation_group_meet_by_the_cross_product():
    representation = (2 * V)(SO(3))
    layer = EquivariantBilinear(representation, V(SO(3)), generator=seeded()).double()
    (solved,) = [each for each in layer.contractions if each.solved is not None]
    assert (solved.count, solved.first) == (1, 1)
    first, second = random_inputs(2, 3)
    cross = torch.linalg.cross(first, second)
    found = layer(torch.cat([first, second]))
    assert torch.allclose(found / found.norm(), cross / cross.norm(), atol=1e-12) or torch.allclose(
        found / found.norm(), -cross / cross.norm(), atol=1e-12
    )
    # One vector alone has no cross product with itself.
    assert not EquivariantBilinear(V(SO(3)), V(SO(3))).contractions


def test_scales_follow_examples():
    representation = (20 * Scalar + 9 * V + 9 * T(2) + 2 * T(3))(SO(3))
    layer = EquivariantBilinear(representation, representation, generator=seeded()).double()
    parts = layer.parts(3 * random_inputs(500, representation.size) + 1)
    layer.rescale_(parts, 0.25)
    for part in layer.of_parts(parts)[:3]:
        spread = float(part.detach().var(-1, correction=0).mean()) ** 0.5
        assert spread == pytest.approx(0.25, rel=0.3)  # contractions may go together
    assert not layer.of_parts(parts)[3].any()


def _key(each: Contraction) -> tuple[int, int, int, int]:
    return each.map, each.source, each.target, each.first


def _weights(layer: EquivariantBilinear) -> dict[Contraction, torch.Tensor]:
    """The weights (copies out, pairs) of each contraction."""
    found, at = {}, 0
    for target in sorted({each.target for each in layer.contractions}):
        own = [each for each in layer.contractions if each.target == target]
        copies, pairs = layer.target_kinds[target].copies, [each.count for each in own]
        block = layer.coefficients.detach()[at : at + copies * sum(pairs)]
        found |= dict(zip(own, block.view(copies, -1).split(pairs, 1), strict=True))
        at += block.numel()
    return found


def test_order_of_the_sum_does_not_matter():
    together = (2 * Scalar + 3 * V + T(2))(SO(3))
    apart = (V + Scalar + T(2) + 2 * V + Scalar)(SO(3))
    to_apart = torch.tensor([2, 3, 4, 0, *range(11, 20), *range(5, 11), 1])
    first = EquivariantBilinear(together, together, generator=seeded()).double()
    second = EquivariantBilinear(apart, apart, generator=seeded()).double()
    assert len(first.contractions) == len(second.contractions) == 5
    of_second = {0: 1, 1: 0, 2: 2}  # kinds of the second as they are numbered in the first
    own = {_key(each): weight for each, weight in _weights(first).items()}
    moved = {
        t: own[of_second[t.map], of_second[t.source], of_second[t.target], t.first]
        for t in second.contractions
    }
    blocks = [
        torch.cat([moved[t] for t in second.contractions if t.target == target], 1).ravel()
        for target in (0, 1, 2)
    ]
    with torch.no_grad():
        second.coefficients.copy_(torch.cat(blocks))
    inputs = random_inputs(4, 20)
    assert torch.allclose(second(inputs[:, to_apart]), first(inputs)[:, to_apart], atol=1e-13)


def test_added_to_its_input():
    representation = (V + Scalar + T(2) + 2 * V + Scalar)(SO(3))
    layer = EquivariantBilinear(representation, representation, generator=seeded()).double()
    inputs = random_inputs(4, representation.size)
    found = layer.joined(layer.added(layer.parts(inputs)))
    assert torch.allclose(found, inputs + layer(inputs), atol=1e-14)


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
    assert all(each.forms == (1,) for each in layer.contractions)
    form = torch.from_numpy(group.classical.form)
    vectors = random_inputs(2, group.dimension)
    inner = vectors @ form @ vectors.T
    # By a symmetric form each vector meets itself, too; an antisymmetric one needs two of them.
    values = [] if torch.equal(form, -form.T) else [inner[0, 0], inner[1, 1]]
    values = torch.stack([inner[0, 1], *values])
    expected = 0.5 * (layer.coefficients.detach() * values).sum()
    assert torch.allclose(layer(vectors.ravel())[0], expected, atol=1e-13)


def test_without_a_form_vectors_need_covectors():
    assert not EquivariantBilinear((2 * V)(GL(2)), Scalar(GL(2))).contractions
    assert len(EquivariantBilinear((V + V.dual)(GL(2)), Scalar(GL(2))).contractions) == 2
    assert not EquivariantBilinear(V(Sp(1)), Scalar(Sp(1))).contractions


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
