"""Points on rings, seen through a third of a circle: what does a network say of the rest?

Immer et al. (2022), Figure 1: a network without a symmetry, and one with rotations learned by the
evidence: about ±60°, half of the 120° that the data cover. Colours: the linearised predictive.
"""

import sys

import torch
from matplotlib.figure import Figure
from torch import nn

import isotropy
from isotropy.data.problems import rings
from isotropy.evidence.predictive import Predictive
from isotropy.symmetry.actions.points import points


def main(epochs: int = 100, examples: int = 200) -> Figure:
    data, axis = rings(examples).split, torch.linspace(-1.5, 1.5, 41)
    grid = torch.cartesian_prod(axis, axis)[:, None]  # clouds of one point, as the examples are
    figure = Figure((9, 4.5), layout="constrained")
    for axes, objective in zip(figure.subplots(1, 2), ("none", "laplace"), strict=True):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2))
        recipe = {"samples": 31, "batch_size": 20, "weight_rate": 0.1, "weight_rate_end": 0.03}
        config = isotropy.LearnConfig(objective, epochs=epochs, curvature="full", **recipe)
        result = isotropy.learn(network, data, actions=points(2, ("rotation",)), config=config)
        evidence, batches = result.trainer.evidence, result.trainer.orbit_batches("final")
        predictive = Predictive(evidence, evidence.fit(batches), result.model)
        noise = result.model.noise(1, samples=100).expand(len(grid), -1, -1)  # one for all: smooth
        p = predictive.probabilities(grid, noise)[:, 1].reshape(41, 41).T
        axes.contourf(axis, axis, p, levels=20, cmap="RdBu", vmin=0, vmax=1)
        axes.scatter(*data.train.inputs[:, 0].T, c=data.train.targets, cmap="RdBu", ec="w", lw=0.6)
        axes.set_title(f"±{result.symmetries[0].high:.0f}°, log evidence {result.log_evidence:.1f}")
    return figure


if __name__ == "__main__":
    main().savefig(sys.argv[1])  # rings.png, rings.svg, …
