"""A run from its beginning to its last epoch.

Every workflow that trains begins in the same way (`begin`): data are read, the device and words for
the network found. Then settings are resolved, a trainer is built (`prepare_run`), and the run goes
into its folder (`in_folder`), which must be unused or hold this very run: model, data, objective
and schedule are compared. `KeptRun.epochs` trains, and saves as it goes.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from isotropy._version import __version__
from isotropy.checks import CallerError, shape_text
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import DEFAULT_KIND
from isotropy.curvature.recording import evaluation_mode
from isotropy.data.borders import chosen_border
from isotropy.data.labelled import CHANNEL_ADDED, LabelledData, Split
from isotropy.data.readers import read
from isotropy.data.streams.streamed import StreamedData, held
from isotropy.evidence.elbo import head_of
from isotropy.evidence.estimate import estimate_run
from isotropy.evidence.machine import (
    check_factor_memory,
    fit_curvature_batch,
    fit_frozen,
    is_deep,
)
from isotropy.evidence.settings import LearnConfig, LearnSchedule
from isotropy.evidence.training import Trainer
from isotropy.evidence.weight_steps import augmentation_for
from isotropy.kernels.compiled import is_convolutional
from isotropy.kernels.ranks import ranks
from isotropy.likelihoods import likelihood_named
from isotropy.networks import batch_statistics, frozen
from isotropy.networks.averaging.augmentations import Augmentation
from isotropy.networks.averaging.baselines import RandomCopies
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.averaging.mixtures import Mixture
from isotropy.networks.batch_statistics import FIRST_EXAMPLES
from isotropy.networks.frozen import NOTHING, freeze, trained_head, with_new_head
from isotropy.networks.one_function import TRIED, check_one_function
from isotropy.networks.one_output import Select, SelectedOutput, one_output
from isotropy.networks.zoo.specification import NetworkSpecification, specification_of
from isotropy.records import (
    CHECKPOINT,
    CONFIG,
    check_unused,
    commit,
    load_trainer,
    make_folder,
    read_json,
    save_trainer,
    write_json,
)
from isotropy.symmetry.actions.action import Action, Composition
from isotropy.symmetry.actions.catalogue import actions_named, default_names
from isotropy.symmetry.actions.finite import FiniteAction
from isotropy.symmetry.actions.images import AffineAction, affine
from isotropy.workflows.runs.same_run import check_same_run, fingerprint

Actions = Action | FiniteAction | Sequence[Action | FiniteAction]
"""What may be a symmetry: one Action or several, continuous or finite."""


FEW_SOLVES = 4
"""Epochs after which prior and posterior of a last layer no longer change."""


def border_of(actions: Actions) -> dict[str, Any]:
    """Padding and fill of what resamples images, for a run's config; null where nothing does."""
    parts: list[Action | FiniteAction] = []
    for each in actions if isinstance(actions, Sequence) else [actions]:
        parts += each.actions if isinstance(each, Composition) else [each]
    for part in parts:
        if isinstance(part, AffineAction) and part.interpolation != "fourier":
            return {"padding": part.padding, "fill": part.fill and list(part.fill)}
    return {"padding": None, "fill": None}


def default_actions(train: LabelledData) -> tuple[Actions, tuple[str, ...]]:
    """What may be a symmetry of these data where nobody said, and notes.

    Of images the paper's six generators, with a padding that follows from the pictures; of other
    data as `default_names` says.
    """
    if not train.is_images:
        shape = tuple(train.inputs.shape[1:])
        names = default_names(shape)
        note = f"candidates by default for data of shape {shape}: {', '.join(names)}"
        return actions_named(names, shape, columns=train.columns), (note,)
    border = chosen_border(train.inputs)
    return affine(padding=border.padding, fill=border.fill), border.notes


def all_move(actions: Actions, example: Tensor) -> bool:
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


def device_of(model: nn.Module) -> torch.device:
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


