"""A step on a GPU as one CUDA graph: launched as a whole, where Python launches kernel by kernel.

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
from collections.abc import Callable, Iterable

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
