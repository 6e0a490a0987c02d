"""`learn_layers` on networks of one's own and on the paper's: records, run folders, refusals."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from learn_runs import assert_one_sentence, bar_tensors, run_here
from torch import Tensor, nn

import isotropy
from isotropy.data.labelled import LabelledData, Split
from isotropy.evidence.layers.structure import relaxed_layers
from isotropy.networks.pathways.relaxed_layer import PathwayOptions
from isotropy.workflows.relaxing import RelaxProgress, RelaxResult, relax_and_learn

CONFIG = isotropy.RelaxConfig(epochs=8, burn_in=1, batch_size=4, update_every=1, weight_rate=0.1)
"""Enough for a small network to begin to learn: precisions stay where they are before."""
TINY = isotropy.RelaxConfig(epochs=1, burn_in=0, curvature="kfac-mc")
"""For the paper's network, whose eight layers take their time."""
ASKED_FOR = ("test_accuracy", "test_nll", "log_evidence", "num_parameters", "layers")
"""Keys that every reader of the JSON may rely on, and those of a layer."""
ASKED_OF_LAYERS = ("name", "became", "effective", "prior_precision")


class SmallNetwork(nn.Module):
    """Two convolutions with a forward pass of their own."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 3, 3, padding=1)
        self.second = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.head = nn.Linear(4, outputs)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.second(self.first(images).relu()).relu()
        return self.head(maps.mean((2, 3)))


def relaxed_network(outputs: int = 3) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = SmallNetwork(outputs)
    generator = torch.Generator().manual_seed(0)
    return isotropy.relax(network, ("ffc", "conv"), example=(1, 8, 8), generator=generator)


def state_of(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


@pytest.fixture(scope="module")
def told() -> list[RelaxProgress]:
    return []


@pytest.fixture(scope="module")
def result(told: list[RelaxProgress]) -> RelaxResult:
    return isotropy.learn_layers(
        relaxed_network(), bar_tensors(60), bar_tensors(30, seed=1), config=CONFIG, hardened=True,
        progress=told.append, describe={"task": "bars"},
    )  # fmt: skip


def images_32(count: int = 6) -> Split:
    inputs = torch.rand((count, 1, 32, 32), generator=torch.Generator().manual_seed(0))
    data = LabelledData(inputs, torch.arange(count) % 3, None, "noise")
    return Split(data, data.take(torch.arange(3)))


@pytest.fixture(scope="module")
def of_the_paper() -> RelaxResult:
    """The paper's network with a group and a sparse pathway whose lengthscales are learned."""
    return relax_and_learn(
        images_32(), pathways=("sconv", "gconv"), width=1, config=TINY,
        options=PathwayOptions(learns_lengthscale=True, sparsity=0.75),
    )  # fmt: skip


# --- the record -----------------------------------------------------------------------------------


def test_the_record_has_what_was_asked_for(result: RelaxResult) -> None:
    record = json.loads(json.dumps(result.record, allow_nan=False))
    assert set(ASKED_FOR) < set(record)
    assert record["kind"] == record["command"] == "relax" and record["task"] == "bars"
    assert record["pathways"] == ["ffc", "conv"]
    assert record["network"].endswith("SmallNetwork")
    assert [layer["name"] for layer in result.layers] == ["first", "second"]
    for layer in record["layers"]:
        assert set(ASKED_OF_LAYERS) < set(layer)
        assert set(layer["effective"]) == set(layer["prior_precision"]) == {"ffc", "conv"}
        assert sum(layer["effective"].values()) == pytest.approx(1)
        assert all(value > 0 for value in layer["prior_precision"].values())
    assert 0 <= record["test_accuracy"] <= 1 and record["test_nll"] > 0
    assert record["log_evidence"] == pytest.approx(60 * record["log_evidence_per_example"])
    assert record["num_parameters"] == sum(p.numel() for p in result.model.parameters())
    assert (record["train_examples"], record["test_examples"]) == (60, 30)


def test_scores_are_those_of_the_model(result: RelaxResult) -> None:
    images, labels = bar_tensors(30, seed=1)
    with torch.no_grad():
        outputs = result.model(images)
    accuracy = float((outputs.argmax(1) == labels).float().mean())
    assert result.record["test_accuracy"] == pytest.approx(accuracy)
    wanted = float(nn.functional.cross_entropy(outputs, labels))
    assert result.record["test_nll"] == pytest.approx(wanted, rel=1e-5)
    assert not result.model.training


