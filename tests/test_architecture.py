"""The map of the house, enforced: who imports whom, and what library code leaves alone.

`checks` → `kernels` → `likelihoods` → `symmetry` · `curvature` → `bases` → `networks` · `data` →
`control` · `evidence` · `equivariance` · `bounds` → `records` → `report` → `workflows` →
`experiments` → `cli`: a file may import from its own room and from rooms to the left of an arrow;
rooms joined by · do not import each other. The package's own `__init__` may import everything, and
nothing within imports it.
Each rule is a function from a folder of sources to a list of complaints, and is tried on a
planted offence as well as on the package.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "src" / "isotropy"

ROOMS: tuple[tuple[str, ...], ...] = (
    ("checks",),
    ("kernels",),
    ("likelihoods",),
    ("symmetry", "curvature"),
    ("bases",),
    ("networks", "data"),
    ("control", "evidence", "equivariance", "bounds"),
    ("records",),
    ("report",),
    ("workflows",),
    ("experiments",),
    ("cli",),
    ("__main__",),
)
PLACE = {room: place for place, rooms in enumerate(ROOMS) for room in rooms}
OPEN_TO_ALL = "_version"
MOST_LINES = 600
MOST_FILES = 14
MOST_PARAMETERS = 8

USER_OPTIONS = {
    "build", "certify", "learn", "learn_layers", "measure", "profile", "represent", "screen",
}  # fmt: skip
"""Verbs whose parameters are the options that a user chooses from, each by its name."""

MAY_PRINT = ("cli", "experiments/runner")
MAY_SEED_AND_READ_THE_ENVIRONMENT = ("cli", "experiments")
SEEDS_OR_READS_THE_ENVIRONMENT = {
    "torch.manual_seed", "torch.seed", "torch.random.manual_seed", "torch.random.seed",
    "torch.cuda.manual_seed", "torch.cuda.manual_seed_all",
    "numpy.random.seed", "random.seed", "os.environ", "os.getenv",
}  # fmt: skip


# --- reading sources ----------------------------------------------------------------------


def parsed(folder: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Every source file under `folder`, as its path relative to it and its syntax tree."""
    for path in sorted(folder.rglob("*.py")):
        yield path.relative_to(folder), tree_of(path.read_text(encoding="utf-8"), str(path))


@cache
def tree_of(source: str, name: str) -> ast.Module:
    """The syntax tree of a source, which every rule walks and none changes."""
    return ast.parse(source, name)


