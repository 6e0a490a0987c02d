"""The exponential of the affine groups of the plane and the line, in closed form.

For a Lie-algebra element with 2×2 block B and translation part b,

    exp [ B  b ]  =  [ e^B   V b ]        V = ∫₀¹ e^{tB} dt .
        [ 0  0 ]     [ 0      1  ]

Split B = τ I + N with τ = tr(B)/2 and N traceless; Cayley–Hamilton gives N² = δ I with
δ = −det N, so that both functions of B are a number times I plus a number times N:

    e^B = e^τ ( c I + s N )     c = cosh √δ,  s = sinh(√δ)/√δ     (entire in δ)
    V   = p I + q N             p = ∫ e^{tτ} cosh(t√δ) dt,  q = ∫ e^{tτ} sinh(t√δ)/√δ dt

p and q are entire in (τ, δ) too; each closed form of them has removable singularities,
so three are used, each where it is well conditioned, in value and in gradient:

    δ large        real eigenvalues μ± = τ ± √δ:  p, q from φ(μ) = (e^μ − 1)/μ
    τ, δ small     the double Taylor series
    elsewhere      V = B⁻¹ (e^B − I), whose determinant τ² − δ is then bounded below

Every branch is elementary, so reverse mode, forward mode and higher derivatives work at
0, at equal eigenvalues and at large angles (oracle: `torch.linalg.matrix_exp`).

That is some hundred operations on a few numbers each. On a CPU torch's own exponential is faster up
to some hundred elements, where the number of operations counts and not their size. On a GPU it is
their number that counts for any size: there float32 goes by a polynomial and repeated squaring of
what e^A has more than the identity, which loses no digits,

    e^A − I = P,     P(A/2ˢ) by its series,     P(2A) = 2 P(A) + P(A)²

Tables are `PlacedConstant`s: a copy from the CPU waits for it, and no CUDA graph can record that,
so that constants are where the data are from the first use on.

The affine group of the line, stretching and shifting a sequence or multiplying and raising a mean,
lies within that of the plane, and `line_exponential` is its element there:

    exp [ r  d ]  =  [ e^r   φ(r) d ]        φ(r) = (e^r − 1)/r ,  φ(0) = 1
        [ 0  0 ]     [  0       1   ]
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isotropy.kernels.fused import is_plain


class PlacedConstant:
    """A tensor of numbers, handed out on the device and in the type of the data beside it."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self._placed: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def like(self, data: Tensor) -> Tensor:
        """The constant where `data` are."""
        if torch.compiler.is_compiling():  # an exported program has its own constants
            return self.values.to(data)
        place = (data.device, data.dtype)
        if place not in self._placed:
            with torch.inference_mode(False):  # to serve outside of it as well
                placed = self.values.to(*place)
            if not _has_memory(placed):
                return placed
            self._placed[place] = placed
        return self._placed[place]


def _has_memory(tensor: Tensor) -> bool:
    """Whether a tensor may be kept: a tracer's or a transform's stands for one within it alone."""
    try:
        return type(tensor) is Tensor and tensor.data_ptr() != 0
    except RuntimeError:
        return False


FEW = 512
"""Elements up to which torch's exponential is faster on a CPU, gradient included."""

_WHOLE = (torch.float32, torch.float64)
_DELTA_SMALL = 0.1
_TAU_SMALL = 0.5
_TAU_TERMS = 16
_DELTA_TERMS = 7


def affine_exponential(block: Tensor, translation: Tensor) -> tuple[Tensor, Tensor]:
    """Return (e^B, V b) for `block` B (…, 2, 2) and `translation` b (…, 2).

    The affine map x ↦ e^B x + V b is the flow of x ↦ B x + b at time one.
    """
    if is_plain() or block.dtype not in _WHOLE:
        return reference_exponential(block, translation)
    if block.is_cuda:
        few_operations = block.dtype == torch.float32
        return (_by_squaring if few_operations else reference_exponential)(block, translation)
    few = translation[..., 0].numel() <= FEW and block.device.type == "cpu"
    return (_whole_exponential if few else reference_exponential)(block, translation)


