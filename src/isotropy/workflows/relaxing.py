"""`isotropy.learn_layers`: train a relaxed network and find out what each of its layers becomes.

    relaxed = isotropy.relax(network, ("ffc", "conv"), example=images[:1])
    result = isotropy.learn_layers(relaxed, (images, labels), (test_images, test_labels))
    result.layers              [{"name": "0", "became": "conv", "effective": {…}, …}, …]
    result.model               the trained network
    result.harden()            plain layers, without the pathways that were switched off
    result.save("runs/mine")   a run folder; `workflows.loading.load_layers` gives the network back

The evidence of the training data alone decides. Nothing is printed; progress comes by callback.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isotropy.checkpoint import CHECKPOINT, check_unused, save_tensors
from isotropy.checks import CallerError, shape_text
from isotropy.curvature.recording import evaluation_mode
from isotropy.data.labelled import LabelledData, Split
from isotropy.evidence.layer_schedule import RelaxConfig, resolved
from isotropy.evidence.layer_structure import relaxed_layers
from isotropy.evidence.layer_training import LayerEpoch, LayerTrainer
from isotropy.evidence.scoring import plain_scores
from isotropy.likelihoods import likelihood_named
from isotropy.networks.hardening import harden
from isotropy.networks.pathways import PathwayOptions, check_kinds, options_for
from isotropy.networks.relaxed_cnn import relaxed_cnn
from isotropy.networks.specification import NetworkSpecification, specification_of
from isotropy.report.relax_report import relax_page
from isotropy.workflows.preparing import device_of, read_split, write_page, write_run
from isotropy.workflows.provenance import record_head

KIND = "relax"
"""What a record and a run folder's config.json say they are of."""
ASKED = 256
"""Training examples on which it is asked whether outputs depend on inputs."""
RELAXED_CNN = "relaxed_cnn"
"""Of a specification: the network is `networks.relaxed_cnn` of its arguments."""


@dataclass(frozen=True)
class RelaxProgress:
    """Told after every epoch: the resolved settings, and this epoch's row."""

    config: RelaxConfig
    row: LayerEpoch


@dataclass(frozen=True)
class RelaxResult:
    """What was learned. `record` is the JSON object that the command line prints.

    model:  the trained network, in evaluation mode
    config: what config.json of a run folder holds: data, network and settings
    """

    model: nn.Module
    record: dict[str, Any]
    config: dict[str, Any]
    split: Split = field(repr=False)

    @property
    def layers(self) -> list[dict[str, Any]]:
        """What every relaxed layer has become; see `evidence.layer_structure`."""
        found: list[dict[str, Any]] = self.record["layers"]
        return found

    def harden(self, *, below: float = 0.01) -> nn.Module:
        """The network with plain layers, without pathways that hold less than `below`."""
        return harden(self.model, below=below)

    def save(self, folder: str | Path) -> Path:
        """Write a run folder: settings, weights, result and report.

        Raises CallerError for a folder that holds a run already, or that cannot be written.
        """
        path = Path(folder)
        check_unused(path)
        record = {**self.record, "run_folder": str(path)}
        write_run(path, self.config, record, relax_page(record))
        weights = {f"network/{n}": t for n, t in self.model.state_dict().items() if _is_tensor(t)}
        save_tensors(path / CHECKPOINT, weights, {"epoch": self.record["config"]["epochs"]})
        return path

    def report(self, path: str | Path) -> Path:
        """Write the report alone: one self-contained HTML file."""
        return write_page(path, relax_page(self.record))


