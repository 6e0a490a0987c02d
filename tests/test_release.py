"""Version, changelog and citation agree, and the citation names the five works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import isotropy

ROOT = Path(__file__).parents[1]
WORKS = {
    "Invariance Learning in Deep Neural Networks with Differentiable Laplace Approximations": 2022,
    "Learning Layer-wise Equivariances Automatically using Gradients": 2023,
    "Learning Invariant Weights in Neural Networks": 2021,
    "Understanding and Incorporating Mathematical Inductive Biases in Neural Networks": 2023,
    "Learning Invariance in Deep Neural Networks": 2021,
}


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_newest_release_is_this_version() -> None:
    heads = re.findall(r"^## \[([^\]]+)\](?: - (\S+))?$", text_of("CHANGELOG.md"), flags=re.M)
    assert heads[0] == ("Unreleased", "")
    version, date = heads[1]
    assert version == isotropy.__version__ and re.fullmatch(r"\d+\.\d+\.\d+", version)
    citation = text_of("CITATION.cff")
    assert f"\nversion: {version}\n" in citation and f"\ndate-released: {date}\n" in citation


def test_the_citation_names_the_five_works() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: make docs installs it")
    told = yaml.safe_load(text_of("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors"} <= told.keys()
    assert {work["title"]: work["year"] for work in told["references"]} == WORKS
    assert all(work["authors"] and work["type"] for work in told["references"])


def test_hooks_call_what_is_there() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: make docs installs it")
    (local,) = yaml.safe_load(text_of(".pre-commit-config.yaml"))["repos"]
    assert [hook["id"] for hook in local["hooks"]] == ["ruff", "mypy", "map"]
    assert all(hook["entry"].startswith(".venv/bin/python -m ") for hook in local["hooks"])
