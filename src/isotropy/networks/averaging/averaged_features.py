"""A network averaged over copies whose last layer alone is trained, seen from that layer.

A Linear layer commutes with the mean over copies,

    f̂(x) = Σ_s w_s (W h(g_s x) + b) = W h̄(x) + b ,     h̄(x) = Σ_s w_s h(g_s x)

so weight steps, curvature and evidence of W and b need the averaged features h̄ alone, (examples,
features), and nothing of the frozen layers below but these. The copies of the training examples are
drawn once, spread evenly over the ranges. Their features are computed when they are first asked
for, and again after the ranges have moved: with ranges that stay a run passes through the frozen
layers once.

The frozen layers are in evaluation mode: dropout is off, and batch normalisation uses its running
statistics. By the ranges h̄ is differentiated through these layers to their inputs (`of`), and no
gradient by their weights is formed.

Features that are compared and then forgotten, as those of a search, may be computed in bfloat16,
where the CPU is made for it and the features are precise enough (`may_be_bfloat16`):

    ‖h₁₆ − h‖ ≤ `PRECISE` · ‖h − mean h‖        over a few examples

Their products with each other are in float32, and so are training, evidence and scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from isotropy.kernels.precision import has_bfloat16
from isotropy.networks.averaging.augmentations import Augmentation, Ranges
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.frozen import entering

ROWS_AT_ONCE = 256
"""That go through the frozen layers together."""
PRECISE = 0.05
"""Error of features in bfloat16 up to which they are used, as a share of how examples differ."""
TRIED = 32
"""Examples that the error is measured on."""


class HeadAlone(nn.Module):
    """The layer `head` of a network, from features to outputs; parameters have the same names."""

    def __init__(self, network: nn.Module, head: str) -> None:
        super().__init__()
        self.path = head
        parent: nn.Module = self
        *above, last = head.split(".")
        for name in above:
            parent.add_module(name, nn.Module())
            parent = parent.get_submodule(name)
        parent.add_module(last, network.get_submodule(head))

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.get_submodule(self.path)(features)
        return outputs


class AveragedFeatures:
    """Averaged features of training inputs (examples, …), and the layer that they enter.

    generator: a new one of the stream that copies are drawn from, every time it is called
    """

    def __init__(
        self,
        model: InvariantModel,
        head: str,
        inputs: Tensor,
        generator: Callable[[], torch.Generator],
    ) -> None:
        self.model, self.name, self.inputs = model, head, inputs
        self.head = HeadAlone(model.network, head)
        self._generator = generator
        self._kept: tuple[Tensor, Tensor] | None = None

    def of(self, inputs: Tensor, noise: Tensor) -> Tensor:
        """h̄ (batch, features) of inputs (batch, …) with these copies; differentiable."""
        rows = self.model.orbit(inputs, noise)
        copies = self.model.augmentation.copies(noise.shape[1])
        return copies.mean(features_of(self.model.network, self.name, rows))

    @torch.no_grad()
    def now(self) -> Tensor:
        """h̄ (examples, features) of all inputs for the ranges as they are, constant."""
        ranges = self._ranges()
        if self._kept is None or not torch.equal(self._kept[0], ranges):
            generator = self._generator()
            parts = [
                (part, self._copies(len(part), generator))
                for part in self.inputs.split(self.examples_at_once)
            ]
            found = averaged(self.model.network, self.name, self.model.augmentation, parts)
            self._kept = ranges, found
        return self._kept[1]

    def fixed(self, inputs: Tensor, copies: int) -> Tensor:
        """h̄ (examples, features) of any inputs (examples, …) over fixed copies, constant."""
        count = 1 if self.model.augmentation.is_identity else copies
        noise = self.model.fixed_noise(len(inputs), samples=count)
        return averaged(self.model.network, self.name, self.model.augmentation, [(inputs, noise)])

    def _copies(self, examples: int, generator: torch.Generator) -> Tensor:
        drawn = self.model.noise(examples, generator=generator)
        return spread_evenly(self.model.augmentation, drawn)

    @torch.no_grad()
    def some(self) -> Tensor:
        """h (few, features) of a few inputs as they are: an example of what enters the layer."""
        return features_of(self.model.network, self.name, self.inputs[:4])

    @property
    def is_known(self) -> bool:
        """Whether features for the ranges as they are were computed."""
        return self._kept is not None and torch.equal(self._kept[0], self._ranges())

    @property
    def examples_at_once(self) -> int:
        """Examples whose copies go through the frozen layers together."""
        return max(1, ROWS_AT_ONCE // self.model.samples)

    def _ranges(self) -> Tensor:
        own = [parameter.detach().flatten() for parameter in self.model.augmentation.parameters()]
        return torch.cat(own).clone() if own else torch.zeros(0)


def spread_evenly(augmentation: Augmentation, noise: Tensor) -> Tensor:
    """Noise (batch, copies, numbers) of ranges with even points in place of independent ones.

    Each example has its points shifted by its own first draw, round the borders of [−1, 1]. Fewer
    copies are then enough. Along every single range the steps are equal, however many ranges there
    are: over a whole period a mean of S equal steps has no error up to the S-th harmonic, and a
    second range does not take that away. What belongs to no ranges stays as it was drawn.
    """
    if not isinstance(augmentation, Ranges):
        return noise
    count = noise.shape[1]
    points = augmentation.fixed_noise(count)
    ranks = points.argsort(1).argsort(1)
    even = torch.where(points.ne(0).any(1, keepdim=True), (2 * ranks + 1) / count - 1, 0.0)
    return torch.remainder(even.to(noise) + noise[:, :1] + 1, 2) - 1


def averaged(
    network: nn.Module,
    head: str,
    augmentation: Augmentation,
    parts: Sequence[tuple[Tensor, Tensor]],
    *,
    bfloat16: bool = False,
) -> Tensor:
    """h̄ (examples, features), constant, of parts of the inputs (batch, …) with their noise.

    On a CPU `ROWS_AT_ONCE` rows go through the frozen layers together.
    """
    if not parts[0][0].is_cuda:
        size = max(1, ROWS_AT_ONCE // parts[0][1].shape[1])
        parts = [pair for x, e in parts for pair in zip(x.split(size), e.split(size), strict=True)]
    found = []
    with torch.no_grad():
        for inputs, noise in parts:
            rows = augmentation(inputs, noise).flatten(0, 1)
            features = features_of(network, head, rows, bfloat16=bfloat16)
            found.append(augmentation.copies(noise.shape[1]).mean(features))
    return torch.cat(found)


def features_of(network: nn.Module, head: str, rows: Tensor, *, bfloat16: bool = False) -> Tensor:
    """What enters the layer `head`, (rows, features) in the type of the rows, in evaluation mode.

    bfloat16: whether convolutions and products of the layers below are
    Convolutions are faster on pictures with channels last, on a CPU by a fifth to a half.
    """
    if rows.ndim == 4:
        rows = rows.contiguous(memory_format=torch.channels_last)
    with torch.autocast(rows.device.type, torch.bfloat16, enabled=bfloat16):
        entered = entering(network, head, rows)[-1]
    return entered.to(rows.dtype) if bfloat16 else entered


@torch.no_grad()
def may_be_bfloat16(network: nn.Module, head: str, inputs: Tensor) -> bool:
    """Whether features of inputs (examples, …) are faster in bfloat16, and precise enough.

    Tried on the first examples; not where the network does not run in it.
    """
    some = inputs[:TRIED]
    if not has_bfloat16(some.device, some.dtype):
        return False
    exact = features_of(network, head, some)
    try:
        error = features_of(network, head, some, bfloat16=True) - exact
    except RuntimeError:  # an operation that is not there for bfloat16
        return False
    return bool(error.norm() <= PRECISE * (exact - exact.mean(0)).norm())
