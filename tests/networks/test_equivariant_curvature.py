"""Kronecker curvature of equivariant layers, contractions and free gates against dense matrices."""

from __future__ import annotations

import pytest
import torch
from network_cases import NOISE, assert_equal, library_blocks
from oracles.dense_ggn import averaged_jacobians
from torch import Tensor, nn
from user_networks import seeded

import isotropy
from isotropy.checks import CallerError
from isotropy.curvature.blocks import PiecewiseRoots
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.curvature.thin_spectra import squares_along
from isotropy.evidence.laplace import Batch, GaussianPrior, LaplaceEvidence
from isotropy.evidence.predictive import covariance_root
from isotropy.likelihoods import Gaussian
from isotropy.networks.equivariant import linear
from isotropy.networks.equivariant.bilinear import EquivariantBilinear
from isotropy.networks.equivariant.emlp import EMLP
from isotropy.networks.equivariant.linear import AssembledMap, EquivariantLinear
from isotropy.networks.pathways.equivariant import FreeGate
from isotropy.symmetry.actions.linear import LinearAction
from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.representations import Representation, Scalar, T, V

CASES: dict[str, tuple[str, Representation, Representation]] = {
    "rotations": ("O(3)", 2 * Scalar + 2 * V + T(2), Scalar + V + 2 * T(2)),
    "complex type": ("SO(2)", 2 * V + Scalar, V + T(2)),
    "permutations": ("S(4)", 2 * V + T(2), V + T(2)),
    "no invariant vector": ("C(5)", V + T(2), 2 * V),
}


def rows_of(layer: nn.Module, count: int = 5) -> Tensor:
    size = int(layer.in_features)  # type: ignore[call-overload]
    return torch.randn(count, size, generator=seeded(1), dtype=torch.float64)


def exact_blocks(layer: nn.Module, rows: Tensor, samples: int = 1) -> dict[str, Tensor]:
    """Σ_n ĴᵀĴ / σ², every tensor's own block of the dense GGN."""
    found = averaged_jacobians(layer, rows, samples)
    return {n: torch.einsum("nop,noq->pq", j, j) / NOISE**2 for n, j in found.items()}


def compare(layer: nn.Module, rows: Tensor, samples: int = 1) -> None:
    got = library_blocks(layer, rows, samples, Gaussian(NOISE))
    for name, expected in exact_blocks(layer, rows, samples).items():
        assert_equal(got[name][0], expected, name)


@pytest.mark.parametrize("case", CASES)
def test_the_block_of_a_linear_layer_is_exact(case: str) -> None:
    group, source, target = CASES[case]
    bound = source(group_named(group)), target(group_named(group))
    layer = EquivariantLinear(*bound, generator=seeded()).double()
    compare(layer, rows_of(layer))
    compare(layer, rows_of(layer, 6), samples=2)
    assert (layer.bias_coefficients is None) == (case == "no invariant vector")


@pytest.mark.parametrize("read_off", [1, 1000])
@pytest.mark.parametrize("case", ["rotations", "permutations"])
def test_so_it_is_where_the_matrix_is_assembled(
    case: str, read_off: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "splitting", lambda *_: None)
    monkeypatch.setattr(linear, "READ_OFF_FROM", read_off)
    group, source, target = CASES[case]
    bound = source(group_named(group)), target(group_named(group))
    layer = EquivariantLinear(*bound, generator=seeded()).double()
    assert isinstance(layer.map, AssembledMap)
    assert torch.allclose(layer.nearest(layer.weight), layer.coefficients, atol=1e-12)
    compare(layer, rows_of(layer))


@pytest.mark.parametrize("case", CASES)
def test_the_block_of_contractions_is_exact(case: str) -> None:
    group, source, _ = CASES[case]
    bound = source(group_named(group))
    layer = EquivariantBilinear(bound, bound, generator=seeded()).double()
    compare(layer, rows_of(layer))
    compare(layer, rows_of(layer, 6), samples=2)  # the mean of z, not z of the mean


def test_shared_positions_are_those_of_the_formula() -> None:
    """Tokens: A over all of them, G their mean; not the dense GGN, whose cross terms are gone."""
    group = group_named("SO(3)")
    layer = EquivariantLinear((Scalar + V)(group), V(group), generator=seeded()).double()
    network = nn.Sequential(layer, nn.Flatten(), nn.Linear(6, 2).double())
    rows = torch.randn(3, 2, 4, generator=seeded(1), dtype=torch.float64)
    found = KFAC(network).batch(rows, Copies(1), Gaussian(NOISE)).roots["0.coefficients"]
    assert isinstance(found, PiecewiseRoots)
    (factors,) = found.factors().pieces  # V to V: one copy each
    vectors = rows[..., 1:]
    assert_equal(factors.inputs[0, 0, 0], vectors.square().sum(), "A")
    back = network[2].weight.detach().square().sum()  # over directions, tokens and coordinates
    assert_equal(factors.outputs[0, 0, 0], len(rows) * back / 6, "G")


def test_a_free_gate_has_the_diagonal_of_its_block() -> None:
    gate = FreeGate(4).double()
    gate.in_features = 6  # type: ignore[assignment]
    with torch.no_grad():
        gate.weight.normal_(generator=seeded())
    rows = rows_of(gate, 6)
    got = library_blocks(gate, rows, 2, Gaussian(NOISE))["weight"][0]
    assert_equal(got, torch.diag(exact_blocks(gate, rows, 2)["weight"].diagonal()), "w")