def test_precisions_are_learned_and_progress_is_told(
    result: RelaxResult, told: list[RelaxProgress]
) -> None:
    learned = result.record["prior_precision"]
    assert len(set(learned.values())) > 1, "all precisions stayed where they started"
    assert [each.row.epoch for each in told] == list(range(1, 9))
    assert [each.row.as_dict() for each in told] == result.record["epochs"]
    assert told[0].config.as_dict() == result.record["config"]
    fixed = isotropy.learn_layers(
        relaxed_network(), bar_tensors(20), config=isotropy.RelaxConfig(epochs=1, objective="map")
    )
    assert set(fixed.record["prior_precision"].values()) == {1.0}
    assert fixed.record["test_accuracy"] is fixed.record["test_examples"] is None


def test_the_model_given_stays_as_it_was() -> None:
    given = relaxed_network()
    before = state_of(given)
    result = isotropy.learn_layers(given, bar_tensors(20), config=TINY)
    for name, tensor in given.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert given.training
    assert not torch.equal(result.model.head.weight, given.head.weight)


def test_hardening_goes_by_what_was_learned(result: RelaxResult) -> None:
    hardened = result.record["hardened"]
    plain = result.harden()
    assert hardened["num_parameters"] == sum(p.numel() for p in plain.parameters())
    layers = relaxed_layers(result.model)
    assert {name: layer.contributions for name, layer in layers.items()} == {
        layer["name"]: pytest.approx(layer["contribution"]) for layer in result.layers
    }
    all_but_one = isotropy.harden(result.model, below=1.0)
    assert not relaxed_layers(all_but_one)
    assert sum(p.numel() for p in all_but_one.parameters()) < result.record["num_parameters"]


def test_a_network_that_answers_alike_to_everything_is_told(result: RelaxResult) -> None:
    dead = relaxed_network()
    with torch.no_grad():
        dead.get_submodule("head").weight.zero_()
    images = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    config = isotropy.RelaxConfig(epochs=1, burn_in=0, weight_rate=1e-12, objective="map")
    (note,) = isotropy.learn_layers(dead, (images, labels), config=config).record["notes"]
    assert "the same outputs for all inputs" in note and "1e-12" in note
    assert result.record["notes"] == []


def test_regression() -> None:
    images, _ = bar_tensors(60)
    brightness = images.mean((1, 2, 3))[:, None]
    targets = 4 * (brightness - brightness.mean()) / brightness.std() * torch.tensor([[1.0, -2.0]])
    data = (images, targets)
    result = isotropy.learn_layers(
        relaxed_network(outputs=2), data, data, config=CONFIG, hardened=True
    )
    record = json.loads(json.dumps(result.record, allow_nan=False))
    assert record["test_accuracy"] is record["hardened"]["test_accuracy"] is None
    assert all(row["train_accuracy"] is None for row in record["epochs"])
    assert record["epochs"][-1]["train_loss"] < record["epochs"][0]["train_loss"]
    assert isinstance(record["test_nll"], float) and isinstance(record["log_evidence"], float)
    assert len({round(value, 6) for value in record["prior_precision"].values()}) > 1


def test_a_run_without_a_hyper_step_says_so_instead_of_what_layers_became(
    result: RelaxResult,
) -> None:
    assert result.hyper_steps > 0 and all(layer["became"] for layer in result.layers)
    rows = result.record["epochs"]
    assert result.hyper_steps == sum(row["log_evidence"] is not None for row in rows)
    for settings, why in (
        ({"epochs": 2, "burn_in": 3}, "burn-in of 3 epochs is longer than the run of 2"),
        ({"epochs": 2, "burn_in": 0, "weight_rate": 1e-9}, "loss had not fallen"),
    ):
        config = isotropy.RelaxConfig(**settings)
        still = isotropy.learn_layers(relaxed_network(), bar_tensors(20), config=config)
        assert still.hyper_steps == still.record["hyper_steps"] == 0
        assert [layer["became"] for layer in still.layers] == [None, None]
        assert "is not known: no step" in still.sentences[0] and why in still.sentences[0]
    fixed = isotropy.RelaxConfig(epochs=1, objective="map")
    by_map = isotropy.learn_layers(relaxed_network(), bar_tensors(20), config=fixed)
    assert by_map.hyper_steps == 0 and by_map.layers[0]["became"] is not None


# --- run folders ----------------------------------------------------------------------------------


def test_a_run_folder_gives_the_network_back(result: RelaxResult, tmp_path: Path) -> None:
    folder = result.save(tmp_path / "run")
    assert (folder / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert json.loads((folder / "result.json").read_text())["run_folder"] == str(folder)
    given = relaxed_network()
    before = state_of(given)
    loaded = isotropy.load(folder, network=given)
    assert all(torch.equal(t, before[name]) for name, t in given.state_dict().items())
    assert_same(loaded, result.harden().eval(), bar_tensors(10)[0])  # it was a hardened run
    record = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**record, "hardened": None}))
    assert_same(isotropy.load(folder, network=given), result.model, bar_tensors(10)[0])
    with pytest.raises(isotropy.CallerError, match="SmallNetwork.*handed over in Python.*network="):
        isotropy.load(folder)
    with pytest.raises(isotropy.CallerError, match="is of another model"):
        isotropy.load(folder, network=relaxed_network(outputs=4))
    with pytest.raises(isotropy.CallerError, match="already holds a run"):
        result.save(folder)


