"""Augerino's augmentation as its formula says, image by image: scipy's exponential in the grid."""

from __future__ import annotations

import numpy as np
import scipy.linalg
import torch
from torch import Tensor
from torch.nn import functional

# Translations are a tenth; then rotation, scale, stretch, shear.
MATRICES = np.zeros((6, 3, 3))
MATRICES[0, 0, 2] = 0.1
MATRICES[1, 1, 2] = 0.1
MATRICES[2, 0, 1], MATRICES[2, 1, 0] = -1, 1
MATRICES[3, 0, 0] = MATRICES[3, 1, 1] = 1
MATRICES[4, 0, 0], MATRICES[4, 1, 1] = 1, -1
MATRICES[5, 0, 1] = MATRICES[5, 1, 0] = 1


def augerino_transform(images: Tensor, weights: Tensor) -> Tensor:
    """Images (batch, channels, size, size) resampled on the grid exp(Σ_k weights_k G_k)."""
    algebra = np.einsum("nk,kij->nij", weights.detach().numpy(), MATRICES)
    matrices = np.stack([scipy.linalg.expm(matrix)[:2] for matrix in algebra])
    grid = functional.affine_grid(
        torch.from_numpy(matrices), list(images.shape), align_corners=True
    )
    return functional.grid_sample(images, grid, align_corners=True)
