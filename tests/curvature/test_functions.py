"""Parameters found by the function that meets them, and rows in other axes than the first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from curvature_problems import assert_gradient_is_the_slope
from network_cases import LIKELIHOODS, assert_equal
from numerics import numbers
from oracles.dense_ggn import dense_ggn_blocks
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import CallerError
from isotropy.curvature.functions import Place, place_of
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.evidence.laplace import Batch, GaussianPrior, LaplaceEvidence

CHOSEN = LIKELIHOODS["categorical"]


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = make().double().eval()
        for parameter in network.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
        return network


class OwnLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(input, self.weight, bias=self.bias)


class SameConvolution(nn.Conv2d):
    """Pads by itself, as networks brought over from elsewhere do."""

    def forward(self, input: Tensor) -> Tensor:
        padded = functional.pad(input, (1, 1, 1, 1))
        return functional.conv2d(padded, self.weight, self.bias, self.stride, 0, 1, self.groups)


class ChannelNorm(nn.LayerNorm):
    """A normalisation over channels of images."""

    def forward(self, input: Tensor) -> Tensor:
        moved = functional.layer_norm(
            input.movedim(1, -1), self.normalized_shape, self.weight, self.bias, self.eps
        )
        return moved.movedim(-1, 1)


class ChannelsLast(nn.Module):
    """The same with torch's own layer."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, input: Tensor) -> Tensor:
        return self.norm(input.movedim(1, -1)).movedim(-1, 1)


class NormAndSlope(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        found = functional.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.1, self.eps
        )
        return found.tanh()


class GroupNormAndSlope(nn.GroupNorm):
    def forward(self, input: Tensor) -> Tensor:
        return functional.group_norm(
            input, self.num_groups, self.weight, self.bias, self.eps
        ).tanh()


def convolutions(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), *layers, nn.Flatten(), nn.Linear(64, 3))


# a network of one's own, and the same of layers with rules by type
PAIRS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "linear": (
        lambda: nn.Sequential(nn.Flatten(), OwnLinear(36, 5), nn.Tanh(), nn.Linear(5, 3)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, 3)),
    ),
    "convolution": (
        lambda: convolutions(nn.Tanh(), SameConvolution(4, 4, 3, groups=2)),
        lambda: convolutions(nn.Tanh(), nn.Conv2d(4, 4, 3, groups=2, padding=1)),
    ),
    "layer norm over channels": (
        lambda: convolutions(ChannelNorm(4), nn.Tanh()),
        lambda: convolutions(ChannelsLast(4), nn.Tanh()),
    ),
    "batch norm and activation": (
        lambda: convolutions(NormAndSlope(4)),
        lambda: convolutions(nn.BatchNorm2d(4), nn.Tanh()),
    ),
    "group norm and activation": (
        lambda: convolutions(GroupNormAndSlope(2, 4)),
        lambda: convolutions(nn.GroupNorm(2, 4), nn.Tanh()),
    ),
}


@pytest.mark.parametrize("case", PAIRS)
def test_a_function_has_the_blocks_of_the_layer(case: str):
    own, other = (seeded(make) for make in PAIRS[case])
    data = numbers(6, 1, 6, 6, seed=1)
    kfac = KFAC(own, example=data[:2])
    assert kfac.fallen_back == {} and kfac._met
    found = kfac.batch(data, Copies(2), CHOSEN.build()).factors()
    expected = KFAC(other).batch(data, Copies(2), CHOSEN.build()).factors()
    for (name, block), (same, wanted) in zip(
        sorted(found.items()), sorted(expected.items()), strict=True
    ):
        assert_equal(block.dense(3), wanted.dense(3), f"{name} and {same}")


def test_a_subclass_with_its_parent_s_forward_has_its_rule():
    class Named(nn.Linear):
        pass

    network = nn.Sequential(Named(4, 3)).double()
    assert KFAC(network).parameter_names == ("0.weight", "0.bias")
    with pytest.raises(CallerError, match="layer '0' of type OwnLinear has no curvature rule"):
        KFAC(nn.Sequential(OwnLinear(4, 3)))


# -- one weight in several places --------------------------------------------------------------


class Tied(nn.Module):
    """Two layers with one weight, and biases of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.second(self.first(inputs).tanh()).tanh())


class Twice(nn.Module):
    """The same network: one layer without a bias, called twice."""

    def __init__(self, of: Tied) -> None:
        super().__init__()
        self.shared = nn.Linear(4, 4, bias=False)
        self.shared.weight, self.head = of.first.weight, of.head
        self.biases = [of.first.bias.detach(), of.second.bias.detach()]

    def forward(self, inputs: Tensor) -> Tensor:
        for bias in self.biases:
            inputs = (self.shared(inputs) + bias).tanh()
        return self.head(inputs)


def test_tied_weights_have_one_block_from_all_uses():
    tied = seeded(Tied)
    data = numbers(6, 4, seed=1)
    kfac = KFAC(tied, example=data[:2])
    assert kfac.parameter_names == (
        "first.weight", "first.bias", "second.bias", "head.weight", "head.bias"
    )  # fmt: skip
    found = kfac.batch(data, Copies(2), CHOSEN.build()).factors()
    expected = KFAC(Twice(tied)).batch(data, Copies(2), CHOSEN.build()).factors()
    assert_equal(found["first.weight"].dense(3), expected["shared.weight"].dense(3), "weight")
    with torch.no_grad():
        exact = dense_ggn_blocks(tied, data, 2, CHOSEN.curvature)
    for name in ("first.bias", "second.bias"):
        assert_equal(found[name].dense(3)[0], exact[name], name)
    with pytest.raises(CallerError, match="is shared by the layers 'first' and 'second'"):
        KFAC(tied)


class Words(nn.Module):
    """Embedded words and their positions, from numbers that are rounded."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.table, self.positions = nn.Embedding(5, 4, padding_idx=0), nn.Embedding(words, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        indices = inputs.detach().long().clamp(0, 4)
        places = self.positions(torch.arange(indices.shape[1]))
        return self.head((self.table(indices) + places).tanh().mean(1))


