"""torch's multi-head attention made visible: the same outputs, everything put back, refusals.

Its blocks are compared with those of two Linear layers in `test_kfac`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from network_cases import assert_blocks_equal, assert_equal, library_blocks
from network_modules import CLASSES, EMBEDDING, Attention, Transformer
from numerics import numbers
from oracles.dense_kfac import SpelledOutAttention
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.attention import visible_projections
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.curvature.recording import record
from isotropy.kernels.operations import twice_differentiable
from isotropy.likelihoods import Categorical

BATCH, COUNT, HEADS = 3, 4, 2
EXACTLY = 1e-12


def attention(**settings: Any) -> nn.MultiheadAttention:
    made = nn.MultiheadAttention(EMBEDDING, HEADS, batch_first=True, **settings).double().eval()
    with torch.no_grad():
        for seed, parameter in enumerate(made.parameters()):
            parameter.copy_(numbers(*parameter.shape, seed=seed + 1))
    return made


TRIANGLE = torch.ones(COUNT, COUNT, dtype=torch.bool).triu(1)
PADDING = torch.arange(COUNT) >= torch.tensor([4, 3, 2])[:, None]
NUMBERS = numbers(COUNT, COUNT, seed=7)

# name: what the call is given besides the tokens
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no weights": {"need_weights": False},
    "weights of each head": {"average_attn_weights": False},
    "mask": {"attn_mask": TRIANGLE},
    "mask, no weights": {"attn_mask": TRIANGLE, "need_weights": False},
    "mask of numbers": {"attn_mask": NUMBERS},
    "mask for each head": {"attn_mask": numbers(BATCH * HEADS, COUNT, COUNT, seed=8)},
    "mask for each head, no weights": {
        "attn_mask": numbers(BATCH * HEADS, COUNT, COUNT, seed=8) > 1, "need_weights": False},
    "padding": {"key_padding_mask": PADDING},
    "padding, no weights": {"key_padding_mask": PADDING, "need_weights": False},
    "padding of numbers": {"key_padding_mask": numbers(BATCH, COUNT, seed=9)},
    "both": {"attn_mask": TRIANGLE, "key_padding_mask": PADDING},
    "both, no weights": {
        "attn_mask": TRIANGLE, "key_padding_mask": PADDING, "need_weights": False},
    "causal": {"attn_mask": TRIANGLE, "is_causal": True, "need_weights": False},
    "causal with weights": {"attn_mask": TRIANGLE, "is_causal": True},
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_outputs_are_those_of_torch(name: str):
    module, tokens = attention(bias=name != "both", dropout=0.5), numbers(BATCH, COUNT, EMBEDDING)
    plain = module(tokens, tokens, tokens, **CALLS[name])
    with torch.no_grad():
        fused = module(tokens, tokens, tokens, **CALLS[name])
    calls = []

    def keep(name: str, owner: nn.Module, inputs: Tensor, output: Tensor) -> Tensor:
        calls.append((name, owner, inputs, output))
        return output

    with visible_projections(module, {"": module}, keep):
        visible = module(tokens, tokens, tokens, **CALLS[name])
    assert isinstance(visible, tuple) and len(visible) == 2
    for expected in (plain, fused):
        assert_equal(visible[0].detach(), expected[0].detach(), "outputs", EXACTLY)
        assert (visible[1] is None) == (expected[1] is None)
        if visible[1] is not None:
            assert_equal(visible[1].detach(), expected[1].detach(), "weights", EXACTLY)
    ((called, owner, inputs, projected),) = calls
    assert called == "" and owner is module and inputs is tokens
    assert projected.shape == (BATCH, COUNT, 3 * EMBEDDING)


@pytest.mark.parametrize("name", ["plain", "both", "padding of numbers", "mask, no weights"])
def test_the_oracle_is_attention_too(name: str):
    module, tokens = attention(), numbers(BATCH, COUNT, EMBEDDING)
    expected, weights = module(tokens, tokens, tokens, **CALLS[name])
    found, found_weights = SpelledOutAttention(module)(tokens, tokens, tokens, **CALLS[name])
    assert_equal(found.detach(), expected.detach(), "outputs", EXACTLY)
    if weights is not None:
        assert_equal(found_weights.detach(), weights.detach(), "weights", EXACTLY)


class Padded(nn.Module):
    """torch's encoder of two layers, with padding: nested tensors in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(EMBEDDING, HEADS, 5, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(EMBEDDING, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        padding = (torch.arange(COUNT) == COUNT - 1).expand(len(tokens), -1)
        return self.head(self.encoder(tokens, src_key_padding_mask=padding)[:, :-1].mean(1))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_that_would_take_its_fused_path():
    network, rows = Padded().double().eval(), numbers(4, COUNT, EMBEDDING)
    with torch.no_grad():
        fused = network(rows)
    batch = KFAC(network).batch(rows, Copies(1), Categorical())
    assert_equal(batch.outputs, fused, "outputs", 1e-10)
    assert batch.roots.keys() == dict(network.named_parameters()).keys()


