"""`isotropy.certify`: the most that a network errs on new data, in a file that can be checked.

    result = isotropy.certify("oriented:32", (images, labels))
    result.bound, result.train_error      0.33, 0.09: with 95 % confidence at most 33 % on new data
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

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from isotropy.bounds.admission import check_layers
from isotropy.bounds.certificate import (
    CERTIFICATE,
    START,
    Claim,
    Invalid,
    data_hash,
    read_claim,
    recheck,
)
from isotropy.bounds.coding import message_bits
from isotropy.bounds.inequalities import ALL
from isotropy.bounds.search import (
    Beginning,
    CertifyConfig,
    CertifyProgress,
    Model,
    Search,
    Source,
    exact_errors,
)
from isotropy.bounds.stretch import Stretch, stretch_of
from isotropy.bounds.symmetries import CodedSymmetry, coded_group, coded_law
from isotropy.checks import CallerError
from isotropy.data.labelled import LabelledData
from isotropy.data.readers import read
from isotropy.data.streams.streamed import held
from isotropy.networks.export.laws import augmentation_from_law
from isotropy.networks.zoo.specification import NetworkSpecification, specification_of
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
from isotropy.workflows.building import finding_of
from isotropy.workflows.learning import LearnResult
from isotropy.workflows.loading import load_network
from isotropy.workflows.runs.result import Result
from isotropy.workflows.runs.same_run import fingerprint

__all__ = [
    "CertifyConfig", "CertifyProgress", "CertifyResult", "VerifyResult", "certified_network",
    "certify", "verify",
]  # fmt: skip

KIND = "certify"
Symmetry = str | Path | LearnResult | CodedSymmetry
"""A finite group in words, such as "C(4)"; what was learned, or its run folder as a Path."""
Begun = str | Path | tuple[nn.Module | str | Path, Any]
"""Where a network begins: a run folder, or a network and the data that it was trained on."""


@dataclass(frozen=True, repr=False)
class CertifyResult(Result):
    """A certificate and the network that it is about.

    model: the compressed network, averaged where a symmetry was given, in evaluation mode
    start: the weights that the message is added to; None where a seed draws them
    stretch: of the subspace, where other data gave it one
    """

    SHOWN = ("kind", "bound", "train_error", "n", "dimension")

    model: nn.Module
    claim: Claim
    start: nn.Module | None = None
    stretch: Stretch | None = None

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
            own = {} if self.stretch is None else self.stretch.tensors()
            weights = {f"start/{name}": each for name, each in state}
            save_tensors(path / START, {**weights, **own}, {})

    def _of(self, path: Path) -> Self:
        told = {"run_folder": str(path), "file": str(path / CERTIFICATE)}
        return replace(self, record={**self.record, **told})


# --- where a network begins -----------------------------------------------------------------------


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
    learned = finding_of(symmetry)
    if learned.shape != shape:
        raise CallerError(
            f"symmetries: expected a law for examples of shape {shape}, got one for {learned.shape}"
        )
    names = [each["name"] for each in learned.found]
    if not names:
        raise CallerError(
            "symmetries: no symmetry was found in this run, so there is nothing to average over"
        )
    return coded_law(learned.law, shape, samples=samples, only=names)


def _begin(
    model: Model | None, data: LabelledData, settings: CertifyConfig, start: Begun | None
) -> Beginning:
    if not data.is_classification:
        raise CallerError(
            f"{data.name}: expected classes, got regression targets; a certificate counts errors"
        )
    if (model is None) == (start is None):
        raise CallerError("expected one of model and start: a start brings its own network")
    if start is not None:
        if settings.left_out:
            raise CallerError("expected one of start and left_out, got both")
        if isinstance(start, tuple):
            seen = held(read(start[1], hold_out_fraction=0.0)).train
            _check_shared(seen, data)
            if isinstance(start[0], nn.Module):
                begun = _from_network(start[0], seen, data)
            else:
                begun = _from_run(Path(start[0]), data, settings.seed)
            return _stretched(begun, seen) if settings.stretch else begun
        if settings.stretch:
            raise CallerError(
                "stretch: expected start=(run folder, data), got a run folder alone, which does "
                "not hold the data that the network was trained on"
            )
        return _from_run(Path(start), data, settings.seed)
    if settings.stretch:
        raise CallerError(
            "stretch: expected a start that was trained on other data, start=(network, data)"
        )
    assert model is not None
    source = Source.of(model, tuple(data.inputs.shape[1:]), data.num_outputs)
    count = round(settings.left_out * len(data))
    if not count:
        return Beginning(data, source, {"kind": None}, fingerprint(data))
    part = data.subset(count, settings.seed)
    words = _start_words("data-dependent", fingerprint(part), count, settings.seed)
    rest = data.without_subset(count, settings.seed)
    return Beginning(rest, source, words, fingerprint(rest), part)


def _start_words(kind: str, seen: str, left_out: int, seed: int) -> dict[str, Any]:
    return {"kind": kind, "trained_on": seen, "left_out": left_out, "left_out_seed": seed}


def _from_network(network: nn.Module, seen: LabelledData, data: LabelledData) -> Beginning:
    """A start that was trained on data that are at hand, none of which may be counted."""
    shape = tuple(data.inputs.shape[1:])
    words = _start_words("transfer", fingerprint(seen), 0, 0)
    own = specification_of(network)
    source = Source(own, shape, data.num_outputs, trained=network.eval())
    return Beginning(data, source, words, fingerprint(data))


def _stretched(begun: Beginning, seen: LabelledData) -> Beginning:
    """The same with a subspace that other data stretch."""
    source, words = begun.source, begun.start
    assert source.trained is not None
    if words["kind"] != "transfer":
        raise CallerError(
            "stretch: expected a start that was trained on other data, got one of a part of these"
        )
    if seen.inputs.shape[1:] != begun.data.inputs.shape[1:]:
        sizes = (tuple(each.inputs.shape[1:]) for each in (begun.data, seen))
        raise CallerError("stretch: expected other data of shape {}, got {}".format(*sizes))
    stretch = stretch_of(source.trained, seen.inputs.to(next(source.trained.parameters())))
    return replace(
        begun,
        source=replace(source, stretch=stretch),
        start={**words, "stretch": stretch.sha256()},
    )


def _check_shared(seen: LabelledData, data: LabelledData) -> None:
    """Raise CallerError where data that shape the prior are counted too."""
    shared = _rows(seen) & _rows(data)
    if shared:
        raise CallerError(
            f"start: {len(shared)} different examples of {data.name} are among the data that it "
            "was trained on, which voids the bound; leave them out"
        )


def _rows(data: LabelledData) -> set[bytes]:
    """Every example, as a hash of its numbers."""
    rows = data.inputs.cpu().contiguous().numpy()
    return {hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows}


def _from_run(run: Path, data: LabelledData, seed: int) -> Beginning:
    """A start that was trained before, on other data or on a part of these."""
    shape, outputs = tuple(data.inputs.shape[1:]), data.num_outputs
    config = read_json(run / CONFIG)
    words, network = load_network(run, shape, outputs)
    known = config.get("data") or {}
    seen = known.get("fingerprint")
    if seen is None:
        raise CallerError(
            f"start {str(run)!r}: its config.json does not say on which data it was trained, so "
            "that these cannot be told from the data at hand"
        )
    if seen == fingerprint(data):
        raise CallerError(
            f"start {str(run)!r} was trained on the same data, which voids the bound; train it on "
            "a part (isotropy learn --subset), and the rest is counted, or begin anew with --model"
        )
    source = Source(words, shape, outputs, trained=network.eval())
    count = int(known.get("train_examples") or 0)
    seeds = {int((config.get("request") or {}).get("seed") or 0), seed}
    for each in sorted(seeds) if 0 < count < len(data) else ():
        if fingerprint(data.subset(count, each)) == seen:
            words_of_start = _start_words("data-dependent", seen, count, each)
            rest = data.without_subset(count, each)
            return Beginning(rest, source, words_of_start, fingerprint(rest))
    if known.get("name") == data.name:
        raise CallerError(
            f"start {str(run)!r} was trained on examples of {data.name}, and which of them cannot "
            "be told; train it with --subset and the same --seed, and the rest is counted"
        )
    return Beginning(data, source, _start_words("transfer", seen, 0, 0), fingerprint(data))


# --- certify --------------------------------------------------------------------------------------


def certify(
    model: Model | None,
    train: Any,
    test: Any = None,
    *,
    config: CertifyConfig | None = None,
    symmetry: Symmetry | None = None,
    start: Begun | None = None,
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
    start     the run folder of a network that was trained on other data, or on a part of these; or
              a pair (network or run folder, data that it was trained on)
    device    where to train; by default the CPU
    folder    a run folder to write
    describe  further entries for the run's config
    progress  told after every epoch

    Raises CallerError for networks that cannot be certified (`bounds.admission`), for a start that
    was trained on the same data, and for too few examples.
    """
    began = time.monotonic()
    settings = config or CertifyConfig()
    split = held(read(train, test, hold_out_fraction=0.0))
    place = torch.device("cpu" if device is None else device)
    begun = _begin(model, split.train, settings, start)
    coded = _coded(symmetry, begun.source.shape, settings.samples)
    built_in = _built_in(begun.source.words, settings.samples)
    if built_in is not None and coded is not None:
        raise CallerError("symmetry: the built network is averaged already; leave it out")
    work = Search(settings, begun, coded or built_in, place, progress)
    claim, rows = work.certified()
    request = (describe or {}).get("request")
    claim = replace(claim, data={**claim.data, "request": request})
    plain = None
    if settings.compare and work.symmetry is not None:
        plain = _plain_words(Search(settings, begun, None, place, progress).certified()[0])
    stretch = begun.source.stretch
    model_found = work.averaged(claim.decoded(work.start_of(claim.entry), stretch))
    test_error = None
    if split.test is not None:
        test_error = exact_errors(model_found, split.test, place) / len(split.test)
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
    found = CertifyResult(model_found, claim, trained, stretch, record=record, config=words)
    return found.kept_in(folder)


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
    sizes = {"train_examples": len(data), "shape": shape, "outputs": data.num_outputs}
    return {"name": data.name, **sizes, "fingerprint": fingerprint(data)}


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
    reason, seed = None, 0
    try:
        claim = read_claim(content)
        seed = claim.entry.seed
        start, stretch = _start_again(claim, path, model)
        recheck(claim, content, start, stretch)
        told |= {"bound": claim.bound, "bits": claim.account.total}
        told["train_error"] = _recounted(claim, start, stretch, data, place) / claim.n
    except Invalid as error:
        reason = str(error)
        told = dict.fromkeys(told)
    head = record_head("verify", seed=seed, device=place, seconds=time.monotonic() - began)
    record = {**head, "file": str(path), "valid": reason is None, **told, "reason": reason}
    return VerifyResult(record=record, config={})


