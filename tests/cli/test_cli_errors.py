"""Every mistake of a caller ends with status 2 and one sentence that names the culprit.

Cases are data: what is made in an empty folder, what is typed, and what the sentence must name. The
cases of all commands are here; those that commands share, such as bad data, are tried with `learn`.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import pytest
from learn_runs import (
    FAST,
    assert_one_sentence,
    bars,
    bars_file,
    outcome,
    run_here,
    run_process,
)

import isotropy
from isotropy.cli.main import cli, main

IMAGES, LABELS = bars()
FEATURES = np.random.default_rng(0).random((60, 4), dtype=np.float32)


def npz(**arrays: np.ndarray) -> Callable[[], None]:
    return lambda: np.savez("data.npz", **arrays)


def content(name: str, text: bytes) -> Callable[[], None]:
    def make() -> None:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(text)

    return make


def truncated() -> None:
    whole = bars_file(Path(), "data.npz").read_bytes()
    Path("data.npz").write_bytes(whole[: len(whole) // 2])


def damaged() -> None:
    whole = bytearray(bars_file(Path(), "data.npz").read_bytes())
    whole[400:420] = bytes(20)
    Path("data.npz").write_bytes(whole)


def nan_pixel() -> None:
    images = IMAGES.astype(np.float32)
    images[7, 2, 2] = np.nan
    np.savez("data.npz", x=images, y=LABELS)


def relabelled(index: int, label: int) -> Callable[[], None]:
    labels = LABELS.copy()
    labels[index] = label
    return npz(x=IMAGES, y=labels)


@dataclass(frozen=True)
class DataCase:
    """Data that cannot be learned from: how it is made, what the sentence names.

    as_test: what it names when the data is the test set; None where a test set may be so.
    """

    make: Callable[[], None]
    names: tuple[str, ...]
    path: str = "data.npz"
    as_test: tuple[str, ...] | None = ()


BAD_DATA = {
    "missing": DataCase(lambda: None, ("data.npz", "found nothing")),
    "empty path": DataCase(lambda: None, ("empty path",), path=""),
    "empty file": DataCase(content("data.npz", b""), ("data.npz", "empty file")),
    "empty IDX file": DataCase(content("a-idx3-ubyte", b""), ("a-idx3", "empty"), "a-idx3-ubyte"),
    "empty folder": DataCase(lambda: os.mkdir("nil"), ("nil", "empty folder"), path="nil"),
    "unknown file": DataCase(content("notes.txt", b"hello"), ("notes.txt", "npz"), "notes.txt"),
    "unknown folder": DataCase(content("d/notes.txt", b"hello"), ("d:", "notes.txt"), path="d"),
    "truncated": DataCase(truncated, ("data.npz", "truncated")),
    "damaged": DataCase(damaged, ("data.npz", "damaged")),
    "unlabelled npz": DataCase(npz(x=IMAGES), ("data.npz", "unlabelled")),
    "no images": DataCase(npz(y=LABELS), ("data.npz", "called x")),
    "no examples": DataCase(npz(x=IMAGES[:0], y=LABELS[:0]), ("data.npz", "got 0")),
    "NaN pixel": DataCase(nan_pixel, ("data.npz", "NaN", "(7, 0, 2, 2)")),
    "negative label": DataCase(relabelled(5, -1), ("data.npz", "-1 at index 5")),
    "label out of range": DataCase(relabelled(5, 70), ("data.npz", "got 70")),
    "one class": DataCase(npz(x=IMAGES, y=0 * LABELS), ("data.npz", "two classes"), as_test=None),
    "more labels": DataCase(npz(x=IMAGES[:50], y=LABELS), ("data.npz", "more labels", "60", "50")),
    "fewer labels": DataCase(npz(x=IMAGES, y=LABELS[:50]), ("data.npz", "50 labels", "60")),
    "infinite targets": DataCase(
        npz(x=IMAGES, y=np.full((60, 1), np.inf)), ("data.npz", "60 that are NaN or infinite")
    ),
    "pickled": DataCase(
        npz(x=np.array([{}, []], dtype=object), y=LABELS[:2]), ("data.npz", "pickled")
    ),
    "pictures in no class": DataCase(
        content("loose/a.png", b"x"), ("loose", "unlabelled"), path="loose"
    ),
    "volumes": DataCase(
        npz(x=np.zeros((60, 1, 2, 2, 2), np.float32), y=LABELS),
        ("actions", "images", "(1, 2, 2, 2)", "give actions="),
        as_test=("data", "(1, 2, 2, 2)", "(1, 8, 8)"),
    ),
}
BAD_TEST_DATA = {name: case for name, case in BAD_DATA.items() if case.as_test is not None}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, which nothing but what a case makes may be in afterwards."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("case", BAD_DATA.values(), ids=BAD_DATA)
def test_bad_data(case: DataCase, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case.make()
    before = sorted(folder.rglob("*"))
    finished = run_here(capsys, "learn", "--data", case.path, *FAST)
    assert_one_sentence(finished, *case.names)
    assert sorted(folder.rglob("*")) == before, "a mistake must not leave a run folder behind"


@pytest.mark.parametrize("case", BAD_TEST_DATA.values(), ids=BAD_TEST_DATA)
def test_bad_test_data(case: DataCase, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case.make()
    good = bars_file(folder)
    finished = run_here(capsys, "learn", "--data", good, "--test", case.path, *FAST)
    assert_one_sentence(finished, *(case.as_test or case.names))


MODEL_FILE = b"""
from __future__ import annotations
from dataclasses import dataclass
import torch

