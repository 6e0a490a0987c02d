"""The public libraries on the same network and data: KFAC factors and Laplace evidence, S = 1.

Each peer is imported when it is measured; one that is not installed is reported as missing.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

_SHIM: list[torch.library.Library] = []


def _allow_torchvision() -> None:
    """A CPU build of torch lacks two operators that torchvision names on import; name them."""
    try:
        importlib.import_module("torchvision")
    except ImportError:
        pass
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _SHIM.append(library)


def laplace_torch(network: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> Callable[[], float]:
    """Factors, eigendecompositions and log evidence by laplace-torch on curvlinops."""
    _allow_torchvision()
    laplace = importlib.import_module("laplace")
    curvlinops_backend = importlib.import_module("laplace.curvature").CurvlinopsGGN
    inputs = torch.cat([x for x, _ in batches])
    targets = torch.cat([y for _, y in batches])
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=len(batches[0][0]))

    def task() -> float:
        fitted = laplace.Laplace(
            network,
            "classification",
            subset_of_weights="all",
            hessian_structure="kron",
            backend=curvlinops_backend,
        )
        fitted.fit(loader)
        return float(fitted.log_marginal_likelihood())

    return task


def curvlinops(network: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> Callable[[], float]:
    """The Kronecker factors alone by curvlinops; there is no evidence to return."""
    library = importlib.import_module("curvlinops")
    parameters = [p for p in network.parameters() if p.requires_grad]

    def task() -> float:
        operator = library.KFACLinearOperator(
            network,
            nn.CrossEntropyLoss(reduction="sum"),
            parameters,
            batches,
            fisher_type=library.FisherType.TYPE2,
            separate_weight_and_bias=True,
            check_deterministic=False,
        )
        operator @ [torch.zeros_like(p) for p in parameters]
        return math.nan

    return task


def measure(
    network: nn.Module,
    batches: list[tuple[Tensor, Tensor]],
    ours: dict[str, Callable[[], float]],
    clock: Callable[[dict[str, Callable[[], object]]], dict[str, float]],
) -> dict[str, Any]:
    """Seconds and log evidence of ours and of each peer that is installed, in one run.

    A peer is compared with ours that does the same: evidence with evidence, factors with factors.
    """
    tasks = dict(ours)
    missing: dict[str, str] = {}
    for name, make in _PEERS:
        try:
            tasks[name] = make(network, batches)
        except (ImportError, RuntimeError) as error:
            missing[name] = f"missing: {error}"
    seconds = clock(dict(tasks))
    report: dict[str, Any] = {}
    for name, task in tasks.items():
        value = task()
        whole = math.isfinite(value)
        same = seconds["isotropy" if whole else "isotropy, factors only"]
        report[name] = {
            "seconds": seconds[name],
            "over_isotropy": seconds[name] / same,
            "log_evidence": value if whole else None,
        }
    return {**report, **missing}


_PEERS: Iterable[tuple[str, Callable[..., Callable[[], float]]]] = (
    ("laplace-torch", laplace_torch),
    ("curvlinops", curvlinops),
)
