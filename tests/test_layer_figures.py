"""The figure of relaxed layers, and pages with it, follow the records."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from layer_records import LEARNED, NOT_RUN, ROOT, grouped, layer, learned_layers, record, write_rows

FIGURE = "layer-equivariance.svg"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")


@pytest.fixture
def figures() -> ModuleType:
    return importlib.import_module("layer_figures")


def drawn_words(svg: str) -> list[str]:
    """All that is written in it, and what is told in place of it, with every share."""
    root = ElementTree.fromstring(svg)
    seen = sorted(text for each in root.itertext() if (text := each.strip()))
    return [root.attrib["aria-label"], *seen]


def draw(figures: ModuleType, patch: pytest.MonkeyPatch, *options: str) -> None:
    patch.setattr("sys.argv", ["layer_figures.py", *options])
    figures.main()


def test_figure_has_a_panel_for_every_learned_network(
    figures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = write_rows(
        tmp_path,
        grouped("rotated", [0.9, None], 83),
        record(LEARNED, layers=learned_layers(0.75, 0.5)),
        record(LEARNED.replace("laplace", "map")),
        record("toy/digit/ffc+conv/laplace", layers=[layer("stage1", {"ffc": None})]),
    )
    draw(figures, monkeypatch, "--results", str(results), "--out", str(tmp_path / "out"))
    svg = (tmp_path / "out" / FIGURE).read_text(encoding="utf-8")
    told, *words = drawn_words(svg)
    assert told == (
        "CIFAR-10: stage1 conv 75.0 %, ffc 25.0 %; stage2 ffc 50.0 %, conv 50.0 %. "
        "MNIST, rotated: stage1 gconv 90.0 %, conv 9.0 %, ffc 1.0 %; stage2 conv 90.0 %, ffc 10.0 %"
    )
    assert [each for each in words if "," in each or each == "CIFAR-10"] == [
        "CIFAR-10", "MNIST, rotated",
    ]  # fmt: skip
    assert words.count("conv") == 5  # what four layers became, and the legend
    assert {"ffc", "gconv", "stage2"} <= set(words)
    assert "var(--" not in svg
    assert "rotated](figures/" in figures.figure_link(results)


def test_bars_are_as_long_as_shares(
    figures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = write_rows(tmp_path, record(LEARNED, layers=learned_layers(0.75)))
    draw(figures, monkeypatch, "--results", str(results), "--out", str(tmp_path))
    colours = importlib.import_module("results_figures").COLOURS
    lengths = {}
    for each in ElementTree.fromstring((tmp_path / FIGURE).read_text(encoding="utf-8")).iter():
        fill = re.search(r"fill: (#\w+)", each.get("style", ""))
        if each.tag.endswith("path") and fill:
            numbers = re.findall(r"[ML] ([\d.]+) [\d.]+", each.get("d", ""))
            places = [float(number) for number in numbers]
            length = max(places) - min(places)
            lengths[fill[1]] = max(length, lengths.get(fill[1], 0.0))
    ratio = lengths[colours["--accent"]] / lengths[colours["--truth"]]  # conv over ffc
    assert ratio == pytest.approx(3, rel=0.01)


def test_nothing_to_draw_draws_nothing(
    figures: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    draw(figures, monkeypatch, "--results", str(tmp_path), "--out", str(tmp_path / "out"))
    assert "no rows to draw" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_the_figure_in_the_docs_is_that_of_the_results(
    figures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw(figures, monkeypatch, "--out", str(tmp_path))
    if not (tmp_path / FIGURE).exists():
        pytest.skip("no network was learned yet")
    kept = (ROOT / "docs" / "figures" / FIGURE).read_text(encoding="utf-8")
    # Another matplotlib may write other coordinates; titles and shares in words stay the same.
    assert drawn_words((tmp_path / FIGURE).read_text(encoding="utf-8")) == drawn_words(kept)


def test_a_page_that_is_out_of_date_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = importlib.import_module("results_page")
    page = tmp_path / "docs" / "relax.md"
    page.parent.mkdir()
    names = script.PAGES["relax.md"]
    blocks = [f"<!-- {name}:begin -->\n{NOT_RUN}\n<!-- {name}:end -->" for name in names]
    page.write_text("\n\n".join(["before", *blocks, "after"]), encoding="utf-8")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "PAGES", {"relax.md": names})

    def code(*options: str) -> Any:
        monkeypatch.setattr("sys.argv", ["results_page.py", *options])
        with pytest.raises(SystemExit) as ended:
            script.main()
        return ended.value.code

    assert code("--check") == 0
    write_rows(tmp_path / "results", record(LEARNED))
    assert code("--check") == "docs/relax.md is out of date"
    monkeypatch.setattr("sys.argv", ["results_page.py"])
    script.main()
    assert code("--check") == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("\nafter")
    assert "| ffc + conv | 1,234 |" in text and f"(figures/{FIGURE})" in text
