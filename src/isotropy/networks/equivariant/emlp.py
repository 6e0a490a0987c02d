"""The equivariant multilayer perceptron of any matrix group, and the plain one of equal size.

    block:  h = L x      h ← h + B(h)      x ← gate(h)        network: blocks, then a linear layer

with L linear to `gated(hidden)`, B bilinear, and a gate for each object (Finzi 2023, 2.6). Hidden
channels are shared out over scalars, vectors and tensors alike (`channels`).

    >>> network = EMLP(5 * Scalar + 5 * V, V * V, O(3), channels=384, layers=3)
    >>> network(torch.randn(500, 20)).shape
    torch.Size([500, 9])

Words do as well: `EMLP("5*Scalar + 5*V", "V*V", "O(3)")`.

A function of single entries commutes with permutations of them and with nothing else. Any other
object v_i is therefore scaled by a scalar of its own,

    v_i ↦ v_i σ(s_i)      scalars and permuted entries: x ↦ x σ(x)

with σ the logistic function. `gated(R)` is one scalar s_i for each such object, and then R: so that
where R begins with its scalars, as hidden layers do, all scalars lie together.

Initial weights are scaled layer by layer, on normal inputs, so that every irreducible part varies
as much in the last layer as in the first: outputs have a standard deviation of 0.05 at any depth.

A network has the symmetry of its group and no more where its hidden products tell that group from
larger ones (`larger_symmetry`); where they do not, `notes` and a `LargerSymmetryWarning` say so.

Complex groups go through their real form: given SU(2), source and target are bound to the same
group on R⁴, where V is the real parts of C² and then its imaginary parts. T(2) is V ⊗ V of R⁴.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.bases.maps import kinds
from isotropy.checks import CallerError
from isotropy.networks.equivariant.bilinear import EquivariantBilinear
from isotropy.networks.equivariant.channels import OfParts, Parts, uniform_representation
from isotropy.networks.equivariant.larger_symmetry import LargerSymmetryWarning, larger_symmetry
from isotropy.networks.equivariant.linear import EquivariantLinear
from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.language import parse_representation
from isotropy.symmetry.groups.representations import (
    Representation,
    Scalar,
    is_permutation,
)


def gated(representation: Representation) -> Representation:
    """One scalar for each product that does not permute entries, and then `representation`."""
    group = representation.group
    gates = sum(t.amount for t in representation.terms if not is_permutation(t.atoms, group))
    return gates * Scalar(group) + representation


class GatedNonlinearity(OfParts):
    """(…, gated(R).size) → (…, R.size): products times σ of their scalars, the rest x σ(x).

    No parameters.
    """

    def __init__(self, representation: Representation) -> None:
        super().__init__(gated(representation), representation)
        group = representation.group
        self._kinds = [kind.atoms for kind in self.source_kinds]
        self._has_gates = [not is_permutation(kind.atoms, group) for kind in self.target_kinds]
        # Gates lie in the order of the products, parts by kind.
        starts = [
            (kind.places[copy, 0], k)
            for k, (kind, has_gates) in enumerate(
                zip(self.target_kinds, self._has_gates, strict=True)
            )
            for copy in range(kind.copies * has_gates)
        ]
        self.gates = len(starts)
        order = np.argsort(np.argsort([place for place, _ in starts]))
        self._add_order("gate_order", [order])

    gate_order: Tensor | None

    def of_parts(self, parts: Sequence[Tensor]) -> Parts:
        own = dict(zip(self._kinds, parts, strict=True))
        gates: Iterator[Tensor] = iter(())
        if self.gates:
            scalars = own[()]
            drawn, own[()] = scalars.split([self.gates, scalars.shape[0] - self.gates])
            factors = drawn.sigmoid()
            if self.gate_order is not None:
                factors = factors.index_select(0, self.gate_order)
            pairs = zip(self.target_kinds, self._has_gates, strict=True)
            gates = iter(factors.split([kind.copies for kind, has_gates in pairs if has_gates]))
        found = []
        for kind, has_gates in zip(self.target_kinds, self._has_gates, strict=True):
            part = own[kind.atoms]
            found.append(part * next(gates) if has_gates else functional.silu(part))
        return found

    def extra_repr(self) -> str:
        return f"{self.in_features} to {self.out_features}, {self.gates} gates"


class OfLayers(OfParts):
    """A module of layers that hand each other parts, or vectors if anybody watches them.

    Parts are handed from layer to layer by `of_parts`, and hooks of a layer are not called. Where
    one has any, such as those that record a network (`curvature.recording`), layers are called
    one by one on vectors (`of_vectors`). Outputs are the same.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        inner = (each for each in self.modules() if each is not self)
        if any(each._forward_hooks or each._forward_pre_hooks for each in inner):
            return self.of_vectors(inputs)
        return super().forward(inputs)

    @abstractmethod
    def of_vectors(self, inputs: Tensor) -> Tensor:
        """(…, source.size) → (…, target.size), layer by layer."""


