"""What an evidence step costs, in plain training epochs with the same number of samples.

    factors   pass one over all data: Kronecker factors, eigendecompositions, value
    full      factors + the ranges' gradient over all data
    recipe    factors + the gradient over the paper's number of batches
              (MLP: one of 1000 examples; CNN: one of 256)

for the paper's MLP and CNN with S = 31, by the generalised Gauss–Newton. For the recipe also by one
direction in place of nine, the Monte-Carlo and the empirical Fisher, on five times the examples:
the paper's batch of 1000 is then a fifth of the data (it trains on 5,000 and more). Then pass one
without augmentation against laplace-torch and curvlinops on the same network. The published
implementation needs 12.6 epochs for the MLP's full step. On a GPU if there is one, in TF32. Ratios
hold within one run; absolute times are worth little on a shared machine.

    python -m benchmarks.evidence [--json] [--examples 1000] [--rounds 3] [--device cpu]
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

if __package__ in (None, ""):  # run as a file: the folder above is where `benchmarks` is found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import peers
from benchmarks.timing import add_device, fastest, goal, goal_lines, options_of, publish
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import DEFAULT_KIND, Copies, kind_named
from isotropy.evidence.laplace import Batch, GaussianPrior, LaplaceEvidence
from isotropy.evidence.machine import fit_curvature_batch
from isotropy.evidence.settings import LearnConfig
from isotropy.kernels.precision import multiplying_in
from isotropy.likelihoods import Categorical
from isotropy.networks.averaging.augmentations import UniformRanges
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.zoo.specification import parse_network
from isotropy.records import provenance
from isotropy.symmetry.actions.images import affine

SAMPLES = 31
SHAPE = (1, 28, 28)
COLUMNS = ("factors", "full", "recipe", "recipe, kfac-mc", "recipe, kfac-ef")
RECIPE = {"mlp": 1000, "cnn": 256}
BESIDE_PEERS = "mlp"
ONE_DIRECTION = ("kfac-mc", "kfac-ef")
GOALS = {
    "mlp": {"full": 4.0, "recipe, kfac-mc": 1.5, "recipe, kfac-ef": 1.5},
    "cnn": {"full": 10.0, "recipe": 4.0, "recipe, kfac-mc": 1.5, "recipe, kfac-ef": 1.5},
}
"""At most so many epochs."""
PEER_GOALS = {"laplace-torch": 1.0, "curvlinops": 1.0}
"""Ours at least so many times as fast."""


class Case:
    """One network on random images: an epoch, and the passes of an evidence step."""

    def __init__(
        self,
        name: str,
        examples: int,
        samples: int,
        device: torch.device,
        kind: str = DEFAULT_KIND,
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.rand((examples, *SHAPE), generator=generator).to(device)
        self.labels = torch.randint(10, (examples,), generator=generator).to(device)
        self.network = parse_network(name).build(SHAPE, 10).to(device)
        augmentation = UniformRanges(affine()).to(device)
        self.ranges = augmentation.learnable()
        self.model = InvariantModel(self.network, augmentation, samples)
        self.likelihood = Categorical()
        kfac = KFAC(self.network, kind_named(kind))
        prior = GaussianPrior(self.network, kfac.parameter_names).to(device)
        self.evidence = LaplaceEvidence(self.network, self.likelihood, prior, kfac)
        self.optimiser = torch.optim.Adam(self.network.parameters(), lr=1e-4)
        settings = LearnConfig(samples=samples, curvature=kind).resolved(
            examples=examples, on_gpu=device.type == "cuda"
        )
        settings = fit_curvature_batch(settings, self.network, self.images[:1])
        assert settings.batch_size is not None and settings.curvature_batch is not None
        self.batch_size, self.curvature_batch = settings.batch_size, settings.curvature_batch
        self.fit = self.evidence.fit(self.batches())

    def epoch(self) -> None:
        """One pass of weight steps, as `Trainer` takes them."""
        for index in torch.randperm(len(self.images)).split(self.batch_size):
            with torch.no_grad():
                rows = self.model.orbit(self.images[index], self.model.noise(len(index)))
            outputs = Copies(self.model.samples).mean(self.network(rows))
            loss = self.likelihood.training_loss(outputs, self.labels[index])
            self.optimiser.zero_grad(set_to_none=True)
            loss.backward()
            self.optimiser.step()

    def batches(self, limit: int | None = None, *, graph: bool = False) -> Iterator[Batch]:
        images, labels = self.images[:limit], self.labels[:limit]
        size = self.curvature_batch
        for part, wanted in zip(images.split(size), labels.split(size), strict=True):
            with torch.set_grad_enabled(graph):
                rows = self.model.orbit(part, self.model.noise(len(part)))
            yield Batch(rows, wanted, Copies(self.model.samples))

    def factors(self) -> Tensor:
        self.fit = self.evidence.fit(self.batches())
        return self.evidence.value(self.fit)

    def gradient(self, limit: int | None = None) -> list[Tensor]:
        batches = self.batches(limit, graph=True)
        return self.evidence.gradient(self.fit, batches, self.ranges)


def evidence_over_epoch(
    name: str, examples: int, device: torch.device, rounds: int
) -> dict[str, float]:
    """The passes of one network in epochs of the same run."""
    case = Case(name, examples, SAMPLES, device)
    seconds = fastest(
        {
            "epoch": case.epoch,
            "factors": case.factors,
            "gradient": case.gradient,
            "recipe": lambda: case.gradient(RECIPE[name]),
        },
        device,
        rounds,
    )
    epoch = seconds["epoch"]
    return {
        **_one_direction(name, 5 * examples, device, rounds),
        "factors": seconds["factors"] / epoch,
        "gradient": seconds["gradient"] / epoch,
        "full": (seconds["factors"] + seconds["gradient"]) / epoch,
        "recipe": (seconds["factors"] + seconds["recipe"]) / epoch,
        "epoch_seconds": epoch,
    }


def _one_direction(name: str, examples: int, device: torch.device, rounds: int) -> dict[str, float]:
    """The recipe by the Fishers that back-propagate one direction, in epochs."""
    found = {}
    for kind in ONE_DIRECTION:
        case = Case(name, examples, SAMPLES, device, kind)
        seconds = fastest(
            {
                "epoch": case.epoch,
                "factors": case.factors,
                "recipe": partial(case.gradient, RECIPE[name]),
            },
            device,
            rounds,
        )
        passes = seconds["factors"] + seconds["recipe"]
        found[f"recipe, {kind}"] = passes / seconds["epoch"]
    return found


def against_peers(examples: int, device: torch.device, rounds: int) -> dict[str, Any]:
    """Pass one without augmentation, MLP, batches of 500, beside the public libraries."""
    case = Case(BESIDE_PEERS, examples, 1, device)
    batches = list(zip(case.images.split(500), case.labels.split(500), strict=True))

    @torch.no_grad()
    def evidence() -> float:
        whole = [Batch(inputs, labels, Copies(1)) for inputs, labels in batches]
        return float(case.evidence.value(case.evidence.fit(whole)))

    def factors() -> float:
        for inputs, _ in batches:
            case.evidence.curvature.batch(inputs, Copies(1), case.likelihood).factors()
        return math.nan

    ours = {"isotropy": evidence, "isotropy, factors only": factors}
    return peers.measure(case.network, batches, ours, lambda tasks: fastest(tasks, device, rounds))


def run(examples: int, rounds: int, device: torch.device) -> dict[str, Any]:
    """Everything, as one JSON object."""
    torch.manual_seed(0)
    with multiplying_in("tf32", device):
        steps = {name: evidence_over_epoch(name, examples, device, rounds) for name in RECIPE}
        beside = against_peers(2 * examples, device, rounds)
    return {
        "benchmark": "evidence",
        "examples": examples,
        "samples": SAMPLES,
        **provenance(device),
        "evidence_over_epoch": steps,
        "peers": beside,
        "goals": goals(steps, beside),
    }


def goals(steps: dict[str, dict[str, float]], beside: dict[str, Any]) -> list[dict[str, Any]]:
    """What is claimed of both networks, and of the peers that are installed."""
    found = [
        goal(f"evidence step, {name}, {part}", steps[name][part], most, at="most", unit="epochs")
        for name, wanted in GOALS.items()
        for part, most in wanted.items()
    ]
    for name, least in PEER_GOALS.items():
        row = beside.get(name)
        if isinstance(row, dict):
            what = f"pass one without augmentation against {name}"
            ratio = row["over_isotropy"]
            found.append(goal(what, ratio, least, at="least", unit="times as fast"))
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = options_of(__doc__, rounds=3)
    add_device(parser)
    parser.add_argument("--examples", type=int, default=1000)
    options = parser.parse_args(arguments)
    report = run(options.examples, options.rounds, options.device)
    publish(report, options, _table(report))


def _table(report: dict[str, Any]) -> str:
    lines = [
        f"{report['device_name']}: evidence step in plain epochs, S = {SAMPLES}, "
        f"N = {report['examples']}"
    ]
    for name, row in report["evidence_over_epoch"].items():
        parts = "  ".join(f"{key} {row[key]:.2f}" for key in COLUMNS)
        lines.append(f"  {name:4} {parts}")
    lines.append("pass one without augmentation")
    for name, row in report["peers"].items():
        if isinstance(row, str):
            lines.append(f"  {name:22} {row}")
        else:
            lines.append(
                f"  {name:22} {row['seconds']:.3f} s ({row['over_isotropy']:.2f}× ours)  "
                f"log evidence {row['log_evidence']}"
            )
    return "\n".join([*lines, *goal_lines(report)])


if __name__ == "__main__":
    main()