def assert_same(one: nn.Module, other: nn.Module, images: Tensor) -> None:
    assert not one.training
    with torch.no_grad():
        assert torch.equal(one(images), other(images))
    ones, others = one.state_dict(), other.state_dict()
    assert ones.keys() == others.keys()
    assert all(torch.equal(ones[name], others[name]) for name in ones)


def test_the_network_of_the_paper_is_rebuilt_from_its_folder(
    of_the_paper: RelaxResult, tmp_path: Path
) -> None:
    folder = of_the_paper.save(tmp_path / "run")
    drawn = torch.get_rng_state()
    loaded = isotropy.load(folder)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert_same(loaded, of_the_paper.model, images_32().train.inputs)
    assert str(loaded) == str(of_the_paper.model)
    # Trained and not only stored: the options reached the pathways.
    assert {n for n, _ in loaded.named_parameters()} == {
        n for n, _ in of_the_paper.model.named_parameters()
    }
    assert any("lengthscale" in name for name, _ in loaded.named_parameters())


def test_the_record_of_the_papers_network(of_the_paper: RelaxResult) -> None:
    record = of_the_paper.record
    assert (record["pathways"], record["width"]) == (["sconv", "gconv"], 1)
    assert record["group"] == "C(4)", "quarter turns where no group was named"
    assert [layer["name"] for layer in of_the_paper.layers] == [f"stage{n}" for n in range(1, 9)]
    arguments = of_the_paper.config["network"]["arguments"]
    wanted = PathwayOptions(learns_lengthscale=True, sparsity=0.75)
    assert PathwayOptions(**arguments["options"]) == wanted


def test_one_seed_one_network() -> None:
    def weights(seed: int) -> Tensor:
        config = isotropy.RelaxConfig(epochs=1, objective="map", curvature="kfac-mc", seed=seed)
        found = relax_and_learn(images_32(), pathways=("conv",), width=1, config=config)
        return torch.cat([each.detach().flatten() for each in found.model.parameters()])

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


def test_folders_of_relaxed_layers_are_no_others(
    result: RelaxResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = result.save(tmp_path / "run")
    words = ("measure", "--model", str(folder), "--out", str(tmp_path / "measured"))
    assert_one_sentence(run_here(capsys, *words, "--device", "cpu"), "have no name", "--data")
    assert_one_sentence(run_here(capsys, "learn", "--model", str(folder)), "relaxed layers")
    with pytest.raises(isotropy.CallerError, match="is not a run folder"):
        isotropy.load(tmp_path)


# --- refusals -------------------------------------------------------------------------------------


def test_refusals() -> None:
    images, labels = bar_tensors(20)

    def refuses(sentence: str, network: nn.Module, *data: Any, **settings: Any) -> None:
        with pytest.raises(isotropy.CallerError, match=sentence):
            isotropy.learn_layers(network, *data, config=isotropy.RelaxConfig(**settings))

    refuses("with relaxed layers, got none", SmallNetwork(3), (images, labels))
    refuses(r"outputs: expected \(batch, 3\)", relaxed_network(4), (images, labels))
    refuses(r"expected maps \(batch, 1, 8, 8\)", relaxed_network(), (images[..., :6], labels))
    refuses("cannot be run on inputs", nn.Sequential(nn.Linear(5, 5), relaxed_network()),
            (images, labels))  # fmt: skip
    refuses("epochs", relaxed_network(), (images, labels), epochs=0)
    odd = copy.deepcopy(relaxed_network())
    odd.head = nn.Sequential(nn.Bilinear(4, 4, 3))
    odd.head.forward = lambda maps: odd.head[0](maps, maps)  # type: ignore[method-assign]
    refuses("Bilinear", odd, (images, labels))


def test_the_papers_network_wants_images_and_known_pathways() -> None:
    rows = LabelledData(torch.rand(6, 5), torch.arange(6) % 2, None, "rows")
    with pytest.raises(isotropy.CallerError, match=r"rows: expected images .* got \(6, 5\)"):
        relax_and_learn(Split(rows, None))
    for words, sentence in (
        ({"pathways": ("conf",)}, "did you mean 'conv'"),
        ({"group": "C(4)"}, "add gconv"),
        ({"pathways": ("conv", "gconv"), "group": "C(3)"}, "grid"),
    ):
        with pytest.raises(isotropy.CallerError, match=sentence):
            relax_and_learn(images_32(), **words)
