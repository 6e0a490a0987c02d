"""What the machine affords: memory of weight steps, of evidence passes and of their factors.

A weight step keeps from the forward pass what back-propagation needs. Autograd hands over every
tensor that it keeps, so that one example tells how much that is:

    bytes of a weight step ≈ examples · (bytes kept for one) + 4 · (bytes of the parameters)

with values, gradients and Adam's two moments of the parameters. A batch that does not fit goes
through in parts whose gradients add up (`fitting_micro_batch`); the result is the same, and memory
does not grow with the number of examples.

An evidence pass back-propagates every direction of the output curvature to every layer, except to
those that a shortcut serves (`KFAC.batch`). Its result does not depend on how many examples it
holds at once, time and memory do (`fit_curvature_batch`). On a CPU it is fastest when what one
direction writes stays in the cache. On a GPU all directions go at once, and the larger the batch
the fewer launches; with the graph that a gradient needs it takes

    bytes of a batch ≈ examples · (directions + 3) · (bytes of a row, and kept of it forwards)

where there is a direction for each output, and 6 in place of the factor where shortcuts serve every
layer (measured for the paper's MLP, its ResNet and `convnet`) and where there are no directions,
for a bound of the last layer (`elbo`); at most half of what is free.

The factors of the curvature follow from the shapes of the weights alone (`factor_memory`); networks
on torch's meta device will do. A layer with weight (outputs, inputs) has two Kronecker factors, of
inputs² and outputs² numbers; of a convolution inputs are channels × places of the kernel. Each is
kept in the network's precision with its eigenvectors in double precision, and decomposed one after
the other:

    bytes = Σ n² (bytes of a number + 8) + max n² · 3 · 8        n over inputs and outputs

the last term for a copy in double precision and the workspace of the decomposition. Finding
eigenvectors takes about 10 n³ operations each, at 2·10¹⁰ a second on a core of a CPU; a GPU is
faster, and how long the rest of a run takes is measured before it starts (`estimate`). Factors of
more than `LARGEST_EXACT` rows are kept by their largest eigenvalues (`curvature.low_rank`), and
take 2 `RANK` numbers a row. The whole matrix over P parameters has n = P; the other structures are
small.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from isotropy.checks import CallerError
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import CurvatureKind, kind_named
from isotropy.curvature.low_rank import LARGEST_EXACT, RANK
from isotropy.curvature.recording import evaluation_mode
from isotropy.evidence.settings import LearnConfig, LearnSchedule

SHARE_OF_FREE = 0.5
"""Of what is free, half: fragments, workspaces and whatever else runs need the rest."""


def kept_bytes(network: nn.Module, rows: Tensor) -> int:
    """Bytes that autograd keeps of one forward pass, parameters and rows apart.

    The pass draws from a copy of the random state, and leaves buffers as they were.
    """
    parameters = {id(p) for p in network.parameters()} | {
        p.data_ptr() for p in network.parameters()
    }
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage()
        if place.data_ptr() not in parameters:
            seen[place.data_ptr()] = place.nbytes()
        return tensor.detach()  # itself, it would hold its own graph for ever

    buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
    devices = [rows.device] if rows.is_cuda else []
    with (
        torch.random.fork_rng(devices=devices),
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
    ):
        outputs = network(rows)
    with torch.no_grad():
        for name, buffer in network.named_buffers():
            buffer.copy_(buffers[name])
    seen.pop(rows.untyped_storage().data_ptr(), None)
    own = outputs.untyped_storage()
    return sum(seen.values()) + (0 if own.data_ptr() in seen else own.nbytes())


def free_bytes(device: torch.device) -> int | None:
    """Bytes that could be had on a device; None where nobody says."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # What torch holds for reuse is free as well.
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    available = _available_bytes()
    if available is not None:
        return available
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _available_bytes(source: Path = Path("/proc/meminfo")) -> int | None:
    """What Linux could hand out, the cache of files counted in; None elsewhere.

    Pages that are free by themselves are few on a machine that has read much.
    """
    try:
        lines = source.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in lines:
        name, _, rest = line.partition(":")
        if name == "MemAvailable" and rest.split()[:1] and rest.split()[0].isdecimal():
            return 1024 * int(rest.split()[0])
    return None


def step_bytes(network: nn.Module, inputs: Tensor, samples: int, examples: int) -> int:
    """Bytes of a weight step on `examples` of the inputs with `samples` copies each."""
    one = inputs[:1].expand(samples, *inputs.shape[1:])
    row_bytes = one.numel() * one.element_size()
    parameters = sum(p.numel() * p.element_size() for p in network.parameters())
    return examples * (kept_bytes(network, one.clone()) + row_bytes) + 4 * parameters


