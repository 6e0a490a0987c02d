"""scikit-learn estimators: `learn` behind fit and predict, `represent` behind fit and transform.

    classifier = InvariantClassifier("mlp:200", actions=affine(("rotation",))).fit(images, labels)
    classifier.predict(images)         labels, of the type that fit was given
    classifier.symmetries_             [Symmetry('rotation', 'range', -175.0, 175.0, 'degrees')]

They need scikit-learn (`isotropy[sklearn]`) and work in its clone, cross_val_score, GridSearchCV
and Pipeline. A grid can also be searched by the evidence of the training data instead of held-out
scores, with `scoring=lambda estimator, x, y: estimator.log_evidence_`, for folds of one size.

Predictions are the learned average over copies (LILA, Eq. 1), with one set of copies for every
example: noise (1, samples, generators), drawn from a stream of the seed that fit used. A prediction
is therefore a function of its own example, whichever others come with it.

An example of weight w counts as w examples: whole numbers repeat it, zero leaves it out. Other
weights are scaled to a mean of one and rounded up or down at random by the seed, right on average.
Without such weights a fit does not depend on the order of the examples, which are sorted first.

Inputs (examples, …) are read as `data.labelled` reads them: 8-bit images divided by 255, grey
images (examples, height, width) with a channel axis put in. Where the actions themselves move
data of three axes (sequences, point clouds), these are left as they are.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_finite, shape_text
from isotropy.data.labelled import LabelledData, standard_inputs, tensor_from
from isotropy.evidence.objectives import Objective
from isotropy.evidence.predictive import rows_at_once
from isotropy.evidence.settings import LearnConfig, stream
from isotropy.networks.averaging.augmentations import Symmetry
from isotropy.networks.zoo.specification import NetworkSpecification, parse_network
from isotropy.workflows.learning import LearnResult, learn
from isotropy.workflows.representing import (
    RepresentConfig,
    RepresentResult,
    neighbours_alike,
    represent,
)
from isotropy.workflows.runs.prepared import Actions, all_move

Model = str | nn.Module | Callable[[tuple[int, ...], int], nn.Module]

try:
    from sklearn.base import (
        BaseEstimator,
        ClassifierMixin,
        ClassNamePrefixFeaturesOutMixin,
        RegressorMixin,
        TransformerMixin,
    )
    from sklearn.exceptions import DataConversionWarning
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise CallerError(
        "InvariantClassifier, InvariantRegressor and InvariantEncoder need scikit-learn: install "
        "isotropy[sklearn]"
    ) from error


ROWS_AT_ONCE = 8192
"""Copies of examples the network is called on at once when predicting."""


class InvariantEstimator(BaseEstimator):
    """What classifier and regressor share: parameters, reading inputs, fitting, averaging.

    model      a network's name as on the command line (`mlp:200`, `nets.py:make`), an nn.Module, of
               which a copy is trained, or a function (shape, outputs) → nn.Module
    actions    what may be a symmetry; the affine group of images by default
    objective  evidence | augerino | fixed | none, as for `learn`; stands above the config's
    config     further settings of the run
    epochs, samples   stand above the config's where they are given
    device     where to run; by default where the model is
    random_state   decides initial weights and all noise, and stands above the config's seed: a
               number, a RandomState to draw it from, or None for numpy's own; torch's global
               generators are left as they were

    After fit: `result_` (the `LearnResult`), `symmetries_`, `log_evidence_` (nats; None where the
    objective has none), `input_shape_` of one example as the network sees it, and
    `n_features_in_`, how many numbers that is.
    """

    result_: LearnResult
    symmetries_: list[Symmetry]
    log_evidence_: float | None
    input_shape_: tuple[int, ...]
    n_features_in_: int

    def __init__(
        self,
        model: Model = "mlp:200",
        actions: Actions | None = None,
        objective: Objective = "evidence",
        config: LearnConfig | None = None,
        epochs: int | None = None,
        samples: int | None = None,
        device: str | torch.device | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.model = model
        self.actions = actions
        self.objective = objective
        self.config = config
        self.epochs = epochs
        self.samples = samples
        self.device = device
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    # -- fitting ---------------------------------------------------------------------------

    def _moves(self, example: Tensor) -> bool:
        return self.actions is not None and all_move(self.actions, example)

    def _learn(self, x: Any, targets: Tensor, classes: tuple[str, ...] | None, seed: int) -> None:
        inputs = _inputs(x, self._moves)
        data = LabelledData(inputs, targets, classes, name="data")
        data = data.take(_canonical_order(data))
        settings = replace(self.config or LearnConfig(), objective=self.objective, seed=seed)
        if self.epochs is not None:
            settings = replace(settings, epochs=self.epochs)
        if self.samples is not None:
            settings = replace(settings, samples=self.samples)
        shape = tuple(inputs.shape[1:])
        with _own_randomness(seed, self.device):
            network, specification = _network(self.model, shape, data.num_outputs)
            self.result_ = learn(
                network,
                data,
                actions=self.actions,
                config=settings,
                device=self.device,
                network=specification,
            )
        self.symmetries_ = self.result_.symmetries
        self.log_evidence_ = self.result_.log_evidence
        self.input_shape_ = shape
        self.n_features_in_ = math.prod(shape)

    # -- predicting ------------------------------------------------------------------------

    @torch.no_grad()
    def _outputs(self, x: Any) -> Tensor:
        """Averaged outputs float64 `(examples, outputs)`, on the CPU.

        Computed in float64, in which it hardly matters how many examples come at once.
        """
        check_is_fitted(self, "result_")
        like = self.result_.trainer.inputs[:1].double()
        model = copy.deepcopy(self.result_.model).double()
        inputs = _inputs(x, lambda example: example.shape[1:] == self.input_shape_)
        _check_shape(self, inputs)
        samples = 1 if model.augmentation.is_identity else model.samples
        seed = self.result_.trainer.config.seed  # as it was in fit; the parameter may be another
        fitted = self.result_.model  # which draws in its own precision, as it always did
        generator = stream(seed, "predict", 0, like.device)
        noise = fitted.noise(1, samples=samples, generator=generator).double()
        parts = inputs.split(max(1, rows_at_once(inputs, ROWS_AT_ONCE) // samples))
        outputs = [model(part.to(like), noise.expand(len(part), -1, -1)) for part in parts]
        return torch.cat(outputs).double().cpu()


def _inputs(x: Any, stay: Callable[[Tensor], bool]) -> Tensor:
    """Inputs float32 in standard form; of three axes they stay so where `stay(example)` says it."""
    if hasattr(x, "toarray"):
        raise CallerError("inputs: expected a dense array, got a sparse one; give x.toarray()")
    values = _numbers(x, "inputs")
    if values.ndim == 2 and values.shape[1] == 0:
        raise CallerError(
            "inputs: expected one number or more for each example, got 0 feature(s) "
            f"(shape={tuple(values.shape)}) while a minimum of 1 is required. "
            "Add a column"
        )
    if values.ndim < 2 or len(values) == 0:
        raise CallerError(
            f"inputs: expected (examples, features...) with one example or more, got "
            f"{shape_text(values)}. Reshape your data, one example alone with x[None]"
        )
    if values.ndim == 3 and stay(values[:1].to(torch.float32)):
        return values.to(torch.float32)
    return standard_inputs(values)[0]


class NotNumbersError(CallerError, TypeError):
    """Objects that no number can be made of."""


def _numbers(values: Any, what: str) -> Tensor:
    """A tensor; an array of objects becomes one of float64 where all of them are numbers."""
    if isinstance(values, Tensor):
        return tensor_from(values, what=what)
    array = np.asarray(values)
    if array.dtype.kind == "c":
        raise CallerError(
            f"{what}: expected real numbers, got {array.dtype}; take .real. Complex data not "
            "supported"
        )
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise NotNumbersError(
                f"{what}: expected an array of numbers, got objects ({error}); convert them"
            ) from None
    return tensor_from(array, what=what)


def _canonical_order(data: LabelledData) -> Tensor:
    """An order of the examples (examples,) that is the same for all orders they come in.

    By their first target, then by a random projection of the inputs, which is the same for equal
    examples alone.
    """
    flat = data.inputs.flatten(1)
    weights = torch.randn(flat.shape[1], generator=torch.Generator().manual_seed(0))
    keys = torch.cat([(part.double() * weights).sum(1) for part in flat.split(ROWS_AT_ONCE)])
    order = keys.argsort(stable=True)
    first = data.targets if data.targets.ndim == 1 else data.targets[:, 0]
    return order[first[order].argsort(stable=True)]


def _repeated(x: Any, y: Any, sample_weight: Any, seed: int) -> tuple[Any, Any]:
    """Examples and targets, each as often as its weight says; see the top of this file."""
    if sample_weight is None:
        return x, y
    weights = np.asarray(sample_weight, dtype=np.float64)
    x, y = (each if isinstance(each, Tensor) else np.asarray(each) for each in (x, y))
    count = len(x)
    if weights.ndim == 0:
        weights = np.full(count, float(weights))
    if weights.shape != (count,) or not np.isfinite(weights).all() or (weights < 0).any():
        raise CallerError(
            f"sample_weight: expected {count} finite numbers from 0 up, one for each example, got "
            f"shape {weights.shape} with numbers from {weights.min():g} to {weights.max():g}"
        )
    if not weights.any():
        raise CallerError(
            "sample_weight: expected a weight above zero, got zero for every example; leave "
            "sample_weight out to weigh all alike"
        )
    if (weights != weights.round()).any():
        weights = weights * (count / weights.sum())
        weights = np.floor(weights + np.random.RandomState(seed).rand(count))
    chosen = np.repeat(np.arange(count), weights.astype(np.int64))
    return x[chosen], y[chosen]


def _network(
    model: Any, shape: tuple[int, ...], outputs: int
) -> tuple[nn.Module, NetworkSpecification | None]:
    """The network to train, and how to rebuild it where it has a name."""
    if isinstance(model, nn.Module):
        return model, None
    if isinstance(model, str):
        specification = parse_network(model)
        return specification.build(shape, outputs), specification
    if not callable(model):
        raise CallerError(
            "model: expected a name such as 'mlp:200', an nn.Module, or a function (shape, "
            f"outputs) → nn.Module, got {type(model).__name__}"
        )
    network = model(shape, outputs)
    if not isinstance(network, nn.Module):
        raise CallerError(
            f"model: expected the function to return an nn.Module, got {type(network).__name__}"
        )
    return network, None


@contextmanager
def _own_randomness(seed: int, device: str | torch.device | None) -> Iterator[None]:
    """torch's global generators, which initialise weights and drop out, at a state of our own
    within, and as they were after."""
    place = torch.device("cpu" if device is None else device)
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        torch.set_rng_state(stream(seed, "estimator").get_state())
        if place.type == "cuda":
            torch.cuda.set_rng_state(stream(seed, "estimator", 0, place).get_state(), place)
        yield


Array = np.ndarray[Any, Any]


class InvariantClassifier(ClassifierMixin, InvariantEstimator):
    """A classifier that learns its symmetries; arguments and what fit sets: `InvariantEstimator`.

    After fit also `classes_`: the labels in sorted order, that of the columns of predict_proba.
    `score` is the accuracy.
    """

    classes_: Array

    def fit(self, x: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from inputs x `(examples, …)` and labels y `(examples,)` of any type that sorts.

        sample_weight: for how many examples each one counts, `(examples,)`.
        Raises CallerError as `learn` does, and for y that are no labels.
        """
        _check_given(y, "labels")
        seed = _seed_from(self.random_state)
        x, y = _repeated(x, y, sample_weight, seed % 2**32)
        classes, codes = _labels(y)
        names = tuple(str(label) for label in classes.tolist())
        self._learn(x, torch.from_numpy(codes.astype(np.int64)), names, seed)
        self.classes_ = classes
        return self

    def predict_proba(self, x: Any) -> Array:
        """Probabilities float64 `(examples, classes)`; rows add up to 1, equal calls are equal."""
        return self._outputs(x).softmax(1).numpy()

    def predict(self, x: Any) -> Array:
        """The most probable label of each example, `(examples,)`, of the type fit was given."""
        chosen = self._outputs(x).argmax(1).numpy()
        labels: Array = self.classes_[chosen]
        return labels


