"""Multi-head self-attention, with its two projections made visible as calls of Linear layers.

    q, k, v = W_in x + b_in        weight (3·embedding, embedding), shared over tokens
    y = W_out Σ_j softmax_j(qᵀk_j/√d + mask) v_j + b_out

`nn.MultiheadAttention` computes all of this in one function that calls none of its submodules, and
in evaluation mode in one kernel; nothing can be recorded there. While a network is recorded its
forward pass is therefore replaced by the same thing written out, in which the in-projection is
handed to the recorder and the out-projection is a call of `out_proj`; both then follow the rule of
Linear layers (Immer et al. 2022, Eq. 7 and 15, with tokens as positions).

Rows are (batch·copies, tokens, embedding). Attention made of nn.Linear and
`scaled_dot_product_attention` needs nothing of this but `twice_differentiable`.
Oracle: tests/oracles/dense_kfac.py, on a network of Linear layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from isotropy.checks import CallerError, shape_text
from isotropy.curvature.layer_rules import LinearRule, register_rule

Keep = Callable[[str, nn.Module, Tensor, Tensor], Tensor]
"""From a layer's name, module, input and output to what the forward pass goes on with."""


class AttentionRule(LinearRule):
    """The in-projection of nn.MultiheadAttention; `out_proj` is a layer of its own."""

    def __init__(self) -> None:
        super().__init__("in_proj_weight", "in_proj_bias")

    def check(self, module: nn.Module, name: str) -> None:
        assert isinstance(module, nn.MultiheadAttention)
        trouble = _beyond_the_rule(module)
        if trouble is not None:
            raise CallerError(f"layer {name!r} of type MultiheadAttention: {trouble}")


def _beyond_the_rule(module: nn.MultiheadAttention) -> str | None:
    """What was expected, what came and what to do; None where there is nothing to say."""
    if not module.batch_first:
        return "expected batch_first=True, got False; make it with batch_first=True"
    if not module._qkv_same_embed_dim:
        return (
            f"expected keys and values of the size of queries ({module.embed_dim}), got kdim "
            f"{module.kdim} and vdim {module.vdim}; use nn.Linear projections and "
            "scaled_dot_product_attention"
        )
    if module.bias_k is not None or module.add_zero_attn:
        option = "add_bias_kv" if module.bias_k is not None else "add_zero_attn"
        return f"expected {option}=False, got True; make it without"
    return None


def is_attention(module: nn.Module) -> bool:
    """Whether a module does what nn.MultiheadAttention does, and nothing else."""
    forward = nn.MultiheadAttention.forward
    return isinstance(module, nn.MultiheadAttention) and type(module).forward is forward


@contextmanager
def visible_projections(
    network: nn.Module, layers: Mapping[str, nn.Module], keep: Keep
) -> Iterator[None]:
    """Inside, attention of which one of `layers` is a part reports its in-projection to `keep`."""
    names = {id(module): name for name, module in layers.items()}
    with ExitStack() as stack:
        for module in network.modules():
            if not isinstance(module, nn.MultiheadAttention) or not is_attention(module):
                continue
            if _beyond_the_rule(module):
                continue
            if id(module) in names or id(module.out_proj) in names:
                name = names.get(id(module))
                stack.enter_context(_forward_replaced(module, name, keep))
        yield


@contextmanager
def _forward_replaced(
    module: nn.MultiheadAttention, name: str | None, keep: Keep
) -> Iterator[None]:
    own = module.__dict__.get("forward")
    module.forward = _Attention(module, name, keep)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.__dict__["forward"]
        if own is not None:
            module.forward = own  # type: ignore[method-assign]


@dataclass(frozen=True)
class _Attention:
    """The forward pass of `module`, written out.

    name: of the in-projection among the recorded layers; None if it is none of them.
    """

    module: nn.MultiheadAttention
    name: str | None
    keep: Keep

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """What nn.MultiheadAttention returns in evaluation mode, from the same arguments."""
        module = self.module
        trouble = None
        if query is not key or key is not value:
            trouble = (
                "expected self-attention, where query, key and value are one tensor, got different "
                "ones; use nn.Linear projections and scaled_dot_product_attention, or freeze the "
                "layer with requires_grad_(False)"
            )
        elif query.ndim != 3:
            trouble = f"expected (batch, tokens, embedding), got {shape_text(query)}"
        elif is_causal and attn_mask is None:
            trouble = "expected attn_mask together with is_causal=True, got none; hand in both"
        if trouble is not None and self.name is not None:
            raise CallerError(f"layer {self.name!r} of type MultiheadAttention: {trouble}")
        if trouble is not None:  # nobody asked for the in-projection; torch knows what to do
            options = (key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
            return nn.MultiheadAttention.forward(module, query, key, value, *options)
        projected = functional.linear(query, module.in_proj_weight, module.in_proj_bias)
        if self.name is not None:
            projected = self.keep(self.name, module, query, projected)
        # (batch, tokens, 3·embedding) → three times (batch, heads, tokens, embedding of a head)
        q, k, v = projected.unflatten(-1, (3, module.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mask = _merged_mask(module, query, attn_mask, key_padding_mask)
        weights = None
        if need_weights:
            scores = (q @ k.mT) * q.shape[-1] ** -0.5
            weights = (scores if mask is None else scores + mask).softmax(-1)
            attended = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            attended = functional.scaled_dot_product_attention(q, k, v, mask)
        return module.out_proj(attended.transpose(1, 2).flatten(2)), weights


def _merged_mask(
    module: nn.MultiheadAttention,
    query: Tensor,
    attention: Tensor | None,
    padding: Tensor | None,
) -> Tensor | None:
    """The sum of both masks, as numbers that add to scores (batch, heads, tokens, tokens)."""
    parts = []
    if attention is not None:
        if attention.ndim == 3:  # (batch·heads, tokens, tokens)
            attention = attention.unflatten(0, (-1, module.num_heads))
        parts.append(_added(attention, query))
    if padding is not None:
        parts.append(_added(padding[:, None, None, :], query))
    return sum(parts[1:], start=parts[0]) if parts else None


def _added(mask: Tensor, query: Tensor) -> Tensor:
    """A mask of booleans (True: not attended to) or numbers, as numbers."""
    if mask.dtype != torch.bool:
        return mask.to(query.dtype)
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask, float("-inf"))


register_rule(nn.MultiheadAttention, AttentionRule())
register_rule(NonDynamicallyQuantizableLinear, LinearRule())
