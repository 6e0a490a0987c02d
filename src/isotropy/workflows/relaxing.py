"""`isotropy.relax` and `isotropy.learn_layers`: relax a network, train it, and find out what each
of its layers becomes.

    relaxed = isotropy.relax(network, ("ffc", "conv"), example=images[:1])
    relaxed = isotropy.relax(network, symmetry=isotropy.learn(network, (images, labels)))
    result = isotropy.learn_layers(relaxed, (images, labels), (test_images, test_labels))
    result.layers              [{"name": "0", "became": "conv", "effective": {…}, …}, …]
    result.model               the trained network
    result.harden()            plain layers, without the pathways that were switched off
    result.save("runs/mine")   a run folder; `isotropy.load` gives the network back

The evidence of the training data alone decides. Nothing is printed; progress comes by callback.
With `folder=` the run is saved as it goes and an interrupted one continues with `resume=True`,
ending with the numbers of an unbroken run.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.data.labelled import Split
from isotropy.evidence.layers.settings import RelaxConfig, RelaxSchedule, penalty_of, precision_of
from isotropy.evidence.layers.structure import relaxed_layers
from isotropy.evidence.layers.training import LayerEpoch, structures
from isotropy.evidence.predictive import plain_scores
from isotropy.evidence.training import Trainer
from isotropy.kernels.ranks import shared_by_ranks
from isotropy.likelihoods import Categorical, Gaussian, Likelihood
from isotropy.networks.building import is_convolutional
from isotropy.networks.equivariant.emlp import emlp_like
from isotropy.networks.one_output import Select
from isotropy.networks.pathways.equivariant import EquivariantPathway
from isotropy.networks.pathways.harden import harden
from isotropy.networks.pathways.relax import FREE_AND_EQUIVARIANT, relaxed_cnn
from isotropy.networks.pathways.relax import relax as relaxed_network
from isotropy.networks.pathways.relaxed_layer import PathwayOptions, check_kinds, options_for
from isotropy.networks.zoo.specification import NetworkSpecification
from isotropy.records import alone_in_folder, record_head, save_trainer
from isotropy.report.pages.relax import relax_page, relax_sentences
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.point_groups import PointGroup
from isotropy.symmetry.groups.representations import Representation, Scalar, V
from isotropy.workflows.building import Asked, build, finding_of, group_of
from isotropy.workflows.learning import LearnResult
from isotropy.workflows.runs.prepared import Beginning, KeptRun, begin, kept_in, tensors_for
from isotropy.workflows.runs.result import Result
from isotropy.workflows.runs.same_run import fingerprint

KIND = "relax"
"""What a record and a run folder's config.json say they are of."""
SHIFTS = ("translation_x", "translation_y")
"""What convolutions commute with."""
CLOSED_PENALTY = 100.0
"""λ of free pathways beside equivariant ones at the start of a regression, with noise of one."""
NOISE_SHARE = 0.2
"""Of the root mean square of targets: the noise at which the evidence of a regression starts to
learn it. Far above what the network leaves unexplained it would close pathways that are needed."""
ASKED = 256
"""Training examples on which it is asked whether outputs depend on inputs."""
RELAXED_CNN = "relaxed_cnn"
"""Of a specification: the network is `networks.pathways.relax` of its arguments."""


