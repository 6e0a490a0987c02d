"""Tables of the layer-equivariance series follow its records, whichever of them there are."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[1]
FIGURE = "layer-equivariance.svg"
NOT_RUN = "Not run yet."
LEARNED = "cifar10/original/ffc+conv/laplace"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")


@pytest.fixture
def tables() -> ModuleType:
    return importlib.import_module("layer_tables")


@pytest.fixture
def figures() -> ModuleType:
    return importlib.import_module("layer_figures")


def layer(name: str, shares: dict[str, float | None], **more: Any) -> dict[str, Any]:
    return {"name": name, "became": "conv", "effective": shares, **more}


CONFIG = {"epochs": 40, "batch_size": 16, "augmentation": "none"}


def record(row: str, accuracy: float | None = 0.5, **more: Any) -> dict[str, Any]:
    """A row as the series writes it, with numbers of ours."""
    table, problem, pathways, objective = row.split("/")
    kinds = pathways.split("+")
    shares: dict[str, float | None] = {kind: 1 / len(kinds) for kind in kinds}
    return {
        "row": row, "seed": 0, "table": table, "problem": problem, "pathways": pathways,
        "objective": objective, "test_accuracy": accuracy, "test_nll": 0.25,
        "num_parameters": 1234, "log_evidence_per_example": -0.5, "train_examples": 600,
        "layers": [layer("stage1", shares), layer("stage2", shares)], "hardened": None,
        "published": {}, "config": CONFIG, "seconds": 2.0,
        "device": "cuda", "device_name": "NVIDIA H200", "threads": 16, **more,
    }  # fmt: skip


def write_rows(results: Path, *records: dict[str, Any]) -> Path:
    folder = results / "layer-equivariance"
    folder.mkdir(parents=True)
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    return results


def cells(table: str, *begin: str) -> list[str]:
    """The other cells of the one row that begins with these."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    (found,) = (row[len(begin) :] for row in rows if row[: len(begin)] == list(begin))
    return found


def claims(table: str) -> list[str]:
    return [line for line in table.splitlines() if line.startswith("- ")]


# -- whichever rows there are ------------------------------------------------------------------


def test_nothing_run_is_said(tables: ModuleType, figures: ModuleType, tmp_path: Path) -> None:
    assert {make(tmp_path) for make in tables.TABLES.values()} == {NOT_RUN}
    assert figures.figure_link(tmp_path) == NOT_RUN


def every_row() -> list[str]:
    return list(importlib.import_module("layer_rows").planned_rows())


def test_any_row_alone_makes_every_table(
    tables: ModuleType, figures: ModuleType, tmp_path: Path
) -> None:
    shown = set()
    for number, row in enumerate(every_row()):
        results = write_rows(tmp_path / str(number), record(row))
        made = {name: make(results) for name, make in tables.TABLES.items()}
        known = {name for name, table in made.items() if table != NOT_RUN}
        assert "layer-equivariance" in known and 2 <= len(known) <= 3, row
        shown |= known
        for name, table in made.items():
            lines = [line for line in table.splitlines() if line.startswith("|")]
            assert len({line.count("|") for line in lines}) <= 1, name  # as many cells in each
        figures.figure_link(results)
    # Hardened networks are those of records that say so, the quick series is in its own folder.
    assert shown == set(tables.TABLES) - {"layers-hardened", "layers-quick"}


def test_rows_of_another_series_are_left_out(tables: ModuleType, tmp_path: Path) -> None:
    results = write_rows(tmp_path, record("toy/digit/conv+sconv/map"))
    assert {make(results) for make in tables.TABLES.values()} == {NOT_RUN}


def test_seeds_are_averaged_and_a_number_that_is_none_is_a_dash(
    tables: ModuleType, tmp_path: Path
) -> None:
    results = write_rows(
        tmp_path,
        record("toy/digit/conv/map", 0.9),
        record("toy/digit/conv/map", 0.8, seed=1, test_nll=0.75),
        record("toy/digit/conv/laplace", 0.9, published={"accuracy": 99.23}),
        record("toy/digit/conv/laplace", None, seed=1, test_nll=None),
    )
    table = tables.TABLES["layers-toy"](results)
    assert cells(table, "digit", "conv") == ["1,234", "85.00", "0.500", "– (99.23)", "–"]


