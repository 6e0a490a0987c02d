"""Options that a run folder keeps, and runs that are continued with them.

A run folder keeps the options that its run was started with (`kept_options`), and a run that is
continued has them again (`resumed_run`). An interruption says how to go on (`continuable`).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import click
from click.core import ParameterSource

from isotropy.checks import CallerError
from isotropy.networks.zoo.specification import NetworkSpecification, parse_network
from isotropy.records import CHECKPOINT, CONFIG, plain, read_json
from isotropy.workflows.exploring import SCREENED
from isotropy.workflows.runs.searching import TRIALS

MAY_DIFFER = ("resume", "out", "device", "as_json", "quiet", "verdicts", "calibration", "log")


class Settings(Protocol):
    """A run's settings, which its folder holds."""

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self: ...


AnySettings = TypeVar("AnySettings", bound=Settings)


@dataclass(frozen=True)
class ResumedRun(Generic[AnySettings]):
    """A run folder's options, resolved settings and network."""

    options: dict[str, Any]
    config: AnySettings
    network: NetworkSpecification


@contextmanager
def continuable(command: str, folder: Path) -> Iterator[None]:
    """An interruption says how `isotropy command` goes on from what `folder` holds by then."""
    try:
        yield
    except KeyboardInterrupt:
        advice = "nothing was saved yet"
        if _is_continuable(folder):
            advice = f"continue with: isotropy {command} --resume {shlex.quote(str(folder))}"
        click.echo(f"isotropy: interrupted; {advice}", err=True)
        raise


def _is_continuable(folder: Path) -> bool:
    """Whether a folder holds epochs, trials of the search before them, a screening or a story."""
    places = (folder / CHECKPOINT, folder / TRIALS, folder / SCREENED / CHECKPOINT)
    steps = folder.glob(f"*/{CONFIG}")  # of a story
    return any(place.exists() for place in (*places, *steps))


def kept_options(options: dict[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
    """Options as a run folder keeps them; data is found again from any folder.

    names: data that are called so, and are no path
    """
    kept: dict[str, Any] = plain(options)
    for name in ("data", "test_data", "digits_data"):
        if kept.get(name) and kept[name] not in names:
            kept[name] = os.path.abspath(Path(kept[name]).expanduser())
    return {**kept, "as_json": False, "quiet": False}


def resumed_run(
    context: click.Context,
    folder: Path,
    options: dict[str, Any],
    settings: type[AnySettings],
    names: Collection[str] = (),
    *,
    kept_in: Path | None = None,
) -> ResumedRun[AnySettings]:
    """The run that `folder` holds.

    options: as the command line gave them. What was typed beside --resume must say what the run
    was started with; only the device, what is shown and what comes after training may be another.
    names: as in `kept_options`
    kept_in: the folder whose config the run has, if not `folder`
    Raises CallerError for a folder that this command did not write, and for a contradiction.
    """
    config = (kept_in or folder) / CONFIG
    record = read_json(config)
    kept, schedule = record.get("request"), record.get("schedule")
    if not isinstance(kept, dict) or not isinstance(schedule, dict) or set(kept) != set(options):
        raise CallerError(
            f"{str(folder)!r} was not written by this version of `isotropy {context.command.name}`"
        )
    _check_types(context.command, kept, where=str(config))
    if not _is_continuable(folder):
        raise CallerError(f"{str(folder)!r} holds no checkpoint ({CHECKPOINT}); start the run anew")
    flags = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    typed = {
        name: value
        for name, value in kept_options(options, names).items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    if ".py:" in str(typed.get("model_text")):
        parse_network(typed["model_text"])  # so that its code may run
    for name, value in typed.items():
        if name not in MAY_DIFFER and value != kept[name]:
            what, flag = "model" if name == "model_text" else "run", flags[name]
            raise CallerError(
                f"run folder {str(folder)!r} is of another {what}: it was started with {flag} "
                f"{_words(kept[name])}, not {_words(value)}; leave {flag} out to resume"
            )
    if "out" in typed and Path(typed["out"]).resolve() != folder.resolve():
        raise CallerError(
            f"--out {typed['out']}: a resumed run stays in its folder {str(folder)!r}; leave --out "
            "out to resume"
        )
    shown = {name: options[name] for name in ("as_json", "quiet")}
    asked = {name: typed[name] for name in MAY_DIFFER if name in typed and name != "resume"}
    return ResumedRun(
        {**kept, **asked, **shown, "out": folder},
        settings.from_dict(schedule),
        NetworkSpecification.from_dict(record.get("network"), where=str(config)),
    )


def _check_types(command: click.Command, kept: Mapping[str, Any], *, where: str) -> None:
    """Raise CallerError for an option that a file holds as something else than it was given as.

    Options that are read in a way of their own, or may be repeated, are checked where they count.
    """
    for option in command.params:
        value = kept.get(str(option.name))
        own = option.callback is not None or option.multiple or option.nargs != 1
        if value is None or own or not isinstance(option, click.Option):
            continue
        kinds: tuple[type, ...] = (str, int, float)
        if option.is_bool_flag:
            kinds = (bool,)
        elif isinstance(option.type, click.Path):
            kinds = (str,)
        elif option.type in (click.INT, click.FLOAT):
            kinds = (int, float)
        if not isinstance(value, kinds) or isinstance(value, bool) > (bool in kinds):
            words = " or ".join(kind.__name__ for kind in kinds)
            raise CallerError(
                f"{where!r}: expected request.{option.name} to be {words}, got "
                f"{str(value)[:60]!r}; restore the file"
            )


def _words(value: Any) -> str:
    """An option's value as it is typed."""
    if isinstance(value, dict):
        return " ".join(f"{name}={amount:g}" for name, amount in value.items()) or "nothing"
    if isinstance(value, list):
        return ",".join(map(str, value)) or "nothing"
    return "nothing" if value is None else str(value)
