"""Policies of simulated robots trained by SAC, with the robot's symmetry hard, soft or not at all.

    result = train_policies("Walker2d-v5", config=ControlConfig(steps=100_000, seeds=(0, 1, 2)))
    result.record["area"]                 mean evaluation return over training, over seeds
    stable_baselines3.SAC.load("runs/mine/seed-0.zip")         a policy of `folder="runs/mine"`

Training is that of stable-baselines3 with its settings, one seed after another, and a
`SoftSACPolicy` (`control.policies`). So many steps apart the policy is evaluated: whole episodes of
its mean action, from the same starts every time. Numbers are plain means of these returns, not
running maxima. Intervals are 95 % bootstrap intervals over seeds; one seed has none.

    area     mean over evaluations of the return: the area under the curve over its length
    error    rms ‖π(g s) − g π(s)‖ / rms ‖π(s)‖ of mean actions over states that were visited

With `folder=` agents are saved at every evaluation, in the format of stable-baselines3. With
`resume=True` it goes on from there with a new episode, so that numbers are not those of an unbroken
run.
"""

from __future__ import annotations

import contextlib
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.control.groups import (
    SignedGroup,
    ViolationWarning,
    group_named,
    group_violation,
    known_robot,
)
from isotropy.control.networks import FREE_PENALTY, FREE_RATE, MODELS, softness
from isotropy.data.frames import frames
from isotropy.data.replay import made_environment
from isotropy.data.robots import Robot
from isotropy.evidence.settings import Settings
from isotropy.networks.zoo.specification import NetworkSpecification
from isotropy.records import (
    CHECKPOINT,
    CONFIG,
    METRICS,
    alone_in_folder,
    check_unused,
    make_folder,
    read_json,
    read_lines,
    record_head,
    run_id,
    save_tensors,
    write_json,
    write_lines,
)
from isotropy.report.pages.control import control_page, control_sentences
from isotropy.workflows.runs.result import Result

KIND = "control"
EVALUATIONS = 20
RANDOM_STEPS = 10_000
LARGEST_BUFFER = 1_000_000
STATES = 256
"""Visited states over which the symmetry of a policy is measured."""
RESAMPLES = 2000
FRAMES = 6
"""Pictures of an episode in a report."""
EVALUATION_SEED = 1_000_000
"""Added to the seed for the starts of evaluations."""


