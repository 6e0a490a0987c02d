"""The network with the least bound among what is declared: start, training, count.

A certificate needs a start θ₀ for every width and seed of the grid (`Source`), what is said of that
start (`Beginning`), and training (`compressing`). The best network is encoded, decoded from its
message, and counted on the data as they are, in float64, where every device counts alike.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import nn

from isotropy.bounds.admission import (
    begun_anew,
    check_layers,
    check_predictions,
    drawn_by,
    start_hash,
)
from isotropy.bounds.certificate import Claim, account_of, data_hash, subspace_of
from isotropy.bounds.coding import Prior
from isotropy.bounds.compressing import (
    Compressed,
    Entry,
    Grid,
    Problem,
    Schedule,
    compress,
    count_errors,
    fitting,
    plainly,
    suggested,
    train_fully,
)
from isotropy.bounds.inequalities import occam
from isotropy.bounds.stretch import Stretch
from isotropy.bounds.symmetries import Average, CodedSymmetry
from isotropy.checks import CallerError
from isotropy.data.labelled import LabelledData
from isotropy.data.variants import FlipsAndShifts
from isotropy.networks.averaging.invariant_model import TEST_SAMPLES, InvariantModel
from isotropy.networks.zoo.specification import (
    NetworkSpecification,
    parse_network,
    specification_of,
)

Model = str | NetworkSpecification | nn.Module | Callable[[], nn.Module]
"""A network by name, a module (begun anew), or a function that makes one."""
LEAST_BITS = 1.0
"""Of a coordinate: with less, nearly all levels are zero and the network stays at its start."""
START_RATE = 2e-3
"""Of Adam, where all weights of a start are trained."""
ERASED = 0.375
"""Side of the square that augmentation erases, as a share of the width."""


@dataclass(frozen=True)
class CertifyConfig:
    """What is declared before the data are looked at.

    delta:      the certificate is wrong with at most this probability over the data
    grid:       all that may be chosen with the data at hand; its size is charged
    train:      the part of it that is trained; None takes `suggested`
    projector:  of the subspace, or a sum of kinds joined by +
    prior:      of the levels
    epochs, batch_size:  None: by the number of examples
    real_share: of the epochs, before coordinates are rounded to levels
    left_out:   share of the examples on which certify trains the start, 0: none
    augment:    whether images are mirrored, shifted and partly erased meanwhile
    stretch:    whether the data that a start was trained on stretch the subspace (`bounds.stretch`)
    samples:    copies that a law with ranges is averaged over
    compare:    whether the network is certified without the symmetry too
    seed:       of what is left out
    """

    delta: float = 0.05
    grid: Grid = field(default_factory=Grid)
    train: Grid | None = None
    projector: str = "kronecker-product"
    prior: Prior = field(default_factory=Prior)
    epochs: int | None = None
    batch_size: int | None = None
    real_share: float = 0.2
    left_out: float = 0.0
    augment: bool = False
    stretch: bool = False
    samples: int = TEST_SAMPLES
    compare: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise CallerError(
                f"delta: expected a probability between 0 and 1, got {self.delta:g}; 0.05 "
                "certifies with 95 % confidence"
            )
        if not 0 < self.real_share < 1:
            raise CallerError(
                f"real_share: expected a share between 0 and 1, got {self.real_share:g}; 0.2 "
                "rounds coordinates after a fifth of the epochs"
            )
        if not 0 <= self.left_out < 1:
            raise CallerError(
                f"left_out: expected a share from 0 to below 1, got {self.left_out:g}; 0.5 trains "
                "the start on half of the examples"
            )
        if self.train is not None:
            self.train.check_within(self.grid)


@dataclass(frozen=True)
class CertifyProgress:
    """Told after every epoch: how many are done of how many, and the best bound so far."""

    epoch: int
    epochs: int
    bound: float | None


@dataclass(frozen=True)
class Source:
    """Makes the start of a certificate, for every width and seed of the grid.

    make:    a function that makes the network. given: a module, to be begun anew
    trained: a network with the weights of a run, or trained on what was left out
    stretch: of the subspace, from the data that it was trained on
    """

    words: NetworkSpecification
    shape: tuple[int, ...]
    outputs: int
    make: Callable[[], nn.Module] | None = None
    given: nn.Module | None = None
    trained: nn.Module | None = None
    stretch: Stretch | None = None

    @classmethod
    def of(cls, model: Model, shape: tuple[int, ...], outputs: int) -> Self:
        if isinstance(model, str):
            model = parse_network(model)
        if isinstance(model, NetworkSpecification):
            return cls(model, shape, outputs)
        if isinstance(model, InvariantModel):
            raise CallerError(
                "model: expected a plain network, got one averaged over a law, whose amounts have "
                "to be coded; pass its network, and the run or the group as symmetry="
            )
        if isinstance(model, nn.Module):
            return cls(specification_of(model), shape, outputs, given=model)
        name = getattr(model, "__qualname__", type(model).__name__)
        return cls(NetworkSpecification("given", name), shape, outputs, make=model)

    def start(self, width: int, seed: int) -> nn.Module:
        """θ₀."""
        if self.trained is not None:
            return copy.deepcopy(self.trained)
        if self.given is not None:
            return begun_anew(self.given, seed)
        with drawn_by(seed):
            own = self.words_of(width)
            made = self.make() if self.make else own.build(self.shape, self.outputs)
        return made.network if isinstance(made, InvariantModel) else made

    def words_of(self, width: int) -> NetworkSpecification:
        """The specification of this width."""
        return parse_network(f"{self.words.name}:{width}") if width else self.words


@dataclass(frozen=True)
class Beginning:
    """The data that are counted, the source of the network, and what is said of its start.

    start: entries of the certificate: kind, trained_on (a fingerprint), left_out, seed of that
    fingerprint: of the data
    part:  the examples that were left out, on which the start is still to be trained
    """

    data: LabelledData
    source: Source
    start: dict[str, Any]
    fingerprint: str
    part: LabelledData | None = None


def exact_errors(network: nn.Module, data: LabelledData, place: torch.device) -> int:
    """Errors of a network in float64, which every device counts alike."""
    exact = copy.deepcopy(network).to(place, torch.float64).eval()
    return count_errors(exact, data.inputs.to(place, torch.float64), data.targets.to(place))


class Search:
    """Trains what is to be trained, and makes the claim of the best."""

    def __init__(
        self,
        settings: CertifyConfig,
        begun: Beginning,
        symmetry: CodedSymmetry | None,
        place: torch.device,
        progress: Callable[[CertifyProgress], None] | None,
    ) -> None:
        self.settings, self.begun = settings, begun
        self.data, self.source = begun.data, begun.source
        self.symmetry, self.place, self.progress = symmetry, place, progress
        examples = len(begun.data)
        asked = {"epochs": settings.epochs, "batch_size": settings.batch_size}
        self.schedule = replace(Schedule.of(examples, **asked), real_share=settings.real_share)
        self.check_size()
        train = settings.train or suggested(settings.grid, examples)
        if begun.start["kind"] is not None and train.widths != (0,):
            raise CallerError(
                f"widths: expected none in the grid, because the start has its own, got "
                f"{', '.join(map(str, train.widths))}"
            )
        self.train_start(train)
        first = self.source.start(train.widths[0], train.seeds[0])
        check_layers(first, trained=self.begun.start["kind"] is not None)
        check_predictions(self.averaged(first), self.data.inputs)
        self.train = fitting(train, sum(each.numel() for each in first.parameters()))

    def check_size(self) -> None:
        """Raise CallerError where no entry of the grid can say more than that guessing errs."""
        grid, prior, n = self.settings.grid, self.settings.prior, len(self.data)
        least = min(grid.dimensions)
        bits = account_of(grid, prior, least, LEAST_BITS * least, self.symmetry).total
        bound, guess = occam(0, n, bits, self.settings.delta), 1 - 1 / self.data.num_classes
        if bound >= guess:
            raise CallerError(
                f"{n} examples are too few for any entry of the grid: the smallest, with {least} "
                f"coordinates of one bit each, takes {bits:.0f} bits, which allow an error of "
                f"{bound:.0%} even if the network made none, and guessing errs at {guess:.0%}; "
                "declare a smaller grid or take more examples"
            )

    def train_start(self, train: Grid) -> None:
        """Train all weights on the examples that were left out, where there are such."""
        part = self.begun.part
        if part is None:
            return
        network = self.source.start(train.widths[0], train.seeds[0]).to(self.place)
        check_layers(network)
        schedule = Schedule.of(len(part), epochs=self.settings.epochs)
        # Without an average, whose copies cost as much again.
        problem = replace(self.problem(part, 0.0), predict=plainly)
        moved = None
        if self.settings.augment:
            moved = FlipsAndShifts(erased=round(ERASED * part.inputs.shape[-1]))
        fully = replace(schedule, rate=START_RATE)
        train_fully(network, problem, fully, seed=train.seeds[0], moved=moved)
        self.source = replace(self.source, trained=network.cpu())

    def averaged(self, network: nn.Module) -> nn.Module:
        """The network that is certified: averaged where there is a symmetry."""
        return network.eval() if self.symmetry is None else self.symmetry.model(network)

    def problem(self, data: LabelledData, bits: float) -> Problem:
        inputs = data.inputs.to(self.place, torch.float32)
        predict = plainly if self.symmetry is None else Average(self.symmetry, inputs)
        own = self.settings
        return Problem(inputs, data.targets.to(self.place), own.prior, bits, own.delta, predict)

    def start_of(self, entry: Entry) -> nn.Module:
        return self.source.start(entry.width, entry.seed)

    def certified(self) -> tuple[Claim, list[dict[str, Any]]]:
        """The claim of the network with the least bound, and numbers of all that were trained."""
        found: list[Compressed] = []
        first_beta = self.train.betas[0]
        groups = [
            [Entry(d, beta, width, seed) for beta in (self.train.betas if d else (first_beta,))]
            for width in self.train.widths
            for seed in self.train.seeds
            for d in self.train.dimensions
        ]
        total = sum(self._epochs(group) for group in groups)
        done = 0

        def tell(epochs: int) -> None:
            nonlocal done
            done += epochs
            if self.progress is not None:
                best = min((each.bound for each in found), default=None)
                self.progress(CertifyProgress(done, total, best))

        for group in groups:
            found += self._compressed(group, tell)
        best = min(found, key=lambda each: each.bound)
        n = len(self.data)
        rows = [{**each.as_dict(), "train_error": each.errors / n} for each in found]
        return self._claim(best), rows

    def _epochs(self, group: list[Entry]) -> int:
        """Over all β and steps that are tried."""
        if not group[0].dimension:
            return 0
        return self.schedule.total(len(group) * self.schedule.steps_tried)

    def _compressed(self, group: list[Entry], tell: Callable[[int], None]) -> list[Compressed]:
        own, entry = self.settings, group[0]
        bits = account_of(own.grid, own.prior, entry.dimension, 0.0, self.symmetry).total
        problem = self.problem(self.data, bits)
        start, stretch = self.start_of(entry).to(self.place), self.source.stretch
        subspace = subspace_of(start, own.projector, entry, stretch)
        return list(compress(subspace, problem, group, self.train.steps, self.schedule, tell))

    def _claim(self, best: Compressed) -> Claim:
        own, entry = self.settings, best.entry
        start = self.start_of(entry)
        kind = self.begun.start["kind"] or "compression"
        claim = Claim(
            kind=kind if entry.dimension else "held-out",
            network=self.source.words_of(entry.width).as_dict(),
            shape=self.source.shape, outputs=self.source.outputs,
            start={**self.begun.start, "seed": entry.seed, "sha256": start_hash(start)},
            symmetry=self.symmetry, projector=own.projector,
            num_weights=sum(each.numel() for each in start.parameters()),
            grid=own.grid, entry=entry, step=best.step, prior=own.prior, scale=best.scale,
            message=own.prior.encode(best.levels, best.scale),
            data={"name": self.data.name, "fingerprint": self.begun.fingerprint,
                  "sha256": data_hash(self.data.inputs, self.data.targets)},
            errors=0, n=len(self.data), delta=own.delta,
        )  # fmt: skip
        network = self.averaged(claim.decoded(start, self.source.stretch))
        return replace(claim, errors=exact_errors(network, self.data, self.place))
