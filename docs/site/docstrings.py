"""Docstrings of the package as Markdown pages of the reference.

A docstring is made of paragraphs: prose, `>>>` lines, indented formulas or code, and lists of
arguments, `name: what it is` or `name   what it is`, with deeper lines that continue them.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

from formulas import formula_html, with_indices

_FIELD = re.compile(r"([\w*`.]+(?:, [\w*`.]+)*)(:\s+|\s{2,})(\S.*)")
_CODE = re.compile(r"^(class |def |import |from |[\w.]+ = |[\w.]+\(|\w+, \w+ = .*\()", re.M)
_SPECIAL = re.compile(r"([\\*_<>\[\]|$#~{}])")


def escaped(text: str, names: frozenset[str] = frozenset()) -> str:
    """Prose of a docstring as Markdown; `name` in back quotes is a link where it is documented."""
    parts = re.split(r"(`[^`]+`)", text)
    for number, part in enumerate(parts):
        if part.startswith("`") and len(part) > 2:
            if part[1:-1] in names:
                parts[number] = f"{{py:obj}}`~isotropy.{part[1:-1]}`"
        else:
            parts[number] = with_indices(_SPECIAL.sub(r"\\\1", part))
    return "".join(parts)


def markdown(docstring: str, names: frozenset[str] = frozenset()) -> str:
    """A whole docstring as Markdown."""
    blocks: list[str] = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        blocks += _paragraph(paragraph, names)
    return "\n\n".join(blocks)


def _paragraph(text: str, names: frozenset[str]) -> Iterator[str]:
    lines = text.splitlines()
    if lines[0].startswith(">>> "):
        body = [line[4:] if line.startswith((">>> ", "... ")) else line for line in lines]
        yield _fenced("python", "\n".join(body))
    elif all(line.startswith("  ") for line in lines):
        body = inspect.cleandoc("\n" + text)
        yield _indented(body) if _CODE.match(body) else formula_html(body)
    else:
        yield from _prose_and_fields(lines, names)


def _prose_and_fields(lines: list[str], names: frozenset[str]) -> Iterator[str]:
    prose: list[str] = []
    field: list[str] = []
    column = 0

    def ended() -> Iterator[str]:
        if prose:
            yield _joined(prose, names)
            prose.clear()
        if field:
            head = ", ".join(f"`{name.strip('`')}`" for name in field[0].split(", "))
            yield f"{head}\n: {escaped(' '.join(field[1:]), names)}"
            field.clear()

    for line in lines:
        found = _FIELD.fullmatch(line)
        if not found and column and line[:column].endswith(" ") and not line.startswith(" "):
            found = re.fullmatch(r"([\w*`]+(?:, [\w*`]+)*)(\s+)(\S.*)", line)
        if found and not prose:
            yield from ended()
            field += [found[1], found[3]]
            column = found.start(3)
        elif field and line.startswith(" "):
            field.append(line.strip())
        else:
            if field:
                yield from ended()
            prose.append(line)
    yield from ended()


def _joined(lines: list[str], names: frozenset[str]) -> str:
    parts: list[str] = []
    for line in lines:
        if parts and not line.lstrip().startswith("- "):
            parts[-1] += " " + line.strip()
        else:
            parts.append(line.strip())
    return "\n".join(
        f"- {escaped(part[2:], names)}" if part.startswith("- ") else escaped(part, names)
        for part in parts
    )


def _indented(body: str) -> str:
    """Code, in colour where it is Python as it stands, or formulas."""
    try:
        ast.parse(body)
    except SyntaxError:
        calls = re.search(r"\bisotropy\.|\bresult\.|^class ", body)
        return _fenced("text", body) if calls else formula_html(body)
    return _fenced("python", body)


def _fenced(language: str, body: str) -> str:
    return f"```{language}\n{body}\n```"


# --- objects --------------------------------------------------------------------------------------


class _Written:
    """An annotation as it stands in the source, without quotation marks around it."""

    def __init__(self, annotation: Any) -> None:
        self.words = (
            annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        )

    def __repr__(self) -> str:
        return self.words


def signature(thing: Any) -> str:
    """`(…) -> …` as it is written, without defaults where these are not Python."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    none = inspect.Signature.empty
    result = none if inspect.isclass(thing) else found.return_annotation
    written = [
        each.replace(annotation=_Written(each.annotation)) if each.annotation is not none else each
        for each in found.parameters.values()
    ]
    result = none if result is none else _Written(result)
    found = found.replace(parameters=written, return_annotation=result)
    words = re.sub(r"<[^<>]*>", "...", str(found))
    try:
        ast.parse(f"def f{words}: ...")
    except SyntaxError:
        names = ", ".join(name for name in found.parameters if name != "self")
        return f"({names})"
    return words


def entry(module: str, name: str, names: frozenset[str]) -> str:
    """One name of a module: a directive of Sphinx's Python domain with all that is in it."""
    thing = getattr(import_module(module), name)
    full = f"{module}.{name}"
    if inspect.isclass(thing):
        body = "\n\n".join([markdown(_own(thing), names), *_members(thing, full, names)])
        return _directive("class", full + signature(thing), body, ticks=6)
    if callable(thing) and hasattr(thing, "__name__"):
        return _directive("function", full + signature(thing), markdown(_own(thing), names))
    return _directive("data", full, markdown(_own(thing), names))


def _own(thing: Any) -> str:
    words = thing.__doc__ or ""
    generated = dataclasses.is_dataclass(thing) and words.startswith(f"{thing.__name__}(")
    return "" if generated else inspect.cleandoc(words)


def _members(kind: type, full: str, names: frozenset[str]) -> Iterator[str]:
    seen: set[str] = set()
    for owner in kind.__mro__:
        if not owner.__module__.startswith("isotropy"):
            continue
        for name, value in vars(owner).items():
            if name.startswith("_") or name in seen:
                continue
            seen.add(name)
            inner = getattr(value, "__func__", getattr(value, "fget", value))
            if not inspect.isroutine(inner) or not inner.__doc__:
                continue
            body = markdown(inner.__doc__, names)
            if isinstance(value, property):
                yield _directive("property", f"{full}.{name}", body, ticks=5)
            else:
                written = re.sub(r"^\((self|cls)(, )?", "(", signature(inner))
                yield _directive("method", f"{full}.{name}{written}", body, ticks=5)


def _directive(kind: str, head: str, body: str, ticks: int = 5) -> str:
    fence = "`" * ticks
    return f"{fence}{{py:{kind}}} {head}\n\n{body}\n{fence}"


def about(module: ModuleType, names: frozenset[str]) -> str:
    """What a module says of itself, with its formulas."""
    return markdown(module.__doc__ or "", names)
