"""`isotropy.measure`: one call for any module and data; a record in JSON; nothing left behind."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from equivariance.measured_networks import SeveralInputs, built
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from isotropy.checks import CallerError
from isotropy.symmetry.actions.finite import flip
from isotropy.symmetry.actions.images import affine
from isotropy.symmetry.actions.linear import linear_action
from isotropy.symmetry.actions.points import points
from isotropy.workflows.measuring import THESIS_TRANSFORMATIONS, measure, measured_actions

TURN = affine(("rotation",), padding="reflection")


def labelled(count: int = 6, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, 12, 12, generator=generator, dtype=dtype), torch.arange(count) % 5


def without_time(record: Any) -> Any:
    return {name: each for name, each in record.items() if name != "seconds"}


# --- the record -----------------------------------------------------------------------------------


def test_the_record() -> None:
    network, _ = built("convolutional", torch.float32)
    data = labelled()
    result = measure(network, data)
    record = result.record
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert (record["schema"], record["command"], record["seed"]) == (1, "measure", 0)
    assert {"isotropy", "commit", "device", "seconds", "versions"} <= set(record)
    assert record["run_folder"] is None and record["on"] == "probabilities"
    assert (record["interpolation"], record["padding"]) == ("bilinear", "reflection")
    assert record["gaps"] == record["drifts"] == []
    (entry,) = record["entries"]
    assert record["actions"] == entry["actions"] == result.actions
    assert result.entries == [entry]
    assert [each["name"] for each in entry["actions"]] == list(THESIS_TRANSFORMATIONS)
    right = network(data[0]).argmax(1) == data[1]
    described = {
        "model": "model", "on": "probabilities", "data": "data", "examples": 6,
        "output": "invariant", "output_dimension": 5, "accuracy": right.float().mean().item(),
        "parameters": sum(each.numel() for each in network.parameters()),
    }  # fmt: skip
    assert {name: entry[name] for name in described} == pytest.approx(described)
    for each in entry["actions"]:
        assert set(each) == {
            "name", "unit", "error", "standard_error", "resampling_floor",
            "resampling_floor_standard_error", "attribution", "remark", "layers", "finite",
        }  # fmt: skip
        assert each["error"] > 0 and each["standard_error"] > 0
        if each["name"] == "amplitude":  # what it does to hidden maps is not known
            assert each["layers"] == [] and "say it with layouts=" in each["remark"]
            continue
        assert each["remark"] is None
        assert set(each["attribution"]) == {"method", "probes", "closure"}
        assert [layer["name"] for layer in each["layers"]] == [*map(str, range(7)), "softmax"]
        for layer in each["layers"]:
            assert set(layer) == {
                "name", "kind", "layout", "norm", "norm_error", "share", "eq_t", "eq_t_error",
                "judged_at", "remark",
            }  # fmt: skip
        assert sum(layer["share"] for layer in each["layers"]) == pytest.approx(1, abs=1e-4)
        assert set(each["finite"]) == {
            "amounts", "samples", "error", "standard_error", "resampling_floor",
            "inconsistency", "inconsistency_standard_error",
        }  # fmt: skip
    assert [each["name"] for each in entry["exact"]] == ["quarter turns", "whole-pixel shifts"]
    assert set(entry["translation_metrics"]) == {"range", "eq_t", "eq_t_frac"}
    units = {each["name"]: each["unit"] for each in entry["actions"]}
    assert units["rotation"] == "radian" and units["translation_x"] == "half an image width"


def test_numbers_repeat_by_the_seed() -> None:
    network, _ = built("convolutional", torch.float32)

    def record(seed: int) -> Any:
        return without_time(
            measure(network, labelled(), TURN, seed=seed, attribution="probes", probes=2).record
        )

    assert record(3) == record(3)
    one, other = record(3)["actions"][0], record(4)["actions"][0]
    assert one["error"] == other["error"], "all examples were taken"
    assert one["finite"]["error"] != other["finite"]["error"]
    assert one["layers"][0]["norm"] != other["layers"][0]["norm"]
    assert one["attribution"]["method"] == "probes" and one["attribution"]["probes"] == 2


def test_examples_are_drawn_by_the_seed() -> None:
    network, _ = built("convolutional", torch.float32)
    inputs, targets = labelled(12)
    for data in (inputs, (inputs, targets)):
        found = [
            measure(network, data, TURN, examples=4, seed=seed, layers=False, finite=False)
            for seed in (0, 0, 1)
        ]
        assert all(each.entries[0]["examples"] == 4 for each in found)
        errors = [each.actions[0]["error"] for each in found]
        assert errors[0] == errors[1] != errors[2]


def test_small_batches_give_the_same_record() -> None:
    network, _ = built("resnet", torch.float32)
    found = [
        measure(network, labelled(5), TURN, batch_size=size, finite=False).actions[0]
        for size in (5, 2)
    ]
    for name in ("error", "standard_error", "resampling_floor"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-5)
    for one, other in zip(found[0]["layers"], found[1]["layers"], strict=True):
        assert one["name"] == other["name"]
        assert one["norm"] == pytest.approx(other["norm"], rel=1e-4, abs=1e-8)


# --- several models and data sets -----------------------------------------------------------------


def test_gaps_and_drifts() -> None:
    before, _ = built("convolutional", torch.float32)
    after, _ = built("perceptron", torch.float32)
    train, test = labelled(6), labelled(4)
    found = measure(
        {"before": before, "after": after},
        {"train": train, "test": test},
        [TURN, affine(("scale",))],
        finite=False,
        layers=False,
    )
    where = [(entry["model"], entry["data"]) for entry in found.entries]
    assert where == [
        ("before", "train"), ("before", "test"), ("after", "train"), ("after", "test"),
    ]  # fmt: skip
    by_place = dict(zip(where, found.entries, strict=True))
    gaps, drifts = found.record["gaps"], found.record["drifts"]
    assert [(each["model"], each["action"]) for each in gaps] == [
        ("before", "rotation"), ("before", "scale"), ("after", "rotation"), ("after", "scale"),
    ]  # fmt: skip
    for gap in gaps:
        assert (gap["from"], gap["to"]) == ("train", "test")
        number = ["rotation", "scale"].index(gap["action"])
        one, other = (by_place[gap["model"], d]["actions"][number] for d in ("train", "test"))
        assert gap["difference"] == other["error"] - one["error"]
        expected = math.hypot(one["standard_error"], other["standard_error"])
        assert gap["standard_error"] == pytest.approx(expected)
    assert [(each["data"], each["action"]) for each in drifts] == [
        ("train", "rotation"), ("train", "scale"), ("test", "rotation"), ("test", "scale"),
    ]  # fmt: skip
    first = by_place["after", "train"]["actions"][0]["error"]
    first -= by_place["before", "train"]["actions"][0]["error"]
    assert drifts[0]["difference"] == pytest.approx(first)
    assert (drifts[0]["from"], drifts[0]["to"]) == ("before", "after")


def test_models_of_other_names_do_not_drift() -> None:
    one, _ = built("convolutional", torch.float32)
    found = measure({"a": one, "b": one}, labelled(2), TURN, finite=False, layers=False)
    assert found.record["drifts"] == found.record["gaps"] == []
    assert found.entries[0]["actions"] == found.entries[1]["actions"]


# --- data of every kind -------------------------------------------------------------------------


def error_of(model: nn.Module, data: Any, **how: Any) -> float:
    found = measure(model, data, TURN, finite=False, layers=False, **how)
    return float(found.actions[0]["error"])


def test_loaders_pairs_and_tensors() -> None:
    network, _ = built("convolutional", torch.float32)
    inputs, targets = labelled(5)
    logits = error_of(network, inputs)
    assert error_of(network, (inputs, targets), on="outputs") == pytest.approx(logits)
    loaders = [
        (DataLoader(TensorDataset(inputs, targets), batch_size=2), True),
        (DataLoader(TensorDataset(inputs), batch_size=2), False),
        (DataLoader(inputs, batch_size=2), False),
    ]
    for loader, has_classes in loaders:
        found = measure(network, loader, TURN, finite=False, layers=False)
        assert found.record["on"] == ("probabilities" if has_classes else "outputs")
        assert (found.entries[0]["accuracy"] is not None) == has_classes
        assert error_of(network, loader, on="outputs") == pytest.approx(logits)
    empty = DataLoader(TensorDataset(inputs[:0]), batch_size=2)
    with pytest.raises(CallerError, match="with one or more batches, got none"):
        error_of(network, empty)


def test_models_in_double_precision() -> None:
    single, _ = built("convolutional", torch.float32)
    double, _ = built("convolutional", torch.float64)
    double.load_state_dict(single.state_dict())
    inputs, _ = labelled(4)
    assert error_of(double, inputs) == pytest.approx(error_of(single, inputs), rel=1e-4)
    assert measure(double, inputs, TURN).actions[0]["attribution"]["closure"] < 1e-12


def test_regression() -> None:
    network = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(200, 2))
    inputs, _ = labelled(4)
    found = measure(network, (inputs, torch.randn(4, 2)), TURN)
    assert found.record["on"] == "outputs" and found.entries[0]["accuracy"] is None
    assert found.actions[0]["finite"]["inconsistency"] is None
    assert all(each["inconsistency"] is None for each in found.entries[0]["exact"])
    unlabelled = measure(network, inputs, TURN)
    assert unlabelled.actions[0]["finite"]["inconsistency"] is not None, "they may be classes"


def test_keyword_inputs_and_selected_outputs() -> None:
    torch.manual_seed(0)
    network = SeveralInputs()
    inputs = {"vector": torch.randn(4, 2), "image": torch.randn(4, 3, 8, 8)}
    found = measure(network, inputs, [TURN, flip("horizontal")], moves="image", select="scores")
    names = [layer["name"] for layer in found.actions[0]["layers"]]
    assert "conv" in names and "beside" not in names, "what does not move is not judged"
    assert [each["name"] for each in found.entries[0]["exact"]][-1] == "horizontal_flip"
    maps = measure(
        network, inputs, TURN, moves="image", select=lambda out: out["both"][0], finite=False
    )
    assert maps.entries[0]["output"] == "image"
    with pytest.raises(CallerError, match="expected a dictionary of tensors for moves='image'"):
        measure(network, inputs["image"], TURN, moves="image")
    alone = measure(network, inputs, TURN, moves="image", finite=False)
    assert alone.entries[0]["output"] != "image", "the only entry that is a tensor"
    with pytest.raises(CallerError, match="equally many examples, got 3, 4"):
        measure(network, {**inputs, "vector": torch.randn(3, 2)}, TURN, moves="image")


def test_points_sequences_and_representations() -> None:
    torch.manual_seed(0)
    clouds = nn.Sequential(nn.Flatten(), nn.Linear(15, 4), nn.Tanh(), nn.Linear(4, 2))
    found = measure(clouds, torch.randn(4, 5, 3))
    assert [each["name"] for each in found.actions][:3] == [f"rotation_{axis}" for axis in "xyz"]
    assert "layouts=" in found.actions[0]["remark"] and found.record["interpolation"] is None
    network, data = built("sequence", torch.float32)
    found = measure(network, data)
    assert [each["name"] for each in found.actions] == ["shift", "stretch", "amplitude"]
    assert found.actions[0]["layers"]
    turn = linear_action({"turn": [[0.0, -1.0], [1.0, 0.0]]})
    scale = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        scale.weight.copy_(torch.tensor([[0.5, -2.0], [2.0, 0.5]]))
    found = measure(scale, torch.randn(4, 2), turn, outputs=turn)
    assert found.actions[0]["error"] < 1e-12 and found.entries[0]["output"] == "moved by turn"


def test_actions_by_name() -> None:
    named = measured_actions((3, 8, 8), ("rotation", "horizontal_flip"), interpolation="fourier")
    assert {type(each).__name__ for each in named} == {"AffineAction", "MapAction"}
    spatial = next(each for each in named if isinstance(each, type(TURN)))
    assert spatial.interpolation == "fourier" and spatial.padding == "reflection"
    assert len(measured_actions((2, 30))) > 0
    scale, sign = measured_actions((7,))
    assert scale.names == ("scale",) and sign.names == ("sign_change",)
    with pytest.raises(CallerError, match="give actions="):
        measured_actions((1, 7, 7, 7))


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model, data, how, sentence",
    [
        ({}, torch.zeros(2, 3, 8, 8), {}, "one or more networks, got none"),
        (nn.Conv2d(3, 1, 1), {}, {}, "one or more data sets, got none"),
        (nn.Conv2d(3, 1, 1), torch.zeros(2, 3, 8, 8), {"examples": 0}, "examples: expected at"),
        (nn.Conv2d(3, 1, 1), torch.zeros(0, 3, 8, 8), {}, "equally many examples, got 0"),
        (nn.BatchNorm2d(3), torch.zeros(2, 3, 8, 8), {}, "model.eval()"),
        (nn.Conv2d(3, 1, 1), torch.zeros(2, 3, 8, 8, dtype=torch.uint8), {}, "x.float"),
        (nn.Flatten(2), torch.rand(2, 3, 8, 7), {}, "outputs="),
        (nn.Conv2d(3, 1, 1), torch.rand(2, 3, 8, 8), {"outputs": points(2)}, "coordinates, as the"),
        (nn.ReLU(inplace=True), torch.rand(2, 3, 8, 8), {}, "changes its own input in place"),
    ],
)
def test_refused(model: Any, data: Any, how: Any, sentence: str) -> None:
    with pytest.raises(CallerError, match=sentence):
        measure(model, data, TURN, **how)


# --- nothing is left behind -----------------------------------------------------------------------


class Fails(nn.Module):
    """Raises at its `at`-th call."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.calls = at, [0]

    def forward(self, x: Tensor) -> Tensor:
        self.calls[0] += 1
        if self.calls[0] == self.at:
            raise ZeroDivisionError("on purpose")
        return x * 1


