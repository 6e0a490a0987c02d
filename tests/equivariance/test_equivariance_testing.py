"""`assert_equivariant` passes what is equivariant by construction and fails what is known bad."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from measured_networks import Compute, draw, filled
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.equivariance.finite_error import PixelShifts
from isotropy.equivariance.layouts import Grid, Invariant
from isotropy.equivariance.lie_derivative import lie_derivatives
from isotropy.equivariance.subject import Subject
from isotropy.equivariance.testing import TOLERANCES, assert_equivariant
from isotropy.symmetry.actions.action import Action, Generator, compose
from isotropy.symmetry.actions.finite import (
    channel_permutations,
    flip,
    point_permutation,
    quarter_turns,
    reversal,
    sign_change,
)
from isotropy.symmetry.actions.images import affine, intensity
from isotropy.symmetry.actions.linear import linear_action, matrix_elements
from isotropy.symmetry.actions.points import points
from isotropy.symmetry.actions.sequences import sequences

# --- representations ----------------------------------------------------------------------

TURNS = {
    "about_x": [[0, 0, 0], [0, 0, -1], [0, 1, 0]],
    "about_y": [[0, 0, 1], [0, 0, 0], [-1, 0, 0]],
    "about_z": [[0, -1, 0], [1, 0, 0], [0, 0, 0]],
}
VECTOR = linear_action(TURNS)
NOTHING = linear_action({name: [[0]] for name in TURNS})
TENSOR = linear_action(
    {
        name: torch.kron(torch.tensor(m), torch.eye(3)) + torch.kron(torch.eye(3), torch.tensor(m))
        for name, m in ((n, torch.tensor(r).double().tolist()) for n, r in TURNS.items())
    }
)
BOOST = linear_action({"boost": [[0, 1], [1, 0]]})
METRIC = torch.tensor([1.0, -1.0], dtype=torch.float64)
IMAGE = draw(3, 1, 8, 8)
SHIFTS = affine(("translation_x", "translation_y"), interpolation="fourier")


class FromNorm(nn.Module):
    """v ↦ v · φ(|v|)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = filled(nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)))

    def forward(self, vectors: Tensor) -> Tensor:
        return vectors * self.inner(vectors.norm(dim=-1, keepdim=True))


def convolution(padding: str, *, stride: int = 1, active: bool = True) -> nn.Module:
    layers = [
        nn.Conv2d(1, 3, 3, stride=stride, padding=1, padding_mode=padding),
        nn.ReLU() if active else nn.Identity(),
        nn.Conv2d(3, 2, 3, padding=1, padding_mode=padding),
    ]
    return filled(nn.Sequential(*layers))


def deep_set() -> nn.Module:
    first, last = filled(nn.Linear(2, 5)), filled(nn.Linear(5, 3), 1)
    return Compute(lambda clouds: last(first(clouds).tanh().sum(1)))


def made_symmetric(inner: nn.Module) -> nn.Module:
    def mean(images: Tensor) -> Tensor:
        return torch.stack([inner(images.rot90(k, (2, 3))) for k in range(4)]).mean(0)

    return Compute(mean)


def scored() -> nn.Module:
    return filled(nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, 3)))


def gram(clouds: Tensor) -> Tensor:
    return (clouds @ clouds.mT).flatten(1).sin()


def radial_mean(images: Tensor) -> Tensor:
    return images.square().mean((2, 3))


def by_place(data: Tensor) -> Tensor:
    return data * torch.arange(data.shape[-1], dtype=data.dtype)


ALL_TURNS = ("rotation_x", "rotation_y", "rotation_z")

