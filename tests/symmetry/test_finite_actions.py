"""Finite sets of elements: what each does to small data written out, the groups they make, and
random transforms that replay and leave torch's global generator alone."""

from __future__ import annotations

import itertools
import math
import pickle

import pytest
import torch
from action_cases import draw
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.symmetry.actions.finite import (
    FiniteAction,
    RandomTransform,
    channel_permutations,
    flip,
    point_permutation,
    point_reflection,
    quarter_turns,
    reversal,
    sign_change,
)
from isotropy.symmetry.actions.images import GENERATORS, affine

CASES: dict[str, tuple[FiniteAction, Tensor]] = {
    "horizontal_flip": (flip("horizontal"), draw(2, 3, 4, 5)),
    "vertical_flip": (flip("vertical"), draw(2, 4, 5)),
    "quarter_turns": (quarter_turns(), draw(2, 1, 4, 4)),
    "channel_permutations": (channel_permutations(3), draw(2, 3, 2, 2)),
    "channels of sequences": (channel_permutations(2), draw(2, 2, 5)),
    "reversal": (reversal(), draw(2, 3, 5)),
    "sign_change": (sign_change(), draw(2, 7)),
    "reflection_y": (point_reflection(1), draw(2, 4, 3)),
}
every_case = pytest.mark.parametrize(("action", "data"), CASES.values(), ids=CASES)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- the contract -------------------------------------------------------------------------


@every_case
def test_elements_move_data(action, data):
    assert len(set(action.names)) == len(action.elements) > 0 and not action.is_random
    for index, element in enumerate(action.elements):
        assert element.name and element.meaning
        moved = action.move(index, data)
        assert moved.shape == data.shape and moved.dtype == data.dtype
        assert not torch.equal(moved, data)
        # Values are reordered, or change their sign: nothing is lost.
        torch.testing.assert_close(moved.abs().flatten().msort(), data.flatten().msort())


@every_case
def test_elements_and_the_identity_are_a_group(action, data):
    orbit = [data, *(action.move(index, data) for index in range(len(action.elements)))]
    for one, other in itertools.combinations(orbit, 2):
        assert not torch.equal(one, other)
    for index, image in itertools.product(range(len(action.elements)), orbit):
        moved = action.move(index, image)
        assert sum(torch.equal(moved, other) for other in orbit) == 1


@every_case
def test_gradients_go_through(action, data):
    inputs = data.clone().requires_grad_()
    weights = draw(*data.shape, seed=5)
    for index in range(len(action.elements)):
        (gradient,) = torch.autograd.grad((weights * action.move(index, inputs)).sum(), inputs)
        assert gradient.abs().flatten().msort().equal(weights.flatten().msort())


@every_case
def test_an_element_that_is_not_there(action, data):
    for index in (-1, len(action.elements)):
        with pytest.raises(CallerError, match=rf"index from 0 to {len(action.elements) - 1} "):
            action.move(index, data)


@every_case
def test_finite_actions_can_be_sent_to_other_processes(action, data):
    again = pickle.loads(pickle.dumps(action))
    assert again.elements == action.elements
    assert torch.equal(again.move(0, data), action.move(0, data))


# --- what each does, written out ----------------------------------------------------------

IMAGE = torch.tensor([[[1, 2], [3, 4]]])  # 1 is at the upper left, 2 at the upper right
WRITTEN = {
    "horizontal": (flip("horizontal"), 0, IMAGE, [[[2, 1], [4, 3]]]),
    "vertical": (flip("vertical"), 0, IMAGE, [[[3, 4], [1, 2]]]),
    "a quarter turn": (quarter_turns(), 0, IMAGE, [[[2, 4], [1, 3]]]),
    "half a turn": (quarter_turns(), 1, IMAGE, [[[4, 3], [2, 1]]]),
    "three quarters": (quarter_turns(), 2, IMAGE, [[[3, 1], [4, 2]]]),
    "channels": (
        channel_permutations(3, [(1, 2, 0)]), 0, torch.tensor([[10, 20, 30]]), [[20, 30, 10]],
    ),
    "reversal": (reversal(), 0, torch.tensor([[[1, 2, 3], [4, 5, 6]]]), [[[3, 2, 1], [6, 5, 4]]]),
    "sign": (sign_change(), 0, torch.tensor([1, -2]), [-1, 2]),
    "reflection": (point_reflection(0), 0, torch.tensor([[[1, 2], [3, 4]]]), [[[-1, 2], [-3, 4]]]),
}  # fmt: skip


@pytest.mark.parametrize(("action", "index", "data", "wanted"), WRITTEN.values(), ids=WRITTEN)
def test_as_written_out(action, index, data, wanted):
    assert action.move(index, data).tolist() == wanted