def fitting_micro_batch(
    network: nn.Module, inputs: Tensor, samples: int, batch_size: int, free: int | None = None
) -> int:
    """How many examples of a batch go through the network together: all, if they fit.

    free: bytes to fit into; by default half of what the inputs' device has free.
    """
    if free is None:
        found = free_bytes(inputs.device)
        if found is None:
            return batch_size
        free = int(SHARE_OF_FREE * found)
    whole = step_bytes(network, inputs, samples, batch_size)
    if whole <= free:
        return batch_size
    one = (whole - (fixed := step_bytes(network, inputs, samples, 0))) / batch_size
    return max(1, min(batch_size, int((free - fixed) / one)))


TRIAL_OPERATIONS = 3e11
"""Of a trial of the search where the last layer alone is trained: about 2 s on two cores."""
TRIAL_ROWS = (2**10, 2**14)
"""Fewest and most rows of such a trial."""
FEWEST_COPIES = 8
"""Of an example in such a trial."""


def affordable_rows(network: nn.Module, example: Tensor) -> int:
    """Rows that pass through a network in one trial, from its operations on one example (1, …)."""
    with torch.no_grad(), evaluation_mode(network), FlopCounterMode(display=False) as counter:
        network(example)
    few, most = TRIAL_ROWS
    return min(most, max(few, int(TRIAL_OPERATIONS / max(1, counter.get_total_flops()))))


def fit_frozen(
    config: LearnSchedule, given: LearnConfig, network: nn.Module, example: Tensor
) -> LearnSchedule:
    """`config` for a network whose last layer alone is trained, where `given` left it open.

    Epochs cost next to nothing, passes through the frozen layers do: on a CPU there are few copies,
    which are spread evenly, the search has as many examples as it can afford copies of, test data
    are scored once, and a batch with a graph to the ranges fits into memory. example (1, …)
    """
    few = config.samples if example.is_cuda else min(config.samples, FEWEST_COPIES)
    rows = example.expand(config.samples, *example.shape[1:]).clone().requires_grad_()
    comfortable = max(1, int(JACOBIAN_BYTES / max(1, kept_bytes(network, rows))))
    searched = affordable_rows(network, example) // FEWEST_COPIES
    found: dict[str, Any] = {
        "samples": few,
        "search_examples": min(config.search_examples, searched),
        "evaluate_every": config.epochs,
        "curvature_batch": min(config.curvature_batch, comfortable),
    }
    return replace(config, **{n: v for n, v in found.items() if getattr(given, n) is None})


CACHE_BYTES = 8e6
GPU_BYTES = 12e9
JACOBIAN_BYTES = 1e9


MANY_LAYERS, MANY_OUTPUTS = 16, 20


def is_deep(network: nn.Module, outputs: int) -> bool:
    """Whether back-propagating every direction of the output curvature takes long.

    That is, once for each of many outputs, or through many layers: matrices and kernels that are
    trained.
    """
    layers = sum(each.requires_grad and each.ndim >= 2 for each in network.parameters())
    return layers >= MANY_LAYERS or outputs > MANY_OUTPUTS


def fit_curvature_batch(
    config: LearnSchedule, network: nn.Module, example: Tensor, device: torch.device | None = None
) -> LearnSchedule:
    """`config` with its curvature batch lowered where layer outputs are large.

    example (1, …): any one input. device: where the run will be, if not where the network is.
    """
    first = next(network.parameters(), None)
    if first is None:
        return config
    kind, by_elbo = kind_named(config.curvature), config.evidence == "elbo"
    if kind.structure != "kfac" and not by_elbo:
        # Every example's own gradient, one a direction (about ten), and a graph of it.
        trainable = sum(p.numel() for p in network.parameters() if p.requires_grad)
        comfortable = max(1, int(JACOBIAN_BYTES / (40 * trainable * first.element_size())))
        return replace(config, curvature_batch=min(config.curvature_batch, comfortable))
    device = device or first.device
    measured = by_elbo or device.type == "cuda"
    rows = example.to(first).expand(config.samples, *example.shape[1:]).clone()
    try:
        curved = None if by_elbo else KFAC(network, kind, config.fallback, rows[:2])
        numbers = 0 if curved is None else curved.widest_map(rows[:1])
        kept = kept_bytes(network, rows) if measured else 0
    except RuntimeError:  # a network that does not fit the data is named where it is trained
        return config
    budget, of_map = CACHE_BYTES, numbers * config.samples * first.element_size()
    entries = 0 if curved is None else curved.diagonal_entries
    if entries:  # every example's own gradient by these, one a direction, and a graph of it
        most = max(1, int(JACOBIAN_BYTES / (40 * entries * first.element_size())))
        config = replace(config, curvature_batch=min(config.curvature_batch, most))
    if measured:
        budget = min(GPU_BYTES, SHARE_OF_FREE * (free_bytes(device) or GPU_BYTES))
        own = kept + rows.numel() * rows.element_size()
        of_map = _times(network, rows, kind, numbers) * own
    comfortable = max(4, int(budget / max(of_map, 1)))
    return replace(config, curvature_batch=min(config.curvature_batch, comfortable))