PASSES: dict[str, tuple[Any, ...]] = {
    "norms for vectors": (FromNorm(), (VECTOR, VECTOR), None),
    "norm alone": (lambda v: v.norm(dim=1, keepdim=True).sin(), (VECTOR, NOTHING), None),
    "tensor square": (lambda v: (v[:, :, None] * v[:, None]).flatten(1), (VECTOR, TENSOR), None),
    "inner product under boosts": (
        lambda v: v * (METRIC * v * v).sum(1, keepdim=True).sin(), (BOOST, BOOST), None),
    "reflection of vectors": (
        FromNorm(), (matrix_elements({"mirror": [[-1, 0, 0], [0, 1, 0], [0, 0, 1]]}),) * 2,
        draw(4, 3)),
    "Gram matrix under rotations": (gram, points(3, ALL_TURNS), draw(4, 5, 3)),
    "clouds that turn along": (
        FromNorm(), (points(3, ALL_TURNS), points(3, ALL_TURNS)), draw(4, 5, 3)),
    "differences under many jitters": (
        lambda clouds: clouds * 1.0, (points(2, ("jitter",), 6),) * 2, draw(3, 6, 2)),
    "circular convolution under whole pixels": (
        convolution("circular"), PixelShifts(), IMAGE),
    "circular convolution under all shifts": (
        convolution("circular", active=False), SHIFTS, IMAGE),
    "odd size": (convolution("circular", active=False), SHIFTS, draw(3, 1, 7, 7)),
    "strided convolution by whole cells": (
        convolution("circular", stride=2), PixelShifts((2, 4)), IMAGE),
    "deep set": (deep_set(), point_permutation(), draw(4, 6, 2)),
    "points that keep their order": (
        lambda clouds: clouds.sin() + clouds.mean(1, keepdim=True), (point_permutation(),) * 2,
        draw(4, 6, 2)),
    "made symmetric": (made_symmetric(scored()), quarter_turns(), IMAGE),
    "pointwise under turns and flips": (
        lambda images: images.sin(), [quarter_turns(), flip("vertical"), flip("horizontal")],
        IMAGE),
    "contrast": (
        lambda x: (x - x.mean((1, 2, 3), keepdim=True)).sign().flatten(1), intensity(), IMAGE),
    "shifts of sequences": (
        lambda x: x + x.roll(1, 2) * 2, sequences(("shift",)), draw(3, 2, 9)),
    "reversal of sequences": (lambda x: x.sin(), reversal(), draw(3, 2, 9)),
    "odd functions": (lambda x: x**3, (sign_change(), sign_change()), draw(3, 5)),
    "any order of channels": (lambda x: x.sum(1), channel_permutations(3), draw(3, 3, 5)),
}  # fmt: skip


@pytest.mark.parametrize(("model", "symmetry", "inputs"), PASSES.values(), ids=PASSES)
def test_equivariant_models_pass(model: Any, symmetry: Any, inputs: Tensor | None) -> None:
    if inputs is None:
        inputs = draw(6, {VECTOR: 3, BOOST: 2}[symmetry[0]])
    outputs = "invariant" if symmetry == PASSES["any order of channels"][1] else "auto"
    assert assert_equivariant(model, symmetry, inputs, outputs=outputs) < 1e-9


FAILS: dict[str, tuple[Any, Any, Any, str]] = {
    "linear layer under rotations": (
        filled(nn.Linear(3, 3)), (VECTOR, VECTOR), draw(4, 3), "about_x, Lie derivative"),
    "linear layer far from the identity": (
        filled(nn.Linear(3, 3)), (VECTOR, VECTOR), draw(4, 3), "about_z, finite elements"),
    "norm by a wrong metric": (
        lambda v: v * (v * v).sum(1, keepdim=True).sin(), (BOOST, BOOST), draw(4, 2), "boost"),
    "invariant taken for a vector": (
        lambda v: v.norm(dim=1, keepdim=True).expand(-1, 3), (VECTOR, VECTOR), draw(4, 3), "about"),
    "one component of clouds": (
        lambda c: c[..., 2].sum(1, keepdim=True), points(3, ALL_TURNS), draw(4, 5, 3),
        "rotation_x, finite elements"),
    "zero padding under whole pixels": (convolution("zeros"), PixelShifts(), IMAGE, "shift_x_1"),
    "zero padding under all shifts": (
        convolution("zeros", active=False), SHIFTS, IMAGE, "translation_x, Lie derivative"),
    "zero padding at exact elements": (
        convolution("zeros", active=False), SHIFTS, IMAGE, "shift_y_2"),
    "aliasing of ReLU": (convolution("circular"), SHIFTS, IMAGE, "translation_y, Lie derivative"),
    "by place": (Compute(by_place), PixelShifts(), IMAGE, "shift_x_3"),
    "fully connected under turns": (scored(), quarter_turns(), IMAGE, "turn_180"),
    "turns of an Action": (scored(), affine(("rotation",)), IMAGE, "turn_270"),
    "order of points": (
        lambda clouds: clouds[:, 0], point_permutation(), draw(4, 6, 2), "point_permutation"),
    "even functions": (lambda x: x**2, (sign_change(), sign_change()), draw(3, 5), "sign_change"),
    "one flip of two": (
        lambda x: x - x.flip(2) * 2 + by_place(x), [flip("vertical"), flip("horizontal")], IMAGE,
        "horizontal_flip"),
    "sequences by place": (Compute(by_place), sequences(("shift",)), draw(3, 2, 9), "shift_1"),
    "brightness": (lambda x: x.square().mean((2, 3)), intensity(), IMAGE, "brightness, finite"),
    "jitter": (
        lambda c: c**2, (points(2, ("jitter",), 6),) * 2, draw(3, 6, 2), "jitter, Lie derivative"),
}  # fmt: skip


