"""Record what enters and leaves every layer in one forward pass, leaving the network as it was.

The weights are constants during the pass (`functional_call` on detached tensors), so that
back-propagation to the recorded outputs forms no weight gradient. Hooks are removed, every
module's own training mode and the forward pass of attention (see `attention`) are restored on the
way out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from isotropy.checks import CallerError, shape_text
from isotropy.curvature.attention import visible_projections
from isotropy.kernels.fused import is_plain
from isotropy.kernels.kept_slopes import shifted
from isotropy.kernels.operations import RECORDED, twice_differentiable


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer: its input, and its output before anything else used it.

    shift: what the gradient is asked by to have it summed over copies (`kept_slopes`), if anything.
    """

    layer: str
    module: nn.Module
    inputs: Tensor
    output: Tensor
    version: int
    shift: Tensor | None = None

    def constants(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of a Linear layer, constant."""
        assert isinstance(self.module, nn.Linear)
        bias = self.module.bias
        return self.module.weight.detach(), None if bias is None else bias.detach()

    @property
    def is_plain_linear(self) -> bool:
        """A Linear layer on (rows, features), with no positions to share its weight over."""
        return type(self.module) is nn.Linear and self.inputs.ndim == 2


@dataclass(frozen=True)
class Recording:
    """The network's outputs (rows, outputs) and all calls, in the order they were made."""

    outputs: Tensor
    calls: tuple[Call, ...]

    def head(self) -> Call | None:
        """The call whose output *is* the network's output, if that is a plain Linear layer.

        An affine last layer commutes with the average over samples, so that everything behind it
        needs to be computed once per example instead of once per sample.
        """
        return next((c for c in self.calls if c.output is self.outputs and c.is_plain_linear), None)

    def before_head(self) -> Call | None:
        """The plain Linear call that reaches the head through an elementwise function, if any.

        Read off the graph, so that `torch.tanh(x)` and `nn.Tanh()` are both seen.
        """
        head = self.head()
        node = None if head is None else head.inputs.grad_fn
        if node is None or type(node).__name__ not in _ELEMENTWISE:
            return None
        source = node.next_functions[0][0]
        for call in self.calls:
            leaf = getattr(source, "variable", None) is call.output
            made = call.output.grad_fn is not None and call.output.grad_fn is source
            if call.is_plain_linear and (leaf or made):
                return call
        return None


_ELEMENTWISE = {"_ElementwiseBackward"} | {
    f"{name}Backward0"
    for name in ("Tanh", "Relu", "Sigmoid", "Gelu", "Silu", "Elu", "LeakyRelu", "Softplus",
                 "Mish", "Hardtanh", "Sin", "Cos")
}  # fmt: skip


def record(
    network: nn.Module,
    layers: Mapping[str, nn.Module],
    inputs: Tensor,
    copies: int = 1,
    summed: Collection[str] = (),
) -> Recording:
    """Run `network` on constant weights and record every call of the named `layers`.

    summed: those whose gradients are only wanted summed over `copies` of each example.
    On the reference path (`kernels.fused`) every operation is torch's own.
    """
    calls: list[Call] = []
    constants = {name: parameter.detach() for name, parameter in network.named_parameters()}
    copy_outputs = any(getattr(module, "inplace", False) for module in network.modules())
    with (
        torch.enable_grad(),
        evaluation_mode(network),
        _recorder(network, layers, calls, copy_outputs, copies, summed),
    ):
        try:
            outputs = functional_call(network, constants, (inputs,))
        except RuntimeError as error:
            if calls and "a leaf Variable that requires grad" in str(error):
                raise _changed_in_place(calls[-1].layer) from error
            raise
    outputs = checked_outputs(outputs)
    for call in calls:
        if call.output._version != call.version:
            raise _changed_in_place(call.layer)
        if len(call.inputs) != len(inputs):
            raise CallerError(
                f"layer {call.layer!r}: expected its first axis to be the rows of the input "
                f"({len(inputs)}), got {shape_text(call.inputs)}; keep other axes behind the batch "
                "axis"
            )
    return Recording(outputs, tuple(calls))


def _changed_in_place(layer: str) -> CallerError:
    return CallerError(
        f"the output of layer {layer!r} is changed in place by what follows it; use "
        "the out-of-place form (relu instead of relu_)"
    )


@contextmanager
def _recorder(
    network: nn.Module,
    layers: Mapping[str, nn.Module],
    calls: list[Call],
    copy_outputs: bool,
    copies: int,
    summed: Collection[str],
) -> Iterator[None]:
    def keep(name: str, module: nn.Module, inputs: Tensor, output: Tensor) -> Tensor:
        shift = None
        if name in summed and len(output) % copies == 0:
            output, shift = shifted(output, copies)
        elif not output.requires_grad:
            output.requires_grad_()
        calls.append(Call(name, module, inputs, output, output._version, shift))
        # An in-place operation must not reach the recorded output.
        return output.clone() if copy_outputs else output

    handles = [
        module.register_forward_hook(
            lambda module, arguments, named, output, name=name: keep(
                name, module, next(iter((*arguments, *named.values()))), output
            ),
            with_kwargs=True,
        )
        for name, module in layers.items()
        if type(module) is not nn.MultiheadAttention
    ]
    try:
        stands = {} if is_plain() else RECORDED
        with twice_differentiable(stands), visible_projections(network, layers, keep):
            yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Dropout off and statistics fixed inside, every module's own mode restored after."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def checked_outputs(outputs: object) -> Tensor:
    """What a network returned, if that is (batch, outputs)."""
    if not isinstance(outputs, Tensor) or outputs.ndim != 2:
        came = shape_text(outputs) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise CallerError(f"network outputs: expected (batch, outputs), got {came}")
    return outputs


def full_name(layer: str, parameter: str) -> str:
    """The name of a layer's parameter in the network; "" is the network itself."""
    return f"{layer}.{parameter}" if layer else parameter
