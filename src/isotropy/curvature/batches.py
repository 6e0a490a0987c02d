"""What any kind of curvature delivers for one batch of data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from isotropy.curvature.copies import Copies
from isotropy.curvature.joint import JointFactors, JointRoots, JointSpectrum
from isotropy.curvature.kinds import CurvatureKind
from isotropy.curvature.kronecker import Factors, Roots, Spectrum, all_factors, all_spectra
from isotropy.likelihoods import Likelihood

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
