"""One normalised prior over compressed networks, and messages that are as long as it says.

A network is an entry of a declared grid, a step size, a scale and one integer level per
coordinate of its subspace. Its prior probability is

    P(h) = 1/(grid entries) × 1/(step sizes) × 1/(shapes · scales) × Π_i P(level_i | shape, scale)

and −log₂ P(h) is the `Account`. The law of a level k is

    P(k | s) = f_k / 2³²,   f_k = ⌊2³² w_k / Z⌋ for k ≠ 0,   w_k = exp(−k²/2s²) or exp(−|k|/s),

where Z = Σ w_k over all integers. What the rounding leaves goes to k = 0, less one unit for all
levels beyond K, the last one with f_k ≥ 1. The code of such a level is that unit, one bit for its
sign, and m = |k| − K in Elias's gamma code, 2⌊log₂ m⌋ + 1 bits. The law sums to one over all
integers. It has no codebook and no table of counts.

`encode` is a range coder in integers and `decode` its inverse. They use no floating point: w_k
comes from one decimal exponential of 60 digits, which Python's decimal arithmetic rounds correctly
on every machine, and from products of it; those below 10⁻³⁰ count as zero. A message is the
shortest binary fraction in the interval of the arithmetic code, written as bytes. It is at most 2
bits longer than the law charges: less than one bit by the end of the interval, less than 2⁻⁶³ by
the rounding of each symbol. The zeros that fill its last byte carry nothing (`message_bits`).

The thesis (section 5.4.2) charges a code of fitted frequencies, the table of these, a codebook of
16 bits a level, and 2 log₂ l for the length l.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from functools import lru_cache
from itertools import accumulate
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from isotropy.checks import CallerError, check_choice

Shape = Literal["gaussian", "laplace"]
SHAPES: tuple[Shape, ...] = ("gaussian", "laplace")

PRECISION = 32
"""Bits of a frequency: the frequencies of one law add up to 2³²."""
STATE = 128
"""Bits of the coder's interval. A symbol loses less than 2⁻⁶³ bits to its rounding."""
WORD = 32
"""Bits that the coder writes at a time."""
DIGITS = 60
"""Decimal digits of the weights w_k and of their sum."""
LEAST_SCALE, MOST_SCALE = 0.05, 4096.0

Levels = Tensor | np.ndarray | Iterable[int]


@dataclass(frozen=True)
class Account:
    """What describes a network, in bits: every part of −log₂ P(h)."""

    grid: float
    step: float
    scale: float
    weights: float
    symmetries: float = 0.0

    @classmethod
    def of(
        cls, grid: int, steps: int, scales: int, weights: float, symmetries: float = 0.0
    ) -> Account:
        """One choice among `grid` entries, `steps` step sizes and `scales` scales."""
        for what, choices in (("grid entries", grid), ("step sizes", steps), ("scales", scales)):
            if choices < 1:
                raise CallerError(f"{what}: expected at least one to choose from, got {choices}")
        return cls(math.log2(grid), math.log2(steps), math.log2(scales), weights, symmetries)

    @property
    def total(self) -> float:
        """−log₂ P(h)."""
        return math.fsum((self.grid, self.step, self.scale, self.weights, self.symmetries))

    def as_dict(self) -> dict[str, float]:
        """Every part and the total, for records."""
        return {**asdict(self), "total": self.total}


@dataclass(frozen=True)
class Table:
    """The law of one level in units of 2⁻³²: `frequencies[|k|]` up to K, and one for the rest.

    Intervals follow each other in the order 0, 1, −1, 2, −2, …, K, −K, rest. `starts` says where
    each begins.
    """

    frequencies: tuple[int, ...]
    starts: tuple[int, ...]

    @property
    def last(self) -> int:
        """K, the largest |k| that has a frequency of its own."""
        return len(self.frequencies) - 1

    def intervals(self, level: int) -> list[tuple[int, int, int]]:
        """The intervals that code a level: start and length of each in units of 2^−precision."""
        size = abs(level)
        if size <= self.last:
            return [(self.starts[2 * size - (level > 0)], self.frequencies[size], PRECISION)]
        digits = f"{size - self.last:b}"  # Elias: its length less one in zeros, then the digits
        bits = [int(level < 0), *(0 for _ in digits[1:]), *map(int, digits)]
        return [(self.starts[-1], 1, PRECISION), *((bit, 1, 1) for bit in bits)]

    def bits(self, level: int) -> float:
        """−log₂ P(level)."""
        return sum(precision - math.log2(n) for _, n, precision in self.intervals(level))


