"""The symmetry of trained networks in miniature: rows, a measured row, what the records show."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from measuring_records import measured_record

from isotropy.checks import CallerError
from isotropy.data.variants import LAWS
from isotropy.evidence.settings import LearnConfig
from isotropy.experiments.runner import Job, read_table
from isotropy.experiments.thesis import measured_networks
from isotropy.networks.zoo.specification import parse_network
from isotropy.workflows.measuring import THESIS_TRANSFORMATIONS, measure, measured_actions

TABLE = read_table("measured-networks")
CPU = torch.device("cpu")


def test_networks_differ_in_what_their_names_say() -> None:
    jobs = {job.row: job for job in measured_networks.jobs(TABLE, quick=False)}
    methods = {"mlp", "convnet", "convnet-blur", "convnet-wide", "convnet-augmented",
               "convnet-untrained", "vit", "vit-augmented", "mixer"}  # fmt: skip
    problems = {"cifar10": "CIFAR-10", "fashion-mnist": "FashionMNIST"}
    assert set(jobs) == {f"{problem}/{method}" for problem in problems for method in methods}
    assert tuple(TABLE["generators"]) == THESIS_TRANSFORMATIONS
    configs = []
    for row, job in jobs.items():
        own = job.settings
        assert job.seeds == (0, 1, 2) and own["data"] == problems[own["problem"]]
        config = LearnConfig(**own["config"])
        config.check()
        assert config.ranges is not None
        amounts = config.ranges.values()
        assert all(amounts) if row.endswith("augmented") else not any(amounts), row
        configs.append({key: value for key, value in own["config"].items() if key != "ranges"})
        assert own["trained"] == (not row.endswith("untrained"))
        parse_network(own["model"])
    assert all(config == configs[0] for config in configs)


@pytest.mark.parametrize("problem", TABLE["problems"])
def test_data_from_elsewhere_are_another_variant_and_other_sets(problem: str) -> None:
    about = TABLE["problems"][problem]
    sets = [name for name in about["elsewhere"] if name not in LAWS]
    assert "rotated" in about["elsewhere"] and len(sets) == 2 and about["data"] not in sets


def tiny(network: str, **settings: Any) -> Job:
    jobs = {job.row: job for job in measured_networks.jobs(TABLE, quick=True)}
    job = jobs[f"digits/{network}"]
    config = {**job.settings["config"], "epochs": 1, "batch_size": 500}
    own = {**job.settings, "examples": 3, "generators": ["translation_x", "rotation"],
           "config": config, "elsewhere": ["rotated", "digits"], **settings}  # fmt: skip
    return Job(job.row, (3,), own)


def test_a_row_has_every_number_of_every_data_set() -> None:
    (record,) = measured_networks.run(tiny("mlp", model="mlp:4"), CPU)
    assert list(record["data_sets"]) == ["train", "test", "rotated", "digits"]
    for name, found in record["data_sets"].items():
        assert set(found["errors"]) == {"translation_x", "rotation"}
        assert all(each["error"] > 0 and each["finite"] > 0 for each in found["errors"].values())
        assert found["eq_t"] > 0 and found["eq_t_frac"] > 0
        assert set(found["exact"]) == {"quarter turns", "whole-pixel shifts"}
        # Labels of another set mean nothing here.
        assert (found["accuracy"] is None) == (name == "digits")
    # The same images, drawn from a thousand in another order: alike and not equal.
    test, other = (record["data_sets"][name]["errors"]["rotation"] for name in ("test", "digits"))
    assert test != other
    assert set(record["layers"]) == {"translation_x", "rotation"}
    for layers in record["layers"].values():
        assert sum(layer["share"] for layer in layers) == pytest.approx(1, abs=1e-3)
    assert record["epochs"] == 1 and record["parameters"] == 785 * 4 + 50


def test_the_untrained_network_has_the_weights_that_others_start_from() -> None:
    job = tiny("convnet-untrained", model="convnet:2", elsewhere=[])
    (record,) = measured_networks.run(job, CPU)
    split = measured_networks.data_named(job.settings, "digits")
    network = measured_networks.seeded("convnet:2", split, 3).eval()
    start = measure(network, split, measured_actions((1, 28, 28), ["rotation"]), layers=False,
                    finite=False, examples=3, seed=3)  # fmt: skip
    found = record["data_sets"]["test"]["errors"]["rotation"]["error"]
    assert found == pytest.approx(start.actions[0]["error"], rel=1e-5)
    assert record["epochs"] == 0 and record["training_seconds"] is None


def test_data_that_are_not_named_are_asked_for() -> None:
    with pytest.raises(CallerError, match="--data MNIST=FOLDER"):
        measured_networks.run(tiny("mlp", data="MNIST"), CPU)


# -- what the records show -----------------------------------------------------------------------


def told(records: list[dict[str, Any]]) -> dict[str, bool]:
    found = measured_networks.goals(records)
    return {what.partition(": ")[2].partition(" (")[0]: holds for what, holds in found.items()}


RECORDS = [
    measured_record("convnet", 1.0, 0.9),
    measured_record("convnet-blur", 0.5, 0.92),
    measured_record("mlp", 3.0, 0.5),
    measured_record("vit", 4.0, 0.6),
    measured_record("vit-augmented", 1.5, 0.8),
    measured_record("convnet-untrained", 1e-3, 0.1),
]


def test_what_the_chapter_finds_is_told_of_trained_networks() -> None:
    goals = told(RECORDS)
    assert all(goals.values()) and len(goals) == 9
    assert any("5 of 5 networks" in what for what in measured_networks.goals(RECORDS))


def test_what_does_not_hold_is_told() -> None:
    changed = copy.deepcopy(RECORDS)
    changed[1]["data_sets"]["test"]["errors"]["translation_x"]["error"] = 1.1
    for layer in changed[3]["layers"]["translation_x"]:
        layer["share"] = 0.5
    for each in changed:
        each["data_sets"]["MNIST"] = each["data_sets"]["train"]
    changed[0]["layers"]["rotation"][0]["norm"] = 0.1
    goals = told(changed)
    failed = {what for what, holds in goals.items() if not holds}
    assert failed == {
        "blur-pooling lowers the translation error",
        "transformers and mixers: patches cause 80% or more",
        "the translation error is larger on MNIST than on test data",
        "norms of layers under translation and rotation correlate at 0.8 or more",
    }
    assert any(line.startswith("  MISSED") for line in measured_networks.summary(changed))


def test_one_seed_has_no_deviation() -> None:
    assert measured_networks.mean_and_deviation([2.0]) == (2.0, None)
    assert measured_networks.mean_and_deviation([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))
    assert measured_networks.goals([]) == {}
