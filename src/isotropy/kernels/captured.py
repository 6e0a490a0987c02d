"""Steps of training as CUDA graphs, and optimisers whose steps a graph can hold.

A weight step of a small network is a few dozen kernels of some microseconds each, and Python needs
longer to launch one than the GPU to run it. A graph is recorded once and replayed:

    the first calls   as they are, on a stream of their own; what is made on first use is made
    then              recorded: nothing runs, every kernel and address is noted
    afterwards        arguments are copied to the addresses noted, and all is launched at once

What a function reads beside its arguments must stay where it is in memory. `state` lists such
tensors; when one has moved, the graph is recorded anew. Arguments of another shape, such as a last,
smaller batch, and functions that cannot be recorded (those that wait for a number from the GPU) are
called as they are. Python runs only while recording: `can_capture` says for which networks that is
safe to assume.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

WARM_UP = 3
"""Calls before a function is recorded: libraries choose kernels and optimisers make moments."""


class CapturedFunction:
    """`function(*tensors) -> None` on a CUDA device, replayed as a graph after a few calls.

    state:   tensors that the function reads or writes in place
    failure: why it could not be recorded, if so
    """

    def __init__(
        self, function: Callable[..., None], state: Callable[[], Iterable[Tensor]]
    ) -> None:
        self.function = function
        self.state = state
        self.failure: str | None = None
        self._shapes: list[torch.Size] | None = None
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream: torch.cuda.Stream | None = None
        self._arguments: list[Tensor] = []
        self._addresses: list[int] = []

    def __call__(self, *tensors: Tensor) -> None:
        """The function on these tensors."""
        shapes = [tensor.shape for tensor in tensors]
        self._shapes = self._shapes or shapes
        if self.failure is not None or shapes != self._shapes:
            self.function(*tensors)
            return
        if self._graph is None and self._calls < WARM_UP:
            self._calls += 1
            self._aside(*tensors)
            return
        if self._graph is None:
            self._record(*tensors)
        if self._graph is None:
            self.function(*tensors)
            return
        for place, tensor in zip(self._arguments, tensors, strict=True):
            place.copy_(tensor)
        self._graph.replay()

    def refresh(self) -> None:
        """Forget the graph if anything it reads has moved in memory since it was recorded."""
        if self._graph is not None and self._addresses != self._places():
            self._graph, self._calls = None, 0

    def _places(self) -> list[int]:
        return [tensor.data_ptr() for tensor in self.state()]

    def _aside(self, *tensors: Tensor) -> None:
        """Call on the stream that will record: autograd remembers where a parameter was used."""
        here, aside = torch.cuda.current_stream(), self._own_stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            self.function(*tensors)
        here.wait_stream(aside)

    def _own_stream(self) -> torch.cuda.Stream:
        if self._stream is None:
            # A graph of autograd's that garbage still holds would remember another stream.
            gc.collect()
            self._stream = torch.cuda.Stream()
        return self._stream

    def _record(self, *tensors: Tensor) -> None:
        self._arguments = [tensor.clone() for tensor in tensors]
        stream, graph = self._own_stream(), torch.cuda.CUDAGraph()
        gc.collect()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, stream=stream):
                self.function(*self._arguments)
        except RuntimeError as error:
            torch.cuda.synchronize()
            self.failure = str(error)
            return
        self._graph = graph
        self._addresses = self._places()


def can_capture(network: nn.Module, device: torch.device) -> bool:
    """Whether every forward pass of `network` is sure to launch the same kernels.

    So it is for modules of torch's and of this library; another's may decide in Python, at random
    or by a counter, and a graph would repeat what was decided while it was recorded. Hooks
    would not be called at all.
    """
    if device.type != "cuda":
        return False
    return all(
        type(module).__module__.split(".")[0] in ("torch", "isotropy")
        and not module._forward_hooks
        and not module._forward_pre_hooks
        and not module._backward_hooks
        for module in network.modules()
    )


def held_by(optimiser: torch.optim.Optimizer) -> Iterator[Tensor]:
    """The rates and moments that an optimiser keeps on a GPU."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            yield group["lr"]
    for moments in optimiser.state.values():
        yield from (moment for moment in moments.values() if isinstance(moment, Tensor))


FACTOR = "rate_factor"
"""In a group of parameters: by what the rate of an optimiser is multiplied for them."""


def adam(
    parameters: list[nn.Parameter],
    *,
    rate: float,
    decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    scalars: Collection[nn.Parameter] = (),
    scalar_factor: float = 1.0,
) -> torch.optim.Adam:
    """Adam; on a GPU in one kernel, with its rate there too, so that a graph can hold it.

    scalars: those of the parameters whose rate is `scalar_factor` times that of the others
    """
    groups = _groups(parameters, rate, scalars, scalar_factor)
    on_gpu = _on_gpu(parameters)
    return torch.optim.Adam(
        groups,
        lr=groups[0]["lr"],
        betas=betas,
        weight_decay=decay,
        fused=on_gpu or None,
        capturable=on_gpu,
    )


def adamw(parameters: list[nn.Parameter], *, rate: float, decay: float) -> torch.optim.AdamW:
    """Adam with a decay apart from the gradient, of matrices and kernels alone; on a GPU as `adam`.

    (Loshchilov & Hutter 2019)
    """
    on_gpu = _on_gpu(parameters)
    vectors = [each for each in parameters if each.ndim < 2]
    others = [each for each in parameters if each.ndim >= 2]
    return torch.optim.AdamW(
        [{"params": others, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=torch.tensor(rate, device=parameters[0].device) if on_gpu else rate,
        fused=on_gpu or None,
        capturable=on_gpu,
    )


def sgd(
    parameters: list[nn.Parameter],
    *,
    rate: float,
    momentum: float = 0.9,
    nesterov: bool = False,
    decay: float = 0.0,
    scalars: Collection[nn.Parameter] = (),
    scalar_factor: float = 1.0,
) -> torch.optim.SGD:
    """Gradient descent with momentum m and gradients g; on a GPU as `adam`.

        v ← m v + g        θ ← θ − rate · v,   with Nesterov θ ← θ − rate · (g + m v)

    scalars: as in `adam`
    """
    groups = _groups(parameters, rate, scalars, scalar_factor)
    return torch.optim.SGD(
        groups,
        lr=groups[0]["lr"],
        momentum=momentum,
        nesterov=nesterov,
        weight_decay=decay,
        fused=_on_gpu(parameters) or None,
    )


def _on_gpu(parameters: list[nn.Parameter]) -> bool:
    return all(parameter.is_cuda for parameter in parameters)


def _groups(
    parameters: list[nn.Parameter],
    rate: float,
    scalars: Collection[nn.Parameter],
    scalar_factor: float,
) -> list[dict[str, Any]]:
    """Groups of parameters, each with a rate of its own: on a GPU a tensor, which graphs read."""
    slow = {id(each) for each in scalars} if scalar_factor != 1 else set()
    split = (
        (1.0, [each for each in parameters if id(each) not in slow]),
        (scalar_factor, [each for each in parameters if id(each) in slow]),
    )
    on_gpu, device = _on_gpu(parameters), parameters[0].device
    return [
        {
            "params": own,
            "lr": torch.tensor(rate * factor, device=device) if on_gpu else rate * factor,
            FACTOR: factor,
        }
        for factor, own in split
        if own
    ]


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """The learning rate of the next steps; groups with a factor have that many times it."""
    for group in optimiser.param_groups:
        own = rate * group.get(FACTOR, 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(own)
        else:
            group["lr"] = own
