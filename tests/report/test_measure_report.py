"""The page, the tables and the sentences of `isotropy measure`, from made-up records."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from measure_records import LAYERS, comparison_record, entry, measure_record, measured_action
from report_pages import (
    CONFIG,
    EVIL,
    Page,
    assert_no_numbers_leak,
    assert_self_contained,
    nothing_known,
)

from isotropy.report.measure.figures import Bar, error_axis
from isotropy.report.measure.page import measure_page
from isotropy.report.measure.tables import MOST_LAYERS, layer_rows
from isotropy.report.measure.words import (
    action_sentence,
    error_text,
    is_clear,
    is_within_floor,
    largest_layers,
    measure_sentences,
    share_text,
    shares_by_kind,
)


@pytest.mark.parametrize(
    ("value", "spread", "text"),
    [
        (0.5234, 0.0211, "0.523 ± 0.021"),
        (0.0123, None, "0.0123"),
        (12.34, 1.2, "12.3 ± 1.2"),
        (1234.5, 20.0, "1,234 ± 20"),
        (3.2e-6, 1.6e-7, "(3.20 ± 0.16) × 10⁻⁶"),
        (4.1e12, None, "4.10 × 10¹²"),
        (-2.5e-5, 1e-5, "(−2.50 ± 1.00) × 10⁻⁵"),
        (0.0, None, "0"),
        (0.0, 2e-9, "(0.00 ± 2.00) × 10⁻⁹"),
        (None, 0.1, "–"),
        (math.nan, None, "–"),
        (0.2, math.nan, "0.200"),
    ],
)
def test_errors_have_three_digits(value: float | None, spread: float | None, text: str) -> None:
    assert error_text(value, spread) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.414, "41 %"), (0.0031, "0.3 %"), (-0.12, "−12 %"), (0.0, "0 %"), (1.0, "100 %")],
)
def test_shares(share: float, text: str) -> None:
    assert share_text(share) == text


def test_sentences_of_one_network() -> None:
    told = measure_sentences(measure_record())
    most = "the operation that breaks it most is `features.3` (MaxPool2d), 41 % of it"
    moved = "moved within ±15 degrees, 3.1 % of predictions change"
    assert told == [
        "The error of cnn is largest under rotation, 0.523, and smallest under amplitude, "
        "3.20 × 10⁻⁶.",
        f"Translation along x: error 0.0123 ± 0.0006; {most}; {moved}.",
        f"Rotation: error 0.523 ± 0.026; {most}; {moved}.",
        f"Scaling: error 0.0410 ± 0.0021; {most}; {moved}.",
        f"Amplitude: error (3.20 ± 0.16) × 10⁻⁶; {most}; {moved}.",
        "Quarter turns, without resampling: error 0.120 ± 0.010; 71.0 % of predictions change.",
        "Whole-pixel shifts, without resampling: error 0.00400 ± 0.00100.",
    ]
    brief = measure_sentences(measure_record(), brief=True)
    assert brief == [sentence.replace(f"; {moved}", "") for sentence in told]


def test_sentences_of_several() -> None:
    told = measure_sentences(comparison_record())
    assert len(told) == 1 + 8 + 2
    assert told[0] == (
        "Under translation along x cnn with blur on test has the smallest error, 0.00492, and mlp "
        "on rotated the largest, 0.738."
    )
    assert told[3] == (
        "cnn on test (94.0 % right): translation along x 0.0123 ± 0.0006, rotation 0.523 ± 0.026; "
        "the largest contribution is from `features.3` (MaxPool2d)."
    )
    assert told[-2:] == [
        "The clearest gap between data sets: the error of mlp under translation along x is "
        "0.240 ± 0.040 larger on rotated than on test.",
        "The clearest drift: the error under rotation on test is 0.200 ± 0.010 smaller for after "
        "than for before.",
    ]
    assert measure_sentences(comparison_record(), brief=True) == [told[0], *told[-2:]]


def test_names_are_short_where_there_is_one_data_set() -> None:
    record = measure_record(entry("mlp"), entry("cnn", factor=2))
    assert measure_sentences(record)[0] == (
        "Under translation along x mlp has the smallest error, 0.0123, and cnn the largest, 0.0246."
    )


def test_operations_that_differ_are_not_summed_up() -> None:
    record = measure_record(entry("mlp"), entry("cnn"))
    for number, action in enumerate(record["entries"][0]["actions"]):
        action["layers"][number]["share"] = 0.9
    told = measure_sentences(record)
    assert "largest contribution" not in told[1] and "largest contribution" in told[2]


def test_an_error_is_read_against_its_floor() -> None:
    action = measured_action("rotation", 0.5)
    assert not is_within_floor(action)
    action |= {"resampling_floor": 0.46, "standard_error": 0.3}
    assert not is_within_floor(action), "few examples are no excuse"
    action |= {"resampling_floor": 0.499, "standard_error": 0.03}
    assert is_within_floor(action)
    assert "error 0.500 ± 0.030, no more than resampling alone (0.499);" in action_sentence(action)
    assert not is_within_floor(action | {"resampling_floor": None})
    assert not is_within_floor(action | {"resampling_floor": 0.0, "error": 0.0})
    record = measure_record()
    record["entries"][0]["actions"] = [action]
    assert measure_sentences(record)[0] == (
        "As far as resampling can tell, cnn is equivariant to rotation."
    )
    assert "within the floor" in Page(measure_page(record, CONFIG)).text


def test_what_counteracts_is_not_the_culprit() -> None:
    action = measured_action("rotation", 0.5)
    for layer, share in zip(action["layers"], (-2.0, 1.4, 1.6, 0, 0, 0, 0), strict=True):
        layer["share"] = share
    assert "most is `features.3` (MaxPool2d), 160 % of it" in action_sentence(action)
    assert largest_layers(action, 2) == [0, 2], "but it is among the largest"


def test_shares_of_a_kind_add_up() -> None:
    action = measured_action("rotation", 0.5)
    action["layers"][5]["kind"] = "Conv2d"
    assert shares_by_kind(action) == (
        "MaxPool2d 41 %, ReLU 31 %, softmax 20 %, Conv2d 13 %, add −5.0 %"
    )
    assert shares_by_kind(action, most=2) == "MaxPool2d 41 %, ReLU 31 %, all others 28 %"


def test_without_shares_the_largest_norms_are_shown() -> None:
    action = measured_action("rotation", 0.5)
    for layer in action["layers"]:
        layer["share"] = None
    assert largest_layers(action, 2) == [2, 1]
    assert "breaks it most" not in action_sentence(action)


def test_a_finite_action_alone_and_one_that_was_not_measured() -> None:
    action = {"name": "horizontal_flip", "finite": {"error": 0.25, "standard_error": 0.05}}
    assert action_sentence(action) == "Horizontal flip: error 0.250 ± 0.050 when moved."
    assert action_sentence({"name": "scale"}) == "Scaling: not measured."
    assert action_sentence({"name": "scale", "remark": "No grid."}) == "Scaling: No grid."


@pytest.mark.parametrize(
    ("difference", "spread", "clear"),
    [(0.3, 0.1, True), (-0.3, 0.1, True), (0.19, 0.1, False), (0.0, 0.0, False),
     (0.1, 0.0, True), (0.1, None, False), (None, 0.1, False)],
)  # fmt: skip
def test_clear_differences(difference: float | None, spread: float | None, clear: bool) -> None:
    assert is_clear({"difference": difference, "standard_error": spread}) is clear


def test_page_of_one_network() -> None:
    page = measure_page(measure_record(), CONFIG)
    assert_self_contained(page)
    assert page == measure_page(measure_record(), CONFIG), "written twice, the same"
    parsed = Page(page)
    for expected in (
        "Largest local error 0.523 rotation, cnn",
        "Accuracy 93.0 %",
        "Rotation coordinate: radian 0.523 ± 0.026 0.0523 41 % features.3 (MaxPool2d)",
        "Amplitude coordinate: log factor (3.20 ± 0.16) × 10⁻⁶ – 41 % features.3 (MaxPool2d)",
        "Rotation ±15 degrees 0.157 ± 0.010 0.00523 3.1 ± 0.4 %",
        "Quarter turns 90°, 180°, 270° 0.120 ± 0.010 71.0 %",
        "Whole-pixel shifts 1 to 4 pixels, round the borders 0.00400 ± 0.00100 –",
        "EQ-T whole pixels, within 12.5 % of the width 4.00 × 10⁻⁴, 34.5 dB",
        "EQ-T frac fractions of a pixel, within 12.5 % of the width 0.00110 – –",
        "By kind of operation: MaxPool2d 41 %, ReLU 31 %, softmax 20 %",
        "Computed exactly, by forward-mode derivatives; the contributions miss the whole by "
        "2.50 × 10⁻⁷ of its size.",
        "3 features.3 MaxPool2d 0.302 ± 0.001 41 %",
        "4 flatten flatten 0.00523 ± 0.00145 0 % head",
        "bilinear, beyond the border: reflection",
        "It was taken on the class probabilities.",
        "isotropy measure",
    ):
        assert expected in parsed.text, expected
    assert "Side by side" not in parsed.text and "gap" not in parsed.text
    labels = _drawing_labels(parsed)
    assert len(labels) == 1 + 2 * 4, "bars; norms and shares of each transformation"
    assert labels[0].startswith("local errors: translation along x 0.0123 ± 0.0006; rotation 0.523")
    assert labels[4].startswith(
        "rotation: signed shares add up to 100 %; step 2 is features.1 (ReLU)"
    )
    assert page.count('<tr class="large">') == 3 * 4
    opened = [attributes for tag, attributes in parsed.tags if tag == "details"]
    assert ["open" in each for each in opened] == [True, False, False, False]


def _drawing_labels(parsed: Page) -> list[str]:
    return [
        attributes["aria-label"] or ""
        for tag, attributes in parsed.tags
        if tag == "svg" and attributes.get("role") == "img"
    ]


def test_page_of_several() -> None:
    record = comparison_record()
    page = measure_page(record, CONFIG)
    assert_self_contained(page)
    parsed = Page(page)
    for expected in (
        "Best accuracy 95.0 %",
        "cnn test 12,345 94.0 % 0.0123 ± 0.0006 0.523 ± 0.026 cnn rotated",
        "vit rotated 12,345 91.0 % 0.111 ± 0.006 – ",
        "From test to rotated Model Translation along x Rotation mlp +0.240 ± 0.040 +0.0400",
        "From before to after Data Rotation test −0.200 ± 0.010",
        "Each model",
    ):
        assert expected in parsed.text, expected
    clear = re.findall(r'<td class="number clear">([^<]*)<', page)
    assert clear == [
        "+0.240 ± 0.040", "+0.00600 ± 0.00110", "+0.00240 ± 0.00050", "+0.0360 ± 0.0061",
        "−0.200 ± 0.010",
    ]  # fmt: skip
    labels = _drawing_labels(parsed)
    count = {
        start: sum(label.startswith(start) for label in labels)
        for start in ("errors under", "accuracy and", "cumulative contributions under")
    }
    assert count == {
        "errors under": 2, "accuracy and": 2, "cumulative contributions under": 2
    }  # fmt: skip
    assert page.count('<details class="entry"') == 8
    assert page.count('<details class="entry" open>') == 1


@pytest.mark.parametrize(("scores", "drawn"), [((0.9, 0.8, 0.7), True), ((0.9, 0.8, None), False)])
def test_accuracy_is_drawn_for_three_or_more(scores: tuple[float | None, ...], drawn: bool) -> None:
    entries = [entry(f"net {number}", accuracy=score) for number, score in enumerate(scores)]
    for each in entries:
        each["actions"] = each["actions"][:1]
    page = Page(measure_page(measure_record(*entries), CONFIG))
    assert ("Accuracy against error" in page.text) is drawn


def test_a_long_network_stays_light() -> None:
    record = measure_record(entry(layers=150))
    page = measure_page(record, CONFIG)
    assert_self_contained(page)
    assert len(page.encode()) < 150_000
    assert "110 smaller operations are not listed; their shares add up to 0 %." in Page(page).text


def test_what_is_listed_of_a_long_network() -> None:
    action = measured_action("rotation", 0.5, layers=100)
    for index in (3, 40, 97):
        action["layers"][index]["share"] = 0.04
    rows, rest = layer_rows(action)
    assert len(rows) == MOST_LAYERS
    numbers = [row.number for row in rows]
    assert numbers == sorted(numbers), "in the order of the network"
    assert {4, 41, 98} <= set(numbers)
    assert {row.number for row in rows if row.is_large} == {2, 3, 7}
    assert "60 smaller operations" in rest
    shown, nothing = layer_rows(measured_action("rotation", 0.5))
    assert len(shown) == len(LAYERS) and nothing == ""


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


@pytest.mark.parametrize("missing", [None, math.nan, math.inf])
def test_every_number_may_be_missing(missing: float | None) -> None:
    for record in (measure_record(), comparison_record()):
        page = measure_page(nothing_known(record, missing), nothing_known(CONFIG, missing))
        assert_self_contained(page)
        assert 'role="img"' not in page, "nothing to draw"
        assert_no_numbers_leak(Page(page).text)


PARTS = {"entries", "actions", "gaps", "drifts", "versions", "on", "interpolation", "padding"}


@pytest.mark.parametrize("name", sorted(PARTS))
def test_every_part_may_be_null(name: str) -> None:
    assert_self_contained(measure_page({**_small(), name: None}, CONFIG))


def _small() -> dict[str, Any]:
    """One network under one transformation: quick to draw."""
    record = measure_record()
    record["entries"][0]["actions"] = record["entries"][0]["actions"][:1]
    return record


@pytest.mark.parametrize("name", sorted(entry()))
def test_every_part_of_an_entry_may_be_null(name: str) -> None:
    record = _small()
    record["entries"][0][name] = None
    page = measure_page(record, CONFIG)
    assert_self_contained(page)
    assert_no_numbers_leak(Page(page).text)


@pytest.mark.parametrize("name", sorted(measured_action("rotation", 0.5)))
def test_every_part_of_a_transformation_may_be_null(name: str) -> None:
    record = _small()
    record["entries"][0]["actions"][0][name] = None
    page = measure_page(record, CONFIG)
    assert_self_contained(page)
    assert_no_numbers_leak(Page(page).text)


@pytest.mark.parametrize("name", ["name", "kind", "norm", "norm_error", "share", "judged_at"])
def test_every_part_of_a_layer_may_be_null(name: str) -> None:
    record = _small()
    for layer in record["entries"][0]["actions"][0]["layers"]:
        layer[name] = None
    page = measure_page(record, CONFIG)
    assert_self_contained(page)
    assert_no_numbers_leak(Page(page).text)


def test_errors_of_zero_are_drawn() -> None:
    record = _small()
    action = record["entries"][0]["actions"][0]
    action |= {"error": 0.0, "standard_error": 0.0, "resampling_floor": 0.0}
    for layer in action["layers"]:
        layer |= {"norm": 0.0, "norm_error": 0.0, "share": None}
    page = measure_page(record, CONFIG)
    assert_self_contained(page)
    assert "no operation contributes" in Page(page).text


def test_probes_and_remarks_are_told() -> None:
    record = _small()
    action = record["entries"][0]["actions"][0]
    action["attribution"] = {"method": "probes", "probes": 32, "closure": None}
    assert "Computed by 32 random probes." in Page(measure_page(record, CONFIG)).text
    action |= {"layers": [], "attribution": None, "remark": "the layers could not be followed"}
    record["entries"][0]["exact"] = [
        {"name": "quarter turns", "what": "", "error": None, "remark": "images are not square"}
    ]
    text = Page(measure_page(record, CONFIG)).text
    assert "Translation along x: the layers could not be followed" in text
    assert "Quarter turns: images are not square." in text
    assert "Layer by layer" not in text


def test_fourier_interpolation_has_no_padding() -> None:
    text = Page(measure_page({**_small(), "interpolation": "fourier"}, CONFIG)).text
    assert "(fourier, beyond the border: repeated)" in text and "reflection" not in text


def test_a_bare_record() -> None:
    assert measure_sentences({}) == ["Nothing was measured."]
    assert "Nothing was measured." in Page(measure_page({}, {})).text
    two = [{"model": "a"}, {"model": "b"}]
    assert measure_sentences({"entries": two})[0] == "No local error was measured."
    assert measure_sentences({"entries": [{}]}) == ["No local error of the model was measured."]


def test_one_network_on_several_data_sets_goes_by_their_names() -> None:
    record = measure_record(entry("cnn", "train"), entry("cnn", "test"))
    told = measure_sentences(record)
    assert told[0].startswith("The error of cnn is largest under")
    assert any(sentence.startswith("train (") for sentence in told)
    assert not any("cnn on train" in sentence for sentence in told)
    both = measure_record(entry("cnn", "train"), entry("vit", "test"))
    assert any(sentence.startswith("vit on test (") for sentence in measure_sentences(both))


def test_text_is_escaped() -> None:
    record = measure_record(entry(EVIL, EVIL), entry("cnn", "test"))
    for each in record["entries"]:
        each["actions"] = each["actions"][:1]
        each |= {"data_name": EVIL, "output": EVIL}
        each["exact"][0] |= {"name": EVIL, "what": EVIL, "remark": EVIL}
        action = each["actions"][0]
        action |= {"name": EVIL, "unit": EVIL, "remark": EVIL}
        action["finite"]["amounts"] = EVIL
        action["layers"][2] |= {"name": EVIL, "kind": EVIL, "judged_at": EVIL}
    record |= {"on": EVIL, "interpolation": EVIL, "padding": EVIL}
    record["gaps"] = [{"model": EVIL, "action": EVIL, "from": EVIL, "to": EVIL, "difference": 1}]
    page = measure_page(record, {EVIL: {EVIL: EVIL}})
    assert "<script" not in page
    assert Page(page).text.count(EVIL) >= 20
