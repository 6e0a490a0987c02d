"""The steps of a story (`workflows.story`), their settings, and what each leaves in its folder.

A step is one call of a verb with the folder of its name. One that has ended is read from its
folder, one that was interrupted goes on there where its verb can, so that a story of any length can
be called again. The numbers of a network are put together from the records of all steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from isotropy.bounds.admission import drawn_by
from isotropy.bounds.compressing import Grid
from isotropy.bounds.symmetries import SQUARE_GROUPS, CodedSymmetry, coded_law
from isotropy.data.borders import chosen_border
from isotropy.data.labelled import LabelledData, Split
from isotropy.evidence.layers.settings import RelaxConfig
from isotropy.evidence.settings import LearnConfig, Settings
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.averaging.mixtures import augmentation_over
from isotropy.networks.pathways.relaxed_layer import PathwayOptions
from isotropy.networks.zoo.specification import NetworkSpecification, default_network, parse_network
from isotropy.records import RESULT, read_json
from isotropy.report.pages.findings import finding_sentences
from isotropy.report.pages.story import NETWORKS
from isotropy.report.record import Symmetry, read
from isotropy.report.wording import joined, short_amount, spoken_name
from isotropy.symmetry.actions.catalogue import actions_named
from isotropy.symmetry.actions.finite import FiniteAction
from isotropy.symmetry.groups.point_groups import PointGroup
from isotropy.workflows.building import Finding, build, finding_of, group_of
from isotropy.workflows.certifying import CertifyConfig, certify
from isotropy.workflows.learning import learn
from isotropy.workflows.loading import load
from isotropy.workflows.measuring import measure, measured_actions
from isotropy.workflows.relaxing import learn_layers, relax

LEARNED, MEASURED, CERTIFIED = "learned", "measured", "certified"
PLAIN, AUGMENTED, AVERAGED, BUILT, RELAXED = NETWORKS
PATHWAYS = ("conv", "equivariant")
"""Of the relaxed network: what is free, and the group convolution."""
STEPS = (0.25, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.4)
"""Step sizes that a certificate declares."""
HELD_OUT = 0.2
"""Share of the examples of data that bring no test set, for scores."""
COUNTED = 1000
"""Test examples that are predicted at once."""


@dataclass(frozen=True)
class StoryConfig(Settings):
    """What a caller may set.

    model            of all networks, by name; one that `build` and `relax` can convert
    generators       candidates for a symmetry, by name, separated by commas
    ranges           half-widths by name in reported units, known from elsewhere: then `learn` is
                     left out
    group            is built in whatever was found; None: what was found decides
    learn_examples   examples of `learn`, at most
    learn_epochs     its passes over them
    learn_samples    copies of an example in it
    search_examples  examples of a trial of its search
    train_examples   examples of every later step, at most. None: all
    epochs           passes over these, of every network
    batch_size       examples a weight step. None: an eightieth of the examples, 32 to 256
    weight_rate      learning rate of the weights
    samples          copies of an example that the averaged network is trained with
    test_samples     copies that it predicts with
    relaxed          laplace: the precisions of the relaxed network are learned; map: they are fixed
    dimension        of the subspace of certificates. None: a fourteenth of the examples, 5 to 300
    certified_epochs passes over the training data of a certificate. None: by their number
    certified_copies copies that a certificate of an average has
    delta            1 − confidence of each certificate
    measured         test examples that are measured
    """

    model: str = "turnable:6"
    generators: str = "rotation,translation_x,translation_y,horizontal_flip"
    ranges: Mapping[str, float] | None = None
    group: str | None = None
    learn_examples: int = 10_000
    learn_epochs: int = 20
    learn_samples: int = 8
    search_examples: int = 1000
    train_examples: int | None = None
    epochs: int = 20
    batch_size: int | None = None
    weight_rate: float = 5e-3
    samples: int = 4
    test_samples: int = 12
    relaxed: str = "laplace"
    dimension: int | None = None
    certified_epochs: int | None = None
    certified_copies: int = 4
    delta: float = 0.05
    measured: int = 100
    seed: int = 0

    counts: ClassVar[tuple[str, ...]] = (
        "learn_examples", "learn_epochs", "learn_samples", "search_examples", "train_examples",
        "epochs", "batch_size", "samples", "test_samples", "dimension", "certified_epochs",
        "certified_copies", "measured",
    )  # fmt: skip
    positive: ClassVar[tuple[str, ...]] = ("weight_rate",)
    choices: ClassVar[Mapping[str, Sequence[str]]] = {"relaxed": ("laplace", "map")}

    @property
    def names(self) -> list[str]:
        """The candidates."""
        return [each.strip() for each in self.generators.split(",") if each.strip()]

    def batch(self, examples: int) -> int:
        """Examples a weight step."""
        return min(examples, self.batch_size or max(32, min(256, examples // 80)))

    def subspace(self, examples: int) -> int:
        """Coordinates of a certificate."""
        return self.dimension or max(5, min(300, examples // 14))


QUICK: dict[str, Any] = {
    "generators": "rotation,horizontal_flip", "learn_examples": 1000, "search_examples": 500,
    "learn_epochs": 12, "learn_samples": 6, "epochs": 6, "samples": 2, "test_samples": 6,
    "certified_epochs": 16, "measured": 40, "relaxed": "map",
}  # fmt: skip
"""Settings of a story that shows in two minutes what a story is."""
FULL: dict[str, Any] = {
    "model": "turnable:16", "epochs": 40, "samples": 8, "learn_examples": 60_000,
    "search_examples": 1500, "learn_epochs": 40, "learn_samples": 16,
}  # fmt: skip
"""Settings of a story of MNIST on a GPU."""


@dataclass(frozen=True)
class StoryProgress:
    """Told of every step: its name, the number of it and of all, and what goes on in it."""

    step: str
    number: int
    steps: int
    text: str


@dataclass
class Trained:
    """A network that was trained, in words and itself, and its own record."""

    model: nn.Module
    words: NetworkSpecification
    record: Mapping[str, Any]


@dataclass
class Steps:
    """The steps of one story; each is read from its folder where it has ended.

    whole: the data as they were given; `split` has the training examples of the steps after `learn`
    """

    settings: StoryConfig
    whole: Split
    folder: Path
    place: torch.device
    progress: Callable[[StoryProgress], None] | None
    describe: dict[str, Any]
    step: str = ""
    count: int = 10
    steps: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        own, train = self.settings, self.whole.train
        count = own.train_examples or len(train)
        self.split = self.whole
        if count < len(train):
            self.split = replace(self.whole, train=train.subset(count, own.seed))
        self.shape: tuple[int, ...] = tuple(train.inputs.shape[1:])
        border = chosen_border(train.inputs)
        self.actions = actions_named(
            own.names, self.shape, padding=border.padding, fill=border.fill
        )
        self.words = parse_network(own.model)
        self.trained: dict[str, Trained] = {}

    # --- saying what goes on

    def say(self, text: str) -> None:
        if self.progress is not None:
            number = len(self.steps) + 1
            self.progress(StoryProgress(self.step, number, self.count, text))

    def done(self, name: str) -> Mapping[str, Any] | None:
        """Begin a step; its record if it has ended before."""
        self.step = name
        path = self.folder / name / RESULT
        return read_json(path) if path.exists() else None

    def ended(self, record: Mapping[str, Any], words: str) -> None:
        """Note the end of a step."""
        self.say(words)
        seconds = float(record.get("seconds") or 0.0)
        self.steps.append(
            {"name": self.step, "folder": str(self.folder / self.step), "seconds": seconds}
        )

    # --- training

    def fresh(self) -> nn.Module:
        """The network before training: the same weights in every step."""
        with drawn_by(self.settings.seed):
            return self.words.build(self.shape, self.split.train.num_outputs)

    def schedule(self, **others: Any) -> LearnConfig:
        """Of the networks that are compared, which differ in `others` alone."""
        own, examples = self.settings, len(self.split.train)
        every = max(1, own.epochs // 5)
        return LearnConfig(
            **{
                "epochs": own.epochs, "batch_size": own.batch(examples), "seed": own.seed,
                "weight_rate": own.weight_rate, "samples": own.samples,
                "test_samples": own.test_samples, "curvature": "kfac-mc",
                "curvature_examples": min(examples, 500), "update_every": every,
                "evaluate_every": own.epochs, "search": False, **others,
            }
        )  # fmt: skip

    def found(self) -> Mapping[str, Any]:
        """The run of `learn` that finds the symmetry, with the network that suits the data."""
        own, train = self.settings, self.whole.train
        count = min(len(train), own.learn_examples)
        part = replace(self.whole, train=train.subset(count, own.seed))
        words = default_network(part.train.inputs, own.names).specification
        with drawn_by(own.seed):
            network = words.build(self.shape, train.num_outputs)
        config = LearnConfig(
            epochs=own.learn_epochs, samples=own.learn_samples, test_samples=own.test_samples,
            search_examples=min(count, own.search_examples), seed=own.seed,
            evaluate_every=own.learn_epochs,
        )  # fmt: skip
        return self.learned(LEARNED, network, words, part, config)

    def learned(
        self,
        name: str,
        network: nn.Module,
        words: NetworkSpecification,
        split: Split,
        config: LearnConfig,
    ) -> Mapping[str, Any]:
        """A run of `learn` in the subfolder of this name; its record."""
        record = self.done(name)
        if record is None:
            self.say("training")
            request = {"actions": self.settings.names, **self.describe}
            run = learn(
                network, split, actions=self.actions, config=config,
                device=self.place, folder=self.folder / name, resume=True, network=words,
                remark=self.say, describe=request,
            )  # fmt: skip
            record = run.record
        self.ended(record, f"test accuracy {100 * (record['test_accuracy'] or 0):.1f} %")
        return record

    def train(
        self,
        name: str,
        network: nn.Module | None = None,
        words: NetworkSpecification | None = None,
        **own: Any,
    ) -> None:
        """One of the networks that are compared."""
        network, words = network or self.fresh(), words or self.words
        record = self.learned(name, network, words, self.split, self.schedule(**own))
        self.keep(name, name, words, record)

    def keep(self, name: str, folder: str, words: NetworkSpecification, record: Any) -> None:
        model = load(self.folder / folder).to(self.place).eval()
        if name in (PLAIN, AUGMENTED, BUILT) and isinstance(model, InvariantModel):
            model = model.network  # these predict images as they are
        self.trained[name] = Trained(model, words, record)

    # --- the story

    def told(self) -> tuple[dict[str, Any], dict[str, nn.Module]]:
        """All steps; the story's record, and the trained networks."""
        if self.settings.ranges is None:
            found = self.found()
            finding = finding_of(self.folder / LEARNED)
            sentences = list(finding_sentences(found, self.describe.get("truth") or {}))
        else:
            found, finding = self.known(self.settings.ranges)
            sentences = [f"{joined(_amounts(finding))} is known from elsewhere."]
        group, chosen = self.group(finding)
        names = [
            *([LEARNED] if self.settings.ranges is None else []),
            PLAIN,
            *([AUGMENTED, AVERAGED] if finding.found else []),
        ]
        names += [BUILT, RELAXED] if group is not None else []
        others = 2 if group is not None else int(bool(finding.found))  # certificates
        self.count = len(names) + 2 + others
        self.train(PLAIN, objective="none", samples=1)
        if finding.found:
            ranges = {each["name"]: float(each["high"]) for each in finding.found}
            self.train(AUGMENTED, objective="averaged-losses", ranges=ranges, samples=1)
            self.train(AVERAGED, objective="fixed", ranges=ranges)
        built: Mapping[str, Any] | None = None
        if group is not None:
            built = self.build(group)
            self.relax(group)
        measured = self.measure(group)
        certified = self.certify(group, finding, paid=self.settings.group is None)
        record = {
            "data": self.split.train.name,
            "train_examples": len(self.split.train),
            "test_examples": len(self.test),
            "network": self.words.text,
            "epochs": self.settings.epochs,
            "found": [dict(each) for each in finding.found],
            "finding": sentences,
            "verdicts": found.get("verdicts") or [],
            "symmetries": found["symmetries"],
            "group": None if group is None else group.name,
            "group_from": chosen,
            "built": built,
            "networks": [
                self.network(name, group, measured, certified)
                for name in NETWORKS
                if name in self.trained
            ],
            "delta": self.settings.delta,
            "steps": self.steps,
            "notes": list(self.split.notes),
        }
        return record, {name: each.model for name, each in self.trained.items()}

    def known(self, ranges: Mapping[str, float]) -> tuple[Mapping[str, Any], Finding]:
        """What was found elsewhere, as `learn` would tell it."""
        law = augmentation_over(self.actions, start=dict(ranges))
        told = [{**asdict(each), "interval": None} for each in law.symmetries()]
        found = [each for each in told if each["high"]]
        return {"symmetries": told, "verdicts": []}, Finding(found, law, self.shape)

    @property
    def test(self) -> LabelledData:
        assert self.split.test is not None  # it was checked
        return self.split.test

    def group(self, finding: Finding) -> tuple[PointGroup | None, str]:
        """What is built in, and where that comes from: "given", "found" or "nothing"."""
        if self.settings.group is not None:
            return PointGroup.of(self.settings.group), "given"
        found = group_of(finding)
        if isinstance(found, PointGroup):
            square = self.shape[1] == self.shape[2]
            if square or not found.exchanges_axes:
                return found, "found"
        return None, "nothing"

    def built_words(self, group: PointGroup) -> tuple[nn.Module, NetworkSpecification, Any]:
        generator = torch.Generator().manual_seed(self.settings.seed)
        made = build(self.fresh(), group, example=self.shape, generator=generator)
        made = made.named(self.words)
        words = NetworkSpecification("built", f"built {made.how}", made.config)
        return made.model, words, made.record

    def build(self, group: PointGroup) -> Mapping[str, Any]:
        model, words, about = self.built_words(group)
        self.train(BUILT, model, words, objective="none", samples=1)
        told = ("how", "sentence", "exact", "num_parameters", "plain_parameters", "error")
        return {name: about[name] for name in told}

    def relax(self, group: PointGroup) -> None:
        own, examples = self.settings, len(self.split.train)
        options = PathwayOptions()
        kept = {each.name: getattr(options, each.name) for each in fields(options)
                if each.name != "group"}  # fmt: skip
        matrices = [[*map(list, each)] for each in group.matrices]
        arguments = {
            "pathways": list(PATHWAYS), "width": None, "group": None, "options": kept,
            "network": self.words.as_dict(),
            "symmetry": {"group": group.name, "matrices": matrices},
        }  # fmt: skip
        words = NetworkSpecification("relaxed", f"relaxed {self.words.text}", arguments)
        record = self.done(RELAXED)
        if record is None:
            self.say("training")
            generator = torch.Generator().manual_seed(own.seed)
            model = relax(
                self.fresh(), PATHWAYS, symmetry=group, example=self.shape, generator=generator
            )
            config = RelaxConfig(
                objective=own.relaxed, epochs=own.epochs, batch_size=own.batch(examples),  # type: ignore[arg-type]
                weight_rate=own.weight_rate, curvature="kfac-mc", evaluate_every=own.epochs,
                curvature_examples=min(examples, 250), seed=own.seed,
            )  # fmt: skip
            record = learn_layers(
                model, self.split, config=config, device=self.place, resume=True,
                folder=self.folder / RELAXED, network=words, remark=self.say,
                describe={"pathways": list(PATHWAYS), "group": group.name},
                request=self.describe.get("request"),
            ).record  # fmt: skip
        self.ended(record, f"test accuracy {100 * (record['test_accuracy'] or 0):.1f} %")
        self.keep(RELAXED, RELAXED, words, record)

    def measure(self, group: PointGroup | None) -> dict[str, Mapping[str, Any]]:
        """What every network has, by name: an entry of `measure`."""
        record = self.done(MEASURED)
        if record is None:
            continuous = [each.names for each in self.actions if not isinstance(each, FiniteAction)]
            names = [name for own in continuous for name in own] or ["rotation"]
            actions: list[Any] = [*measured_actions(self.shape, names)]
            actions += [] if group is None else [group.as_action()]
            record = measure(
                {name: each.model for name, each in self.trained.items()},
                self.test, actions, layers=False, examples=self.settings.measured,
                seed=self.settings.seed, device=self.place, folder=self.folder / MEASURED,
                progress=lambda text, done, total: self.say(f"measuring {text}"),
                describe=self.describe,
            ).record  # fmt: skip
        self.ended(record, "measured")
        return {entry["model"]: entry for entry in record["entries"]}

    def certify(
        self, group: PointGroup | None, finding: Finding, *, paid: bool
    ) -> dict[str, Mapping[str, Any]]:
        """Certificates by network."""
        own, examples = self.settings, len(self.split.train)
        names = [PLAIN] if group is None else [PLAIN, BUILT, RELAXED]
        if group is None and AVERAGED in self.trained:
            names.append(AVERAGED)
        found: dict[str, Mapping[str, Any]] = {}
        for name in names:
            chosen = SQUARE_GROUPS if name in (BUILT, RELAXED) and paid else 1
            grid = Grid(
                dimensions=(own.subspace(examples),), steps=STEPS, betas=(1.0,), seeds=(own.seed,),
                trials=chosen,
            )  # fmt: skip
            folder = f"{CERTIFIED}-{name}"
            record = self.done(folder)
            if record is None:
                last = -1

                def tell(told: Any) -> None:
                    nonlocal last
                    fifth = 5 * told.epoch // max(told.epochs, 1)
                    if fifth > last:
                        last = fifth
                        self.say(f"epoch {told.epoch} of {told.epochs}")

                record = certify(
                    self.trained[name].words, self.split, device=self.place,
                    config=CertifyConfig(
                        delta=own.delta, grid=grid, train=grid, epochs=own.certified_epochs,
                        samples=own.certified_copies, seed=own.seed,
                    ),
                    symmetry=self.law(finding) if name == AVERAGED else None,
                    folder=self.folder / folder, progress=tell, describe=self.certificate_words(),
                ).record  # fmt: skip
            sure = f"{100 * (1 - own.delta):g} % confidence"
            self.ended(record, f"at most {100 * record['bound']:.1f} % with {sure}")
            found[name] = record
        return found

    def law(self, finding: Finding) -> CodedSymmetry:
        """What was found, as a certificate codes it."""
        names = [each["name"] for each in finding.found]
        copies = self.settings.certified_copies
        return coded_law(finding.law, self.shape, samples=copies, only=names)

    def certificate_words(self) -> dict[str, Any]:
        """What a certificate says of its data: how they are read again, but not from where."""
        request = self.describe.get("request")
        if request is None:
            return self.describe
        names = ("variant", "subset", "seed", "image_size")
        own = {name: request[name] for name in names if name in request}
        return {**self.describe, "request": {**own, "hold_out": HELD_OUT}}

    # --- numbers of a network

    def network(
        self,
        name: str,
        group: PointGroup | None,
        measured: Mapping[str, Mapping[str, Any]],
        certified: Mapping[str, Mapping[str, Any]],
    ) -> dict[str, Any]:
        own, entry = self.trained[name], measured[name]
        error = share_wrong(own.model, self.test, self.place)
        claim = certified.get(name)
        told = ("bound", "train_error", "test_error", "n", "dimension", "num_weights")
        exact = {each["name"]: each for each in entry["exact"]}
        elements = None if group is None else exact[group.as_action().name]
        return {
            "name": name,
            "num_parameters": sum(each.numel() for each in own.model.parameters()),
            "test_error": error,
            "test_standard_error": math.sqrt(error * (1 - error) / len(self.test)),
            "log_evidence": own.record.get("log_evidence"),
            "lie_derivatives": [
                {key: row[key] for key in ("name", "unit", "error", "standard_error")}
                for row in entry["actions"]
            ],
            "elements": elements,
            "certified": None
            if claim is None
            else {**{key: claim[key] for key in told}, "bits": claim["bits"]["total"]},
            "seconds": own.record.get("seconds"),
        }


def _amounts(finding: Finding) -> list[str]:
    """`rotation ±60°` and so on."""
    return [f"{spoken_name(s['name'])} {short_amount(read(Symmetry, s))}" for s in finding.found]


@torch.no_grad()
def share_wrong(model: nn.Module, data: LabelledData, place: torch.device) -> float:
    """The share of examples that a network in evaluation mode gets wrong."""
    wrong = 0
    for inputs, targets in zip(
        data.inputs.split(COUNTED), data.targets.split(COUNTED), strict=True
    ):
        guesses = model(inputs.to(place)).argmax(1).cpu()
        wrong += int((guesses != targets.cpu()).sum())
    return wrong / len(data)
