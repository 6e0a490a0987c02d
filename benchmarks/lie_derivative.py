"""What measuring equivariance costs, in plain forward passes of the same network.

    one direction      the Lie derivative of the whole network, one transformation
    with its floor     the same, with what resampling alone contributes
    eight directions   the affine transformations of the Lie derivative paper together, each
    double backward    one direction as the published code does it: the derivative by t of the moved
                       network is back-propagated twice (on one side of the kink at t = 0)

and layer by layer, for one direction: contributions of all operations, exactly ("forward"), and by
32 random probes with exact shares ("probes"), against 100 probe passes of the published kind, each
a forward pass and a backward pass from a random z. Ours go in the batches of `isotropy.measure`. Of
the probe passes a few are timed and multiplied, all images at once and without the Lie derivatives
of single layers that the published code computes on the way: the comparison flatters it.

The network has the size of a ResNet-18 (11.7 million parameters, 1000 classes), random weights and
random running statistics; 20 images of 224×224 by default. The published code needs 6.4 forward
passes for one direction. Ratios hold within one run.

    python -m benchmarks.lie_derivative [--json] [--images 20] [--size 224] [--rounds 3]

Gruver, Finzi, Goldblum, Wilson, The Lie derivative for measuring learned equivariance (2023).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

if __package__ in (None, ""):  # run as a file: the folder above is where `benchmarks` is found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import fastest, goal, goal_lines, options_of, publish
from isotropy.equivariance.attribution import Attribution, LayerSettings, attribute
from isotropy.equivariance.layouts import Invariant
from isotropy.equivariance.lie_derivative import lie_derivatives
from isotropy.equivariance.measurement import default_batch
from isotropy.equivariance.subject import Subject
from isotropy.records import provenance
from isotropy.symmetry.actions.images import affine

CLASSES = 1000
PUBLISHED_PROBES = 100
TIMED_PROBES = 3
PROBES = 32
DIRECTIONS = (
    "translation_x", "translation_y", "rotation", "shear_x", "scale", "scale_x", "scale_y",
    "hyperbolic_rotation",
)  # fmt: skip
GOALS = {"one direction": 3.5, "layerwise": 5.0}
"""At most so many forward passes, and at least so many times cheaper than the probe passes."""


class BasicBlock(nn.Module):
    """Two convolutions and a way round them."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.relu2 = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels_in != channels:
            narrow = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(narrow, nn.BatchNorm2d(channels))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.relu1(self.norm1(self.conv1(inputs)))
        return self.relu2(self.norm2(self.conv2(hidden)) + self.shortcut(inputs))


