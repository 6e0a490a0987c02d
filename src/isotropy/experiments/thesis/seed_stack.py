"""Networks of one architecture trained in lockstep, one a seed: every kernel is launched once.

Networks of a few hundred channels leave a GPU idle between launches. Their parameters are stacked,
(seeds, …), and a forward pass is `vmap` over the first axis; Adam is elementwise, so that each seed
gets the numbers it would get alone, up to rounding. Buffers are those of the first network.

An integrator calls a network dozens of times in one step, and the parameters of equivariant layers
are the same in all of them. `assembled` makes their matrices once and applies these
(`EMLP.plain_state`); a single call works on coefficients.

On a GPU a whole step is recorded once and replayed (`isotropy.evidence.weight_steps`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from isotropy.checks import CallerError
from isotropy.kernels.captured import CapturedFunction
from isotropy.networks.equivariant.emlp import EMLP, plain_mlp
from isotropy.networks.equivariant.linear import EquivariantLinear
from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.representations import Representation

Parameters = Mapping[str, Tensor]


def seeded_network(
    source: Representation,
    target: Representation,
    group: str | None,
    sizes: tuple[int, int],
    own: Mapping[str, Any],
    seed: int,
) -> nn.Module:
    """An EMLP of the group, or without one a plain network of the same widths.

    source, target: not yet bound to the group; sizes: of inputs and outputs
    own:            a row's settings, of which `channels` and `layers` count
    """
    widths: dict[str, Any] = {"channels": own["channels"], "layers": own["layers"]}
    if group:
        generator = torch.Generator().manual_seed(seed)
        return EMLP(source, target, group_named(group), **widths, generator=generator)
    torch.manual_seed(seed)
    return plain_mlp(*sizes, **widths)


def seed_records(
    own: Mapping[str, Any], networks: Sequence[nn.Module], found: Sequence[Any]
) -> list[dict[str, Any]]:
    """The results of a row's seeds, dataclasses with `seconds` of all of them, as dictionaries.

    own: what is recorded of the row. Seconds become a seed's share of those that the row took.
    """
    parameters = sum(each.numel() for each in networks[0].parameters())
    return [
        {
            **own,
            "parameters": parameters,
            **asdict(each),
            "seconds": each.seconds / len(found),
            "seeds_together": len(found),
        }
        for each in found
    ]


class SeedStack:
    """A stack of networks and their optimiser.

    slower:     names of parameters that learn at `slower_rate`
    parameters: (seeds, …) by name, leaves
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        learning_rate: float,
        *,
        slower: Iterable[str] = (),
        slower_rate: float = 0.0,
    ) -> None:
        if not networks:
            raise CallerError("expected at least one network, got none")
        shapes = [{name: p.shape for name, p in each.named_parameters()} for each in networks]
        if any(each != shapes[0] for each in shapes):
            raise CallerError(
                "expected networks of one architecture, got parameters of different shapes"
            )
        self.network = networks[0]
        self.seeds = len(networks)
        self._plain = _Plain(self.network)
        own = [dict(each.named_parameters()) for each in networks]
        self.parameters: dict[str, Tensor] = {
            name: torch.stack([each[name].detach() for each in own]).requires_grad_()
            for name in own[0]
        }
        on_gpu = self.device.type == "cuda"
        chosen = sorted(slower)
        groups: list[dict[str, Any]] = [
            {"params": [leaf for name, leaf in self.parameters.items() if name not in chosen]},
            {"params": [self.parameters[name] for name in chosen], "lr": slower_rate},
        ]
        self.optimiser = torch.optim.Adam(
            [group for group in groups if group["params"]],
            lr=learning_rate,
            capturable=on_gpu,
            fused=on_gpu or None,
        )
        if on_gpu:  # a recorded step reads the rate from where it is, so that it can be changed
            for group in self.optimiser.param_groups:
                group["lr"] = torch.tensor(float(group["lr"]), device=self.device)

    @property
    def device(self) -> torch.device:
        return next(iter(self.parameters.values())).device

    def assembled(self, parameters: Parameters | None = None) -> Callable[..., Tensor]:
        """The networks as a function of inputs (seeds, …), their matrices assembled now.

        parameters: in place of the stack's own
        """
        own = dict(self.parameters if parameters is None else parameters)
        state = vmap(partial(_called, self._plain))(
            {f"{_Plain.NETWORK}.{name}": tensor for name, tensor in own.items()}
        )
        return lambda *inputs: vmap(partial(_called, self._plain.twin))(state, *inputs)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Outputs (seeds, …) of inputs (seeds, …)."""
        found: Tensor = vmap(partial(_called, self.network))(self.parameters, *inputs)
        return found

    def to(self, dtype: torch.dtype) -> None:
        """Convert what the networks have beside parameters."""
        self.network.to(dtype)
        self._plain.twin.to(dtype)

    def step(self, losses: Tensor) -> None:
        """One step of Adam for every seed on its own loss, (seeds)."""
        leaves = list(self.parameters.values())
        gradients = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.grad = None if gradient is None else gradient.contiguous()  # fused Adam asks
        self.optimiser.step()

    def penalty(self, coefficients: Mapping[str, float]) -> Tensor:
        """Σ λ ‖θ‖² of each seed, (seeds); λ by the name of a parameter."""
        found = torch.zeros(self.seeds, device=self.device)
        for name, coefficient in coefficients.items():
            found = found + coefficient * self.parameters[name].square().flatten(1).sum(1)
        return found

    @torch.no_grad()
    def hand_back(self, networks: Sequence[nn.Module], parameters: Parameters) -> None:
        """Write parameters (seeds, …) into the networks, one a seed."""
        for seed, network in enumerate(networks):
            for name, parameter in network.named_parameters():
                parameter.copy_(parameters[name][seed])

    def captured(
        self, function: Callable[..., None], state: Iterable[Tensor] = ()
    ) -> Callable[..., None]:
        """The function as a CUDA graph on a GPU, itself elsewhere."""
        if self.device.type != "cuda":
            return function
        kept = [*self.parameters.values(), *state]
        return CapturedFunction(function, lambda: kept)


def _called(module: nn.Module, state: dict[str, Tensor], *inputs: Tensor) -> Any:
    return functional_call(module, state, inputs)


class _Plain(nn.Module):
    """The parameters of a network's twin with plain layers, as functions of the network's own.

    twin: a copy with `export()` in the place, and under the name, of every equivariant network and
          layer; held aside, so that its parameters are not this module's
    """

    NETWORK = "network"

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        equivariant = {
            name: each
            for name, each in network.named_modules()
            if isinstance(each, EMLP | EquivariantLinear)
        }
        self._names = [
            name
            for name in equivariant
            if not any(
                name.startswith(f"{other}.") or not other for other in equivariant if other != name
            )
        ]
        twin = copy.deepcopy(network)
        for name in self._names:
            plain = equivariant[name].export()
            if not name:
                twin = plain
                break
            parent, _, own = name.rpartition(".")
            setattr(twin.get_submodule(parent), own, plain)
        self._aside = [twin]

    @property
    def twin(self) -> nn.Module:
        return self._aside[0]

    def forward(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = dict(self.network.named_parameters())
        for name in self._names:
            prefix = f"{name}." if name else ""
            found = {key: each for key, each in found.items() if not key.startswith(prefix)}
            layer = self.network.get_submodule(name)
            assert isinstance(layer, EMLP | EquivariantLinear)
            found |= {f"{prefix}{key}": each for key, each in layer.plain_state().items()}
        return found


class Best:
    """The numbers of each seed where its validation loss was least, kept on the device.

    validation: (seeds); values: whatever is kept beside, (seeds, …) each
    """

    def __init__(self, kept: Mapping[str, Tensor]) -> None:
        first = next(iter(kept.values()))
        self.validation = first.new_full((len(first),), torch.inf)
        self.values = {name: tensor.detach().clone() for name, tensor in kept.items()}

    @torch.no_grad()
    def offer(self, validation: Tensor, values: Mapping[str, Tensor]) -> None:
        """Take these numbers for the seeds whose validation loss they lower; a NaN lowers none."""
        better = validation < self.validation
        self.validation.copy_(torch.where(better, validation, self.validation))
        for name, kept in self.values.items():
            chosen = better.view(-1, *[1] * (kept.ndim - 1))
            kept.copy_(torch.where(chosen, values[name], kept))

    def state(self) -> list[Tensor]:
        """All that `offer` writes."""
        return [self.validation, *self.values.values()]
