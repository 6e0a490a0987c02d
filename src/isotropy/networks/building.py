"""From an ordinary convolutional network to one that is exactly invariant to a point group H.

The user's forward code stays as it is; modules are replaced by `point_group_layers`, whose maps
have the group's elements in their channels: first convolutions lift images to the group, later
ones mix its elements, norms see them as pixels, and the first linear layer pools over the group.
Strided layers keep one polyphase component where every s-th pixel is not a symmetric choice.

Which convolution lifts, and which features of a linear layer are maps, is seen in one run of the
network in which the outputs of first convolutions are NaN: what depends on maps is NaN. The result
is measured under every element of the group.

`rebuilt` makes a built network of any kind again, with new weights, from what `isotropy.build`
writes into config.json: how it was built, the words of the network that was given, and the group,
the law or the representations. `relaxed_again` does the same for relaxed layers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_choice
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.averaging.mixtures import uniform_over
from isotropy.networks.equivariant.emlp import EMLP
from isotropy.networks.equivariant.point_group_layers import (
    Downsampled,
    GroupHead,
    GroupPooling,
    PerChannel,
    PointGroupConv2d,
    draw_like,
    groups_of,
    narrowed,
    polyphase_factor,
)
from isotropy.networks.export.laws import augmentation_from_law
from isotropy.networks.pathways.relax import observed, relax, relaxed_cnn, replaced
from isotropy.networks.pathways.relaxed_layer import PathwayOptions
from isotropy.networks.zoo.specification import NetworkSpecification
from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.language import parse_representation
from isotropy.symmetry.groups.point_groups import PointGroup
from isotropy.symmetry.groups.representations import Representation

Width = Literal["same parameters", "same channels"]
WIDTHS: tuple[Width, ...] = ("same parameters", "same channels")
LARGEST_ERROR = 1e-5
"""Relative to outputs, in single precision; more is no rounding."""
BROKEN = 1e-4
"""The same of a layer in between, where its error is looked for."""
LEAST_VARIATION = 1e-3
"""Of outputs over random images, relative to their size: with less, nothing could be measured."""
TRIES = 16
"""Disturbances of weights before a network is said not to depend on images."""
ROUNDING = 0.15
"""How far the count of parameters may be off for widths that add up under concatenation."""
PER_CHANNEL = (
    nn.BatchNorm2d, nn.GroupNorm, nn.InstanceNorm2d, nn.PReLU, nn.Dropout2d, nn.LocalResponseNorm
)  # fmt: skip
IMAGE, MAPS, FEATURES, INVARIANT = "an image", "maps", "features of maps", "invariants"


@dataclass(frozen=True)
class GroupNetwork:
    """A network that has a group exactly, and what was done to it.

    convolutions: names of the layers that became group convolutions
    replaced:     layers that keep a polyphase component in place of their stride, and how
    error:        largest relative difference of outputs under an element of the group
    """

    model: nn.Module
    convolutions: tuple[str, ...]
    replaced: dict[str, str]
    error: float


def is_convolutional(model: nn.Module) -> bool:
    """Whether there is a convolution of images in it, so that `group_network` may apply."""
    return any(isinstance(module, nn.Conv2d) for module in model.modules())


def group_network(
    model: nn.Module,
    group: PointGroup,
    shape: Sequence[int],
    *,
    width: Width = "same parameters",
    generator: torch.Generator | None = None,
) -> GroupNetwork:
    """A copy of `model`, images (batch, C, X, Y) → (batch, outputs), that is invariant to `group`.

    shape:     of one image, (C, X, Y)
    width:     "same parameters" divides channels so that there are about as many parameters as
               before, about √|H| times fewer channels for each element; "same channels" keeps the
               channels of every layer for each element
    generator: draws the weights, with the spread that the model's own have, relative to the number
               of inputs of a unit; torch's own if None. Later linear layers keep their weights

    Raises CallerError naming the layer that cannot be converted, or that breaks the symmetry.
    """
    check_choice(width, WIDTHS, what="width")
    if len(shape) != 3 or (group.exchanges_axes and shape[1] != shape[2]):
        square = "square images" if group.exchanges_axes else "images"
        raise CallerError(
            f"group {group}: expected {square} (channels, height, width), got {tuple(shape)}"
        )
    copied = copy.deepcopy(model)
    layers = _layers(group, _traced(copied, shape))
    shares = [1.0] if width == "same channels" else _shares(copied, group, layers)
    for share in shares[:-1]:
        try:
            return _built(model, group, shape, share, generator)
        except CallerError:  # maps no longer add up, or there is more than that
            continue
    return _built(model, group, shape, shares[-1], generator)


def _built(
    model: nn.Module,
    group: PointGroup,
    shape: Sequence[int],
    share: float,
    generator: torch.Generator | None,
) -> GroupNetwork:
    """The copy with this share of the channels for each element."""
    copied = copy.deepcopy(model)
    calls = _traced(copied, shape)
    layers = _layers(group, calls)
    made = {each.module: each.made(group, share, generator) for each in layers}
    for old, new in made.items():
        new.train(old.training)
    built = replaced(copied, made)
    names = tuple(each.name for each in layers if isinstance(each.module, nn.Conv2d))
    words = "stride 1, then one polyphase component of {0}×{0}".format
    notes = {each.name: words(each.factor) for each in layers if each.factor > 1}
    return GroupNetwork(built, names, notes, _measured(built, group, shape, calls, layers))


# --- what depends on what ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Call:
    """One call of a module: what came in and went out, its shapes, and which features are maps'."""

    name: str
    module: nn.Module
    into: str
    out: str
    shape: tuple[int, ...]
    shape_after: tuple[int, ...]
    places: tuple[int, ...] = ()


