"""The page on bases says what is there: its code runs, its tables and figures are the source's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isotropy.bases.solving import METHODS
from isotropy.symmetry.groups.catalogue import GROUPS
from isotropy.symmetry.groups.language import parse_representation

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "bases.md"


def marked(name: str) -> str:
    """What stands between the two comments of this name."""
    text = PAGE.read_text(encoding="utf-8")
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    assert text.count(begin) == text.count(end) == 1
    return text.partition(begin)[2].partition(end)[0].strip()


def first_cells(table: str) -> list[str]:
    return re.findall(r"^\| `([^`]+)`", table, flags=re.M)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every name that the page's code makes, run from top to bottom."""
    names: dict[str, Any] = {}
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, flags=re.M | re.S)
    assert len(blocks) >= 4
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        for number, block in enumerate(blocks):
            exec(compile(block, f"bases.md, block {number}", "exec"), names)
        assert Path("cross_product.svg").is_file()
    return names


def test_the_code_finds_what_the_page_says(ran: dict[str, Any]) -> None:
    # The Levi-Civita symbol, up to scale: its rows are index pairs.
    levi_civita = np.zeros((3, 3, 3))
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        levi_civita[i, j, k], levi_civita[j, i, k] = 1, -1
    found = ran["matrix"].ravel()
    assert abs(found @ levi_civita.ravel()) == pytest.approx(
        np.linalg.norm(found) * np.linalg.norm(levi_civita)
    )
    assert ran["twice"].rank == 2
    assert ran["own"].rank > 0


def test_groups_are_those_of_the_catalogue() -> None:
    expected = "\n".join(
        ["| group | what it is |", "|---|---|"]
        + [f"| `{name}` | {row.meaning} |" for name, row in GROUPS.items()]
    )
    assert marked("groups") == expected, f"the table should be:\n{expected}"


def test_methods_are_those_of_the_solver_in_order() -> None:
    assert first_cells(marked("methods")) == list(METHODS)


def test_fields_are_those_of_the_record(ran: dict[str, Any]) -> None:
    record = ran["found"].record
    assert re.findall(r"`(\w+)`", marked("json")) == list(record)
    assert re.findall(r"`(\w+)`", marked("part")) == list(record["parts"][0])


def test_the_cost_of_a_step_is_that_of_the_benchmark() -> None:
    (path,) = (ROOT / "results" / "bench").glob("equivariant_networks-*-2-threads.json")
    networks = json.loads(path.read_text(encoding="utf-8"))["networks"].values()
    ratios = sorted(each["ratio"] for each in networks)
    expected = f"{ratios[0]:.1f} to {ratios[-1]:.1f} times"
    assert marked("cost") == expected, f"should be: {expected}"


def test_the_grammar_is_read() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("| written |")[2].partition("\n\n")[0]
    words = [word for row in text.splitlines() for word in re.findall(r"`([^`]+)`", row[:24])]
    assert len(words) > 10
    numbers = {"p": "2", "q": "1", "l": "2"}
    for word in words:
        concrete = re.sub(r"\b[pql]\b", lambda found: numbers[found[0]], word)
        assert parse_representation(re.sub(r"\b(\d?)[RS]\b", r"\1V", concrete))
