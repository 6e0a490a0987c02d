"""Parameters found by the function of torch that meets them, whatever module they are in.

A rule by the type of a module (`layer_rules`) knows what torch's own modules do. Modules of users
and of other libraries hold parameters too: subclasses with a forward pass of their own, two layers
that share one weight, recurrent layers, weights that are handed to `functional.linear`. What counts
there is the function that a parameter enters:

    linear, conv1d, conv2d, conv3d             Kronecker blocks of weights, exact ones of biases
    batch_norm, layer_norm, rms_norm,          exact blocks of gains and shifts
    group_norm, instance_norm
    embedding                                  Kronecker blocks with a diagonal factor

with the same rules as the modules. A parameter that enters anything else as well, such as a class
token, a table of positions or a weight that is standardised first, is not served here; `kfac` gives
it a diagonal block.

Rows of the data need not be the first axis of what enters a layer. Windows of a picture come as
(rows · windows, tokens, features), sequences as (time, rows, features). Where the rows are is found
by asking: the first of two rows is changed, and what changes belongs to it (`Place`). What changes
nowhere, such as a table of positions, has no rows, and no rule.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from isotropy.curvature.blocks import DenseRoots, KroneckerRoots, Roots
from isotropy.curvature.kinds import Copies
from isotropy.curvature.layer_rules import ConvolutionRule, LayerRule, LinearRule, NormRule, Use


@dataclass(frozen=True, eq=False)
class Met:
    """One call of a function that parameters enter.

    weight, bias: their names in the network; None for what is no parameter
    entered:      what the rule is handed as inputs
    module:       what the rule reads settings from, in place of a module
    """

    rule: LayerRule
    weight: str | None
    bias: str | None
    entered: Tensor
    module: Any

    @property
    def signature(self) -> tuple[Any, ...]:
        """What all calls that share a weight must have in common."""
        parameters = ("weight", "bias")
        settings = {
            name: value for name, value in vars(self.module).items() if name not in parameters
        }
        return (type(self.rule), *sorted(settings.items()))


class MetNormRule(NormRule):
    """γ and β of a function of torch; what entered is x̂ already."""

    def __init__(self) -> None:
        super().__init__(lambda _, inputs: inputs, trailing=False)

    def takes_positions(self, module: Any) -> bool:
        return bool(module.trailing)

    def _over_positions(self, module: Any, both: Tensor) -> Tensor:
        if not module.trailing:
            return super()._over_positions(module, both)
        parameters = both.flatten(both.ndim - module.trailing)
        return parameters.flatten(3, -2).sum(3) if parameters.ndim > 4 else parameters


class EmbeddingRule(LayerRule):
    """W (entries, features) of y_t = W[i_t], with index i_t one-hot: A is diagonal.

        block (1/N) diag_v(Σ_n Σ_t [i_t = v]) ⊗ G        G = (1/T) Σ_n Σ_d Σ_t ĝ ĝᵀ

    The roots of the diagonal are those of counts: one 1 × 1 block an entry, all sharing G.
    """

    parameters = ("weight",)

    def takes_positions(self, module: Any) -> bool:
        return True

    def reduce_inputs(self, module: Any, inputs: Tensor, copies: Copies) -> Tensor:
        """Indices of the first copy: transformations move floating-point numbers only."""
        return copies.split(inputs)[:, 0]

    def roots(self, module: Any, uses: Sequence[Use]) -> dict[str, Roots]:
        back = [g.reshape(1, -1, g.shape[-1]) for g in (use.gradient for use in uses)]
        positions = sum(use.inputs.numel() // len(use.inputs) for use in uses)
        seen = torch.cat([use.inputs.flatten() for use in uses])
        counts = torch.bincount(seen, minlength=module.entries).to(back[0].dtype)
        if module.padding is not None:  # an entry that is no parameter
            counts[module.padding] = 0
        leaving = torch.cat(back, 1) / positions**0.5
        return {"weight": KroneckerRoots(inputs=leaving, outputs=counts.sqrt()[:, None, None])}


_LINEAR, _CONVOLUTION, _NORM = LinearRule(), ConvolutionRule(), MetNormRule()
_EMBEDDING = EmbeddingRule()


# -- from the arguments of a function to a call ------------------------------------------------


def _linear(named: Mapping[str, Any], _: Callable[..., Any]) -> tuple[LayerRule, Tensor, Any]:
    return _LINEAR, named["input"], SimpleNamespace()


def _convolution(named: Mapping[str, Any], _: Callable[..., Any]) -> tuple[LayerRule, Tensor, Any]:
    kernel = tuple(named["weight"].shape[2:])
    axes = len(kernel)
    stride, dilation = (_each(named.get(name, 1), axes) for name in ("stride", "dilation"))
    padding = named.get("padding", 0)
    sides: list[int] = []
    for axis in reversed(range(axes)):
        if padding == "same":
            total = dilation[axis] * (kernel[axis] - 1)
            sides += [total // 2, total - total // 2]
        else:
            sides += [0 if padding == "valid" else _each(padding, axes)[axis]] * 2
    module = SimpleNamespace(
        kernel_size=kernel,
        stride=stride,
        dilation=dilation,
        groups=named.get("groups", 1),
        padding_mode="zeros",
        _reversed_padding_repeated_twice=tuple(sides),
    )
    return _CONVOLUTION, named["input"], module


def _each(value: Any, axes: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, Sequence) else (value,)
    return values if len(values) == axes else values * axes


def _norm(
    named: Mapping[str, Any], function: Callable[..., Any]
) -> tuple[LayerRule, Tensor, Any] | None:
    if named.get("training") or (
        named.get("running_mean") is None and function is functional.batch_norm
    ):
        return None  # statistics of the batch: an example's output depends on the others
    plain = function(**{**named, "weight": None, **({"bias": None} if "bias" in named else {})})
    return _NORM, plain, SimpleNamespace(trailing=len(named.get("normalized_shape", ())))


def _embedding(
    named: Mapping[str, Any], _: Callable[..., Any]
) -> tuple[LayerRule, Tensor, Any] | None:
    if named.get("max_norm") is not None or named.get("sparse"):
        return None
    padding = named.get("padding_idx")
    entries = len(named["weight"])
    padding = padding + entries if padding is not None and padding < 0 else padding
    return _EMBEDDING, named["input"], SimpleNamespace(entries=entries, padding=padding)


_ORDER: dict[Callable[..., Any], tuple[str, ...]] = {
    functional.linear: ("input", "weight", "bias"),
    **dict.fromkeys(
        (functional.conv1d, functional.conv2d, functional.conv3d),
        ("input", "weight", "bias", "stride", "padding", "dilation", "groups"),
    ),
    **{
        function: tuple(inspect.signature(function).parameters)
        for function in (
            functional.batch_norm, functional.layer_norm, functional.rms_norm,
            functional.group_norm, functional.instance_norm, functional.embedding,
        )
    },
}  # fmt: skip
"""Names of the arguments of the functions that are known, in their order."""
_ADAPTERS: dict[Callable[..., Any], Callable[..., tuple[LayerRule, Tensor, Any] | None]] = {
    functional.linear: _linear,
    functional.embedding: _embedding,
    **dict.fromkeys((functional.conv1d, functional.conv2d, functional.conv3d), _convolution),
    **dict.fromkeys(
        (functional.batch_norm, functional.layer_norm, functional.rms_norm,
         functional.group_norm, functional.instance_norm),
        _norm,
    ),
}  # fmt: skip


Keep = Callable[[Met, Tensor], Tensor]
"""From a call and its output to what the forward pass goes on with."""


class MeetingParameters(TorchFunctionMode):
    """A context that reports every known function that the given parameters enter.

    parameters: tensors by their names in the network, as the forward pass sees them
    others:     names of those that entered anything else, or that is computed from
    """

    def __init__(self, parameters: Mapping[str, Tensor], keep: Keep) -> None:
        super().__init__()
        self._names = {id(tensor): name for name, tensor in parameters.items()}
        self._held = parameters  # so that no other tensor gets the id of one of them
        self.keep = keep
        self.others: set[str] = set()

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        named = named or {}
        entered = self._entered((*arguments, *named.values()))
        if not entered:
            return function(*arguments, **named)
        met = self._met(function, arguments, named, entered)
        result = function(*arguments, **named)
        if met is not None:
            return self.keep(met, result)
        if _makes_numbers(result, arguments):
            self.others |= entered
        return result

    def _entered(self, values: Iterable[Any]) -> set[str]:
        found: set[str] = set()
        for value in values:
            if isinstance(value, Tensor):
                name = self._names.get(id(value))
                if name is not None:
                    found.add(name)
            elif isinstance(value, list | tuple):
                found |= self._entered(value)
        return found

    def _met(
        self,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        named: Mapping[str, Any],
        entered: set[str],
    ) -> Met | None:
        adapter = _ADAPTERS.get(function)
        if adapter is None:
            return None
        given = {**dict(zip(_ORDER[function], arguments, strict=False)), **named}
        weight, bias = (self._names.get(id(given.get(name))) for name in ("weight", "bias"))
        if {weight, bias} - {None} != entered:  # one of them is the input
            return None
        found = adapter(given, function)
        if found is None:
            return None
        rule, inputs, module = found
        module.weight, module.bias = (None if name is None else True for name in (weight, bias))
        return Met(rule, weight, bias, inputs, module)


def _makes_numbers(result: Any, arguments: Sequence[Any]) -> bool:
    """Whether tensors came out that did not go in: `shape`, `device` and the like make none."""
    results = result if isinstance(result, list | tuple) else [result]
    return any(
        isinstance(each, Tensor) and not any(each is given for given in arguments)
        for each in results
    )


# -- where the rows are ------------------------------------------------------------------------


class Place(Enum):
    """Where the rows of the data are in what enters and leaves a layer."""

    FIRST = "the first axis"
    SLOW = "the first axis, rows · others"
    FAST = "the first axis, others · rows"
    SECOND = "the second axis"

    def arranged(self, tensor: Tensor, rows: int, axis: int = 0) -> Tensor:
        """With rows at this axis, and others behind it where there are any.

        axis: what is the first axis of the layer; directions may be in front of it
        """
        if self is Place.FIRST:
            return tensor
        if self is Place.SLOW:
            return tensor.unflatten(axis, (rows, -1))
        if self is Place.FAST:
            return tensor.unflatten(axis, (-1, rows)).transpose(axis, axis + 1)
        return tensor.transpose(axis, axis + 1)


def place_of(before: Tensor, after: Tensor) -> Place | None:
    """Where two rows are, by what changes when the first of them is another; None: nowhere."""
    if before.shape != after.shape or before.ndim == 0:
        return None
    changed = before != after
    if not bool(changed.any()):
        return None
    first = changed.flatten(1).any(1) if changed.ndim > 1 else changed
    size = len(first)
    if size == 2 and not bool(first[1]):
        return Place.FIRST
    if size % 2 == 0 and not bool(first[size // 2 :].any()):
        return Place.SLOW
    if size % 2 == 0 and not bool(first[1::2].any()):
        return Place.FAST
    if before.ndim > 1 and before.shape[1] == 2 and not bool(changed[:, 1].any()):
        return Place.SECOND
    return None


@dataclass(frozen=True)
class Seen:
    """One call of a forward pass: by a layer's name, or by a function; and what entered."""

    layer: str
    met: Met | None
    entered: Tensor

    @property
    def names(self) -> tuple[str, ...]:
        """What it says something of: the layer, or the parameters that were met."""
        if self.met is None:
            return (self.layer,)
        return tuple(name for name in (self.met.weight, self.met.bias) if name is not None)


