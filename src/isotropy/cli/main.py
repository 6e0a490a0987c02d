"""`isotropy`: the command group, and what becomes of errors.

Exit status 0 done; 1 failed; 2 the caller's mistake, one sentence on standard error that names
the culprit; 130 interrupted, with a run folder that can be resumed.

With `ISOTROPY_SHORT=1` in the environment every command takes the defaults of `SHORT`, to see in
seconds whether it works; what is typed counts as always.
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import Any

import click
import torch

from isotropy._version import __version__
from isotropy.checks import CallerError
from isotropy.cli.basis import basis_command
from isotropy.cli.build import build_command
from isotropy.cli.certify import certify_command, verify_command
from isotropy.cli.learn import learn_command
from isotropy.cli.measure import measure_command
from isotropy.cli.profile import profile_command
from isotropy.cli.relax import relax_command
from isotropy.cli.represent import represent_command
from isotropy.cli.reproduce import reproduce_command
from isotropy.evidence.laplace import NotFiniteError

SHORT_VARIABLE = "ISOTROPY_SHORT"
_COPIES = {"subset": 20, "epochs": 2, "samples": 2, "test_samples": 2}
SHORT: dict[str, dict[str, Any]] = {
    "learn": {**_COPIES, "search": False, "verdicts": 0},
    "profile": {**_COPIES, "curvatures": "kfac-ggn"},
    "relax": {"subset": 20, "epochs": 1, "batch_size": 20, "curvature": "kfac-mc", "width": 2},
    "certify": {"subset": 200, "epochs": 1},
    "represent": {"steps": 5},
    "measure": {"examples": 2, "finite": False},
}
"""Defaults of options by command, for runs that only show whether a command works."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="isotropy")
def cli() -> None:
    """Find out which symmetries your data has, how much, and build exactly that in."""


cli.add_command(basis_command)
cli.add_command(build_command)
cli.add_command(certify_command)
cli.add_command(learn_command)
cli.add_command(measure_command)
cli.add_command(profile_command)
cli.add_command(relax_command)
cli.add_command(represent_command)
cli.add_command(reproduce_command)
cli.add_command(verify_command)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    words = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["isotropy", *words])  # as it was typed: run folders keep it
    try:
        status = cli.main(
            words,
            prog_name="isotropy",
            standalone_mode=False,
            obj=command,
            default_map=SHORT if os.environ.get(SHORT_VARIABLE) else None,
        )
    except click.exceptions.NoArgsIsHelpError as help_text:
        click.echo(help_text.format_message(), err=True)
        sys.exit(2)
    except click.ClickException as error:
        _say(error.format_message())
        sys.exit(2 if isinstance(error, click.UsageError) else 1)
    except CallerError as error:
        _say(str(error))
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except torch.OutOfMemoryError:
        _say(
            "the device ran out of memory; lower --batch-size, or when learning --curvature-batch "
            "or --samples, or use --device cpu"
        )
        sys.exit(1)
    except NotFiniteError as error:
        _say(str(error))
        sys.exit(1)
    except OSError as error:
        # Files that cannot be written are told as CallerError, a closed pipe is click's matter:
        # what is left is the disk that standard output goes to.
        if error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor fail again at exit
        _say(f"standard output cannot be written: {error.strerror or error}")
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)


def _say(message: str) -> None:
    click.echo(f"isotropy: {' '.join(message.split())}", err=True)
