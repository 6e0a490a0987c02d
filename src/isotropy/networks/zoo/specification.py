"""Networks named in words, so that a run folder can rebuild its own without pickle.

    mlp, cnn, …          a backbone; `mlp:200` sets its first argument (hidden width), and
                         `rff:512:5` the deviation of random features too; `wrn:16-4` has depth
                         and width
    FILE.py:factory      a function in a Python file, called as factory(shape, outputs) or
                         factory(); the file's hash is kept and must not change. What a run folder
                         or a certificate names is run only if the caller has named it too
    timm:NAME            a model of the timm library (an optional extra), random weights
    timm:NAME:pretrained the same with the weights and the classes it was trained with; `learn`
                         gives it a new last layer where the data have another number of classes

Where nobody named one, `default_network` follows from the shape of the data:

    images with one channel and at most 32 pixels a side      mlp:200
    other images                                              compact:8   (strided convolutions)
    sequences (channels, length)                              compact:8   (1-D convolutions)
    clouds of points                                          clouds
    tables, and everything else                               mlp:200

An MLP's input factor has (channels · height · width)² entries: fine for digits, 90 GB for a
photograph of 224 pixels. Sequences and clouds are told apart as the catalogue of Actions does.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_choice
from isotropy.networks.frozen import with_new_head
from isotropy.networks.one_output import SelectedOutput
from isotropy.networks.zoo.backbones import BACKBONES, backbone
from isotropy.networks.zoo.image_networks import data_statistics
from isotropy.symmetry.actions.catalogue import are_clouds

_WIDTH_ARGUMENT = {"mlp": "hidden"} | dict.fromkeys(
    ("relu", "rff", "circular", "compact", "oriented", "pooled", "turnable", "resnet",
     "convnet", "convnet-blur", "vit", "mixer"),
    "width",
)  # fmt: skip


@dataclass(frozen=True)
class NetworkSpecification:
    """A network by kind (backbone, file, timm, built, relaxed, given), name and JSON arguments.

    `built` has a symmetry built in and `relaxed` has relaxed layers; their arguments are the
    settings of that. `given` is a module handed over in Python: it has a name but cannot be rebuilt
    from it. select: which of several outputs counts (`one_output`). head: outputs of a new last
    layer (`frozen`), if it has one. where: the file that the words were read from, None for those
    of the caller.
    """

    kind: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    sha256: str | None = None
    select: str | int | None = None
    head: int | None = None
    where: str | None = field(default=None, compare=False)

    def as_dict(self) -> dict[str, Any]:
        found = asdict(self)
        del found["where"]
        for name in ("select", "head"):
            if found[name] is None:
                del found[name]
        return found

    @classmethod
    def from_dict(cls, record: Any, *, where: str) -> NetworkSpecification:
        """What `as_dict` gave; raises CallerError that names `where` the record came from."""
        try:
            return cls(**{**record, "where": where})
        except TypeError as error:
            raise CallerError(f"{where}: expected a network's name and arguments there") from error

    @property
    def text(self) -> str:
        """How the user wrote it."""
        if self.kind == "backbone" and self.arguments:
            said = 2 if self.name in ("rff", "wrn") else 1
            words = [str(value) for value in self.arguments.values()][:said]
            return ":".join([self.name, *words] if self.name != "wrn" else ["wrn", "-".join(words)])
        return f"timm:{self.name}" if self.kind == "timm" else self.name

    def build(self, shape: Sequence[int], outputs: int) -> nn.Module:
        """A freshly initialised network for inputs of `shape` (no batch axis)."""
        network = self._network(shape, outputs)
        if self.select is not None:
            network = SelectedOutput(network, self.select)
        if self.head is not None:
            network = with_new_head(network, self.head, torch.zeros(1, *shape))
        return network

    @property
    def is_trained(self) -> bool:
        """Whether it is built with weights that were trained elsewhere."""
        return self.kind == "timm" and self.name.endswith(TRAINED)

    @property
    def untrained(self) -> NetworkSpecification:
        """The same network to be filled with weights of a run, which need not be fetched before."""
        if not self.is_trained or self.head is None:
            return self
        return replace(self, name=self.name.removesuffix(TRAINED))

    def _network(self, shape: Sequence[int], outputs: int) -> nn.Module:
        if self.kind == "backbone":
            return backbone(self.name, shape, outputs, **self.arguments)
        if self.kind == "file":
            return _build_from_file(self, shape, outputs)
        if self.kind == "timm":
            return _build_from_timm(self.name, shape, outputs)
        if self.kind == "built":
            from isotropy.networks.building import rebuilt

            return rebuilt(self.arguments)
        if self.kind == "relaxed":
            from isotropy.networks.building import relaxed_again

            return relaxed_again(self.arguments, shape, outputs)
        raise CallerError(
            f"the network {self.name!r} was handed over in Python and cannot be rebuilt from its "
            "name; pass it again"
        )


_named_by_caller: dict[tuple[str | None, str], Path] = {}
"""Python files with a network that the caller named in this process, by hash and function."""

TRAINED = ":pretrained"
"""What a timm model's name ends with if its trained weights are wanted."""

