"""The exponential of the affine group of the line, in closed form.

    exp [ r  d ]  =  [ e^r   φ(r) d ]        φ(r) = (e^r − 1)/r ,  φ(0) = 1 :
        [ 0  0 ]     [  0       1   ]

the map u ↦ e^r u + φ(r) d is the flow of u ↦ r u + d at time one. Stretching and shifting a
sequence is this group, and so is multiplying and raising a mean. φ has a removable singularity
at zero; the affine group of the plane holds the line's, and its exponential is well conditioned
there in value and in every derivative (oracle: `scipy.linalg.expm`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from isotropy.symmetry.affine_exponential import affine_exponential


def line_exponential(rate: Tensor, drift: Tensor) -> tuple[Tensor, Tensor]:
    """Return (e^r, φ(r) d) for `rate` r and `drift` d of the same shape (…)."""
    # The plane's element with block r I, whose eigenvalues are equal, and translation (d, 0).
    zero = torch.zeros_like(rate)
    block = torch.stack([rate, zero, zero, rate], dim=-1).unflatten(-1, (2, 2))
    linear, shift = affine_exponential(block, torch.stack([drift, zero], dim=-1))
    return linear[..., 0, 0], shift[..., 0]
