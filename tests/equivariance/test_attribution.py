"""Contributions of single operations: the sum rule, three ways to compute them, the culprit."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from measured_networks import NETWORKS, Between, Compute, ResNet, built
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.equivariance.attribution import Attribution, LayerSettings, attribute, mean_chi
from isotropy.equivariance.layouts import Follows, Grid, Invariant, Layout, layout_for
from isotropy.equivariance.lie_derivative import lie_derivatives
from isotropy.equivariance.subject import Subject
from isotropy.symmetry.actions.action import Action
from isotropy.symmetry.actions.images import affine
from isotropy.symmetry.actions.linear import linear_action
from isotropy.symmetry.actions.points import points

TURNS = affine(("translation_x", "rotation"), padding="reflection")


def attributed(
    network: nn.Module,
    data: Tensor,
    action: Action = TURNS,
    *,
    method: str = "forward",
    on: str = "outputs",
    outputs: str | Layout | Action = "auto",
    probes: int = 32,
    layouts: dict | None = None,
    generator: torch.Generator | None = None,
    directions: Tensor | None = None,
) -> Attribution:
    subject = Subject(network, on)  # type: ignore[arg-type]
    if directions is None:
        directions = torch.eye(action.coordinate_count, dtype=data.dtype)
    with torch.no_grad():
        layout = layout_for(outputs, action, subject(data), what="output")
        whole = lie_derivatives(subject, data, action, directions, layout).derivatives
    settings = LayerSettings(method, probes, layouts or {})
    return attribute(subject, data, action, directions, whole, layout, settings, generator)


def by_name(found: Attribution) -> dict[str, Tensor]:
    names = [row.name for row in found.rows]
    assert len(set(names)) == len(names)
    return dict(zip(names, found.norms, strict=True))


# --- the sum rule -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["forward", "backward"])
@pytest.mark.parametrize("name", NETWORKS)
def test_contributions_add_up(name: str, method: str) -> None:
    network, data = built(name, batch=2)
    if method == "backward" and name in ("u-net", "autoencoder", "vit to tokens"):
        network = nn.Sequential(network, nn.Flatten(), nn.LazyLinear(3, dtype=torch.float64))
        with torch.no_grad():
            network(data)
    found = attributed(network, data, NETWORKS[name].action(), method=method)
    assert found.method == method
    assert found.closure.max() < 1e-12
    torch.testing.assert_close(found.inner.sum(0), found.squares, rtol=1e-10, atol=1e-18)
    assert found.squares.min() > 0


@pytest.mark.parametrize("name", ["resnet", "vit", "mixer"])
@pytest.mark.parametrize("method", ["forward", "backward"])
def test_contributions_add_up_in_single_precision(name: str, method: str) -> None:
    network, data = built(name, torch.float32)
    assert attributed(network, data, method=method, on="probabilities").closure.max() < 1e-5


@pytest.mark.parametrize("name", ["resnet", "vit", "vit by einsum", "vit of torch", "mixer"])
def test_forward_and_backward_agree(name: str) -> None:
    network, data = built(name)
    forward = attributed(network, data, on="probabilities")
    backward = attributed(network, data, on="probabilities", method="backward")
    assert [row.name for row in forward.rows] == [row.name for row in backward.rows]
    scale = forward.norms.max()
    assert (forward.norms - backward.norms).abs().max() < 1e-12 * scale
    assert (forward.inner - backward.inner).abs().max() < 1e-12 * scale**2


@pytest.mark.parametrize("method", ["forward", "backward", "probes"])
def test_the_closure_sees_what_is_missing(method: str) -> None:
    """A derivative that is not the network's does not close; far off it is refused."""
    network, data = built("convolutional")
    directions = torch.eye(2, dtype=torch.float64)
    whole = lie_derivatives(Subject(network), data, TURNS, directions, Invariant()).derivatives
    subject = Subject(network)

    def closure(factor: float) -> float:
        wrong = factor * whole
        settings = LayerSettings(method)
        found = attribute(subject, data, TURNS, directions, wrong, Invariant(), settings)
        return float(found.closure.max())

    assert closure(1.0) < 1e-12
    assert 1e-4 < closure(1.01) < 2e-2
    with pytest.raises(CallerError, match="contributions miss the whole.*use layers=False"):
        closure(2.0)


