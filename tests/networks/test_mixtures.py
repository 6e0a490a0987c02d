"""Finite groups as exact mixtures: against enumeration, their gradients, bounds, and replay."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from user_networks import draw

from isotropy.checks import CallerError
from isotropy.networks.averaging.augmentations import START, CorrelatedRanges, UniformRanges
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.averaging.mixtures import (
    START_PROBABILITY,
    Mixture,
    NoRanges,
    _below_identity,
    augmentation_over,
)
from isotropy.symmetry.actions.finite import (
    Element,
    FiniteAction,
    RandomTransform,
    flip,
    point_permutation,
    quarter_turns,
    sign_change,
)
from isotropy.symmetry.actions.images import affine

SIZE = 5


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(SIZE**2, 4), nn.Tanh(), nn.Linear(4, 2)
        ).double()


def mixture(
    *actions: object, probabilities: tuple[tuple[float, ...], ...], **arguments: object
) -> Mixture:
    made = augmentation_over(list(actions), dtype=torch.float64, **arguments)  # type: ignore[arg-type]
    assert isinstance(made, Mixture)
    with torch.no_grad():
        for parameter, values in zip(made.probabilities, probabilities, strict=True):
            parameter.copy_(torch.tensor(values, dtype=torch.float64))
    return made


# The elements of each case as functions, the identity first, and their probabilities.
FLIP = [(0.7, lambda x: x), (0.3, lambda x: x.flip(-1))]
TURNS = [(0.55, lambda x: x), (0.1, lambda x: x.rot90(1, (-2, -1))),
         (0.2, lambda x: x.rot90(2, (-2, -1))), (0.15, lambda x: x.rot90(3, (-2, -1)))]  # fmt: skip
CASES = {
    "flip": ([flip("horizontal")], [FLIP]),
    "quarter_turns": ([quarter_turns()], [TURNS]),
    "flip × quarter turns": ([flip("horizontal"), quarter_turns()], [FLIP, TURNS]),
    "quarter turns × flip": ([quarter_turns(), flip("horizontal")], [TURNS, FLIP]),
}


def case_mixture(case: str, *continuous: object, **arguments: object) -> Mixture:
    actions, parts = CASES[case]
    probabilities = tuple(tuple(p for p, _ in part[1:]) for part in parts)
    return mixture(*continuous, *actions, probabilities=probabilities, **arguments)


def enumerated(case: str, images: Tensor):
    """Probability and moved images of every combination; the first action acts first."""
    for chosen in itertools.product(*CASES[case][1]):
        moved = images
        for _, act in chosen:
            moved = act(moved)
        yield math.prod(p for p, _ in chosen), moved


# --- the average is exact -----------------------------------------------------------------------


@pytest.mark.parametrize("samples", [1, 7])
@pytest.mark.parametrize("case", CASES)
def test_finite_actions_alone_are_enumerated(case: str, samples: int):
    """One copy an element, whatever the number of samples, and no noise at all."""
    augmentation, images = case_mixture(case), draw(3, 1, SIZE, SIZE)
    model = InvariantModel(network(), augmentation, samples)
    noise = model.noise(3)
    assert noise.shape == (3, math.prod(len(part) for part in CASES[case][1]), 0)
    expected = sum(p * model.network(moved) for p, moved in enumerated(case, images))
    torch.testing.assert_close(model(images, noise), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(model(images), model(images))


@pytest.mark.parametrize("distribution", ["independent", "correlated"])
@pytest.mark.parametrize("case", CASES)
def test_with_ranges_the_element_acts_first(case: str, distribution: str):
    """Σ_g p_g mean_s f(g(a_gs) g x), with the noise of each element's own copies."""
    plane = affine(("rotation", "translation_x"))
    augmentation = case_mixture(case, plane, distribution=distribution, start=0.3)
    model = InvariantModel(network(), augmentation, 10)
    images = draw(2, 1, SIZE, SIZE)
    noise = model.noise(2, generator=torch.Generator().manual_seed(0))
    elements = math.prod(len(part) for part in CASES[case][1])
    each = math.ceil(10 / elements)
    assert noise.shape == (2, elements * each, 2)
    assert torch.equal(augmentation.coordinates(noise), 0.3 * noise)
    expected = torch.zeros(2, 2, dtype=torch.float64)
    for number, (p, moved) in enumerate(enumerated(case, images)):
        part = noise[:, number * each : (number + 1) * each]
        outputs = model.network(plane.act(0.3 * part, moved).flatten(0, 1))
        expected = expected + p * outputs.unflatten(0, (2, each)).mean(1)
    torch.testing.assert_close(model(images, noise), expected, rtol=1e-12, atol=1e-12)


