"""Notebooks run from top to bottom and become Markdown pages with what their cells show.

The cells hold plain Python, so no kernel is needed: text that is printed and the HTML of a last
value are all the outputs there are. A cell that fails ends the build.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch


def page(path: Path) -> str:
    """The notebook as Markdown, executed."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks = []
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng():
        os.chdir(folder)
        try:
            for number, cell in enumerate(cells, 1):
                source = "".join(cell["source"])
                if cell["cell_type"] == "markdown":
                    blocks.append(source)
                else:
                    blocks.append(f"```python\n{source}\n```")
                    blocks += _outputs(source, names, f"{path.name}, cell {number}")
        finally:
            os.chdir(here)
    blocks.append(f"{{download}}`This page as a notebook <{path.name}>`")
    return "\n\n".join(blocks) + "\n"


def _outputs(source: str, names: dict[str, Any], place: str) -> list[str]:
    tree = ast.parse(source)
    shown = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, place, "exec"), names)
            if isinstance(shown, ast.Expr):
                value = eval(compile(ast.Expression(shown.value), place, "eval"), names)
    except Exception as error:
        raise RuntimeError(f"{place} failed: {error}") from error
    blocks = []
    if text := printed.getvalue().rstrip():
        blocks.append(f"```{{code-block}} text\n:class: output\n\n{text}\n```")
    if hasattr(value, "_repr_html_"):
        blocks.append(f'````{{raw}} html\n<div class="output">{value._repr_html_()}</div>\n````')
    elif value is not None:
        blocks.append(f"```{{code-block}} text\n:class: output\n\n{value!r}\n```")
    return blocks
