"""`isotropy profile`: is the evidence right? Its value over the amount of one symmetry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from isotropy.cli.shared.inputs import (
    EVIDENCE,
    device_from,
    fresh_folder,
    problem_from,
    problem_options,
    settings_given,
)
from isotropy.cli.shared.progress import LiveDisplay, tell
from isotropy.cli.shared.resuming import kept_options
from isotropy.data.variants import TRUE_RANGES
from isotropy.evidence.settings import LearnConfig
from isotropy.report.pages.profile import profile_sentences
from isotropy.workflows.exploring import DEFAULT_CURVATURES, profile


def _numbers(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> list[float] | None:
    if value is None:
        return None
    try:
        return [float(part) for part in value.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"expected numbers with commas between, got {value!r}") from error


@click.command("profile")
@problem_options
@click.option("--generator", default="rotation", show_default=True, help="Whose amount to vary.")
@click.option(
    "--amounts",
    callback=_numbers,
    help="Comma-separated half-widths in reported units. Default: nine up to the period.",
)
@click.option(
    "--curvatures",
    default=",".join(DEFAULT_CURVATURES),
    show_default=True,
    help="Comma-separated curvature kinds.",
)
@EVIDENCE
@click.pass_context
def profile_command(
    context: click.Context,
    /,
    generator: str,
    amounts: list[float] | None,
    curvatures: str,
    **options: Any,
) -> None:
    """Show whether the log evidence is largest where it should be.

    Trains the network anew at every amount of one symmetry and for every curvature kind, and sets
    the log evidence beside the likelihood of the test data.
    """
    folder = options["out"] = options["out"] or fresh_folder("profile", options, generator)
    display = LiveDisplay(quiet=options["quiet"])
    kinds = [name.strip() for name in curvatures.split(",")]
    by_elbo = options["evidence"] == "elbo"
    uses_factors = not by_elbo and any("kfac" in each for each in kinds)
    problem = problem_from(options, curvature="kfac" if uses_factors else "")
    split, specification = problem.split, problem.specification
    options["image_size"] = problem.image_size
    display.say(*problem.notes)
    display.say(f"{split.train.name}: {len(split.train)} examples, model {specification.text}")

    def on_the_way(kind: str, amount: float, row: Mapping[str, Any]) -> None:
        held_out = row["test_log_likelihood"]
        display.say(
            f"{kind}  {generator} {amount:g}  evidence/example "
            f"{row['log_evidence_per_example']:.4f}  held out "
            + ("–" if held_out is None else f"{held_out:.4f}")
        )

    result = profile(
        problem.network,
        split,
        generator=generator,
        amounts=amounts,
        curvatures=kinds,
        actions=problem.actions,
        config=LearnConfig(**settings_given(LearnConfig, options)),
        device=device_from(options["device"]),
        folder=folder,
        truth=TRUE_RANGES[options["variant"]].get(generator),
        progress=on_the_way,
        network=specification,
        describe={
            **problem.description,
            "request": kept_options(options),
            "command": str(context.find_root().obj),
        },
    )
    tell(result.record, profile_sentences(result.record), as_json=options["as_json"])
