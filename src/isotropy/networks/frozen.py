"""Networks of which a part is frozen: its parameters are constants of a run, and are not trained.

    backbone   all but the last layer, which must be a Linear layer
    PATTERN    parameters by their names, as in `fnmatch`; several patterns with commas between them
    none       nothing

A frozen parameter does not require gradients. It has then no prior, no curvature and no weight
steps, here as elsewhere, and a BatchNorm layer whose gain is frozen keeps its running statistics
(`batch_statistics`). A network with another number of outputs than the data have classes gets a new
last layer, drawn as `nn.Linear` draws its own and the same every time.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.jacobians import last_layer
from isotropy.curvature.recording import evaluation_mode

NOTHING, BACKBONE = "none", "backbone"

MOST_NAMED = 12
"""Names that an error lists."""


def head_of_backbone(network: nn.Module, example: Tensor) -> str:
    """The name of the last layer; raises CallerError where that is not a Linear layer."""
    head = last_layer(network, example)
    if head is None:
        leaves = [(n, m) for n, m in network.named_modules() if next(m.children(), None) is None]
        name, last = leaves[-1]
        raise CallerError(
            "freeze backbone: expected a network whose outputs are those of a Linear layer, got "
            f"one that ends in {name!r} ({type(last).__name__}); append an nn.Linear, or freeze "
            f"parameters by a pattern, of {names_in(network)}"
        )
    return head


def freeze(network: nn.Module, words: str, example: Tensor) -> None:
    """Freeze what the words say, in place; parameters that are frozen already stay so.

    example (1, …): an input, by which the last layer is found
    Raises CallerError for a pattern that matches nothing, and where nothing would be trained.
    """
    if words == NOTHING:
        return
    if words == BACKBONE:
        head = network.get_submodule(head_of_backbone(network, example))
        network.requires_grad_(False)
        head.requires_grad_(True)
        return
    for pattern in words.split(","):
        found = [p for n, p in network.named_parameters() if fnmatchcase(n, pattern.strip())]
        if not found:
            raise CallerError(
                f"freeze {pattern.strip()!r}: expected backbone, none or a pattern of parameters' "
                f"names, got one that matches nothing; there are {names_in(network)}"
            )
        for parameter in found:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise CallerError(
            f"freeze {words!r}: expected that something is left to train, got a pattern of all "
            "parameters; freeze backbone trains the last layer"
        )


def names_in(network: nn.Module) -> str:
    """Patterns that match all parameters, each those of one module, for an error message."""
    names = [name for name, _ in network.named_parameters()]
    found = list(dict.fromkeys(n.partition(".")[0] + ".*" if "." in n else n for n in names))
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return ", ".join(found[:MOST_NAMED]) + more if found else "no parameters"


def frozen_names(network: nn.Module) -> list[str]:
    """The parameters that are not trained."""
    return [name for name, parameter in network.named_parameters() if not parameter.requires_grad]


def sentence(network: nn.Module) -> str | None:
    """What is frozen, for people; None where nothing is."""
    sizes = {name: parameter.numel() for name, parameter in network.named_parameters()}
    frozen = frozen_names(network)
    if not frozen:
        return None
    trained = [name for name in sizes if name not in set(frozen)]
    shown = ", ".join(trained[:4]) + (f" and {len(trained) - 4} more" if len(trained) > 4 else "")
    held = sum(sizes[name] for name in frozen)
    return f"frozen: {held:,} of {sum(sizes.values()):,} parameters; trained: {shown}"


# --- the last layer -----------------------------------------------------------------------------


def with_new_head(network: nn.Module, outputs: int, example: Tensor) -> nn.Module:
    """The network with a new last layer of so many outputs, in place; as it is if it has these.

    example (1, …)
    """
    head = head_of_backbone(network, example)
    old = network.get_submodule(head)
    assert isinstance(old, nn.Linear)
    if old.out_features == outputs:
        return network
    new = nn.utils.skip_init(
        nn.Linear, old.in_features, outputs, bias=old.bias is not None,
        device=old.weight.device, dtype=old.weight.dtype,
    )  # fmt: skip
    bound = old.in_features**-0.5
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in new.parameters():
            drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(bound * (2 * drawn - 1))
    if not head:
        return new
    parent, _, name = head.rpartition(".")
    network.get_submodule(parent)._modules[name] = new
    return network


def trained_head(network: nn.Module, example: Tensor) -> str | None:
    """The last layer's name if it is all that is trained, and called once on (rows, features).

    The averaged outputs are then those of this layer on averaged features. example (1, …)
    """
    head = last_layer(network, example)
    if not head:  # none, or the network is nothing else
        return None
    layer = network.get_submodule(head)
    own = {id(parameter) for parameter in layer.parameters()}
    trained = {id(each) for each in network.parameters() if each.requires_grad}
    if trained != own or sum(each is layer for each in network.modules()) != 1:
        return None
    entered = entering(network, head, example)
    return head if len(entered) == 1 and entered[0].ndim == 2 else None


def entering(network: nn.Module, layer: str, rows: Tensor) -> list[Tensor]:
    """What enters each call of a layer in evaluation mode, with a graph where rows have one."""
    entered: list[Tensor] = []
    handle = network.get_submodule(layer).register_forward_pre_hook(
        lambda _, arguments: entered.append(arguments[0])
    )
    try:
        with evaluation_mode(network):
            network(rows)
    finally:
        handle.remove()
    return entered
