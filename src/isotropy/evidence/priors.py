"""Gaussian priors on weights, with precisions that the evidence learns.

    p(θ) = Π_l N(θ_l; 0, I/δ_l)      one δ for everything, per layer, or per parameter tensor

Weights in front of a normalisation layer are scale-invariant: a Gaussian prior says nothing of
their direction and everything of a length that changes nothing. They carry no penalty, and
`laplace` gives them the precision on whose shell they lie.

A network may declare its own groups with a method `prior_groups()` that returns a dictionary
from parameter name to group name; roles are never guessed from names.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_choice

PriorStructure = Literal["scalar", "layer", "tensor"]
STRUCTURES = ("scalar", "layer", "tensor")


class GaussianPrior(nn.Module):
    """Zero-mean Gaussian prior; `log_precisions` (groups,) is learnable, in float64.

    names: the parameters that have a prior, in the network's own order.
    scale_invariant: layers whose length changes nothing; kept as {layer: its parameters}.
    """

    def __init__(
        self,
        network: nn.Module,
        names: tuple[str, ...],
        structure: PriorStructure = "scalar",
        precision: float = 1.0,
        scale_invariant: Collection[str] = (),
    ) -> None:
        super().__init__()
        check_choice(structure, STRUCTURES, what="prior structure")
        self.structure = structure
        self.names = names
        self.scale_invariant = {
            layer: tuple(name for name in names if name.rpartition(".")[0] == layer)
            for layer in scale_invariant
        }
        self._free = {name for members in self.scale_invariant.values() for name in members}
        self.group_of = _groups(network, names, structure)
        self.groups = tuple(dict.fromkeys(self.group_of.values()))
        start = torch.full((len(self.groups),), math.log(precision), dtype=torch.float64)
        self.log_precisions = nn.Parameter(start)

    def precisions(self) -> dict[str, Tensor]:
        """δ for each parameter tensor by name; differentiable in `log_precisions`."""
        values = dict(zip(self.groups, self.log_precisions.exp(), strict=True))
        return {name: values[self.group_of[name]] for name in self.names}

    def precisions_at(
        self, squared_norms: Mapping[str, Tensor], sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """δ by parameter name, for weights with these squared norms; differentiable in the prior's.

        The weights of a layer in front of a normalisation count by their direction alone, which
        any isotropic Gaussian prior makes uniform on the sphere. They get the precision on whose
        shell they lie, P/‖θ‖², so that the evidence depends neither on their length nor on δ.
        """
        precisions = self.precisions()
        for names in self.scale_invariant.values():
            own = [name for name in names if name in sizes]
            if own:
                length = torch.stack([squared_norms[name] for name in own]).sum()
                on_shell = sum(sizes[name] for name in own) / length
                precisions |= dict.fromkeys(own, on_shell.to(self.log_precisions))
        return precisions

    @torch.no_grad()
    def set_precision(self, names: Collection[str], precision: float) -> None:
        """Give the groups of these parameters this δ."""
        wanted = {self.group_of[name] for name in names}
        for index, group in enumerate(self.groups):
            if group in wanted:
                self.log_precisions[index] = math.log(precision)

    def by_group(self) -> dict[str, float]:
        """δ for each group, for reports."""
        return dict(zip(self.groups, self.log_precisions.detach().exp().tolist(), strict=True))

    @torch.no_grad()
    def add_penalty_gradients(self, parameters: Mapping[str, Tensor], share: float) -> None:
        """Add share · δ_l θ_l to the parameters' gradients: that of the penalty ½ Σ_l δ_l ‖θ_l‖².

        Precisions are constants. Two operations for all tensors of a group, where autograd would
        take several for each.
        """
        precisions = (self.log_precisions.detach().exp() * share).unbind()
        for group, precision in zip(self.groups, precisions, strict=True):
            own = [
                parameters[name]
                for name in self.names
                if self.group_of[name] == group and name not in self._free
            ]
            gradients = [
                torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in own
            ]
            if own:
                pulls = torch._foreach_mul(own, precision.to(own[0].dtype))
                torch._foreach_add_(gradients, list(pulls))
            for tensor, gradient in zip(own, gradients, strict=True):
                tensor.grad = gradient  # new for a weight that the loss does not depend on


def _groups(
    network: nn.Module, names: tuple[str, ...], structure: PriorStructure
) -> dict[str, str]:
    declared = getattr(network, "prior_groups", None)
    if callable(declared):
        groups: dict[str, str] = declared()
        missing = [name for name in names if name not in groups]
        if missing:
            raise CallerError(
                f"prior_groups(): expected a group for every trainable parameter, got none for "
                f"{missing[0]!r}"
            )
        return {name: groups[name] for name in names}
    if structure == "scalar":
        return dict.fromkeys(names, "all")
    if structure == "layer":
        return {name: name.rpartition(".")[0] or "network" for name in names}
    return {name: name for name in names}