# -- Tables 1 and 2 ----------------------------------------------------------------------------


def quadrants(learned: float, strict: float, problem: str) -> list[dict[str, Any]]:
    return [
        record(f"toy/{problem}/ffc+conv/laplace", learned, published={"accuracy": 98.86}),
        record(f"toy/{problem}/conv/laplace", strict),
    ]


def test_toy_table_has_published_numbers_and_dashes(tables: ModuleType, tmp_path: Path) -> None:
    rows = [*quadrants(0.98, 0.99, "digit"), *quadrants(0.9, 0.25, "digit-quadrant")]
    table = tables.TABLES["layers-toy"](write_rows(tmp_path, *rows))
    assert cells(table, "digit", "ffc + conv") == ["1,234", "–", "–", "98.00 (98.86)", "0.250"]
    assert cells(table, "digit", "ffc") == ["–"] * 5
    assert claims(table) == [
        "- Holds: on digit learned ffc + conv is at most 1 point below conv (98.00 % and 99.00 %).",
        "- Holds: on digit-quadrant learned ffc + conv is at least 60 points above conv "
        "(90.00 % and 25.00 %).",
    ]


def test_toy_claims_fail_and_are_not_made_of_one_row(tables: ModuleType, tmp_path: Path) -> None:
    worse = quadrants(0.979, 0.99, "digit")
    one = quadrants(0.84, 0.25, "digit-quadrant")
    table = tables.TABLES["layers-toy"](write_rows(tmp_path / "two", *worse, *one))
    assert [claim.split(":")[0] for claim in claims(table)] == ["- Does not hold"] * 2
    table = tables.TABLES["layers-toy"](write_rows(tmp_path / "one", worse[0], one[1]))
    assert claims(table) == []


def test_cifar10_table_counts_what_is_not_run(tables: ModuleType, tmp_path: Path) -> None:
    results = write_rows(
        tmp_path,
        record("cifar10/original/sconv/map", 0.8, published={"accuracy": 82.53, "nll": 0.604}),
        record("lengthscales/original/sconv/laplace", 0.7, num_parameters=99),
    )
    table = tables.TABLES["layers-cifar10"](results)
    assert cells(table, "fc") == ["133,635,690", "not run", "", "", "", ""]
    assert cells(table, "fc + conv")[0] == "133,865,010"
    assert cells(table, "sconv") == ["1,234", "0.250 (0.604)", "80.00 (82.53)", "–", "–", "–"]
    assert cells(table, "sconv, +ω") == ["99", "–", "–", "0.250", "70.00", "−0.500"]
    assert cells(table, "sfc + sconv, +ω") == ["–"] * 6
    assert claims(table) == []


@pytest.mark.parametrize(
    ("learned", "holds"),
    [
        ((0.835, 0.40), ["Holds"] * 3),
        ((0.834, 0.41), ["Does not hold", "Does not hold", "Holds"]),
        ((0.80, 0.1), ["Does not hold", "Holds", "Does not hold"]),
    ],
)
def test_cifar10_claims(
    tables: ModuleType, tmp_path: Path, learned: tuple[float, float], holds: list[str]
) -> None:
    results = write_rows(
        tmp_path,
        record("cifar10/original/conv/laplace", 0.85),
        record(LEARNED, learned[0], test_nll=learned[1]),
        record(LEARNED.replace("laplace", "map"), 0.81, test_nll=0.8),
    )
    table = tables.TABLES["layers-cifar10"](results)
    assert [claim[2:].split(":")[0] for claim in claims(table)] == holds
    assert f"({100 * learned[0]:.2f} % and 85.00 %)" in table


# -- Tables 3 and 4 ----------------------------------------------------------------------------


def grouped(problem: str, shares: list[float | None], known: float) -> dict[str, Any]:
    """MNIST with three pathways: the share of gconv by layer, ffc has a tenth of the rest."""
    layers = []
    for number, share in enumerate(shares, start=1):
        rest = 1 - (share or 0)
        parts = {"ffc": 0.1 * rest, "conv": 0.9 * rest, "gconv": share}
        layers.append(layer(f"stage{number}", parts))
    row = f"groups-mnist/{problem}/ffc+conv+gconv/laplace"
    return record(row, layers=layers, published={"gconv": known, "accuracy": 99.21, "nll": 0.023})


