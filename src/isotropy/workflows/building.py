"""`isotropy.build`: a network that has a symmetry exactly, made from the user's own network.

    result = isotropy.build(network, "C(4)", example=(3, 32, 32))
    result.how, result.exact     "group convolutions", True
    result.sentence              what was done, and why
    result.model                 to be trained; its weights are new
    result.save("runs/built")    a run folder; `isotropy.load` gives the model back

Three things can be done. Convolutional networks and a group of the grid: group convolutions
(`networks.building`). Vectors and tensors of any matrix group: equivariant layers
(`networks.equivariant.emlp`). All else is an average over transformed copies
(`networks.averaging.invariant_model`), which is exact for the elements of a finite group alone.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.recording import evaluation_mode
from isotropy.networks.averaging.augmentations import Augmentation
from isotropy.networks.averaging.invariant_model import TEST_SAMPLES, InvariantModel
from isotropy.networks.averaging.mixtures import Mixture, augmentation_over, uniform_over
from isotropy.networks.building import (
    LARGEST_ERROR,
    Width,
    group_network,
    is_convolutional,
    single_precision,
)
from isotropy.networks.equivariant.emlp import emlp_like, equivariance_error
from isotropy.networks.export.laws import augmentation_from_law
from isotropy.networks.one_output import Select, SelectedOutput
from isotropy.networks.zoo.specification import NetworkSpecification, specification_of
from isotropy.records import (
    AUGMENTATION,
    CHECKPOINT,
    CONFIG,
    RESULT,
    read_json,
    record_head,
    run_id,
    save_tensors,
)
from isotropy.report.pages.findings import found_names
from isotropy.report.record import Symmetry, read
from isotropy.report.wording import joined, short_amount, spoken_name
from isotropy.symmetry.actions.action import Action, MatrixGenerator
from isotropy.symmetry.actions.finite import FiniteAction, flip
from isotropy.symmetry.actions.images import affine
from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.point_groups import ELEMENTS, PointGroup
from isotropy.symmetry.groups.representations import Representation
from isotropy.workflows.learning import LearnResult
from isotropy.workflows.runs.prepared import device_of
from isotropy.workflows.runs.result import Result

KIND = "build"
"""What a record and a run folder's config.json say they are of."""
How = Literal["group convolutions", "equivariant layers", "average"]
Asked = LearnResult | Path | Group | PointGroup | str | Augmentation | FiniteAction
"""What can be built in: what was learned, or its run folder; a group; a law to average over."""
WHOLE = 0.9
"""The share of a uniform probability from which a learned element counts as fully there."""
WHOLE_ELEMENTS = {"horizontal_flip": 0.5, "vertical_flip": 0.5, "turn_90": 0.25, "turn_180": 0.5}
"""Elements of the grid that generate its groups, and their probability in the group of each."""


@dataclass(frozen=True)
class _Made:
    """What was built, and in JSON what it takes to build it again and to judge it."""

    model: nn.Module
    how: How
    sentence: str
    exact: bool
    details: dict[str, Any]


@dataclass(frozen=True, repr=False)
class BuildResult(Result):
    """What was built; `config` says how to build it again.

    model:    the network, in the mode that the given one was in; its weights are to be trained
    how:      "group convolutions", "equivariant layers" or "average"
    sentence: what was done, and why
    exact:    whether the symmetry that was asked for holds up to rounding
    """

    SHOWN = ("how", "exact", "num_parameters")

    model: nn.Module
    how: How
    sentence: str
    exact: bool

    def named(self, network: NetworkSpecification) -> BuildResult:
        """The same with words for the network that was given, so that a folder can rebuild it."""
        own = {"network": network.as_dict()}
        return replace(self, config={**self.config, **own}, record={**self.record, **own})

    def write_own(self, path: Path) -> None:
        state = self.model.state_dict().items()
        tensors = {f"network/{name}": each for name, each in state if isinstance(each, Tensor)}
        save_tensors(path / CHECKPOINT, tensors, {"run": run_id(self.config), "epoch": 0})


