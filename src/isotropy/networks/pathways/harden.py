"""From a network of relaxed layers back to plain ones.

    harden   a sum of pathways becomes those whose share is at least `below`, as plain layers

After learning each pathway has a share, how much it contributes to what the layer makes of its
inputs. What the pathways that hardening takes out made of inputs is gone; what they add whatever
the inputs are stays, in biases and a `BiasMap`. An equivariant layer takes what its group allows
of that into its bias; the rest, which would break its symmetry, goes too where it is as small as
what else is taken out. A copy is returned.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_choice
from isotropy.networks.pathways.equivariant import EquivariantPathway
from isotropy.networks.pathways.pathway import BiasMap, Pathway
from isotropy.networks.pathways.relax import replaced
from isotropy.networks.pathways.relaxed_layer import RelaxedLayer, check_shares


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
    down-sampling where the layer has a stride, or Flatten, Linear and Unflatten; an equivariant
    layer or gate is of the type that was relaxed. Filters of group convolutions and of sparse
    pathways are written out, so that these have more numbers than before, and training them
    further does not keep their form. The two factors of ffc stay as they are. Several pathways
    stay a RelaxedLayer. Constants of what was taken out stay as a BiasMap.

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
        replacements[layer] = _hardened(layer, shares, below)
    return replaced(copied, replacements)


def kept_pathways(shares: Mapping[str, float], below: float = 0.01) -> list[str]:
    """The pathways of a layer with a share of at least `below`; the largest if there are none."""
    kept = [kind for kind, share in shares.items() if share >= below]
    return kept or [max(shares, key=lambda kind: shares[kind])]


def _hardened(layer: RelaxedLayer, shares: Mapping[str, float], below: float) -> nn.Module:
    """What stays of `layer`: the pathways kept, and what the others add whatever the inputs are."""
    kept = kept_pathways(shares, below)
    members = {kind: each for kind, each in layer.members().items() if kind in kept}
    gone = [each for kind, each in layer.members().items() if kind not in kept]
    waiting = [each.constant() for each in gone if not each.reaches_target]
    reaching = [each.constant() for each in gone if each.reaches_target]
    waits = [each for each in members.values() if not each.reaches_target]
    if waiting and (len(members) > 1 or not waits):
        assert layer.downsampling is not None
        reaching.append(layer.downsampling(_left_of(_total(waiting), waits)[None])[0])
        waiting = []
    if reaching and EquivariantPathway.kind in layer.members():
        left = _left_of(_total(reaching), list(members.values()))
        is_small = layer.bias_map is not None and layer.bias_map < below
        reaching = [left - layer.varying(left) if is_small else left]
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
    """Put a constant, the mean over pixels of maps, into biases of these; what none can take."""
    for each in takers:
        before = each.constant()
        each.absorb_(constant.mean((1, 2)) if constant.ndim == 3 else constant)
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
