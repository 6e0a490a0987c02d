"""The affine exponential and its derivatives, one thread for each element, in Triton.

With A = [[B, b], [0, 0]] the exponential is exp A = [[G, v], [0, 1]]. Scaling and squaring: s is
the smallest number with |B| < 2ˢ (largest column sum), X = exp(A/2ˢ) comes from its Taylor
polynomial, and is squared s times. All in double precision, whatever the data are:

    X ← 1 + (A/2ˢ) X / k,   k = TERMS, …, 1        G ← 1 + B G/k      v ← (B v + b)/k
    X ← X X                                        G ← G G            v ← G v + v

b decides nothing here: v is linear in it, and right relative to it.

The derivative of exp at A along E goes through the same steps by the rule for products:

    Ẋ ← ((E/2ˢ) X + (A/2ˢ) Ẋ)/k        Ẋ ← X Ẋ + Ẋ X

Of the 3×3 matrix Ẋ two rows are kept for a tangent E = [[E, e], [0, 0]], and two columns for the
gradient: ⟨C, dexp_A[E]⟩ = ⟨dexp_A[Cᵀ]ᵀ, E⟩, with Cᵀ = [[Cᵀ, 0], [cᵀ, 0]] of the cotangent. In the
kernel the kept part is P, 2×2, and the third column or third row r.

Each element has its own s; a program goes on until its last one is done. What comes out for an
element does not depend on the others. Higham 2005; Al-Mohy & Higham 2009 for the derivative.

Axes: (elements, 2, 2) and (elements, 2) with any strides; results are contiguous.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from isotropy.fused import launch

_VALUE, _TANGENT, _GRADIENT = 0, 1, 2
# At |B|/2ˢ < 1 the next term is below 1/21! ≈ 2·10⁻²⁰, in the derivative below 1/20!.
_TERMS = tl.constexpr(20)
_ELEMENTS = 128


def exponential_values(block: Tensor, translation: Tensor) -> tuple[Tensor, Tensor]:
    """(G, v) for B (…, 2, 2) and b (…, 2) with equal leading axes."""
    return _run(_VALUE, block, translation, block, translation)


def exponential_tangent(
    block: Tensor, translation: Tensor, block_dot: Tensor, translation_dot: Tensor
) -> tuple[Tensor, Tensor]:
    """How (G, v) change as B and b do, like them."""
    return _run(_TANGENT, block, translation, block_dot, translation_dot)


def exponential_gradient(
    block: Tensor, translation: Tensor, to_linear: Tensor, to_shift: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradient by B and b of ⟨to_linear, G⟩ + ⟨to_shift, v⟩, like them."""
    return _run(_GRADIENT, block, translation, to_linear, to_shift)


