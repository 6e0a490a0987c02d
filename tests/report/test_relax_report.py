"""The page and the sentences of relaxed networks, from made-up records."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from relax_records import EPOCHS, LAYERS, relax_record, relaxed_layer
from report_pages import (
    EVIL,
    Page,
    assert_no_numbers_leak,
    assert_self_contained,
    nothing_known,
)

from isotropy.evidence.layers import structure as layer_structure
from isotropy.networks.pathways.relaxed_layer import PATHWAYS
from isotropy.report.relax.figures import paints
from isotropy.report.relax.page import (
    BIAS_MAP,
    BIAS_MAP_MEANING,
    WORDS,
    became_words,
    curve_drawings,
    headline,
    layer_parts,
    part_text,
    relax_page,
    relax_sentences,
    score_sentences,
    shares_text,
)

KINDS = ("ffc", "conv")


def small_record(**changes: Any) -> dict[str, Any]:
    """Two layers and three epochs: little to draw, and every part is there."""
    record = relax_record()
    rows = [row for row in record["epochs"] if row["epoch"] in (4, 5, 10)]
    for row in rows:
        row["layers"] = None if row["layers"] is None else row["layers"][:1]
    return {**record, "layers": record["layers"][:2], "epochs": rows, **changes}


def layers(*became: str, kinds: tuple[str, ...] = KINDS) -> list[dict[str, Any]]:
    """Layers that became these, in order."""
    return [
        {**relaxed_layer(f"stage{place + 1}", kinds, "conv", 0.2), "became": each}
        for place, each in enumerate(became)
    ]


# --- sentences ------------------------------------------------------------------------------------


def test_sentences() -> None:
    assert relax_sentences(relax_record()) == [
        "Of 8 layers 7 became convolutions and 1 became fully connected.",
        "Fully connected: stage7.",
        "Hardened: 402,030 of 1,771,945 parameters are left, 4.4 times fewer; test accuracy "
        "96.10 %, before 96.12 %.",
    ]
    assert score_sentences(relax_record()) == [
        "Test accuracy 96.1 %, negative log likelihood 0.137 nats per example.",
        "Log evidence −1,834.2 nats, −0.917 per example.",
    ]


def test_hardening_that_changes_nothing_says_so() -> None:
    same = {"num_parameters": 1771945, "test_accuracy": 0.9612, "test_nll": 0.1374}
    assert relax_sentences(relax_record(hardened=same))[-1] == (
        "Hardened: no pathway was switched off, all 1,771,945 parameters stay."
    )
    unscored = {"num_parameters": 402030, "test_accuracy": None, "test_nll": None}
    assert relax_sentences(relax_record(hardened=unscored))[-1] == (
        "Hardened: 402,030 of 1,771,945 parameters are left, 4.4 times fewer."
    )


HEADLINES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "all": (layers("conv", "conv"), "All 2 layers became convolutions."),
    "one layer": (layers("ffc"), "The one layer became fully connected."),
    "sums": (
        layers("conv", "conv", "conv + ffc"),
        "Of 3 layers 2 became convolutions and 1 stayed a sum of pathways.",
    ),
    "all sums": (layers("conv + ffc", "ffc + conv"), "All 2 layers stayed sums of pathways."),
    "same symmetry": (layers("conv", "sconv"), "All 2 layers became convolutions."),
    "groups": (
        layers("gconv", "gconv", "conv"),
        "Of 3 layers 2 became group convolutions and 1 became a convolution.",
    ),
    "most first": (
        layers("ffc", "conv", "conv", "gconv"),
        "Of 4 layers 2 became convolutions, 1 became fully connected and 1 became a group "
        "convolution.",
    ),
    "bias maps": (
        layers("conv + bias map", "conv", "conv", "ffc + bias map", "conv + bias map"),
        "Of 5 layers 2 became convolutions with bias maps, 2 became convolutions and 1 became "
        "fully connected with a bias map.",
    ),
    "all with bias maps": (
        layers("gconv + bias map", "gconv + bias map"),
        "All 2 layers became group convolutions with bias maps.",
    ),
    "sums with bias maps": (
        layers("conv + ffc + bias map", "conv + ffc"),
        "All 2 layers stayed sums of pathways.",
    ),
    "off": (layers("conv", "off"), "Of 2 layers 1 became a convolution and 1 is switched off."),
    "own kind": (layers("mine", "mine"), "All 2 layers became mine."),
    "not known": (
        layers("", "conv"),
        "Of 2 layers 1 became a convolution and 1 became something that is not known.",
    ),
    "nothing known": (layers("", ""), "What all 2 layers became is not known."),
    "none": ([], "No layer has pathways."),
}


@pytest.mark.parametrize(("given", "expected"), HEADLINES.values(), ids=HEADLINES)
def test_headlines(given: list[dict[str, Any]], expected: str) -> None:
    assert headline(relax_record(layers=given)) == expected


def test_layers_that_are_sums_are_told_with_their_shares() -> None:
    record = relax_record(layers=layers("conv", "conv", "conv + ffc"), hardened=None)
    assert relax_sentences(record)[1:] == ["A sum of pathways: stage3 (conv 80.0 %, ffc 20.0 %)."]


def test_a_bias_map_is_explained_once_if_there_is_one() -> None:
    record = small_record(
        layers=layers("conv", "conv + bias map", "conv", "conv + ffc + bias map"), hardened=None
    )
    assert relax_sentences(record) == [
        "Of 4 layers 2 became convolutions, 1 became a convolution with a bias map and 1 stayed a "
        "sum of pathways.",
        "A convolution with a bias map: stage2.",
        "A sum of pathways: stage4 (conv 80.0 %, ffc 20.0 %).",
        BIAS_MAP_MEANING,
    ]
    page = Page(relax_page(record))
    assert page.text.count(BIAS_MAP_MEANING) == 1
    assert "stage2 conv + bias map" in page.text
    assert_no_numbers_leak(page.text)
    for others in ({"layers": layers("conv")}, {"objective": "map"}):
        assert BIAS_MAP_MEANING not in relax_sentences({**record, **others})


def test_the_words_are_those_of_the_structures() -> None:
    assert BIAS_MAP == layer_structure.BIAS_MAP
    words = layer_structure.became({"conv": 1.0}, {"conv": 1.0}, 0.5)
    assert became_words({"became": words})[0] == "a convolution with a bias map"


def test_records_from_before_bias_maps_read_the_same() -> None:
    new, old = small_record(), small_record()
    for layer in old["layers"]:
        del layer["bias_map"]
    assert relax_page(old) == relax_page(new)
    for layer in old["layers"]:
        del layer["contribution"]
    assert_no_numbers_leak(Page(relax_page(old)).text)


def test_without_a_choice_nothing_became_anything() -> None:
    fixed = relax_record(objective="map")
    assert headline(fixed) == (
        "All 8 layers keep ffc and conv: training by MAP does not choose between pathways."
    )
    single = relax_record(pathways=["conv"], hardened=None)
    assert relax_sentences(single) == [
        "All 8 layers have one pathway, conv: there was nothing to choose."
    ]
    for changes in ({"objective": "map"}, {"pathways": ["conv"]}):
        text = Page(relax_page(small_record(epochs=[], **changes))).text
        assert "What each layer became" not in text and "The pathways of each layer" in text
        assert ("All prior precisions were fixed" in text) == ("objective" in changes)


UNTAKEN: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "burn-in": (
        {"config": {"epochs": 5, "burn_in": 9, "update_every": 1}},
        ("the burn-in of 9 epochs is longer than the run of 5", "Set burn_in to less than 5"),
    ),
    "seldom": (
        {"config": {"epochs": 5, "burn_in": 0, "update_every": 9}},
        ("update_every is 9 and the run has 5 epochs", "Set update_every to less than 5"),
    ),
    "loss": (
        {"config": {"epochs": 5, "burn_in": 1, "update_every": 1}, "train_loss": 2.25},
        ("loss had not fallen", "(it ended at 2.250 nats per example)", "Train for more epochs"),
    ),
    "nothing known": ({"config": None, "train_loss": None}, ("loss had not fallen",)),
}


@pytest.mark.parametrize(("changes", "named"), UNTAKEN.values(), ids=UNTAKEN)
def test_a_run_without_a_hyper_step_says_so_and_why(
    changes: dict[str, Any], named: tuple[str, ...]
) -> None:
    nothing = [{**layer, "became": None} for layer in relax_record()["layers"]]
    record = relax_record(hyper_steps=0, layers=nothing, hardened=None, **changes)
    (sentence,) = relax_sentences(record)
    start = "What all 8 layers became is not known: no step on prior precisions was taken, since "
    assert sentence.startswith(start)
    assert all(each in sentence for each in named)
    page = Page(relax_page(record))
    assert sentence in page.text and "What each layer became" not in page.text
    assert "they are where they started" in page.text and "was learned by" not in page.text
    assert "became conv" not in page.text
    assert headline({**record, "objective": "map"}).endswith("does not choose between pathways.")
    assert headline({**record, "pathways": ["conv"]}).endswith("there was nothing to choose.")
    for steps in ({}, {"hyper_steps": 3}):
        assert headline(relax_record(**steps)).startswith("Of 8 layers 7 became")


def test_every_pathway_has_its_words() -> None:
    assert set(PATHWAYS) <= set(WORDS)


def test_parts_near_the_ends_are_not_rounded_to_them() -> None:
    texts = {0.9999998: "> 99.9 %", 1e-7: "< 0.1 %", 0.0: "0.0 %", 1.0: "100.0 %", 0.41: "41.0 %"}
    assert {value: part_text(value) for value in texts} == texts
    assert part_text(math.nan) == part_text(None) == "–"
    assert shares_text({"effective": {"ffc": 0.3, "conv": 0.7, "gconv": None}}) == (
        "conv 70.0 %, ffc 30.0 %"
    )


# --- the page -------------------------------------------------------------------------------------


def drawings_of(page: str) -> list[str]:
    """What readers who cannot see the drawings are told."""
    return [
        attributes["aria-label"] or ""
        for tag, attributes in Page(page).tags
        if tag == "svg" and attributes.get("role") == "img"
    ]


@pytest.mark.parametrize("kinds", [KINDS, ("ffc", "conv", "gconv")], ids=",".join)
def test_page_is_whole(kinds: tuple[str, ...]) -> None:
    record = relax_record(kinds, command_line="isotropy relax --quick --harden")
    page = relax_page(record)
    assert_self_contained(page)
    assert page == relax_page(record), "written twice, the same"
    text = Page(page).text
    for expected in (
        "Of 8 layers 7 became convolutions and 1 became fully connected.",
        "96.1 % 1,000 test examples; negative log likelihood 0.137",
        "−0.917 −1,834.2 nats in total",
        "1,771,945 402,030 when hardened",
        "conv 3,600 231 10.7 0.500 > 99.9 %",
        "614,400 2.27 × 10⁷ 1.30 × 10⁻⁹",
        "isotropy relax --quick --harden",
        "2000 images that come with it.",
        "prior_rate 0.1",
        "task digit-quadrant",
    ):
        assert expected in text, expected
    assert ("Group convolutions are those of C(4)" in text) == ("gconv" in kinds)
    labels = drawings_of(page)
    assert len(labels) == 1 + LAYERS + 3
    assert "stage1 conv > 99.9 %" in labels[0] and "stage7 ffc > 99.9 %" in labels[0]
    assert labels[7].startswith("stage7 over the epochs: ffc from 70.5 % to 99.3 %")


def test_table_has_a_line_for_each_layer_and_pathway() -> None:
    parts = layer_parts(relax_record())
    assert [part.name for part in parts] == [f"stage{place}" for place in range(1, LAYERS + 1)]
    assert [part.became for part in parts] == ["conv"] * 6 + ["ffc", "conv"]
    assert all([row.kind for row in part.pathways] == list(KINDS) for part in parts)
    assert [row.in_use for row in parts[6].pathways] == [True, False]
    precisions = re.findall(r"<code>(\w+\.\w+)</code>", relax_page(relax_record(epochs=[])))
    assert precisions == ["ffc.readout", "ffc.spread", "conv.weight"] * LAYERS


def test_a_layer_may_lack_a_pathway() -> None:
    record = small_record(epochs=[])
    for column in record["layers"][0].values():
        if isinstance(column, dict):
            column.pop("ffc", None)
    assert [row.kind for row in layer_parts(record)[0].pathways] == ["conv"]
    assert_self_contained(relax_page(record))


def test_evidence_is_drawn_per_example() -> None:
    record = relax_record()
    last = record["epochs"][-1]["log_evidence"] / record["train_examples"]
    evidence = curve_drawings(record)[0]
    assert evidence.title == "Log evidence per example"
    assert f"evidence ends at −{-last:.3f}" in evidence.svg
    (total, *_) = curve_drawings(relax_record(train_examples=None))
    assert total.title == "Log evidence"


def test_pathways_of_one_family_are_told_apart() -> None:
    found = paints(["fc", "conv", "ffc", "sconv", "gconv", "gconv-full"])
    assert len({(paint.colour, paint.opacity) for paint in found.values()}) == len(found)
    assert found["fc"].variable == found["ffc"].variable == "var(--truth)"
    assert found["conv"].variable == "var(--accent)" != found["gconv"].variable


def test_colours_are_those_of_the_key() -> None:
    page = relax_page(small_record())
    key = re.findall(r'fill="(var\(--\w+\))" opacity="[\d.]+"/></svg>(\w+)', page)
    assert key == [("var(--truth)", "ffc"), ("var(--accent)", "conv")] * 2
    assert "#0" not in re.sub(r"<style>.*?</style>|href=\"#|url\(#", "", page, flags=re.S)


def test_a_short_run_has_no_course() -> None:
    record = relax_record()
    record["epochs"] = record["epochs"][:5]
    text = Page(relax_page(record)).text
    assert "How it came about" not in text and f"{EPOCHS} epochs" not in text


@pytest.mark.parametrize("missing", [None, math.nan, -math.inf])
def test_every_number_may_be_missing(missing: float | None) -> None:
    page = relax_page(nothing_known(small_record(), missing))
    assert_self_contained(page)
    assert drawings_of(page) == [], "nothing to draw"
    assert_no_numbers_leak(Page(page).text)


def test_every_part_may_be_null() -> None:
    for name in relax_record():
        # Epochs are the slow part to draw; they are there where something else goes with them.
        kept = {} if name in ("layers", "pathways") else {"epochs": []}
        page = relax_page(small_record(**{**kept, name: None}))
        assert_self_contained(page)
        assert_no_numbers_leak(Page(page).text)


@pytest.mark.parametrize("where", ["layers", "epochs"])
def test_every_part_of_a_part_may_be_null(where: str) -> None:
    for name in relax_record()[where][0]:
        record = small_record(**({"epochs": []} if where == "layers" else {"layers": []}))
        record[where][-1][name] = None
        page = relax_page(record)
        assert_self_contained(page)
        assert_no_numbers_leak(Page(page).text)


def test_a_bare_record() -> None:
    assert relax_sentences({}) == ["No layer has pathways."] and score_sentences({}) == []
    assert "No layer has pathways." in Page(relax_page({})).text


def test_many_layers_fit() -> None:
    names = [f"layers.{place}.block.convolution_with_a_long_name" for place in range(60)]
    many = [relaxed_layer(name, KINDS, "conv", 0.01) for name in names]
    record = relax_record(layers=many, epochs=[])
    assert_self_contained(relax_page(record))


def test_text_is_escaped() -> None:
    record = relax_record(
        (EVIL, "conv"), task=EVIL, group=EVIL, notes=[EVIL], command_line=EVIL, device=EVIL
    )
    record["data"]["name"] = EVIL
    record["epochs"] = []
    for layer in record["layers"]:
        layer["name"] = layer["became"] = EVIL
    page = relax_page(record)
    assert "<script" not in page
    assert Page(page).text.count(EVIL) >= 10
