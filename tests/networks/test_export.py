"""Taking what was learned away: laws through JSON, the averaged network as one program."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from user_networks import draw

from isotropy.checks import CallerError
from isotropy.networks.averaging.augmentations import Augmentation, CorrelatedRanges, UniformRanges
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.averaging.mixtures import Mixture, NoRanges, augmentation_over
from isotropy.networks.export.laws import augmentation_from_law
from isotropy.networks.export.program import export_model
from isotropy.networks.zoo.backbones import cnn, mlp
from isotropy.symmetry.actions.action import Action, Generator, MatrixGenerator, compose
from isotropy.symmetry.actions.catalogue import actions_named
from isotropy.symmetry.actions.finite import (
    RandomTransform,
    channel_permutations,
    flip,
    point_permutation,
    quarter_turns,
    sign_change,
)
from isotropy.symmetry.actions.images import AffineAction, affine, intensity
from isotropy.symmetry.actions.points import points
from isotropy.symmetry.actions.sequences import sequences

IMAGES = (3, 8, 8)


def learned(augmentation: Augmentation, seed: int = 1) -> Augmentation:
    """Other parameters than it started with, of either sign, as after learning."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in augmentation.parameters():
            noise = torch.rand(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.copy_(0.8 * noise - 0.4)
    augmentation.project()
    return augmentation


def over(actions: Any, **options: Any) -> Augmentation:
    return learned(augmentation_over(actions, dtype=torch.float64, **options))


OWN_GENERATOR = MatrixGenerator("skew", "tangent", 2.0, 0.7, matrix=((0, 0.5, 0), (0, 0, 0.25)))

LAWS: dict[str, tuple[Callable[[], Augmentation], tuple[int, ...]]] = {
    "six generators": (lambda: over(affine()), IMAGES),
    "another order": (lambda: over(affine(("scale", "rotation", "shear_y"))), IMAGES),
    "options": (
        lambda: over(affine(padding="border", align_corners=False, interpolation="bicubic")),
        IMAGES,
    ),
    "mean colour": (
        lambda: over(affine(padding="mean", fill=[0.25, 0.5, 0.75][: IMAGES[0]])),
        IMAGES,
    ),
    "correlated": (lambda: over(affine(), distribution="correlated"), IMAGES),
    "composed": (lambda: over([affine(("rotation", "scale_x")), intensity()]), IMAGES),
    "composed the other way": (lambda: over([intensity(), affine(("rotation",))]), IMAGES),
    "two exponentials": (
        lambda: over(compose(affine(("rotation",)), affine(("translation_x",), padding="border"))),
        IMAGES,
    ),
    "own matrix": (lambda: over(AffineAction([OWN_GENERATOR])), IMAGES),
    "mixture": (lambda: over([affine(("rotation",)), flip("horizontal")]), IMAGES),
    "correlated mixture": (
        lambda: over(
            [affine(("rotation", "scale")), quarter_turns(), sign_change()],
            distribution="correlated",
        ),
        IMAGES,
    ),
    "finite alone": (lambda: over([flip("vertical"), quarter_turns()]), IMAGES),
    "all channel orders": (lambda: over(channel_permutations(3)), IMAGES),
    "some channel orders": (lambda: over(channel_permutations(3, [(2, 1, 0)])), IMAGES),
    "sequences": (lambda: over(sequences()), (2, 9)),
    "silent beyond the ends": (lambda: over(sequences(boundary="zeros")), (2, 9)),
    "sequences of length three": (lambda: over(sequences(("amplitude",))), (2, 3)),
    "clouds": (lambda: over(points(3, ("rotation_x", "scale", "jitter"), count=5)), (5, 3)),
    "reordered clouds": (lambda: over([points(2, ("rotation",)), point_permutation()]), (5, 2)),
}


@pytest.mark.parametrize(("make", "shape"), LAWS.values(), ids=LAWS)
def test_law_through_json_moves_data_alike(make, shape) -> None:
    original = make()
    text = json.dumps({"schema": 1, **original.law(), "symmetries": []})
    rebuilt = augmentation_from_law(json.loads(text), shape, dtype=torch.float64)
    noise = original.noise(4, 6, generator=torch.Generator().manual_seed(2))
    again = rebuilt.noise(4, 6, generator=torch.Generator().manual_seed(2))
    assert torch.equal(noise, again)
    data = draw(4, *shape)
    moved = original(data, noise)
    assert torch.equal(rebuilt(data, noise), moved)
    assert (moved - data[:, None]).abs().max() > 0.01
    assert rebuilt.symmetries() == original.symmetries()
    assert rebuilt.law() == original.law()
    weights, expected = (a.copies(noise.shape[1]).weights for a in (rebuilt, original))
    assert (weights is None) == (expected is None)
    assert weights is None or torch.equal(weights, expected)


def test_ranges_at_their_bound_are_not_rounded() -> None:
    action = affine(("rotation", "translation_x"))
    start = torch.tensor([[2.0, 1.3], [0.3, 0.1]])
    original = CorrelatedRanges(action, start=start)  # the rotation is cut to ±π
    rebuilt = augmentation_from_law(original.law(), IMAGES)
    assert torch.equal(rebuilt.factor, original.factor)


class Tint(Action):
    generators = (Generator("tint", "grey level"),)

    def act(self, coordinates, data):
        return data[:, None] + coordinates[..., 0, None, None, None]


def test_own_actions_are_handed_in() -> None:
    noise = RandomTransform(lambda images: images + torch.rand(1), "haze")
    original = over([Tint(), noise])
    law = json.loads(json.dumps(original.law()))
    with pytest.raises(CallerError, match="'tint'.*actions="):
        augmentation_from_law(law, IMAGES)
    rebuilt = augmentation_from_law(law, IMAGES, actions=[Tint(), noise], dtype=torch.float64)
    replay = original.noise(2, 4)
    data = draw(2, *IMAGES)
    assert torch.equal(rebuilt(data, replay), original(data, replay))


def changed(law: dict[str, Any], **entries: Any) -> dict[str, Any]:
    return {**json.loads(json.dumps(law)), **entries}


def rotation_law() -> dict[str, Any]:
    return UniformRanges(affine(("rotation",))).law()


def flip_law(**probabilities: float) -> dict[str, Any]:
    law = Mixture(UniformRanges(NoRanges()), [flip("horizontal")]).law()
    (name,) = law["finite"][0]["probabilities"]
    if probabilities:
        law["finite"][0]["probabilities"] = {name: probabilities["p"]}
    return law


def other_matrix() -> dict[str, Any]:
    """A cloud's rotation whose matrix is not what this library calls a rotation."""
    law = UniformRanges(points(2, ("rotation",))).law()
    return changed(law, generators=[{**law["generators"][0], "matrix": [[0, 1, 0], [-1, 0, 0]]}])


def without(law: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in law.items() if name != key}


MISTAKES: dict[str, tuple[Callable[[], dict[str, Any]], tuple[int, ...], str]] = {
    "schema": (lambda: changed(rotation_law(), schema=9), IMAGES, "expected schema 1, got 9"),
    "kind": (lambda: changed(rotation_law(), kind="normal"), IMAGES, "unknown kind .*'normal'"),
    "no kind": (lambda: without(rotation_law(), "kind"), IMAGES, "expected an entry 'kind'"),
    "no factors": (
        lambda: without(rotation_law(), "noise_factors"),
        IMAGES,
        "expected an entry 'noise_factors'",
    ),
    "no parts": (lambda: without(rotation_law(), "actions"), IMAGES, "expected an entry 'actions'"),
    "numbers alone": (
        lambda: {"schema": 1, "symmetries": [{"name": "rotation", "high": 30.0}]},
        IMAGES,
        "expected an entry 'kind'",
    ),
    "too many": (
        lambda: changed(rotation_law(), noise_factors=[0.1, 0.2]),
        IMAGES,
        r"noise_factors: expected shape \(1\), got \(2\)",
    ),
    "not a number": (
        lambda: changed(rotation_law(), noise_factors=[float("nan")]),
        IMAGES,
        "expected finite numbers",
    ),
    "other data": (lambda: UniformRanges(intensity()).law(), (5, 2), "unknown generator"),
    "other matrix": (other_matrix, (5, 2), "'rotation': expected the law's matrix"),
    "stray part": (
        lambda: changed(rotation_law(), actions=[{"generators": ["scale"]}]),
        IMAGES,
        "unknown generator of the law 'scale'",
    ),
    "a misspelt option": (
        lambda: changed(
            rotation_law(), actions=[{"generators": ["rotation"], "interpolathon": "bilinear"}]
        ),
        IMAGES,
        "does not fit together: .*interpolathon",
    ),
    "parts that are no objects": (
        lambda: changed(rotation_law(), actions=[1]),
        IMAGES,
        "does not fit together",
    ),
    "negative": (lambda: flip_law(p=-0.1), IMAGES, "expected numbers of at least 0"),
    "beyond one": (lambda: flip_law(p=1.1), IMAGES, "whose sum is at most 1"),
    "other element": (
        lambda: changed(
            flip_law(), finite=[{"name": "horizontal_flip", "probabilities": {"bend": 0.1}}]
        ),
        IMAGES,
        "law's elements bend, got",
    ),
    "unknown finite": (
        lambda: changed(flip_law(), finite=[{"name": "bend", "probabilities": {"bend": 0.1}}]),
        IMAGES,
        "'bend'.*actions=",
    ),
}


@pytest.mark.parametrize(("make", "shape", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_in_laws_are_named(make, shape, sentence) -> None:
    with pytest.raises(CallerError, match=sentence):
        augmentation_from_law(make(), shape)


def test_wrong_actions_are_named() -> None:
    law = rotation_law()
    with pytest.raises(CallerError, match="law's generators rotation, got scale"):
        augmentation_from_law(law, IMAGES, actions=[affine(("scale",))])
    with pytest.raises(CallerError, match="finite action"):
        augmentation_from_law(law, IMAGES, actions=[affine(("rotation",)), sign_change()])
    with pytest.raises(CallerError, match="law's elements .*, got none"):
        augmentation_from_law(flip_law(), IMAGES, actions=[])


# --- the averaged network as a program ----------------------------------------------------

SHAPE = (1, 28, 28)
NETWORKS = {"mlp": lambda: mlp(SHAPE, 10, hidden=20), "cnn": lambda: cnn(SHAPE, 10)}
AUGMENTATIONS = {
    "affine": lambda: learned(UniformRanges(affine())),
    "correlated": lambda: learned(CorrelatedRanges(affine(padding="border"))),
    "mean colour": lambda: learned(UniformRanges(affine(padding="mean", fill=[0.3]))),
    "mixture": lambda: learned(
        augmentation_over(actions_named(["rotation", "brightness", "horizontal_flip"], SHAPE))
    ),
    "values": lambda: learned(
        augmentation_over(actions_named(["brightness", "contrast", "horizontal_flip"], SHAPE))
    ),
    "finite": lambda: learned(augmentation_over(quarter_turns())),
}


def model_with(network: str = "mlp", augmentation: str = "affine") -> InvariantModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return InvariantModel(NETWORKS[network](), AUGMENTATIONS[augmentation](), 4)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


# The affine exponential is hundreds of operators, and tracing them takes seconds.
QUICK = [("mlp", "affine"), ("mlp", "finite"), ("cnn", "finite")]
SLOW = [(n, a) for n in NETWORKS for a in AUGMENTATIONS if (n, a) not in QUICK]


@pytest.mark.parametrize(
    ("network", "augmentation"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_program_is_the_model(network, augmentation, tmp_path: Path) -> None:
    model = model_with(network, augmentation)
    path = tmp_path / "model.pt2"
    returned = export_model(
        model, draw(1, *SHAPE, dtype=torch.float32), path, generator=generator()
    )
    loaded = torch.export.load(path)
    noise = model.noise(1, generator=generator())
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt2"]
    for program in (returned.module(), loaded.module()):
        for batch in (1, 7):
            images = draw(batch, *SHAPE, seed=batch, dtype=torch.float32)
            with torch.no_grad():
                expected = model(images, noise.expand(batch, -1, -1))
                plain = model.network(images)
            found = program(images)
            assert found.shape == (batch, 10)
            assert not found.requires_grad
            assert (found - expected).abs().max() < 1e-6
            assert (expected - plain).abs().max() > 1e-3
    # Nothing but torch's own operators, so that the file needs no isotropy.
    operators = [node.target for node in loaded.graph.nodes if node.op == "call_function"]
    named = [o for o in operators if isinstance(o, torch._ops.OpOverload)]
    assert named
    assert {operator.namespace for operator in named} == {"aten"}


def test_program_that_takes_noise() -> None:
    model = model_with("mlp", "values")
    example = draw(3, *SHAPE, dtype=torch.float32)
    program = export_model(model, example, samples=6, noise_as_input=True).module()
    for batch in (1, 7):
        images = draw(batch, *SHAPE, seed=batch, dtype=torch.float32)
        noise = model.noise(batch, samples=6, generator=generator())
        with torch.no_grad():
            assert (program(images, noise) - model(images, noise)).abs().max() < 1e-6


def test_program_without_symmetry_is_the_network() -> None:
    """Ranges of zero are no special case that would be decided while tracing."""
    model = InvariantModel(NETWORKS["mlp"](), UniformRanges(intensity(), start=0.0), 3)
    program = export_model(model, draw(1, *SHAPE, dtype=torch.float32)).module()
    images = draw(5, *SHAPE, dtype=torch.float32)
    with torch.no_grad():
        assert (program(images) - model.network(images)).abs().max() < 1e-6


def test_export_leaves_the_model_alone_and_in_evaluation_mode() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(784, 2))
    augmentation = augmentation_over(flip("horizontal"))
    augmentation.requires_grad_(False)
    model = InvariantModel(network, augmentation, 2).train()
    program = export_model(model, draw(1, *SHAPE, dtype=torch.float32)).module()
    assert model.training and network[1].training
    assert not augmentation.probabilities[0].requires_grad
    assert network[2].weight.requires_grad
    images = draw(2, *SHAPE, dtype=torch.float32)
    assert torch.equal(program(images), program(images))


def test_mistakes_in_exporting_are_named(tmp_path: Path) -> None:
    model = model_with()
    example = draw(1, *SHAPE, dtype=torch.float32)
    with pytest.raises(CallerError, match=r"ends in .pt2, got 'model.onnx'"):
        export_model(model, example, tmp_path / "model.onnx")
    with pytest.raises(CallerError, match="existing folder"):
        export_model(model, example, tmp_path / "nowhere" / "model.pt2")
    with pytest.raises(CallerError, match=r"a batch of inputs .*, got \(0, 1, 28, 28\)"):
        export_model(model, example[:0])
    random = augmentation_over(RandomTransform(torch.dropout, "drop"))
    with pytest.raises(CallerError, match="drop: expected elements that are the same each time"):
        export_model(InvariantModel(model.network, random), example)


def test_by_default_the_program_is_the_model_in_evaluation_mode() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 4)).double()
    model = InvariantModel(network, over(affine()), samples=5)
    images = draw(3, *IMAGES)
    program = export_model(model, images)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(images), model.eval()(images))
