"""Sequences: pulses in noise, each moved by up to ±0.2 of the length, around its end.

Two classes are the same pulse half a length apart, so all shifts would be too many. About a
minute on two CPU cores.
"""

import torch

import isotropy
from isotropy.data.problems import shifted_waves
from isotropy.networks.zoo.backbones import mlp


def main(epochs: int = 80, examples: int = 600, verdicts: int = 2) -> isotropy.LearnResult:
    problem = shifted_waves(examples)
    data = problem.split.train
    torch.manual_seed(0)
    return isotropy.learn(
        mlp(data.inputs.shape[1:], data.num_outputs, hidden=50),
        problem.split,
        actions=isotropy.sequences(("shift",)),
        config=isotropy.LearnConfig(epochs=epochs),
        describe={"truth": dict(problem.truth)},  # so that the report can compare
        verdicts=verdicts,
    )


if __name__ == "__main__":
    result = main()
    shift, verdict = result.symmetries[0], result.record["verdicts"][0]
    print(f"truth ±{result.config['truth']['shift']:.2f}, learned ±{shift.high:.3f} of the length")
    low, high = verdict["gain_interval"]
    print(f"{verdict['verdict']}: {verdict['gain_nats']:+.0f} nats ({low:.0f} to {high:.0f})")
