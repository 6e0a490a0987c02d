"""The page on measuring and its scripts say what the code does."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "measure.md"


def script(name: str) -> ModuleType:
    path = ROOT / "docs" / "gallery" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"measured_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listed(name: str) -> list[str]:
    """The names between two comments, in order."""
    text = PAGE.read_text(encoding="utf-8")
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    assert text.count(begin) == text.count(end) == 1
    return re.findall(r"`(\w+)`", text.partition(begin)[2].partition(end)[0])


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every name that the page's code makes, run from top to bottom on small data."""
    torch.manual_seed(0)
    images = torch.rand(12, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(12) % 10
    names: dict[str, Any] = {
        "images": images, "labels": labels, "test_images": images[:6], "test_labels": labels[:6]
    }  # fmt: skip
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, flags=re.M | re.S)
    assert len(blocks) >= 5
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        for number, block in enumerate(blocks):
            exec(compile(block, f"measure.md, block {number}", "exec"), names)
        names["page"] = Path("measured.html").read_text(encoding="utf-8")
    return names


def test_fields_are_those_of_the_record(ran: dict[str, Any]) -> None:
    record = ran["found"].record
    assert listed("json") == list(record)
    assert listed("entry") == list(record["entries"][0])
    assert listed("action") == list(record["actions"][0])
    assert listed("layer") == list(record["actions"][0]["layers"][0])


def test_page_code_finds_what_it_says(ran: dict[str, Any]) -> None:
    assert ran["ratio"] == pytest.approx(9 / 4, rel=1e-5)
    assert ran["gap"]["from"] == "train" and ran["gap"]["to"] == "test"
    assert ran["drift"]["difference"] == 0.0
    assert len(ran["found"].actions) == 9


def test_errors_under_whole_pixels_stand_beside_the_contributions(ran: dict[str, Any]) -> None:
    """Zero for pointwise layers, more at padded borders, nothing for vectors; also on the page."""
    actions = {action["name"]: action for action in ran["found"].actions}
    layers = {layer["name"]: layer["eq_t"] for layer in actions["rotation"]["layers"]}
    assert layers["0"] > 0 and layers["3"] > 0 and layers["1"] == layers["4"] == layers["2"] == 0
    assert layers["6"] is layers["7"] is layers["softmax"] is None
    others = actions["translation_x"]["layers"]
    assert layers == {layer["name"]: layer["eq_t"] for layer in others}
    assert ran["page"].count('<th scope="col">EQ-T</th>') == 8, "all but amplitude have layers"


def test_aliasing_follows_the_closed_form() -> None:
    figure = script("aliasing").main(examples=3)
    pairs: dict[str, list[tuple[float, float]]] = {}
    for axes in figure.axes:
        values = [float(line.get_ydata()[0]) for line in axes.lines]
        pairs[axes.get_title()] = list(zip(values[::2], values[1::2], strict=True))
    assert pairs.keys() == {"MaxPool2d", "GELU", "ReLU"}
    # Frequencies up to 1 fit every second of 8 pixels, those up to 3 do not.
    assert max(pairs["MaxPool2d"][0]) < 1e-20 and pairs["MaxPool2d"][2][0] > 1
    for name, tolerance in {"MaxPool2d": 1e-12, "GELU": 1e-8, "ReLU": 0.2}.items():
        for measured, formula in pairs[name]:
            assert measured == pytest.approx(formula, rel=tolerance, abs=1e-20)


def test_own_model_names_its_culprit() -> None:
    module = script("measure_own_model")
    (penalised,) = module.main(examples=20).actions
    (free,) = module.main(examples=20, weight=0.0).actions
    for action in (penalised, free):
        shares = {layer["name"]: layer["share"] for layer in action["layers"]}
        assert max(shares, key=shares.__getitem__) == "culprit" and shares["culprit"] > 0.5
        assert sum(shares.values()) == pytest.approx(1, abs=1e-4)
    assert penalised["error"] < 0.5 * free["error"]


def test_culprit_fails_the_assertion() -> None:
    module = script("measure_own_model")
    shift = module.isotropy.affine(("translation_x",), interpolation="fourier")
    with pytest.raises(AssertionError, match="translation_x"):
        module.isotropy.assert_equivariant(module.ByPosition(), shift, torch.rand(8, 1, 12, 12))
