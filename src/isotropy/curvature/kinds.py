"""What curvature is asked for, of which outputs, and what comes back for one batch of data.

A kind of curvature is two choices. *Structure*: which entries of the matrix are kept.

    kfac         one Kronecker block per weight, a dense one per bias     `kfac`
    diagonal     the exact diagonal                                       `jacobians`
    full         the whole matrix over all parameters
    last-layer   the whole matrix over the last layer; the others are constants of the evidence

*Fisher*: which directions stand for the curvature Λ of the likelihood in its outputs.

    ggn          all of them: the generalised Gauss–Newton, equal to the Fisher here
    mc           one, drawn from the model: unbiased, C − 1 times cheaper
    ef           one, the gradient at the true target: the empirical Fisher, not an estimate of it

Evidences of different kinds are different numbers; `evidence.laplace` refuses to subtract them.

The outputs are averages over the transformed copies of each example, rows (batch·copies, …) with
copies fastest:

    f̂(x) = Σ_s w_s f(x_s),    Σ_s w_s = 1

The weights are 1/S for S random draws; a mixture over the elements of a finite group has the
elements' probabilities in them, and is exact in those. They must add up to one, also where they are
differentiated: an affine last layer is taken out of the average (`kfac`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from isotropy.checks import CallerError, check_choice, shape_text
from isotropy.curvature.blocks import Factors, Roots, all_factors
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
DEFAULT_KIND, DEEP_KIND = "kfac-ggn", "kfac-mc"
"""Where nothing is said; and for networks in which every direction is a long way."""


def kind_named(name: str) -> CurvatureKind:
    """A kind by name; a structure alone means its `ggn`, a Fisher alone its `kfac`."""
    if name in STRUCTURES:
        name = f"{name}-ggn"
    elif name in FISHERS:
        name = f"kfac-{name}"
    return KINDS[check_choice(name, KINDS, what="curvature")]


@dataclass(frozen=True)
class Copies:
    """How many copies an example has, and the weight of each, (count,); None: all equal."""

    count: int
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        if self.weights is not None and self.weights.shape != (self.count,):
            raise CallerError(
                f"weights of copies: expected ({self.count},), one a copy, got "
                f"{shape_text(self.weights)}"
            )

    def split(self, rows: Tensor) -> Tensor:
        """(batch·copies, …) → (batch, copies, …)."""
        return rows.unflatten(0, (-1, self.count))

    def mean(self, rows: Tensor) -> Tensor:
        """Σ_s w_s row_s: (batch·copies, …) → (batch, …).

        Equal weights scale after the sum: its gradient is then a broadcast view, where that of
        `mean` is divided and written out once per copy.
        """
        if self.weights is None:
            return self.split(rows).sum(1) * (1 / self.count)
        return (self.split(rows).movedim(1, -1) @ self.weights.to(rows.dtype)).contiguous()


@dataclass(frozen=True)
class BatchCurvature:
    """Averaged outputs (batch, outputs) and roots by block: a parameter's name, or JOINT."""

    outputs: Tensor
    roots: Mapping[str, Roots]

    def detach(self) -> BatchCurvature:
        """The same, constant."""
        roots = {name: root.detach() for name, root in self.roots.items()}
        return BatchCurvature(self.outputs.detach(), roots)

    def factors(self) -> dict[str, Factors]:
        """Factors of every block from this batch."""
        return all_factors(self.roots)
