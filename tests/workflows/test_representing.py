"""`represent`: what it learns and measures, run folders, and the scikit-learn transformer."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import base, decomposition, pipeline
from sklearn.exceptions import NotFittedError
from sklearn.utils import estimator_checks
from torch import Tensor

import isotropy
from isotropy.checks import CallerError
from isotropy.data.labelled import Split
from isotropy.data.pairs import distorted_triples, distorted_vectors
from isotropy.workflows.representing import (
    RepresentConfig,
    RepresentResult,
    area_under_curve,
    neighbours_alike,
    represent,
    retrieval,
)

QUICK = RepresentConfig(steps=210, batch_size=32)


def shifts(entities: int = 200, held_out: int = 40, seed: int = 0) -> Split:
    return distorted_vectors("shift", 6, seed, entities=entities, held_out=held_out, copies=4)


def arrays(entities: int = 60) -> tuple[np.ndarray, np.ndarray]:
    train = shifts(entities).train
    return train.inputs.numpy(), train.targets.numpy()


@pytest.fixture(scope="module")
def learned() -> RepresentResult:
    return represent(shifts(), config=QUICK)


# --- measures ---------------------------------------------------------------------------------


def test_it_finds_entities_that_the_data_do_not(learned: RepresentResult) -> None:
    record = learned.record
    assert record["retrieval"] > max(0.5, 3 * record["retrieval_raw"])
    assert record["within_over_between"] < 0.15 and record["auc"] > 0.95
    assert record["held_out_entities"] == 40
    size = learned.split.train.inputs.shape[1]
    shifts = [[(place + by) % size for place in range(size)] for by in range(size)]
    assert sorted(record["permutations"]) == sorted(shifts)
    assert record["permutation_changes"]["found"] < record["permutation_changes"]["random"]
    rows = [row["train_loss"] for row in record["epochs"]]
    assert len(rows) == 3 and rows[-1] < 0.5 * rows[0]
    assert learned.sentences[0].startswith("The code finds")


def by_hand(model: Any, split: Split) -> dict[str, float]:
    """The measures by loops over entities, in numpy."""
    assert split.test is not None
    x, entities = split.test.inputs, split.test.targets.numpy()
    pairs = np.array([np.flatnonzero(entities == entity)[:2] for entity in range(40)])
    standard = (x - model.mean) / model.deviation
    with torch.no_grad():
        z = model.encoder(standard)
        rebuilt = model.decoder(z)
        codes = z[:, : model.invariant].double().numpy()
        reversed_codes = model.encoder(standard.flip(1))[:, : model.invariant].double().numpy()
    within = [np.linalg.norm(codes[a] - codes[b]) for a, b in pairs]
    between = [
        np.linalg.norm(codes[pairs[i, 0]] - codes[pairs[j, 1]])
        for i in range(40) for j in range(40) if i != j
    ]  # fmt: skip
    found = [
        np.argmin([np.linalg.norm(codes[pairs[i, 0]] - codes[b]) for b in pairs[:, 1]]) == i
        for i in range(40)
    ]
    close = lambda d: 1 / (1 + np.square(d) / model.invariant)  # noqa: E731
    loss = np.mean((1 - close(within)) ** 2) + np.mean(close(between) ** 2)
    first = pairs[:, 0]
    moved = np.linalg.norm(reversed_codes[first] - codes[first], axis=1)
    return {
        "retrieval": float(np.mean(found)),
        "auc": float(np.mean([[w < b for b in between] for w in within])),
        "within_over_between": float(np.mean(within) / np.mean(between)),
        "reconstruction_mse": float((rebuilt - standard).square().mean()),
        "loss_share": float(loss / 0.5),
        "reversal": float(np.mean(moved) / np.mean(between)),
    }


def test_measures_are_those_of_loops(learned: RepresentResult) -> None:
    expected = by_hand(learned.model, learned.split)
    reversal = expected.pop("reversal")
    assert {name: learned.record[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert learned.record["over_invariance"]["reversal"] == pytest.approx(reversal, rel=1e-5)
    histogram = learned.record["distances"]
    assert sum(histogram["within"]) == pytest.approx(1) == sum(histogram["between"])
    worst = learned.record["worst"]
    ratios = [each["own_distance"] / each["nearest_distance"] for each in worst]
    assert ratios == sorted(ratios, reverse=True) and all(
        e["entity"] != e["nearest"] for e in worst
    )
    missed = round((1 - learned.record["retrieval"]) * 40)
    assert sum(ratio > 1 for ratio in ratios) == min(missed, len(worst))


def test_retrieval_neighbours_and_area_on_known_points() -> None:
    line = torch.tensor([[0.0], [1.0], [3.0], [6.0]], dtype=torch.float64)
    assert retrieval(line, line + 0.1) == 1 and retrieval(line, line.flip(0)) == 0
    assert neighbours_alike(line, torch.tensor([0, 0, 1, 1])) == 0.75
    within, between = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 2.0, 3.0])
    assert area_under_curve(within, between) == pytest.approx((0 + 1.5 + 2) / 6)


def test_distances_instead_of_entities() -> None:
    split = distorted_triples("shift", 6, 0, triples=600, held_out=200)
    pairs, distances = split.train.inputs, split.train.targets[:, 0]
    result = represent(split, config=QUICK)
    record = result.record
    assert record["objective"] == "distances" and record["loss_share"] < 0.7
    assert record["retrieval"] > record["retrieval_raw"]
    again = represent(pairs.unbind(1), distances=distances, config=replace(QUICK, steps=1))
    assert again.record["held_out_entities"] == 120


def test_permutations_are_told_where_they_explain_most_pairs() -> None:
    """Of entities whose second sample is another vector, no permutation is the distortion."""
    config = replace(QUICK, steps=1)
    for unrelated, wanted in ((60, 6), (160, None)):
        data = shifts().train
        moved = data.inputs.clone()
        generator = torch.Generator().manual_seed(5)
        is_unrelated = (data.targets < unrelated) & (torch.arange(len(moved)) % 4 == 1)
        moved[is_unrelated] = torch.rand(unrelated, 6, generator=generator)
        record = represent(Split(replace(data, inputs=moved), shifts().test), config=config).record
        found = record["permutations"]
        assert (found and len(found)) == wanted
        assert (record["permutation_changes"] is None) == (wanted is None)


@pytest.mark.parametrize("distances", [[1.0] * 60, [1.0, 2.0] * 30])
def test_triples_without_pairs_of_one_entity(distances: list[float]) -> None:
    x = arrays()[0]
    result = represent((x[:60], x[60:120]), distances=distances, config=replace(QUICK, steps=1))
    assert result.record["retrieval"] is None and result.record["reconstruction_mse"] > 0
    assert (result.record["loss_share"] is None) == (len(set(distances)) == 1)
    assert "nothing is known" in result.sentences[0]


def test_codes_that_are_all_equal_are_told(tmp_path: Path) -> None:
    config = replace(QUICK, network="sigmoid", rate=3.0, steps=60)
    result = represent(shifts(), config=config)
    assert result.record["retrieval"] == 1 / 40 and result.record["auc"] == 0.5
    assert "All codes are equal" in result.sentences[1]
    saved = json.loads((result.save(tmp_path / "run") / "result.json").read_text())
    assert saved["within_over_between"] is None


def test_classes_are_scored_on_request() -> None:
    split = shifts()
    assert split.test is not None and split.test.classes is not None
    names = {name: "ab"[place % 2] for place, name in enumerate(split.test.classes)}
    record = represent(split, classes=names, config=replace(QUICK, steps=1)).record
    first = split.test.inputs[::4].double().numpy()
    distances = np.linalg.norm(first[:, None] - first, axis=2) + np.diag([np.inf] * len(first))
    alike = distances.argmin(1) % 2 == np.arange(len(first)) % 2
    assert (
        record["classes_kept"]["raw"] == alike.mean() and 0 <= record["classes_kept"]["code"] <= 1
    )


def test_nothing_held_out_is_nothing_measured() -> None:
    result = represent(*arrays(), held_out=0, config=replace(QUICK, steps=1))
    assert result.record["retrieval"] is None and result.record["held_out_entities"] is None
    assert "nothing is known" in result.sentences[0]
    invariant, varying = result.codes(arrays()[0])
    assert invariant.shape == varying.shape == (240, 6)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"steps": 0}, "steps: expected at least 1"),
        ({"batch_size": 1}, "batch size: expected at least 2"),
        ({"rate": 0.0}, "rate: expected above 0"),
        ({"network": "gelu"}, "unknown network 'gelu'"),
    ],
)
def test_settings_that_make_no_sense(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CallerError, match=sentence):
        represent(shifts(), config=RepresentConfig(**given))


def test_data_that_make_no_sense() -> None:
    with pytest.raises(CallerError, match="got neither"):
        represent(arrays()[0])
    with pytest.raises(CallerError, match="held_out"):
        represent(*arrays(), held_out=1.0)


# --- run folders ------------------------------------------------------------------------------


def test_a_seed_decides_all_and_leaves_the_global_generator_alone() -> None:
    config = replace(QUICK, steps=20)
    before = torch.get_rng_state()
    first = represent(shifts(), config=config)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    again = represent(shifts(), config=config)
    other = represent(shifts(), config=replace(config, seed=1))
    samples = shifts().train.inputs
    assert torch.equal(first.model(samples), again.model(samples))
    assert not torch.equal(first.model(samples), other.model(samples))


def test_loaded_is_saved(learned: RepresentResult, tmp_path: Path) -> None:
    folder = learned.save(tmp_path / "run")
    model = isotropy.load(folder)
    samples = shifts().train.inputs
    assert torch.equal(model(samples), learned.model(samples))
    assert (
        json.loads((folder / "result.json").read_text())["retrieval"] == learned.record["retrieval"]
    )
    assert "<svg" in (folder / "report.html").read_text()
    with pytest.raises(CallerError, match="already holds a run"):
        represent(shifts(), config=QUICK, folder=folder)


class Stop(Exception):
    """In the middle of a run."""


def test_resumed_is_unbroken(
    learned: RepresentResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isotropy.workflows.runs.prepared.CHECKPOINT_SECONDS", 0.0)

    def stop(config: RepresentConfig, row: Any) -> None:
        if row.epoch == 2:
            raise Stop

    folder = tmp_path / "run"
    with pytest.raises(Stop):
        represent(shifts(), config=QUICK, folder=folder, progress=stop)
    rows = []
    result = represent(
        shifts(), config=QUICK, folder=folder, resume=True,
        progress=lambda config, row: rows.append(row.epoch),
    )  # fmt: skip
    assert rows == [3]
    samples: Tensor = shifts().train.inputs
    assert torch.equal(result.model(samples), learned.model(samples))
    for name in ("retrieval", "auc", "loss_share", "over_invariance"):
        assert result.record[name] == learned.record[name]
    with pytest.raises(CallerError, match="another schedule"):
        represent(shifts(), config=replace(QUICK, rate=0.1), folder=folder, resume=True)
    with pytest.raises(CallerError, match="another data set"):
        represent(shifts(seed=1), config=QUICK, folder=folder, resume=True)


# --- the transformer --------------------------------------------------------------------------


def quick(**parameters: Any) -> isotropy.InvariantEncoder:
    return isotropy.InvariantEncoder(**{"config": QUICK, **parameters})


def test_transform_and_score() -> None:
    x, entities = arrays(120)
    encoder = quick(invariant=5).fit(x[:320], entities[:320])
    codes = encoder.transform(x)
    assert codes.shape == (480, 5) and encoder.n_features_in_ == 6
    assert encoder.get_feature_names_out().tolist() == [f"invariantencoder{n}" for n in range(5)]
    distances = np.linalg.norm(codes[320:, None] - codes[320:].astype(float), axis=2)
    np.fill_diagonal(distances, np.inf)
    alike = entities[320:][distances.argmin(1)] == entities[320:]
    assert encoder.score(x[320:], entities[320:]) == alike.mean() > 0.5
    named = np.array([f"e{entity}" for entity in entities[320:]])
    assert encoder.score(x[320:], named) == alike.mean()
    again = pickle.loads(pickle.dumps(encoder))
    assert (again.transform(x) == codes).all()


def test_behind_principal_components() -> None:
    x, entities = arrays()
    chain = pipeline.make_pipeline(decomposition.PCA(4), quick(steps=5))
    assert chain.fit(x, entities).transform(x).shape == (240, 4)
    components = decomposition.PCA(4).fit(x).transform(x)
    alone = quick(steps=5).fit(components, entities)
    assert (alone.transform(components) == chain.transform(x)).all()
    assert chain.score(x, entities) == alone.score(components, entities)
    assert chain.set_params(invariantencoder__steps=2)[-1].steps == 2


def test_parameters_stand_above_the_config() -> None:
    encoder = base.clone(quick(steps=3, random_state=4)).fit(*arrays())
    settings = encoder.result_.trainer.config
    assert (settings.steps, settings.seed, settings.batch_size) == (3, 4, 32)
    assert QUICK.steps == 210
    with pytest.raises(NotFittedError, match="Call 'fit'"):
        quick().transform(arrays()[0])
    with pytest.raises(CallerError, match="expecting 6 features"):
        encoder.transform(arrays()[0][:, 1:])
    with pytest.raises(CallerError, match="requires y to be passed"):
        quick().fit(arrays()[0], None)


class OfNeighbours(isotropy.InvariantEncoder):
    """Scikit-learn's checks have two or three classes: here two rows that follow are an entity."""

    def fit(self, x: Any, y: Any) -> OfNeighbours:
        if y is not None and len(np.asarray(y)) > 1:
            y = np.arange(len(np.asarray(y))) // 2
            y[-1] = y[-2]
        super().fit(x, y)
        return self


def test_conventions_that_scikit_learn_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isotropy.data.pairs.FEWEST_ENTITIES", 2)  # some checks have ten rows
    estimator = OfNeighbours(config=replace(QUICK, steps=2))
    results = estimator_checks.check_estimator(estimator, on_fail=None, on_skip=None)
    failed = {
        each["check_name"]: each["exception"] for each in results if each["status"] == "failed"
    }
    assert failed == {} and len(results) > 40