def build(
    network: nn.Module,
    symmetry: Asked | Sequence[FiniteAction] | None = None,
    *,
    group: Group | PointGroup | str | None = None,
    source: Representation | None = None,
    target: Representation | None = None,
    example: Tensor | Sequence[int] | None = None,
    select: Select = None,
    width: Width = "same parameters",
    generator: torch.Generator | None = None,
) -> BuildResult:
    """A network like `network` that has the symmetry; says how, why, and whether exactly.

    network   an nn.Module from (batch, …) to (batch, outputs); it is not changed
    symmetry  a LearnResult, or the run folder of one as a Path: what was found there is built in;
              a group, or its words, such as "C(4)"; finite actions or an Augmentation, over which
              the network is averaged
    group     is built in in place of what was learned
    source, target  how inputs and outputs transform: vectors and tensors of the group
    example   a batch of inputs, or the shape of one; a LearnResult knows it
    select    which of several outputs of the network counts, as in `learn`
    width     of group convolutions: "same parameters" as the network, or "same channels" for each
              element of the group
    generator draws new weights; torch's own if None

    Raises CallerError for what cannot be built, naming the layer, and for what is not invariant
    although it should be.
    """
    started = time.monotonic()
    if select is not None:
        network = SelectedOutput(network, select)
    asked = symmetry if group is None else group
    if source is not None or target is not None:
        made = _equivariant(network, asked, source, target, generator)
    else:
        learned = finding_of(symmetry) if isinstance(symmetry, LearnResult | Path) else None
        shape = _shape(example, learned)
        if group is None and learned is not None:
            made = _from_learned(network, learned, shape, width, generator)
        else:
            made = _from_asked(network, asked, shape, width, generator)
    words = specification_of(network).as_dict()
    own = {"kind": KIND, "how": made.how, "network": words, "outputs": _outputs(made)}
    own |= made.details
    seed = torch.initial_seed() if generator is None else generator.initial_seed()
    seconds, place = time.monotonic() - started, device_of(network)
    head = record_head(KIND, seed=seed, device=place, seconds=seconds)
    sizes = {"num_parameters": _count(made.model), "plain_parameters": _count(network)}
    record = {**head, **own, "exact": made.exact, "sentence": made.sentence, **sizes}
    config = {"schema": 1, **own}
    told = made.model, made.how, made.sentence, made.exact
    return BuildResult(*told, record=record, config=config)


# --- groups of the grid -----------------------------------------------------------------------


def _from_asked(
    network: nn.Module,
    asked: Any,
    shape: tuple[int, ...],
    width: Width,
    generator: torch.Generator | None,
) -> _Made:
    """A group, or what the network is averaged over."""
    if isinstance(asked, Augmentation):
        return _average(network, copy.deepcopy(asked), shape, "that is the law that was given")
    if isinstance(asked, FiniteAction):
        asked = [asked]
    if isinstance(asked, list | tuple) and all(isinstance(each, FiniteAction) for each in asked):
        return _average(network, uniform_over(asked), shape, "that is what was asked for")
    if isinstance(asked, Action):
        raise CallerError(
            f"symmetry: expected amounts of {', '.join(asked.names)}, got an Action alone; pass "
            "augmentation_over(action, start={name: half-width}) of "
            "isotropy.networks.averaging.mixtures"
        )
    asked = group_named(asked) if isinstance(asked, str) else asked
    if not isinstance(asked, Group | PointGroup):
        raise CallerError(
            "symmetry: expected a LearnResult or its run folder as a Path, a group or its words, "
            f"finite actions or an Augmentation, got {type(asked).__name__}"
        )
    if isinstance(asked, Group) and asked.algebra and asked.dimension == 2 and asked.is_self_dual:
        flips = [flip("horizontal")] if asked.discrete else []
        amounts = {"rotation": 180.0, **({"horizontal_flip": 0.5} if flips else {})}
        every = augmentation_over([affine(("rotation",)), *flips], start=amounts)
        return _average(network, every, shape, _ANGLES)
    group = PointGroup.of(asked)
    if not is_convolutional(network):
        why = "the network has no convolutions that could be made group convolutions"
        made = _average(network, uniform_over([group.as_action()]), shape, why, named=group.name)
        return replace(made, details={**made.details, "law": None, **_words(group)})
    return _convolutions(network, group, shape, width, generator)


_ANGLES = (
    "all angles of pictures on a grid cannot be exact; group='C(4)' builds quarter turns in exactly"
)


