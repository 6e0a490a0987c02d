"""The function that is measured: a network in evaluation, one input that moves, one output tensor.

    f(x) = softmax(select(network(x, others)))        on = "probabilities"
    f(x) = select(network(x, others))                 on = "outputs"

The network is used as it is. Several inputs come as a dictionary that is passed by keyword; one of
them moves and the others stay. `select` picks a tensor where the network returns several: a key, an
attribute, a position, or a function (`networks.one_output`).

What would make a derivative meaningless is refused before anything is measured: integer inputs,
networks that look at the batch, draw at random, change their input in place or cut the derivative
on its way (detach), outputs that are no floating-point tensor or do not depend on the input.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from isotropy.checks import CallerError, check_choice, check_finite, shape_text
from isotropy.curvature.recurrent import written_out
from isotropy.equivariance.operations import CUTS, Followed, Operation, watch
from isotropy.networks.one_output import Select, selected

On = Literal["probabilities", "outputs"]
ONS: tuple[On, ...] = ("probabilities", "outputs")

Inputs = Tensor | Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Subject:
    """A network and which of its inputs and outputs are looked at.

    network: any module
    on:      "probabilities" (softmax over axis 1) or "outputs" (as the network returns them)
    select:  which of several outputs; None where there is one
    moves:   which of several inputs moves, by name; None for the first
    at_once: how many examples go through the network together; None for all
    """

    network: nn.Module
    on: On = "outputs"
    select: Select = None
    moves: str | None = None
    at_once: int | None = None

    def __post_init__(self) -> None:
        check_choice(self.on, ONS, what="on")

    def moved(self, inputs: Inputs) -> Tensor:
        """The input that moves."""
        if isinstance(inputs, Tensor):
            return inputs
        name = next(iter(inputs)) if self.moves is None else self.moves
        return inputs[check_choice(name, inputs, what="input")]

    def with_moved(self, inputs: Inputs, moved: Tensor) -> Inputs:
        """The inputs with another tensor in place of the one that moves."""
        if isinstance(inputs, Tensor):
            return moved
        name = next(iter(inputs)) if self.moves is None else self.moves
        return {**inputs, name: moved}

    def __call__(self, inputs: Inputs) -> Tensor:
        """f of a batch of inputs: (batch, …)."""
        count = len(self.moved(inputs))
        if self.at_once is not None and count > self.at_once:
            starts = range(0, count, self.at_once)
            parts = [rows_of(inputs, slice(start, start + self.at_once)) for start in starts]
            return torch.cat([self._together(part) for part in parts])
        return self._together(inputs)

    def _together(self, inputs: Inputs) -> Tensor:
        # Recurrent layers in one function have no forward-mode derivative.
        with written_out(self.network):
            found = self.network(inputs) if isinstance(inputs, Tensor) else self.network(**inputs)
        output = selected(found, self.select)
        if self.on == "outputs":
            return output
        if output.ndim < 2 or not output.is_floating_point():
            raise CallerError(
                f"on='probabilities': expected logits (batch, classes), got {output.dtype} "
                f"{shape_text(output)}; use on='outputs'"
            )
        return output.softmax(1)

    def check(self, inputs: Inputs) -> None:
        """Raise where a derivative of this network at these inputs would mean nothing."""
        moved = self.moved(inputs)
        if not moved.is_floating_point():
            raise CallerError(
                f"inputs: expected floating-point numbers, got {moved.dtype}; convert with "
                "x.float() / 255, or measure behind the embedding that takes the integers"
            )
        check_finite(moved, what="inputs")
        check_batch_statistics(self.network)
        _check_dropout(self.network)
        two = first_of(inputs, 2)
        with torch.no_grad(), differentiable_forward(), _no_draws(moved.device):
            try:
                together = self._followed(two)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                raise CallerError(
                    f"the network does not accept inputs of shape {tuple(moved.shape[1:])}: {error}"
                ) from error
            alone = self(copy_of(first_of(two, 1)))
        if not together.is_floating_point() or together.ndim < 1:
            raise CallerError(
                f"network output: expected floating-point numbers for every example, got "
                f"{together.dtype} {shape_text(together)}"
            )
        if len(together) != len(moved[:2]):
            raise CallerError(
                f"network output: expected one row for every example, got {shape_text(together)} "
                f"for {len(moved[:2])} examples"
            )
        check_finite(together, what="network output")
        if _differ(together[:1], alone, together):
            if together.dtype != torch.float64 and self._agrees_in_double(two):
                raise CallerError(
                    f"network: rounding in {together.dtype} changes the output for one example by "
                    "more than a thousandth of the largest, and derivatives by more; measure in "
                    "double precision (model.double() and inputs.double())"
                )
            raise CallerError(
                "network: the output for one example changes with the rest of the batch, or from "
                "call to call; fix what looks at the batch or draws at random (model.eval())"
            )

    def _agrees_in_double(self, inputs: Inputs) -> bool:
        """Whether an example has one output, alone and beside another, once rounding is small."""
        exact = replace(self, network=copy.deepcopy(self.network).double())
        both = _each(inputs, lambda each: each.double() if each.is_floating_point() else each)
        with torch.no_grad(), _no_draws(self.moved(inputs).device):
            together, alone = exact(copy_of(both)), exact(copy_of(first_of(both, 1)))
        return not _differ(together[:1], alone, together)

    def _followed(self, inputs: Inputs) -> Tensor:
        """f(x), raising where it changes its input, or loses it on the way to the output."""
        own = copy_of(inputs)
        followed = Followed(self.moved(own))
        versions = _versions(own)

        def visit(operation: Operation) -> Any:
            depends = followed.is_read_by(operation)
            result = operation.run()
            if depends:
                floats = operation.floats(result)
                if floats and operation.kind in CUTS:
                    raise cut_error(operation.name)
                followed.add(floats)
            return result

        with watch(self.network, visit):
            output = self(own)
        if _versions(own) != versions:
            raise CallerError(
                "network: it changes its own input in place; copy it first (x = x.clone()), or use "
                "the out-of-place form of what comes first (inplace=False)"
            )
        if output.is_floating_point() and output not in followed:
            raise CallerError(
                "network output: it does not depend on the input that moves, by anything that has "
                "a derivative; choose another output with select=, or another input with moves="
            )
        return output


def cut_error(name: str) -> CallerError:
    """For an operation that hands its values on without their derivative."""
    return CallerError(
        f"operation {name!r} cuts the derivative: what follows depends on the input, but no "
        "derivative can see it; leave the detach out, or measure the part of the network before it"
    )


def _versions(inputs: Inputs) -> list[int]:
    tensors = [inputs] if isinstance(inputs, Tensor) else list(inputs.values())
    return [tensor._version for tensor in tensors]


@contextmanager
def _no_draws(device: torch.device) -> Iterator[None]:
    """Raise where random numbers were drawn inside; the generators are as before in any case."""
    on_cuda = device.type == "cuda"

    def states() -> list[Tensor]:
        own = [torch.cuda.get_rng_state(device)] if on_cuda else []
        return [torch.get_rng_state(), *own]

    with torch.random.fork_rng(devices=[device] if on_cuda else []):
        before = states()
        yield
        if any(not torch.equal(a, b) for a, b in zip(before, states(), strict=True)):
            raise CallerError(
                "network: it draws at random, so that it is another function at every call; switch "
                "that off (model.eval())"
            )


def _differ(one: Tensor, other: Tensor, whole: Tensor) -> bool:
    """By more than a thousandth of the largest of all."""
    scale = float(whole.abs().max()) + torch.finfo(whole.dtype).tiny
    return float((one - other).abs().max()) > 1e-3 * scale


def copy_of(inputs: Inputs) -> Inputs:
    """The same numbers in memory of their own."""
    return _each(inputs, Tensor.clone)


def first_of(inputs: Inputs, count: int) -> Inputs:
    """The first examples of a batch."""
    return rows_of(inputs, slice(0, count))


def rows_of(inputs: Inputs, rows: slice) -> Inputs:
    """Some examples of a batch."""
    return _each(inputs, lambda tensor: tensor[rows])


def _each(inputs: Inputs, function: Callable[[Tensor], Tensor]) -> Inputs:
    if isinstance(inputs, Tensor):
        return function(inputs)
    return {name: function(tensor) for name, tensor in inputs.items()}


def check_batch_statistics(network: nn.Module) -> None:
    """Refuse layers that normalise by the statistics of the batch, as they are set now."""
    for name, module in network.named_modules():
        if not isinstance(module, nn.modules.batchnorm._NormBase):
            continue
        if isinstance(module, nn.modules.instancenorm._InstanceNorm):
            continue
        if module.training or module.running_mean is None:
            remedy = (
                "call model.eval() first, or eval() of this layer alone"
                if module.running_mean is not None
                else "give it running statistics (track_running_stats=True)"
            )
            raise CallerError(
                f"{_named(name, module)} normalises by the statistics of the batch, so that "
                f"examples depend on each other; {remedy}"
            )


def _check_dropout(network: nn.Module) -> None:
    for name, module in network.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0:
            raise CallerError(
                f"{_named(name, module)} drops at random in training mode; call model.eval() first"
            )


def _named(name: str, module: nn.Module) -> str:
    return f"layer {name!r} ({type(module).__name__})" if name else type(module).__name__


def plain_network(network: nn.Module) -> nn.Module:
    """The module itself where torch.compile wrapped it: what is compiled cannot be looked into."""
    inner = getattr(network, "_orig_mod", network)
    assert isinstance(inner, nn.Module)
    return inner


@contextmanager
def differentiable_forward() -> Iterator[None]:
    """Inside, what is in the way of derivatives is off, and as it was after.

    Fused attention has no forward-mode derivative and is written out. Products on the GPU are not
    rounded to ten bits (TF32): a Lie derivative is what remains of larger numbers.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    rounded = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.mha.set_fastpath_enabled(False)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = rounded
