"""Layer-wise equivariance: rows and published numbers, one row in miniature, and what is said."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch

from isotropy.checks import CallerError
from isotropy.data.labelled import Split
from isotropy.data.readers import digits
from isotropy.evidence.layers.settings import RelaxConfig
from isotropy.experiments import layer_equivariance
from isotropy.experiments.runner import Job, read_table
from isotropy.networks.pathways.relaxed_layer import PATHWAYS
from isotropy.symmetry.groups.point_groups import PointGroup

CPU = torch.device("cpu")

# Van der Ouderaa, Immer and van der Wilk (2023): test accuracy in per cent under MAP and Laplace.
# Of Table 1 the fully connected network and of Table 2 the rows of 134 million are not ours.
PUBLISHED_ACCURACY: dict[str, tuple[float | None, float | None]] = {
    "toy/digit/conv": (99.38, 99.23),
    "toy/digit/ffc+conv": (None, 98.86),
    "toy/digit-quadrant/conv": (24.68, 24.50),
    "toy/digit-quadrant/ffc+conv": (None, 99.00),
    "cifar10/original/conv": (82.81, 84.07),
    "cifar10/original/ffc": (50.47, 53.38),
    "cifar10/original/ffc+conv": (81.61, 83.92),
    "cifar10/original/sfc": (50.21, 46.18),
    "cifar10/original/sconv": (82.53, 81.29),
    "cifar10/original/sfc+sconv": (58.80, 81.55),
    "lengthscales/original/sfc": (49.69, 52.22),
    "lengthscales/original/sconv": (81.84, 81.20),
    "lengthscales/original/sfc+sconv": (77.97, 80.63),
    "groups-mnist/original/ffc+conv+gconv": (97.59, 99.21),
    "groups-mnist/translated/ffc+conv+gconv": (90.78, 98.27),
    "groups-mnist/rotated/ffc+conv+gconv": (91.02, 95.55),
    "groups-cifar10/original/ffc+conv+gconv": (68.33, 80.94),
    "groups-cifar10/rotated/ffc+conv+gconv": (48.30, 55.68),
}
PUBLISHED_NLL = {
    "cifar10/original/conv": (1.184, 0.464),
    "cifar10/original/ffc": (4.291, 1.307),
    "cifar10/original/ffc+conv": (1.343, 0.468),
    "cifar10/original/sfc": (5.614, 1.496),
    "cifar10/original/sconv": (0.604, 0.562),
    "cifar10/original/sfc+sconv": (5.485, 0.538),
    "lengthscales/original/sfc": (7.783, 1.319),
    "lengthscales/original/sconv": (0.913, 0.549),
    "lengthscales/original/sfc+sconv": (2.040, 0.564),
}
PUBLISHED_FORMS = {
    "gconv-full": 73.70, "gconv-separable": 61.31, "gconv-depthwise": 51.63, "gconv": 66.77,
    "conv": 57.89,
}  # fmt: skip
"""Table 7, with as many channels each."""


def jobs_of(*, quick: bool = False) -> dict[str, Job]:
    found = layer_equivariance.jobs(read_table("layer-equivariance"), quick)
    by_row = {job.row: job for job in found}
    assert len(by_row) == len(found), "a row is there twice"
    return by_row


# -- jobs --------------------------------------------------------------------------------------


def test_every_row_of_the_paper_is_a_job_with_its_published_numbers() -> None:
    found = jobs_of()
    for published, key in ((PUBLISHED_ACCURACY, "accuracy"), (PUBLISHED_NLL, "nll")):
        for row, values in published.items():
            for objective, value in zip(("map", "laplace"), values, strict=True):
                job = found[f"{row}/{objective}"]
                assert job.settings["published"][key] == value, job.row
                assert job.settings["objective"] == objective
    for form, value in PUBLISHED_FORMS.items():
        job = found[f"group-forms/rotated/{form}/map"]
        assert job.settings["published"]["accuracy"] == value
    shares = {
        row: job.settings["published"]["gconv"]
        for row, job in found.items()
        if row.startswith("groups-") and row.endswith("laplace")
    }
    assert sorted(shares.values()) == [56, 75, 77, 82, 83]


def test_published_numbers_belong_to_a_row() -> None:
    """None is lost by a misspelt row."""
    table, found = read_table("layer-equivariance"), jobs_of()
    for name, own in table["tables"].items():
        for by_row in own.get("published", {}).values():
            for row in by_row:
                assert f"{name}/{row}" in found


def test_rows_can_be_run_as_they_are_written() -> None:
    for quick in (False, True):
        for row, job in jobs_of(quick=quick).items():
            own = job.settings
            pathways = own["pathways"].split("+")
            assert set(pathways) <= set(PATHWAYS), row
            assert own["data"] in ("MNIST", "CIFAR10", "digits")
            given = {key: own[key] for key in layer_equivariance.OWN if key in own}
            settings = RelaxConfig(**given).resolved(examples=1000, on_gpu=False)
            assert (settings.objective, settings.epochs) == (own["objective"], own["epochs"])
            has_group = any(each.startswith("gconv") for each in pathways)
            assert not has_group or PointGroup.of(own["group"]).order == 4
            assert row == "/".join(own[k] for k in ("table", "problem", "pathways", "objective"))
            assert job.cost > 0 and job.seeds


def test_what_is_compared_has_three_seeds_and_comes_first() -> None:
    found = jobs_of()
    first = {row for row, job in found.items() if job.rank == 0}
    assert first == {
        f"{problem}/{pathways}/{objective}"
        for problem in ("toy/digit-quadrant", "cifar10/original")
        for pathways in ("conv", "ffc+conv")
        for objective in ("map", "laplace")
    }
    for row, job in found.items():
        assert job.seeds == ((0, 1, 2) if row in first else (0,)), row
    assert {len(job.seeds) for job in jobs_of(quick=True).values()} == {1}
    assert set(read_table("layer-equivariance")["repeated"]["rows"]) == {
        row.rpartition("/")[0] for row in first
    }


def test_no_row_is_tuned() -> None:
    """But for the objective and images that are augmented, all rows have one configuration."""
    free = {"objective", "augmentation", "curvature_batch"}  # the last is memory alone
    tuned = {
        tuple((key, job.settings[key]) for key in layer_equivariance.OWN if key in job.settings
              and key not in free)
        for job in jobs_of().values()
    }  # fmt: skip
    assert tuned == {(("epochs", 12), ("batch_size", 256), ("update_every", 1))}


def test_quick_shows_the_ordering_on_the_digits_of_the_package() -> None:
    found = jobs_of(quick=True)
    wanted = {
        f"toy/{problem}/{pathways}/laplace"
        for problem in ("digit", "digit-quadrant")
        for pathways in ("conv", "ffc+conv")
    }
    assert wanted <= set(found)
    for job in found.values():
        assert job.settings["data"] == "digits"
        assert job.settings["width"] < read_table("layer-equivariance")["settings"]["width"]


# -- runs --------------------------------------------------------------------------------------


@pytest.fixture
def few_digits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Twenty of the digits in place of all."""
    every = digits()
    assert every.test is not None
    few = Split(every.train.subset(20, 0), every.test.subset(10, 0))
    monkeypatch.setattr(layer_equivariance, "digits", lambda: few)
    layer_equivariance._data.cache_clear()
    yield
    layer_equivariance._data.cache_clear()


