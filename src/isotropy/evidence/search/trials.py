"""Trials: how well given amounts of all symmetries predict, without training anything.

Learning amounts and weights together follows one path, and on few examples the path ends early:
weights that have come to fit small motions leave no gradient towards larger ones. Training from
scratch at every amount has no path, but ends in another optimum each time, and two amounts differ
by less than two seeds do. A trial does not train. It takes the network to
first order in its weights, where it starts: with equal Gaussian priors on all weights the averaged
outputs are a Gaussian process with the network's tangent kernel,

    k(x, x′) = ⟨∂ r·f̂(x), ∂ r·f̂(x′)⟩ ,     f̂(x) = Σ_s w_s f(x_s) ,     r a direction of outputs

and how it predicts each example from all others is known in closed form: the leave-one-out
predictive log density L(η), in nats over all examples (`kernel_evidence`). Copies x_s move with the
amounts η; everything else is the same in all trials. Classes are told apart by least squares:
targets are orthonormal contrasts of the classes' indicators.

    Jacot, Gabriel, Hongler (2018), "Neural tangent kernel"
    van der Wilk, Bauer, John, Hensman (2018), "Learning invariances using the marginal likelihood":
    evidences of averaged kernels find symmetries

More copies than a run has are needed, and affordable: with S of them two pictures of the same thing
in different poses have copies that are spaced as 1/S, and too few of them look alike. Nothing
depends on how many copies the run has.

Where a part of the network is frozen and the last layer alone is trained, the gradients are its
averaged features with a 1 for the bias, and a trial is one pass through the frozen layers. These
may be large, so copies are few and spread evenly over the ranges, from a place that is drawn for
every example. Their features are in bfloat16 where that is faster and precise enough.

The same examples in `BLOCKS` parts give the share of each part in L, from which differences get an
error over data (`Trial.blocks`).
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import CallerError
from isotropy.curvature.kinds import Copies
from isotropy.curvature.recording import evaluation_mode, record
from isotropy.evidence.laplace import NotFiniteError
from isotropy.evidence.machine import FEWEST_COPIES, affordable_rows
from isotropy.evidence.search.kernel_evidence import KernelFit, constant_log_predictive, fit_kernel
from isotropy.evidence.settings import LearnSchedule, stream
from isotropy.evidence.weight_steps import augmentation_for
from isotropy.kernels.cores import on_one_core
from isotropy.networks.averaging.augmentations import Augmentation
from isotropy.networks.averaging.averaged_features import (
    averaged,
    may_be_bfloat16,
    spread_evenly,
)
from isotropy.networks.averaging.mixtures import Mixture
from isotropy.networks.frozen import trained_head
from isotropy.symmetry.actions.action import Action
from isotropy.symmetry.actions.finite import FiniteAction

COPIES = (16, 128)
"""Fewest and most copies of an example."""
MOST_WEIGHTS = 2**14
"""Weights that the gradient is taken by; drawn at random where there are more."""
MOST_ROWS = {"small": 2**17, "linear": 2**16, "other": 2**14}
"""Copies of all examples together: of linear layers with up to `MOST_WEIGHTS`, with more, and of
other networks."""
LEAST_NOISE = 0.3
"""Share of the variance of labels' codes below which noise cannot be. Labels are no numbers:
without it L would reward how exactly codes are met, long after classes are told apart."""
COPIES_OF_FROZEN = (FEWEST_COPIES, 64)
"""`COPIES` where the last layer alone is trained, spread evenly."""
BLOCKS = 20
FEW_EXAMPLES = 256
"""Up to which the spectrum of their kernel is computed on one core."""
EXAMPLES_AT_ONCE = 32
SCALED_ON = 256
"""Examples on which layers are scaled."""
ROWS_AT_ONCE = 256
"""Rows of a kernel that are computed together."""
AGREEMENT = 1e-3
"""Largest relative difference between gradients of linear layers and autograd's."""

SCALED_LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)

Amounts = Mapping[str, float]
"""Half-widths and probabilities by name, in the units that users read; what is left out is zero."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One trial: its amounts, and L and log Z in nats over all its examples.

    blocks: (BLOCKS,) the shares of parts of the data in L; fewer where there are fewer examples
    """

    amounts: dict[str, float]
    replicate: int
    log_predictive: float
    log_evidence: float
    blocks: Tensor


