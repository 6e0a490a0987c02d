"""`isotropy`: the command group. `endings` says what becomes of errors.

With `ISOTROPY_SHORT=1` in the environment every command takes the defaults of `SHORT`, to see in
seconds whether it works; what is typed counts as always.
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import Any

import click

from isotropy._version import __version__
from isotropy.cli.basis import basis_command
from isotropy.cli.build import build_command
from isotropy.cli.certify import certify_command, verify_command
from isotropy.cli.control import control_command
from isotropy.cli.learn import learn_command
from isotropy.cli.measure import measure_command
from isotropy.cli.profile import profile_command
from isotropy.cli.relax import relax_command
from isotropy.cli.represent import represent_command
from isotropy.cli.reproduce import reproduce_command
from isotropy.cli.shared.endings import (
    TRACEBACK,
    close_standard_output,
    ending,
    escape_odd_names,
    is_about_output,
    one_sentence,
    say,
    show,
)
from isotropy.cli.shared.processes import is_mine_to_say, of_this_rank, process_group
from isotropy.cli.story import story_command
from isotropy.kernels.ranks import group

SHORT_VARIABLE = "ISOTROPY_SHORT"
_COPIES = {"subset": 20, "epochs": 2, "samples": 2, "test_samples": 2}
SHORT: dict[str, dict[str, Any]] = {
    "learn": {**_COPIES, "search": False, "verdicts": 0},
    "profile": {**_COPIES, "curvatures": "kfac-ggn"},
    "relax": {"subset": 20, "epochs": 1, "batch_size": 20, "curvature": "kfac-mc", "width": 2},
    "certify": {"subset": 200, "epochs": 1},
    "represent": {"steps": 5},
    "control": {"steps": 20, "episodes": 1, "width": 16, "evaluate_every": 10, "batch_size": 8},
    "measure": {"examples": 2, "finite": False},
    "story": {"subset": 40, "epochs": 1, "generators": "rotation"},
}
"""Defaults of options by command, for runs that only show whether a command works."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="isotropy")
def cli() -> None:
    """Find out which symmetries your data has, how much, and build exactly that in."""


COMMANDS: tuple[click.Command, ...] = (
    basis_command,
    build_command,
    certify_command,
    control_command,
    learn_command,
    measure_command,
    profile_command,
    relax_command,
    represent_command,
    reproduce_command,
    story_command,
    verify_command,
)
for each in COMMANDS:
    each.params.append(
        click.Option(
            [TRACEBACK], is_flag=True, expose_value=False, help="Show where an error was raised."
        )
    )
    cli.add_command(each)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    words = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["isotropy", *words])  # as it was typed: run folders keep it
    escape_odd_names()
    try:
        with one_sentence(), process_group(words):
            try:
                status = cli.main(
                    words,
                    prog_name="isotropy",
                    standalone_mode=False,
                    obj=command,
                    default_map=SHORT if os.environ.get(SHORT_VARIABLE) else None,
                )
            except BaseException as error:
                if not group().are_many:
                    raise
                status = _end(error, shown=TRACEBACK in words)  # while ranks can ask each other
    except click.exceptions.NoArgsIsHelpError as help_text:
        click.echo(help_text.format_message(), err=True)
        sys.exit(2)
    except BaseException as error:
        sys.exit(_end(error, shown=TRACEBACK in words))
    sys.exit(status if isinstance(status, int) else 0)


def _end(error: BaseException, *, shown: bool) -> int:
    """Say what was raised, with all of it where that is asked for; the exit status."""
    sentence, status = ending(error)
    if is_about_output(error):
        close_standard_output()
    if shown:
        show(error.__traceback__, error)
    if sentence and is_mine_to_say(sentence):
        say(of_this_rank(sentence))
    return status