CAPPED = {
    "a flip": ([flip("horizontal")], {"horizontal_flip": 0.0}, 1),
    "one of two flips": (
        [flip("horizontal"), flip("vertical")], {"horizontal_flip": 0.0, "vertical_flip": 0.3}, 2),
    "a quarter turn": ([quarter_turns()], {"turn_90": 0.0}, 3),
    "a flip beside turns": (
        [flip("horizontal"), quarter_turns()], {"turn_90": 0.0, "turn_270": 0.0}, 4),
    "a cap above zero": ([flip("horizontal")], {"horizontal_flip": 0.05}, 2),
    "all": ([flip("horizontal"), quarter_turns()], {
        "horizontal_flip": 0.0, "turn_90": 0.0, "turn_180": 0.0, "turn_270": 0.0}, 1),
}  # fmt: skip


@pytest.mark.parametrize("continuous", [(), (affine(("rotation",)),)], ids=["alone", "with ranges"])
@pytest.mark.parametrize(("actions", "caps", "elements"), CAPPED.values(), ids=CAPPED)
def test_what_is_capped_at_zero_has_no_copies(actions, caps, elements: int, continuous):
    """And the rest is the mixture in which it has probability zero."""
    capped = augmentation_over([*continuous, *actions], caps=caps, start=0.1, dtype=torch.float64)
    assert isinstance(capped, Mixture) and capped.elements == elements
    noise = capped.noise(3, 2 * elements, generator=torch.Generator().manual_seed(0))
    each = 2 if continuous else 1
    assert noise.shape[1] == each * elements
    copies = capped.copies(noise.shape[1])
    assert copies.weights is not None and copies.weights.shape == (each * elements,)
    assert float(copies.weights.detach().sum()) == pytest.approx(1.0)
    probabilities = capped.element_probabilities().detach()
    assert probabilities.shape == (elements,) and float(probabilities.min()) > 0
    images = draw(3, 1, SIZE, SIZE)
    assert capped(images, noise).shape == (3, each * elements, 1, SIZE, SIZE)
    whole = augmentation_over([*continuous, *actions], start={}, dtype=torch.float64)
    assert isinstance(whole, Mixture)
    with torch.no_grad():
        for parameter in capped.ranges.parameters():
            parameter.zero_()  # copies of an element are then the same, however many there are
        for own, other in zip(whole.probabilities, capped.probabilities, strict=True):
            own.copy_(other)
    net = network()
    expected = InvariantModel(net, whole, 1)(images)
    torch.testing.assert_close(InvariantModel(net, capped, 1)(images), expected)


@pytest.mark.parametrize("count", [1, 9, 12])
def test_copies_are_a_multiple_of_the_elements(count: int):
    with pytest.raises(CallerError, match="expected a multiple of 8 copies.*draw it with noise"):
        case_mixture("flip × quarter turns").copies(count)


def test_antithetic_noise_in_pairs_for_every_element():
    noise = case_mixture("quarter_turns", affine(("rotation",))).noise(2, 9, antithetic=True)
    assert noise.shape == (2, 4 * 4, 1)
    for part in noise.split(4, 1):
        assert torch.equal(part[:, 2:], -part[:, :2])
    assert case_mixture("flip").noise(2, 9, antithetic=True).shape == (2, 2, 0)