def test_dropout_is_off():
    with_dropout = Transformer(dropout=0.5).double().train()
    without = Transformer(dropout=0.0).double()
    without.load_state_dict(with_dropout.state_dict())
    rows = numbers(4, COUNT, EMBEDDING)
    expected = library_blocks(without, rows, 2, Categorical())
    assert_blocks_equal(library_blocks(with_dropout, rows, 2, Categorical()), expected)
    assert all(module.training for module in with_dropout.modules())


# --- put back -----------------------------------------------------------------------------------


def flags() -> tuple[bool, ...]:
    backends = torch.backends.cuda
    return (
        torch.backends.mha.get_fastpath_enabled(),
        backends.flash_sdp_enabled(),
        backends.mem_efficient_sdp_enabled(),
        backends.math_sdp_enabled(),
    )


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("fused", [True, False])
def test_forward_passes_and_kernels_are_put_back(fused: bool, fails: bool):
    network = Attention().double()
    torch.backends.mha.set_fastpath_enabled(fused)
    before = flags()
    rows = numbers(4, COUNT, EMBEDDING + (1 if fails else 0))
    try:
        if fails:
            with pytest.raises(RuntimeError):
                KFAC(network).batch(rows, Copies(2), Categorical())
        else:
            KFAC(network).batch(rows, Copies(2), Categorical())
        assert flags() == before
        assert "forward" not in network.attention.__dict__
        with twice_differentiable():
            assert flags() == (False, False, False, True)
        assert flags() == before
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_a_forward_pass_of_ones_own_is_put_back():
    network = Attention().double()
    own = network.attention.forward
    network.attention.forward = own
    KFAC(network).batch(numbers(4, COUNT, EMBEDDING), Copies(2), Categorical())
    assert network.attention.__dict__["forward"] is own


def test_attention_without_trainable_parts_is_left_alone():
    """What is not recorded needs no rule: keys of another size, tokens first, cross-attention."""

    class Cross(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(EMBEDDING, HEADS, kdim=2, vdim=2)
            self.attention.requires_grad_(False)
            self.head = nn.Linear(EMBEDDING, CLASSES)

        def forward(self, tokens: Tensor) -> Tensor:
            query, other = tokens.transpose(0, 1), tokens[..., :2].transpose(0, 1)
            return self.head(self.attention(query, other, other)[0].mean(0))

    network, rows = Cross().double(), numbers(4, COUNT, EMBEDDING)
    batch = KFAC(network).batch(rows, Copies(1), Categorical())
    assert list(batch.roots) == ["head.weight", "head.bias"]
    assert_equal(batch.outputs, network(rows).detach(), "outputs")


@pytest.mark.parametrize("call", ["cross-attention", "another value"])
def test_without_a_recorded_in_projection_torch_does_what_it_does(call: str):
    network, rows = Called(BAD_CALLS[call][0]).double().eval(), numbers(4, COUNT, EMBEDDING)
    found = record(network, {"out": network.attention.out_proj, "head": network.head}, rows)
    assert_equal(found.outputs.detach(), network(rows).detach(), "outputs")
    assert [call.layer for call in found.calls] == ["head"]


# --- refused ------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[], nn.MultiheadAttention], str]] = {
    "tokens first": (
        lambda: nn.MultiheadAttention(4, 2), "expected batch_first=True, got False; make it with"),
    "other keys": (
        lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=5, batch_first=True),
        r"keys and values of the size of queries \(4\), got kdim 3 and vdim 5; use nn.Linear"),
    "bias of keys": (
        lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True, batch_first=True),
        "expected add_bias_kv=False, got True; make it without"),
    "zero attention": (
        lambda: nn.MultiheadAttention(4, 2, add_zero_attn=True, batch_first=True),
        "expected add_zero_attn=False, got True; make it without"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_at_construction(name: str):
    build, sentence = REFUSED[name]
    with pytest.raises(CallerError, match=f"layer '0' of type MultiheadAttention: .*{sentence}"):
        KFAC(nn.Sequential(build()))


class Called(nn.Module):
    """Attention called in a way that is given."""

    def __init__(self, call: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(EMBEDDING, HEADS, batch_first=True)
        self.head = nn.Linear(EMBEDDING, CLASSES)
        self.call = call

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.call(self.attention, tokens)[0].mean(1))


BAD_CALLS: dict[str, tuple[Callable[[nn.Module, Tensor], Any], str]] = {
    "cross-attention": (
        lambda a, x: a(x, x + 1, x + 1),
        "layer 'attention' .*expected self-attention, .* got different ones; use nn.Linear",
    ),
    "another value": (lambda a, x: a(x, x, 2 * x), "expected self-attention"),
    "no batch": (
        lambda a, x: a(*[x[0]] * 3),
        r"expected \(batch, tokens, embedding\), got \(4, 4\)",
    ),
    "causal without a mask": (
        lambda a, x: a(x, x, x, is_causal=True),
        "expected attn_mask together with is_causal=True, got none; hand in both",
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_refused_in_the_forward_pass(name: str):
    call, sentence = BAD_CALLS[name]
    network = Called(call).double()
    with pytest.raises(CallerError, match=sentence):
        record(network, {"attention": network.attention}, numbers(4, COUNT, EMBEDDING))
    assert "forward" not in network.attention.__dict__
