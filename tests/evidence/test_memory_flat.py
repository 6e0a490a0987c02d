"""Memory of an evidence and its gradient is set by the batch, not by the number of examples.

Counted exactly: every storage that any operation makes is noted with its size, and its end too.
The garbage collector is off meanwhile, so that a reference cycle that holds tensors counts.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from evidence_problems import COUNT, SAMPLES, Problem, image_problem
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from isotropy.evidence.laplace import Batch

FEW, MANY = 8, 24


class LiveBytes(TorchDispatchMode):
    """Bytes of all storages that operations made and that are still alive, and the most so far."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        results = function(*arguments, **(options or {}))
        for tensor in tree_iter(results):
            if isinstance(tensor, Tensor):
                self._note(tensor.untyped_storage())
        return results

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


@contextmanager
def live_bytes() -> Iterator[LiveBytes]:
    """Counts inside, without help from the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        with LiveBytes() as live:
            yield live
    finally:
        gc.enable()


def most_bytes(work: Callable[[], object]) -> int:
    """The most bytes that were alive at once while `work` ran, of all that it touched."""
    with live_bytes() as live:
        work()
    return live.most


def batches(given: Problem, count: int) -> Iterator[Batch]:
    """The problem's data, `count` examples in all, each batch made when it is asked for."""
    for _ in range(count // COUNT):
        yield from given.batches()


def two_passes(given: Problem, count: int) -> None:
    fit = given.evidence.fit(batches(given, count))
    given.evidence.value(fit)
    given.evidence.gradient(fit, batches(given, count), [given.half_widths])


def one_graph(given: Problem, count: int) -> None:
    """Autograd through everything: what the two passes are there to avoid."""
    factors: list[Tensor] = []
    for batch in batches(given, count):
        found = given.evidence.curvature.batch(
            batch.rows, batch.copies, given.evidence.likelihood, create_graph=True
        )
        factors += [block.dense(count) for block in found.factors().values()]
    total = torch.stack([factor.sum() for factor in factors]).sum()
    torch.autograd.grad(total, given.half_widths)


@pytest.mark.parametrize(("network", "likelihood"), [("mlp", "categorical"), ("cnn", "gaussian")])
def test_memory_is_flat_in_the_number_of_examples(network: str, likelihood: str):
    given = image_problem(network, likelihood)
    two_passes(given, FEW)  # what is made once and kept is not counted
    few, many = (most_bytes(lambda count=count: two_passes(given, count)) for count in (FEW, MANY))
    assert few > COUNT * SAMPLES * 36 * 8  # at least the rows of a batch were seen
    # The statistics of the batches, one number each, are all that may grow.
    assert many <= few + 64 * (MANY - FEW) // COUNT


def test_nothing_is_left_behind():
    """What is alive afterwards is what was there before: weights, data, constants."""
    given = image_problem("cnn", "categorical")
    two_passes(given, FEW)
    left = []
    for count in (FEW, MANY):
        with live_bytes() as live:
            two_passes(given, count)
        left.append(live.now)
    assert left[0] == left[1]


# --- the measurement notices what it should ------------------------------------------------------


def test_one_graph_for_everything_grows():
    given = image_problem("mlp", "categorical")
    few, many = (most_bytes(lambda count=count: one_graph(given, count)) for count in (FEW, MANY))
    assert many > 1.5 * few


def test_live_bytes_counts_what_lives():
    def work() -> None:
        kept = [torch.zeros(1000, dtype=torch.float64) for _ in range(3)]
        kept.pop()
        for _ in range(10):
            torch.ones(1000, dtype=torch.float64).view(10, 100)

    assert most_bytes(work) == 3 * 8000


def test_live_bytes_counts_what_a_cycle_holds():
    def work() -> None:
        for _ in range(5):
            cycle: list[object] = [torch.zeros(1000, dtype=torch.float64)]
            cycle.append(cycle)

    assert most_bytes(work) == 5 * 8000