COLOURS = 3
"""Channels that trained weights are for."""


def parse_network(text: str) -> NetworkSpecification:
    """The specification a user wrote: `mlp`, `mlp:200`, `nets.py:make`, `timm:resnet18`."""
    name, _, rest = text.partition(":")
    if name == "timm" and rest:
        return NetworkSpecification("timm", rest)
    if ".py" in text:
        path_text, _, factory = text.rpartition(":")
        if not path_text.endswith(".py") or not factory:
            raise CallerError(f"model {text!r}: expected FILE.py:factory")
        path = Path(path_text).resolve()
        digest = _hash(path)
        _named_by_caller[digest, factory] = path
        return NetworkSpecification("file", f"{path}:{factory}", sha256=digest)
    check_choice(name, BACKBONES, what="model")
    if not rest:
        return NetworkSpecification("backbone", name)
    if name == "wrn":
        return NetworkSpecification("backbone", name, _depth_and_width(text, rest))
    argument = _WIDTH_ARGUMENT.get(name)
    width, colon, deviation = rest.partition(":") if name == "rff" else (rest, "", "")
    if argument is None or not width.isdecimal() or int(width) < 1:
        raise CallerError(
            f"model {text!r}: expected NAME:WIDTH with a whole width of at least 1, where NAME is "
            f"one of {', '.join(_WIDTH_ARGUMENT)}"
        )
    arguments: dict[str, Any] = {argument: int(width)}
    if colon:
        try:
            arguments["deviation"] = float(deviation)
        except ValueError as error:
            raise CallerError(f"model {text!r}: expected rff:WIDTH:SIGMA, two numbers") from error
    return NetworkSpecification("backbone", name, arguments)


def _depth_and_width(text: str, rest: str) -> dict[str, int]:
    """Of `wrn:16-4`, whose depth and width stand behind the colon."""
    depth, _, width = rest.partition("-")
    if not (depth.isdecimal() and width.isdecimal()):
        raise CallerError(f"model {text!r}: expected wrn:DEPTH-WIDTH, such as wrn:16-4")
    return {"depth": int(depth), "width": int(width)}


def specification_of(network: nn.Module) -> NetworkSpecification:
    """The specification of a module that was handed over in Python."""
    select = network.select if isinstance(network, SelectedOutput) else None
    kind = type(network.network if isinstance(network, SelectedOutput) else network)
    words = select if isinstance(select, str | int) else None
    return NetworkSpecification("given", f"{kind.__module__}.{kind.__qualname__}", select=words)


