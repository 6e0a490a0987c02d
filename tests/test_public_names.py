"""The public names, pinned: none disappears unnoticed, and each says what it is."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import typing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

import isotropy

NAMES = [
    "Action",
    "AffineAction",
    "Augmentation",
    "BasisResult",
    "BuildResult",
    "Calibration",
    "CallerError",
    "Copies",
    "CorrelatedRanges",
    "DenseRoots",
    "DiagonalRoots",
    "EMLP",
    "Element",
    "EquivariantLinear",
    "EvidenceValue",
    "FiniteAction",
    "Follows",
    "Generator",
    "Grid",
    "Group",
    "Invariant",
    "InvariantClassifier",
    "InvariantModel",
    "InvariantRegressor",
    "KroneckerRoots",
    "LabelledData",
    "LayerRule",
    "Layout",
    "LearnConfig",
    "LearnProgress",
    "LearnResult",
    "LinearAction",
    "MeasureResult",
    "Mixture",
    "NotFiniteError",
    "Predictive",
    "ProfileResult",
    "RandomTransform",
    "RelaxConfig",
    "RelaxResult",
    "RelaxedLayer",
    "Representation",
    "Scalar",
    "ScreenResult",
    "Screening",
    "Split",
    "Symmetry",
    "T",
    "Tokens",
    "UniformRanges",
    "Use",
    "V",
    "Verdict",
    "__version__",
    "actions_named",
    "affine",
    "as_kornia",
    "as_torchvision",
    "assert_equivariant",
    "augmentation_from_law",
    "augmentation_over",
    "build",
    "calibration",
    "channel_permutations",
    "compose",
    "equivariant_basis",
    "export_model",
    "flip",
    "group_named",
    "harden",
    "intensity",
    "learn",
    "learn_layers",
    "lie_derivative_penalty",
    "linear_action",
    "load",
    "matrix_elements",
    "measure",
    "measured_actions",
    "point_permutation",
    "point_reflection",
    "points",
    "profile",
    "quarter_turns",
    "read",
    "register_rule",
    "relax",
    "reversal",
    "screen",
    "sequences",
    "sign_change",
]
DOCUMENTED = [name for name in NAMES if name != "__version__"]


def test_public_names_are_these() -> None:
    assert sorted(isotropy.__all__) == NAMES
    assert len(set(isotropy.__all__)) == len(isotropy.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_public_name_is_there(name: str) -> None:
    assert hasattr(isotropy, name)


def test_type_checkers_are_told_the_same_names() -> None:
    """Names and rooms of `__init__.pyi` are those that are imported when they are asked for."""
    stub = ast.parse(Path(isotropy.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    told = {
        alias.asname: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(told) == set(NAMES)
    for name in DOCUMENTED:
        assert getattr(import_module(str(told[name])), name) is getattr(isotropy, name)


def test_rooms_are_imported_when_they_are_asked_for() -> None:
    code = "import sys, isotropy; print(sum(name.startswith('isotropy.') for name in sys.modules))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(told.stdout) == 1  # the version
    with pytest.raises(AttributeError, match="no attribute 'lern'"):
        isotropy.lern  # type: ignore[attr-defined]  # noqa: B018
    assert set(NAMES) <= set(dir(isotropy))


def is_documented(thing: object) -> bool:
    """Whether a name has a docstring of its own, not its base's, nor one that dataclass wrote."""
    words = (thing.__doc__ or "").strip()
    name = getattr(thing, "__name__", "")
    return bool(words) and not words.startswith(f"{name}(")


@pytest.mark.parametrize("name", DOCUMENTED)
def test_public_name_is_documented(name: str) -> None:
    assert is_documented(getattr(isotropy, name))


def test_missing_docstrings_are_noticed() -> None:
    class Documented:
        """In a sentence."""

    class Inherited(Documented): ...

    @dataclass
    class Written:
        field: int

    def function() -> None: ...

    assert is_documented(Documented)
    assert not any(is_documented(thing) for thing in (Inherited, Written, function))


def test_learn_is_called_as_promised() -> None:
    parameters = inspect.signature(isotropy.learn).parameters
    assert list(parameters)[:6] == ["model", "train", "test", "actions", "objective", "config"]
    assert parameters["test"].default is None
    fields = typing.get_type_hints(isotropy.LearnResult)
    assert {"model", "symmetries", "log_evidence"} <= fields.keys()
    assert callable(isotropy.LearnResult.save) and callable(isotropy.LearnResult.report)
