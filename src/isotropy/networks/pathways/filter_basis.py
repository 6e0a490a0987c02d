"""Filters in a basis of few functions: values at anchor points, and what lies between them.

    s(t) = Σ_j u_j φ_j(t)          φ = (K_zz + σ² I)⁻¹ K_zt   (anchors, pixels)

    K(z, t) = (1 + 10⁻⁶) exp(−½ ω² ‖z − t‖²)                  σ = 0.01

for anchors z_j, values u_j there, and the pixels t of a grid that is centred and has spacing 1
(van der Ouderaa, Immer and van der Wilk 2023, section 3.1). A filter is what a Gaussian process
expects everywhere after u was seen at z with noise σ: where anchors lie on pixels it is u there,
but for a share σ² / (λ + σ²) of each eigenvector of K_zz, λ its eigenvalue. The paper prints
φ_j(t) = exp(−ω² ‖z_j − t‖²), without the inverse and the ½; this is what its experiments used.

ω, which the paper calls the lengthscale, is its inverse, in 1 / pixels. φ is even in ω. At ω = 0
all entries of φ are equal, 1 / P for P anchors within σ² / P, so that a filter is the mean of its
values at every pixel; the derivative by ω vanishes there, and training does not leave it. For
ω → ∞ a filter is zero at all pixels that are not anchors.

Anchors are drawn at random, but away from each other (`spread_points`). Where they are drawn
independently, as in the paper's experiments, some nearly coincide and the inverse is large: a step
on values moves a filter up to fifty times as far in one direction as in another. Networks of such
filters learn slowly, or end with no signal. With spread anchors that ratio is about two.

Axes: points (points, 2) with height first, φ (anchors, pixels) with pixels row by row. Everything
is computed in float64 and rounded to the layer's precision. Oracle: tests/oracles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError

NOISE = 0.01
"""σ: how far a filter may stay from its values, where anchors are close to each other."""
VARIANCE = 1.0 + 1e-6
"""K(z, z)."""
LENGTHSCALE = 1.0
"""ω at first, in 1 / pixels."""

CANDIDATES = 8
"""Places drawn for each anchor that is kept."""

WEAK = 0.1
"""Norm of the change of a filter by values of norm one, below which a fit does without."""


def grid_points(height: int, width: int) -> Tensor:
    """Pixels of a grid about its centre, (height · width, 2) in float64."""
    down = torch.arange(height, dtype=torch.float64) - (height - 1) / 2
    right = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
    return torch.cartesian_prod(down, right).reshape(-1, 2)


def anchor_count(sparsity: float, pixels: int) -> int:
    """Anchors of a filter with so many pixels: sparsity · pixels, rounded up, at least one."""
    if not 0 < sparsity <= 1:
        raise CallerError(
            f"sparsity: expected anchors per pixel, above 0 and at most 1, got {sparsity:g}"
        )
    return max(math.ceil(sparsity * pixels - 1e-9), 1)  # 0.1 · 30 is a little more than 3


def spread_points(
    count: int, size: tuple[int, int], *, generator: torch.Generator | None = None
) -> Tensor:
    """Random points away from each other, (count, 2), in the box between the corner pixels.

    Of `CANDIDATES` uniform places for each point one is the first; each next is the one furthest
    from all that are there. In float32 in any case: the same points in every precision.
    """
    box = torch.tensor([size[0] - 1, size[1] - 1], dtype=torch.float32)
    share = torch.rand(CANDIDATES * count, 2, generator=generator, dtype=torch.float32) - 0.5
    places = share * box
    if places.is_meta:
        return places[:count]  # no numbers to compare, and the shape is known
    kept = [places[:1]]
    nearest = _distances(places, kept[0])
    for _ in range(count - 1):
        kept.append(places[nearest[:, 0].argmax(0, keepdim=True)])
        nearest = torch.minimum(nearest, _distances(places, kept[-1]))
    return torch.cat(kept)


def basis_functions(anchors: Tensor, lengthscale: Tensor, points: Tensor) -> Tensor:
    """φ (anchors, points) in float64, differentiable in `anchors` (anchors, 2) and `lengthscale`.

    lengthscale: ω, one number of any shape
    points:      where to evaluate, (points, 2)
    """
    anchors, omega, points = anchors.double(), lengthscale.double().reshape(()), points.double()
    root = _root(_kernel(_distances(anchors, anchors), omega))
    return _solved(root, _kernel(_distances(anchors, points), omega))


def basis_slopes(anchors: Tensor, lengthscale: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """φ and its derivative by ω, both (anchors, points) in float64.

    With M = K_zz + σ² I and ∂K/∂ω = −ω ‖z − t‖² K:   ∂φ/∂ω = M⁻¹ (∂K_zt/∂ω − ∂K_zz/∂ω φ)
    """
    anchors, omega, points = anchors.double(), lengthscale.double().reshape(()), points.double()
    between, across = _distances(anchors, anchors), _distances(anchors, points)
    of_anchors, of_points = _kernel(between, omega), _kernel(across, omega)
    root = _root(of_anchors)
    functions = _solved(root, of_points)
    change = -omega * (across * of_points - (between * of_anchors) @ functions)
    return functions, _solved(root, change)


def _distances(points: Tensor, others: Tensor) -> Tensor:
    """‖z − t‖² (points, others); smooth at zero."""
    down = points[:, None, 0] - others[None, :, 0]
    right = points[:, None, 1] - others[None, :, 1]
    return down.square() + right.square()


def _kernel(squared_distances: Tensor, omega: Tensor) -> Tensor:
    return VARIANCE * (-0.5 * omega.square() * squared_distances).exp()


def _root(kernel: Tensor) -> Tensor:
    """The Cholesky factor L of K + σ² I. The host does not wait to hear whether it exists."""
    noise = NOISE**2 * torch.eye(len(kernel), dtype=kernel.dtype, device=kernel.device)
    return torch.linalg.cholesky_ex(kernel + noise)[0]


def _solved(root: Tensor, right: Tensor) -> Tensor:
    """(L Lᵀ)⁻¹ `right`."""
    half = torch.linalg.solve_triangular(root, right, upper=False)
    return torch.linalg.solve_triangular(root.mT, half, upper=True)


@dataclass(frozen=True)
class BasisOptions:
    """What a basis is made with.

    sparsity:           anchors per pixel, above 0 and at most 1
    learns_lengthscale: whether ω is a parameter, with a curvature and a prior
    learns_anchors:     whether their locations are one, with neither
    """

    sparsity: float = 0.5
    learns_lengthscale: bool = False
    learns_anchors: bool = False


class FilterBasis(nn.Module):
    """The basis of a layer's filters; layers inherit it, for a parameter's curvature rule belongs
    to the module that holds the parameter.

    size:      height and width of filters
    generator: draws anchors (`spread_points`); torch's own if None

    `anchors` (anchors, 2) and `lengthscale` (1,) are saved with a network either way. Where
    neither is learned φ is computed once, and rounded anew from float64 when the layer is
    converted.
    """

    anchors: Tensor
    lengthscale: Tensor
    points: Tensor
    fixed_functions: Tensor | None

    def __init__(
        self,
        size: tuple[int, int],
        options: BasisOptions | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        options = options or BasisOptions()
        self.size = size
        self.count = anchor_count(options.sparsity, size[0] * size[1])
        default = torch.get_default_dtype()
        anchors = spread_points(self.count, size, generator=generator).to(default)
        self._add("anchors", anchors, options.learns_anchors)
        self._add("lengthscale", torch.full((1,), LENGTHSCALE), options.learns_lengthscale)
        self.register_buffer("points", grid_points(*size).to(default), persistent=False)
        self.register_buffer("fixed_functions", None, persistent=False)
        self._exact: Tensor | None = None
        self._settle()

    @property
    def learns_lengthscale(self) -> bool:
        """Whether ω is a parameter."""
        return "lengthscale" in self._parameters

    @property
    def learns_anchors(self) -> bool:
        """Whether locations of anchors are a parameter."""
        return "anchors" in self._parameters

    def functions(self) -> Tensor:
        """φ (anchors, pixels), in the precision of the layer."""
        if self.fixed_functions is not None:
            return self.fixed_functions
        if self.learns_anchors:
            found = basis_functions(self.anchors, self.lengthscale, self.points)
            return found.to(self.points.dtype)
        # ω is one number: its derivative costs less forwards than through the inverse. The last
        # factor is zero, and second derivatives by ω, which nothing here takes, are lost.
        with torch.no_grad():
            both = basis_slopes(self.anchors, self.lengthscale, self.points)
        functions, slopes = (each.to(self.points.dtype) for each in both)
        return functions + slopes * (self.lengthscale - self.lengthscale.detach())

    def slopes(self) -> Tensor:
        """∂φ/∂ω (anchors, pixels), a constant."""
        with torch.no_grad():
            found = basis_slopes(self.anchors, self.lengthscale, self.points)[1]
        return found.to(self.points.dtype)

    @torch.no_grad()
    def fitted(self, filters: Tensor) -> Tensor:
        """Values (…, anchors) whose filters are nearest to the given ones, (…, pixels).

        By least squares, with values of zero in directions where one unit of them changes filters
        by less than `WEAK`: with nearly as many anchors as pixels a fit may otherwise need values
        in the thousands. Of filters without any structure about a share P / pixels of the variance
        stays.
        """
        functions = basis_functions(self.anchors, self.lengthscale, self.points)
        squares, directions = torch.linalg.eigh(functions @ functions.mT)
        inverse = torch.where(squares > WEAK**2, 1 / squares, 0.0)
        wanted = filters.double().flatten(0, -2) @ functions.mT
        values = ((wanted @ directions) * inverse) @ directions.mT
        return values.reshape(*filters.shape[:-1], self.count).to(filters.dtype)

    def fix(self) -> None:
        """Make anchors and ω constants, as they are now."""
        for name in ("anchors", "lengthscale"):
            found = getattr(self, name).detach().clone()
            self._parameters.pop(name, None)
            self.register_buffer(name, found)
        self._settle()

    def _add(self, name: str, value: Tensor, learned: bool) -> None:
        if learned:
            self.register_parameter(name, nn.Parameter(value))
        else:
            self.register_buffer(name, value)

    def _settle(self) -> None:
        """Keep φ, if it is constant."""
        if self.learns_lengthscale or self.learns_anchors:
            return
        self._exact = basis_functions(self.anchors, self.lengthscale, self.points).detach()
        self.fixed_functions = self._exact.to(self.points.dtype)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        if not self.points.is_meta:  # layers made without memory may be given some
            self.points = grid_points(*self.size).to(self.points)
        if self._exact is not None and self._exact.is_meta:
            self._settle()
        elif self._exact is not None and self.fixed_functions is not None:
            self.fixed_functions = self._exact.to(self.fixed_functions)
        return self

    def _load_from_state_dict(self, *given: Any, **named: Any) -> None:
        super()._load_from_state_dict(*given, **named)
        self._settle()
