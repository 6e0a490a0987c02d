"""The prior sums to one, messages are as long as it charges, and decoding undoes encoding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import bound_oracle

from isotropy.bounds.coding import (
    PRECISION,
    SHAPES,
    Account,
    Prior,
    Shape,
    Table,
    message_bits,
)
from isotropy.checks import CallerError

SCALES = (0.05, 0.3, 1.0, 2.0**0.75, 7.3, 60.0)
PRIORS = {shape: Prior(shape, SCALES) for shape in SHAPES}
UNITS = 2**PRECISION

each_shape = pytest.mark.parametrize("shape", SHAPES)
each_scale = pytest.mark.parametrize("scale", SCALES)


def probability(table: Table, level: int) -> Fraction:
    """P(level), exact."""
    beyond = abs(level) - table.last
    if beyond <= 0:
        return Fraction(table.frequencies[abs(level)], UNITS)
    return Fraction(1, UNITS) / 2 / 2 ** (2 * (beyond.bit_length() - 1) + 1)


def up_to(table: Table, doublings: int) -> Fraction:
    """Σ P over |level| < K + 2^doublings."""
    size = table.last + 2**doublings
    return sum((probability(table, level) for level in range(1 - size, size)), Fraction(0))


# --- the law ------------------------------------------------------------------------------------


@each_shape
@each_scale
def test_the_law_of_a_level_sums_to_one(shape: Shape, scale: float) -> None:
    """Up to K + 2^j all but 2^−j of the one unit for the rest is there."""
    table = PRIORS[shape].table(scale)
    for doublings in (0, 1, 5):
        assert up_to(table, doublings) == 1 - Fraction(1, UNITS) / 2**doublings


def test_the_prior_sums_to_one_over_a_small_space() -> None:
    """Grid entry, step, scale and two levels, by enumeration; the rest is what the law leaves."""
    prior, grid, steps = Prior("gaussian", (0.3, 0.5)), 3, 5
    total, left = 0.0, 0.0
    for scale in prior.scales:
        within = range(-prior.table(scale).last, prior.table(scale).last + 1)
        for levels in product(within, repeat=2):
            bits = Account.of(grid, steps, len(prior.scales), prior.bits(levels, scale)).total
            total += grid * steps * 2**-bits
        left += (1 - (1 - 1 / UNITS) ** 2) / len(prior.scales)
    assert total + left == pytest.approx(1, abs=1e-12)


@each_shape
@each_scale
def test_frequencies_are_those_of_the_formula(shape: Shape, scale: float) -> None:
    table = PRIORS[shape].table(scale)
    assert list(table.frequencies[1:]) == bound_oracle.level_frequencies(shape, scale, UNITS)
    assert table.frequencies[0] == UNITS - 1 - 2 * sum(table.frequencies[1:])


def test_frequencies_of_one_law_are_these_on_every_machine() -> None:
    assert Prior("gaussian", (1.5,)).table(1.5).frequencies == (
        1142296041, 914679157, 469611937, 154592956, 32630258, 4416025, 383197, 21320, 760, 17,
    )  # fmt: skip


@each_shape
def test_charged_bits_are_those_of_the_law(shape: Shape) -> None:
    prior = PRIORS[shape]
    for scale in SCALES:
        table = prior.table(scale)
        levels = [0, 0, 1, -1, table.last, -table.last, table.last + 1, -table.last - 100, 10**9]
        exact = math.prod((probability(table, level) for level in levels), start=Fraction(1))
        expected = math.log2(exact.denominator) - math.log2(exact.numerator)
        assert prior.bits(levels, scale) == pytest.approx(expected, rel=1e-12)
    assert prior.bits([], 1.0) == 0 and prior.best_scale([]) in SCALES


@each_shape
@pytest.mark.parametrize("scale", [0.3, 0.99, 1.0, 2.0**0.75, 7.3, 60.0])
def test_soft_bits_are_the_bits_at_integers(shape: Shape, scale: float) -> None:
    levels = torch.tensor([0, 0, 0, 1, -1, 0, 1, 0], dtype=torch.float64)
    prior = Prior(shape, (scale,))
    soft = prior.soft_bits(levels, scale)
    rounding = 1e-6 if 0.5 < scale < 5 else 3e-4  # of few units, and of the many levels beyond
    assert float(soft) == pytest.approx(prior.bits(levels, scale), abs=rounding)


@each_shape
@pytest.mark.parametrize("scale", [0.4, 0.999, 1.001, 3.0])
def test_soft_bits_are_differentiable(shape: Shape, scale: float) -> None:
    levels = torch.tensor([0.3, -1.2, 4.0, -7.5], dtype=torch.float64, requires_grad=True)
    spread = torch.tensor(scale, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(PRIORS[shape].soft_bits, (levels, spread))


def test_soft_bits_far_out_have_a_finite_slope() -> None:
    for shape in SHAPES:
        levels = torch.tensor([1e4, -1e4], requires_grad=True)
        PRIORS[shape].soft_bits(levels, 1.0).backward()
        assert levels.grad is not None and bool(torch.isfinite(levels.grad).all())
        assert levels.grad[0] > 0 > levels.grad[1]


@each_shape
def test_best_scale_has_the_fewest_bits(shape: Shape) -> None:
    prior = Prior(shape)
    for spread in (0.7, 1.0, 3.0):
        levels = np.rint(np.random.default_rng(0).normal(0, spread, 300)).astype(int)
        best = prior.best_scale(levels)
        charges = {scale: prior.bits(levels, scale) for scale in prior.scales}
        assert charges[best] == min(charges.values())
        if shape == "gaussian":  # the standard deviation of the levels, to the nearest scale
            assert abs(math.log2(best / levels.std())) < 0.26


# --- messages -----------------------------------------------------------------------------------


def checked(prior: Prior, levels: Sequence[int] | np.ndarray, scale: float) -> bytes:
    """The message, after it was decoded and measured."""
    message = prior.encode(levels, scale)
    assert prior.decode(message, len(levels), scale).tolist() == list(levels)
    assert message_bits(message) <= prior.bits(levels, scale) + 2
    assert not message.endswith(b"\0")
    return message


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from(SHAPES),
    scale=st.sampled_from(SCALES),
    levels=st.lists(
        st.one_of(st.integers(-3, 3), st.integers(-200, 200), st.integers(-(2**62), 2**62)),
        max_size=40,
    ),
)
def test_any_levels_come_back(shape: Shape, scale: float, levels: list[int]) -> None:
    checked(PRIORS[shape], levels, scale)


@each_shape
@each_scale
def test_levels_at_every_edge_come_back(shape: Shape, scale: float) -> None:
    """The first and last interval again and again: carries, and the rest at its shortest."""
    prior = PRIORS[shape]
    last = prior.table(scale).last
    for levels in (
        [0] * 500,
        [1] * 300,
        [-1] * 300,
        [last, -last] * 100,
        [-last] * 200 + [0] * 50,
        [last + 1] * 60,
        [-last - 1] * 60,
        [0, -last - 2**40] * 20,
        [],
        [0],
    ):
        checked(prior, levels, scale)


@each_shape
def test_many_levels_of_the_law_itself(shape: Shape) -> None:
    """Draws from the law: what is charged is its entropy, and the message as long."""
    prior, draw = PRIORS[shape], np.random.default_rng(3)
    table = prior.table(2.0**0.75)
    chances = np.array(table.frequencies) / UNITS
    entropy = -(chances * np.log2(chances)).sum() * 2 + chances[0] * np.log2(chances[0])
    sizes = np.arange(-table.last, table.last + 1)
    law = chances[abs(sizes)] / chances[abs(sizes)].sum()
    levels = draw.choice(sizes, size=4000, p=law)
    assert prior.bits(levels, 2.0**0.75) == pytest.approx(4000 * entropy, rel=0.02)
    checked(prior, levels, 2.0**0.75)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-30, 30), min_size=1, max_size=12))
def test_messages_lie_in_the_interval_of_the_exact_arithmetic_code(levels: list[int]) -> None:
    """In rational arithmetic, up to the rounding of 2⁻⁶⁰ of its width."""
    prior = PRIORS["laplace"]
    table = prior.table(7.3)
    low, width = Fraction(0), Fraction(1)
    for level in levels:
        order = [0, *(sign * k for k in range(1, table.last + 1) for sign in (1, -1))]
        before = order[: order.index(level)]
        low += width * sum((probability(table, each) for each in before), Fraction(0))
        width *= probability(table, level)
    message = prior.encode(levels, 7.3)
    value = Fraction(int.from_bytes(message, "big"), 2 ** (8 * len(message)))
    slack = width / 2**60
    assert low - slack <= value < low + width + slack


def test_one_message_is_this_on_every_machine() -> None:
    levels = [0, 1, -2, 0, 0, 3, -1, 0, 12, 0, -40, 5, 0]
    message = Prior("gaussian", (1.5,)).encode(levels, 1.5)
    assert message.hex() == "1dd4975bbc7be2db8b27cc3d16a5"


def test_changed_messages_are_refused_or_are_those_of_other_levels() -> None:
    prior, scale = PRIORS["gaussian"], 1.0
    levels = np.rint(np.random.default_rng(5).normal(0, 1, 120)).astype(int)
    message = checked(prior, levels, scale)
    changed = [message[:-1], message[:20], message + b"\1", message + b"\0", b""]
    changed += [
        message[:place] + bytes([message[place] ^ bit]) + message[place + 1 :]
        for place in range(len(message))
        for bit in (1, 128)
    ]
    for other in changed:
        try:
            assert prior.decode(other, 120, scale).tolist() != levels.tolist()
        except CallerError as error:
            assert "cut, lengthened or changed" in str(error)
    for lengthened in (message + b"\1", message + b"\0"):
        with pytest.raises(CallerError, match="cut, lengthened"):
            prior.decode(lengthened, 120, scale)


def test_a_level_without_end_is_refused() -> None:
    """The unit for the rest, and then no end of zeros where the length of the level stands."""
    with pytest.raises(CallerError, match="at most 63 bits"):
        PRIORS["gaussian"].decode(b"\xff" * 4 + b"\0" * 40 + b"\1", 3, 1.0)


def test_length_of_a_message() -> None:
    assert message_bits(b"") == 0
    assert message_bits(b"\x80") == 1
    assert message_bits(b"\x01") == 8
    assert message_bits(b"\x00\x40") == 10


# --- the account ----------------------------------------------------------------------------------


def printed_account(counts: Sequence[int]) -> float:
    """Section 5.4.2: ⌈dH⌉ + 2, the table of counts, 16 bits a level, and 2 log₂ l for l bits."""
    total = sum(counts)
    entropy = -sum(each / total * math.log2(each / total) for each in counts)
    table = len(counts) * math.ceil(math.log2(total))
    length = math.ceil(total * entropy) + 2 + table + 16 * len(counts)
    return length + 2 * math.log2(length)


def test_the_account_of_two_hundred_weights_on_thirteen_levels() -> None:
    """At most 625 bits, grid and step included, where the printed account charges 925."""
    half = [1, 1, 4, 11, 24, 37]
    counts = [*half, 44, *reversed(half)]
    levels = np.repeat(np.arange(-6, 7), counts)
    assert len(levels) == 200
    prior = Prior()
    scale = prior.best_scale(levels)
    weights = prior.bits(levels, scale)
    account = Account.of(2**8, 2**4, len(prior.scales), weights)
    assert round(printed_account(counts)) == 925
    assert account.total <= 625
    assert account.total == pytest.approx(16 + weights)
    assert message_bits(prior.encode(levels, scale)) <= weights + 2


def test_the_account_adds_up() -> None:
    account = Account.of(grid=6, steps=8, scales=16, weights=100.5, symmetries=48.0)
    expected = {"grid": math.log2(6), "step": 3.0, "scale": 4.0, "weights": 100.5, "symmetries": 48}
    assert account.as_dict() == {**expected, "total": pytest.approx(155.5 + math.log2(6))}


# --- refusals -------------------------------------------------------------------------------------


def test_refusals() -> None:
    with pytest.raises(CallerError, match="unknown shape of a prior 'gausian'.*gaussian"):
        Prior("gausian")  # type: ignore[arg-type]
    with pytest.raises(CallerError, match="scales: expected at least one"):
        Prior("gaussian", ())
    for scale in (0.0, -1.0, 1e5, math.nan):
        with pytest.raises(CallerError, match="scales: expected numbers from 0.05 to 4096"):
            Prior("gaussian", (scale,))
    with pytest.raises(CallerError, match="not one of the declared 2"):
        Prior("gaussian", (1.0, 2.0)).bits([0], 1.5)
    for levels in ([0.5], [math.nan], [math.inf]):
        with pytest.raises(CallerError, match="levels: expected whole numbers"):
            PRIORS["gaussian"].bits(levels, 1.0)
    with pytest.raises(CallerError, match="step sizes: expected at least one"):
        Account.of(1, 0, 1, 0.0)


def test_levels_may_be_tensors_arrays_and_lists() -> None:
    prior = PRIORS["laplace"]
    rows = ([0, -2, 5], np.array([0, -2, 5]), torch.tensor([0, -2, 5]), torch.tensor([0.0, -2, 5]))
    assert len({prior.encode(levels, 1.0) for levels in rows}) == 1
    assert len({prior.bits(levels, 1.0) for levels in rows}) == 1
