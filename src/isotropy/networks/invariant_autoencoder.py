"""An autoencoder whose code has a part that ignores an unknown distortion and one that holds it.

    z = f((x − mean) / deviation) = [z_inv, z_var] ,      x ≈ mean + deviation · g(z) .

z_inv is trained to be equal for samples of the same entity and different for others; z_var keeps
what else the decoder needs. The loss is 8 · ℓ_inv + reconstruction, with the paper's Eq. 2

    ℓ_inv(d, d̂) = (1/(δ + α d²) − 1/(δ + α d̂²))² ,      d̂ = ‖z_inv(x) − z_inv(x′)‖ .

Of pairs that are the same or not, d is 0 or infinite (1/(δ + α d²) = 1/δ or 0). Here δ = 1 and
α = 1/(size of z_inv), so that α d̂² is of order one for codes of unit size, however many numbers
they have; with α = 1 the loss goes flat as soon as codes are far apart. The paper gives neither,
and without them a value of ℓ_inv says nothing: `best_constant` is what to compare it with.

(Zhang and Arodz, "Learning Invariance in Deep Neural Networks", sections 2 and 5.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_finite, shape_text
from isotropy.networks.rich_layer import RICH, network_for

INVARIANCE_WEIGHT = 8.0
"""Of ℓ_inv in the loss, as the paper has it for the supervised one."""


class InvariantAutoencoder(nn.Module):
    """Encoder, decoder, and the statistics that inputs are standardised by.

    shape:             of one sample; samples are flattened
    invariant, varying: sizes of the two parts of the code, by default as many as numbers of a
                       sample
    network:           `rich` or an activation (`rich_layer.NETWORKS`), of encoder and decoder
    layers:            of each

    `mean` and `deviation` (features,) are buffers, set by `standardise_by`; a feature that does
    not vary has deviation 1. Calling the module gives z_inv (batch, invariant).
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self,
        shape: tuple[int, ...],
        invariant: int | None = None,
        varying: int | None = None,
        *,
        network: str = RICH,
        layers: int = 2,
    ) -> None:
        super().__init__()
        self.shape = tuple(shape)
        features = torch.Size(shape).numel()
        self.invariant = features if invariant is None else invariant
        self.varying = features if varying is None else varying
        code = self.invariant + self.varying
        self.encoder = network_for(network, features, code, layers)
        self.decoder = network_for(network, code, features, layers)
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("deviation", torch.ones(features))

    def standardise_by(self, samples: Tensor) -> None:
        """Take mean and deviation of training samples (samples, …) for those of the inputs."""
        flat = samples.flatten(1)
        deviation = (flat - flat.mean(0)).square().mean(0).sqrt()
        self.mean.copy_(flat.mean(0))
        self.deviation.copy_(torch.where(deviation > 0, deviation, 1.0))

    def standardised(self, samples: Tensor) -> Tensor:
        """Samples (batch, …) as (batch, features), less mean, by deviation."""
        if tuple(samples.shape[1:]) != self.shape:
            raise CallerError(
                f"samples: expected {self.shape} for each, as in training, got "
                f"{shape_text(samples[0]) if len(samples) else tuple(samples.shape[1:])}"
            )
        return (samples.flatten(1).to(self.mean) - self.mean) / self.deviation

    def codes(self, standardised: Tensor) -> tuple[Tensor, Tensor]:
        """z_inv (batch, invariant) and z_var (batch, varying) of standardised samples."""
        code = self.encoder(standardised)
        return code[:, : self.invariant], code[:, self.invariant :]

    def forward(self, samples: Tensor) -> Tensor:
        return self.codes(self.standardised(samples))[0]

    @torch.no_grad()
    def encode(self, x: Any) -> tuple[Tensor, Tensor]:
        """Both codes of samples x (samples, …), a tensor or an array, on the CPU."""
        samples = torch.as_tensor(x).to(self.mean)
        check_finite(samples, what="samples", advice="replace them or leave these samples out")
        invariant, varying = self.codes(self.standardised(samples))
        return invariant.cpu(), varying.cpu()

    def rebuilt(self, standardised: Tensor) -> Tensor:
        """g(f(x)) of standardised samples, (batch, features)."""
        found: Tensor = self.decoder(self.encoder(standardised))
        return found

    def reconstruct(self, samples: Tensor) -> Tensor:
        """g(f(x)) in the samples' own units and shape."""
        rebuilt = self.rebuilt(self.standardised(samples))
        return (self.mean + self.deviation * rebuilt).unflatten(1, self.shape)

    def loss(
        self, first: Tensor, second: Tensor, distances: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Invariance (unweighted) and reconstruction of standardised pairs (pairs, features).

        distances: d (pairs,); None where each pair is one entity and different pairs are different
                   ones. Reconstruction is the mean square over both samples and all features.
        """
        samples = torch.cat((first, second))
        code = self.encoder(samples)
        own, other = code[:, : self.invariant].chunk(2)
        error = (self.decoder(code) - samples).square().mean()
        return invariance_loss(own, other, distances), error


def closeness(squared: Tensor, size: int) -> Tensor:
    """1/(δ + α d²) of squared distances between codes of `size` numbers; δ = 1, α = 1/size."""
    return 1 / (1 + squared / size)


def invariance_loss(first: Tensor, second: Tensor, distances: Tensor | None = None) -> Tensor:
    """Mean of Eq. 2 over pairs of codes (pairs, size).

    Without distances, row i of both is entity i, and all rows of `second` count: the mean over
    pairs of one entity (target 1) plus the mean over pairs of two (target 0).
    """
    size = first.shape[1]
    if distances is not None:
        found = closeness((first - second).square().sum(1), size)
        return (closeness(distances.square(), size) - found).square().mean()
    found = closeness((first[:, None] - second).square().sum(2), size)
    same = found.diagonal()
    different = found.square().sum() - same.square().sum()
    return (1 - same).square().mean() + different / (len(first) * (len(first) - 1))


def best_constant(size: int, distances: Tensor | None = None) -> float:
    """`invariance_loss` of the best code distance that is the same for all pairs.

    With distances the variance of the targets; without, ½ (the constant is halfway).
    """
    if distances is None:
        return 0.5
    return float(closeness(distances.square(), size).var(correction=0))
