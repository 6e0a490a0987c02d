"""The script that checks certificates with NumPy alone agrees with the package, bit by bit."""

from __future__ import annotations

import ast
import copy
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from isotropy.bounds import inequalities
from isotropy.bounds.certificate import data_hash
from isotropy.bounds.coding import Prior
from isotropy.bounds.compressing import Grid
from isotropy.bounds.subspace import projector, random_signs
from isotropy.data.labelled import LabelledData
from isotropy.evidence.settings import LearnConfig
from isotropy.networks.zoo.specification import parse_network
from isotropy.workflows.certifying import CertifyConfig, CertifyResult, certify
from isotropy.workflows.learning import learn

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))
script: ModuleType = importlib.import_module("verify_certificate")


def test_it_imports_numpy_and_the_standard_library_alone() -> None:
    tree = ast.parse((SCRIPTS / "verify_certificate.py").read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import)
             for alias in node.names}  # fmt: skip
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    others = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names)
    assert others == {"numpy"}


# --- part by part -----------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    shape=st.sampled_from(["gaussian", "laplace"]),
    scale=st.sampled_from([0.3, 1.0, 5.5]),
    levels=st.lists(st.one_of(st.integers(-4, 4), st.integers(-(10**12), 10**12)), max_size=30),
)
def test_it_decodes_what_the_package_encodes(shape: Any, scale: float, levels: list[int]) -> None:
    prior = Prior(shape, (scale,))
    found, bits = script.decoded(prior.encode(levels, scale), len(levels), shape, scale)
    assert found == levels
    assert bits == pytest.approx(prior.bits(levels, scale), rel=1e-12)


def test_it_refuses_messages_that_are_none() -> None:
    levels = [0, 1, -2, 0, 3] * 10
    message = Prior("gaussian", (1.0,)).encode(levels, 1.0)
    for wrong in (message + b"\1", message + b"\0", b"\xff" * 4 + b"\0" * 40 + b"\1"):
        with pytest.raises(script.Invalid, match="lengthened or changed|does not end"):
            script.decoded(wrong, 50, "gaussian", 1.0)
    try:
        found, _ = script.decoded(message[:-1], 50, "gaussian", 1.0)
        assert found != levels
    except script.Invalid:
        pass


def test_it_draws_the_same_signs() -> None:
    for seed, stream, rows, columns in ((0, 0, 5, 7), (137, 3, 64, 9), (2**40, 1, 1, 1)):
        expected = random_signs(seed, stream, rows, columns)
        assert (script.signs(seed, stream, rows, columns) == expected).all()


@pytest.mark.parametrize("kind", ["dense", "kronecker-product", "kronecker-sum", "dense+dense"])
@pytest.mark.parametrize(("total", "dimension"), [(50, 9), (64, 12), (7, 1), (9, 0)])
def test_it_moves_weights_to_the_same_bits(kind: str, total: int, dimension: int) -> None:
    levels = torch.arange(dimension) * 3 - 7
    expected = projector(kind, total, dimension, 11).exact(levels, 0.3)
    found = script.projected(kind, total, levels.double().numpy(), 11, 0.3)
    assert (found == expected.numpy()).all()


@pytest.mark.parametrize("seed", [0, 7, 2**31 + 1])
def test_it_draws_the_weights_of_torch(seed: int) -> None:
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(13, 8), nn.Tanh(), nn.Linear(8, 3))
    drawn = script.drawn(((8, 13), (3, 8)), seed)
    for weights, expected in zip(drawn, network.parameters(), strict=True):
        assert (weights == expected.detach().numpy()).all()


def test_it_solves_for_the_same_bound() -> None:
    for case in ((0, 10, 3.0, 0.05), (40, 2000, 800.0, 0.05), (9, 9, 1.0, 0.5), (1, 3, 0.0, 0.9)):
        assert script.occam(*case) == pytest.approx(inequalities.occam(*case), rel=1e-11)


# --- whole certificates -----------------------------------------------------------------------


