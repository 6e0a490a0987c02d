"""The benchmark of bases: its cases, its goals, and a stand-in for the public tool."""

from __future__ import annotations

import functools
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import basis, emlp_worker
from benchmarks.basis import CASES, Case, compared, goals_of, peer
from isotropy.bases import solving
from isotropy.experiments.thesis_bases import PUBLISHED_RANKS

BY_NAME = {case.name: case for case in CASES}
SMALL = (BY_NAME["S(4) T(4)"], BY_NAME["SO(3) T(3)"])


def worker(folder: Path, body: str) -> Path:
    path = folder / "worker.py"
    path.write_text(f"import json, sys, time\n{body}\n", encoding="utf-8")
    return path


def test_it_is_known_by_name() -> None:
    assert importlib.import_module("benchmarks.__main__").BENCHMARKS["basis"] is basis.main


def test_cases_have_the_published_ranks_and_are_there_once() -> None:
    assert len(BY_NAME) == len(CASES)
    published = {
        (group, text.replace(",0)", ")")): rank
        for groups in PUBLISHED_RANKS.values()
        for group, row in groups.items()
        for text, rank in row.items()
    }
    compared_with = 0
    for case in CASES:
        known = published.get((case.group, case.name.split()[-1]))
        compared_with += known is not None
        assert known in (None, case.rank), case
    assert compared_with > 20
    assert BY_NAME["S(5) T(7)"].most == BY_NAME["RubiksCube T(3)"].most == 1.0


def test_a_report_of_small_cases() -> None:
    report = basis.run(0, SMALL)
    assert json.loads(json.dumps(report)) == report
    assert {"benchmark", "device", "device_name", "threads", "commit", "goals"} <= report.keys()
    assert list(report["cases"]) == ["S(4) T(4)", "SO(3) T(3)"]
    for row in report["cases"].values():
        assert row["seconds"] > 0 and row["residual"] < 1e-8 and "ratio" not in row
    assert report["goals"] == [] and "rank    15" in basis._table(report)


def test_nothing_is_remembered_between_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    solve = solving.solve

    def counted(group: Any, atoms: Any, **options: Any) -> Any:
        assert not solving._known
        calls.append(atoms)
        return solve(group, atoms, **options)

    monkeypatch.setattr(solving, "solve", counted)
    basis.ours(SMALL[0], 2)
    assert len(calls) == 3


def test_tables_of_the_library_are_forgotten_too(monkeypatch: pytest.MonkeyPatch) -> None:
    tabulated = functools.cache(lambda: 1)
    monkeypatch.setattr(solving, "_tabulated_by_this_test", tabulated, raising=False)
    tabulated()
    assert tabulated.cache_info().currsize == 1
    basis.forget()
    assert tabulated.cache_info().currsize == 0


def test_a_wrong_rank_stops_it() -> None:
    with pytest.raises(RuntimeError, match="rank 15, but it is 14"):
        basis.ours(SMALL[0]._replace(rank=14), 0)


# -- the public tool -------------------------------------------------------------------------------


def test_ratios_of_a_tool_that_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "print('ready', flush=True); print('noise'); print(json.dumps(dict(rank=1, "
    path = worker(tmp_path, f"{said}seconds=2.0, words=sys.argv[1:])))")
    monkeypatch.setattr(peer, "__defaults__", (path,))
    case = BY_NAME["SU(3) T(4,1)"]
    assert peer(case, sys.executable, 30.0)["words"] == ["SU(3)", "4", "1", "5.0"]
    report = basis.run(0, SMALL, sys.executable, 30.0)
    for row in report["cases"].values():
        assert row["ratio"] == pytest.approx(2.0 / row["seconds"]) and not row["is_bound"]
    assert [each["goal"] for each in report["goals"]] == [100.0, 100.0]
    assert "2.000 s" in basis._table(report)
    basis.main(["--case", "SO(3) T(3)", "--rounds", "0", "--out", str(tmp_path / "one.json"),
                "--peer", sys.executable])  # fmt: skip
    written = json.loads((tmp_path / "one.json").read_text(encoding="utf-8"))
    assert list(written["cases"]) == ["SO(3) T(3)"] and written["goals"][0]["measured"] > 0


