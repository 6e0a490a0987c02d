"""Where a verb refuses a network, its sentence names a remedy, and the remedy works when followed.

A case is a call that is refused, the words of the remedy in the refusal, and the same call with the
remedy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import isotropy
from isotropy.checks import CallerError
from isotropy.evidence import machine

TURN = isotropy.affine(("rotation",))
IMAGES = torch.rand(12, 1, 6, 6, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(12) % 3


def learn(network: nn.Module, select: Any = None, **settings: Any) -> Any:
    config = isotropy.LearnConfig(
        epochs=1, samples=2, test_samples=2, search=False, burn_in=0, **settings
    )
    data = (IMAGES, LABELS)
    return isotropy.learn(network, data, actions=TURN, select=select, config=config)


def measure(network: nn.Module, images: Tensor = IMAGES, **options: Any) -> Any:
    return isotropy.measure(network, images[:4], TURN, finite=False, **options)


def flat(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *layers)


class Custom(nn.Module):
    """A linear layer, and what a function makes of its input and of its output."""

    def __init__(
        self,
        before: Callable[[Tensor], Tensor] = lambda images: images,
        after: Callable[[Tensor], Any] = lambda outputs: outputs,
        outputs: int = 3,
    ) -> None:
        super().__init__()
        self.layer = nn.Linear(36, outputs)
        self.before, self.after = before, after

    def forward(self, images: Tensor) -> Any:
        return self.after(self.layer(self.before(images).flatten(1)))


class Gain(nn.Module):
    """A parameter of the network itself."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.layer = nn.Parameter(torch.ones(3)), nn.Linear(36, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images.flatten(1)) * self.gain


class Attention(nn.Module):
    """Rows of pixels as tokens."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.attention = nn.MultiheadAttention(6, 2, batch_first=batch_first)
        self.head = nn.Linear(6, 3)

    def forward(self, images: Tensor) -> Tensor:
        tokens = images[:, 0] if self.batch_first else images[:, 0].transpose(0, 1)
        found, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        return self.head(found.mean(1 if self.batch_first else 0))


class Double(torch.autograd.Function):
    """2x without a derivative in forward mode."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


def frozen(network: Gain) -> Gain:
    network.gain.requires_grad_(False)
    return network


def normalised(**settings: Any) -> nn.Module:
    return flat(nn.Linear(36, 4), nn.BatchNorm1d(4, **settings), nn.Linear(4, 3))


def branching(outputs: Tensor) -> Tensor:
    return outputs.tanh() if float(outputs.detach().sum()) > -1e9 else outputs


def either(outputs: Tensor) -> Tensor:
    """Other operations for other examples."""
    first, second = outputs[0, :2].tolist()
    return outputs.tanh() if first > second else outputs.relu()


def in_place(images: Tensor) -> Tensor:
    images += 1
    return images


def noisy(network: Custom) -> Custom:
    """A network that draws in training mode."""
    network.after = lambda out: out + torch.randn_like(out) if network.training else out
    return network


@dataclass(frozen=True)
class Case:
    refused: Callable[[], Any]
    words: str
    followed: Callable[[], Any]