@pytest.mark.parametrize(("model", "symmetry", "inputs", "named"), FAILS.values(), ids=FAILS)
def test_bad_models_fail_and_the_culprit_is_named(
    model: Any, symmetry: Any, inputs: Tensor, named: str
) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_equivariant(model, symmetry, inputs)
    assert "above the tolerance of 1e-09" in str(caught.value).splitlines()[0]
    assert f"\n  {named}" in str(caught.value)


def test_only_what_fails_is_named_with_its_error() -> None:
    """f(v) = z does not change about z, and about x with the slope y."""
    vectors = draw(50, 3)
    with pytest.raises(AssertionError) as caught:
        assert_equivariant(lambda v: v[:, 2:], (VECTOR, NOTHING), vectors)
    message = str(caught.value)
    assert "about_z" not in message and "isotropy.measure" not in message
    deviation = float((vectors[:, 2] - vectors[:, 2].mean()).square().mean().sqrt())
    about_x = float(vectors[:, 1].square().mean().sqrt()) / deviation
    assert f"about_x, Lie derivative: {about_x:.3g}" in message
    assert message.splitlines()[0].startswith("not equivariant: 18 of 27 checks")
    with pytest.raises(AssertionError, match=r"isotropy\.measure says which layer"):
        assert_equivariant(scored(), affine(("rotation",)), IMAGE)


def test_tolerance_and_types() -> None:
    nearly = partial(_nearly_even, 1e-6)
    vectors = draw(8, 5)
    with pytest.raises(AssertionError):
        assert_equivariant(nearly, sign_change(), vectors)
    error = assert_equivariant(nearly, sign_change(), vectors, tolerance=1e-5)
    assert 1e-8 < error < 1e-5
    assert assert_equivariant(nearly, sign_change(), vectors.float()) < TOLERANCES[torch.float32]
    with pytest.raises(AssertionError):
        assert_equivariant(partial(_nearly_even, 1e-2), sign_change(), vectors.float())


def _nearly_even(amount: float, data: Tensor) -> Tensor:
    return data**2 + amount * data


def test_single_precision_passes() -> None:
    assert assert_equivariant(FromNorm().float(), (VECTOR, VECTOR), draw(6, 3).float()) < 1e-4
    assert assert_equivariant(convolution("circular").float(), PixelShifts(), IMAGE.float()) < 1e-4


def test_a_nan_fails() -> None:
    def breaks(vectors: Tensor) -> Tensor:
        return torch.where(vectors < -1.5, vectors / 0 * 0, vectors**2)

    vectors = draw(8, 5).abs() + 1.6
    with pytest.raises(AssertionError, match="sign_change: nan"):
        assert_equivariant(breaks, sign_change(), vectors)


@pytest.mark.parametrize(
    "model",
    [
        lambda v: torch.ones_like(v[:, :1]),
        lambda v: v[:, :1] * 0 + 3,
        filled(nn.Linear(3, 3)).requires_grad_(False).apply(lambda m: m.weight.zero_()),
    ],
    ids=["ones", "times zero", "no weight"],
)
def test_constants_are_refused(model: Any) -> None:
    for inputs in (draw(4, 3), draw(1, 3)):
        with pytest.raises(CallerError, match="does not vary with the input"):
            assert_equivariant(model, (VECTOR, NOTHING), inputs, tolerance=1e9)


def test_examples_of_one_norm_are_no_constant() -> None:
    units = nn.functional.normalize(draw(6, 3))
    assert (
        assert_equivariant(lambda v: v.norm(dim=1, keepdim=True), (VECTOR, NOTHING), units) < 1e-9
    )
    assert assert_equivariant(FromNorm(), (VECTOR, VECTOR), draw(1, 3)) < 1e-9


