"""An averaged network folded into plain layers: transformations move into the first weights.

An element that is affine in the data, T x = A x + t, in front of a linear layer is another linear
layer, so for a network f = h(φ(W x + b)) with a linear last layer

    f̂(x) = Σ_s p_s f(T_s x) = h( Σ_s p_s φ( W A_s x + b + W t_s ) )

is `Flatten, Linear(inputs, copies · features), φ, mean over copies, Linear`. Its filters A_sᵀw are
the adjoint of `Action.act` in the data. Filters that are moved and resampled as if they were data,
as in van der Ouderaa & van der Wilk (2021, Section 3.1), differ from these by the interpolation,
and for scales also by the determinant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_at_least
from isotropy.curvature.kinds import Copies
from isotropy.networks.averaging.augmentations import Augmentation
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.zoo.backbones import RandomFeatures

BANK_FILTERS, BANK_ELEMENTS, BANK_INPUTS = 6, 7, 4096
"""Filters and elements of a bank, and how many inputs may be moved for it."""
BASIS_BATCH = 256
"""Basis vectors of the inputs that are moved at once."""
SAME = 1e-3
"""Largest difference of folded and averaged outputs that rounding may leave, relative to them."""


class MeanOverCopies(nn.Module):
    """Σ_s p_s x_s of (batch, copies, features); weights p (copies,), or None for the plain mean."""

    weights: Tensor | None

    def __init__(self, weights: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("weights", None if weights is None else weights.detach().clone())

    def forward(self, inputs: Tensor) -> Tensor:
        return Copies(inputs.shape[1], self.weights).mean(inputs.flatten(0, 1))


@torch.no_grad()
def fold(
    model: InvariantModel,
    samples: int = 32,
    *,
    noise: Tensor | None = None,
    shape: Sequence[int] | None = None,
) -> nn.Sequential:
    """Plain layers with the outputs of `model` averaged over `samples` fixed elements.

    The elements are those of the model's evaluation mode: for one range the midpoints of `samples`
    equal parts of it, whose ends do not coincide over a whole period. The result is independent of
    the model, of its dtype and on its device, in evaluation mode.

    model:  its network is `Flatten`, then a Linear layer or random features, then activations and
            Linear layers
    noise:  (1, copies, numbers) for other elements, as `model.noise(1)` draws them
    shape:  of one input; where it is not given, inputs of the action are taken to be square
            pictures of 1 or 3 channels, sequences of one channel, or vectors
    """
    if not isinstance(model, InvariantModel):
        raise CallerError(
            f"fold: expected an InvariantModel, such as the model of a run, got "
            f"{type(model).__name__}"
        )
    network = deepcopy(model.network).eval()
    first, others = _layers(network)
    if noise is None:
        check_at_least(samples, 1, what="samples")
        noise = model.fixed_noise(1, samples=samples)
    size = first.weight.shape[1]
    axes = _shape(size, model.augmentation.action.grid_axes) if shape is None else tuple(shape)
    if math.prod(axes) != size:
        raise CallerError(f"shape: expected {size} numbers, as the first layer takes, got {axes}")
    filters, offsets = moved_filters(model.augmentation, first.weight, noise, axes)
    copies, features = offsets.shape
    linear = nn.Linear(size, copies * features, device=filters.device, dtype=filters.dtype)
    linear.weight.copy_(filters.flatten(0, 1))
    linear.bias.copy_((offsets + (0 if first.bias is None else first.bias)).flatten())
    if isinstance(first, RandomFeatures):
        others = [first.activation, *others]
    mean = MeanOverCopies(model.augmentation.copies(copies).weights)
    head = int(bool(others) and isinstance(others[-1], nn.Linear))
    others.insert(len(others) - head, mean)  # in front of the last layer, which is linear
    start = [nn.Flatten(), linear, nn.Unflatten(1, (copies, features))]
    folded = nn.Sequential(*start, *others).eval()
    # Elements that are affine in the data, and layers that act on features alone, were assumed.
    probes = torch.rand((3, *axes), generator=torch.Generator().manual_seed(0)).to(filters)
    averaged = network(model.orbit(probes, noise.expand(3, -1, -1)))
    wanted = model.augmentation.copies(copies).mean(averaged)
    if not (folded(probes) - wanted).abs().max() <= SAME * wanted.abs().max():
        raise CallerError(
            "fold: expected transformations that are linear in the data and the same for every "
            "example, and layers that act on features alone; these cannot be folded"
        )
    return folded


def moved_filters(
    augmentation: Augmentation, weight: Tensor, noise: Tensor, shape: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Filters A_sᵀw (copies, features, inputs) and offsets wᵀt_s (copies, features).

    weight: (features, inputs), the inputs of `shape` in one row
    noise:  (1, copies, numbers)

    Basis vectors of the inputs are moved, a batch at a time: A_s e_i is column i of A_s.
    """
    features, size = weight.shape

    def products(rows: Tensor) -> Tensor:
        """W T_s x (rows, copies, features) of rows (rows, inputs)."""
        data = rows.unflatten(1, tuple(shape))
        return augmentation(data, noise.expand(len(rows), -1, -1)).flatten(2) @ weight.mT

    offsets = products(weight.new_zeros(1, size))
    filters = weight.new_empty(size, noise.shape[1], features)
    for part in torch.arange(size, device=weight.device).split(BASIS_BATCH):
        basis = weight.new_zeros(len(part), size).scatter_(1, part[:, None], 1)
        filters[part] = products(basis) - offsets
    return filters.permute(1, 2, 0), offsets[0]


