"""The stretch of a subspace: its formula against dense algebra, exact decoding, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.bounds.stretch import DAMPING, EXPONENT, UNIT, Stretch, Stretched, stretch_of
from isotropy.bounds.subspace import Subspace, projector
from isotropy.checks import CallerError


def convolutional() -> nn.Module:
    """Two layers that are stretched, a normalisation that is not."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(),
            nn.Linear(16, 3),
        )  # fmt: skip


def images(count: int = 40) -> Tensor:
    return torch.rand(count, 2, 4, 4, generator=torch.Generator().manual_seed(1))


def total_of(network: nn.Module) -> int:
    return sum(each.numel() for each in network.parameters())


def stretched(network: nn.Module, stretch: Stretch, kind: str = "kronecker-product") -> Stretched:
    return Stretched(projector(kind, total_of(network), 7, 3), stretch, network)


def dense(network: nn.Module, stretch: Stretch) -> Tensor:
    """S over all weights, (D, D), written out in float64."""
    blocks = []
    for name, weight in network.named_parameters():
        block = stretch.blocks.get(name)
        if block is None:
            blocks.append(torch.eye(weight.numel(), dtype=torch.float64))
        else:
            blocks += [block.double().T * UNIT] * len(weight)
    return torch.block_diag(*blocks)


def test_it_is_a_root_of_the_second_moments() -> None:
    network = convolutional()
    found = stretch_of(network, images())
    assert set(found.blocks) == {"0.weight", "4.weight"}
    patches = functional.unfold(images().double(), 3, padding=1, stride=2)
    patches = patches.transpose(1, 2).reshape(-1, 18)
    features = network[:4](images()).detach().double()
    logarithm = 0.0
    factors = []
    for name, rows, copies in (("0.weight", patches, 4), ("4.weight", features, 3)):
        moment = rows.T @ rows / len(rows)
        damped = moment + DAMPING * moment.diagonal().mean() * torch.eye(len(moment))
        own = found.blocks[name].double() * UNIT
        power = torch.linalg.matrix_power(own, round(-1 / EXPONENT)) @ damped
        factors.append(float(power.diagonal().mean()))
        expected = factors[-1] * torch.eye(len(own), dtype=torch.float64)
        torch.testing.assert_close(power, expected, atol=2e-2 * factors[-1], rtol=0)
        logarithm += copies * float(torch.linalg.slogdet(own).logabsdet)
    assert factors[0] == pytest.approx(factors[1], rel=5e-3)  # one number for all layers
    assert logarithm == pytest.approx(0.0, abs=0.05)


@pytest.mark.parametrize("kind", ["dense", "kronecker-product", "kronecker-sum"])
def test_the_operator_is_the_dense_product(kind: str) -> None:
    network = convolutional().double()
    stretch = stretch_of(network, images().double())
    operator = stretched(network, stretch, kind).double()
    plain = projector(kind, total_of(network), 7, 3).double()
    coordinates = torch.randn(7, dtype=torch.float64, requires_grad=True)
    expected = dense(network, stretch) @ plain(coordinates)
    torch.testing.assert_close(operator(coordinates), expected)
    (slope,) = torch.autograd.grad(operator(coordinates).square().sum(), coordinates)
    (other,) = torch.autograd.grad(expected.square().sum(), coordinates)
    torch.testing.assert_close(slope, other)


def test_decoding_is_exact() -> None:
    network = convolutional()
    stretch = stretch_of(network, images())
    operator = stretched(network, stretch)
    levels = torch.tensor([3, -1, 0, 2, 5, -4, 1])
    found = operator.exact(levels, 0.7)
    plain = projector("kronecker-product", total_of(network), 7, 3)
    whole = plain.signs_times(levels.double()).long()
    units, place = [], 0
    for name, weight in network.named_parameters():
        part = whole[place : place + weight.numel()]
        place += weight.numel()
        block = stretch.blocks.get(name)
        if block is None:
            units += [int(each) * round(1 / UNIT) for each in part]
            continue
        rows = part.view(len(weight), -1).tolist()
        columns = block.T.tolist()
        units += [sum(a * b for a, b in zip(r, c, strict=True)) for r in rows for c in columns]
    assert found.tolist() == [each * (operator.scale * 0.7) for each in units]
    assert operator.scale == UNIT / math.sqrt(total_of(network))
    assert found.equal(operator.double().exact(levels, 0.7))


def test_the_decoded_network_is_where_training_was() -> None:
    network = convolutional()
    subspace = Subspace(network, stretched(network, stretch_of(network, images())))
    levels = torch.tensor([3, -1, 0, 2, 5, -4, 1])
    decoded = subspace.decoded(levels, 0.5)
    torch.testing.assert_close(decoded(images()), subspace(images(), levels * 0.5))
    assert not torch.allclose(decoded(images()), network(images()))


def test_a_file_keeps_it_and_every_entry_counts() -> None:
    found = stretch_of(convolutional(), images())
    again = Stretch.from_tensors({**found.tensors(), "start/0.weight": torch.zeros(3)})
    assert again is not None and again.sha256() == found.sha256()
    changed = {name: each.clone() for name, each in found.blocks.items()}
    changed["4.weight"][2, 5] += 1
    assert Stretch(changed).sha256() != found.sha256()
    assert Stretch.from_tensors({"start/0.weight": torch.zeros(3)}) is None


def test_inputs_that_are_always_zero_do_not_stretch() -> None:
    network = nn.Sequential(nn.Linear(3, 2))
    assert not stretch_of(network, torch.zeros(5, 3)).blocks


def test_refusals() -> None:
    network = convolutional()
    stretch = stretch_of(network, images())
    with pytest.raises(CallerError, match="needs one kind of projector"):
        stretched(network, stretch, "dense+kronecker-product")
    other = nn.Sequential(nn.Linear(4, 2))
    with pytest.raises(CallerError, match="of another network"):
        Stretched(projector("dense", 10, 5, 0), stretch, other)
    eye = Stretch({"0.weight": torch.eye(3, dtype=torch.int32)})
    with pytest.raises(CallerError, match=r"stretch of 0\.weight is of weights of another size"):
        Stretched(projector("dense", 10, 5, 0), eye, other)
    for wrong in (torch.eye(3), torch.ones(2, 3, dtype=torch.int32)):
        with pytest.raises(CallerError, match="a square matrix of int32"):
            Stretch({"0.weight": wrong})
    with pytest.raises(CallerError, match="below 2²⁴"):
        Stretch({"0.weight": torch.full((2, 2), 2**24, dtype=torch.int32)})
    with pytest.raises(CallerError, match="adds up to less than"):
        stretched(network, stretch).exact(torch.full((7,), 2**40), 1.0)
