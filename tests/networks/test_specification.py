"""Networks named in words: what is read, how it is rebuilt, and what is refused."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

from isotropy.checks import CallerError
from isotropy.networks.zoo.specification import (
    NetworkSpecification,
    parse_network,
    specification_of,
)

SHAPE, OUTPUTS = (1, 8, 8), 3
SOURCE = """
from __future__ import annotations
from dataclasses import dataclass
from torch import nn

@dataclass
class Widths:
    hidden: int | None = 4

def shaped(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], outputs))

def shaped_with_more(shape, outputs, *, hidden=Widths().hidden):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.Linear(hidden, outputs))

def bare():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))

def bare_with_options(*, width=64, outputs=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(width, outputs))

class Network(nn.Module):
    def __init__(self, shape, outputs):
        super().__init__()
        self.head = nn.Linear(64, outputs)

    def forward(self, images):
        return self.head(images.flatten(1))

def one_argument(outputs):
    return nn.Linear(64, outputs)

def raises():
    raise RuntimeError("out of luck")

text = "not a function"

def returns_text():
    return "no network"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "torch.py"  # called like a library on purpose
    path.write_text(SOURCE)
    return path


# -- reading -----------------------------------------------------------------------------------


PARSED: dict[str, NetworkSpecification] = {
    "mlp": NetworkSpecification("backbone", "mlp"),
    "mlp:200": NetworkSpecification("backbone", "mlp", {"hidden": 200}),
    "rff:512": NetworkSpecification("backbone", "rff", {"width": 512}),
    "rff:512:5.0": NetworkSpecification("backbone", "rff", {"width": 512, "deviation": 5.0}),
    "relu:64": NetworkSpecification("backbone", "relu", {"width": 64}),
    "cnn": NetworkSpecification("backbone", "cnn"),
    "resnet": NetworkSpecification("backbone", "resnet"),
    "resnet:8": NetworkSpecification("backbone", "resnet", {"width": 8}),
    "wrn": NetworkSpecification("backbone", "wrn"),
    "wrn:16-4": NetworkSpecification("backbone", "wrn", {"depth": 16, "width": 4}),
    "turnable:3": NetworkSpecification("backbone", "turnable", {"width": 3}),
    "oriented:9": NetworkSpecification("backbone", "oriented", {"width": 9}),
    "convnet": NetworkSpecification("backbone", "convnet"),
    "convnet:64": NetworkSpecification("backbone", "convnet", {"width": 64}),
    "convnet-blur": NetworkSpecification("backbone", "convnet-blur"),
    "convnet-blur:64": NetworkSpecification("backbone", "convnet-blur", {"width": 64}),
    "vit:64": NetworkSpecification("backbone", "vit", {"width": 64}),
    "mixer:64": NetworkSpecification("backbone", "mixer", {"width": 64}),
    "timm:resnet18": NetworkSpecification("timm", "resnet18"),
    "timm:a/b:c": NetworkSpecification("timm", "a/b:c"),
}


@pytest.mark.parametrize(("text", "expected"), PARSED.items(), ids=PARSED)
def test_words_are_read_and_written(text: str, expected: NetworkSpecification) -> None:
    assert parse_network(text) == expected
    assert expected.text == text


REFUSED = {
    "": "unknown model ''",
    "mpl": "unknown model 'mpl'.* did you mean 'mlp'",
    "MLP": "unknown model 'MLP'",
    "timm": "unknown model 'timm'",
    "timm:": "unknown model 'timm'",
    "mlp:0": "'mlp:0': expected NAME:WIDTH",
    "mlp:-3": "'mlp:-3'",
    "mlp:1.5": "'mlp:1.5'",
    "mlp:²": "'mlp:²'",
    "cnn:3": "'cnn:3': expected NAME:WIDTH .* one of mlp, relu, rff, circular, compact, ",
    "rff:0": "'rff:0': expected NAME:WIDTH",
    "rff:5:wide": "'rff:5:wide': expected rff:WIDTH:SIGMA",
    "relu:5:1": "'relu:5:1': expected NAME:WIDTH",
    "wrn:16": "'wrn:16': expected wrn:DEPTH-WIDTH, such as wrn:16-4",
    "wrn:16-": "'wrn:16-': expected wrn:DEPTH-WIDTH",
    "wrn:16-4-2": "'wrn:16-4-2': expected wrn:DEPTH-WIDTH",
    "wrn:-16-4": "'wrn:-16-4': expected wrn:DEPTH-WIDTH",
    "nets.py": "'nets.py': expected FILE.py:factory",
    "nets.py:": "'nets.py:': expected FILE.py:factory",
    "nets.pyc:make": "'nets.pyc:make': expected FILE.py:factory",
    "gone.py:make": "model file '.*gone.py' cannot be read: No such file",
}