def test_the_closure_of_contributions_that_cancel() -> None:
    """Down the rows and up again: both contribute, together nothing. Relative to each it closes."""

    class ThereAndBack(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            ramp = torch.linspace(1, 2, 12, dtype=x.dtype)
            return (x * ramp) / ramp

    found = attributed(ThereAndBack(), torch.randn(2, 3, 12, 12, dtype=torch.float64))
    norms = by_name(found)
    assert norms["mul"].min() > 0.1
    torch.testing.assert_close(norms["mul"], norms["div"])
    assert found.squares.max() < 1e-20
    assert found.closure.max() < 1e-12


# --- against contributions written out ---------------------------------------------------------


@pytest.mark.parametrize("method", ["forward", "backward"])
def test_contributions_of_a_chain_written_out(method: str) -> None:
    """C_i = d(rest)(df_i(X u) − X f_i(u)), by torch.func.jvp through the layers behind."""
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(2, 4, 3, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Conv2d(4, 3, 3, 2, 1),
        nn.Flatten(),
        nn.Linear(12, 4),
        nn.Tanh(),
    ]
    network = nn.Sequential(*layers).double()
    data = torch.randn(2, 2, 8, 8, dtype=torch.float64)
    directions = torch.tensor([[1.0, 0.0], [0.3, -0.7]], dtype=torch.float64)
    found = attributed(network, data, method=method, directions=directions)
    assert [row.name for row in found.rows] == [str(i) for i in range(len(layers))]
    whole = lie_derivatives(Subject(network), data, TURNS, directions, Invariant()).derivatives
    for column, direction in enumerate(directions):

        def velocity(tensor: Tensor, along: Tensor = direction) -> Tensor:
            is_image = tensor.ndim == 4
            return TURNS.velocity(along, tensor) if is_image else torch.zeros_like(tensor)

        tensor = data
        for row, layer in enumerate(network):
            result, pushed = torch.func.jvp(layer, (tensor,), (velocity(tensor),))
            own = pushed - velocity(result)
            rest = network[row + 1 :]
            contribution = torch.func.jvp(rest, (result,), (own,))[1] if len(rest) else own
            torch.testing.assert_close(
                found.norms[row, column], contribution.norm(dim=1), rtol=1e-10, atol=1e-14
            )
            inner = (contribution * whole[column]).sum(1)
            torch.testing.assert_close(found.inner[row, column], inner, rtol=1e-10, atol=1e-14)
            tensor = result


def test_a_residual_block_written_out() -> None:
    """Both branches: what enters is pushed on along the shortcut too."""
    network, data = built("resnet", batch=2)
    assert isinstance(network, ResNet)
    direction = torch.tensor([0.0, 1.0], dtype=torch.float64)
    found = attributed(network, data, directions=direction[None])
    first = network.blocks[0]

    def velocity(tensor: Tensor) -> Tensor:
        return TURNS.velocity(direction, tensor)

    def behind_stem(maps: Tensor) -> Tensor:
        y = first.norm2(first.conv2(F.relu(first.norm1(first.conv1(F.relu(maps))))))
        maps = network.blocks[1](F.relu(y + F.relu(maps)))
        return network.head(maps.mean((2, 3)))

    with torch.no_grad():
        stem, pushed = torch.func.jvp(network.stem, (data,), (velocity(data),))
        expected = torch.func.jvp(behind_stem, (stem,), (pushed - velocity(stem),))[1]
    norms = by_name(found)
    torch.testing.assert_close(norms["stem"][0], expected.norm(dim=1), rtol=1e-10, atol=1e-14)
    assert norms["blocks.0: add_"].max() < 1e-12, "a sum of maps that move alike commutes"
    assert {"blocks.0.relu", "blocks.0.relu (2)", "adaptive_avg_pool2d", "flatten"} <= set(norms)


# --- the culprit -------------------------------------------------------------------------------


class ByPosition(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.linspace(0, 3, x.shape[-1], dtype=x.dtype)


def suspicious(culprit: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    network = nn.Sequential()
    network.add_module("enter", nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"))
    network.add_module("culprit", culprit)
    network.add_module("leave", nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"))
    network.add_module("bend", nn.GELU())
    network.add_module("pool", nn.AdaptiveAvgPool2d(1))
    network.add_module("flat", nn.Flatten())
    network.add_module("head", nn.Linear(4, 5))
    return network.double()


SHIFTS = affine(("translation_x",), interpolation="fourier")


@pytest.mark.parametrize("method", ["forward", "backward", "probes"])
def test_the_culprit_is_found(method: str) -> None:
    data = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    innocent = attributed(suspicious(nn.Identity()), data, SHIFTS, method=method)
    assert by_name(innocent)["culprit"].max() <= 1e-12
    found = attributed(suspicious(ByPosition()), data, SHIFTS, method=method)
    names = [row.name for row in found.rows]
    shares = found.inner.sum(2)[:, 0] / found.squares.sum(1)
    assert names[int(shares.argmax())] == "culprit" and shares.max() > 0.5
    assert shares.sum().item() == pytest.approx(1, abs=1e-10)
    assert names[int(found.norms.mean(2)[:, 0].argmax())] == "culprit"


# --- probes ------------------------------------------------------------------------------------


def test_the_mean_of_chi() -> None:
    assert mean_chi(1) == pytest.approx(math.sqrt(2 / math.pi), rel=1e-14)
    assert mean_chi(2) == pytest.approx(math.sqrt(math.pi) / 2, rel=1e-14)
    assert mean_chi(4000) == pytest.approx(1 - 1 / 16000, rel=1e-8)


@pytest.mark.parametrize("probes", [1, 6])
def test_probes_are_unbiased_and_their_variance_is_right(probes: int) -> None:
    """Every example has probes of its own: a large batch of one example repeats them."""
    torch.manual_seed(3)
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
    ).double()
    repeated = torch.randn(1, 3, 6, 6, dtype=torch.float64).expand(3000, -1, -1, -1)
    exact = attributed(network, repeated[:1], SHIFTS, method="backward")
    found = attributed(
        network, repeated, SHIFTS,
        method="probes", probes=probes, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert found.method == "probes"
    for row, norm in enumerate(exact.norms[:, 0, 0]):
        estimates = found.norms[row, 0]
        if norm < 1e-12:
            assert estimates.max() < 1e-12
            continue
        # ‖C‖ χ_K/√K over its mean: the variance is ‖C‖² (1/E² − 1), E = E(χ_K)/√K.
        variance = norm**2 * (1 / mean_chi(probes) ** 2 - 1)
        assert estimates.var().item() == pytest.approx(variance.item(), rel=0.15)
        z_score = (estimates.mean() - norm) / (variance / len(estimates)).sqrt()
        assert abs(z_score) < 4
    # Shares do not depend on the probes.
    torch.testing.assert_close(found.inner, exact.inner.expand_as(found.inner))
    assert found.closure.max() < 1e-12


def test_probes_follow_their_generator() -> None:
    network, data = built("convolutional")

    def norms(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return attributed(network, data, method="probes", probes=2, generator=generator).norms

    assert torch.equal(norms(1), norms(1)) and not torch.equal(norms(1), norms(2))


# --- choices and edges -------------------------------------------------------------------------


def test_auto_takes_what_is_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    few, data = built("convolutional")
    assert attributed(few, data, method="auto").method == "backward"
    many, data = built("u-net")
    assert attributed(many, data, method="auto").method == "forward"
    monkeypatch.setattr("isotropy.equivariance.attribution.FEW_OPERATIONS", 3)
    assert attributed(many, data, method="auto", probes=2).method == "probes"


@pytest.mark.parametrize("method", ["forward", "backward", "probes"])
def test_a_network_that_does_nothing(method: str) -> None:
    data = torch.randn(2, 1, 4, 4, dtype=torch.float64)
    for network in (nn.Identity(), nn.Sequential(nn.Identity())):
        found = attributed(network, data, method=method)
        assert not found.norms.any() and not found.squares.any() and not found.closure.any()


def test_the_same_layer_twice_and_a_function_of_its_name() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.relu = nn.ReLU()
            self.again = self.relu

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.again(self.relu(x - 0.5) - 0.1)).mean((2, 3))

    found = attributed(Twice(), torch.randn(2, 3, 8, 8, dtype=torch.float64))
    names = [row.name for row in found.rows]
    assert len(set(names)) == len(names)
    assert [row.kind for row in found.rows] == ["sub", "ReLU", "sub", "ReLU", "relu", "mean"]


def test_an_output_that_is_meant_to_move_otherwise_has_a_row() -> None:
    """Pooled features taken for an image of their own, and an image for invariant."""
    network, data = built("u-net")
    for method in ("forward", "backward"):
        small = nn.Sequential(network, nn.AvgPool2d(4))
        found = attributed(small, data, method=method, outputs="invariant")
        assert (found.rows[-1].name, found.rows[-1].kind) == ("output", "as invariant")
        assert found.closure.max() < 1e-12
        assert found.norms[-1].min() > 0


def test_images_that_are_expanded() -> None:
    """One channel as three shares memory, which forward mode does not like; outside and inside."""

    class Grey(nn.Module):
        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: Tensor) -> Tensor:
            return self.network(x.expand(-1, 3, -1, -1))

    network, data = built("convolutional")
    grey = data[:, :1]
    for some in (torch.eye(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)[:1]):
        outside = attributed(network, grey.expand(-1, 3, -1, -1), directions=some)
        inside = attributed(Grey(network), grey, directions=some)
        assert outside.closure.max() < 1e-12 and inside.closure.max() < 1e-12
        torch.testing.assert_close(inside.norms[-1], outside.norms[-1])


def test_directions_of_each_example() -> None:
    """Jitter moves every example its own way."""
    action = points(2, ("rotation", "jitter"), count=5)
    clouds = torch.randn(3, 5, 2, dtype=torch.float64)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Flatten(), nn.Linear(30, 2)).double()
    directions = torch.randn(2, 3, action.coordinate_count, dtype=torch.float64)
    for method in ("forward", "backward"):
        found = attributed(
            network, clouds, action,
            method=method, directions=directions, layouts={"0": "invariant"},
        )  # fmt: skip
        assert found.closure.max() < 1e-12
        assert by_name(found)["0"].min() > 0, "a layer said to be invariant takes all the blame"


def test_representations_of_hidden_layers_said_by_the_user() -> None:
    """Linear layers on vectors (batch, points, 2): scaling commutes, a shear does not."""
    turn = linear_action({"turn": [[0.0, -1.0], [1.0, 0.0]]})
    clouds = torch.randn(2, 4, 2, dtype=torch.float64)
    good, bad = nn.Linear(2, 2, bias=False).double(), nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        good.weight.copy_(torch.tensor([[0.5, -2.0], [2.0, 0.5]]))
        bad.weight.copy_(torch.tensor([[1.0, 1.0], [0.0, 1.0]]))
    network = nn.Sequential(good, bad)
    found = attributed(
        network, clouds, turn, outputs=Follows(turn), layouts={"0": turn, "1": Follows(turn)}
    )
    assert by_name(found)["0"].max() < 1e-14 and by_name(found)["1"].min() > 0.1
    assert [row.layout for row in found.rows] == ["moved by turn", "moved by turn"]


def test_layouts_said_by_the_user_move_the_blame() -> None:
    network, data = built("convolutional")
    plain = attributed(network, data)
    said = attributed(network, data, layouts={"2": "invariant"})
    assert said.rows[2].layout == "invariant" and plain.rows[2].layout == "image"
    assert said.closure.max() < 1e-12
    assert not torch.allclose(said.norms[2], plain.norms[2])
    # Behind it nothing moves any more, so that nobody else takes any blame.
    assert [row.layout for row in said.rows[2:]] == ["invariant"] * 5
    assert not said.norms[3:].any()
    torch.testing.assert_close(said.norms[0], plain.norms[0])


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({"method": "sideways"}, "unknown attribution 'sideways'"),
        ({"probes": 0}, "probes: expected at least 1"),
        ({"layouts": {"0": "sequence"}}, "operation '0': expected sequences"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict, sentence: str) -> None:
    network, data = built("convolutional")
    with pytest.raises(CallerError, match=sentence):
        attributed(network, data, **arguments)


# --- in-place changes --------------------------------------------------------------------------


def set_rows(x: Tensor) -> Tensor:
    x = x * 1
    x[:, :, 2:5] = torch.tanh(x[:, :, 1:4])
    return x.mean((2, 3))


def in_place_functions(x: Tensor) -> Tensor:
    y = F.relu(x * 2, inplace=True)
    y *= x
    y.add_(x).clamp_(-90, 90)
    return y.amax((2, 3))


@pytest.mark.parametrize("function", [set_rows, in_place_functions])
@pytest.mark.parametrize("method", ["forward", "backward"])
def test_in_place_changes_that_keep_the_derivative(function, method: str) -> None:
    data = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    found = attributed(Between(function), data, method=method)
    assert found.closure.max() < 1e-12 and found.squares.min() > 0


def through_a_view(x: Tensor) -> Tensor:
    y = x * 2
    y.flatten(2).mul_(3)
    return y.mean((2, 3))


def behind_a_view(x: Tensor) -> Tensor:
    y = x * 2
    view = y[:, :2]
    y.add_(1)
    return view.mean((2, 3))


@pytest.mark.parametrize("function", [through_a_view, behind_a_view])
@pytest.mark.parametrize("directions", [1, 2])
def test_changes_through_another_name_are_refused(function, directions: int) -> None:
    data = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    some = torch.eye(2, dtype=torch.float64)[:directions]
    with pytest.raises(
        CallerError, match=r"'mean' gets a tensor that was changed in place.*out-of"
    ):
        attributed(Between(function), data, directions=some)


def test_a_layer_that_changes_its_input_without_saying_so_is_refused() -> None:
    class Sly(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu_()

    network = nn.Sequential(nn.Conv2d(3, 3, 1), Sly()).double()
    with pytest.raises(CallerError, match="'1' gets a tensor that was changed in place"):
        attributed(network, torch.randn(2, 3, 8, 8, dtype=torch.float64))


def test_what_a_backward_pass_needs_is_changed_in_place() -> None:
    network = Between(lambda x: (x**2).exp().add_(1).mean((2, 3)))
    data = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    assert attributed(network, data).closure.max() < 1e-12
    with pytest.raises(CallerError, match="out-of-place form.*or attribution='forward'"):
        attributed(network, data, method="backward")


def without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.tanh(x).mean((2, 3))


def test_no_grad_hinders_only_backward_passes() -> None:
    data = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    assert attributed(Between(without_gradient), data).closure.max() < 1e-12
    with pytest.raises(CallerError, match="torch.no_grad.*use attribution='forward'"):
        attributed(Between(without_gradient), data, method="backward")


@pytest.mark.parametrize("late", [False, True], ids=["where it moves", "where it is invariant"])
def test_a_cut_derivative_is_refused(late: bool) -> None:
    def cut(x: Tensor) -> Tensor:
        return torch.tanh(x).mean((2, 3)).detach() if late else torch.tanh(x.detach()).mean((2, 3))

    with pytest.raises(CallerError, match="'detach' cuts the derivative.*leave the detach out"):
        attributed(Between(cut), torch.randn(2, 3, 8, 8, dtype=torch.float64))


def test_an_output_that_does_not_depend_on_the_input_is_refused() -> None:
    network = Between(lambda x: torch.zeros(len(x), 2, dtype=x.dtype))
    with pytest.raises(CallerError, match="does not depend on the input"):
        attributed(network, torch.randn(2, 3, 8, 8, dtype=torch.float64))


class Squared(torch.autograd.Function):
    """x², and a derivative of `slope` times the true one."""

    slope = 1.0

    @classmethod
    def of(cls, x: Tensor) -> Tensor:
        return cls.apply(x)

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @classmethod
    def backward(cls, ctx, gradient: Tensor) -> Tensor:
        return cls.slope * 2 * ctx.saved_tensors[0] * gradient

    @classmethod
    def jvp(cls, ctx, tangent: Tensor) -> Tensor:
        return cls.slope * 2 * ctx.saved_tensors[0] * tangent


class Pretended(Squared):
    slope = 3.0


@pytest.mark.parametrize("kind", [Squared, Pretended])
def test_functions_of_the_users_own(kind: type[Squared]) -> None:
    """In a layer of its own it counts by its own derivative; elsewhere it is looked into."""
    data = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    layer = nn.Sequential(Compute(kind.of), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    for method in ("forward", "backward"):
        assert attributed(layer, data, method=method).closure.max() < 1e-12
    between = Between(lambda x: (x + kind.of(x)).amax((2, 3)))
    if kind is Squared:
        assert attributed(between, data).closure.max() < 1e-12
    else:
        with pytest.raises(CallerError, match="jvp is not the derivative of its forward"):
            attributed(between, data)
    with pytest.raises(CallerError, match="put the Function into a layer of its own"):
        attributed(between, data, method="backward")


def test_a_layer_without_forward_derivative_is_refused() -> None:
    class Backwards(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            return x * x

        @staticmethod
        def backward(ctx, gradient: Tensor) -> Tensor:
            return gradient

    layer = nn.Sequential(Compute(Backwards.apply), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    data = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    directions = torch.eye(2, dtype=torch.float64)
    whole = torch.zeros(2, 2, 3, dtype=torch.float64)
    for some in (directions, directions[:1]):
        with pytest.raises(CallerError, match="operation '0' .Compute. has no forward-mode.*a jvp"):
            attribute(Subject(layer), data, TURNS, some, whole[: len(some)], Invariant())


def test_grid_is_the_default_layout_of_image_outputs() -> None:
    network, data = built("u-net")
    found = attributed(network, data)
    assert found.rows[-1].name == "leave" and found.rows[-1].layout == "image"
    assert layout_for("auto", TURNS, network(data), what="output") == Grid((2, 3))


@pytest.mark.parametrize("method", ["forward", "backward", "probes"])
def test_one_number_for_an_example(method: str) -> None:
    """Outputs (batch,), without an axis for them."""
    network, data = built("convolutional")
    energy = nn.Sequential(network, Between(lambda x: x.square().sum(1)))
    found = attributed(energy, data, method=method)
    assert found.closure.max() < 1e-12 and found.squares.min() > 0
    assert found.norms.shape == (len(found.rows), 2, 3)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("method", ["forward", "backward"])
def test_an_identity_hands_on_the_tensor_itself(directions: int, method: str) -> None:
    """What is changed in place behind it is changed before it too."""

    def change(x: Tensor, identity: nn.Module) -> Tensor:
        base = x * 1
        identity(base).mul_(torch.linspace(1, 2, 8, dtype=x.dtype))
        return base.square().mean((2, 3))

    network = Between(change, nn.Identity())
    some = torch.eye(2, dtype=torch.float64)[:directions]
    data = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    found = attributed(network, data, method=method, directions=some)
    assert found.closure.max() < 1e-12
    assert by_name(found)["layers.0"].max() == 0 and by_name(found)["mul_"].min() > 0
