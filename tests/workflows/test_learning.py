"""`isotropy.learn` in Python: sources, callbacks, run folders, and runs stopped half way."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learn_runs import CONFIG, SIZE, bar_tensors, bars, bars_file, outcome, small_network
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import isotropy
from isotropy.checks import CallerError
from isotropy.data.labelled import LabelledData, Split
from isotropy.evidence.objectives import OBJECTIVES
from isotropy.workflows.learning import LearnProgress
from isotropy.workflows.runs.same_run import fingerprint

ROTATION = isotropy.affine(("rotation", "scale"))


class OwnNetwork(nn.Module):
    """A user's own class, with dropout and a buffer."""

    steps: Tensor

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"first": nn.Conv2d(1, 2, 3, stride=2)})
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(18, outputs)
        self.register_buffer("steps", torch.ones(2))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.drop(self.body["first"](images).tanh().flatten(1)))


def frozen_network(outputs: int = 3) -> nn.Module:
    """Only the last layer can be trained."""
    network = small_network(outputs)
    for parameter in list(network.parameters())[:-2]:
        parameter.requires_grad_(False)
    return network


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return build()


def regression() -> tuple[Tensor, Tensor]:
    images, labels = bar_tensors()
    return images, torch.stack([labels - 0.5, images.mean((1, 2, 3))], 1)


class Stopped(Exception):
    """A run was stopped half way."""


# -- a stopped run -----------------------------------------------------------------------------


@dataclass(frozen=True)
class RunCase:
    """A run: its network, data and settings."""

    network: Callable[[], nn.Module] = small_network
    data: Callable[[], tuple[Tensor, Tensor]] = bar_tensors
    settings: dict[str, Any] | None = None

    def learn(self, **options: Any) -> isotropy.LearnResult:
        config = replace(CONFIG, **(self.settings or {}))
        inputs, targets = self.data()
        train, test = (inputs[:45], targets[:45]), (inputs[45:], targets[45:])
        return isotropy.learn(
            seeded(self.network), train, test, actions=ROTATION, config=config, **options
        )


RUNS = {
    "laplace": RunCase(),
    "laplace, many steps": RunCase(
        settings={"prior_steps": 2, "update_every": 2, "prior_structure": "layer"}
    ),
    "augerino": RunCase(settings={"objective": "augerino"}),
    "fixed": RunCase(settings={"objective": "fixed", "ranges": {"rotation": 20.0}}),
    "none": RunCase(settings={"objective": "none"}),
    "capped": RunCase(settings={"caps": {"rotation": 3.0}}),
    "gaussian": RunCase(lambda: small_network(2), regression),
    "own network with dropout": RunCase(OwnNetwork),
    "float64": RunCase(lambda: small_network().double()),
    "elbo": RunCase(frozen_network, settings={"evidence": "elbo"}),
    "elbo of a network that is trained": RunCase(settings={"evidence": "elbo"}),
    "elbo by sampled gradients": RunCase(settings={"evidence": "elbo", "elbo_solver": "sampled"}),
    "elbo, gaussian": RunCase(lambda: frozen_network(2), regression, {"evidence": "elbo"}),
}


def assert_same(got: isotropy.LearnResult, expected: isotropy.LearnResult) -> None:
    """Every number of two runs is the same, to the last bit; times may differ."""
    for name in ("log_evidence", "symmetries", "test_accuracy"):
        assert getattr(got, name) == getattr(expected, name)
    assert len(got.history) == len(expected.history)
    for row, wanted in zip(got.history, expected.history, strict=True):
        assert {**row, "seconds": 0} == {**wanted, "seconds": 0}
    forgotten = {"seconds": 0, "run_folder": ""}
    assert {**got.record, **forgotten} == {**expected.record, **forgotten}
    tensors, wanted = got.model.state_dict(), expected.model.state_dict()
    assert tensors.keys() == wanted.keys()
    assert all(torch.equal(tensors[name], wanted[name]) for name in wanted)


@pytest.fixture
def saved_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isotropy.workflows.runs.prepared.CHECKPOINT_SECONDS", 0.0)


