"""Figures 1 to 5 of Zhang and Arodz, "Learning Invariance in Deep Neural Networks".

Rows of figures 1 to 3 are supervised, FIGURE/PART/TASK/NETWORK-LAYERS/d/RATE: the code of a vector
x from U[−1, 1]^d is told, modulus and phase (task `phase`) or modulus, sine and cosine (`sine`) of
all d bins of its Fourier transform, and the encoder, the decoder or both are trained, the latter on
8 ‖f(x) − z*‖² + ‖x − g(f(x))‖². Rows of figures 4 and 5 and of `same` are those of
`isotropy.represent`, FIGURE/DISTORTION/NETWORK/d, with the paper's distances d* or with the
information which samples are the same. Settings are in `representations.toml`; the paper has
curves and few numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.data.pairs import demo_data
from isotropy.experiments.runner import Job, Series, geometric_means
from isotropy.kernels.captured import adam, set_rate
from isotropy.networks.invariant_autoencoder import INVARIANCE_WEIGHT
from isotropy.networks.rich_layer import RICH, network_for
from isotropy.workflows.representing import RepresentConfig, represent

PARTS = {"phase": ("modulus", "phase"), "sine": ("modulus", "sine", "cosine")}
"""Of the code, by task."""
KEPT = (
    "retrieval", "retrieval_raw", "auc", "within_over_between", "reconstruction_mse", "loss_share",
    "over_invariance", "permutation_changes", "classes_kept", "held_out_entities", "steps",
    "seconds",
)  # fmt: skip
"""What a row keeps of the record of `represent`."""


def jobs(table: Mapping[str, Any], quick: bool) -> list[Job]:
    """Every row of every figure."""
    changed = table["quick"] if quick else {}
    found = []
    for figure in table["figures"]:
        own = {**table["settings"], **figure, **changed}
        lists = [own.pop(key) for key in ("parts", "tasks", "networks", "sizes", "rates")]
        for part, task, network, size, rate in product(*lists):
            name, _, layers = network.partition("-")
            settings = {
                **own, "part": part, "task": task, "network": name, "size": size, "rate": rate,
                "layers": int(layers),
            }  # fmt: skip
            row = f"{own['figure']}/{part}/{task}/{network}/{size}/{rate:g}"
            cost = own["steps"] * settings["layers"] * size * (3.0 if name == RICH else 1.0)
            found.append(Job(row, tuple(own["seeds"]), settings, cost, own["rank"]))
    for figure in table["pairs"]:
        own = {**table["settings"], **figure, **changed}
        names = [network.partition("-")[0] for network in own["networks"]]
        for distortion, network, size in product(own["distortions"], names, own["sizes"]):
            steps = own["steps"] if quick else own["steps_of"].get(distortion, own["steps"])
            settings = {**own, "part": None, "task": distortion, "network": network, "size": size}
            row = f"{own['figure']}/{distortion}/{network}/{size}"
            settings["steps"] = steps
            found.append(Job(row, tuple(own["seeds"]), settings, steps * size, own["rank"]))
    return list({job.row: job for job in found}.values())  # quick ones coincide


def run(job: Job, device: torch.device) -> list[dict[str, Any]]:
    """Train the seeds of one row; the numbers of each."""
    own = job.settings
    described = {key: own[key] for key in ("figure", "part", "task", "network", "size")}
    train = _represented if own["part"] is None else _supervised
    return [{**described, **train(own, seed, device)} for seed in job.seeds]


# --- figures 1 to 3 ---------------------------------------------------------------------------


def code_of(samples: Tensor, task: str) -> Tensor:
    """The paper's z* (samples, parts · d) of vectors (samples, d): all bins, unnormalised."""
    transform = torch.fft.fft(samples.double())
    modulus, phase = transform.abs(), transform.angle()
    parts = (modulus, phase) if task == "phase" else (modulus, phase.sin(), phase.cos())
    return torch.cat(parts, 1).to(samples.dtype)


