"""`isotropy relax`: which symmetry each layer needs, learned layer by layer from training data.

Live progress of `isotropy relax`: what each layer is becoming, a table or lines.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text
from torch import nn

from isotropy.checks import CallerError, check_at_least
from isotropy.cli.inputs import (
    built_network,
    data_from,
    device_from,
    fitted_network,
    fresh_folder,
    run_options,
)
from isotropy.cli.progress import LiveDisplay, epoch_line
from isotropy.cli.resume import continuable, kept_options, resumed_run
from isotropy.data.labelled import LabelledData, Split
from isotropy.data.readers import digits, read
from isotropy.data.variants import LAWS, TASKS, quadrants, standardised
from isotropy.evidence.layers.settings import (
    AUGMENTATIONS,
    FREE_SHARE,
    OBJECTIVES,
    RelaxConfig,
)
from isotropy.networks.pathways.relaxed_layer import (
    DEFAULT_GROUP,
    GROUP_CONVOLUTIONS,
    PATHWAYS,
    check_kinds,
)
from isotropy.networks.zoo.specification import NetworkSpecification
from isotropy.records import check_unused, plain
from isotropy.report.relax import score_sentences
from isotropy.report.wording import finite, number_text, part_text, percent_text
from isotropy.workflows.relaxing import RelaxProgress, RelaxResult, relax_and_learn

BAR = 30
"""Letters of a layer's bar."""
STYLES = {"conv": "blue", "sconv": "cyan", "fc": "red", "ffc": "yellow", "sfc": "magenta"}
OTHER_STYLE = "green"

Layers = Sequence[Mapping[str, Any]]


