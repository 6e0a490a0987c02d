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
from evidence_problems import small_cnn
from network_cases import LIKELIHOODS, mlp
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.evidence.laplace import Batch, LaplaceEvidence
from isotropy.evidence.priors import GaussianPrior
from isotropy.networks.averaging.augmentations import UniformRanges
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.symmetry.actions.images import affine

BATCH, SAMPLES = 4, 3
FEW, MANY = 8, 32


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


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), *mlp(36, 20, 3)),
    "cnn": small_cnn,
}


class Setting:
    """A model and as many batches as wanted, each made when it is asked for."""

    def __init__(self, network: str, likelihood: str) -> None:
        self.model = InvariantModel(
            NETWORKS[network]().double(), UniformRanges(affine(), dtype=torch.float64), SAMPLES
        )
        chosen = LIKELIHOODS[likelihood]
        self.targets = chosen.targets(BATCH)
        self.inputs = torch.randn(BATCH, 1, 6, 6, dtype=torch.float64)
        kind = chosen.build()
        kind.check_targets(self.targets, torch.zeros(1, 3))
        network_ = self.model.network
        prior = GaussianPrior(network_, KFAC(network_).parameter_names)
        self.evidence = LaplaceEvidence(network_, kind, prior)
        self.half_widths = self.model.augmentation.half_widths

    def batches(self, count: int) -> Iterator[Batch]:
        for step in range(count // BATCH):
            noise = self.model.noise(BATCH, generator=torch.Generator().manual_seed(step))
            rows = self.model.orbit(self.inputs + step, noise)
            yield Batch(rows, self.targets, Copies(SAMPLES))

    def two_passes(self, count: int) -> None:
        fit = self.evidence.fit(self.batches(count))
        self.evidence.value(fit)
        self.evidence.gradient(fit, self.batches(count), [self.half_widths])

    def one_graph(self, count: int) -> None:
        """Autograd through everything: what the two passes are there to avoid."""
        factors: list[Tensor] = []
        for batch in self.batches(count):
            found = self.evidence.curvature.batch(
                batch.rows, batch.copies, self.evidence.likelihood, create_graph=True
            )
            factors += [block.dense(count) for block in found.factors().values()]
        total = torch.stack([factor.sum() for factor in factors]).sum()
        torch.autograd.grad(total, self.half_widths)


@pytest.mark.parametrize(("network", "likelihood"), [("mlp", "categorical"), ("cnn", "gaussian")])
def test_memory_is_flat_in_the_number_of_examples(network: str, likelihood: str):
    setting = Setting(network, likelihood)
    setting.two_passes(FEW)  # what is made once and kept is not counted
    few, many = (most_bytes(lambda count=count: setting.two_passes(count)) for count in (FEW, MANY))
    assert few > BATCH * SAMPLES * 36 * 8  # at least the rows of a batch were seen
    # The statistics of the batches, one number each, are all that may grow.
    assert many <= few + 64 * (MANY - FEW) // BATCH


def test_nothing_is_left_behind():
    """What is alive afterwards is what was there before: weights, data, constants."""
    setting = Setting("cnn", "categorical")
    setting.two_passes(FEW)
    left = []
    for count in (FEW, MANY):
        with live_bytes() as live:
            setting.two_passes(count)
        left.append(live.now)
    assert left[0] == left[1]


# --- the measurement notices what it should ------------------------------------------------------


def test_one_graph_for_everything_grows():
    setting = Setting("mlp", "categorical")
    few, many = (most_bytes(lambda count=count: setting.one_graph(count)) for count in (FEW, MANY))
    assert many > 2 * few


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