def traces(network: nn.Module) -> Any:
    modules = {
        name: (sorted(module.__dict__), module.training, len(module._forward_hooks))
        for name, module in network.named_modules()
    }
    parameters = {
        name: (each.requires_grad, each.grad, each._version, id(each))
        for name, each in network.named_parameters()
    }
    return modules, parameters


@pytest.mark.parametrize("method", ["forward", "backward", "probes"])
@pytest.mark.parametrize("fails_at", [None, 1, 2, 3, 4, 5])
def test_nothing_is_left_behind(method: str, fails_at: int | None) -> None:
    inner, data = built("resnet", torch.float32, batch=2)
    inner.stem.weight.requires_grad_(False)
    inner.stem.train()
    network = nn.Sequential(inner, Fails(fails_at or 0))
    state = {name: each.clone() for name, each in network.state_dict().items()}
    before, drawn, kept = traces(network), torch.get_rng_state(), data.clone()
    fast, grad = torch.backends.mha.get_fastpath_enabled(), torch.is_grad_enabled()

    def run() -> None:
        measure(network, data, TURN, attribution=method, probes=2)

    if fails_at is None:
        run()
    else:
        with pytest.raises(ZeroDivisionError):
            run()
    assert traces(network) == before
    assert all(torch.equal(each, state[name]) for name, each in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn) and torch.equal(data, kept)
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert torch.is_grad_enabled() == grad
    assert network(data).requires_grad, "the network can be trained as before"