@dataclass(frozen=True)
class Prior:
    """A discretised law over integer levels with a declared list of scales.

    `shape` is "gaussian" or "laplace". `scales` are standard deviation (Gaussian) or mean
    magnitude (Laplace), in levels; the choice of one costs log₂ of their number.
    """

    shape: Shape = "gaussian"
    scales: tuple[float, ...] = tuple(2.0 ** (i / 4 - 2) for i in range(16))

    def __post_init__(self) -> None:
        check_choice(self.shape, SHAPES, what="shape of a prior")
        if not self.scales:
            raise CallerError("scales: expected at least one, got none")
        for scale in self.scales:
            if not LEAST_SCALE <= scale <= MOST_SCALE:
                raise CallerError(
                    f"scales: expected numbers from {LEAST_SCALE:g} to {MOST_SCALE:g} levels, "
                    f"got {scale:g}"
                )

    def table(self, scale: float) -> Table:
        """The frequencies of this scale, which must be one of the declared ones."""
        if scale not in self.scales:
            raise CallerError(
                f"scale {scale!r} is not one of the declared {len(self.scales)}; charge for "
                "it by declaring it"
            )
        return _table(self.shape, float(scale))

    def bits(self, levels: Levels, scale: float) -> float:
        """−Σ log₂ P(level | scale): exactly the law that `encode` codes."""
        return self._charge(*np.unique(_integers(levels), return_counts=True), scale)

    def _charge(self, values: np.ndarray, counts: np.ndarray, scale: float) -> float:
        table = self.table(scale)
        pairs = zip(values.tolist(), counts.tolist(), strict=True)
        return math.fsum(count * table.bits(level) for level, count in pairs)

    def soft_bits(self, levels: Tensor, scale: float | Tensor) -> Tensor:
        """−Σ log₂ of w/Z at real-valued levels, differentiable in them; a scalar.

        k²/(2 s² ln 2) + log₂ Z or |k|/(s ln 2) + log₂ Z for each level. At integers up to K it
        differs from `bits` by the rounding of the frequencies. `scale` may be any positive number,
        or a tensor, in which it is differentiable too.
        """
        spread = torch.as_tensor(scale, dtype=levels.dtype, device=levels.device)
        if self.shape == "gaussian":
            nats = levels.square().sum() / (2 * spread.square())
        else:
            nats = levels.abs().sum() / spread
        return (nats + levels.numel() * _log_normaliser(self.shape, spread)) / math.log(2)

    def best_scale(self, levels: Levels) -> float:
        """The declared scale with the fewest bits, the first of these if several have."""
        values, counts = np.unique(_integers(levels), return_counts=True)
        return min(self.scales, key=lambda scale: self._charge(values, counts, scale))

    def encode(self, levels: Levels, scale: float) -> bytes:
        """The message of the levels: less than `bits` + 2 bits, see `message_bits`."""
        table = self.table(scale)
        coder = _Encoder()
        for level in _integers(levels).tolist():
            for interval in table.intervals(level):
                coder.put(*interval)
        return coder.message()

    def decode(self, message: bytes, count: int, scale: float) -> np.ndarray:
        """The `count` levels of a message, as int64.

        Raises unless the message is exactly the one that `encode` gives for these levels: one that
        was changed, cut or lengthened is refused, or is the message of other levels.
        """
        table = self.table(scale)
        coder = _Decoder(message)
        levels = np.array([coder.level(table) for _ in range(count)], dtype=np.int64)
        if self.encode(levels, scale) != message:
            raise CallerError(
                f"message: expected the code of {count} levels, got {len(message)} bytes that no "
                "levels have; it was cut, lengthened or changed"
            )
        return levels


def message_bits(message: bytes) -> int:
    """Length of a message in bits, without the zeros that fill its last byte."""
    digits = int.from_bytes(message, "big")
    return 8 * len(message) - ((digits & -digits).bit_length() - 1) if digits else 0


# --- the law ----------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _table(shape: Shape, scale: float) -> Table:
    """Frequencies in units of 2⁻³², by decimal arithmetic that is the same on every machine."""
    context = Context(prec=DIGITS, rounding=ROUND_HALF_EVEN)
    weights = list(_weights(shape, scale, context))
    total = weights[0]
    for weight in weights[1:]:
        total = context.add(total, context.add(weight, weight))
    units = context.divide(Decimal(2**PRECISION), total)
    floor = Context(prec=DIGITS, rounding=ROUND_FLOOR)
    tail = []
    for weight in weights[1:]:
        frequency = int(floor.to_integral_value(context.multiply(weight, units)))
        if frequency < 1:
            break
        tail.append(frequency)
    frequencies = (2**PRECISION - 1 - 2 * sum(tail), *tail)
    lengths = [frequencies[0], *(each for each in tail for _ in range(2))]
    return Table(frequencies, tuple(accumulate(lengths, initial=0)))


def _weights(shape: Shape, scale: float, context: Context) -> Iterator[Decimal]:
    """w_0 = 1, w_1, w_2, … while they exceed 10⁻³⁰: each is the last one times a ratio."""
    exact = Decimal(scale)  # a binary fraction has a finite decimal expansion
    if shape == "gaussian":  # w_(k+1)/w_k = q^(2k+1) with q = exp(−1/2s²)
        spread = context.multiply(context.multiply(exact, exact), Decimal(2))
        ratio = context.exp(context.divide(Decimal(-1), spread))
        growth = context.multiply(ratio, ratio)
    else:
        ratio = context.exp(context.divide(Decimal(-1), exact))
        growth = Decimal(1)
    weight, least = Decimal(1), Decimal(10) ** -30
    while weight > least:
        yield weight
        weight = context.multiply(weight, ratio)
        ratio = context.multiply(ratio, growth)


