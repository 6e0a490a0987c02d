"""Soft symmetry: Figure 3.2, the wind sweep, section 3.5.2 and Table 3.1 of Finzi (2023).

Rows are PROBLEM/NETWORK, and PROBLEM/rpp/λ for other priors: `inertia-exact/rpp`,
`pendulum-approximate/emlp`, `narrow-misspecified/rpp/1e-05`, `table-wine/conv`. `narrow` is inertia
with 64 channels, where every prior is tried, and `inertia` has the thesis's 384. Settings and
published numbers are in `soft_symmetry.toml`. Networks:

    mlp          no symmetry
    emlp         the group as a constraint; of tables conv, translations
    rpp          both in one layer, a prior on each:  loss + λ Σ θ² + λ_e Σ θ_e²,  λ of what is free
    rpp-learned  the same, the prior precisions learned from the evidence (`learn_layers`)
    rpp-trivial  a control: rpp of the trivial group, two matrices a layer and no symmetry

The seeds of a row are trained together, but for learned ones. They are the deep ensemble of 3.5.2:
`equivariance_by_epoch` of the seeds is the posterior of the equivariance error (Eq. 3.3).

The pendulum is learned as a Hamiltonian network by rollouts (`dynamics`), its error is that of
rollouts. Learned precisions need a regression: there targets are energies, and errors mean squares.
Rows of tables are regressions on them as images; errors of `table-cifar-10` are percent of images.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median, stdev
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.data.labelled import LabelledData
from isotropy.data.readers import read
from isotropy.data.table_images import table_images
from isotropy.evidence.layers.settings import RelaxConfig, precision_of
from isotropy.evidence.layers.structure import free_parameters, pathway_prefix, relaxed_layers
from isotropy.evidence.predictive import plain_scores
from isotropy.evidence.settings import cosine
from isotropy.evidence.training import Trainer
from isotropy.experiments.runner import Job, Series, goal_lines
from isotropy.experiments.thesis.data_efficiency import (
    RegressionSettings,
    fit_regression,
    on_device,
)
from isotropy.experiments.thesis.dynamics import DynamicsSettings, fit_dynamics
from isotropy.experiments.thesis.problems import (
    STATE,
    Moved,
    RegressionData,
    initial_states,
    pendulum_data,
    pendulum_energies,
    regression_problem,
)
from isotropy.experiments.thesis.seed_stack import SeedStack, seed_records, seeded_network
from isotropy.kernels.captured import set_rate
from isotropy.likelihoods import Categorical
from isotropy.networks.pathways.relax import relax, relaxed_cnn
from isotropy.networks.pathways.relaxed_layer import FREE
from isotropy.networks.zoo.backbones import HamiltonianNetwork
from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.representations import Representation, Scalar
from isotropy.workflows.relaxing import CLOSED_PENALTY, learn_layers
from isotropy.workflows.runs.prepared import tensors_for

MLP, EMLP, RPP, LEARNED, TRIVIAL = "mlp", "emlp", "rpp", "rpp-learned", "rpp-trivial"
CONV, CONSTANT = "conv", "constant"
COST = {MLP: 1.0, EMLP: 4.0, RPP: 6.0, TRIVIAL: 3.0, LEARNED: 40.0, CONV: 2.0, CONSTANT: 0.0}
PENDULUM, TABLE, IMAGES = "pendulum", "table", "images"
WIDTHS = ("inertia", "narrow")
EXACT, APPROXIMATE, MISSPECIFIED = "exact", "approximate", "misspecified"
HEAD = "head"
ELEMENTS = 200
"""Examples, and as many elements of the group, by which the equivariance error is taken."""
DESCRIBED = ("problem", "symmetry", "network", "lambda", "data", "group", "wind")


def jobs(table: Mapping[str, Any], quick: bool) -> list[Job]:
    """Every problem and network of the table, and the other priors of `rpp`."""
    changed = dict(table["quick"]) if quick else {}
    chosen = changed.pop("problems", list(table["problems"]))
    seeds = tuple(changed.pop("seeds", table["seeds"]))
    seeds_of, priors = changed.pop("seeds_of", {}), changed.pop("lambdas", [])
    found = []
    for problem in chosen:
        about = dict(table["problems"][problem])
        about.setdefault("wind", None)
        kinds = about.pop("networks", table["networks"])
        of_problem = tuple(about.pop("seeds", seeds)) if not quick else seeds
        published = about.pop("published", {})
        others = about.pop("lambdas", []) if not quick else priors
        own = {**table["settings"], **table.get(about["data"], {}), **about, **changed}
        rows = [(network, own["lambda"]) for network in kinds] + [(RPP, each) for each in others]
        for place, (network, penalty) in enumerate(rows):
            settings = {**own, "problem": problem, "network": network, "lambda": penalty}
            settings["published"] = published.get(network)
            if not network.startswith(RPP) or network == LEARNED:
                settings["lambda"] = None
            row = f"{problem}/{network}" + (f"/{penalty:g}" if place >= len(kinds) else "")
            own_seeds = tuple(seeds_of.get(network, of_problem))
            found.append(Job(row, own_seeds, settings, COST[network] * own["epochs"]))
    return found


def run(job: Job, device: torch.device) -> list[dict[str, Any]]:
    """Train the seeds of one row; the numbers of each."""
    own = job.settings
    if own["data"] == TABLE:
        found = _tables(job, device)
    elif own["data"] == IMAGES:
        found = _images(own, job.seeds, device)
    elif own["network"] == LEARNED:
        found = [_learned(own, seed, device) for seed in job.seeds]
    elif own["data"] == PENDULUM:
        found = _pendulums(job, device)
    else:
        found = _regressions(job, device)
    described = {key: own.get(key) for key in DESCRIBED}
    described |= {"published": own["published"], "channels": own["channels"]}
    empty: dict[str, Any] = {
        "equivariance_error": None,
        "free_precision": None,
        "equivariance_by_epoch": [],
    }
    return [{**described, **empty, **each} for each in found]


# -- networks and priors -----------------------------------------------------------------------


def soft_network(
    own: Mapping[str, Any], source: Representation, target: Representation, seed: int
) -> nn.Module:
    """The network of a row; source and target are not yet bound to a group."""
    group = group_named(own["group"])
    kind = own["network"]
    sizes = source(group).size, target(group).size
    word = {MLP: None, TRIVIAL: f"Trivial({group.dimension})"}.get(kind, own["group"])
    made = seeded_network(source, target, word, sizes, own, seed)
    return relax(made) if kind.startswith(RPP) else made


def penalties_of(network: nn.Module, free: float | None, equivariant: float) -> dict[str, float]:
    """λ by the names of parameters of relaxed layers: all that is free, and equivariant weights.

    A free bias breaks the symmetry as much as a free weight does. (The published code leaves it
    without a prior on inertia, and has one on the pendulum.)
    """
    found = dict.fromkeys(free_parameters(network), free or 0.0)
    for layer, module in relaxed_layers(network).items():
        for kind, pathway in module.members().items():
            if kind not in FREE:
                names = (pathway_prefix(layer, kind) + name for name in pathway.weights)
                found |= dict.fromkeys(names, equivariant)
    return found


def free_precisions(
    network: nn.Module, penalty: float, examples: int, outputs: int
) -> dict[str, float]:
    """δ = λ N D of what is free in each layer, for noise of one."""
    given = precision_of(penalty, examples=examples, outputs=outputs)
    return dict.fromkeys(relaxed_layers(network), given)


# -- regressions -------------------------------------------------------------------------------


def _problem(own: Mapping[str, Any], seed: int) -> RegressionData:
    generator = torch.Generator().manual_seed(seed)
    if own["data"] == PENDULUM:
        return pendulum_energies(3 * own["examples"], generator, own["wind"])
    return regression_problem(own["data"], generator, 3 * own["examples"])


@dataclass(frozen=True)
class _Errors:
    """Equivariance errors on held-out examples, at the end and as training goes on."""

    moved: Moved
    inputs: Tensor
    by_epoch: list[dict[str, Any]]

    @classmethod
    def of(cls, own: Mapping[str, Any], data: Sequence[RegressionData]) -> _Errors:
        group, generator = group_named(own["group"]), torch.Generator().manual_seed(0)
        inputs = torch.stack([each.inputs[-ELEMENTS:] for each in data])
        both = data[0].source(group), data[0].target(group)
        return cls(Moved.by(*both, inputs.shape[1], generator), inputs, [])

    def look(self, epoch: int, stack: SeedStack) -> None:
        with torch.no_grad():
            errors = self.moved.error(stack, self.inputs).tolist()
        self.by_epoch.append({"epoch": epoch, "errors": errors})

    @torch.no_grad()
    def at_the_end(self, networks: Sequence[nn.Module]) -> list[float]:
        each = zip(networks, self.inputs, strict=True)
        return [float(self.moved.error(network, inputs)) for network, inputs in each]

    def of_seed(self, seed: int, every: int) -> list[list[float]]:
        """[epoch, error], about ten of them."""
        return [[each["epoch"], each["errors"][seed]] for each in self.by_epoch[every - 1 :: every]]


def _regressions(job: Job, device: torch.device) -> list[dict[str, Any]]:
    own = job.settings
    data = [on_device(_problem(own, seed), device) for seed in job.seeds]
    networks = [
        soft_network(own, data[0].source, data[0].target, seed).to(device) for seed in job.seeds
    ]
    generators = [torch.Generator(device).manual_seed(seed) for seed in job.seeds]
    errors = _Errors.of(own, data)
    penalties = penalties_of(networks[0], own["lambda"], own["equivariant_lambda"])
    settings = RegressionSettings(
        **{key: own[key] for key in ("examples", "batch_size", "learning_rate", "epochs")},
        validation=own["examples"],
        test=own["examples"],
        penalties=penalties,
        annealed=own["annealed"],
    )
    found = fit_regression(networks, data, settings, generators, None, errors.look)
    every = max(1, len(errors.by_epoch) // 10)
    outputs = data[0].targets.shape[1]
    records = seed_records({}, networks, found)
    for index, (record, error) in enumerate(zip(records, errors.at_the_end(networks), strict=True)):
        record["equivariance_error"] = error
        record["equivariance_by_epoch"] = errors.of_seed(index, every)
        if own["lambda"] is not None:
            sizes = own["examples"], outputs
            record["free_precision"] = free_precisions(networks[index], own["lambda"], *sizes)
    return records


def _learned(own: Mapping[str, Any], seed: int, device: torch.device) -> dict[str, Any]:
    """One network whose precisions are learned; training and validation examples are those of
    the others, and the latter are not used."""
    data = on_device(_problem(own, seed), device)
    count = own["examples"]
    inputs = data.inputs / data.input_scale
    targets = (data.targets - data.target_mean) / data.target_scale
    train, test = (
        LabelledData(inputs[part], targets[part], None, own["problem"])
        for part in (slice(0, count), slice(-count, None))
    )
    network = soft_network(own, data.source, data.target, seed).to(device)
    config = RelaxConfig(seed=seed, **own["learned"])
    result = learn_layers(network, train, test, config=config, device=device)
    trained = result.model
    with torch.no_grad():
        squares = ((trained(test.inputs) - test.targets) * data.target_scale).square()
    return {
        "test_error": float(squares.mean()),
        "equivariance_error": _Errors.of(own, [data]).at_the_end([trained])[0],
        "free_precision": {
            layer["name"]: _free(layer["prior_precision"]) for layer in result.layers
        },
        "closed_precision": precision_of(CLOSED_PENALTY, examples=count, outputs=targets.shape[1]),
        "free_penalty": {layer["name"]: _free(layer["penalty"]) for layer in result.layers},
        "became": {layer["name"]: layer["became"] for layer in result.layers},
        "noise": result.record["noise"],
        "parameters": result.record["num_parameters"],
        "epochs": result.record["config"]["epochs"],
        "seconds": result.record["seconds"],
    }


def _free(by_kind: Mapping[str, float | None]) -> float | None:
    return next((value for kind, value in by_kind.items() if kind in FREE), None)


# -- the pendulum ------------------------------------------------------------------------------


def _pendulums(job: Job, device: torch.device) -> list[dict[str, Any]]:
    own = job.settings
    data, networks = [], []
    for seed in job.seeds:
        generator = torch.Generator().manual_seed(seed)
        data.append(pendulum_data(own["examples"], generator, own["wind"]).to(device))
        network = HamiltonianNetwork(soft_network(own, STATE, Scalar, seed))
        networks.append(network.to(device))
    settings = DynamicsSettings(
        epochs=own["epochs"],
        learning_rate=own["learning_rate"],
        duration=own["duration"],
        wind=own["wind"],
        penalties=penalties_of(networks[0], own["lambda"], own["equivariant_lambda"]),
    )
    found = fit_dynamics(networks, data, settings)
    state, drawn = STATE(group_named(own["group"])), torch.Generator().manual_seed(0)
    moved = Moved.by(state, state, ELEMENTS, drawn)
    states = initial_states(ELEMENTS, drawn).to(device)
    records = seed_records({}, networks, found)
    for index, record in enumerate(records):
        record["test_error"] = record["rollout_error"]
        error = moved.error(networks[index].double(), states)
        record["equivariance_error"] = float(error.detach())
        if own["lambda"] is not None:
            sizes = own["examples"], data[0].training[0, 1:].numel()
            record["free_precision"] = free_precisions(networks[index], own["lambda"], *sizes)
    return records


# -- tables ------------------------------------------------------------------------------------


def table_network(own: Mapping[str, Any], shape: tuple[int, ...], seed: int) -> nn.Module:
    """Convolutions of 3 × 3 with ReLU and one linear layer, or what becomes of them.

    mlp: the same sizes, fully connected; rpp: each convolution with a fully connected pathway
    """
    torch.manual_seed(seed)
    channels, pixels = own["channels"], shape[-2] * shape[-1]
    layers: list[nn.Module] = []
    width = shape[0]
    for _ in range(own["layers"]):
        if own["network"] == MLP:
            layers += [nn.Linear(width * pixels, channels * pixels), nn.ReLU()]
        else:
            layers += [nn.Conv2d(width, channels, 3, padding=1), nn.ReLU()]
        width = channels
    head = nn.Linear(channels * pixels, 1)
    if own["network"] == MLP:
        return nn.Sequential(nn.Flatten(), *layers, head)
    network = nn.Sequential(*layers, nn.Flatten(), head)
    return relax(network, ("fc", "conv"), example=shape) if own["network"] == RPP else network


def _tables(job: Job, device: torch.device) -> list[dict[str, Any]]:
    """Each seed is a known split of the table, the seed modulo the number of splits."""
    own, records = job.settings, []
    place = _place(own, "UCI")
    for seed in job.seeds:
        started = time.perf_counter()
        split = table_images(f"{place}/{own['table']}", split=seed % own["splits"])
        assert split.test is not None
        inputs, targets = split.train.inputs.to(device), split.train.targets.to(device)
        unseen, wanted = split.test.inputs.to(device), split.test.targets.to(device)
        centre, count = targets.mean(), 1
        predicted = centre
        if own["network"] != CONSTANT:
            network = table_network(own, tuple(inputs.shape[1:]), seed).to(device)
            middle, deviation = inputs.mean(0), inputs.std(0).clamp(min=1e-6)
            scaled = [(each - middle) / deviation for each in (inputs, unseen)]
            predicted = centre + _fitted(own, network, scaled[0], targets - centre, scaled[1])
            count = sum(each.numel() for each in network.parameters())
        error = float((predicted - wanted).square().mean())
        seconds = time.perf_counter() - started
        records.append({"test_error": error, "parameters": count, "seconds": seconds})
    return records


def _fitted(
    own: Mapping[str, Any], network: nn.Module, inputs: Tensor, targets: Tensor, unseen: Tensor
) -> Tensor:
    """Predictions of unseen inputs after training: Adam, the rate by a cosine to zero."""
    stack = SeedStack([network], own["learning_rate"])
    scale = targets.square().mean().sqrt()
    both = own["lambda"] or 0.0, own["equivariant_lambda"]  # beside errors in the targets' own unit
    penalties = penalties_of(network, *(each / float(scale) ** 2 for each in both))
    for epoch in range(own["epochs"]):
        set_rate(stack.optimiser, cosine(own["learning_rate"], 0.0, epoch / own["epochs"]))
        losses = (stack(inputs[None]) - targets / scale).square().mean((1, 2))
        stack.step(losses + stack.penalty(penalties))
    with torch.no_grad():
        return stack(unseen[None])[0] * scale


PATHWAYS = {MLP: ("fc",), CONV: ("conv",), RPP: ("fc", "conv")}


def _images(
    own: Mapping[str, Any], seeds: Sequence[int], device: torch.device
) -> list[dict[str, Any]]:
    """The network of eight stages of `networks.pathways.relax`, errors in percent. λ is beside the
    mean cross-entropy, δ = 2 λ N."""
    split = read(_place(own, "CIFAR-10"))
    assert split.test is not None  # it is of the data set
    examples, on_gpu = len(split.train), device.type == "cuda"
    free = None if own["lambda"] is None else 2 * own["lambda"] * examples
    other = 2 * own["equivariant_lambda"] * examples
    records = []
    for seed in seeds:
        schedule = RelaxConfig(
            objective="map", seed=seed, prior_precision=other, free_precision=free, **own["trained"]
        ).resolved(examples=examples, on_gpu=on_gpu)
        network = relaxed_cnn(
            split.train.inputs.shape[1:],
            split.train.num_outputs,
            pathways=PATHWAYS[own["network"]],
            width=own["channels"],
            generator=torch.Generator().manual_seed(seed),
        ).to(device)
        # Without `learn_layers`, whose evidence takes as long as training and decides nothing here.
        likelihood = Categorical().to(device)
        trainer = Trainer(network, likelihood, schedule, *tensors_for(network, split.train, device))
        for _ in range(schedule.epochs):
            trainer.run_epoch()
        scores = plain_scores(network, likelihood, *tensors_for(network, split.test, device))
        assert scores.accuracy is not None
        found: dict[str, Any] = {
            "test_accuracy": scores.accuracy,
            "test_nll": -scores.log_likelihood,
            "test_error": 100 * (1 - scores.accuracy),
            "seconds": trainer.seconds,
            "parameters": sum(each.numel() for each in network.parameters()),
        }
        if free is not None:
            found["free_precision"] = dict.fromkeys(relaxed_layers(network), free)
        records.append(found)
    return records


def _place(own: Mapping[str, Any], name: str) -> str:
    """Where data are that do not come with the package."""
    places: Mapping[str, str] = own.get("places", {})
    if name not in places:
        raise CallerError(f"expected to be told where {name} is; use --data {name}=FOLDER")
    return places[name]


# -- what came out -----------------------------------------------------------------------------


def medians(records: Sequence[Mapping[str, Any]], number: str) -> dict[str, dict[str, float]]:
    """{problem: {network, or network/λ for other priors: median over seeds of this number}}."""
    grouped: dict[str, dict[str, list[float]]] = {}
    for record in records:
        value = record[number]
        if value is not None and value == value:
            name = record["row"].removeprefix(f"{record['problem']}/")
            grouped.setdefault(record["problem"], {}).setdefault(name, []).append(value)
    return {
        problem: {name: median(values) for name, values in own.items()}
        for problem, own in grouped.items()
    }


def goals(records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """What soft symmetry should show, and whether these records do; only what they can answer."""
    told: dict[str, bool] = {}
    for problem, own in medians(records, "test_error").items():
        if problem.partition("-")[0] not in WIDTHS:
            continue
        told |= {f"{problem}: {what}": holds for what, holds in compared(problem, own, RPP).items()}
        fixed = [error for name, error in own.items() if name.split("/")[0] == RPP]
        if LEARNED in own and fixed:
            near = own[LEARNED] <= 2 * min(fixed)
            told[f"{problem}: learned within 2 × of the best fixed λ"] = near
    return told | _of_precisions(records) | _of_posteriors(records) | _of_tables(records)


def compared(problem: str, errors: Mapping[str, float], name: str) -> dict[str, bool]:
    """Whether rpp of a prior, by the name of its row, is where it should be beside emlp and mlp."""
    rpp, emlp, mlp = (errors.get(each) for each in (name, EMLP, MLP))
    if not (rpp and emlp and mlp):
        return {}
    if problem.endswith(EXACT):
        return {"RPP at most 1.2 × EMLP": rpp <= 1.2 * emlp}
    if problem.endswith(APPROXIMATE):
        return {"RPP below EMLP": rpp < emlp, "RPP at most a third of MLP": 3 * rpp <= mlp}
    return {
        "RPP at most 1.3 × MLP": rpp <= 1.3 * mlp,
        "RPP at most a third of EMLP": 3 * rpp <= emlp,
    }


def sufficient_priors(records: Sequence[Mapping[str, Any]], width: str) -> list[str]:
    """The rows' names of those priors with which all that is compared holds, on every problem."""
    errors = medians(records, "test_error")
    problems = [f"{width}-{each}" for each in (EXACT, APPROXIMATE, MISSPECIFIED)]
    if any(problem not in errors for problem in problems):
        return []
    names = [name for name in errors[problems[0]] if name.split("/")[0] == RPP]
    found = {name: [compared(each, errors[each], name) for each in problems] for name in names}
    return [n for n, told in found.items() if all(t and all(t.values()) for t in told)]


