"""The file of a certificate: all that it takes to decode the network and to state its bound again.

    network, shape, outputs     which network: a name and arguments, or FILE.py:factory with a hash
    start                       the seed that draws θ₀, or what it was trained on; its SHA-256
    symmetry                    what the outputs are averaged over, with coded amounts, or null
    subspace                    projector, dimension d, number of weights D, seed of the signs
    grid, entry, step           everything that was declared, and what was chosen
    prior, scale, message       the law of the levels; their code as hexadecimal digits
    data                        name, fingerprint and SHA-256 of what was counted
    errors, n, delta, bits, bound     what is claimed
    digest                      SHA-256 of the entries above as JSON with sorted keys and no spaces

`read_claim` and `recheck` go through a certificate as somebody would who does not believe it: the
choice must be declared, the network must have as many weights as are claimed, the message must be
the code of d levels, at most one for each weight, and account and bound must follow from these.
Nothing is decoded before the network is known. Whoever counts its errors again
(`workflows.certifying.verify`) has then checked every number.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.bounds.admission import start_hash
from isotropy.bounds.coding import SHAPES, Account, Prior
from isotropy.bounds.compressing import Entry, Grid, bound_of
from isotropy.bounds.stretch import Stretch, Stretched
from isotropy.bounds.subspace import Subspace, film_rows, projector
from isotropy.bounds.symmetries import CodedSymmetry
from isotropy.checks import CallerError

CERTIFICATE = "certificate.json"
START = "start.safetensors"
SCHEMA = 1
KINDS = ("compression", "transfer", "data-dependent", "held-out")
MISTAKES = (CallerError, KeyError, TypeError, ValueError, OverflowError, AttributeError)
"""What altered entries lead to."""


class Invalid(Exception):
    """Why a certificate does not hold."""


@dataclass(frozen=True)
class Claim:
    """What a certificate says of a network.

    network:   specification as JSON. start: seed, sha256, kind, trained_on, left_out, stretch (the
               SHA-256 of S, where other data stretch the subspace)
    subspace:  projector, weights
    data:      name, fingerprint, sha256
    errors, n: wrong predictions of the decoded network among so many examples
    """

    kind: str
    network: Mapping[str, Any]
    shape: tuple[int, ...]
    outputs: int
    start: Mapping[str, Any]
    symmetry: CodedSymmetry | None
    projector: str
    num_weights: int
    grid: Grid
    entry: Entry
    step: float
    prior: Prior
    scale: float
    message: bytes
    data: Mapping[str, Any]
    errors: int
    n: int
    delta: float

    @property
    def account(self) -> Account:
        """Every part of −log₂ P(h), from what was declared and the message's levels."""
        weights = self.prior.bits(self.levels(), self.scale)
        return account_of(self.grid, self.prior, self.entry.dimension, weights, self.symmetry)

    @property
    def bound(self) -> float:
        """The error on new data is at most this, with probability 1 − δ over the data."""
        bits = self.account.total
        return bound_of(self.entry.dimension, self.errors, self.n, bits, self.delta)

    def levels(self) -> Tensor:
        """q, decoded from the message."""
        return torch.from_numpy(self.prior.decode(self.message, self.entry.dimension, self.scale))

    def decoded(self, start: nn.Module, stretch: Stretch | None = None) -> nn.Module:
        """The network that the certificate is about, from its start θ₀ and its stretch S."""
        subspace = subspace_of(start, self.projector, self.entry, stretch)
        return subspace.decoded(self.levels(), self.step)

    def as_dict(self) -> dict[str, Any]:
        """The content of the file."""
        subspace = {"projector": self.projector, "dimension": self.entry.dimension,
                    "weights": self.num_weights, "seed": self.entry.seed}  # fmt: skip
        told = {
            "schema": SCHEMA, "certificate": "isotropy", "kind": self.kind,
            "network": dict(self.network), "shape": list(self.shape), "outputs": self.outputs,
            "start": dict(self.start),
            "symmetry": None if self.symmetry is None else self.symmetry.as_dict(),
            "subspace": subspace,
            "grid": self.grid.as_dict(), "entry": asdict(self.entry), "step": self.step,
            "prior": {"shape": self.prior.shape, "scales": list(self.prior.scales)},
            "scale": self.scale, "message": self.message.hex(),
            "data": dict(self.data),
            "errors": self.errors, "n": self.n, "delta": self.delta,
            "bits": self.account.as_dict(), "bound": self.bound,
        }  # fmt: skip
        return {**told, "digest": digest(told)}


def digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of JSON without spaces, keys in order, without the entry `digest` itself."""
    own = {name: value for name, value in content.items() if name != "digest"}
    text = json.dumps(own, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read_claim(content: Mapping[str, Any]) -> Claim:
    """What a file claims; raises CallerError if it is no certificate, `Invalid` if altered.

    The message is not decoded: `recheck` does it once the network is there.
    """
    if content.get("certificate") != "isotropy" or content.get("schema") != SCHEMA:
        raise CallerError(
            f"expected a certificate of schema {SCHEMA} (certificate.json of `isotropy certify`), "
            f"got schema {content.get('schema')!r}"
        )
    try:
        found = digest(content)
    except ValueError:  # numbers that are not finite, which no certificate has
        found = None
    if found is None or found != content.get("digest"):
        raise Invalid("the file was altered: its digest is not that of its content")
    try:
        shape, subspace = tuple(content["shape"]), content["subspace"]
        symmetry = content["symmetry"]
        claim = Claim(
            kind=content["kind"], network=content["network"], shape=shape,
            outputs=content["outputs"], start=content["start"],
            symmetry=None if symmetry is None else CodedSymmetry.from_dict(symmetry, shape),
            projector=subspace["projector"], num_weights=subspace["weights"],
            grid=Grid.from_dict(content["grid"]),
            entry=Entry(**content["entry"]), step=content["step"],
            prior=Prior(content["prior"]["shape"], tuple(content["prior"]["scales"])),
            scale=content["scale"], message=bytes.fromhex(content["message"]),
            data=content["data"], errors=content["errors"], n=content["n"],
            delta=content["delta"],
        )  # fmt: skip
        _check_choice(claim, content)
    except MISTAKES as error:
        raise Invalid(f"what the file says does not fit together: {error}") from error
    return claim


def _check_choice(claim: Claim, content: Mapping[str, Any]) -> None:
    """Raise CallerError unless the choice was declared and the parts are of one certificate."""
    entry = claim.entry
    if not 0 <= entry.dimension <= claim.num_weights:
        raise CallerError(f"a subspace of {entry.dimension} in {claim.num_weights} weights")
    if claim.kind not in KINDS or (claim.kind == "held-out") != (entry.dimension == 0):
        raise CallerError(f"kind {claim.kind!r} with dimension {entry.dimension}")
    if (claim.kind == "compression") != (claim.start.get("kind") is None):
        raise CallerError(f"kind {claim.kind!r} with a start of kind {claim.start.get('kind')!r}")
    if claim.start.get("stretch") is not None and claim.start["kind"] != "transfer":
        raise CallerError("a stretched subspace with a start that is not from other data")
    if entry not in claim.grid.entries() or claim.step not in claim.grid.steps:
        raise CallerError("the entry or the step is not one of the declared grid")
    if content["subspace"]["dimension"] != entry.dimension:
        raise CallerError("the subspace has another dimension than the entry")
    if {content["subspace"]["seed"], claim.start["seed"]} != {entry.seed}:
        raise CallerError("the start or the subspace has another seed than the entry")


def recheck(
    claim: Claim, content: Mapping[str, Any], start: nn.Module, stretch: Stretch | None = None
) -> None:
    """Raise `Invalid` unless the start is the one claimed, and bits and bound follow.

    start, stretch: θ₀ and S, made or read again
    """
    total = sum(each.numel() for each in start.parameters())
    if start_hash(start) != claim.start["sha256"] or total != claim.num_weights:
        raise Invalid("the network is another: its start has not the hash of the certificate")
    if (None if stretch is None else stretch.sha256()) != claim.start.get("stretch"):
        raise Invalid("the subspace is another: its stretch has not the hash of the certificate")
    try:
        for name, bits in claim.account.as_dict().items():
            stated = content["bits"][name]
            if not math.isclose(bits, stated, rel_tol=1e-9, abs_tol=1e-6):
                raise Invalid(
                    f"{stated:.3f} bits are charged for {name}, the message and the declared "
                    f"choices make it {bits:.3f}"
                )
        if not math.isclose(claim.bound, content["bound"], rel_tol=1e-9, abs_tol=1e-9):
            raise Invalid(
                f"the bound is stated as {content['bound']:.6f}, errors and bits make it "
                f"{claim.bound:.6f}"
            )
    except MISTAKES as error:
        raise Invalid(f"what the file says does not fit together: {error}") from error


def data_hash(inputs: Tensor, targets: Tensor) -> str:
    """SHA-256 of all inputs in float32 and all labels in int64, little-endian: every bit counts."""
    found = hashlib.sha256(inputs.to("cpu", torch.float32).contiguous().numpy().astype("<f4").data)
    found.update(targets.to("cpu", torch.int64).contiguous().numpy().astype("<i8").data)
    return found.hexdigest()


def account_of(
    grid: Grid, prior: Prior, dimension: int, weights: float, symmetry: CodedSymmetry | None
) -> Account:
    """All parts of −log₂ P(h); a network without a message has neither step nor scale.

    The shape of the prior is charged with its scale: one bit.
    """
    steps, scales = (len(grid.steps), len(SHAPES) * len(prior.scales)) if dimension else (1, 1)
    price = 0.0 if symmetry is None else symmetry.bits
    return Account.of(grid.choices, steps, scales, weights, price)


def subspace_of(
    start: nn.Module, kind: str, entry: Entry, stretch: Stretch | None = None
) -> Subspace:
    """The subspace of an entry around a start; the entry's seed draws the signs."""
    weights = sum(each.numel() for each in start.parameters())
    rows = film_rows(start) if "film" in kind else None
    found = projector(kind, weights, entry.dimension, entry.seed, rows)
    return Subspace(start, found if stretch is None else Stretched(found, stretch, start))