@pytest.mark.parametrize(("text", "sentence"), REFUSED.items(), ids=REFUSED)
def test_other_words_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(CallerError, match=sentence):
        parse_network(text)


def test_file_keeps_its_whole_path_and_hash(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    specification = parse_network("torch.py:shaped")
    assert specification.kind == "file"
    assert specification.name == f"{file.resolve()}:shaped"
    assert specification.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize("text", ["mlp:7", "resnet", "wrn:10-2", "timm:resnet18"])
def test_specification_survives_json(text: str) -> None:
    specification = parse_network(text)
    record = json.loads(json.dumps(specification.as_dict()))
    assert NetworkSpecification.from_dict(record, where="config.json") == specification


BROKEN_RECORDS = {"nothing": None, "a list": [1], "no name": {"kind": "x"}, "more": {"colour": 1}}


@pytest.mark.parametrize("record", BROKEN_RECORDS.values(), ids=BROKEN_RECORDS)
def test_broken_record_is_a_sentence(record: object) -> None:
    with pytest.raises(CallerError, match="run/config.json: expected a network's name"):
        NetworkSpecification.from_dict(record, where="run/config.json")


LEAVES_A_TRACE = """
from pathlib import Path
from torch import nn

Path(__file__).with_name("trace").touch()

def make():
    return nn.Flatten()
"""


def test_code_that_a_folder_names_runs_only_if_the_caller_names_it(tmp_path: Path) -> None:
    path, trace = tmp_path / "code.py", tmp_path / "trace"
    path.write_text(LEAVES_A_TRACE)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    record = {"kind": "file", "name": f"{path}:make", "arguments": {}, "where": None}

    def read(sha256: str | None) -> NetworkSpecification:
        return NetworkSpecification.from_dict({**record, "sha256": sha256}, where="run/config.json")

    for sha256 in (None, digest, "0" * 64):
        found = read(sha256)
        with pytest.raises(CallerError, match=r"run/config.json names code.*--code FILE.py:make"):
            found.build(SHAPE, OUTPUTS)
        assert not trace.exists()
    copied = tmp_path / "here" / "copy.py"  # the caller's own file counts, wherever it lies
    copied.parent.mkdir()
    copied.write_text(LEAVES_A_TRACE)
    parse_network(f"{copied}:make")
    assert isinstance(read(digest).build(SHAPE, OUTPUTS), nn.Flatten)
    assert copied.with_name("trace").exists() and not trace.exists()
    with pytest.raises(CallerError, match="names code"):
        read(None).build(SHAPE, OUTPUTS)


# -- building ----------------------------------------------------------------------------------


BUILT = ["mlp", "mlp:7", "rff:7", "relu:7", "resnet:2", "wrn:10-1", "convnet-blur:2", "vit:8",
         "mixer:8"]  # fmt: skip


@pytest.mark.parametrize("text", BUILT)
def test_backbones_are_built_for_the_shape(text: str) -> None:
    network = parse_network(text).build(SHAPE, OUTPUTS)
    assert network(torch.zeros(2, *SHAPE)).shape == (2, OUTPUTS)


def test_width_is_the_one_asked_for() -> None:
    network = parse_network("mlp:7").build(SHAPE, OUTPUTS)
    assert network.state_dict()["1.weight"].shape == (7, 64)


GOOD_FACTORIES = ["shaped", "shaped_with_more", "bare", "bare_with_options", "Network"]


@pytest.mark.parametrize("factory", GOOD_FACTORIES)
def test_factories_are_called_with_what_they_take(factory: str, file: Path) -> None:
    path = list(sys.path)
    network = parse_network(f"{file}:{factory}").build(SHAPE, OUTPUTS)
    assert network(torch.zeros(2, *SHAPE)).shape == (2, OUTPUTS)
    assert sys.path == path
    assert sys.modules["torch"] is torch


BAD_FACTORIES = {
    "missing": "has no function 'missing'",
    "text": "has no function 'text'",
    "one_argument": r"a function of \(shape, outputs\) or of nothing, got one of \(outputs\)",
    "raises": "does not run: RuntimeError: out of luck",
    "returns_text": "expected it to return an nn.Module, got str",
}


@pytest.mark.parametrize(("factory", "sentence"), BAD_FACTORIES.items(), ids=BAD_FACTORIES)
def test_other_factories_are_refused(factory: str, sentence: str, file: Path) -> None:
    path = list(sys.path)
    with pytest.raises(CallerError, match=sentence) as caught:
        parse_network(f"{file}:{factory}").build(SHAPE, OUTPUTS)
    assert str(file) in str(caught.value)
    assert sys.path == path


def test_file_finds_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "widths_beside.py").write_text("WIDTH = 64\n")
    file = tmp_path / "nets.py"
    file.write_text(
        "from torch import nn\n\n"
        "def make():\n"
        "    from widths_beside import WIDTH\n"
        "    return nn.Linear(WIDTH, 3)\n"
    )
    network = parse_network(f"{file}:make").build(SHAPE, OUTPUTS)
    assert isinstance(network, nn.Linear) and network.in_features == 64


