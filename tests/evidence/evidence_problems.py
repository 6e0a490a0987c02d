"""Problems for the two-pass gradient, and the whole evidence as one function of the half-widths.

The oracle never splits anything: it writes the evidence of all data out by `oracles.dense_kfac`
and `slogdet`, in one graph, for autograd to go through.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from network_cases import LIKELIHOODS, NOISE, NetworkCase, mlp
from oracles.dense_evidence import (
    categorical_log_likelihood,
    gaussian_log_likelihood,
    laplace_log_evidence,
)
from oracles.dense_ggn import OutputCurvature, average_over_samples, dense_ggn_blocks, trainable
from oracles.dense_kfac import CONVOLUTIONS, TRANSPOSED, dense_kfac, spelled_out
from torch import Tensor, nn

from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.evidence.laplace import Batch, GaussianPrior, LaplaceEvidence
from isotropy.likelihoods import Categorical
from isotropy.networks.averaging.augmentations import UniformRanges
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.zoo.residual_networks import Bias, Scale
from isotropy.symmetry.actions.action import Action, Generator
from isotropy.symmetry.actions.images import affine

COUNT, SAMPLES = 4, 3


class FixupBlock(nn.Module):
    """A residual block in the manner of Fixup, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after, self.scale = Bias(), Bias(), Scale()
        self.first = nn.Conv2d(1, 2, 3, stride=2, padding=1, bias=False)
        self.second = nn.Conv2d(2, 2, 3, padding=1, bias=False)
        self.head = nn.Linear(2, 3)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.first(self.before(images))
        hidden = hidden + self.after(self.scale(self.second(hidden.tanh())))
        return self.head(hidden.tanh().mean((2, 3)))


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.Tanh(),
        nn.Conv2d(2, 4, 2, groups=2), nn.Tanh(),
        nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip


IMAGE = (1, 6, 6)
IMAGE_NETWORKS = {
    "mlp": NetworkCase(lambda: nn.Sequential(nn.Flatten(), *mlp(36, 4, 3)), IMAGE),
    "cnn": NetworkCase(small_cnn, IMAGE),
    "fixup block": NetworkCase(FixupBlock, IMAGE),
}


class Brightness(Action):
    """Adds a number, and multiplies by another: an action on data of any shape."""

    generators = (Generator("brightness", "grey level"), Generator("contrast", "log factor"))

    def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
        shape = (*coordinates.shape[:2], *(1 for _ in data.shape[1:]))
        add, times = (coordinates[..., k].reshape(shape) for k in (0, 1))
        return data[:, None] * times.exp() + add


def smooth_images(count: int, size: int = 6) -> Tensor:
    """One bump in each image, somewhere."""
    generator = torch.Generator().manual_seed(5)
    grid = torch.linspace(-1, 1, size, dtype=torch.float64)
    places = torch.rand(count, 2, 1, generator=generator, dtype=torch.float64) - 0.5
    along_x = torch.exp(-4 * (grid - places[:, 0]) ** 2)
    along_y = torch.exp(-4 * (grid - places[:, 1]) ** 2)
    return (along_y[:, :, None] * along_x[:, None, :])[:, None]


@dataclass
class Problem:
    """An evidence, a model with learnable half-widths, data, and noise for each example."""

    evidence: LaplaceEvidence
    model: InvariantModel
    inputs: Tensor
    targets: Tensor
    noise: Tensor

    @property
    def half_widths(self) -> Tensor:
        return self.model.augmentation.half_widths

    def batches(self, *sizes: int, noise: Tensor | None = None) -> Iterator[Batch]:
        """The data in batches of these sizes, with the problem's own noise or with another."""
        noise = self.noise if noise is None else noise
        sizes = sizes or (len(self.inputs),)
        parts = (tensor.split(sizes) for tensor in (self.inputs, noise, self.targets))
        for inputs, drawn, targets in zip(*parts, strict=True):
            yield Batch(self.model.orbit(inputs, drawn), targets, Copies(drawn.shape[1]))


