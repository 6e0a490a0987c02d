"""`isotropy learn --freeze backbone` on 1,000 pictures of 64×64: the whole command, and its parts.

Pictures are those of `data.problems`: objects of three shapes, turned by any angle, on a textured
ground. The network is a ResNet-18 of timm with random weights unless another is named. The command
is run once, and its parts then without each fast path, in turns within one process:

    bfloat16    trials of the search run the frozen layers in bfloat16
    one core    steps on the last layer, and kernels of few examples, run on one core

    trial       of the search: 128 pictures with 8 copies
    features    256 copies in float32, as of training and test pictures
    epoch       of weight steps on the last layer, with its hyper step

A run without a path is the sum of its parts, each as often as the command had it. `load` is how
many processes wanted to run, on average over a minute, before and after the command. The last
path gains where other programs use the cores too, and nothing where none does.

    python -m benchmarks.frozen_backbone [--json] [--model timm:resnet18] [--pictures 1000]
        [--rounds 3] [--out results/bench]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

if __package__ in (None, ""):  # run as a file: the folder above is where `benchmarks` is found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import fastest, goal, goal_lines, options_of, publish
from isotropy.cli.main import cli
from isotropy.data.problems import write_photographs
from isotropy.data.readers import read
from isotropy.evidence import training
from isotropy.evidence.search import trials as search_trials
from isotropy.evidence.search.trials import Trials
from isotropy.evidence.settings import LearnConfig
from isotropy.networks.averaging import averaged_features
from isotropy.networks.zoo.specification import parse_network
from isotropy.records import RESULT, provenance, read_json
from isotropy.workflows.runs.prepared import begin, prepare_run

MODEL, PICTURES, SIDE, SEED = "timm:resnet18", 1000, 64, 1
MOST_SECONDS = 300.0
EARNS = 1.5
"""Times as long that a whole run must take without a path."""
ROWS = 256
"""Of one pass to features that is timed."""
HALF = {"rotation": 90.0}
"""Amounts of the trial that is timed."""


@contextmanager
def _without_one_core() -> Iterator[None]:
    def unchanged(_: bool = True) -> AbstractContextManager[None]:
        return nullcontext()

    with (
        patch.object(search_trials, "on_one_core", unchanged),
        patch.object(training, "on_one_core", unchanged),
    ):
        yield


PATHS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "bfloat16": nullcontext,  # settled when trials are prepared, see `parts`
    "one core": _without_one_core,
}


def whole(command: Sequence[str], folder: Path) -> dict[str, Any]:
    """Seconds of the command, what it found, and how often it had each part."""
    load, began, cores = os.getloadavg()[0], time.perf_counter(), time.process_time()
    cli.main([*command, "--out", str(folder)], standalone_mode=False, obj="isotropy")
    seconds, core_seconds = time.perf_counter() - began, time.process_time() - cores
    record = read_json(folder / RESULT)
    search, trained = record["search"], record["search"].get("trained", [{"amounts": {}}])
    scored = sum(2 * len(each["beside_held_out"]) for each in search["symmetries"].values())
    rows = 0
    for each in trained:
        moves = any(each["amounts"].values())
        rows += record["train_examples"] * (record["samples"] if moves else 1)
        rows += record["test_examples"] * (record["test_samples"] if moves else 1)
    return {
        "seconds": seconds,
        "core_seconds": core_seconds,
        "load": [load, os.getloadavg()[0]],
        "search_seconds": search["seconds"],
        "precision": search["precision"],
        "copies_differ_by_nats": search["seed_error"],
        "log_evidence": record["log_evidence"],
        "test_accuracy": record["test_accuracy"],
        "verdicts": {each["name"]: each["verdict"] for each in record["verdicts"]},
        "amounts": search["amounts"],
        "times": {
            "trial": search["trials"] + scored,
            "features": rows / ROWS,
            "epoch": record["epochs"] * len(trained),
        },
    }


def parts(model: str, data: Path) -> dict[str, dict[str, Callable[[], object]]]:
    """By path, and without any taken out under "all": the parts of a run as tasks."""
    split = read(str(data), None, seed=0, hold_out_fraction=0.2, image_size=SIDE)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        shape = tuple(split.train.inputs.shape[1:])
        network = parse_network(model).build(shape, split.train.num_outputs)
    begun, actions = begin(network, split, None, seed=0).acting(None)
    begun = begun.freezing("backbone")
    caps = dict.fromkeys(actions.names, 0.0)
    config = LearnConfig(freeze="backbone", start={}, caps=caps, refine=False, samples=1)
    trainer = prepare_run(begun, config, actions=actions).trainer
    assert trainer.features is not None
    features = trainer.features
    features.now()
    trainer.epoch = trainer.config.burn_in  # hyper steps begin
    count = trainer.config.search_examples or trainer.examples
    chosen = torch.randperm(trainer.examples, generator=torch.Generator().manual_seed(0))[:count]
    searched = trainer.inputs[chosen], trainer.targets[chosen]
    fast = Trials(trainer.network, actions, trainer.config, searched)
    with patch.object(averaged_features, "has_bfloat16", lambda *_: False):
        exact = Trials(trainer.network, actions, trainer.config, searched)
    some = trainer.inputs[: max(1, ROWS // 8)].repeat_interleave(8, 0)[:ROWS]

    def tasks(trial: Trials, taken: Callable[[], Any]) -> dict[str, Callable[[], object]]:
        own: dict[str, Callable[[], object]] = {
            "trial": lambda: trial._made(HALF, 0),
            "features": lambda: features.fixed(some, 1),
            "epoch": trainer.run_epoch,
        }

        def within(task: Callable[[], object]) -> Callable[[], object]:
            def run() -> None:
                with ExitStack() as stack:
                    stack.enter_context(taken())
                    task()

            return run

        return {name: within(task) for name, task in own.items()}

    rows = {
        name: tasks(exact if name == "bfloat16" else fast, taken) for name, taken in PATHS.items()
    }
    return {"all": tasks(fast, nullcontext), **rows}


def ratios(
    found: Mapping[str, Mapping[str, float]], times: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Times as long by path, of the run and of each part; times: how often a run has a part."""
    unit = found["all"]

    def run(row: Mapping[str, float]) -> float:
        return sum(times[part] * seconds for part, seconds in row.items())

    return {
        path: {"run": run(row) / run(unit), **{part: row[part] / unit[part] for part in row}}
        for path, row in found.items()
        if path != "all"
    }


