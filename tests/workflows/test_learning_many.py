"""Several runs in one call: the results of `isotropy.learn`, run folders, resuming, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from learn_runs import CONFIG, bar_tensors, run_here, small_network
from torch import nn

import isotropy
from isotropy.checkpoint import CHECKPOINT, read_lines
from isotropy.checks import CallerError
from isotropy.evidence.schedule import LearnConfig
from isotropy.evidence.stacked import StackedTrainer
from isotropy.evidence.training import EpochRecord
from isotropy.workflows.learning_many import run_folders

SEEDS = (1, 4)


def configs(**settings: object) -> list[LearnConfig]:
    return [replace(CONFIG, seed=seed, **settings) for seed in SEEDS]  # type: ignore[arg-type]


def seeded(config: LearnConfig) -> nn.Module:
    return small_network(seed=config.seed).double()


def check_equal(got: isotropy.LearnResult, expected: isotropy.LearnResult) -> None:
    assert got.log_evidence == pytest.approx(expected.log_evidence, rel=1e-8)
    assert got.record["data"] == expected.record["data"]
    for own, other in zip(got.symmetries, expected.symmetries, strict=True):
        assert own.high == pytest.approx(other.high, rel=1e-7)
    state = expected.model.state_dict()
    for name, tensor in got.model.state_dict().items():
        torch.testing.assert_close(tensor, state[name], rtol=1e-8, atol=1e-8)
    assert len(got.history) == len(expected.history)
    assert got.test_accuracy == expected.test_accuracy


def test_results_are_those_of_learn(tmp_path: Path) -> None:
    data, test = bar_tensors(), bar_tensors(20, seed=1)
    told: list[tuple[int, int]] = []
    results = isotropy.learn_many(
        seeded,
        data,
        test,
        configs=configs(),
        folder=tmp_path,
        progress=lambda run, now: told.append((run, now.row.epoch)),
    )
    assert told[:3] == [(0, 1), (1, 1), (0, 2)] and len(told) == 2 * 4
    for config, result in zip(configs(), results, strict=True):
        check_equal(result, isotropy.learn(seeded(config), data, test, config=config))
        folder = tmp_path / f"seed{config.seed}"
        assert result.record["run_folder"] == str(folder)
        record = json.loads((folder / "result.json").read_text())
        assert record["seed"] == config.seed and (folder / "report.html").exists()
        assert len(read_lines(folder / "metrics.jsonl")) == 4
    assert results[0].log_evidence != results[1].log_evidence


def test_each_folder_is_a_run_that_learn_resumes(tmp_path: Path) -> None:
    data = bar_tensors()
    (result, _) = isotropy.learn_many(seeded, data, configs=configs(), folder=tmp_path)
    again = isotropy.learn(
        seeded(configs()[0]), data, config=configs()[0], folder=tmp_path / "seed1", resume=True
    )
    check_equal(again, result)
    with pytest.raises(CallerError, match="already holds a run"):
        isotropy.learn_many(seeded, data, configs=configs(), folder=tmp_path)


def test_an_interrupted_stack_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after two epochs, between the saving of one run and the other's."""
    data = bar_tensors()
    whole = isotropy.learn_many(seeded, data, configs=configs())
    monkeypatch.setattr("isotropy.workflows.learning.CHECKPOINT_SECONDS", 0.0)
    plain = StackedTrainer.run_epoch

    def stops(self: StackedTrainer, tests: object = None) -> list[EpochRecord]:
        if self.epoch == 2:
            raise KeyboardInterrupt
        return plain(self, tests)  # type: ignore[arg-type]

    monkeypatch.setattr(StackedTrainer, "run_epoch", stops)
    with pytest.raises(KeyboardInterrupt):
        isotropy.learn_many(seeded, data, configs=configs(), folder=tmp_path)
    monkeypatch.setattr(StackedTrainer, "run_epoch", plain)
    # One of the two is an epoch ahead, as if it alone had been saved.
    first = configs()[0]
    ahead = tmp_path / "seed1"
    before = (tmp_path / "seed4" / CHECKPOINT).read_bytes()

    def one_more(progress: isotropy.LearnProgress) -> None:
        if progress.row.epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        isotropy.learn(
            seeded(first), data, config=first, folder=ahead, resume=True,
            progress=one_more,
        )  # fmt: skip
    assert len(read_lines(ahead / "metrics.jsonl")) == 3
    assert (tmp_path / "seed4" / CHECKPOINT).read_bytes() == before
    resumed = isotropy.learn_many(seeded, data, configs=configs(), folder=tmp_path, resume=True)
    for got, expected in zip(resumed, whole, strict=True):
        check_equal(got, expected)


def test_one_network_for_all_runs_and_data_by_config() -> None:
    network = small_network().double()
    results = isotropy.learn_many(
        network, lambda config: bar_tensors(seed=config.seed), configs=configs(epochs=2)
    )
    for config, result in zip(configs(epochs=2), results, strict=True):
        check_equal(result, isotropy.learn(network, bar_tensors(seed=config.seed), config=config))


def test_refusals_write_nothing(tmp_path: Path) -> None:
    unlike = [configs()[0], replace(configs()[1], samples=3)]
    with pytest.raises(CallerError, match="expected the same samples in all of them, got 2 and 3"):
        isotropy.learn_many(seeded, bar_tensors(), configs=unlike, folder=tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(CallerError, match="at least one config"):
        isotropy.learn_many(seeded, bar_tensors(), configs=[])


def test_folders_are_named_by_seed_or_by_number() -> None:
    assert run_folders("a", configs()) == [Path("a/seed1"), Path("a/seed4")]
    assert run_folders("a", [CONFIG, CONFIG]) == [Path("a/run0"), Path("a/run1")]
    assert run_folders(None, configs()) == [None, None]


# --- the command line -----------------------------------------------------------------------------

TINY = ("--epochs", "2", "--samples", "2", "--subset", "40", "--model", "mlp:5", "--device", "cpu",
        "--verdicts", "0", "--no-search", "--quiet")  # fmt: skip


def test_the_command_gives_what_learn_gives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "many"
    words = ("learn-many", "--seeds", "0,3", "--json", *TINY, "--out", out)
    found = run_here(capsys, *words).record["results"]
    assert [record["seed"] for record in found] == [0, 3]
    alone = run_here(
        capsys, "learn", "--seed", "3", "--json", *TINY, "--out", tmp_path / "alone"
    ).record
    # single precision: a few hundred roundings in two epochs
    assert found[1]["log_evidence"] == pytest.approx(alone["log_evidence"], rel=1e-4)
    assert found[1]["test_accuracy"] == pytest.approx(alone["test_accuracy"], abs=0.005)
    assert {**found[1], **alone}.keys() == alone.keys()
    resumed = run_here(capsys, "learn", "--resume", out / "seed3", "--json", "--quiet").record
    assert resumed["log_evidence"] == pytest.approx(found[1]["log_evidence"], rel=1e-6)


def test_seeds_are_different_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("1,1", "a", "-1", ""):
        ended = run_here(capsys, "learn-many", "--seeds", text)
        assert ended.status == 2 and "expected different numbers" in ended.stderr
