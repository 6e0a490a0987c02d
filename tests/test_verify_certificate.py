"""The script that checks certificates with NumPy alone agrees with the package, bit by bit."""

from __future__ import annotations

import ast
import copy
import hashlib
import importlib
import json
import math
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
from safetensors.torch import save_file
from torch import nn

from isotropy.bounds import inequalities
from isotropy.bounds.coding import Account, Prior
from isotropy.bounds.subspace import Subspace, projector, random_signs
from isotropy.data.labelled import LabelledData
from isotropy.networks.zoo.specification import parse_network
from isotropy.workflows.runs import fingerprint

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))
script: ModuleType = importlib.import_module("verify_certificate")

GRID = {
    "dimensions": [10, 24],
    "steps": [0.5, 1.0, 2.0],
    "betas": [1.0],
    "widths": [0],
    "seeds": [7],
}
SCALES = [0.5, 1.0, 2.0, 4.0]
PARTS = ("dimensions", "betas", "widths", "seeds")


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


def made(folder: Path, *, trained: bool = False) -> tuple[Path, Path]:
    """A certificate of the network at some levels, and its data, as files."""
    data = problem()
    torch.manual_seed(7)
    specification = parse_network("mlp:9")
    network = specification.build((1, 6, 6), 4)
    if trained:
        with torch.no_grad():
            for each in network.parameters():
                each.mul_(1.7)
        save_file(dict(network.named_parameters()), folder / "start.safetensors")
    weights = sum(each.numel() for each in network.parameters())
    levels = torch.randint(-4, 5, (24,))
    prior = Prior("laplace", tuple(SCALES))
    scale = prior.best_scale(levels)
    moved = Subspace(network, projector("kronecker-product", weights, 24, 7)).decoded(levels, 0.5)
    outputs = moved.double()(data.inputs.double())
    errors = int((outputs.argmax(1) != data.targets).sum())
    account = Account.of(2, 3, 4, prior.bits(levels, scale))
    start = hashlib.sha256()
    for name, each in network.named_parameters():
        start.update(f"{name} {tuple(each.shape)} float32\n".encode())
        start.update(each.detach().numpy().tobytes())
    content = {
        "schema": 1, "certificate": "isotropy", "kind": "transfer" if trained else "compression",
        "network": specification.as_dict(), "shape": [1, 6, 6], "outputs": 4,
        "start": {"kind": "transfer" if trained else None, "seed": 7, "sha256": start.hexdigest(),
                  "trained_on": "other data" if trained else None},
        "symmetry": None,
        "subspace": {"projector": "kronecker-product", "dimension": 24, "weights": weights,
                     "seed": 7},
        "grid": GRID, "entry": {"dimension": 24, "beta": 1.0, "width": 0, "seed": 7}, "step": 0.5,
        "prior": {"shape": "laplace", "scales": SCALES}, "scale": scale,
        "message": prior.encode(levels, scale).hex(),
        "data": {"name": "stripes", "fingerprint": fingerprint(data)},
        "errors": errors, "n": 300, "delta": 0.05, "bits": account.as_dict(),
        "bound": inequalities.occam(errors, 300, account.total, 0.05),
    }  # fmt: skip
    assert 0 < errors < 300
    archive = folder / "data.npz"
    np.savez(archive, x=data.inputs.numpy(), y=data.targets.numpy())
    return written(folder, content), archive


def written(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / "certificate.json"
    own = {name: value for name, value in content.items() if name != "digest"}
    path.write_text(json.dumps({**own, "digest": script.digest(own)}), encoding="utf-8")
    return path


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    status = script.main([*map(str, arguments), "--json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("trained", [False, True])
def test_a_certificate_is_confirmed(
    trained: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, data = made(tmp_path, trained=trained)
    content = json.loads(file.read_text(encoding="utf-8"))
    status, found = told(capsys, file, "--data", data)
    assert (status, found["valid"], found["reason"]) == (0, True, None)
    assert found["bound"] == pytest.approx(content["bound"], rel=1e-12)
    assert found["train_error"] == content["errors"] / 300
    assert found["bits"] == pytest.approx(content["bits"]["total"])
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


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "a flipped bit": (flipped, "bits are charged|errors|lengthened"),
    "a longer message": (lambda c: c.update(message=c["message"] + "01"), "lengthened"),
    "fewer errors": (lambda c: c.update(errors=c["errors"] - 1), "errors, the file says"),
    "a lower bound": (lambda c: c.update(bound=c["bound"] - 0.01), "a bound of"),
    "a smaller grid": (put("grid", "dimensions", value=[24]), "bits are charged for grid"),
    "an entry that is not declared": (
        put("entry", "dimension", value=25),
        "not among the declared",
    ),
    "a step that is not declared": (put("step", value=0.25), "the step is not one"),
    "a scale that is not declared": (put("scale", value=3.0), "the scale is not one"),
    "values declared twice": (put("grid", "steps", value=[0.5, 1.0, 1.0]), "declared twice"),
    "another network": (put("network", "arguments", "hidden", value=10), "weights"),
    "another start": (put("start", "sha256", value="0" * 64), "another hash"),
    "another seed of the start": (put("start", "seed", value=8), "another seed"),
    "another seed of the signs": (put("subspace", "seed", value=8), "another seed"),
    "other data": (put("data", "fingerprint", value="1×2"), "not those of the certificate"),
    "a part is missing": (lambda c: c.pop("prior"), "does not fit together"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_certificate_is_not(
    change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each with a digest that fits, and without."""
    file, data = made(tmp_path)
    content = json.loads(file.read_text(encoding="utf-8"))
    alter, reason = CHANGES[change]
    alter(content)
    file.write_text(json.dumps(content), encoding="utf-8")
    status, found = told(capsys, file, "--data", data)
    assert (status, found["valid"]) == (1, False) and "digest" in found["reason"]
    status, found = told(capsys, written(tmp_path, content), "--data", data)
    assert (status, found["valid"], found["bound"]) == (1, False, None)
    assert any(each in found["reason"] for each in reason.split("|")), found["reason"]


def test_other_data_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, data = made(tmp_path)
    with np.load(data) as archive:
        x, y = archive["x"].copy(), archive["y"].copy()
    y[[0, 1]] = y[[1, 0]]
    np.savez(data, x=x, y=y)
    status, found = told(capsys, file, "--data", data)
    assert status == 1 and "data are not those" in found["reason"]


def test_a_start_trained_on_these_data_voids_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, data = made(tmp_path, trained=True)
    content = json.loads(file.read_text(encoding="utf-8"))
    content["start"]["trained_on"] = content["data"]["fingerprint"]
    status, found = told(capsys, written(tmp_path, content), "--data", data)
    assert status == 1 and "trained on the data that are counted" in found["reason"]


@pytest.mark.parametrize(
    ("alter", "reason"),
    [
        (put("network", "name", value="cnn"), "'cnn' is not an mlp"),
        (put("symmetry", value={"group": "C(4)"}), "isotropy verify"),
        (put("subspace", "projector", value="film"), "'film' is not known here"),
    ],
)
def test_what_it_cannot_check_it_says(
    alter: Callable[[dict[str, Any]], None],
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, data = made(tmp_path)
    content = copy.deepcopy(json.loads(file.read_text(encoding="utf-8")))
    alter(content)
    assert script.main([str(written(tmp_path, content)), "--data", str(data)]) == 2
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


def test_fingerprints_are_those_of_the_package() -> None:
    data = problem()
    assert script.fingerprint(data.inputs.numpy(), data.targets.numpy()) == fingerprint(data)
    assert math.isfinite(float(data.inputs.sum()))
