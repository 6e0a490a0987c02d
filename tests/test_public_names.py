"""The public names, pinned: none disappears unnoticed, and each says what it is."""

from __future__ import annotations

import inspect
import typing
from dataclasses import dataclass
from types import ModuleType

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
    "ScreenResult",
    "Screening",
    "Split",
    "Symmetry",
    "Tokens",
    "UniformRanges",
    "Use",
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


def test_nothing_public_is_left_out() -> None:
    """What the package imports by name it also offers, and the other way round."""
    found = {
        name
        for name, value in vars(isotropy).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert found == set(DOCUMENTED)


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
