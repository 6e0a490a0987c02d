"""Learn how far handwritten digits may be turned, on data where the answer is known.

The digits that come with the package are turned once, each by an angle of its own, and the run
is told nothing of it: up to ±180° for `rotated`, not at all for `original`. With the defaults
this takes minutes on a CPU; fewer epochs show a trend only.
"""

import torch

import isotropy
from isotropy.data.readers import digits
from isotropy.data.variants import vary
from isotropy.networks.zoo.backbones import mlp


def main(epochs: int = 80, examples: int = 2000, variant: str = "rotated") -> isotropy.LearnResult:
    split = vary(digits(), variant)
    train = split.train.subset(examples, seed=0)
    torch.manual_seed(0)
    network = mlp(train.inputs.shape[1:], train.num_classes, hidden=200)
    return isotropy.learn(network, train, split.test, config=isotropy.LearnConfig(epochs=epochs))


if __name__ == "__main__":
    for variant in ("rotated", "original"):
        result = main(variant=variant)
        print(f"{variant}: test accuracy {result.test_accuracy:.3f}")
        for symmetry in result.symmetries:
            print(f"  {symmetry.name:20} ±{symmetry.high:.3f} {symmetry.unit}")