CASES = {
    "learn, no rule: diagonal": Case(
        lambda: learn(Gain(), fallback="refuse"), "choose a fallback (diagonal or fixed)",
        lambda: learn(Gain(), fallback="diagonal"),
    ),
    "learn, no rule: fixed": Case(
        lambda: learn(Gain(), fallback="refuse"), "choose a fallback (diagonal or fixed)",
        lambda: learn(Gain(), fallback="fixed"),
    ),
    "learn, no rule: frozen": Case(
        lambda: learn(Gain(), fallback="refuse"), "freeze the layer with requires_grad_(False)",
        lambda: learn(frozen(Gain()), fallback="refuse"),
    ),
    "learn, attention": Case(
        lambda: learn(Attention(False), fallback="refuse"), "make it with batch_first=True",
        lambda: learn(Attention(True), fallback="refuse"),
    ),
    "learn, statistics of the batch": Case(
        lambda: learn(normalised(track_running_stats=False)), "track_running_stats=True",
        lambda: learn(normalised(track_running_stats=True)),
    ),
    "learn, two outputs": Case(
        lambda: learn(Custom(after=lambda out: (out, out.exp()))), "choose one with select=",
        lambda: learn(Custom(after=lambda out: (out, out.exp())), select=0),
    ),
    "learn, tokens": Case(
        lambda: learn(Custom(after=lambda out: out.unflatten(1, (2, 3)), outputs=6)),
        "select=lambda outputs: outputs.mean(1)",
        lambda: learn(
            Custom(after=lambda out: out.unflatten(1, (2, 3)), outputs=6),
            select=lambda outputs: outputs.mean(1),
        ),
    ),
    "learn, last layer": Case(
        lambda: learn(Custom(after=torch.tanh), curvature="last-layer-ggn"),
        "use kfac or diagonal",
        lambda: learn(Custom(after=torch.tanh), curvature="diagonal-ggn"),
    ),
    "learn, branches": Case(
        lambda: learn(Custom(after=branching), curvature="diagonal-ggn"),
        "use a kfac curvature",
        lambda: learn(Custom(after=branching), curvature="kfac-ggn"),
    ),
    "measure, dropout": Case(
        lambda: measure(flat(nn.Linear(36, 3), nn.Dropout())), "call model.eval() first",
        lambda: measure(flat(nn.Linear(36, 3), nn.Dropout()).eval()),
    ),
    "measure, statistics of the batch": Case(
        lambda: measure(normalised()), "call model.eval() first",
        lambda: measure(normalised().eval()),
    ),
    "measure, draws": Case(
        lambda: measure(noisy(Custom())), "switch that off (model.eval())",
        lambda: measure(noisy(Custom()).eval()),
    ),
    "measure, in place": Case(
        lambda: measure(Custom(before=in_place)), "copy it first (x = x.clone())",
        lambda: measure(Custom(before=lambda images: in_place(images.clone()))),
    ),
    "measure, whole numbers": Case(
        lambda: measure(Custom(), (255 * IMAGES).byte()), "convert with x.float() / 255",
        lambda: measure(Custom(), (255 * IMAGES).byte().float() / 255),
    ),
    "measure, a function without forward mode": Case(
        lambda: measure(Custom(before=Double.apply)), "write it with torch operations",
        lambda: measure(Custom(before=lambda images: images * 2)),
    ),
    "measure, detached": Case(
        lambda: measure(Custom(after=lambda out: {"logits": out.detach(), "scores": out})),
        "leave the detach out",
        lambda: measure(Custom(after=lambda out: {"logits": out, "scores": out})),
    ),
    "measure, an output of unknown layout": Case(
        lambda: measure(Custom(after=lambda out: out.unflatten(1, (3, 5)), outputs=15),
                        on="outputs"),
        'say it with outputs="invariant"',
        lambda: measure(Custom(after=lambda out: out.unflatten(1, (3, 5)), outputs=15),
                        on="outputs", outputs="invariant"),
    ),
    "measure, other operations for other examples": Case(
        lambda: measure(Custom(after=either), batch_size=1), "use layers=False",
        lambda: measure(Custom(after=either), batch_size=1, layers=False),
    ),
    "measure, no logits": Case(
        lambda: measure(Custom(after=lambda out: out[:, 0]), on="probabilities"),
        "use on='outputs'",
        lambda: measure(Custom(after=lambda out: out[:, 0]), on="outputs"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_remedy_works_when_it_is_followed(case: Case) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        with pytest.raises(CallerError) as refusal:
            case.refused()
        assert case.words in str(refusal.value)
        torch.manual_seed(0)
        assert case.followed().record


@pytest.mark.parametrize(
    "remedy",
    [{"curvature": "diagonal-ggn"}, {"network": flat(nn.Linear(36, 3))}],
    ids=["a curvature without factors", "a network with small layers"],
)
def test_factors_that_do_not_fit(remedy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "free_bytes", lambda device: 200_000)
    large = flat(nn.Linear(36, 100), nn.Tanh(), nn.Linear(100, 3))
    with pytest.raises(CallerError, match="take a network with small layers.*diagonal-ggn"):
        learn(large)
    assert learn(**{"network": large, **remedy}).record
