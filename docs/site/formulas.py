"""Formulas that are written in Unicode, as HTML: subscripts, superscripts and italic letters.

    Σ_l δ_l ‖θ_l‖²   →   Σ<sub>l</sub> <i>δ</i><sub>l</sub> ‖<i>θ</i><sub>l</sub>‖²

Nothing is loaded to show them. Three or more spaces separate columns, as in the sources; a line
that is indented deeper continues the column that it stands under.
"""

from __future__ import annotations

import re
from html import escape

SIGNS = frozenset("ΣΠ∂≈≤≥‖⊗⊙⟨⟩√½ρθδησλμβγεℓ↦→∞∈⌊πφω⊕ₓᵀ²³⁻′")
"""A block with one of these is a formula; a block of program output has none."""

_LETTER = "(?:(?![²³¹½¼¾\u2070-\u209f\u1d2c-\u1d7f])[^\\W\\d_])[\u0300-\u036f]*"
_SCRIPT = re.compile(rf"([_^])(\{{[^{{}}]*\}}|[−-]?[\w,]+)|((?:{_LETTER})+)|(`[^`]*`)")
_INDEXED = re.compile(rf"(?<![\w`/.\\-])({_LETTER})\\?_([A-Za-z0-9])(?![\w`/\\.]\w|\w)")
_WORD = re.compile(r"\b(?!(?:log|exp|diag|det|mean|cos|sin|max|min)\b)[A-Za-z]{3,}")


def is_formula(text: str) -> bool:
    """Whether a block of text is a formula rather than output or a command."""
    return bool(SIGNS & set(text))


def formula_html(text: str) -> str:
    """A block of formulas as a table without borders, one row a line."""
    rows = "".join(f"<tr>{''.join(map(_cell, cells))}</tr>" for cells in _rows(text))
    return f'<div class="formula"><table>{rows}</table></div>'


def _cell(html: str) -> str:
    """A formula stays on its line; words may go on in the next."""
    words = len(_WORD.findall(re.sub(r"<[^>]*>", " ", html))) >= 3
    return f'<td class="words">{html}</td>' if words else f"<td>{html}</td>"


def _rows(text: str) -> list[list[str]]:
    lines = [line.rstrip() for line in text.strip("\n").splitlines() if line.strip()]
    margin = min(len(line) - len(line.lstrip()) for line in lines)
    rows: list[list[str]] = []
    starts: list[int] = []
    for line in (line[margin:] for line in lines):
        found = [(match.start(), match[0]) for match in re.finditer(r"\S+(?: {1,2}\S+)*", line)]
        if rows and line.startswith(" "):
            for start, cell in found:
                column = max(n for n, other in enumerate(starts) if other <= start + 1 or n == 0)
                rows[-1][column] += "<br>" + inline(cell)
        else:
            starts = [start for start, _ in found]
            rows.append([inline(cell) for _, cell in found])
    return rows


def with_indices(prose: str) -> str:
    """Single letters with an index, such as G_k, within Markdown; its underscore may be escaped."""
    return _INDEXED.sub(r"<i>\1</i><sub>\2</sub>", prose)


def inline(text: str) -> str:
    """One formula; in a cell that is mostly words, letters stay upright."""
    prose = len(_WORD.findall(re.sub(r"`[^`]*`", "", text))) >= 3

    def shown(match: re.Match[str]) -> str:
        mark, script, word, code = match.groups()
        if code:
            return f"<code>{escape(code[1:-1])}</code>"
        if mark:
            inner = script[1:-1] if script.startswith("{") else script.removesuffix(",")
            tail = "," if script.endswith(",") else ""
            tag = "sub" if mark == "_" else "sup"
            return f"<{tag}>{escape(inner)}</{tag}>{tail}"
        alone = sum(map(str.isalpha, word)) == 1 and word not in "ΣΠ"
        return f"<i>{word}</i>" if alone and not prose else word

    parts, end = [], 0
    for match in _SCRIPT.finditer(text):
        parts += [escape(text[end : match.start()]), shown(match)]
        end = match.end()
    return "".join([*parts, escape(text[end:])])
