"""`isotropy.measure`: what symmetry a trained network really has, and which layer breaks it.

One network or several, on one data set or several: for every generator of every Action the local
equivariance error with its standard error and resampling floor, layer by layer where layers are
known to transform, errors of finite transformations beside it, and exact ones apart.

Several data sets give the equivariance gap: how much larger a network's error is on one than on
another. Networks called "before" and "after" give the drift of the error on the same data. Two data
sets have different examples, so that standard errors add up as independent ones do; a drift is a
difference for each example, whose own standard error counts.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from isotropy.checks import CallerError, check_at_least
from isotropy.data.labelled import Split
from isotropy.data.readers import read
from isotropy.data.streams.streamed import held
from isotropy.equivariance.attribution import LayerSettings
from isotropy.equivariance.bridge import Acting, Acts, Own, Symmetry, hidden_layout, symmetries
from isotropy.equivariance.layouts import Layout
from isotropy.equivariance.measurement import mean_and_error
from isotropy.equivariance.subject import Inputs, On, Subject, plain_network
from isotropy.networks.one_output import Select
from isotropy.records import check_unused, record_head
from isotropy.report.pages.measure import measure_page
from isotropy.symmetry.actions.action import Action
from isotropy.symmetry.actions.catalogue import actions_named, default_names
from isotropy.symmetry.actions.finite import FiniteAction
from isotropy.symmetry.actions.images import GENERATORS, AffineAction, affine
from isotropy.symmetry.actions.warp import Interpolation, Padding
from isotropy.workflows.runs.measured_entry import MeasuredData, Progress, measured_entry
from isotropy.workflows.runs.prepared import device_of
from isotropy.workflows.runs.result import Result

THESIS_TRANSFORMATIONS = (
    "translation_x",
    "translation_y",
    "rotation",
    "shear_x",
    "scale",
    "scale_x",
    "scale_y",
    "hyperbolic_rotation",
    "amplitude",
)
"""The transformations of the Lie derivative paper: stretch is scale_x, brighten is amplitude."""


@dataclass(frozen=True, repr=False)
class MeasureResult(Result):
    """What was measured: the numbers by name, all of them in `record`."""

    SHOWN = ("on",)

    @property
    def actions(self) -> list[dict[str, Any]]:
        """What was measured of the first network on the first data set, a dictionary each."""
        found: list[dict[str, Any]] = self.record["actions"]
        return found

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The same for every network and data set."""
        found: list[dict[str, Any]] = self.record["entries"]
        return found

    def page(self) -> str:
        return measure_page(self.record, self.config)


def measured_actions(
    shape: Sequence[int],
    names: Sequence[str] | None = None,
    *,
    interpolation: Interpolation = "bilinear",
    padding: Padding = "reflection",
    fill: Sequence[float] | None = None,
    columns: Sequence[str] | None = None,
) -> list[Action | FiniteAction]:
    """Actions by name for data of `shape`, with images resampled as the Lie derivative paper does.

    Without names: all transformations of the paper on images; shift, stretch and amplitude of
    sequences; rotations, translations and scale of clouds of points; scale and sign of tables.
    """
    if names is None:
        names = THESIS_TRANSFORMATIONS if len(shape) == 3 else default_names(shape)
    chosen = [name.strip() for name in names]
    found = actions_named(chosen, shape, columns=columns)
    spatial = [name for name in chosen if name in GENERATORS]
    return [
        affine(spatial, interpolation=interpolation, padding=padding, fill=fill)
        if isinstance(each, AffineAction)
        else each
        for each in found
    ]