def _kind(value: Tensor) -> str:
    if bool(value.isnan().any()):
        return MAPS if value.ndim == 4 else FEATURES
    return IMAGE if value.ndim == 4 else INVARIANT


def _own(module: nn.Module) -> list[nn.Parameter]:
    return list(module.parameters(recurse=False))


def _images(model: nn.Module, shape: Sequence[int], count: int) -> Tensor:
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    drawn = torch.randn((count, *shape), generator=torch.Generator().manual_seed(0))
    return drawn.to(like)


def _traced(model: nn.Module, shape: Sequence[int]) -> list[_Call]:
    """The calls of a run in which first convolutions give NaN, and first linear layers zeros."""
    calls: list[_Call] = []

    def seen(name: str, module: nn.Module, into: Tensor, out: Tensor) -> Tensor | None:
        kind, changed, places = _kind(into), None, ()
        if isinstance(module, nn.Conv2d) and kind == IMAGE:
            changed = torch.full_like(out, math.nan)
        elif isinstance(module, nn.Linear) and kind == FEATURES and into.ndim == 2:
            changed = torch.zeros_like(out)
            places = tuple(into[0].isnan().nonzero().flatten().tolist())
        after = _kind(out if changed is None else changed)
        calls.append(_Call(name, module, kind, after, into.shape, out.shape, places))
        return changed

    leaves = [n for n, m in model.named_modules() if not [*m.children()] or _own(m)]
    outputs = observed(model, leaves, _images(model, shape, 2), seen)
    if not isinstance(outputs, Tensor) or outputs.ndim != 2:
        came = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise CallerError(f"network: expected outputs (batch, outputs), got {came}")
    heads = [call for call in calls if call.places]
    if heads and _kind(outputs) != INVARIANT:
        raise CallerError(
            "network: expected all that outputs see of maps to pass through an nn.Linear on "
            f"(batch, features), as through {heads[0].name}; some passes beside it"
        )
    return calls


# --- what becomes of each layer ---------------------------------------------------------------


