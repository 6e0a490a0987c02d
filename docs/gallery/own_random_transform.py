"""Any augmentation of your own, or of another library: how much of it do the labels allow?

A module that draws by itself is wrapped in `RandomTransform`, and the evidence says how probable
it should be: zero where it changes the labels. Parameters that it is differentiable in, such as
the size here, are learned with the rest, in the module itself.
"""

import torch
from torch import Tensor, nn

import isotropy
from isotropy.symmetry.actions.finite import RandomTransform


class Gain(nn.Module):
    """Multiplies each example by exp(size · ε), ε ~ N(0, 1)."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.size = nn.Parameter(torch.tensor(size))

    def forward(self, data: Tensor) -> Tensor:
        return data * (self.size * torch.randn(len(data), 1, device=data.device)).exp()


def main(epochs: int = 80, examples: int = 300) -> dict[str, tuple[float, float]]:
    torch.manual_seed(0)
    inputs = torch.randn(examples, 2) * (0.7 * torch.randn(examples, 1)).exp()
    network = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2))
    config, learned = isotropy.LearnConfig(epochs=epochs), {}
    for name, label in {"angle": inputs.prod(1) > 0, "length": inputs.norm(dim=1) > 1}.items():
        gain = Gain(0.3)
        action = RandomTransform(gain, "gain", "an example is multiplied by a number")
        result = isotropy.learn(network, (inputs, label.long()), actions=action, config=config)
        learned[name] = (result.symmetries[0].high, abs(gain.size.item()))
    return learned


if __name__ == "__main__":
    print("probability of the gain, and its size, by what the label is:", main())
