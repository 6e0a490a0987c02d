"""A layer that is the sum of pathways, and pathways by name.

    name              pathway                                             file
    fc                fully connected, every pixel with every other       fully_connected
    ffc               the same in two factors (Eq. 5)                     fully_connected
    sfc               the same with factors in a basis (Eq. 7)            sparse
    conv              convolution                                         pathway
    sconv             convolution by filters in a basis (Eq. 6)           sparse
    gconv             group convolution, pointwise in the group (F.3)     group_convolution
    gconv-full, gconv-separable, gconv-depthwise   the other forms of F.3 group_convolution
    equivariant       a layer of an equivariant network                   equivariant
    gate, free-gate   the gate of one, and its free part                  equivariant

(van der Ouderaa, Immer and van der Wilk 2023.) Outputs are added, as in Eq. 4; the published code
takes their mean, which is the same with priors of another scale. The last three are made of layers
that are there (`relax`), and are not in PATHWAYS. In new layers the pathways with a
symmetry share the variance of one, and fully connected ones beside them start at zero: a layer is
equivariant until the data asks for more. (Started alike, as published, they fit the training
images one by one before the evidence has a say, and a short run does not find back.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_choice, shape_text
from isotropy.networks.equivariant.point_group_layers import PolyphaseDownsampling
from isotropy.networks.pathways.equivariant import EquivariantPathway
from isotropy.networks.pathways.filter_basis import BasisOptions
from isotropy.networks.pathways.fully_connected import FactoredPathway, FullyConnectedPathway
from isotropy.networks.pathways.group_convolution import GroupConvolutionPathway
from isotropy.networks.pathways.pathway import (
    ConvolutionPathway,
    LayerShape,
    Pathway,
    varying_part,
)
from isotropy.networks.pathways.sparse import SparseConvolutionPathway, SparseFactoredPathway
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.point_groups import PointGroup


@dataclass(frozen=True)
class PathwayOptions:
    """What new pathways are made with.

    kernel:    height and width of filters
    group:     of group convolutions
    sparsity:  anchors per pixel of a filter, of sparse pathways
    learns_lengthscale, learns_anchors: what of a sparse pathway's basis is trained too
    free_start: factor of the initial outputs of fully connected pathways beside others; with 0 a
               new layer is strictly equivariant, and what breaks symmetry has to be learned
    """

    kernel: int = 3
    group: PointGroup | None = None
    sparsity: float = 0.5
    learns_lengthscale: bool = False
    learns_anchors: bool = False
    free_start: float = 0.0

    @property
    def basis(self) -> BasisOptions:
        """Of sparse pathways."""
        return BasisOptions(self.sparsity, self.learns_lengthscale, self.learns_anchors)


UNKNOWN = -1.0
"""In place of a share that was not learned."""

Maker = Callable[[LayerShape, PathwayOptions, "torch.Generator | None"], Pathway]


def _grouped(form: str) -> Maker:
    def make(
        shape: LayerShape, options: PathwayOptions, generator: torch.Generator | None
    ) -> Pathway:
        if options.group is None:
            raise CallerError("a group convolution needs a group; pass one, such as C(4)")
        return GroupConvolutionPathway(
            shape, options.group, form=form, kernel=options.kernel, generator=generator
        )

    return make


FREE = ("fc", "ffc", "sfc", "free-gate")
"""Pathways without any symmetry."""

GROUP_CONVOLUTIONS = {
    "gconv": "pointwise",
    "gconv-full": "full",
    "gconv-separable": "separable",
    "gconv-depthwise": "depthwise",
}
"""Pathways whose channels are (group, channels), and their forms."""

BUILT_IN = ("equivariant", "gate")
"""Pathways with the symmetry of the network that they are taken from."""


def symmetry_rank(kind: str) -> int:
    """0 for pathways without symmetry, 1 for translations, 2 for a group beside them."""
    return 0 if kind in FREE else 2 if kind in (*GROUP_CONVOLUTIONS, *BUILT_IN) else 1


DEFAULT_GROUP = "C(4)"
"""Quarter turns: p4, with translations."""

PATHWAYS: dict[str, Maker] = {
    "fc": lambda shape, _, generator: FullyConnectedPathway(shape, generator=generator),
    "ffc": lambda shape, _, generator: FactoredPathway(shape, generator=generator),
    "sfc": lambda shape, options, generator: SparseFactoredPathway(
        shape, options.basis, generator=generator
    ),
    "conv": lambda shape, options, generator: ConvolutionPathway.new(
        shape, kernel=options.kernel, generator=generator
    ),
    "sconv": lambda shape, options, generator: SparseConvolutionPathway(
        shape, options.basis, kernel=options.kernel, generator=generator
    ),
    **{kind: _grouped(form) for kind, form in GROUP_CONVOLUTIONS.items()},
}


def pathway_named(
    kind: str,
    shape: LayerShape,
    options: PathwayOptions | None = None,
    *,
    generator: torch.Generator | None = None,
) -> Pathway:
    """A new pathway of this kind; `generator` draws its initial weights."""
    check_choice(kind, PATHWAYS, what="pathway")
    if not shape.is_maps and kind != FullyConnectedPathway.kind:
        raise CallerError(
            f"pathway {kind}: expected maps (channels, height, width), got features of size "
            f"{shape.source} and {shape.target}; beside an equivariant layer of vectors take fc"
        )
    return PATHWAYS[kind](shape, options or PathwayOptions(), generator)


def check_kinds(kinds: Sequence[str]) -> None:
    """Raise CallerError unless these are known pathways, each once and at least one."""
    if isinstance(kinds, str):
        raise CallerError(f"expected a sequence of pathways, got the text {kinds!r}; split it")
    for kind in kinds:
        check_choice(kind, PATHWAYS, what="pathway")
    if not kinds or len(set(kinds)) < len(kinds):
        raise CallerError(
            f"expected at least one pathway and each once, got {', '.join(kinds) or 'none'}"
        )


def check_shares(shares: Mapping[str, float], kinds: Iterable[str], *, what: str) -> None:
    """Raise CallerError unless `shares` has a finite number ≥ 0 for each of these, and no other."""
    kinds = list(kinds)
    if set(shares) != set(kinds):
        raise CallerError(
            f"{what}: expected one number for each of {', '.join(kinds)}, got "
            f"{', '.join(shares) or 'none'}"
        )
    for kind, share in shares.items():
        if not (math.isfinite(share) and share >= 0):
            raise CallerError(
                f"{what}: expected finite numbers of at least 0, got {share} for {kind}"
            )


def options_for(
    kinds: Sequence[str],
    group: PointGroup | Group | str | None = None,
    options: PathwayOptions | None = None,
) -> PathwayOptions:
    """`options` with a group exactly if one of these pathways asks for one.

    group: in place of that of the options; quarter turns if neither says

    Raises CallerError for a group that no pathway uses.
    """
    options = options or PathwayOptions()
    if any(kind in GROUP_CONVOLUTIONS for kind in kinds):
        wanted = group if group is not None else options.group or DEFAULT_GROUP
        return replace(options, group=PointGroup.of(wanted))
    if group is not None:
        raise CallerError(
            f"a group was given, and none of the pathways {', '.join(kinds)} uses it; add gconv or "
            "leave out the group"
        )
    return replace(options, group=None)


class RelaxedLayer(nn.Module):
    """y = Σ_p pathway_p(x), (batch, C, X, Y) → (batch, C', X', Y'), or (batch, n) → (batch, n').

    pathways: by kind. Those that do not reach the target's size are added up first and one
              polyphase component is kept of the sum, chosen for each example: one choice for all.
    """

    shares: Tensor
    constant_share: Tensor

    def __init__(self, shape: LayerShape, pathways: Mapping[str, Pathway]) -> None:
        super().__init__()
        if not pathways:
            raise CallerError("expected at least one pathway, got none")
        for kind, pathway in pathways.items():
            if pathway.shape != shape:
                raise CallerError(
                    f"pathway {kind}: expected one from {shape.source} to {shape.target}, got one "
                    f"from {pathway.shape.source} to {pathway.shape.target}"
                )
        self.shape = shape
        self.pathways = nn.ModuleDict(pathways)
        waits = any(not pathway.reaches_target for pathway in pathways.values())
        factor = shape.stride if waits else 1
        self.downsampling = None
        if factor > 1:
            _, height, width = shape.source
            self.downsampling = PolyphaseDownsampling(factor, (height, width))
        # Of each pathway in turn; a tensor, so that it is saved with the weights, and of double
        # precision, so that a share is compared with a threshold as it was written.
        shares = torch.full((len(pathways),), UNKNOWN, dtype=torch.float64)
        self.register_buffer("shares", shares)
        self.register_buffer("constant_share", torch.tensor(UNKNOWN, dtype=torch.float64))

    @classmethod
    def new(
        cls,
        kinds: Sequence[str],
        shape: LayerShape,
        options: PathwayOptions | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> RelaxedLayer:
        """A layer of new pathways, those with a symmetry each with its share of the variance.

        Fully connected ones beside others start at `options.free_start` of their share.
        """
        check_kinds(kinds)
        options = options or PathwayOptions()
        found = {kind: pathway_named(kind, shape, options, generator=generator) for kind in kinds}
        bound = [kind for kind in kinds if kind not in FREE] or list(kinds)
        for kind, pathway in found.items():
            start = 1.0 if kind in bound else options.free_start
            pathway.scale_(start / math.sqrt(len(bound)))
        return cls(shape, found)

    def members(self) -> dict[str, Pathway]:
        """Pathways by kind."""
        return {kind: each for kind, each in self.pathways.items() if isinstance(each, Pathway)}

    @property
    def contributions(self) -> dict[str, float] | None:
        """How much each pathway makes of the inputs, as learning left it; None before.

        c_p = ‖L_p x‖ / √(Σ_q ‖L_q x‖²) over training examples with L_p x = pathway_p(x) −
        pathway_p(0), so that Σ c² = 1.
        """
        found = self.shares.tolist()
        return None if min(found) < 0 else dict(zip(self.pathways, found, strict=True))

    @contributions.setter
    def contributions(self, shares: Mapping[str, float] | None) -> None:
        if shares is None:
            self.shares.fill_(UNKNOWN)
            return
        check_shares(shares, self.pathways, what="contributions")
        found = [float(shares[kind]) for kind in self.pathways]
        self.shares.copy_(torch.tensor(found, dtype=torch.float64))

    def varying(self, constant: Tensor) -> Tensor:
        """What of a constant breaks the symmetry of the layer: what the group of an equivariant
        pathway moves; of maps (C, X, Y) without one what differs from place to place."""
        bound = self.members().get(EquivariantPathway.kind)
        if isinstance(bound, EquivariantPathway):
            return constant - bound.allowed(constant)
        return varying_part(constant) if constant.ndim == 3 else torch.zeros_like(constant)

    @property
    def bias_map(self) -> float | None:
        """How large constants are that break the symmetry (`varying`), as learning left them, over
        what depends on the inputs; None before."""
        found = float(self.constant_share)
        return None if found < 0 else found

    @bias_map.setter
    def bias_map(self, size: float | None) -> None:
        self.constant_share.fill_(UNKNOWN if size is None else size)

    def forward(self, maps: Tensor) -> Tensor:
        if maps.shape[1:] != self.shape.source:
            what = "maps" if self.shape.is_maps else "vectors"
            raise CallerError(
                f"expected {what} (batch, {', '.join(map(str, self.shape.source))}), got "
                f"{shape_text(maps)}"
            )
        members = self.members().values()
        waiting = [pathway(maps) for pathway in members if not pathway.reaches_target]
        found = [pathway(maps) for pathway in members if pathway.reaches_target]
        if waiting:
            total = _sum(waiting)
            found.insert(0, total if self.downsampling is None else self.downsampling(total))
        return _sum(found)


def _sum(parts: Sequence[Tensor]) -> Tensor:
    return sum(parts[1:], start=parts[0])
