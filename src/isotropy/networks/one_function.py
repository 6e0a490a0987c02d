"""Whether a network is one function of each example: the same outputs every time, in any batch.

An evidence and a certificate are of such a function. Noise that is drawn in evaluation mode too,
and statistics of the batch, make it another one with every call.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.layer_rules import check_running_statistics
from isotropy.curvature.recording import evaluation_mode

TRIED = 16
"""Examples of the batch that is split."""
TOLERANCE = 1e-3
"""Relative difference of outputs that rounding to single precision does not reach."""


@torch.no_grad()
def changes_with(
    network: nn.Module, inputs: Tensor, tolerance: float
) -> Literal["draws", "batch"] | None:
    """What else the outputs depend on: random draws, or the other examples; None if on neither.

    Tried in evaluation mode on a few examples together, again, and in two parts.
    tolerance: relative difference of outputs below which they count as the same
    """
    batch = inputs[:TRIED]
    with evaluation_mode(network):
        together = network(batch)
        if differ(together, network(batch), tolerance):
            return "draws"
        halves = [network(part) for part in batch.split((len(batch) + 1) // 2)]
    return "batch" if differ(together, torch.cat(halves), tolerance) else None


def differ(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Whether two tensors differ by more than this share of the first; NaNs always do."""
    return not bool((one - other).norm() <= tolerance * (one.norm() + 1e-300))


def check_one_function(network: nn.Module, inputs: Tensor) -> None:
    """Raise CallerError for a network that has no evidence, because it is not one function.

    inputs (examples, …) in the network's type; a network that cannot be run on them is not judged.
    """
    for name, module in network.named_modules():
        check_running_statistics(module, name)
    try:
        changes = changes_with(network, inputs, TOLERANCE)
    except RuntimeError:  # said where it is trained
        return
    if changes == "draws":
        kinds = (nn.modules.dropout._DropoutNd, nn.RReLU)
        named = [name for name, module in network.named_modules() if isinstance(module, kinds)]
        known = f" (it has the layers {', '.join(named[:4])})" if named else ""
        raise CallerError(
            f"network: expected the same outputs every time in evaluation mode, got others in a "
            f"second call{known}; the evidence is that of one function, so let dropout and noise "
            "follow network.eval()"
        )
    if changes == "batch":
        raise CallerError(
            "network: expected outputs of an example that do not depend on the others in "
            "evaluation mode, got others when a batch is split; normalise by running statistics, "
            "or each example by itself, for example with nn.GroupNorm"
        )
