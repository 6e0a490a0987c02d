"""`isotropy learn`: which transformations leave the answer unchanged, and how much of each."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from isotropy.cli.inputs import (
    EVIDENCE,
    Problem,
    action_names,
    amounts_from,
    continuable,
    device_from,
    fresh_folder,
    kept_options,
    problem_from,
    problem_options,
    resumed_run,
    settings_from,
    settings_given,
)
from isotropy.cli.progress import LOG, LearnDisplay, logging, tell
from isotropy.curvature.kinds import DEFAULT_KIND, KINDS
from isotropy.data.variants import TRUE_RANGES
from isotropy.evidence.settings import (
    OBJECTIVES,
    OLDER_NAMES,
    LearnConfig,
    LearnSchedule,
    too_short,
)
from isotropy.evidence.weight_steps import augmentation_for
from isotropy.networks.averaging.mixtures import DISTRIBUTIONS, augmentation_over
from isotropy.networks.zoo.specification import NetworkSpecification
from isotropy.records import check_unused
from isotropy.report.pages.findings import finding_sentences
from isotropy.report.pages.screen import screen_sentences
from isotropy.report.wording import number_text
from isotropy.workflows.exploring import ScreenResult, screen
from isotropy.workflows.learning import LearnResult, learn


@click.command("learn")
@problem_options
@click.option(
    "--objective",
    type=click.Choice((*OBJECTIVES, *OLDER_NAMES)),
    help="Default: evidence; laplace is its older name.",
)
@EVIDENCE
@click.option(
    "--range",
    "ranges",
    multiple=True,
    callback=amounts_from,
    metavar="NAME=AMOUNT",
    help="For --objective fixed: a half-width in reported units; repeatable.",
)
@click.option(
    "--cap",
    "caps",
    multiple=True,
    callback=amounts_from,
    metavar="NAME=AMOUNT",
    help="Largest half-width that may be learned, in reported units; repeatable.",
)
@click.option(
    "--distribution",
    type=click.Choice(DISTRIBUTIONS),
    default="independent",
    show_default=True,
    help="Ranges of their own, or with a full covariance.",
)
@click.option(
    "--curvature",
    type=click.Choice(tuple(KINDS)),
    default=DEFAULT_KIND,
    show_default=True,
    help="Curvature behind the evidence: structure and Fisher.",
)
@click.option(
    "--screen",
    "screening",
    is_flag=False,
    flag_value="only",
    type=click.Choice(("only", "first")),
    help="Rank the generators from one plain network, instead of a run (only) or to start it.",
)
@click.option(
    "--verdicts",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Trials behind the gain of each symmetry; 0 for no verdicts.",
)
@click.option(
    "--search/--no-search",
    default=True,
    show_default=True,
    help="Find amounts by a search before training, or learn them by gradient from a small start.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Any other setting of LearnConfig, such as range_rate=0.1; repeatable.",
)
@click.option("--calibration", is_flag=True, help="Score the posterior predictive on test data.")
@LOG
@click.option("--resume", type=click.Path(path_type=Path), help="Continue this run folder.")
@click.pass_context
def learn_command(context: click.Context, /, resume: Path | None, **options: Any) -> None:
    """Learn which transformations leave the labels unchanged, and how much of each.

    Trains a network and, from the same training data alone, the ranges of its augmentation.
    Writes a run folder with a report. `isotropy learn --variant rotated` shows it on the
    embedded digits.
    """
    network = None
    if resume is not None:
        run = resumed_run(context, resume, options, LearnConfig)
        options, config, network = run.options, run.config, run.network
    else:
        words = ["screen"] if options["screening"] == "only" else []
        objective = options["objective"] or "evidence"
        objective = OLDER_NAMES.get(objective, objective)
        options["out"] = options["out"] or fresh_folder("learn", options, *(words or [objective]))
        config = _config_from(options)
    folder = Path(options["out"])
    command = str(context.find_root().obj)
    if options["screening"] == "only":
        record = _screen(options, config, command, folder).record
        tell(record, screen_sentences(record), as_json=options["as_json"])
        return
    with continuable("learn", folder):
        result = _learn(options, config, network, command=command)
    tell(result.record, _sentences(result), as_json=options["as_json"])


def _config_from(options: dict[str, Any]) -> LearnConfig:
    """The settings that these options ask for."""
    given = settings_given(LearnConfig, options)
    config = LearnConfig(**{**given, **settings_from(options["settings"])})
    config.check()
    return config


def _learn(
    options: dict[str, Any],
    config: LearnConfig,
    resumed: NetworkSpecification | None,
    *,
    command: str,
) -> LearnResult:
    """Everything between the parsed options and the result.

    resumed: the network of the run in `options["out"]` that is to be continued.
    """
    place = device_from(options["device"])
    by_curvature = config.recipe.evidence and config.evidence == "laplace"
    curvature = config.curvature if by_curvature else ""
    problem = problem_from(options, resumed, curvature=curvature)
    split, specification, actions = problem.split, problem.specification, problem.actions
    options["image_size"] = problem.image_size
    truth = TRUE_RANGES[options["variant"]]
    display = LearnDisplay(augmentation_for(config, actions), truth, quiet=options["quiet"])
    screened: ScreenResult | None = None
    if options["screening"] == "first" and resumed is None and config.recipe.ranges == "evidence":
        check_unused(Path(options["out"]))
        screened = _screen(options, config, command, None, problem)
        config = replace(config, start=screened.start)
        display.say(*screen_sentences(screened.record))

    def announce(resolved: LearnSchedule, epoch: int) -> None:
        display.say(*problem.notes)
        display.say(
            f"{split.train.name}: {len(split.train)} examples, model {specification.text}, "
            f"objective {resolved.objective}, {resolved.samples} samples, {resolved.epochs} epochs "
            f"of batches of {resolved.batch_size}, {place}"
        )
        if too_short(resolved, len(split.train)):
            display.say(
                f"{resolved.epochs} epochs are too few for the ranges to settle; read them as a "
                "trend"
            )
        if resumed is not None:
            display.say(f"continuing after epoch {epoch} of {resolved.epochs}")

    with display:
        return learn(
            problem.network,
            split,
            actions=actions,
            config=config,
            device=place,
            folder=options["out"],
            resume=resumed is not None,
            started=announce,
            progress=logging(display, options),
            network=specification,
            verdicts=options["verdicts"],
            calibrate=options["calibration"],
            remark=display.say,
            screening=None if screened is None else screened.screening.as_dict(),
            describe={
                "request": kept_options(options),
                "actions": action_names(options, split.train),
                **problem.description,
                "truth": truth,
                "command": command,
            },
        )


def _screen(
    options: dict[str, Any],
    config: LearnConfig,
    command: str,
    folder: Path | None,
    problem: Problem | None = None,
) -> ScreenResult:
    """Rank the generators by one plain network; writes a run folder if one is given."""
    told = problem is not None
    problem = problem or problem_from(options, curvature=config.curvature)
    split, specification, actions = problem.split, problem.specification, problem.actions
    options["image_size"] = problem.image_size
    display = LearnDisplay(augmentation_over(actions), {}, quiet=options["quiet"])
    display.say(*(() if told else problem.notes))
    display.say(f"{split.train.name}: {len(split.train)} examples, model {specification.text}")
    epochs = config.epochs if options["screening"] == "only" else None
    return screen(
        copy.deepcopy(problem.network),
        split,
        actions=actions,
        config=replace(config, epochs=epochs, objective="evidence", ranges=None),
        device=device_from(options["device"]),
        folder=folder,
        progress=display.say,
        network=specification,
        describe={
            **problem.description,
            "request": kept_options(options),
            "command": command,
            "truth": TRUE_RANGES[options["variant"]],
        },
    )


def _sentences(result: LearnResult) -> list[str]:
    """What was learned, in words."""
    record = result.record
    found = list(finding_sentences(record, result.config.get("truth", {})))
    accuracy = record["test_accuracy"]
    if accuracy is not None:
        found.append(f"Test accuracy {100 * accuracy:.1f} % on {record['test_examples']} examples.")
    if record["test_rmse"] is not None:
        found.append(
            f"Test RMSE {record['test_rmse']:.4g} and log likelihood "
            f"{number_text(record['test_log_likelihood'], 3)} nats per example, on "
            f"{record['test_examples']} examples, in the target's unit."
        )
    if record["log_evidence"] is not None:
        what = "Evidence bound" if record["evidence"]["kind"] == "elbo" else "Log evidence"
        found.append(
            f"{what} {number_text(record['log_evidence'], 1)} nats, "
            f"{number_text(record['log_evidence_per_example'], 3)} per example."
        )
    return found
