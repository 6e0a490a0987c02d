"""The cost model of docs/scale.md: known numbers of ResNet-50, its limits, and the page itself."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "scale_table.py"


@pytest.fixture(scope="module")
def model() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scale_table", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_resnet_50_is_that_of_the_paper(model: ModuleType) -> None:
    layers = list(model.resnet_50())
    assert len(layers) == 54  # 53 convolutions, four of them beside a block, and the last layer
    assert sum(layer.products for layer in layers) == pytest.approx(4.09e9, rel=1e-3)
    # 25,557,032 parameters, less those of batch normalisation and the last bias
    assert sum(layer.inputs * layer.outputs for layer in layers) == 25_557_032 - 53_120 - 1000


def test_layers_are_those_of_the_network(model: ModuleType) -> None:
    wide = model.layers_of("wrn")
    assert len(wide) == 17 and wide[0].inputs == 27 and wide[-1] == model.Layer(256, 10)


def test_more_ranks_take_less_until_they_wait_for_each_other(model: ModuleType) -> None:
    one, eight, many = (model.imagenet(ranks, 10, 256) for ranks in (1, 8, 64))
    assert one["weight steps"] == pytest.approx(64 * many["weight steps"])
    assert one["their sums over ranks"] == 0 < eight["their sums over ranks"]
    assert many["decompositions"] == model.machine().decomposition(10**6)
    assert one["decompositions"] > eight["decompositions"] > many["decompositions"]


def test_larger_blocks_take_longer(model: ModuleType) -> None:
    machine = model.machine()
    times = [machine.decomposition(rows) for rows in (10, 145, 146, 2305, 2500)]
    assert times[0] == times[1] < times[2] < times[3] < times[4]
    assert times[4] == pytest.approx(times[3] * (2500 / 2305) ** 3)


def test_the_page_is_up_to_date(model: ModuleType) -> None:
    text = model.PAGE.read_text(encoding="utf-8")
    assert model.filled(text) == text
