"""Networks that people have: `learn` takes them as they are, without an option."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from learn_runs import CONFIG
from torch import Tensor, nn

import isotropy

SETTINGS = replace(CONFIG, epochs=2, samples=2, test_samples=2, search=False, burn_in=1)
LABELS = torch.arange(12) % 2


def images(*shape: int) -> Tensor:
    return torch.rand(12, *shape, generator=torch.Generator().manual_seed(0))


def learned(network: nn.Module, inputs: Tensor) -> isotropy.LearnResult:
    actions = isotropy.affine(("rotation",))
    return isotropy.learn(network, (inputs, LABELS), actions=actions, config=SETTINGS)


class Rows(nn.Module):
    """A recurrent layer over the rows of an image, and a head on its last state."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.head = kind(8, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.layer(inputs[:, 0])[0][:, -1])


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_networks_learn_by_rules(kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    result = learned(Rows(kind), images(1, 8, 8))
    assert result.log_evidence is not None and math.isfinite(result.log_evidence)
    assert result.record["fallback"] == result.record["constants"] == {}
    assert result.symmetries[0].high > 0, "a hyper step has moved it"


@pytest.mark.usefixtures("torchvision_imports")
def test_a_transformer_of_timm_learns() -> None:
    """Class token and positions are bare parameters, and the norms subclasses of torch's."""
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    network = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=8, depth=1, embed_dim=24, num_classes=2
    )
    result = learned(network, images(3, 16, 16))
    assert result.log_evidence is not None and math.isfinite(result.log_evidence)
    assert result.record["constants"] == {}