def certified_network(folder: Path, model: Model | None = None) -> nn.Module:
    """The network of a certificate, decoded from its message, in evaluation mode."""
    path = folder / CERTIFICATE
    try:
        content = read_json(path)
        claim = read_claim(content)
        start, stretch = _start_again(claim, path, model)
        recheck(claim, content, start, stretch)
        return _whole(claim, start, stretch)
    except Invalid as error:
        raise CallerError(f"certificate {str(path)!r}: {error}") from error


def _whole(claim: Claim, start: nn.Module, stretch: Stretch | None) -> nn.Module:
    try:
        found = claim.decoded(start, stretch)
    except CallerError as error:
        raise Invalid(f"the network cannot be decoded: {error}") from error
    return found.eval() if claim.symmetry is None else claim.symmetry.model(found)


def _recounted(
    claim: Claim, start: nn.Module, stretch: Stretch | None, data: Any, place: torch.device
) -> int:
    """The errors of the decoded network, which must be those that are claimed."""
    train = held(read(data, hold_out_fraction=0.0)).train
    left_out = int(claim.start.get("left_out") or 0)
    if left_out and left_out < len(train):
        seed = claim.start["left_out_seed"]
        if fingerprint(train.subset(left_out, seed)) != claim.start["trained_on"]:
            raise Invalid("the start was trained on other examples than those that are left out")
        train = train.without_subset(left_out, seed)
    shape = tuple(train.inputs.shape[1:])
    if (shape, train.num_outputs) != (claim.shape, claim.outputs):
        raise Invalid(
            f"the data are not those of the certificate: examples of shape {shape} with "
            f"{train.num_outputs} classes, expected {claim.shape} with {claim.outputs}"
        )
    found = data_hash(train.inputs, train.targets)
    if len(train) != claim.n or found != claim.data["sha256"]:
        raise Invalid(
            f"the data are not those of the certificate: {len(train)} examples with SHA-256 "
            f"{found[:16]}…, expected {claim.n} with {claim.data['sha256'][:16]}…"
        )
    if fingerprint(train) == claim.start.get("trained_on"):
        raise Invalid("the start was trained on the data that are counted")
    check_layers(start, trained=claim.start["kind"] is not None)
    errors = exact_errors(_whole(claim, start, stretch), train, place)
    if errors != claim.errors:
        raise Invalid(f"{errors} errors were counted, the certificate says {claim.errors}")
    return errors


def _start_again(claim: Claim, path: Path, model: Model | None) -> tuple[nn.Module, Stretch | None]:
    """θ₀ and S as the certificate says: drawn by its seed, or from the file beside it."""
    words = NetworkSpecification.from_dict(claim.network, where=str(path))
    if model is None and words.kind == "given":
        raise CallerError(
            f"the certificate is of {words.name}, which was handed over in Python; pass it again "
            "with model="
        )
    try:
        source = Source.of(words if model is None else model, claim.shape, claim.outputs)
        start, stretch = source.start(0, claim.entry.seed), None
        if claim.start["kind"] is not None:
            tensors, _ = load_tensors(path.with_name(START))
            load_module(path.parent, start, tensors, "start")
            stretch = Stretch.from_tensors(tensors)
    except CallerError as error:
        raise Invalid(f"the network cannot be had again: {error}") from error
    return start, stretch