@dataclass(frozen=True)
class Beginning:
    """What a workflow that trains starts from.

    split:    the data, with notes on what was decided about them
    place:    where it runs
    network:  words for the model, from which a run folder builds it again
    started:  by `time.monotonic`
    gained_channel: inputs came with three axes and were read as grey images
    """

    model: nn.Module
    split: Split
    place: torch.device
    network: NetworkSpecification
    started: float
    gained_channel: bool = False

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.started

    def held(self) -> Beginning:
        """With data in memory, a sample of them where they are streamed."""
        return replace(self, split=held(self.split))

    def acting(self, actions: Actions | None) -> tuple[Beginning, Actions]:
        """With the Actions that were given, or the default ones and notes on these.

        Inputs of three axes that these, or the network, take as they came and not as grey images
        lose the channel axis again: they are sequences or clouds of points.
        """
        begun = self
        if self.gained_channel and self._stays_as_given(actions):
            begun = replace(self, split=_without_channels(self.split), gained_channel=False)
        if actions is not None:
            return begun, actions
        chosen, notes = default_actions(begun.split.train)
        split = replace(begun.split, notes=(*begun.split.notes, *notes))
        return replace(begun, split=split), chosen

    def _stays_as_given(self, actions: Actions | None) -> bool:
        image = self.split.train.inputs[:1]
        if actions is not None:
            return all_move(actions, image[:, 0]) and not all_move(actions, image)
        return _runs(self.model, image[:, 0]) and not _runs(self.model, image)

    def selecting(self, select: Select) -> Beginning:
        """With a network that returns one tensor: the one chosen, or where that is clear."""
        data = self.split.train
        few, own = data.subset(min(2, len(data)), 0), device_of(self.model)
        model = one_output(self.model, tensors_for(self.model, few, own)[0], select)
        if model is self.model:
            return self
        assert isinstance(model, SelectedOutput)
        words = model.select if isinstance(model.select, str | int) else None
        return replace(self, model=model, network=replace(self.network, select=words))

    def freezing(self, words: str) -> Beginning:
        """With a copy of the network in which is frozen what the words say (`networks.frozen`).

        Where it has another number of outputs than the data, it has a new last layer; a network
        with trained weights of a library has that also where nothing is frozen.
        """
        if words == NOTHING and not self.network.is_trained:
            return self
        model, data, own = copy.deepcopy(self.model), self.split.train, device_of(self.model)
        inputs, _ = tensors_for(model, data.subset(min(FIRST_EXAMPLES, len(data)), 0), own)
        network, example = self.network, inputs[:1]
        with torch.no_grad(), evaluation_mode(model):
            outputs = model(example).shape[-1]
        if outputs != data.num_outputs:
            model = with_new_head(model, data.num_outputs, example)
            network = replace(network, head=data.num_outputs)
        batch_statistics.find_first_statistics(model, inputs)  # while nothing is frozen
        freeze(model, words, example)
        return replace(self, model=model, network=network)

    def check_function(self) -> None:
        """Raise CallerError for a network whose outputs are not a function of each example."""
        data, own = self.split.train, device_of(self.model)
        inputs, _ = tensors_for(self.model, data.subset(min(TRIED, len(data)), 0), own)
        check_one_function(self.model, inputs)

    def check_ranks(self) -> None:
        """Raise CallerError where processes that share a run have other data, code or networks."""
        if ranks().are_many:
            sizes = [tuple(each.shape) for each in self.model.parameters()]
            facts = {"data": fingerprint(self.split.train), "network": sizes}
            versions = {"version of isotropy": __version__, "version of torch": torch.__version__}
            ranks().check_same({**facts, **versions, "commit": commit()})

    def resolved(self, settings: LearnConfig) -> LearnSchedule:
        """The settings with nothing left open: sizes fit the data and the memory of the place."""
        train, place = self.split.train, self.place
        if settings.evidence == "elbo" and settings.epochs is None:
            settings = self._solved_at_once(settings)
        found = settings.resolved(
            examples=len(train),
            on_gpu=place.type == "cuda",
            convolutional=is_convolutional(self.model),
            deep=is_deep(self.model, train.num_outputs),
        )
        if settings.freeze != NOTHING and settings.evidence == "laplace":
            few = train.subset(1, 0)
            example, _ = tensors_for(self.model, few, device_of(self.model))
            if trained_head(self.model, example) is not None:
                return fit_frozen(found, settings, self.model, example)
        if settings.curvature_batch is None:
            found = fit_curvature_batch(found, self.model, train.inputs[:1], place)
        return found

    def _solved_at_once(self, settings: LearnConfig) -> LearnConfig:
        """Few epochs where each is a solve for the same ranges and the same features."""
        if settings.elbo_solver == "sampled" or settings.recipe.learns:
            return settings
        example, _ = tensors_for(self.model, self.split.train.subset(1, 0), device_of(self.model))
        try:
            head = head_of(self.model, example)
        except RuntimeError:  # a network that does not fit the data is named where it is trained
            return settings
        trained = [n for n, p in self.model.named_parameters() if p.requires_grad]
        fixed = all(name.rpartition(".")[0] == head for name in trained)
        return replace(settings, epochs=FEW_SOLVES) if fixed else settings

    def config(self, settings: LearnConfig, describe: Mapping[str, Any] | None) -> dict[str, Any]:
        """What config.json holds of a run that keeps no checkpoint."""
        words = {"schedule": settings.as_dict(), "network": self.network.as_dict()}
        return {"schema": 1, **words, **(describe or {})}