def test_a_compiled_network_is_looked_into() -> None:
    """torch.compile wraps a module and calls it _orig_mod; that one is measured."""

    class Compiled(nn.Module):
        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self._orig_mod = network

        def forward(self, x: Tensor) -> Tensor:
            raise AssertionError("what is compiled is not called")

    network, _ = built("convolutional", torch.float32)
    plain = measure(network, labelled(3), TURN, finite=False)
    wrapped = measure(Compiled(network), labelled(3), TURN, finite=False)
    assert wrapped.actions == plain.actions


@pytest.mark.parametrize("inside", [False, True])
def test_a_scripted_network_is_one_operation(inside: bool) -> None:
    network, _ = built("convolutional", torch.float32)
    inputs, _ = labelled(3)
    traced = torch.jit.trace(network, inputs)
    head = [nn.Linear(5, 2)] if inside else []
    plain, scripted = (nn.Sequential(each, *head) for each in (network, traced))
    model = scripted if inside else traced
    before = [sorted(module.__dict__) for module in model.modules()]
    expected, found = (measure(each, inputs, TURN, finite=False) for each in (plain, model))
    assert found.actions[0]["error"] == pytest.approx(expected.actions[0]["error"], rel=1e-4)
    names = [layer["name"] for layer in found.actions[0]["layers"]]
    assert names == (["0", "1"] if inside else ["network"])
    assert found.actions[0]["layers"][0]["share"] == pytest.approx(1, abs=1e-4)
    assert before == [sorted(module.__dict__) for module in model.modules()]


