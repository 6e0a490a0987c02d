"""The scikit-learn estimators: what they learn, and scikit-learn's own tools and checks."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from learn_runs import CONFIG, SIZE, bars, small_network
from sklearn import base, pipeline, preprocessing
from sklearn import model_selection as selection
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.utils import estimator_checks
from torch import Tensor, nn

import isotropy
from isotropy.checks import CallerError
from isotropy.evidence.settings import LearnConfig
from isotropy.symmetry.actions.action import Action, Generator
from isotropy.workflows.estimators import InvariantClassifier, InvariantRegressor

ROTATION = isotropy.affine(("rotation",))
QUICK = replace(CONFIG, weight_rate=0.05)
NAMES = np.array(["upright", "lying", "none"])


class Turn(Action):
    """A rotation of planar clouds (batch, points, 2)."""

    generators = (Generator("rotation", "radians", period=torch.pi),)

    def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
        angle = coordinates[..., 0]
        rows = [torch.stack([angle.cos(), -angle.sin()], -1),
                torch.stack([angle.sin(), angle.cos()], -1)]  # fmt: skip
        return torch.einsum("bsij,bpj->bspi", torch.stack(rows, -2), data)


class Brightness(Action):
    """The example of the documentation, which checks nothing: it is for four axes."""

    generators = (Generator("brightness", unit="grey level"),)

    def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
        return data[:, None] + coordinates[..., 0, None, None, None]


def quick(**parameters):
    """A classifier whose fit takes a moment."""
    return InvariantClassifier(
        **{"model": "mlp:5", "actions": ROTATION, "config": QUICK, **parameters}
    )


def table(count: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two well separated groups of three features, float64, and their labels 0 and 1."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    return random.normal(size=(count, 3)) + 4.0 * labels[:, None], labels


@pytest.fixture(scope="module")
def fitted() -> InvariantClassifier:
    images, labels = bars()
    return quick(epochs=12).fit(images, NAMES[labels])


# --- without scikit-learn ---------------------------------------------------------------------


def test_fit_sets_what_was_learned(fitted):
    assert fitted.classes_.tolist() == sorted(NAMES)
    assert [symmetry.name for symmetry in fitted.symmetries_] == ["rotation"]
    assert fitted.symmetries_ == fitted.result_.symmetries
    assert fitted.log_evidence_ == fitted.result_.log_evidence < 0
    assert fitted.input_shape_ == (1, SIZE, SIZE) and fitted.n_features_in_ == SIZE * SIZE
    assert fitted.result_.config["network"]["name"] == "mlp"
    assert fitted.result_.config["data"]["classes"] == sorted(NAMES)


def test_predictions_are_labels_and_score_is_their_accuracy(fitted):
    images, labels = bars(seed=1)
    probabilities, predicted = fitted.predict_proba(images), fitted.predict(images)
    assert probabilities.shape == (60, 3) and probabilities.dtype == np.float64
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-12)
    assert (predicted == fitted.classes_[probabilities.argmax(1)]).all()
    hits = sum(a == b for a, b in zip(predicted, NAMES[labels], strict=True))
    assert fitted.score(images, NAMES[labels]) == hits / 60
    assert hits > 35  # of 60, with three classes: something was learned


def test_predictions_are_the_average_over_the_learned_range(fitted):
    images, _ = bars(count=3, seed=1)
    outputs = np.log(fitted.predict_proba(images))
    model, inputs = fitted.result_.model, torch.from_numpy(images)[:, None] / 255
    assert not model.augmentation.is_identity
    noise = 2 * torch.rand(3, 20_000, 1, generator=torch.Generator().manual_seed(0)) - 1
    with torch.no_grad():
        exact = model(inputs, noise).double().log_softmax(1).numpy()
        alone = model.network(inputs).double().log_softmax(1).numpy()
    assert model.samples == 3  # near the average, and not the network alone
    assert np.abs(outputs - exact).max() < 0.3
    assert np.abs(outputs - alone).max() > 1e-3


def test_a_prediction_depends_on_its_own_example_alone(fitted, monkeypatch):
    images, _ = bars(seed=1)
    together = fitted.predict_proba(images)
    assert (together == fitted.predict_proba(images)).all()
    np.testing.assert_allclose(fitted.predict_proba(images[7:8]), together[7:8], rtol=1e-5)
    np.testing.assert_allclose(fitted.predict_proba(images[::-1]), together[::-1], rtol=1e-5)
    monkeypatch.setattr("isotropy.workflows.estimators.ROWS_AT_ONCE", 10)
    np.testing.assert_allclose(fitted.predict_proba(images), together, rtol=1e-5)


def test_a_seed_decides_all_and_leaves_the_global_generator_alone():
    images, labels = bars()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = quick().fit(images, labels)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = quick().fit(images, labels), quick(random_state=1).fit(images, labels)
    assert (first.predict_proba(images) == again.predict_proba(images)).all()
    assert first.log_evidence_ == again.log_evidence_ != other.log_evidence_


@pytest.mark.parametrize("form", ["uint8", "channel axis", "tensor", "scaled", "channels last"])
def test_images_are_read_as_the_readers_do(form, fitted):
    images, _ = bars(seed=1)
    given = {
        "uint8": images,
        "channel axis": images[:, None],
        "tensor": torch.from_numpy(images),
        "scaled": images.astype(np.float64) / 255,
        "channels last": images[..., None],
    }[form]
    expected = fitted.predict_proba(images)
    np.testing.assert_allclose(fitted.predict_proba(given), expected, rtol=1e-4)


def test_three_axes_stay_where_the_action_moves_them():
    random = np.random.default_rng(0)
    clouds = random.normal(size=(40, 4, 2))
    labels = np.arange(40) % 2
    clouds *= 1 + labels[:, None, None]
    learned = quick(actions=Turn()).fit(clouds, labels)
    assert learned.input_shape_ == (4, 2) and learned.n_features_in_ == 8
    assert learned.predict(clouds).shape == (40,)
    images, image_labels = bars()
    learned = quick(actions=Brightness()).fit(images, image_labels)
    assert learned.input_shape_ == (1, SIZE, SIZE)


def test_tables_need_an_action_or_none():
    x, y = table()
    learned = quick(actions=None, objective="none", epochs=30).fit(x, y)
    assert learned.input_shape_ == (3,) and learned.score(x, y) == 1
    with pytest.raises(CallerError, match="cannot act on it"):
        quick().fit(x, y)


@pytest.mark.parametrize(
    "labels",
    [np.array([7, 3]), np.array([2.0, -1.0]), np.array([True, False]), np.array(["b", "a"])],
)
def test_labels_of_any_type_come_back(labels):
    x, y = table()
    learned = quick(objective="none", epochs=30).fit(x, labels[y])
    assert learned.classes_.tolist() == sorted(labels.tolist())
    predicted = learned.predict(x)
    assert predicted.dtype == labels.dtype and (predicted == labels[y]).all()
    assert learned.score(x, labels[y].tolist()) == 1 and learned.score(x, labels[1 - y]) == 0


def test_models_by_name_module_and_function():
    images, labels = bars()
    network = small_network()
    before = network[1].weight.clone()
    given = quick(model=network).fit(images, labels)
    assert torch.equal(network[1].weight, before)
    assert not torch.equal(given.result_.model.network[1].weight, before)
    asked = []

    def make(shape: tuple[int, ...], outputs: int) -> nn.Module:
        asked.append((shape, outputs))
        return small_network(outputs)

    made = quick(model=make).fit(images, labels)
    assert asked == [((1, SIZE, SIZE), 3)]
    assert made.log_evidence_ == given.log_evidence_


def test_arguments_stand_above_the_config():
    images, labels = bars()
    config = replace(QUICK, objective="none", seed=5)
    learned = quick(config=config, epochs=2, samples=3, random_state=1).fit(images, labels)
    settings = learned.result_.trainer.config
    assert (settings.epochs, settings.samples, settings.seed) == (2, 3, 1)
    assert settings.objective == "evidence" and settings.batch_size == CONFIG.batch_size
    assert config == replace(QUICK, objective="none", seed=5)


IMAGES, LABELS = bars()
MISTAKES = {
    "one class": (IMAGES, np.zeros(60), "at least two classes"),
    "fractions": (IMAGES, np.linspace(0, 1, 60), "InvariantRegressor"),
    "missing": (IMAGES, np.where(LABELS > 1, np.nan, 1.0), "finite"),
    "one-hot": (IMAGES, np.eye(3)[LABELS], r"argmax\(1\)"),
    "mixed": (IMAGES, np.array(["a", 1, None] * 20, dtype=object), "one type"),
    "no labels": (IMAGES, None, "requires y to be passed"),
    "too few": (IMAGES, LABELS[:-1], "one label per example"),
    "no axis": (IMAGES[:, 0, 0], LABELS, "Reshape your data"),
    "nothing": (IMAGES[:0], LABELS[:0], "one example or more"),
    "text": (np.array([["a"]] * 60), LABELS, "array of numbers"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_fit(mistake):
    x, y, sentence = MISTAKES[mistake]
    with pytest.raises(CallerError, match=sentence):
        quick().fit(x, y)


def test_mistakes_in_use(fitted):
    for call in ("predict", "predict_proba"):
        with pytest.raises(NotFittedError, match="Call 'fit'"):
            getattr(quick(), call)(IMAGES)
    with pytest.raises(CallerError, match=r"expected \(1, 8, 8\).*got \(1, 8, 7\)"):
        fitted.predict(IMAGES[:, :, 1:])
    with pytest.raises(CallerError, match="finite"):
        fitted.predict(np.full((2, SIZE, SIZE), np.nan))
    with pytest.raises(CallerError, match="expected a name such as"):
        quick(model=3).fit(IMAGES, LABELS)
    with pytest.raises(CallerError, match="return an nn.Module, got int"):
        quick(model=lambda shape, outputs: 1).fit(IMAGES, LABELS)


def test_pickled(fitted):
    again = pickle.loads(pickle.dumps(fitted))
    assert (again.predict_proba(IMAGES) == fitted.predict_proba(IMAGES)).all()
    assert again.symmetries_ == fitted.symmetries_


# --- regression ---------------------------------------------------------------------------------

REGRESSION = LearnConfig(samples=2, test_samples=3, batch_size=10, weight_rate=5e-2)


def line(count: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, 3))
    return x, 500 + 20 * x[:, 0] + random.normal(size=count)


def test_regression_in_the_unit_of_the_targets():
    x, y = line()
    regressor = InvariantRegressor("mlp:8", objective="none", config=REGRESSION, epochs=15)
    predicted = regressor.fit(x, y).predict(x)
    assert predicted.shape == (60,)
    total = ((y - y.mean()) ** 2).sum()
    assert regressor.score(x, y) == pytest.approx(1 - ((y - predicted) ** 2).sum() / total)
    assert regressor.score(x, y) > 0.9
    two = regressor.set_params(epochs=1).fit(x, np.stack([y, -y], 1)).predict(x)
    assert two.shape == (60, 2)


def test_evidence_of_regression_is_a_density_in_the_unit_of_the_targets():
    """Metres or centimetres: the density of the data changes by the factor of each number."""
    x, y = line()
    regressor = InvariantRegressor("mlp:4", objective="none", config=REGRESSION, epochs=3)
    metres = regressor.fit(x, y).log_evidence_
    centimetres = regressor.fit(x, 100 * y).log_evidence_
    assert centimetres == pytest.approx(metres - 60 * np.log(100), rel=1e-5)


def test_regression_by_symmetry():
    images, labels = bars()
    brightness = images.mean((1, 2)) / 255.0
    regressor = InvariantRegressor("mlp:5", actions=ROTATION, config=CONFIG)
    regressor.fit(images, brightness)
    assert [symmetry.name for symmetry in regressor.symmetries_] == ["rotation"]
    with pytest.raises(CallerError, match="finite"):
        regressor.fit(images, np.where(labels > 1, np.inf, 1.0))
    with pytest.raises(CallerError, match=r"expected \(examples,\) or"):
        regressor.fit(images, images)
    with pytest.raises(CallerError, match="requires y to be passed"):
        regressor.fit(images, None)
    constant = np.ones(60)
    assert regressor.fit(images, constant).score(images, constant) in (0, 1)


# --- with scikit-learn ----------------------------------------------------------------------------


def test_clone():
    network = small_network()
    original = quick(model=network, epochs=2)
    copy = base.clone(original)
    assert copy is not original and not hasattr(copy, "result_")
    assert copy.epochs == 2 and copy.config == QUICK
    assert copy.model is not network and torch.equal(copy.model[1].weight, network[1].weight)
    assert base.is_classifier(original) and base.is_regressor(InvariantRegressor())
    with pytest.raises(ValueError, match="Invalid parameter 'epoch'"):
        original.set_params(epoch=5)


def test_cross_validation_search_and_pipeline():
    images, labels = bars()
    folds = selection.StratifiedKFold(3)
    scores = selection.cross_val_score(quick(), images, NAMES[labels], cv=folds)
    by_hand = []
    for train, test in folds.split(images, labels):
        learned = quick().fit(images[train], NAMES[labels][train])
        by_hand.append(np.mean(learned.predict(images[test]) == NAMES[labels][test]))
    assert scores.tolist() == by_hand

    search = selection.GridSearchCV(
        quick(epochs=1),
        {"model": ["mlp:2", "mlp:5"], "objective": ["none", "laplace"]},
        cv=2,
        scoring=lambda estimator, x, y: estimator.log_evidence_,
    ).fit(images, labels)
    assert len(search.cv_results_["params"]) == 4 and search.best_score_ < 0
    assert search.predict(images).shape == (60,)

    def reshape(rows: np.ndarray) -> np.ndarray:
        return rows.reshape(-1, 1, SIZE, SIZE)

    flat = images.reshape(60, -1) / 255.0
    chain = pipeline.make_pipeline(
        preprocessing.StandardScaler(), preprocessing.FunctionTransformer(reshape), quick()
    )
    assert chain.fit(flat, labels).predict_proba(flat).shape == (60, 3)
    assert chain.set_params(invariantclassifier__epochs=2)[-1].epochs == 2


QUICK_CHECKS = {
    "check_estimator_cloneable", "check_no_attributes_set_in_init", "check_get_params_invariance",
    "check_parameters_default_constructible", "check_set_params",
    "check_estimators_overwrite_params", "check_fit_score_takes_y", "check_estimators_dtypes",
    "check_estimators_nan_inf", "check_methods_sample_order_invariance", "check_fit_idempotent",
    "check_methods_subset_invariance", "check_fit_check_is_fitted", "check_n_features_in",
    "check_n_features_in_after_fitting", "check_fit2d_predict1d", "check_requires_y_none",
    "check_dict_unchanged", "check_estimators_pickle", "check_estimator_sparse_array",
    "check_complex_data", "check_dtype_object", "check_estimators_empty_data_messages",
    "check_sample_weight_equivalence_on_dense_data", "check_sample_weights_shape",
    "check_all_zero_sample_weights_error", "check_sample_weights_not_an_array",
}  # fmt: skip


@pytest.mark.parametrize("kind", [InvariantClassifier, InvariantRegressor])
def test_conventions_that_scikit_learn_checks(kind):
    estimator = kind("mlp:3", objective="none", epochs=2)
    done = set()
    for instance, check in estimator_checks.estimator_checks_generator(estimator):
        name = getattr(check, "func", check).__name__
        if name in QUICK_CHECKS:
            check(instance)
            done.add(name)
    assert done == QUICK_CHECKS


@pytest.mark.slow
@pytest.mark.parametrize("kind", [InvariantClassifier, InvariantRegressor])
def test_all_that_scikit_learn_checks(kind):
    """Every check passes; none is expected to fail."""
    estimator = kind("mlp:10", objective="none", epochs=15)
    results = estimator_checks.check_estimator(estimator, on_fail=None, on_skip=None)
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert not failed and len(results) > 50


def test_weights_are_counts():
    x, y = table(count=12)
    weights = np.array([3, 0, 1, 2] * 3)
    weighted = quick(actions=None, epochs=3).fit(x, y, sample_weight=weights)
    repeated = quick(actions=None, epochs=3).fit(x.repeat(weights, 0), y.repeat(weights))
    np.testing.assert_array_equal(weighted.predict_proba(x), repeated.predict_proba(x))
    assert weighted.result_.record["train_examples"] == weights.sum()
    plain = quick(actions=None, epochs=3).fit(x, y)
    assert not np.array_equal(weighted.predict_proba(x), plain.predict_proba(x))


def test_other_weights_are_right_on_average():
    x, y = table(count=400)
    weights = np.where(y == 1, 0.75, 0.25)
    learned = quick(actions=None, epochs=1, objective="none").fit(x, y, sample_weight=weights)
    (few,), (many,) = learned.result_.record["class_counts"].values()
    assert 80 < few < 120 and 280 < many < 320  # about three deviations of 7


@pytest.mark.parametrize(
    "weights, sentence",
    [
        (np.ones(7), "expected 40 finite numbers"),
        (np.full(40, -1.0), "from 0 up"),
        (np.full(40, np.nan), "finite numbers"),
        (np.zeros(40), "above zero"),
    ],
)
def test_impossible_weights(weights, sentence):
    with pytest.raises(CallerError, match=sentence):
        quick().fit(*table(), sample_weight=weights)


def test_the_order_of_examples_does_not_matter():
    x, y = table()
    order = np.random.default_rng(1).permutation(len(x))
    first, other = (quick(actions=None, epochs=2) for _ in range(2))
    first.fit(x, y), other.fit(x[order], y[order])
    np.testing.assert_array_equal(first.predict_proba(x), other.predict_proba(x))


def test_random_state_decides_as_a_seed():
    x, y = table()

    def probabilities(**parameters):
        return quick(actions=None, epochs=1, **parameters).fit(x, y).predict_proba(x)

    numbered = probabilities(random_state=3)
    np.testing.assert_array_equal(numbered, probabilities(random_state=3))
    assert not np.array_equal(numbered, probabilities(random_state=4))
    first, second = (probabilities(random_state=np.random.RandomState(3)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert probabilities(random_state=None).shape == numbered.shape


def test_a_column_of_labels_is_taken_with_a_warning():
    x, y = table()
    with pytest.warns(DataConversionWarning, match="1d array was expected"):
        quick(actions=None, epochs=1).fit(x, y[:, None])


def test_how_many_examples_come_at_once_hardly_matters():
    """In float32 sums of 200 hidden units differ by 1e-7 with the size of the batch."""
    x, y = table()
    learned = InvariantClassifier("mlp:200", objective="none", epochs=1).fit(x, y)
    alone = np.concatenate([learned.predict_proba(x[row : row + 1]) for row in range(len(x))])
    np.testing.assert_allclose(learned.predict_proba(x), alone, rtol=0, atol=1e-13)
