"""The pages of the site, made from the documents as they stand in the repository.

Every page is written into one folder of sources for Sphinx: documents with their links pointed to
pages of the site, notebooks executed, scripts of the gallery as pages, tables of results filled
from `results/`, and a reference from docstrings. The documents themselves are not changed.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import docstrings
import notebooks
from formulas import formula_html, is_formula, with_indices

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROJECT = ("ARCHITECTURE", "CONTRIBUTING", "CHANGELOG", "SECURITY")
"""Pages at the top of the repository; README is for code hosts, `docs/index.md` opens the site."""

HOWTO = ("own-data", "own-network", "own-group", "own-action", "own-layer-rule", "own-bound")
CONTENTS = {
    "Start": ("story", "which-method", "verbs", "notebooks/index", "gallery/index"),
    "How to use your own": tuple(f"howto/{name}" for name in HOWTO),
    "Verbs": (
        "manual", "build", "measure", "relax", "represent", "certify", "robots", "bases",
    ),
    "Running": ("networks", "pretrained", "scale", "performance"),
    "Reference": ("reference", "notation", "results"),
    "Project": ("architecture", "decisions", "extending", "contributing", "changelog", "security"),
}  # fmt: skip

_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_INDENTED = re.compile(r"(?<=[^-].\n\n)(?:    .+\n)+(?=\n\S)")
_PARTS = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.M | re.S)


class SiteError(Exception):
    """Something on a page that has no place on the site."""


def all_pages() -> dict[str, str]:
    """Text by path in the folder of sources."""
    made: dict[str, str] = {}
    filled = _filled_from_results()
    docs = ROOT / "docs"
    for path in [*sorted(docs.glob("*.md")), *sorted(docs.glob("howto/*.md"))]:
        text = filled.get(path.name) or path.read_text(encoding="utf-8")
        made[site_path(path)] = document(text, path)
    for name in PROJECT:
        path = ROOT / f"{name}.md"
        made[site_path(path)] = document(path.read_text(encoding="utf-8"), path)
    made["index.md"] += "".join(_toctree(names, caption) for caption, names in CONTENTS.items())
    made |= _gallery() | _notebooks() | _reference(made)
    return made


# --- documents ------------------------------------------------------------------------------------


def site_path(path: Path) -> str:
    """Where a file of the repository is among the sources of the site."""
    name = path.relative_to(ROOT).as_posix()
    if name == "README.md":
        return "index.md"
    if name in ("docs/notebooks", "docs/gallery"):
        return f"{path.name}/index.md"
    if re.fullmatch(r"docs/(notebooks/\w+\.ipynb|gallery/\w+\.py)", name):
        return str(Path(name).relative_to("docs").with_suffix(".md"))
    if re.fullmatch(r"docs/((howto/)?[\w-]+\.md|figures/[\w-]+\.svg)", name):
        return name.removeprefix("docs/")
    if name.removesuffix(".md") in PROJECT:
        return name.lower()
    if name in ("LICENSE", "NOTICE", "CITATION.cff"):
        return f"files/{name}"
    raise SiteError(f"{name} is not on the site")


def document(text: str, path: Path) -> str:
    """A document with links to pages of the site, and formulas as HTML."""
    text = _INDENTED.sub(
        lambda found: formula_html(found[0]) + "\n" if is_formula(found[0]) else found[0], text
    )
    parts = _PARTS.split(text)
    for number, part in enumerate(parts):
        if part.startswith("```text\n"):
            body = part.removeprefix("```text\n").removesuffix("```")
            parts[number] = formula_html(body) if is_formula(body) else part
        elif not part.startswith("`"):
            parts[number] = with_indices(_LINK.sub(lambda found: _link(found, path), part))
    return "".join(parts)


def _link(found: re.Match[str], path: Path) -> str:
    link = found[2]
    if "://" in link or link.startswith("#"):
        return found[0]
    name, mark, anchor = link.partition("#")
    try:
        target = site_path((path.parent / name).resolve())
    except (SiteError, ValueError) as error:
        raise SiteError(f"{path.relative_to(ROOT)} links to {link}: {error}") from None
    here = os.path.dirname(site_path(path))
    return f"{found[1]}{os.path.relpath(target, here or '.')}{mark}{anchor}{found[3]}"


def _filled_from_results() -> dict[str, str]:
    """Pages with tables of measured numbers, written anew from `results/` where it is there."""
    if not (ROOT / "results").is_dir():
        return {}
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        script = import_module("results_page")
    finally:
        sys.path.pop(0)
    found = {}
    for page, tables in script.PAGES.items():
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        found[page] = script.fill(
            text, {name: make(ROOT / "results") for name, make in tables.items()}
        )
    return found


def _toctree(names: tuple[str, ...], caption: str | None = None, depth: int = 1) -> str:
    head = f":caption: {caption}\n" if caption else ""
    body = "\n".join(names)
    return f"\n```{{toctree}}\n:hidden:\n:maxdepth: {depth}\n{head}\n{body}\n```\n"


# --- scripts and notebooks ------------------------------------------------------------------------


def _gallery() -> dict[str, str]:
    made, lines = {}, []
    for path in sorted((ROOT / "docs/gallery").glob("*.py")):
        source = path.read_text(encoding="utf-8")
        told = ast.get_docstring(ast.parse(source)) or ""
        title = path.stem.replace("_", " ").capitalize()
        made[site_path(path)] = (
            f"# {title}\n\n{docstrings.markdown(told)}\n\n```python\n{source.rstrip()}\n```\n"
        )
        first = docstrings.escaped(told.partition("\n\n")[0].replace("\n", " "))
        lines.append(f"- [{title}]({path.stem}.md): {first}")
    made["gallery/index.md"] = (
        "# Short scripts\n\nEach is a program of at most fifty lines, which the tests run.\n\n"
        + "\n".join(lines)
        + "\n"
        + _toctree(tuple(path.stem for path in sorted((ROOT / "docs/gallery").glob("*.py"))))
    )
    return made


def _notebooks() -> dict[str, str]:
    made, lines = {}, []
    paths = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
    for path in paths:
        text = notebooks.page(path)
        made[site_path(path)] = document(text, path)
        title = text.partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({path.stem}.md)")
    made["notebooks/index.md"] = (
        "# Notebooks\n\nOne for each verb, on the digits that come with the package. They were run"
        " when this site was built; settings are short, so read the numbers as an example.\n\n"
        + "\n".join(lines)
        + "\n"
        + _toctree(tuple(path.stem for path in paths))
    )
    return made


# --- reference ------------------------------------------------------------------------------------


def reference_rows(text: str) -> Iterator[tuple[str, list[str], str]]:
    """(module, names, what they are) of each row of docs/reference.md."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        named = [re.findall(r"`([\w.]+)`", cell) for cell in cells]
        if line.startswith("| `") and len(cells) in (2, 3):
            module = "isotropy" if len(cells) == 2 else named[0][0]
            yield module, named[-2], cells[-1]


