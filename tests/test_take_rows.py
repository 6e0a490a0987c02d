"""Tables of a series that was run elsewhere are taken whole."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from layer_records import ROOT, record, write_rows

from isotropy.checks import CallerError
from isotropy.experiments.runner import read_rows

KEPT = Path("layer-equivariance") / "rows.jsonl"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("take_rows")


def forms(commit: str, *pathways: str) -> list[dict[str, Any]]:
    return [record(f"matched-forms/rotated/{each}/map", commit=commit) for each in pathways]


FORMS = ("gconv-full", "gconv-separable", "gconv-depthwise")


def test_a_whole_table_takes_the_place_of_the_old_one(script: ModuleType, tmp_path: Path) -> None:
    other = record("toy/digit/conv/map", commit="old")
    old = write_rows(tmp_path / "old", *forms("old", *FORMS[:2]), other) / KEPT
    strange = record("matched-forms/rotated/conv/map", commit="new")  # not of this series
    some = record("augmented/original/conv/map", commit="new")
    new = write_rows(tmp_path / "new", *forms("new", *FORMS), strange, some) / KEPT
    told = script.take(new, old)
    kept = {(r["row"].split("/")[0], r["commit"]) for r in read_rows(old)}
    assert kept == {("toy", "old"), ("matched-forms", "new")}
    assert len(read_rows(old)) == 4
    assert told == [
        "matched-forms: 3 of 3 records taken, 2 earlier ones removed",
        "augmented: left, 1 of 4 records; --table augmented takes them",
    ]
    script.take(new, old, ["augmented"])
    assert ("augmented/original/conv/map", 0) in {(r["row"], r["seed"]) for r in read_rows(old)}


def test_what_cannot_be_taken_is_refused(script: ModuleType, tmp_path: Path) -> None:
    old = tmp_path / "rows.jsonl"
    mixed = [*forms("new", *FORMS[:2]), *forms("newer", FORMS[2])]
    new = write_rows(tmp_path / "new", *mixed) / KEPT
    with pytest.raises(CallerError, match="matched-forms of .* records of one commit"):
        script.take(new, old)
    with pytest.raises(CallerError, match="got 'toy'"):
        script.take(new, old, ["toy"])
    assert not old.exists()
