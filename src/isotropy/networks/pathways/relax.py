"""From an ordinary network to one of relaxed layers (`harden` is the way back).

    relax    a convolution  W ⋆ x  becomes  W ⋆ x + Σ_p pathway_p(x),  pathways zero at first
             an equivariant layer  E x  becomes  E x + W x + b,  a gate  gate(v) + w ⊙ v σ(v)

(van der Ouderaa, Immer and van der Wilk 2023, Eq. 4; Finzi 2023, 3.3, for equivariant layers.)
Relaxing changes no output: the layer stays what it was, a convolution with its weights, stride and
padding, and what is added can learn. A copy is returned. An EMLP hands parts from layer to layer;
what is relaxed is the same network of blocks that hand each other vectors (`unrolled`).

`relaxed_cnn` is the paper's network of eight stages in which every layer is a sum of pathways:

    stage     1    2    3    4    5    6    7    8      α width; ReLU after each
    channels  α    2α   2α   4α   4α   8α   8α   16α
    halves    –    yes  –    yes  –    yes  yes  yes    X → X/32

then `hidden`, 16α → 64α with ReLU, and `head`, 64α → outputs (Table 6, whose rows 3, 5 and 8 are
misprinted). No normalisation layers. With the convolution alone every stage is equivariant to
circular shifts, and the logits are invariant. With a group convolution over H images are lifted,
f(h, c, x) = image(c, x), all stages have |H| times the channels, group-major, and `pool` takes the
maximum over h before the hidden layer: with that pathway alone logits are invariant to H too. Other
pathways take (h, c) as ordinary channels. Images are (batch, C, X, Y) with X and Y multiples of 32;
above 32 some pixels are left after stage 8, and `pool` takes the maximum over them too.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_at_least, check_choice, shape_text
from isotropy.curvature.recording import evaluation_mode
from isotropy.networks.equivariant.emlp import (
    EMLP,
    EquivariantBlock,
    GatedNonlinearity,
    PlainBlock,
)
from isotropy.networks.equivariant.linear import EquivariantLinear
from isotropy.networks.equivariant.point_group_layers import PointGroupConv2d
from isotropy.networks.pathways.equivariant import (
    EquivariantPathway,
    FreeGatePathway,
    GatePathway,
)
from isotropy.networks.pathways.pathway import (
    ConvolutionPathway,
    LayerShape,
    Pathway,
    Size,
)
from isotropy.networks.pathways.relaxed_layer import (
    PathwayOptions,
    RelaxedLayer,
    check_kinds,
    options_for,
    pathway_named,
)
from isotropy.networks.zoo.image_networks import image_shape
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.point_groups import PointGroup

LARGEST_BYTES = 2 * 10**9
"""Of the weights that relaxing adds."""
FREE_AND_EQUIVARIANT = ("fc", "equivariant")
"""Pathways of equivariant layers, if none are named."""


def relax(
    model: nn.Module,
    pathways: Sequence[str] | None = None,
    *,
    example: Tensor | Sequence[int] | None = None,
    layers: Iterable[str] | None = None,
    group: PointGroup | Group | str | None = None,
    options: PathwayOptions | None = None,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """A copy of `model` in which layers are relaxed layers; its outputs are the same.

    pathways:  of each layer, the one among them that holds the weights: conv, or equivariant. By
               default ffc and conv; if the model has equivariant layers, fc and equivariant
    example:   a batch of inputs, or the shape of one input, (C, X, Y): the copy is run on it once,
               in evaluation mode, to see what sizes its layers have. Layers of an EMLP know theirs
    layers:    names of the layers to relax; if None all. With conv these are nn.Conv2d that see
               maps larger than 1×1; other layers, subclasses of nn.Conv2d among them, and
               convolutions that the run does not call stay as they are. With equivariant these are
               EquivariantLinear, gates, and PointGroupConv2d; names are those that an EMLP has
               as a network of blocks (`unrolled`)
    group:     of group convolutions, quarter turns if None; channels of the layers are (group,
               channels), so that their number is a multiple of its order
    options:   what new pathways are made with
    generator: draws the part of them that is not zero; torch's own if None

    Raises CallerError if there is nothing to relax, if a layer named is of another type, if a
    layer is called at two sizes, and, before anything is allocated, if new weights would take more
    than 2 GB.
    """
    if pathways is None:
        pathways = FREE_AND_EQUIVARIANT if has_equivariant_layers(model) else ("ffc", "conv")
    if EquivariantPathway.kind in pathways:
        return _relaxed_equivariant(model, pathways, example, layers, options, generator)
    check_kinds(pathways)
    if ConvolutionPathway.kind not in pathways:
        raise CallerError(
            f"expected conv or equivariant among the pathways, which keeps the weights of the "
            f"model, got {', '.join(pathways)}; add it, or build a network of new layers with "
            "relaxed_cnn"
        )
    options = options_for(pathways, group, options)
    copied = copy.deepcopy(model)
    sizes = _sizes_seen(copied, _given(example), nn.Conv2d)
    chosen = _chosen(copied, sizes, layers)
    return _with_pathways(copied, chosen, pathways, options, generator)


# --- what is there to relax -----------------------------------------------------------------


def _given(example: Tensor | Sequence[int] | None) -> Tensor | Sequence[int]:
    if example is None:
        raise CallerError(
            "example: expected a batch of images, or the shape (channels, height, width) of one, "
            "got none; sizes of maps are not known without"
        )
    return example


def _sizes_seen(
    model: nn.Module, example: Tensor | Sequence[int], wanted: type[nn.Module]
) -> dict[str, set[LayerShape]]:
    """Sizes at which each layer of maps of this type is called, by its first name.

    The model is run in evaluation mode and put back. Calls with one map in place of a batch, or
    with the maps as a named argument, do not count.
    """
    inputs = _batch(model, example)
    names = [
        name
        for name, m in model.named_modules()
        if isinstance(m, wanted) and not _is_inside_pathway(model, name)
    ]
    seen: dict[str, set[LayerShape]] = {name: set() for name in names}

    def note(name: str, _: nn.Module, maps: Tensor, output: Tensor) -> None:
        if maps.ndim == 4:
            seen[name].add(LayerShape(_map_size(maps), _map_size(output)))

    observed(model, names, inputs, note)
    return seen


def observed(
    model: nn.Module, names: Iterable[str], inputs: Tensor, seen: Callable[..., Tensor | None]
) -> Tensor:
    """Outputs in evaluation mode; seen(name, module, input, output) may give another output.

    Raises CallerError, naming the last layer that was called, if the model cannot be run.
    """
    last = ""

    def hook_of(name: str) -> Callable[..., Tensor | None]:
        def hook(module: nn.Module, into: tuple[Any, ...], out: Any) -> Tensor | None:
            nonlocal last
            last = f", after layer {name or 'itself'}"
            if not into or not isinstance(into[0], Tensor) or not isinstance(out, Tensor):
                return None
            return seen(name, module, into[0], out)

        return hook

    handles = [model.get_submodule(n).register_forward_hook(hook_of(n)) for n in names]
    try:
        with evaluation_mode(model), torch.no_grad():
            found: Tensor = model(inputs)
            return found
    except (RuntimeError, ValueError, IndexError) as error:
        raise CallerError(
            f"example: the model cannot be run on inputs {shape_text(inputs)}{last}: {error}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()


def _batch(model: nn.Module, example: Tensor | Sequence[int]) -> Tensor:
    if isinstance(example, Tensor):
        if example.ndim != 4:
            raise CallerError(
                f"example: expected a batch (batch, channels, height, width), got "
                f"{shape_text(example)}; pass its shape, or add an axis with x[None]"
            )
        return example
    if len(example) != 3:
        raise CallerError(
            f"example: expected a batch of images, or the shape (channels, height, width) of one, "
            f"got {tuple(example)}"
        )
    return _like(model).new_zeros(1, *example)


def _map_size(maps: Tensor) -> Size:
    channels, height, width = maps.shape[1:]
    return channels, height, width


def _is_inside_pathway(model: nn.Module, name: str) -> bool:
    """Whether a module with this name belongs to a layer that is relaxed already."""
    parts = name.split(".") if name else []
    return any(
        isinstance(model.get_submodule(".".join(parts[:length])), RelaxedLayer | Pathway)
        for length in range(len(parts))
    )


def _chosen(
    model: nn.Module, seen: Mapping[str, set[LayerShape]], layers: Iterable[str] | None
) -> dict[str, LayerShape]:
    """Layers to relax and their sizes, in the order of the model."""
    usable = {
        name: shapes
        for name, shapes in seen.items()
        if shapes and type(model.get_submodule(name)) is nn.Conv2d
    }
    if layers is None:
        wanted = [
            name
            for name, shapes in usable.items()
            if any(math.prod(shape.source[1:]) > 1 for shape in shapes)
        ]
        if not wanted:
            raise CallerError(
                "the model has no layer to relax: expected an nn.Conv2d that is called with maps "
                "larger than 1×1; relaxed_cnn builds a network of relaxed layers"
            )
    else:
        named = _first_names(model)
        wanted = list(dict.fromkeys(named[check_choice(n, named, what="layer")] for n in layers))
        for name in wanted:
            if name not in usable:
                raise CallerError(f"layer {name}: {_why_unusable(model, seen, name)}")
        if not wanted:
            raise CallerError("layers: expected at least one name, got none")
    return {name: _only_size(name, usable[name]) for name in usable if name in wanted}


def _only_size(name: str, shapes: set[LayerShape]) -> LayerShape:
    if len(shapes) != 1:
        sizes = sorted("×".join(map(str, shape.source)) for shape in shapes)
        raise CallerError(
            f"layer {name}: expected calls with maps of one size, which a relaxed layer has, got "
            f"{', '.join(sizes) or 'none'}; name the other layers with layers="
        )
    return next(iter(shapes))


def _first_names(model: nn.Module) -> dict[str, str]:
    """Every name of every module, and the first name of the same module."""
    first = {module: name for name, module in model.named_modules()}
    return {name: first[module] for name, module in model.named_modules(remove_duplicate=False)}


def _why_unusable(model: nn.Module, seen: Mapping[str, set[LayerShape]], name: str) -> str:
    module = model.get_submodule(name)
    if type(module) is not nn.Conv2d:
        return f"expected a plain nn.Conv2d, got a {type(module).__name__}; leave it out"
    if name not in seen:
        return "it belongs to a relaxed layer already; leave it out"
    return "the example does not call it with maps (batch, channels, height, width); leave it out"


def _check_memory(
    model: nn.Module, chosen: Mapping[str, LayerShape], pathways: Sequence[str]
) -> None:
    each = _like(model).element_size()
    sizes = {
        (name, kind): each * _largest_count(kind, shape)
        for name, shape in chosen.items()
        for kind in pathways
    }
    total, (layer, kind) = sum(sizes.values()), max(sizes, key=lambda key: sizes[key])
    if total > LARGEST_BYTES:
        raise CallerError(
            f"new pathways would take {total / 1e9:.1f} GB, {sizes[layer, kind] / 1e9:.1f} GB of "
            f"them {kind} of layer {layer or '(the model itself)'}; expected at most "
            f"{LARGEST_BYTES / 1e9:.0f} GB; use ffc or sfc in place of fc, name fewer layers with "
            "layers=, or take smaller images"
        )


def _largest_count(kind: str, shape: LayerShape) -> int:
    """Numbers in the pathways that can be gigantic; a sparse one has at most as many weights as its
    full grid, and a basis of that grid for each half."""
    (channels, *size), (outputs, *after) = shape.source, shape.target
    pixels, pixels_after = math.prod(size), math.prod(after)
    if kind == "fc":
        return channels * pixels * outputs * pixels_after
    if kind not in ("ffc", "sfc"):
        return 0
    basis = pixels**2 + pixels_after**2 if kind == "sfc" else 0
    return channels * outputs * (pixels + pixels_after) + basis


# --- putting layers in ----------------------------------------------------------------------


def _with_pathways(
    model: nn.Module,
    chosen: Mapping[str, LayerShape],
    kinds: Sequence[str],
    options: PathwayOptions,
    generator: torch.Generator | None,
) -> nn.Module:
    """`model` with relaxed layers in place of these."""
    _check_memory(model, chosen, kinds)
    replacements: dict[nn.Module, nn.Module] = {}
    for name, shape in chosen.items():
        layer = model.get_submodule(name)
        try:
            found = _relaxed(layer, shape, kinds, options, generator)
        except CallerError as error:
            raise CallerError(f"layer {name or '(the model itself)'}: {error}") from error
        like = next(layer.parameters(), _like(model))
        for pathway in found.members().values():
            pathway.to(like)
        replacements[layer] = found.to(like.device).train(layer.training)
    return replaced(model, replacements)


def _relaxed(
    layer: nn.Module,
    shape: LayerShape,
    kinds: Sequence[str],
    options: PathwayOptions,
    generator: torch.Generator | None,
) -> RelaxedLayer:
    """`layer` itself and new pathways that give zeros."""
    if isinstance(layer, GatedNonlinearity):
        gates = (FreeGatePathway(shape), GatePathway(shape, layer))
        return RelaxedLayer(shape, {each.kind: each for each in gates})
    found: dict[str, Pathway] = {}
    for kind in kinds:
        if kind == ConvolutionPathway.kind and isinstance(layer, nn.Conv2d):
            found[kind] = ConvolutionPathway(shape, layer)
        elif kind == EquivariantPathway.kind:
            assert isinstance(layer, EquivariantLinear | PointGroupConv2d)
            found[kind] = EquivariantPathway(shape, layer)
        else:
            found[kind] = pathway_named(kind, shape, options, generator=generator)
            found[kind].scale_(0.0)
    return RelaxedLayer(shape, found)


def _like(model: nn.Module) -> Tensor:
    """A tensor of the type, and on the device, of a model's parameters."""
    return next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))


