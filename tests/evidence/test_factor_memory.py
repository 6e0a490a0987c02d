"""Memory of the curvature from shapes alone, on networks without weights; lines of progress."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from isotropy.checks import CallerError
from isotropy.evidence.laplace import PassProgress
from isotropy.evidence.machine import check_factor_memory, factor_memory
from isotropy.networks.zoo.backbones import backbone

CPU = torch.device("cpu")


def on_meta(name: str, shape, outputs: int = 3, **arguments) -> nn.Module:
    with torch.device("meta"):
        return backbone(name, shape, outputs, **arguments)


def test_photographs_in_an_mlp():
    """(3·224·224)² numbers: 4 bytes for the factor, 8 for eigenvectors, 24 to find them."""
    network = on_meta("mlp", (3, 224, 224), hidden=200)
    found = factor_memory(network, "kfac-ggn")
    side = 3 * 224 * 224
    assert found.side == side and found.layer == "1"
    assert found.largest == side**2 * 36 + 200**2 * 12
    with pytest.raises(CallerError) as refusal:
        check_factor_memory(network, "kfac-ggn", CPU, free=16_000_000_000)
    sentence = str(refusal.value)
    for words in ("layer '1'", "150528 × 150528", "816 GB", "16 GB are free", "--image-size 32",
                  "--model compact", "--curvature diagonal-ggn"):  # fmt: skip
        assert words in sentence


def test_the_sum_over_layers_written_out():
    network = nn.Sequential(nn.Conv2d(3, 8, 5), nn.Flatten(), nn.Linear(20, 6)).double()
    kept = (75**2 + 8**2 + 20**2 + 6**2) * (8 + 8)
    assert factor_memory(network, "kfac").total == kept + 75**2 * 24
    count = sum(p.numel() for p in network.parameters())
    assert factor_memory(network, "full").total == count**2 * (4 + 8 + 24)
    assert factor_memory(network, "diagonal").total == 0


def test_convolutions_on_large_pictures_are_let_through():
    network = on_meta("compact", (3, 400, 300))
    assert check_factor_memory(network, "kfac-ggn", CPU, free=1_000_000_000).total < 1e8


def test_the_machine_s_own_memory_is_asked():
    with pytest.raises(CallerError, match="GB are free"):
        check_factor_memory(on_meta("mlp", (3, 2000, 2000)), "kfac-ggn", CPU)


def test_a_run_is_refused_before_it_is_built():
    from isotropy import learn

    network = on_meta("mlp", (3, 1000, 1000))
    data = (torch.rand(1, 3, 1, 1).expand(4, 3, 1000, 1000), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(CallerError, match="layer '1' has a factor of 3000000 × 3000000"):
        learn(network, data, device="cpu")


def test_long_decompositions_are_told():
    """48×48 pixels in colour: 10 · 6912³ operations at 2·10¹⁰ a second."""
    found = factor_memory(on_meta("mlp", (3, 48, 48), hidden=200), "kfac-ggn")
    assert found.seconds == pytest.approx(165, rel=0.01)
    assert "about 165 s" in found.text and "6912 × 6912" in found.text and "layer '1'" in found.text
    short = factor_memory(on_meta("compact", (3, 32, 32)), "kfac-ggn").text
    assert short == "the factors of the curvature take 0.0099 GB"


def told(times: list[float], examples: list[int]) -> list[str]:
    clock = iter(times)
    lines: list[str] = []
    progress = PassProgress(lines.append, "pass", sum(examples), clock=lambda: next(clock))
    for each in examples:
        progress.add(each)
    return lines


def test_short_passes_say_nothing():
    assert told([0, 1, 2, 3], [10, 10, 10]) == []


def test_long_passes_tell_how_far_they_are():
    # Asked: is it due, how long did it take, when is the next; then only whether it is due.
    lines = told([0, 6, 6, 6, 12], [10, 10, 20])
    assert lines == ["pass: 10 of 40 examples, 6 s, about 18 s left"]


def test_nobody_is_told_nothing():
    PassProgress(None, "pass", 4).add(4)