SMALL = {"data": "digits", "width": 1, "epochs": 1, "batch_size": 10, "curvature": "kfac-mc"}


@pytest.mark.parametrize(
    ("row", "seeds"),
    [
        ("toy/digit-quadrant/ffc+conv/laplace", (3,)),
        ("lengthscales/original/sconv/map", (0, 1)),
        ("group-forms/rotated/gconv/map", (0,)),
    ],
)
def test_a_row_in_miniature(row: str, seeds: tuple[int, ...], few_digits: None) -> None:
    job = jobs_of()[row]
    small = Job(row, seeds, {**job.settings, **SMALL})
    found = json.loads(json.dumps(layer_equivariance.run(small, CPU), allow_nan=False))
    assert len({record["train_loss"] for record in found}) == len(seeds)
    for seed, record in zip(seeds, found, strict=True):
        assert record["config"]["seed"] == seed
        assert (record["train_examples"], record["test_examples"]) == (20, 10)
        assert (record["table"], record["problem"]) == tuple(row.split("/")[:2])
        assert record["published"] == job.settings["published"]
        assert record["history"][-1]["test_accuracy"] == record["test_accuracy"]
        assert set(record["layers"][0]["effective"]) == set(record["pathways"].split("+"))
        assert (record["group"] == "C(4)") == ("gconv" in row)
        assert (record["hardened"] is not None) == bool(job.settings.get("harden"))
    learns = [name for name in found[0]["layers"][0]["precisions"] if "lengthscale" in name]
    assert bool(learns) == row.startswith("lengthscales")
    records = [{"row": row, "seed": seed, **each} for seed, each in enumerate(found)]
    assert len(layer_equivariance.summary(records)) >= len(seeds)


def test_data_that_is_elsewhere_has_to_be_said_where() -> None:
    job = jobs_of()["cifar10/original/conv/map"]
    with pytest.raises(CallerError, match="where CIFAR10 is; use --data CIFAR10=FOLDER"):
        layer_equivariance.run(job, CPU)