def resnet18() -> nn.Sequential:
    """A network of the size and operations of ResNet-18, in evaluation mode."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    channels_in = 64
    for stage in range(4):
        channels = 64 * 2**stage
        for block in range(2):
            layers.append(BasicBlock(channels_in, channels, 2 if stage and not block else 1))
            channels_in = channels
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES)]
    network = nn.Sequential(*layers)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(0, 0.1)
                assert module.running_mean is not None and module.running_var is not None
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
    return network.eval().requires_grad_(False)


class Case:
    """The network and images, and every way of measuring them."""

    def __init__(self, images: int, size: int, device: torch.device) -> None:
        torch.manual_seed(0)
        self.network = resnet18().to(device)
        self.subject = Subject(self.network, on="probabilities")
        self.images = torch.rand(images, 3, size, size).to(device)
        self.all = affine(DIRECTIONS, padding="reflection")
        self.one = affine(DIRECTIONS[:1], padding="reflection")

    def forward(self) -> Tensor:
        """A plain forward pass: the unit of everything else."""
        with torch.no_grad():
            return self.subject(self.images)

    def derivative(self, *, together: bool = False, with_floor: bool = False) -> Tensor:
        """Lie derivatives (directions, images, classes), in one direction or in all together."""
        action = self.all if together else self.one
        directions = torch.eye(action.coordinate_count).to(self.images)
        with torch.no_grad():
            found = lie_derivatives(
                self.subject, self.images, action, directions, Invariant(), with_floor=with_floor
            )
        return found.derivatives

    def double_backward(self) -> Tensor:
        """d/dt f(moved by t) at t = 0, by back-propagating the back-propagated derivative."""
        amount = torch.zeros((), requires_grad=True, device=self.images.device)
        outputs = self.subject(shifted(self.images, amount))
        cotangent = torch.zeros_like(outputs, requires_grad=True)
        (gradient,) = torch.autograd.grad(outputs, amount, cotangent, create_graph=True)
        (derivative,) = torch.autograd.grad(gradient, cotangent)
        return derivative

    def layers(self, method: str) -> list[Attribution]:
        """Contributions of all operations in one direction, with the whole derivative.

        In the batches in which `isotropy.measure` does it.
        """
        derivatives = self.derivative()
        directions = torch.eye(1).to(self.images)
        size = default_batch(self.images)
        return [
            attribute(
                self.subject, self.images[start : start + size], self.one, directions,
                derivatives[:, start : start + size], Invariant(),
                LayerSettings(method, PROBES), torch.Generator().manual_seed(0),
            )
            for start in range(0, len(self.images), size)
        ]  # fmt: skip

    def probe_passes(self) -> None:
        """A few passes forward, and back from a random z."""
        for _ in range(TIMED_PROBES):
            outputs = self.subject(self.images.clone().requires_grad_())
            outputs.backward(torch.randn_like(outputs))


def shifted(images: Tensor, amount: Tensor) -> Tensor:
    """Images moved along x by `amount` half widths: straight lines, mirrored at the border."""
    last = images.shape[3] - 1
    places = torch.arange(last + 1, device=images.device) - amount * last / 2
    places = last - (last - places % (2 * last)).abs()
    left = places.detach().floor().clamp(0, last - 1).long()
    share = places - left
    return images[..., left] * (1 - share) + images[..., left + 1] * share


def run(images: int, size: int, rounds: int, device: torch.device) -> dict[str, Any]:
    """Everything, as one JSON object."""
    case = Case(images, size, device)
    seconds = fastest(
        {
            "forward": case.forward,
            "one direction": case.derivative,
            "with its floor": lambda: case.derivative(with_floor=True),
            "eight directions": lambda: case.derivative(together=True),
            "double backward": case.double_backward,
            "layers, forward": lambda: case.layers("forward"),
            "layers, probes": lambda: case.layers("probes"),
            "probe passes": case.probe_passes,
        },
        device,
        rounds,
    )
    unit = seconds["forward"]
    published = seconds["probe passes"] * PUBLISHED_PROBES / TIMED_PROBES
    exact = case.layers("forward")
    directions = {
        "one direction": seconds["one direction"] / unit,
        "with its floor": seconds["with its floor"] / unit,
        "eight directions": seconds["eight directions"] / unit / len(DIRECTIONS),
        "double backward": seconds["double backward"] / unit,
    }
    methods = {
        name: {
            "forwards": seconds[f"layers, {name}"] / unit,
            "times_cheaper": published / seconds[f"layers, {name}"],
        }
        for name in ("forward", "probes")
    }
    return {
        "benchmark": "lie_derivative",
        "images": images,
        "size": size,
        "parameters": sum(p.numel() for p in case.network.parameters()),
        "threads": torch.get_num_threads(),
        **provenance(device),
        "forward_seconds": unit,
        "forwards_per_direction": directions,
        "layerwise": {
            "batch": default_batch(case.images),
            "operations": len(exact[0].rows),
            "judged": int((exact[0].norms > 0).flatten(1).any(1).sum()),
            "closure": max(float(each.closure.max()) for each in exact),
            f"{PUBLISHED_PROBES} probe passes, in forwards": published / unit,
            "timed probe passes": TIMED_PROBES,
            **methods,
        },
        "goals": goals(directions, methods),
    }


def goals(
    directions: dict[str, float], methods: dict[str, dict[str, float]]
) -> list[dict[str, Any]]:
    """What is claimed of one direction, and of both ways to go layer by layer."""
    one = "one direction"
    return [
        goal(
            f"Lie derivative, {one}", directions[one], GOALS[one], at="most", unit="forward passes"
        ),
        *(
            goal(
                f"layer by layer, {name}, against {PUBLISHED_PROBES} probe passes",
                row["times_cheaper"],
                GOALS["layerwise"],
                at="least",
                unit="times as fast",
            )
            for name, row in methods.items()
        ),
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = options_of(__doc__, rounds=3)
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--size", type=int, default=224)
    options = parser.parse_args(arguments)
    report = run(options.images, options.size, options.rounds, torch.device("cpu"))
    publish(report, options, _table(report))


def _table(report: dict[str, Any]) -> str:
    size, layers = report["size"], report["layerwise"]
    lines = [
        f"{report['device_name']}, {report['threads']} threads: {report['images']} images of "
        f"{size}×{size}, a forward pass takes {report['forward_seconds']:.2f} s"
    ]
    for name, ratio in report["forwards_per_direction"].items():
        lines.append(f"  {name:18} {ratio:6.2f} forward passes per direction")
    probes = layers[f"{PUBLISHED_PROBES} probe passes, in forwards"]
    lines.append(
        f"layer by layer, {layers['operations']} operations, one direction; {PUBLISHED_PROBES} "
        f"probe passes are {probes:.0f} forward passes (from {TIMED_PROBES})"
    )
    for name in ("forward", "probes"):
        row = layers[name]
        lines.append(
            f"  {name:18} {row['forwards']:6.1f} forward passes, {row['times_cheaper']:.1f} times "
            "cheaper"
        )
    return "\n".join([*lines, *goal_lines(report)])


if __name__ == "__main__":
    main()