def _convolutions(
    network: nn.Module,
    group: PointGroup,
    shape: tuple[int, ...],
    width: Width,
    generator: torch.Generator | None,
) -> _Made:
    built = group_network(network, group, shape, width=width, generator=generator)
    count = len(built.convolutions)
    sentence = (
        f"{group} is built in exactly: {count} convolution{'s' * (count > 1)} became group "
        f"convolutions over its {group.order} elements, with a mean over the group before the "
        f"head; the largest relative error under an element is {built.error:.1g}."
    )
    if built.replaced:
        sentence += (
            f" The strides of {joined(list(built.replaced))} do not lie symmetrically on their "
            "maps: a polyphase component is kept instead."
        )
    details = {
        **_words(group), "law": None, "samples": None, "shape": list(shape), "width": width,
        "converted": list(built.convolutions), "replaced": built.replaced, "error": built.error,
    }  # fmt: skip
    return _Made(built.model, "group convolutions", sentence, True, details)


def _words(group: PointGroup) -> dict[str, Any]:
    return {"group": group.name, "matrices": [[*map(list, each)] for each in group.matrices]}


# --- averages ---------------------------------------------------------------------------------


def _average(
    network: nn.Module,
    augmentation: Augmentation,
    shape: tuple[int, ...],
    why: str,
    *,
    named: str | None = None,
) -> _Made:
    model = InvariantModel(copy.deepcopy(network), augmentation.to(_like(network)))
    model.train(network.training)
    error = _finite_error(model, shape)
    exact = error is not None and error <= LARGEST_ERROR
    over = named or joined(
        [f"{spoken_name(s.name)} {short_amount(s)}" for s in model.symmetries() if s.high]
    )
    copies = model.noise(1).shape[1]
    sentence = (
        f"The outputs are averaged over {copies} transformed copies ({over}), "
        f"{'which is exact' if exact else 'which is not exact'}: {why}."
    )
    details = {
        "group": None, "matrices": None, "law": augmentation.law(), "samples": model.samples,
        "shape": list(shape), "error": error,
    }  # fmt: skip
    return _Made(model, "average", sentence, exact, details)


@torch.no_grad()
def _finite_error(model: InvariantModel, shape: tuple[int, ...]) -> float | None:
    """The largest relative error under elements of finite actions alone; None if there is more."""
    law = model.augmentation
    finite = law.finite if isinstance(law, Mixture) else ()
    if law.action.generators or not finite or any(each.is_random for each in finite):
        return None
    drawn = torch.randn((4, *shape), generator=torch.Generator().manual_seed(0))
    trial = single_precision(model).eval()
    images = drawn.to(_like(trial))
    outputs = trial(images)
    moved = [each.move(n, images) for each in finite for n in range(len(each.elements))]
    return max(float((trial(each) - outputs).norm() / outputs.norm()) for each in moved)


# --- what was learned -------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """Symmetries that were found, as a record holds them; the law; the shape of an input."""

    found: list[dict[str, Any]]
    law: Augmentation
    shape: tuple[int, ...]


def finding_of(run: LearnResult | Path) -> Finding:
    """What was found in a run of `learn`, or in its folder."""
    if isinstance(run, LearnResult):
        record, shape = run.record, tuple(run.config["data"]["shape"])
        law = copy.deepcopy(run.model.augmentation)
    else:
        record, shape = read_json(run / RESULT), tuple(read_json(run / CONFIG)["data"]["shape"])
        law = augmentation_from_law(read_json(run / AUGMENTATION), shape)
    names = found_names(record)
    found = [s for s in record["symmetries"] if s["name"] in names]
    return Finding(found, law, shape)


def _from_learned(
    network: nn.Module,
    learned: Finding,
    shape: tuple[int, ...],
    width: Width,
    generator: torch.Generator | None,
) -> _Made:
    """Whole elements of the grid by group convolutions, all else by an average."""
    if not learned.found:
        raise CallerError(
            "symmetry: no symmetry was found in this run, so that there is nothing to build in; "
            "name a group with group="
        )
    group, taken = _whole_elements(learned.found)
    rest = [each for each in learned.found if each["name"] not in taken]
    if group is None or not is_convolutional(network):
        why = "a part of a group, or what resamples pictures, cannot be built in exactly"
        if group is not None:
            why = "the network has no convolutions that could be made group convolutions"
        elif any(each["name"] == "rotation" and each["high"] > 180 * WHOLE for each in rest):
            why = _ANGLES
        made = _average(network, learned.law, shape, why)
        return replace(made, details={**made.details, "symmetries": learned.found})
    made = _convolutions(network, group, shape, width, generator)
    if rest:
        assert isinstance(learned.law, Mixture)
        outer = learned.law.without(taken)
        amounts = [
            f"{spoken_name(each['name'])} {short_amount(read(Symmetry, each))}" for each in rest
        ]
        made = replace(
            made,
            model=InvariantModel(made.model, outer.to(_like(network))).train(network.training),
            exact=False,
            sentence=f"{made.sentence} The rest that was learned ({joined(amounts)}) is an average "
            "over transformed copies, which is not exact.",
            details={**made.details, "law": outer.law(), "samples": TEST_SAMPLES},
        )
    return replace(made, details={**made.details, "symmetries": learned.found})