@pytest.mark.parametrize("index", [0, 1, 2])
def test_quarter_turns_are_rotations_of_the_affine_group(index):
    images, turn = draw(1, 2, 5, 5), GENERATORS["rotation"].from_units(90 * (index + 1))
    wanted = affine(("rotation",)).act(torch.full((1, 1, 1), turn).double(), images)[:, 0]
    torch.testing.assert_close(quarter_turns().move(index, images), wanted, rtol=0, atol=1e-6)


def test_all_permutations_are_named():
    assert channel_permutations().names == (
        "channels_0_2_1",
        "channels_1_0_2",
        "channels_1_2_0",
        "channels_2_0_1",
        "channels_2_1_0",
    )
    assert len(channel_permutations(4).elements) == math.factorial(4) - 1
    assert channel_permutations(6, [[1, 0, 2, 3, 4, 5]]).names == ("channels_1_0_2_3_4_5",)


# --- permutations of points ---------------------------------------------------------------


def test_every_cloud_gets_an_order_of_its_own():
    action, clouds = point_permutation(), draw(8, 6, 3)
    moved = action.move(0, clouds, generator=stream())
    assert action.is_random and action.names == ("point_permutation",)
    orders = set()
    for before, after in zip(clouds, moved, strict=True):
        where = (after[:, None] == before[None]).all(-1)  # (points after, points before)
        assert where.sum(0).eq(1).all() and where.sum(1).eq(1).all()
        orders.add(tuple(where.int().argmax(1).tolist()))
    assert len(orders) > 5


def test_orders_are_uniform():
    clouds = torch.arange(3.0)[None, :, None].expand(6000, 3, 1)
    moved = point_permutation().move(0, clouds, generator=stream())[..., 0]
    numbers = (moved @ torch.tensor([100.0, 10.0, 1.0])).unique(return_counts=True)[1]
    # Six orders, a thousand times each; the standard deviation of a count is 29.
    assert len(numbers) == 6 and (numbers - 1000).abs().max() < 150


