"""One random direction of the output curvature leads to the ranges that all of them lead to."""

from __future__ import annotations

import pytest
import torch

import isotropy
from isotropy.data.readers import digits
from isotropy.data.variants import vary
from isotropy.evidence.settings import LearnConfig
from isotropy.networks.zoo.backbones import mlp

DEGREES, OTHERS = 5.0, 0.03


@pytest.mark.slow
def test_ranges_by_one_direction_are_those_by_all() -> None:
    train = vary(digits(), "partially-rotated").train.subset(400, 0)
    found = {}
    for curvature in ("kfac-ggn", "kfac-mc"):
        torch.manual_seed(0)
        config = LearnConfig(
            epochs=60, samples=8, batch_size=50, search=False, curvature=curvature,
            gradient_batches=0,
        )  # fmt: skip
        network = mlp((1, 28, 28), 10, hidden=30)
        actions = isotropy.affine(("rotation", "scale_x"))
        result = isotropy.learn(network, train, actions=actions, config=config, verdicts=0)
        found[curvature] = {each.name: each.high for each in result.symmetries}
    exact, sampled = found.values()
    assert exact["rotation"] > 60
    assert abs(exact["rotation"] - sampled["rotation"]) < DEGREES, found
    assert abs(exact["scale_x"] - sampled["scale_x"]) < OTHERS, found
