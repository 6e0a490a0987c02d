"""One tensor of what a network returns: in every verb, by every way to say which."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import isotropy
from isotropy.checks import CallerError
from isotropy.networks.one_output import SelectedOutput, one_output, selected


@dataclass
class Output:
    logits: Tensor
    hidden: Tensor


class Pair(NamedTuple):
    hidden: Tensor
    logits: Tensor


ONE, OTHER = torch.ones(2, 3), torch.zeros(2, 4)

RETURNED: dict[str, tuple[Any, Any]] = {
    "key": ({"logits": ONE, "hidden": OTHER}, "logits"),
    "attribute of a dataclass": (Output(ONE, OTHER), "logits"),
    "attribute of an object": (SimpleNamespace(scores=ONE, hidden=OTHER), "scores"),
    "named tuple": (Pair(OTHER, ONE), "logits"),
    "position": ((OTHER, ONE), 1),
    "last position": ([OTHER, ONE], -1),
    "function": ({"parts": [OTHER, ONE]}, lambda found: found["parts"][1]),
}


@pytest.mark.parametrize("case", RETURNED)
def test_what_is_said_is_taken(case: str):
    returned, select = RETURNED[case]
    assert selected(returned, select) is ONE


@pytest.mark.parametrize(
    "returned",
    [ONE, {"logits": ONE, "loss": OTHER}, Output(ONE, OTHER), Pair(OTHER, ONE), (ONE,),
     {"scores": ONE, "labels": torch.zeros(2).long()}],
)  # fmt: skip
def test_what_is_clear_needs_no_word(returned: Any):
    assert selected(returned) is ONE


@pytest.mark.parametrize(
    ("returned", "select", "message"),
    [
        ((ONE, OTHER), None, "got tuple of 2; choose one with select="),
        ({"a": ONE, "b": OTHER}, None, "a dictionary with 'a', 'b'"),
        ({"a": ONE}, "b", "has no 'b'; it is a dictionary with 'a'"),
        (Output(ONE, OTHER), "scores", "has no 'scores'; it is Output with 'logits', 'hidden'"),
        ((ONE,), 1, "has no 1; it is tuple of 1"),
        (ONE, 0, "has no 0; it is Tensor"),
        ({"a": 3}, "a", "expected a tensor, got int"),
    ],
)
def test_what_is_not_there_is_named(returned: Any, select: Any, message: str):
    with pytest.raises(CallerError, match=message):
        selected(returned, select)


class Dressed(nn.Module):
    """A classifier that returns more than its logits."""

    def __init__(self, dress: Any, only_in_training: bool = False) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(36, 5), nn.Linear(5, 2)
        self.dress, self.only_in_training = dress, only_in_training

    def forward(self, images: Tensor) -> Any:
        hidden = self.body(images.flatten(1)).tanh()
        logits = self.head(hidden)
        if self.only_in_training and not self.training:
            return logits
        return self.dress(hidden, logits)


def as_object(hidden: Tensor, logits: Tensor) -> Any:
    return SimpleNamespace(hidden=hidden, logits=logits)


def as_pair(hidden: Tensor, logits: Tensor) -> Any:
    return hidden, logits


def dressed(dress: Any, **options: bool) -> Dressed:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Dressed(dress, **options)


def test_a_network_that_returns_a_tensor_stays_itself():
    plain = nn.Linear(3, 2)
    assert one_output(plain, torch.zeros(2, 3)) is plain
    more = dressed(as_object, only_in_training=True)
    found = one_output(more, torch.zeros(2, 1, 6, 6))
    assert isinstance(found, SelectedOutput) and found.select is None
    assert found.train()(torch.zeros(2, 1, 6, 6)).shape == (2, 2)
    assert one_output(more.eval(), torch.zeros(2, 1, 6, 6)) is more


CONFIG = isotropy.LearnConfig(epochs=1, samples=2, test_samples=2, search=False)


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(12, 1, 6, 6, generator=generator), torch.arange(12) % 2


@pytest.fixture(scope="module")
def plain_result() -> isotropy.LearnResult:
    network = dressed(lambda _, logits: logits)
    return isotropy.learn(network, data(), actions=isotropy.affine(("rotation",)), config=CONFIG)


@pytest.mark.parametrize(
    ("dress", "select"),
    [(as_object, None), (as_object, "logits"), (as_pair, 1), (as_pair, lambda found: found[1])],
)
def test_learn_is_the_same_as_of_the_tensor(
    dress: Any, select: Any, plain_result: isotropy.LearnResult, tmp_path: Path
):
    result = isotropy.learn(
        dressed(dress), data(), actions=isotropy.affine(("rotation",)), select=select,
        config=CONFIG, folder=tmp_path,
    )  # fmt: skip
    assert result.log_evidence == pytest.approx(plain_result.log_evidence, rel=1e-6)
    again = dressed(dress)
    chosen = SelectedOutput(again, select) if callable(select) else again
    loaded = isotropy.load(tmp_path, network=chosen)
    torch.testing.assert_close(loaded(data()[0]), result.model(data()[0]))


def test_other_verbs():
    inputs, targets = data()
    network = dressed(as_pair)
    actions = isotropy.affine(("rotation",))
    with pytest.raises(CallerError, match="choose one with select="):
        isotropy.learn(network, (inputs, targets), actions=actions, config=CONFIG)
    measured = isotropy.measure(network.eval(), inputs, actions, select=1, layers=False)
    plain = dressed(lambda _, logits: logits).eval()
    expected = isotropy.measure(plain, inputs, actions, layers=False)
    assert measured.actions[0]["error"] == expected.actions[0]["error"]
    named = isotropy.measure(dressed(as_object).eval(), inputs, actions, select="logits",
                             layers=False)  # fmt: skip
    assert named.actions[0]["error"] == expected.actions[0]["error"]
    assert isotropy.screen(network, (inputs, targets), actions=actions, select=1, config=CONFIG)
    profile = isotropy.profile(
        network, (inputs, targets), generator="rotation", amounts=(0.0, 10.0, 20.0),
        curvatures=("kfac-ggn",), actions=actions, select=1, config=CONFIG,
    )  # fmt: skip
    assert len(profile.record["profiles"]) == 1
    built = isotropy.build(network, isotropy.quarter_turns(), example=(1, 6, 6), select=1)
    assert built.model(inputs).shape == (12, 2)


class ConvolutionPair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(1, 3, 3, padding=1), nn.Linear(3, 2)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(images).relu()
        return hidden, self.head(hidden.mean((2, 3)))


def test_relaxed_layers():
    relaxed = isotropy.relax(ConvolutionPair(), ("ffc", "conv"), example=(1, 6, 6))
    config = isotropy.RelaxConfig(epochs=1, batch_size=6)
    assert isotropy.learn_layers(relaxed, data(), select=1, config=config).record["epochs"]