def test_group_table_has_shares_over_layers(tables: ModuleType, tmp_path: Path) -> None:
    results = write_rows(
        tmp_path, grouped("rotated", [0.9, 0.7], 83), grouped("original", [0.5, 0.0, None], 75)
    )
    table = tables.TABLES["layers-groups"](results)
    found = cells(table, "MNIST, rotated")
    assert found[:6] == ["1,234", "–", "–", "0.250 (0.023)", "50.00 (99.21)", "−0.500"]
    assert found[6:] == ["2 % (1–3)", "18 % (9–27)", "80 % (70–90)", "83 %"]
    assert cells(table, "MNIST, original")[8] == "25 % (0–50)"
    assert cells(table, "CIFAR-10, rotated") == ["–"] * 10
    assert claims(table) == [
        "- MNIST: the mean share of gconv is larger on rotated than on original data "
        "(80.0 % and 25.0 %; published 83 % and 75 %)."
    ]


def test_a_group_share_that_is_not_larger_is_said(tables: ModuleType, tmp_path: Path) -> None:
    rows = [grouped("rotated", [0.5, 0.5], 83), grouped("original", [0.4, 0.6], 75)]
    (claim,) = claims(tables.TABLES["layers-groups"](write_rows(tmp_path / "both", *rows)))
    assert "is not larger on rotated than on original data (50.0 % and 50.0 %;" in claim
    assert claims(tables.TABLES["layers-groups"](write_rows(tmp_path / "one", rows[0]))) == []


def test_what_shares_are_made_of_is_said_where_known(tables: ModuleType, tmp_path: Path) -> None:
    rows = [grouped("rotated", [0.5, 0.5], 83), grouped("original", [0.4, 0.6], 75)]
    for row, of_group in zip(rows, (0.9, 0.3), strict=True):
        row["layers"][0]["normalised"] = {"ffc": 0.0, "conv": 0.2, "gconv": of_group}
        row["layers"][1]["normalised"] = {"ffc": 0.0, "conv": 0.1, "gconv": 0.1}
    (claim,) = claims(tables.TABLES["layers-groups"](write_rows(tmp_path, *rows)))
    said = "of the parameters of gconv 50 % and 20 % and of the parameters of conv 15 % and 15 %"
    assert claim.endswith(f" Determined by the data are {said}.")


def learned_layers(*shares: float | None) -> list[dict[str, Any]]:
    return [
        layer(
            f"stage{number}", {"ffc": None if share is None else 1 - share, "conv": share},
            contribution={"ffc": 0.012345, "conv": 0.9999}, weight_norm={"ffc": 0.0, "conv": None},
            prior_precision={"ffc": 3588348.5, "conv": 0.0751},
        )
        for number, share in enumerate(shares, start=1)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("shares", "holds", "count"),
    [
        ((0.99999, 0.95, 0.5), "Holds", "2 of 3"),
        ((0.99999, 0.5), "Does not hold", "1 of 2"),
        ((0.99999, None, None), "Does not hold", "1 of 3"),
    ],
)
def test_layers_of_the_learned_network(
    tables: ModuleType, tmp_path: Path, shares: tuple[float | None, ...], holds: str, count: str
) -> None:
    results = write_rows(tmp_path, record(LEARNED, layers=learned_layers(*shares)))
    table = tables.TABLES["layers-became"](results)
    assert cells(table, "stage1") == [
        "conv", "< 0.1 %", "> 99.9 %", "0.0123", "1", "3.59e+06", "0.0751", "0", "–",
    ]  # fmt: skip
    said = f"in most layers the share of conv is over 90 % (in {count})."
    assert claims(table) == [f"- {holds}: {said}"]


# -- Table 7, hardening, how it was made -------------------------------------------------------


