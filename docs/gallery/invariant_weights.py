"""Random features on rings, averaged over no rotation, over ±45° and over all: Figure 1.

Van der Ouderaa & van der Wilk (2021): a wider average says more of where no points were. The ranges
are given here; the evidence bound of each is in its title. Colours: the predictive under the
posterior of the last layer, which needs no linearisation.
"""

import sys

import torch
from matplotlib.figure import Figure

import isotropy
from isotropy.data.problems import rings
from isotropy.networks.zoo.backbones import rff

ANGLES = (0, 45, 180)


def main(epochs: int = 3, examples: int = 200) -> Figure:
    data, axis = rings(examples).split, torch.linspace(-1.5, 1.5, 41)
    grid = torch.cartesian_prod(axis, axis)[:, None]  # clouds of one point, as the examples are
    rotation = isotropy.points(2, ("rotation",))
    figure = Figure((12, 4), layout="constrained")
    for axes, angle in zip(figure.subplots(1, len(ANGLES)), ANGLES, strict=True):
        torch.manual_seed(0)
        network = rff((1, 2), 2, width=256, deviation=5.0)
        given = {"objective": "fixed", "ranges": {"rotation": angle}, "epochs": epochs}
        config = isotropy.LearnConfig(evidence="elbo", test_samples=64, samples=64, **given)
        result = isotropy.learn(network, data, actions=rotation, config=config)
        p = result.predictive().probabilities(grid)[:, 1].reshape(41, 41).T
        axes.contourf(axis, axis, p, levels=20, cmap="RdBu", vmin=0, vmax=1)
        axes.scatter(*data.train.inputs[:, 0].T, c=data.train.targets, cmap="RdBu", ec="w", lw=0.6)
        axes.set_title(f"±{angle}°, log evidence bound {result.log_evidence:.1f}")
    return figure


if __name__ == "__main__":
    main().savefig(sys.argv[1])  # rings.png, rings.svg, …
