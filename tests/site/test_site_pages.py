"""From documents to the site: links, formulas, docstrings and notebooks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import isotropy

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "site"


@pytest.fixture(scope="module")
def site() -> Iterator[dict[str, ModuleType]]:
    """The modules of docs/site by name."""
    sys.path.insert(0, str(SITE))
    names = ("formulas", "docstrings", "notebooks", "links", "pages")
    yield {name: import_module(name) for name in names}
    sys.path.remove(str(SITE))
    for name in names:
        del sys.modules[name]


# --- documents ------------------------------------------------------------------------------------


def test_links_lead_to_pages_of_the_site(site) -> None:
    pages = site["pages"]
    text = "[a](../ARCHITECTURE.md#the-rooms) [b](gallery/own_action.py) [c](notebooks) [d](#here)"
    assert pages.document(text, ROOT / "docs" / "index.md") == (
        "[a](architecture.md#the-rooms) [b](gallery/own_action.md) [c](notebooks/index.md) "
        "[d](#here)"
    )
    deeper = pages.document("[a](../../ARCHITECTURE.md) `[x](y)`", ROOT / "docs/howto/own-data.md")
    assert deeper == "[a](../architecture.md) `[x](y)`"


def test_a_link_to_what_is_not_on_the_site_is_noticed(site) -> None:
    pages = site["pages"]
    with pytest.raises(pages.SiteError, match="docs/index.md links to ../src"):
        pages.document("[code](../src/isotropy)", ROOT / "docs" / "index.md")


def test_every_document_is_in_the_contents(site) -> None:
    pages = site["pages"]
    documents = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/howto").glob("*.md")]
    documents += [ROOT / f"{name}.md" for name in pages.PROJECT]
    listed = {name for names in pages.CONTENTS.values() for name in names}
    written = {pages.site_path(path).removesuffix(".md") for path in documents} - {"index"}
    assert written == listed - {"notebooks/index", "gallery/index"}


def test_formulas_of_documents_are_set(site) -> None:
    text = "before\n\n```text\nlog Z ≈ Σ_l δ_l\n```\n\n```text\nisotropy learn\n```\n"
    made = site["pages"].document(text, ROOT / "docs" / "index.md")
    assert '<div class="formula">' in made and "<sub>l</sub>" in made
    assert "```text\nisotropy learn\n```" in made


# --- formulas -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("½ f̂ σ²", "½ <i>f̂</i> <i>σ</i>²"),
        ("Σ_l δ_l", "Σ<sub>l</sub> <i>δ</i><sub>l</sub>"),
        ("e^{a + c} u", "<i>e</i><sup>a + c</sup> <i>u</i>"),
        ("log p(y | f) < 1", "log <i>p</i>(<i>y</i> | <i>f</i>) &lt; 1"),
        ("a matrix of the group", "a matrix of the group"),
        ("`equivariant_basis`", "<code>equivariant_basis</code>"),
    ],
)
def test_a_formula_is_set(site, written: str, shown: str) -> None:
    assert site["formulas"].inline(written) == shown


def test_indices_within_sentences(site) -> None:
    found = site["formulas"].with_indices(r"G_k and η\_l, not scale_x, a_file.py or `a_b`")
    assert found == "<i>G</i><sub>k</sub> and <i>η</i><sub>l</sub>, not scale_x, a_file.py or `a_b`"


def test_columns_and_continued_lines(site) -> None:
    text = "    dense     H = A       of one\n" + 26 * " " + "layer\n    kfac      G ⊗ A\n"
    rows = site["formulas"]._rows(text)
    assert [len(row) for row in rows] == [3, 2]
    assert rows[0][2] == "of one<br>layer"


# --- docstrings -----------------------------------------------------------------------------------


def test_arguments_become_a_list(site) -> None:
    told = """One sentence.

    first, second: what they are,
                   continued
    a_long_name    a description
    a_longer_name_ another one
    Raises CallerError where * is wrong.
    """
    assert site["docstrings"].markdown(told).split("\n\n") == [
        "One sentence.",
        "`first`, `second`\n: what they are, continued",
        "`a_long_name`\n: a description",
        "`a_longer_name_`\n: another one",
        r"Raises CallerError where \* is wrong.",
    ]


def test_code_formulas_and_examples_are_told_apart(site) -> None:
    told = "Head.\n\n    y = f(x)\n\n    L = Σ_i C_i\n\n>>> isotropy.learn(a)\n"
    _, code, formula, example = site["docstrings"].markdown(told).split("\n\n")
    assert code == "```python\ny = f(x)\n```"
    assert formula.startswith('<div class="formula">')
    assert example == "```python\nisotropy.learn(a)\n```"


def test_documented_names_are_links(site) -> None:
    found = site["docstrings"].escaped("`learn` and `other`", frozenset({"learn"}))
    assert found == "{py:obj}`~isotropy.learn` and `other`"


def test_the_reference_has_every_public_name(site) -> None:
    pages, made = site["pages"], {"reference.md": ""}
    rows = list(pages.reference_rows((ROOT / "docs/reference.md").read_text(encoding="utf-8")))
    pages.ROOT = ROOT
    text = "\n".join(pages._reference(made).values())
    for module, names, _ in rows:
        for name in names:
            assert f"}} {module}.{name}" in text, f"{module}.{name} is not in the reference"
    public = {name for module, names, _ in rows if module == "isotropy" for name in names}
    assert public == set(isotropy.__all__) - {"__version__"}


# --- notebooks ------------------------------------------------------------------------------------


def notebook(folder: Path, *cells: str) -> Path:
    path = folder / "one.ipynb"
    written = [{"cell_type": "markdown", "source": ["# Head"]}]
    written += [{"cell_type": "code", "source": [cell]} for cell in cells]
    path.write_text(json.dumps({"cells": written}))
    return path


def test_a_notebook_shows_what_its_cells_give(site, tmp_path: Path) -> None:
    class_ = "class Shown:\n    def _repr_html_(self):\n        return '<b>seen</b>'\nprint(6 * 7)"
    page = site["notebooks"].page(notebook(tmp_path, class_, "Shown()", "1 + 1"))
    assert page.startswith("# Head") and "\n42\n" in page
    assert "<b>seen</b>" in page and "\n2\n" in page


def test_a_cell_that_fails_ends_the_build(site, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="one.ipynb, cell 2 failed: division"):
        site["notebooks"].page(notebook(tmp_path, "1 / 0"))


# --- links of the built site ----------------------------------------------------------------------


def test_broken_links_and_outside_files_are_noticed(site, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="head"></h1><a href="#head"></a><a href="b.html#no"></a><a href="c.html"></a>'
        '<script src="https://elsewhere.org/x.js"></script><a href="https://elsewhere.org"></a>'
    )
    (tmp_path / "b.html").write_text('<a href="a.html#head"></a><img src="missing.svg">')
    assert site["links"].complaints(tmp_path) == [
        "a.html loads https://elsewhere.org/x.js from outside",
        "a.html: b.html#no has no such heading",
        "a.html: c.html is not there",
        "b.html: missing.svg is not there",
    ]


def test_the_built_site_has_no_broken_link(site) -> None:
    built = ROOT / "build" / "site"
    if not (built / "index.html").is_file():
        pytest.skip("build/site is not there: make docs builds it")
    assert site["links"].complaints(built) == []
