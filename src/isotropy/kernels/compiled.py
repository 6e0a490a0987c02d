"""A network as weight steps call it: in bfloat16 if asked, on a GPU channels last and compiled.

cuDNN's convolutions are fastest where the channels of a pixel lie side by side, and a compiler
writes what follows a convolution (biases, activations, sums) as one kernel. Networks without a
convolution are left as they are: a product of matrices gains nothing from either.

    channels_last   images (rows, channels, height, width) are laid out pixel by pixel
    compiled        `torch.compile`, for rows of the shape that comes first; others run as they are
    bfloat16        products and convolutions by autocast; outputs are float32 again. Also on a CPU
                    with instructions for it, where wide layers gain twofold and small convolutions
                    nothing

What does not compile runs as it is, and `failure` says why. Compiling takes from ten seconds to a
minute, so that it pays for long runs alone: `pays` says from how many rows on.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.kernels.precision import has_bfloat16

LEAST_ROWS = 10_000_000
"""Rows through the network in a whole run from which compiling pays: about a minute without it."""


def pays(rows: int) -> bool:
    """Whether compiling gains more than it takes, in a run with so many rows."""
    return rows >= LEAST_ROWS


def is_convolutional(network: nn.Module) -> bool:
    """Whether the network has kernels over pixels among its parameters."""
    return any(parameter.ndim >= 4 for parameter in network.parameters())


class NetworkPass:
    """`network(rows)` with outputs in the precision of the rows.

    compiled: whether to compile; only on a GPU, and only convolutional networks
    autocast: whether products are in bfloat16, where the device has instructions for it
    failure:  why the network was not compiled, if that was tried
    """

    def __init__(
        self, network: nn.Module, device: torch.device, *, compiled: bool, autocast: bool
    ) -> None:
        self.network = network
        self.failure: str | None = None
        is_made_for_it = device.type == "cuda" or has_bfloat16(device, torch.float32)
        self.autocast = autocast and is_made_for_it
        self.channels_last = device.type == "cuda" and is_convolutional(network)
        self._compiled: Any = None
        self._shape: torch.Size | None = None
        if compiled and self.channels_last:
            self._compiled = torch.compile(self._plain, dynamic=False)

    def __call__(self, rows: Tensor) -> Tensor:
        if self.channels_last and rows.ndim == 4:
            rows = rows.contiguous(memory_format=torch.channels_last)
        if self._compiled is not None and self._shape is None:
            self._try(rows)
        if self._compiled is None or rows.shape != self._shape:
            return self._plain(rows)
        outputs: Tensor = self._compiled(rows)
        return outputs

    def described(self) -> dict[str, Any]:
        """For a run's record."""
        return {
            "channels_last": self.channels_last,
            "compiled": self._compiled is not None,
            "not_compiled_because": self.failure,
            "autocast": "bfloat16" if self.autocast else None,
        }

    def searching(self) -> AbstractContextManager[Any]:
        """A context in which cuDNN tries its kernels for each shape and keeps the fastest."""
        if not self.channels_last:
            return nullcontext()
        own: Any = torch.backends.cudnn
        return own.flags(
            enabled=own.enabled,
            benchmark=True,
            deterministic=own.deterministic,
            allow_tf32=own.allow_tf32,
        )

    def _plain(self, rows: Tensor) -> Tensor:
        if not self.autocast:
            outputs: Tensor = self.network(rows)
            return outputs
        with torch.autocast(rows.device.type, torch.bfloat16):
            outputs = self.network(rows)
        return outputs.to(rows.dtype)

    def _try(self, rows: Tensor) -> None:
        """One pass there and back that changes nothing; what fails in it is not compiled."""
        self._shape = rows.shape
        parameters = [p for p in self.network.parameters() if p.requires_grad]
        buffers = [(buffer, buffer.clone()) for buffer in self.network.buffers()]
        with torch.random.fork_rng(devices=[rows.device]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                outputs = self._compiled(rows.detach().requires_grad_(rows.requires_grad))
                torch.autograd.grad(outputs.sum(), parameters, allow_unused=True)
            except Exception as error:  # the compiler fails in many ways, and none is the user's
                self.failure = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
                self._compiled = None
        for buffer, before in buffers:
            buffer.copy_(before)
