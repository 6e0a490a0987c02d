"""The elementwise functions that Triton kernels here can form, with three derivatives.

    φ(z), φ′(z), φ″(z), φ‴(z)       from z alone, in single or double precision

Values are those of torch's functions. Each is right relative to itself near zero, too, and none has
a power on the way that grows too large. `slope_kernels` uses them.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

_NUMBERS = {
    name: number
    for number, name in enumerate(
        ("tanh", "relu", "sigmoid", "gelu", "gelu_tanh", "silu", "elu", "leaky_relu", "softplus",
         "mish", "hardtanh", "sin", "cos")
    )
}  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """φ by its name and constants, which are those of torch's function in their order.

    elu         alpha, scale, input_scale
    leaky_relu  negative_slope
    softplus    beta, threshold
    hardtanh    least, most
    """

    name: str
    constants: tuple[float, ...] = ()

    @property
    def number(self) -> int:
        """What a kernel knows it by."""
        return _NUMBERS[self.name]


@triton.jit
def _tanh(z: tl.tensor) -> tl.tensor:
    """Right relative to z, also near zero, where the exponential is not (Moshier's Cephes)."""
    square = z * z
    if z.dtype == tl.float64:
        above = (-0.964399179425052238628 * square - 99.2877231001918586564) * square
        below = ((square + 112.811678491632931402) * square + 2235.48839060100448583) * square
        tail = (above - 1614.68768441708447952) / (below + 4844.06305325125486048)
    else:
        tail = (-5.70498872745e-3 * square + 2.06390887954e-2) * square - 5.37397155531e-2
        tail = (tail * square + 1.33314422036e-1) * square - 3.33332819422e-1
    near = z + z * square * tail
    size = tl.abs(z)
    power = tl.exp(-2.0 * size)
    far = (1.0 - power) / (1.0 + power)
    return tl.where(size < 0.625, near, tl.where(z < 0.0, -far, far))


@triton.jit
def _gate(z: tl.tensor) -> tl.tensor:
    """1 / (1 + exp(−z)), by an exponential that cannot be too large."""
    power = tl.exp(-tl.abs(z))
    return tl.where(z < 0.0, power, tl.zeros_like(z) + 1.0) / (1.0 + power)


@triton.jit
def bent_curve(
    z: tl.tensor, CURVE: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """φ(z), φ′(z), φ″(z), φ‴(z); what is not used is not computed either."""
    zero = tl.zeros_like(z)
    one = zero + 1.0
    if CURVE == 0:  # tanh
        value = _tanh(z)
        slope = 1.0 - value * value
        bend = -2.0 * value * slope
        third = slope * (6.0 * value * value - 2.0)
    elif CURVE == 1:  # relu: not a number stays one
        value = tl.where(z <= 0.0, zero, z)
        slope, bend, third = tl.where(z <= 0.0, zero, one), zero, zero
    elif CURVE == 2:  # sigmoid
        value = _gate(z)
        slope = value * (1.0 - value)
        bend, third = (1.0 - 2.0 * value) * slope, (1.0 - 6.0 * slope) * slope
    elif CURVE == 3:  # gelu
        below = 0.5 + 0.5 * tl.erf(z * 0.7071067811865475244)
        density = 0.3989422804014326779 * tl.exp(-0.5 * z * z)
        value, slope, bend = z * below, below + z * density, density * (2.0 - z * z)
        third = density * z * (z * z - 4.0)
    elif CURVE == 4:  # gelu by tanh of u = √(2/π) (z + 0.044715 z³)
        bow = 0.7978845608028653559 * 0.044715 * z * z
        turn = _tanh(z * (0.7978845608028653559 + bow))
        first, second = 0.7978845608028653559 + 3.0 * bow, 0.7978845608028653559 * 0.26829 * z
        level = 1.0 - turn * turn
        value = 0.5 * z * (1.0 + turn)
        slope = 0.5 * (1.0 + turn) + 0.5 * z * level * first
        inner = first + z * (0.5 * second - turn * first * first)
        bend = level * inner
        # inner′ with z u‴ = u″
        rest = 2.0 * second - first * (
            turn * first + z * (level * first * first + 2.0 * turn * second)
        )
        third = level * (rest - 2.0 * turn * first * inner)
    elif CURVE == 5:  # silu
        gate = _gate(z)
        value = z * gate
        slope = gate + value * (1.0 - gate)
        level, tilt = gate * (1.0 - gate), 1.0 - 2.0 * gate
        bend = level * (2.0 + z * tilt)
        third = level * (tilt * (3.0 + z * tilt) - 2.0 * z * level)
    elif CURVE == 6:  # elu, with exp(x) − 1 = tanh(x/2) (exp(x) + 1)
        low = tl.minimum(z * R, zero)
        power = tl.exp(low)
        value = tl.where(z > 0.0, z * Q, P * Q * _tanh(0.5 * low) * (power + 1.0))
        slope = tl.where(z > 0.0, one * Q, P * Q * R * power)
        bend = tl.where(z > 0.0, zero, P * Q * R * R * power)
        third = bend * R
    elif CURVE == 7:  # leaky relu
        value = tl.where(z > 0.0, z, z * P)
        slope, bend, third = tl.where(z > 0.0, one, one * P), zero, zero
    elif CURVE == 8:  # softplus, with log(1 + u) right for small u (Kahan)
        far = z * P > Q
        power = tl.exp(-tl.abs(z * P))
        above = 1.0 + power
        lost = above == 1.0
        log = tl.where(lost, power, tl.log(above) * power / tl.where(lost, one, above - 1.0))
        gate = _gate(z * P)
        value = tl.where(far, z, (tl.maximum(z * P, zero) + log) / P)
        slope = tl.where(far, one, gate)
        bend = tl.where(far, zero, P * gate * (1.0 - gate))
        third = bend * P * (1.0 - 2.0 * gate)
    elif CURVE == 9:  # mish: z tanh(softplus(z)) = z n/(n + 2), n = e² + 2e, e = exp(z)
        power = tl.exp(tl.minimum(z, zero + 20.0))
        number = power * (power + 2.0)
        turn, gate = number / (number + 2.0), _gate(z)
        level = 2.0 / (number + 2.0) * (1.0 + turn)
        value = z * turn
        slope = turn + z * gate * level
        rest = 1.0 - gate - 2.0 * gate * turn
        bend = level * gate * (2.0 + z * rest)
        # (level gate)′ = level gate rest,  rest′ = −gate (1 − gate) (1 + 2 turn) − 2 gate² level
        fall = gate * ((1.0 - gate) * (1.0 + 2.0 * turn) + 2.0 * gate * level)
        third = bend * rest + level * gate * (rest - z * fall)
    elif CURVE == 10:  # hardtanh
        value = tl.where(z < P, zero + P, tl.where(z > Q, zero + Q, z))
        slope, bend, third = tl.where((z <= P) | (z >= Q), zero, one), zero, zero
    elif CURVE == 11:  # sin
        value, slope = tl.sin(z), tl.cos(z)
        bend, third = -value, -slope
    else:  # cos
        value, slope = tl.cos(z), -tl.sin(z)
        bend, third = -value, -slope
    return value, slope, bend, third