def test_point_permutations_replay():
    action, clouds = point_permutation(), draw(2, 9, 2)
    one, again, other = (action.move(0, clouds, generator=stream(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)


# --- random transforms --------------------------------------------------------------------


class Hiss(nn.Module):
    """Noise of a learned size, drawn from torch's global generator."""

    def __init__(self) -> None:
        super().__init__()
        self.size = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def forward(self, data: Tensor) -> Tensor:
        return data + self.size * torch.randn(data.shape, dtype=data.dtype, device=data.device)


def test_a_generator_replays_a_transform():
    action, data = RandomTransform(Hiss(), "hiss", "noise is added"), draw(2, 3)
    assert action.is_random and action.name == "hiss"
    assert action.elements[0].meaning == "noise is added"
    generator = stream(1)
    one, next_one = (action.move(0, data, generator=generator) for _ in range(2))
    again = action.move(0, data, generator=stream(1))
    assert torch.equal(one, again) and not torch.equal(one, next_one)


def test_global_state_is_left_alone():
    action, data = RandomTransform(Hiss(), "hiss"), draw(2, 3)
    before = torch.get_rng_state()
    action.move(0, data, generator=stream())
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ZeroDivisionError):
        RandomTransform(lambda data: torch.rand(3) / (1 // 0), "broken").move(
            0, data, generator=stream()
        )
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_generator_it_draws_from_the_global_one():
    action, data = RandomTransform(Hiss(), "hiss"), draw(2, 3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        one = action.move(0, data)
        torch.manual_seed(3)
        torch.testing.assert_close(one, data + 0.5 * torch.randn(2, 3, dtype=torch.float64))
        assert not torch.equal(action.move(0, data), one)


def test_gradients_reach_the_parameters_of_a_transform():
    hiss, data = Hiss(), draw(2, 3)
    moved = RandomTransform(hiss, "hiss").move(0, data, generator=stream())
    moved.sum().backward()
    noise = (moved - data).detach() / 0.5
    assert hiss.size.grad is not None
    torch.testing.assert_close(hiss.size.grad, noise.sum())


def one_shift(data: Tensor) -> Tensor:
    """One draw for whatever it is given."""
    return data + torch.rand((), dtype=data.dtype)


@pytest.mark.parametrize("per_example", [False, True])
def test_one_draw_for_each_example_if_wanted(per_example):
    data = draw(4, 2, 3)
    action = RandomTransform(one_shift, "shift", per_example=per_example)
    shifts = (action.move(0, data, generator=stream()) - data).flatten(1)
    torch.testing.assert_close(shifts, shifts[:, :1].expand_as(shifts))
    assert len((shifts[:, 0] * 1e6).round().unique()) == (4 if per_example else 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_device():
    action, data = RandomTransform(Hiss().to("cuda"), "hiss"), draw(2, 3).to("cuda")
    before = torch.cuda.get_rng_state(), torch.get_rng_state()
    one, again = (action.move(0, data, generator=stream(1)) for _ in range(2))
    assert torch.equal(one, again) and one.device == data.device
    after = torch.cuda.get_rng_state(), torch.get_rng_state()
    assert all(map(torch.equal, before, after))


def test_kornia():
    kornia = pytest.importorskip("kornia.augmentation")
    images = draw(6, 3, 8, 8)
    action = RandomTransform(kornia.RandomRotation(90.0, p=1.0), "kornia rotation")
    before = torch.get_rng_state()
    one, again, other = (action.move(0, images, generator=stream(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)
    # Each image gets an angle of its own, unlike six copies of one.
    turned = action.move(0, images[:1].expand_as(images), generator=stream())
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(turned, 2))


def test_kornia_with_a_learned_parameter():
    kornia = pytest.importorskip("kornia.augmentation")
    reach = nn.Parameter(torch.tensor([0.5, 1.5], dtype=torch.float64))
    brightness = kornia.ColorJiggle(brightness=reach, p=1.0)
    action = RandomTransform(brightness, "brightness")
    action.move(0, 0.5 * draw(4, 3, 6, 6), generator=stream()).sum().backward()
    assert reach.grad is not None and float(reach.grad.abs().sum()) > 0


def test_torchvision(torchvision_imports):
    from torchvision.transforms import v2

    # A probability of one half draws per call, so a whole batch is flipped, or none of it.
    images = draw(1, 1, 2, 3).expand(40, 1, 2, 3)
    action = RandomTransform(v2.RandomHorizontalFlip(), "flip", per_example=True)
    moved = action.move(0, images, generator=stream())
    is_flipped = (moved == images.flip(-1)).flatten(1).all(1)
    assert 5 < int(is_flipped.sum()) < 35
    torch.testing.assert_close(moved[~is_flipped], images[~is_flipped])
    assert torch.equal(moved, action.move(0, images, generator=stream()))


# --- mistakes -----------------------------------------------------------------------------


def test_transforms_that_are_none():
    data, resized = draw(2, 1, 4, 4), RandomTransform(lambda data: data[..., 1:], "crop")
    with pytest.raises(CallerError, match=r"crop: .* keeps the shape \(2, 1, 4, 4\), got \(2, 1, "):
        resized.move(0, data, generator=stream())
    with pytest.raises(CallerError, match="keeps the shape .* got tuple"):
        RandomTransform(lambda data: (data, data), "pair").move(0, data)
    with pytest.raises(CallerError, match="expected a function or module, got str"):
        RandomTransform("rotate", "rotate")


UNFIT = {
    "no rows": (flip("vertical"), draw(2, 5), r"\(batch, …, height, width\), got \(2, 5\)"),
    "not square": (quarter_turns(), draw(2, 1, 4, 5), r"as many rows as columns .* \(2, 1, 4, 5\)"),
    "no channels": (channel_permutations(), draw(2, 1, 4), r"\(batch, 3, …\), got \(2, 1, 4\)"),
    "an image in time": (reversal(), draw(2, 1, 4, 4), r"\(batch, channels, length\), got"),
    "unsigned": (sign_change(), draw(2, 3).byte(), "numbers that have a sign, got torch.uint8"),
    "a plane": (point_reflection(2), draw(2, 4, 2), r"at least 3 dimensions, got \(2, 4, 2\)"),
    "points alone": (point_permutation(), draw(2, 4), r"points, dimensions\), got \(2, 4\)"),
}  # fmt: skip


@pytest.mark.parametrize(("action", "data", "sentence"), UNFIT.values(), ids=UNFIT)
def test_data_on_which_they_do_not_act(action, data, sentence):
    for call in (lambda: action.check(data), lambda: action.move(0, data)):
        with pytest.raises(CallerError, match=sentence):
            call()


REFUSED = {
    "direction": (lambda: flip("horizontl"), "unknown direction 'horizontl': .*mean 'horizontal'"),
    "many channels": (lambda: channel_permutations(5), "expected 2 to 4 .* got 5; name those"),
    "one channel": (lambda: channel_permutations(1), "expected 2 to 4 .* got 1"),
    "the identity": (lambda: channel_permutations(2, [(0, 1)]), r"got \(0, 1\)$"),
    "no order": (lambda: channel_permutations(2, [(0, 2)]), r"got \(0, 2\)$"),
    "repeated": (lambda: channel_permutations(2, [(1, 0)] * 2), r"got \(1, 0\) twice"),
    "none": (lambda: channel_permutations(2, []), "expected one or more elements, got none"),
    "from behind": (lambda: point_reflection(-1), "axis: expected 0 for x, .* got -1"),
}


@pytest.mark.parametrize(("call", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(call, sentence):
    with pytest.raises(CallerError, match=sentence):
        call()
