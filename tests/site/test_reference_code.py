"""The Python of docstrings runs: every block of the reference, with stand-ins for its names."""

from __future__ import annotations

import math
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import isotropy
from isotropy.curvature import layer_rules
from isotropy.curvature.kfac import KFAC
from isotropy.evidence import settings as schedule
from isotropy.evidence.laplace import Batch, GaussianPrior, LaplaceEvidence
from isotropy.likelihoods import Categorical
from isotropy.networks.averaging.augmentations import UniformRanges
from isotropy.symmetry.groups.catalogue import O

SITE = Path(__file__).parents[2] / "docs" / "site"


def python_blocks() -> dict[str, list[str]]:
    """Blocks by page, each once."""
    sys.path.insert(0, str(SITE))
    try:
        made = import_module("pages")._reference({"reference.md": ""})
    finally:
        sys.path.remove(str(SITE))
        for name in ("pages", "docstrings", "notebooks", "formulas"):
            sys.modules.pop(name, None)
    found: dict[str, list[str]] = {}
    seen: set[str] = set()
    for page, text in made.items():
        for block in re.findall(r"^```python\n(.*?)^```$", text, flags=re.M | re.S):
            if block not in seen:
                seen.add(block)
                found.setdefault(page, []).append(block)
    return found


class WithVector(nn.Module):
    """A network of an image and a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.vector = nn.Linear(64, 3), nn.Linear(2, 3)

    def forward(self, image: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
        return self.image(image.flatten(1)) + self.vector(vector)


def predictive_names() -> dict[str, Any]:
    clouds = torch.rand(10, 2, 2)
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    model = isotropy.InvariantModel(network, UniformRanges(isotropy.points(2)), samples=2)
    curvature = KFAC(model.network)
    prior = GaussianPrior(model.network, curvature.parameter_names)
    noise = model.noise(10)
    with torch.no_grad():
        rows = model.orbit(clouds, noise)
    batch = Batch(rows, torch.arange(10) % 3, model.augmentation.copies(2))
    evidence = LaplaceEvidence(model.network, Categorical(), prior, curvature)
    return {"evidence": evidence, "batches": [batch], "model": model, "inputs": clouds,
            "generator": torch.Generator()}  # fmt: skip


def stand_ins() -> dict[str, dict[str, Any]]:
    """Names of each page that are neither the package's nor its module's."""
    images, labels = torch.rand(12, 1, 8, 8), torch.arange(12) % 3
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    ranges = UniformRanges(isotropy.affine())
    averaged = isotropy.InvariantModel(network, ranges, samples=2)
    radius = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    vectors = isotropy.V(O(3))
    return {
        "api/Action.md": {},
        "api/InvariantModel.md": {"network": network, "images": images, "g": torch.Generator(),
                                  "UniformRanges": UniformRanges},
        "api/curvature.layer_rules.md": {"MyLayer": type("MyLayer", (nn.Module,), {})},
        "api/evidence.predictive.md": predictive_names(),
        "api/log_to.md": {"network": network, "data": (images, labels), "logger": print},
        "api/measure.md": {
            "model": lambda clouds: clouds.norm(dim=2).sum(1, keepdim=True),
            "clouds": torch.rand(4, 5, 3), "layer": nn.Identity(), "vector": vectors, "O": O,
            "then": {"model": radius, "x": torch.rand(4, 4, 3), "y": torch.arange(4) % 3,
                     "rotation": isotropy.points(3), "cross_entropy": cross_entropy},
        },
        "api/networks.export.laws.md": {
            "augmentation": ranges, "result": type("R", (), {"model": averaged}),
            "image": images[0], "label": labels[0],
        },
        "api/networks.several_inputs.md": {
            "network": WithVector(), "images": images, "vectors": torch.rand(12, 2),
            "labels": labels, "new_images": images[:2], "new_vectors": torch.rand(2, 2),
        },
        "api/symmetry.actions.images.md": {"image": images[:1]},
        "api/symmetry.actions.linear.md": {},
    }  # fmt: skip


@pytest.mark.slow
def test_python_of_docstrings_runs(
    monkeypatch: pytest.MonkeyPatch, torchvision_imports: None
) -> None:
    kornia = pytest.importorskip("kornia.augmentation", reason="kornia is not installed")
    monkeypatch.setattr(layer_rules, "_RULES", dict(layer_rules._RULES))
    monkeypatch.setattr(schedule, "default_epochs", lambda on_gpu: 1)
    found, given = python_blocks(), stand_ins()
    assert found.keys() == given.keys()
    public = {name: getattr(isotropy, name) for name in isotropy.__all__}
    for page, blocks in found.items():
        name = page.removeprefix("api/").removesuffix(".md")
        names = {**public, "isotropy": isotropy, "torch": torch, "math": math}
        names["AugmentationSequential"] = kornia.AugmentationSequential
        if "." in name:
            names |= vars(import_module(f"isotropy.{name}"))
        names |= given[page]
        for number, block in enumerate(blocks):
            if number:
                names |= given[page].get("then", {})
            try:
                exec(compile(block, f"{page}, block {number}", "exec"), names)
            except Exception as error:
                pytest.fail(f"{page}, block {number}: {type(error).__name__}: {error}")
