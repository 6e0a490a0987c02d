"""Scores of a model on data: accuracy and mean log likelihood, over its fixed copies.

    outputs              log p(y | Σ_s w_s f(x_s))
    log-probabilities    Σ_s w_s log p(· | f(x_s)), normalised again

For class probabilities and Gaussian means the two are one: Σ w log softmax(f) differs from
Σ w f by a number that is the same for every class, and normalising takes it away. The second is
here because it is what Augerino's authors write.

Rows are (batch·copies, outputs), copies fastest. `plain_scores` are those of a network alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isotropy.checks import check_choice
from isotropy.curvature.kinds import Copies
from isotropy.curvature.recording import evaluation_mode
from isotropy.evidence.settings import COMBINATIONS, Combination
from isotropy.likelihoods import Likelihood
from isotropy.networks.averaging.invariant_model import InvariantModel

ROWS = 8192
"""Rows that the network is called on at once."""
EXAMPLES = 4096
"""The same of a network alone, whose maps may be many."""


@dataclass(frozen=True)
class Scores:
    """Accuracy (None for regression) and mean log likelihood on some data."""

    accuracy: float | None
    log_likelihood: float


def combined(rows: Tensor, copies: Copies, combination: Combination, classes: bool) -> Tensor:
    """Outputs (batch, outputs) of rows (batch·copies, outputs).

    classes: the outputs are logits; Gaussian means are averaged under either rule
    """
    check_choice(combination, COMBINATIONS, what="combination")
    if combination == "log-probabilities" and classes:
        rows = rows.log_softmax(-1)
    return copies.mean(rows)


@torch.no_grad()
def score(
    model: InvariantModel,
    likelihood: Likelihood,
    inputs: Tensor,
    targets: Tensor,
    *,
    copies: int,
    combination: Combination = "outputs",
) -> Scores:
    """Scores over `copies` fixed copies of each example (`InvariantModel.fixed_noise`).

    copies: 0 predicts the data as they are
    """
    device = inputs.device
    if copies and model.augmentation.is_identity:
        copies = 1  # all copies are the same
    classes = targets.ndim == 1
    hits, total = torch.zeros((), device=device), torch.zeros((), device=device)
    size = max(1, ROWS // max(1, copies))
    with evaluation_mode(model.network):
        for part, wanted in zip(inputs.split(size), targets.split(size), strict=True):
            if copies:
                noise = model.fixed_noise(len(part), samples=copies)
                over = model.augmentation.copies(noise.shape[1])
                rows = model.network(model.orbit(part, noise))
            else:
                over, rows = Copies(1), model.network(part)
            outputs = combined(rows, over, combination, classes)
            statistic = likelihood.statistic(outputs, wanted)
            total += likelihood.log_likelihood(statistic, len(part))
            if classes:
                hits += (outputs.argmax(1) == wanted).sum()
    accuracy = float(hits) / len(inputs) if classes else None
    return Scores(accuracy, float(total) / len(inputs))


@torch.no_grad()
def plain_scores(
    network: nn.Module, likelihood: Likelihood, inputs: Tensor, targets: Tensor
) -> Scores:
    """Accuracy (None for regression) and mean log likelihood of a network's own predictions."""
    hits, total = 0.0, 0.0
    with evaluation_mode(network):
        for part, wanted in zip(inputs.split(EXAMPLES), targets.split(EXAMPLES), strict=True):
            outputs = network(part)
            total += float(
                likelihood.log_likelihood(likelihood.statistic(outputs, wanted), len(part))
            )
            hits += float((outputs.argmax(1) == wanted).sum()) if targets.ndim == 1 else 0.0
    accuracy = hits / len(inputs) if targets.ndim == 1 else None
    return Scores(accuracy, total / len(inputs))
