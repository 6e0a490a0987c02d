"""Soft counts: the sum written out, no order of points, smooth in them, and what is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from isotropy.checks import CallerError
from isotropy.networks.zoo.backbones import CELLS, REACH, WIDTH, SoftCounts, cloud_network

DIMENSIONS = (1, 2, 3)


def clouds(dimensions: int, batch: int = 3, points: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(dimensions)
    return torch.randn(batch, points, dimensions, generator=generator, dtype=torch.float64)


def counts_written_out(data: np.ndarray, cells: int, reach: float, width: float) -> np.ndarray:
    """Σ_p exp(−‖x_p − c‖² / 2w²), place by place, the last coordinate fastest."""
    axis = np.linspace(-reach, reach, cells)
    w = width * (axis[1] - axis[0])
    places = list(itertools.product(axis, repeat=data.shape[2]))
    return np.array(
        [
            [
                sum(np.exp(-((p - np.array(c)) ** 2).sum() / (2 * w**2)) for p in cloud)
                for c in places
            ]
            for cloud in data
        ]
    )


@pytest.mark.parametrize("dimensions", DIMENSIONS)
def test_counts_are_the_sum_written_out(dimensions):
    counts = SoftCounts(dimensions, cells=4, reach=1.5, width=0.9).double()
    data = clouds(dimensions)
    expected = counts_written_out(data.numpy(), 4, 1.5, 0.9)
    assert counts.features == expected.shape[1] == 4**dimensions
    np.testing.assert_allclose(counts(data).numpy(), expected, atol=1e-6)  # places in float32


def test_defaults_are_those_of_the_worked_example():
    counts = SoftCounts()
    assert (CELLS, REACH, WIDTH) == (14, 2.2, 0.7) and counts.features == 196
    assert counts.width == pytest.approx(0.7 * 4.4 / 13)
    # One point on a place counts one there, and less elsewhere.
    found = counts(counts.places[torch.tensor([[[3, 8]]])])[0]
    assert found.argmax() == 3 * 14 + 8 and found.max() == 1


@pytest.mark.parametrize("dimensions", DIMENSIONS)
def test_order_of_points_does_not_matter_and_their_places_do(dimensions):
    network = cloud_network((5, dimensions), 3, hidden=4, cells=5).double()
    data = clouds(dimensions)
    torch.testing.assert_close(network(data.flip(1)), network(data))
    assert (network(data + 0.3) - network(data)).abs().max() > 1e-3


def test_smooth_in_the_points():
    counts = SoftCounts(2, cells=3).double()
    data = clouds(2, batch=2, points=3).requires_grad_()
    assert torch.autograd.gradcheck(counts, data)
    assert torch.autograd.gradgradcheck(counts, data)


def test_follows_the_type_of_the_data():
    assert SoftCounts()(clouds(2)).dtype == torch.float64
    assert SoftCounts()(clouds(2).float()).dtype == torch.float32


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SoftCounts(4), "expected 1, 2 or 3, got 4"),
        (lambda: SoftCounts(cells=1), "at least 2, got 1"),
        (lambda: SoftCounts(reach=0.0), "above 0, got 0.0"),
        (lambda: SoftCounts(width=float("nan")), "above 0, got 2.2 and nan"),
        (lambda: SoftCounts()(torch.zeros(5, 2)), "batch, points, dimensions"),
        (lambda: SoftCounts()(torch.zeros(1, 5, 3)), r"\(batch, points, 2\), got \(1, 5, 3\)"),
        (lambda: cloud_network((1, 28, 28), 10), "clouds .points, dimensions."),
    ],
)
def test_mistakes(make, sentence):
    with pytest.raises(CallerError, match=sentence):
        make()