def spread_prior(
    network: nn.Module, names: tuple[str, ...], structure: str, precision: float, **options: object
) -> GaussianPrior:
    """A prior whose groups of parameters all have different precisions."""
    prior = GaussianPrior(network, names, structure, precision, **options)  # type: ignore[arg-type]
    with torch.no_grad():
        prior.log_precisions += torch.linspace(0, 1, len(prior.groups), dtype=torch.float64)
    return prior


def problem(case: NetworkCase, likelihood: str, action: Action, inputs: Tensor) -> Problem:
    network = case.network()
    augmentation = UniformRanges(action, dtype=torch.float64)
    with torch.no_grad():
        widths = 0.3 + 0.1 * torch.arange(len(action.generators), dtype=torch.float64)
        augmentation.half_widths.copy_(widths)
    model = InvariantModel(network, augmentation, SAMPLES)
    kind = LIKELIHOODS[likelihood]
    chosen, targets = kind.build(), kind.targets(len(inputs))
    chosen.check_targets(targets, torch.zeros(1, 3))
    prior = spread_prior(network, KFAC(network).parameter_names, "tensor", 0.5)
    evidence = LaplaceEvidence(network, chosen, prior)
    noise = model.noise(len(inputs), generator=torch.Generator().manual_seed(6))
    return Problem(evidence, model, inputs, targets, noise)


def image_problem(network: str, likelihood: str, generators: tuple[str, ...] = ()) -> Problem:
    action = affine(generators) if generators else affine()
    return problem(IMAGE_NETWORKS[network], likelihood, action, smooth_images(COUNT))


# --- the oracle ---------------------------------------------------------------------------------


def log_likelihood_of(problem: Problem, outputs: Tensor) -> Tensor:
    if isinstance(problem.evidence.likelihood, Categorical):
        return categorical_log_likelihood(outputs, problem.targets)
    return gaussian_log_likelihood(outputs, problem.targets, NOISE)


def precisions_of(problem: Problem) -> dict[str, float]:
    return {n: float(d.detach()) for n, d in problem.evidence.prior.precisions().items()}


def curvature_of(problem: Problem) -> OutputCurvature:
    return LIKELIHOODS[problem.evidence.likelihood.name].curvature


def dense_blocks(problem: Problem, rows: Tensor) -> dict[str, Tensor]:
    """Every block of the formula, differentiable in whatever the rows depend on."""
    network, curvature = spelled_out(problem.model.network), curvature_of(problem)
    exact = dense_ggn_blocks(network, rows, SAMPLES, curvature)
    blocks: dict[str, Tensor] = {}
    for layer_name, layer in network.named_modules():
        prefix = f"{layer_name}." if layer_name else ""
        own = [prefix + name for name, _ in layer.named_parameters(recurse=False)]
        blocks |= {name: exact[name] for name in own if name in exact}
        if isinstance(layer, (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)):
            for name, block in dense_kfac(network, layer_name, rows, SAMPLES, curvature).items():
                blocks[prefix + name] = block
    return {name.replace("in_proj.", "in_proj_"): block for name, block in blocks.items()}


def dense_log_evidence(problem: Problem, noise: Tensor | None = None) -> Tensor:
    """log Z of all data in one graph from the half-widths."""
    noise = problem.noise if noise is None else noise
    rows = problem.model.orbit(problem.inputs, noise)
    network = problem.model.network.requires_grad_(True).eval()
    outputs = average_over_samples(network(rows), SAMPLES)
    return laplace_log_evidence(
        log_likelihood_of(problem, outputs),
        dense_blocks(problem, rows),
        trainable(network),
        precisions_of(problem),
    )


def autograd_gradient(problem: Problem) -> Tensor:
    value = dense_log_evidence(problem)
    return torch.autograd.grad(-value, problem.half_widths)[0]
