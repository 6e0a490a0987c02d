"""Clouds of points: letters drawn in 16 points each, turned by up to ±60°, points in any order.

Turned by 180° a letter is one of another class, so all angles would be too many. The network
counts points in places and does not see their order. About a minute on two CPU cores.
"""

import torch

import isotropy
from isotropy.data.problems import turned_clouds
from isotropy.networks.zoo.backbones import cloud_network


def main(epochs: int = 80, examples: int = 600, verdicts: int = 2) -> isotropy.LearnResult:
    problem = turned_clouds(examples)
    data = problem.split.train
    torch.manual_seed(0)
    return isotropy.learn(
        cloud_network(data.inputs.shape[1:], data.num_outputs),
        problem.split,
        actions=isotropy.points(2, ("rotation",)),
        config=isotropy.LearnConfig(epochs=epochs),
        describe={"truth": dict(problem.truth)},  # so that the report can compare
        verdicts=verdicts,
    )


if __name__ == "__main__":
    result = main()
    rotation, verdict = result.symmetries[0], result.record["verdicts"][0]
    print(f"truth ±{result.config['truth']['rotation']:.0f}°, learned ±{rotation.high:.1f}°")
    low, high = verdict["gain_interval"]
    print(f"{verdict['verdict']}: {verdict['gain_nats']:+.0f} nats ({low:.0f} to {high:.0f})")