def test_a_tool_that_does_not_end_gives_a_lower_bound(tmp_path: Path) -> None:
    path = worker(tmp_path, "print('ready', flush=True); time.sleep(60)")
    theirs = peer(SMALL[0], sys.executable, 0.2, path)
    assert theirs == {"at_least": 0.2}
    row = compared({"seconds": 0.01}, {"at_least": 5.0})
    assert (row["ratio"], row["is_bound"]) == (pytest.approx(500), True)
    (found,) = goals_of(SMALL[:1], {SMALL[0].name: row})
    assert "at least" in found["what"] and found["goal"] == 100 and found["met"]


def test_a_solve_that_ended_counts_and_is_no_bound(tmp_path: Path) -> None:
    """The limit is for the first solve: repetitions that it cuts off make nothing slower."""
    said = "print('ready', flush=True)\nfor seconds in (1.5, 0.01):\n    print(json.dumps(dict("
    path = worker(tmp_path, f"{said}seconds=seconds, rank=15)), flush=True)\ntime.sleep(60)")
    theirs = peer(SMALL[0], sys.executable, 1.0, path)
    assert theirs == {"seconds": 0.01, "rank": 15, "solves": 2}
    row = compared({"seconds": 0.005}, theirs)
    assert (row["ratio"], row["is_bound"]) == (pytest.approx(2.0), False)
    (found,) = goals_of(SMALL[:1], {SMALL[0].name: row})
    assert found["goal"] == 1.0 and "at least" not in found["what"]


@pytest.mark.parametrize(
    ("seconds", "again"),
    [
        ([], True),
        ([10.0], True),  # compiling took long: the case may be a quick one
        ([61.0], False),
        ([10.0, 0.05], True),
        ([10.0, 6.0], False),
        ([1.0] + 9 * [0.01], False),
    ],
)
def test_compiling_is_not_held_against_the_tool(seconds: list[float], again: bool) -> None:
    assert emlp_worker.is_wanted(seconds, 5.0) is again


@pytest.mark.parametrize(("load", "is_busy"), [(0.1, False), (1e3, True)])
def test_a_busy_machine_is_said(
    load: float, is_busy: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(basis.os, "getloadavg", lambda: (load, load, load))
    basis.main(["--case", "SO(3) T(2)", "--rounds", "0", "--json"])
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert (report["load_average"], report["is_busy"]) == (load, is_busy)
    assert ("do not trust" in printed.err) is is_busy


def test_a_limit_too_short_to_compile_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        basis.main(["--peer", sys.executable, "--peer-limit", "5"])
    assert "expected at least 30, got 5" in capsys.readouterr().err


def test_a_tool_that_fails_is_recorded_and_one_that_is_missing_said(tmp_path: Path) -> None:
    path = worker(tmp_path, "print('ready', flush=True); raise ValueError('too large')")
    theirs = peer(SMALL[0], sys.executable, 30.0, path)
    assert theirs == {"failed": "ValueError: too large"}
    row = compared({"seconds": 0.01}, theirs)
    assert row["ratio"] is None and goals_of(SMALL[:1], {SMALL[0].name: row}) == []
    path = worker(tmp_path, "import no_such_library")
    with pytest.raises(RuntimeError, match="No module named 'no_such_library'"):
        peer(SMALL[0], sys.executable, 30.0, path)


@pytest.mark.parametrize(
    ("theirs", "ours", "wanted", "met"),
    [(2.0, 0.01, 100, True), (2.0, 0.05, 100, False), (0.5, 0.4, 1, True), (0.5, 0.6, 1, False)],
)
def test_goals(theirs: float, ours: float, wanted: float, met: bool) -> None:
    case = Case("S(4)", 4, 15, "S(4)")
    row = compared({"seconds": ours}, {"seconds": theirs, "rank": 15})
    (found,) = goals_of([case], {case.name: row})
    assert (found["goal"], found["met"]) == (wanted, met)
    bounded = case._replace(most=0.45)
    last = goals_of([bounded], {case.name: row})[-1]
    assert (last["goal"], last["at"], last["met"]) == (0.45, "most", ours <= 0.45)


def test_a_case_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        basis.main(["--case", "SO(99)"])
    assert "SO(99)" in capsys.readouterr().err
