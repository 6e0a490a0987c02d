"""Your own network: which layer breaks its symmetry, a test that says so, a remedy in training."""

import torch
from torch import Tensor, nn

import isotropy


class ByPosition(nn.Module):
    def forward(self, maps: Tensor) -> Tensor:  # makes more of what lies to the right
        return maps * torch.linspace(0.5, 1.5, maps.shape[-1]).to(maps)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.culprit = nn.Conv2d(1, 8, 3, 1, 1, padding_mode="circular"), ByPosition()

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        maps = self.culprit(self.first(images)).tanh()
        return {"maps": maps, "logits": maps.mean((2, 3))}


def main(epochs: int = 20, examples: int = 64, weight: float = 100) -> isotropy.MeasureResult:
    torch.manual_seed(0)
    network, images, labels = Network(), torch.rand(examples, 1, 12, 12), torch.arange(examples) % 8
    shift = isotropy.affine(("translation_x",), interpolation="fourier")
    isotropy.assert_equivariant(network.first, shift, images)  # as in a test; of culprit it raises
    optimiser = torch.optim.Adam(network.parameters(), 0.01)
    for _ in range(epochs):
        penalty = isotropy.lie_derivative_penalty(network, images, shift, select="logits")
        loss = nn.functional.cross_entropy(network(images)["logits"], labels) + weight * penalty
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return isotropy.measure(network, images, shift, select="logits")


if __name__ == "__main__":
    print({layer["name"]: layer["share"] for layer in main().actions[0]["layers"]})