def _times(network: nn.Module, rows: Tensor, kind: CurvatureKind, widest: int) -> int:
    """How many times the bytes of a row a pass takes; widest: of the maps without a shortcut."""
    if not widest:
        return 6
    if kind.fisher != "ggn":  # one direction; 4.4 times were measured with a residual network
        return 5
    with torch.no_grad():
        return int(network(rows[:1]).shape[-1]) + 3


def gradient_bytes(curvature: KFAC, rows: Tensor) -> int:
    """Bytes of an evidence pass with a graph, for one example with the copies `rows`."""
    network = curvature.network
    own = kept_bytes(network, rows) + rows.numel() * rows.element_size()
    return _times(network, rows, curvature.kind, curvature.widest_map(rows[:1])) * own


OPERATIONS_PER_SECOND = 2e10
LONG_SECONDS = 3.0
"""From here on the time of decompositions is told."""

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class FactorMemory:
    """Bytes of all factors, and the layer with the largest: its name, side and bytes.

    seconds: of the decompositions in one evidence pass, on one core of a CPU
    """

    total: int
    layer: str
    side: int
    largest: int
    seconds: float

    @property
    def text(self) -> str:
        """A sentence: memory, and time where there is much of it."""
        told = f"the factors of the curvature take {max(self.total / 1e9, 0.001):.2g} GB"
        if self.seconds < LONG_SECONDS:
            return told
        return (
            f"{told}, and an evidence pass about {self.seconds:.0f} s for their eigenvalues, most "
            f"of it for layer {self.layer!r} with a factor of {self.side} rows; --image-size "
            "and --model compact make that less"
        )


def _kept_numbers(side: int) -> int:
    """Of a factor with this many rows: all, or some eigenvectors where it is large."""
    return side * side if side <= LARGEST_EXACT else 2 * RANK * side


def _operations(side: int) -> int:
    """Of its spectrum; a large one is brought to few rows several times."""
    if side <= LARGEST_EXACT:
        return 10 * side**3
    return 4 * (10 * (2 * RANK) ** 3 + 2 * (2 * RANK) ** 2 * side)


def factor_memory(network: nn.Module, curvature: str) -> FactorMemory:
    """What the curvature of a network takes; the network may be on the meta device."""
    structure = kind_named(curvature).structure
    kept = decomposed = largest = side = 0
    seconds = 0.0
    layer = ""

    def add(name: str, sides: tuple[int, ...], item: int) -> None:
        nonlocal kept, decomposed, largest, side, layer, seconds
        held = sum(_kept_numbers(n) * (item + 8) for n in sides)
        workspace = max(map(_kept_numbers, sides)) * 24
        own = held + workspace
        seconds += sum(map(_operations, sides)) / OPERATIONS_PER_SECOND
        kept += held
        decomposed = max(decomposed, workspace)
        if own > largest:
            layer, side, largest = name, max(sides), own

    if structure == "kfac":
        for name, module in network.named_modules():
            if isinstance(module, _LAYERS) and module.weight.requires_grad:
                weight = module.weight
                inputs = weight.numel() // max(weight.shape[0], 1)
                add(name or "the network", (inputs, weight.shape[0]), weight.element_size())
    elif structure == "full":
        count = sum(p.numel() for p in network.parameters() if p.requires_grad)
        kept, decomposed = count**2 * 12, count**2 * 24
        layer, side, largest = "all layers together", count, kept + decomposed
        seconds = 10 * count**3 / OPERATIONS_PER_SECOND
    return FactorMemory(kept + decomposed, layer, side, largest, seconds)


def check_factor_memory(
    network: nn.Module,
    curvature: str,
    device: torch.device,
    *,
    free: int | None = None,
) -> FactorMemory:
    """What the curvature takes; raises CallerError where it is more than is free on the device.

    free: bytes that are free; asked of the device by default, and not checked where nobody knows
    """
    found = factor_memory(network, curvature)
    free = free_bytes(device) if free is None else free
    if free is not None and found.total > free:
        raise CallerError(
            f"curvature {curvature}: layer {found.layer!r} has a factor of {found.side} "
            f"rows, {_gigabytes(found.largest)} with its eigenvectors, and "
            f"{_gigabytes(free)} are free; make the inputs smaller (--image-size 32), take a "
            "network with small layers (--model compact), or a curvature without factors "
            "(--curvature diagonal-ggn)"
        )
    return found


def _gigabytes(number: float) -> str:
    return f"{number / 1e9:,.3g} GB" if number < 1e12 else f"{number / 1e9:,.0f} GB"
