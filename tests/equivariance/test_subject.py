"""Which function is measured, and what is refused before it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from measured_networks import NETWORKS, Compute, SeveralInputs, built
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.equivariance.subject import (
    Subject,
    copy_of,
    differentiable_forward,
    first_of,
    plain_network,
    rows_of,
)


def images(batch: int = 3) -> Tensor:
    return torch.randn(batch, 3, 8, 8, dtype=torch.float64)


def several() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    return SeveralInputs().double(), {
        "vector": torch.randn(3, 2, dtype=torch.float64),
        "image": images(),
    }


# --- the function -------------------------------------------------------------------------------


def test_outputs_and_probabilities() -> None:
    network, data = built("convolutional")
    plain = Subject(network)(data)
    assert torch.equal(plain, network(data))
    assert torch.equal(Subject(network, "probabilities")(data), plain.softmax(1))
    with pytest.raises(CallerError, match="unknown on 'logits'"):
        Subject(network, "logits")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "select", ["scores", lambda found: found["scores"], lambda found: found["both"][0]]
)
def test_one_of_several_outputs(select: Any) -> None:
    network, inputs = several()
    wanted = network(**inputs)
    found = Subject(network, select=select, moves="image")(inputs)
    assert torch.equal(found, wanted[select] if isinstance(select, str) else select(wanted))


def test_a_position_in_a_tuple() -> None:
    network = Compute(lambda x: (x.sum(), x.mean((2, 3))))
    data = images()
    assert torch.equal(Subject(network, select=1)(data), data.mean((2, 3)))


def test_one_of_several_inputs() -> None:
    network, inputs = several()
    subject = Subject(network, select="scores", moves="image")
    assert subject.moved(inputs) is inputs["image"]
    assert Subject(network).moved(inputs) is inputs["vector"], "the first"
    other = subject.with_moved(inputs, torch.zeros(1))
    assert isinstance(other, dict) and list(other) == ["vector", "image"]
    assert other["vector"] is inputs["vector"] and inputs["image"].numel() > 1
    with pytest.raises(CallerError, match="unknown input 'picture'.*vector, image"):
        Subject(network, moves="picture").moved(inputs)


def test_rows_of_inputs() -> None:
    _, inputs = several()
    two = first_of(inputs, 2)
    assert isinstance(two, dict) and {len(each) for each in two.values()} == {2}
    last = rows_of(inputs["image"], slice(1, 3))
    assert isinstance(last, Tensor) and torch.equal(last, inputs["image"][1:])
    copies = copy_of(inputs)
    assert isinstance(copies, dict) and torch.equal(copies["image"], inputs["image"])
    assert copies["image"].data_ptr() != inputs["image"].data_ptr()


# --- what passes --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_usual_networks_pass(name: str) -> None:
    network, data = built(name)
    kept, state = data.clone(), torch.get_rng_state()
    Subject(network).check(data)
    Subject(network).check(data[:1])
    assert torch.equal(data, kept) and torch.equal(torch.get_rng_state(), state)


def test_layers_that_do_nothing_at_random_pass() -> None:
    layers = [
        nn.Dropout(0.5).eval(),
        nn.Dropout(0.0).train(),
        nn.InstanceNorm2d(3),
        nn.GroupNorm(1, 3).double(),
    ]
    for layer in layers:
        Subject(nn.Sequential(layer)).check(images())


def test_weights_may_be_detached() -> None:
    """Only what depends on the input must not be."""
    weight = nn.Parameter(torch.randn(3, 1, 1, dtype=torch.float64))
    Subject(Compute(lambda x: (x * weight.detach()).mean((2, 3)))).check(images())


# --- what is refused ----------------------------------------------------------------------------


def looks_at_batch(x: Tensor) -> Tensor:
    return x.mean((2, 3)) - x.mean()


def cut(x: Tensor) -> Tensor:
    return torch.tanh(x).detach().mean((2, 3))


def cut_late(x: Tensor) -> Tensor:
    return torch.tanh(x).mean((2, 3)).data


def changes_its_input(x: Tensor) -> Tensor:
    x += 1
    return x.mean((2, 3))


REFUSED: dict[str, tuple[nn.Module, str]] = {
    "batch norm, training": (
        nn.Sequential(nn.BatchNorm2d(3).double()),
        r"layer '0' \(BatchNorm2d\) normalises by the statistics of the batch.*model.eval\(\)",
    ),
    "batch norm without statistics": (
        nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False).double()).eval(),
        "give it running statistics",
    ),
    "dropout, training": (
        nn.Sequential(nn.Conv2d(3, 3, 1), nn.Dropout(0.1)).double(),
        r"layer '1' \(Dropout\) drops at random.*model.eval\(\)",
    ),
    "random": (Compute(lambda x: F.dropout(x, 0.01).mean((2, 3))), r"draws at random.*eval\(\)"),
    "random, and not used": (
        Compute(lambda x: x.mean((2, 3)) + 0 * torch.rand(())),
        "draws at random",
    ),
    "the batch": (Compute(looks_at_batch), "changes with the rest of the batch.*fix what looks"),
    "dictionary": (
        Compute(lambda x: {"a": x, "b": x}),
        "got a dictionary with 'a', 'b'; choose one with select=",
    ),
    "tuple": (Compute(lambda x: (x, x)), "got tuple of 2; choose one with select="),
    "integers out": (Compute(lambda x: x.mean((2, 3)).argmax(1)), "expected floating-point"),
    "one number": (Compute(lambda x: x.sum()), "for every example"),
    "too few rows": (Compute(lambda x: x.mean((2, 3))[:1]), "one row for every example"),
    "not finite": (Compute(lambda x: x.mean((2, 3)) / 0), "network output: expected finite"),
    "detach": (Compute(cut), "'detach' cuts the derivative.*leave the detach out"),
    "data": (Compute(cut_late), "'data' cuts the derivative"),
    "constant": (
        Compute(lambda x: torch.zeros(len(x), 2)),
        "does not depend on the input that moves.*with select=, or another input with moves=",
    ),
    "input in place": (
        Compute(changes_its_input),
        r"changes its own input in place; copy it first \(x = x.clone\(\)\)",
    ),
    "input in place, by a layer": (
        nn.Sequential(nn.ReLU(inplace=True)),
        r"changes its own input in place.*inplace=False",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_remedy(name: str) -> None:
    network, sentence = REFUSED[name]
    data = images()
    kept, state = data.clone(), torch.get_rng_state()
    with pytest.raises(CallerError, match=sentence):
        Subject(network).check(data)
    assert torch.equal(data, kept), "what the caller handed in is as it was"
    assert torch.equal(torch.get_rng_state(), state)


def rounds_by_the_batch(x: Tensor) -> Tensor:
    return x.mean((2, 3)) + 1e6 * torch.finfo(x.dtype).eps * len(x)


def test_a_network_that_amplifies_rounding_is_measured_in_double_precision() -> None:
    subject, data = Subject(Compute(rounds_by_the_batch)), images()
    with pytest.raises(CallerError, match=r"rounding in torch.float32.*model.double\(\)"):
        subject.check(data.float())
    subject.check(data.double())


@pytest.mark.parametrize(
    "inputs, sentence",
    [
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), r"got torch.uint8; convert with x.float\(\)"),
        (torch.full((2, 3, 8, 8), torch.nan), "inputs: expected finite numbers"),
    ],
)
def test_inputs_that_are_refused(inputs: Tensor, sentence: str) -> None:
    with pytest.raises(CallerError, match=sentence):
        Subject(nn.Conv2d(3, 2, 1)).check(inputs)


@pytest.mark.parametrize("select", ["logits", 3])
def test_wrong_choices_of_an_output(select: str | int) -> None:
    network, inputs = several()
    with pytest.raises(CallerError, match="select: the network's output has no .*'scores'"):
        Subject(network, select=select, moves="image").check(inputs)


def test_an_output_that_does_not_depend_on_the_input_that_moves() -> None:
    network, inputs = several()
    with pytest.raises(CallerError, match="does not depend on the input that moves"):
        Subject(network, select=lambda found: found["both"][1], moves="image").check(inputs)


def test_probabilities_need_classes() -> None:
    for function in (lambda x: x.mean((1, 2, 3)), lambda x: x.mean((2, 3)).round().long()):
        with pytest.raises(CallerError, match="expected logits.*use on='outputs'"):
            Subject(Compute(function), "probabilities").check(images())


# --- what is compiled or fused ------------------------------------------------------------------


def test_the_module_within_a_compiled_one() -> None:
    inner = nn.Linear(2, 2)
    wrapper = nn.Module()
    wrapper._orig_mod = inner
    assert plain_network(wrapper) is inner and plain_network(inner) is inner


def test_the_fast_path_is_put_back() -> None:
    before = torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(KeyboardInterrupt), differentiable_forward():
        assert not torch.backends.mha.get_fastpath_enabled()
        raise KeyboardInterrupt
    assert torch.backends.mha.get_fastpath_enabled() == before


@pytest.mark.parametrize("rounded", [True, False])
def test_products_are_not_rounded_and_the_user_gets_his_setting_back(rounded: bool) -> None:
    kept = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = rounded
        with pytest.raises(KeyboardInterrupt), differentiable_forward():
            assert not torch.backends.cudnn.allow_tf32
            assert not torch.backends.cuda.matmul.allow_tf32
            raise KeyboardInterrupt
        assert torch.backends.cudnn.allow_tf32 is rounded
        assert torch.backends.cuda.matmul.allow_tf32 is rounded
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = kept


def test_a_few_at_once_are_the_same_function() -> None:
    network = nn.Linear(3, 2)
    data = torch.randn(5, 3)
    sizes = []
    network.register_forward_hook(lambda module, inputs, output: sizes.append(len(output)))
    in_parts = Subject(network, at_once=2)(data)
    assert sizes == [2, 2, 1]
    torch.testing.assert_close(in_parts, Subject(network)(data))


def test_a_network_that_does_not_fit_the_data_is_named() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(5, 2))
    with pytest.raises(CallerError, match=r"does not accept inputs of shape \(1, 2, 2\)"):
        Subject(network).check(torch.rand(3, 1, 2, 2))


def test_recurrent_layers_have_a_derivative():
    """torch's LSTM in one function has no forward mode on a CPU."""

    class Sequence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.head(self.layer(inputs.transpose(1, 2))[0][:, -1])

    subject, data = Subject(Sequence().eval()), torch.randn(3, 2, 8)
    subject.check(data)
    _, found = torch.func.jvp(subject, (data,), (torch.ones_like(data),))
    with torch.no_grad():
        step = (subject(data + 1e-2) - subject(data - 1e-2)) / 2e-2
    torch.testing.assert_close(found, step, rtol=1e-2, atol=1e-3)
