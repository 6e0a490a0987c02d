"""Networks of one architecture trained in lockstep, one a seed: every kernel is launched once.

Networks of a few hundred channels leave a GPU idle between launches. Their parameters are stacked,
(seeds, …), and a forward pass is `vmap` over the first axis; Adam is elementwise, so that each seed
gets the numbers it would get alone, up to rounding. Buffers are those of the first network.

An equivariant layer is trained as in the thesis: its parameter is the whole matrix W, of which a
pass uses the nearest equivariant one, QQᵀ vec W. These are the layers that coefficients θ of Q
give, but Adam goes another way: its steps have one size, the rate in every entry of W, where in
W = Qθ they are the rate times an entry of Q, which is small, and at the thesis's rate too slow. W
is projected once a step, however often the network is called in it (`assembled`): an integrator
calls it dozens of times.

On a GPU a whole step is recorded once and replayed (`isotropy.evidence.captured`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from isotropy.checks import CallerError
from isotropy.evidence.captured import CapturedFunction
from isotropy.networks.equivariant_linear import AssembledMap, EquivariantLinear

Parameters = Mapping[str, Tensor]


class SeedStack:
    """A stack of networks and their optimiser.

    parameters: (seeds, …) by name, leaves
    """

    def __init__(self, networks: Sequence[nn.Module], learning_rate: float) -> None:
        if not networks:
            raise CallerError("expected at least one network, got none")
        shapes = [{name: p.shape for name, p in each.named_parameters()} for each in networks]
        if any(each != shapes[0] for each in shapes):
            raise CallerError(
                "expected networks of one architecture, got parameters of different shapes"
            )
        self.network = networks[0]
        self._projections = _projections(self.network)
        self.seeds = len(networks)
        plain = [_with_plain_layers(each) for each in networks]
        self._plain = plain[0]
        own = [dict(each.named_parameters()) for each in plain]
        self.parameters: dict[str, Tensor] = {
            name: torch.stack([each[name].detach() for each in own]).requires_grad_()
            for name in own[0]
        }
        leaves = list(self.parameters.values())
        on_gpu = leaves[0].is_cuda
        self.optimiser = torch.optim.Adam(
            leaves, lr=learning_rate, capturable=on_gpu, fused=on_gpu or None
        )

    @property
    def device(self) -> torch.device:
        return next(iter(self.parameters.values())).device

    def assembled(self, parameters: Parameters | None = None) -> Callable[..., Tensor]:
        """The networks as a function of inputs (seeds, …), their matrices assembled now.

        parameters: in place of the stack's own
        """
        state = dict(self.parameters if parameters is None else parameters)
        for name, project in self._projections.items():
            state[name] = vmap(project)(state[name])

        def of_one(own: dict[str, Tensor], *inputs: Tensor) -> Tensor:
            found: Tensor = functional_call(self._plain, own, inputs)
            return found

        return lambda *inputs: vmap(of_one)(state, *inputs)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Outputs (seeds, …) of inputs (seeds, …)."""
        return self.assembled()(*inputs)

    def to(self, dtype: torch.dtype) -> None:
        """Convert what the networks have beside parameters."""
        self.network.to(dtype)
        self._plain.to(dtype)

    def step(self, losses: Tensor) -> None:
        """One step of Adam for every seed on its own loss, (seeds)."""
        leaves = list(self.parameters.values())
        gradients = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.grad = None if gradient is None else gradient.contiguous()  # fused Adam asks
        self.optimiser.step()

    def captured(
        self, function: Callable[..., None], state: Iterable[Tensor] = ()
    ) -> Callable[..., None]:
        """The function as a CUDA graph on a GPU, itself elsewhere."""
        if self.device.type != "cuda":
            return function
        kept = [*self.parameters.values(), *state]
        return CapturedFunction(function, lambda: kept)


def _equivariant_layers(network: nn.Module) -> dict[str, EquivariantLinear]:
    return {n: each for n, each in network.named_modules() if isinstance(each, EquivariantLinear)}


def _projected(assembled: AssembledMap, rank: int, matrix: Tensor) -> Tensor:
    """The equivariant matrix nearest to `matrix` (out, in): that of its coefficients Qᵀ vec."""
    transposed: Callable[[Tensor], tuple[Tensor]] = vjp(assembled, matrix.new_zeros(rank))[1]
    found: Tensor = assembled(*transposed(matrix))
    return found


def _projections(network: nn.Module) -> dict[str, Callable[[Tensor], Tensor]]:
    """For each weight and bias of an equivariant layer, by name, what makes it equivariant."""
    found: dict[str, Callable[[Tensor], Tensor]] = {}
    for name, layer in _equivariant_layers(network).items():
        prefix, rank = f"{name}." if name else "", layer.coefficients.numel()
        found[f"{prefix}weight"] = partial(_projected, layer.weight_map, rank)
        if layer.bias_map is not None:
            rank = layer.bias_coefficients.numel()
            found[f"{prefix}bias"] = partial(_projected_vector, layer.bias_map, rank)
    return found


def _projected_vector(assembled: AssembledMap, rank: int, vector: Tensor) -> Tensor:
    return _projected(assembled, rank, vector[:, None])[:, 0]


def _with_plain_layers(network: nn.Module) -> nn.Module:
    """A copy with `nn.Linear` in the place, and under the name, of every equivariant layer."""
    if isinstance(network, EquivariantLinear):
        return network.export()
    twin = copy.deepcopy(network)
    for name, layer in _equivariant_layers(network).items():
        parent, _, own = name.rpartition(".")
        setattr(twin.get_submodule(parent), own, layer.export())
    return twin


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