def _supervised(own: Mapping[str, Any], seed: int, device: torch.device) -> dict[str, Any]:
    """Mean square errors of the parts of the code, and of the reconstruction, on test vectors."""
    started = time.perf_counter()
    size, task, part = own["size"], own["task"], own["part"]
    generator = torch.Generator().manual_seed(seed)
    count = own["samples"] + own["test_samples"]
    vectors = (2 * torch.rand(count, size, generator=generator) - 1).to(device)
    codes = code_of(vectors, task)
    x, z = vectors[: own["samples"]], codes[: own["samples"]]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        named = own["network"], own["layers"]
        encoder = network_for(named[0], size, z.shape[1], named[1], 8 * size).to(device)
        decoder = network_for(named[0], z.shape[1], size, named[1], 8 * size).to(device)

    def errors(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Of the code (samples, parts · d) and of the reconstruction, zero where not trained."""
        zero = x.new_zeros(1, 1)
        if part == "decoder":
            return zero, decoder(z) - x
        found = encoder(x)
        return found - z, (decoder(found) - x if part == "autoencoder" else zero)

    weight = INVARIANCE_WEIGHT if part == "autoencoder" else 1.0
    alone = {"encoder": [encoder], "decoder": [decoder]}
    trained = nn.ModuleList(alone.get(part, [encoder, decoder]))
    optimiser = adam(list(trained.parameters()), rate=own["rate"])
    for step in range(own["steps"]):
        set_rate(optimiser, own["rate"] * (1 + math.cos(math.pi * step / own["steps"])) / 2)
        chosen = torch.randint(len(x), (own["batch_size"],), generator=generator).to(device)
        of_code, of_sample = errors(x[chosen], z[chosen])
        optimiser.zero_grad()
        (weight * of_code.square().mean() + of_sample.square().mean()).backward()
        nn.utils.clip_grad_norm_(trained.parameters(), own["largest_gradient"])
        optimiser.step()
    with torch.no_grad():
        of_code, of_sample = errors(vectors[own["samples"] :], codes[own["samples"] :])
    found: dict[str, Any] = {"code_mse": None, "turning_mse": None, "parts_mse": None}
    if part != "decoder":
        by_part = of_code.square().mean(0).view(-1, size)
        names = zip(PARTS[task], by_part.mean(1).tolist(), strict=True)
        found = {
            "code_mse": float(by_part.mean()),
            "turning_mse": float(by_part[:, turning_bins(size)].mean()),
            "parts_mse": dict(names),
        }
    return {
        "layers": own["layers"],
        "rate": own["rate"],
        "steps": own["steps"],
        **found,
        "reconstruction_mse": None if part == "encoder" else float(of_sample.square().mean()),
        "seconds": time.perf_counter() - started,
    }


def turning_bins(size: int) -> list[int]:
    """Bins whose phase takes every value; of bin 0 and, for even d, d/2 it is 0 or π, a step."""
    return [each for each in range(size) if 2 * each % size]


# --- figures 4 and 5, and same or not ---------------------------------------------------------


def _represented(own: Mapping[str, Any], seed: int, device: torch.device) -> dict[str, Any]:
    split, classes = demo_data(own["task"], own["size"], seed, distances=own["distances"])
    settings = {key: own[key] for key in ("network", "steps", "batch_size")}
    rate = own["rate_of"].get(own["network"], own["rate"])
    config = RepresentConfig(seed=seed, rate=rate, **settings)
    record = represent(split, classes=classes, config=config, device=device).record
    return {"rate": rate, **{key: record[key] for key in KEPT}}


# --- what came out ----------------------------------------------------------------------------


def best_rates(
    records: Sequence[Mapping[str, Any]], part: str, task: str, number: str
) -> dict[int, dict[str, float]]:
    """By size and network-layers, the geometric mean over seeds at the best rate."""
    chosen = [
        {**each, "kind": f"{each['network']}-{each['layers']}"}
        for each in records
        if each["part"] == part and each["task"] == task
    ]
    means = geometric_means(chosen, number, "size", "kind", "rate")
    return {
        size: {kind: min(by_rate.values()) for kind, by_rate in kinds.items()}
        for size, kinds in means.items()
    }


def goals(records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """What the figures must show, and whether these records do."""
    found: dict[str, bool] = {}
    decoders = best_rates(records, "decoder", "sine", "reconstruction_mse")
    for size, kinds in best_rates(records, "encoder", "sine", "code_mse").items():
        rich = [error for kind, error in kinds.items() if kind.startswith(RICH)]
        others = {kind: error for kind, error in kinds.items() if not kind.startswith(RICH)}
        if rich and others:
            lead = min(others.values()) / min(rich)
            found[f"rich layers are 10 times below others at d = {size} ({lead:.1f})"] = lead >= 10
        shared = [kind for kind in others if kind in decoders.get(size, {})]
        if shared:
            harder = all(others[kind] > decoders[size][kind] for kind in shared)
            found[f"encoders are harder than decoders at d = {size}"] = harder
    pairs = [each for each in records if each["part"] is None and each["network"] == RICH]
    same = [each for each in pairs if each["figure"] == "same"]
    with_distances = [each for each in pairs if each["figure"] != "same"]
    digits = [each for each in same if each["task"] == "digits"]
    small = [each for each in same if each["size"] == 10]
    shifts = [each for each in same if each["size"] == 20 and each["task"] == "shift"]
    vectors = [*small, *shifts]
    moved = [{**each, **(each.get("permutation_changes") or {})} for each in vectors]
    for what, chosen, name, limit in (
        ("at least 95 % found at d = 10", small, "retrieval", 0.95),
        ("at least 90 % found under shifts at d = 20", shifts, "retrieval", 0.9),
        ("at least 97 % of unseen turned digits found", digits, "retrieval", 0.97),
        ("at most 0.02 within / between", vectors, "within_over_between", 0.02),
        ("at most 1e-3 reconstruction error", vectors, "reconstruction_mse", 1e-3),
        ("at most 0.02 change at permutations that were found", moved, "found", 0.02),
        ("at least 0.2 change at random permutations", moved, "random", 0.2),
        ("at most 120 seconds", same, "seconds", 120),
        ("at most 10 % of a constant's loss with d*", with_distances, "loss_share", 0.1),
    ):
        known = [each for each in chosen if name in each]
        if known:
            is_least = what.startswith("at least")
            worst = (min if is_least else max)(known, key=lambda each: each[name])
            told = f"{what} ({worst[name]:.3g}: {worst['row']}, seed {worst['seed']})"
            found[told] = worst[name] >= limit if is_least else worst[name] <= limit
    return found


def summary(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Goals, and errors by network."""
    lines = [f"{'holds' if holds else 'FAILS'}: {what}" for what, holds in goals(records).items()]
    told = [
        (part, task, "reconstruction_mse" if part == "decoder" else "code_mse", "")
        for part, task in product(("encoder", "decoder", "autoencoder"), PARTS)
    ]
    told.append(("encoder", "sine", "turning_mse", ", bins whose phase turns"))
    for part, task, number, which in told:
        for size, kinds in best_rates(records, part, task, number).items():
            errors = ", ".join(f"{kind} {error:.1e}" for kind, error in sorted(kinds.items()))
            lines.append(f"{part}, {task}, d = {size}{which}: {errors}")
    return lines


SERIES = Series(jobs, run, summary, apart=True)
