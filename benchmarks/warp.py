"""What moving images costs: `affine_warp` against torch's `affine_grid` and `grid_sample`.

    warp       copies from images and maps
    backward   copies, and from a cotangent on them the gradient to the maps

for 31 copies of each image, 28×28 with one channel and 32×32 with three. torch's way has a grid
for every copy and each image once for each of its copies, expanded beforehand: the comparison
flatters it. `affine_warp` takes the path that it chooses by itself; "reference" is the one by
torch's `grid_sampler_2d` on a grid of our own. On a GPU if there is one. Ratios hold within one
run.

    python -m benchmarks.warp [--json] [--images 1000] [--rounds 5]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

if __package__ in (None, ""):  # run as a file: the folder above is where `benchmarks` is found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import fastest, goal, goal_lines, options_of, publish
from isotropy.kernels.fused import reference_path
from isotropy.records import provenance
from isotropy.symmetry.actions.images import affine
from isotropy.symmetry.actions.warp import affine_warp

SAMPLES = 31
SIZES = {"28×28×1": (1, 28, 28), "32×32×3": (3, 32, 32)}
CLAIMED = "28×28×1"
GOALS = {"cuda": 10.0, "cpu": 2.0}
"""At least so many times faster than `affine_grid` and `grid_sample`: the warp of `CLAIMED`."""

Warp = Callable[[Tensor, Tensor], Tensor]


class Case:
    """Random images of one size and random affine maps, square so that torch's maps are ours."""

    def __init__(self, images: int, size: tuple[int, int, int], device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.rand(images, *size, generator=generator).to(device)
        coordinates = torch.rand(images, SAMPLES, 6, generator=generator) - 0.5
        linear, shift = affine().element(coordinates)
        self.linear, self.shift = linear.to(device), shift.to(device)
        self.expanded = self.images[:, None].expand(-1, SAMPLES, -1, -1, -1).flatten(0, 1)
        self.cotangent = torch.rand(images, SAMPLES, *size, generator=generator).to(device)

    def ours(self, linear: Tensor, shift: Tensor) -> Tensor:
        return affine_warp(self.images, linear, shift)

    def reference(self, linear: Tensor, shift: Tensor) -> Tensor:
        with reference_path():
            return affine_warp(self.images, linear, shift)

    def torchs(self, linear: Tensor, shift: Tensor) -> Tensor:
        theta = torch.cat((linear, shift[..., None]), -1).flatten(0, 1)
        grid = affine_grid(theta, list(self.expanded.shape), align_corners=True)
        copies = grid_sample(self.expanded, grid, align_corners=True)
        return copies.unflatten(0, (-1, SAMPLES))

    def warp(self, path: Warp) -> Tensor:
        with torch.no_grad():
            return path(self.linear, self.shift)

    def backward(self, path: Warp) -> tuple[Tensor, ...]:
        maps = [each.detach().requires_grad_() for each in (self.linear, self.shift)]
        return torch.autograd.grad(path(*maps), maps, self.cotangent)


def run(images: int, rounds: int, device: torch.device) -> dict[str, Any]:
    """Everything, as one JSON object."""
    # One call on a GPU is over too soon to be timed by itself.
    repeats = 20 if device.type == "cuda" else 1
    sizes = {
        name: measured(Case(images, size, device), repeats, rounds, device)
        for name, size in SIZES.items()
    }
    return {
        "benchmark": "warp",
        "images": images,
        "samples": SAMPLES,
        "threads": torch.get_num_threads(),
        **provenance(device),
        "sizes": sizes,
        "goals": [
            goal(
                f"warp of {CLAIMED} against affine_grid and grid_sample",
                sizes[CLAIMED]["warp"]["times_faster"]["ours"],
                GOALS[device.type],
                at="least",
                unit="times as fast",
            )
        ],
    }


def measured(case: Case, repeats: int, rounds: int, device: torch.device) -> dict[str, Any]:
    """Seconds of each path and how many times faster than torch's it is, for both tasks."""
    paths: dict[str, Warp] = {
        "ours": case.ours,
        "reference": case.reference,
        "torch": case.torchs,
    }
    # All paths must give the same copies, or the comparison means nothing.
    error = float((case.warp(case.ours) - case.warp(case.torchs)).abs().max())
    results: dict[str, Any] = {"largest_difference": error}
    for name, task in (("warp", case.warp), ("backward", case.backward)):

        def repeated(path: Warp, task: Callable[[Warp], object] = task) -> None:
            for _ in range(repeats):
                task(path)

        tasks = {each: partial(repeated, path) for each, path in paths.items()}
        seconds = {each: total / repeats for each, total in fastest(tasks, device, rounds).items()}
        results[name] = {
            "seconds": seconds,
            "times_faster": {each: seconds["torch"] / seconds[each] for each in seconds},
        }
    written = case.cotangent.numel() * case.cotangent.element_size()
    results["gigabytes_per_second"] = written / results["warp"]["seconds"]["ours"] / 1e9
    return results


def main(arguments: list[str] | None = None) -> None:
    parser = options_of(__doc__, rounds=5)
    parser.add_argument("--images", type=int, default=1000)
    options = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    report = run(options.images, options.rounds, device)
    publish(report, options, _table(report))


def _table(report: dict[str, Any]) -> str:
    lines = [
        f"{report['device_name']}, {report['threads']} threads: {report['images']} images, "
        f"{report['samples']} copies of each"
    ]
    for size, row in report["sizes"].items():
        for task in ("warp", "backward"):
            seconds, ratios = row[task]["seconds"], row[task]["times_faster"]
            lines.append(
                f"  {size}  {task:9} {1e3 * seconds['ours']:8.3f} ms, {ratios['ours']:5.1f} times "
                f"faster than affine_grid + grid_sample ({1e3 * seconds['torch']:.3f} ms); "
                f"reference path {ratios['reference']:.1f} times"
            )
    return "\n".join([*lines, *goal_lines(report)])


if __name__ == "__main__":
    main()
