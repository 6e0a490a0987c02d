"""What estimators in the manner of scikit-learn share: parameters, inputs, fitting, averaging.

scikit-learn clones, searches and chains estimators by get_params and set_params; the constructor
stores its arguments and nothing else, and what fit learns ends in an underscore. The library does
not need scikit-learn for any of it.

Predictions are the learned average over copies (LILA, Eq. 1), with one set of copies for every
example: noise (1, samples, generators), drawn from a stream of the seed that fit used. A prediction
is therefore a function of its own example, whichever others come with it.

Inputs (examples, …) are read as `data.arrays` reads them: 8-bit images divided by 255, grey
images (examples, height, width) with a channel axis put in. Where the actions themselves move
data of three axes (sequences, point clouds), these are left as they are.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any, Self

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_choice, check_finite, shape_text
from isotropy.data.arrays import standard_inputs, tensor_from
from isotropy.data.labelled import LabelledData
from isotropy.evidence.schedule import LearnConfig, Objective
from isotropy.evidence.streams import stream
from isotropy.networks.augmentations import Symmetry
from isotropy.networks.specification import NetworkSpecification, parse_network
from isotropy.symmetry.actions import Action
from isotropy.symmetry.finite_actions import FiniteAction
from isotropy.workflows.learning import LearnResult, learn
from isotropy.workflows.preparing import Actions

Model = str | nn.Module | Callable[[tuple[int, ...], int], nn.Module]

ROWS_AT_ONCE = 8192
"""Copies of examples the network is called on at once when predicting."""


class InvariantEstimator:
    """What classifier and regressor share: parameters, reading inputs, fitting, averaging.

    model      a network's name as on the command line (`mlp:200`, `nets.py:make`), an nn.Module, of
               which a copy is trained, or a function (shape, outputs) → nn.Module
    actions    what may be a symmetry; the affine group of images by default
    objective  laplace | augerino | fixed | none, as for `learn`; stands above the config's
    config     further settings of the run
    epochs, samples   stand above the config's where they are given
    device     where to run; by default where the model is
    seed       decides initial weights and all noise, and stands above the config's; torch's
               global generators are left as they were

    After fit: `result_` (the `LearnResult`), `symmetries_`, `log_evidence_` (nats; None where the
    objective has none), `input_shape_` of one example as the network sees it, and
    `n_features_in_`, how many numbers that is.
    """

    _estimator_type: str  # how scikit-learn before 1.6 asks

    result_: LearnResult
    symmetries_: list[Symmetry]
    log_evidence_: float | None
    input_shape_: tuple[int, ...]
    n_features_in_: int

    def __init__(
        self,
        model: Model = "mlp:200",
        actions: Actions | None = None,
        objective: Objective = "laplace",
        config: LearnConfig | None = None,
        epochs: int | None = None,
        samples: int | None = None,
        device: str | torch.device | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.actions = actions
        self.objective = objective
        self.config = config
        self.epochs = epochs
        self.samples = samples
        self.device = device
        self.seed = seed

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments by name; `deep` changes nothing, as none is an estimator."""
        return {name: getattr(self, name) for name in _defaults(type(self))}

    def set_params(self, **parameters: Any) -> Self:
        """Replace arguments of the constructor; raises CallerError for an unknown name."""
        for name in parameters:
            check_choice(name, _defaults(type(self)), what=f"parameter of {type(self).__name__}")
        for name, value in parameters.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = {name: repr(value) for name, value in _defaults(type(self)).items()}
        texts = {name: repr(value) for name, value in self.get_params().items()}
        given = [f"{name}={text}" for name, text in texts.items() if text != defaults[name]]
        return f"{type(self).__name__}({', '.join(given)})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "result_")

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn from 1.6 on asks of an estimator; only it calls this."""
        tags = import_module("sklearn.utils")
        kind = self._estimator_type
        return tags.Tags(
            estimator_type=kind,
            target_tags=tags.TargetTags(required=True, multi_output=kind == "regressor"),
            transformer_tags=None,
            classifier_tags=tags.ClassifierTags() if kind == "classifier" else None,
            regressor_tags=tags.RegressorTags() if kind == "regressor" else None,
            input_tags=tags.InputTags(two_d_array=True, three_d_array=True),
        )

    # -- fitting ---------------------------------------------------------------------------

    def _moves(self, example: Tensor) -> bool:
        return self.actions is not None and _all_move(self.actions, example)

    def _learn(self, x: Any, targets: Tensor, classes: tuple[str, ...] | None) -> None:
        inputs = _inputs(x, self._moves)
        data = LabelledData(inputs, targets, classes, name="data")
        settings = replace(self.config or LearnConfig(), objective=self.objective, seed=self.seed)
        if self.epochs is not None:
            settings = replace(settings, epochs=self.epochs)
        if self.samples is not None:
            settings = replace(settings, samples=self.samples)
        shape = tuple(inputs.shape[1:])
        with _own_randomness(self.seed, self.device):
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
        """Averaged outputs float64 `(examples, outputs)`, on the CPU."""
        if not self.__sklearn_is_fitted__():
            raise CallerError(
                f"this {type(self).__name__} is not fitted yet; call fit(x, y) before predicting"
            )
        model, like = self.result_.model, self.result_.trainer.inputs
        inputs = _inputs(x, lambda example: example.shape[1:] == self.input_shape_)
        if tuple(inputs.shape[1:]) != self.input_shape_:
            raise CallerError(
                f"inputs: expected {self.input_shape_} for each example, as in fit, got "
                f"{shape_text(inputs[0])}: X has {inputs[0].numel()} features, but "
                f"{type(self).__name__} is expecting {self.n_features_in_} features as input"
            )
        check_finite(inputs, what="inputs", advice="replace them or leave these examples out")
        samples = 1 if model.augmentation.is_identity else model.samples
        seed = self.result_.trainer.config.seed  # as it was in fit; the parameter may be another
        noise = model.noise(1, samples=samples, generator=stream(seed, "predict", 0, like.device))
        parts = inputs.split(max(1, ROWS_AT_ONCE // samples))
        outputs = [model(part.to(like), noise.expand(len(part), -1, -1)) for part in parts]
        return torch.cat(outputs).double().cpu()


def _inputs(x: Any, stay: Callable[[Tensor], bool]) -> Tensor:
    """Inputs float32 in standard form; of three axes they stay so where `stay(example)` says it."""
    if hasattr(x, "toarray"):
        raise CallerError("inputs: expected a dense array, got a sparse one; give x.toarray()")
    values = tensor_from(x, what="inputs")
    if values.ndim < 2 or len(values) == 0:
        raise CallerError(
            f"inputs: expected (examples, features...) with one example or more, got "
            f"{shape_text(values)}. Reshape your data, one example alone with x[None]"
        )
    if values.ndim == 3 and stay(values[:1].to(torch.float32)):
        return values.to(torch.float32)
    return standard_inputs(values)[0]


def _all_move(actions: Actions, example: Tensor) -> bool:
    """Whether all `actions` take data of this shape: (batch, …) comes out as (batch, samples, …).

    A function of the user's need not check what it is given, so the shape that comes out counts.
    """
    parts = [actions] if isinstance(actions, Action | FiniteAction) else actions
    try:
        for part in parts:
            if isinstance(part, FiniteAction):
                part.check(example)
                continue
            moved = part.act(example.new_zeros(1, 1, part.coordinate_count), example)
            if tuple(moved.shape) != (1, 1, *example.shape[1:]):
                return False
    except (ValueError, RuntimeError, IndexError):
        return False
    return True


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


def _defaults(kind: type[InvariantEstimator]) -> dict[str, Any]:
    """The constructor's arguments in their order, with their default values."""
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    return {parameter.name: parameter.default for parameter in parameters}
