"""The page on relaxed layers says what the code does."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from isotropy.cli.relax import QUICK
from isotropy.evidence.layers.settings import RelaxConfig
from isotropy.networks.pathways.relaxed_layer import PATHWAYS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "relax.md"


def marked(name: str) -> str:
    """What stands between two comments."""
    text = PAGE.read_text(encoding="utf-8")
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    assert text.count(begin) == text.count(end) == 1
    return text.partition(begin)[2].partition(end)[0].strip()


def listed(name: str) -> list[str]:
    return re.findall(r"`(\w+)`", marked(name))


def settings_table() -> str:
    kinds = [RelaxConfig().resolved(examples=2000, on_gpu=on_gpu) for on_gpu in (False, True)]
    lines = ["| setting | CPU | GPU |", "|---|---|---|"]
    for field in dataclasses.fields(RelaxConfig):
        values = [getattr(kind, field.name) for kind in kinds]
        if None not in values:
            cells = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
            lines.append(f"| `{field.name}` | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def test_settings_are_those_of_the_source() -> None:
    assert marked("settings") == settings_table(), f"should be:\n{settings_table()}"
    expected = ", ".join(f"`{name}` {value}" for name, value in QUICK.items()) + "."
    assert marked("quick") == expected, f"should be: {expected}"


def test_pathways_are_those_of_the_source() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("| name | pathway |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([\w-]+)`", table, flags=re.M) == list(PATHWAYS)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every name that the page's code makes, run from top to bottom on small data."""
    torch.manual_seed(0)
    images = torch.rand(12, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(12) % 10
    names: dict[str, Any] = {
        "images": images, "labels": labels, "test_images": images[:6], "test_labels": labels[:6]
    }  # fmt: skip
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, flags=re.M | re.S)
    assert blocks
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        for number, block in enumerate(blocks):
            exec(compile(block, f"relax.md, block {number}", "exec"), names)
        assert Path("runs/relaxed/report.html").is_file()
    return names


def test_fields_are_those_of_the_record(ran: dict[str, Any]) -> None:
    record = ran["result"].record
    assert listed("json") == list(record)
    assert listed("layer") == list(record["layers"][0])
    assert listed("epoch") == list(record["epochs"][0])


def test_page_code_relaxes_and_hardens(ran: dict[str, Any]) -> None:
    assert [layer["name"] for layer in ran["result"].layers] == ["0", "3"]
    assert ran["plain"](ran["images"]).shape == (12, 10)
