"""How errors, shares and differences of `isotropy measure` are read, listed and drawn."""

from __future__ import annotations

import math
from typing import Any

import pytest
from report_pages import Page, result_of
from sentence_cases import action, measured

from isotropy.report.measured import Difference, MeasuredAction
from isotropy.report.pages.measure import action_sentence, measure_page, shares_by_kind
from isotropy.report.pages.measure_parts import MOST_LAYERS, Bar, clearness, error_axis, layer_table
from isotropy.report.record import read


def rotation(**changes: Any) -> MeasuredAction:
    return read(MeasuredAction, action(**changes))


def with_shares(*shares: float | None, count: int = 7) -> MeasuredAction:
    """The stored rotation with these shares of its operations, and so many of them."""
    layers = (action()["layers"] * count)[:count]
    given = [*shares, *(0.0 for _ in layers[len(shares) :])]
    return rotation(layers=[{**a, "share": s} for a, s in zip(layers, given, strict=True)])


def test_an_error_is_read_against_its_floor() -> None:
    assert not rotation().is_within_floor
    assert not rotation(resampling_floor=0.46, standard_error=0.3).is_within_floor, "no excuse"
    assert rotation(resampling_floor=0.52).is_within_floor
    assert not rotation(resampling_floor=None).is_within_floor
    assert not rotation(resampling_floor=0.0, error=0.0).is_within_floor


def test_what_counteracts_is_not_the_culprit() -> None:
    own = with_shares(-2.0, 1.4, 1.6)
    assert own.culprit is own.layers[2]
    assert own.largest(2) == [0, 2], "but it is among the largest"


def test_without_shares_the_largest_norms_are_shown() -> None:
    own = with_shares(*[None] * 7)
    norms = [layer.norm for layer in own.layers]
    assert own.largest(2) == sorted(range(7), key=lambda index: -norms[index])[:2]
    assert own.culprit is None and "breaks it most" not in action_sentence(own)


def test_shares_of_a_kind_add_up() -> None:
    layers = action()["layers"]
    layers[5]["kind"] = "Conv2d"
    assert shares_by_kind(rotation(layers=layers)) == (
        "MaxPool2d 41 %, ReLU 31 %, softmax 20 %, Conv2d 13 %, add −5.0 %"
    )
    many = [{"kind": str(n), "share": 0.3 - 0.04 * n} for n in range(7)]
    assert shares_by_kind(rotation(layers=many)).endswith("4 14 %, all others 16 %")


@pytest.mark.parametrize(
    ("difference", "spread", "clear"),
    [(0.3, 0.1, True), (-0.3, 0.1, True), (0.19, 0.1, False), (0.0, 0.0, False),
     (0.1, 0.0, True), (0.1, None, False), (None, 0.1, False)],
)  # fmt: skip
def test_clear_differences(difference: float | None, spread: float | None, clear: bool) -> None:
    row = read(Difference, {"difference": difference, "standard_error": spread})
    assert (clearness(row) > 2) is clear


def test_what_is_listed_of_a_long_network() -> None:
    shares = [0.04 if index in (3, 40, 97) else 0.0 for index in range(100)]
    shares[5] = 0.9
    table, rest = layer_table(with_shares(*shares, count=100))
    numbers = [int(row[0].text) for row in table.rows]
    assert len(numbers) == MOST_LAYERS and numbers == sorted(numbers), "in the network's order"
    assert {4, 6, 41, 98} <= set(numbers)
    assert {numbers[place] for place in table.marked} == {6, 4, 41}
    assert "60 smaller operations are not listed; their shares add up to 0 %." in rest
    every, nothing = layer_table(rotation())
    assert len(every.rows) == len(rotation().layers) and nothing == ""


@pytest.mark.parametrize(
    ("values", "is_logarithmic", "low"),
    [((1.0, 20.0), False, 0.0), ((1.0, 40.0), True, 0.1), ((0.0, 0.0), False, 0.0),
     ((0.02, 3.0), True, 0.01), ((1e-16, 1.0), True, 1e-9), ((), False, 0.0)],
)  # fmt: skip
def test_axis_of_errors(values: tuple[float, ...], is_logarithmic: bool, low: float) -> None:
    axis = error_axis([Bar("net", value) for value in values])
    assert axis.is_logarithmic is is_logarithmic
    assert axis.low == pytest.approx(low)
    assert axis.high > max([axis.low, *values])


def test_axis_of_errors_holds_whiskers_and_floors() -> None:
    assert error_axis([Bar("net", 1.0, 0.5, 0.1)]).high >= 1.5
    assert error_axis([Bar("net", 1.0, 0.5, 3.0)]).high >= 3.0
    assert math.isfinite(error_axis([Bar("net", math.nan)]).high)


def page_of(*entries: dict[str, Any], **changes: Any) -> Page:
    return Page(measure_page(measured(*entries, **changes), {}))


@pytest.mark.parametrize(("scores", "drawn"), [((0.9, 0.8, 0.7), True), ((0.9, 0.8, None), False)])
def test_accuracy_is_drawn_for_three_or_more(scores: tuple[float | None, ...], drawn: bool) -> None:
    entries = [
        {"model": f"net {place}", "accuracy": score, "actions": [action(layers=[])]}
        for place, score in enumerate(scores)
    ]
    assert ("Accuracy against error" in page_of(*entries).text) is drawn


def test_errors_of_zero_are_drawn() -> None:
    layers = [{**each, "norm": 0.0, "share": None} for each in action()["layers"]]
    zero = action(error=0.0, standard_error=0.0, resampling_floor=0.0, layers=layers)
    assert "no operation contributes" in page_of({"actions": [zero]}).text


def test_probes_and_remarks_are_told() -> None:
    probes = {"method": "probes", "probes": 32, "closure": None}
    text = page_of({"actions": [action(attribution=probes)]}).text
    assert "Computed by 32 random probes." in text
    text = page_of({"actions": [action(layers=[], remark="could not be followed")]}).text
    assert "Rotation: could not be followed" in text and "Layer by layer" not in text


def test_fourier_interpolation_has_no_padding() -> None:
    result = result_of("measure", interpolation="fourier")
    result["entries"][0]["actions"][0]["layers"] = []
    text = Page(measure_page(result, {})).text
    assert "(fourier, beyond the border: repeated)" in text and "reflection" not in text