class InvariantRegressor(RegressorMixin, InvariantEstimator):
    """A regressor that learns its symmetries; arguments and what fit sets: `InvariantEstimator`.

    Gaussian likelihood with learned noise. The network sees targets less their mean and divided by
    their standard deviation, `target_mean_` and `target_scale_` (outputs,); predictions and
    `log_evidence_` are in the targets' own unit:  log p(y) = log p(z) − N Σ log scale. `score` is
    R², averaged over outputs.
    """

    target_mean_: Tensor
    target_scale_: Tensor

    def fit(self, x: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from inputs x `(examples, …)` and targets y `(examples,)` or `(examples, outputs)`.

        sample_weight: for how many examples each one counts, `(examples,)`.
        Raises CallerError as `learn` does, and for y that are no finite numbers.
        """
        _check_given(y, "targets")
        seed = _seed_from(self.random_state)
        x, y = _repeated(x, y, sample_weight, seed % 2**32)
        targets, one_axis = _targets(y)
        mean = targets.mean(0)
        scale = (targets - mean).square().mean(0).sqrt()
        scale = torch.where(scale > 0, scale, 1.0)
        self._learn(x, ((targets - mean) / scale).float(), None, seed)
        self.target_mean_, self.target_scale_, self._one_axis = mean, scale, one_axis
        if self.log_evidence_ is not None:
            self.log_evidence_ -= len(targets) * float(scale.log().sum())
        return self

    def predict(self, x: Any) -> Array:
        """Means float64 `(examples,)` or `(examples, outputs)`, as the targets fit was given."""
        outputs = self._outputs(x) * self.target_scale_ + self.target_mean_
        return (outputs[:, 0] if self._one_axis else outputs).numpy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class InvariantEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """A transformer to codes that ignore an unknown distortion (`represent`), also behind PCA.

    InvariantEncoder().fit(x, entities).transform(x)      (samples, invariant)

    invariant, steps   stand above the config's where they are given
    config, device     as for `represent`, which holds nothing out here
    random_state       decides initial weights and all pairs, and stands above the config's seed

    After fit: `result_` (the `RepresentResult`), `input_shape_`, `n_features_in_`. `score` is the
    share of samples whose nearest other sample is of the same entity.
    """

    result_: RepresentResult
    input_shape_: tuple[int, ...]
    n_features_in_: int

    def __init__(
        self,
        invariant: int | None = None,
        steps: int | None = None,
        config: RepresentConfig | None = None,
        device: str | torch.device | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.invariant = invariant
        self.steps = steps
        self.config = config
        self.device = device
        self.random_state = random_state

    def fit(self, x: Any, y: Any) -> Self:
        """Learn from samples x `(samples, …)` and their entities y `(samples,)`.

        Raises CallerError as `represent` does, and for y that are no entities.
        """
        _check_given(y, "entities")
        entities, samples = _column(y, "entities"), _inputs(x, lambda example: True)
        given = {
            "invariant": self.invariant,
            "steps": self.steps,
            "seed": _seed_from(self.random_state),
        }
        known: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        settings = replace(self.config or RepresentConfig(), **known)
        place = "cpu" if self.device is None else self.device
        self.result_ = represent(samples, entities, config=settings, held_out=0.0, device=place)
        self.input_shape_ = tuple(samples.shape[1:])
        self.n_features_in_ = math.prod(self.input_shape_)
        self._n_features_out = self.result_.model.invariant
        return self

    def transform(self, x: Any) -> Array:
        """Invariant codes float64 `(samples, invariant)`."""
        check_is_fitted(self, "result_")
        inputs = _inputs(x, lambda example: True)
        _check_shape(self, inputs)
        exact = copy.deepcopy(self.result_.model).double()  # rows do not depend on their company
        return exact.encode(inputs)[0].numpy()

    def score(self, x: Any, y: Any) -> float:
        """The share of samples whose nearest other sample, by its code, is of the same entity."""
        _, numbers = np.unique(_column(y, "entities").astype(str), return_inverse=True)
        return neighbours_alike(torch.from_numpy(self.transform(x)), torch.from_numpy(numbers))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.three_d_array = True
        return tags


def _seed_from(random_state: int | np.random.RandomState | None) -> int:
    """The seed of a fit."""
    if random_state is None or isinstance(random_state, np.random.RandomState):
        return int(check_random_state(random_state).randint(2**31 - 1))
    return int(random_state)


def _check_shape(estimator: Any, inputs: Tensor) -> None:
    """Raise unless inputs `(examples, …)` are finite and shaped as in fit."""
    if tuple(inputs.shape[1:]) != estimator.input_shape_:
        raise CallerError(
            f"inputs: expected {estimator.input_shape_} for each example, as in fit, got "
            f"{shape_text(inputs[0])}: X has {inputs[0].numel()} features, but "
            f"{type(estimator).__name__} is expecting {estimator.n_features_in_} features as input"
        )
    check_finite(inputs, what="inputs", advice="replace them or leave these examples out")


def _check_given(y: Any, what: str) -> None:
    if y is None:
        raise CallerError(
            f"{what}: expected one for each example, got none; learning from examples "
            "requires y to be passed, but the target y is None"
        )


def _column(y: Any, what: str) -> Array:
    """y as an array `(examples,)`, from tensors, lists and `(examples, 1)` too."""
    array = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if array.ndim == 2 and array.shape[1] == 1:
        warnings.warn(
            f"A column-vector y was passed when a 1d array was expected as {what}; give y.ravel()",
            DataConversionWarning,
            stacklevel=3,
        )
        array = array[:, 0]
    if array.ndim != 1:
        raise CallerError(
            f"{what}: expected (examples,), got an array of shape {array.shape}; give one for each "
            "example, of one-hot rows their argmax(1)"
        )
    return array


def _labels(y: Any) -> tuple[Array, Array]:
    """The classes in sorted order, and of each example its class's number."""
    labels = _column(y, "labels")
    if labels.dtype.kind == "f":
        check_finite(torch.from_numpy(labels), what="labels", advice="leave these examples out")
        if (labels != np.round(labels)).any():
            raise CallerError(
                "labels: expected classes, got fractions (Unknown label type: continuous); for "
                "real-valued targets use InvariantRegressor"
            )
    try:
        classes, codes = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise CallerError(
            f"labels: expected labels of one type, that can be sorted, got a mixture ({error}); "
            "convert them to text"
        ) from None
    return classes, codes


def _targets(y: Any) -> tuple[Tensor, bool]:
    """Targets float64 `(examples, outputs)`, and whether they came as `(examples,)`."""
    values = _numbers(y, "targets").cpu().double()
    if values.ndim not in (1, 2):
        raise CallerError(
            f"targets: expected (examples,) or (examples, outputs), got {shape_text(values)}"
        )
    check_finite(values, what="targets", advice="leave these examples out")
    return (values[:, None], True) if values.ndim == 1 else (values, False)