@dataclass
class Widths:
    hidden: int = 3

def without_rule(shape, outputs):
    layers = [torch.nn.Flatten(), torch.nn.PReLU(), torch.nn.Linear(64, outputs)]
    return torch.nn.Sequential(*layers)

def too_wide():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(100, 3))

def no_head(shape, outputs):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, outputs), torch.nn.Tanh())

def unsteady(shape, outputs):
    class Noise(torch.nn.Module):
        def forward(self, rows):
            return rows + torch.randn_like(rows)

    layers = [torch.nn.Flatten(), Noise(), torch.nn.Linear(64, outputs)]
    return torch.nn.Sequential(*layers)

def by_batch(shape, outputs):
    norm = torch.nn.BatchNorm2d(1, track_running_stats=False)
    return torch.nn.Sequential(norm, torch.nn.Flatten(), torch.nn.Linear(64, outputs))

def too_few():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))

def raises(shape, outputs):
    raise ValueError("no such\\n thing")

def exits():
    raise SystemExit(0)

def number(shape, outputs):
    return 3

def pooled():
    return torch.nn.Sequential(torch.nn.Conv2d(1, 3, 3), torch.nn.Flatten())

def lonely(outputs):
    return torch.nn.Linear(64, outputs)

constant = 3
"""

Mistakes = dict[str, tuple[list[str], tuple[str, ...]]]
"""By name: what is typed, and what the sentence must name."""

BAD_OPTIONS: Mistakes = {
    # numbers
    "zero samples": (["--samples", "0"], ("samples", "got 0")),
    "negative samples": (["--samples", "-2"], ("samples", "got -2")),
    "zero test samples": (["--test-samples", "0"], ("test samples", "got 0")),
    "negative epochs": (["--epochs", "-3"], ("epochs", "got -3")),
    "zero epochs": (["--epochs", "0"], ("epochs", "got 0")),
    "epochs in words": (["--epochs", "many"], ("--epochs", "many")),
    "zero batch": (["--batch-size", "0"], ("batch size", "got 0")),
    "zero image size": (["--image-size", "0"], ("image_size", "got 0")),
    "negative image size": (["--image-size", "-8"], ("image_size", "got -8")),
    "zero subset": (["--subset", "0"], ("--subset", "got 0")),
    "subset too large": (["--subset", "61"], ("subset", "61", "48")),
    "negative seed": (["--seed", "-1"], ("--seed", "-1")),
    "huge seed": (["--seed", "9" * 30], ("--seed", "9" * 30)),
    # names
    "unknown option": (["--sample", "3"], ("--sample",)),
    "extra argument": (["bars.npz"], ("bars.npz",)),
    "unknown variant": (["--variant", "rotate"], ("--variant", "rotate")),
    "unknown objective": (["--objective", "lila"], ("--objective", "lila")),
    "unknown prior": (["--prior", "flat"], ("--prior", "flat")),
    "unknown generator": (["--generators", "rotaton"], ("'rotaton'", "did you mean 'rotation'?")),
    "no generator": (["--generators", ""], ("generator ''",)),
    "generator twice": (["--generators", "scale,scale"], ("'scale', 'scale'",)),
    "unknown device": (["--device", "banana"], ("'banana'",)),
    "device without data": (["--device", "meta"], ("'meta'",)),
    "device with a letter": (["--device", "cuda:x"], ("'cuda:x'",)),
    "no such GPU": (["--device", "cuda:99"], ("'cuda:99'", "CUDA devices")),
    # ranges and caps
    "range without number": (["--range", "rotation"], ("--range", "'rotation'")),
    "range in words": (["--range", "rotation=all"], ("--range", "'rotation=all'")),
    "range NaN": (["--objective", "fixed", "--range", "rotation=nan"], ("--range", "nan")),
    "range infinite": (["--objective", "fixed", "--range", "rotation=inf"], ("--range", "inf")),
    "range below zero": (["--objective", "fixed", "--range", "scale_x=-1"], ("--range", "scale_x")),
    "range of an unknown": (["--objective", "fixed", "--range", "spin=3"], ("generator 'spin'",)),
    "range of another": (["--objective", "fixed", "--range", "shear_x=1"], ("'shear_x'",)),
    "range while learning": (["--range", "rotation=30"], ("ranges", "'evidence'")),
    "fixed without range": (["--objective", "fixed"], ("fixed", "rotation=30")),
    "cap below zero": (["--cap", "rotation=-1"], ("--cap", "rotation=-1")),
    "cap NaN": (["--cap", "rotation=nan"], ("--cap", "rotation=nan")),
    "cap of an unknown": (["--cap", "spin=3"], ("generator 'spin'",)),
    # models
    "unknown model": (["--model", "mpl"], ("'mpl'", "did you mean 'mlp'?")),
    "no model": (["--model", ""], ("model ''",)),
    "model without width": (["--model", "mlp:wide"], ("'mlp:wide'",)),
    "model of width zero": (["--model", "mlp:0"], ("'mlp:0'",)),
    "model of width ²": (["--model", "mlp:²"], ("'mlp:²'",)),
    "images too small": (["--model", "cnn"], ("cnn", "8×8")),
    "no factory": (["--model", "nets.py"], ("'nets.py'", "FILE.py:factory")),
    "no model file": (["--model", "gone.py:make"], ("gone.py",)),
    "no such factory": (["--model", "nets.py:make"], ("nets.py", "'make'")),
    "factory is a number": (["--model", "nets.py:constant"], ("nets.py", "'constant'")),
    "model file is broken": (["--model", "broken.py:make"], ("broken.py", "SyntaxError")),
    "factory raises": (["--model", "nets.py:raises"], ("nets.py", "no such thing")),
    "factory exits": (["--model", "nets.py:exits"], ("nets.py", "SystemExit")),
    "factory gives a number": (["--model", "nets.py:number"], ("nets.py", "'number'", "int")),
    "factory wants one": (["--model", "nets.py:lonely"], ("nets.py:lonely", "(outputs)")),
    "layer without a rule": (
        ["--model", "nets.py:without_rule", "--fallback", "refuse"], ("layer '1'", "PReLU")),
    "network does not fit": (["--model", "nets.py:too_wide"], ("(1, 8, 8)",)),
    "network does not fit a bound": (
        ["--model", "nets.py:too_wide", "--evidence", "elbo", "--objective", "none"],
        ("(1, 8, 8)",)),
    "too few outputs": (["--model", "nets.py:too_few"], ("2 outputs",)),
    "folder is no run": (["--model", "other"], ("'other'", "not a run folder")),
    # frozen layers
    "frozen names that match nothing": (
        ["--model", "nets.py:by_batch", "--freeze", "layer9.*"],
        ("'layer9.*'", "matches nothing", "0.*, 2.*")),
    "everything frozen": (["--freeze", "*"], ("freeze '*'", "left to train")),
    "frozen without a last layer": (
        ["--model", "nets.py:no_head", "--freeze", "backbone"], ("'2' (Tanh)", "nn.Linear")),
    "frozen with statistics of the batch": (
        ["--model", "nets.py:by_batch", "--freeze", "backbone"], ("'0'", "statistics")),
    "frozen and drawing at random": (
        ["--model", "nets.py:unsteady", "--freeze", "backbone"],
        ("the same outputs every time in evaluation mode",)),
    # run folders
    "out below a file": (["--out", "bars.npz/run"], ("bars.npz/run", "Not a directory")),
    "out is a file": (["--out", "bars.npz"], ("bars.npz", "File exists")),
    "out holds a run": (["--out", "ran"], ("'ran'", "--resume")),
    "test alone": (["--test", "bars.npz"], ("--test",)),
    "unknown timm network": (["--model", "timm:no-such"], ("timm",)),
    # what comes before a run, beside and after it
    "unknown screening": (["--screen", "last"], ("--screen", "'last'")),
    "screening, then a word": (["--screen", "bars.npz"], ("--screen", "bars.npz")),
    "screening over a run": (["--quiet", "--screen", "--out", "ran"], ("'ran'", "--resume")),
    "screening below a file": (["--quiet", "--screen", "--out", "bars.npz/run"], ("Not a",)),
    "screening without epochs": (["--screen", "--epochs", "0"], ("epochs", "got 0")),
    "screening first, bad cap": (["--screen", "first", "--cap", "spin=3"], ("'spin'",)),
    "unknown curvature": (["--curvature", "kfac-gnn"], ("--curvature", "'kfac-gnn'")),
    "unknown evidence": (["--evidence", "laplas"], ("--evidence", "'laplas'")),
    "bound without an evidence": (
        ["--evidence", "elbo", "--objective", "augerino"], ("elbo", "'augerino'")),
    "bound of a last layer that is not linear": (
        ["--evidence", "elbo", "--model", "nets.py:no_head"], ("last layer is Linear", "Tanh")),
    "unknown fallback": (["--fallback", "ignore"], ("--fallback", "'ignore'")),
    "unknown distribution": (["--distribution", "normal"], ("--distribution", "'normal'")),
    "negative verdicts": (["--verdicts", "-1"], ("--verdicts", "-1")),
    "unknown finite action": (["--generators", "horizontal flip"], ("'horizontal flip'",)),
    "an element by its name": (["--generators", "turn_90"], ("'turn_90'",)),
    "range of a flip that is not there": (
        ["--objective", "fixed", "--range", "horizontal_flip=0.5"], ("'horizontal_flip'",)),
}  # fmt: skip
BAD_PROFILES: Mistakes = {
    "unknown generator": (["--generator", "rotaton"], ("'rotaton'", "did you mean 'rotation'?")),
    "generator not among those": (["--generators", "scale_x"], ("generator 'rotation'", "scale_x")),
    "two amounts": (["--amounts", "0,1"], ("amounts", "three or more", "[0.0, 1.0]")),
    "amounts in words": (["--amounts", "0,some,all"], ("--amounts", "'0,some,all'")),
    "negative amounts": (["--amounts=-90,0,90"], ("amounts", "at least 0")),
    "no amounts": (["--amounts", ""], ("--amounts",)),
    "unknown kind": (["--curvatures", "kfac-ggn,kfac-gnn"], ("'kfac-gnn'",)),
    "no kind": (["--curvatures", ""], ("curvature ''",)),
    "no kind that works": (
        ["--model", "nets.py:without_rule", "--fallback", "refuse"],
        ("layer '1'", "PReLU"),
    ),
    "network does not fit": (["--model", "nets.py:too_wide"], ("(1, 8, 8)",)),
    "zero samples": (["--samples", "0"], ("samples", "got 0")),
    "an option of learn": (["--screen"], ("--screen",)),
    "out holds a run": (["--out", "ran"], ("'ran'", "already holds a run")),
    "out below a file": (["--out", "bars.npz/run"], ("bars.npz/run", "Not a directory")),
}
BAD_RELAXATIONS: Mistakes = {
    "unknown pathway": (["--pathways", "conf"], ("pathway", "did you mean 'conv'?")),
    "pathway twice": (["--pathways", "conv,conv"], ("each once",)),
    "no pathway": (["--pathways", ""], ("pathway",)),
    "group without use": (["--group", "C(4)"], ("group", "add gconv")),
    "group not on the grid": (["--pathways", "conv,gconv", "--group", "C(3)"], ("C(3)", "grid")),
    "task without quadrants": (["--data", "digits", "--task", "digit"], ("--task", "quadrants")),
    "digits without quadrants": (["--data", "digits", "--digits", "m"], ("--digits", "--data")),
    "variant of quadrants": (["--variant", "rotated"], ("--variant rotated", "--data digits")),
    "test of quadrants": (["--test", "bars.npz"], ("--test",)),
    "missing digits": (["--digits", "gone"], ("gone",)),
    "not images": (["--data", "rows.npz"], ("rows", "expected images")),
    "odd size": (["--image-size", "30"], ("30", "32")),
    "unknown task": (["--task", "digits"], ("--task",)),
    "no width": (["--width", "0"], ("--width",)),
    "width of another network": (["--model", "resnet"], ("--width 1", "--model resnet:1")),
    "resume from nowhere": (["--resume", "gone"], ("'gone'", "not a run folder")),
    "no epochs": (["--epochs", "0"], ("epochs",)),
    "curvature": (["--curvature", "diagonal-ggn"], ("kfac-ggn", "diagonal-ggn")),
    "subset": (["--subset", "1"], ("--subset", "at least 2")),
    "out holds a run": (["--out", "ran"], ("'ran'", "already holds a run")),
    "out below a file": (["--out", "bars.npz/run"], ("bars.npz/run",)),
}
POOLED = ["--model", "nets.py:pooled"]
BAD_MEASUREMENTS: Mistakes = {
    "unknown network": (["--model", "cnnn"], ("'cnnn'", "did you mean 'cnn'?")),
    "twice the same name": (
        [*POOLED, *POOLED], ("two networks are called 'pooled'", "--model second=nets.py:pooled")),
    "no run folder": (["--model", "gone/run"], ("'gone/run'",)),
    "folder without a run": (["--model", "other"], ("'other'", "not a run folder")),
    "unknown generator": ([*POOLED, "--generators", "rotaton"], ("did you mean 'rotation'?",)),
    "unknown split": ([*POOLED, "--split", "valid"], ("--split", "'valid'")),
    "split twice": ([*POOLED, "--split", "test,test"], ("--split", "'test,test'")),
    "the data themselves": (
        [*POOLED, "--ood", "scaled", "--variant", "scaled"], ("--ood scaled", "another variant")),
    "unknown variant": ([*POOLED, "--ood", "turned"], ("--ood", "'turned'")),
    "variant twice": ([*POOLED, "--ood", "scaled", "--ood", "scaled"], ("--ood", "once each")),
    "no examples": ([*POOLED, "--examples", "0"], ("--examples",)),
    "no probes": ([*POOLED, "--probes", "0"], ("--probes",)),
    "unknown interpolation": ([*POOLED, "--interpolation", "cubic"], ("--interpolation",)),
    "missing data": ([*POOLED, "--data", "gone.npz"], ("gone.npz", "found nothing")),
    "out holds a run": ([*POOLED, "--out", "ran"], ("'ran'", "already holds a run")),
    "out below a file": ([*POOLED, "--out", "bars.npz/run"], ("bars.npz/run", "Not a directory")),
    "an option of learn": ([*POOLED, "--epochs", "3"], ("--epochs",)),
    "no network": ([], ("--model", "run folder", "FILE.py:factory")),
}  # fmt: skip
SO3 = ["--group", "SO(3)", "--rep", "V"]
BAD_BASES: Mistakes = {
    "nothing": ([], ("--group",)),
    "no representation": (["--group", "SO(3)"], ("--rep",)),
    "no group": (["--rep", "V"], ("--group",)),
    "broken words": ([*SO3, "--rep", "V >> *V"], ("position",)),
    "size in words": ([*SO3, "--group", "SO(three)"], ("SO",)),
    "unknown group": ([*SO3, "--group", "SQ(3)"], ("SQ",)),
    "no dimension": ([*SO3, "--group", "SO(0)"], ("SO",)),
    "no pseudoscalar": (["--group", "SU(2)", "--rep", "P"], ("pseudoscalar",)),
    "too large": ([*SO3, "--rep", "T(30)"], ("GB allowed",)),
    "unknown picture": ([*SO3, "--picture", "p.gif"], ("p.gif",)),
    "picture of a rank": ([*SO3, "--picture", "p.svg", "--rank-only"], ("--picture",)),
    "another device": ([*SO3, "--device", "cuda"], ("--device",)),
    "table and group": (["--table", "--group", "SO(3)"], ("--group",)),
    "unknown table": (["--table", "A.9"], ("A.9",)),
    "table and picture": (["--table", "--picture", "p.svg"], ("--picture",)),
    "out holds a run": ([*SO3, "--out", "ran"], ("'ran'", "already holds a run")),
}
NO_VERDICTS = FAST[: FAST.index("--verdicts")]
BARS = ("--data", "bars.npz")
COMMANDS: dict[str, tuple[tuple[str, ...], Mistakes]] = {
    "": ((), {"unknown command": (["lern"], ("lern",)), "unknown option": (["--jsn"], ("--jsn",))}),
    "learn": ((*BARS, *FAST), BAD_OPTIONS),
    "profile": ((*BARS, *NO_VERDICTS, "--epochs", "1", "--amounts", "0,90,180",
                 "--curvatures", "kfac", "--quiet"), BAD_PROFILES),
    "relax": (("--device", "cpu", "--epochs", "1", "--width", "1", "--subset", "8", "--quiet"),
              BAD_RELAXATIONS),
    "measure": ((*BARS, "--device", "cpu", "--examples", "6", "--no-layers", "--no-finite",
                 "--generators", "rotation", "--quiet"), BAD_MEASUREMENTS),
    "basis": (("--quiet",), BAD_BASES),
}  # fmt: skip
"""How each command starts, and what is typed after it."""


@pytest.mark.parametrize(
    ("command", "name"), [(each, name) for each, (_, bad) in COMMANDS.items() for name in bad]
)
def test_mistakes(
    command: str, name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bars_file(folder)
    np.savez("rows.npz", x=FEATURES, y=LABELS)
    Path("nets.py").write_bytes(MODEL_FILE)
    Path("broken.py").write_text("def make(:")
    Path("other").mkdir()
    Path("ran").mkdir()
    Path("ran/checkpoint.safetensors").write_bytes(b"precious")
    start, mistakes = COMMANDS[command]
    words, named = mistakes[name]
    if command == "learn" and words[0] == "--test":
        start = FAST
    assert_one_sentence(run_here(capsys, *filter(None, [command]), *start, *words), *named)
    assert not Path("runs").exists()
    assert [path.read_bytes() for path in Path("ran").iterdir()] == [b"precious"]


@pytest.mark.parametrize("command", cli.commands)
def test_help_lists_every_option(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    finished = run_here(capsys, command, "--help")
    assert finished.status == 0 and finished.stderr == ""
    for parameter in cli.commands[command].params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[0] in finished.stdout
    assert command in run_here(capsys, "-h").stdout


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    finished = run_here(capsys, "--version")
    assert finished.status == 0 and finished.stdout.strip().endswith(isotropy.__version__)


def test_subset_of_one_class(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("lopsided.npz", x=IMAGES, y=np.where(np.arange(60) < 4, LABELS, 0))
    words = ("--data", "lopsided.npz", "--subset", "2", *FAST)
    assert_one_sentence(run_here(capsys, "learn", *words), "lopsided", "two classes")


def test_test_set_of_another_shape(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, other = bars_file(folder), bars_file(folder, "other.npz", size=9)
    finished = run_here(capsys, "learn", "--data", good, "--test", other, *FAST)
    assert_one_sentence(finished, "other", "(1, 9, 9)")


def test_no_words_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    finished = run_here(capsys)
    assert finished.status == 2 and finished.stdout == ""
    assert "Usage: isotropy" in finished.stderr and "learn" in finished.stderr


# -- run folders -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and a finished run of it."""
    place = tmp_path_factory.mktemp("finished")
    data, run = str(bars_file(place)), str(place / "run")
    with pytest.raises(SystemExit, match="0"):
        main(["learn", "--data", data, *FAST, "--out", run, "--quiet", "--json"])
    return place