# --- gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["flip", "quarter_turns"])
def test_the_slope_is_the_difference_of_outputs(case: str):
    """∂f̂/∂p_g = f(g x) − f(x), exactly and everywhere."""
    augmentation, images = case_mixture(case), draw(1, 1, SIZE, SIZE)
    model = InvariantModel(network(), augmentation)
    plain, *moved = (model.network(other) for _, other in enumerated(case, images))
    for output in range(2):
        found = torch.autograd.grad(model(images)[0, output], augmentation.probabilities)[0]
        expected = torch.stack([other[0, output] - plain[0, output] for other in moved])
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("continuous", [(), (affine(("rotation", "scale")),)])
def test_gradients_by_finite_differences(continuous: tuple[object, ...]):
    augmentation = case_mixture("flip × quarter turns", *continuous)
    model = InvariantModel(network(), augmentation)
    images = draw(2, 1, SIZE, SIZE)
    noise = model.noise(2, samples=8, generator=torch.Generator().manual_seed(0))
    learnable = augmentation.learnable()
    assert len(learnable) == 2 + len(continuous)
    found = torch.autograd.grad(model(images, noise).square().sum(), learnable)
    step = 1e-6
    for parameter, gradient in zip(learnable, found, strict=True):
        for index in range(parameter.numel()):
            values = []
            for sign in (1, -1):
                with torch.no_grad():
                    parameter[index] += sign * step
                    values.append(float(model(images, noise).square().sum()))
                    parameter[index] -= sign * step
            slope = (values[0] - values[1]) / (2 * step)
            assert float(gradient[index]) == pytest.approx(slope, rel=1e-6, abs=1e-8)


def test_a_probability_of_zero_can_grow():
    """With gradients on, nothing is cut short at zero."""
    augmentation = mixture(flip("horizontal"), probabilities=((0.0,),))
    assert augmentation.is_identity
    model, images = InvariantModel(network(), augmentation), draw(2, 1, SIZE, SIZE)
    torch.testing.assert_close(model(images), model.network(images))
    model(images)[0, 0].backward()
    assert float(augmentation.probabilities[0].grad.abs()) > 1e-3
    with torch.no_grad():
        copies = augmentation(images, augmentation.noise(2, 3))
    assert torch.equal(copies, images[:, None].expand_as(copies))


# --- no element is likelier than the identity ---------------------------------------------------


