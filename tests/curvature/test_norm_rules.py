"""Normalisation layers beyond what every layer inherits: whose statistics, and which blocks.

The exact blocks are compared with the dense GGN in `test_kfac_formula`, case by case.
"""

from __future__ import annotations

import pytest
import torch
from network_cases import NETWORKS, NORMS, assert_equal, library_blocks
from oracles.dense_ggn import dense_ggn_blocks, softmax_curvature
from torch import nn

from isotropy.checks import CallerError
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.curvature.layer_rules import check_running_statistics
from isotropy.likelihoods import Categorical

BATCH_NORMS = [name for name in NORMS if name.startswith("batch norm")]


@pytest.mark.parametrize("network", BATCH_NORMS)
def test_batches_normalise_by_running_statistics(network: str):
    """An example's blocks do not depend on what else is in its batch, and no statistic moves."""
    case = NETWORKS[network]
    built, rows = case.network().train(), case.rows(3, 2)
    before = {name: buffer.clone() for name, buffer in built.named_buffers()}
    together = KFAC(built).batch(rows, Copies(2), Categorical()).factors()
    parts = [KFAC(built).batch(part, Copies(2), Categorical()).factors() for part in rows.split(2)]
    for name, factors in together.items():
        summed = parts[0][name] + parts[1][name] + parts[2][name]
        assert_equal(summed.dense(3), factors.dense(3), name)
    assert all(torch.equal(buffer, before[name]) for name, buffer in built.named_buffers())
    assert built.training and all(module.training for module in built.modules())


def test_other_running_statistics_are_other_blocks():
    case = NETWORKS["batch norm"]
    built, rows = case.network(), case.rows(3, 2)
    first = library_blocks(built, rows, 2, Categorical())
    built[1].running_mean += 1.0
    moved = library_blocks(built, rows, 2, Categorical())
    exact = dense_ggn_blocks(built.eval(), rows, 2, softmax_curvature)
    assert_equal(moved["1.weight"][0], exact["1.weight"], "weight")
    with pytest.raises(AssertionError, match="relative difference"):
        assert_equal(first["1.weight"][0], exact["1.weight"], "weight")


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm])
def test_without_running_statistics_it_is_refused(kind: type[nn.Module]):
    with pytest.raises(CallerError, match=f"layer 'n' of type {kind.__name__}: expected running"):
        check_running_statistics(kind(2, track_running_stats=False), "n")
    check_running_statistics(kind(2), "n")
    check_running_statistics(nn.InstanceNorm1d(2), "n")


def test_a_frozen_norm_has_no_block():
    built = NETWORKS["layer norm"].network()
    built[1].bias.requires_grad_(False)
    found = library_blocks(built, NETWORKS["layer norm"].rows(3, 2), 2, Categorical())
    assert "1.weight" in found and "1.bias" not in found