EXAMPLES = 1024
"""Normal inputs on which initial weights are scaled."""
LINEAR_SPREAD, OUTPUT_SPREAD = 0.25, 0.05
"""Initial standard deviations of L x and of outputs. With 0.5 and 0.2, and B(L x) at 0.2, test
errors on the moment of inertia (`experiments.data_efficiency`) are 1.7 times as large; on the other
two problems there they are about the same."""
BILINEAR_SPREAD, TELLING_SPREAD = 0.05, 0.2
"""Initial standard deviation of B(L x): the second one in layers that tell their group from a
larger one by higher ranks or solved maps. The smaller it is there, the less of these is in the
outputs at first, and the more often training does not find Re z^k of D(k) at all: for k = 6 from
four of eight initial weights with 0.1, from one of eight with 0.2."""
FEW_LAYERS = 3
"""Of more layers each squares less of its inputs, so that all together do not square too much."""


class EMLP(OfLayers):
    """f on (…, source.size) → (…, target.size) with f(ρ_in(g) x) = ρ_out(g) f(x).

    source, target: representations, or these in words: "2V + Scalar"
    group:     what they are bound to, or its name: "SO(3)"; theirs if None. A complex one is taken
               in its real form
    channels:  of each hidden layer, a number shared out uniformly or a representation; one for
               all, or a sequence with one for each layer
    layers:    hidden layers
    generator: draws the initial parameters; torch's own if None

    notes: sentences on what the network cannot do, as of which larger group it is
    """

    def __init__(
        self,
        source: Representation | str,
        target: Representation | str,
        group: Group | str | None = None,
        *,
        channels: int | Representation | Sequence[int | Representation] = 384,
        layers: int = 3,
        generator: torch.Generator | None = None,
    ) -> None:
        source, target = _representation(source), _representation(target)
        group = group_named(group) if isinstance(group, str) else group
        group = _real_group(source, target, group)
        super().__init__(source(group), target(group))
        self.group = group
        self.hidden = _hidden(channels, layers, group)
        sizes = [self.source, *self.hidden]
        self.blocks = nn.Sequential(
            *(
                EquivariantBlock(first, second, generator=generator)
                for first, second in pairwise(sizes)
            )
        )
        self.head = EquivariantLinear(sizes[-1], self.target, generator=generator)
        self._even_out()
        products = [[kind.atoms for kind in kinds(each)] for each in (*sizes, self.target)]
        larger = larger_symmetry(products, group)
        self.notes = () if larger is None else (larger,)
        for note in self.notes:
            warnings.warn(note, LargerSymmetryWarning, stacklevel=2)

    def _even_out(self) -> None:
        """Scale the layers so that what each hands on varies as much, for normal inputs."""
        own = torch.Generator().manual_seed(0)
        parts = self.parts(torch.randn(EXAMPLES, self.in_features, generator=own))
        for block in self._blocks():
            spread = TELLING_SPREAD if block.bilinear.tells else BILINEAR_SPREAD
            parts = block.rescale_(parts, spread * min(1, FEW_LAYERS / len(self.blocks)))
        self.head.rescale_(parts, OUTPUT_SPREAD)

    def of_parts(self, parts: Sequence[Tensor]) -> Parts:
        for block in self._blocks():
            parts = block.of_parts(parts)
        return self.head.of_parts(parts)

    def of_vectors(self, inputs: Tensor) -> Tensor:
        return self.head(self.blocks(inputs))

    def _blocks(self) -> list[EquivariantBlock]:
        return [block for block in self.blocks if isinstance(block, EquivariantBlock)]

    def export(self) -> nn.Sequential:
        """The same network of plain layers: `nn.Linear`, contractions and gates, without bases.

        A copy: later training of either leaves the other as it is.
        """
        return nn.Sequential(*(block.export() for block in self._blocks()), self.head.export())

    def plain_state(self) -> dict[str, Tensor]:
        """Parameters of `export()` as functions of the coefficients, by name."""
        layers: list[EquivariantBlock | EquivariantLinear] = [*self._blocks(), self.head]
        return {
            f"{number}.{name}": tensor
            for number, layer in enumerate(layers)
            for name, tensor in layer.plain_state().items()
        }