@dataclass(frozen=True)
class ControlConfig(Settings):
    """What a caller may set.

    steps           of the simulation, for each seed
    seeds           one agent each
    model           mlp, emlp, rpp or rpp-trivial
    critic          same: with the model's symmetry, or mlp
    evaluate_every  steps; a twentieth of all by default
    episodes        of an evaluation
    start           random steps before learning; a tenth of all by default, 10,000 at most
    width, layers   hidden ones, of actor and critic
    batch_size, rate    transitions a step, and the learning rate
    free_rate, free_penalty    of free parts (`control.policies`)
    """

    steps: int = 100_000
    seeds: tuple[int, ...] = (0,)
    model: str = "rpp"
    critic: str = "same"
    evaluate_every: int | None = None
    episodes: int = 10
    start: int | None = None
    width: int = 256
    layers: int = 2
    batch_size: int = 256
    rate: float = 3e-4
    free_rate: float = FREE_RATE
    free_penalty: float = FREE_PENALTY

    counts: ClassVar[tuple[str, ...]] = (
        "steps", "evaluate_every", "episodes", "width", "layers", "batch_size",
    )  # fmt: skip
    from_zero: ClassVar[tuple[str, ...]] = ("start", "free_penalty")
    positive: ClassVar[tuple[str, ...]] = ("rate", "free_rate")
    choices: ClassVar[Mapping[str, Sequence[str]]] = {"model": MODELS, "critic": ("same", "mlp")}

    def __post_init__(self) -> None:
        object.__setattr__(self, "seeds", tuple(self.seeds))

    def check(self) -> None:
        super().check()
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise CallerError(f"seeds: expected numbers from 0, each once, got {self.seeds}")

    @property
    def every(self) -> int:
        """Steps between evaluations."""
        return min(self.steps, self.evaluate_every or max(1, self.steps // EVALUATIONS))

    @property
    def random_steps(self) -> int:
        """Steps before learning."""
        return min(RANDOM_STEPS, self.steps // 10) if self.start is None else self.start


@dataclass(frozen=True)
class Evaluation:
    """A row of the history: the mean return of one seed's policy after so many steps."""

    seed: int
    steps: int
    mean_return: float
    seconds: float


@dataclass(frozen=True, repr=False)
class ControlResult(Result):
    """What was trained: `agents` of stable-baselines3 by seed; of seeds that a folder held done
    before, only the record tells."""

    SHOWN = ("environment", "model", "mean_return", "area")

    agents: dict[int, Any]
    pictures: np.ndarray | None = None
    """Of an episode of the first agent, uint8 (frames, height, width, 3), where they were drawn."""

    @property
    def sentences(self) -> list[str]:
        """What was found, in words."""
        return control_sentences(self.record)

    def page(self) -> str:
        return control_page(self.record, self.config, self.pictures)

    def write_own(self, path: Path) -> None:
        for seed, agent in self.agents.items():
            agent.save(path / f"seed-{seed}.zip")


@alone_in_folder
def train_policies(
    environment: str | Robot,
    *,
    group: SignedGroup | None = None,
    config: ControlConfig | None = None,
    device: str | torch.device = "cpu",
    folder: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[ControlConfig, Evaluation], None] | None = None,
    describe: Mapping[str, Any] | None = None,
) -> ControlResult:
    """Train one SAC agent a seed, and evaluate them as they learn.

    environment  of gymnasium, or a robot of `data.robots`, whose maps are then known
    group        how it is mirrored, where that is not known or another is wanted
    folder       a run folder to write and, with `resume`, to continue
    progress     told every evaluation
    describe     further entries of config.json, such as what the command line was asked for

    Raises CallerError for what the caller can put right: an environment without maps and none
    given, maps of another size, discrete actions, a missing extra.
    """
    settings = config or ControlConfig()
    settings.check()
    if folder is not None and not resume:
        check_unused(Path(folder))
    task = _task(environment, group, settings, torch.device(device))
    described = {**task.described(), **(describe or {})}
    kept = _Kept(None if folder is None else Path(folder), described, resume)
    found = [_trained(task, seed, kept, progress or (lambda *_: None)) for seed in settings.seeds]
    record = _record(task, kept, found)
    agents = {seed: each.agent for seed, each in zip(settings.seeds, found, strict=True)}
    pictures = None if folder is None else _pictures(task, found[0].agent, settings.seeds[0])
    result = ControlResult(agents, pictures, record=record, config=described)
    return result.kept_in(folder)


# -- the task ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Task:
    """What is trained on what."""

    name: str
    robot: Robot | None
    group: SignedGroup | None
    config: ControlConfig
    device: torch.device
    violations: list[dict[str, Any]] | None
    notes: tuple[str, ...]

    def environment(self) -> Any:
        """A new environment, motors with the robot's strength."""
        if self.robot is None:
            return made_environment(self.name, {})
        made = made_environment(self.robot.environment, self.robot.options)
        if not self.robot.strength:
            return made
        transform = import_module("gymnasium.wrappers").TransformAction
        return transform(made, lambda action: action * self.strength, made.action_space)

    @property
    def strength(self) -> np.ndarray:
        """Of each motor, in that of the environment as it comes."""
        if self.robot is None:
            return np.ones(1)
        return np.array([self.robot.strength.get(each, 1.0) for each in self.robot.motors])

    def described(self) -> dict[str, Any]:
        """The config of a run folder."""
        group = None if self.group is None else asdict(self.group)
        return {
            "schema": 1,
            "kind": KIND,
            "data": {"environment": self.name, "group": group},
            "network": NetworkSpecification("policy", self.config.model).as_dict(),
            "schedule": self.config.as_dict(),
        }


def _task(
    environment: str | Robot, group: SignedGroup | None, config: ControlConfig, place: torch.device
) -> _Task:
    import_module("isotropy.control.policies")  # says what is missing
    robot = environment if isinstance(environment, Robot) else known_robot(environment)
    name = environment if isinstance(environment, str) else environment.environment
    _check_actions(name, robot)
    if group is None and robot is None and config.model != "mlp":
        raise CallerError(
            f"{name}: no maps are known that mirror it; give some (--maps FILE, group= in Python), "
            "or train model mlp"
        )
    if group is None and robot is not None:
        group = group_named(robot)
    violations, notes = None, []
    if group is not None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ViolationWarning)
            found = group_violation(robot or name, group)
        notes = [str(each.message) for each in caught if each.category is ViolationWarning]
        violations = None if found is None else [asdict(each) for each in found]
        if violations is None:
            notes.append(f"how well {name} keeps the maps was not measured: it cannot be set")
    return _Task(name, robot, group, config, place, violations, tuple(notes))


def _check_actions(name: str, robot: Robot | None) -> None:
    made = made_environment(*((name, {}) if robot is None else (robot.environment, robot.options)))
    if type(made.action_space).__name__ != "Box":
        raise CallerError(
            f"{name}: expected actions that are vectors of numbers, got {made.action_space}; SAC "
            "needs continuous actions"
        )


# -- one seed ----------------------------------------------------------------------------------


class _Kept:
    """The history, and the files of a run folder if there is one."""

    def __init__(self, folder: Path | None, config: Mapping[str, Any], resume: bool) -> None:
        self.folder, self.config = folder, config
        self.rows: list[dict[str, Any]] = []
        if folder is None:
            return
        make_folder(folder)
        if resume:
            if run_id(read_json(folder / CONFIG)) != run_id(config):
                raise CallerError(
                    f"run folder {str(folder)!r} is of another run; resume it with the settings it "
                    "was started with"
                )
            self.rows = read_lines(folder / METRICS)
        write_json(folder / CONFIG, config)

    def of_seed(self, seed: int) -> list[dict[str, Any]]:
        """The rows of one seed."""
        return [row for row in self.rows if row["seed"] == seed]

    def files(self, seed: int) -> tuple[Path, Path] | None:
        """Where the agent of a seed and its replay buffer are."""
        if self.folder is None:
            return None
        return self.folder / f"seed-{seed}.zip", self.folder / f"seed-{seed}-replay.pkl"

    def begin(self, seed: int, steps: int) -> None:
        """Forget rows beyond the agent that was saved."""
        self.rows = [row for row in self.rows if row["seed"] != seed or row["steps"] <= steps]

    def save(self, seed: int, agent: Any, is_done: bool) -> None:
        """The buffer first and the agent last: a row too many is forgotten, one too few is not
        found again."""
        files = self.files(seed)
        if files is None or self.folder is None:
            return
        beside = [each.with_name(f".{each.name}.part") for each in files]
        if not is_done:
            with beside[1].open("wb") as file:
                agent.save_replay_buffer(file)
            beside[1].replace(files[1])
        write_lines(self.folder / METRICS, self.rows)
        with beside[0].open("wb") as file:
            agent.save(file)
        beside[0].replace(files[0])
        if is_done:
            files[1].unlink(missing_ok=True)
        weights = {f"seed-{seed}/{k}": v for k, v in agent.policy.state_dict().items()}
        save_tensors(self.folder / CHECKPOINT, weights, {"run": run_id(self.config)})


@dataclass(frozen=True)
class _Trained:
    """softness: by layer; error: see the module; steps_per_second: None where nothing was left."""

    agent: Any
    softness: dict[str, float]
    error: float | None
    steps_per_second: float | None


def _trained(
    task: _Task, seed: int, kept: _Kept, progress: Callable[[ControlConfig, Evaluation], None]
) -> _Trained:
    """The agent of one seed. What it draws leaves global generators as they were."""
    config, started, first = task.config, time.perf_counter(), 0
    with _own_randomness(task.device):
        agent = _agent(task, seed, kept)
        first = agent.num_timesteps
        kept.begin(seed, first)
        before = kept.of_seed(seed)[-1]["seconds"] if kept.of_seed(seed) else 0.0
        while agent.num_timesteps < config.steps:
            ahead = min(config.every, config.steps - agent.num_timesteps)
            agent.learn(ahead, reset_num_timesteps=False)
            row = Evaluation(
                seed,
                agent.num_timesteps,
                _mean_return(task, agent, seed),
                before + time.perf_counter() - started,
            )
            kept.rows.append(asdict(row))
            kept.save(seed, agent, agent.num_timesteps >= config.steps)
            progress(config, row)
        done = agent.num_timesteps - first
        seconds = time.perf_counter() - started
        error = _symmetry_error(task, agent, seed)
    return _Trained(agent, _softness(agent), error, done / seconds if done else None)


@contextlib.contextmanager
def _own_randomness(device: torch.device) -> Iterator[None]:
    """Give global generators back as they were: stable-baselines3 seeds and draws from them."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)


def _agent(task: _Task, seed: int, kept: _Kept) -> Any:
    """A new agent, or the one that was saved; it logs nothing, and leaves no folder behind."""
    agent = _drawn_or_loaded(task, seed, kept)
    agent.set_logger(import_module("stable_baselines3.common.logger").Logger(None, []))
    return agent


def _drawn_or_loaded(task: _Task, seed: int, kept: _Kept) -> Any:
    algorithm = import_module("stable_baselines3").SAC
    config, files = task.config, kept.files(seed)
    if kept.of_seed(seed) and files is not None and files[0].exists():
        agent = algorithm.load(files[0], env=task.environment(), device=task.device)
        if files[1].exists():
            agent.load_replay_buffer(files[1])
        agent.set_random_seed(seed + agent.num_timesteps)
        return agent
    policy = {
        "group": task.group,
        "model": config.model,
        "symmetric_critic": config.critic == "same",
        "free_rate": config.free_rate,
        "free_penalty": config.free_penalty,
        "net_arch": [config.width] * config.layers,
    }
    return algorithm(
        import_module("isotropy.control.policies").SoftSACPolicy,
        task.environment(),
        learning_rate=config.rate,
        batch_size=config.batch_size,
        buffer_size=min(LARGEST_BUFFER, config.steps),
        learning_starts=config.random_steps,
        policy_kwargs=policy,
        seed=seed,
        device=task.device,
    )


def _mean_return(task: _Task, agent: Any, seed: int) -> float:
    """Of whole episodes of the mean action, from the same starts every time."""
    monitor = import_module("stable_baselines3.common.monitor").Monitor
    vectorised = import_module("stable_baselines3.common.vec_env").DummyVecEnv
    evaluate = import_module("stable_baselines3.common.evaluation").evaluate_policy
    environments = vectorised([lambda: monitor(task.environment())])
    environments.seed(EVALUATION_SEED + seed)
    mean, _ = evaluate(agent, environments, n_eval_episodes=task.config.episodes)
    environments.close()
    return float(mean)


def _softness(agent: Any) -> dict[str, float]:
    """By layer of actor and critic."""
    parts = {"actor": agent.policy.actor, "critic": agent.policy.critic}
    return {
        f"{part}.{name}": value
        for part, network in parts.items()
        for name, value in softness(network).items()
    }


@torch.no_grad()
def _symmetry_error(task: _Task, agent: Any, seed: int) -> float | None:
    """How far the mean action is from one that commutes with the group; see the module."""
    if task.group is None:
        return None
    actor = agent.policy.actor
    seen = _visited(task, agent, seed)
    features = actor.features_extractor(seen)

    def mean_action(given: Tensor) -> Tensor:
        return torch.tanh(actor.mu(actor.latent_pi(given)))

    own = mean_action(features)
    matrices = [
        torch.from_numpy(each.matrices()[1:]).to(own)
        for each in (task.group.observation, task.group.action)
    ]
    errors = [
        (mean_action(features @ into.mT) - own @ out.mT).square().mean()
        for into, out in zip(*matrices, strict=True)
    ]
    if not errors:
        return 0.0
    return float((torch.stack(errors).mean() / own.square().mean()).sqrt())


def _visited(task: _Task, agent: Any, seed: int) -> Tensor:
    """Observations of an evaluation, (states, size)."""
    environment = task.environment()
    observation, _ = environment.reset(seed=EVALUATION_SEED + seed)
    seen: list[np.ndarray] = []
    while len(seen) < STATES:
        seen.append(np.asarray(observation, dtype=np.float32))
        action, _ = agent.predict(observation, deterministic=True)
        observation, _, ended, cut, _ = environment.step(action)
        if ended or cut:
            observation, _ = environment.reset()
    return torch.from_numpy(np.stack(seen)).to(agent.device)


def _pictures(task: _Task, agent: Any, seed: int) -> np.ndarray | None:
    """Frames of one evaluation episode; None where nothing can be drawn."""
    environment, actions, is_over = task.environment(), [], False
    observation, _ = environment.reset(seed=EVALUATION_SEED + seed)
    while not is_over:
        action, _ = agent.predict(observation, deterministic=True)
        actions.append(action * task.strength)
        observation, _, ended, cut, _ = environment.step(action)
        is_over = ended or cut
    name, options = (
        (task.name, {}) if task.robot is None else (task.robot.environment, task.robot.options)
    )
    seen = np.array(actions)
    return frames(name, options, seen, seed=EVALUATION_SEED + seed, count=min(FRAMES, len(seen)))


# -- what came out -----------------------------------------------------------------------------


def bootstrap_interval(values: Sequence[float]) -> list[float] | None:
    """A 95 % interval of the mean of values, one a seed; None of fewer than two."""
    if len(values) < 2:
        return None
    drawn = np.random.default_rng(0).choice(values, (RESAMPLES, len(values))).mean(1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return [float(low), float(high)]


def curve_of(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean returns over seeds by steps, where every seed has one."""
    by_steps: dict[int, list[float]] = {}
    for row in rows:
        by_steps.setdefault(row["steps"], []).append(row["mean_return"])
    seeds = len({row["seed"] for row in rows})
    return [
        {
            "steps": steps,
            "mean": float(np.mean(returns)),
            "interval": bootstrap_interval(returns),
            "returns": returns,
        }
        for steps, returns in sorted(by_steps.items())
        if len(returns) == seeds
    ]


def _record(task: _Task, kept: _Kept, found: Sequence[_Trained]) -> dict[str, Any]:
    config = task.config
    own = [[row["mean_return"] for row in kept.of_seed(seed)] for seed in config.seeds]
    last, areas = [each[-1] for each in own], [float(np.mean(each)) for each in own]
    rates = [each.steps_per_second for each in found if each.steps_per_second is not None]
    errors = [each.error for each in found if each.error is not None]
    steps = [each["step"] for each in task.violations or ()]
    seconds = sum(kept.of_seed(seed)[-1]["seconds"] for seed in config.seeds)
    return {
        **record_head(
            KIND,
            seed=config.seeds[0],
            device=task.device,
            seconds=seconds,
            run_folder=kept.folder,
        ),
        "kind": KIND,
        "environment": task.name,
        "model": config.model,
        "group": None if task.group is None else task.group.name,
        "elements": None if task.group is None else task.group.order,
        "violation": max(steps, default=None),
        "violations": task.violations,
        "steps": config.steps,
        "seeds": list(config.seeds),
        "mean_return": float(np.mean(last)),
        "mean_return_interval": bootstrap_interval(last),
        "area": float(np.mean(areas)),
        "area_interval": bootstrap_interval(areas),
        "areas": areas,
        "curve": curve_of(kept.rows),
        "softness": {
            name: float(np.mean([each.softness[name] for each in found]))
            for name in found[0].softness
        },
        "policy_error": float(np.mean(errors)) if errors else None,
        "steps_per_second": float(np.mean(rates)) if rates else None,
        "notes": list(task.notes),
    }
