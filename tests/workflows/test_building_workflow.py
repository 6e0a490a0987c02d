"""`isotropy.build`: which of three things it does, what it says, what a folder gives back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learn_runs import CONFIG, assert_one_sentence, run_here
from torch import Tensor, nn

import isotropy
from isotropy.networks.averaging.mixtures import augmentation_over
from isotropy.networks.zoo.specification import parse_network
from isotropy.symmetry.groups.representations import Scalar, T, V

SHAPE = (1, 8, 8)
Capture = pytest.CaptureFixture[str]


def images(count: int = 8) -> Tensor:
    return torch.rand((count, *SHAPE), generator=torch.Generator().manual_seed(0))


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return parse_network("convnet:8").build(SHAPE, 2)


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return parse_network("mlp:8").build(SHAPE, 2)


def learned(actions: list[Any], amounts: dict[str, float], **options: Any) -> isotropy.LearnResult:
    """A short run, with these amounts in the place of those that it found."""
    data = (images(40), torch.arange(40) % 2)
    result = isotropy.learn(perceptron(), data, actions=actions, config=CONFIG, **options)
    law = augmentation_over(actions, start=amounts)
    model = isotropy.InvariantModel(result.model.network, law, 3)
    record = {**result.record, "symmetries": [each.as_dict() for each in law.symmetries()]}
    return replace(result, model=model, symmetries=law.symmetries(), record=record)


def same_outputs(one: nn.Module, other: nn.Module, inputs: Tensor) -> bool:
    with torch.no_grad():
        torch.manual_seed(3)
        first = one.eval()(inputs)
        torch.manual_seed(3)
        return torch.equal(first, other(inputs))


TURNS, FLIP = isotropy.quarter_turns(), isotropy.flip("horizontal")
ROTATION = isotropy.affine(("rotation",))

# --- groups ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("symmetry", ["C(4)", isotropy.group_named("C(4)")])
def test_group_of_the_grid_becomes_group_convolutions(symmetry: Any) -> None:
    result = isotropy.build(convolutional(), symmetry, example=images())
    assert (result.how, result.exact) == ("group convolutions", True)
    assert "C(4) is built in exactly: 6 convolutions became" in result.sentence
    record = result.record
    assert record["error"] < 1e-5 and record["replaced"] == {} and len(record["converted"]) == 6
    assert abs(record["num_parameters"] / record["plain_parameters"] - 1) < 0.25
    model = result.model.eval()
    isotropy.assert_equivariant(model, TURNS, images())
    with pytest.raises(AssertionError):
        isotropy.assert_equivariant(model, FLIP, images())
    json.dumps(record)


def test_draws_come_from_the_generator() -> None:
    models = [
        isotropy.build(
            convolutional(), "D(4)", example=SHAPE, generator=torch.Generator().manual_seed(seed)
        ).model
        for seed in (0, 0, 1)
    ]
    assert same_outputs(models[0], models[1].eval(), images())
    assert not same_outputs(models[0], models[2].eval(), images())
    isotropy.assert_equivariant(models[0], [TURNS, FLIP], images())


def test_replaced_strides_are_told() -> None:
    network = parse_network("compact").build(SHAPE, 2)
    result = isotropy.build(network, "D(1)", example=SHAPE)
    assert list(result.record["replaced"]) == ["convolutions.0"]
    assert "convolutions.0" in result.sentence and "polyphase" in result.sentence


def test_network_without_convolutions_is_averaged_over_the_group() -> None:
    network = perceptron()
    result = isotropy.build(network, "D(4)", example=SHAPE)
    assert (result.how, result.exact) == ("average", True)
    assert "8 transformed copies (D(4)), which is exact" in result.sentence
    isotropy.assert_equivariant(result.model.eval(), [TURNS, FLIP], images())
    with torch.no_grad():
        turned = [images().rot90(n, (-2, -1)) for n in range(4)]
        every = [network(each) for turn in turned for each in (turn, turn.flip(-1))]
        torch.testing.assert_close(result.model(images()), torch.stack(every).mean(0))


@pytest.mark.parametrize("network", [convolutional, perceptron])
def test_all_angles_are_averaged(network: Any) -> None:
    result = isotropy.build(network(), "O(2)", example=SHAPE)
    assert (result.how, result.exact, result.record["error"]) == ("average", False, None)
    assert "rotation ±180°" in result.sentence and "horizontal flip" in result.sentence
    assert "cannot be exact; group='C(4)'" in result.sentence


def test_actions_and_laws_are_averaged_over() -> None:
    turned = isotropy.build(convolutional(), TURNS, example=SHAPE)
    assert (turned.how, turned.exact) == ("average", True)
    isotropy.assert_equivariant(turned.model.eval(), TURNS, images())
    law = augmentation_over(ROTATION, start={"rotation": 30.0})
    ranged = isotropy.build(convolutional(), law, example=SHAPE)
    assert (ranged.how, ranged.exact) == ("average", False)
    assert "rotation ±30°" in ranged.sentence
    assert ranged.model.augmentation is not law


# --- what was learned -----------------------------------------------------------------------------


def test_learned_flip_is_built_in() -> None:
    run = learned([ROTATION, FLIP], {"rotation": 0.0, "horizontal_flip": 0.5})
    result = isotropy.build(convolutional(), run)
    assert (result.how, result.exact, result.record["group"]) == (
        "group convolutions",
        True,
        "D(1)",
    )
    isotropy.assert_equivariant(result.model.eval(), FLIP, images())
    assert [each["name"] for each in result.record["symmetries"]] == ["horizontal_flip"]


def test_learned_group_without_a_usual_name_comes_back(tmp_path: Path) -> None:
    vertical = isotropy.flip("vertical")
    result = isotropy.build(convolutional(), learned([vertical], {"vertical_flip": 0.5}))
    assert (result.exact, result.record["group"]) == (True, "vertical_flip")
    result.named(parse_network("convnet:8")).save(tmp_path)
    model = isotropy.load(tmp_path)
    isotropy.assert_equivariant(model, vertical, images())
    assert same_outputs(result.model, model, images())


def test_learned_quarter_turns_are_built_in() -> None:
    amounts = dict.fromkeys(TURNS.names, 0.25)
    result = isotropy.build(convolutional(), learned([TURNS], amounts))
    assert (result.how, result.exact, result.record["group"]) == (
        "group convolutions",
        True,
        "C(4)",
    )
    halves = {"turn_90": 0.02, "turn_180": 0.49, "turn_270": 0.0}
    assert isotropy.build(convolutional(), learned([TURNS], halves)).record["group"] == "C(2)"
    result = isotropy.build(perceptron(), learned([TURNS], amounts))
    assert (result.how, result.exact) == ("average", True)


def test_learned_rotation_is_averaged_unless_a_group_is_asked_for() -> None:
    run = learned([ROTATION, FLIP], {"rotation": 178.0, "horizontal_flip": 0.0})
    result = isotropy.build(convolutional(), run)
    assert (result.how, result.exact) == ("average", False)
    assert "group='C(4)'" in result.sentence
    assert result.model.symmetries() == run.symmetries
    asked = isotropy.build(convolutional(), run, group="C(4)")
    assert (asked.how, asked.exact) == ("group convolutions", True)


def test_part_of_a_learned_symmetry_is_exact_and_part_an_average() -> None:
    amounts = {"rotation": 30.0, "horizontal_flip": 0.5, "vertical_flip": 0.2}
    run = learned([ROTATION, FLIP, isotropy.flip("vertical")], amounts)
    result = isotropy.build(convolutional(), run)
    assert (result.how, result.exact, result.record["group"]) == (
        "group convolutions",
        False,
        "D(1)",
    )
    assert "(rotation ±30° and vertical flip probability 0.20)" in result.sentence
    amounts_left = {each.name: each.high for each in result.model.symmetries()}
    assert amounts_left == pytest.approx({"rotation": 30.0, "vertical_flip": 0.2})
    isotropy.assert_equivariant(result.model.network.eval(), FLIP, images())


def test_nothing_found_is_refused() -> None:
    run = learned([ROTATION, FLIP], {"rotation": 0.0, "horizontal_flip": 0.0})
    with pytest.raises(isotropy.CallerError, match="no symmetry was found"):
        isotropy.build(convolutional(), run)


# --- vectors and tensors --------------------------------------------------------------------------


def test_vectors_get_equivariant_layers(tmp_path: Path) -> None:
    network = nn.Sequential(
        nn.Linear(7, 24), nn.SiLU(), nn.Linear(24, 16), nn.SiLU(), nn.Linear(16, 9)
    )
    result = isotropy.build(network, "O(3)", source=Scalar + 2 * V, target=T(2))
    assert (result.how, result.exact) == ("equivariant layers", True)
    assert result.config["channels"] == [24, 16] and result.record["error"] < 1e-9
    inputs = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    turn, _ = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(2)))
    both = torch.block_diag(torch.ones(1, 1), turn, turn)
    wanted = result.model(inputs) @ torch.kron(turn, turn).mT
    torch.testing.assert_close(result.model(inputs @ both.mT), wanted)
    result.save(tmp_path)
    assert same_outputs(result.model, isotropy.load(tmp_path), inputs)
    assert same_outputs(result.model, isotropy.load(tmp_path, network=result.model), inputs)


@pytest.mark.parametrize(
    ("network", "options", "words"),
    [
        (nn.Linear(3, 3), {"source": V, "target": V}, "two nn.Linear or more"),
        (
            nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)),
            {"source": V, "target": V},
            "expected 3 inputs and 3 outputs",
        ),
        (nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 3)), {"source": V}, "source= and target="),
    ],
)
def test_vectors_that_do_not_fit_are_refused(
    network: nn.Module, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(isotropy.CallerError, match=words):
        isotropy.build(network, "O(3)", **options)


@pytest.mark.parametrize(
    ("symmetry", "options", "words"),
    [
        ("C(4)", {}, "example: expected"),
        ("C(6)", {"example": SHAPE}, "does not act on the grid"),
        ("SO(3)", {"example": SHAPE}, "expected a finite group"),
        (None, {"example": SHAPE}, "got NoneType"),
        (ROTATION, {"example": SHAPE}, "expected amounts of rotation"),
        (Path("nowhere"), {}, "not a run folder"),
    ],
)
def test_symmetries_that_cannot_be_built_are_refused(
    symmetry: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(isotropy.CallerError, match=words):
        isotropy.build(convolutional(), symmetry, **options)


# --- folders and the command ----------------------------------------------------------------------


@pytest.mark.parametrize("symmetry", ["D(4)", "SO(2)", "mixed"])
@pytest.mark.parametrize("words", ["convnet:8", "mlp:8"])
def test_folder_gives_the_model_back(tmp_path: Path, symmetry: str, words: str) -> None:
    network = parse_network(words)
    amounts = {"rotation": 30.0, "horizontal_flip": 0.5}
    asked: Any = learned([ROTATION, FLIP], amounts) if symmetry == "mixed" else symmetry
    result = isotropy.build(network.build(SHAPE, 2), asked, example=SHAPE)
    result.named(network).save(tmp_path / "named")
    assert same_outputs(result.model, isotropy.load(tmp_path / "named"), images())
    result.save(tmp_path / "given")
    given = isotropy.load(tmp_path / "given", network=network.build(SHAPE, 2))
    assert same_outputs(result.model, given, images())
    with pytest.raises(isotropy.CallerError, match="handed over in Python"):
        isotropy.load(tmp_path / "given")
    with pytest.raises(isotropy.CallerError, match="already holds a run"):
        result.save(tmp_path / "given")


def test_command_builds_and_other_commands_take_the_folder(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_here(
        capsys, "build", "--model", "convnet:8", "--group", "D(4)", "--out", "built", "--json"
    )
    record = done.record
    assert record["exact"] and record["how"] == "group convolutions"
    assert record["run_folder"] == "built" and record["shape"] == [1, 28, 28]
    model = isotropy.load("built")
    digits = torch.rand((4, 1, 28, 28), generator=torch.Generator().manual_seed(0))
    isotropy.assert_equivariant(model, [TURNS, FLIP], digits)
    words = ("--generators", "rotation", "--subset", "8", "--examples", "4", "--no-layers")
    measured = run_here(capsys, "measure", "--model", "built", *words, "--out", "m", "--json")
    assert measured.record["command"] == "measure"


def test_command_takes_a_run(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    learned([TURNS], dict.fromkeys(TURNS.names, 0.25), folder=None).save("run")
    done = run_here(
        capsys, "build", "--model", "convnet:8", "--symmetries", "run", "--out", "built"
    )
    assert done.status == 0 and "C(4) is built in exactly" in done.stdout
    assert isotropy.load("built")(images()).shape == (8, 2)


@pytest.mark.parametrize(
    "words",
    [(), ("--group", "C(4)", "--symmetries", "x"), ("--group", "C(5)"), ("--symmetries", "x")],
)
def test_mistakes_are_one_sentence(
    words: tuple[str, ...], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_one_sentence(run_here(capsys, "build", "--model", "convnet:8", *words, "--out", "o"))
    assert not Path("o").exists()