def begin(
    model: nn.Module,
    train: Any,
    test: Any,
    *,
    seed: int,
    device: str | torch.device | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    network: NetworkSpecification | None = None,
) -> Beginning:
    """Read the data and choose what callers may leave out; arguments as in `isotropy.learn`.

    Raises CallerError for a folder that holds a run, unless it is resumed, and for what cannot be
    read.
    """
    if folder is not None and not resume:
        check_unused(Path(folder))
    in_memory = not isinstance(train, str | Path)
    split = read(train, test, seed=seed, hold_out_fraction=0.0 if in_memory else 0.2)
    place = torch.device(device) if device is not None else device_of(model)
    words = network or specification_of(model)
    gained = any(note.startswith(CHANNEL_ADDED) for note in split.notes)
    return Beginning(model, split, place, words, time.monotonic(), gained)


def _without_channels(split: Split) -> Split:
    """The split with the channel axis of its images taken out again."""

    def plain_axes(data: LabelledData) -> LabelledData:
        return data.mapped(lambda inputs: inputs[:, 0])

    shape = shape_text(split.train.inputs[:, 0])
    notes = [note for note in split.notes if CHANNEL_ADDED not in note]
    test = None if split.test is None else plain_axes(split.test)
    note = f"inputs {shape} taken as they are: sequences or clouds of points, not grey images"
    return Split(plain_axes(split.train), test, (note, *notes))


@torch.no_grad()
def _runs(model: nn.Module, example: Tensor) -> bool:
    """Whether the network takes such an example."""
    first = next(model.parameters(), example)
    try:
        with evaluation_mode(model):
            model(example.to(first))
    except (RuntimeError, ValueError, IndexError, TypeError):
        return False
    return True


def make_trainer(
    model: nn.Module,
    train: LabelledData,
    actions: Actions,
    config: LearnSchedule,
    place: torch.device,
) -> Trainer[LearnSchedule]:
    network = copy.deepcopy(model).to(place)
    inputs, targets = tensors_for(network, train, place)
    augmentation = augmentation_for(config, actions, dtype=inputs.dtype).to(place)
    if config.recipe.learns or not augmentation.is_identity:
        check_actions(augmentation, train)
    likelihood = likelihood_named(config.likelihood if train.is_classification else "gaussian").to(
        place
    )
    averaged = InvariantModel(network, augmentation, config.samples)
    stream = train if isinstance(train, StreamedData) else None
    trainer = Trainer(averaged, likelihood, config, inputs, targets, stream)
    if train.scaling is not None:
        trainer.target_deviation = train.scaling.target_deviation
    return trainer


def tensors_for(
    network: nn.Module, data: LabelledData, place: torch.device
) -> tuple[Tensor, Tensor]:
    """Inputs and targets on a device, in the network's type; labels stay whole numbers."""
    dtype = next((p.dtype for p in network.parameters()), torch.float32)
    targets = data.targets if data.is_classification else data.targets.to(dtype)
    return data.inputs.to(place, dtype), targets.to(place)


