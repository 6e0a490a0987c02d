"""What KFAC refuses, before the forward pass and in it, and what it leaves as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from network_cases import (
    NETWORKS,
    UsedTwice,
    assert_blocks_equal,
    assert_equal,
    library_blocks,
    mlp,
)
from oracles.dense_ggn import softmax_curvature
from oracles.dense_kfac import dense_kfac
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.likelihoods import Categorical

LABELS = 3


class Stack(nn.Module):
    """Three Linear layers and a forward pass that is given."""

    def __init__(self, forward: Callable[[Stack, Tensor], object]) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, LABELS)
        self.given = forward

    def forward(self, inputs: Tensor) -> object:
        return self.given(self, inputs)


# --- refused before anything is computed --------------------------------------------------------


class OwnParameter(nn.Module):
    """A parameter that no layer owns."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(4, LABELS)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(inputs) * self.temperature


class LinearWithGain(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, LABELS)
        self.gain = nn.Parameter(torch.ones(1))


def tied() -> nn.Module:
    network = mlp(4, 4, 4, LABELS)
    network[2].weight = network[0].weight
    return network


def frozen() -> nn.Module:
    return mlp(4, LABELS).requires_grad_(False)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False)),
        r"layer '1' of type BatchNorm1d: .*none.*track_running_stats=True",
    ),
    "batch norm without parameters": (
        lambda: nn.Sequential(
            nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False, track_running_stats=False)
        ),
        r"layer '1' of type BatchNorm1d: expected running statistics",
    ),
    "unknown layer": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.PReLU()),
        r"layer '1' of type PReLU .*Conv2d.*Linear.*isotropy.curvature.layer_rules.register_rule"
        r".*diagonal or fixed.*requires_grad_\(False\)",
    ),
    "nested": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.PReLU())),
        r"layer '1\.1' of type PReLU has no curvature rule",
    ),
    "own parameter": (OwnParameter, r"layer '\(the network itself\)' of type OwnParameter has no"),
    "subclass": (
        LinearWithGain,
        "the rule for LinearWithGain knows the parameters weight, bias, got 'gain' too",
    ),
    "tied weights": (
        tied,
        "parameter 'weight' is shared by the layers '0' and '2'; call one layer twice instead",
    ),
    "nothing to learn": (frozen, "the network has no trainable parameters"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_at_construction(name: str):
    build, sentence = REFUSED[name]
    with pytest.raises(CallerError, match=sentence):
        KFAC(build())


def test_frozen_layers_need_no_rule():
    network = nn.Sequential(nn.Linear(4, 4), nn.PReLU(), nn.Linear(4, LABELS))
    network[1].requires_grad_(False)
    assert KFAC(network).parameter_names == ("0.weight", "0.bias", "2.weight", "2.bias")


def test_a_module_under_two_names_is_one_layer():
    class TwoNames(UsedTwice):
        def __init__(self) -> None:
            super().__init__()
            self.again = self.inner

    assert KFAC(TwoNames()).parameter_names == KFAC(UsedTwice()).parameter_names


# --- refused in the forward pass ----------------------------------------------------------------


def rows_of_tokens(stack: Stack, inputs: Tensor) -> Tensor:
    """Two tokens an example, moved into the batch axis for the first layer."""
    tokens = torch.stack([inputs, inputs + 1], 1).flatten(0, 1)
    return stack.head(stack.two(stack.one(tokens).tanh().unflatten(0, (-1, 2)).mean(1)))


FORWARD: dict[str, tuple[Callable[[Stack, Tensor], object], str]] = {
    "uncalled layer": (
        lambda stack, x: stack.head(stack.one(x)),
        "layer 'two' has trainable parameters but was not called in the forward pass; freeze it",
    ),
    "outputs with three axes": (
        lambda stack, x: stack.head(stack.two(stack.one(x)))[:, None],
        r"network outputs: expected \(batch, outputs\), got \(6, 1, 3\)",
    ),
    "outputs with one axis": (
        lambda stack, x: stack.head(stack.two(stack.one(x)))[:, 0],
        r"network outputs: expected \(batch, outputs\), got \(6\)",
    ),
    "outputs a tuple": (
        lambda stack, x: (stack.head(stack.two(stack.one(x))), x),
        r"network outputs: expected \(batch, outputs\), got tuple",
    ),
    "rows are not examples": (rows_of_tokens, r"(?=.*\b12\b)(?=.*\b6\b).*layer 'one'"),
    "one row for all": (
        lambda stack, x: stack.head(stack.one(x) + stack.two(x[:1])),
        r"(?=.*\b1\b)(?=.*\b6\b).*layer 'two'",
    ),
}


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", FORWARD)
def test_refused_in_the_forward_pass(name: str, graph: bool):
    forward, sentence = FORWARD[name]
    rows = torch.randn(6, 4, dtype=torch.float64, requires_grad=graph)
    with pytest.raises(CallerError, match=sentence):
        KFAC(Stack(forward).double()).batch(rows, Copies(2), Categorical(), create_graph=graph)


def test_inputs_by_keyword_are_found():
    """A layer may be called with its input by name."""
    by_place = Stack(lambda stack, x: stack.head(stack.two(stack.one(x)))).double()
    by_name = Stack(lambda stack, x: stack.head(stack.two(stack.one(input=x)))).double()
    by_name.load_state_dict(by_place.state_dict())
    rows = NETWORKS["mlp"].rows(3, 2)
    expected = library_blocks(by_place, rows, 2, Categorical())
    assert_blocks_equal(library_blocks(by_name, rows, 2, Categorical()), expected)


IN_PLACE: dict[str, Callable[[Stack, Tensor], Tensor]] = {
    "after the first layer": lambda stack, x: stack.head(stack.two(torch.relu_(stack.one(x)))),
    "after a later layer": lambda stack, x: stack.head(torch.relu_(stack.two(stack.one(x).tanh()))),
    "sum": lambda stack, x: stack.head(stack.two(x.tanh() + stack.one(x)).add_(x)),
}


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", IN_PLACE)
def test_functions_in_place_spoil_nothing(name: str, graph: bool):
    network = Stack(IN_PLACE[name]).double()
    rows = NETWORKS["mlp"].rows(3, 2).requires_grad_(graph)
    found = library_blocks(network, rows, 2, Categorical(), create_graph=graph)
    for layer in ("one", "two"):
        for role, block in dense_kfac(network, layer, rows, 2, softmax_curvature).items():
            own = found[f"{layer}.{role}"]
            assert_equal(own, block.reshape(own.shape), f"{layer}.{role}")


def test_in_place_modules_give_the_blocks_of_out_of_place_ones():
    in_place = NETWORKS["in-place relu"].network()
    plain = mlp(4, 3, 3, 3, activation=nn.ReLU).double()
    plain.load_state_dict(in_place.state_dict())
    rows = NETWORKS["mlp"].rows(3, 2)
    expected = library_blocks(plain, rows, 2, Categorical())
    assert_blocks_equal(library_blocks(in_place, rows, 2, Categorical()), expected)


# --- constants ----------------------------------------------------------------------------------


def test_frozen_parameters_have_no_block_and_change_no_other():
    case = NETWORKS["mlp"]
    rows = case.rows(3, 2)
    everything = library_blocks(case.network(), rows, 2, Categorical())
    names = list(everything)
    for frozen_names in (["0.weight", "0.bias"], ["2.bias"], ["4.weight", "4.bias"], names[1:]):
        network = case.network()
        for name in frozen_names:
            network.get_parameter(name).requires_grad_(False)
        found = library_blocks(network, rows, 2, Categorical())
        kept = [name for name in names if name not in frozen_names]
        assert_blocks_equal(found, {name: everything[name] for name in kept})


# --- the network is left as it was --------------------------------------------------------------


def hooks(network: nn.Module) -> int:
    return sum(
        len(getattr(module, kind))
        for module in network.modules()
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    )


def untouched_network() -> nn.Module:
    """Modes of its own, a frozen parameter, and gradients from elsewhere."""
    network = NETWORKS["dropout"].network().train()
    network[1].eval()
    network[3].bias.requires_grad_(False)
    for parameter in network.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    return network


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("graph", [False, True])
def test_the_network_is_left_as_it_was(graph: bool, fails: bool):
    network = untouched_network()
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    identities = {name: id(p) for name, p in network.named_parameters()}
    rows = NETWORKS["dropout"].rows(3, 2).requires_grad_(graph)
    kfac = KFAC(network)
    if fails:
        with pytest.raises(RuntimeError):
            kfac.batch(rows[:, :2], Copies(2), Categorical(), create_graph=graph)
    else:
        kfac.batch(rows, Copies(2), Categorical(), create_graph=graph)
    assert hooks(network) == 0
    assert [module.training for module in network.modules()] == [True, True, False, True, True]
    for name, parameter in network.named_parameters():
        assert id(parameter) == identities[name]
        assert torch.equal(parameter, before[name])
        assert parameter.requires_grad is (name != "3.bias")
        assert bool((parameter.grad == 7.0).all())
    assert rows.grad is None


def test_without_a_graph_nothing_requires_a_gradient():
    case = NETWORKS["conv groups"]
    rows = case.rows(3, 2).requires_grad_()
    found = KFAC(case.network()).batch(rows, Copies(2), Categorical())
    for root in found.roots.values():
        assert not any(tensor.requires_grad for tensor in root.tensors())
    with torch.no_grad():
        again = KFAC(case.network()).batch(rows, Copies(2), Categorical())
    for name, root in again.roots.items():
        for one, other in zip(root.tensors(), found.roots[name].tensors(), strict=True):
            assert torch.equal(one, other)


def test_batches_do_not_influence_each_other():
    case = NETWORKS["used twice"]
    kfac, rows = KFAC(case.network()), case.rows(4, 2)
    first = kfac.batch(rows[:4], Copies(2), Categorical()).factors()
    kfac.batch(rows[4:], Copies(2), Categorical(), create_graph=True)
    for name, factors in kfac.batch(rows[:4], Copies(2), Categorical()).factors().items():
        assert torch.equal(factors.dense(2), first[name].dense(2))
