"""Recurrent layers written out, step by step, as calls of linear maps.

    RNN    h′ = φ(W x + b + U h + c)                              φ tanh or ReLU
    GRU    r, z = σ(W x + b + U h + c)   n = tanh(W x + b + r ⊙ (U h + c))   h′ = (1 − z) n + z h
    LSTM   i, f, g, o = W x + b + U h + c   s′ = σ(f) s + σ(i) tanh(g)   h′ = P σ(o) tanh(s′)

torch runs all steps of `nn.RNN`, `nn.GRU` and `nn.LSTM` in one function, which has no second
derivative, no derivative for each example, and in which nothing can be recorded. Inside
`written_out` they, and their cells, are made of `functional.linear` and elementwise functions: the
same values, and every weight meets its input in a call that `functions` sees. Time is an axis of
positions that W is shared over; U has one use a step.

Tensors are (batch, time, features) inside, whatever `batch_first` says.
Oracle: torch's own layers, and tests/oracles/dense_ggn.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

from isotropy.checks import CallerError


def _stepped(
    mode: str, entering: Tensor, kept: Tensor, hidden: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """h′ and s′ from W x + b, U h + c, h and s; only an LSTM has a state s."""
    if mode == "LSTM":
        assert state is not None
        enter, forget, new, out = (entering + kept).chunk(4, -1)
        state = forget.sigmoid() * state + enter.sigmoid() * new.tanh()
        return out.sigmoid() * state.tanh(), state
    if mode == "GRU":
        from_input, from_hidden = entering.chunk(3, -1), kept.chunk(3, -1)
        reset = (from_input[0] + from_hidden[0]).sigmoid()
        update = (from_input[1] + from_hidden[1]).sigmoid()
        new = (from_input[2] + reset * from_hidden[2]).tanh()
        return new + update * (hidden - new), None
    total = entering + kept
    return total.relu() if mode == "RNN_RELU" else total.tanh(), None


class _Layers:
    """The forward pass of nn.RNN, nn.GRU or nn.LSTM in evaluation mode."""

    def __init__(self, module: nn.RNNBase) -> None:
        self.module = module

    def __call__(self, inputs: Any, start: Any = None) -> tuple[Tensor, Any]:
        module = self.module
        if isinstance(inputs, PackedSequence):
            raise CallerError(
                f"layer of type {type(module).__name__}: expected a tensor (batch, time, "
                "features), got a PackedSequence; pad the sequences, and hand over their lengths "
                "as another input"
            )
        unbatched = inputs.ndim == 2
        time_axis = 1 if module.batch_first else 0
        if unbatched:
            inputs, time_axis = inputs[None], 1
        rows = inputs if time_axis == 1 else inputs.transpose(0, 1)
        hidden, states = self._start(rows, start, unbatched)
        last_hidden: list[Tensor] = []
        last_states: list[Tensor | None] = []
        for layer in range(module.num_layers):
            outputs = []
            for backwards in range(2 if module.bidirectional else 1):
                number = len(last_hidden)
                suffix = f"_l{layer}" + "_reverse" * backwards
                state = None if states is None else states[number]
                found, ended, cell = self._pass(rows, hidden[number], state, suffix, backwards)
                outputs.append(found)
                last_hidden.append(ended)
                last_states.append(cell)
            rows = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
        result = rows if time_axis == 1 else rows.transpose(0, 1)
        end: Any = torch.stack(last_hidden)
        if module.mode == "LSTM":
            end = (end, torch.stack([cell for cell in last_states if cell is not None]))
        if unbatched:
            result = result[0]
            end = tuple(e[:, 0] for e in end) if isinstance(end, tuple) else end[:, 0]
        return result, end

    def _start(self, rows: Tensor, start: Any, unbatched: bool) -> tuple[Any, Any]:
        """h and s that the passes begin with, each (layers · directions, batch, features)."""
        module = self.module
        number = module.num_layers * (2 if module.bidirectional else 1)
        if start is None:
            size = module.proj_size or module.hidden_size
            zeros = rows.new_zeros(number, len(rows), size)
            if module.mode != "LSTM":
                return zeros, None
            return zeros, rows.new_zeros(number, len(rows), module.hidden_size)
        hidden, state = start if module.mode == "LSTM" else (start, None)
        if unbatched:
            hidden, state = hidden[:, None], None if state is None else state[:, None]
        return hidden, state

    def _pass(
        self, rows: Tensor, hidden: Tensor, state: Tensor | None, suffix: str, backwards: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """One layer in one direction: outputs (batch, time, features), last h and s."""
        module = self.module
        entering = functional.linear(rows, *self._weights("ih", suffix))
        steps = range(rows.shape[1])
        found: list[Tensor] = []
        for step in reversed(steps) if backwards else steps:
            kept = functional.linear(hidden, *self._weights("hh", suffix))
            hidden, state = _stepped(module.mode, entering[:, step], kept, hidden, state)
            if module.proj_size:
                hidden = functional.linear(hidden, getattr(module, f"weight_hr{suffix}"))
            found.append(hidden)
        return torch.stack(found[::-1] if backwards else found, 1), hidden, state

    def _weights(self, which: str, suffix: str) -> tuple[Tensor, Tensor | None]:
        weight: Tensor = getattr(self.module, f"weight_{which}{suffix}")
        bias = getattr(self.module, f"bias_{which}{suffix}") if self.module.bias else None
        return weight, bias


class _Cell:
    """The forward pass of nn.RNNCell, nn.GRUCell or nn.LSTMCell."""

    def __init__(self, module: nn.RNNCellBase) -> None:
        self.module = module
        self.mode = {nn.LSTMCell: "LSTM", nn.GRUCell: "GRU"}.get(type(module), "RNN_TANH")
        if getattr(module, "nonlinearity", "tanh") == "relu":
            self.mode = "RNN_RELU"

    def __call__(self, inputs: Tensor, start: Any = None) -> Any:
        module = self.module
        rows = inputs if inputs.ndim == 2 else inputs[None]
        state = None
        if start is None:
            hidden = rows.new_zeros(len(rows), module.hidden_size)
            state = hidden if self.mode == "LSTM" else None
        else:
            hidden, state = start if self.mode == "LSTM" else (start, None)
            if inputs.ndim == 1:
                hidden, state = hidden[None], None if state is None else state[None]
        entering = functional.linear(rows, module.weight_ih, module.bias_ih)
        kept = functional.linear(hidden, module.weight_hh, module.bias_hh)
        hidden, state = _stepped(self.mode, entering, kept, hidden, state)
        if inputs.ndim == 1:
            hidden, state = hidden[0], None if state is None else state[0]
        return (hidden, state) if self.mode == "LSTM" else hidden


_LAYERS = (nn.RNN, nn.GRU, nn.LSTM)
_CELLS = (nn.RNNCell, nn.GRUCell, nn.LSTMCell)


@contextmanager
def written_out(network: nn.Module) -> Iterator[None]:
    """Inside, recurrent layers of the network run step by step; afterwards as before.

    They do not drop anything between layers: this is for evaluation mode.
    """
    with ExitStack() as stack:
        for module in network.modules():
            forward = getattr(type(module), "forward", None)  # None: a scripted module
            if any(isinstance(module, kind) and forward is kind.forward for kind in _LAYERS):
                stack.enter_context(_replaced(module, _Layers(module)))  # type: ignore[arg-type]
            elif any(isinstance(module, kind) and forward is kind.forward for kind in _CELLS):
                stack.enter_context(_replaced(module, _Cell(module)))  # type: ignore[arg-type]
        yield


@contextmanager
def _replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    own = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.__dict__["forward"]
        if own is not None:
            module.forward = own