def words(count: int, length: int) -> Tensor:
    return torch.randint(0, 5, (count, length), generator=torch.Generator().manual_seed(3)).double()


def test_an_embedding_is_exact_for_one_word():
    network, data = seeded(lambda: Words(1)), torch.tensor([[3.0]], dtype=torch.float64)
    other = torch.tensor([[3.0], [2.0]], dtype=torch.float64)
    kfac = KFAC(network, fallback="diagonal", example=other)
    assert kfac.fallen_back == {"positions": "Embedding"} and "table.weight" in kfac._met
    found = kfac.batch(data, Copies(1), CHOSEN.build()).factors()
    exact = dense_ggn_blocks(network, data, 1, CHOSEN.curvature)
    assert_equal(torch.block_diag(*found["table.weight"].dense(1)), exact["table.weight"], "table")
    diagonal = exact["positions.weight"].diagonal().diag()
    assert_equal(found["positions.weight"].dense(1)[0], diagonal, "positions")


def test_an_embedding_counts_its_words():
    """The formula written out: counts of words times the mean of squared gradients."""
    network, data = seeded(lambda: Words(3)), words(4, 3)
    kfac = KFAC(network, fallback="diagonal", example=data[:2])
    block = kfac.batch(data, Copies(1), CHOSEN.build()).factors()["table.weight"]
    leaves = network.table(data.long()).detach().requires_grad_()
    places = network.positions.weight.detach()
    outputs = network.head((leaves + places).tanh().mean(1))
    total = torch.zeros(4, 4, dtype=torch.float64)
    curvature = CHOSEN.curvature(outputs.detach())
    for example in range(4):
        jacobian = torch.stack([
            torch.autograd.grad(outputs[example, c], leaves, retain_graph=True)[0][example]
            for c in range(3)
        ])  # fmt: skip
        total += torch.einsum("ctf,cd,dtg->fg", jacobian, curvature[example], jacobian) / 3
    counts = torch.bincount(data.long().flatten(), minlength=5).double()
    counts[0] = 0  # padding
    assert_equal(block.dense(4), counts[:, None, None] * total / 4, "table")


def test_the_evidence_has_an_embedding():
    network, data = seeded(lambda: Words(3)), words(6, 3)
    kfac = KFAC(network, fallback="diagonal", example=data[:2])
    prior = GaussianPrior(network, kfac.parameter_names, "tensor", 0.5)
    evidence = LaplaceEvidence(network, CHOSEN.build(), prior, kfac)
    fit = evidence.fit([Batch(data, CHOSEN.targets(6), Copies(1))])
    block = kfac.batch(data, Copies(1), CHOSEN.build()).factors()["table.weight"]
    dense = torch.block_diag(*block.dense(6))
    precision = torch.tensor(0.5, dtype=torch.float64)
    expected = torch.logdet(dense + precision * torch.eye(20, dtype=torch.float64))
    scale = torch.ones((), dtype=torch.float64)
    found = fit.spectra["table.weight"].log_determinant(scale, precision)
    assert_equal(found, expected, "log determinant", 1e-9)


# -- where the rows are ------------------------------------------------------------------------


class Windows(nn.Module):
    """Attention-like layers on windows: how they are arranged is the only difference."""

    def __init__(self, arrangement: str) -> None:
        super().__init__()
        self.arrangement = arrangement
        self.norm, self.inner, self.head = nn.LayerNorm(3), nn.Linear(3, 4), nn.Linear(4, 3)
        self.mixing = nn.Conv1d(2, 2, 1)

    def forward(self, inputs: Tensor) -> Tensor:  # (rows, windows, tokens, features)
        rows, windows = inputs.shape[:2]
        if self.arrangement == "plain":
            mixed = torch.stack([self.mixing(each) for each in self.norm(inputs).unbind(1)], 1)
            found = self.inner(mixed).tanh()
        elif self.arrangement == "rows slow":
            found = self.inner(self.mixing(self.norm(inputs.flatten(0, 1)))).tanh()
            found = found.unflatten(0, (rows, windows))
        elif self.arrangement == "rows fast":
            moved = self.mixing(self.norm(inputs.transpose(0, 1).flatten(0, 1)))
            found = self.inner(moved).tanh().unflatten(0, (windows, rows))
            found = found.transpose(0, 1)
        else:
            mixed = torch.stack([self.mixing(each) for each in self.norm(inputs).unbind(1)])
            found = self.inner(mixed).tanh().transpose(0, 1)
        return self.head(found.mean((1, 2)))


