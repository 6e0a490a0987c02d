"""Numbers, amounts and names as text: cases are data."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from isotropy.report.wording import (
    READINGS,
    duration_text,
    error_text,
    gain_text,
    interval_text,
    joined,
    nats_text,
    number_text,
    part_text,
    share_text,
    shortened,
    spoken_name,
    worded_amount,
)

TEXTS: list[tuple[Callable[..., str], tuple[Any, ...], str]] = [
    (number_text, (-1234.56, 1), "−1,234.6"),
    (number_text, (0.0,), "0.00"),
    (number_text, (-0.0001,), "0.00"),
    (number_text, (None,), "–"),
    (number_text, (math.nan,), "–"),
    (number_text, (-math.inf,), "–"),
    (number_text, ("seven",), "–"),
    (number_text, (True,), "–"),
    (number_text, (16, 0), "16"),
    (gain_text, (1.0821, 0.0012), "1.08 ± 0.00"),
    (gain_text, (0.0312, 0.0021), "0.031 ± 0.002"),
    (gain_text, (-0.0071, 0.0064), "−0.0071 ± 0.0064"),
    (gain_text, (0.0998, None), "0.10"),
    (gain_text, (None, 0.1), "–"),
    (nats_text, (283.6,), "284"),
    (nats_text, (9.96,), "10"),
    (nats_text, (9.94,), "9.9"),
    (nats_text, (-0.04,), "0.0"),
    (duration_text, (12.34,), "12.3 s"),
    (duration_text, (59.97,), "1 min 00 s"),
    (duration_text, (203.4,), "3 min 23 s"),
    (duration_text, (3900,), "1 h 05 min"),
    (duration_text, (None,), "–"),
    (error_text, (0.5234, 0.0211), "0.523 ± 0.021"),
    (error_text, (0.0123, None), "0.0123"),
    (error_text, (12.34, 1.2), "12.3 ± 1.2"),
    (error_text, (1234.5, 20.0), "1,234 ± 20"),
    (error_text, (3.2e-6, 1.6e-7), "(3.20 ± 0.16) × 10⁻⁶"),
    (error_text, (4.1e12,), "4.10 × 10¹²"),
    (error_text, (-2.5e-5, 1e-5), "(−2.50 ± 1.00) × 10⁻⁵"),
    (error_text, (0.0,), "0"),
    (error_text, (0.0, 2e-9), "(0.00 ± 2.00) × 10⁻⁹"),
    (error_text, (None, 0.1), "–"),
    (error_text, (0.2, math.nan), "0.200"),
    (share_text, (0.414,), "41 %"),
    (share_text, (0.0031,), "0.3 %"),
    (share_text, (-0.12,), "−12 %"),
    (share_text, (0.0,), "0 %"),
    (part_text, (0.9999998,), "> 99.9 %"),
    (part_text, (1e-7,), "< 0.1 %"),
    (part_text, (0.0,), "0.0 %"),
    (part_text, (1.0,), "100.0 %"),
    (part_text, (math.nan,), "–"),
    (interval_text, ((170.2, 180.0), "degrees"), "±170° to ±180°"),
    (interval_text, ((0.0, 0.034), "log factor"), "0 to ±0.034"),
    (interval_text, ((0.41, 0.5), "probability"), "0.41 to ½"),
    (interval_text, ((), "degrees"), "–"),
    (worded_amount, (178.2, "degrees"), "±178°"),
    (worded_amount, (0.498, "probability"), "probability ½"),
    (worded_amount, (math.nan, "degrees"), "–"),
    (spoken_name, ("rotation_z",), "rotation about z"),
    (spoken_name, ("turn_90",), "turn by 90°"),
    (spoken_name, ("horizontal_flip",), "horizontal flip"),
    (joined, ([],), ""),
    (joined, (["a"],), "a"),
    (joined, (["a", "b", "c"],), "a, b and c"),
    (shortened, ("a long name", 6), "a lon…"),
    (shortened, ("short", 5), "short"),
]


@pytest.mark.parametrize(("function", "given", "expected"), TEXTS)
def test_texts(function: Callable[..., str], given: tuple[Any, ...], expected: str) -> None:
    assert function(*given) == expected


def test_thresholds_are_the_documented_ones() -> None:
    assert {unit: reading.found for unit, reading in READINGS.items()} == {
        "degrees": 20.0,
        "fraction of image width": 0.05,
        "fraction of length": 0.05,
        "log factor": 0.1,
        "tangent": 0.1,
        "grey level": 0.1,
        "unit length": 0.1,
        "probability": 0.1,
    }
