"""The public names, pinned: none disappears unnoticed, and each says what it is."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import typing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

import isotropy

NAMES = """
    Action BuildResult CallerError CertifyConfig CertifyResult EMLP EquivariantLinear
    FiniteAction Generator Group InvariantClassifier InvariantEncoder InvariantModel
    InvariantRegressor LabelledData LearnConfig LearnResult MeasureResult RelaxConfig
    RelaxResult RepresentConfig RepresentResult Representation Result Scalar StoryConfig
    StoryResult T V __version__
    actions_named affine assert_equivariant build certify compose equivariant_basis flip fold
    group_named harden intensity learn learn_layers lie_derivative_penalty load log_to measure
    points profile quarter_turns read relax represent screen sequences story streamed
    verify
""".split()
DOCUMENTED = [name for name in NAMES if name != "__version__"]
REFERENCE = Path(__file__).parents[1] / "docs" / "reference.md"


def reference_rows() -> dict[str, list[str]]:
    """Names by module of docs/reference.md; those of the first table are the package's own."""
    rows: dict[str, list[str]] = {}
    for line in REFERENCE.read_text(encoding="utf-8").splitlines():
        cells = [re.findall(r"`([\w.]+)`", cell) for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and cells[0]:
            rows[cells[0][0]] = cells[1]
        elif len(cells) == 2:
            rows.setdefault("isotropy", []).extend(cells[0])
    return rows


def test_public_names_are_these() -> None:
    assert sorted(isotropy.__all__) == sorted(NAMES)
    assert sorted(reference_rows()["isotropy"]) == sorted(DOCUMENTED)


def test_type_checkers_are_told_the_same_names() -> None:
    """Names and rooms of `__init__.pyi` are those that are imported when they are asked for."""
    stub = ast.parse(Path(isotropy.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    told = {
        alias.name: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(told) == set(NAMES)
    (exported,) = (node.value for node in stub.body if isinstance(node, ast.Assign))
    assert set(ast.literal_eval(exported)) == set(NAMES)
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


@pytest.mark.parametrize("module", reference_rows())
def test_names_of_the_reference_are_there_and_documented(module: str) -> None:
    names = reference_rows()[module]
    assert names
    for name in names:
        assert is_documented(getattr(import_module(module), name)), name


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
    assert {"model", "symmetries", "log_evidence", "record", "config"} <= fields.keys()
