"""Small runs of `learn` and `relax` end with the numbers they have always ended with.

The numbers are in pinned_numbers.json. On a machine like the one that wrote it (same torch, same
processor) they must agree to the last bit, weights included; elsewhere to rounding, since libraries
choose their kernels by the processor. A change that is meant to alter them writes them again, and
says so:

    python tests/test_pinned_numbers.py
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from learn_runs import bar_tensors
from torch import Tensor, nn

from isotropy.data.readers import digits
from isotropy.evidence.layers.settings import RelaxConfig
from isotropy.evidence.settings import LearnConfig
from isotropy.networks.pathways.relax import relax
from isotropy.networks.zoo.specification import parse_network
from isotropy.symmetry.actions.catalogue import actions_named
from isotropy.workflows.learning import learn
from isotropy.workflows.relaxing import learn_layers

FILE = Path(__file__).with_name("pinned_numbers.json")
ROUNDING = 2e-2
"""Relative difference allowed on other machines: runs amplify what rounding begins."""

Pinned = dict[str, Any]


def learned(words: str, names: tuple[str, ...], examples: int, **settings: Any) -> Pinned:
    """log Z, amounts and weights after a run of `isotropy.learn` on embedded digits."""
    data = digits().train.take(torch.arange(examples))
    shape = tuple(data.inputs.shape[1:])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        network = parse_network(words).build(shape, data.num_outputs)
    result = learn(
        network, data, actions=actions_named(names, shape),
        config=LearnConfig(seed=5, **settings), device="cpu",
    )  # fmt: skip
    numbers = {"log evidence": result.log_evidence}
    numbers |= {symmetry.name: symmetry.high for symmetry in result.symmetries}
    return {"numbers": numbers, "weights": _digest(result.trainer.network)}


def relaxed(**settings: Any) -> Pinned:
    """log Z, precisions and weights after a run of `isotropy.learn_layers` on pictures of bars."""
    inputs, labels = bar_tensors(60)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        plain = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(),
            nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
        )  # fmt: skip
    generator = torch.Generator().manual_seed(3)
    network = relax(plain, ("ffc", "conv"), example=inputs[:1], generator=generator)
    config = RelaxConfig(
        epochs=12, batch_size=4, burn_in=1, update_every=1, weight_rate=0.1, seed=5, **settings
    )
    result = learn_layers(network, (inputs, labels), config=config, device="cpu")
    numbers = {"log evidence": result.record["log_evidence"]}
    for layer in result.layers:
        for pathway, precision in layer["prior_precision"].items():
            numbers[f"{layer['name']} {pathway}"] = precision
    return {"numbers": numbers, "weights": _digest(result.model)}


RUNS: dict[str, Callable[[], Pinned]] = {
    "learn, by gradient": lambda: learned(
        "mlp:8", ("rotation", "scale_x"), 120, samples=4, epochs=6, batch_size=20, search=False
    ),
    "learn, searched": lambda: learned(
        "mlp:8", ("rotation", "horizontal_flip"), 60, samples=4, epochs=4, batch_size=20
    ),
    "learn, a network of convolutions": lambda: learned(
        "compact:2", ("rotation",), 40, samples=3, epochs=3, burn_in=0, batch_size=20, search=False,
        distribution="correlated", prior_structure="layer",
    ),
    "learn, by a bound": lambda: learned(
        "mlp:8", ("rotation",), 120, samples=4, epochs=4, batch_size=20, burn_in=1, search=False,
        bound="function-space",
    ),
    "relax": relaxed,
    "relax, by drawn labels": lambda: relaxed(curvature="kfac-mc"),
}  # fmt: skip


def machine() -> dict[str, str]:
    """What decides how sums are rounded."""
    return {
        "torch": torch.__version__,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "processor": _processor(),
    }


def _processor() -> str:
    """What the system calls it; on Linux vendor, family, model and a hash of its flags."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    rows = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    own = {name.strip(): value.strip() for name, value in rows}
    flags = hashlib.sha256(own.get("flags", "").encode()).hexdigest()[:12]
    return " ".join([*(own.get(n, "") for n in ("vendor_id", "cpu family", "model")), flags])


def _digest(network: nn.Module) -> str:
    """A hash of all weights, bit by bit."""
    found = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        if isinstance(tensor, Tensor):
            found.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("name", RUNS)
def test_a_run_ends_where_it_always_ended(name: str) -> None:
    written = json.loads(FILE.read_text(encoding="utf-8"))
    pinned = written["runs"][name]
    found = RUNS[name]()
    if written["machine"] == machine():
        assert found == pinned
    else:
        assert found["numbers"] == pytest.approx(pinned["numbers"], rel=ROUNDING)


if __name__ == "__main__":
    torch.set_num_threads(1)
    content = {"machine": machine(), "runs": {name: run() for name, run in RUNS.items()}}
    FILE.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
