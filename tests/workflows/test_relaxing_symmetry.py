"""`isotropy.relax` of a network and a symmetry: one call from a finding to a soft network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import isotropy
from isotropy.checks import CallerError
from isotropy.networks.averaging.mixtures import augmentation_over
from isotropy.networks.pathways.relaxed_layer import RelaxedLayer
from isotropy.symmetry.actions.finite import flip, quarter_turns
from isotropy.symmetry.actions.linear import actions_of
from isotropy.symmetry.groups.representations import Scalar, T, V
from isotropy.workflows.building import Finding, group_of

IMAGE = (1, 8, 8)


def cnn() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
        ).double()  # fmt: skip


def mlp(inputs: int, outputs: int, width: int = 10) -> nn.Module:
    layers = nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, outputs)
    return nn.Sequential(*layers).double()


def members(model: nn.Module) -> set[tuple[str, ...]]:
    return {tuple(m.members()) for m in model.modules() if isinstance(m, RelaxedLayer)}


def images() -> Tensor:
    drawn = torch.Generator().manual_seed(0)
    return torch.randn(4, *IMAGE, generator=drawn, dtype=torch.float64)


def finding(actions: Any, shape: tuple[int, ...], **amounts: float) -> Finding:
    """As of a run that found these amounts."""
    found = [{"name": name, "high": amount} for name, amount in amounts.items()]
    return Finding(found, augmentation_over(actions), shape)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a path stand for a finding."""

    def stand(given: Finding) -> Path:
        monkeypatch.setattr("isotropy.workflows.relaxing.finding_of", lambda _: given)
        return Path("run")

    return stand


def test_part_of_a_flip_that_was_found_becomes_a_soft_one(found: Any) -> None:
    run = found(finding([flip("horizontal")], IMAGE, horizontal_flip=0.2))
    soft = isotropy.relax(cnn(), symmetry=run)
    assert members(soft) == {("conv", "equivariant")}
    isotropy.assert_equivariant(soft, flip("horizontal"), images())
    assert members(isotropy.relax(cnn(), ("ffc", "equivariant"), symmetry=run)) == {
        ("ffc", "equivariant")
    }


def test_rotations_by_any_angle_become_quarter_turns(found: Any) -> None:
    run = found(finding(isotropy.affine(("rotation",)), IMAGE, rotation=175.0))
    isotropy.assert_equivariant(isotropy.relax(cnn(), symmetry=run), quarter_turns(), images())
    few = found(finding(isotropy.affine(("rotation",)), IMAGE, rotation=30.0))
    with pytest.raises(CallerError, match="expected a finding of flips.*got rotation"):
        isotropy.relax(cnn(), symmetry=few)


def test_of_translations_convolutions_are_relaxed(found: Any) -> None:
    model = cnn()
    run = found(finding(isotropy.affine(("translation_x",)), IMAGE, translation_x=0.1))
    soft = isotropy.relax(model, symmetry=run)
    assert members(soft) == {("ffc", "conv")}
    assert torch.equal(soft(images()), model(images()))
    with pytest.raises(CallerError, match="got translation_x"):
        isotropy.relax(mlp(64, 3), symmetry=run)


def test_matrices_that_were_found_become_a_group_of_vectors(found: Any) -> None:
    group = isotropy.group_named("O(3)")
    continuous, discrete = actions_of(V(group))
    assert continuous is not None and discrete is not None
    amounts = dict.fromkeys([*continuous.names, *discrete.names], 1.0)
    run = found(finding([continuous, discrete], (3,), **amounts))
    soft = isotropy.relax(mlp(3, 2), symmetry=run)
    assert members(soft) == {("fc", "equivariant"), ("free-gate", "gate")}
    vectors = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    both = V(group), (2 * Scalar)(group)
    isotropy.assert_equivariant(soft, both, vectors)
    some = finding([continuous, discrete], (3,), **{continuous.names[0]: 1.0})
    made = group_of(some)
    assert isinstance(made, isotropy.Group)
    assert (len(made.algebra), len(made.discrete), made.dimension) == (1, 0, 3)


def test_groups_and_representations_do_without_a_finding() -> None:
    soft = isotropy.relax(cnn(), symmetry="C(4)", example=IMAGE)
    isotropy.assert_equivariant(soft, quarter_turns(), images())
    group = isotropy.group_named("SO(3)")
    both = (Scalar + 2 * V)(group), T(2)(group)
    vectors = torch.randn(4, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    isotropy.assert_equivariant(isotropy.relax(mlp(7, 9), symmetry=both), both, vectors)


def test_what_layers_cannot_have_is_refused(found: Any) -> None:
    with pytest.raises(CallerError, match="got an average"):
        isotropy.relax(nn.Sequential(nn.Flatten(), mlp(64, 3)), symmetry="C(4)", example=IMAGE)
    nothing = found(finding([flip("horizontal")], IMAGE))
    with pytest.raises(CallerError, match="got nothing found"):
        isotropy.relax(cnn(), symmetry=nothing)