def test_large_representations_of_boosts_are_tested_at_small_elements() -> None:
    """Four copies multiplied: ‖A‖ ≤ 1 and condition numbers keep rounding below the tolerance."""
    matrix, identity = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).double(), torch.eye(2).double()
    algebra = torch.zeros(16, 16, dtype=torch.float64)
    for place in range(4):
        factors = [matrix if number == place else identity for number in range(4)]
        product = factors[0]
        for factor in factors[1:]:
            product = torch.kron(product, factor)
        algebra += product
    quartic = linear_action({"boost": 10 * algebra})

    def power(vectors: Tensor) -> Tensor:
        return torch.einsum("ni,nj,nk,nl->nijkl", *[vectors] * 4).flatten(1)

    fast = linear_action({"boost": 10 * matrix})
    assert assert_equivariant(power, (fast, quartic), draw(6, 2)) < 1e-9


def test_errors_are_divided_by_condition_numbers() -> None:
    """One element, written out: exp(A) = (cosh a, sinh a; …) with ‖A‖ = |a| ≤ 1, κ = e^{2|a|}."""
    boost = linear_action({"boost": [[0, 10], [10, 0]]})
    vectors = draw(5, 2)
    with pytest.raises(AssertionError) as caught:
        assert_equivariant(lambda v: v**2, (boost, boost), vectors, samples=1)
    generator = torch.Generator().manual_seed(0)
    amount = 2 * torch.rand((1, 5, 1), generator=generator, dtype=torch.float64)[0, :, 0] - 1
    cosh, sinh = amount.cosh(), amount.sinh()
    matrix = torch.stack((torch.stack((cosh, sinh), 1), torch.stack((sinh, cosh), 1)), 1)
    after = torch.einsum("nij,nj->ni", matrix, vectors) ** 2
    difference = after - torch.einsum("nij,nj->ni", matrix, vectors**2)
    size = (difference * torch.exp(-4 * amount.abs())[:, None]).square().mean().sqrt()
    variation = (vectors**2 - (vectors**2).mean(0)).square().mean().sqrt()
    assert f"boost, finite elements: {float(size / variation):.3g}" in str(caught.value)


def test_inputs_are_drawn_for_matrices_alone() -> None:
    assert assert_equivariant(FromNorm(), (VECTOR, VECTOR)) < 1e-9
    assert assert_equivariant(FromNorm().float(), (VECTOR, VECTOR)) < 1e-4
    with pytest.raises(AssertionError):
        assert_equivariant(filled(nn.Linear(3, 3)), (VECTOR, VECTOR))
    with pytest.raises(CallerError, match="expected a batch of them, got none"):
        assert_equivariant(scored(), quarter_turns())


def test_compositions_and_outputs_that_follow_are_split_into_their_parts() -> None:
    action = compose(affine(("rotation",)), intensity(("contrast",)))
    with pytest.raises(AssertionError) as caught:
        assert_equivariant(scored(), action, IMAGE)
    assert "turn_90" in str(caught.value) and "contrast, Lie derivative" in str(caught.value)
    assert "contrast, finite" not in str(caught.value), "the other part resamples"

    turn = linear_action({"rotation": [[0, -1], [1, 0]]})
    place = torch.arange(8.0, dtype=torch.float64) - 3.5

    def moment(images: Tensor) -> Tensor:
        # y up, as content that turns counter-clockwise does.
        across = (images * place).sum((1, 2, 3))
        up = (images * -place[:, None]).sum((1, 2, 3))
        return torch.stack((across, up), 1)

    with pytest.raises(AssertionError) as caught:
        assert_equivariant(moment, (affine(("rotation",)), turn), IMAGE)
    assert "rotation, Lie derivative" in str(caught.value), "rough images lose moments at corners"
    assert "turn_" not in str(caught.value), "quarter turns are exact"
    wrong = linear_action({"rotation": [[0, 1], [-1, 0]]})
    with pytest.raises(AssertionError, match="turn_90"):
        assert_equivariant(moment, (affine(("rotation",)), wrong), IMAGE)


def test_an_output_whose_ideal_velocity_is_not_known() -> None:
    class Still(Action):
        generators = (Generator("rotation", "degrees"),)

        def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
            return data[:, None].expand(-1, coordinates.shape[1], *data.shape[1:]) + 0

    with pytest.raises(AssertionError, match="rotation, Lie derivative"):
        assert_equivariant(scored(), (affine(("rotation",)), Still()), IMAGE)


