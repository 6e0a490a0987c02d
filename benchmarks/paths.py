"""The two ways a run can go: with the library's own kernels and graphs, or in plain PyTorch.

    fast        as `isotropy.learn` runs by itself
    reference   the warp from torch's operations, weight steps launched one by one

Both are the same arithmetic in the same precision, up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch

from benchmarks.training_parts import Context, TrainingParts
from isotropy.data.labelled import LabelledData
from isotropy.evidence.machine import fit_curvature_batch
from isotropy.evidence.settings import LearnConfig
from isotropy.kernels.fused import reference_path
from isotropy.kernels.precision import multiplying_in
from isotropy.networks.zoo.specification import parse_network
from isotropy.symmetry.actions.images import affine
from isotropy.workflows.runs.prepared import make_trainer


@dataclass(frozen=True)
class RunPath:
    """How a run goes: whether steps become CUDA graphs, and within which context all happens."""

    captured: bool
    context: Context

    def settings(self, config: LearnConfig) -> LearnConfig:
        """`config`, for a run that goes this way."""
        return replace(config, captured=self.captured)


PATHS = {"fast": RunPath(True, nullcontext), "reference": RunPath(False, reference_path)}


def parts_of(
    path: RunPath, network: str, data: LabelledData, config: LearnConfig, device: torch.device
) -> TrainingParts:
    """A fresh trainer that goes this way, as `isotropy.learn` would make it, in its parts.

    Its burn-in never ends; networks of one name start from the same weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = parse_network(network).build(data.inputs.shape[1:], data.num_outputs).to(device)
    settings = path.settings(replace(config, epochs=1000, burn_in=1000)).resolved(
        examples=len(data), on_gpu=device.type == "cuda"
    )
    settings = fit_curvature_batch(settings, model, data.inputs[:1])
    precision = settings.precision
    assert precision is not None

    @contextmanager
    def as_in_a_run() -> Iterator[None]:
        with path.context(), multiplying_in(precision, device):
            yield

    with as_in_a_run():
        trainer = make_trainer(model, data, affine(), settings, device)
    return TrainingParts(trainer, as_in_a_run)
