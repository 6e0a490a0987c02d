"""A layer of your own: a gain per feature, and the rule that gives it a place in the evidence."""

import torch
from torch import Tensor, nn

import isotropy
from isotropy.curvature.blocks import DenseRoots
from isotropy.curvature.layer_rules import LayerRule, register_rule
from isotropy.data.readers import digits


class Gain(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(features))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.gain * inputs


class GainRule(LayerRule):
    parameters = ("gain",)

    def reduce_gradient(self, module, inputs, gradient, copies):  # (directions, batch·copies, …)
        return (gradient * inputs).unflatten(1, (-1, copies.count)).sum(2)  # (directions, batch, …)

    def roots(self, module, uses):  # one use for each call of the layer in a forward pass
        rows = torch.stack([use.gradient for use in uses]).sum(0)
        return {"gain": DenseRoots(rows.flatten(0, 1))}  # the exact block, H = Σ rowᵀ row


def main(epochs: int = 80, examples: int = 2000) -> isotropy.LearnResult:
    register_rule(Gain, GainRule())
    layers = nn.Flatten(), nn.Linear(784, 100), nn.Tanh(), Gain(100), nn.Linear(100, 10)
    train = digits().train.subset(examples, seed=0)
    return isotropy.learn(nn.Sequential(*layers), train, config=isotropy.LearnConfig(epochs=epochs))


if __name__ == "__main__":
    print(*main().symmetries, sep="\n")