def measure(
    model: nn.Module | Mapping[str, nn.Module],
    data: Any,
    actions: Symmetry | Iterable[Symmetry] | None = None,
    *,
    on: str = "auto",
    outputs: str | Layout | Acts = "auto",
    select: Select = None,
    moves: str | None = None,
    layers: bool = True,
    layouts: Mapping[str, str | Layout | Acts] | None = None,
    attribution: str = "auto",
    probes: int = 32,
    finite: bool = True,
    examples: int = 100,
    batch_size: int | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    folder: str | Path | None = None,
    progress: Progress | None = None,
    describe: Mapping[str, Any] | None = None,
) -> MeasureResult:
    """Measure how far a trained network is from equivariance, as a whole and layer by layer.

    model     any module in evaluation mode, or several by name; it is not changed
    data      inputs (examples, …), a pair (inputs, targets), a data set or loader, a path, or
              several of these by name; with `moves`, a dictionary of tensors that the network
              takes by keyword, of which the one called `moves` is transformed
    actions   what to measure: an Action, a finite action, a group, a representation bound to one,
              a pair (input's, output's) with a group or representation in it, or several of these,
              of which any tuple is a pair (`equivariance.bridge`); all transformations of the Lie
              derivative paper by default
    on        "probabilities" or "outputs"; "auto" is probabilities where there are classes
    outputs   how the output transforms where no pair says so: "invariant", "image", "sequence",
              "tokens", an Action, a representation or a Layout; "auto" decides by its axes
    select    which of several outputs: a key, an attribute, a position or a function
    layers    attribute the error to layers; layouts says how the results of operations transform,
              by their names in the table of layers, where that cannot be found out
    attribution, probes   how: see `equivariance.attribution`
    finite    measure finite and exact transformations too
    examples  how many, drawn by the seed
    progress  told what is being measured, and how far it is
    """
    check_at_least(examples, 1, what="examples")
    models = dict(model) if isinstance(model, Mapping) else {"model": model}
    if not models:
        raise CallerError("model: expected one or more networks, got none")
    if folder is not None:
        check_unused(Path(folder), can_go_on=False)
    sets = _data_sets(data, moves, examples, seed)
    first = next(iter(models.values()))
    place = torch.device(device) if device is not None else device_of(first)
    started = time.monotonic()
    default_actions = actions is None
    if actions is None:
        shape = tuple(Subject(first, moves=moves).moved(sets[0].inputs).shape[1:])
        actions = measured_actions(shape)
    chosen = _symmetries(actions, outputs)
    hidden = {name: hidden_layout(each) for name, each in (layouts or {}).items()}
    how_layers = LayerSettings(attribution, probes, hidden) if layers else None
    entries = []
    for label, network in models.items():
        where = network if device is None else _on_device(network, place)
        for each in sets:
            how: On = _on(on, each)
            subject = Subject(plain_network(where), how, select, moves)
            heading = " on ".join(
                text
                for text, many in ((label, len(models) > 1), (each.label, len(sets) > 1))
                if many
            )
            entry = measured_entry(
                subject, each, chosen,
                layers={"layers": how_layers, "batch_size": batch_size},
                finite=finite, skip_unknown=default_actions, seed=seed,
                tell=_teller(progress, heading),
            )  # fmt: skip
            entries.append({"model": label, "on": how, **entry})
    gaps, drifts = gaps_between(entries), drifts_between(entries)
    for entry in entries:
        for row in entry["actions"]:
            del row["errors"]
    continuous = [each.inputs.continuous for each in chosen]
    spatial = next((each for each in continuous if isinstance(each, AffineAction)), None)
    padded = spatial is not None and spatial.interpolation != "fourier"
    record = {
        **record_head("measure", seed=seed, device=place, seconds=time.monotonic() - started),
        "on": entries[0]["on"],
        "interpolation": None if spatial is None else spatial.interpolation,
        "padding": spatial.padding if spatial is not None and padded else None,
        "actions": entries[0]["actions"],
        "entries": entries,
        "gaps": gaps,
        "drifts": drifts,
    }
    config = {"schema": 1, **(describe or {})}
    return MeasureResult(record=record, config=config).kept_in(folder)


def _symmetries(actions: Any, outputs: Any) -> list[Acting]:
    """What is to be measured; two Actions in a tuple are two symmetries, as in a list."""
    is_pair = isinstance(actions, tuple) and not all(isinstance(each, Own) for each in actions)
    if isinstance(actions, Iterable) and not isinstance(actions, str) and not is_pair:
        actions = list(actions)
    return symmetries(actions, outputs)


def _on(on: str, data: MeasuredData) -> On:
    if on != "auto":
        return on  # type: ignore[return-value]  # checked by Subject
    classes = data.labelled is not None and data.labelled.is_classification
    return "probabilities" if classes else "outputs"


def _on_device(network: nn.Module, place: torch.device) -> nn.Module:
    if all(tensor.device == place for tensor in network.state_dict().values()):
        return network
    return copy.deepcopy(network).to(place)


