"""A run on full MNIST part by part: what the library's own kernels and graphs gain, and memory.

60,000 images of 28×28 (the CNN: 10,000 of them), 31 copies of each, the paper's MLP and CNN,
batches of 1000, TF32:

    epoch      a pass of weight steps
    factors    a pass over all data: curvature, eigendecompositions, value of the evidence
    gradient   the gradient of the evidence by the ranges, over all data
    full       both, added up: the exact evidence and its exact gradient

each by a `Trainer` as `isotropy.learn` makes it ("fast"), and by one that has plain PyTorch only
("reference": the warp from torch's operations, no CUDA graphs, the same precision), in turns
within one run. Seconds and bytes are reported on a GPU; on a CPU a thousand images, and
ratios alone. `--data` names a folder with MNIST's files; otherwise images are random, which takes
as long. With `--same-ranges` also the ranges that both paths learn (`same_ranges`), from MNIST or
from the embedded digits.

    python -m benchmarks.orbit_training [--json] [--data DIR] [--examples 60000] [--rounds 3]
                                        [--networks mlp,cnn] [--same-ranges]
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

if __package__ in (None, ""):  # run as a file: the folder above is where `benchmarks` is found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import same_ranges
from benchmarks.paths import PATHS, parts_of
from benchmarks.timing import add_device, fastest, goal, goal_lines, options_of, peaks, publish
from benchmarks.training_parts import with_full
from isotropy.data.labelled import LabelledData
from isotropy.data.readers import digits, read
from isotropy.evidence.settings import LearnConfig
from isotropy.records import provenance

SAMPLES = 31
NETWORKS = ("mlp", "cnn")
EXAMPLES = {"cuda": 60_000, "cpu": 1000}
BATCH = {"cuda": 1000, "cpu": 50}
SHAPE, CLASSES = (1, 28, 28), 10
AT_MOST = {"cnn": 10_000}
"""Images of a network whose evidence passes take long; every part is proportional to them."""
SECONDS_ON_H200 = {"epoch": 0.10, "full": 0.20}
GIGABYTES_ON_H200 = 4.0
TIMES_FASTER = {"cuda": {"mlp": 1.0, "cnn": 4.0}, "cpu": {"mlp": 1.0, "cnn": 1.0}}
"""At least so many times as fast as plain PyTorch, for the parts of `SECONDS_ON_H200`."""


def images(examples: int, source: Path | None) -> LabelledData:
    """The first images of a data set, or random ones."""
    if source is not None:
        train = read(source).train
        return train.take(torch.arange(min(examples, len(train))))
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand((examples, *SHAPE), generator=generator)
    labels = torch.arange(examples) % CLASSES
    return LabelledData(inputs, labels, None, "random images")


def measured(
    network: str, data: LabelledData, config: LearnConfig, device: torch.device, rounds: int
) -> dict[str, Any]:
    """Every part of one network by both paths: ratios, and on a GPU seconds and bytes."""
    bytes_at_most = {}
    if device.type == "cuda":  # one path at a time, so that neither counts what the other holds
        for name, path in PATHS.items():
            bytes_at_most[name] = peaks(
                parts_of(path, network, data, config, device).tasks(), device
            )
            gc.collect()
            torch.cuda.empty_cache()
    tasks = {
        (name, part): task
        for name, path in PATHS.items()
        for part, task in parts_of(path, network, data, config, device).tasks().items()
    }
    in_turns = {  # each part by one path and then by the other
        f"{name}: {part}": tasks[name, part]
        for part in dict.fromkeys(part for _, part in tasks)
        for name in PATHS
    }
    found = fastest(in_turns, device, rounds)
    seconds = {
        name: with_full({part: found[f"{name}: {part}"] for each, part in tasks if each == name})
        for name in PATHS
    }
    unit = seconds["fast"]["epoch"]
    report: dict[str, Any] = {
        "epochs": {
            name: {part: each / unit for part, each in row.items()} for name, row in seconds.items()
        },
        "times_faster": {
            part: seconds["reference"][part] / each for part, each in seconds["fast"].items()
        },
    }
    if device.type == "cuda":
        report |= {"seconds": seconds, "peak_bytes": bytes_at_most}
    return report


def run(
    examples: int,
    rounds: int,
    device: torch.device,
    *,
    networks: Sequence[str] = NETWORKS,
    data: Path | None = None,
    samples: int = SAMPLES,
    with_ranges: bool = False,
) -> dict[str, Any]:
    """Everything, as one JSON object."""
    chosen = images(examples, data)
    size = min(BATCH[device.type], len(chosen))
    config = LearnConfig(samples=samples, batch_size=size, gradient_batches=0)
    rows = {}
    for name in networks:
        some = chosen.take(torch.arange(min(len(chosen), AT_MOST.get(name, len(chosen)))))
        rows[name] = {
            "examples": len(some),
            **measured(name, some, config, device, rounds),
        }
    report: dict[str, Any] = {
        "benchmark": "orbit_training",
        "data": chosen.name,
        "examples": len(chosen),
        "samples": samples,
        "batch": size,
        **provenance(device),
        "networks": rows,
    }
    report["goals"] = _goals(report)
    if with_ranges:
        split = digits() if data is None else read(data)
        on_gpu = device.type == "cuda"  # a CPU gets what is the default there
        report["same_ranges"] = same_ranges.run(
            split,
            device,
            network="mlp" if on_gpu else "mlp:200",
            samples=SAMPLES if on_gpu else 16,
        )
        report["goals"] += report["same_ranges"].pop("goals")
    return report


def _goals(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Faster than plain PyTorch on every device; on an H200 also seconds and memory."""
    rows, least = report["networks"], TIMES_FASTER[report["device"].split(":")[0]]
    found = [
        goal(
            f"{name}, {part}: the fast path against plain PyTorch",
            row["times_faster"][part],
            least.get(name, 1.0),
            at="least",
            unit="times as fast",
        )
        for name, row in rows.items()
        for part in SECONDS_ON_H200
    ]
    whole = report["examples"] == EXAMPLES["cuda"]
    if "H200" in report["device_name"] and whole and "mlp" in rows:
        row = rows["mlp"]
        found += [
            goal(f"mlp, {part}", row["seconds"]["fast"][part], most, at="most", unit="s")
            for part, most in SECONDS_ON_H200.items()
        ]
        gigabytes = max(row["peak_bytes"]["fast"].values()) / 1e9
        found.append(goal("mlp, memory", gigabytes, GIGABYTES_ON_H200, at="most", unit="GB"))
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = options_of(__doc__, rounds=3)
    add_device(parser)
    parser.add_argument("--data", type=Path, help="a folder with MNIST's IDX files")
    parser.add_argument("--examples", type=int, help="60,000 on a GPU and 1,000 on a CPU")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--same-ranges", action="store_true", help="learn ranges by both paths too")
    options = parser.parse_args(arguments)
    report = run(
        options.examples or EXAMPLES[options.device.type],
        options.rounds,
        options.device,
        networks=options.networks.split(","),
        data=options.data,
        with_ranges=options.same_ranges,
    )
    publish(report, options, _table(report))


def _table(report: dict[str, Any]) -> str:
    lines = [
        f"{report['device_name']}: {report['data']}, N = {report['examples']}, "
        f"S = {report['samples']}, batches of {report['batch']}"
    ]
    for network, row in report["networks"].items():
        for part, ratio in row["times_faster"].items():
            shown = "  ".join(_cell(row, name, part) for name in PATHS)
            lines.append(f"  {network:4} {part:26} {shown}  {ratio:6.2f} times faster")
    if "same_ranges" in report:
        lines += same_ranges.table(report["same_ranges"])
    return "\n".join([*lines, *goal_lines(report)])


def _cell(row: dict[str, Any], name: str, part: str) -> str:
    """Seconds and gigabytes where they are known, else epochs."""
    if "seconds" not in row:
        return f"{name} {row['epochs'][name][part]:7.2f} epochs"
    peak = row["peak_bytes"][name].get(part)
    shown = f"{peak / 1e9:6.2f} GB" if peak is not None else " " * 9
    return f"{name} {row['seconds'][name][part]:8.4f} s {shown}"


if __name__ == "__main__":
    main()
