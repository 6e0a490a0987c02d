"""What stands in for torch's operations while layers are recorded: the same values, less work.

The curvature of a recorded pass takes every derivative by the inputs of an operation, many times
and never by a weight. These operations keep what all of those have in common:

    convolutions, transposed too     constant weights           `constant_convolutions`
    tanh, sigmoid, ReLU, SiLU, GELU  slopes, kept                `activations`
    max_pool2d                       selections, before φ        `max_pooling`

One that is not differentiated, whose weight is differentiated, or that is part of a transform of
torch.func stays torch's own.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from isotropy.curvature.activations import gelu, relu, sigmoid, silu, tanh
from isotropy.curvature.constant_convolutions import convolution, transposed_convolution
from isotropy.curvature.max_pooling import max_pool2d
from isotropy.curvature.plain_operations import Stands

LEAN: Stands = {
    functional.conv1d: convolution(1),
    functional.conv2d: convolution(2),
    functional.conv3d: convolution(3),
    functional.conv_transpose1d: transposed_convolution(1),
    functional.conv_transpose2d: transposed_convolution(2),
    functional.conv_transpose3d: transposed_convolution(3),
    functional.max_pool2d: max_pool2d,
    torch.max_pool2d: max_pool2d,
    functional.relu: relu,
    torch.relu: relu,
    Tensor.relu: relu,
    functional.silu: silu,
    functional.gelu: gelu,
    functional.tanh: tanh,
    torch.tanh: tanh,
    Tensor.tanh: tanh,
    functional.sigmoid: sigmoid,
    torch.sigmoid: sigmoid,
    Tensor.sigmoid: sigmoid,
}
