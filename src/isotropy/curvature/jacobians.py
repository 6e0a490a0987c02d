"""Curvature from every example's own Jacobian: the diagonal, the whole matrix, the last layer.

For the averaged network f̂(x) = Σ_s w_s f(x_s) and output directions r_d (see `kinds`),

    j_nd = ∂ (r_dᵀ f̂_n) / ∂θ            H = Σ_n Σ_d j_nd j_ndᵀ

is exact: no Kronecker form, every copy and every position counted. It costs memory
(batch, directions, parameters) and needs no rule, only a network that `torch.func.vmap`
can follow. Differentiable in the inputs, as `kfac` is. Oracle: tests/oracles/dense_ggn.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from isotropy.checks import CallerError
from isotropy.curvature.blocks import JOINT, DiagonalRoots, JointRoots
from isotropy.curvature.kinds import BatchCurvature, Copies, CurvatureKind
from isotropy.curvature.recording import checked_outputs, evaluation_mode, full_name
from isotropy.kernels.operations import plain_operations
from isotropy.likelihoods import Likelihood


class JacobianCurvature:
    """Diagonal, full or last-layer curvature of one network, reusable over batches.

    names: the parameters that have curvature; the other weights are constants.
    """

    def __init__(self, network: nn.Module, kind: CurvatureKind, names: tuple[str, ...]) -> None:
        self.network = network
        self.kind = kind
        self.parameter_names = names

    @torch.enable_grad()
    def batch(
        self,
        inputs: Tensor,
        copies: Copies,
        likelihood: Likelihood,
        targets: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        create_graph: bool = False,
    ) -> BatchCurvature:
        """Roots from one batch of inputs (batch·copies, …)."""
        averaged = averaged_outputs(self.network, inputs, copies)
        directions = self.kind.directions(likelihood, averaged, targets, generator)
        if not create_graph:
            averaged, directions, inputs = (t.detach() for t in (averaged, directions, inputs))
        rows = example_gradients(self.network, self.parameter_names, inputs, copies, directions)
        if not create_graph:
            rows = {name: row.detach() for name, row in rows.items()}
        if self.kind.structure == "diagonal":
            return BatchCurvature(averaged, {name: DiagonalRoots(r) for name, r in rows.items()})
        sizes = {name: row.shape[1] for name, row in rows.items()}
        return BatchCurvature(
            averaged, {JOINT: JointRoots(torch.cat(list(rows.values()), 1), sizes)}
        )


def averaged_outputs(network: nn.Module, inputs: Tensor, copies: Copies) -> Tensor:
    """f̂ (batch, outputs) with constant weights, in evaluation mode."""
    constants = {name: parameter.detach() for name, parameter in network.named_parameters()}
    with evaluation_mode(network), plain_operations():
        outputs = functional_call(network, constants, (inputs,))
    return copies.mean(checked_outputs(outputs))


def example_gradients(
    network: nn.Module,
    names: Sequence[str],
    inputs: Tensor,
    copies: Copies,
    directions: Tensor,
) -> dict[str, Tensor]:
    """j_nd by parameter name, (batch·directions, entries).

    inputs (batch·copies, …), directions (directions, batch, outputs).
    """
    parameters = {name: p.detach() for name, p in network.named_parameters()}
    chosen = {name: parameters.pop(name) for name in names}

    def projected(values: Mapping[str, Tensor], rows: Tensor, direction: Tensor) -> Tensor:
        outputs = functional_call(network, {**parameters, **values}, (rows,))
        return (copies.mean(outputs)[0] * direction).sum()

    over_directions = vmap(grad(projected), in_dims=(None, None, 0))
    over_examples = vmap(over_directions, in_dims=(None, 0, 1))
    try:
        with evaluation_mode(network), plain_operations():
            found = over_examples(chosen, copies.split(inputs), directions)
    except RuntimeError as error:
        raise CallerError(
            f"the network cannot be differentiated example by example: {error}; use a kfac "
            "curvature, or operations that torch.func.vmap supports"
        ) from error
    return {name: found[name].flatten(2).flatten(0, 1) for name in names}


def last_layer_names(network: nn.Module, example: Tensor) -> tuple[str, ...]:
    """The trainable parameters of the layer whose output is the network's output.

    example (1, …). Raises CallerError if that is not a Linear layer.
    """
    returned: dict[str, tuple[Tensor, int]] = {}
    handles = [
        module.register_forward_hook(
            lambda _, __, output, name=name: returned.update({name: (output, output._version)})
        )
        for name, module in network.named_modules()
        if type(module) is nn.Linear
    ]
    try:
        with torch.no_grad(), evaluation_mode(network):
            outputs = network(example)
    finally:
        for handle in handles:
            handle.remove()
    # An activation in place returns the layer's own tensor, in another version.
    same = (n for n, (output, v) in returned.items() if output is outputs and output._version == v)
    head = next(same, None)
    if head is None:
        raise CallerError(
            "curvature last-layer: expected a network that ends with a Linear layer; use kfac or "
            "diagonal"
        )
    own = network.get_submodule(head).named_parameters(recurse=False)
    names = tuple(full_name(head, name) for name, parameter in own if parameter.requires_grad)
    if not names:
        raise CallerError(f"curvature last-layer: the layer {head!r} is frozen")
    return names