def reference_exponential(block: Tensor, translation: Tensor) -> tuple[Tensor, Tensor]:
    """`affine_exponential` by the closed form, on any device."""
    a, b, c, d = block.flatten(-2).unbind(-1)
    trace_half = (a + d) / 2
    difference_half = (a - d) / 2
    delta = difference_half * difference_half + b * c
    cosh, sinhc = _cosh_and_sinhc(delta)
    growth = trace_half.exp()
    exponential = _combine(growth * cosh, growth * sinhc, difference_half, b, c)
    integral = _combine(*_integral(trace_half, delta, growth, cosh, sinhc), difference_half, b, c)
    if translation.is_cuda:
        # There a product of matrices may round its factors to 11 bits (TF32).
        return exponential, (integral * translation[..., None, :]).sum(-1)
    return exponential, (integral @ translation[..., None])[..., 0]


def _whole_exponential(block: Tensor, translation: Tensor) -> tuple[Tensor, Tensor]:
    """`affine_exponential` from the 3×3 matrix, by torch."""
    upper = torch.cat([block, translation[..., None]], dim=-1)
    whole = torch.linalg.matrix_exp(torch.nn.functional.pad(upper, (0, 0, 0, 1)))
    return whole[..., :2, :2], whole[..., :2, 2]


_SQUARINGS = 6
"""Elements of norm up to 64 are halved so often that nine terms of the series are enough."""