def relax(
    model: nn.Module,
    pathways: Sequence[str] | None = None,
    *,
    symmetry: Asked | tuple[Representation, Representation] | None = None,
    example: Tensor | Sequence[int] | None = None,
    layers: Iterable[str] | None = None,
    group: PointGroup | Group | str | None = None,
    options: PathwayOptions | None = None,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """A network of relaxed layers: each a sum of pathways, more and less equivariant.

    Without `symmetry` a copy of `model` with the same outputs: convolutions, or the equivariant
    layers of an EMLP, become one pathway of their layer, beside others that are zero.

    symmetry   has that symmetry built in first (`isotropy.build`), with new weights, and is then
               relaxed. A LearnResult, or the run folder of one as a Path: the group of what was
               found, however much of it; of translations alone the convolutions are relaxed. A
               group or its words. (source, target): how vectors transform, both bound to a group
    pathways   of each layer. The one that holds the weights is among them: conv, or equivariant.
               By default ffc and conv, of equivariant layers fc and equivariant, of group
               convolutions conv and equivariant
    example    a batch of inputs, or the shape of one; layers of vectors do without
    layers     names of the layers to relax; all if None
    group      of the pathway gconv; quarter turns if None
    options    what new pathways are made with
    generator  draws new weights; torch's own if None

    Raises CallerError if there is nothing to relax, if a layer is of another type or is called at
    two sizes, if new weights would take more than 2 GB, and if nothing was found that a network
    could have.
    """
    if symmetry is not None:
        model, usual, example = _with_symmetry(model, symmetry, example, generator)
        pathways = usual if pathways is None else pathways
    own: dict[str, Any] = {"example": example, "layers": layers, "group": group}
    return relaxed_network(model, pathways, **own, options=options, generator=generator)


def _with_symmetry(
    network: nn.Module,
    symmetry: Asked | tuple[Representation, Representation],
    example: Tensor | Sequence[int] | None,
    generator: torch.Generator | None,
) -> tuple[nn.Module, tuple[str, ...], Tensor | Sequence[int] | None]:
    """A network that has the symmetry, the pathways that relax it, and an example."""
    if isinstance(symmetry, tuple):
        return emlp_like(network, *symmetry, generator=generator), FREE_AND_EQUIVARIANT, example
    wanted: Any = symmetry
    if isinstance(symmetry, LearnResult | Path):
        finding = finding_of(symmetry)
        wanted, example = group_of(finding), finding.shape if example is None else example
        names = [each["name"] for each in finding.found]
        if wanted is None and set(names) & set(SHIFTS) and is_convolutional(network):
            return network, ("ffc", "conv"), example
        if wanted is None:
            raise CallerError(
                f"symmetry: expected a finding of flips, turns, translations or matrices on "
                f"vectors, got {', '.join(names) or 'nothing found'}; name a group, or build an "
                "average with isotropy.build"
            )
        if isinstance(wanted, Group):
            like = next(network.parameters(), torch.zeros(()))
            with torch.no_grad():
                outputs = int(network(like.new_zeros(2, *finding.shape)).shape[1])
            both = V(wanted), outputs * Scalar(wanted)
            return _with_symmetry(network, both, example, generator)
    built = build(network, wanted, example=example, generator=generator)
    if built.how == "average":
        raise CallerError(
            f"symmetry: expected one that layers can have, to relax them, got an average: "
            f"{built.sentence}"
        )
    return built.model, ("conv", "equivariant"), example


@dataclass(frozen=True)
class RelaxProgress:
    """Told after every epoch: the run's schedule, and this epoch's row."""

    config: RelaxSchedule
    row: LayerEpoch


@dataclass(frozen=True, repr=False)
class RelaxResult(Result):
    """What was learned; `model` is the trained network, in evaluation mode."""

    SHOWN = ("network", "pathways", "objective", "log_evidence", "test_accuracy")

    model: nn.Module
    split: Split
    trainer: Trainer[RelaxSchedule]

    @property
    def layers(self) -> list[dict[str, Any]]:
        """What every relaxed layer has become; see `evidence.layers.structure`.

        `became` is None where no hyper step was taken: precisions are where they started.
        """
        found: list[dict[str, Any]] = self.record["layers"]
        return found

    @property
    def hyper_steps(self) -> int:
        """Epochs that ended with steps on the prior precisions; 0 with the objective `map`."""
        return int(self.record["hyper_steps"])

    @property
    def sentences(self) -> list[str]:
        """What the layers became in words, or why that is not known and what to do."""
        return relax_sentences(self.record)

    def harden(self, *, below: float = 0.01) -> nn.Module:
        """The network with plain layers, without pathways that hold less than `below`."""
        return harden(self.model, below=below)

    def page(self) -> str:
        return relax_page(self.record)

    def write_own(self, path: Path) -> None:
        save_trainer(path, self.trainer, self.record["epochs"], self.config)


@shared_by_ranks
@alone_in_folder
def learn_layers(
    model: nn.Module,
    train: Any,
    test: Any = None,
    *,
    config: RelaxConfig | None = None,
    select: Select = None,
    device: str | torch.device | None = None,
    hardened: bool = False,
    folder: str | Path | None = None,
    resume: bool = False,
    started: Callable[[RelaxSchedule, int], None] | None = None,
    progress: Callable[[RelaxProgress], None] | None = None,
    remark: Callable[[str], None] | None = None,
    network: NetworkSpecification | None = None,
    describe: Mapping[str, Any] | None = None,
    request: Mapping[str, Any] | None = None,
) -> RelaxResult:
    """Train `model` and learn from the training data alone how much each of its pathways is needed.

    model     an nn.Module from (batch, …) to (batch, outputs), as `relax` or `relaxed_cnn` make
              it; a copy is trained
    train     (inputs, targets), a torch Dataset, LabelledData, a Split, or a path to data
    test      the same, only scored
    select    which of several outputs of the model counts, as in `learn`
    device    where to run; by default where the model is
    hardened  score the hardened network on the test data too
    folder    a run folder to write and, with `resume`, to continue; one that holds a run is not
              overwritten
    started   told once, when all is checked: the run's schedule, and how many epochs are done
    progress  told after every epoch
    remark    told sentences: what the run will take
    network   how the model is built again from words, for the run folder
    describe  further entries of the record, such as "task" and "pathways"
    request   what the command line was asked for, for the run folder

    Raises CallerError for what the caller can put right, naming a layer without a curvature rule.
    """
    if not relaxed_layers(model):
        raise CallerError(
            "expected a model with relaxed layers, got none; isotropy.relax(model) makes them"
        )
    settings = config or RelaxConfig()
    begun = begin(
        model, train, test, seed=settings.seed, device=device, folder=folder, resume=resume,
        network=network,
    ).held().selecting(select)  # fmt: skip
    begun.check_ranks()
    split, run = begun.split, _prepared(begun, settings)
    if request is not None:
        run.config["request"] = dict(request)
    if folder is not None:
        run = kept_in(run, Path(folder), resume=resume)
    trainer = run.trainer
    if started is not None:
        started(trainer.config, trainer.epoch)
    run.tell_estimate(remark)
    began, seconds_before = time.monotonic(), trainer.seconds
    for row in run.epochs():
        if progress is not None:
            progress(RelaxProgress(trainer.config, row))
    run.save()
    record = _record(run, hardened=hardened)
    record["seconds"] = seconds_before + time.monotonic() - began
    result = RelaxResult(
        trainer.network, split, trainer, record={**record, **(describe or {})}, config=run.config
    )
    return result.kept_in(run.folder)


def relax_and_learn(
    data: Split,
    *,
    pathways: Sequence[str] = ("ffc", "conv"),
    width: int = 10,
    group: str | None = None,
    config: RelaxConfig | None = None,
    describe: Mapping[str, Any] | None = None,
    options: PathwayOptions | None = None,
    model: tuple[NetworkSpecification, nn.Module] | None = None,
    **others: Any,
) -> RelaxResult:
    """`learn_layers` for images: of the paper's network (`networks.pathways.relax`) or of `model`.

    width:   of the paper's network
    group:   of group convolutions, by name; quarter turns if neither this nor `options` says
    options: what pathways are made with
    model:   a network in words and itself; it is relaxed (`networks.pathways.relax`)
    others:  as in `learn_layers`, on the CPU if no device is named
    """
    settings = config or RelaxConfig()
    if not data.train.is_images:
        raise CallerError(
            f"{data.train.name}: expected images (examples, channels, height, width), got "
            f"{tuple(data.train.inputs.shape)}; relaxed convolutions act on images"
        )
    check_kinds(pathways)
    options = options_for(pathways, group, options)
    arguments = {
        "pathways": list(pathways),
        "width": width if model is None else None,
        "group": None if options.group is None else options.group.name,
    }
    shape, generator = data.train.inputs.shape[1:], torch.Generator().manual_seed(settings.seed)
    own = {f.name: getattr(options, f.name) for f in fields(options) if f.name != "group"}
    kept: dict[str, Any] = {**arguments, "options": own}
    made: dict[str, Any] = {"pathways": pathways, "options": options, "generator": generator}
    if model is None:
        name = RELAXED_CNN
        network: nn.Module = relaxed_cnn(shape, data.train.num_outputs, width=width, **made)
    else:
        name, kept["network"] = model[0].text, model[0].as_dict()
        network = relaxed_network(model[1], example=shape, **made)
    return learn_layers(
        network,
        data,
        config=settings,
        network=NetworkSpecification("relaxed", name, kept),
        describe={**arguments, **(describe or {})},
        **{"device": "cpu", **others},
    )


def _prepared(begun: Beginning, settings: RelaxConfig) -> KeptRun[Trainer[RelaxSchedule]]:
    """A run that keeps nothing yet."""
    split, place = begun.split, begun.place
    if settings.free_precision is None and settings.objective == "laplace":
        settings = _closed(begun.model, settings, split)
    schedule = settings.resolved(examples=len(split.train), on_gpu=place.type == "cuda")
    trained = copy.deepcopy(begun.model).to(place)
    likelihood: Likelihood = Categorical() if split.train.is_classification else Gaussian()
    if isinstance(likelihood, Gaussian) and settings.objective == "laplace":
        size = float(split.train.targets.square().mean().sqrt())
        likelihood = Gaussian(NOISE_SHARE * (size or 1.0))
    likelihood.to(place)
    trainer = Trainer(trained, likelihood, schedule, *tensors_for(trained, split.train, place))
    if trainer.outputs != split.train.num_outputs:
        raise CallerError(
            f"network outputs: expected (batch, {split.train.num_outputs}) for {split.train.name}, "
            f"got (batch, {trainer.outputs})"
        )
    config = {
        "schema": 1,
        "kind": KIND,
        "data": {
            "name": split.train.name,
            "shape": list(split.train.inputs.shape[1:]),
            "outputs": split.train.num_outputs,
            "fingerprint": fingerprint(split.train),
        },
        "network": begun.network.as_dict(),
        "schedule": schedule.as_dict(),
    }
    return KeptRun(trainer, split, config)


def _closed(model: nn.Module, settings: RelaxConfig, split: Split) -> RelaxConfig:
    """Settings with which a regression by equivariant layers begins: what is free is all but
    closed, so that the evidence opens the one layer that is worth most, and not all of them a
    little. Classifiers and convolutions start as `RelaxConfig` says."""
    pathways = (each for layer in relaxed_layers(model).values() for each in layer.members())
    if split.train.is_classification or EquivariantPathway.kind not in pathways:
        return settings
    sizes = {"examples": len(split.train), "outputs": split.train.num_outputs}
    closed = precision_of(CLOSED_PENALTY, **sizes)
    return replace(settings, free_precision=max(settings.prior_precision, closed))


def _record(run: KeptRun[Trainer[RelaxSchedule]], *, hardened: bool) -> dict[str, Any]:
    """What was learned by a run that has ended."""
    trainer, split, last = run.trainer, run.split, run.history[-1]
    settings, trained = trainer.config, trainer.network
    found, log_evidence = structures(trainer)
    trained.eval()
    hyper_steps = sum(row["log_evidence"] is not None for row in run.history)
    layers = [structure.as_dict() for structure in found]
    noise = getattr(trainer.likelihood, "noise", None)
    for layer in layers:
        layer["penalty"] = {
            kind: _penalty(trainer, precision, noise)
            for kind, precision in layer["prior_precision"].items()
        }
        if settings.objective == "laplace" and not hyper_steps and len(layer["effective"]) > 1:
            layer["became"] = None  # shares are those of precisions that nothing has moved
    return {
        **record_head(
            "relax",
            seed=settings.seed,
            device=trainer.device,
            seconds=trainer.seconds,
            run_folder=run.folder,
        ),
        "kind": KIND,
        "data": {"name": split.train.name, "notes": list(split.notes)},
        "train_examples": len(split.train),
        "test_examples": None if split.test is None else len(split.test),
        "task": None,
        "pathways": _kinds(trained),
        "width": None,
        "group": None,
        "network": run.config["network"]["name"],
        "objective": settings.objective,
        "curvature": settings.curvature,
        "config": settings.as_dict(),
        "num_parameters": _parameters(trained),
        "test_accuracy": last["test_accuracy"],
        "test_nll": last["test_nll"],
        "train_loss": last["train_loss"],
        "log_evidence": log_evidence,
        "log_evidence_per_example": log_evidence / len(split.train),
        "hyper_steps": hyper_steps,
        "layers": layers,
        "prior_precision": trainer.prior.by_group(),
        "noise": noise,
        "epochs": run.history,
        "hardened": _hardened(trained, trainer.likelihood, run.scored()) if hardened else None,
        "notes": _warnings(trained, trainer.inputs, settings),
    }


def _penalty(
    trainer: Trainer[RelaxSchedule], precision: float | None, noise: float | None
) -> float | None:
    """λ of this δ in a regression."""
    if precision is None or noise is None:
        return None
    sizes = {"examples": len(trainer.inputs), "outputs": trainer.outputs}
    return penalty_of(precision, **sizes, noise=noise)


def _hardened(
    network: nn.Module, likelihood: Any, test: tuple[torch.Tensor, torch.Tensor] | None
) -> dict[str, Any]:
    plain = harden(network).eval()
    scores = None if test is None else plain_scores(plain, likelihood, *test)
    return {
        "num_parameters": _parameters(plain),
        "test_accuracy": None if scores is None else scores.accuracy,
        "test_nll": None if scores is None else -scores.log_likelihood,
    }


def _warnings(network: nn.Module, inputs: torch.Tensor, config: RelaxConfig) -> list[str]:
    """What a reader should know before all else: that the network answers alike to everything."""
    with torch.no_grad():
        outputs = network(inputs[:ASKED])
    spread, size = (outputs - outputs[:1]).abs().max(), outputs.abs().max()
    if len(outputs) == 1 or spread > 1e-5 * size:
        return []
    return [
        "The trained network gives the same outputs for all inputs: no signal is left in it, and "
        "what its layers became means nothing. Lower the weight rate, "
        f"{config.weight_rate:.2g} in this run."
    ]


def _kinds(network: nn.Module) -> list[str]:
    kinds = [kind for layer in relaxed_layers(network).values() for kind in layer.members()]
    return list(dict.fromkeys(kinds))


def _parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())