@pytest.mark.parametrize("case", RUNS.values(), ids=RUNS)
def test_stopped_run_ends_as_an_unbroken_one(
    case: RunCase, tmp_path: Path, saved_each_epoch: None
) -> None:
    unbroken = case.learn()

    def stop(progress: LearnProgress) -> None:
        if progress.row.epoch == 2:
            raise Stopped

    with pytest.raises(Stopped):
        case.learn(folder=tmp_path, progress=stop)
    torch.manual_seed(99)  # whatever happened in between
    seen: list[int] = []
    resumed = case.learn(
        folder=tmp_path, resume=True, progress=lambda progress: seen.append(progress.row.epoch)
    )
    assert seen == [3, 4]
    assert_same(resumed, unbroken)


@pytest.mark.parametrize("last", [0, 1, 3])
def test_stopped_anywhere(last: int, tmp_path: Path, saved_each_epoch: None) -> None:
    """Before the first epoch, in the burn-in, before the last one; and at every epoch in turn."""
    case = RUNS["own network with dropout"]

    def stop(epoch: int) -> None:
        if epoch == last:
            raise Stopped

    with pytest.raises(Stopped):
        case.learn(
            folder=tmp_path,
            started=lambda config, epoch: stop(epoch),
            progress=lambda progress: stop(progress.row.epoch),
        )
    assert_same(case.learn(folder=tmp_path, resume=True), case.learn())


def test_stopped_after_every_epoch(tmp_path: Path, saved_each_epoch: None) -> None:
    case = RUNS["laplace"]

    def stop(progress: LearnProgress) -> None:
        raise Stopped

    for _ in range(4):
        with pytest.raises(Stopped):
            case.learn(folder=tmp_path, resume=True, progress=stop)
    assert_same(case.learn(folder=tmp_path, resume=True, progress=stop), case.learn())


def test_finished_run_is_reported_again(tmp_path: Path) -> None:
    first = RUNS["laplace"].learn(folder=tmp_path)
    before = outcome(tmp_path)
    again = RUNS["laplace"].learn(folder=tmp_path, resume=True, progress=pytest.fail)
    assert_same(again, first)
    assert outcome(tmp_path) == before


def test_run_saved_by_hand_is_reported_again(tmp_path: Path) -> None:
    first = RUNS["gaussian"].learn()
    first.save(tmp_path)
    assert_same(RUNS["gaussian"].learn(folder=tmp_path, resume=True), first)


def test_stopping_is_what_the_comparison_is_about(tmp_path: Path, saved_each_epoch: None) -> None:
    """The comparison fails where a run is continued with another random state."""
    case = RUNS["own network with dropout"]

    def stop(progress: LearnProgress) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        case.learn(folder=tmp_path, progress=stop)
    disturbed = case.learn(
        folder=tmp_path, resume=True, started=lambda config, epoch: torch.manual_seed(1)
    )
    with pytest.raises(AssertionError):
        assert_same(disturbed, case.learn())


# -- a run folder that holds something else ----------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    RUNS["laplace"].learn(folder=folder)
    return folder


OTHER_RUNS: dict[str, tuple[RunCase, str]] = {
    "model": (RunCase(OwnNetwork), "another model: its network has name .*OwnNetwork"),
    "width": (
        RunCase(lambda: nn.Sequential(nn.Flatten(), nn.Linear(SIZE * SIZE, 3))),
        "another model: it holds",
    ),
    "data": (RunCase(data=lambda: bar_tensors(seed=1)), "another data set"),
    "objective": (RunCase(settings={"objective": "augerino"}), "another objective"),
    "epochs": (RunCase(settings={"epochs": 9}), "another schedule: .* epochs 4, this run has 9"),
    "seed": (RunCase(settings={"seed": 9}), "another schedule: .* seed 0, this run has 9"),
    "caps": (RunCase(settings={"caps": {"scale": 1.0}}), "another schedule: .* caps None"),
}


@pytest.mark.parametrize(("case", "sentence"), OTHER_RUNS.values(), ids=OTHER_RUNS)
def test_run_folder_of_another_run_is_refused(case: RunCase, sentence: str, finished: Path) -> None:
    before = (finished / "checkpoint.safetensors").read_bytes()
    with pytest.raises(CallerError, match=f"run folder .* is of {sentence}") as caught:
        case.learn(folder=finished, resume=True)
    assert str(finished) in str(caught.value)
    assert (finished / "checkpoint.safetensors").read_bytes() == before


