"""One run shared by several processes ends with the numbers of one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ranked_jobs
from ranked_jobs import SETTINGS
from ranked_runs import RankedProcesses

from isotropy.kernels.ranks import ALONE, ranks

TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def two() -> Iterator[RankedProcesses]:
    started = RankedProcesses(2)
    yield started
    started.close()


@pytest.fixture(scope="module")
def four() -> Iterator[RankedProcesses]:
    started = RankedProcesses(4)
    yield started
    started.close()


def test_one_process_is_one_rank() -> None:
    assert ranks() == ALONE and ALONE.is_first and not ALONE.are_many
    assert ALONE.told(3) == 3 and ALONE.gathered(4) == [4] and ALONE.by_first(lambda: 5) == 5
    assert all(ALONE.is_mine(index) for index in range(5))
    assert ALONE.in_turn("abc") == ["a", "b", "c"]


def test_collectives(two: RankedProcesses) -> None:
    for rank, found in enumerate(two.run("ranked_jobs:sums")):
        expected = [rank, 2, [3.0, 3.0], [3, 3, 3], [[0.0, 0.0], [0.0, 0.0]], "rank 0", [0, 1], 0,
                    ["0 of 0", "0 of 1", "1 of 0"]]  # fmt: skip
        assert found == expected


def assert_alike(one: dict[str, Any], other: dict[str, Any], tolerance: float) -> None:
    for name, values in one.items():
        assert values.shape == other[name].shape, name
        assert np.abs(values - other[name]).max() <= tolerance * max(1, np.abs(values).max()), name


RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("mlp", {}),
    "convolutions, sgd, one direction": ("cnn", {"optimiser": "sgd", "curvature": "kfac-mc"}),
    "a sample of the data": ("mlp", {"curvature_examples": 9, "ema_decay": 0.5}),
    "one batch for all": ("mlp", {"curvature_batch": 50, "batch_size": 50}),
    "augerino": ("mlp", {"objective": "augerino"}),
    "precisions alone": ("cnn", {"objective": "none"}),
    "a search first": ("mlp", {"search": True}),
}


@pytest.mark.parametrize(("network", "settings"), RUNS.values(), ids=RUNS)
def test_two_ranks_end_with_the_numbers_of_one(
    network: str, settings: dict[str, Any], two: RankedProcesses
) -> None:
    alone = ranked_jobs.learned(network, settings)
    first, second = two.run("ranked_jobs:learned", network, settings)
    assert_alike(alone, first, TOLERANCE)
    assert_alike(first, second, 0.0)  # to the last bit


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"curvature_examples": 9}, id="roots of a sample"),
        pytest.param({}, id="all data", marks=pytest.mark.slow),
        pytest.param({"objective": "map"}, id="without evidence", marks=pytest.mark.slow),
    ],
)
def test_two_ranks_relax_as_one(settings: dict[str, Any], two: RankedProcesses) -> None:
    alone = ranked_jobs.relaxed(settings)
    first, second = two.run("ranked_jobs:relaxed", settings)
    assert_alike(alone, first, TOLERANCE)
    assert_alike(first, second, 0.0)
    assert settings.get("objective") == "map" or np.ptp(alone["precisions"]) > 0.1


@pytest.mark.parametrize("name", ["mlp", "a sample of the data", "one batch for all"])
def test_ranks_read_their_own_shares_of_a_stream(name: str, two: RankedProcesses) -> None:
    network, settings = RUNS[name]
    alone = ranked_jobs.learned(network, settings)
    (first, own), (second, others) = two.run("ranked_jobs:streamed", network, settings)
    assert_alike(alone, first, TOLERANCE)
    assert_alike(first, second, 0.0)
    _, every = ranked_jobs.streamed(network, settings)
    tried = 20  # a few examples, by every rank, to see whether network and data fit
    assert len(every) <= len(own) + len(others) <= len(every) + tried
    weight_steps = SETTINGS["epochs"] * 23
    assert len(own) + len(others) > weight_steps
    if name != "one batch for all":  # whose evidence passes are the first rank's
        assert max(len(own), len(others)) < 0.7 * len(every)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "convolutions, sgd, one direction", "one batch for all"])
def test_four_ranks_end_with_the_numbers_of_one(name: str, four: RankedProcesses) -> None:
    alone = ranked_jobs.learned(*RUNS[name])
    first, *others = four.run("ranked_jobs:learned", *RUNS[name])
    assert_alike(alone, first, TOLERANCE)
    for other in others:
        assert_alike(first, other, 0.0)


def test_a_run_goes_on_with_another_number_of_ranks(tmp_path: Path, two: RankedProcesses) -> None:
    folder = str(tmp_path / "run")
    alone = ranked_jobs.learned("mlp", {})
    two.run("ranked_jobs:interrupted", "mlp", folder, 2)
    resumed = ranked_jobs.learned("mlp", {}, folder, True)
    assert_alike(alone, resumed, TOLERANCE)


@pytest.mark.slow
def test_four_are_cut_off_and_two_go_on(
    tmp_path: Path, two: RankedProcesses, four: RankedProcesses
) -> None:
    folder = str(tmp_path / "run")
    alone = ranked_jobs.learned("mlp", {})
    four.run("ranked_jobs:interrupted", "mlp", folder, 3)
    first, _ = two.run("ranked_jobs:learned", "mlp", {}, folder, True)
    assert_alike(alone, first, TOLERANCE)


def test_the_first_rank_writes(tmp_path: Path, two: RankedProcesses) -> None:
    folder = str(tmp_path / "run")
    two.run("ranked_jobs:learned", "mlp", {}, folder)
    assert {"config.json", "result.json", "report.html"} <= set(ranked_jobs.files(folder))


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("data", "rank 1 has another data than rank 0"),
        ("bound", "expected a run with the Laplace evidence"),
    ],
)
def test_what_ranks_cannot_share_is_refused(what: str, sentence: str, two: RankedProcesses) -> None:
    assert all(sentence in told for told in two.run("ranked_jobs:different", what))
