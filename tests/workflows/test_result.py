"""The contract of every result: its record, its run folder, its report, and nothing left behind."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learn_runs import CONFIG, bar_tensors, small_network
from torch import nn

import isotropy
from isotropy.checks import CallerError
from isotropy.workflows.runs.result import Result

TURN = isotropy.affine(("rotation", "scale"))
SHORT = replace(CONFIG, epochs=2)
TRAIN, TEST = bar_tensors(), bar_tensors(30, seed=1)


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(2, 3),
    )  # fmt: skip


def relaxed() -> nn.Module:
    return isotropy.relax(convolutions(), ("ffc", "conv"), example=TRAIN[0][:1])


def learned(model: nn.Module, **options: Any) -> Result:
    return isotropy.learn(model, TRAIN, TEST, actions=TURN, config=SHORT, **options)


def screened(model: nn.Module, **options: Any) -> Result:
    return isotropy.screen(model, TRAIN, actions=TURN, config=SHORT, **options)


def profiled(model: nn.Module, **options: Any) -> Result:
    own: dict[str, Any] = {"generator": "rotation", "amounts": (0, 45, 90), "curvatures": ["kfac"]}
    return isotropy.profile(model, TRAIN, TEST, actions=TURN, config=SHORT, **own, **options)


def layered(model: nn.Module, **options: Any) -> Result:
    config = isotropy.RelaxConfig(epochs=1, curvature="kfac-mc")
    return isotropy.learn_layers(model, TRAIN, TEST, config=config, **options)


def measured(model: nn.Module, **options: Any) -> Result:
    return isotropy.measure(model.eval(), TEST, TURN, examples=3, **options)


def built(model: nn.Module, folder: Path | None = None) -> Result:
    result = isotropy.build(
        model, "C(4)", example=(1, 8, 8), generator=torch.Generator().manual_seed(0)
    )
    return result.kept_in(folder)


def solved(model: nn.Module, **options: Any) -> Result:
    return isotropy.equivariant_basis("S(3)", "V >> V", **options)


VERBS: dict[str, tuple[Callable[..., Result], Callable[[], nn.Module], set[str]]] = {
    "learn": (learned, small_network, {
        "report.html", "checkpoint.safetensors", "metrics.jsonl", "augmentation.json",
        "samples.npz"}),
    "screen": (screened, small_network, {"report.html"}),
    "profile": (profiled, small_network, {"report.html"}),
    "relax": (layered, relaxed, {"report.html", "checkpoint.safetensors", "metrics.jsonl"}),
    "measure": (measured, convolutions, {"report.html"}),
    "build": (built, convolutions, {"checkpoint.safetensors"}),
    "basis": (solved, nn.Identity, {"basis.svg"}),
}  # fmt: skip
"""How each verb is called, on which network, and the files of its own in a run folder."""


WORKING = {"screen": {"checkpoint.safetensors", "metrics.jsonl", "evidences.jsonl"}}
"""Files of a run folder with which a run goes on, and which are no part of the result."""


@pytest.fixture(scope="module", params=VERBS)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A verb's name, its result, and the run folder that it wrote."""
    verb, network, _ = VERBS[request.param]
    folder = tmp_path_factory.mktemp("ran") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        return request.param, verb(network(), folder=folder), folder


def test_the_record_is_json_with_the_common_head(ran: tuple[str, Result, Path]) -> None:
    name, result, folder = ran
    record = json.loads(json.dumps(result.record, allow_nan=False))
    head = ["schema", "command", "seed", "isotropy", "versions", "commit", "device", "device_name"]
    assert list(record)[:8] == head
    assert (record["schema"], record["command"]) == (1, name)
    assert record["seconds"] >= 0 and record["run_folder"] == str(folder)


def test_the_folder_holds_what_it_says(ran: tuple[str, Result, Path], tmp_path: Path) -> None:
    name, result, folder = ran
    files = {path.name for path in folder.iterdir()}
    working = WORKING.get(name, set())
    assert files == {"config.json", "result.json"} | VERBS[name][2] | working
    assert json.loads((folder / "result.json").read_text()) == json.loads(json.dumps(result.record))
    assert json.loads((folder / "config.json").read_text()) == json.loads(json.dumps(result.config))
    saved = result.save(tmp_path / "saved")
    assert {path.name for path in saved.iterdir()} == files - working
    record = json.loads((saved / "result.json").read_text())
    assert {**record, "run_folder": str(folder)} == json.loads(json.dumps(result.record))


@pytest.mark.usefixtures("drawn_pages")
def test_the_report_alone_is_that_of_the_folder(
    ran: tuple[str, Result, Path], tmp_path: Path
) -> None:
    _, result, folder = ran
    path = result.report(tmp_path / "deep" / "page.html")
    assert list(path.parent.iterdir()) == [path]
    page = path.read_text(encoding="utf-8")
    assert page.lower().startswith("<!doctype html>") and "</html>" in page
    if (folder / "report.html").exists():
        assert page == (folder / "report.html").read_text(encoding="utf-8")


def test_python_and_notebooks_show_it_shortly(ran: tuple[str, Result, Path]) -> None:
    _, result, folder = ran
    assert isinstance(result, isotropy.Result)
    text = repr(result)
    assert text.startswith(f"{type(result).__name__}(") and str(folder) in text
    assert len(text.replace(str(folder), "")) < 250
    html = result._repr_html_()
    assert len(html) < 20_000 and str(folder) in html and "<script" not in html


def test_a_run_is_not_overwritten(ran: tuple[str, Result, Path], tmp_path: Path) -> None:
    name, result, _ = ran
    (tmp_path / "checkpoint.safetensors").write_bytes(b"precious")
    with pytest.raises(CallerError, match="already holds a run"):
        result.save(tmp_path)
    if name not in ("build", "basis"):  # these are saved by hand, or hold no run
        with pytest.raises(CallerError, match="already holds a run"):
            VERBS[name][0](VERBS[name][1](), folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.safetensors"]
    saved = result.save(tmp_path / "saved")
    before = (saved / "result.json").read_bytes()
    with pytest.raises(CallerError, match="already holds a run"):
        result.save(saved)
    assert (saved / "result.json").read_bytes() == before


@pytest.mark.parametrize("write", ["save", "report"])
def test_writing_below_a_file_is_a_sentence(
    write: str, ran: tuple[str, Result, Path], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CallerError, match="cannot be written: Not a directory"):
        getattr(ran[1], write)(tmp_path / "file" / "below" / "x")


@pytest.mark.parametrize("name", VERBS)
def test_nothing_is_printed_and_the_model_is_left_alone(
    name: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    verb, network, _ = VERBS[name]
    model = network()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    modes = {key: module.training for key, module in model.eval().named_modules()}
    drawn = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        result = verb(model)
    assert capfd.readouterr() == ("", "") and list(tmp_path.iterdir()) == []
    assert result.record["run_folder"] is None
    assert all(torch.equal(model.state_dict()[key], before[key]) for key in before)
    assert {key: module.training for key, module in model.named_modules()} == modes
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), drawn)


def test_what_is_described_goes_into_the_config() -> None:
    for verb in (learned, screened, profiled, measured, solved):
        network = convolutions() if verb is measured else small_network()
        assert verb(network, describe={"note": "mine"}).config["note"] == "mine"


def test_an_unknown_record_is_still_a_page(tmp_path: Path) -> None:
    """A result of another package that brings no page of its own."""
    result = Result(record={"command": "mine", "seconds": 1.0}, config={})
    assert re.fullmatch(r"Result\(seconds=1\)", repr(result))
    assert "isotropy mine" in result.report(tmp_path / "page.html").read_text()