# --- pieces of a tensor -------------------------------------------------------------------------


def evidence_of(network: nn.Module) -> LaplaceEvidence:
    curvature = KFAC(network)
    prior = GaussianPrior(network, curvature.parameter_names, "tensor", 0.3)
    return LaplaceEvidence(network, Gaussian(NOISE), prior, curvature)


def small_emlp() -> EMLP:
    network = EMLP(2 * V, V + Scalar, group_named("O(3)"), channels=9, layers=1, generator=seeded())
    return network.double()


def test_every_step_from_roots_to_spectra_treats_pieces_as_their_matrices() -> None:
    network = small_emlp()
    rows = rows_of(network, 4)
    evidence = evidence_of(network)
    batch = Batch(rows, torch.zeros(4, 4, dtype=torch.float64), Copies(1), is_checked=True)
    fit, few = evidence.fit([batch]), evidence.fit_of_few([batch])
    blocks = KFAC(network).batch(rows, Copies(1), Gaussian(NOISE)).factors()
    scale, precision = torch.tensor(2.0).double(), torch.tensor(0.3).double()
    for name in ("blocks.0.linear.coefficients", "blocks.0.bilinear.coefficients"):
        dense = blocks[name].dense(4)[0]
        parameter = network.get_parameter(name).detach()
        values = torch.linalg.eigvalsh(dense)
        for spectrum in (fit.spectra[name], few.spectra[name]):
            ordered = spectrum.eigenvalues().sort().values
            assert_equal(ordered, values.clamp_min(0), name, 1e-8)
            along = squares_along(spectrum, parameter)
            assert_equal(along.sum(), parameter.square().sum(), name)
            weighted = (along * spectrum.eigenvalues()).sum()
            assert_equal(weighted, parameter @ dense @ parameter, name, 1e-8)
        root = covariance_root(fit.spectra[name], scale, precision)
        one = torch.eye(len(dense), dtype=torch.float64)
        inverse = torch.linalg.inv(scale * dense + precision * one)
        assert_equal(root(one) @ root(one).T, inverse, name, 1e-8)
    assert_equal(evidence.value(few), evidence.value(fit), "log Z", 1e-8)


def test_the_gradient_of_the_evidence_goes_through_pieces() -> None:
    network = small_emlp()
    evidence, rows = evidence_of(network), rows_of(network, 3)
    shift = torch.zeros((), dtype=torch.float64, requires_grad=True)
    targets = torch.ones(3, 4, dtype=torch.float64)

    def batch(moved: Tensor) -> Batch:
        return Batch(rows * (1 + moved), targets, Copies(1), is_checked=True)

    (got,) = evidence.gradient(evidence.fit([batch(shift)]), [batch(shift)], [shift])
    step = torch.tensor(1e-5, dtype=torch.float64)
    high, low = (evidence.value(evidence.fit([batch(each)])) for each in (step, -step))
    assert_equal(got, -(high - low).detach() / (2 * step), "gradient", 1e-6)


# --- networks -----------------------------------------------------------------------------------


def test_an_emlp_needs_no_fallback_and_is_the_same_when_watched() -> None:
    network, seen = small_emlp(), []
    rows = rows_of(network)
    outputs = network(rows)
    assert not KFAC(network).fallen_back
    handle = network.blocks[0].linear.register_forward_hook(lambda *_: seen.append(1))
    assert torch.allclose(network(rows), outputs, atol=1e-12)
    assert len(seen) == 1
    handle.remove()
    assert torch.equal(network(rows), outputs)


def test_a_built_emlp_is_learned_on_top_of() -> None:
    group = group_named("O(3)")
    plain = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 2))
    built = isotropy.build(plain, group, source=V, target=2 * Scalar).model
    action = LinearAction({"scaling": torch.eye(3).tolist()})
    inputs = torch.randn(24, 3, generator=seeded())
    targets = torch.stack([inputs.norm(dim=1), inputs.norm(dim=1) ** 2], 1)
    config = isotropy.LearnConfig(epochs=2, samples=2, burn_in=1, batch_size=12, search=False)
    result = isotropy.learn(built, (inputs, targets), actions=action, config=config)
    assert result.record["fallback"] == {}
    assert result.log_evidence is not None


def test_layers_without_weights_are_left_out() -> None:
    """A contraction that nothing reaches has no coefficients, and no block."""
    one = Scalar(group_named("SO(2)"))
    layer = EquivariantBilinear(one, one).double()
    assert not layer.coefficients.numel()
    network = nn.Sequential(nn.Linear(2, 1).double(), layer, nn.Linear(1, 2).double())
    assert KFAC(network).parameter_names == ("0.weight", "0.bias", "2.weight", "2.bias")
    with pytest.raises(CallerError, match="no trainable parameters"):
        KFAC(layer)


def test_products_are_what_weights_multiply() -> None:
    group = group_named("O(3)")
    layer = EquivariantBilinear((2 * V)(group), Scalar(group), generator=seeded()).double()
    rows = rows_of(layer)
    products = layer.products(rows)
    assert torch.allclose(products @ layer.coefficients[:, None], layer(rows), atol=1e-12)