def _teller(progress: Progress | None, heading: str) -> Progress:
    def tell(text: str, done: int, total: int) -> None:
        if progress is not None:
            progress(f"{heading}: {text}" if heading else text, done, total)

    return tell


def _data_sets(data: Any, moves: str | None, examples: int, seed: int) -> list[MeasuredData]:
    if isinstance(data, Mapping) and moves is None:
        if not data:
            raise CallerError("data: expected one or more data sets, got none")
        return [_data(str(label), each, None, examples, seed) for label, each in data.items()]
    return [_data("data", data, moves, examples, seed)]


def _data(label: str, data: Any, moves: str | None, examples: int, seed: int) -> MeasuredData:
    if moves is not None:
        if not isinstance(data, Mapping) or not all(isinstance(x, Tensor) for x in data.values()):
            raise CallerError(
                f"data: expected a dictionary of tensors for moves={moves!r}, got "
                f"{type(data).__name__}"
            )
        return MeasuredData(label, label, _some(data, examples, seed), None)
    if isinstance(data, DataLoader):
        data = _gathered(data)
    if isinstance(data, Tensor):
        return MeasuredData(label, label, _some(data, examples, seed), None)
    split = held(data if isinstance(data, Split) else read(data, seed=seed, hold_out_fraction=0.0))
    labelled = split.train if split.test is None else split.test
    chosen = labelled.subset(min(examples, len(labelled)), seed)
    return MeasuredData(label, labelled.name, chosen.inputs, labelled)


def _some(inputs: Inputs, examples: int, seed: int) -> Inputs:
    """So many examples, drawn by the seed; all of them as they are where there are no more."""
    tensors = [inputs] if isinstance(inputs, Tensor) else list(inputs.values())
    lengths = sorted({len(tensor) for tensor in tensors})
    if len(lengths) != 1 or not lengths[0]:
        counted = ", ".join(map(str, lengths)) or "none"
        raise CallerError(f"data: expected inputs with equally many examples, got {counted}")
    if lengths[0] <= examples:
        return inputs
    drawn = torch.randperm(lengths[0], generator=torch.Generator().manual_seed(seed))[:examples]
    chosen = drawn.sort().values
    if isinstance(inputs, Tensor):
        return inputs[chosen.to(inputs.device)]
    return {name: tensor[chosen.to(tensor.device)] for name, tensor in inputs.items()}


def _gathered(loader: Iterable[Any]) -> Any:
    batches = list(loader)
    if not batches:
        raise CallerError("data: expected a loader with one or more batches, got none")
    if isinstance(batches[0], Tensor):
        return torch.cat(batches)
    if len(batches[0]) == 1:  # a TensorDataset of inputs alone
        return torch.cat([batch[0] for batch in batches])
    inputs, targets = zip(*((batch[0], batch[1]) for batch in batches), strict=True)
    return torch.cat(inputs), torch.cat(targets)


# --- differences between measurements -----------------------------------------------------------

Entry = Mapping[str, Any]


def gaps_between(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Every network's errors on later data sets against those on the first."""
    found = []
    for model in dict.fromkeys(entry["model"] for entry in entries):
        first, *others = [entry for entry in entries if entry["model"] == model]
        for other in others:
            found += _compared(first, other, "data", {"model": model}, paired=False)
    return found


def drifts_between(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """From the network called "before" to the one called "after", on each data set."""
    found = []
    for data in dict.fromkeys(entry["data"] for entry in entries):
        named = {entry["model"]: entry for entry in entries if entry["data"] == data}
        if "before" in named and "after" in named:
            pair = named["before"], named["after"]
            found += _compared(*pair, "model", {"data": data}, paired=True)
    return found


def _compared(
    first: Entry, other: Entry, along: str, same: Mapping[str, str], *, paired: bool
) -> list[dict[str, Any]]:
    rows = []
    for before, after in zip(first["actions"], other["actions"], strict=True):
        spread = [each["standard_error"] for each in (before, after)]
        error = None if None in spread else math.hypot(*spread)
        if paired:
            differences = torch.tensor(after["errors"]) - torch.tensor(before["errors"])
            error = mean_and_error(differences)[1]
        rows.append(
            {
                **same,
                "action": after["name"],
                "from": first[along],
                "to": other[along],
                "difference": after["error"] - before["error"],
                "standard_error": error,
            }
        )
    return rows