def check_actions(augmentation: Augmentation, train: LabelledData) -> None:
    """Move one example, so that data on which the actions do not act are named at once."""
    example = train.inputs[:1]
    action = augmentation.action
    try:
        action.act(example.new_zeros(1, 1, action.coordinate_count), example)
    except CallerError as error:
        names, remedy = ", ".join(action.names), _with_remedy(error, train)
        raise CallerError(f"{train.name}: {names} cannot act on it: {remedy}") from error
    if isinstance(augmentation, RandomCopies):
        augmentation.transform.check(train.inputs)
    for finite in augmentation.finite if isinstance(augmentation, Mixture) else ():
        try:
            finite.check(example)
        except CallerError as error:
            remedy = _with_remedy(error, train)
            raise CallerError(f"{train.name}: {finite.name} cannot act on it: {remedy}") from error


def _with_remedy(error: CallerError, train: LabelledData) -> str:
    """What an Action says of data it does not act on, with what does in place of its advice."""
    shape = tuple(train.inputs.shape[1:])
    if len(shape) > 3:
        return str(error)
    kind = ("tables", "sequences or clouds of points", "images")[len(shape) - 1]
    names = ", ".join(default_names(shape))
    return (
        f"{str(error).partition(';')[0]}; these are read as {kind}, for which leave actions out "
        f"({names} by default) or take isotropy.actions_named(names, {shape})"
    )


SCREENING = "screening.json"
"""The file of a run folder that keeps the screening the run started from."""
SEARCH = "search.json"
"""The same of its search."""
CHECKPOINT_SECONDS = 5.0
"""A run folder's checkpoint is never older than this and one epoch."""

AnyTrainer = TypeVar("AnyTrainer", bound=Any)
"""A `records.Resumable`: the trainer of `evidence`, or one of pairs."""


@dataclass(frozen=True)
class KeptRun(Generic[AnyTrainer]):
    """All that a run needs to go on.

    config: what its folder records; history: its epochs so far; folder: None if nothing is kept
    """

    trainer: AnyTrainer
    split: Split
    config: dict[str, Any]
    history: list[dict[str, Any]] = field(default_factory=list)
    folder: Path | None = None

    def save(self) -> None:
        """Write the checkpoint, where there is a folder."""
        if self.folder is not None and ranks().is_first:
            save_trainer(self.folder, self.trainer, self.history, self.config)

    def tell_estimate(self, remark: Callable[[str], None] | None, runs: int = 1) -> None:
        """Say what the epochs that are left will take; long evidence passes are told of too.

        runs: how many runs of this length are to come, this one among them
        """
        if remark is None or self.trainer.epoch >= self.trainer.config.epochs:
            return
        if ranks().are_many:  # all of them would have to try
            remark(f"{ranks().count} processes share the run")
            return
        self.trainer.remark = remark
        remark("trying one batch of every part of the run")
        tested = 0 if self.split.test is None else len(self.split.test)
        remark(f"{estimate_run(self.trainer, tested).of_runs(runs).text} to go")

    def scored(self) -> tuple[Tensor, Tensor] | None:
        """Test inputs and targets as the trainer scores them; None without test data."""
        test, like = self.split.test, self.trainer.targets
        if test is None:
            return None
        return test.inputs.to(self.trainer.inputs), test.targets.to(like.device, like.dtype)

    def epochs(self) -> Iterator[Any]:
        """Rows of the epochs that are left, each run when asked for and then in the history."""
        trainer, scored, saved = self.trainer, self.scored(), time.monotonic()
        while trainer.epoch < trainer.config.epochs:
            row = trainer.run_epoch(scored)
            self.history.append(row.as_dict())
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                self.save()
                saved = time.monotonic()
            yield row


@dataclass(frozen=True)
class PreparedRun(KeptRun[Trainer[LearnSchedule]]):
    """A run of `isotropy.learn`, with the records of what it starts from."""

    screening: Mapping[str, Any] | None = None
    search: Mapping[str, Any] | None = None


