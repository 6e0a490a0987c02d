"""Adam for several runs at once: the arithmetic of `torch.optim.Adam` on stacked numbers.

All numbers of all runs lie in one tensor, (runs, numbers), so that a step is a dozen kernels
whatever the number of runs and layers. With β, rate and decay of each run's own optimiser,

    m ← m + (1 − β₁)(g − m)      v ← β₂ v + (1 − β₂) g²
    θ ← θ − rate/(1 − β₁ᵗ) · m / (√v / √(1 − β₂ᵗ) + ε)

Between `gather` and `scatter` the optimisers are out of date; after `scatter` they, and the
parameters, hold what they would hold if each had stepped by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from isotropy.evidence.weight_steps import set_rate

MOMENTS = ("exp_avg", "exp_avg_sq")


class StackedAdam:
    """Adam over `optimisers`, one a run, each with one group of parameters of the same shapes.

    values, mean, square: (runs, numbers), the parameters and their moments
    rates: (runs, 1), to be set before each step
    """

    def __init__(self, optimisers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimisers = tuple(optimisers)
        self.parameters: list[list[nn.Parameter]] = [
            o.param_groups[0]["params"] for o in optimisers
        ]
        first = self.parameters[0]
        self.sizes = [parameter.numel() for parameter in first]
        self.shapes = [parameter.shape for parameter in first]
        self.values = first[0].new_empty(len(optimisers), sum(self.sizes))
        self.values.requires_grad_()
        self.mean = torch.zeros_like(self.values, requires_grad=False)
        self.square = torch.zeros_like(self.values, requires_grad=False)
        device = self.values.device
        self.steps = torch.zeros((), dtype=torch.float64, device=device)
        self.rates = torch.zeros(len(optimisers), 1, dtype=torch.float64, device=device)
        groups = [optimiser.param_groups[0] for optimiser in optimisers]
        self._betas = self.columns([[g["betas"][i] for g in groups] for i in (0, 1)])
        self._eps, self._decay = self.columns(
            [[g[name] for g in groups] for name in ("eps", "weight_decay")]
        )
        self._decays = any(g["weight_decay"] for g in groups)

    def columns(self, rows: Sequence[Sequence[float]]) -> Tensor:
        """Numbers, one a run in each row, as (rows, runs, 1) beside the parameters."""
        return torch.tensor(rows, dtype=torch.float64).to(self.values.device)[..., None]

    def views(self) -> list[Tensor]:
        """The parameters, (runs, …) each, differentiable in `values`."""
        parts = self.values.split(self.sizes, 1)
        return [part.unflatten(1, s) if s else part[:, 0] for part, s in self._shaped(parts)]

    def _shaped(self, parts: Sequence[Tensor]) -> list[tuple[Tensor, torch.Size]]:
        return list(zip(parts, self.shapes, strict=True))

    @torch.no_grad()
    def gather(self) -> None:
        """Take parameters and moments from the runs."""
        for run, (optimiser, own) in enumerate(zip(self.optimisers, self.parameters, strict=True)):
            self.values[run] = _flat(own)
            states = [optimiser.state.get(parameter, {}) for parameter in own]
            for moment, stack in zip(MOMENTS, (self.mean, self.square), strict=True):
                zeros = (parameter.new_zeros(parameter.shape) for parameter in own)
                found = [s.get(moment, z) for s, z in zip(states, zeros, strict=True)]
                stack[run] = _flat(found)
        first = self.optimisers[0].state.get(self.parameters[0][0], {})
        self.steps.fill_(float(first.get("step", 0.0)))

    @torch.no_grad()
    def step(self, gradient: Tensor) -> None:
        """One step along minus the gradient (runs, numbers)."""
        dtype = self.values.dtype
        first, second = self._betas
        if self._decays:
            gradient = gradient + self._decay.to(dtype) * self.values
        self.steps += 1
        self.mean.lerp_(gradient, (1 - first).to(dtype).expand_as(gradient))
        self.square.mul_(second.to(dtype)).addcmul_((1 - second).to(dtype) * gradient, gradient)
        root = (1 - second**self.steps).sqrt().to(dtype)
        size = (self.rates / (1 - first**self.steps)).to(dtype)
        self.values.sub_(size * self.mean / (self.square.sqrt() / root + self._eps.to(dtype)))

    @torch.no_grad()
    def scatter(self) -> None:
        """Give parameters and moments back to the runs."""
        rates = self.rates[:, 0].tolist()
        for run, (optimiser, own) in enumerate(zip(self.optimisers, self.parameters, strict=True)):
            set_rate(optimiser, rates[run])
            stacks = (self.values, self.mean, self.square)
            parts = zip(*(stack[run].split(self.sizes) for stack in stacks), strict=True)
            for parameter, (value, *moments) in zip(own, parts, strict=True):
                parameter.copy_(value.view_as(parameter))
                state = optimiser.state[parameter]
                self._count(state, optimiser.param_groups[0])
                for name, moment in zip(MOMENTS, moments, strict=True):
                    if name not in state:
                        state[name] = torch.zeros_like(parameter)
                    state[name].copy_(moment.view_as(parameter))

    def _count(self, state: dict[str, Tensor], group: dict[str, object]) -> None:
        """Steps made, where this optimiser keeps them: beside the parameters, or on the CPU."""
        beside = bool(group["capturable"] or group["fused"])
        if "step" not in state:
            device = self.values.device if beside else torch.device("cpu")
            state["step"] = torch.zeros((), dtype=torch.float32, device=device)
        state["step"].copy_(self.steps)

    def state(self) -> list[Tensor]:
        """All that a step reads and writes."""
        constants = (self._betas, self._eps, self._decay)
        return [self.values, self.mean, self.square, self.steps, self.rates, *constants]


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])
