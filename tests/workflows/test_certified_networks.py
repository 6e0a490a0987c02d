"""Certificates of every architecture and of stretched subspaces: what the file gives back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learn_runs import SIZE, bar_tensors, run_here
from torch import Tensor, nn

import isotropy
from isotropy.bounds.admission import drawn_by
from isotropy.bounds.certificate import CERTIFICATE, START, digest
from isotropy.bounds.compressing import Grid
from isotropy.bounds.search import exact_errors
from isotropy.bounds.stretch import Stretch
from isotropy.experiments.thesis.certificates import group_normalised, residual
from isotropy.networks.zoo.backbones import BACKBONES
from isotropy.networks.zoo.specification import parse_network
from isotropy.records import load_tensors, save_tensors
from isotropy.workflows.certifying import CertifyConfig, CertifyResult, certify, verify

GRID = Grid((10, 20), (0.25, 0.5, 1.0, 2.0), (0.0,), (0,), (0, 1), trials=2)
"""β = 0: the length is not in the loss, so that messages are not empty."""
FAST = CertifyConfig(grid=GRID, train=replace(GRID, dimensions=(20,), seeds=(0,)), epochs=6)
TORCH_LINEAR = "mlp:5"


def data(count: int = 300, seed: int = 0) -> tuple[Tensor, Tensor]:
    return bar_tensors(count, seed)


def altered(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """The certificate with a change and the digest that then belongs to it."""
    content = json.loads(file.read_text())
    change(content)
    content["digest"] = digest(content)
    file.write_text(json.dumps(content))


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(each, beside) for each, beside in pairs)


# --- architectures --------------------------------------------------------------------------------

NAMED = ("mlp:4", "rff:8", "relu:4", "cnn", "circular:4", "resnet:2", "wrn:10-1", "compact:4",
         "oriented:4", "pooled:4", "turnable:2", "convnet:2", "convnet-blur:2", "vit:8",
         "mixer:8")  # fmt: skip
OTHERS = {"clouds": "for clouds of points"}
MADE: Mapping[str, Callable[[], nn.Module]] = {
    "group-normalised": lambda: group_normalised((1, SIZE, SIZE), 3, 4),
    "residual": lambda: residual((1, SIZE, SIZE), 3, 2),
}


def test_every_network_of_the_zoo_is_tried_or_told() -> None:
    assert {name.partition(":")[0] for name in NAMED} | set(OTHERS) == set(BACKBONES)


@pytest.mark.parametrize("name", [*NAMED, *MADE])
def test_a_message_gives_back_the_network_and_its_errors(name: str, tmp_path: Path) -> None:
    grid = Grid((12,), (0.1, 0.25, 0.5, 1.0), (0.0,), (0,), (0,))
    config = CertifyConfig(grid=grid, train=grid, epochs=3, batch_size=20)
    images, labels = data(120)
    if name == "cnn":  # takes images of at least 28×28 pixels
        images = nn.functional.interpolate(images, size=(28, 28))
    given = MADE.get(name)
    found = certify(given or name, (images, labels), config=config, folder=tmp_path)
    record, claim = found.record, found.claim
    assert claim.levels().any()
    assert 0 < record["message_bits"] <= record["bits"]["weights"] + 2
    assert claim.prior.encode(claim.levels(), claim.scale) == claim.message
    again = isotropy.load(tmp_path, network=given() if given else None)
    assert same_weights(again, found.model)
    rows = isotropy.LabelledData(images, labels, None, "bars")
    assert exact_errors(again, rows, torch.device("cpu")) == record["errors"]
    assert verify(tmp_path, (images, labels), model=given).valid


def test_a_certificate_is_the_same_whatever_the_default_dtype_is(tmp_path: Path) -> None:
    found = certify(TORCH_LINEAR, data(), config=FAST, folder=tmp_path)
    torch.set_default_dtype(torch.float64)
    try:
        assert verify(tmp_path, data()).valid
        again = certify(TORCH_LINEAR, data(), config=FAST)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert again.claim.message == found.claim.message
    assert again.claim.start["sha256"] == found.claim.start["sha256"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_certificate_made_on_a_gpu_holds_on_the_cpu_and_the_reverse(tmp_path: Path) -> None:
    for made, checked in (("cuda", "cpu"), ("cpu", "cuda")):
        certify("oriented:4", data(), config=FAST, folder=tmp_path / made, device=made)
        assert verify(tmp_path / made, data(), device=checked).valid


# --- stretched subspaces --------------------------------------------------------------------------

STRETCHED = replace(FAST, stretch=True)


def one_network() -> nn.Module:
    with drawn_by(0):
        return parse_network(TORCH_LINEAR).build((1, SIZE, SIZE), 3)


def stretched_in(folder: Path) -> CertifyResult:
    """A certificate whose start and stretch come from other bars."""
    start = one_network(), data(100, 9)
    return certify(None, data(), config=STRETCHED, start=start, folder=folder)


def test_other_data_stretch_the_subspace_and_the_check_takes_it_from_the_file(
    tmp_path: Path,
) -> None:
    found = stretched_in(tmp_path)
    assert found.stretch is not None and set(found.stretch.blocks) == {"1.weight", "3.weight"}
    assert found.claim.start["stretch"] == found.stretch.sha256()
    checked = verify(tmp_path, data(), model=TORCH_LINEAR)
    assert checked.valid and checked.record["bound"] == found.bound
    loaded = isotropy.load(tmp_path, network=one_network())
    pairs = zip(loaded.parameters(), found.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    plain = certify(None, data(), config=FAST, start=(found.start, data(100, 9)))
    assert plain.claim.start.get("stretch") is None
    assert plain.claim.message != found.claim.message
    assert plain.record["bits"]["grid"] == found.record["bits"]["grid"]


def other_bars(count: int, seed: int, path: Path) -> str:
    images, labels = data(count, seed)
    np.savez(path, x_train=images.numpy(), y_train=labels.numpy())
    return str(path)


def test_a_run_and_its_data_stretch_the_subspace_in_the_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """learn, then certify from its folder with its data, then verify."""
    mine, theirs = other_bars(300, 0, tmp_path / "m.npz"), other_bars(200, 9, tmp_path / "o.npz")
    run, out = str(tmp_path / "before"), str(tmp_path / "run")
    learning = ("--data", theirs, "--model", "mlp:5", "--epochs", "1", "--samples", "2",
                "--no-search", "--out", run, "--quiet")  # fmt: skip
    assert run_here(capsys, "learn", *learning).status == 0
    words = ("--data", mine, "--grid", "dimension=10 step=0.5 beta=1 seed=0", "--epochs", "2",
             "--quiet", "--json", "--start", run)  # fmt: skip
    found = run_here(capsys, "certify", *words, "--start-data", theirs, "--out", out)
    assert found.status == 0 and json.loads(found.stdout)["kind"] == "transfer"
    start = json.loads((Path(out) / CERTIFICATE).read_text())["start"]
    assert len(start["stretch"]) == 64
    checked = run_here(capsys, "verify", out, "--data", mine, "--json")
    assert checked.status == 0 and json.loads(checked.stdout)["valid"]
    for more, sentence in (
        (("--start-data", mine), "which voids the bound"),
        (("--start-data", str(tmp_path / "nowhere.npz")), "nowhere.npz"),
    ):
        refused = run_here(capsys, "certify", *words, *more, "--out", f"{out}2")
        assert refused.status == 2 and sentence in refused.stderr
    alone = run_here(capsys, "certify", *words[:-2], "--start-data", theirs, "--out", f"{out}2")
    assert alone.status == 2 and "expected --start RUN beside it" in alone.stderr


def test_a_stretch_that_was_changed_is_found(tmp_path: Path) -> None:
    found = stretched_in(tmp_path)
    tensors, record = load_tensors(tmp_path / START)
    changed = {**tensors, "stretch/3.weight": tensors["stretch/3.weight"].clone()}
    changed["stretch/3.weight"][0, 1] += 1
    save_tensors(tmp_path / START, changed, record)
    assert "its stretch has not the hash" in str(
        verify(tmp_path, data(), model=TORCH_LINEAR).reason
    )
    with pytest.raises(isotropy.CallerError, match="its stretch has not the hash"):
        isotropy.load(tmp_path, network=one_network())
    weights = {name: each for name, each in tensors.items() if name.startswith("start/")}
    save_tensors(tmp_path / START, weights, record)
    assert "its stretch has not the hash" in str(
        verify(tmp_path, data(), model=TORCH_LINEAR).reason
    )
    # Signed anew, with matrices that do not fit: still no more than a reason.
    for name, block in (("3.weight", torch.eye(4)), ("9.weight", torch.eye(4)),
                        ("1.bias", torch.eye(5)), ("3.weight", torch.ones(2, 3))):  # fmt: skip
        own = {f"stretch/{name}": block.int()}
        save_tensors(tmp_path / START, {**weights, **own}, record)
        blocks = {name: block.int()}
        told = Stretch(blocks).sha256() if block.shape[0] == block.shape[1] else "0"
        altered(tmp_path / CERTIFICATE, lambda c, h=told: c["start"].update(stretch=h))
        assert not verify(tmp_path, data(), model=TORCH_LINEAR).valid
    assert found.claim.kind == "transfer"


def test_a_stretch_is_of_other_data_that_are_at_hand(tmp_path: Path) -> None:
    with pytest.raises(isotropy.CallerError, match="stretch: expected a start .* on other data"):
        certify(TORCH_LINEAR, data(), config=STRETCHED)
    with pytest.raises(isotropy.CallerError, match="got a run folder alone, which does not hold"):
        certify(None, data(), config=STRETCHED, start=tmp_path)
    with pytest.raises(isotropy.CallerError, match="which voids the bound"):
        certify(None, data(), config=STRETCHED, start=(one_network(), data(100, 0)))
    found = stretched_in(tmp_path / "run")
    file = tmp_path / "run" / CERTIFICATE
    change = {"kind": None, "trained_on": None}
    altered(file, lambda c: (c.update(kind="compression"), c["start"].update(change)))
    assert "not from other data" in str(verify(file, data(), model=TORCH_LINEAR).reason)
    assert found.record["kind"] == "transfer"
