"""A classifier and a regressor in the manner of scikit-learn: `learn` behind fit and predict.

    classifier = InvariantClassifier("mlp:200", actions=affine(("rotation",))).fit(images, labels)
    classifier.predict(images)         labels, of the type that fit was given
    classifier.symmetries_             [Symmetry('rotation', 'range', -175.0, 175.0, 'degrees')]

They work in scikit-learn's clone, cross_val_score, GridSearchCV and Pipeline, and without it. A
grid can also be searched by the evidence of the training data instead of held-out scores, with
`scoring=lambda estimator, x, y: estimator.log_evidence_`, for folds of one size.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from isotropy.checks import CallerError, check_finite, shape_text
from isotropy.data.arrays import tensor_from
from isotropy.workflows.estimator import InvariantEstimator

Array = np.ndarray[Any, Any]


class InvariantClassifier(InvariantEstimator):
    """A classifier that learns its symmetries; arguments and what fit sets: `InvariantEstimator`.

    After fit also `classes_`: the labels in sorted order, that of the columns of predict_proba.
    """

    _estimator_type = "classifier"
    classes_: Array

    def fit(self, x: Any, y: Any) -> Self:
        """Learn from inputs x `(examples, …)` and labels y `(examples,)` of any type that sorts.

        Raises CallerError as `learn` does, and for y that are no labels.
        """
        classes, codes = _labels(y)
        names = tuple(str(label) for label in classes.tolist())
        self._learn(x, torch.from_numpy(codes.astype(np.int64)), names)
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

    def score(self, x: Any, y: Any) -> float:
        """Accuracy: the share of examples whose label is predicted."""
        predicted, wanted = self.predict(x), _column(y, "labels")
        _check_same_length(len(predicted), len(wanted))
        return float(np.mean(predicted == wanted))


class InvariantRegressor(InvariantEstimator):
    """A regressor that learns its symmetries; arguments and what fit sets: `InvariantEstimator`.

    Gaussian likelihood with learned noise. The network sees targets less their mean and divided by
    their standard deviation, `target_mean_` and `target_scale_` (outputs,); predictions and
    `log_evidence_` are in the targets' own unit:  log p(y) = log p(z) − N Σ log scale.
    """

    _estimator_type = "regressor"
    target_mean_: Tensor
    target_scale_: Tensor

    def fit(self, x: Any, y: Any) -> Self:
        """Learn from inputs x `(examples, …)` and targets y `(examples,)` or `(examples, outputs)`.

        Raises CallerError as `learn` does, and for y that are no finite numbers.
        """
        targets, one_axis = _targets(y)
        mean = targets.mean(0)
        scale = (targets - mean).square().mean(0).sqrt()
        scale = torch.where(scale > 0, scale, 1.0)
        self._learn(x, ((targets - mean) / scale).float(), None)
        self.target_mean_, self.target_scale_, self._one_axis = mean, scale, one_axis
        if self.log_evidence_ is not None:
            self.log_evidence_ -= len(targets) * float(scale.log().sum())
        return self

    def predict(self, x: Any) -> Array:
        """Means float64 `(examples,)` or `(examples, outputs)`, as the targets fit was given."""
        outputs = self._outputs(x) * self.target_scale_ + self.target_mean_
        return (outputs[:, 0] if self._one_axis else outputs).numpy()

    def score(self, x: Any, y: Any) -> float:
        """R² = 1 − Σ (y − ŷ)² / Σ (y − mean y)², averaged over outputs.

        Where all targets of an output are equal: 1 if they are met exactly, 0 otherwise.
        """
        predicted = torch.from_numpy(self.predict(x)).reshape(-1, len(self.target_mean_))
        wanted, _ = _targets(y)
        _check_same_length(len(predicted), len(wanted))
        residual = (wanted - predicted).square().sum(0)
        total = (wanted - wanted.mean(0)).square().sum(0)
        share = torch.where(total > 0, residual / total, (residual > 0).double())
        return float(1 - share.mean())


def _column(y: Any, what: str) -> Array:
    """y as an array `(examples,)`, from tensors, lists and `(examples, 1)` too."""
    if y is None:
        raise CallerError(
            f"{what}: expected one for each example, got none; learning from examples "
            "requires y to be passed, but the target y is None"
        )
    array = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if array.ndim == 2 and array.shape[1] == 1:
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
    if y is None:
        _column(y, "targets")
    values = tensor_from(y, what="targets").cpu().double()
    if values.ndim not in (1, 2):
        raise CallerError(
            f"targets: expected (examples,) or (examples, outputs), got {shape_text(values)}"
        )
    check_finite(values, what="targets", advice="leave these examples out")
    return (values[:, None], True) if values.ndim == 1 else (values, False)


def _check_same_length(predicted: int, wanted: int) -> None:
    if predicted != wanted:
        raise CallerError(
            f"score: expected one target for each example, got {wanted} for {predicted} examples"
        )