def _of_tables(records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """Means over splits or seeds beside the standard deviation of the better rival."""
    by_row: dict[str, list[float]] = {}
    for record in records:
        by_row.setdefault(record["row"], []).append(record["test_error"])
    told = {}
    for problem in dict.fromkeys(record["problem"] for record in records):
        rivals = [by_row.get(f"{problem}/{name}", []) for name in (MLP, CONV)]
        own = by_row.get(f"{problem}/{RPP}", [])
        if own and all(len(each) > 1 for each in rivals):
            better = min(rivals, key=mean)
            within = mean(own) <= mean(better) + stdev(better)
            told[f"{problem}: RPP within a standard deviation of the better of both"] = within
    return told


def learned_precisions(
    records: Sequence[Mapping[str, Any]], *, limited: bool = True
) -> dict[str, dict[str, float]]:
    """{problem: {layer: median over seeds of the δ learned for what is free}}.

    limited: a δ above the one that it starts at (`workflows.relaxing`) counts as that, so that one
    that was switched off (δ = 1e12) and one that was left where it was are both closed
    """
    grouped: dict[str, dict[str, list[float]]] = {}
    for record in records:
        if record["network"] == LEARNED:
            layers = grouped.setdefault(record["problem"], {})
            for layer, value in record["free_precision"].items():
                most = record["closed_precision"] if limited else math.inf
                layers.setdefault(layer, []).append(min(value, most))
    return {
        problem: {layer: median(values) for layer, values in layers.items()}
        for problem, layers in grouped.items()
    }


def _of_precisions(records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """Which layers opened, and that the wind opens them."""
    found, told = learned_precisions(records), {}
    for width in WIDTHS:
        exact, broken = (found.get(f"{width}-{each}") for each in (EXACT, APPROXIMATE))
        if exact and broken:
            falls = {layer: exact[layer] / broken[layer] for layer in exact}
            told[f"{width}, learned: the head's free precision falls 100 ×"] = (
                falls.pop(HEAD) >= 100
            )
            told[f"{width}, learned: no other layer's falls 10 ×"] = max(falls.values()) < 10
    winds = {r["problem"]: r["wind"] for r in records if r["wind"] is not None}
    found = learned_precisions(records, limited=False)
    least = [
        min(found[problem].values())
        for problem in sorted(winds, key=lambda each: winds[each])
        if problem in found and not problem.endswith(MISSPECIFIED)
    ]
    if len(least) > 1:
        falling = all(after <= before for before, after in pairwise(least))
        told["learned: the least free precision falls with the wind"] = (
            falling and least[-1] < least[0]
        )
    return told


def posterior(records: Sequence[Mapping[str, Any]], problem: str) -> dict[int, list[float]]:
    """{epoch: equivariance errors of the seeds of `rpp`, in order} (Eq. 3.3, section 3.5.2)."""
    found: dict[int, list[float]] = {}
    for record in records:
        if record["row"] == f"{problem}/{RPP}":
            for epoch, error in record["equivariance_by_epoch"]:
                if error is not None:  # a network that diverged
                    found.setdefault(epoch, []).append(error)
    return {epoch: sorted(errors) for epoch, errors in found.items()}


def _of_posteriors(records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    told = {}
    for width in WIDTHS:
        exact, broken = (posterior(records, f"{width}-{each}") for each in (EXACT, APPROXIMATE))
        epochs = [epoch for epoch in exact if epoch in broken]
        if epochs:
            told[f"{width}, posterior: modified inertia is always further from the symmetry"] = all(
                median(broken[epoch]) > median(exact[epoch]) for epoch in epochs
            )
    return told


def summary(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Medians of both errors by problem and network, free precisions, and the goals."""
    errors, broken = medians(records, "test_error"), medians(records, "equivariance_error")
    lines = []
    for problem, own in errors.items():
        lines.append(f"{problem:<26}{'test error':>12}{'equivariance':>14}")
        for name, error in own.items():
            second = broken.get(problem, {}).get(name)
            lines.append(f"  {name:<24}{error:12.3g}{'' if second is None else f'{second:14.2g}'}")
        priors = {name: error for name, error in own.items() if name.startswith(f"{RPP}/")}
        if priors and EMLP in own:
            cells = (f"{name.split('/')[1]}: {e / own[EMLP]:.2g}" for name, e in priors.items())
            lines.append(f"  rpp over emlp by λ        {', '.join(cells)}")
        seen = posterior(records, problem)
        for epoch in list(seen)[:: max(1, len(seen) - 1)]:
            each = seen[epoch]
            lines.append(
                f"  equivariance error of rpp after {epoch} epochs: {median(each):.2g} "
                f"({each[0]:.2g} to {each[-1]:.2g} of {len(each)} seeds)"
            )
    for width in WIDTHS:
        if enough := sufficient_priors(records, width):
            lines.append(f"{width}: all comparisons with EMLP and MLP hold for {', '.join(enough)}")
    for problem, layers in learned_precisions(records).items():
        told = ", ".join(f"{layer} {value:.2g}" for layer, value in layers.items())
        lines.append(f"{problem}: free precisions learned: {told}")
    return lines + goal_lines(goals(records))


SERIES = Series(jobs, run, summary)
