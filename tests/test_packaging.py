"""What is built is what is needed: the wheel carries the data, and runs where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "src" / "isotropy"

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path = REPOSITORY, **environment: str) -> str:
    """The standard output of `python command`, which must succeed."""
    finished = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", folder, REPOSITORY)
    (built,) = folder.glob("isotropy-*.whl")
    return built


def missing_from(names: set[str], package: Path) -> list[str]:
    """Files of the source tree that an archive with these `names` lacks."""
    files = (path.relative_to(package) for path in package.rglob("*") if path.is_file())
    wanted = {f"isotropy/{file.as_posix()}" for file in files if "__pycache__" not in file.parts}
    return sorted(wanted - names)


def test_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert missing_from(names, PACKAGE) == []


def test_a_file_left_out_would_be_noticed(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist()) - {"isotropy/py.typed"}
    assert missing_from(names, PACKAGE) == ["isotropy/py.typed"]


@pytest.mark.parametrize(
    "pattern",
    ["isotropy/data/*.npz", "isotropy/report/templates/*", "isotropy/py.typed",
     "*.dist-info/licenses/LICENSE", "*.dist-info/licenses/NOTICE"],
)  # fmt: skip
def test_wheel_carries(wheel: Path, pattern: str) -> None:
    names = [Path(name) for name in zipfile.ZipFile(wheel).namelist()]
    assert any(name.match(pattern) for name in names), f"nothing in the wheel matches {pattern}"


def test_wheel_has_nothing_but_the_package(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"isotropy"}


def test_installed_wheel_runs(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    run("-m", "pip", "install", "--no-deps", "--no-index", "--target", target, wheel)
    # Away from the repository, and first on the path: nothing may be found in the sources.
    installed = {"cwd": tmp_path, "PYTHONPATH": str(target)}
    found = run("-c", "import isotropy; print(isotropy.__file__)", **installed)
    assert Path(found.strip()).is_relative_to(target)
    assert "learn" in run(target / "bin" / "isotropy", "--help", **installed)


def test_make_dist_looks_into_both(wheel: Path, tmp_path: Path) -> None:
    shutil.copy(wheel, tmp_path)
    run("-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path)
    check = REPOSITORY / "scripts" / "check_dist.py"
    assert "hold what they should" in run(check, tmp_path, "--contents")
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(tmp_path / wheel.name, "w") as less:
        for name in whole.namelist():
            if not name.endswith(".npz"):
                less.writestr(name, whole.read(name))
    with pytest.raises(AssertionError, match=r"lacks isotropy/data/\w+\.npz"):
        run(check, tmp_path, "--contents")


def test_source_archive_leaves_results_out(tmp_path: Path) -> None:
    run("-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path)
    (archive,) = tmp_path.glob("isotropy-*.tar.gz")
    with tarfile.open(archive) as opened:
        tops = {name.split("/")[1] for name in opened.getnames()}
    assert {"src", "tests", "LICENSE", "NOTICE", "pyproject.toml", "constraints.txt"} <= tops
    assert "results" not in tops
    assert ".venv" not in tops