class RelaxDisplay(LiveDisplay):
    """Shows each epoch: a table of layers on a terminal, lines elsewhere.

    Scores and shares are not computed in every epoch: the latest are shown.
    kinds: pathways in order; examples: training examples, to tell the evidence of one
    """

    def __init__(self, kinds: Sequence[str], examples: int, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self.kinds, self.examples = kinds, examples
        self.started = time.monotonic()
        self.first_epoch: int | None = None
        self.layers: Layers = ()
        self.log_evidence: float | None = None
        self.test_accuracy: float | None = None

    def __call__(self, progress: RelaxProgress) -> None:
        row = progress.row
        self.layers = row.layers or self.layers
        if row.log_evidence is not None:
            self.log_evidence = row.log_evidence / self.examples
        if row.test_accuracy is not None:
            self.test_accuracy = row.test_accuracy
        if self.quiet:
            return
        if self.is_interactive:
            self.live.update(self._table(progress))
            return
        epochs = progress.config.epochs or 1
        if row.epoch % max(1, epochs // 10) == 0 or row.epoch == epochs:
            self.console.print(self._line(progress), soft_wrap=True, markup=False)

    def _line(self, progress: RelaxProgress) -> str:
        row = progress.row
        means = "".join(
            f"  {kind} {percent_text(self._mean_share(kind), 0)}"
            for kind in self.kinds
            if self.layers and len(self.kinds) > 1
        )
        return (
            f"epoch {row.epoch}/{progress.config.epochs}  {self._scores(row.train_loss)}{means}  "
            f"{row.seconds:.0f} s"
        )

    def _scores(self, loss: float, gap: str = "  ") -> str:
        return gap.join(
            (
                f"loss {loss:.3f}",
                f"evidence/example {number_text(self.log_evidence, 3)}",
                f"test accuracy {percent_text(self.test_accuracy)}",
            )
        )

    def _mean_share(self, kind: str) -> float:
        """A pathway's share, averaged over layers."""
        shares = [finite(layer["effective"].get(kind)) or 0.0 for layer in self.layers]
        return sum(shares) / len(shares)

    def _table(self, progress: RelaxProgress) -> Group:
        row, config = progress.row, progress.config
        epochs = config.epochs or 1
        if self.first_epoch is None:
            self.first_epoch = row.epoch - 1
        elapsed = time.monotonic() - self.started
        left = elapsed / max(1, row.epoch - self.first_epoch) * (epochs - row.epoch)
        head = epoch_line(row.epoch, epochs, elapsed, left)
        layers = Table(box=None, pad_edge=False, header_style="dim")
        layers.add_column("layer")
        for kind in self.kinds:
            layers.add_column(kind, justify="right")
        layers.add_column("relative effective parameters")
        for layer in self.layers:
            shares = [finite(layer["effective"].get(kind)) for kind in self.kinds]
            layers.add_row(str(layer["name"]), *map(part_text, shares), self._bar(shares))
        learns = config.objective == "laplace"
        phase = "fixed priors" if not learns else "learning" if self.layers else "burn-in"
        scores = Text(f"{phase}   {self._scores(row.train_loss, '   ')}")
        if not self.layers:
            return Group(head, Text(), scores)
        return Group(head, Text(), layers, Text(), scores)

    def _bar(self, shares: Sequence[float | None]) -> Text:
        """A bar divided among the pathways; letters go where the running sum of shares ends."""
        bar, end, total = Text(), 0, 0.0
        for kind, share in zip(self.kinds, shares, strict=True):
            total += share or 0.0
            letters = round(BAR * min(total, 1.0)) - end
            bar.append("█" * letters, style=STYLES.get(kind, OTHER_STYLE))
            end += letters
        return bar


IMAGE_SIZE = 32
WIDTH, GROUP_WIDTH = 10, 2
"""Of the paper: two where a group multiplies the channels."""
QUICK: dict[str, Any] = {
    "width": 8, "epochs": 14, "batch_size": 16, "free_precision": 10, "curvature": "kfac-mc",
}  # fmt: skip
"""A run of minutes on two cores; what is typed beside --quick counts."""
NAMES = QUADRANTS, DIGITS = "quadrants", "digits"
"""Data that come with the package."""


def _kinds(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(","))


@click.command("relax")
@click.option(
    "--data",
    default=QUADRANTS,
    show_default=True,
    help="quadrants (digits in one of four places), digits (those that come with the package), or "
    "images: IDX files or their folder, CIFAR-10 binary batches, .npz with x and y, a folder per "
    "class.",
)
@click.option(
    "--test",
    "test_data",
    help="Test data, only scored. Default: what comes with the data, else 20 % held out.",
)
@click.option(
    "--task",
    type=click.Choice(TASKS),
    help="What to tell of quadrants: the digit, or the digit and where it is.  [default: digit]",
)
@click.option("--digits", "digits_data", help="For quadrants: digits from here, such as all MNIST.")
@click.option(
    "--variant",
    type=click.Choice(tuple(LAWS)),
    default="original",
    show_default=True,
    help="Transform every image once, at random, before anything else.",
)
@click.option(
    "--image-size",
    type=int,
    help="Images are brought to so many pixels a side; without --model a multiple of 32.  "
    f"[default: {IMAGE_SIZE}; with --model the images' own size]",
)
@click.option(
    "--model",
    "model_text",
    help="A network whose convolutions are relaxed: cnn | resnet | resnet:WIDTH | compact | … | "
    "FILE.py:factory | timm:NAME | RUN_FOLDER of isotropy learn.  [default: the paper's]",
)
@click.option(
    "--pathways",
    default="ffc,conv",
    show_default=True,
    callback=_kinds,
    help=f"What each layer is a sum of, comma-separated: {', '.join(PATHWAYS)}.",
)
@click.option(
    "--width",
    type=click.IntRange(1),
    help="Channels of the first layer, of the paper's network.  "
    f"[default: {WIDTH}, with a group {GROUP_WIDTH}]",
)
@click.option(
    "--group",
    help=f"Of group convolutions: a group that acts on the grid.  [default: {DEFAULT_GROUP}]",
)
@click.option(
    "--objective",
    type=click.Choice(OBJECTIVES),
    default="laplace",
    show_default=True,
    help="Learn prior precisions by the evidence, or leave them fixed.",
)
@click.option("--epochs", type=int, help="Passes over the training data.")
@click.option("--batch-size", type=int, help="Examples a weight step.")
@click.option(
    "--curvature-batch", type=int, help="Examples at once in an evidence pass; sets its memory."
)
@click.option(
    "--curvature", help="Kronecker-factored: kfac-ggn, kfac-mc or kfac-ef.  [default: kfac-ggn]"
)
@click.option(
    "--free-precision",
    type=float,
    help="Prior precision that fully connected pathways start at; higher asks more of the data "
    f"before symmetry is given up.  [default: {FREE_SHARE:g} of the number of examples]",
)
@click.option(
    "--augment",
    type=click.Choice(tuple(AUGMENTATIONS)),
    default="none",
    show_default=True,
    help="Images in weight steps: cropped after a rim of 4 pixels; flips mirrors them too.",
)
@click.option("--harden", is_flag=True, help="Score the network without switched-off pathways too.")
@click.option(
    "--quick",
    is_flag=True,
    help="A small run: " + ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in QUICK.items()) + ".",
)
@click.option("--resume", type=click.Path(path_type=Path), help="Continue this run folder.")
@run_options
@click.pass_context
def relax_command(context: click.Context, /, resume: Path | None, **options: Any) -> None:
    """Learn which symmetry each layer of a convolutional network should have.

    Every layer is a sum of pathways: a convolution, and others that are free to depend on where
    things are. The evidence of the training data switches off what is not needed. Writes a run
    folder with a report. `isotropy relax --quick --task digit-quadrant` shows it on digits whose
    place matters.
    """
    before = None
    if resume is not None:
        run = resumed_run(context, resume, options, RelaxConfig, NAMES)
        options, config, before = run.options, run.config, run.network
    else:
        options = _completed(options)
        words = [*([options["task"]] if options["task"] else []), "-".join(options["pathways"])]
        options["out"] = options["out"] or fresh_folder("relax", options, *words)
        config = _config_from(options)
        check_unused(Path(options["out"]))
    folder = Path(options["out"])
    with continuable("relax", folder):
        result = _relax(options, config, before, command=str(context.find_root().obj))
    if options["as_json"]:
        click.echo(json.dumps(plain(result.record), allow_nan=False))
        return
    for sentence in [*result.sentences, *score_sentences(result.record), *result.record["notes"]]:
        click.echo(sentence)
    click.echo(f"Report: {folder / 'report.html'}")


def _relax(
    options: dict[str, Any],
    config: RelaxConfig,
    before: NetworkSpecification | None,
    *,
    command: str,
) -> RelaxResult:
    """Everything between the parsed options and the result.

    before: the relaxed network of the run in `options["out"]` that is to be continued
    """
    place = device_from(options["device"])
    split = relax_data(options)
    model = _model(options, split.train, before)
    display = RelaxDisplay(options["pathways"], len(split.train), quiet=options["quiet"])
    for note in split.notes:
        display.say(note)
    what = f"width {options['width']}" if model is None else f"model {model[0].text}"
    display.say(
        f"{split.train.name}: {len(split.train)} examples, pathways "
        f"{', '.join(options['pathways'])}, {what}, objective {config.objective}, {place}"
    )

    def announce(resolved: RelaxConfig, epoch: int) -> None:
        if before is not None:
            display.say(f"continuing after epoch {epoch} of {resolved.epochs}")

    with display:
        return relax_and_learn(
            split,
            pathways=options["pathways"],
            width=options["width"],
            group=options["group"],
            config=config,
            model=model,
            describe={"task": options["task"], "command_line": command},
            device=place,
            hardened=options["harden"],
            folder=options["out"],
            resume=before is not None,
            started=announce,
            progress=display,
            remark=display.say,
            request=kept_options(options, NAMES),
        )


def _model(
    options: dict[str, Any], data: LabelledData, before: NetworkSpecification | None
) -> tuple[NetworkSpecification, nn.Module] | None:
    """The network to relax, in words and itself; None for the paper's.

    before: the relaxed network of a run that is continued
    """
    if options["model_text"] is None:
        return None
    if before is None:
        return fitted_network(options["model_text"], data, options["seed"])
    where = f"the network of {options['out']}"
    specification = NetworkSpecification.from_dict(before.arguments.get("network"), where=where)
    return specification, built_network(specification, data, options["seed"])


def relax_data(options: dict[str, Any]) -> Split:
    """The data a user named, as images of the size asked for; digits are standardised as MNIST."""
    if options["data"] == QUADRANTS:
        _refuse(options, "test_data", "the test digits are those beside the training digits")
        if options["variant"] != "original":
            raise CallerError(
                f"--variant {options['variant']}: quadrants have no variants; use --data {DIGITS}, "
                "or a path"
            )
        source = digits() if options["digits_data"] is None else read(options["digits_data"])
        split = quadrants(source, options["task"], size=options["image_size"])
        split = standardised(split) if split.train.inputs.shape[1] == 1 else split
        if options["subset"] is None:
            return split
        check_at_least(options["subset"], 2, what="--subset")
        train = split.train.subset(options["subset"], options["seed"])
        return Split(train, split.test, split.notes)
    _refuse(options, "task", f"only --data {QUADRANTS} has tasks")
    _refuse(options, "digits_data", f"only --data {QUADRANTS} takes digits; use --data instead")
    if options["data"] == DIGITS:
        return standardised(data_from({**options, "data": None}))
    return data_from(options, working_size=True)


def _refuse(options: dict[str, Any], name: str, why: str) -> None:
    if options[name] is not None:
        flag = {"test_data": "--test", "digits_data": "--digits", "task": "--task"}[name]
        raise CallerError(f"{flag} {options[name]}: {why}")


def _completed(options: dict[str, Any]) -> dict[str, Any]:
    """Options with everything filled in that depends on another; pathways are known ones."""
    check_kinds(options["pathways"])
    found = dict(options)
    if found["data"] == QUADRANTS and found["task"] is None:
        found["task"] = TASKS[0]
    has_group = any(kind in GROUP_CONVOLUTIONS for kind in found["pathways"])
    if has_group and found["group"] is None:
        found["group"] = DEFAULT_GROUP
    if found["model_text"] is not None and found["width"] is not None:
        raise CallerError(
            f"--width {found['width']}: it is that of the paper's network; with --model write "
            f"--model resnet:{found['width']}, or leave it out"
        )
    if found["quick"]:
        found |= {name: value for name, value in QUICK.items() if found[name] is None}
    if found["image_size"] is None and (found["model_text"] is None or found["data"] == QUADRANTS):
        found["image_size"] = IMAGE_SIZE
    if found["model_text"] is not None:
        found["width"] = None
    elif found["width"] is None:
        found["width"] = GROUP_WIDTH if has_group else WIDTH
    return found


def _config_from(options: dict[str, Any]) -> RelaxConfig:
    """The settings that these options ask for."""
    names = (
        "objective", "epochs", "batch_size", "curvature_batch", "curvature", "free_precision",
        "seed",
    )  # fmt: skip
    given = {name: options[name] for name in names if options[name] is not None}
    config = RelaxConfig(**given, augmentation=options["augment"])
    config.check()
    return config