def _reference(made: dict[str, str]) -> dict[str, str]:
    rows = list(reference_rows((ROOT / "docs/reference.md").read_text(encoding="utf-8")))
    public = frozenset(name for module, names, _ in rows if module == "isotropy" for name in names)
    pages = {}
    for module, names, told in rows:
        own = module == "isotropy"
        file = names[0] if own else module.removeprefix("isotropy.")
        title = ", ".join(names) if own else module
        body = [f"# {title}", f"{told[0].upper()}{told[1:]}."]
        body += [docstrings.entry(module, name, public) for name in names]
        sources = dict.fromkeys(
            _home(module, name) if own else module for name in names
        )
        for source in filter(None, sources):
            words = docstrings.about(import_module(source), public)
            if words:
                body += [f"## The module `{source}`", words]
        pages[f"api/{file}.md"] = "\n\n".join(body) + "\n"
    made["reference.md"] = _with_links(made["reference.md"], rows)
    names = tuple(page.removesuffix(".md") for page in pages)
    made["reference.md"] += _toctree(names)
    return pages


def _home(module: str, name: str) -> str | None:
    """The module that defines a public name; None for a value."""
    return getattr(getattr(import_module(module), name), "__module__", None)


def _with_links(text: str, rows: list[tuple[str, list[str], str]]) -> str:
    """docs/reference.md with every name of its tables a link to what is said of it."""
    lines = text.splitlines()
    remaining = iter(rows)
    for number, line in enumerate(lines):
        if line.startswith("| `"):
            module, names, _ = next(remaining)
            for name in names:
                link = f"{{py:obj}}`~{module}.{name}`"
                lines[number] = lines[number].replace(f"`{name}`", link, 1)
    return "\n".join(lines) + "\n"


# --- the folder of sources ------------------------------------------------------------------------


def write_sources(folder: Path) -> int:
    """Write all sources; what did not change keeps its date. Returns the number of pages."""
    pages = all_pages()
    wanted = {folder / name for name in pages}
    for name, text in pages.items():
        _write(folder / name, text.encode())
    copies = {f"figures/{path.name}": path for path in (ROOT / "docs/figures").glob("*.svg")}
    copies |= {f"notebooks/{path.name}": path for path in (ROOT / "docs/notebooks").glob("*.ipynb")}
    copies |= {f"files/{name}": ROOT / name for name in ("LICENSE", "NOTICE", "CITATION.cff")}
    for name, path in copies.items():
        _write(folder / name, path.read_bytes())
        wanted.add(folder / name)
    for path in [path for path in folder.rglob("*") if path.is_file() and path not in wanted]:
        path.unlink()
    return len(pages)


def _write(path: Path, content: bytes) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    if not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
