"""A network made invariant by averaging its outputs over transformed copies of the input.

    f̂(x) = (1/S) Σ_s f(g(a_s) x),   a_s drawn from an augmentation        (LILA, Eq. 1)

or with the augmentation's own weights in place of 1/S, where some of it is a finite group.

In training the copies of every example are drawn anew. In evaluation mode all examples have the
same copies, spread evenly over the ranges (`augmentations.even_points`): the model is one function,
the same input gives the same output, alone or in a batch, and fewer copies are enough.

Outputs (logits) are averaged, not probabilities or losses; the same average is used in training,
for the evidence and at test time, because the average *is* the model. Any `nn.Module` that
maps (batch, …) to (batch, outputs) works unmodified: it is called on (batch·samples, …), samples
fastest.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isotropy.checks import check_at_least
from isotropy.networks.averaging.augmentations import COPIES_SEED, Augmentation, Symmetry

TEST_SAMPLES = 16
"""Copies of a prediction: spread evenly, they predict as well as 31 that are drawn."""


class InvariantModel(nn.Module):
    """`network` averaged over `samples` copies transformed by `augmentation`.

    >>> model = InvariantModel(network, UniformRanges(affine()), samples=16)
    >>> logits = model.train()(images)                          # fresh noise each call
    >>> logits = model.eval()(images)                           # fixed copies
    >>> logits = model(images, noise=model.noise(len(images), generator=g))   # replayable

    seed: scrambles the fixed copies
    """

    def __init__(
        self,
        network: nn.Module,
        augmentation: Augmentation,
        samples: int = TEST_SAMPLES,
        *,
        seed: int = COPIES_SEED,
    ) -> None:
        super().__init__()
        check_at_least(samples, 1, what="samples")
        self.network = network
        self.augmentation = augmentation
        self.samples = samples
        self.seed = seed

    def noise(
        self, batch: int, *, samples: int | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Noise for `batch` examples, (batch, copies, numbers)."""
        samples = self.samples if samples is None else samples
        check_at_least(samples, 1, what="samples")
        return self.augmentation.noise(batch, samples, generator=generator)

    def fixed_noise(self, batch: int, *, samples: int | None = None) -> Tensor:
        """The noise of evaluation mode, (batch, copies, numbers): the same for every example."""
        samples = self.samples if samples is None else samples
        check_at_least(samples, 1, what="samples")
        return self.augmentation.fixed_noise(samples, seed=self.seed).expand(batch, -1, -1)

    def orbit(self, inputs: Tensor, noise: Tensor) -> Tensor:
        """What the network is called on: (batch·samples, …), samples fastest."""
        return self.augmentation(inputs, noise).flatten(0, 1)

    def forward(
        self,
        inputs: Tensor,
        noise: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Averaged outputs (batch, outputs) for inputs (batch, …).

        noise:     which copies; else drawn by `generator`, or drawn in training and fixed in
                   evaluation mode
        """
        if noise is None:
            draws = self.training or generator is not None
            noise = (
                self.noise(len(inputs), generator=generator)
                if draws
                else self.fixed_noise(len(inputs))
            )
        outputs = self.network(self.orbit(inputs, noise))
        return self.augmentation.copies(noise.shape[1]).mean(outputs)

    def symmetries(self) -> list[Symmetry]:
        """The symmetries the model has acquired, in the units users read."""
        return self.augmentation.symmetries()