def test_progress_is_told() -> None:
    network, _ = built("convolutional", torch.float32)
    told: list[tuple[str, int, int]] = []
    measure(
        {"one": network, "two": network},
        labelled(4),
        TURN,
        batch_size=2,
        progress=lambda *each: told.append(each),
    )
    assert ("one: rotation", 2, 4) in told and ("two: rotation", 4, 4) in told
    assert ("one: exact elements", 0, 1) in told


def test_default_actions_under_which_an_image_cannot_be_known_to_move_are_left_out() -> None:
    network = nn.Conv2d(1, 2, 3, padding=1).eval()
    found = measure(network, torch.rand(3, 1, 8, 8), finite=False, layers=False)
    assert "amplitude" not in [row["name"] for row in found.actions]
    assert "rotation" in [row["name"] for row in found.actions]
    (remark,) = found.entries[0]["remarks"]
    assert remark.startswith("amplitude left out") and 'outputs="invariant"' in remark


def test_a_small_batch_gives_the_same_finite_errors() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3)).eval()
    images = torch.rand(5, 1, 8, 8)
    whole, parts = (
        measure(network, images, affine(("rotation",)), layers=False, batch_size=size)
        for size in (5, 2)
    )
    for key in ("error", "resampling_floor", "inconsistency"):
        expected = whole.actions[0]["finite"][key]
        assert parts.actions[0]["finite"][key] == pytest.approx(expected, rel=1e-5)
    assert parts.entries[0]["exact"][0]["error"] == pytest.approx(
        whole.entries[0]["exact"][0]["error"], rel=1e-5
    )


def test_a_network_with_classes_of_its_own_has_no_accuracy() -> None:
    images, labels = torch.rand(6, 1, 8, 8), torch.tensor([0, 1, 2] * 2)
    for outputs, known in ((3, True), (7, False)):
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, outputs)).eval()
        found = measure(network, (images, labels), affine(("rotation",)), finite=False)
        assert (found.entries[0]["accuracy"] is not None) is known
