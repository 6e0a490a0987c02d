"""What all tests share: one thread per process, and the same hypothesis examples every time."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import hypothesis
import pytest
import torch

# Test processes run side by side; a second thread in each makes all of them slower.
torch.set_num_threads(1)

hypothesis.settings.register_profile(
    "isotropy", derandomize=True, deadline=None, max_examples=20, database=None, print_blob=False
)
hypothesis.settings.load_profile("isotropy")


@pytest.fixture(scope="session")
def torchvision_imports() -> Iterator[None]:
    """For tests against a library that imports torchvision: skips where that is not installed.

    A torchvision built for CUDA does not find its operators beside a CPU build of torch, and
    refuses to be imported. Declaring the two operators that it asks for is enough; they have no
    implementation, and nothing here calls them.
    """
    library = None
    try:
        import torchvision
    except ImportError as error:
        pytest.skip(f"torchvision is not installed: {error}")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision  # noqa: F401
    # The declarations live as long as `library`, which this frame holds until the tests end.
    yield
    del library