def test_changed_file_is_refused(file: Path) -> None:
    specification = parse_network(f"{file}:shaped")
    specification.build(SHAPE, OUTPUTS)
    file.write_text(SOURCE + "\n# changed\n")
    with pytest.raises(CallerError, match="has changed since the run began"):
        specification.build(SHAPE, OUTPUTS)
    file.unlink()
    with pytest.raises(CallerError, match="cannot be read"):
        specification.build(SHAPE, OUTPUTS)


def test_given_module_has_a_name_but_cannot_be_rebuilt() -> None:
    specification = specification_of(nn.Linear(2, 3))
    assert specification.kind == "given"
    assert specification.text == "torch.nn.modules.linear.Linear"
    with pytest.raises(CallerError, match="handed over in Python.*pass it again"):
        specification.build(SHAPE, OUTPUTS)


@pytest.mark.skipif(importlib.util.find_spec("timm") is not None, reason="timm is installed")
def test_timm_is_asked_for_where_it_is_missing() -> None:
    with pytest.raises(CallerError, match=r"install isotropy\[vision\]"):
        parse_network("timm:resnet18").build(SHAPE, OUTPUTS)


class _Timm(types.ModuleType):
    """Stands for the timm library: what it was asked for, and a network."""

    def __init__(self, *, offline: bool = False) -> None:
        super().__init__("timm")
        self.offline = offline
        self.asked: dict[str, object] = {}

    def list_models(self) -> list[str]:
        return ["resnet18"]

    def create_model(self, name: str, **settings: object) -> nn.Module:
        if self.offline:
            raise OSError("no way to the hub")
        self.asked = {"name": name, **settings}
        return nn.Flatten()


def test_timm_models_with_random_and_with_trained_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    timm = _Timm()
    monkeypatch.setitem(sys.modules, "timm", timm)
    parse_network("timm:resnet18").build((3, 8, 8), 5)
    assert timm.asked == {"name": "resnet18", "num_classes": 5, "in_chans": 3}
    parse_network("timm:resnet18:pretrained").build((3, 8, 8), 5)
    assert timm.asked == {"name": "resnet18", "pretrained": True}
    with pytest.raises(CallerError, match="unknown timm model 'other'"):
        parse_network("timm:other:pretrained").build((3, 8, 8), 5)
    monkeypatch.setitem(sys.modules, "timm", _Timm(offline=True))
    with pytest.raises(CallerError, match="could not be had.*random weights"):
        parse_network("timm:resnet18:pretrained").build((3, 8, 8), 5)