def _log_normaliser(shape: Shape, scale: Tensor) -> Tensor:
    """ln Σ_k w_k over all integers, differentiable in the scale.

    Laplace: coth(1/2s). Gaussian: the theta function, by its sum over k where s < 1 and by
    its sum over frequencies, √(2π) s Σ_m exp(−2π² s² m²), elsewhere; both converge at once.
    """
    if shape == "laplace":
        return -torch.log(torch.tanh(1 / (2 * scale)))
    index = torch.arange(1, 13, dtype=scale.dtype, device=scale.device)
    narrow = torch.log1p(2 * torch.exp(-index.square() / (2 * scale.square())).sum())
    waves = 2 * torch.exp(-2 * math.pi**2 * scale.square() * index.square()).sum()
    wide = 0.5 * math.log(2 * math.pi) + torch.log(scale) + torch.log1p(waves)
    return torch.where(scale < 1, narrow, wide)


def _integers(levels: Levels) -> np.ndarray:
    """The levels as one row of int64, refused if they are not whole numbers."""
    if isinstance(levels, Tensor):
        levels = levels.detach().cpu().numpy()
    array = np.asarray(levels if isinstance(levels, np.ndarray) else list(levels)).reshape(-1)
    if array.dtype.kind not in "iu":
        whole = array.astype(np.float64)
        if not (np.isfinite(whole).all() and (whole == np.rint(whole)).all()):
            raise CallerError("levels: expected whole numbers, got fractions; round them first")
        array = whole
    return array.astype(np.int64)


# --- the coder --------------------------------------------------------------------------------


class _Encoder:
    """A range coder: an interval of [0, 1) that every symbol narrows, in integers.

    The interval is `words` and then (low, low + width) in units of 2^−STATE. A carry runs back
    through the words.
    """

    def __init__(self) -> None:
        self.words: list[int] = []
        self.low = 0
        self.width = 1 << STATE

    def put(self, start: int, length: int, precision: int) -> None:
        """Narrow to [start, start + length) in units of 2^−precision."""
        unit = self.width >> precision
        self.low += unit * start
        self.width = unit * length
        self._carry()
        while self.width <= 1 << (STATE - WORD):
            self.words.append(self.low >> (STATE - WORD))
            self.low = (self.low << WORD) & ((1 << STATE) - 1)
            self.width <<= WORD

    def _carry(self) -> None:
        if self.low >> STATE:
            self.low &= (1 << STATE) - 1
            place = len(self.words) - 1
            while self.words[place] == (1 << WORD) - 1:
                self.words[place] = 0
                place -= 1
            self.words[place] += 1

    def message(self) -> bytes:
        """The shortest binary fraction in the interval, without final zero bytes."""
        for spare in range(STATE, -1, -1):
            value = -(-self.low >> spare) << spare  # the next multiple of 2^spare
            if value < self.low + self.width:
                break
        self.low = value
        self._carry()
        whole = b"".join(word.to_bytes(WORD // 8, "big") for word in self.words)
        return (whole + self.low.to_bytes(STATE // 8, "big")).rstrip(b"\0")


class _Decoder:
    """Follows the intervals of `_Encoder`; a message goes on with zeros."""

    def __init__(self, message: bytes) -> None:
        self.message = message
        self.place = STATE // 8
        self.offset = int.from_bytes(message[: self.place].ljust(self.place, b"\0"), "big")
        self.width = 1 << STATE

    def level(self, table: Table) -> int:
        """The next level."""
        starts = table.starts
        unit = self.width >> PRECISION
        target = min(self.offset // unit, (1 << PRECISION) - 1)
        place = bisect_right(starts, target) - 1
        if place == len(starts) - 1:
            self._narrow(starts[place], 1, PRECISION)
            sign = self._bit()
            zeros = 0
            while not self._bit():
                zeros += 1
                if zeros > 62:
                    raise CallerError(
                        "message: expected a level of at most 63 bits; it was changed"
                    )
            size = 1
            for _ in range(zeros):
                size = 2 * size + self._bit()
            return (-1 if sign else 1) * (table.last + size)
        size = (place + 1) // 2
        self._narrow(starts[place], table.frequencies[size], PRECISION)
        return size if place % 2 else -size

    def _bit(self) -> int:
        bit = min(self.offset // (self.width >> 1), 1)
        self._narrow(bit, 1, 1)
        return bit

    def _narrow(self, start: int, length: int, precision: int) -> None:
        unit = self.width >> precision
        self.offset -= unit * start
        self.width = unit * length
        while self.width <= 1 << (STATE - WORD):
            word = self.message[self.place : self.place + WORD // 8].ljust(WORD // 8, b"\0")
            self.place += WORD // 8
            self.offset = (self.offset << WORD) | int.from_bytes(word, "big")
            self.width <<= WORD
