"""Random weights that do not depend on the machine: torch's own numbers, to the last bit."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from isotropy.bounds.admission import drawn_by
from isotropy.bounds.drawing import portable_draws

DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "uniform": lambda each: each.uniform_(-0.3, 0.7),
    "normal": lambda each: each.normal_(0.1, 0.5),
    "kaiming": lambda each: nn.init.kaiming_normal_(each[None])[0],
    "randn": lambda each: torch.randn(each.shape),
    "randn by a generator": lambda each: torch.randn(
        each.shape, generator=torch.Generator().manual_seed(int(torch.randint(99, ())))
    ),
}


@pytest.mark.parametrize("count", [1, 15, 16, 17, 40, 1003])
@pytest.mark.parametrize("name", DRAWS)
def test_numbers_are_those_of_torch_and_so_are_the_next(name: str, count: int) -> None:
    torch.manual_seed(3)
    expected, after = DRAWS[name](torch.empty(count)), torch.rand(2)
    torch.manual_seed(3)
    with portable_draws():
        found = DRAWS[name](torch.empty(count))
    assert torch.equal(torch.rand(2), after), "as many integers are drawn"
    torch.testing.assert_close(found, expected, rtol=3e-6, atol=1e-6)
    assert count == 1 or found.std() > 0.01


def test_uniform_numbers_are_rounded_once() -> None:
    """Against NumPy: the integers are the Mersenne Twister's, 24 bits of each."""
    twister = np.random.MT19937()
    twister._legacy_seeding(5)
    raw = twister.random_raw(1000) & (2**24 - 1)
    low, high = np.float32(-0.1), np.float32(0.7)
    expected = (raw * 2.0**-24 * np.float64(high - low) + low).astype(np.float32)
    torch.manual_seed(5)
    with portable_draws():
        found = torch.empty(1000).uniform_(-0.1, 0.7)
    assert np.array_equal(found.numpy(), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_types_are_torchs_own(dtype: torch.dtype) -> None:
    for draw in DRAWS.values():
        torch.manual_seed(3)
        expected = draw(torch.empty(40, dtype=dtype))
        torch.manual_seed(3)
        with portable_draws():
            found = draw(torch.empty(40, dtype=dtype))
        if found.dtype == dtype:
            assert torch.equal(found, expected)


def test_views_and_gradients_are_as_before() -> None:
    torch.manual_seed(0)
    whole = torch.zeros(4, 50)
    with portable_draws():
        whole[:, ::2].uniform_(1, 2)
        layer = nn.Linear(30, 20)
    assert bool((whole[:, ::2] >= 1).all()) and not bool(whole[:, 1::2].any())
    assert layer.weight.requires_grad and layer.weight.is_leaf


HASHED = """
import hashlib, torch
from torch import nn
from isotropy.bounds.admission import drawn_by

def drawn():
    normal = nn.Conv2d(8, 16, 3)
    nn.init.kaiming_normal_(normal.weight)
    return nn.Sequential(nn.Linear(100, 50), nn.Conv2d(3, 7, 5), normal)

with drawn_by(0):
    network = drawn()
told = hashlib.sha256()
for each in network.parameters():
    told.update(each.detach().numpy().astype("<f4").tobytes())
print(told.hexdigest(), torch.backends.cpu.get_cpu_capability())
"""


def test_a_seed_means_the_same_weights_without_fused_multiplications() -> None:
    """In another process with plain instructions, and here."""
    told = []
    for capability in ("default", ""):
        environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
        if not capability:
            environment.pop("ATEN_CPU_CAPABILITY")
        finished = subprocess.run(
            [sys.executable, "-c", HASHED], env=environment, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        told.append(finished.stdout.split())
    assert told[0][0] == told[1][0]
    if told[0][1] == told[1][1]:
        pytest.skip("this machine has plain instructions only")


def test_the_weights_of_a_seed_do_not_change() -> None:
    """A certificate names its start by a seed: another draw would void all that were made."""
    with drawn_by(0):
        layer = nn.Linear(100, 50)
    values = torch.cat([each.detach().flatten() for each in layer.parameters()])
    assert hashlib.sha256(values.numpy().astype("<f4").tobytes()).hexdigest()[:12] == "b98086f646c2"
