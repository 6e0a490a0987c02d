"""The linear layer: equivariant for every group, exact in every precision, exported as it is."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
import torch
from equivariant_cases import CASES, TOLERANCE, bound, elements, random_inputs
from oracles.emlp_oracle import equivariance_error
from torch import Tensor, nn
from user_networks import seeded

from isotropy.bases.maps import map_basis
from isotropy.checks import CallerError
from isotropy.networks.equivariant import linear as equivariant_linear
from isotropy.networks.equivariant.isotypic import IsotypicMap
from isotropy.networks.equivariant.linear import AssembledMap, EquivariantLinear
from isotropy.symmetry.groups.catalogue import SO, SU, O, S, Z
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import Scalar, T, V


def layer_of(name: str) -> EquivariantLinear:
    _, source, target = bound(name)
    return EquivariantLinear(source + target, target + source, generator=seeded())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_it_is_equivariant_and_not_constant(name, dtype):
    layer = layer_of(name).to(dtype)  # made in float32: its basis must not stay rounded
    inputs = random_inputs(20, layer.source.size, dtype)
    assert layer.coefficients.numel() > 0
    assert layer(inputs).var(0).max() > 1e-4
    for element in elements(layer.source.group):
        source = layer.source.element(element).to(dtype)
        target = layer.target.element(element).to(dtype)
        assert equivariance_error(layer, source, target, inputs) < TOLERANCE[dtype]


def weight_of(layer: EquivariantLinear, coefficients: Tensor) -> Tensor:
    state = {"coefficients": coefficients}
    one = torch.eye(layer.in_features, dtype=coefficients.dtype)
    zero = torch.zeros_like(one[:1])
    call = partial(torch.func.functional_call, layer, state)
    return (call((one,)) - call((zero,))).T


def check_it_is_every_map(layer: EquivariantLinear) -> None:
    """Coefficients are those of an orthogonal basis of all maps, and outputs are W x + b."""
    maps = map_basis(layer.source >> layer.target)
    own = layer.coefficients.detach()
    each = torch.func.vmap(partial(weight_of, layer))(torch.eye(len(own), dtype=own.dtype))
    assert len(each) == maps.rank
    flat = each.flatten(1)
    gram = flat @ flat.T
    assert torch.allclose(gram, gram.diagonal().diag(), atol=1e-11)
    assert gram.diagonal().min() > 0.9  # the unit of a matrix entry
    weight = layer.weight.detach()
    assert torch.allclose(weight, torch.einsum("r,roi->oi", own, each), atol=1e-12)
    projected = torch.from_numpy(maps.matrix(maps.project(weight.numpy())))
    assert torch.allclose(weight, projected, atol=1e-11)
    inputs = random_inputs(5, layer.source.size)
    by_hand = inputs @ weight.T + (0 if layer.bias is None else layer.bias)
    assert torch.allclose(layer(inputs), by_hand, atol=1e-12)
    plain = layer.export()
    assert type(plain) is nn.Linear
    assert torch.allclose(plain(inputs), layer(inputs), atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_its_matrices_are_all_maps_and_no_other(name):
    layer = layer_of(name).double()
    assert isinstance(layer.map, IsotypicMap)
    check_it_is_every_map(layer)


@pytest.mark.parametrize("name", ["S(4)", "SO(2)", "O(3)", "SO+(1,3)", "GL(2)", "Grid(4,2)"])
def test_so_they_are_where_products_are_not_split(name, monkeypatch):
    monkeypatch.setattr(equivariant_linear, "splitting", lambda *_: None)
    layer = layer_of(name).double()
    assert isinstance(layer.map, AssembledMap)
    check_it_is_every_map(layer)


def test_a_group_whose_products_do_not_split():
    shear = Group("shear", algebra=[np.array([[0.0, 1.0], [0.0, 0.0]])])
    source, target = (2 * V + Scalar + V.dual)(shear), (V + Scalar)(shear)
    layer = EquivariantLinear(source, target, generator=seeded()).double()
    assert isinstance(layer.map, AssembledMap)
    check_it_is_every_map(layer)
    inputs = random_inputs(20, source.size)
    for element in elements(shear):
        error = equivariance_error(layer, source.element(element), target.element(element), inputs)
        assert error < TOLERANCE[torch.float64]


def test_the_bias_is_every_invariant_vector():
    target = (Scalar + V + V * V)(O(3))
    layer = EquivariantLinear(target, target, generator=seeded())
    assert layer.bias_coefficients.numel() == 2
    assert layer.bias is not None
    expected = torch.zeros(13)
    expected[0] = layer.bias_coefficients[0]
    expected[4:] = (layer.bias_coefficients[1] * torch.eye(3) / 3**0.5).ravel()
    assert torch.allclose(layer.bias.abs(), expected.abs(), atol=1e-6)
    assert EquivariantLinear(target, target, bias=False).bias is None
    assert EquivariantLinear(V(O(3)), V(O(3))).bias is None


def test_sources_and_targets_without_any_map():
    layer = EquivariantLinear((10 * V + Scalar)(O(3)), (Scalar + 3 * T(2))(O(3))).double()
    inputs = random_inputs(4, 31)
    assert torch.allclose(
        layer(inputs), nn.functional.linear(inputs, layer.weight, layer.bias), atol=1e-13
    )
    assert not layer.weight[:, :30].any()
    layer = EquivariantLinear(Scalar(O(3)), (Scalar + 4 * V)(O(3))).double()
    assert not layer(random_inputs(4, 1))[:, 1:].any()


def test_weights_read_off_by_indices_are_the_same(monkeypatch):
    monkeypatch.setattr(equivariant_linear, "splitting", lambda *_: None)
    source, target = (2 * V + V * V)(S(4)), (V + 2 * (V * V))(S(4))
    products = EquivariantLinear(source, target, generator=seeded()).double()
    monkeypatch.setattr(equivariant_linear, "READ_OFF_FROM", 1)
    read_off = EquivariantLinear(source, target, generator=seeded()).double()
    assert not any("index" in name for name, _ in products.map.named_buffers())
    assert any("index" in name for name, _ in read_off.map.named_buffers())
    assert torch.allclose(products.weight, read_off.weight, atol=1e-13)
    first, second = (
        torch.autograd.grad(each.weight.square().sum(), each.coefficients)[0]
        for each in (products, read_off)
    )
    assert torch.allclose(first, second, atol=1e-12)


@pytest.mark.parametrize(("size", "map_class"), [(50, IsotypicMap), (200, AssembledMap)])
def test_a_large_cyclic_group_is_a_circular_convolution(size, map_class):
    group = Z(size)
    layer = EquivariantLinear(V(group), V(group), bias=False, generator=seeded()).double()
    assert layer.coefficients.numel() == size and isinstance(layer.map, map_class)
    inputs = random_inputs(3, size)
    kernel = layer.weight[:, 0]
    by_fourier = torch.fft.ifft(torch.fft.fft(inputs) * torch.fft.fft(kernel)).real
    assert torch.allclose(layer(inputs), by_fourier, atol=1e-10)


def test_gradients_and_second_gradients():
    source, target = (Scalar + V + V * V)(SO(3)), (Scalar + V)(SO(3))
    layer = EquivariantLinear(source, target, generator=seeded()).double()
    inputs = random_inputs(3, 13).requires_grad_()

    def outputs(coefficients, bias, inputs):
        state = {"coefficients": coefficients, "bias_coefficients": bias}
        return torch.func.functional_call(layer, state, (inputs,)).tanh()

    arguments = (layer.coefficients, layer.bias_coefficients, inputs)
    assert torch.autograd.gradcheck(outputs, arguments)
    assert torch.autograd.gradgradcheck(outputs, arguments)


def test_only_coefficients_are_saved_and_they_are_enough():
    first, second = layer_of("S(4)"), layer_of("S(4)")
    second.reset_parameters(seeded(5))
    assert set(first.state_dict()) == {"coefficients", "bias_coefficients"}
    assert not torch.equal(first.weight, second.weight)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(copy.deepcopy(first).weight, first.weight)


def test_converted_there_and_back_the_basis_is_exact():
    layer = layer_of("SO(3)")
    exact = layer_of("SO(3)").double()
    with torch.no_grad():
        exact.coefficients.copy_(layer.coefficients)
    there_and_back = copy.deepcopy(layer).half().double()
    with torch.no_grad():
        there_and_back.coefficients.copy_(layer.coefficients)
    assert torch.equal(there_and_back.weight, exact.weight)
    assert layer.double().weight.dtype == torch.float64
    assert torch.equal(layer.weight, exact.weight)


@pytest.mark.parametrize("split", [True, False], ids=["split", "assembled"])
def test_every_kind_starts_with_the_same_variance(split, monkeypatch):
    if not split:
        monkeypatch.setattr(equivariant_linear, "splitting", lambda *_: None)
    representation = (60 * Scalar + 20 * V + 7 * V * V)(SO(3))
    layer = EquivariantLinear(representation, representation, generator=seeded()).double()
    outputs = layer(random_inputs(3000, representation.size)) - layer.bias
    for part in outputs.split([60, 60, 63], 1):
        assert part.std().item() == pytest.approx(0.8, rel=0.1)
    assert layer.bias.std() < 0.2


def test_it_is_one_graph():
    layer = layer_of("O(3)")
    inputs = random_inputs(6, layer.source.size, torch.float32)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(inputs), layer(inputs), atol=1e-6)


def test_refusals():
    with pytest.raises(CallerError, match="needs a real group, got SU\\(2\\).*real_form"):
        EquivariantLinear(V(SU(2)), V(SU(2)))
    with pytest.raises(CallerError, match="no linear map but zero goes from V to Scalar with O"):
        EquivariantLinear(V(O(3)), Scalar(O(3)))
    with pytest.raises(CallerError, match="representations of one group"):
        EquivariantLinear(V(O(3)), V(SO(3)))
    with pytest.raises(CallerError, match=r"expected inputs \(…, 3\) of V, got \(5, 4\)"):
        EquivariantLinear(V(O(3)), V(O(3)))(torch.zeros(5, 4))


def test_scales_of_irreducible_parts_follow_examples():
    """Trace, antisymmetric part and the rest of a matrix, each over an orthonormal basis of it."""
    layer = EquivariantLinear(
        (3 * Scalar + 2 * V + 2 * T(2))(O(3)), T(2)(O(3)), generator=seeded()
    ).double()
    inputs = 5 * random_inputs(400, layer.source.size) ** 3
    before = layer.bias
    layer.rescale_(layer.parts(inputs), 0.3)
    assert torch.equal(layer.bias, before)
    found = (layer(inputs) - layer.bias).detach().view(-1, 3, 3)
    traces = found.diagonal(dim1=1, dim2=2).sum(1) / 3**0.5
    skew = (found - found.mT) / 2
    rest = (found + found.mT) / 2 - (traces / 3**0.5)[:, None, None] * torch.eye(3)
    for part, entries in ((traces[:, None, None], 1), (skew, 3), (rest, 5)):
        variance = part.var(0, correction=0).sum() / entries
        assert float(variance) ** 0.5 == pytest.approx(0.3)


def test_scales_of_kinds_follow_examples_where_products_do_not_split(monkeypatch):
    monkeypatch.setattr(equivariant_linear, "splitting", lambda *_: None)
    source, target = (2 * V + Scalar)(S(4)), (V + 2 * Scalar)(S(4))
    layer = EquivariantLinear(source, target, generator=seeded()).double()
    assert isinstance(layer.map, AssembledMap)
    inputs = 5 * random_inputs(400, source.size) + 2
    layer.rescale_(layer.parts(inputs), 0.3)
    for part in layer(inputs).detach().split([4, 2], 1):
        assert float(part.var(0, correction=0).mean()) ** 0.5 == pytest.approx(0.3)


def test_what_does_not_vary_is_not_scaled():
    layer = EquivariantLinear((2 * V)(O(3)), (V + Scalar)(O(3)), generator=seeded()).double()
    found = layer.rescale_(layer.parts(random_inputs(50, 6)), 0.3)
    assert torch.isfinite(found[0]).all() and found[1].var() == 0
