"""`isotropy.certify`: the most that a network errs on new data, in a file that can be checked.

    result = isotropy.certify("compact:12", (images, labels))
    result.bound, result.train_error      0.47, 0.17: with 95 % confidence at most 47 % on new data
    result.model                          the compressed network that the certificate is about
    result.save("runs/certified")         certificate.json and report.html
    isotropy.verify("runs/certified/certificate.json", (images, labels)).valid

The network begins at its own initialisation. It is trained in a random subspace to integer levels
with a short code (`bounds.compressing`) and decoded from its message. Its errors are counted on the
training data as they are, in float64. There are four kinds of certificate:

    compression      the start is drawn by a seed: nothing but the message comes from the data
    transfer         the start was trained on other data
    data-dependent   the start was trained on a part of the data, which is left out of the count
    held-out         no message at all (dimension 0): the errors of the start on data that it has
                     not seen, by the binomial tail

The last two say little about why a network generalises, because most of what it knows is in the
start.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from isotropy.bounds.admission import (
    begun_anew,
    check_layers,
    check_predictions,
    drawn_by,
    start_hash,
)
from isotropy.bounds.certificate import (
    CERTIFICATE,
    START,
    Claim,
    Invalid,
    account_of,
    bound_of,
    read_claim,
    subspace_of,
)
from isotropy.bounds.coding import Prior, message_bits
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
from isotropy.bounds.inequalities import ALL, occam
from isotropy.bounds.symmetries import Average, CodedSymmetry, coded_group, coded_law
from isotropy.checks import CallerError
from isotropy.data.labelled import LabelledData
from isotropy.data.readers import read
from isotropy.networks.averaging.invariant_model import TEST_SAMPLES, InvariantModel
from isotropy.networks.export.laws import augmentation_from_law
from isotropy.networks.zoo.specification import (
    NetworkSpecification,
    parse_network,
    specification_of,
)
from isotropy.records import (
    CONFIG,
    load_module,
    load_tensors,
    read_json,
    record_head,
    save_tensors,
    write_json,
)
from isotropy.report.pages.certify import certify_page
from isotropy.report.wording import joined, short_amount, spoken_name
from isotropy.workflows.building import read_learned
from isotropy.workflows.learning import LearnResult
from isotropy.workflows.loading import load_network
from isotropy.workflows.result import Result
from isotropy.workflows.runs import fingerprint

KIND = "certify"
START_RATE = 2e-3
"""Of Adam, where all weights of a start are trained."""
Model = str | NetworkSpecification | nn.Module | Callable[[], nn.Module]
"""A network by name, a module (begun anew), or a function that makes one."""
Symmetry = str | Path | LearnResult | CodedSymmetry
"""A finite group in words, such as "C(4)"; what was learned, or its run folder as a Path."""


@dataclass(frozen=True)
class CertifyConfig:
    """What is declared before the data are looked at.

    delta:      the certificate is wrong with at most this probability over the data
    grid:       all that may be chosen with the data at hand; its size is charged
    train:      the part of it that is trained; None takes `suggested`
    projector:  of the subspace, or a sum of kinds joined by +
    prior:      of the levels
    epochs, batch_size:  None: by the number of examples
    left_out:   share of the examples on which certify trains the start, 0: none
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
    left_out: float = 0.0
    samples: int = TEST_SAMPLES
    compare: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise CallerError(
                f"delta: expected a probability between 0 and 1, got {self.delta:g}; 0.05 certifies "
                "with 95 % confidence"
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


@dataclass(frozen=True, repr=False)
class CertifyResult(Result):
    """A certificate and the network that it is about.

    model: the compressed network, averaged where a symmetry was given, in evaluation mode
    start: the weights that the message is added to; None where a seed draws them
    """

    SHOWN = ("kind", "bound", "train_error", "n", "dimension")

    model: nn.Module
    claim: Claim
    start: nn.Module | None = None

    @property
    def bound(self) -> float:
        """With probability 1 − δ over the data, the error on new data is at most this."""
        return self.claim.bound

    @property
    def train_error(self) -> float:
        return self.claim.errors / self.claim.n

    def page(self) -> str:
        return certify_page(self.record, self.config)

    def write_own(self, path: Path) -> None:
        write_json(path / CERTIFICATE, self.claim.as_dict())
        if self.start is not None:
            state = self.start.state_dict().items()
            save_tensors(path / START, {f"start/{name}": each for name, each in state}, {})

    def _of(self, path: Path) -> Self:
        told = {"run_folder": str(path), "file": str(path / CERTIFICATE)}
        return replace(self, record={**self.record, **told})


# --- where a network begins -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """Makes the start of a certificate, for every width and seed of the grid.

    make:    a function that makes the network. given: a module, to be begun anew
    trained: a network with the weights of a run, or trained on what was left out
    """

    words: NetworkSpecification
    shape: tuple[int, ...]
    outputs: int
    make: Callable[[], nn.Module] | None = None
    given: nn.Module | None = None
    trained: nn.Module | None = None

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
            made = (
                self.words_of(width).build(self.shape, self.outputs)
                if self.make is None
                else (self.make())
            )
        return made.network if isinstance(made, InvariantModel) else made

    def words_of(self, width: int) -> NetworkSpecification:
        """The specification of this width."""
        return parse_network(f"{self.words.name}:{width}") if width else self.words


def _built_in(words: NetworkSpecification, samples: int) -> CodedSymmetry | None:
    """What a built network is averaged over; group convolutions need nothing more."""
    if words.kind != "built":
        return None
    config = words.arguments
    shape = tuple(config["shape"])
    if config["law"] is not None:
        return coded_law(augmentation_from_law(config["law"], shape), shape, samples=samples)
    return coded_group(config["group"], shape) if config["how"] == "average" else None


def _coded(symmetry: Symmetry | None, shape: tuple[int, ...], samples: int) -> CodedSymmetry | None:
    if symmetry is None or isinstance(symmetry, CodedSymmetry):
        return symmetry
    if isinstance(symmetry, str):
        return coded_group(symmetry, shape)
    learned = read_learned(symmetry)
    if learned.shape != shape:
        raise CallerError(
            f"symmetries: expected a law for examples of shape {shape}, got one for {learned.shape}"
        )
    names = [each["name"] for each in learned.found]
    if not names:
        raise CallerError(
            "symmetries: no symmetry was found in this run, so that there is nothing to average over"
        )
    return coded_law(learned.law, shape, samples=samples, only=names)


@dataclass(frozen=True)
class _Beginning:
    """The data that are counted, the source of the network, and what is said of its start.

    start: entries of the certificate: kind, trained_on (a fingerprint), left_out, seed of that
    part:  the examples that were left out, on which the start is still to be trained
    """

    data: LabelledData
    source: _Source
    start: dict[str, Any]
    part: LabelledData | None = None


def _begin(
    model: Model | None, data: LabelledData, settings: CertifyConfig, start: str | Path | None
) -> _Beginning:
    if not data.is_classification:
        raise CallerError(
            f"{data.name}: expected classes, got regression targets; a certificate counts errors"
        )
    if (model is None) == (start is None):
        raise CallerError("expected one of model and start: a start brings its own network")
    if start is not None:
        if settings.left_out:
            raise CallerError("expected one of start and left_out, got both")
        return _from_run(Path(start), data, settings.seed)
    assert model is not None
    source = _Source.of(model, tuple(data.inputs.shape[1:]), data.num_outputs)
    count = round(settings.left_out * len(data))
    if not count:
        return _Beginning(data, source, {"kind": None})
    part = data.subset(count, settings.seed)
    words = _start_words("data-dependent", fingerprint(part), count, settings.seed)
    return _Beginning(data.without_subset(count, settings.seed), source, words, part)


def _start_words(kind: str, seen: str, left_out: int, seed: int) -> dict[str, Any]:
    return {"kind": kind, "trained_on": seen, "left_out": left_out, "left_out_seed": seed}


def _from_run(run: Path, data: LabelledData, seed: int) -> _Beginning:
    """A start that was trained before, on other data or on a part of these."""
    shape, outputs = tuple(data.inputs.shape[1:]), data.num_outputs
    config = read_json(run / CONFIG)
    words, network = load_network(run, shape, outputs)
    known = config.get("data") or {}
    seen = known.get("fingerprint")
    if seen is None:
        raise CallerError(
            f"start {str(run)!r}: its config.json does not say on which data it was trained, so that "
            "these cannot be told from the data at hand"
        )
    if seen == fingerprint(data):
        raise CallerError(
            f"start {str(run)!r} was trained on the same data, which voids the bound; train it on a "
            "part (isotropy learn --subset), and the rest is counted, or begin anew with --model"
        )
    source = _Source(words, shape, outputs, trained=network.eval())
    count = int(known.get("examples") or 0)
    seeds = {int((config.get("request") or {}).get("seed") or 0), seed}
    for each in sorted(seeds) if 0 < count < len(data) else ():
        if fingerprint(data.subset(count, each)) == seen:
            words_of_start = _start_words("data-dependent", seen, count, each)
            return _Beginning(data.without_subset(count, each), source, words_of_start)
    if known.get("name") == data.name:
        raise CallerError(
            f"start {str(run)!r} was trained on examples of {data.name}, and which of them cannot be "
            "told; train it with --subset and the same --seed, and the rest is counted"
        )
    return _Beginning(data, source, _start_words("transfer", seen, 0, 0))


# --- certify --------------------------------------------------------------------------------------


def certify(
    model: Model | None,
    train: Any,
    test: Any = None,
    *,
    config: CertifyConfig | None = None,
    symmetry: Symmetry | None = None,
    start: str | Path | None = None,
    device: str | torch.device | None = None,
    folder: str | Path | None = None,
    describe: dict[str, Any] | None = None,
    progress: Callable[[CertifyProgress], None] | None = None,
) -> CertifyResult:
    """A certificate of a compressed network like `model`; see the top of this file.

    model     a name such as "compact:12", a specification, a function that makes a network, or a
              module, of which the weights are drawn anew; None with `start`
    train     (inputs, labels), a Dataset, LabelledData, a Split or a path: all of it is counted
    test      only scored
    config    what is declared: the grid, δ, the subspace, the prior
    symmetry  what the outputs are averaged over: a group of the grid, or what was learned
    start     the run folder of a network that was trained on other data, or on a part of these
    device    where to train; by default the CPU
    folder    a run folder to write
    describe  further entries for the run's config
    progress  told after every epoch

    Raises CallerError for networks that cannot be certified (`bounds.admission`), for a start that
    was trained on the same data, and for too few examples.
    """
    began = time.monotonic()
    settings = config or CertifyConfig()
    split = read(train, test, hold_out_fraction=0.0)
    place = torch.device("cpu" if device is None else device)
    begun = _begin(model, split.train, settings, start)
    coded = _coded(symmetry, begun.source.shape, settings.samples)
    built_in = _built_in(begun.source.words, settings.samples)
    if built_in is not None and coded is not None:
        raise CallerError("symmetry: the built network is averaged already; leave it out")
    work = _Work(settings, begun, coded or built_in, place, progress)
    claim, rows = work.certified()
    request = (describe or {}).get("request")
    claim = replace(claim, data={**claim.data, "request": request})
    plain = None
    if settings.compare and work.symmetry is not None:
        plain = _plain_words(_Work(settings, begun, None, place, progress).certified()[0])
    model_found = work.averaged(claim.decoded(work.start_of(claim.entry)))
    test_error = None
    if split.test is not None:
        test_error = _count(model_found, split.test, place) / len(split.test)
    account, n, errors = claim.account, claim.n, claim.errors
    record = {
        **record_head(KIND, seed=claim.entry.seed, device=place, seconds=time.monotonic() - began),
        "data": split.train.name,
        "network": begun.source.words_of(claim.entry.width).text,
        "num_weights": claim.num_weights,
        "bound": claim.bound,
        "train_error": errors / n,
        "errors": errors,
        "n": n,
        "delta": settings.delta,
        "kind": claim.kind,
        "dimension": claim.entry.dimension,
        "bits": account.as_dict(),
        "message_bits": message_bits(claim.message),
        "bounds": {name: of(errors, n, account.total, settings.delta) for name, of in ALL.items()},
        "test_error": test_error,
        "symmetry": None if claim.symmetry is None else claim.symmetry.as_dict(),
        "symmetry_text": "" if claim.symmetry is None else _symmetry_text(claim.symmetry),
        "plain": plain,
        "grid_entries": settings.grid.choices,
        "trained": rows,
        "notes": list(split.notes),
        "file": None,
    }
    words = {
        "schema": 1, "kind": KIND,
        "data": {**_data_words(begun.data), "name": split.train.name},
        "network": begun.source.words_of(claim.entry.width).as_dict(),
        "grid": settings.grid.as_dict(), "entry": vars(claim.entry) | {"step": claim.step},
        "schedule": vars(work.schedule), "projector": settings.projector,
        **(describe or {}),
    }  # fmt: skip
    trained = None if claim.start["kind"] is None else work.start_of(claim.entry)
    return CertifyResult(model_found, claim, trained, record=record, config=words).kept_in(folder)


def _plain_words(claim: Claim) -> dict[str, float]:
    error = claim.errors / claim.n
    return {"bound": claim.bound, "train_error": error, "bits": claim.account.total}


def _symmetry_text(symmetry: CodedSymmetry) -> str:
    """`C(4)`, or the amounts of a law: `rotation ±175°`."""
    if symmetry.group is not None:
        return symmetry.group
    amounts = [each for each in symmetry.augmentation().symmetries() if each.high]
    return joined([f"{spoken_name(each.name)} {short_amount(each)}" for each in amounts])


def _data_words(data: LabelledData) -> dict[str, Any]:
    shape = list(data.inputs.shape[1:])
    sizes = {"examples": len(data), "shape": shape, "outputs": data.num_outputs}
    return {"name": data.name, **sizes, "fingerprint": fingerprint(data)}


def _count(network: nn.Module, data: LabelledData, place: torch.device) -> int:
    """Errors of a network in float64, which every device counts alike."""
    exact = copy.deepcopy(network).to(place, torch.float64).eval()
    return count_errors(exact, data.inputs.to(place, torch.float64), data.targets.to(place))


class _Work:
    """Trains what is to be trained, and makes the claim of the best."""

    def __init__(
        self,
        settings: CertifyConfig,
        begun: _Beginning,
        symmetry: CodedSymmetry | None,
        place: torch.device,
        progress: Callable[[CertifyProgress], None] | None,
    ) -> None:
        self.settings, self.begun = settings, begun
        self.data, self.source = begun.data, begun.source
        self.symmetry, self.place, self.progress = symmetry, place, progress
        examples = len(begun.data)
        self.schedule = Schedule.of(
            examples, epochs=settings.epochs, batch_size=settings.batch_size
        )
        self.check_size()
        train = settings.train or suggested(settings.grid, examples)
        self.train_start(train)
        first = self.source.start(train.widths[0], train.seeds[0])
        check_layers(first, trained=self.begun.start["kind"] is not None)
        check_predictions(self.averaged(first), self.data.inputs)
        self.train = fitting(train, sum(each.numel() for each in first.parameters()))

    def check_size(self) -> None:
        """Raise CallerError where no entry of the grid can say more than that guessing errs."""
        grid, prior, n = self.settings.grid, self.settings.prior, len(self.data)
        least = min(grid.dimensions)
        nothing = prior.bits([0] * least, min(prior.scales)) if least else 0.0
        bits = account_of(grid, prior, least, nothing, self.symmetry).total
        bound, guess = occam(0, n, bits, self.settings.delta), 1 - 1 / self.data.num_classes
        if bound >= guess:
            raise CallerError(
                f"{n} examples are too few for any entry of the grid: {bits:.0f} bits for the choice "
                f"alone allow an error of {bound:.0%} even if the network made none, and guessing "
                f"errs at {guess:.0%}; declare a smaller grid or take more examples"
            )

    def train_start(self, train: Grid) -> None:
        """Train all weights on the examples that were left out, where there are such."""
        part = self.begun.part
        if part is None:
            return
        network = self.source.start(train.widths[0], train.seeds[0]).to(self.place)
        check_layers(network)
        schedule = Schedule.of(len(part), epochs=self.settings.epochs)
        problem = self.problem(part, 0.0)
        train_fully(network, problem, replace(schedule, rate=START_RATE), seed=train.seeds[0])
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
        groups = [
            [Entry(d, beta, width, seed) for beta in self.train.betas if d or not beta]
            or [Entry(d, self.train.betas[0], width, seed)]
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
            for each in self._compressed(group, tell):
                found.append(each)
        best = min(found, key=lambda each: each.bound)
        n = len(self.data)
        rows = [{**each.as_dict(), "train_error": each.errors / n} for each in found]
        return self._claim(best), rows

    def _epochs(self, group: list[Entry]) -> int:
        if not group[0].dimension:
            return 0
        real = self.schedule.real_epochs
        return real + len(group) * self.schedule.steps_tried * (self.schedule.epochs - real)

    def _compressed(self, group: list[Entry], tell: Callable[[int], None]) -> list[Compressed]:
        own, entry = self.settings, group[0]
        start = self.start_of(entry)
        bits = account_of(own.grid, own.prior, entry.dimension, 0.0, self.symmetry).total
        problem = self.problem(self.data, bits)
        if not entry.dimension:
            errors = count_errors(
                start.to(self.place), problem.inputs, problem.targets, problem.predict
            )
            bound = bound_of("held-out", errors, len(self.data), bits, own.delta)
            nothing = torch.zeros(0, dtype=torch.int64)
            return [
                Compressed(
                    entry, own.grid.steps[0], own.prior.scales[0], nothing, 0.0, errors, bound
                )
            ]
        subspace = subspace_of(start.to(self.place), own.projector, entry)
        return list(compress(subspace, problem, group, self.train.steps, self.schedule, tell))

    def _claim(self, best: Compressed) -> Claim:
        own, entry = self.settings, best.entry
        start = self.start_of(entry)
        kind = self.begun.start["kind"] or "compression"
        message = own.prior.encode(best.levels, best.scale) if entry.dimension else b""
        claim = Claim(
            kind=kind if entry.dimension else "held-out",
            network=self.source.words_of(entry.width).as_dict(),
            shape=self.source.shape, outputs=self.source.outputs,
            start={**self.begun.start, "seed": entry.seed, "sha256": start_hash(start)},
            symmetry=self.symmetry, projector=own.projector,
            num_weights=sum(each.numel() for each in start.parameters()),
            grid=own.grid, entry=entry, step=best.step, prior=own.prior, scale=best.scale,
            message=message,
            data={"name": self.data.name, "fingerprint": fingerprint(self.data)},
            errors=0, n=len(self.data), delta=own.delta,
        )  # fmt: skip
        network = self.averaged(claim.decoded(start))
        return replace(claim, errors=_count(network, self.data, self.place))


# --- verify ---------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class VerifyResult(Result):
    """Whether a certificate holds on these data, and if not why."""

    SHOWN = ("valid", "bound", "train_error", "reason")

    @property
    def valid(self) -> bool:
        return bool(self.record["valid"])

    @property
    def reason(self) -> str | None:
        """Why it does not hold; None if it does."""
        reason: str | None = self.record["reason"]
        return reason


def verify(
    file: str | Path,
    data: Any,
    *,
    model: Model | None = None,
    device: str | torch.device | None = None,
) -> VerifyResult:
    """Check a certificate: rebuild the network, decode the message, count the errors again.

    file    certificate.json, or its run folder
    data    what was certified on, in any form that `isotropy.certify` takes
    model   the network where it was handed over in Python

    Raises CallerError where the file is no certificate. All else that is wrong is a reason.
    """
    began = time.monotonic()
    path = Path(file)
    path = path / CERTIFICATE if path.is_dir() else path
    content = read_json(path)
    place = torch.device("cpu" if device is None else device)
    told: dict[str, Any] = {"bound": None, "train_error": None, "bits": None}
    reason = None
    try:
        claim = read_claim(content)
        told |= {"bound": claim.bound, "bits": claim.account.total}
        told["train_error"] = _recounted(claim, path, data, model, place) / claim.n
    except Invalid as error:
        reason = str(error)
        told = dict.fromkeys(told)
    seed = int((content.get("entry") or {}).get("seed") or 0)
    head = record_head("verify", seed=seed, device=place, seconds=time.monotonic() - began)
    record = {**head, "file": str(path), "valid": reason is None, **told, "reason": reason}
    return VerifyResult(record=record, config={})


def _recounted(
    claim: Claim, path: Path, data: Any, model: Model | None, place: torch.device
) -> int:
    """The errors of the decoded network, which must be those that are claimed."""
    train = read(data, hold_out_fraction=0.0).train
    left_out = int(claim.start.get("left_out") or 0)
    if left_out and left_out < len(train):
        train = train.without_subset(left_out, claim.start["left_out_seed"])
    shape = tuple(train.inputs.shape[1:])
    if (shape, train.num_outputs) != (claim.shape, claim.outputs):
        raise Invalid(
            f"the data are not those of the certificate: examples of shape {shape} with "
            f"{train.num_outputs} classes, expected {claim.shape} with {claim.outputs}"
        )
    if len(train) != claim.n or fingerprint(train) != claim.data["fingerprint"]:
        raise Invalid(
            f"the data are not those of the certificate: {len(train)} examples with fingerprint "
            f"{fingerprint(train)}, expected {claim.n} with {claim.data['fingerprint']}"
        )
    if claim.data["fingerprint"] == claim.start.get("trained_on"):
        raise Invalid("the start was trained on the data that are counted")
    network = _start_again(claim, path, model)
    if start_hash(network) != claim.start["sha256"]:
        raise Invalid("the network is another: its start has not the hash of the certificate")
    check_layers(network, trained=claim.start["kind"] is not None)
    found = claim.decoded(network)
    whole = found.eval() if claim.symmetry is None else claim.symmetry.model(found)
    errors = _count(whole, train, place)
    if errors != claim.errors:
        raise Invalid(f"{errors} errors were counted, the certificate says {claim.errors}")
    return errors


def _start_again(claim: Claim, path: Path, model: Model | None) -> nn.Module:
    """θ₀ as the certificate says: drawn by its seed, or from the file beside it."""
    words = NetworkSpecification.from_dict(claim.network, where=str(path))
    if model is None and words.kind == "given":
        raise CallerError(
            f"the certificate is of {words.name}, which was handed over in Python; pass it again "
            "with model="
        )
    try:
        source = _Source.of(words if model is None else model, claim.shape, claim.outputs)
        start = source.start(0, claim.entry.seed)
        if claim.start["kind"] is not None:
            tensors, _ = load_tensors(path.with_name(START))
            load_module(path.parent, start, tensors, "start")
    except CallerError as error:
        raise Invalid(f"the network cannot be had again: {error}") from error
    return start