def test_what_interpolation_does_is_not_the_networks_fault() -> None:
    """Three waves with k₁ + k₂ = k₃ keep their common phase under shifts.

    Straight lines between samples move short waves too slowly, which is not the network's doing.
    """

    waves = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)

    def common_phase(signals: Tensor) -> Tensor:
        angle = 2 * math.pi / 9 * torch.arange(9.0, dtype=signals.dtype)[:, None] * waves
        cosine, sine = (signals[:, 0] @ angle.cos()), (signals[:, 0] @ angle.sin())
        (a, b, c), (p, q, r) = cosine.unbind(1), sine.unbind(1)
        real, imaginary = a * b - p * q, a * q + p * b  # of wave one times wave two
        return torch.stack((real * c + imaginary * r, imaginary * c - real * r), 1)

    action, signals = sequences(("shift",)), draw(4, 1, 9)
    assert assert_equivariant(common_phase, action, signals) < 1e-9
    one = torch.ones(1, 1, dtype=torch.float64)
    found = lie_derivatives(Subject(Compute(common_phase)), signals, action, one, Invariant())
    assert float(found.errors().min()) > 1e-3, "with interpolation it is no symmetry"


def test_several_outputs_are_selected_and_own_actions_are_at_home() -> None:
    class Raise(Action):
        generators = (Generator("raise", "grey level"),)

        def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
            return data[:, None] + coordinates

    model = Compute(lambda x: {"spread": x - x.mean(1, keepdim=True), "sum": x.sum(1)[:, None]})
    assert assert_equivariant(model, Raise(), draw(4, 5), select="spread") < 1e-9
    with pytest.raises(AssertionError, match="raise, finite elements"):
        assert_equivariant(model, Raise(), draw(4, 5), select="sum")
    with pytest.raises(CallerError, match="choose one with select="):
        assert_equivariant(model, Raise(), draw(4, 5))


def test_elements_are_the_same_every_time_unless_a_generator_is_given() -> None:
    cloud, order = draw(4, 6, 2), point_permutation()
    first_point = Compute(lambda clouds: clouds[:, 0])

    def error(generator: torch.Generator | None = None) -> float:
        return assert_equivariant(
            first_point, order, cloud, tolerance=math.inf, generator=generator, samples=1
        )

    assert error() == error()
    assert error(torch.Generator().manual_seed(5)) != error()
    state = torch.get_rng_state()
    error()
    assert torch.equal(state, torch.get_rng_state()), "the global generator is left alone"


@pytest.mark.parametrize(
    ("symmetry", "inputs", "options", "sentence"),
    [
        ("rotation", IMAGE, {}, "symmetry: expected an Action, a finite action, a group"),
        ([], IMAGE, {}, "symmetry: expected an Action"),
        ((VECTOR, sign_change()), draw(3, 3), {}, "two Actions or two finite actions"),
        ((VECTOR, BOOST), draw(3, 3), {}, "expected an Action with 3 coordinates"),
        ((VECTOR, VECTOR), draw(3, 3), {"outputs": "invariant"}, "no outputs= beside it"),
        (sign_change(), draw(3, 3), {"outputs": VECTOR}, "two Actions or two finite actions"),
        (channel_permutations(3), draw(3, 3, 5), {}, "give a pair"),
        (PixelShifts((1,)), IMAGE, {"model": nn.AvgPool2d(2)}, "by whole cells"),
        (flip("vertical"), IMAGE, {"outputs": "imge"}, "did you mean 'image'"),
        (flip("vertical"), IMAGE.long(), {}, "floating-point numbers"),
        (flip("vertical"), IMAGE, {"samples": 0}, "samples: expected at least 1"),
        (flip("vertical"), IMAGE, {"model": 3}, "expected a module or a function"),
        (flip("vertical"), IMAGE, {"model": nn.Dropout()}, "drops at random"),
    ],
)  # fmt: skip
def test_mistakes_are_told(symmetry: Any, inputs: Tensor, options: Any, sentence: str) -> None:
    options = dict(options)
    model = options.pop("model", nn.Identity())
    with pytest.raises(CallerError, match=sentence):
        assert_equivariant(model, symmetry, inputs, **options)


def test_layouts_may_be_given() -> None:
    last = Compute(lambda images: images.movedim(1, -1).sin())
    assert assert_equivariant(last, quarter_turns(), IMAGE, outputs=Grid((1, 2))) < 1e-9
    with pytest.raises(AssertionError):
        assert_equivariant(last, quarter_turns(), IMAGE, outputs="invariant")
