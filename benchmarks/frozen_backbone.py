"""`isotropy learn --freeze backbone`: ranges and verdicts of 1,000 pictures of 64×64, whole command.

Pictures are those of `data.problems`: objects of three shapes, turned by any angle, on a textured
ground. The network is a ResNet-18 of timm with random weights unless another is named. The command
is run once with all fast paths and once without each of them, in turns within one process:

    bfloat16   trials of the search run the frozen layers in bfloat16
    one core   steps on the last layer, and kernels of few examples, run on one core

Cores are counted as well as the clock: core seconds of a process are less disturbed by others.
`load` is how many processes wanted to run, before and after. A path earns its place by 1.5 times on
one of the two; on a machine without other work one core gains nothing.

    python -m benchmarks.frozen_backbone [--json] [--model timm:resnet18] [--pictures 1000]
        [--without bfloat16,"one core",all] [--out results/bench]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

if __package__ in (None, ""):  # run as a file: the folder above is where `benchmarks` is found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import goal, goal_lines, options_of, publish
from isotropy.cli.main import cli
from isotropy.data.problems import write_photographs
from isotropy.evidence import training
from isotropy.evidence.search import trials
from isotropy.networks.averaging import averaged_features
from isotropy.records import RESULT, provenance, read_json

MODEL, PICTURES, SIDE, SEED = "timm:resnet18", 1000, 64, 1
MOST_SECONDS = 300.0
EARNS = 1.5
"""Times as long that a whole run must take without a path."""


@contextmanager
def _on_all_cores() -> Iterator[None]:
    def unchanged(_: bool = True) -> AbstractContextManager[None]:
        return nullcontext()

    with patch.object(trials, "on_one_core", unchanged):
        with patch.object(training, "on_one_core", unchanged):
            yield


PATHS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "bfloat16": lambda: patch.object(averaged_features, "has_bfloat16", lambda *_: False),
    "one core": _on_all_cores,
}
EVERY = "all"
"""The word for a run without any of them."""


def timed(command: Sequence[str], folder: Path, without: Sequence[str]) -> dict[str, Any]:
    """Seconds of a command without some paths, and what it found."""
    load, began, cores = os.getloadavg()[0], time.perf_counter(), time.process_time()
    with ExitStack() as taken:
        for name in without:
            taken.enter_context(PATHS[name]())
        cli.main([*command, "--out", str(folder)], standalone_mode=False, obj="isotropy")
    seconds, core_seconds = time.perf_counter() - began, time.process_time() - cores
    record = read_json(folder / RESULT)
    search = record["search"]
    return {
        "without": list(without),
        "seconds": seconds,
        "core_seconds": core_seconds,
        "load": [load, os.getloadavg()[0]],
        "trials": search["trials"],
        "search_seconds": search["seconds"],
        "precision": search["precision"],
        "copies_differ_by_nats": search["seed_error"],
        "log_evidence": record["log_evidence"],
        "test_accuracy": record["test_accuracy"],
        "verdicts": {each["name"]: each["verdict"] for each in record["verdicts"]},
        "amounts": search["amounts"],
        "gains_nats": {name: each["gain_nats"] for name, each in search["symmetries"].items()},
    }


def run(
    model: str = MODEL,
    pictures: int = PICTURES,
    without: Sequence[str] = ("bfloat16", "one core"),
    more: Sequence[str] = (),
    *,
    upright: bool = False,
) -> dict[str, Any]:
    """Everything, as one JSON object; more: further words of the command."""
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "pictures"
        write_photographs(data, pictures, seed=SEED, upright=upright, smallest=SIDE, largest=SIDE)
        command = ["learn", "--model", model, "--freeze", "backbone", "--data", str(data),
                   "--image-size", str(SIDE), "--quiet", *more]  # fmt: skip
        rows = {"with all": timed(command, Path(place) / "with-all", ())}
        for name in without:
            taken = list(PATHS) if name == EVERY else [name]
            label = "without any" if name == EVERY else f"without {name}"
            print(f"{label}, after {rows}", file=sys.stderr, flush=True)
            rows[label] = timed(command, Path(place) / name.replace(" ", "-"), taken)
    whole = rows["with all"]
    shown = ["pictures" if word == str(data) else word for word in command]
    what = f"{model}, {pictures:,} pictures of {SIDE}×{SIDE}"
    goals = [goal(f"{what}: the whole command", whole["seconds"], MOST_SECONDS, at="most", unit="s")]
    for name, row in rows.items():
        if row is whole:
            continue
        ratio = max(row[each] / whole[each] for each in ("seconds", "core_seconds"))
        goals.append(goal(f"{what}, {name}", ratio, EARNS, at="least", unit="times as long"))
    return {
        "benchmark": "frozen_backbone",
        **provenance(torch.device("cpu")),
        "command": "isotropy " + " ".join(shown),
        "seed": SEED,
        "upright": upright,
        "runs": rows,
        "goals": goals,
    }


def _table(report: dict[str, Any]) -> str:
    lines = [f"{report['device_name']}, {report['threads']} threads: {report['command']}"]
    for name, row in report["runs"].items():
        found = ", ".join(f"{each} {word}" for each, word in row["verdicts"].items())
        lines.append(
            f"  {name:18} {row['seconds']:6.0f} s  {row['core_seconds']:6.0f} core s  "
            f"{row['trials']} trials, load {row['load'][0]:.1f}: {found}"
        )
    return "\n".join([*lines, *goal_lines(report)])


def main(arguments: list[str] | None = None) -> None:
    parser = options_of(__doc__, rounds=1)
    parser.add_argument("--model", default=MODEL, help="as of isotropy learn")
    parser.add_argument("--pictures", type=int, default=PICTURES)
    parser.add_argument("--without", default="bfloat16,one core", help=f"paths, or {EVERY}")
    parser.add_argument("--upright", action="store_true", help="pictures that are not turned")
    options = parser.parse_args(arguments)
    without = [name for name in options.without.split(",") if name]
    report = run(options.model, options.pictures, without, upright=options.upright)
    publish(report, options, _table(report))


if __name__ == "__main__":
    main()