def problem() -> LabelledData:
    draw = np.random.default_rng(0)
    labels = np.arange(300) % 4
    images = draw.integers(0, 120, (300, 6, 6)).astype(np.uint8)
    for label in range(4):
        images[labels == label, label : label + 2, 1:5] += 90
    inputs = torch.from_numpy(images)[:, None].float() / 255
    return LabelledData(inputs, torch.from_numpy(labels), None, "stripes")


@pytest.fixture(scope="module", params=[False, True], ids=["drawn", "trained"])
def certified(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> CertifyResult:
    """What `isotropy.certify` says of an MLP, from a seed and from a start on other data."""
    data = problem()
    grid = Grid((12, 24), (0.25, 0.5, 1.0), (1.0,), (0,), (7,), trials=3)
    config = CertifyConfig(grid=grid, train=grid, prior=Prior("laplace"), epochs=12, delta=0.05)
    if not request.param:
        return certify("mlp:9", data, config=config)
    run, words = tmp_path_factory.mktemp("start") / "run", parse_network("mlp:9")
    other = LabelledData(1 - data.inputs, data.targets, None, "negatives")
    learning = LearnConfig(epochs=1, samples=2, batch_size=50, search=False)
    learn(words.build((1, 6, 6), 4), other, objective="none", config=learning, folder=run,
          network=words, verdicts=0)  # fmt: skip
    return certify(None, data, config=config, start=run)


@pytest.fixture
def made(certified: CertifyResult, tmp_path: Path) -> tuple[Path, Path]:
    """The file of the certificate, and its data as an archive."""
    archive, data = tmp_path / "data.npz", problem()
    np.savez(archive, x=data.inputs.numpy(), y=data.targets.numpy())
    return certified.save(tmp_path / "run") / "certificate.json", archive


def written(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / "certificate.json"
    own = {name: value for name, value in content.items() if name != "digest"}
    path.write_text(json.dumps({**own, "digest": script.digest(own)}), encoding="utf-8")
    return path


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    status = script.main([*map(str, arguments), "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_a_certificate_that_certify_wrote_is_confirmed(
    certified: CertifyResult, made: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file, data = made
    assert 0 < certified.record["errors"] < 150 and certified.claim.levels().any()
    status, found = told(capsys, file, "--data", data)
    assert (status, found["valid"], found["reason"]) == (0, True, None)
    assert found["bound"] == pytest.approx(certified.bound, rel=1e-12)
    assert found["train_error"] == certified.train_error
    assert found["bits"] == pytest.approx(certified.record["bits"]["total"])
    assert script.main([str(file), "--data", str(data)]) == 0
    assert capsys.readouterr().out.startswith("valid: ")


def put(*keys: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = value

    return change


def flipped(content: dict[str, Any]) -> None:
    message = bytearray.fromhex(content["message"])
    message[2] ^= 16
    content["message"] = message.hex()


def smaller_grid(content: dict[str, Any]) -> None:
    content["grid"]["dimensions"] = [content["entry"]["dimension"]]


def more_levels(content: dict[str, Any]) -> None:
    content["entry"]["dimension"] = content["subspace"]["dimension"] = 10**12
    content["grid"]["dimensions"][0] = 10**12


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "a flipped bit": (flipped, "bits are charged|errors|lengthened"),
    "a longer message": (lambda c: c.update(message=c["message"] + "01"), "lengthened"),
    "fewer errors": (lambda c: c.update(errors=c["errors"] - 1), "errors, the file says"),
    "a lower bound": (lambda c: c.update(bound=c["bound"] - 0.01), "a bound of"),
    "a smaller grid": (smaller_grid, "bits are charged for grid"),
    "fewer trials": (put("grid", "trials", value=1), "bits are charged for grid"),
    "no trials": (put("grid", "trials", value=0), "0 trials"),
    "another shape of the prior": (put("prior", "shape", value="cauchy"), "'cauchy'"),
    "more levels than weights": (more_levels, "levels for"),
    "an entry that is not declared": (
        put("entry", "dimension", value=25),
        "not among the declared",
    ),
    "a step that is not declared": (put("step", value=0.3), "the step is not one"),
    "a scale that is not declared": (put("scale", value=3.0), "the scale is not one"),
    "values declared twice": (put("grid", "steps", value=[0.25, 0.5, 1.0, 1.0]), "declared twice"),
    "another network": (put("network", "arguments", "hidden", value=10), "weights|shape|network"),
    "another start": (put("start", "sha256", value="0" * 64), "another hash"),
    "another seed of the start": (put("start", "seed", value=8), "another seed"),
    "another seed of the signs": (put("subspace", "seed", value=8), "another seed"),
    "other data": (put("data", "sha256", value="1×2"), "not those of the certificate"),
    "a part is missing": (lambda c: c.pop("prior"), "does not fit together"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_certificate_is_not(
    change: str, made: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each with a digest that fits, and without."""
    file, data = made
    content = json.loads(file.read_text(encoding="utf-8"))
    alter, reason = CHANGES[change]
    alter(content)
    file.write_text(json.dumps(content), encoding="utf-8")
    status, found = told(capsys, file, "--data", data)
    assert (status, found["valid"]) == (1, False) and "digest" in found["reason"]
    status, found = told(capsys, written(file.parent, content), "--data", data)
    assert (status, found["valid"], found["bound"]) == (1, False, None)
    assert any(each in found["reason"] for each in reason.split("|")), found["reason"]


def swapped(x: np.ndarray, y: np.ndarray) -> None:
    y[[0, 1]] = y[[1, 0]]


def one_pixel(x: np.ndarray, y: np.ndarray) -> None:
    x[17, 0, 3, 2] += np.float32(1 / 255)


@pytest.mark.parametrize("change", [swapped, one_pixel])
def test_other_data_are_told(
    change: Callable[[np.ndarray, np.ndarray], None],
    made: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, data = made
    with np.load(data) as archive:
        x, y = archive["x"].copy(), archive["y"].copy()
    change(x, y)
    np.savez(data, x=x, y=y)
    status, found = told(capsys, file, "--data", data)
    assert status == 1 and "data are not those" in found["reason"]


def test_a_start_trained_on_these_data_voids_it(
    certified: CertifyResult, made: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    if certified.start is None:
        pytest.skip("the start is drawn")
    file, data = made
    content = json.loads(file.read_text(encoding="utf-8"))
    content["start"]["trained_on"] = content["data"]["fingerprint"]
    status, found = told(capsys, written(file.parent, content), "--data", data)
    assert status == 1 and "trained on the data that are counted" in found["reason"]


@pytest.mark.parametrize(
    ("alter", "reason"),
    [
        (put("network", "name", value="cnn"), "'cnn' is not an mlp"),
        (put("symmetry", value={"group": "C(4)"}), "isotropy verify"),
        (put("subspace", "projector", value="film"), "'film' is not known here"),
        (put("start", "stretch", value="0"), "stretched subspace"),
    ],
)
def test_what_it_cannot_check_it_says(
    alter: Callable[[dict[str, Any]], None],
    reason: str,
    made: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, data = made
    content = copy.deepcopy(json.loads(file.read_text(encoding="utf-8")))
    alter(content)
    assert script.main([str(written(file.parent, content)), "--data", str(data)]) == 2
    assert reason in capsys.readouterr().err


def test_data_may_be_a_folder_of_idx_files(tmp_path: Path) -> None:
    images = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    labels = np.array([1, 0], np.uint8)
    for name, values in (("images-idx3", images), ("labels-idx1", labels)):
        head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
        (tmp_path / f"train-{name}-ubyte").write_bytes(head + values.tobytes())
    inputs, found = script.read_data(tmp_path)
    assert inputs.shape == (2, 1, 3, 4) and found.tolist() == [1, 0]
    assert (inputs == torch.from_numpy(images)[:, None].float().div(255).numpy()).all()
    with pytest.raises(script.Unchecked, match="train-images"):
        script.read_data(SCRIPTS)


def test_data_have_the_hash_of_the_package() -> None:
    data = problem()
    found = script.data_hash(data.inputs.numpy(), data.targets.numpy())
    assert found == data_hash(data.inputs, data.targets)