def _hash(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise CallerError(
            f"model file {str(path)!r} cannot be read: {error.strerror or error}"
        ) from error


def _build_from_file(
    specification: NetworkSpecification, shape: Sequence[int], outputs: int
) -> nn.Module:
    path_text, _, factory_name = specification.name.rpartition(":")
    path = Path(path_text)
    if specification.where is not None:
        known = _named_by_caller.get((specification.sha256, factory_name))
        if known is None:
            raise CallerError(
                f"{specification.where} names code, {specification.name!r}, which is run only if "
                f"you name the same file yourself: with --code FILE.py:{factory_name}, or in "
                "Python by passing the network"
            )
        path = known
    if specification.sha256 is not None and _hash(path) != specification.sha256:
        raise CallerError(
            f"model file {str(path)!r} has changed since the run began; restore it or start anew"
        )
    # A name of its own: the file may be called like a library, and what it defines (a dataclass,
    # say) is looked up under the module's name.
    name = f"isotropy_model_{_hash(path)[:16]}"
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))  # so that the file finds its neighbours
    try:
        found.loader.exec_module(module)
        factory: Callable[..., Any] | None = getattr(module, factory_name, None)
        if not callable(factory):
            raise CallerError(f"model file {str(path)!r} has no function {factory_name!r}")
        network = factory(*_arguments(factory, (tuple(shape), outputs), specification.name))
    except CallerError:
        raise
    except (Exception, SystemExit) as error:
        raise CallerError(
            f"model file {str(path)!r} does not run: {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.path.remove(str(path.parent))
    if not isinstance(network, nn.Module):
        raise CallerError(
            f"{factory_name!r} in {str(path)!r}: expected it to return an nn.Module, got "
            f"{type(network).__name__}"
        )
    return network


def _arguments(
    factory: Callable[..., Any], shape_and_outputs: tuple[Any, ...], name: str
) -> tuple[Any, ...]:
    """Shape and outputs for a factory that takes both, nothing for one that takes nothing."""
    signature = inspect.signature(factory)
    for arguments in (shape_and_outputs, ()):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return arguments
    raise CallerError(
        f"model {name!r}: expected a function of (shape, outputs) or of nothing, got one of "
        f"{signature}"
    )


def _build_from_timm(written: str, shape: Sequence[int], outputs: int) -> nn.Module:
    name = written.removesuffix(TRAINED)
    trained = written.endswith(TRAINED)
    try:
        import timm
    except Exception as error:  # an installation that does not fit torch raises others, too
        raise CallerError(
            "models of the form timm:NAME need the timm library; install isotropy[vision] "
            f"({type(error).__name__}: {error})"
        ) from error
    if name not in timm.list_models():
        raise CallerError(f"unknown timm model {name!r}")
    # Trained, it has the head it was trained with, whatever the data's classes are.
    settings: dict[str, Any] = {"num_classes": outputs, "in_chans": shape[0]}
    if trained:
        settings = {"pretrained": True}
    if trained and len(shape) == 3 and shape[0] != COLOURS:
        settings["in_chans"] = shape[0]  # timm sums or repeats its first filters
    try:
        network: nn.Module = timm.create_model(name, **settings)
    except Exception as error:
        if not trained:
            raise
        raise CallerError(
            f"timm model {name!r}: its trained weights could not be had ({error}); without "
            f"{TRAINED} it is built with random weights"
        ) from error
    return network


# --- where nobody named one ---------------------------------------------------------------------

AUTO = "auto"
SMALL_PICTURE = 32
"""Grey pictures of at most this many pixels a side are left to the MLP."""

_MLP = NetworkSpecification("backbone", "mlp", {"hidden": 200})
_COMPACT = NetworkSpecification("backbone", "compact", {"width": 8})


@dataclass(frozen=True)
class NetworkChoice:
    """A network and the sentence that says why it was chosen."""

    specification: NetworkSpecification
    reason: str


def default_network(inputs: Tensor, names: Sequence[str] = ()) -> NetworkChoice:
    """The network for training inputs (examples, …).

    names: of the generators, by which some sequences are known from clouds of points
    """
    shape = tuple(inputs.shape[1:])
    if len(shape) == 3:
        channels, height, width = shape
        size = f"pictures of {height}×{width} pixels and {channels} channel" + "s" * (channels > 1)
        if channels == 1 and max(height, width) <= SMALL_PICTURE:
            return _chosen(_MLP, f"{size}: small and grey, which one hidden layer can do")
        specification = fitted(_COMPACT, inputs)
        return _chosen(specification, f"{size}: convolutions, whose curvature stays small")
    if len(shape) == 2 and are_clouds(names, shape):
        clouds = NetworkSpecification("backbone", "clouds")
        return _chosen(clouds, f"clouds of {shape[0]} points: the order of points does not matter")
    if len(shape) == 2:
        specification = fitted(_COMPACT, inputs)
        return _chosen(
            specification, f"sequences of length {shape[1]}: convolutions along the sequence"
        )
    numbers = " × ".join(map(str, shape))
    return _chosen(_MLP, f"{numbers} numbers an example: no neighbours to make use of")


def fitted(specification: NetworkSpecification, inputs: Tensor) -> NetworkSpecification:
    """The specification with the statistics of the data, where its network takes them."""
    if specification.kind != "backbone" or specification.name != "compact" or inputs.ndim < 3:
        return specification
    arguments = {"width": 8, **specification.arguments, **data_statistics(inputs)}
    return replace(specification, arguments=arguments)


def _chosen(specification: NetworkSpecification, why: str) -> NetworkChoice:
    return NetworkChoice(specification, f"model {specification.text} chosen for {why}")
