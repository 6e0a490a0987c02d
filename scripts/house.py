"""How large the house is: files, lines, folders, and what one request passes through.

    python scripts/house.py            a table of the working tree
    python scripts/house.py COMMIT     the same of a commit, without what has to be run
    python scripts/house.py --json     numbers for a program

Lines are all lines of Python sources; code lines are without blank lines, comments and docstrings.
A request passes through the files of the package from which a function was called while it ran, on
the smallest data that the command takes. Imports are modules of the package beside torch's, and
seconds are the best of three, in processes of their own.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
REQUESTS = {
    "learn": "--variant rotated --subset 40 --epochs 2 --samples 2 --no-search --model mlp:4",
    "measure": "--variant rotated --subset 20 --model mlp:4",
    "relax": "--task digit --subset 12 --epochs 1 --width 1 --curvature kfac-mc",
    "basis": "--group SO(3) --rep V>>V",
}
"""Options of the smallest request of each command."""
TRACED = """
import sys
from pathlib import Path
import isotropy.cli.main as cli
files = set()
def seen(frame, event, argument):
    files.add(frame.f_code.co_filename)
sys.setprofile(seen)
try:
    cli.main(sys.argv[1:])
except SystemExit:
    pass
sys.setprofile(None)
package = str(Path(cli.__file__).parents[1])
print("files", sum(each.startswith(package) for each in files), file=sys.stderr)
"""
IMPORTED = """
import sys, time, torch
start = time.perf_counter()
import isotropy
print(time.perf_counter() - start, sum(name.startswith("isotropy") for name in sys.modules))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("commit", nargs="?")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.commit:
        with tempfile.TemporaryDirectory() as folder:
            archive = subprocess.run(
                ["git", "archive", options.commit, "src", "tests"],
                cwd=ROOT, check=True, capture_output=True,
            )  # fmt: skip
            with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as file:
                file.extractall(folder, filter="data")
            found = sizes(Path(folder))
    else:
        found = {**sizes(ROOT), **imports(), "files of a request": requests()}
    if options.json:
        print(json.dumps(found))
    else:
        print("\n".join(f"{name:<38}{value}" for name, value in found.items()))


def sizes(root: Path) -> dict[str, Any]:
    """Files and lines of the package and of its tests, and the fullest folder of the package."""
    package = sorted((root / "src" / "isotropy").rglob("*.py"))
    tests = sorted((root / "tests").rglob("*.py"))
    folders: dict[Path, int] = {}
    for path in package:
        if path.name != "__init__.py":
            folders[path.parent] = folders.get(path.parent, 0) + 1
    fullest = max(folders, key=lambda folder: folders[folder])
    return {
        "source files": len(package),
        "source lines": sum(map(lines, package)),
        "code lines": sum(map(code_lines, package)),
        "fullest folder": f"{fullest.name} ({folders[fullest]} files besides __init__.py)",
        "longest file": max(map(lines, package)),
        "test files": len(tests),
        "test lines": sum(map(lines, tests)),
    }


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def code_lines(path: Path) -> int:
    """Lines that hold a token of code: none of blank lines, comments and docstrings."""
    source = path.read_text(encoding="utf-8")
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
             tokenize.ENDMARKER}  # fmt: skip
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in blank:
            held |= set(range(token.start[0], token.end[0] + 1))
    return len(held - left_out)


def imports() -> dict[str, Any]:
    """Seconds and modules of `import isotropy` after torch."""
    told = [_python("-c", IMPORTED).stdout.split() for _ in range(3)]
    return {
        "import after torch, seconds": round(min(float(each[0]) for each in told), 2),
        "modules imported": int(told[0][1]),
    }


def requests() -> dict[str, int | str]:
    """How many files of the package one request of each command calls."""
    found: dict[str, int | str] = {}
    for command, words in REQUESTS.items():
        with tempfile.TemporaryDirectory() as folder:
            out = ["--out", str(Path(folder) / "run")]
            told = _python("-c", TRACED, command, *words.split(), *out).stderr.splitlines()
        counts = [line.split()[1] for line in told if line.startswith("files ")]
        found[command] = int(counts[0]) if counts else "\n".join(told[-3:])
    return found


def _python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


if __name__ == "__main__":
    main()
