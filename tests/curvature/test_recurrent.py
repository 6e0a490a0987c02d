"""Recurrent layers written out: the same values, and the curvature of the linear maps in them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from curvature_problems import assert_gradient_is_the_slope
from network_cases import LIKELIHOODS, assert_equal
from numerics import numbers
from oracles.dense_ggn import dense_ggn_blocks
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.curvature.recurrent import written_out

KINDS: dict[str, Any] = {
    "RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM,
    "RNN, relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
    "LSTM, projected": lambda *sizes, **options: nn.LSTM(*sizes, proj_size=2, **options),
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {}, "batch first": {"batch_first": True}, "both ways": {"bidirectional": True},
    "two layers, no bias": {"num_layers": 2, "bias": False},
}  # fmt: skip


def seeded(make: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().double()


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_layers_have_torch_s_values(kind: str, options: str):
    layer = seeded(lambda: KINDS[kind](3, 4, **OPTIONS[options]))
    data = numbers(5, 2, 3, seed=1)
    expected = layer(data)
    with written_out(nn.Sequential(layer)):
        found = layer(data)
        again = layer(data, found[1])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(again, layer(data, expected[1]))
    with written_out(layer):
        alone = layer(data[:, 0] if not layer.batch_first else data[0])
    torch.testing.assert_close(alone, layer(data[:, 0] if not layer.batch_first else data[0]))
    assert "forward" not in vars(layer)


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_cells_have_torch_s_values(kind: Any):
    cell, data = seeded(lambda: kind(3, 4)), numbers(2, 3, seed=1)
    expected = cell(data)
    with written_out(cell):
        found = cell(data)
        again = cell(data, found)
        one = cell(data[0])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(again, cell(data, expected))
    torch.testing.assert_close(one, cell(data[0]))


def test_packed_sequences_are_refused_with_a_remedy():
    layer = seeded(lambda: nn.GRU(3, 4))
    packed = nn.utils.rnn.pack_sequence([numbers(5, 3, seed=1), numbers(2, 3, seed=2)])
    with written_out(layer), pytest.raises(CallerError, match="PackedSequence; pad the sequences"):
        layer(packed)


class Last(nn.Module):
    """A recurrent layer, and a linear one on its last output."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(layer.hidden_size, 3)

    def forward(self, sequences: Tensor) -> Tensor:  # (batch, time, features)
        if self.layer.batch_first:
            return self.head(self.layer(sequences)[0][:, -1])
        return self.head(self.layer(sequences.transpose(0, 1))[0][-1])


class ByHand(nn.Module):
    """A GRU of torch's Linear layers, which have a rule with an oracle of its own."""

    def __init__(self, of: Last) -> None:
        super().__init__()
        self.entering, self.kept, self.head = nn.Linear(3, 12), nn.Linear(4, 12), of.head
        for mine, its in (("entering", "ih"), ("kept", "hh")):
            linear = getattr(self, mine)
            linear.weight = nn.Parameter(getattr(of.layer, f"weight_{its}_l0").detach().clone())
            linear.bias = nn.Parameter(getattr(of.layer, f"bias_{its}_l0").detach().clone())

    def forward(self, sequences: Tensor) -> Tensor:
        hidden = sequences.new_zeros(len(sequences), 4)
        for entering in self.entering(sequences).unbind(1):
            a, b = entering.chunk(3, -1), self.kept(hidden).chunk(3, -1)
            reset, update = (a[0] + b[0]).sigmoid(), (a[1] + b[1]).sigmoid()
            hidden = (1 - update) * (a[2] + reset * b[2]).tanh() + update * hidden
        return self.head(hidden)


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_gru_has_the_blocks_of_its_linear_maps(batch_first: bool):
    network = seeded(lambda: Last(nn.GRU(3, 4, batch_first=batch_first)))
    other, data = ByHand(network).double(), numbers(6, 5, 3, seed=1)
    kfac = KFAC(network, fallback="refuse", example=data[:2])
    assert kfac.fallen_back == {} and set(kfac.parameter_names) == set(
        dict(network.named_parameters())
    )
    likelihood = LIKELIHOODS["categorical"].build()
    found = kfac.batch(data, Copies(2), likelihood).factors()
    expected = KFAC(other).batch(data, Copies(2), likelihood).factors()
    for mine, its in (("entering", "ih"), ("kept", "hh")):
        for role in ("weight", "bias"):
            assert_equal(
                found[f"layer.{role}_{its}_l0"].dense(3), expected[f"{mine}.{role}"].dense(3), mine
            )


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_where_it_is_exact(kind: str):
    """One example, one step: the Kronecker form is the Gauss–Newton matrix itself."""
    network = seeded(lambda: Last(KINDS[kind](3, 4, batch_first=True)))
    data, chosen = numbers(1, 1, 3, seed=1), LIKELIHOODS["categorical"]
    kfac = KFAC(network, example=numbers(2, 2, 3, seed=2))  # of two steps: a state that is not zero
    found = kfac.batch(data, Copies(1), chosen.build()).factors()
    with written_out(network):
        exact = dense_ggn_blocks(network, data, 1, chosen.curvature)
    for name in ("layer.weight_ih_l0", "layer.bias_ih_l0", "layer.bias_hh_l0"):
        assert_equal(found[name].dense(1)[0], exact[name], name)
    assert not found["layer.weight_hh_l0"].dense(1).any()  # the state is zero


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_the_evidence_is_differentiated_through_time(kind: str):
    network = seeded(lambda: Last(KINDS[kind](3, 4)))
    chosen, data = LIKELIHOODS["categorical"], numbers(8, 4, 3, seed=1)
    targets = chosen.targets(4)
    kfac = KFAC(network, example=data)
    assert_gradient_is_the_slope(network, kfac, chosen.build(), data, targets)
