"""From an ordinary network to one of relaxed layers, and back.

    relax    a convolution  W ⋆ x  becomes  W ⋆ x + Σ_p pathway_p(x),  pathways zero at first
    harden   a sum of pathways becomes those whose share is at least `below`, as plain layers

(van der Ouderaa, Immer and van der Wilk 2023, Eq. 4.) Relaxing changes no output: the convolution
stays what it was, with its weights, stride and padding, and what is added can learn. After learning
each pathway has a share, how much it contributes to what the layer makes of its inputs. What the
pathways that hardening takes out made of inputs is gone; what they add whatever the inputs are
stays, in biases and a `BiasMap`. Both return a copy.

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
from isotropy.networks.pathways.pathway import (
    BiasMap,
    ConvolutionPathway,
    LayerShape,
    MapSize,
    Pathway,
)
from isotropy.networks.pathways.relaxed_layer import (
    PathwayOptions,
    RelaxedLayer,
    check_kinds,
    check_shares,
    options_for,
    pathway_named,
)
from isotropy.networks.zoo.image_networks import image_shape
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.point_groups import PointGroup

LARGEST_BYTES = 2 * 10**9
"""Of the weights that relaxing adds."""


def relax(
    model: nn.Module,
    pathways: Sequence[str] = ("ffc", "conv"),
    *,
    example: Tensor | Sequence[int],
    layers: Iterable[str] | None = None,
    group: PointGroup | Group | str | None = None,
    options: PathwayOptions | None = None,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """A copy of `model` in which convolutions are relaxed layers; its outputs are the same.

    pathways:  of each layer, conv among them: the one that holds the weights
    example:   a batch of inputs, or the shape of one input, (C, X, Y): the copy is run on it once,
               in evaluation mode, to see what sizes its layers have
    layers:    names of the nn.Conv2d to relax; if None all that see maps larger than 1×1. Other
               layers, subclasses of nn.Conv2d among them, and convolutions that the run does not
               call stay as they are
    group:     of group convolutions, quarter turns if None; channels of the layers are (group,
               channels), so that their number is a multiple of its order
    options:   what new pathways are made with
    generator: draws the part of them that is not zero; torch's own if None

    Raises CallerError if there is nothing to relax, if a layer named is no plain nn.Conv2d, if a
    convolution is called at two sizes, and, before anything is allocated, if new weights would
    take more than 2 GB.
    """
    check_kinds(pathways)
    if ConvolutionPathway.kind not in pathways:
        raise CallerError(
            f"expected conv among the pathways, which keeps the weights of the model, got "
            f"{', '.join(pathways)}; add it, or build a network of new layers with relaxed_cnn"
        )
    options = options_for(pathways, group, options)
    copied = copy.deepcopy(model)
    sizes = _sizes_seen(copied, example)
    chosen = _chosen(copied, sizes, layers)
    _check_memory(copied, chosen, pathways)
    replacements: dict[nn.Module, nn.Module] = {}
    for name, shape in chosen.items():
        convolution = copied.get_submodule(name)
        assert isinstance(convolution, nn.Conv2d)
        try:
            replacements[convolution] = _relaxed(convolution, shape, pathways, options, generator)
        except CallerError as error:
            raise CallerError(f"layer {name or '(the model itself)'}: {error}") from error
    return replaced(copied, replacements)


# --- what is there to relax -----------------------------------------------------------------


def _sizes_seen(model: nn.Module, example: Tensor | Sequence[int]) -> dict[str, set[LayerShape]]:
    """Sizes at which each convolution is called, by its first name.

    The model is run in evaluation mode and put back. Calls with one map in place of a batch, or
    with the maps as a named argument, do not count.
    """
    inputs = _batch(model, example)
    convolutions = {
        name: m
        for name, m in model.named_modules()
        if isinstance(m, nn.Conv2d) and not _is_inside_pathway(model, name)
    }
    seen: dict[str, set[LayerShape]] = {name: set() for name in convolutions}

    def note(name: str, _: nn.Module, maps: Tensor, output: Tensor) -> None:
        if maps.ndim == 4:
            seen[name].add(LayerShape(_map_size(maps), _map_size(output)))

    observed(model, convolutions, inputs, note)
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
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    return torch.zeros(1, *example, dtype=like.dtype, device=like.device)


def _map_size(maps: Tensor) -> MapSize:
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
    for name in wanted:
        if len(usable[name]) > 1:
            sizes = sorted("×".join(map(str, shape.source)) for shape in usable[name])
            raise CallerError(
                f"layer {name} is called with maps of several sizes ({', '.join(sizes)}); a "
                "relaxed layer has one; name the others with layers="
            )
    return {name: next(iter(usable[name])) for name in usable if name in wanted}


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
    sizes = {
        (name, kind): _largest_count(kind, shape)
        * model.get_parameter(f"{name}.weight".removeprefix(".")).element_size()
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


def _relaxed(
    convolution: nn.Conv2d,
    shape: LayerShape,
    kinds: Sequence[str],
    options: PathwayOptions,
    generator: torch.Generator | None,
) -> RelaxedLayer:
    """`convolution` itself and new pathways that give zeros."""
    found: dict[str, Pathway] = {}
    for kind in kinds:
        if kind == ConvolutionPathway.kind:
            found[kind] = ConvolutionPathway(shape, convolution)
            continue
        found[kind] = pathway_named(kind, shape, options, generator=generator)
        found[kind].scale_(0.0)
        found[kind].to(convolution.weight)
    layer = RelaxedLayer(shape, found).to(convolution.weight.device)
    return layer.train(convolution.training)


def replaced(model: nn.Module, replacements: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """`model` with these modules in place of those, under every name they have."""
    # Listed before any is put in: a new layer may hold the one that it takes the place of.
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if name and module in replacements:
            model.set_submodule(name, replacements[module])
    return replacements.get(model, model)


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


# --- back to plain layers -----------------------------------------------------------------------


def harden(
    model: nn.Module,
    contributions: Mapping[str, Mapping[str, float]] | None = None,
    *,
    below: float = 0.01,
) -> nn.Module:
    """A copy of `model` without the pathways that are switched off.

    contributions: how much each pathway makes of the inputs, by name of the layer; if None what
               learning left in the layers (`RelaxedLayer.contributions`)
    below:     pathways with less are taken out; the largest of a layer always stays

    A pathway is judged by what it does, not by its relative effective number of parameters: that
    is by the parameter, and small for a large pathway whose few used directions matter.

    A layer of one pathway that is left becomes plain layers: an nn.Conv2d, with polyphase
    down-sampling where the layer has a stride, or Flatten, Linear and Unflatten. Filters of group
    convolutions and of sparse pathways are written out, so that these have more numbers than
    before, and training them further does not keep their form. The two factors of ffc stay as they
    are. Several pathways stay a RelaxedLayer. Constants of what was taken out stay as a BiasMap.

    Raises CallerError where there are no relaxed layers, or no shares.
    """
    copied = copy.deepcopy(model)
    found = {name: m for name, m in copied.named_modules() if isinstance(m, RelaxedLayer)}
    if not found:
        raise CallerError(
            "expected a model with relaxed layers, got none; isotropy.relax(model) makes them"
        )
    if not 0 <= below <= 1:
        raise CallerError(f"below: expected a share between 0 and 1, got {below:g}")
    for name in contributions or {}:
        check_choice(name, found, what="relaxed layer")
    replacements: dict[nn.Module, nn.Module] = {}
    for name, layer in found.items():
        shares = layer.contributions if contributions is None else contributions.get(name)
        if shares is None:
            raise CallerError(
                f"layer {name or '(the model itself)'}: nothing says which pathways are used; "
                "learn first (isotropy relax, isotropy.learn_layers), or pass contributions="
            )
        check_shares(shares, layer.pathways, what=f"contributions of {name or 'the model'}")
        replacements[layer] = _hardened(layer, shares, kept_pathways(shares, below))
    return replaced(copied, replacements)


def kept_pathways(shares: Mapping[str, float], below: float = 0.01) -> list[str]:
    """The pathways of a layer with a share of at least `below`; the largest if there are none."""
    kept = [kind for kind, share in shares.items() if share >= below]
    return kept or [max(shares, key=lambda kind: shares[kind])]


def _hardened(layer: RelaxedLayer, shares: Mapping[str, float], kept: Sequence[str]) -> nn.Module:
    """What stays of `layer`: the pathways kept, and what the others add whatever the inputs are."""
    members = {kind: each for kind, each in layer.members().items() if kind in kept}
    gone = [each for kind, each in layer.members().items() if kind not in kept]
    waiting = [each.constant() for each in gone if not each.reaches_target]
    reaching = [each.constant() for each in gone if each.reaches_target]
    waits = [each for each in members.values() if not each.reaches_target]
    if waiting and (len(members) > 1 or not waits):
        assert layer.downsampling is not None
        reaching.append(layer.downsampling(_left_of(_total(waiting), waits)[None])[0])
        waiting = []
    if len(members) == 1:
        (pathway,) = members.values()
        parts: list[nn.Module | None] = [pathway.plain(), _bias_map(waiting)]
        parts.append(layer.downsampling if waits else None)
    else:
        parts = [_smaller(layer, shares, members)]
    parts.append(_bias_map(reaching))
    found = [part for part in parts if part is not None]
    made = found[0] if len(found) == 1 else nn.Sequential(*found)
    return made.train(layer.training)


def _left_of(constant: Tensor, takers: Sequence[Pathway]) -> Tensor:
    """Put a constant, the same at all pixels, into biases of these; what none of them can take."""
    for each in takers:
        before = each.constant()
        each.absorb_(constant.mean((1, 2)))
        constant = constant - (each.constant() - before)
    return constant


def _smaller(
    layer: RelaxedLayer, shares: Mapping[str, float], members: Mapping[str, Pathway]
) -> RelaxedLayer:
    """A layer of these pathways."""
    smaller = RelaxedLayer(layer.shape, members).to(layer.shares.device)
    total = math.hypot(*(shares[kind] for kind in members)) or 1.0
    smaller.contributions = {kind: shares[kind] / total for kind in members}
    return smaller


def _bias_map(constants: Sequence[Tensor]) -> BiasMap | None:
    return BiasMap.of(_total(constants)) if constants else None


def _total(constants: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(constants)).sum(0)
