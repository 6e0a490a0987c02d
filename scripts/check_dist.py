"""Check what was built: python scripts/check_dist.py dist [--contents]

Looks into wheel and source archive, then installs the wheel into a clean environment in a temporary
folder, at the versions of constraints.txt, and runs commands there. `--contents` stops before that.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "isotropy"
IN_THE_ARCHIVE = (
    "pyproject.toml", "constraints.txt", "Makefile", "README.md", "CHANGELOG.md", "CITATION.cff",
    "CONTRIBUTING.md", "LICENSE", "NOTICE", "docs/index.md", "docs/site/conf.py",
    "tests/conftest.py",
)  # fmt: skip
NOT_IN_THE_ARCHIVE = ("results", "build", "dist", ".venv", ".ci", "runs")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--contents", action="store_true", help="look, and install nothing")
    options = parser.parse_args()
    try:
        (wheel,) = options.folder.glob("isotropy-*.whl")
        (archive,) = options.folder.glob("isotropy-*.tar.gz")
    except ValueError:
        sys.exit(f"expected one wheel and one source archive in {options.folder}; run make dist")
    version = version_of(PACKAGE / "_version.py")
    found = [*wheel_complaints(wheel, version), *archive_complaints(archive, version)]
    if found:
        sys.exit("\n".join(found))
    print(f"{wheel.name} and {archive.name} hold what they should.")
    if not options.contents:
        try_wheel(wheel.resolve(), version)
    return 0


def version_of(path: Path) -> str:
    """What `_version.py` says."""
    found = re.search(r'__version__ = "([^"]+)"', path.read_text(encoding="utf-8"))
    assert found
    return found[1]


def wanted_files() -> set[str]:
    """Everything in the package: modules, stubs, data, templates and tables of experiments."""
    files = (path for path in PACKAGE.rglob("*") if path.is_file())
    return {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in files
        if "__pycache__" not in path.parts
    }


def wheel_complaints(wheel: Path, version: str) -> list[str]:
    """A sentence for each thing that is missing, and for each that does not belong there."""
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        info = f"isotropy-{version}.dist-info"
        if f"{info}/METADATA" not in names:
            return [f"{wheel.name} is not of version {version}"]
        metadata = Parser().parsestr(opened.read(f"{info}/METADATA").decode())
    found = [f"{wheel.name} lacks {name}" for name in sorted(wanted_files() - names)]
    beside = ("licenses/LICENSE", "licenses/NOTICE", "entry_points.txt")
    found += [f"{wheel.name} lacks {name}" for name in beside if f"{info}/{name}" not in names]
    strange = {name.split("/")[0] for name in names} - {"isotropy", info}
    found += [f"{wheel.name} has {name}, which does not belong there" for name in sorted(strange)]
    if metadata["License-Expression"] != "Apache-2.0":
        found.append(f"{wheel.name} names no licence")
    return found


def archive_complaints(archive: Path, version: str) -> list[str]:
    """The same of the source archive."""
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
        top = {name.partition("/")[0] for name in opened.getnames()}
    right = top == {f"isotropy-{version}"}
    found = [] if right else [f"{archive.name} is not of version {version}"]
    wanted = {*IN_THE_ARCHIVE, *(f"src/{name}" for name in wanted_files())}
    found += [f"{archive.name} lacks {name}" for name in sorted(wanted - names)]
    folders = {name.partition("/")[0] for name in names}
    found += [f"{archive.name} has {name}" for name in NOT_IN_THE_ARCHIVE if name in folders]
    return found


def try_wheel(wheel: Path, version: str) -> None:
    """Install the wheel and nothing else, and run commands away from the checkout."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        venv.create(place / "venv", with_pip=True)
        binaries = place / "venv" / ("Scripts" if os.name == "nt" else "bin")
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment = {**kept, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}

        def run(*command: str | Path) -> str:
            finished = subprocess.run(
                [str(word) for word in command],
                cwd=place, env=environment, capture_output=True, text=True,
            )  # fmt: skip
            if finished.returncode:
                output = (finished.stdout + finished.stderr)[-3000:]
                words = " ".join(map(str, command))
                sys.exit(f"{output}\n{words} ended with {finished.returncode}")
            return finished.stdout

        print("Installing it in a clean environment.", flush=True)
        run(binaries / "python", "-m", "pip", "install", "--quiet", "--no-input", wheel)
        told = run(binaries / "isotropy", "--version")
        if version not in told:
            sys.exit(f"isotropy --version says {told.strip()!r}, expected {version}")
        where = run(binaries / "python", "-c", "import isotropy; print(isotropy.__file__)").strip()
        if not Path(where).resolve().is_relative_to(place.resolve()):
            sys.exit(f"isotropy was imported from {where}, not from the wheel")
        run(
            binaries / "isotropy", "learn", "--variant", "rotated", "--subset", "60",
            "--epochs", "2", "--samples", "2", "--no-search", "--out", place / "run",
        )  # fmt: skip
        if not (place / "run" / "report.html").is_file():
            sys.exit("isotropy learn wrote no report")
        run(binaries / "isotropy", "story", "--quick", "--quiet", "--out", place / "story")
        if not (place / "story" / "report.html").is_file():
            sys.exit("isotropy story wrote no report")
        print(f"{told.strip()} runs from the wheel: learn and story wrote their reports.")


if __name__ == "__main__":
    sys.exit(main())
