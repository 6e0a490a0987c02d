"""The kinds of curvature an evidence can be built on, by name.

A kind is two choices. *Structure*: which entries of the matrix are kept.

    kfac         one Kronecker block per weight, a dense one per bias     `kfac`
    diagonal     the exact diagonal                                       `jacobians`
    full         the whole matrix over all parameters
    last-layer   the whole matrix over the last layer; the others are constants of the evidence

*Fisher*: which directions stand for the curvature Λ of the likelihood in its outputs.

    ggn          all of them: the generalised Gauss–Newton, equal to the Fisher here
    mc           one, drawn from the model: unbiased, C − 1 times cheaper
    ef           one, the gradient at the true target: the empirical Fisher, not an estimate of it

Evidences of different kinds are different numbers; `evidence.laplace` refuses to subtract them.

What any kind of curvature delivers for one batch of data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from isotropy.checks import CallerError, check_choice
from isotropy.curvature.blocks import (
    Factors,
    JointFactors,
    JointRoots,
    JointSpectrum,
    Roots,
    Spectrum,
    all_factors,
    all_spectra,
)
from isotropy.curvature.copies import Copies
from isotropy.likelihoods import Likelihood

Structure = Literal["kfac", "diagonal", "full", "last-layer"]
Fisher = Literal["ggn", "mc", "ef"]
STRUCTURES: tuple[Structure, ...] = ("kfac", "diagonal", "full", "last-layer")
FISHERS: tuple[Fisher, ...] = ("ggn", "mc", "ef")


@dataclass(frozen=True)
class CurvatureKind:
    """A structure and a Fisher; written `kfac-ggn`, `diagonal-ef`, …"""

    structure: Structure
    fisher: Fisher

    @property
    def name(self) -> str:
        """As in records: structure, a hyphen, Fisher."""
        return f"{self.structure}-{self.fisher}"

    def directions(
        self,
        likelihood: Likelihood,
        outputs: Tensor,
        targets: Tensor | None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Output directions r (directions, batch, outputs): curvature ∝ Σ_d r rᵀ."""
        if self.fisher == "ggn":
            return likelihood.curvature_root(outputs)
        if self.fisher == "mc":
            return likelihood.sampled_root(outputs, generator)
        if targets is None:
            raise CallerError(f"curvature {self.name}: expected the targets of the batch, got none")
        return likelihood.empirical_root(outputs, targets)

    def scale(self, likelihood: Likelihood) -> Tensor:
        """The factor of proportionality; differentiable in the likelihood's noise."""
        if self.fisher == "ef":
            return likelihood.empirical_scale()
        return likelihood.curvature_scale()


_ALL = [CurvatureKind(structure, fisher) for structure in STRUCTURES for fisher in FISHERS]
KINDS: dict[str, CurvatureKind] = {kind.name: kind for kind in _ALL}
DEFAULT_KIND = "kfac-ggn"


def kind_named(name: str) -> CurvatureKind:
    """A kind by name; a structure alone means its `ggn`, a Fisher alone its `kfac`."""
    if name in STRUCTURES:
        name = f"{name}-ggn"
    elif name in FISHERS:
        name = f"kfac-{name}"
    return KINDS[check_choice(name, KINDS, what="curvature")]


AnyRoots = Roots | JointRoots
AnyFactors = Factors | JointFactors
AnySpectrum = Spectrum | JointSpectrum


@dataclass(frozen=True)
class BatchCurvature:
    """Averaged outputs (batch, outputs) and roots by block: a parameter's name, or JOINT."""

    outputs: Tensor
    roots: Mapping[str, AnyRoots]

    def detach(self) -> BatchCurvature:
        """The same, constant."""
        roots = {name: root.detach() for name, root in self.roots.items()}
        return BatchCurvature(self.outputs.detach(), roots)

    def factors(self) -> dict[str, AnyFactors]:
        """Factors of every block from this batch."""
        joint = {name: r.factors() for name, r in self.roots.items() if isinstance(r, JointRoots)}
        single = {n: r for n, r in self.roots.items() if not isinstance(r, JointRoots)}
        return {**joint, **all_factors(single)}


def spectra_of(
    factors: Mapping[str, AnyFactors],
    count: int,
    *,
    values_only: bool = False,
) -> dict[str, AnySpectrum]:
    """Every block in the form a log-determinant needs, from factors over `count` examples.

    values_only: without eigenvectors, which pullbacks need and values do not
    """
    joint = {n: f.spectrum(count) for n, f in factors.items() if isinstance(f, JointFactors)}
    single = {n: f for n, f in factors.items() if not isinstance(f, JointFactors)}
    return {**joint, **all_spectra(single, count, values_only=values_only)}


class Curvature(Protocol):
    """Curvature of one network, reusable over batches.

    parameter_names: the parameters that have curvature and a prior, in the network's own order.
    """

    kind: CurvatureKind
    parameter_names: tuple[str, ...]

    def batch(
        self,
        inputs: Tensor,
        copies: Copies,
        likelihood: Likelihood,
        targets: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        create_graph: bool = False,
    ) -> BatchCurvature:
        """Roots from one batch of inputs (batch·copies, …), targets (batch, …)."""
