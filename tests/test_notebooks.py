"""Notebooks run from top to bottom, one for every verb."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import isotropy

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
VERBS = {
    "basis": "equivariant_basis", "build": "build", "certify": "certify", "learn": "learn",
    "measure": "measure", "relax": "relax", "represent": "represent", "screen": "screen",
}  # fmt: skip


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def code_of(notebook: dict[str, Any]) -> list[str]:
    cells = notebook["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_every_verb_has_one() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(VERBS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_valid_and_holds_no_outputs(path: Path) -> None:
    notebook = read(path)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = notebook["cells"]
    assert 6 <= len(cells) <= 10 and cells[0]["cell_type"] == "markdown"
    assert len({cell["id"] for cell in cells}) == len(cells)
    for cell in cells:
        wanted = {"cell_type", "id", "metadata", "source"}
        if cell["cell_type"] == "code":
            wanted |= {"execution_count", "outputs"}
            assert cell["outputs"] == [] and cell["execution_count"] is None
        assert set(cell) == wanted
    assert f"isotropy.{VERBS[path.stem]}(" in "\n".join(code_of(notebook))
    linked = [cell for cell in cells if cell["cell_type"] == "markdown"]
    for name in re.findall(r"\]\(([^)]+)\)", "".join(map(str, linked))):
        assert (FOLDER / name).resolve().exists()


def run(notebook: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """All names after the last cell, and the value of its last line where that is one."""
    names: dict[str, Any] = {}
    last: Any = None
    for code in code_of(notebook):
        tree = ast.parse(code)
        last = None
        if isinstance(tree.body[-1], ast.Expr):
            *body, shown = tree.body
            exec(compile(ast.Module(body, []), "cell", "exec"), names)
            last = eval(compile(ast.Expression(shown.value), "cell", "eval"), names)
        else:
            exec(code, names)
    return names, last


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        names, last = run(read(path))
    assert names["isotropy"] is isotropy
    if last is not None:
        assert last._repr_html_().strip()
    assert list(tmp_path.iterdir()) == []


def test_a_cell_that_fails_is_noticed() -> None:
    cell = {"cell_type": "code", "source": ["value = 1\n", "value.missing"]}
    with pytest.raises(AttributeError, match="missing"):
        run({"cells": [cell]})