def brute_level(values: list[float]) -> float:
    """The largest t with t + Σ min(p, t) ≤ 1, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        if middle + sum(min(value, middle) for value in values) <= 1:
            low = middle
        else:
            high = middle
    return low


chances = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=7)


@given(chances)
def test_below_identity_against_brute_force(values: list[float]):
    given_ = torch.tensor(values, dtype=torch.float64)
    found = _below_identity(given_)
    if 1 - sum(values) >= max(values) + 1e-12:
        assert torch.equal(found, given_)
    level = brute_level(values)
    expected = torch.tensor([min(value, level) for value in values], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert float(1 - found.sum()) >= float(found.max()) - 1e-9


@given(chances, st.sampled_from([torch.float32, torch.float64]), st.integers(-3, 3))
def test_below_identity_hardly_moves_what_is_just_beyond(
    values: list[float], dtype: torch.dtype, steps: int
):
    """At the bound, where an optimiser stays, rounding must not throw a probability far away."""
    at_bound = _below_identity(torch.tensor(values, dtype=dtype))
    beside = at_bound.clone()
    largest = int(beside.argmax())
    for _ in range(abs(steps)):
        beside[largest] = torch.nextafter(
            beside[largest], torch.tensor(math.copysign(2.0, steps), dtype=dtype)
        )
    found = _below_identity(beside)
    assert float((found - beside).abs().max()) < 100 * torch.finfo(dtype).eps


def test_rounding_at_the_bound():
    """Three shares that were cut before, and one of them a rounding too large."""
    values = [0.17350830137729645, 0.08598822355270386, 0.04647016525268555,
              0.17350831627845764, 0.17350831627845764, 0.17350831627845764]  # fmt: skip
    given_ = torch.tensor(values)
    torch.testing.assert_close(_below_identity(given_), given_, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("given_", "kept"),
    [((0.9,), (0.5,)), ((0.5,), (0.5,)), ((-0.2,), (0.0,)), ((0.3,), (0.3,)), ((7.0,), (0.5,))],
)
def test_an_involution_has_at_most_one_half(given_: tuple[float], kept: tuple[float]):
    augmentation = mixture(flip("horizontal"), probabilities=(given_,))
    augmentation.project()
    assert augmentation.probabilities[0].tolist() == pytest.approx(kept)


def test_project_bounds_the_ranges_too():
    augmentation = mixture(affine(("rotation",)), sign_change(), probabilities=((0.9,),), start=0.3)
    with torch.no_grad():
        augmentation.ranges.half_widths.fill_(9.0)
    augmentation.project()
    assert augmentation.ranges.half_widths.item() == math.pi
    assert augmentation.probabilities[0].item() == 0.5


# --- elements that draw -------------------------------------------------------------------------


def shaken(data: Tensor) -> Tensor:
    return data + torch.rand(data.shape, dtype=data.dtype)


def random_mixture(probability: float = 0.6, *continuous: object) -> Mixture:
    shake = RandomTransform(shaken, "shake")
    return mixture(*continuous, shake, flip("horizontal"), probabilities=((probability,), (0.2,)))


@pytest.mark.parametrize("continuous", [(), (affine(("translation_x",)),)])
def test_random_elements_replay_for_the_same_noise(continuous: tuple[object, ...]):
    augmentation, images = random_mixture(0.6, *continuous), draw(3, 1, SIZE, SIZE)
    first, other = (
        augmentation.noise(3, 8, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)
    )
    assert first.shape == (3, 8, 1 + len(continuous))
    state = torch.get_rng_state()
    copies = augmentation(images, first)
    assert torch.equal(torch.get_rng_state(), state)  # no other draw is disturbed
    torch.rand(3)
    assert torch.equal(augmentation(images, first), copies)
    assert not torch.equal(augmentation(images, other), copies)


def test_every_copy_of_every_example_has_a_draw_of_its_own():
    augmentation, images = random_mixture(), draw(3, 1, SIZE, SIZE)
    noise = augmentation.noise(3, 8, generator=torch.Generator().manual_seed(0))
    copies = augmentation(images, noise)  # identity, flip, shake, shake and flip; two of each
    torch.testing.assert_close(copies[:, :2], images[:, None].expand(-1, 2, -1, -1, -1))
    torch.testing.assert_close(copies[:, 2:4], images.flip(-1)[:, None].expand(-1, 2, -1, -1, -1))
    disturbed = torch.cat([copies[:, 4:6], copies[:, 6:].flip(-1)], 1) - images[:, None]
    assert bool(((disturbed >= 0) & (disturbed <= 1)).all())
    flat = disturbed.flatten(2).flatten(0, 1)
    assert len(torch.unique(flat[:, 0])) == len(flat) == 12


def test_a_random_element_may_be_certain():
    """It is an average itself, so that its probability goes up to one; a flip's does not."""
    augmentation = random_mixture(5.0)
    augmentation.project()
    assert [p.item() for p in augmentation.probabilities] == pytest.approx([1.0, 0.2])
    model = InvariantModel(network(), augmentation)
    weights = augmentation.copies(8).weights
    assert weights is not None
    torch.testing.assert_close(weights[:4].detach(), torch.zeros(4, dtype=torch.float64))
    assert model(draw(2, 1, SIZE, SIZE)).isfinite().all()