def _by_squaring(block: Tensor, translation: Tensor) -> tuple[Tensor, Tensor]:
    """`affine_exponential` for float32 in few operations, by P = e^A − I of the halved A.

    P = B₀ + A³ (B₁ + A³ B₂)  with  B_j = A/(3j+1)! + A²/(3j+2)! + A³/(3j+3)!
    """
    first = torch.cat([block, translation[..., None]], dim=-1) / 2**_SQUARINGS
    second = _product(first, first)
    third = _product(first, second)
    low, middle, high = (
        (first / math.factorial(start + 1))
        .add(second, alpha=1 / math.factorial(start + 2))
        .add(third, alpha=1 / math.factorial(start + 3))
        for start in (0, 3, 6)
    )
    found = low + _product(third, middle + _product(third, high))
    for _ in range(_SQUARINGS):
        found = _product(found, found).add(found, alpha=2)
    return found[..., :2] + _IDENTITY.like(found), found[..., 2]


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Upper rows (…, 2, 3) of products of 3×3 matrices whose last row is zero, from theirs."""
    return (left[..., :2, None] * right[..., None, :, :]).sum(-2)


def _combine(identity: Tensor, traceless: Tensor, half: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """identity·I + traceless·N with N = [[half, b], [c, −half]], as (…, 2, 2)."""
    along = traceless * half
    top = torch.stack([identity + along, traceless * b], dim=-1)
    bottom = torch.stack([traceless * c, identity - along], dim=-1)
    return torch.stack([top, bottom], dim=-2)


def _cosh_and_sinhc(delta: Tensor) -> tuple[Tensor, Tensor]:
    """cosh √δ and sinh(√δ)/√δ, for either sign of δ."""
    small = delta.abs() < _DELTA_SMALL
    near = torch.where(small, delta, 0.0)
    cosh, sinhc = torch.zeros_like(near), torch.zeros_like(near)
    for k in range(_DELTA_TERMS, -1, -1):
        cosh = cosh * near + 1 / math.factorial(2 * k)
        sinhc = sinhc * near + 1 / math.factorial(2 * k + 1)
    root = torch.where(small, 1.0, delta).abs().sqrt()
    real = delta > 0
    hyperbolic = torch.where(real, root, 1.0)
    circular = torch.where(real, 1.0, root)
    far_cosh = torch.where(real, hyperbolic.cosh(), circular.cos())
    far_sinhc = torch.where(real, hyperbolic.sinh() / hyperbolic, circular.sin() / circular)
    return torch.where(small, cosh, far_cosh), torch.where(small, sinhc, far_sinhc)


def _integral(
    tau: Tensor, delta: Tensor, growth: Tensor, cosh: Tensor, sinhc: Tensor
) -> tuple[Tensor, Tensor]:
    """The coefficients p, q of V = p I + q N."""
    split = delta >= _DELTA_SMALL
    tiny = (delta.abs() < _DELTA_SMALL) & (tau.abs() < _TAU_SMALL)

    p_series, q_series = _series(torch.where(tiny, tau, 0.0), torch.where(tiny, delta, 0.0))

    root = torch.where(split, delta, 1.0).sqrt()
    upper, lower = _expm1_ratio(tau + root), _expm1_ratio(tau - root)
    p_split, q_split = (upper + lower) / 2, (upper - lower) / (2 * root)

    determinant = torch.where(split | tiny, 1.0, tau * tau - delta)
    p_solve = (tau * (growth * cosh - 1) - growth * sinhc * delta) / determinant
    q_solve = (tau * growth * sinhc - growth * cosh + 1) / determinant

    p = torch.where(tiny, p_series, torch.where(split, p_split, p_solve))
    q = torch.where(tiny, q_series, torch.where(split, q_split, q_solve))
    return p, q


def _expm1_ratio(z: Tensor) -> Tensor:
    """(e^z − 1)/z, with its series near zero so that the derivatives are right there too."""
    small = z.abs() < _TAU_SMALL
    near = torch.where(small, z, 0.0)
    series = torch.zeros_like(near)
    for k in range(_TAU_TERMS, -1, -1):
        series = series * near + 1 / math.factorial(k + 1)
    far = torch.where(small, 1.0, z)
    return torch.where(small, series, far.expm1() / far)


def _series(tau: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """p = Σ δᵏ τʲ / ((2k)! j! (2k+j+1)) and q = Σ δᵏ τʲ / ((2k+1)! j! (2k+j+2))."""
    table = _SERIES.like(tau)
    tau_powers = torch.stack(_powers(tau, _TAU_TERMS), dim=-1)
    delta_powers = torch.stack(_powers(delta, _DELTA_TERMS), dim=-1)
    if tau.is_cuda:  # no product of matrices, which may be one in TF32
        coefficients = [(tau_powers[..., None] * part).sum(-2) for part in table]
    else:
        coefficients = [tau_powers @ part for part in table]
    p, q = ((each * delta_powers).sum(-1) for each in coefficients)
    return p, q


def _powers(x: Tensor, count: int) -> list[Tensor]:
    powers = [torch.ones_like(x)]
    while len(powers) < count:
        powers.append(powers[-1] * x)
    return powers


_SERIES = PlacedConstant(
    torch.tensor(
        [
            [
                [
                    1 / (math.factorial(2 * k + odd) * math.factorial(j) * (2 * k + odd + j + 1))
                    for k in range(_DELTA_TERMS)
                ]
                for j in range(_TAU_TERMS)
            ]
            for odd in (0, 1)
        ],
        dtype=torch.float64,
        device="cpu",
    )
)
"""Taylor coefficients, [p or q][power of τ][power of δ]."""
_IDENTITY = PlacedConstant(torch.eye(2, dtype=torch.float64, device="cpu"))


def line_exponential(rate: Tensor, drift: Tensor) -> tuple[Tensor, Tensor]:
    """Return (e^r, φ(r) d) for `rate` r and `drift` d of the same shape (…)."""
    # The plane's element with block r I, whose eigenvalues are equal, and translation (d, 0).
    zero = torch.zeros_like(rate)
    block = torch.stack([rate, zero, zero, rate], dim=-1).unflatten(-1, (2, 2))
    linear, shift = affine_exponential(block, torch.stack([drift, zero], dim=-1))
    return linear[..., 0, 0], shift[..., 0]