@pytest.fixture
def run_copy(finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder is a copy of that folder, which a test may spoil."""
    place = tmp_path / "copy"
    shutil.copytree(finished_run, place)
    monkeypatch.chdir(place)
    return place


def rewrite_config(change: Callable[[dict], object]) -> Callable[[], None]:
    def spoil() -> None:
        path = Path("run/config.json")
        config = json.loads(path.read_text())
        change(config)
        path.write_text(json.dumps(config))

    return spoil


def cut(name: str, share: float) -> Callable[[], None]:
    def spoil() -> None:
        whole = Path("run", name).read_bytes()
        Path("run", name).write_bytes(whole[: int(share * len(whole))])

    return spoil


BAD_RESUMES: dict[str, tuple[Callable[[], object], list[str], tuple[str, ...]]] = {
    "no such folder": (lambda: None, ["--resume", "gone"], ("'gone'", "not a run folder")),
    "a file": (lambda: None, ["--resume", "bars.npz"], ("'bars.npz'", "not a run folder")),
    "an empty folder": (lambda: os.mkdir("nil"), ["--resume", "nil"], ("'nil'", "config.json")),
    "config cut": (cut("config.json", 0.5), [], ("run/config.json", "cannot be read")),
    "config a list": (content("run/config.json", b"[]"), [], ("run/config.json", "JSON object")),
    "config of Python": (rewrite_config(lambda c: c.pop("request")), [], ("'run'", "not written")),
    "config of another version": (
        rewrite_config(lambda c: c["request"].pop("samples")),
        [],
        ("'run'", "not written"),
    ),
    "config without network": (
        rewrite_config(lambda c: c.pop("network")),
        [],
        ("run/config.json", "network"),
    ),
    "checkpoint cut": (cut("checkpoint.safetensors", 0.5), [], ("run/checkpoint.safetensors",)),
    "checkpoint empty": (cut("checkpoint.safetensors", 0), [], ("run/checkpoint.safetensors",)),
    "checkpoint gone": (
        lambda: os.remove("run/checkpoint.safetensors"),
        [],
        ("'run'", "holds no checkpoint", "start the run anew"),
    ),
    "history cut": (cut("metrics.jsonl", 0.5), [], ("run/metrics.jsonl",)),
    "history gone": (lambda: os.remove("run/metrics.jsonl"), [], ("run/metrics.jsonl", "got 0")),
    "data gone": (
        rewrite_config(lambda c: c["request"].update(data="/gone.npz")),
        [],
        ("/gone.npz",),
    ),
    "data that are no name": (
        rewrite_config(lambda c: c["request"].update(data=True)),
        [],
        ("run/config.json", "request.data", "got 'True'"),
    ),
    "epochs in words": (
        rewrite_config(lambda c: c["request"].update(epochs="three")),
        [],
        ("run/config.json", "request.epochs to be int or float"),
    ),
    "a flag that is a number": (
        rewrite_config(lambda c: c["request"].update(quiet=1)),
        [],
        ("run/config.json", "request.quiet to be bool"),
    ),
    "another data set": (
        rewrite_config(lambda c: c["data"].update(fingerprint="x")),
        [],
        ("another data set", "'x'"),
    ),
    "another model": (lambda: None, ["--model", "mlp:6"], ("another model", "mlp:5", "mlp:6")),
    "other epochs": (lambda: None, ["--epochs", "9"], ("'run'", "--epochs 3", "not 9")),
    "other seed": (lambda: None, ["--seed", "9"], ("'run'", "--seed 0", "not 9")),
    "another folder": (lambda: None, ["--out", "elsewhere"], ("--out elsewhere", "'run'")),
    "a cap": (lambda: None, ["--cap", "rotation=9"], ("--cap nothing", "rotation=9")),
}


@pytest.mark.parametrize(("spoil", "words", "named"), BAD_RESUMES.values(), ids=BAD_RESUMES)
def test_bad_resume(
    spoil: Callable[[], object],
    words: list[str],
    named: tuple[str, ...],
    run_copy: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spoil()
    start = [] if "--resume" in words else ["--resume", "run"]
    assert_one_sentence(run_here(capsys, "learn", *start, *words), *named)


def test_run_folder_of_another_model(run_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A trained network is not put on images of another size."""
    other = bars_file(run_copy, "other.npz", size=9)
    finished = run_here(capsys, "learn", "--data", other, "--model", "run", "--epochs", "1")
    assert_one_sentence(finished, "'run'", "another model", "(5, 64)", "(5, 81)")


def test_out_keeps_the_run_it_holds(run_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in Path("run").iterdir()}
    words = ("--data", "bars.npz", *FAST, "--out", "run", "--seed", "1")
    assert_one_sentence(run_here(capsys, "learn", *words), "'run'", "--resume")
    assert {path: path.read_bytes() for path in Path("run").iterdir()} == before


# -- the disk --------------------------------------------------------------------------------


def test_full_disk_loses_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up while the run saves itself; with room again, it is resumed."""
    bars_file(folder)
    monkeypatch.setattr("isotropy.workflows.runs.prepared.CHECKPOINT_SECONDS", 0.0)
    # Until the disk is full: config, then history and checkpoint, three times, and the folder
    # after each of them.
    room = [12]
    fsync = os.fsync

    def fsync_while_there_is_room(file: int) -> None:
        room[0] -= 1
        if room[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(file)

    monkeypatch.setattr("os.fsync", fsync_while_there_is_room)
    words = ("--data", "bars.npz", *FAST, "--json")
    failed = run_here(capsys, "learn", *words, "--out", "run", "--quiet")
    assert_one_sentence(failed, "run/checkpoint.safetensors", "No space left on device")
    assert not list(Path("run").glob("*.part"))
    room[0] = 10**9
    resumed = run_here(capsys, "learn", "--resume", "run", "--json")
    assert "continuing after epoch 1 of 3" in resumed.stderr
    unbroken = run_here(capsys, "learn", *words, "--out", "unbroken")
    assert unbroken.record["epochs"] == resumed.record["epochs"] == 3
    assert outcome(Path("run")) == outcome(Path("unbroken"))


@pytest.mark.parametrize("name", ["samples.npz", "report.html", "result.json"])
def test_full_disk_at_the_end(
    name: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bars_file(folder)
    replace = os.replace

    def replace_unless_full(source: str, target: Path) -> None:
        if Path(target).name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr("os.replace", replace_unless_full)
    words = ("--data", "bars.npz", *FAST, "--generators", "rotation", "--out", "run", "--quiet")
    failed = run_here(capsys, "learn", *words)
    assert_one_sentence(failed, f"run/{name}", "No space left on device")
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert run_here(capsys, "learn", "--resume", "run", "--json").record["epochs"] == 3


# -- as a process ----------------------------------------------------------------------------


@pytest.mark.slow
def test_process_sentence_and_status(folder: Path) -> None:
    finished = run_process("learn", "--data", "gone.npz", "--json")
    assert_one_sentence(finished, "gone.npz")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_full_standard_output(folder: Path) -> None:
    bars_file(folder)
    words = ("--data", "bars.npz", *FAST, "--generators", "rotation", "--out", "run", "--quiet")
    with open("/dev/full", "w") as full:
        finished = run_process("learn", *words, "--json", stdout=full)
    assert_one_sentence(finished, "standard output", "No space left on device")
    assert Path("run/result.json").exists()
