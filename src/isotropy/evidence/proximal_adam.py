"""Adam on the loss, with Gaussian priors of any precision taken in by a proximal step.

    m, v   moments of the gradient g of the mean loss alone
    θ ← (θ − r m̂/(√v̂ + ε)) / (1 + r d/(√v̂ + ε))            d = δ/N, r the rate

The denominator is the exact minimiser of the penalty ½ d θ² in the metric that Adam gives to the
step. At rest  m̂ = −d θ,  the same point as with the penalty in the gradient; but there precisions
above 2/(r d) make steps that overshoot, and below it they rob the loss of its share in v. Here no
precision is too high: as δ goes to infinity θ goes to zero and stays finite on the way.

Rates, step counts and precisions are tensors on the parameters' device, so that a step can be part
of a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

EPSILON = 1e-8


class ProximalAdam:
    """The steps of one list of parameters.

    decays (parameters,): d = δ/N of each, written by whoever learns them
    rate: a tensor, written by whoever has the schedule
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        self.parameters: list[Tensor] = list(parameters)
        self.betas = betas
        device = self.parameters[0].device
        self.rate = torch.tensor(rate, device=device, dtype=torch.float64)
        self.steps = torch.zeros((), device=device, dtype=torch.float64)
        self.decays = torch.zeros(len(self.parameters), device=device)
        self.means = [torch.zeros_like(each) for each in self.parameters]
        self.squares = [torch.zeros_like(each) for each in self.parameters]

    def zero_grad(self) -> None:
        """Forget gradients."""
        for each in self.parameters:
            each.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step along the gradients of the mean loss; a parameter without one only decays."""
        first, second = self.betas
        gradients = [
            torch.zeros_like(each) if each.grad is None else each.grad for each in self.parameters
        ]
        self.steps += 1
        torch._foreach_lerp_(self.means, gradients, 1 - first)
        torch._foreach_mul_(self.squares, second)
        torch._foreach_addcmul_(self.squares, gradients, gradients, 1 - second)
        towards_mean = 1 - first**self.steps
        towards_square = 1 - second**self.steps
        # r / (√v̂ + ε), the length of a step for each entry
        lengths = list(torch._foreach_div(self.squares, towards_square))
        torch._foreach_sqrt_(lengths)
        torch._foreach_add_(lengths, EPSILON)
        torch._foreach_reciprocal_(lengths)
        torch._foreach_mul_(lengths, self.rate)
        moves = torch._foreach_mul(lengths, self.means)
        torch._foreach_div_(moves, towards_mean)
        torch._foreach_sub_(self.parameters, moves)
        torch._foreach_mul_(lengths, list(self.decays.unbind()))
        torch._foreach_add_(lengths, 1.0)
        torch._foreach_div_(self.parameters, lengths)

    def state_dict(self) -> dict[str, Any]:
        """Moments and number of steps, in the form of torch's optimisers.

        Rate and decays are not in it: whoever writes them does so again.
        """
        each = enumerate(zip(self.means, self.squares, strict=True))
        state = {i: {"mean": m, "square": s, "steps": self.steps} for i, (m, s) in each}
        return {"state": state, "param_groups": []}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` gave, copied in place: a CUDA graph finds it where it was."""
        for index, own in state["state"].items():
            self.means[index].copy_(own["mean"])
            self.squares[index].copy_(own["square"])
            self.steps.copy_(own["steps"])

    def state(self) -> Iterator[Tensor]:
        """What a step reads and writes beside parameters and gradients."""
        yield from (self.rate, self.steps, self.decays, *self.means, *self.squares)
