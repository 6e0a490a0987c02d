"""How long a basis takes, and how long the public tool `emlp` takes for the same.

Ours, for every case, from nothing: a new group, nothing in memory; the time is that of the whole
call, residual check included. The rank is checked against what is known.

With `--peer PYTHON`, an interpreter of an environment that has `emlp` (and `six`, which it needs),
the same cases are solved there, each in a process of its own, and the ratio is

    emlp's seconds / ours

The fastest of its solves counts: of at least two, since the first also traces and compiles, but of
one where that took over a minute (`emlp_worker`). Where no solve has ended after `--peer-limit`,
the ratio is a lower bound ("at least"). Ratios hold within one run on one machine that does nothing
else; the load average at the start is in the report, and a warning says if it is high.

    python -m benchmarks.basis [--json] [--rounds 10] [--peer ~/emlp/bin/python] [--peer-limit 400]
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

if __package__ in (None, ""):  # run as a file: the folder above is where `benchmarks` is found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import goal, goal_lines, options_of, publish
from isotropy.bases import solving
from isotropy.bases.problem import Basis
from isotropy.records import provenance
from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.representations import BASE

WORKER = Path(__file__).resolve().parent / "emlp_worker.py"
SLOW, TIMES = 1.0, 100.0
"""Where emlp needs more seconds than this, ours is to be so many times as fast."""
REPEATED = 5.0
"""Seconds of repeated solves after which emlp does not solve a case once more."""
START = 120.0
"""Seconds that emlp may take to be imported."""
BUSY = 0.5
"""Load average, by core, from which ratios mean little."""
LEAST_LIMIT = 30.0
"""A limit below this could be the time of tracing and compiling, and no bound on solving."""


class Case(NamedTuple):
    """T(p, q) of a group, its rank, and the group in emlp's words (None: not run there)."""

    group: str
    p: int
    rank: int
    emlp: str | None
    q: int = 0
    most: float | None = None
    """Seconds that ours may take, where that is a goal."""

    @property
    def name(self) -> str:
        return f"{self.group} T({self.p}{f',{self.q}' if self.q else ''})"


CASES = (
    Case("Z(5)", 4, 125, "Z(5)"),
    Case("Z(5)", 5, 625, "Z(5)"),
    Case("S(4)", 4, 15, "S(4)"),
    Case("S(4)", 5, 51, "S(4)"),
    Case("S(5)", 4, 15, "S(5)"),
    Case("S(5)", 5, 52, "S(5)"),
    Case("S(5)", 6, 202, "S(5)"),
    Case("S(5)", 7, 855, None, most=1.0),
    Case("S(6)", 5, 52, "S(6)"),
    Case("S(8)", 7, 877, None),
    Case("SO(3)", 2, 1, "SO(3)"),
    Case("SO(3)", 3, 1, "SO(3)"),
    Case("SO(3)", 4, 3, "SO(3)"),
    Case("SO(3)", 5, 6, "SO(3)"),
    Case("SO(3)", 6, 15, "SO(3)"),
    Case("SO(3)", 7, 36, "SO(3)"),
    Case("O(3)", 4, 3, "O(3)"),
    Case("O(3)", 6, 15, "O(3)"),
    Case("SO(4)", 4, 4, "SO(4)"),
    Case("SO(4)", 6, 25, "SO(4)"),
    Case("SO(1,3)", 4, 4, "SO13()"),
    Case("SO(1,3)", 6, 25, "SO13()"),
    Case("SO+(1,3)", 6, 25, "SO13p()"),
    Case("Sp(2)", 4, 3, "Sp(2)"),
    Case("Sp(2)", 6, 14, "Sp(2)"),
    Case("SU(3)", 3, 6, "SU(3)", q=3),
    Case("SU(3)", 4, 3, "SU(3)", q=1),
    Case("PublishedRubiksCube", 2, 6, "RubiksCube()"),
    Case("PublishedRubiksCube", 3, 22, "RubiksCube()", most=1.0),
    Case("RubiksCube", 2, 9, None),
    Case("RubiksCube", 3, 51, None, most=1.0),
)
"""Of emlp S(5) T(7) and S(8) T(7) are not asked: it does not end on S(5) T(6). What it calls
Rubik's cube is the group behind the published ranks, not the cube (`groups.catalogue`)."""


# -- ours --------------------------------------------------------------------------------------


def ours(case: Case, rounds: int) -> dict[str, Any]:
    """Seconds of the fastest round, and what was found."""
    best, found = float("inf"), None
    for _ in range(rounds + 1):  # the first round warms up, and counts if it was fastest
        forget()
        group = group_named(case.group)
        started = time.perf_counter()
        found = solving.solve(group, (BASE,) * case.p + (BASE.dual,) * case.q)
        best = min(best, time.perf_counter() - started)
    assert isinstance(found, Basis)
    if found.rank != case.rank:
        raise RuntimeError(f"{case.name}: rank {found.rank}, but it is {case.rank}")
    return {
        "rank": found.rank,
        "size": found.size,
        "method": found.method,
        "residual": found.residual,
        "seconds": best,
    }


def forget() -> None:
    """Nothing that was solved or tabulated before is known."""
    solving.forget()
    rooms = ("isotropy.bases.", "isotropy.symmetry.")
    for name, module in list(sys.modules.items()):
        for each in list(vars(module).values()) if name.startswith(rooms) else ():
            if callable(getattr(each, "cache_clear", None)):
                each.cache_clear()