@torch.no_grad()
def filter_bank(model: InvariantModel, shape: Sequence[int]) -> Tensor | None:
    """The first filters as the average uses them, (filters, elements, *shape), to look at.

    None where the network cannot be folded, or has more than `BANK_INPUTS` inputs. Where finite
    elements are averaged too there may be more elements than `BANK_ELEMENTS`.
    """
    try:
        first, _ = _layers(model.network)
    except CallerError:
        return None
    if first.weight.shape[1] != math.prod(shape) or math.prod(shape) > BANK_INPUTS:
        return None
    noise = model.fixed_noise(1, samples=BANK_ELEMENTS)
    filters, _ = moved_filters(model.augmentation, first.weight[:BANK_FILTERS], noise, shape)
    return filters.movedim(1, 0).unflatten(2, tuple(shape))


def _layers(network: nn.Module) -> tuple[nn.Linear | RandomFeatures, list[nn.Module]]:
    """The first layer of a network that can be folded, and those behind it."""
    layers = list(network) if isinstance(network, nn.Sequential) else [network]
    flat = layers[1:] if layers and isinstance(layers[0], nn.Flatten) else layers
    wrong = next(
        (layer for layer in flat[1:] if list(layer.parameters()) and type(layer) is not nn.Linear),
        None,
    )
    if not flat or not isinstance(flat[0], nn.Linear | RandomFeatures) or wrong is not None:
        named = type(wrong or (flat or [network])[0]).__name__
        raise CallerError(
            "fold: expected a network that begins with a Linear layer or random features on "
            f"flattened inputs, with activations and Linear layers behind it, got {named}"
        )
    return flat[0], flat[1:]


def _shape(size: int, grid_axes: int) -> tuple[int, ...]:
    """The shape of inputs with `size` numbers that an action with so many grid axes moves."""
    if grid_axes < 2:
        return (1, size) if grid_axes else (size,)
    for channels in (1, 3):
        side = math.isqrt(size // channels)
        if channels * side**2 == size:
            return channels, side, side
    raise CallerError(
        f"fold: {size} inputs are no square picture of 1 or 3 channels; give shape=(channels, "
        "height, width)"
    )