def places_in(before: Sequence[Seen], after: Sequence[Seen]) -> dict[str, Place | None]:
    """Where the rows are, by layer or parameter, from two passes with different first rows.

    None where they are nowhere, differ from call to call, or where calls of one weight have
    different settings.
    """
    found: dict[str, Place | None] = {}
    signatures: dict[str, tuple[Any, ...]] = {}
    unclear: set[str] = set()
    for one, other in zip(before, after, strict=True):
        place = place_of(one.entered, other.entered)
        own = () if one.met is None else one.met.signature
        # A state that is zero at the start of a sequence is the same for all rows.
        says_nothing = torch.equal(one.entered, other.entered)
        for name in one.names:
            same = signatures.setdefault(name, own) == own
            known = found.get(name)
            if not same or (not says_nothing and (place is None or known not in (None, place))):
                unclear.add(name)
            found[name] = known if says_nothing else place
    return found | dict.fromkeys(unclear)


def met_roots(calls: Sequence[tuple[Met, Use]]) -> dict[str, Roots]:
    """Roots by the name of the parameter, from the calls of functions that met it."""
    uses: dict[tuple[str, str], list[int]] = {}
    for number, (met, _) in enumerate(calls):
        for role, name in (("weight", met.weight), ("bias", met.bias)):
            if name is not None:
                uses.setdefault((name, role), []).append(number)
    roots: dict[str, Roots] = {}
    known: dict[tuple[int, ...], dict[str, Roots]] = {}
    for (name, role), numbers in uses.items():
        own = tuple(numbers)
        if own not in known:  # a bias has the calls of its weight, unless that is shared
            met = calls[own[0]][0]
            known[own] = met.rule.roots(met.module, [calls[number][1] for number in own])
        root = known[own][role]
        roots[name] = replace(root, output_of=None) if isinstance(root, DenseRoots) else root
    return roots


def changed_rows(example: Tensor) -> tuple[Tensor, Tensor]:
    """Two rows, and the same with another first one; example (rows, …)."""
    two = example[:2] if len(example) > 1 else torch.cat([example, example])
    if two.is_floating_point():
        steps = torch.arange(two[0].numel(), device=two.device, dtype=two.dtype)
        other = two[0] + (0.5 + steps.cos().reshape(two[0].shape)) * (0.1 + two[0].abs())
    else:
        other = two[0].flip(-1) if two[0].ndim else two[0] + 1
    return two, torch.stack([other, two[1]])
