"""`isotropy control`: train policies of a simulated robot with its symmetry hard, soft or none."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from isotropy.checks import CallerError
from isotropy.cli.shared.inputs import RUN, device_from, fresh_folder, settings_given, with_options
from isotropy.cli.shared.progress import ControlDisplay, tell
from isotropy.cli.shared.resuming import continuable, kept_options, resumed_run
from isotropy.cli.shared.seeds import seeds_from
from isotropy.control.groups import SignedGroup
from isotropy.control.networks import MODELS
from isotropy.records import check_unused
from isotropy.workflows.controlling import ControlConfig, ControlResult, train_policies

NAMES = ("observation", "action")
"""Entries of a file of maps."""


def group_from(path: Path) -> SignedGroup:
    """The maps of a TOML file: `observation` and `action`, a list of maps each."""
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CallerError(f"--maps {str(path)!r} cannot be read: {error}") from error
    observations, actions = (
        _maps(told.get(name), f"--maps {str(path)!r}: {name}") for name in NAMES
    )
    return SignedGroup(str(told.get("name", path.stem)), observations, actions)


def _maps(given: Any, where: str) -> tuple[tuple[int, ...], ...]:
    """Lists of whole numbers as they are read from a file."""
    lists = isinstance(given, list) and all(isinstance(each, list) for each in given)
    if not lists or not all(type(k) is int for each in given for k in each):
        raise CallerError(
            f"{where}: expected [[1, -2, 3]], one list of whole numbers for each generator, got "
            f"{given}"
        )
    return tuple(tuple(each) for each in given)


def _output_options(command: Callable[..., None]) -> Callable[..., None]:
    """Those of every command but --subset and --seed."""
    return with_options(RUN[2:], command)


@click.command("control")
@click.option(
    "--env",
    "environment",
    default="Walker2d-v5",
    show_default=True,
    help="Of gymnasium, or a robot's name: Walker2d-weak-left.",
)
@click.option(
    "--maps",
    type=click.Path(path_type=Path),
    help="TOML with observation and action: signed permutations that mirror the environment.",
)
@click.option("--model", type=click.Choice(MODELS), default="rpp", show_default=True)
@click.option("--steps", type=int, help="Of the simulation, a seed.  [default: 100000]")
@click.option("--seeds", default="0", show_default=True, help="Such as 0-4, or 0,2,3.")
@click.option(
    "--critic",
    type=click.Choice(("same", "mlp")),
    default="same",
    show_default=True,
    help="The critic with the symmetry too, or plain.",
)
@click.option("--evaluate-every", type=int, help="Steps.  [default: a twentieth of --steps]")
@click.option("--episodes", type=int, help="Of an evaluation.  [default: 10]")
@click.option("--start", type=int, help="Random steps first.  [default: --steps/10, ≤ 10000]")
@click.option("--width", type=int, help="Of hidden layers.  [default: 256]")
@click.option("--layers", type=int, help="Hidden ones.  [default: 2]")
@click.option("--batch-size", type=int, help="Transitions of a training step.  [default: 256]")
@click.option("--rate", type=float, help="Learning rate.  [default: 0.0003]")
@click.option(
    "--free-rate", type=float, help="Of free parts, in the learning rate.  [default: 0.1]"
)
@click.option("--free-penalty", type=float, help="Of their squares.  [default: 1e-6]")
@click.option("--resume", type=click.Path(path_type=Path), help="Continue this run folder.")
@_output_options
@click.pass_context
def control_command(context: click.Context, /, resume: Path | None, **options: Any) -> None:
    """Train policies of a simulated robot by SAC, and say what its symmetry is worth.

    Needs the extra rl (gymnasium, mujoco, stable-baselines3). Writes a run folder with a report and
    the agents, which stable-baselines3 loads.
    """
    if resume is not None:
        run = resumed_run(context, resume, options, ControlConfig)
        options, config = run.options, run.config
    else:
        given = settings_given(ControlConfig, options)
        config = ControlConfig(**{**given, "seeds": seeds_from(options["seeds"])})
        named = {"data": options["environment"], "variant": config.model, "seed": options["seeds"]}
        options["out"] = options["out"] or fresh_folder("control", named)
        check_unused(Path(options["out"]))
    with continuable("control", Path(options["out"])):
        result = _control(options, config, resume is not None)
    tell(result.record, result.sentences, as_json=options["as_json"])


def _control(options: dict[str, Any], config: ControlConfig, resume: bool) -> ControlResult:
    """Everything between the parsed options and the result."""
    kept = kept_options(options)
    if kept["maps"]:
        kept["maps"] = str(Path(kept["maps"]).expanduser().resolve())
    with ControlDisplay(quiet=options["quiet"]) as display:
        return train_policies(
            options["environment"],
            group=group_from(Path(options["maps"])) if options["maps"] else None,
            config=config,
            device=device_from(options["device"]),
            folder=options["out"],
            resume=resume,
            progress=display,
            describe={"request": kept},
        )