def replaced(model: nn.Module, replacements: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """`model` with these modules in place of those, under every name they have."""
    # Listed before any is put in: a new layer may hold the one that it takes the place of.
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if name and module in replacements:
            model.set_submodule(name, replacements[module])
    return replacements.get(model, model)


# --- equivariant layers -------------------------------------------------------------------------


def has_equivariant_layers(model: nn.Module) -> bool:
    """Whether there is anything in the model that pathways `equivariant` could hold."""
    return any(
        isinstance(module, EquivariantLinear | PointGroupConv2d)
        and not _is_inside_pathway(model, name)
        for name, module in model.named_modules()
    )


def unrolled(model: nn.Module) -> nn.Module:
    """A copy of `model` in which every EMLP is a sequence of `blocks` and a `head`, and blocks call
    `linear`, `bilinear` and `nonlinearity` on vectors (batch, n). Its outputs are the same."""
    copied = copy.deepcopy(model)
    replacements: dict[nn.Module, nn.Module] = {}
    for module in copied.modules():
        if isinstance(module, EMLP):
            parts = OrderedDict(blocks=module.blocks, head=module.head)
            replacements[module] = nn.Sequential(parts).train(module.training)
        elif isinstance(module, EquivariantBlock):
            block = PlainBlock(module.linear, module.bilinear, module.nonlinearity)
            replacements[module] = block.train(module.training)
    return replaced(copied, replacements)


def _relaxed_equivariant(
    model: nn.Module,
    kinds: Sequence[str],
    example: Tensor | Sequence[int] | None,
    layers: Iterable[str] | None,
    options: PathwayOptions | None,
    generator: torch.Generator | None,
) -> nn.Module:
    """`relax` with `equivariant` among the pathways."""
    others = [kind for kind in kinds if kind != EquivariantPathway.kind]
    check_kinds(others)
    copied = unrolled(model)
    types = EquivariantLinear | GatedNonlinearity | PointGroupConv2d
    there = {
        name: module
        for name, module in copied.named_modules()
        if isinstance(module, types) and not _is_inside_pathway(copied, name)
    }
    if layers is not None:
        layers = list(layers)
        for name in layers:
            check_choice(name, there, what="equivariant layer")
        there = {name: module for name, module in there.items() if name in layers}
    if not there:
        raise CallerError(
            "the model has no equivariant layer to relax: expected an EMLP, an EquivariantLinear, "
            "or group convolutions of isotropy.build; a plain network takes symmetry="
        )
    seen: Mapping[str, set[LayerShape]] = {}
    if any(isinstance(module, PointGroupConv2d) for module in there.values()):
        seen = _sizes_seen(copied, _given(example), PointGroupConv2d)
    chosen = {}
    for name, module in there.items():
        if isinstance(module, PointGroupConv2d):
            chosen[name] = _only_size(name, seen[name])
        else:
            chosen[name] = LayerShape((module.in_features,), (module.out_features,))
    return _with_pathways(copied, chosen, kinds, options_for(others, None, options), generator)


# --- the network of the paper -------------------------------------------------------------------

STAGES: tuple[tuple[int, int], ...] = (
    (1, 1),
    (2, 2),
    (2, 1),
    (4, 2),
    (4, 1),
    (8, 2),
    (8, 2),
    (16, 2),
)
"""Channels in widths, and the factor by which the stage makes maps smaller."""

HIDDEN = 64
"""Units of the hidden layer, in widths."""

REDUCTION = 32
"""X over X of the last stage: the product of the factors."""


def relaxed_cnn(
    shape: Sequence[int],
    outputs: int,
    *,
    pathways: Sequence[str] = ("ffc", "conv"),
    width: int = 10,
    group: PointGroup | Group | str | None = None,
    options: PathwayOptions | None = None,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """The network for images of `shape` (C, X, Y), of `outputs` logits.

    pathways:  of every stage, by name (`networks.pathways.relaxed_layer`)
    width:     α; 10 in the paper, 2 with three pathways
    group:     of group convolutions; quarter turns if None. Only with such a pathway
    options:   what pathways are made with; its group gives way to `group`
    generator: draws initial weights; torch's own if None

    Raises CallerError for sizes that cannot be halved five times and for a group without use.
    """
    channels, *size = image_shape(shape)
    check_at_least(width, 1, what="width of the network")
    check_at_least(outputs, 1, what="outputs of the network")
    check_kinds(pathways)
    if any(pixels < 1 or pixels % REDUCTION for pixels in size):
        raise CallerError(
            f"expected images whose height and width are multiples of {REDUCTION} (the network "
            f"halves them five times), got {size[0]}×{size[1]}; resize them to "
            f"{REDUCTION}×{REDUCTION}"
        )
    options = options_for(pathways, group, options)
    order = 1 if options.group is None else options.group.order

    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if options.group is not None:
        layers["lift"] = Lift(order)
    before = (order * channels, size[0], size[1])
    for index, (multiple, stride) in enumerate(STAGES, start=1):
        after = (order * multiple * width, before[1] // stride, before[2] // stride)
        layers[f"stage{index}"] = RelaxedLayer.new(
            pathways, LayerShape(before, after), options, generator=generator
        )
        layers[f"relu{index}"] = nn.ReLU()
        before = after
    layers["pool"] = nn.Flatten() if before[1:] == (1, 1) and order == 1 else MapMaximum(order)
    layers["hidden"] = _linear(before[0] // order, HIDDEN * width, generator)
    layers["relu_hidden"] = nn.ReLU()
    layers["head"] = _linear(HIDDEN * width, outputs, generator)
    return nn.Sequential(layers)


class Lift(nn.Module):
    """Maps over a group, f(h, c, x) = image(c, x): (batch, C, X, Y) → (batch, |H|·C, X, Y)."""

    def __init__(self, order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, images: Tensor) -> Tensor:
        return images.repeat(1, self.order, 1, 1)

    def extra_repr(self) -> str:
        return f"order={self.order}"


class MapMaximum(nn.Module):
    """Maximum over h and pixels, (batch, |H|·C, X, Y) → (batch, C)."""

    def __init__(self, order: int = 1) -> None:
        super().__init__()
        self.order = order

    def forward(self, maps: Tensor) -> Tensor:
        return maps.unflatten(1, (self.order, -1)).amax((1, 3, 4))

    def extra_repr(self) -> str:
        return f"order={self.order}"


def _linear(before: int, after: int, generator: torch.Generator | None) -> nn.Linear:
    """As the stages begin: kaiming-uniform for ReLU, and no bias yet."""
    layer = nn.utils.skip_init(nn.Linear, before, after, device=torch.get_default_device())
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
    nn.init.zeros_(layer.bias)
    return layer
