"""How the kernels of small convolutions cut up their work: geometry, strips, tiles.

    place    STRIP rows of the output in one column of one image
    k        (channel, row, column) of what a place reads: step·(STRIP − 1) + kernel rows

A longer strip reads fewer pixels for each row, and wastes more of a product whose sides are powers
of two, or the last strip of an image. The strip is chosen by what is fetched in all. Numbers only:
nothing here needs Triton.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

Pair = tuple[int, int]

# Rows of a product on matrix units; strips fill them.
_LEAST = 16
_WIDEST = 32
# Warps of the weight's gradient: fixed, so that its sum does not depend on the device.
_WARPS = 4096
# How many k are written out in a program: the longer, the fewer are computed, and the longer it
# takes to compile.
_UNROLLED = {"tf32": 256, "ieee": 128, "double": 64}


@dataclass(frozen=True)
class Tiles:
    """How much a program takes: `positions` places at once, by so many warps.

    chunk: of the k at once, chosen by how many there are where it is 0
    stages: how many tiles are on their way from memory in a loop
    strip: rows of the output in a place, chosen by what is fetched where it is 0
    """

    positions: int
    warps: int
    chunk: int = 0
    stages: int = 1
    strip: int = 0


_VALUE_TILES = Tiles(positions=64, warps=2)
_WEIGHT_TILES = Tiles(positions=32, warps=1)
# Plain sums have all products of a tile in registers.
_DOUBLE_TILES = Tiles(positions=32, warps=4, chunk=16)
_DOUBLE_WEIGHT_TILES = Tiles(positions=16, warps=8)


def output_size(size: Pair, kernel: Pair, stride: Pair, padding: Pair) -> Pair:
    """Height and width of what a convolution leaves of `size`."""
    height, width = (
        (size[axis] + 2 * padding[axis] - kernel[axis]) // stride[axis] + 1 for axis in (0, 1)
    )
    return height, width


@dataclass(frozen=True)
class Geometry:
    """A convolution in space: from `size`, spread and with margins, to `to`."""

    size: Pair
    to: Pair
    kernel: Pair
    step: Pair
    spread: Pair
    padding: Pair

    def reach(self, strip: int) -> int:
        """Rows that a strip reads."""
        return (strip - 1) * self.step[0] + self.kernel[0]

    def strips(self, strip: int) -> int:
        """How many strips of this length an image has."""
        return -(-self.to[0] // strip)

    def inner(self, strip: int, channels: int) -> int:
        """How many k there are."""
        return channels * self.reach(strip) * self.kernel[1]

    def is_checked(self, strip: int) -> bool:
        """Whether a place may be read that is not there."""
        lengths = self.strips(strip) * strip, self.to[1]
        last = [
            (length - 1) * step + kernel - padding
            for length, step, kernel, padding in zip(
                lengths, self.step, self.kernel, self.padding, strict=True
            )
        ]
        beyond = any(end > length for end, length in zip(last, self.size, strict=True))
        return beyond or max(self.padding) > 0 or max(self.spread) > 1

    def constants(self, strip: int, channels: int, maps: int, tiles: Tiles) -> dict[str, Any]:
        """What both kernels are told."""
        return {
            "CHANNELS": channels, "HEIGHT": self.size[0], "WIDTH": self.size[1],
            "MAPS": maps, "TO_HEIGHT": self.to[0], "TO_WIDTH": self.to[1],
            "KERNEL_ROWS": self.kernel[0], "KERNEL_COLUMNS": self.kernel[1],
            "STEP": self.step[0], "STEP_ACROSS": self.step[1],
            "SPREAD": self.spread[0], "SPREAD_ACROSS": self.spread[1],
            "PADDING": self.padding[0], "PADDING_ACROSS": self.padding[1],
            "STRIP": strip, "STRIPS": self.strips(strip), "REACH": self.reach(strip),
            "CHECKED": self.is_checked(strip), "POSITIONS": tiles.positions,
            "num_warps": tiles.warps, "num_stages": tiles.stages,
        }  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """How a kernel runs: in how many programs of how many tiles, with which numbers."""

    programs: int
    steps: int
    strip: int
    rows: int
    columns: int
    constants: dict[str, Any]


def _padded(size: int) -> int:
    return max(_LEAST, 1 << (size - 1).bit_length())


@lru_cache(maxsize=256)
def value_plan(
    geometry: Geometry, count: int, channels: int, maps: int, precision: str, tiles: Tiles | None
) -> Plan:
    tiles = tiles or (_DOUBLE_TILES if precision == "double" else _VALUE_TILES)

    unrolled = _UNROLLED.get(precision, _UNROLLED["tf32"])

    def group(strip: int) -> int:
        """Channels at once; for the others the program runs through the same code again."""
        fitting = (size for size in range(1, channels + 1) if channels % size == 0)
        return max(each for each in fitting if each == 1 or geometry.inner(strip, each) <= unrolled)

    def cost(strip: int) -> int:
        """Pixels that are fetched for one column of an image."""
        each = group(strip)
        return geometry.strips(strip) * (channels // each) * -(-geometry.inner(strip, each) // 32)

    longest = max(1, min(geometry.to[0], _LEAST // maps))
    strip = tiles.strip or min(range(1, longest + 1), key=cost)
    each = group(strip)
    rows, inner = _padded(maps * strip), geometry.inner(strip, each)
    # Without matrix units both factors of a chunk are in registers. Longer chunks than these are
    # slower, and in full float32 compiled wrongly (Triton 3.6, sm_90: numbers never written).
    chunk = min(tiles.chunk or 32, 16 if precision == "ieee" else 32)
    constants = geometry.constants(strip, channels, maps, tiles)
    constants |= {"GROUP": each, "GROUPS": channels // each}
    constants |= {"ROWS": rows, "CHUNK": chunk, "CHUNKS": -(-inner // chunk)}
    places = count * geometry.strips(strip) * geometry.to[1]
    programs = -(-places // tiles.positions)
    return Plan(programs, 1, strip, rows, 0, constants | {"PRECISION": precision})


@lru_cache(maxsize=256)
def weight_plan(
    geometry: Geometry, count: int, channels: int, maps: int, precision: str, tiles: Tiles | None
) -> Plan:
    tiles = tiles or (_DOUBLE_WEIGHT_TILES if precision == "double" else _WEIGHT_TILES)

    def sizes(strip: int) -> Pair:
        return _padded(geometry.inner(strip, channels)), _padded(maps * strip)

    def cost(strip: int) -> int:
        """Numbers that are fetched for one column of an image, and products on matrix units."""
        rows, columns = sizes(strip)
        return geometry.strips(strip) * (rows + columns + rows * columns // 16)

    longest = max(1, min(geometry.to[0], _WIDEST // maps))
    strip = tiles.strip or min(range(1, longest + 1), key=cost)
    rows, columns = sizes(strip)
    if rows > 64 and tiles is _WEIGHT_TILES:
        tiles = replace(tiles, warps=4 if rows <= 128 else 8)
    constants = geometry.constants(strip, channels, maps, tiles)
    constants |= {"ROWS": rows, "COLUMNS": columns, "PRECISION": precision}
    pieces = -(-count * geometry.strips(strip) * geometry.to[1] // tiles.positions)
    steps = max(1, -(-pieces * tiles.warps // _WARPS))
    return Plan(-(-pieces // steps), steps, strip, rows, columns, constants)
