"""Every example's own Jacobian: curvature that is exact, and the tangent kernel of a batch.

For the averaged network f̂(x) = Σ_s w_s f(x_s) and directions r_nd of the output curvature
(Λ_n = Σ_d r_nd r_ndᵀ, any root; see `kinds`)

    j_nd = ∂(r_ndᵀ f̂_n)/∂θ        H = Σ_n Σ_d j_nd j_ndᵀ        K_(dn)(em) = j_nd · j_me

**H** (`JacobianCurvature`) has no Kronecker form, and every copy and every position is counted; its
diagonal, the whole matrix, or the block of the last layer is taken. It costs memory (batch,
directions, parameters) and needs no rule, only a network that `torch.func.vmap` can follow.

**K** (`tangent_kernels`) has the same non-zero eigenvalues and batch·directions rows, however many
parameters there are. It is a sum K = Σ_l K_l with one kernel for each parameter tensor; kernels
come as (D·batch, D·batch), directions slowest. A network that ends Linear, elementwise φ, Linear
needs no gradient of any example there. With V the last weight, v_nd = Vᵀ r_nd, and a bar for the
weighted sum over copies,

    last weight      j = r_nd ⊗ ā_n                          K = (r_nd · r_me)(ā_n · ā_m)
    weight before    j = diag(v_nd) M_n                      K = Σ_h v_ndh v_meh (M_n M_mᵀ)_hh
                     M_n = Σ_s w_s φ′(z_ns) x_nsᵀ

so that directions cost next to nothing.

Both are differentiable in the rows (batch·copies, …) and in weights of copies. Oracles:
tests/oracles/dense_ggn.py, tests/oracles/function_space.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from isotropy.checks import CallerError
from isotropy.curvature.blocks import JOINT, DiagonalRoots, JointRoots
from isotropy.curvature.kinds import BatchCurvature, Copies, CurvatureKind
from isotropy.curvature.recording import Call, checked_outputs, evaluation_mode, full_name, record
from isotropy.curvature.recurrent import written_out
from isotropy.kernels.kept_slopes import elementwise_slopes
from isotropy.kernels.operations import twice_differentiable
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
    with evaluation_mode(network), twice_differentiable(), written_out(network):
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
        with evaluation_mode(network), twice_differentiable(), written_out(network):
            found = over_examples(chosen, copies.split(inputs), directions)
    except RuntimeError as error:
        raise CallerError(
            f"the network cannot be differentiated example by example: {error}; use a kfac "
            "curvature, or operations that torch.func.vmap supports"
        ) from error
    return {name: found[name].flatten(2).flatten(0, 1) for name in names}


def last_layer(network: nn.Module, example: Tensor) -> str | None:
    """The name of the Linear layer whose output is the network's output; None if there is none.

    example (1, …)
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
    return next(same, None)


def last_layer_names(network: nn.Module, example: Tensor) -> tuple[str, ...]:
    """The trainable parameters of the last layer.

    example (1, …). Raises CallerError if that is not a Linear layer.
    """
    head = last_layer(network, example)
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


# -- the tangent kernel of one batch -----------------------------------------------------------

Directions = Callable[[Tensor], Tensor]
"""From averaged outputs (batch, outputs) to directions r (directions, batch, outputs)."""

EXAMPLES_AT_ONCE = 25
CACHE_BYTES = 4e6
GPU_BYTES = 4e8


