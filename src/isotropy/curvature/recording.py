"""Record what enters and leaves every layer in one forward pass, leaving the network as it was.

The weights are constants during the pass (`functional_call` on detached tensors), so that
back-propagation to the recorded outputs forms no weight gradient. Hooks are removed, every
module's own training mode and the forward pass of attention (see `attention`) are restored on the
way out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from isotropy.checks import CallerError, shape_text
from isotropy.curvature.attention import is_attention, visible_projections
from isotropy.curvature.functions import MeetingParameters, Met, Place, Seen
from isotropy.curvature.recurrent import written_out
from isotropy.kernels.fused import is_plain
from isotropy.kernels.kept_slopes import shifted
from isotropy.kernels.operations import RECORDED, twice_differentiable


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer: its input, and its output before anything else used it.

    shift: what the gradient is asked by to have it summed over copies (`kept_slopes`), if anything.
    met:   the parameters that a function met, where the call is not one of a layer with a rule of
           its own (`functions`); `module` then stands for its settings
    """

    layer: str
    module: nn.Module
    inputs: Tensor
    output: Tensor
    version: int
    shift: Tensor | None = None
    met: Met | None = None

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
    met: Collection[str] = (),
    places: Mapping[str, Place] | None = None,
) -> Recording:
    """Run `network` on constant weights and record every call of the named `layers`.

    summed: those whose gradients are only wanted summed over `copies` of each example.
    met:    parameters whose meetings with functions are recorded besides
    places: of layers and met parameters whose rows are not the first axis
    On the reference path (`kernels.fused`) every operation is torch's own. Where a layer's input or
    output is changed in place by what follows, the pass is run again on copies of them.
    """
    elsewhere = {name for name, place in (places or {}).items() if place is not Place.FIRST}
    apart = [name for name in summed if name not in elsewhere]
    copied = any(getattr(module, "inplace", False) for module in network.modules())
    recorder = _Recorder(network, layers, met, _Kept([], copied, copies, apart))
    recording = recorder.run(inputs)
    if recording is None:
        recorder = _Recorder(network, layers, met, _Kept([], True, copies, apart, inputs_too=True))
        recording = recorder.run(inputs)
    if recording is None:
        raise _changed_in_place(recorder.kept.calls[-1].layer)
    for call in recording.calls:
        names = {call.layer} if call.met is None else {call.met.weight, call.met.bias}
        if len(call.inputs) != len(inputs) and not names & elsewhere:
            raise CallerError(
                f"layer {call.layer!r}: expected its first axis to be the rows of the input "
                f"({len(inputs)}), got {shape_text(call.inputs)}; keep other axes behind the batch "
                "axis"
            )
    return recording


def seen_in(
    network: nn.Module, layers: Mapping[str, nn.Module], inputs: Tensor, met: Collection[str]
) -> tuple[list[Seen], set[str]]:
    """The calls of one pass with what entered, and the parameters that anything else met."""
    recorder = _Recorder(network, layers, met, _Kept([], True, 1, (), inputs_too=True))
    recording = recorder.run(inputs)
    assert recording is not None
    calls = [Seen(call.layer, call.met, call.inputs.detach()) for call in recording.calls]
    return calls, recorder.others


def _changed_in_place(layer: str) -> CallerError:
    return CallerError(
        f"the output of layer {layer!r} is changed in place by what follows it; use "
        "the out-of-place form (relu instead of relu_)"
    )


@dataclass
class _Kept:
    """The calls so far, and how they are kept.

    copied:     whether the pass goes on with copies of outputs; inputs_too: and inputs are kept as
                copies
    """

    calls: list[Call]
    copied: bool
    copies: int
    summed: Collection[str]
    inputs_too: bool = False

    def layer(self, name: str, module: nn.Module, inputs: Tensor, output: Tensor) -> Tensor:
        return self._add(name, module, inputs, output, None)

    def function(self, met: Met, output: Tensor) -> Tensor:
        name = met.weight or met.bias or ""
        return self._add(name.rpartition(".")[0], met.module, met.entered, output, met)

    def _add(
        self, name: str, module: Any, inputs: Tensor, output: Tensor, met: Met | None
    ) -> Tensor:
        shift = None
        if met is None and name in self.summed and len(output) % self.copies == 0:
            output, shift = shifted(output, self.copies)
        elif not output.requires_grad:
            output.requires_grad_()
        inputs = inputs.clone() if self.inputs_too else inputs
        self.calls.append(Call(name, module, inputs, output, output._version, shift, met))
        self.versions.append(inputs._version)
        # An in-place operation must not reach the recorded output.
        return output.clone() if self.copied else output

    def __post_init__(self) -> None:
        self.versions: list[int] = []

    @property
    def are_as_kept(self) -> bool:
        """Whether nothing was changed in place since."""
        return all(
            call.output._version == call.version and call.inputs._version == version
            for call, version in zip(self.calls, self.versions, strict=True)
        )


@dataclass
class _Recorder:
    """One forward pass on constant weights, and what it leaves in `kept`.

    others: parameters among `met` that something else than a known function met
    """

    network: nn.Module
    layers: Mapping[str, nn.Module]
    met: Collection[str]
    kept: _Kept

    def __post_init__(self) -> None:
        self.others: set[str] = set()

    def run(self, inputs: Tensor) -> Recording | None:
        """The recording; None where an operation in place spoiled it."""
        network = self.network
        constants = {name: parameter.detach() for name, parameter in network.named_parameters()}
        watched = {name: constants[name] for name in self.met}
        meeting = MeetingParameters(watched, self.kept.function)
        with torch.enable_grad(), evaluation_mode(network), self._hooks():
            try:
                with meeting if watched else nullcontext():
                    outputs = functional_call(network, constants, (inputs,))
            except RuntimeError as error:
                in_place = "a leaf Variable that requires grad" in str(error)
                if not self.kept.calls or not in_place:
                    raise
                return None
        self.others = meeting.others
        if not self.kept.are_as_kept:
            return None
        return Recording(checked_outputs(outputs), tuple(self.kept.calls))

    @contextmanager
    def _hooks(self) -> Iterator[None]:
        keep = self.kept.layer
        handles = [
            module.register_forward_hook(
                lambda module, arguments, named, output, name=name: keep(
                    name, module, next(iter((*arguments, *named.values()))), output
                ),
                with_kwargs=True,
            )
            for name, module in self.layers.items()
            if not is_attention(module)
        ]
        try:
            stands = {} if is_plain() else RECORDED
            with (
                twice_differentiable(stands),
                visible_projections(self.network, self.layers, keep),
                written_out(self.network),
            ):
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
        raise CallerError(
            f"network outputs: expected (batch, outputs), got {came}; bring them to that form with "
            "select=, such as select=lambda outputs: outputs.mean(1)"
        )
    return outputs


def full_name(layer: str, parameter: str) -> str:
    """The name of a layer's parameter in the network; "" is the network itself."""
    return f"{layer}.{parameter}" if layer else parameter
