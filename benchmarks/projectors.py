"""What moving weights in a random subspace costs: forward + backward of θ = P q, and its memory.

For D weights and d coordinates, from q to a loss ⟨P q, g⟩ and back to the gradient of q:

    kronecker-product, kronecker-sum, dense     ours (`isotropy.bounds.subspace`)
    published product                           the Kronecker product as published with the thesis

The published product is written here after its description: two Gaussian factors with ⌊√D⌋ rows
and ⌊√d⌋ columns, drawn again from a seed in every forward and backward pass, a dense block on the
diagonal for what is missing to D and d, and a random permutation of the rows. "dead" counts
coordinates that move no weight. A Kronecker sum whose rank is below d is left out, and so is a
dense matrix of more than `MOST_ENTRIES` entries.

"copies" is the memory that is allocated at once during forward and backward, the result and
its cotangent included, in numbers by D; the operator itself is not counted. On a GPU if there is
one. Ratios hold within one run.

    python -m benchmarks.projectors [--json] [--rounds 5] [--device cpu]
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

if __package__ in (None, ""):  # run as a file: the folder above is where `benchmarks` is found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import add_device, fastest, goal, goal_lines, options_of, publish
from isotropy.bounds.subspace import projector
from isotropy.checks import CallerError
from isotropy.records import provenance


class Size(NamedTuple):
    """D weights and d coordinates."""

    weights: int
    coordinates: int

    @property
    def name(self) -> str:
        return f"D = {self.weights:,}, d = {self.coordinates:,}"


SIZES = (Size(44_000, 1000), Size(1_000_000, 1000), Size(1_000_000, 10_000))
CLAIMED = SIZES[-1]
TIMES_FASTER, COPIES = 2.0, 3.0
"""The Kronecker product at `CLAIMED`: at least so many times as fast, at most so much memory."""
MOST_ENTRIES = 10**8
KINDS = ("kronecker-product", "kronecker-sum", "dense")
PUBLISHED = "published product"
REPEATS = {"cuda": 20, "cpu": 3}


class _Redrawn(torch.autograd.Function):
    """vec(R₁ mat(q) R₂ᵀ) with factors that are drawn from a seed in either direction."""

    @staticmethod
    def forward(ctx: Any, coordinates: Tensor, rows: int, columns: int) -> Tensor:
        ctx.sizes = (rows, columns)
        first, second = _factors(rows, columns, coordinates.device)
        return (first @ coordinates.view(columns, columns) @ second.T).flatten()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        rows, columns = ctx.sizes
        first, second = _factors(rows, columns, cotangents[0].device)
        return (first.T @ cotangents[0].view(rows, rows) @ second).flatten(), None, None


def _factors(rows: int, columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
    draw = torch.Generator(device).manual_seed(137)
    first, second = (
        torch.randn(rows, columns, device=device, generator=draw) / math.sqrt(rows)
        for _ in range(2)
    )
    return first, second


class PublishedProduct(nn.Module):
    """The Kronecker product as published; see the top of this file."""

    def __init__(self, size: Size, device: torch.device) -> None:
        super().__init__()
        self.rows, self.columns = math.isqrt(size.weights), math.isqrt(size.coordinates)
        rest = (size.weights - self.rows**2, size.coordinates - self.columns**2)
        draw = torch.Generator().manual_seed(0)
        block = torch.randn(rest, generator=draw) / math.sqrt(max(rest[0], 1))
        self.register_buffer("block", block.to(device))
        self.register_buffer("order", torch.randperm(size.weights, generator=draw).to(device))

    block: Tensor
    order: Tensor

    def forward(self, coordinates: Tensor) -> Tensor:
        split = self.columns**2
        product = _Redrawn.apply(coordinates[:split], self.rows, self.columns)
        return torch.cat((product, self.block @ coordinates[split:]))[self.order]


def operators(size: Size, device: torch.device) -> dict[str, nn.Module]:
    """Every operator that this size allows."""
    found: dict[str, nn.Module] = {}
    for kind in KINDS:
        if kind == "dense" and size.weights * size.coordinates > MOST_ENTRIES:
            continue
        try:
            found[kind] = projector(kind, size.weights, size.coordinates, seed=0).to(device)
        except CallerError:
            assert kind == "kronecker-sum"  # whose rank is too small
    return {**found, PUBLISHED: PublishedProduct(size, device)}


class Task:
    """Forward and backward of one operator."""

    def __init__(self, operator: nn.Module, size: Size, device: torch.device) -> None:
        draw = torch.Generator().manual_seed(1)
        self.operator, self.repeats = operator, REPEATS[device.type]
        self.at = torch.randn(size.coordinates, generator=draw).to(device).requires_grad_()
        self.cotangent = torch.randn(size.weights, generator=draw).to(device)

    def gradient(self) -> Tensor:
        """Pᵀ g: zero for a coordinate that moves nothing."""
        return torch.autograd.grad(self.operator(self.at), self.at, self.cotangent)[0]

    def once(self) -> None:
        """One pass whose cotangent is made within it, as by a loss."""
        moved = self.operator(self.at)
        torch.autograd.grad(moved, self.at, torch.ones_like(moved))

    def __call__(self) -> None:
        for _ in range(self.repeats):
            self.gradient()


def most_allocated(task: Task, device: torch.device) -> int:
    """Bytes that one forward and backward has allocated at once."""
    task.once()  # what is allocated on the first call alone does not count
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        task.once()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(profile_memory=True) as profile:
        task.once()
    assert profile.profiler is not None
    changes = [
        (event.start_ns(), event.nbytes())
        for event in profile.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    most = now = 0
    for _, change in sorted(changes, key=lambda each: each[0]):
        now += change
        most = max(most, now)
    return most


def run(rounds: int, device: torch.device, sizes: tuple[Size, ...] = SIZES) -> dict[str, Any]:
    """Everything, as one JSON object."""
    rows = {size.name: measured(size, rounds, device) for size in sizes}
    report = {
        "benchmark": "projectors",
        "threads": torch.get_num_threads(),
        **provenance(device),
        "sizes": rows,
        "goals": [],
    }
    if CLAIMED.name in rows:
        ours = rows[CLAIMED.name]["kronecker-product"]
        what = f"Kronecker product, {CLAIMED.name}"
        report["goals"] = [
            goal(f"{what}, forward + backward against the published one", ours["times_faster"],
                 TIMES_FASTER, at="least", unit="times as fast"),
            goal(f"{what}, memory", ours["copies"], COPIES, at="most", unit="copies of D numbers"),
        ]  # fmt: skip
    return report


def measured(size: Size, rounds: int, device: torch.device) -> dict[str, dict[str, Any]]:
    """Milliseconds, memory and dead coordinates of every operator of one size."""
    tasks = {name: Task(each, size, device) for name, each in operators(size, device).items()}
    seconds = fastest(tasks, device, rounds)
    return {
        name: {
            "milliseconds": 1000 * seconds[name] / task.repeats,
            "times_faster": seconds[PUBLISHED] / seconds[name],
            "copies": most_allocated(task, device) / (4 * size.weights),
            "dead": int((task.gradient() == 0).sum()),
        }
        for name, task in tasks.items()
    }


def main(arguments: list[str] | None = None) -> None:
    parser = options_of(__doc__, rounds=5)
    add_device(parser)
    options = parser.parse_args(arguments)
    report = run(options.rounds, options.device)
    publish(report, options, _table(report))


def _table(report: dict[str, Any]) -> str:
    lines = [f"{report['device_name']}, {report['threads']} threads: forward + backward of P q"]
    for size, rows in report["sizes"].items():
        lines.append(f"  {size}")
        lines += [
            f"    {name:18} {row['milliseconds']:9.2f} ms  {row['times_faster']:6.2f} × the "
            f"published  {row['copies']:5.2f} copies of D  {row['dead']:4d} dead"
            for name, row in rows.items()
        ]
    return "\n".join([*lines, *goal_lines(report)])


if __name__ == "__main__":
    main()