class EquivariantBlock(OfLayers):
    """gate(L x + B(L x)): (…, source.size) → (…, target.size)."""

    def __init__(
        self,
        source: Representation,
        target: Representation,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(source, target)
        inner = gated(target)
        self.linear = EquivariantLinear(source, inner, generator=generator)
        self.bilinear = EquivariantBilinear(inner, inner, generator=generator)
        self.nonlinearity = GatedNonlinearity(target)

    def of_parts(self, parts: Sequence[Tensor]) -> Parts:
        return self.nonlinearity.of_parts(self.bilinear.added(self.linear.of_parts(parts)))

    def of_vectors(self, inputs: Tensor) -> Tensor:
        inner = self.linear(inputs)
        return self.nonlinearity(inner + self.bilinear(inner))

    def rescale_(self, parts: Sequence[Tensor], bilinear_spread: float) -> Parts:
        """Scale both layers by what they make of these examples: irreducible parts of L x have the
        standard deviation 0.25, kinds of B(L x) the given one. Returns the outputs."""
        inner = self.linear.rescale_(parts, LINEAR_SPREAD)
        self.bilinear.rescale_(inner, bilinear_spread)
        with torch.no_grad():
            return self.of_parts(parts)

    def export(self) -> PlainBlock:
        """The same with a plain linear layer."""
        return PlainBlock(self.linear.export(), deepcopy(self.bilinear), self.nonlinearity)

    def plain_state(self) -> dict[str, Tensor]:
        """Parameters of `export()` as functions of the coefficients, by name."""
        linear = {f"linear.{name}": each for name, each in self.linear.plain_state().items()}
        return {**linear, "bilinear.coefficients": self.bilinear.coefficients}


class PlainBlock(nn.Module):
    """gate(L x + B(L x)) of given layers."""

    def __init__(self, linear: nn.Module, bilinear: nn.Module, nonlinearity: nn.Module) -> None:
        super().__init__()
        self.linear, self.bilinear, self.nonlinearity = linear, bilinear, nonlinearity

    def forward(self, inputs: Tensor) -> Tensor:
        inner = self.linear(inputs)
        return self.nonlinearity(inner + self.bilinear(inner))


def emlp_like(
    network: nn.Module,
    source: Representation,
    target: Representation,
    group: Group | None = None,
    *,
    generator: torch.Generator | None = None,
) -> EMLP:
    """An `EMLP` with the hidden widths of a plain MLP, in its precision and on its device.

    Raises CallerError where the network has fewer than two nn.Linear, or other sizes than
    source and target have.
    """
    layers = [each for each in network.modules() if isinstance(each, nn.Linear)]
    if len(layers) < 2:
        raise CallerError(
            "network: expected an MLP of two nn.Linear or more, whose widths the equivariant "
            f"network takes, got {len(layers)}"
        )
    real = _real_group(source, target, group)
    sizes = source(real).size, target(real).size
    own = layers[0].in_features, layers[-1].out_features
    if sizes != own:
        raise CallerError(
            f"network: expected {sizes[0]} inputs and {sizes[1]} outputs, as {source} >> {target} "
            f"of {real} has, got {own[0]} and {own[1]}"
        )
    widths = [each.out_features for each in layers[:-1]]
    found = EMLP(source, target, group, channels=widths, layers=len(widths), generator=generator)
    return found.to(layers[0].weight).train(network.training)


@torch.no_grad()
def equivariance_error(model: EMLP, *, count: int = 16) -> float:
    """max over elements g of ‖f(ρ x) − ρ f(x)‖ / ‖ρ f(x)‖ for normal x, in double precision."""
    own = torch.Generator().manual_seed(0)
    elements = model.group.sample(count, own, largest=1.0)
    inputs = torch.randn((count, model.in_features), generator=own, dtype=torch.float64)
    trial = deepcopy(model).cpu().double()
    errors = []
    before, after = (each.element(elements) for each in (model.source, model.target))
    for into, out in zip(before, after, strict=True):
        wanted = trial(inputs) @ out.mT
        errors.append(float((trial(inputs @ into.mT) - wanted).norm() / wanted.norm()))
    return max(errors)


def plain_mlp(
    source_size: int, target_size: int, *, channels: int = 384, layers: int = 3
) -> nn.Sequential:
    """Linear layers of the same widths as an `EMLP`, with x σ(x) between them."""
    sizes = [source_size, *[channels] * layers]
    found: list[nn.Module] = []
    for first, second in pairwise(sizes):
        found += [nn.Linear(first, second), nn.SiLU()]
    return nn.Sequential(*found, nn.Linear(sizes[-1], target_size))


def _representation(given: Representation | str) -> Representation:
    """A representation, read where it is in words."""
    if not isinstance(given, str):
        return given
    found = parse_representation(given)
    if not isinstance(found, Representation):
        raise CallerError(
            f"expected a representation such as '2V + Scalar', got the maps {given!r}; give source "
            "and target apart"
        )
    return found


def _real_group(source: Representation, target: Representation, group: Group | None) -> Group:
    if group is None:
        bound = next((each for each in (source, target) if each.is_bound), None)
        if bound is None:
            raise CallerError(
                f"neither {source} nor {target} is bound to a group; pass group=, or bind them: "
                "rep(group)"
            )
        (source >> target)  # refuses two groups
        group = bound.group
    return group.real_form()


def _hidden(
    channels: int | Representation | Sequence[int | Representation], layers: int, group: Group
) -> list[Representation]:
    if layers < 1:
        raise CallerError(f"expected at least one hidden layer, got {layers}")
    each = [channels] * layers if isinstance(channels, int | Representation) else list(channels)
    if len(each) != layers:
        raise CallerError(f"expected channels for {layers} hidden layers, got {len(each)}")
    return [
        part(group) if isinstance(part, Representation) else uniform_representation(part, group)
        for part in each
    ]
