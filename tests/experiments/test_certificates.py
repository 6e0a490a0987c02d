"""The series of certificates: its rows, changes of the data, the printed account, one small row."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from learn_runs import SIZE, bar_tensors

from isotropy.bounds.compressing import Grid
from isotropy.checks import CallerError
from isotropy.data.labelled import LabelledData, Split
from isotropy.experiments.runner import Job, read_table
from isotropy.experiments.thesis import certificates
from isotropy.experiments.thesis.certificates import (
    SERIES,
    changed,
    goals,
    group_normalised,
    thesis_account,
)
from isotropy.networks.zoo.specification import parse_network
from isotropy.workflows.certifying import CertifyConfig, certify

TABLE = read_table("certificates")
CPU = torch.device("cpu")
SMALL = {"dimension": [5, 10], "step": [0.5, 1.0], "beta": [1.0], "seed": [0]}


def bars() -> Split:
    train, test = (LabelledData(*bar_tensors(n, s), None, "bars") for n, s in ((90, 0), (30, 1)))
    return Split(train, test)


def row(**own: Any) -> dict[str, Any]:
    given = {"part": "table", "data": "digits", "model": "mlp:5", "grid": SMALL, "epochs": 2}
    return {**given, **own}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "digits", bars)


def test_every_row_declares_a_grid_and_its_data() -> None:
    jobs = SERIES.jobs(TABLE, False)
    assert len({job.row for job in jobs}) == len(jobs) > 30
    for job in jobs:
        own = job.settings
        assert own["data"] in ("digits", "MNIST", "FashionMNIST", "CIFAR-10"), job.row
        assert set(own["grid"]) <= {*certificates.GRID, "trials"}, job.row
        grid = certificates._settings(own, 3, 1000).grid
        assert grid.choices >= own["grid"].get("trials", 1)
        assert min(grid.seeds) == 3


def test_rows_without_data_are_listed_and_not_run() -> None:
    listed = [
        f"{part}/{name}"
        for part, about in TABLE["parts"].items()
        for name, each in about["rows"].items()
        if each.get("not_run")
    ]
    assert {"table/svhn", "table/cifar-100", "table/imagenet"} <= set(listed)
    assert not {job.row for job in SERIES.jobs(TABLE, False)} & set(listed)


def test_quick_rows_need_no_data_of_the_callers() -> None:
    assert {job.settings["data"] for job in SERIES.jobs(TABLE, True)} == {"digits"}


def test_pixels_are_shuffled_alike_everywhere_and_labels_lose_their_images() -> None:
    split = bars()
    pixels = changed(split, {"shuffle": "pixels"}, 0)
    assert pixels.test is not None and split.test is not None
    before, after = (each.train.inputs.flatten(1) for each in (split, pixels))
    order = [int((after[:, n, None] == before).all(0).nonzero()[0]) for n in range(3)]
    assert torch.equal(pixels.test.inputs.flatten(1)[:, :3], split.test.inputs.flatten(1)[:, order])
    labels = changed(split, {"shuffle": "labels"}, 0)
    assert torch.equal(labels.train.inputs, split.train.inputs)
    assert not torch.equal(labels.train.targets, split.train.targets)
    assert torch.equal(labels.train.targets.sort().values, split.train.targets.sort().values)
    noisy = changed(split, {"label_noise": 0.5}, 0)
    same = (noisy.train.targets == split.train.targets).float().mean()
    assert 0.5 < float(same) < 0.85


def test_the_printed_account_is_longer() -> None:
    grid = Grid((10,), (0.5, 1.0), (1.0,), (0,), (0,))
    config = CertifyConfig(grid=grid, train=grid, epochs=2)
    result = certify("mlp:5", bars(), config=config)
    told = thesis_account(result)
    levels = result.claim.levels().numpy()
    counts = np.unique(levels, return_counts=True)[1]
    shares = counts / len(levels)
    code = math.ceil(-len(levels) * float((shares * np.log2(shares)).sum())) + 2
    length = code + len(counts) * (math.ceil(math.log2(10)) + 16)
    bits = result.record["bits"]
    assert told["thesis_bits"] == pytest.approx(
        length + 2 * math.log2(length) + bits["total"] - bits["weights"]
    )
    assert told["thesis_bits"] > bits["total"]
    assert told["thesis_bound"] >= result.bound


def test_a_row_keeps_its_certificate(small: None) -> None:
    (record,) = SERIES.run(Job("table/digits", (0,), row(published=50, goal=99.9)), CPU)
    assert {"bound", "bits", "bounds", "thesis_bound", "label_bits", "trained"} <= set(record)
    assert record["label_bits"] > record["bits"]["total"]
    goal, line = SERIES.summary([{"row": "table/digits", "seed": 0, **record}])
    assert "published 50" in line
    assert goal.startswith("holds: table/digits: at most 99.9 %")


MUST = {
    "rotations/rotated-plain": 60.0, "rotations/rotated-quarter-turns": 45.0,
    "rotations/rotated-learned": 50.0, "rotations/upright-plain": 25.0,
    "rotations/upright-quarter-turns": 37.0, "structure/cnn-pixels": 70.0,
    "structure/mlp-pixels": 65.0, "structure/cnn-labels": 98.0, "structure/mlp-labels": 97.0,
    "table/mnist": 9.0, "table/mnist-two-cores": 9.0, "transfer/fashion-mnist-to-mnist": 8.0,
}  # fmt: skip


def records_of(**other: float) -> list[dict[str, Any]]:
    bounds = MUST | {name.replace("__", "/").replace("_", "-"): v for name, v in other.items()}
    goal = {"table/mnist": 9.5}
    return [{"row": row, "bound": bound / 100, "goal": goal.get(row)}
            for row, bound in bounds.items()]  # fmt: skip


def test_the_goals_are_about_rows_that_exist() -> None:
    rows = {job.row for job in SERIES.jobs(TABLE, False)}
    named = {row for _, low, high, _ in certificates.COMPARED for row in (low, high)}
    assert named | set(certificates.SHUFFLED_LABELS) | set(MUST) <= rows


def test_goals_hold_where_the_bounds_are_as_they_should_be() -> None:
    assert len(goals(records_of())) == 7 and all(goals(records_of()).values())
    assert goals([]) == {}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"rotations__rotated_quarter_turns": 49.0}, "12 points lower"),
        ({"rotations__upright_quarter_turns": 24.0}, "higher on upright"),
        ({"rotations__rotated_learned": 60.0}, "the learned law"),
        ({"structure__cnn_pixels": 64.0}, "shuffled pixels"),
        ({"structure__mlp_labels": 89.0}, "shuffled labels"),
        ({"transfer__fashion_mnist_to_mnist": 9.1}, "transfer to MNIST"),
        ({"table__mnist": 9.6}, "at most 9.5 %"),
    ],
)
def test_every_goal_can_be_missed(other: dict[str, float], words: str) -> None:
    (missed,) = [what for what, holds in goals(records_of(**other)).items() if not holds]
    assert words in missed


def test_other_rows_start_elsewhere_or_prune(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {"places": {"other": "nowhere"}}
    other = LabelledData(*bar_tensors(90, 5), None, "others")
    monkeypatch.setattr(certificates, "read", lambda *_, **__: Split(other, None))
    (moved,) = SERIES.run(Job("t", (0,), row(transfer="other", **places)), CPU)
    assert moved["kind"] == "transfer"
    (pruned,) = SERIES.run(Job("p", (0,), row(pruned=True)), CPU)
    assert pruned["kind"] == "pruned"
    places_bits = math.log2(math.comb(pruned["num_weights"], pruned["dimension"]))
    assert pruned["bits"]["total"] > places_bits
    with pytest.raises(CallerError, match="needs the data set MNIST"):
        SERIES.run(Job("m", (0,), row(data="MNIST")), CPU)


def test_a_start_that_saw_examples_is_refused(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = replace(bars().train.subset(10, 0), name="others")
    monkeypatch.setattr(certificates, "read", lambda *_, **__: Split(seen, None))
    with pytest.raises(CallerError, match="10 different examples of bars are among the data"):
        SERIES.run(Job("t", (0,), row(transfer="o", places={"o": "nowhere"})), CPU)


def test_the_network_of_cifar_has_no_batch_statistics() -> None:
    network = group_normalised((3, SIZE, SIZE), 10, 4)
    images = torch.rand(6, 3, SIZE, SIZE)
    together = network(images)
    assert torch.allclose(together[:1], network(images[:1]), atol=1e-6)
    assert torch.allclose(network(2 * images), together, atol=1e-2)


def test_a_transferred_start_has_a_last_layer_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.rand(30, 3, 10, 10, generator=torch.Generator().manual_seed(0))
    other = LabelledData(images, torch.arange(30) % 10, None, "other")
    monkeypatch.setattr(certificates, "_data", lambda *_: Split(other, None))
    split = Split(LabelledData(torch.rand(12, 1, 8, 8), torch.arange(12) % 10, None, "own"), None)
    model = parse_network("mlp:4")
    own = {"transfer": "other", "start_epochs": 2}
    start, seen = certificates._transferred(own, model, split, 3, CPU)
    drawn = certificates._drawn(model, seen, 10, 3)
    assert seen.inputs.shape == (30, 1, 8, 8)
    grey = images.mean(1, keepdim=True)
    assert torch.allclose(seen.inputs.mean(), grey.mean(), atol=0.01)
    pairs = zip(start.parameters(), drawn.parameters(), strict=True)
    assert [torch.equal(one, two) for one, two in pairs] == [False, False, True, True]
