"""What layers are said to have become, and how their pathways are listed and drawn."""

from __future__ import annotations

import re
from typing import Any

import pytest
from report_pages import Page, assert_self_contained, result_of
from sentence_cases import relaxed, without_step

from isotropy.evidence.layers import structure
from isotropy.networks.pathways.relaxed_layer import PATHWAYS
from isotropy.report.figures import curve_drawings
from isotropy.report.pages.relax import (
    BIAS_MAP,
    BIAS_MAP_MEANING,
    WORDS,
    became_words,
    curve_panels,
    layer_table,
    paints,
    relax_page,
    relax_sentences,
    shares_text,
)
from isotropy.report.record import Relaxed, RelaxedLayer, read


def test_every_pathway_has_its_words() -> None:
    assert set(PATHWAYS) <= set(WORDS)


def test_the_words_are_those_of_the_structures() -> None:
    assert BIAS_MAP == structure.BIAS_MAP
    words = structure.became({"conv": 1.0}, {"conv": 1.0}, 0.5)
    layer = read(RelaxedLayer, {"became": words})
    assert became_words(layer)[0] == "a convolution with a bias map"


def test_shares_are_told_the_largest_first() -> None:
    layer = read(RelaxedLayer, {"effective": {"ffc": 0.3, "conv": 0.7, "gconv": None}})
    assert shares_text(layer) == "conv 70.0 %, ffc 30.0 %"


def test_a_bias_map_is_explained_once_if_there_is_one_that_was_chosen() -> None:
    given = relaxed("conv", "conv + bias map", "conv + ffc + bias map")
    assert Page(relax_page(given)).text.count(BIAS_MAP_MEANING) == 1
    for others in (relaxed("conv"), {**given, "objective": "map"}):
        assert BIAS_MAP_MEANING not in relax_sentences(others)


@pytest.mark.parametrize("changes", [{"objective": "map"}, {"pathways": ["conv"]}])
def test_without_a_choice_nothing_became_anything(changes: dict[str, Any]) -> None:
    text = Page(relax_page(result_of("relax", epochs=[], **changes))).text
    assert "What each layer became" not in text and "The pathways of each layer" in text
    assert ("All prior precisions were fixed" in text) == ("objective" in changes)


def test_a_run_without_a_hyper_step_claims_nothing() -> None:
    text = Page(relax_page(without_step(5, 9, 1))).text
    assert "What each layer became" not in text and "became conv" not in text
    assert "they are where they started" in text and "was learned by" not in text


def test_table_has_a_line_for_each_layer_and_pathway() -> None:
    given = result_of("relax")
    table = layer_table(read(Relaxed, given))
    assert table is not None
    kinds, count = given["pathways"], len(given["layers"])
    firsts = table.rows[:: len(kinds)]
    assert [row[0].text for row in firsts] == [layer["name"] for layer in given["layers"]]
    assert [row[1].text for row in firsts] == [layer["became"] for layer in given["layers"]]
    assert [row[-7].text for row in table.rows] == kinds * count
    for place in range(len(table.rows)):
        layer = given["layers"][place // len(kinds)]
        in_use = kinds[place % len(kinds)] in layer["became"].split(" + ")
        assert (place in table.marked) is not in_use
    tensors = re.findall(r"<code>(\w+\.\w+)</code>", relax_page({**given, "epochs": []}))
    assert tensors == ["ffc.readout", "ffc.spread", "conv.weight", "gconv.weight"] * count


def test_a_layer_may_lack_a_pathway() -> None:
    given = relaxed("conv")
    given["layers"][0]["effective"] = {"conv": 1.0}
    table = layer_table(read(Relaxed, given))
    assert table is not None and [row[2].text for row in table.rows] == ["conv"]


def test_evidence_is_drawn_per_example() -> None:
    given = result_of("relax")
    last = given["epochs"][-1]["log_evidence"] / given["train_examples"]
    evidence, *_ = curve_drawings(curve_panels(read(Relaxed, given)))
    assert evidence.title == "Log evidence per example"
    assert f"evidence ends at −{-last:.3f}" in evidence.svg
    (total, *_) = curve_panels(read(Relaxed, {**given, "train_examples": None}))
    assert total.title == "Log evidence"


def test_pathways_of_one_family_are_told_apart() -> None:
    found = paints(["fc", "conv", "ffc", "sconv", "gconv", "gconv-full"])
    assert len({(paint.colour, paint.opacity) for paint in found.values()}) == len(found)
    assert found["fc"].variable == found["ffc"].variable == "var(--truth)"
    assert found["conv"].variable == "var(--accent)" != found["gconv"].variable


def test_colours_are_those_of_the_key() -> None:
    page = relax_page(result_of("relax"))
    key = re.findall(r'fill="(var\(--\w+\))" opacity="[\d.]+"/></svg>(\w+)', page)
    colours = {"ffc": "var(--truth)", "conv": "var(--accent)", "gconv": "var(--muted)"}
    assert key == [(colour, kind) for kind, colour in colours.items()] * 2


def test_a_short_run_has_no_course_and_many_layers_fit() -> None:
    given = result_of("relax")
    given["epochs"] = given["epochs"][:2]
    assert "How it came about" not in Page(relax_page(given)).text
    long = [{**given["layers"][0], "name": f"layers.{n}.block.a_long_name"} for n in range(60)]
    assert_self_contained(relax_page({**given, "layers": long, "epochs": []}))