def prepare_run(
    begun: Beginning,
    settings: LearnConfig,
    *,
    actions: Actions,
    describe: Mapping[str, Any] | None = None,
) -> PreparedRun:
    """A run that keeps nothing yet; arguments as in `isotropy.learn`."""
    model, split, place = begun.model, begun.split, begun.place
    settings.check()
    if settings.recipe.evidence and settings.evidence == "laplace":
        check_factor_memory(model, settings.curvature or DEFAULT_KIND, place)
    resolved = ranks().told(begun.resolved(settings))
    begun.check_ranks()
    trainer = make_trainer(model, split.train, actions, resolved, place)
    config: dict[str, Any] = {
        "schema": 1,
        "objective": resolved.objective,
        "schedule": resolved.as_dict(),
        "network": begun.network.as_dict(),
        "generators": [symmetry.name for symmetry in trainer.model.symmetries()],
        "data": {
            "name": split.train.name,
            "train_examples": len(split.train),
            "test_examples": None if split.test is None else len(split.test),
            "shape": list(split.train.inputs.shape[1:]),
            "outputs": split.train.num_outputs,
            "classes": None if split.train.classes is None else list(split.train.classes),
            "columns": None if split.train.columns is None else list(split.train.columns),
            "scaling": None if split.train.scaling is None else split.train.scaling.as_dict(),
            "fingerprint": fingerprint(split.train),
        },
        **border_of(actions),
        "notes": list(split.notes),
        "truth": {},
        **(describe or {}),
    }
    config["notes"] = [*config["notes"], *network_notes(trainer)]
    return PreparedRun(trainer, split, config)


def network_notes(trainer: Trainer[Any]) -> list[str]:
    """Sentences on what a run does with layers of its network that are not like the others."""
    notes = [batch_statistics.sentence(trainer.network)]
    if getattr(trainer.config, "freeze", NOTHING) != NOTHING:
        notes.append(frozen.sentence(trainer.network))
    curvature = trainer.evidence.curvature if trainer.evidence.kind == "laplace" else None
    if isinstance(curvature, KFAC) and trainer.recipe.evidence:
        if curvature.fallen_back and curvature.fallback == "diagonal":
            named = [f"{name} ({kind})" for name, kind in curvature.fallen_back.items()]
            notes.append(f"no curvature rule, so diagonal blocks: {_listed(named)}")
        if curvature.constants:
            named = [f"{name} ({why})" for name, why in curvature.constants.items()]
            notes.append(f"trained, but constants of the evidence: {_listed(named)}")
    return [note for note in notes if note is not None]


def _listed(names: list[str], most: int = 4) -> str:
    """Some names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def in_folder(
    run: PreparedRun,
    folder: str | Path | None,
    *,
    resume: bool = False,
    screening: Mapping[str, Any] | None = None,
    search: Mapping[str, Any] | None = None,
) -> PreparedRun:
    """The run kept in a folder, begun there, or with `resume` continued from what it holds.

    screening, search: the records of what the run starts from
    """
    if folder is None:
        return replace(run, screening=screening, search=search)
    path = Path(folder)
    if resume:
        screening = read_json(path / SCREENING) if (path / SCREENING).exists() else screening
        search = read_json(path / SEARCH) if (path / SEARCH).exists() else search
    run = replace(run, screening=screening, search=search)
    records = {SCREENING: screening, SEARCH: search}
    return kept_in(run, path, resume=resume, records=records)


Run = TypeVar("Run", bound=KeptRun[Any])


def kept_in(
    run: Run,
    path: Path,
    *,
    resume: bool,
    records: Mapping[str, Mapping[str, Any] | None] | None = None,
) -> Run:
    """The run begun in the folder `path`, or with `resume` continued if that holds a checkpoint.

    records: further files of the folder, by name; null ones are not written
    Raises CallerError where the folder holds another run.
    """
    make_folder(path)
    if resume and (path / CHECKPOINT).exists():
        config = read_json(path / CONFIG)
        check_same_run(path, config, run.config)
        history = load_trainer(path, run.trainer, config)
        return replace(run, config=config, history=history, folder=path)
    # The settings last: before that, a run that is stopped here is still in its search.
    for name, record in {**(records or {}), CONFIG: run.config}.items():
        if record is not None:
            write_json(path / name, record)
    save_trainer(path, run.trainer, run.history, run.config)
    return replace(run, folder=path)
