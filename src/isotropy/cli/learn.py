"""`isotropy learn`: which transformations leave the answer unchanged, and how much of each."""

from __future__ import annotations

import copy
import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from isotropy.checks import CallerError
from isotropy.cli.shared.inputs import (
    EVIDENCE,
    Problem,
    action_names,
    amounts_from,
    device_from,
    fresh_folder,
    is_run_folder,
    problem_from,
    problem_options,
    settings_from,
    settings_given,
    with_options,
)
from isotropy.cli.shared.progress import LOG, LearnDisplay, logging, tell
from isotropy.cli.shared.resuming import continuable, kept_options, resumed_run
from isotropy.cli.shared.seeds import (
    ENGINE_NAMES,
    SUMMARY,
    agreement_sentences,
    run_seeds,
    seeds_options,
)
from isotropy.curvature.kinds import DEFAULT_KIND, KINDS
from isotropy.data.variants import TRUE_RANGES
from isotropy.evidence.objectives import OBJECTIVES, OLDER_NAMES
from isotropy.evidence.settings import OPTIMISERS, LearnConfig, LearnSchedule, too_short
from isotropy.evidence.weight_steps import augmentation_for
from isotropy.networks.averaging.mixtures import DISTRIBUTIONS, augmentation_over
from isotropy.networks.frozen import NOTHING
from isotropy.networks.zoo.specification import NetworkSpecification
from isotropy.records import CHECKPOINT, CONFIG, check_unused
from isotropy.report.pages.findings import finding_sentences
from isotropy.report.pages.screen import screen_sentences
from isotropy.report.wording import number_text
from isotropy.workflows.exploring import SCREENED, ScreenResult, screen
from isotropy.workflows.learning import LearnResult, learn
from isotropy.workflows.runs.searching import keeps_amounts

SEVERAL = ("seeds", *ENGINE_NAMES)
"""Options of several seeds, which a run itself does not have."""
_WEIGHTS = (
    click.option(
        "--optimiser",
        type=click.Choice(OPTIMISERS),
        default="adam",
        show_default=True,
        help="Of the weights.",
    ),
    click.option("--momentum", type=float, help="Of sgd. Default: 0.9."),
    click.option("--nesterov", is_flag=True, help="Nesterov's momentum, with sgd."),
    click.option(
        "--weight-rate",
        type=float,
        help="Learning rate of the weights at the start. Default: 0.005, or 0.1 with sgd.",
    ),
    click.option(
        "--scalar-rate",
        type=float,
        help="Of single numbers, as Fixup's biases and scales, in multiples of the weight rate. "
        "Default: 1, or 0.1 with sgd.",
    ),
    click.option(
        "--warm-up", type=float, help="Epochs over which the weight rate grows. Default: 0."
    ),
    click.option(
        "--ema-decay",
        type=float,
        help="Average weights over steps with this decay; evidence, scores and checkpoints are at "
        "the average. Default: 0, no average.",
    ),
    click.option("--prior-steps", type=int, help="Steps on prior precisions a hyper step."),
)