def test_forms_of_group_convolution(tables: ModuleType, tmp_path: Path) -> None:
    row = "group-forms/rotated/gconv-full/map"
    results = write_rows(tmp_path, record(row, 0.71, published={"accuracy": 73.7}))
    table = tables.TABLES["layers-forms"](results)
    assert cells(table, "gconv-full", "10") == ["1,234", "71.00 (73.70)", "0.250"]
    assert cells(table, "gconv-separable", "10") == ["–"] * 3
    assert cells(table, "gconv-separable", "13") == ["–"] * 3  # as many parameters


@pytest.mark.parametrize(
    ("accuracy", "parameters", "holds"),
    [
        (0.838, 400, ["Holds"]),
        (0.8379, 400, ["Does not hold"]),
        (0.838, 401, ["Does not hold"]),
    ],
)
def test_hardened_rows(
    tables: ModuleType, tmp_path: Path, accuracy: float, parameters: int, holds: list[str]
) -> None:
    hardened = {"test_accuracy": accuracy, "num_parameters": parameters, "test_nll": 0.1}
    results = write_rows(
        tmp_path,
        record("cifar10/original/conv/laplace"),
        record(LEARNED, 0.84, hardened=hardened, num_parameters=1200),
        record("toy/digit/ffc+conv/map", 0.9, hardened={**hardened, "test_accuracy": None}),
    )
    table = tables.TABLES["layers-hardened"](results)
    own = cells(table, f"`{LEARNED}`")
    assert own == ["84.00 %", f"{100 * accuracy:.2f} %", "1,200", str(parameters), "3.0"]
    assert cells(table, "`toy/digit/ffc+conv/map`")[:2] == ["90.00 %", "–"]
    assert "conv/laplace` | 50" not in table
    assert table.index("`toy/") < table.index("`cifar10/")  # as in the series, not in the file
    assert [claim[2:].split(":")[0] for claim in claims(table)] == holds


def test_how_rows_were_made_is_read_off_them(tables: ModuleType, tmp_path: Path) -> None:
    other = {**CONFIG, "epochs": 60, "augmentation": "flips"}
    toy = [record("toy/digit/conv/map"), record("toy/digit/ffc/map", config=other)]
    table = tables.TABLES["layer-equivariance"](write_rows(tmp_path / "toy", *toy))
    own = ["2 of 12", "600", "16", "flips and none", "4", "40 and 60 (1,000)"]
    assert cells(table, "Table 1: digits in quadrants") == own
    assert "2 records, one start, NVIDIA H200, 4 s in all if rows are added up." in table
    assert "All schedules are shorter" in table and "JPEG" not in table
    long = record("cifar10/original/conv/map", config={**CONFIG, "epochs": 4000})
    table = tables.TABLES["layer-equivariance"](write_rows(tmp_path / "long", *toy, long))
    assert "shorter" not in table and "CIFAR-10 here went through JPEG once." in table


def test_the_quick_series_is_read_from_its_own_folder(tables: ModuleType, tmp_path: Path) -> None:
    row = "toy/digit/ffc+conv/laplace"
    write_rows(tmp_path, record(row, 0.3))
    assert tables.TABLES["layers-quick"](tmp_path) == NOT_RUN
    (tmp_path / "layer-equivariance").rename(tmp_path / "layer-equivariance-quick")
    table = tables.TABLES["layers-quick"](tmp_path)
    own = ["ffc + conv", "1,234", "30.00", "0.250", "conv, conv"]
    assert cells(table, "digit") == own  # published numbers are of another size


def test_a_sentence_for_a_problem_whose_three_rows_are_there(
    tables: ModuleType, tmp_path: Path
) -> None:
    rows = [
        record("cifar10/original/ffc+conv/laplace", 0.75),
        record("cifar10/original/ffc+conv/map", 0.641),
        record("cifar10/original/conv/laplace", 0.732),
        record("toy/digit/ffc+conv/laplace", 0.99),
    ]
    (sentence,) = tables.layers_in_short(write_rows(tmp_path / "some", *rows))
    assert sentence.startswith("CIFAR-10 without augmentation: test accuracy of relaxed layers")
    assert "75.0 % with learned" in sentence and "64.1 % with fixed" in sentence
    assert sentence.endswith("of convolutions 73.2 %.")
    assert tables.layers_in_short(tmp_path / "none") == []


# -- the figure and the pages ------------------------------------------------------------------


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