def run(
    model: str = MODEL, pictures: int = PICTURES, rounds: int = 3, more: Sequence[str] = ()
) -> dict[str, Any]:
    """Everything, as one JSON object; more: further words of the command."""
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "pictures"
        write_photographs(data, pictures, seed=SEED, smallest=SIDE, largest=SIDE)
        command = ["learn", "--model", model, "--freeze", "backbone", "--data", str(data),
                   "--image-size", str(SIDE), "--quiet", *more]  # fmt: skip
        row = whole(command, Path(place) / "run")
        tasks = {
            f"{path}|{part}": task
            for path, own in parts(model, data).items()
            for part, task in own.items()
        }
        seconds = fastest(tasks, torch.device("cpu"), rounds)
    found: dict[str, dict[str, float]] = {}
    for name, value in seconds.items():
        path, part = name.split("|")
        found.setdefault(path, {})[part] = value
    times_as_long = ratios(found, row["times"])
    what = f"{model}, {pictures:,} pictures of {SIDE}×{SIDE}"
    goals = [goal(f"{what}: the whole command", row["seconds"], MOST_SECONDS, at="most", unit="s")]
    goals += [
        goal(f"{what}, without {path}", own["run"], EARNS, at="least", unit="times as long")
        for path, own in times_as_long.items()
    ]
    return {
        "benchmark": "frozen_backbone",
        **provenance(torch.device("cpu")),
        "command": " ".join(["isotropy", *command]).replace(str(data), "pictures"),
        "seed": SEED,
        "run": row,
        "seconds": found["all"],
        "times_as_long": times_as_long,
        "goals": goals,
    }


def _table(report: dict[str, Any]) -> str:
    row = report["run"]
    verdicts = ", ".join(f"{each} {word}" for each, word in row["verdicts"].items())
    lines = [
        f"{report['device_name']}, {report['threads']} threads: {report['command']}",
        f"  {row['seconds']:.0f} s, {row['core_seconds']:.0f} core s, load {row['load']}",
        f"  {verdicts}",
    ]
    for path, own in report["times_as_long"].items():
        shown = "  ".join(f"{part} {ratio:5.2f}" for part, ratio in own.items())
        lines.append(f"  without {path:12} {shown}")
    return "\n".join([*lines, *goal_lines(report)])


def main(arguments: list[str] | None = None) -> None:
    parser = options_of(__doc__, rounds=3)
    parser.add_argument("--model", default=MODEL, help="as of isotropy learn")
    parser.add_argument("--pictures", type=int, default=PICTURES)
    options = parser.parse_args(arguments)
    report = run(options.model, options.pictures, options.rounds)
    publish(report, options, _table(report))


if __name__ == "__main__":
    main()