class Trials:
    """Trials of one network on one data set; each is made once and remembered.

    network: as it is before training; it is not changed
    config:  settings of the run that the trials are for
    data, test: inputs and targets on the network's device
    """

    def __init__(
        self,
        network: nn.Module,
        actions: Action | FiniteAction | Sequence[Action | FiniteAction],
        config: LearnSchedule,
        data: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor] | None = None,
        tell: Callable[[Trial], None] | None = None,
    ) -> None:
        self.network = scaled_copy(network, data[0][:SCALED_ON])
        self.actions, self.config = actions, config
        self.inputs, self.test = data[0], test
        self.tell = tell or (lambda _: None)
        with torch.no_grad(), evaluation_mode(network):
            outputs = network(self.inputs[:1]).shape[-1]
        self.coding = Coding(data[1], outputs)
        self.targets = self.coding(data[1])
        noise = LEAST_NOISE if self.coding.classes else 0.0
        self.least_noise = noise * float(self.targets.square().mean())
        signs = torch.randint(2, (outputs,), generator=stream(config.seed, "direction")) * 2 - 1
        self.direction = (signs / math.sqrt(outputs)).to(self.inputs)
        self.chosen = some_of(sum(p.numel() for p in _trainable(network)), config.seed)
        frozen = config.freeze != "none"
        self.head = trained_head(self.network, self.inputs[:1]) if frozen else None
        self.gradients: Gradients = output_gradients
        self.is_bfloat16 = False
        """Whether frozen layers are in bfloat16."""
        if self.head is None:
            self.gradients = gradients_for(self.network, self.inputs[:2], self.direction)
        else:
            self.is_bfloat16 = may_be_bfloat16(self.network, self.head, self.inputs)
        self._done: dict[tuple[tuple[tuple[str, float], ...], int], Trial] = {}
        self.seconds_of_copies = 0.0
        """Of the last trial: what grows with the number of copies, and not with the kernel."""

    @property
    def examples(self) -> int:
        """How many examples a trial has."""
        return len(self.inputs)

    @property
    def count(self) -> int:
        """How many trials were made."""
        return len(self._done)

    @property
    def null_log_predictive(self) -> float:
        """What a constant prediction reaches, in nats."""
        return constant_log_predictive(self.targets)

    def at(self, amounts: Amounts, replicate: int = 0) -> Trial:
        """The trial with these amounts; replicates differ in their copies."""
        own = _key(amounts)
        # Where nothing is drawn all replicates are the same.
        key = (own, replicate if replicate and self._draws(dict(own)) else 0)
        if key not in self._done:
            self._done[key] = self._made(dict(own), key[1])
            self.tell(self._done[key])
        return self._done[key]

    def recall(self, trials: Iterable[Trial]) -> None:
        """Take over trials that were made before, of the same network, data and settings."""
        self._done |= {(_key(each.amounts), each.replicate): each for each in trials}

    def known(self, amounts: Amounts) -> Trial | None:
        """The trial with these amounts if it was made."""
        return self._done.get((_key(amounts), 0))

    def held_out(self, amounts: Amounts) -> float:
        """Mean log density of the test examples' targets, in nats; NaN where there is none."""
        assert self.test is not None
        inputs, targets = self.test
        try:
            own = self._gradients(dict(_key(amounts)), 0, self.inputs)
            fit = self._fit(own)
        except NotFiniteError:
            return math.nan
        others = self._gradients(dict(_key(amounts)), 0, inputs)
        squares = others.double().square().sum(1)
        return fit.log_density((others @ own.mT).double(), squares, self.coding(targets))

    def _made(self, amounts: dict[str, float], replicate: int) -> Trial:
        order = torch.randperm(self.examples, generator=stream(self.config.seed, "blocks"))
        parts = order.to(self.inputs.device).tensor_split(min(BLOCKS, self.examples))
        began = time.monotonic()
        gradients = self._gradients(amounts, replicate, self.inputs)
        self.seconds_of_copies = time.monotonic() - began
        try:
            fit = self._fit(gradients)
        except NotFiniteError:  # amounts at which the network is not finite
            return Trial(amounts, replicate, -math.inf, -math.inf, torch.zeros(len(parts)))
        blocks = torch.stack([fit.densities[part].sum() for part in parts]).cpu()
        return Trial(amounts, replicate, fit.log_predictive, fit.log_evidence, blocks)

    def _fit(self, gradients: Tensor) -> KernelFit:
        with on_one_core(len(gradients) <= FEW_EXAMPLES):
            return fit_kernel(kernel_of(gradients), self.targets, self.least_noise)

    def _gradients(self, amounts: dict[str, float], replicate: int, inputs: Tensor) -> Tensor:
        """Gradients by the chosen weights of all inputs, each with copies of its own."""
        augmentation = self._augmentation(amounts)
        samples = self.copies(augmentation, amounts)
        generator = stream(self.config.seed, "trial", replicate, inputs.device)
        if self.head is not None:
            return self._head_gradients(augmentation, samples, generator, inputs)
        found = []
        for some in inputs.split(EXAMPLES_AT_ONCE):
            noise = augmentation.noise(len(some), samples, generator=generator)
            with torch.no_grad():
                rows = augmentation(some, noise).flatten(0, 1)
                copies = augmentation.copies(noise.shape[1])
            found.append(self.gradients(self.network, rows, copies, self.direction, self.chosen))
        return torch.cat(found)

    def _head_gradients(
        self,
        augmentation: Augmentation,
        samples: int,
        generator: torch.Generator,
        inputs: Tensor,
    ) -> Tensor:
        """Gradients by the last layer, where that alone is trained: ∂ r·f̂/∂(W, b) = r (h̄, 1)ᵀ.

        r has length one, and inner products are those of (h̄, 1): the outputs' axis is left out.
        """
        assert self.head is not None
        parts = []
        for some in inputs.split(EXAMPLES_AT_ONCE):
            noise = augmentation.noise(len(some), samples, generator=generator)
            parts.append((some, spread_evenly(augmentation, noise)))
        features = averaged(self.network, self.head, augmentation, parts, bfloat16=self.is_bfloat16)
        has_bias = self.network.get_submodule(self.head).bias is not None
        return functional.pad(features, (0, 1), value=1.0) if has_bias else features

    def _augmentation(self, amounts: dict[str, float]) -> Augmentation:
        given = self.actions if isinstance(self.actions, Sequence) else [self.actions]
        off = {name: 0.0 for action in given for name in action.names if name not in amounts}
        config = replace(
            self.config, objective="fixed", ranges={**off, **amounts}, start=None, caps=off
        )
        dtype, device = self.inputs.dtype, self.inputs.device
        return augmentation_for(config, self.actions, dtype=dtype).to(device)

    def _draws(self, amounts: dict[str, float]) -> bool:
        return _is_random(self._augmentation(amounts), amounts)

    def copies(self, augmentation: Augmentation, amounts: Amounts) -> int:
        """How many copies of each example there are in a trial.

        As many as can be afforded, in powers of two; one for each finite element where nothing is
        drawn.
        """
        elements = augmentation.elements if isinstance(augmentation, Mixture) else 1
        if not _is_random(augmentation, amounts):
            return elements
        return math.ceil(self.most_copies / elements) * elements

    @property
    def most_copies(self) -> int:
        """Copies of an example where they are drawn, in a power of two."""
        linear = "small" if self.chosen is None else "linear"
        kind = linear if self.gradients is linear_gradients else "other"
        few, most = COPIES if self.head is None else COPIES_OF_FROZEN
        rows = MOST_ROWS[kind]
        if self.head is not None:
            rows = affordable_rows(self.network, self.inputs[:1])
        affordable = max(1, rows // self.examples)
        return min(most, max(few, 2 ** int(math.log2(affordable))))


class Coding:
    """Targets as columns of mean zero, (examples, outputs) in float64.

    Labels: orthonormal contrasts of the classes' indicators, one less than there are classes.
    Numbers: of variance one.
    """

    def __init__(self, targets: Tensor, outputs: int) -> None:
        self.classes = 0 if targets.is_floating_point() else outputs
        columns = self._columns(targets)
        self.mean = columns.mean(0)
        self.scale = torch.ones_like(self.mean)
        if not self.classes:
            spread = columns.std(0, correction=0)
            self.scale = torch.where(spread > 0, spread, 1.0)

    def __call__(self, targets: Tensor) -> Tensor:
        return (self._columns(targets) - self.mean) / self.scale

    def _columns(self, targets: Tensor) -> Tensor:
        if not self.classes:
            return targets.double().flatten(1) if targets.ndim > 1 else targets.double()[:, None]
        indicators = functional.one_hot(targets, self.classes).double()
        contrasts = torch.eye(self.classes, dtype=torch.float64)
        contrasts[:, 0] = 1
        return indicators @ torch.linalg.qr(contrasts).Q[:, 1:].to(indicators)


def scaled_copy(network: nn.Module, inputs: Tensor) -> nn.Module:
    """A copy whose linear layers and convolutions have outputs of variance one on these inputs.

    With the usual small initial weights tanh is nearly linear, and so is the tangent kernel; what
    averages over a symmetry leave of a linear kernel is next to nothing. Trained layers have
    outputs of the order of one. Layers are divided by the standard deviation of their outputs, in
    the order in which they are called, each weight once; one whose outputs do not vary, or whose
    weight is frozen or computed from other parameters, is left as it is.
    Mishkin, Matas (2016), "All you need is a good init".
    """
    network = copy.deepcopy(network)
    done: set[int] = set()

    def scale(layer: nn.Module, _: object, output: Tensor) -> Tensor | None:
        own = dict(layer.named_parameters(recurse=False))
        spread = float(output.std(correction=0))
        if "weight" not in own or id(own["weight"]) in done or not 0 < spread < math.inf:
            return None
        if not own["weight"].requires_grad:
            return None
        done.add(id(own["weight"]))
        for parameter in own.values():
            parameter.div_(spread)
        return output / spread

    layers = [each for each in network.modules() if isinstance(each, SCALED_LAYERS)]
    handles = [layer.register_forward_hook(scale) for layer in layers]
    try:
        with torch.no_grad(), evaluation_mode(network):
            network(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return network


Gradients = Callable[[nn.Module, Tensor, Copies, Tensor, Tensor | None], Tensor]
"""∂ r·f̂(x_n)/∂θ (examples, entries), from the network, rows (examples·copies, …), copies fastest,
r, and the numbers of the chosen entries of all trainable parameters in their order; None for all.
"""


def gradients_for(network: nn.Module, inputs: Tensor, direction: Tensor) -> Gradients:
    """How gradients are computed: `linear_gradients` if they are right on these inputs."""
    if not is_linear(network):
        return output_gradients
    copies = Copies(1)
    expected = output_gradients(network, inputs, copies, direction)
    try:
        found = linear_gradients(network, inputs, copies, direction)
    except (CallerError, RuntimeError):  # calls that cannot be recorded
        return output_gradients
    agree = torch.linalg.norm(found - expected) <= AGREEMENT * torch.linalg.norm(expected)
    return linear_gradients if agree else output_gradients


@torch.enable_grad()
def output_gradients(
    network: nn.Module,
    rows: Tensor,
    copies: Copies,
    direction: Tensor,
    chosen: Tensor | None = None,
) -> Tensor:
    """Gradients by autograd, one example after the other: any network will do."""
    parameters = _trainable(network)
    found = []
    with evaluation_mode(network):
        for own in copies.split(rows):
            output = copies.mean(network(own))[0] @ direction
            gradients = torch.autograd.grad(output, parameters, allow_unused=True)
            entries = [
                torch.zeros_like(p) if g is None else g
                for p, g in zip(parameters, gradients, strict=True)
            ]
            every = torch.cat([each.flatten() for each in entries])
            found.append(every if chosen is None else every[chosen.to(every.device)])
    return torch.stack(found)


@torch.enable_grad()
def linear_gradients(
    network: nn.Module,
    rows: Tensor,
    copies: Copies,
    direction: Tensor,
    chosen: Tensor | None = None,
) -> Tensor:
    """Gradients by the weights of linear layers, all examples in one pass.

        ∂ r·f̂(x_n)/∂W = Σ_s g_ns a_nsᵀ ,     a what enters the layer, g = ∂ r·f̂/∂(what leaves it)

    Several calls of a layer, and positions that share its weight, are summed over.
    """
    layers = {name: each for name, each in network.named_modules() if type(each) is nn.Linear}
    recording = record(network, layers, rows)
    outputs = (copies.mean(recording.outputs) @ direction).sum()
    calls = recording.calls
    leaving: tuple[Tensor | None, ...] = torch.autograd.grad(
        outputs, [call.output for call in calls], allow_unused=True
    )
    places = _places(_trainable(network), chosen)
    found: dict[int, Tensor] = {}
    for call, gradient in zip(calls, leaving, strict=True):
        if gradient is None:
            continue
        assert isinstance(call.module, nn.Linear)
        a = copies.split(call.inputs.detach()).flatten(1, -2)  # (examples, copies·positions, in)
        g = copies.split(gradient).flatten(1, -2)
        for parameter, own in ((call.module.weight, g.mT @ a), (call.module.bias, g.sum(1))):
            key = id(parameter)
            if key in places:
                part = own.flatten(1)[:, places[key].to(own.device)]
                found[key] = found[key] + part if key in found else part
    nothing = rows.new_zeros((len(rows) // copies.count, 1))
    return torch.cat(
        [found.get(key, nothing.expand(-1, len(place))) for key, place in places.items()], 1
    )


def _places(parameters: Sequence[Tensor], chosen: Tensor | None) -> dict[int, Tensor]:
    """By the id of each parameter, which of its entries are chosen; all where `chosen` is None."""
    sizes = [parameter.numel() for parameter in parameters]
    every = torch.arange(sum(sizes)) if chosen is None else chosen
    found, first = {}, 0
    for parameter, size in zip(parameters, sizes, strict=True):
        found[id(parameter)] = every[(every >= first) & (every < first + size)] - first
        first += size
    return found


def _trainable(network: nn.Module) -> list[nn.Parameter]:
    return [p for p in network.parameters() if p.requires_grad]


def some_of(entries: int, seed: int) -> Tensor | None:
    """Numbers of `MOST_WEIGHTS` weights drawn at random; None for all where there are no more.

    Trained alone these make a network of their own, with a tangent kernel of its own: its mean over
    draws is proportional to that of all weights.
    """
    if not entries:
        raise CallerError("network: expected at least one trainable parameter, got none")
    if entries <= MOST_WEIGHTS:
        return None
    return torch.randperm(entries, generator=stream(seed, "weights"))[:MOST_WEIGHTS].sort().values


def kernel_of(gradients: Tensor) -> Tensor:
    """Inner products of all pairs of rows (examples, entries), in float64.

    Those above the diagonal, a few rows at a time; the others are the same.
    """
    kernel = gradients.new_empty((len(gradients), len(gradients)), dtype=torch.float64)
    for first in range(0, len(gradients), ROWS_AT_ONCE):
        some = slice(first, first + ROWS_AT_ONCE)
        products = gradients[some] @ gradients[first:].mT
        kernel[some, first:] = products.double()
        kernel[first:, some] = products.mT.double()
    return kernel


def is_linear(network: nn.Module) -> bool:
    """Whether all weights are those of linear layers, whose copies are cheap."""
    layers = [m for m in network.modules() if next(m.parameters(recurse=False), None) is not None]
    return all(type(layer) is nn.Linear for layer in layers)


def _is_random(augmentation: Augmentation, amounts: Amounts) -> bool:
    """Whether copies differ from draw to draw: finite elements alone need one copy each."""
    if not isinstance(augmentation, Mixture):
        return not augmentation.is_identity
    random = (name for each in augmentation.finite if each.is_random for name in each.names)
    moves = bool(augmentation.action.generators) and not augmentation.ranges.is_identity
    return moves or any(name in amounts for name in random)


def _key(amounts: Amounts) -> tuple[tuple[str, float], ...]:
    return tuple(sorted((name, float(value)) for name, value in amounts.items() if value))