def _run(
    mode: int, block: Tensor, translation: Tensor, first: Tensor, second: Tensor
) -> tuple[Tensor, Tensor]:
    linear = torch.empty(block.shape, dtype=block.dtype, device=block.device)
    shift = torch.empty(translation.shape, dtype=block.dtype, device=block.device)
    count = shift.numel() // 2
    # Views wherever the leading axes have one stride: the parts of a matrix are not copied.
    matrices = [each.reshape(count, 2, 2) for each in (block, first)]
    vectors = [each.reshape(count, 2) for each in (translation, second)]
    launch(
        _exponential_kernel, -(-count // _ELEMENTS),
        matrices[0], vectors[0], matrices[1], vectors[1], linear, shift, count,
        *matrices[0].stride(), *vectors[0].stride(), *matrices[1].stride(), *vectors[1].stride(),
        MODE=mode, ELEMENTS=_ELEMENTS,
    )  # fmt: skip
    return linear, shift


# --- kernels ------------------------------------------------------------------------------


@triton.jit
def _load(numbers: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """Numbers in double precision; from half precision, which is exact, in two steps."""
    loaded = tl.load(numbers, mask=inside, other=0.0)
    if loaded.dtype != tl.float64:
        loaded = loaded.to(tl.float32)
    return loaded.to(tl.float64)


@triton.jit
def _store(numbers: tl.tensor, values: tl.tensor, inside: tl.tensor) -> None:
    """Rounds numbers in double precision to what is stored."""
    if numbers.dtype.element_ty != tl.float64:
        values = values.to(tl.float32)
    tl.store(numbers, values.to(numbers.dtype.element_ty), mask=inside)


@triton.jit
def _load_matrix(
    matrices: tl.tensor, inside: tl.tensor, row: tl.tensor, column: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """The entries xx, xy, yx, yy of (…, 2, 2)."""
    xx, xy = _load(matrices, inside), _load(matrices + column, inside)
    yx, yy = _load(matrices + row, inside), _load(matrices + row + column, inside)
    return xx, xy, yx, yy


@triton.jit
def _times(
    axx: tl.tensor, axy: tl.tensor, ayx: tl.tensor, ayy: tl.tensor,
    bxx: tl.tensor, bxy: tl.tensor, byx: tl.tensor, byy: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """The product of two 2×2 matrices."""
    return (
        axx * bxx + axy * byx, axx * bxy + axy * byy,
        ayx * bxx + ayy * byx, ayx * bxy + ayy * byy,
    )  # fmt: skip


@triton.jit
def _exponential_kernel(
    blocks: tl.tensor, translations: tl.tensor, firsts: tl.tensor, seconds: tl.tensor,
    linear: tl.tensor, shift: tl.tensor, count: tl.tensor,
    block_step: tl.tensor, block_row: tl.tensor, block_column: tl.tensor,
    translation_step: tl.tensor, translation_row: tl.tensor,
    first_step: tl.tensor, first_row: tl.tensor, first_column: tl.tensor,
    second_step: tl.tensor, second_row: tl.tensor,
    MODE: tl.constexpr, ELEMENTS: tl.constexpr,
) -> None:  # fmt: skip
    # MODE: 0 the value, 1 the tangent, 2 the gradient
    element = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    inside = element < count
    block = blocks + element * block_step
    translation = translations + element * translation_step
    axx, axy, ayx, ayy = _load_matrix(block, inside, block_row, block_column)
    ax, ay = _load(translation, inside), _load(translation + translation_row, inside)
    # s from the bits of the norm, and 2⁻ˢ by its bits. Without a number (all ones) s is 0.
    norm = tl.maximum(tl.abs(axx) + tl.abs(ayx), tl.abs(axy) + tl.abs(ayy))
    exponent = norm.to(tl.int64, bitcast=True) >> 52
    squarings = tl.where(exponent == 2047, 0, tl.maximum(exponent - 1022, 0))
    scale = ((1023 - squarings) << 52).to(tl.float64, bitcast=True)
    axx, axy, ayx, ayy, ax, ay = (
        axx * scale, axy * scale, ayx * scale, ayy * scale, ax * scale, ay * scale
    )  # fmt: skip
    zero = tl.zeros_like(axx)
    gxx, gxy, gyx, gyy, vx, vy = zero + 1.0, zero, zero, zero + 1.0, zero, zero
    pxx, pxy, pyx, pyy, rx, ry = zero, zero, zero, zero, zero, zero
    if MODE != 0:
        first = firsts + element * first_step
        second = seconds + element * second_step
        exx, exy, eyx, eyy = _load_matrix(first, inside, first_row, first_column)
        ex, ey = _load(second, inside), _load(second + second_row, inside)
        exx, exy, eyx, eyy, ex, ey = (
            exx * scale, exy * scale, eyx * scale, eyy * scale, ex * scale, ey * scale
        )  # fmt: skip
        if MODE == 2:
            exy, eyx = eyx, exy
    for term in tl.static_range(_TERMS):
        # A constant by itself would be of single precision.
        share = tl.full((ELEMENTS,), 1.0 / (_TERMS - term), tl.float64)
        if MODE != 0:
            mxx, mxy, myx, myy = _times(exx, exy, eyx, eyy, gxx, gxy, gyx, gyy)
            nxx, nxy, nyx, nyy = _times(axx, axy, ayx, ayy, pxx, pxy, pyx, pyy)
            if MODE == 1:
                pxx, pxy, pyx, pyy = mxx + nxx, mxy + nxy, myx + nyx, myy + nyy
                rx, ry = (
                    exx * vx + exy * vy + ex + (axx * rx + axy * ry),
                    eyx * vx + eyy * vy + ey + (ayx * rx + ayy * ry),
                )
            else:
                pxx, pxy = mxx + nxx + ax * rx, mxy + nxy + ax * ry
                pyx, pyy = myx + nyx + ay * rx, myy + nyy + ay * ry
                rx, ry = ex * gxx + ey * gyx, ex * gxy + ey * gyy
            pxx, pxy, pyx, pyy = pxx * share, pxy * share, pyx * share, pyy * share
            rx, ry = rx * share, ry * share
        vx, vy = (axx * vx + axy * vy + ax) * share, (ayx * vx + ayy * vy + ay) * share
        gxx, gxy, gyx, gyy = _times(axx, axy, ayx, ayy, gxx, gxy, gyx, gyy)
        gxx, gxy, gyx, gyy = gxx * share + 1.0, gxy * share, gyx * share, gyy * share + 1.0
    for squaring in range(tl.max(squarings, axis=0).to(tl.int32)):
        goes_on = squaring < squarings
        if MODE != 0:
            mxx, mxy, myx, myy = _times(gxx, gxy, gyx, gyy, pxx, pxy, pyx, pyy)
            nxx, nxy, nyx, nyy = _times(pxx, pxy, pyx, pyy, gxx, gxy, gyx, gyy)
            mxx, mxy, myx, myy = mxx + nxx, mxy + nxy, myx + nyx, myy + nyy
            if MODE == 1:
                sx = gxx * rx + gxy * ry + (pxx * vx + pxy * vy) + rx
                sy = gyx * rx + gyy * ry + (pyx * vx + pyy * vy) + ry
            else:
                mxx, mxy, myx, myy = mxx + vx * rx, mxy + vx * ry, myx + vy * rx, myy + vy * ry
                sx = gxx * rx + gyx * ry + rx
                sy = gxy * rx + gyy * ry + ry
            pxx, pxy = tl.where(goes_on, mxx, pxx), tl.where(goes_on, mxy, pxy)
            pyx, pyy = tl.where(goes_on, myx, pyx), tl.where(goes_on, myy, pyy)
            rx, ry = tl.where(goes_on, sx, rx), tl.where(goes_on, sy, ry)
        wx, wy = gxx * vx + gxy * vy + vx, gyx * vx + gyy * vy + vy
        mxx, mxy, myx, myy = _times(gxx, gxy, gyx, gyy, gxx, gxy, gyx, gyy)
        vx, vy = tl.where(goes_on, wx, vx), tl.where(goes_on, wy, vy)
        gxx, gxy = tl.where(goes_on, mxx, gxx), tl.where(goes_on, mxy, gxy)
        gyx, gyy = tl.where(goes_on, myx, gyx), tl.where(goes_on, myy, gyy)
    if MODE == 1:
        gxx, gxy, gyx, gyy, vx, vy = pxx, pxy, pyx, pyy, rx, ry
    if MODE == 2:
        gxx, gxy, gyx, gyy, vx, vy = pxx, pyx, pxy, pyy, rx, ry
    _store(linear + 4 * element, gxx, inside)
    _store(linear + 4 * element + 1, gxy, inside)
    _store(linear + 4 * element + 2, gyx, inside)
    _store(linear + 4 * element + 3, gyy, inside)
    _store(shift + 2 * element, vx, inside)
    _store(shift + 2 * element + 1, vy, inside)
