"""The table of networks is made of the results, and says what each took."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import model_matrix  # noqa: E402
from model_matrix import (  # noqa: E402
    BEGIN,
    CASES,
    END,
    PAGE,
    RESULTS,
    Case,
    entry,
    pictures,
    run_apart,
    table,
    waiting,
    write_page,
)

from isotropy.checks import CallerError  # noqa: E402

ROW: dict[str, Any] = {
    "source": "timm", "family": "vit", "name": "vit_tiny", "size": 64, "arguments": {"depth": 4},
    "outcome": "works", "parameters": 1_200_000, "learn_seconds": 12.3, "measure_seconds": 1.0,
    "diagonal": {"cls_token": "ViT"}, "constants": {"aux": "not called"}, "batch_norm": 3,
    "evidence_error": 0.5,
}  # fmt: skip
REFUSED = {
    "source": "torchvision", "family": "a", "name": "b", "size": 32, "arguments": {},
    "outcome": "refused", "refusal": "layer | x",
}  # fmt: skip


def test_a_row_says_what_it_took():
    text = table([ROW, REFUSED])
    assert text.startswith("1 of 2 networks that were tried learn and measure")
    assert f"{len(CASES) - 2} of the {len(CASES)} networks" in text
    assert "| `vit_tiny` | 64 | 1.2 M | works | 12 | diagonal blocks of 1 tensors (ViT); 1 " in text
    assert "3 BatchNorm; large factors, at most 0.5 nats off; made smaller: depth 4 |" in text
    assert "| refused | – | layer / x |" in text


def test_the_page_has_the_table_of_the_results(tmp_path: Path):
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    marked = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()
    assert marked == table(rows)
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    write_page(rows, page)
    assert "old" not in page.read_text() and page.read_text().endswith("after\n")


def test_cases_have_names_of_their_own():
    assert len({case.key for case in CASES}) == len(CASES) >= 40


@pytest.mark.parametrize("size", [8, 32])
def test_pictures_have_two_classes(size: int):
    images, labels = pictures(size)
    assert images.shape == (8, 3, size, size) and labels.unique().tolist() == [0, 1]


def test_a_refusal_is_tried_again_with_the_remedy_it_names(monkeypatch: pytest.MonkeyPatch):
    def tried(case: Case, **settings: Any) -> dict[str, Any]:
        if not settings:
            raise CallerError("too large; take --curvature diagonal-ggn")
        return {"settings": settings}

    monkeypatch.setattr(model_matrix, "tried", tried)
    row = entry(CASES[0])
    assert row["outcome"] == "works with the remedy"
    assert row["settings"] == {"curvature": "diagonal-ggn"} and "too large" in row["refusal"]


def test_a_failure_says_where(monkeypatch: pytest.MonkeyPatch):
    def tried(case: Case) -> dict[str, Any]:
        raise RuntimeError("views")

    monkeypatch.setattr(model_matrix, "tried", tried)
    row = entry(CASES[0])
    assert (row["outcome"], row["refusal"]) == ("fails", "RuntimeError: views")
    assert row["where"][-1].startswith("test_model_matrix.py:")


def test_a_network_that_takes_too_long_is_ended():
    row = run_apart(CASES[0], 0.01, 1)
    assert (row["name"], row["outcome"]) == (CASES[0].name, "not finished")


@pytest.mark.parametrize(("dies", "outcome"), [(False, "works"), (True, "fails")])
def test_a_network_runs_in_a_process_of_its_own(
    dies: bool, outcome: str, monkeypatch: pytest.MonkeyPatch
):
    """Forked here, where nothing runs beside it: a fresh process would import torch again."""
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(model_matrix.multiprocessing, "get_context", lambda kind: context)

    def made(case: Case) -> dict[str, Any]:
        if dies:
            os._exit(3)
        return {"name": case.name, "outcome": "works", "process": os.getpid()}

    monkeypatch.setattr(model_matrix, "entry", made)
    row = run_apart(CASES[0], 60, 1)
    assert (row["name"], row["outcome"]) == (CASES[0].name, outcome)
    if dies:
        assert row["refusal"] == "the process ended with status 3"
    else:
        assert row["process"] != os.getpid()


def test_what_waits_is_asked_for_unfinished_and_installed(monkeypatch: pytest.MonkeyPatch):
    spec = {"timm": None, "torchvision": "there"}.get
    monkeypatch.setattr(model_matrix.importlib.util, "find_spec", spec)
    first, second, third = [case for case in CASES if case.source == "torchvision"][:3]
    known = {first.key: {"outcome": "works"}, second.key: {"outcome": "not finished"}}
    found = waiting(known)
    assert {case.source for case in found} == {"torchvision"}
    assert first not in found and second in found and third in found
    assert waiting(known, [first.name]) == [] and waiting(known, [first.name], True) == [first]


def test_rows_are_kept_as_they_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    results, page = tmp_path / "matrix.json", tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    counts: list[int] = []

    def run(case: Case, seconds: float, threads: int) -> dict[str, Any]:
        return {**REFUSED, "source": case.source, "name": case.name}

    def written(rows: list[Any]) -> None:
        write_page(rows, page)

    def told(*words: Any, flush: bool) -> None:
        counts.append(len(json.loads(results.read_text())["rows"]) if results.exists() else 0)

    names = [CASES[index].name for index in (0, 1, 4)]
    for name, value in {"RESULTS": results, "run_apart": run, "write_page": written}.items():
        monkeypatch.setattr(model_matrix, name, value)
    monkeypatch.setattr(model_matrix, "print", told, raising=False)
    monkeypatch.setattr(model_matrix.importlib.util, "find_spec", lambda name: "there")
    monkeypatch.setattr(sys, "argv", ["model_matrix.py", "--workers", "2", "--only", *names])
    model_matrix.main()
    rows = json.loads(results.read_text())["rows"]
    assert counts == [0, 1, 2] and [row["name"] for row in rows] == names
    assert all(f"`{name}`" in page.read_text() for name in names)