def _whole_elements(found: Sequence[Mapping[str, Any]]) -> tuple[PointGroup | None, set[str]]:
    """The group of the grid whose elements were learned as fully as can be, and their names."""
    high = dict.fromkeys(ELEMENTS, 0.0) | {each["name"]: each["high"] for each in found}
    high["turn_90"] = min(high["turn_90"], high["turn_270"], high["turn_180"])
    whole = {n for n, full in WHOLE_ELEMENTS.items() if high[n] >= WHOLE * full}
    turns = {"turn_90", "turn_180", "turn_270"} if whole & {"turn_90", "turn_180"} else set()
    return PointGroup.generated_by(whole) if whole else None, whole | turns


def group_of(finding: Finding) -> PointGroup | Group | None:
    """The group that a finding is about, however much of it was found; None where there is none.

    Of images the group of the grid that its elements generate, quarter turns for a rotation by
    nearly any angle. Of vectors (d,) that of the matrices of generators and elements.
    """
    high = {each["name"]: each["high"] for each in finding.found}
    if len(finding.shape) > 1:
        names = {name for name in high if name in ELEMENTS}
        turns = {"turn_90"} if high.get("rotation", 0.0) > 180 * WHOLE else set()
        return PointGroup.generated_by(names | turns) if names | turns else None
    one = torch.eye(*finding.shape, dtype=torch.float64)
    algebra = [
        each.matrix
        for each in finding.law.action.generators
        if isinstance(each, MatrixGenerator) and each.name in high
    ]
    discrete = [
        action.move(number, one).T.numpy()  # rows of the data are vectors
        for action in (finding.law.finite if isinstance(finding.law, Mixture) else ())
        for number, name in enumerate(action.names)
        if name in high
    ]
    if not algebra and not discrete:
        return None
    return Group(joined(list(high)), algebra=algebra, discrete=discrete)


# --- vectors and tensors ----------------------------------------------------------------------


def _equivariant(
    network: nn.Module,
    asked: Any,
    source: Representation | None,
    target: Representation | None,
    generator: torch.Generator | None,
) -> _Made:
    group = group_named(asked) if isinstance(asked, str) else asked
    if source is None or target is None or not isinstance(group, Group | None):
        raise CallerError(
            "vectors and tensors: expected a group or its words, source= and target=, got "
            f"{type(group).__name__}, {source} and {target}"
        )
    model = emlp_like(network, source, target, group, generator=generator)
    error, widths = equivariance_error(model), [each.size for each in model.hidden]
    sentence = (
        f"{source} >> {target} of {model.group}: equivariant layers of "
        f"{joined([str(each) for each in widths])} channels took the place of the network's, which "
        f"is exact: the largest relative error is {error:.1g}."
    )
    details = {
        "group": (model.group if group is None else group).name, "source": str(source),
        "target": str(target), "channels": widths, "error": error, "notes": list(model.notes),
        "shape": [model.in_features],
    }  # fmt: skip
    return _Made(model, "equivariant layers", sentence, error <= LARGEST_ERROR, details)


# --- small things -----------------------------------------------------------------------------


def _shape(example: Tensor | Sequence[int] | None, learned: Finding | None) -> tuple[int, ...]:
    if isinstance(example, Tensor):
        return tuple(example.shape[1:])
    if example is not None:
        return tuple(example)
    if learned is None:
        raise CallerError(
            "example: expected a batch of inputs or the shape of one, such as (3, 32, 32), got none"
        )
    return learned.shape


def _outputs(made: _Made) -> int:
    zeros = _like(made.model).new_zeros((2, *made.details["shape"]))
    with evaluation_mode(made.model), torch.no_grad():
        return int(made.model(zeros).shape[1])


def _like(model: nn.Module) -> Tensor:
    return next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))


def _count(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())
