"""Benchmarks run, on cases too small to time anything, and their reports have what they claim."""

from __future__ import annotations

import importlib
import json
import math
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isotropy.data.labelled import Split
from isotropy.data.readers import digits

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the benchmarks stand beside the package, not within it

from benchmarks import (  # noqa: E402
    ablation,
    basis,
    bound,
    built_networks,
    deep_networks,
    distributed,
    elbo,
    equivariant_networks,
    evidence,
    frozen_backbone,
    large_layers,
    orbit_training,
    pathways,
    peers,
    projectors,
    same_ranges,
    streaming,
    timing,
)
from benchmarks.basis import CASES, compared, goals_of, peer  # noqa: E402
from benchmarks.paths import PATHS, parts_of  # noqa: E402
from isotropy.bases import solving  # noqa: E402
from isotropy.evidence.settings import LearnConfig  # noqa: E402
from isotropy.experiments.thesis.bases import PUBLISHED_RANKS  # noqa: E402

CPU = torch.device("cpu")
SMALL = "mlp:8"
BY_NAME = {case.name: case for case in CASES}
SMALL_CASES = (BY_NAME["S(4) T(4)"], BY_NAME["SO(3) T(3)"])

# --- small runs -----------------------------------------------------------------------------------


def small_orbits(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(orbit_training, "SHAPE", (1, 8, 8))
    return orbit_training.run(24, 0, CPU, networks=[SMALL], samples=2)


def small_evidence(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    def missing_peer(*_: object) -> Any:
        raise ImportError("not installed")

    goals = {SMALL: evidence.GOALS["mlp"]}
    settings = {"SAMPLES": 2, "SHAPE": (1, 8, 8), "RECIPE": {SMALL: 8}, "GOALS": goals}
    for name, value in {**settings, "BESIDE_PEERS": SMALL}.items():
        patch.setattr(evidence, name, value)
    patch.setattr(peers, "_PEERS", (("absent", missing_peer),))
    return evidence.run(16, 0, CPU)


def small_bound(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(bound, "SHAPE", (1, 8, 8))
    patch.setattr(bound, "SIZES", (4, 10))
    return bound.run(0, CPU, (bound.Setup(40, 20, 2, SMALL),), examples=40, epochs=4)


def small_pathways(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(pathways, "BATCH", 4)
    patch.setattr(pathways, "EVIDENCE_EXAMPLES", 3)
    patch.setattr(pathways, "VECTOR_BATCH", 3)
    return pathways.run(0, CPU, width=1, channels=8)


def small_ablation(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    small = {"samples": 2, "batch": 4, "examples": 4, "arguments": {"width": 2}}
    case = replace(ablation.CASES["resnet"], shape=(3, 8, 8), **small)
    few = {"batch": 100, "examples": 400, "arguments": {"epochs": 2}}
    certified = replace(ablation.CASES["certify"], **few)
    soft = replace(ablation.CASES["soft"], batch=4, examples=4, arguments={"width": 1})
    patch.setattr(ablation, "CASES", {"resnet": case, "soft": soft, "certify": certified})
    kept = (
        "warp kernel", "CUDA graphs", "constant convolutions", "first layers without weights once",
        "bfloat16",
    )  # fmt: skip
    patch.setattr(ablation, "PATHS", {name: ablation.PATHS[name] for name in kept})
    return ablation.run(["resnet", "soft", "certify"], CPU, 0)


def small_networks(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    return deep_networks.run(CPU, 0)


def small_built(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(built_networks, "BATCH", 20)
    return built_networks.run([0], 1, examples=20)


def small_backbone(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(frozen_backbone, "SIDE", 28)
    few = ["--epochs", "2", "--samples", "2", "--test-samples", "2", "--generators", "scale_x"]
    return frozen_backbone.run("cnn", 30, 0, few)


def small_projectors(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    small = projectors.Size(900, 40)
    patch.setattr(projectors, "CLAIMED", small)
    return projectors.run(0, CPU, (small,))


SMALL_RUNS: dict[str, tuple[Callable[[pytest.MonkeyPatch], dict[str, Any]], Any, str]] = {
    "ablation": (small_ablation, ablation._table, "constant convolutions"),
    "built_networks": (small_built, built_networks._table, "parameters"),
    "deep_networks": (small_networks, deep_networks._table, "bfloat16"),
    "distributed": (lambda _: distributed.run(1, 40, (1, 2)), distributed._table, "as fast"),
    "frozen_backbone": (small_backbone, frozen_backbone._table, "without one core"),
    "orbit_training": (small_orbits, orbit_training._table, "full"),
    "evidence": (small_evidence, evidence._table, "recipe, kfac-mc"),
    "bound": (small_bound, bound._table, "half conditioned"),
    "large_layers": (lambda _: large_layers.run(CPU, 20, 60), large_layers._table, "1,200 inputs"),
    "elbo": (lambda _: elbo.run(CPU, ("rff:8",), 40, 2.0), elbo._table, "rff:8, 40 digits"),
    "equivariant_networks": (
        lambda _: equivariant_networks.run(0, CPU, channels=16),
        equivariant_networks._table,
        "SO+(1,3)",
    ),
    "pathways": (small_pathways, pathways._table, "ffc+conv"),
    "streaming": (lambda _: streaming.run(300, workers=0), streaming._table, "300 images"),
    "projectors": (small_projectors, projectors._table, "copies of D"),
    "basis": (lambda _: basis.run(0, SMALL_CASES), basis._table, "rank    15"),
}


SLOW_RUNS = ("ablation", "built_networks", "distributed")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.slow if name in SLOW_RUNS else ())
        for name in SMALL_RUNS
    ],
)
def small_run(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        return request.param, SMALL_RUNS[request.param][0](patch)


def test_reports_say_where_they_were_made_and_whether_goals_are_met(
    small_run: tuple[str, dict[str, Any]],
) -> None:
    name, report = small_run
    assert name in importlib.import_module("benchmarks.__main__").BENCHMARKS
    assert json.loads(json.dumps(report)) == report
    assert {"benchmark", "device", "device_name", "threads", "commit", "goals"} <= report.keys()
    for each in report["goals"]:
        assert math.isfinite(each["measured"])
        above, below = each["measured"] >= each["goal"], each["measured"] <= each["goal"]
        assert each["met"] is {"least": above, "most": below}[each["at"]]
    _, table, words = SMALL_RUNS[name]
    assert words in table(report)


def test_numbers_of_a_report_belong_together(small_run: tuple[str, dict[str, Any]]) -> None:
    name, report = small_run
    if name == "orbit_training":
        row = report["networks"][SMALL]
        assert list(row["times_faster"]) == ["epoch", "factors", "gradient", "full"]
        assert row["epochs"]["fast"]["epoch"] == 1.0
        assert "seconds" not in row  # absolute times are for GPUs
    elif name == "ablation":
        for network, rows in report["times_as_long"].items():
            seconds = report["seconds"][network]
            parts, own = {
                "resnet": (("epoch", "evidence"), {"CUDA graphs", "warp kernel"}),
                "soft": (("epoch",), {"bfloat16"}),
                "certify": (("certificate",), {"first layers without weights once"}),
            }[network]
            assert seconds["run"] == pytest.approx(sum(seconds[part] for part in parts))
            assert own <= rows.keys()
    elif name == "built_networks":
        assert all(row["change"] < 1e-5 for row in report["exact"].values())
        sizes = [row["parameters"] for row in report["accuracy"].values()]
        assert max(sizes) < 1.2 * min(sizes)
    elif name == "deep_networks":
        assert report["step"]["times_as_long"]["tf32"] == 1.0
        assert "milliseconds" not in report["step"]  # absolute times are for GPUs
        assert report["told"]["resnet"]["seconds"] > 0
    elif name == "distributed":
        assert set(report["times_faster"]) == {"pass", "epoch"}
        assert all(0 < times < math.inf for times in report["times_faster"].values())
        assert report["in_epochs"]["epoch"]["1"] == 1.0
        assert set(report["in_epochs"]["factors"]) == {"1", "2"}
    elif name == "frozen_backbone":
        row, times = report["run"], report["run"]["times"]
        assert set(row["verdicts"]) == set(row["amounts"]) == {"scale_x"}
        assert report["goals"][0]["measured"] == row["seconds"] and times["epoch"] in (2, 4, 6)
        assert set(report["times_as_long"]) == set(frozen_backbone.PATHS)
        halves = frozen_backbone.ratios(
            {"all": {"trial": 1.0, "epoch": 2.0}, "x": {"trial": 3.0, "epoch": 2.0}},
            {"trial": 2, "epoch": 1},
        )
        assert halves == {"x": {"run": 2.0, "trial": 3.0, "epoch": 1.0}}
        assert "--data pictures" in report["command"]
    elif name == "evidence":
        row = report["evidence_over_epoch"][SMALL]
        assert row["full"] == pytest.approx(row["factors"] + row["gradient"])
        assert math.isfinite(report["peers"]["isotropy"]["log_evidence"])
        assert report["peers"]["absent"] == "missing: not installed"
    elif name == "bound":
        (row,), every, fits, steps = report["weight_steps"].values(), 4, 10, 2
        added = row["function-space"] / every + row["pass"] / fits / steps
        assert row["added"] == pytest.approx(added)
        lost = report["tightness"]["lost_per_example"]
        half = lost["function-space, half conditioned"]
        assert lost["function-space"]["4"] > lost["function-space"]["10"] > half["10"] > 0
    elif name == "elbo":
        row = report["networks"]["rff:8"]
        assert 0 <= row["newton"]["lacking"] < elbo.NEAR and len(row["sampled"]) == 2
        assert all(each["lacking"] > -elbo.NEAR for each in row["sampled"])
        seconds = [each["seconds"] / row["newton"]["seconds"] for each in row["sampled"]]
        assert row["ratio"] in [pytest.approx(each) for each in seconds]
    elif name == "equivariant_networks":
        for row, claim in zip(report["networks"].values(), report["goals"], strict=True):
            assert claim["measured"] == row["ratio"] == pytest.approx(row["emlp"] / row["mlp"])
    elif name == "pathways":
        assert report["goals"][1]["measured"] == report["ratios"]["ffc+conv"]
        seconds = report["vector_seconds"]
        ratio = seconds["relaxed emlp"] / (seconds["emlp"] + seconds["mlp"])
        assert report["goals"][0]["measured"] == pytest.approx(ratio)
    elif name == "projectors":
        (rows,) = report["sizes"].values()
        assert set(rows) == {*projectors.KINDS, projectors.PUBLISHED}
        assert rows[projectors.PUBLISHED]["times_faster"] == 1.0
        dead = {kind: row["dead"] for kind, row in rows.items()}
        assert dead == {**dict.fromkeys(projectors.KINDS, 0), projectors.PUBLISHED: 4}
        assert all(row["copies"] >= 2 for row in rows.values())
    elif name == "streaming":
        assert set(report["seconds"]) == {"epoch", "evidence"}
        assert {row[0] for row in report["resident"]} >= {"begin", "evidence"}
        grown = report["peak_megabytes"] - report["before_megabytes"]
        assert report["grown_megabytes"] == report["goals"][0]["measured"] == grown
    elif name == "large_layers":
        exact, parts = report["passes"]["exact"], report["passes"]["in parts"]
        assert report["goals"][0]["measured"] == exact["seconds"] / parts["seconds"]
        assert parts["log_evidence"] == pytest.approx(exact["log_evidence"], rel=1e-3)
    else:
        assert list(report["cases"]) == [case.name for case in SMALL_CASES]
        for row in report["cases"].values():
            assert row["seconds"] > 0 and row["residual"] < 1e-8 and "ratio" not in row


def test_same_ranges_from_both_paths() -> None:
    data = Split(train=digits().train.subset(40, seed=0), test=None)
    options: dict[str, Any] = {"examples": 30, "epochs": 2, "seeds": (0, 1), "samples": 2}
    report = same_ranges.run(data, CPU, network=SMALL, **options)
    rotation = report["ranges"]["fast"]["rotation"]
    assert len(rotation["values"]) == 2 and rotation["unit"] == "degrees"
    assert rotation["mean"] == pytest.approx(sum(rotation["values"]) / 2)
    assert len(report["goals"]) == 2
    assert any("rotation" in line for line in same_ranges.table(report))


def test_both_paths_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orbit_training, "SHAPE", (1, 8, 8))
    data = orbit_training.images(12, None)
    config = LearnConfig(samples=3, batch_size=6, gradient_batches=0)
    fast, reference = (parts_of(path, SMALL, data, config, CPU) for path in PATHS.values())
    for parts in (fast, reference):
        parts.epoch()
    assert fast.trainer.epoch == 1
    assert fast.trainer.config.captured and not reference.trainer.config.captured
    assert fast.factors() == pytest.approx(reference.factors(), rel=1e-4)
    first, second = fast.gradient()[0], reference.gradient()[0]
    torch.testing.assert_close(first, second, rtol=1e-2, atol=1e-3)
    fast.trainer.epoch = 1000
    with pytest.raises(AssertionError, match="hyper step"):
        fast.epoch()


# --- reports --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured", "at", "met"),
    [(1.9, "least", False), (2.0, "least", True), (2.0, "most", True), (2.1, "most", False),
     (math.nan, "most", False), (math.nan, "least", False)],
)  # fmt: skip
def test_a_goal_is_met_or_not(measured: float, at: Any, met: bool) -> None:
    found = timing.goal("speed", measured, 2.0, at=at, unit="times as fast")
    assert found["met"] is met
    (line,) = timing.goal_lines({"goals": [found]})
    assert ("MISSED" in line) is not met


def test_reports_of_several_devices_lie_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"device": "cuda:0", "device_name": "NVIDIA H200", "threads": 16}
    gpu = {"benchmark": "evidence", **names, "goals": []}
    cpu = {**gpu, "device": "cpu", "device_name": "x86_64", "threads": 2}
    for report in (gpu, cpu):
        timing.publish(report, Namespace(out=tmp_path / "bench", json=False), "a table")
    written = sorted(path.name for path in (tmp_path / "bench").iterdir())
    assert written == ["evidence-nvidia-h200.json", "evidence-x86-64-2-threads.json"]
    timing.publish(gpu, Namespace(out=tmp_path / "one.json", json=True), "a table")
    assert json.loads((tmp_path / "one.json").read_text(encoding="utf-8")) == gpu
    assert capsys.readouterr().out.startswith("a table\na table\n{")


def test_recorded_results_are_called_after_their_device() -> None:
    paths = sorted((ROOT / "results" / "bench").glob("*.json"))
    assert paths
    for path in paths:
        assert timing.file_name(json.loads(path.read_text(encoding="utf-8"))) == path.name


# --- bases and the public tool --------------------------------------------------------------------


def worker(folder: Path, body: str) -> Path:
    """A stand-in for the tool: a script that says it is ready, then this."""
    path = folder / "worker.py"
    ready = "import json, sys, time\nprint('ready', flush=True)\n"
    path.write_text(f"{ready}{body}\n", encoding="utf-8")
    return path


def test_cases_have_the_published_ranks_and_are_there_once() -> None:
    assert len(BY_NAME) == len(CASES)
    published = {
        (group, text.replace(",0)", ")")): rank
        for groups in PUBLISHED_RANKS.values()
        for group, row in groups.items()
        for text, rank in row.items()
    }
    known = [published.get((case.group, case.name.split()[-1])) for case in CASES]
    assert sum(rank is not None for rank in known) > 20
    assert all(rank in (None, case.rank) for rank, case in zip(known, CASES, strict=True))


def test_nothing_is_remembered_between_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    solve = solving.solve

    def counted(group: Any, atoms: Any, **options: Any) -> Any:
        assert not solving._known
        calls.append(atoms)
        return solve(group, atoms, **options)

    monkeypatch.setattr(solving, "solve", counted)
    basis.ours(SMALL_CASES[0], 2)
    assert len(calls) == 3
    with pytest.raises(RuntimeError, match="rank 15, but it is 14"):
        basis.ours(SMALL_CASES[0]._replace(rank=14), 0)


def test_ratios_of_a_tool_that_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "print('noise'); print(json.dumps(dict(rank=1, seconds=2.0, words=sys.argv[1:])))"
    monkeypatch.setattr(peer, "__defaults__", (worker(tmp_path, said),))
    case = BY_NAME["SU(3) T(4,1)"]
    assert peer(case, sys.executable, 30.0)["words"] == ["SU(3)", "4", "1", "5.0"]
    basis.main(["--case", "SO(3) T(3)", "--rounds", "0", "--out", str(tmp_path / "one.json"),
                "--peer", sys.executable])  # fmt: skip
    written = json.loads((tmp_path / "one.json").read_text(encoding="utf-8"))
    (row,) = written["cases"].values()
    assert row["ratio"] == pytest.approx(2.0 / row["seconds"]) and not row["is_bound"]
    assert [each["goal"] for each in written["goals"]] == [100.0]


ENDED = """
for seconds in (1.5, 0.01):
    print(json.dumps(dict(seconds=seconds, rank=15)), flush=True)
time.sleep(60)"""
ANSWERS: dict[str, tuple[str, float, dict[str, Any], float | None, bool]] = {
    "does not end": ("time.sleep(60)", 0.2, {"at_least": 0.2}, 20.0, True),
    # The limit is for the first solve: repetitions that it cuts off make nothing slower.
    "ended before": (ENDED, 1.0, {"seconds": 0.01, "rank": 15, "solves": 2}, 1.0, False),
    "fails": ("raise ValueError('big')", 30.0, {"failed": "ValueError: big"}, None, False),
}  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_tool_is_compared_by_what_it_answers(answer: str, tmp_path: Path) -> None:
    body, limit, wanted, ratio, is_bound = ANSWERS[answer]
    theirs = peer(SMALL_CASES[0], sys.executable, limit, worker(tmp_path, body))
    assert theirs == wanted
    row = compared({"seconds": 0.01}, theirs)
    goals = goals_of(SMALL_CASES[:1], {SMALL_CASES[0].name: row})
    if ratio is None:
        assert row["ratio"] is None and goals == []
        return
    assert (row["ratio"], row["is_bound"]) == (pytest.approx(ratio), is_bound)
    assert ("at least" in goals[0]["what"]) is is_bound


def test_a_tool_that_is_missing_and_a_case_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "worker.py"
    path.write_text("import no_such_library\n", encoding="utf-8")
    with pytest.raises(RuntimeError, match="No module named 'no_such_library'"):
        peer(SMALL_CASES[0], sys.executable, 30.0, path)
    short = ["--peer", sys.executable, "--peer-limit", "5"]
    for words, told in ((["--case", "SO(99)"], "SO(99)"), (short, "at least 30")):
        with pytest.raises(SystemExit):
            basis.main(words)
        assert told in capsys.readouterr().err