class TwoDraws(FiniteAction):
    """Two elements that both draw."""

    name = "two draws"
    elements = (Element("up"), Element("down"))
    is_random = True

    def move(self, index: int, data: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        return data + (1 - 2 * index) * torch.rand(data.shape, generator=generator).to(data)


def test_random_elements_share_one():
    augmentation = mixture(TwoDraws(), probabilities=((0.9, 0.6),))
    augmentation.project()
    assert augmentation.probabilities[0].tolist() == pytest.approx([0.6, 0.4])


def test_permutations_of_points():
    augmentation = mixture(point_permutation(), probabilities=((1.0,),))
    clouds = draw(2, 6, 3)
    noise = augmentation.noise(2, 8, generator=torch.Generator().manual_seed(0))
    copies = augmentation(clouds, noise)
    assert copies.shape == (2, 8, 6, 3)
    torch.testing.assert_close(copies[:, :4], clouds[:, None].expand(-1, 4, -1, -1))
    ordered = copies[:, 4:].sort(2).values
    torch.testing.assert_close(ordered, clouds.sort(1).values[:, None].expand(-1, 4, -1, -1))
    assert not torch.equal(copies[0, 4], copies[0, 5])


class Tint(nn.Module):
    """Another library's transform with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.amount = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def forward(self, data: Tensor) -> Tensor:
        return data * (1 + self.amount * torch.rand(len(data), 1, 1, 1).to(data))


def test_parameters_of_a_wrapped_module_are_learned_and_saved():
    tint = Tint()
    augmentation = mixture(RandomTransform(tint, "tint"), probabilities=((0.5,),))
    assert any(parameter is tint.amount for parameter in augmentation.learnable())
    assert "transforms.0.amount" in augmentation.state_dict()
    noise = augmentation.noise(2, 4, generator=torch.Generator().manual_seed(0))
    augmentation(draw(2, 1, SIZE, SIZE), noise).sum().backward()
    assert float(tint.amount.grad) > 0


# --- reports and states -------------------------------------------------------------------------


def full_mixture() -> Mixture:
    return mixture(
        affine(("rotation",)), flip("horizontal"), quarter_turns(),
        probabilities=((0.3,), (0.1, 0.2, 0.15)), start=0.2,
    )  # fmt: skip


def test_symmetries_ranges_first():
    found = full_mixture().symmetries()
    assert [s.name for s in found] == ["rotation", "horizontal_flip", "turn_90",
                                       "turn_180", "turn_270"]  # fmt: skip
    assert [s.kind for s in found] == ["range"] + ["probability"] * 4
    assert found[0].high == pytest.approx(math.degrees(0.2))
    assert [s.high for s in found[1:]] == pytest.approx([0.3, 0.1, 0.2, 0.15])
    assert all(s.low == 0 and s.unit == "probability" for s in found[1:])
    assert [s.name for s in case_mixture("flip").symmetries()] == ["horizontal_flip"]


def test_state_round_trip():
    augmentation, other = full_mixture(), augmentation_over(
        [affine(("rotation",)), flip("horizontal"), quarter_turns()], dtype=torch.float64
    )  # fmt: skip
    assert other.symmetries() != augmentation.symmetries()
    other.load_state_dict(augmentation.state_dict())
    assert other.symmetries() == augmentation.symmetries()
    images, noise = draw(2, 1, SIZE, SIZE), augmentation.noise(2, 8)
    assert torch.equal(augmentation(images, noise), other(images, noise))


def test_is_identity():
    assert not full_mixture().is_identity
    nothing = augmentation_over([affine(("rotation",)), flip("vertical")], start={})
    assert nothing.is_identity
    for start in ({"rotation": 5.0}, {"vertical_flip": 0.1}):
        assert not augmentation_over(
            [affine(("rotation",)), flip("vertical")], start=start
        ).is_identity


# --- one augmentation over everything -----------------------------------------------------------


def test_what_it_becomes():
    plane, mirror = affine(("rotation", "scale")), flip("horizontal")
    assert type(augmentation_over(plane)) is UniformRanges
    assert type(augmentation_over([plane], distribution="correlated")) is CorrelatedRanges
    alone = augmentation_over(mirror)
    assert isinstance(alone, Mixture) and isinstance(alone.action, NoRanges)
    assert [p.tolist() for p in alone.probabilities] == [[pytest.approx(START_PROBABILITY)]]
    both = augmentation_over([mirror, plane], distribution="correlated", dtype=torch.float64)
    assert isinstance(both, Mixture) and isinstance(both.ranges, CorrelatedRanges)
    assert {p.dtype for p in both.parameters()} == {torch.float64}
    torch.testing.assert_close(
        both.ranges.half_widths.detach(), torch.full((2,), START, dtype=torch.float64)
    )
    assert isinstance(augmentation_over(mirror, distribution="correlated"), Mixture)


def test_starts_and_caps_by_name():
    made = augmentation_over(
        [affine(("rotation", "scale")), flip("horizontal"), quarter_turns()],
        start={"rotation": 30.0, "turn_180": 0.4},
        caps={"rotation": 20.0, "turn_180": 0.25, "horizontal_flip": 0.0},
        dtype=torch.float64,
    )
    high = {s.name: s.high for s in made.symmetries()}
    assert high == pytest.approx({
        "rotation": 20.0, "scale": 0.0, "horizontal_flip": 0.0, "turn_90": 0.0,
        "turn_180": 0.25, "turn_270": 0.0,
    })  # fmt: skip
    with torch.no_grad():
        for parameter in made.learnable():
            parameter.fill_(0.9)
    made.project()
    high = {s.name: s.high for s in made.symmetries()}
    assert high["rotation"] == pytest.approx(20.0) and high["horizontal_flip"] == 0.0
    # With one turn at its cap of ¼, the identity and the two others share the rest.
    assert [high[f"turn_{d}"] for d in (90, 180, 270)] == pytest.approx([0.25] * 3)


PLANE = affine(("rotation",))
REFUSED = {
    "none": (lambda: augmentation_over([]), "actions: expected at least one, got none"),
    "a transform": (
        lambda: augmentation_over([PLANE, nn.Dropout()]),
        "got Dropout; wrap a random transform of another library in RandomTransform"),
    "a transform alone": (lambda: augmentation_over(nn.Dropout()), "got Dropout; wrap"),
    "a distribution": (
        lambda: augmentation_over(PLANE, distribution="corelated"),
        "unknown distribution 'corelated'.*did you mean 'correlated'"),
    "a start": (
        lambda: augmentation_over([PLANE, flip("vertical")], start={"vertcal_flip": 0.1}),
        "unknown generator 'vertcal_flip'.*did you mean 'vertical_flip'"),
    "a cap": (
        lambda: augmentation_over([PLANE, flip("vertical")], caps={"horizontal_flip": 0.1}),
        "unknown generator 'horizontal_flip'"),
    "a negative cap": (
        lambda: augmentation_over(flip("vertical"), caps={"vertical_flip": -0.1}),
        "cap for 'vertical_flip': expected at least 0"),
    "one element twice": (
        lambda: augmentation_over([flip("vertical"), flip("vertical")]),
        "elements: expected different names, got 'vertical_flip' twice"),
    "an element named as a generator": (
        lambda: augmentation_over([PLANE, RandomTransform(shaken, "rotation")]),
        "got 'rotation' twice"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str):
    call, sentence = REFUSED[case]
    with pytest.raises(CallerError, match=sentence):
        call()


def test_fixed_noise_gives_every_element_the_same_copies():
    mixture = augmentation_over([affine(("rotation",)), flip("horizontal")])
    noise = mixture.fixed_noise(10)
    assert noise.shape == (1, 10, 1)
    assert torch.equal(noise[:, :5], noise[:, 5:])
    assert augmentation_over(flip("horizontal")).fixed_noise(9).shape[1] == 2
