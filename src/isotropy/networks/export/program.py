"""The averaged network as one program of torch.export, which runs without this library.

    f̂(x) = Σ_s w_s f(g(a_s) x)            the a_s drawn once and baked in, the same for every image

The program is deterministic, has the weights of the network and the copies in it, and takes batches
of any size. With `noise_as_input` it takes the noise as a second input instead.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from isotropy.checks import CallerError
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.averaging.mixtures import Mixture

SUFFIX = ".pt2"


def export_model(
    model: InvariantModel,
    example: Tensor,
    path: str | Path | None = None,
    *,
    samples: int | None = None,
    generator: torch.Generator | None = None,
    noise_as_input: bool = False,
) -> ExportedProgram:
    """The averaged network as a program from inputs (batch, …) to outputs (batch, outputs).

    example    inputs of the right shape, one or more; only shape, dtype and device matter
    path       a .pt2 file to save it to (`torch.export.load` opens it)
    samples    copies per input; the model's own number by default
    generator  where the copies are drawn from: program(x) is model(x, noise) with
               noise = model.noise(1, samples=samples, generator=generator) for every input.
               None: the fixed copies of evaluation mode, program(x) is model.eval()(x)
    noise_as_input  a program of (inputs, noise) with noise (batch, copies, numbers) as
               `model.noise` draws it, and nothing drawn here

    The network is exported as it is in evaluation mode; the model itself is left as it was. Raises
    CallerError for elements that draw by themselves, and torch's own errors for networks that it
    cannot trace or that depend on the size of the batch.
    """
    file = None if path is None else _checked(Path(path))
    if example.ndim < 2 or len(example) < 1:
        raise CallerError(
            f"example: expected a batch of inputs (batch, …), got {tuple(example.shape)}; one "
            "input is x[None]"
        )
    augmentation = model.augmentation
    if isinstance(augmentation, Mixture):
        for action in augmentation.finite:
            if action.is_random:
                raise CallerError(
                    f"{action.name}: expected elements that are the same each time, got one that "
                    "draws by itself, which a fixed program cannot; leave it out, or export "
                    "model.network alone"
                )
    noise = (
        model.fixed_noise(1, samples=samples)
        if generator is None
        else model.noise(1, samples=samples, generator=generator)
    )
    # Asked for a gradient, an augmentation does not look whether its ranges happen to be zero,
    # which would be a branch on data.
    frozen = copy.deepcopy(model).eval().requires_grad_(False)
    frozen.augmentation.requires_grad_(True)
    # One example would make torch take the batch for a constant.
    inputs = example.detach()[:1].repeat(2, *(1 for _ in example.shape[1:]))
    batch = Dim("batch")
    with torch.enable_grad():
        if noise_as_input:
            shapes = {"inputs": {0: batch}, "noise": {0: batch}}
            given = (inputs, noise.repeat(2, 1, 1))
            program = torch.export.export(frozen, given, dynamic_shapes=shapes)
        else:
            program = torch.export.export(
                _NoiseFixed(frozen, noise), (inputs,), dynamic_shapes={"inputs": {0: batch}}
            )
    for parameter in program.parameters():
        parameter.requires_grad_(False)
    if file is not None:
        _save(program, file)
    return program


class _NoiseFixed(nn.Module):
    """The same copies of every input."""

    def __init__(self, model: InvariantModel, noise: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("noise", noise)

    noise: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs, self.noise.expand(inputs.shape[0], -1, -1))


def _checked(path: Path) -> Path:
    if path.suffix != SUFFIX:
        raise CallerError(f"path: expected a name that ends in {SUFFIX}, got {path.name!r}")
    if not path.parent.is_dir():
        raise CallerError(f"path: expected an existing folder, got {path.parent}; create it first")
    return path


def _save(program: ExportedProgram, path: Path) -> None:
    """Written beside its place and moved into it, so that nothing half written has the name."""
    partial = path.with_name(f".{path.stem}-{os.getpid()}{SUFFIX}")
    try:
        torch.export.save(program, partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