@pytest.mark.parametrize("arrangement", ["rows slow", "rows fast", "rows second"])
def test_rows_are_found_where_they_are(arrangement: str):
    plain = seeded(lambda: Windows("plain"))
    other = seeded(lambda: Windows(arrangement))
    data = numbers(6, 5, 2, 3, seed=1).requires_grad_()
    found = KFAC(other, example=data[:2].detach()).batch(data, Copies(2), CHOSEN.build(),
                                                         create_graph=True)  # fmt: skip
    expected = KFAC(plain).batch(data, Copies(2), CHOSEN.build(), create_graph=True)
    for name, block in expected.factors().items():
        assert_equal(found.factors()[name].dense(3), block.dense(3), name)
    traces = [sum(b.dense(3).square().sum() for b in each.factors().values())
              for each in (found, expected)]  # fmt: skip
    slopes = [torch.autograd.grad(trace, data, retain_graph=True)[0] for trace in traces]
    assert_equal(slopes[0], slopes[1], "gradient")
    with pytest.raises(CallerError, match="expected its first axis to be the rows"):
        KFAC(other).batch(data, Copies(2), CHOSEN.build())


def test_places():
    before, after = torch.zeros(2, 3), torch.tensor([[0.0, 1, 0], [0, 0, 0]])
    assert place_of(before, after) is Place.FIRST
    assert place_of(before.mT, after.mT) is Place.SECOND
    assert place_of(before, before) is None
    assert place_of(before, torch.ones(2, 3)) is None
    assert place_of(torch.zeros(6), torch.tensor([1.0, 0, 1, 0, 1, 0])) is Place.FAST
    assert place_of(torch.zeros(6), torch.tensor([0.0, 1, 1, 0, 0, 0])) is Place.SLOW


# -- what has no rule --------------------------------------------------------------------------


class Token(nn.Module):
    """Bare parameters of a module that has layers too, and a layer that is never called."""

    def __init__(self, length: int = 4) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, length))
        self.unused, self.head = nn.Linear(2, 2), nn.Linear(length, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        shifted = inputs + self.token.expand(len(inputs), -1)
        shifted += 1  # in place, on what no layer has seen
        return self.head(shifted.tanh())


def test_bare_parameters_have_exact_diagonal_blocks():
    network, data = seeded(Token), numbers(6, 4, seed=1)
    kfac = KFAC(network, fallback="diagonal", example=data[:2])
    assert kfac.fallen_back == {"token": "Token"}
    assert kfac.constants == {"unused": "not called in evaluation mode"}
    assert kfac.parameter_names == ("token", "head.weight", "head.bias")
    found = kfac.batch(data, Copies(2), CHOSEN.build()).factors()
    network.unused.requires_grad_(False)
    exact = dense_ggn_blocks(network, data, 2, CHOSEN.curvature)
    assert_equal(found["token"].dense(3)[0], exact["token"].diagonal().diag(), "token")


def test_what_is_too_large_or_cannot_be_differentiated_is_a_constant():
    class Asking(Token):
        def forward(self, inputs: Tensor) -> Tensor:
            if float(inputs.sum()) > 1e9:  # no derivative for each example here
                return inputs
            return super().forward(inputs)

    data = numbers(2, 4, seed=1)
    kfac = KFAC(seeded(Asking), fallback="diagonal", example=data)
    assert "no gradient example by example" in kfac.constants["token"]
    assert "token" not in kfac.parameter_names
    large = KFAC(seeded(lambda: Token(400_000)), fallback="diagonal",
                 example=numbers(2, 400_000, seed=1))  # fmt: skip
    assert large.constants["token"] == "400,000 entries without a rule"


class Residual(nn.Module):
    """The output of a layer is changed in place."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.in_place = in_place

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs).tanh()
        branch = self.second(hidden)
        if not self.in_place:
            return self.head((hidden + branch).tanh())
        branch += hidden
        return self.head(branch.tanh())


def test_operations_in_place_spoil_nothing():
    data = numbers(6, 4, seed=1)
    spoiled, plain = seeded(lambda: Residual(True)), seeded(lambda: Residual(False))
    found = KFAC(spoiled).batch(data, Copies(2), CHOSEN.build()).factors()
    expected = KFAC(plain).batch(data, Copies(2), CHOSEN.build()).factors()
    for name, block in expected.items():
        assert_equal(found[name].dense(3), block.dense(3), name)


def test_the_gradient_goes_through_met_functions():
    network = seeded(PAIRS["layer norm over channels"][0])
    data, targets = numbers(8, 1, 6, 6, seed=1), CHOSEN.targets(4)
    kfac = KFAC(network, example=data[:2])
    assert_gradient_is_the_slope(network, kfac, CHOSEN.build(), data, targets)