@dataclass(frozen=True)
class _Layer:
    """A layer that is replaced. Of a share t of the channels, C become round(t C).

    lifts:  a convolution of images
    factor: of polyphase down-sampling in place of the stride
    size:   (C, X, Y) of the maps whose features a linear layer sees, and the first of them
    pools:  a convolution after which the group is pooled over, for want of a linear layer
    """

    name: str
    module: nn.Module
    lifts: bool = False
    factor: int = 1
    size: tuple[int, int, int, int] = (0, 0, 0, 0)
    pools: bool = False

    def channels(self, share: float) -> tuple[int, int]:
        """C and C' of a convolution, for each element."""
        assert isinstance(self.module, nn.Conv2d)
        into, out = self.module.in_channels, self.module.out_channels
        return into if self.lifts else _few(into, share), out if self.pools else _few(out, share)

    def features(self, share: float) -> int:
        """Inputs of a linear layer, after pooling over the group."""
        assert isinstance(self.module, nn.Linear)
        channels, height, width, _ = self.size
        return self.module.in_features - (channels - _few(channels, share)) * height * width

    def count(self, group: PointGroup, share: float) -> int:
        """Parameters of what takes its place."""
        module = self.module
        if isinstance(module, nn.Conv2d):
            into, out = self.channels(share)
            each = (1 if self.lifts else group.order) * math.prod(module.kernel_size)
            weights = out * each * (into // groups_of(module, into, out))
            return weights + (0 if module.bias is None else out)
        if isinstance(module, nn.Linear):
            return (self.features(share) + (module.bias is not None)) * module.out_features
        return sum(_few(each.numel(), share) for each in _own(module))

    def made(self, group: PointGroup, share: float, generator: torch.Generator | None) -> nn.Module:
        """What takes its place."""
        module = self.module
        if isinstance(module, nn.Conv2d):
            found = PointGroupConv2d(group, module, self.channels(share), lifts=self.lifts)
            draw_like(found, module, generator)
            made = found if self.factor == 1 else Downsampled(found, self.factor)
            return nn.Sequential(made, GroupPooling(group)) if self.pools else made
        if isinstance(module, nn.Linear):
            channels_of_maps, height, width, before = self.size
            linear = copy.deepcopy(module)
            linear.in_features = self.features(share)
            empty = module.weight.new_empty(module.out_features, linear.in_features)
            linear.weight = nn.Parameter(empty)
            draw_like(linear, module, generator)
            return GroupHead(linear, group, (_few(channels_of_maps, share), height, width), before)
        if isinstance(module, nn.MaxPool2d | nn.AvgPool2d):
            return Downsampled(copy.deepcopy(module), self.factor)
        return PerChannel(narrowed(module, lambda channels: _few(channels, share)), group.order)


def _few(channels: int, share: float) -> int:
    return max(1, round(share * channels))


def _shares(model: nn.Module, group: PointGroup, layers: Sequence[_Layer]) -> list[float]:
    """Shares of channels with which there are about as many parameters as there were.

    Shares that make whole numbers of all channels are better, since sums of channels are then
    divided as their parts are; another is tried first where these are too far off.
    """
    plain = sum(each.numel() for each in model.parameters())
    kept = plain - sum(each.numel() for layer in layers for each in _own(layer.module))
    whole = [layer.channels(1.0)[1] for layer in layers if isinstance(layer.module, nn.Conv2d)]
    unit = math.gcd(*(whole[:-1] if layers[-1].pools else whole)) or 1

    def off(share: float) -> float:
        count = kept + sum(layer.count(group, share) for layer in layers)
        return abs(math.log(count / plain))

    whole_share = min((part / unit for part in range(1, unit + 1)), key=off)
    if off(whole_share) < ROUNDING:
        return [whole_share]
    return [min((part / 200 for part in range(1, 201)), key=off), whole_share]


def _layers(group: PointGroup, calls: Sequence[_Call]) -> list[_Layer]:
    """What is replaced, in the order of first calls; refuses what cannot be."""
    found: dict[str, _Layer] = {}
    maps: tuple[int, ...] = ()
    for call in calls:
        try:
            layer = _layer(group, call, maps)
        except CallerError as error:
            raise CallerError(f"layer {call.name or '(the model itself)'}: {error}") from error
        if layer is not None and found.setdefault(call.name, layer) != layer:
            raise CallerError(
                f"layer {call.name}: it is called with inputs of several kinds or sizes, which "
                "would need different layers; give each call a layer of its own"
            )
        if MAPS in (call.into, call.out):
            maps = call.shape_after if call.out == MAPS else call.shape
    layers = list(found.values())
    last = [each for each in layers if isinstance(each.module, nn.Conv2d)]
    if not last:
        raise CallerError(
            "network: expected an nn.Conv2d that is called with images (batch, channels, height, "
            "width), got none"
        )
    if not any(isinstance(each.module, nn.Linear) for each in layers):
        layers.remove(last[-1])
        layers.append(replace(last[-1], pools=True))
    return layers


def _layer(group: PointGroup, call: _Call, maps: tuple[int, ...]) -> _Layer | None:
    module, name = call.module, call.name
    if type(module) is nn.Conv2d and call.into in (IMAGE, MAPS):
        factor = polyphase_factor(group, module, call.shape[2:])
        return _Layer(name, module, call.into == IMAGE, factor)
    if call.into == MAPS and isinstance(module, nn.MaxPool2d | nn.AvgPool2d):
        factor = polyphase_factor(group, module, call.shape[2:])
        return _Layer(name, module, factor=factor) if factor > 1 else None
    if call.into == MAPS and isinstance(module, PER_CHANNEL):
        return _Layer(name, module)
    if isinstance(module, nn.Linear) and call.places:
        return _Layer(name, module, size=_flattened(call, maps))
    is_convolution = isinstance(module, nn.Conv2d) and call.into == IMAGE
    if is_convolution or (
        call.into in (MAPS, FEATURES) and any(each.numel() > 1 for each in _own(module))
    ):
        raise CallerError(
            f"a {type(module).__name__} on {call.into} cannot be made equivariant to {group}; "
            "expected nn.Conv2d, norms of maps, pooling and functions of single values before an "
            "nn.Linear on (batch, features); build(network, isotropy.quarter_turns()) averages "
            "over elements instead"
        )
    return None


def _flattened(call: _Call, maps: tuple[int, ...]) -> tuple[int, int, int, int]:
    """(C, X, Y) of the maps among the features of a linear layer, and where they begin."""
    first, count = call.places[0], len(call.places)
    channels, height, width = maps[1:]
    pixels, side = count // channels, math.isqrt(count // channels)
    if call.places[-1] - first + 1 == count and count % channels == 0:
        if pixels == height * width:
            return channels, height, width, first
        if side * side == pixels:
            return channels, side, side, first
    raise CallerError(
        f"expected flattened maps of {channels} channels among its "
        f"{call.shape[-1]} features, got {count} features that depend on maps"
    )


# --- is it invariant --------------------------------------------------------------------------


def _measured(
    model: nn.Module,
    group: PointGroup,
    shape: Sequence[int],
    calls: Sequence[_Call],
    layers: Sequence[_Layer],
) -> float:
    """The largest relative error under an element; raises CallerError naming what breaks it.

    Symmetry does not depend on weights, and some weights hide it: zeros, or units of which none is
    ever above zero. Parameters that are all equal are disturbed, in a copy, and all of them until
    outputs depend on the images. On the CPU, in single precision at least, whatever a GPU's kernels
    round to.
    """
    trial = single_precision(model)
    images = _images(trial, shape, 4)
    own = torch.Generator().manual_seed(1)
    equal = [p for p in trial.parameters() if p.numel() > 1 and float(p.detach().std()) == 0]
    _disturb(equal, own, 0.1)
    names = list(dict.fromkeys(call.name for call in calls))
    for _ in range(TRIES):
        runs: list[list[tuple[Tensor, Tensor]]] = []
        for element in range(group.order):
            seen: list[tuple[Tensor, Tensor]] = []
            moved = group.act(images, element)
            outputs = observed(
                trial, names, moved, lambda _, __, *pair, seen=seen: seen.append(pair)
            )
            runs.append([*seen, (moved, outputs)])
        first = runs[0][-1][1]
        if float((first - first.mean(0)).norm()) > LEAST_VARIATION * float(first.norm()):
            break
        _disturb(trial.parameters(), own)
    else:
        raise CallerError(
            "network: its outputs hardly depend on random images, so that its symmetry cannot be "
            "measured; give it weights with which they do"
        )
    errors = [_difference(first, run[-1][1]) for run in runs]
    worst = max(range(group.order), key=errors.__getitem__)
    if not errors[worst] <= LARGEST_ERROR:
        pooled = [layer.name for layer in layers if layer.pools]
        kinds = [(c.name, c.into, INVARIANT if c.name in pooled else c.out) for c in calls]
        raise CallerError(
            f"group {group}: the built network is not invariant (relative error "
            f"{errors[worst]:.1g}): {_culprit(group, worst, kinds, runs)} breaks the symmetry; "
            "write strides, pooling and joins of maps as modules of torch.nn, or take images of "
            "another size"
        )
    return errors[worst]


@torch.no_grad()
def _disturb(
    parameters: Iterable[nn.Parameter], generator: torch.Generator, deviation: float | None = None
) -> None:
    """Add noise, by default as large as the parameters are."""
    for each in parameters:
        size = float(each.square().mean().sqrt()) if deviation is None else deviation
        each.add_((size or 0.1) * torch.randn(each.shape, generator=generator).to(each))


def single_precision(model: nn.Module) -> nn.Module:
    """A copy on the CPU, with parameters of single precision or better."""
    copied = copy.deepcopy(model).cpu()
    halves = any(p.is_floating_point() and p.itemsize < 4 for p in copied.parameters())
    return copied.float() if halves else copied


def _difference(one: Tensor, other: Tensor) -> float:
    """Relative root mean square; what is not finite is infinitely different."""
    found = float((one - other).norm() / one.norm().clamp(min=1e-30))
    return found if math.isfinite(found) else math.inf


def _culprit(
    group: PointGroup,
    element: int,
    kinds: Sequence[tuple[str, str, str]],
    runs: Sequence[Sequence[tuple[Tensor, Tensor]]],
) -> str:
    """The first call whose output does not move as it should, or whose input does not already."""

    def breaks(kind: str, one: Tensor, other: Tensor) -> bool:
        if kind == FEATURES:
            return False
        if kind == MAPS:
            order = group.order
            slow = one.unflatten(1, (-1, order)).transpose(1, 2).flatten(1, 2)
            acted = group.act_on_features(slow, element)
            one = acted.unflatten(1, (order, -1)).transpose(1, 2).flatten(1, 2)
        elif kind == IMAGE:
            one = group.act(one, element)
        return not _difference(one, other) <= BROKEN

    for (name, into, out), own, moved in zip(kinds, runs[0], runs[element], strict=False):
        if breaks(into, own[0], moved[0]):
            return f"what the forward code does before layer {name}"
        if breaks(out, own[1], moved[1]):
            return f"layer {name}"
    return "what the forward code does after its last layer"


# --- again, from the settings of a run folder ---------------------------------------------------


def rebuilt(config: Mapping[str, Any], network: nn.Module | None = None) -> nn.Module:
    """The model of these settings.

    network: one like that which was given then, where it has no words of its own; an EMLP like the
             one built, where layers are equivariant
    """
    how, where = config["how"], "config.json"
    if how == "equivariant layers":
        return _equivariant(config) if network is None else copy.deepcopy(network)
    if network is None:
        specification = NetworkSpecification.from_dict(config.get("network"), where=where)
        network = specification.build(config["shape"], config["outputs"])
    law, shape, model = config["law"], config["shape"], copy.deepcopy(network)
    group = _point_group(config)
    if how == "group convolutions":
        model = group_network(network, group, shape, width=config["width"]).model
    if law is not None:
        return InvariantModel(model, augmentation_from_law(law, shape), config["samples"])
    if how == "average":
        return InvariantModel(model, uniform_over([group.as_action()]))
    return model


def _point_group(words: Mapping[str, Any]) -> PointGroup:
    """The group of a record: its name and the matrices of its elements."""
    matrices: Any = tuple(tuple(map(tuple, each)) for each in words["matrices"] or ())
    return PointGroup(str(words["group"]), matrices)


def relaxed_again(arguments: Mapping[str, Any], shape: Sequence[int], outputs: int) -> nn.Module:
    """A network of relaxed layers with new weights, from the words of its specification.

    arguments: pathways, group and options of the layers; network, the words of what was relaxed, or
    width, of the paper's network; symmetry, name and matrices of a group that was built in before
    """
    own: dict[str, Any] = {
        "pathways": arguments["pathways"],
        "group": arguments["group"],
        "options": PathwayOptions(**arguments["options"]),
    }
    if "network" not in arguments:
        return relaxed_cnn(shape, outputs, width=arguments["width"], **own)
    before = NetworkSpecification.from_dict(arguments["network"], where="config.json")
    network = before.build(shape, outputs)
    if arguments.get("symmetry") is not None:
        network = group_network(network, _point_group(arguments["symmetry"]), shape).model
    return relax(network, example=shape, **own)


def _equivariant(config: Mapping[str, Any]) -> EMLP:
    source, target = (parse_representation(config[each]) for each in ("source", "target"))
    assert isinstance(source, Representation) and isinstance(target, Representation)
    channels, group = config["channels"], group_named(config["group"])
    return EMLP(source, target, group, channels=channels, layers=len(channels))
