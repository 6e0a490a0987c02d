"""Every verb takes the result of the one before, in Python and by run folder in the shell."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from learn_runs import SIZE, bar_tensors, bars_file, run_here
from torch import Tensor, nn

import isotropy
from isotropy.data.pairs import distorted_vectors
from isotropy.symmetry.actions.finite import flip, quarter_turns
from isotropy.symmetry.actions.linear import matrix_elements
from isotropy.symmetry.groups.representations import Scalar, T, V

LEARN = isotropy.LearnConfig(epochs=3, samples=2, batch_size=20, burn_in=1, search=False)
RELAX = isotropy.RelaxConfig(epochs=8, burn_in=1, batch_size=4, update_every=1, weight_rate=0.1)


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(),
            nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3),
        )  # fmt: skip


@pytest.fixture(scope="module")
def learned() -> isotropy.LearnResult:
    actions = [isotropy.affine(("rotation",)), flip("horizontal")]
    return isotropy.learn(network(), bar_tensors(), actions=actions, config=LEARN)


@pytest.fixture(scope="module")
def relaxed() -> isotropy.RelaxResult:
    layers = isotropy.relax(network(), ("ffc", "conv"), example=(1, SIZE, SIZE))
    return isotropy.learn_layers(layers, bar_tensors(), config=RELAX)


@pytest.fixture(scope="module")
def built() -> isotropy.BuildResult:
    drawn = torch.Generator().manual_seed(0)
    return isotropy.build(network(), "C(4)", example=(1, SIZE, SIZE), generator=drawn)


def errors(result: isotropy.MeasureResult) -> dict[str, float]:
    return {each["name"]: each["error"] for each in result.record["actions"]}


def measured(model: nn.Module) -> dict[str, float]:
    return errors(isotropy.measure(model, bar_tensors(20)))


# --- in Python ------------------------------------------------------------------------------------


def test_learn_measure(learned: isotropy.LearnResult) -> None:
    assert measured(learned.model)
    assert measured(learned.model) == measured(learned.model)


def test_learn_build_measure(learned: isotropy.LearnResult) -> None:
    made = isotropy.build(network(), learned)
    assert made.how in ("group convolutions", "average")
    assert measured(made.model.eval())


def test_build_measure(built: isotropy.BuildResult) -> None:
    isotropy.assert_equivariant(built.model.eval(), quarter_turns(), bar_tensors(4)[0])
    assert measured(built.model.eval())


def test_build_learn(built: isotropy.BuildResult) -> None:
    actions = isotropy.affine(("translation_x",))
    result = isotropy.learn(built.model, bar_tensors(), actions=actions, config=LEARN)
    bare: nn.Module = result.model.network
    isotropy.assert_equivariant(bare.eval(), quarter_turns(), bar_tensors(4)[0])


def test_relax_measure_and_relax_harden_measure(relaxed: isotropy.RelaxResult) -> None:
    assert measured(relaxed.model)
    assert measured(relaxed.harden().eval())


def test_learn_relax_measure(learned: isotropy.LearnResult) -> None:
    found = isotropy.relax(network(), symmetry=learned)
    assert measured(found.eval())


def test_build_relax_measure(built: isotropy.BuildResult) -> None:
    soft = isotropy.relax(built.model, ("conv", "equivariant"), example=(1, SIZE, SIZE)).eval()
    isotropy.assert_equivariant(soft, quarter_turns(), bar_tensors(4)[0])
    assert measured(soft)


def test_emlp_relax_learn_harden_measure() -> None:
    group = isotropy.group_named("SO(3)")
    both = (2 * V)(group), T(2)(group)
    vectors = torch.randn((30, 6), generator=torch.Generator().manual_seed(0))
    targets = (vectors[:, :3, None] * vectors[:, None, 3:]).flatten(1)
    emlp = isotropy.EMLP(2 * V, T(2), group, channels=16, layers=1)
    config = isotropy.RelaxConfig(epochs=3, objective="map", weight_rate=0.01)
    result = isotropy.learn_layers(isotropy.relax(emlp), (vectors, targets), config=config)
    assert [layer["name"] for layer in result.layers][-1] == "head"
    soft = isotropy.measure(result.model.double(), vectors.double(), actions=both)
    hard = isotropy.measure(result.harden(below=1.0).double(), vectors.double(), actions=both)
    assert max(errors(hard).values()) < 1e-15 < max(errors(soft).values())


def test_basis_emlp_measure() -> None:
    group = isotropy.group_named("SO(3)")
    basis = isotropy.equivariant_basis("SO(3)", "V >> T(2)")
    assert basis.rank == 1
    emlp = isotropy.EMLP(2 * V, T(2), group, channels=16, layers=1).double()
    inputs = torch.randn((5, 6), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    isotropy.assert_equivariant(emlp, ((2 * V)(group), T(2)(group)), inputs)
    result = isotropy.measure(emlp, inputs, actions=((2 * V)(group), T(2)(group)))
    assert max(errors(result).values()) < 1e-20
    invariant = isotropy.EMLP(2 * V, Scalar, group, channels=16, layers=1).double()
    assert invariant(inputs).shape == (5, 1)


def test_represent_measure_and_load(tmp_path: Path) -> None:
    """The code of what shifts can be measured; a run folder and the transformer give it too."""
    split = distorted_vectors("shift", 6, 0, entities=40, held_out=10, copies=4)
    config = isotropy.RepresentConfig(steps=60, batch_size=32)
    result = isotropy.represent(split, config=config)
    shift = matrix_elements({"shift": torch.eye(6).roll(1, 0)})
    samples = split.train.inputs[:20]
    found = isotropy.measure(result.model, samples, shift)
    assert [each["name"] for each in found.entries[0]["exact"]] == ["matrix_elements"]
    loaded = isotropy.load(result.save(tmp_path / "run"))
    assert torch.equal(loaded(samples), result.model(samples))
    encoder = isotropy.InvariantEncoder(config=config)
    codes = encoder.fit(split.train.inputs, split.train.targets).transform(samples)
    torch.testing.assert_close(torch.from_numpy(codes).float(), encoder.result_.codes(samples)[0])


@pytest.mark.parametrize("which", ["learned", "relaxed", "built"])
def test_load_gives_what_was_trained(
    which: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    result: Any = request.getfixturevalue(which)
    folder = result.save(tmp_path / "run")
    given = network()
    options: dict[str, Any] = {}
    if which == "relaxed":
        given = isotropy.relax(given, ("ffc", "conv"), example=(1, SIZE, SIZE))
    if which == "learned":
        options["actions"] = [isotropy.affine(("rotation",)), flip("horizontal")]
    model = isotropy.load(folder, network=given, **options)
    images: Tensor = bar_tensors(7)[0]
    with torch.no_grad():
        assert torch.equal(model(images), result.model.eval()(images))


# --- on the command line --------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    finished = run_here(capsys, *words, "--json", "--device", "cpu")
    assert finished.status == 0, finished.stderr
    found: dict[str, Any] = json.loads(finished.stdout)
    return found


def test_commands_take_the_folder_of_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ("--data", str(bars_file(tmp_path)))
    folders = {name: str(tmp_path / name) for name in ("learn", "built", "again", "a", "b", "c")}
    fast = ("--epochs", "3", "--samples", "2", "--verdicts", "0", "--no-search")
    learn = ("learn", *data, "--model", "convnet:2", "--generators", "rotation,horizontal_flip")
    run(capsys, *learn, *fast, "--out", folders["learn"])
    few = ("--examples", "8", "--generators", "rotation")
    averaged = run(capsys, "measure", "--model", folders["learn"], *few, "--out", folders["a"])
    model = isotropy.load(folders["learn"])
    assert isinstance(model, isotropy.InvariantModel)
    assert averaged["actions"][0]["error"] > 0
    build = ("build", "--model", folders["learn"], "--group", "C(4)", "--out", folders["built"])
    assert run(capsys, *build)["exact"]
    turns = ("--examples", "8", "--generators", "rotation,quarter_turns")
    run(capsys, "measure", "--model", folders["built"], *data, *turns, "--out", folders["b"])
    again = ("learn", *data, "--model", folders["built"], "--generators", "translation_x")
    run(capsys, *again, *fast, "--out", folders["again"])
    run(capsys, "measure", "--model", folders["again"], *few, "--out", folders["c"])
    declared = (*data, "--grid", "dimension=5,10 seed=0", "--epochs", "2")
    for number, own in enumerate(
        (
            ("--model", "mlp:5", "--symmetries", folders["learn"]),
            ("--model", folders["built"]),
        )
    ):
        out = str(tmp_path / f"certified {number}")
        record = run(capsys, "certify", *declared, *own, "--out", out)
        assert record["kind"] == "compression"
        checked = run(capsys, "verify", out, *data)
        assert checked["valid"] and checked["bound"] == record["bound"]
        assert isinstance(isotropy.load(out), nn.Module)


# --- the page of the documentation ----------------------------------------------------------------

PAGE = (Path(__file__).parents[1] / "docs" / "verbs.md").read_text(encoding="utf-8")
CALLS = re.findall(r"^\|[^|]*\|[^|]*\| `(isotropy\.[^`]*)` \|", PAGE, flags=re.M)


@pytest.fixture(scope="module")
def results_of_the_page() -> dict[str, Any]:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    names: dict[str, Any] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        exec(block, names)
    return names


def test_the_page_has_every_pair() -> None:
    rows = re.findall(r"^\| ([a-zA-Z, ]+) \| ([a-z ]+) \| `", PAGE, flags=re.M)
    assert {("learn", "measure"), ("learn", "build"), ("build", "measure"), ("build", "learn"),
            ("learn", "certify"), ("build", "certify"), ("certify", "verify"),
            ("certify", "measure"),
            ("relax", "measure"), ("relax, harden", "measure"), ("basis, EMLP", "measure"),
            ("represent", "measure"),
            ("learn", "relax"), ("build", "relax"), ("EMLP, relax", "measure"),
            } <= set(rows)  # fmt: skip
    assert len(rows) == len(CALLS)


@pytest.mark.parametrize("call", CALLS)
def test_calls_of_the_page_run(call: str, results_of_the_page: dict[str, Any]) -> None:
    eval(call, results_of_the_page)


def test_options_of_the_page_exist(capsys: pytest.CaptureFixture[str]) -> None:
    lines = re.findall(r"`isotropy ([a-z]+) (--[^`]*)`", PAGE)
    assert len(lines) >= 6
    for command, words in lines:
        told = run_here(capsys, command, "--help").stdout
        for option in re.findall(r"--[a-z-]+", words):
            assert option in told, (command, option)
