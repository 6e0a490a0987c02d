"""`isotropy.story`: all verbs in one run folder, resumed, told honestly, refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from learn_runs import bar_tensors
from torch import Tensor

import isotropy
from isotropy.checks import CallerError
from isotropy.networks.zoo.specification import NetworkSpecification
from isotropy.workflows import story_steps
from isotropy.workflows.story_steps import LEARNED, MEASURED

TINY = isotropy.StoryConfig(
    model="turnable:2", generators="rotation", group="C(4)", epochs=2, samples=2, test_samples=2,
    learn_examples=40, learn_epochs=1, learn_samples=2, search_examples=20,
    relaxed="map", dimension=10, certified_epochs=2, measured=6,
)  # fmt: skip
FOLDERS = [LEARNED, "plain", "augmented", "averaged", "built", "relaxed", MEASURED,
           "certified-plain", "certified-built", "certified-relaxed"]  # fmt: skip

pytestmark = pytest.mark.usefixtures("short_rivals")


def data() -> tuple[Any, Any]:
    return bar_tensors(90), bar_tensors(30, seed=1)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, short_rivals: int) -> isotropy.StoryResult:
    return isotropy.story(*data(), config=TINY, folder=tmp_path_factory.mktemp("runs") / "story")


def test_every_network_is_scored_and_measured(told: isotropy.StoryResult) -> None:
    networks = {each["name"]: each for each in told.networks}
    assert {"plain", "built", "relaxed"} <= set(networks)
    for each in networks.values():
        assert 0 <= each["test_error"] <= 1
        assert [own["name"] for own in each["lie_derivatives"]] == ["rotation"]
    assert networks["built"]["elements"]["error"] < 1e-8
    assert networks["plain"]["elements"]["error"] > 100 * networks["built"]["elements"]["error"]
    for name in ("plain", "built", "relaxed"):
        assert 0 < networks[name]["certified"]["bound"] <= 1
    assert networks["relaxed"]["num_parameters"] > networks["built"]["num_parameters"]
    assert told.record["group"] == "C(4)" and told.record["group_from"] == "given"
    assert told.sentence == told.record["sentences"][0]


def test_every_step_is_a_run_folder(told: isotropy.StoryResult) -> None:
    """What was trained is loaded from each folder, and is what the result holds."""
    folder = Path(told.record["run_folder"])
    names = [each["name"] for each in told.record["steps"]]
    assert names == [name for name in FOLDERS if (folder / name).is_dir()]
    images = data()[1][0]
    for name in ("built", "relaxed"):
        model = isotropy.load(folder / name)
        model = getattr(model, "network", model)
        assert torch.equal(model(images), told.models[name](images))
        assert isotropy.verify(folder / f"certified-{name}", data()[0]).valid
    assert (folder / "report.html").exists()
    assert json.loads((folder / "result.json").read_text())["command"] == "story"


def test_a_story_goes_on_with_the_step_that_is_missing(
    told: isotropy.StoryResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def stop(*_: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(story_steps, "measure", stop)
        isotropy.story(*data(), config=TINY, folder=tmp_path / "story")
    with pytest.raises(CallerError, match="of another schedule"):
        other = isotropy.StoryConfig(**{**vars(TINY), "epochs": 3})
        isotropy.story(*data(), config=other, folder=tmp_path / "story", resume=True)
    for verb in ("learn", "learn_layers"):
        monkeypatch.setattr(story_steps, verb, stop)  # these steps have ended
    again = isotropy.story(
        *data(), config=TINY, folder=tmp_path / "story", resume=True,
        progress=lambda progress: calls.append(progress.step),
    )  # fmt: skip
    assert calls[-1] == "certified-relaxed"
    assert [each["test_error"] for each in again.networks] == [
        each["test_error"] for each in told.networks
    ]
    assert [each["certified"] for each in again.networks] == [
        each["certified"] for each in told.networks
    ]
    with pytest.raises(CallerError, match="already holds a run"):
        isotropy.story(*data(), config=TINY, folder=tmp_path / "story")


def test_nothing_is_built_that_was_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of a circle is no group of the grid: then only the average is certified."""
    found = {"name": "rotation", "kind": "range", "low": -60.0, "high": 60.0, "unit": "degrees"}
    own = story_steps.finding_of

    def partial(run: Any) -> Any:
        finding = own(run)
        return type(finding)([found], finding.law, finding.shape)

    monkeypatch.setattr(story_steps, "finding_of", partial)
    monkeypatch.setattr(story_steps, "certify", _counted(story_steps.certify))
    config = isotropy.StoryConfig(**{**vars(TINY), "group": None})
    record = isotropy.story(*data(), config=config, folder=tmp_path / "story").record
    assert record["group"] is None and record["built"] is None
    assert [each["name"] for each in record["networks"]] == ["plain", "augmented", "averaged"]
    assert "No group of the grid is justified by rotation ±60°" in " ".join(record["sentences"])


def _counted(certify: Any) -> Any:
    """`certify` over a law of its own where that of the run has nothing in it."""

    def certified(*given: Any, **named: Any) -> Any:
        if named["symmetry"] is not None:
            named["symmetry"] = "C(2)"
        return certify(*given, **named)

    return certified


def test_where_nothing_is_found_the_story_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = story_steps.finding_of

    def nothing(run: Any) -> Any:
        finding = own(run)
        return type(finding)([], finding.law, finding.shape)

    monkeypatch.setattr(story_steps, "finding_of", nothing)
    config = isotropy.StoryConfig(**{**vars(TINY), "group": None})
    record = isotropy.story(*data(), config=config, folder=tmp_path / "story").record
    assert [each["name"] for each in record["networks"]] == ["plain"]
    assert "the plain network is all that is justified" in record["sentence"]


@pytest.mark.parametrize(
    ("inputs", "targets", "sentence"),
    [
        (torch.rand(30, 5), torch.arange(30) % 3, "expected images.*isotropy learn"),
        (torch.rand(30, 1, 8, 8), torch.rand(30), "expected classes.*isotropy learn"),
    ],
    ids=["vectors", "regression"],
)
def test_other_data_are_refused(
    tmp_path: Path, inputs: Tensor, targets: Tensor, sentence: str
) -> None:
    with pytest.raises(CallerError, match=sentence):
        isotropy.story((inputs, targets), config=TINY, folder=tmp_path / "story")
    assert not (tmp_path / "story").exists()


def test_relaxed_networks_are_built_again_from_words(told: isotropy.StoryResult) -> None:
    config = json.loads((Path(told.record["run_folder"]) / "relaxed" / "config.json").read_text())
    words = NetworkSpecification.from_dict(config["network"], where="here")
    made = words.build((1, 8, 8), 3)
    count = sum(each.numel() for each in made.parameters())
    (relaxed,) = (each for each in told.networks if each["name"] == "relaxed")
    assert words.kind == "relaxed" and count == relaxed["num_parameters"]
