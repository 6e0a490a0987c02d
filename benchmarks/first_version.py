"""What evidence, gradient and training cost now, against an older version of this library.

    epoch      a pass of weight steps
    factors    a pass over all data: curvature, eigendecompositions, value of the evidence
    gradient   the gradient of the evidence by the ranges, over all data
    full       both, added up: the exact evidence and its exact gradient

for the paper's MLP and CNN, S = 31, random images, on the CPU. The older version is a commit,
unpacked into a temporary folder: the last one of the work on the first release, unless `--base`
names another. Each version is a process of its own that waits while the other works; parts are run
in turns, old and new, and the least seconds of several rounds are compared. Ratios hold within one
run.

    python -m benchmarks.first_version [--json] [--base 533d15a] [--examples 1000] [--rounds 3]
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

if __package__ in (None, ""):  # run as a file: the folder above is where `benchmarks` is found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import goal, goal_lines, options_of, publish
from benchmarks.training_parts import with_full
from isotropy.workflows.provenance import provenance

ROOT = Path(__file__).resolve().parent.parent
FIRST_RELEASE = "533d15a"
SAMPLES = 31
NETWORKS = ("mlp", "cnn")
GOALS = {"full": 2.0}
"""At least so many times as fast as the older version."""


class Version:
    """A process with one version of the library; `seconds` runs a part there."""

    def __init__(self, process: subprocess.Popen[str], source: Path) -> None:
        self._process = process
        told = self._answer()
        if Path(told["from"]).resolve() != (source / "isotropy").resolve():
            raise RuntimeError(f"expected the library from {source}, got it from {told['from']}")
        self.parts: list[str] = told["parts"]

    def seconds(self, part: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(part + "\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a measuring process ended early; its last words are above")
        return json.loads(line)


@contextmanager
def version_from(source: Path, words: Sequence[str]) -> Iterator[Version]:
    """A measuring process that imports the library from the folder `source`."""
    command = [sys.executable, "-m", "benchmarks.version_worker", *words]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(source)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Version(process, source)
        finally:
            process.kill()


def unpack(commit: str, folder: Path) -> str:
    """The source of a commit into `folder`; returns the commit's whole name and subject."""
    archive = _git("archive", commit, "src")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return _git("log", "-1", "--format=%H %s", commit).decode().strip()


def _git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=True).stdout


def run(
    examples: int,
    rounds: int,
    *,
    base: str = FIRST_RELEASE,
    networks: Sequence[str] = NETWORKS,
    samples: int = SAMPLES,
    size: int = 28,
) -> dict[str, Any]:
    """Everything, as one JSON object."""
    words = [str(examples), str(size), str(samples), *networks]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        commit = unpack(base, folder)
        versions = {
            "old": stack.enter_context(version_from(folder / "src", words)),
            "new": stack.enter_context(version_from(ROOT / "src", words)),
        }
        best = {name: dict.fromkeys(each.parts, float("inf")) for name, each in versions.items()}
        for _ in range(rounds + 1):  # the first round warms up
            for part in versions["new"].parts:
                for name, version in versions.items():
                    best[name][part] = min(best[name][part], version.seconds(part))
    rows = {network: _row(network, best) for network in networks}
    return {
        "benchmark": "first_version",
        "examples": examples,
        "size": size,
        "samples": samples,
        "rounds": rounds,
        "base": commit,
        **provenance(torch.device("cpu")),
        "networks": rows,
        "goals": [
            goal(
                f"{network}, evidence and gradient, {part}, against {commit[:12]}",
                row["times_faster"][part],
                least,
                at="least",
                unit="times as fast",
            )
            for network, row in rows.items()
            for part, least in GOALS.items()
            if part in row["times_faster"]
        ],
    }


def _row(network: str, best: dict[str, dict[str, float]]) -> dict[str, Any]:
    """One network's parts in epochs of its own version, and how many times faster they became."""
    seconds = {
        name: with_full(
            {
                label.removeprefix(f"{network}: "): each
                for label, each in found.items()
                if label.startswith(f"{network}: ")
            }
        )
        for name, found in best.items()
    }
    return {
        "epochs": {
            name: {part: each / found["epoch"] for part, each in found.items()}
            for name, found in seconds.items()
        },
        "times_faster": {
            part: seconds["old"][part] / each for part, each in seconds["new"].items()
        },
    }


def main(arguments: list[str] | None = None) -> None:
    parser = options_of(__doc__, rounds=3)
    parser.add_argument("--base", default=FIRST_RELEASE, help="the older version, a commit")
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    options = parser.parse_args(arguments)
    networks = options.networks.split(",")
    report = run(options.examples, options.rounds, base=options.base, networks=networks)
    publish(report, options, _table(report))


def _table(report: dict[str, Any]) -> str:
    lines = [
        f"{report['device_name']}, {report['threads']} threads: N = {report['examples']}, "
        f"S = {report['samples']}, against {report['base']}"
    ]
    for network, row in report["networks"].items():
        for part, ratio in row["times_faster"].items():
            lines.append(f"  {network:4} {part:26} {ratio:6.2f} times faster")
    return "\n".join([*lines, *goal_lines(report)])


if __name__ == "__main__":
    main()