def learn_layers(
    model: nn.Module,
    train: Any,
    test: Any = None,
    *,
    config: RelaxConfig | None = None,
    device: str | torch.device | None = None,
    hardened: bool = False,
    progress: Callable[[RelaxProgress], None] | None = None,
    network: NetworkSpecification | None = None,
    describe: Mapping[str, Any] | None = None,
) -> RelaxResult:
    """Train `model` and learn from the training data alone how much each of its pathways is needed.

    model     an nn.Module from (batch, …) to (batch, outputs), as `relax` or `relaxed_cnn` make
              it; a copy is trained
    train     (inputs, targets), a torch Dataset, LabelledData, a Split, or a path to data
    test      the same, only scored
    device    where to run; by default where the model is
    hardened  score the hardened network on the test data too
    progress  told after every epoch
    network   how the model is built again from words, for the run folder
    describe  further entries of the record, such as "task" and "pathways"

    Raises CallerError for what the caller can put right, naming a layer without a curvature rule.
    """
    if not relaxed_layers(model):
        raise CallerError(
            "expected a model with relaxed layers, got none; isotropy.relax(model) makes them"
        )
    settings = config or RelaxConfig()
    split = read_split(train, test, settings.seed)
    place = device_of(model) if device is None else torch.device(device)
    settings = resolved(settings, examples=len(split.train), on_gpu=place.type == "cuda")
    trained = copy.deepcopy(model).to(place)
    likelihood = likelihood_named(
        "categorical" if split.train.is_classification else "gaussian"
    ).to(place)
    trained_on = _on(split.train, trained, place)
    tested_on = None if split.test is None else _on(split.test, trained, place)
    _check_outputs(trained, split.train, place)
    trainer = LayerTrainer(trained, likelihood, settings, *trained_on)
    started = time.monotonic()
    rows: list[LayerEpoch] = []
    assert settings.epochs is not None
    while trainer.epoch < settings.epochs:
        rows.append(trainer.run_epoch(tested_on))
        if progress is not None:
            progress(RelaxProgress(settings, rows[-1]))
    structures, log_evidence = trainer.structures()
    trained.eval()
    specification = network or specification_of(model)
    plain = _hardened(trained, likelihood, tested_on) if hardened else None
    record = {
        **record_head(
            "relax",
            seed=settings.seed,
            device=place,
            seconds=time.monotonic() - started,
            run_folder=None,
        ),
        "kind": KIND,
        "data": {"name": split.train.name, "notes": list(split.notes)},
        "train_examples": len(split.train),
        "test_examples": None if split.test is None else len(split.test),
        "task": None,
        "pathways": _kinds(trained),
        "width": None,
        "group": None,
        "network": specification.name,
        "objective": settings.objective,
        "curvature": settings.curvature,
        "config": settings.as_dict(),
        "num_parameters": _parameters(trained),
        "test_accuracy": rows[-1].test_accuracy,
        "test_nll": rows[-1].test_nll,
        "train_loss": rows[-1].train_loss,
        "log_evidence": log_evidence,
        "log_evidence_per_example": log_evidence / len(split.train),
        "layers": [structure.as_dict() for structure in structures],
        "prior_precision": trainer.prior.by_group(),
        "epochs": [row.as_dict() for row in rows],
        "hardened": plain,
        "notes": _warnings(trained, trained_on[0], settings),
        **(describe or {}),
    }
    kept = {
        "schema": 1,
        "kind": KIND,
        "data": {
            "name": split.train.name,
            "shape": list(split.train.inputs.shape[1:]),
            "outputs": split.train.num_outputs,
        },
        "network": specification.as_dict(),
        "schedule": settings.as_dict(),
    }
    return RelaxResult(trained, record, kept, split)


def relax_and_learn(
    data: Split,
    *,
    pathways: Sequence[str] = ("ffc", "conv"),
    width: int = 10,
    group: str | None = None,
    config: RelaxConfig | None = None,
    device: str | torch.device | None = None,
    hardened: bool = False,
    progress: Callable[[RelaxProgress], None] | None = None,
    describe: Mapping[str, Any] | None = None,
    options: PathwayOptions | None = None,
) -> RelaxResult:
    """`learn_layers` of the paper's architecture (`networks.relaxed_cnn`) for images.

    group:   of group convolutions, by name; quarter turns if neither this nor `options` says
    options: what pathways are made with
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
        "width": width,
        "group": None if options.group is None else options.group.name,
    }
    network = relaxed_cnn(
        tuple(data.train.inputs.shape[1:]),
        data.train.num_outputs,
        pathways=tuple(pathways),
        width=width,
        options=options,
        generator=torch.Generator().manual_seed(settings.seed),
    )
    others = {f.name: getattr(options, f.name) for f in fields(options) if f.name != "group"}
    return learn_layers(
        network,
        data,
        config=settings,
        device=device or "cpu",
        hardened=hardened,
        progress=progress,
        network=NetworkSpecification("relaxed", RELAXED_CNN, {**arguments, "options": others}),
        describe={**arguments, **(describe or {})},
    )


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


def _on(
    data: LabelledData, network: nn.Module, place: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = next((p.dtype for p in network.parameters()), torch.float32)
    targets = data.targets if data.is_classification else data.targets.to(dtype)
    return data.inputs.to(place, dtype), targets.to(place)


def _check_outputs(network: nn.Module, data: LabelledData, place: torch.device) -> None:
    inputs, _ = _on(data.take(torch.arange(min(2, len(data)))), network, place)
    try:
        with evaluation_mode(network), torch.no_grad():
            outputs = network(inputs)
    except RuntimeError as error:
        raise CallerError(
            f"{data.name}: the network cannot be run on inputs {shape_text(inputs)}: {error}"
        ) from error
    if tuple(outputs.shape) != (len(inputs), data.num_outputs):
        raise CallerError(
            f"network outputs: expected ({len(inputs)}, {data.num_outputs}) for {data.name}, got "
            f"{tuple(outputs.shape)}"
        )


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


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)