def test_run_folder_of_another_padding_is_refused(finished: Path) -> None:
    inputs, targets = bar_tensors()
    action = isotropy.affine(("rotation", "scale"), padding="reflection")
    options: dict[str, Any] = {"actions": action, "folder": finished, "resume": True}
    with pytest.raises(CallerError, match="another padding: it has 'zeros'.*'reflection'"):
        isotropy.learn(small_network(), (inputs[:45], targets[:45]), config=CONFIG, **options)


def test_run_folder_of_other_generators_is_refused(finished: Path) -> None:
    inputs, targets = bar_tensors()
    train = (inputs[:45], targets[:45])
    with pytest.raises(CallerError, match="other generators"):
        isotropy.learn(small_network(), train, config=CONFIG, folder=finished, resume=True)


# -- sources -----------------------------------------------------------------------------------


class Items(Dataset[tuple[Tensor, int]]):
    """A user's data set of 60 items."""

    def __init__(self) -> None:
        self.images, self.labels = bar_tensors()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], int(self.labels[index])


def labelled(seed: int = 0) -> LabelledData:
    inputs, targets = bar_tensors(seed=seed)
    return LabelledData(inputs, targets, None, "bars")


SOURCES: dict[str, Callable[[], Any]] = {
    "tensors": bar_tensors,
    "a list of arrays": lambda: list(bars()),
    "TensorDataset": lambda: TensorDataset(*bar_tensors()),
    "own data set": Items,
    "LabelledData": labelled,
    "Split": lambda: Split(labelled(), None),
}


def learn_none(train: Any, test: Any = None, **options: Any) -> isotropy.LearnResult:
    """The shortest run: one epoch, no augmentation."""
    config = isotropy.LearnConfig(epochs=1, objective="none", batch_size=20)
    return isotropy.learn(small_network(), train, test, config=config, **options)


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_sources_in_memory_are_all_trained_on(source: Callable[[], Any]) -> None:
    alone = learn_none(source())
    assert alone.record["train_examples"] == 60
    assert alone.test_accuracy is None and alone.record["test_accuracy"] is None
    assert alone.record["test_examples"] is None
    assert alone.log_evidence == learn_none(bar_tensors()).log_evidence
    tested = learn_none(source(), bar_tensors(30, seed=1))
    assert tested.record["test_examples"] == 30
    assert tested.test_accuracy == tested.history[-1]["test_accuracy"]
    assert 0 <= tested.record["test_accuracy"] <= 1
    assert tested.log_evidence == alone.log_evidence, "test data must not be learned from"


def test_path_and_split_bring_their_test_set(tmp_path: Path) -> None:
    held_out = learn_none(bars_file(tmp_path))
    assert (held_out.record["train_examples"], held_out.record["test_examples"]) == (48, 12)
    assert held_out.test_accuracy is not None
    split = isotropy.read(str(bars_file(tmp_path)))
    assert learn_none(split).log_evidence == held_out.log_evidence
    tested = learn_none(split, bar_tensors(30, seed=1))
    assert tested.record["test_examples"] == 30