@click.command("learn")
@problem_options
@partial(with_options, _WEIGHTS)
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
    help="Curvature behind the evidence: structure and Fisher.  [default: kfac-ggn; kfac-mc of "
    "networks with many layers or classes]",
)
@click.option(
    "--freeze",
    default=NOTHING,
    show_default=True,
    metavar="backbone|none|PATTERN",
    help="What is not trained: all but the last layer, which is new where classes differ, or "
    "parameters by their names, such as 'layer1.*,layer2.*'.",
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
@click.option(
    "--stream",
    is_flag=True,
    help="Read tar shards while learning. Default where they take more than a quarter of memory.",
)
@click.option("--calibration", is_flag=True, help="Score the posterior predictive on test data.")
@LOG
@seeds_options
@click.option("--resume", type=click.Path(path_type=Path), help="Continue this run folder.")
@click.pass_context
def learn_command(context: click.Context, /, resume: Path | None, **options: Any) -> None:
    """Learn which transformations leave the labels unchanged, and how much of each.

    Trains a network and, from the same training data alone, the ranges of its augmentation.
    Writes a run folder with a report. `isotropy learn --variant rotated` shows it on the
    embedded digits.
    """
    several = {name: options.pop(name) for name in SEVERAL}
    if several["seeds"] is not None:
        _learn_seeds(context, {**several, **options}, resume)
        return
    if resume is not None:
        options, request = _resumed(context, resume, options)
    else:
        words = ["screen"] if options["screening"] == "only" else []
        objective = options["objective"] or "evidence"
        objective = OLDER_NAMES.get(objective, objective)
        options["out"] = options["out"] or fresh_folder("learn", options, *(words or [objective]))
        request = _Request(_config_from(options), str(context.find_root().obj))
    folder = Path(options["out"])
    with continuable("learn", folder):
        if options["screening"] == "only":
            record = _screen(options, request, folder).record
            sentences = list(screen_sentences(record))
        else:
            result = _learn(options, request)
            record, sentences = result.record, _sentences(result)
    tell(record, sentences, as_json=options["as_json"])


def _learn_seeds(context: click.Context, options: dict[str, Any], resume: Path | None) -> None:
    """Several seeds; a folder that was begun is gone on with."""
    if resume is not None or options["screening"] == "only":
        raise CallerError(
            "--seeds: expected runs that begin, got --resume or --screen only; call the same "
            "command again to go on with seeds that were cut off"
        )
    named = {**options, "seed": options["seeds"]}
    folder = Path(options["out"] or fresh_folder("learn", named, "seeds"))
    record = run_seeds(str(context.find_root().obj), options, folder)
    last = f"All: {folder / SUMMARY}; the report of each seed is in its folder"
    tell(record, agreement_sentences(record), as_json=options["as_json"], last=last)


@dataclass(frozen=True)
class _Request:
    """What is to be done besides the options.

    command: as it was typed
    network: that of a run that is continued
    resumes: whether something is continued
    is_screened: whether the screening before the run, if there is one, is behind
    """

    config: LearnConfig
    command: str
    network: NetworkSpecification | None = None
    resumes: bool = False
    is_screened: bool = False


def _resumed(
    context: click.Context, folder: Path, options: dict[str, Any]
) -> tuple[dict[str, Any], _Request]:
    """The options and the request of what a run folder holds.

    A run that was stopped in the screening before it has no config of its own yet: its settings are
    those of its options.
    """
    command, screening = str(context.find_root().obj), folder / SCREENED
    if (folder / CONFIG).exists() or not (screening / CONFIG).exists():
        run = resumed_run(context, folder, options, LearnConfig)
        # Before the first checkpoint, what the search decides is still open.
        is_open = not (folder / CHECKPOINT).exists()
        config = _config_from(run.options) if is_open else run.config
        return run.options, _Request(config, command, run.network, True, True)
    run = resumed_run(context, folder, options, LearnConfig, kept_in=screening)
    # A run folder as the model gives its weights, too, to the run that is still to begin.
    network = None if is_run_folder(run.options["model_text"]) else run.network
    return run.options, _Request(_config_from(run.options), command, network, resumes=True)


def _config_from(options: dict[str, Any]) -> LearnConfig:
    """The settings that these options ask for."""
    given = settings_given(LearnConfig, options)
    config = LearnConfig(**{**given, **settings_from(options["settings"])})
    config.check()
    return config


def _learn(options: dict[str, Any], request: _Request) -> LearnResult:
    """Everything between the parsed options and the result."""
    config = request.config
    place = device_from(options["device"])
    by_curvature = config.recipe.evidence and config.evidence == "laplace"
    by_curvature &= config.freeze == NOTHING  # memory is that of layers that are trained
    curvature = (config.curvature or DEFAULT_KIND) if by_curvature else ""
    problem = problem_from(options, request.network, curvature=curvature)
    split, specification, actions = problem.split, problem.specification, problem.actions
    options["image_size"] = problem.image_size
    truth = TRUE_RANGES[options["variant"]]
    display = LearnDisplay(augmentation_for(config, actions), truth, quiet=options["quiet"])
    if problem.is_slow:
        display.say(*problem.notes)
    screened: ScreenResult | None = None
    screens = options["screening"] == "first" and config.recipe.ranges == "evidence"
    before = Path(options["out"]) / SCREENED
    if screens and not request.is_screened:
        check_unused(Path(options["out"]))
        if not request.resumes and (before / CHECKPOINT).exists():
            raise CallerError(
                f"run folder {options['out']!s} holds a screening that was stopped; continue it "
                f"with --resume {options['out']!s} or choose another folder"
            )
        screened = _screen(options, request, before, problem)
        config = replace(config, start=screened.start)
        display.say(*screen_sentences(screened.record))

    def announce(resolved: LearnSchedule, epoch: int) -> None:
        display.say(*(() if problem.is_slow else problem.notes))
        display.say(
            f"{split.train.name}: {len(split.train)} examples, model {specification.text}, "
            f"objective {resolved.objective}, {resolved.samples} samples, {resolved.epochs} epochs "
            f"of batches of {resolved.batch_size}, {place}"
        )
        moves = not (resolved.search and keeps_amounts(config))
        if moves and too_short(resolved, len(split.train)):
            display.say(
                f"{resolved.epochs} epochs are too few for the ranges to settle; read them as a "
                "trend"
            )
        if request.is_screened:
            display.say(f"continuing after epoch {epoch} of {resolved.epochs}")

    with display:
        result = learn(
            problem.network,
            split,
            actions=actions,
            config=config,
            device=place,
            folder=options["out"],
            resume=request.is_screened,
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
                "command": request.command,
            },
        )
    shutil.rmtree(before, ignore_errors=True)
    return result


def _screen(
    options: dict[str, Any], request: _Request, folder: Path, problem: Problem | None = None
) -> ScreenResult:
    """Rank the generators by one plain network; writes the run folder `folder`."""
    config, told = request.config, problem is not None
    curvature = config.curvature or DEFAULT_KIND
    problem = problem or problem_from(options, request.network, curvature=curvature)
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
        resume=request.resumes,
        progress=display.say,
        network=specification,
        describe={
            **problem.description,
            "request": kept_options(options),
            "actions": action_names(options, split.train),
            "command": request.command,
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
