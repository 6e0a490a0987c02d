"""The table of networks is made of the results, and says what each took."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from model_matrix import BEGIN, CASES, END, PAGE, RESULTS, pictures, table, write_page  # noqa: E402

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