def dotted(node: ast.AST) -> str:
    """`a.b.c` as it is written; what is not made of names and dots alone is empty."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def imported(file: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of each import in `file` of the package, at any depth.

    `from a import b` counts as `a.b`, whether `b` is a module or a name in one. Imports inside
    functions, under TYPE_CHECKING, and by `import_module("…")` count like any other.
    """
    here = ("isotropy", *file.parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            module = (*base, *([node.module] if node.module else []))
            yield from ((node.lineno, ".".join((*module, alias.name))) for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and dotted(node.func).split(".")[-1] in ("import_module", "__import__")
        ):
            name = str(node.args[0].value)
            dots = len(name) - len(name.lstrip("."))
            base = here[: len(here) - dots + 1] if dots else ()
            yield node.lineno, ".".join((*base, name.lstrip(".")))


def used(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of what is used, with `import numpy as np` and the like undone."""
    meaning: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                meaning[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                meaning[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            first, *rest = dotted(node).split(".")
            yield node.lineno, ".".join((meaning.get(first, first), *rest))


def within(file: Path, places: Iterable[str]) -> bool:
    """Is `file` (relative to the package) one of `places`, or in one of them?"""
    name = file.with_suffix("").as_posix()
    return any(name == place or name.startswith(place + "/") for place in places)


# --- the rules ----------------------------------------------------------------------------


def wrong_imports(package: Path) -> list[str]:
    """Imports against the direction of the arrows, across a ·, or of the package itself."""
    complaints = []
    for file, tree in parsed(package):
        room = file.with_suffix("").parts[0]
        if room in ("__init__", OPEN_TO_ALL):
            continue
        if room not in PLACE:
            complaints.append(f"{file}: the room {room!r} is not on the map")
            continue
        for line, name in imported(file, tree):
            top, _, rest = name.partition(".")
            if top != "isotropy":
                continue
            target = rest.split(".")[0]
            if target in (room, OPEN_TO_ALL):
                continue
            if target not in PLACE:
                complaints.append(f"{file}:{line}: imports {name!r} from the package's __init__")
            elif PLACE[target] >= PLACE[room]:
                complaints.append(f"{file}:{line}: {room} may not import {target}")
    return complaints


def prints(package: Path) -> list[str]:
    """Calls of print outside the command line and the experiment runner."""
    return [
        f"{file}:{node.lineno}: prints"
        for file, tree in parsed(package)
        if not within(file, MAY_PRINT)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and dotted(node.func) == "print"
    ]


def global_state(package: Path) -> list[str]:
    """Global seeds, and looks at the environment, outside the command line and experiments."""
    return [
        f"{file}:{line}: uses {name}"
        for file, tree in parsed(package)
        if not within(file, MAY_SEED_AND_READ_THE_ENVIRONMENT)
        for line, name in used(tree)
        if name in SEEDS_OR_READS_THE_ENVIRONMENT
    ]


def long_files(package: Path) -> list[str]:
    """Files in which a second idea is hiding."""
    lengths = {
        path.relative_to(package): len(path.read_text(encoding="utf-8").splitlines())
        for path in sorted(package.rglob("*.py"))
    }
    return [f"{file}: {lines} lines" for file, lines in lengths.items() if lines > MOST_LINES]


def full_folders(package: Path) -> list[str]:
    """Folders whose listing no longer explains them."""
    counts: dict[Path, int] = {}
    for path in package.rglob("*.py"):
        if path.name != "__init__.py":
            folder = path.parent.relative_to(package)
            counts[folder] = counts.get(folder, 0) + 1
    return [f"{folder}: {count} files" for folder, count in counts.items() if count > MOST_FILES]


def many_parameters(package: Path, exempt: Iterable[str] = ()) -> list[str]:
    """Functions of parameters that want a name together; `self` and `cls` do not count.

    Kernels of Triton are not asked, whose sizes are constants of their compilation, and neither
    are commands, whose parameters are declared one by one above them.
    """
    complaints = []
    for file, tree in parsed(package):
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name in exempt:
                continue
            decorators = [getattr(each, "func", each) for each in node.decorator_list]
            if {dotted(each).split(".")[-1] for each in decorators} & {"jit", "command"}:
                continue
            given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            count = len([each for each in given if each.arg not in ("self", "cls")])
            if count > MOST_PARAMETERS:
                complaints.append(f"{file}:{node.lineno}: {node.name} takes {count} parameters")
    return complaints


def oracles_that_know_the_library(folder: Path) -> list[str]:
    """Oracles that import what they are to judge."""
    return [
        f"{file}:{line}: imports {name}"
        for file, tree in parsed(folder)
        for line, name in imported(Path("..") / file, tree)
        if name.split(".")[0] == "isotropy"
    ]


def shadowed_functions(names: dict[str, object], modules: Iterable[str]) -> list[str]:
    """Public functions that importing a submodule of the same name would replace."""
    return sorted(name for name in set(names) & set(modules) if inspect.isroutine(names[name]))


# --- the package keeps them ---------------------------------------------------------------


@pytest.mark.parametrize("rule", [wrong_imports, prints, global_state, long_files, full_folders])
def test_package(rule: Callable[[Path], list[str]]) -> None:
    assert any(PACKAGE.rglob("*.py"))
    assert rule(PACKAGE) == []


def test_functions_take_few_parameters() -> None:
    assert many_parameters(PACKAGE, USER_OPTIONS) == []
    every = " ".join(many_parameters(PACKAGE))
    assert {name for name in USER_OPTIONS if f": {name} takes" not in every} == set(), "not needed"


def test_oracles_do_not_know_the_library() -> None:
    assert oracles_that_know_the_library(TESTS / "oracles") == []


def test_no_public_function_is_named_like_a_submodule() -> None:
    import isotropy

    names = {name: getattr(isotropy, name) for name in isotropy.__all__}
    modules = {module.name for module in pkgutil.iter_modules(isotropy.__path__)}
    assert modules
    assert shadowed_functions(names, modules) == []


# --- and notice when it does not ----------------------------------------------------------


def plant(folder: Path, file: str, source: str) -> Path:
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    return folder


TYPES = (
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from isotropy.report import record"
)

FORBIDDEN = {
    "rightward": (
        "symmetry/groups/group.py",
        "from isotropy.networks.equivariant.emlp import EMLP",
    ),
    "neighbour": ("symmetry/groups/group.py", "import isotropy.curvature.kfac"),
    "single file": ("checks.py", "from isotropy import likelihoods"),
    "single file, relative": ("checks.py", "from . import likelihoods"),
    "relative": ("bounds/coding.py", "from ..evidence import laplace"),
    "relative, room as name": ("bounds/coding.py", "from .. import report"),
    "lazy": ("data/readers.py", "def f():\n    from isotropy.cli import main"),
    "for types only": ("data/readers.py", TYPES),
    "by name": ("data/a.py", "import importlib\nimportlib.import_module('isotropy.report')"),
    "by relative name": ("data/a.py", "import_module('..report', __package__)"),
    "the package itself": ("cli/main.py", "import isotropy"),
    "a public name": ("cli/main.py", "from isotropy import learn"),
    "a public name, relative": ("cli/main.py", "from .. import learn"),
    "a room not on the map": ("cellar/wine.py", ""),
}

ALLOWED = {
    "leftward": ("symmetry/groups/group.py", "from isotropy.checks import check_axes"),
    "own room": ("symmetry/groups/group.py", "from .warp import warp\nfrom . import actions"),
    "from deep down": ("symmetry/inner/deep.py", "from ...checks import check_axes"),
    "single file": ("likelihoods.py", "from .checks import check_axes"),
    "data to symmetry": ("data/variants.py", "from isotropy.symmetry import warp"),
    "room as name": ("cli/main.py", "from isotropy import records"),
    "version": ("cli/main.py", "from isotropy._version import __version__"),
    "the package itself": ("__init__.py", "from isotropy.cli import main"),
    "other libraries": ("checks.py", "import torch\nfrom collections import abc"),
}


@pytest.mark.parametrize(("file", "source"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_wrong_imports_are_noticed(tmp_path: Path, file: str, source: str) -> None:
    assert len(wrong_imports(plant(tmp_path, file, source))) == 1


@pytest.mark.parametrize(("file", "source"), ALLOWED.values(), ids=ALLOWED)
def test_right_imports_are_not(tmp_path: Path, file: str, source: str) -> None:
    assert wrong_imports(plant(tmp_path, file, source)) == []


OFFENCES = {
    "print": (prints, "print('hello')", "experiments/runner.py"),
    "seed": (global_state, "import torch\ntorch.manual_seed(0)", "cli/main.py"),
    "seed, renamed": (global_state, "from torch import manual_seed as s\ns(0)", "cli/main.py"),
    "numpy": (global_state, "import numpy as np\nnp.random.seed(0)", "experiments/a.py"),
    "environ": (global_state, "import os\nx = os.environ['HOME']", "experiments/a.py"),
    "getenv": (global_state, "from os import getenv\ngetenv('HOME')", "cli/main.py"),
}


@pytest.mark.parametrize(("rule", "source", "where_allowed"), OFFENCES.values(), ids=OFFENCES)
def test_offences_are_noticed(
    tmp_path: Path, rule: Callable[[Path], list[str]], source: str, where_allowed: str
) -> None:
    assert rule(plant(tmp_path / "allowed", where_allowed, source)) == []
    assert len(rule(plant(tmp_path / "forbidden", "symmetry/actions/warp.py", source))) == 1


def test_seeding_a_generator_is_no_offence(tmp_path: Path) -> None:
    source = "import torch\ngenerator = torch.Generator().manual_seed(0)\ngenerator.manual_seed(1)"
    assert global_state(plant(tmp_path, "symmetry/actions/warp.py", source)) == []


def test_long_files_are_noticed(tmp_path: Path) -> None:
    assert long_files(plant(tmp_path, "checks.py", "x = 1\n" * MOST_LINES)) == []
    assert len(long_files(plant(tmp_path, "checks.py", "x = 1\n" * (MOST_LINES + 1)))) == 1


def test_full_folders_are_noticed(tmp_path: Path) -> None:
    for number in range(MOST_FILES):
        plant(tmp_path, f"data/a{number}.py", "")
    assert full_folders(plant(tmp_path, "data/__init__.py", "")) == []
    assert len(full_folders(plant(tmp_path, "data/one_more.py", ""))) == 1


PARAMETERS = "a, /, b, c, d, *rest, e, f, g, h"
FEW = {
    "eight": f"def f({PARAMETERS}): ...",
    "a method": f"class A:\n    def f(self, {PARAMETERS}): ...",
    "a kernel": f"@triton.jit\ndef f({PARAMETERS}, ROWS): ...",
    "a command": f"@click.command('learn')\ndef f({PARAMETERS}, i): ...",
    "a verb": f"def learn({PARAMETERS}, i): ...",
}


@pytest.mark.parametrize("source", FEW.values(), ids=FEW)
def test_few_parameters_are_no_offence(tmp_path: Path, source: str) -> None:
    assert many_parameters(plant(tmp_path, "data/a.py", source), USER_OPTIONS) == []


@pytest.mark.parametrize("begin", ["def f(", "async def f(", "class A:\n    def f(self, "])
def test_many_parameters_are_noticed(tmp_path: Path, begin: str) -> None:
    source = f"{begin}{PARAMETERS}, i): ..."
    assert len(many_parameters(plant(tmp_path, "data/a.py", source), USER_OPTIONS)) == 1


@pytest.mark.parametrize("source", ["import isotropy", "if 1:\n    from isotropy.checks import x"])
def test_oracle_that_knows_the_library_is_noticed(tmp_path: Path, source: str) -> None:
    assert len(oracles_that_know_the_library(plant(tmp_path, "dense.py", source))) == 1


def test_shadowed_function_is_noticed() -> None:
    def learn() -> None: ...

    assert shadowed_functions({"learn": learn, "Group": object}, ["learn", "Group"]) == ["learn"]
