"""Networks whose weights lie in a random subspace: θ = θ₀ + P q Δ.

θ₀ has D weights, q is a vector of d integer levels and Δ a step size. P = scale × signs is a D × d
matrix whose columns have length about one (the thesis, section 5.4.1, with random signs instead of
Gaussian numbers). With matrices of signs u and v, a × b ≥ D and p × r ≥ d,

    dense               P = u / √D,                     u: D × d
    kronecker-product   P q = u mat(q) vᵀ / √D,         u: a × p,  v: b × r
    kronecker-sum       (P q)_ij = (u q)_i + (v q)_j, / √(2D),   u: a × d,  v: b × d
    film                dense on the weights of normalisation layers and of the head, 0 elsewhere

and `film+kronecker-product` and other sums, divided by √(number of terms). Here b = ⌈√D⌉,
a = ⌈D/b⌉, r = ⌈√d⌉, p = ⌈d/r⌉; weights are the first D entries of an a × b matrix and coordinates
the first d of mat(q), both row-major. Every column of the product has D signs and none is zero, for
any D and d. It takes O(D√d) time and O(√(dD)) memory. The image of the sum has at most a + b − 1
dimensions, 2√D − 1 for a square D; more coordinates are refused.

**The stream of signs.** All numbers are unsigned and of 64 bits, modulo 2⁶⁴:

    mix(z):  z ← (z ⊕ z≫30) · BF58476D1CE4E5B9;  z ← (z ⊕ z≫27) · 94D049BB133111EB;  z ⊕ z≫31
    word(seed, stream, i) = mix(mix(mix(seed) + stream) + (i + 1) · 9E3779B97F4A7C15)
    sign j of a stream = 1 − 2 · bit (j mod 64) of word(seed, stream, ⌊j/64⌋), bit 0 the lowest

(SplitMix64 with a counter.) A matrix takes the signs of its stream row by row. Term t of a sum has
the streams 2t for u and 2t + 1 for v. In a Kronecker sum the first row of v is that of u, so that
no column is zero.

**Decoding is exact.** signs · q is a sum of integers, and float64 holds it exactly in any order of
summation. `Projector.exact` then multiplies once by scale · Δ. So every machine obtains the same
weights to the last bit.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from isotropy.checks import CallerError, check_at_least, check_choice

BLOCK = 2**22
"""Entries of a matrix of signs that are converted at a time."""
_GOLDEN = 0x9E3779B97F4A7C15
_NORMALISATIONS = (
    nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm
)  # fmt: skip
_WEIGHTED = (nn.Linear, nn.modules.conv._ConvNd, nn.Bilinear)


def random_signs(seed: int, stream: int, rows: int, columns: int) -> np.ndarray:
    """A `(rows, columns)` matrix of ±1, int8, from the stream defined at the top of this file."""
    count = rows * columns
    base = _mixed(_mixed(np.array([seed % 2**64], np.uint64)) + np.uint64(stream))
    index = np.arange(1, -(-count // 64) + 1, dtype=np.uint64)
    words = _mixed(base + index * np.uint64(_GOLDEN))
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")[:count]
    return (1 - 2 * bits.astype(np.int8)).reshape(rows, columns)


def _mixed(words: np.ndarray) -> np.ndarray:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


class Projector(nn.Module):
    """P: from d coordinates to D weights.

    A subclass defines `signs_times(coordinates)`, the product with its integer matrix, and `scale`;
    a sum of projectors, whose terms have scales of their own, `forward` and `exact`.
    """

    def __init__(self, num_weights: int, dimension: int, scale: float) -> None:
        super().__init__()
        self.num_weights = num_weights
        self.dimension = dimension
        self.scale = scale

    def signs_times(self, coordinates: Tensor) -> Tensor:
        """The integer matrix times `(d,)`: `(D,)`."""
        raise NotImplementedError

    def forward(self, coordinates: Tensor) -> Tensor:
        """P times `(d,)`: `(D,)`, differentiable."""
        return self.signs_times(coordinates * self.scale)

    def exact(self, levels: Tensor, step: float) -> Tensor:
        """P q Δ for integer levels `(d,)`, in float64: the same bits on every machine.

        Raises CallerError where Σ |q| ≥ 2⁵², which float64 does not add up exactly.
        """
        if float(levels.double().abs().sum()) >= 2**52:
            raise CallerError("levels: expected numbers whose sizes add up to less than 2⁵²")
        return self.signs_times(levels.to(torch.float64)) * (self.scale * step)

    def _keep(self, name: str, signs: np.ndarray) -> None:
        # Not saved with a model: the seed says it all.
        self.register_buffer(name, torch.from_numpy(signs).to(torch.get_default_dtype()), False)


class Dense(Projector):
    """Random signs / √D."""

    def __init__(self, num_weights: int, dimension: int, seed: int, stream: int = 0) -> None:
        super().__init__(num_weights, dimension, 1 / math.sqrt(num_weights))
        self._keep("u", random_signs(seed, stream, num_weights, dimension))

    u: Tensor

    def signs_times(self, coordinates: Tensor) -> Tensor:
        return _times(self.u, coordinates)


class KroneckerProduct(Projector):
    """(u ⊗ v)/√D, without its rows and columns beyond D and d."""

    def __init__(self, num_weights: int, dimension: int, seed: int, stream: int = 0) -> None:
        super().__init__(num_weights, dimension, 1 / math.sqrt(num_weights))
        rows, columns = _near_square(num_weights)
        self.inner = _near_square(dimension)
        self._keep("u", random_signs(seed, stream, rows, self.inner[0]))
        self._keep("v", random_signs(seed, stream + 1, columns, self.inner[1]))

    u: Tensor
    v: Tensor

    def signs_times(self, coordinates: Tensor) -> Tensor:
        rows, columns = self.inner
        padded = nn.functional.pad(coordinates, (0, rows * columns - self.dimension))
        u, v = self.u.to(padded.dtype), self.v.to(padded.dtype)
        half = u @ padded.view(rows, columns)
        # The last row may not be whole. By itself, it spares the backward pass a copy of the rest.
        full, rest = divmod(self.num_weights, len(v))
        whole = (half[:full] @ v.T).flatten()
        return torch.cat((whole, v[:rest] @ half[full])) if rest else whole


class KroneckerSum(Projector):
    """(u ⊗ 1 + 1 ⊗ v)/√(2D), without its rows beyond D."""

    def __init__(self, num_weights: int, dimension: int, seed: int, stream: int = 0) -> None:
        super().__init__(num_weights, dimension, 1 / math.sqrt(2 * num_weights))
        rows, columns = _near_square(num_weights)
        most = rows + columns - 1
        if dimension > most:
            raise CallerError(
                f"kronecker-sum: expected at most {most} coordinates for {num_weights} weights, "
                f"the rank of the operator, got {dimension}; use kronecker-product"
            )
        u = random_signs(seed, stream, rows, dimension)
        v = random_signs(seed, stream + 1, columns, dimension)
        v[0] = u[0]
        self._keep("u", u)
        self._keep("v", v)

    u: Tensor
    v: Tensor

    def signs_times(self, coordinates: Tensor) -> Tensor:
        down, along = _times(self.u, coordinates), _times(self.v, coordinates)
        full, rest = divmod(self.num_weights, len(along))
        whole = (down[:full, None] + along[None, :]).flatten()
        return torch.cat((whole, along[:rest] + down[full])) if rest else whole


class Film(Projector):
    """Random signs / √(number of chosen weights) on the chosen weights, zero elsewhere."""

    def __init__(
        self, num_weights: int, dimension: int, seed: int, stream: int, rows: Tensor | None
    ) -> None:
        if rows is None or rows.shape != (num_weights,) or not bool(rows.any()):
            raise CallerError(
                "film: expected rows=, a mask (D,) with the weights that it moves; "
                "film_rows(module) chooses normalisation layers and the head"
            )
        chosen = rows.nonzero()[:, 0]
        super().__init__(num_weights, dimension, 1 / math.sqrt(max(len(chosen), 1)))
        self.register_buffer("chosen", chosen, False)
        self._keep("u", random_signs(seed, stream, len(chosen), dimension))

    chosen: Tensor
    u: Tensor

    def signs_times(self, coordinates: Tensor) -> Tensor:
        moved = _times(self.u, coordinates)
        return moved.new_zeros(self.num_weights).index_copy(0, self.chosen, moved)


class ProjectorSum(Projector):
    """The sum of k projectors with the same coordinates, divided by √k."""

    def __init__(self, terms: Sequence[Projector]) -> None:
        super().__init__(terms[0].num_weights, terms[0].dimension, 1 / math.sqrt(len(terms)))
        self.terms = nn.ModuleList(terms)

    def forward(self, coordinates: Tensor) -> Tensor:
        scaled = coordinates * self.scale
        return torch.stack([term(scaled) for term in self.terms]).sum(0)

    def exact(self, levels: Tensor, step: float) -> Tensor:
        total = torch.zeros(self.num_weights, dtype=torch.float64, device=levels.device)
        for term in self.terms:
            assert isinstance(term, Projector)
            total = total + term.exact(levels, self.scale * step)
        return total


KINDS: dict[str, Callable[..., Projector]] = {
    "dense": Dense,
    "kronecker-product": KroneckerProduct,
    "kronecker-sum": KroneckerSum,
    "film": Film,
}


def projector(
    kind: str, num_weights: int, dimension: int, seed: int, rows: Tensor | None = None
) -> Projector:
    """The operator of this kind, or a sum of kinds joined by +.

    `rows` `(D,)` says which weights `film` moves (`film_rows`). Dimension 0 moves none.
    """
    check_at_least(num_weights, 1, what="number of weights")
    if not 0 <= dimension <= num_weights:
        raise CallerError(
            f"dimension: expected from 0 to {num_weights}, the number of weights, got {dimension}"
        )
    if dimension == 0:  # all kinds are one
        return Dense(num_weights, 0, seed)
    terms: list[Projector] = []
    for stream, name in enumerate(kind.split("+")):
        made = KINDS[check_choice(name, KINDS, what="projector")]
        extra = {"rows": rows} if made is Film else {}
        terms.append(made(num_weights, dimension, seed, 2 * stream, **extra))
    alone = terms[0]
    if len(terms) == 1 and isinstance(alone, Film) and dimension > len(alone.chosen):
        raise CallerError(
            f"film: expected at most {len(alone.chosen)} coordinates, the number of weights that "
            f"it moves, got {dimension}; use film+kronecker-product"
        )
    return alone if len(terms) == 1 else ProjectorSum(terms)


def film_rows(module: nn.Module) -> Tensor:
    """Which of the flattened weights belong to a normalisation layer or to the head: `(D,)` bool.

    The head is the linear or convolutional layer that was registered last.
    """
    layers = list(module.modules())
    chosen: list[nn.Module] = [each for each in layers if isinstance(each, _NORMALISATIONS)]
    chosen += [each for each in layers if isinstance(each, _WEIGHTED)][-1:]
    moved = {id(weight) for layer in chosen for weight in layer.parameters(recurse=False)}
    return torch.cat(
        [torch.full((each.numel(),), id(each) in moved) for each in module.parameters()]
    )


class Subspace(nn.Module):
    """A module whose weights are θ₀ + P w, by functional call; only w, `coordinates`, is trained.

    θ₀ are the weights of `module` at construction, in the order of `named_parameters()`, shared
    ones once. The module itself stays as it is.
    """

    def __init__(self, module: nn.Module, projector: Projector) -> None:
        super().__init__()
        self.module = copy.deepcopy(module).requires_grad_(False)
        named = dict(self.module.named_parameters())
        self.names = list(named)
        self.shapes = [each.shape for each in named.values()]
        total = sum(each.numel() for each in named.values())
        if total != projector.num_weights:
            raise CallerError(
                f"projector: expected one for the {total} weights of this network, got one for "
                f"{projector.num_weights}"
            )
        self.projector = projector
        start = torch.cat([each.detach().reshape(-1) for each in named.values()])
        self.register_buffer("start", start, False)
        self.projector.to(start.device, start.dtype)
        zeros = torch.zeros(projector.dimension, dtype=start.dtype, device=start.device)
        self.coordinates = nn.Parameter(zeros)

    start: Tensor

    def of(self, module: nn.Module) -> Subspace:
        """The same subspace and coordinates for a module with the same weights in their order."""
        other = Subspace(module, self.projector)
        other.coordinates.data.copy_(self.coordinates)
        return other

    def weights(self, coordinates: Tensor) -> dict[str, Tensor]:
        """θ₀ + P w by name, differentiable in w `(d,)`."""
        return self._named(self.start + self.projector(coordinates))

    def forward(self, inputs: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Outputs of the network at `coordinates` (its own if none are given)."""
        at = self.coordinates if coordinates is None else coordinates
        return functional_call(self.module, self.weights(at), (inputs,))

    @torch.no_grad()
    def decoded(self, levels: Tensor, step: float) -> nn.Module:
        """A plain copy of the network at θ₀ + P q Δ, the same to the last bit on every machine."""
        moved = self.projector.exact(levels.to(self.start.device), step)
        whole = self.start.to(torch.float64) + moved
        network = copy.deepcopy(self.module)
        network.load_state_dict(
            {name: each.to(self.start.dtype) for name, each in self._named(whole).items()},
            strict=False,
        )
        return network.requires_grad_(True)

    def _named(self, whole: Tensor) -> dict[str, Tensor]:
        parts = whole.split([shape.numel() for shape in self.shapes])
        return {
            name: part.view(shape)
            for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }


def _times(signs: Tensor, coordinates: Tensor) -> Tensor:
    """signs @ coordinates; signs of another dtype are converted block by block."""
    if signs.dtype == coordinates.dtype:
        return signs @ coordinates
    blocks = signs.split(max(1, BLOCK // max(signs.shape[1], 1)))
    return torch.cat([block.to(coordinates.dtype) @ coordinates for block in blocks])


def _near_square(count: int) -> tuple[int, int]:
    """(a, b) with a × b ≥ count, b = ⌈√count⌉ and a = ⌈count/b⌉."""
    columns = math.isqrt(count - 1) + 1
    return -(-count // columns), columns
