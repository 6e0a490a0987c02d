"""Where tests of Triton kernels run: on a CUDA device, or on a CPU if Triton interprets.

`TRITON_INTERPRET=1` makes it do so, which is slow.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

ON_CUDA = torch.cuda.is_available()
HAS_TRITON = importlib.util.find_spec("triton") is not None
CAN_RUN = HAS_TRITON and (ON_CUDA or os.environ.get("TRITON_INTERPRET") == "1")
DEVICE = torch.device("cuda" if ON_CUDA else "cpu")

needs_triton = pytest.mark.skipif(
    not CAN_RUN, reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1"
)
needs_cuda = pytest.mark.skipif(not (CAN_RUN and ON_CUDA), reason="needs Triton and a CUDA device")
