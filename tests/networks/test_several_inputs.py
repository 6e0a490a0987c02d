"""Several inputs in one tensor: the network and the Actions see what they would see alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import isotropy
from isotropy.checks import CallerError
from isotropy.networks.several_inputs import MovesFirst, SeveralInputs, packed_inputs

TURNS = isotropy.affine(("rotation", "translation_x"))
QUICK = isotropy.LearnConfig(epochs=2, samples=2, search=False, burn_in=0)


class Two(nn.Module):
    """Images beside a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.of_image, self.of_vector = nn.Linear(36, 3), nn.Linear(2, 3)

    def forward(self, image: Tensor, vector: Tensor) -> Tensor:
        return self.of_image(image.flatten(1)).tanh() + self.of_vector(vector)


class One(nn.Module):
    """The same with a vector that is fixed."""

    def __init__(self, two: Two, vector: Tensor) -> None:
        super().__init__()
        self.two = two
        self.register_buffer("vector", vector)

    def forward(self, image: Tensor) -> Tensor:
        return self.two(image, self.vector.expand(len(image), -1))


def problem(examples: int = 18) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(examples, 1, 6, 6, generator=generator)
    return images, torch.rand(examples, 2, generator=generator), torch.arange(examples) % 3


def test_learning_with_a_constant_second_input_is_learning_without_it() -> None:
    images, vectors, labels = problem()
    vectors = vectors[:1].expand(len(images), -1)
    torch.manual_seed(0)
    two = Two()
    packed = packed_inputs(two, (images, vectors), TURNS)
    found = isotropy.learn(
        packed.model, (packed.inputs, labels), actions=packed.actions, config=QUICK
    )
    alone = isotropy.learn(One(two, vectors[0]), (images, labels), actions=TURNS, config=QUICK)
    assert found.log_evidence == pytest.approx(alone.log_evidence, rel=1e-4)
    for mine, other in zip(found.symmetries, alone.symmetries, strict=True):
        assert mine.name == other.name and mine.high == pytest.approx(other.high, rel=1e-3)


def test_a_run_comes_back_and_can_be_measured(tmp_path) -> None:
    images, vectors, labels = problem()
    actions = [TURNS, isotropy.flip("horizontal")]
    packed = packed_inputs(Two(), {"image": images, "vector": vectors}, actions)
    result = isotropy.learn(
        packed.model, (packed.inputs, labels), actions=packed.actions, config=QUICK,
        folder=tmp_path / "run",
    )  # fmt: skip
    rows = packed.model.pack({"image": images[:4], "vector": vectors[:4]})
    loaded = isotropy.load(tmp_path / "run", network=packed.model, actions=packed.actions)
    torch.testing.assert_close(loaded(rows), result.model(rows))
    network = result.trainer.network.eval()
    measured = isotropy.measure(network, rows, packed.actions[0], layers=False, finite=False)
    given = {"image": images[:4], "vector": vectors[:4]}
    by_name = isotropy.measure(
        network.network, given, TURNS, moves="image", layers=False, finite=False
    )
    for mine, other in zip(measured.actions, by_name.actions, strict=True):
        assert mine["error"] == pytest.approx(other["error"], rel=1e-4)


def test_the_first_moves_and_the_others_stay() -> None:
    images, vectors, _ = problem(4)
    packed = packed_inputs(Two(), (images, vectors), [TURNS, isotropy.flip("horizontal")])
    turned, mirrored = packed.actions
    coordinates = torch.rand(4, 3, 2, generator=torch.Generator().manual_seed(1))
    moved = turned.act(coordinates, packed.inputs)
    torch.testing.assert_close(
        moved[..., :36].unflatten(2, (1, 6, 6)), TURNS.act(coordinates, images)
    )
    assert torch.equal(moved[..., 36:], vectors[:, None].expand(4, 3, 2))
    torch.testing.assert_close(
        mirrored.move(0, packed.inputs),
        torch.cat((images.flip(3).flatten(1), vectors), 1),
    )
    velocity = turned.velocity(torch.tensor([1.0, 0.5]), packed.inputs)
    expected = TURNS.velocity(torch.tensor([1.0, 0.5]), images).flatten(1)
    torch.testing.assert_close(velocity, torch.cat((expected, torch.zeros(4, 2)), 1))
    assert isinstance(turned, MovesFirst) and turned.names == TURNS.names


def test_whole_numbers_come_back_as_such() -> None:
    tokens = torch.tensor([[0, 5, 2**24], [7, 1, 3]])
    model = SeveralInputs(nn.Identity(), (torch.rand(2, 4), tokens))
    first, second = model.unpack(model.pack((torch.rand(2, 4), tokens)))
    assert torch.equal(second, tokens) and second.dtype == tokens.dtype and first.shape == (2, 4)
    flags, ages = torch.tensor([True, False]), torch.tensor([3.5, 4.0])
    each = SeveralInputs(nn.Identity(), (ages, flags))
    assert torch.equal(each.unpack(each.pack((ages, flags)))[1], flags)
    with pytest.raises(CallerError, match="whole numbers up to 16,777,216"):
        model.pack((torch.rand(2, 4), tokens + 1))


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        (torch.rand(3, 2), "expected a tuple or a dictionary of tensors, got Tensor"),
        ((torch.rand(3, 2),), "expected two or more with equally many examples"),
        ((torch.rand(3, 2), torch.rand(4, 2)), "expected two or more with equally many examples"),
    ],
)
def test_what_is_not_several_inputs_is_refused(inputs: Any, sentence: str) -> None:
    with pytest.raises(CallerError, match=sentence):
        packed_inputs(Two(), inputs, TURNS)


def test_other_shapes_or_names_are_refused() -> None:
    images, vectors, _ = problem(4)
    model = SeveralInputs(Two(), {"image": images, "vector": vectors})
    with pytest.raises(CallerError, match="expected examples of shapes"):
        model.pack({"image": images, "vector": images})
    with pytest.raises(CallerError, match="expected .'image', 'vector'., got .'vector',"):
        model.pack({"vector": vectors})


IMAGES, VECTORS, LABELS = problem()


class Pairs(torch.utils.data.Dataset[Any]):
    """Items ((image, vector), label)."""

    def __len__(self) -> int:
        return len(LABELS)

    def __getitem__(self, index: int) -> Any:
        return (IMAGES[index], VECTORS[index]), LABELS[index]


@pytest.mark.parametrize(
    "data",
    [
        ((IMAGES, VECTORS), LABELS),
        ({"image": IMAGES, "vector": VECTORS}, LABELS),
        (IMAGES, VECTORS, LABELS),
        TensorDataset(IMAGES, VECTORS, LABELS),
        Pairs(),
    ],
    ids=["tuple", "dictionary", "triple", "tensors", "pairs"],
)
def test_verbs_say_how_several_inputs_are_given(data: Any) -> None:
    with pytest.raises(CallerError, match="several; pack them with .*packed_inputs"):
        isotropy.learn(Two(), data, actions=TURNS, config=QUICK)