BAD_CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "unlabelled": (lambda: learn_none(bar_tensors()[0]), "targets beside them"),
    "a number": (lambda: learn_none(3), "got int"),
    "test of another shape": (
        lambda: learn_none(Split(labelled(), LabelledData(
            torch.zeros(4, 1, 9, 9), torch.tensor([0, 1, 2, 0]), None, "nine"))),
        r"nine: expected test inputs like the training inputs",
    ),
    "one class": (
        lambda: learn_none(replace(labelled(), targets=torch.ones(60, dtype=torch.int64))),
        "bars: expected training examples of at least two classes",
    ),
    "unknown objective": (
        lambda: isotropy.learn(small_network(), bar_tensors(), objective="lila"),  # type: ignore
        "unknown objective 'lila'",
    ),
    "no samples": (
        lambda: isotropy.learn(small_network(), bar_tensors(), config=replace(CONFIG, samples=0)),
        "samples: expected at least 1",
    ),
    "too few outputs": (
        lambda: isotropy.learn(small_network(2), bar_tensors(), config=CONFIG), "2 outputs"
    ),
    "no trainable parameters": (
        lambda: isotropy.learn(
            small_network().requires_grad_(False), bar_tensors(), config=CONFIG
        ),
        "no trainable parameters",
    ),
    "data that does not turn": (
        lambda: isotropy.learn(
            nn.Linear(4, 3), (torch.rand(60, 4), bars()[1]), actions=ROTATION, config=CONFIG
        ),
        "data: rotation, .* cannot act on it",
    ),
    "cap of an unknown": (
        lambda: isotropy.learn(
            small_network(), bar_tensors(), config=replace(CONFIG, caps={"spin": 1.0})
        ),
        "unknown generator 'spin'",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "sentence"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_mistakes_are_sentences(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(CallerError, match=sentence):
        call()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_layer_without_a_rule_is_named(objective: Any, tmp_path: Path) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.PReLU(), nn.Linear(4, 3))
    ranges = {"rotation": 3.0} if objective in ("fixed", "averaged-losses") else None
    config = replace(CONFIG, objective=objective, ranges=ranges, fallback="refuse")
    with pytest.raises(CallerError, match="layer '2' of type PReLU has no curvature rule"):
        isotropy.learn(network, bar_tensors(), config=config, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_layer_without_a_rule_trains_and_is_named() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.PReLU(4), nn.Linear(4, 3))
    result = isotropy.learn(network, bar_tensors(), config=CONFIG)
    assert result.record["fallback"] == {"2": "PReLU"} and result.record["constants"] == {}
    assert any("diagonal blocks: 2 (PReLU)" in note for note in result.record["notes"])


# -- what is handed back -----------------------------------------------------------------------


def test_result_predicts_and_reports_its_symmetries() -> None:
    images, labels = bar_tensors()
    result = isotropy.learn(small_network(), (images, labels), config=CONFIG)
    assert isinstance(result.model, isotropy.InvariantModel)
    assert result.model(images).shape == (60, 3)
    assert [symmetry.name for symmetry in result.symmetries] == list(isotropy.affine().names)
    assert result.symmetries == result.model.symmetries()
    assert all(symmetry.low == -symmetry.high < 0 for symmetry in result.symmetries)
    assert result.log_evidence == result.record["log_evidence"] < 0


def test_objective_beside_the_config_wins() -> None:
    result = isotropy.learn(small_network(), bar_tensors(), objective="augerino", config=CONFIG)
    assert result.config["objective"] == result.record["objective"] == "augerino"
    assert result.log_evidence is None and result.record["log_evidence_per_example"] is None


def test_own_action_on_data_without_pixels() -> None:
    class Shift(isotropy.Action):
        generators = (isotropy.Generator("shift", unit="metres"),)

        def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
            return data[:, None] + coordinates

    inputs = torch.rand(60, 4, generator=torch.Generator().manual_seed(0))
    network = seeded(lambda: nn.Linear(4, 3))
    result = isotropy.learn(network, (inputs, bars()[1]), actions=Shift(), config=CONFIG)
    (shift,) = result.symmetries
    assert (shift.name, shift.unit) == ("shift", "metres") and shift.high > 0
    assert result.illustration.examples is None


def test_what_a_run_will_take_is_said_before_it_starts() -> None:
    told: list[str] = []
    config = replace(CONFIG, epochs=2, burn_in=0)
    isotropy.learn(small_network(), bar_tensors(), config=config, verdicts=0, remark=told.append)
    assert told[0] == "trying one batch of every part of the run"
    assert re.fullmatch(r"about \d+ s and 0\.\d+ GB to go", told[1])


def test_callbacks_are_told_everything() -> None:
    calls: list[Any] = []
    result = isotropy.learn(
        small_network(),
        bar_tensors(),
        bar_tensors(seed=1),
        config=replace(CONFIG, epochs=5, burn_in=2, update_every=2, evaluate_every=2),
        started=lambda config, epoch: calls.append((config, epoch)),
        progress=calls.append,
    )
    (config, done), *told = calls
    assert done == 0 and config.epochs == 5
    assert all(value is not None for name, value in vars(config).items()
               if name not in ("ranges", "caps", "start", "micro_batch"))  # fmt: skip
    assert [progress.row.epoch for progress in told] == [1, 2, 3, 4, 5]
    assert [progress.row.as_dict() for progress in told] == result.history
    assert all(progress.config is told[0].config for progress in told)
    # Evidence comes with the hyper step in epoch 4, scores in epochs 2, 4 and the last.
    assert [progress.row.log_evidence is not None for progress in told] == [0, 0, 0, 1, 0]
    assert [progress.row.test_accuracy is not None for progress in told] == [0, 1, 0, 1, 1]
    latest = [progress.log_evidence_per_example for progress in told]
    assert latest[:3] == [None] * 3 and latest[4] == latest[3]
    assert latest[3] == pytest.approx(told[3].row.log_evidence / 60)
    accuracy = [progress.test_accuracy for progress in told]
    assert accuracy[0] is None and accuracy[2] == accuracy[1] == told[1].row.test_accuracy


# -- saving ------------------------------------------------------------------------------------


def test_save_writes_the_folder_that_a_run_would(tmp_path: Path, drawn_pages: None) -> None:
    saved = RUNS["laplace"].learn().save(tmp_path / "saved")
    RUNS["laplace"].learn(folder=tmp_path / "run")
    assert outcome(saved) == outcome(tmp_path / "run")
    names = {path.name for path in saved.iterdir()}
    assert names == {path.name for path in (tmp_path / "run").iterdir()}
    config = json.loads((saved / "config.json").read_text())
    assert config["network"]["kind"] == "given"
    assert config["network"]["name"] == "torch.nn.modules.container.Sequential"
    assert config["data"]["shape"] == [1, SIZE, SIZE] and config["data"]["train_examples"] == 45
    augmentation = json.loads((saved / "augmentation.json").read_text())
    assert [symmetry["unit"] for symmetry in augmentation["symmetries"]] == [
        "degrees", "log factor",
    ]  # fmt: skip
    with np.load(saved / "samples.npz", allow_pickle=False) as archive:
        assert archive["examples"].shape[2:] == (1, SIZE, SIZE)
        assert archive["flows"].shape[4] == 2 and tuple(archive["image_shape"]) == (SIZE, SIZE)


# -- fingerprints ------------------------------------------------------------------------------


def changed(**changes: Any) -> LabelledData:
    return replace(labelled(), **changes)


IMAGES, LABELS = bar_tensors()
SWAPPED = torch.arange(60).index_copy(0, torch.tensor([3, 4]), torch.tensor([4, 3]))

OTHER_DATA: dict[str, LabelledData] = {
    "other images": labelled(seed=1),
    "mirrored": changed(inputs=IMAGES.flip(3)),
    "turned": changed(inputs=IMAGES.rot90(1, (2, 3))),
    "scaled": changed(inputs=IMAGES * 1.001),
    "negative": changed(inputs=-IMAGES),
    "one image mirrored": changed(inputs=torch.cat([IMAGES[:1].flip(3), IMAGES[1:]])),
    "two images swapped": changed(inputs=IMAGES[SWAPPED]),
    "two labels swapped": changed(targets=LABELS[SWAPPED]),
    "an example less": LabelledData(IMAGES[:-1], LABELS[:-1], None, "bars"),
    "flattened": changed(inputs=IMAGES.flatten(1)),
}


@pytest.mark.parametrize("other", OTHER_DATA.values(), ids=OTHER_DATA)
def test_fingerprint_differs_for_other_data(other: LabelledData) -> None:
    assert fingerprint(other) != fingerprint(labelled())


def test_fingerprint_is_the_same_for_the_same_data() -> None:
    assert fingerprint(labelled()) == fingerprint(changed(inputs=IMAGES.clone(), name="other"))
    # Two machines may disagree on the last bit of a pixel here and there.
    nudged = IMAGES.clone()
    nudged[::7, 0, 3, 3] = torch.nextafter(nudged[::7, 0, 3, 3], torch.tensor(2.0))
    assert not torch.equal(nudged, IMAGES)
    assert fingerprint(changed(inputs=nudged)) == fingerprint(labelled())


def test_fingerprint_of_zeros() -> None:
    assert "nan" not in fingerprint(changed(inputs=torch.zeros_like(IMAGES)))
