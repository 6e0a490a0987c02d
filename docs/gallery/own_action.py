"""A symmetry of your own: hue. It is found where colour does not matter, and only there."""

import math

import torch
from torch import Tensor, nn

import isotropy

# A turn about the grey axis n = (1, 1, 1)/√3:  nnᵀ + cos(angle) (1 − nnᵀ) + sin(angle) [n]×
GREY = torch.full((3, 3), 1 / 3)
TURN = torch.tensor([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]]) / math.sqrt(3)


class Hue(isotropy.Action):
    generators = (isotropy.Generator("hue", "degrees", math.pi / 180, period=math.pi),)

    def act(self, coordinates: Tensor, data: Tensor) -> Tensor:  # (b, samples, 1), (b, 3, h, w)
        grey, turn, angle = GREY.to(data), TURN.to(data), coordinates[..., None]
        matrix = grey + angle.cos() * (torch.eye(3).to(data) - grey) + angle.sin() * turn
        return torch.einsum("bsij,bjhw->bsihw", matrix, data)


def main(epochs: int = 80, examples: int = 400) -> dict[str, float]:
    torch.manual_seed(0)
    angle = math.pi * (2 * torch.rand(examples, 1, 1) - 1)
    upright = torch.rand(examples) < 0.5
    stripes = torch.arange(8.0).sin().expand(3, 8, 8) * torch.tensor([1, -0.5, -0.5])[:, None, None]
    images = Hue().act(angle, torch.where(upright[:, None, None, None], stripes, stripes.mT))[:, 0]
    images += 0.5 * torch.randn(images.shape)
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 40), nn.Tanh(), nn.Linear(40, 2))
    config, learned = isotropy.LearnConfig(epochs=epochs), {}
    for label, truth in {"stripes": upright, "colour": angle[:, 0, 0].cos() > 0}.items():
        result = isotropy.learn(network, (images, truth.long()), actions=Hue(), config=config)
        learned[label] = result.symmetries[0].high
    return learned


if __name__ == "__main__":
    print("half-width of hue in degrees, by what the label is:", main())