def tangent_kernels(
    network: nn.Module,
    names: Sequence[str],
    rows: Tensor,
    copies: Copies,
    directions: Directions,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Averaged outputs (batch, outputs) and the kernel of each named parameter.

    rows (batch·copies, …), copies fastest. A kernel is (directions·batch, directions·batch).
    """
    needs_graph = rows.requires_grad or (
        copies.weights is not None and copies.weights.requires_grad
    )
    with torch.enable_grad():
        outputs, kernels = _kernels(network, names, rows, copies, directions, needs_graph)
    if needs_graph and torch.is_grad_enabled():
        return outputs, kernels
    return outputs.detach(), {name: kernel.detach() for name, kernel in kernels.items()}


def _kernels(
    network: nn.Module,
    names: Sequence[str],
    rows: Tensor,
    copies: Copies,
    directions: Directions,
    needs_graph: bool,
) -> tuple[Tensor, dict[str, Tensor]]:
    recording = record(network, _own_linear_layers(network), rows)
    uses = Counter(call.layer for call in recording.calls)
    head, before = recording.head(), recording.before_head()
    kernels: dict[str, Tensor] = {}
    if head is None:
        outputs = copies.mean(recording.outputs)
        chosen = _kept(directions(outputs), needs_graph)
    else:
        features = _kept(copies.mean(head.inputs), needs_graph)
        weight, bias = head.constants()
        outputs = functional.linear(features, weight, bias)
        chosen = directions(outputs)
        if uses[head.layer] == 1:
            of_directions = gram(chosen)
            of_features = _inner_products(features).repeat(len(chosen), len(chosen))
            kernels |= _named(head, of_directions * of_features, of_directions)
        if before is not None and uses[before.layer] == 1:
            slopes = elementwise_slopes(head.inputs, before.output, needs_graph)
            back = chosen @ weight
            inputs = _kept(before.inputs, needs_graph)
            kernels |= _named(
                before,
                _behind_elementwise(back, slopes, inputs, copies),
                gram(back * copies.mean(slopes)),
            )
    found = {name: kernels[name] for name in names if name in kernels}
    rest = [name for name in names if name not in kernels]
    if rest:
        gradients = _gradients(network, rest, rows, copies, chosen, needs_graph)
        for name, gradient in gradients.items():
            # (batch·directions, entries), directions fastest there
            found[name] = gram(gradient.unflatten(0, (-1, len(chosen))).transpose(0, 1))
    return outputs, found


def _kept(tensor: Tensor, needs_graph: bool) -> Tensor:
    return tensor if needs_graph else tensor.detach()


def _gradients(
    network: nn.Module,
    names: Sequence[str],
    rows: Tensor,
    copies: Copies,
    chosen: Tensor,
    needs_graph: bool,
) -> dict[str, Tensor]:
    """`example_gradients`, without a graph a few examples at a time: what is kept is the result."""
    if needs_graph:
        return example_gradients(network, names, rows, copies, chosen)
    parts = [
        example_gradients(network, names, some.flatten(0, 1), copies, directions)
        for some, directions in zip(
            copies.split(rows).split(EXAMPLES_AT_ONCE),
            chosen.split(EXAMPLES_AT_ONCE, 1),
            strict=True,
        )
    ]
    return {name: torch.cat([part[name].detach() for part in parts]) for name in names}


def gram(vectors: Tensor) -> Tensor:
    """Inner products of vectors (directions, batch, entries), as kernels are ordered."""
    return _inner_products(vectors.flatten(0, 1))


class _InnerProducts(torch.autograd.Function):
    """X Xᵀ, whose gradient (G + Gᵀ) X is one product where autograd would make two and add."""

    @staticmethod
    def forward(context: Any, vectors: Tensor) -> Tensor:
        context.save_for_backward(vectors)
        return vectors @ vectors.mT

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (vectors,) = context.saved_tensors
        return (gradient + gradient.mT) @ vectors


class _UnitProducts(torch.autograd.Function):
    """(M_n M_mᵀ)_hh as (hidden, batch, batch), M_n = slopes_nᵀ inputs_n, a few units at a time.

    slopes (batch, copies, hidden), weighted; inputs (batch, copies, features). M has the size of
    the layer's weight for every example: it is made again for the gradient and never kept.
    """

    @staticmethod
    def forward(context: Any, slopes: Tensor, inputs: Tensor) -> Tensor:
        context.save_for_backward(slopes, inputs)
        parts = []
        for some in slopes.split(_units_at_once(inputs), 2):
            by_unit = (some.mT @ inputs).transpose(0, 1)  # (units, batch, features)
            parts.append(by_unit @ by_unit.mT)
        return torch.cat(parts)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        slopes, inputs = context.saved_tensors
        units = _units_at_once(inputs)
        of_slopes, of_inputs = [], torch.zeros_like(inputs)
        both = (gradient + gradient.mT).split(units)
        for some, products in zip(slopes.split(units, 2), both, strict=True):
            by_unit = (some.mT @ inputs).transpose(0, 1)
            mixed = (products @ by_unit).transpose(0, 1)  # the gradient by M
            of_slopes.append(inputs @ mixed.mT)
            of_inputs += some @ mixed
        return torch.cat(of_slopes, 2), of_inputs


def _units_at_once(inputs: Tensor) -> int:
    """So many that M of these fits into a CPU's cache, or easily into a GPU's memory."""
    examples, _, features = inputs.shape
    room = GPU_BYTES if inputs.is_cuda else CACHE_BYTES
    return max(1, int(room / (examples * features * inputs.element_size())))


def _inner_products(vectors: Tensor) -> Tensor:
    products: Tensor = _InnerProducts.apply(vectors)
    return products


def _behind_elementwise(back: Tensor, slopes: Tensor, inputs: Tensor, copies: Copies) -> Tensor:
    """Σ_h v_ndh v_meh (M_n M_mᵀ)_hh.

    back v (directions, batch, hidden), slopes φ′ (batch·copies, hidden), inputs
    (batch·copies, features).
    """
    weighted = copies.split(slopes)  # (batch, copies, hidden)
    if copies.weights is None:
        weighted = weighted * (1 / copies.count)
    else:
        weighted = weighted * copies.weights.to(weighted.dtype)[:, None]
    split = copies.split(inputs)
    if not any(tensor.requires_grad for tensor in (back, weighted, split)):
        return _unit_by_unit(back, weighted, split)
    # (M_n M_mᵀ)_hh as (batch, batch, hidden)
    products: Tensor = _UnitProducts.apply(weighted, split).permute(1, 2, 0)
    by_example = back.transpose(0, 1)  # (batch, directions, hidden)
    left = by_example[:, None] * products[:, :, None]  # (batch, batch, directions, hidden)
    kernel = left @ by_example.mT[None]  # (n, m, d, e)
    return kernel.permute(2, 0, 3, 1).flatten(2).flatten(0, 1)


def _unit_by_unit(back: Tensor, weighted: Tensor, inputs: Tensor) -> Tensor:
    """The same without a graph: what is kept is the result, and a few units at a time."""
    directions, batch, _ = back.shape
    total = back.new_zeros(directions, batch, directions, batch)
    units = 4 * _units_at_once(inputs)
    for some, values in zip(weighted.split(units, 2), back.split(units, 2), strict=True):
        by_unit = (some.mT @ inputs).transpose(0, 1)
        for products, v in zip(by_unit @ by_unit.mT, values.unbind(2), strict=True):
            left = v[:, :, None, None] * products[:, None]  # (directions, batch, 1, batch)
            total.addcmul_(left, v)
    return total.flatten(2).flatten(0, 1)


def _named(call: Call, of_weight: Tensor, of_bias: Tensor) -> dict[str, Tensor]:
    return {full_name(call.layer, "weight"): of_weight, full_name(call.layer, "bias"): of_bias}


def _own_linear_layers(network: nn.Module) -> dict[str, nn.Module]:
    """Linear layers whose parameters no other module uses."""
    owners = Counter(
        id(parameter)
        for module in network.modules()
        for parameter in module.parameters(recurse=False)
    )
    return {
        name: module
        for name, module in network.named_modules()
        if type(module) is nn.Linear
        and all(owners[id(parameter)] == 1 for parameter in module.parameters())
    }