# -- emlp --------------------------------------------------------------------------------------


def peer(case: Case, python: str, limit: float, worker: Path = WORKER) -> dict[str, Any]:
    """The fastest solve of emlp; `{"at_least": limit}` if not even the first had ended by then."""
    assert case.emlp is not None
    words = [python, str(worker), case.emlp, str(case.p), str(case.q), str(REPEATED)]
    # Its progress bar fails with newer releases of what draws it.
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TQDM_DISABLE": "1"}
    # Without a buffer, so that waiting for `ready` does not swallow what follows.
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, env=environment
    )
    try:
        if not _is_ready(process):
            process.kill()
            raise RuntimeError(f"{python} does not run emlp: {_last(process.communicate()[1])}")
        try:
            output, errors = process.communicate(timeout=limit)
            was_stopped = False
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()  # all that was said until then
            was_stopped = True
        solves = [json.loads(line) for line in output.splitlines() if line.startswith(b"{")]
        if solves:  # one that ended counts, whatever became of its repetitions
            return {**min(solves, key=lambda each: each["seconds"]), "solves": len(solves)}
        return {"at_least": limit} if was_stopped else {"failed": _last(errors)}
    finally:
        process.kill()
        process.communicate()


def _last(said: bytes) -> str:
    """The last line of what was said."""
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _is_ready(process: subprocess.Popen[bytes]) -> bool:
    """Whether its first line is `ready`, within the time for a start."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ)
        return bool(waiting.select(START)) and process.stdout.readline().strip() == b"ready"


def compared(row: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Our row with emlp's numbers and the ratio; `is_bound` where the ratio is a lower bound."""
    if "failed" in theirs:
        return {**row, "emlp": theirs, "ratio": None, "is_bound": False}
    seconds = theirs.get("seconds", theirs.get("at_least"))
    is_bound = "at_least" in theirs
    return {**row, "emlp": theirs, "ratio": seconds / row["seconds"], "is_bound": is_bound}


def goals_of(cases: Sequence[Case], rows: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Ratios where emlp ran, and seconds where they are bounded."""
    found = []
    for case in cases:
        row = rows[case.name]
        if row.get("ratio") is not None:
            theirs = row["emlp"].get("seconds", row["emlp"].get("at_least"))
            wanted = TIMES if theirs > SLOW else 1.0
            bound = " (at least: emlp was stopped)" if row["is_bound"] else ""
            what = f"emlp's time, ours = 1, {case.name}{bound}"
            found.append(goal(what, row["ratio"], wanted, at="least", unit=""))
        if case.most is not None:
            found.append(goal(case.name, row["seconds"], case.most, at="most", unit="s"))
    return found


def run(
    rounds: int,
    cases: Sequence[Case] = CASES,
    python: str | None = None,
    limit: float = 400.0,
) -> dict[str, Any]:
    """Everything, as one JSON object."""
    rows: dict[str, dict[str, Any]] = {}
    load = os.getloadavg()[0]
    for case in cases:
        rows[case.name] = ours(case, rounds)
        if python is not None and case.emlp is not None:
            rows[case.name] = compared(rows[case.name], peer(case, python, limit))
    return {
        "benchmark": "basis",
        **provenance(torch.device("cpu")),
        "load_average": load,
        "is_busy": load > BUSY * (os.cpu_count() or 1),
        "cases": rows,
        "goals": goals_of(cases, rows),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = options_of(__doc__, rounds=10)
    parser.add_argument("--peer", metavar="PYTHON", help="an interpreter that has emlp")
    parser.add_argument("--peer-limit", type=float, default=400.0, metavar="SECONDS")
    parser.add_argument("--case", action="append", help="only cases whose name begins with this")
    options = parser.parse_args(arguments)
    cases = [
        case
        for case in CASES
        if options.case is None or any(case.name.startswith(word) for word in options.case)
    ]
    if not cases:
        parser.error(f"--case: no case begins with {' or '.join(options.case)}")
    if not options.peer_limit >= LEAST_LIMIT:
        parser.error(f"--peer-limit: expected at least {LEAST_LIMIT:g}, got {options.peer_limit:g}")
    report = run(options.rounds, cases, options.peer, options.peer_limit)
    if report["is_busy"]:
        load = report["load_average"]
        print(f"the machine was busy (load {load:.1f}): do not trust these times", file=sys.stderr)
    publish(report, options, _table(report))


def _table(report: dict[str, Any]) -> str:
    lines = [f"{report['device_name']}, {report['threads']} threads: seconds of one basis"]
    for name, row in report["cases"].items():
        line = (
            f"  {name:24} rank {row['rank']:5} {row['method']:10} {row['seconds']:9.4f} s  "
            f"residual {row['residual']:.0e}"
        )
        if "emlp" in row:
            theirs = row["emlp"]
            seconds = theirs.get("seconds", theirs.get("at_least"))
            line += f"  emlp {theirs['failed']}" if seconds is None else (
                f"  emlp {'>' if row['is_bound'] else ' '}{seconds:8.3f} s  × {row['ratio']:,.0f}"
            )  # fmt: skip
        lines.append(line)
    return "\n".join([*lines, *goal_lines(report)])


if __name__ == "__main__":
    main()
