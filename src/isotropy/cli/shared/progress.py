"""What a user sees of a command: progress on standard error, what came out on standard output.

On a terminal progress is live: an epoch's line with a table of what is learned, or a bar.
Elsewhere it is lines, of a training run one every tenth of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from isotropy.checks import CallerError
from isotropy.networks.averaging.augmentations import Augmentation, Symmetry
from isotropy.records import REPORT, plain
from isotropy.report.loggers import log_to
from isotropy.report.wording import finite, number_text, part_text, percent_text
from isotropy.workflows.controlling import ControlConfig, Evaluation
from isotropy.workflows.learning import LearnProgress
from isotropy.workflows.relaxing import RelaxProgress
from isotropy.workflows.representing import RepresentConfig, RepresentEpoch
from isotropy.workflows.story import StoryProgress

LOG = click.option(
    "--log",
    type=click.Choice(("tensorboard",)),
    help="Write every epoch's numbers for TensorBoard too, into the run folder.",
)
BAR = 30
"""Letters of a bar."""
STYLES = {"conv": "blue", "sconv": "cyan", "fc": "red", "ffc": "yellow", "sfc": "magenta"}
OTHER_STYLE = "green"


def tell(
    record: Mapping[str, Any],
    sentences: Iterable[str],
    *,
    as_json: bool,
    last: str | None = None,
) -> None:
    """The outcome of a command on standard output: its record in JSON, or sentences.

    last: the last line; by default where the report is
    """
    if as_json:
        click.echo(json.dumps(plain(record), allow_nan=False))
        return
    for sentence in sentences:
        click.echo(sentence)
    click.echo(last or f"Report: {Path(record['run_folder']) / REPORT}")


def logging(display: Callable[..., None], options: Mapping[str, Any]) -> Callable[..., None]:
    """A progress that shows epochs and, where --log asks for it, writes them for TensorBoard.

    Raises CallerError where the library is missing, before anything runs.
    """
    if options["log"] is None:
        return display
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise CallerError(
            "--log tensorboard needs the tensorboard library; install isotropy[tensorboard]"
        ) from error
    folder = str(Path(options["out"]) / "tensorboard")
    writer = cache(lambda: SummaryWriter(folder))  # when there is an epoch, and the run's folder

    def write(metrics: dict[str, float], step: int) -> None:
        log_to(writer()).hand(metrics, step)
        writer().flush()

    log = log_to(write)

    def both(*told: Any) -> None:
        display(*told)
        log(*told)

    return both


class LiveDisplay:
    """Something live on standard error where that is a terminal; sentences anywhere, if wanted."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.console = Console(stderr=True, highlight=False)
        self.live = Live(console=self.console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        if self.is_interactive:
            self.live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_interactive:
            self.live.stop()

    @property
    def is_interactive(self) -> bool:
        return self.console.is_terminal and not self.quiet

    def say(self, *sentences: str) -> None:
        """Lines of their own."""
        for sentence in () if self.quiet else sentences:
            self.console.print(sentence, soft_wrap=True, markup=False)


class MeasureDisplay(LiveDisplay):
    """What is being measured: a bar on a terminal, lines elsewhere."""

    last = ""

    def __call__(self, text: str, done: int, total: int) -> None:
        if self.is_interactive:
            self.live.update(_bar_line(Text(text), done, max(total, 1), f"{done}/{total}"))
        elif text != self.last:
            self.say(f"measuring {text}")
        self.last = text


class StoryDisplay(LiveDisplay):
    """The steps of a story: a line on a terminal that changes, lines elsewhere."""

    last = ""

    def __call__(self, progress: StoryProgress) -> None:
        line = f"{progress.number}/{progress.steps} {progress.step}: {progress.text}"
        if self.is_interactive:
            words = Text(line)
            self.live.update(_bar_line(words, progress.number - 1, max(progress.steps, 1), ""))
        elif line != self.last:
            self.say(line)
        self.last = line


class EpochDisplay(LiveDisplay):
    """Shows the epochs of a run. Scores are not computed in every epoch: the latest are shown."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self.started = time.monotonic()
        self.first_epoch: int | None = None
        self.log_evidence: float | None = None
        self.test_accuracy: float | None = None
        self.test_rmse: float | None = None

    def show(
        self, epoch: int, epochs: int, loss: float, seconds: float, *, details: str, phase: str
    ) -> None:
        """One epoch. details: of a line, after the scores; phase: what the run is doing."""
        if self.is_interactive:
            self.live.update(self.picture(epoch, epochs, loss, phase))
        elif epoch % max(1, epochs // 10) == 0 or epoch == epochs:
            scores = self._scores(loss, "  ")
            self.say(f"epoch {epoch}/{epochs}  {scores}{details}  {seconds:.0f} s")

    def picture(self, epoch: int, epochs: int, loss: float, phase: str) -> Group:
        """The epoch's line, the table of what is learned, and the scores."""
        if self.first_epoch is None:
            self.first_epoch = epoch - 1
        elapsed = time.monotonic() - self.started
        left = elapsed / max(1, epoch - self.first_epoch) * (epochs - epoch)
        told = f"{elapsed:.0f} s, about {left:.0f} s left"
        head = _bar_line(Text(f"epoch {epoch}/{epochs}", style="bold"), epoch, epochs, told)
        scores = Text(f"{phase}   {self._scores(loss, '   ')}")
        table = self.table()
        return Group(head, *([] if table is None else [Text(), table]), Text(), scores)

    def table(self) -> RenderableType | None:
        """What is learned so far."""
        return None

    def _scores(self, loss: float, gap: str) -> str:
        tested = f"test accuracy {percent_text(self.test_accuracy)}"
        if self.test_rmse is not None:
            tested = f"test RMSE {self.test_rmse:.4g}"
        return gap.join(
            (
                f"loss {loss:.3f}",
                f"evidence/example {number_text(self.log_evidence, 3)}",
                tested,
            )
        )


class LearnDisplay(EpochDisplay):
    """The ranges of a learning run. Use as a context manager and call with `LearnProgress`."""

    def __init__(
        self, augmentation: Augmentation, truth: dict[str, float], *, quiet: bool = False
    ) -> None:
        super().__init__(quiet=quiet)
        self.symmetries = augmentation.symmetries()
        self.generators = {each.name: each for each in augmentation.action.generators}
        self.truth = truth
        self.ranges: Mapping[str, float] = {}

    def __call__(self, progress: LearnProgress) -> None:
        row, config = progress.row, progress.config
        self.ranges = row.ranges
        self.log_evidence = progress.log_evidence_per_example
        self.test_accuracy, self.test_rmse = progress.test_accuracy, progress.test_rmse
        widest = max(self.symmetries, key=self._share, default=None)
        told = "" if widest is None else f"  {widest.name} {self._reading(widest)}"
        phase = "burn-in" if row.epoch <= (config.burn_in or 0) else "learning"
        self.show(
            row.epoch, config.epochs or 1, row.train_loss, row.seconds, details=told, phase=phase
        )

    def table(self) -> Table:
        ranges = Table(box=None, pad_edge=False, header_style="dim")
        ranges.add_column("symmetry")
        ranges.add_column("learned range", justify="right")
        ranges.add_column("")
        if self.truth:
            ranges.add_column("in the data", justify="right", style="dim")
        for symmetry in self.symmetries:
            known = self.truth.get(symmetry.name, 0.0)
            ranges.add_row(
                symmetry.name,
                self._reading(symmetry),
                ProgressBar(1.0, self._share(symmetry), width=24),
                *([reading(symmetry, known)] if self.truth else []),
            )
        return ranges

    def _reading(self, symmetry: Symmetry) -> str:
        return reading(symmetry, self.ranges[symmetry.name])

    def _share(self, symmetry: Symmetry) -> float:
        """How much of a symmetry there is, of all there can be or of one coordinate."""
        amount = self.ranges[symmetry.name]
        if symmetry.kind == "probability":
            return min(1.0, 2 * amount)
        generator = self.generators[symmetry.name]
        return min(1.0, abs(generator.from_units(amount)) / (generator.period or 1.0))


class RelaxDisplay(EpochDisplay):
    """What each layer is becoming; call with `RelaxProgress`.

    kinds: pathways in order; examples: training examples, to tell the evidence of one
    """

    def __init__(self, kinds: Sequence[str], examples: int, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self.kinds, self.examples = kinds, examples
        self.layers: Sequence[Mapping[str, Any]] = ()

    def __call__(self, progress: RelaxProgress) -> None:
        row, config = progress.row, progress.config
        self.layers = row.layers or self.layers
        if row.log_evidence is not None:
            self.log_evidence = row.log_evidence / self.examples
        if row.test_accuracy is not None:
            self.test_accuracy = row.test_accuracy
        means = "".join(
            f"  {kind} {percent_text(self._mean_share(kind), 0)}"
            for kind in self.kinds
            if self.layers and len(self.kinds) > 1
        )
        learns = config.objective == "laplace"
        phase = "fixed priors" if not learns else "learning" if self.layers else "burn-in"
        self.show(
            row.epoch, config.epochs or 1, row.train_loss, row.seconds, details=means, phase=phase
        )

    def table(self) -> Table | None:
        if not self.layers:
            return None
        layers = Table(box=None, pad_edge=False, header_style="dim")
        layers.add_column("layer")
        for kind in self.kinds:
            layers.add_column(kind, justify="right")
        layers.add_column("relative effective parameters")
        for layer in self.layers:
            shares = [finite(layer["effective"].get(kind)) for kind in self.kinds]
            layers.add_row(str(layer["name"]), *map(part_text, shares), self.shares_bar(shares))
        return layers

    def shares_bar(self, shares: Sequence[float | None]) -> Text:
        """A bar divided among the pathways; letters go where the running sum of shares ends."""
        bar, end, total = Text(), 0, 0.0
        for kind, share in zip(self.kinds, shares, strict=True):
            total += share or 0.0
            letters = round(BAR * min(total, 1.0)) - end
            bar.append("█" * letters, style=STYLES.get(kind, OTHER_STYLE))
            end += letters
        return bar

    def _mean_share(self, kind: str) -> float:
        """A pathway's share, averaged over layers."""
        shares = [finite(layer["effective"].get(kind)) or 0.0 for layer in self.layers]
        return sum(shares) / len(shares)


class RepresentDisplay(EpochDisplay):
    """The loss of pairs, and how many held-out entities are found."""

    retrieval: float | None = None

    def __call__(self, config: RepresentConfig, row: RepresentEpoch) -> None:
        if row.retrieval is not None:
            self.retrieval = row.retrieval
        self.show(
            row.epoch, config.epochs, row.train_loss, row.seconds, details="", phase="learning"
        )

    def _scores(self, loss: float, gap: str) -> str:
        return f"loss {loss:.4f}{gap}held-out entities found {percent_text(self.retrieval)}"


class ControlDisplay(LiveDisplay):
    """Returns of every evaluation: a curve so far on a terminal, lines elsewhere."""

    LEVELS = "▁▂▃▄▅▆▇█"

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self.returns: dict[int, list[float]] = {}

    def __call__(self, config: ControlConfig, row: Evaluation) -> None:
        self.returns.setdefault(row.seed, []).append(row.mean_return)
        if self.is_interactive:
            told = f"return {row.mean_return:.0f}, {row.seconds:.0f} s"
            words = Text(f"seed {row.seed}  {row.steps}/{config.steps}", style="bold")
            lines = [Text(f"seed {seed}  {self.curve(seed)}") for seed in self.returns]
            self.live.update(Group(_bar_line(words, row.steps, config.steps, told), *lines))
        else:
            self.say(
                f"seed {row.seed}  step {row.steps}/{config.steps}  return {row.mean_return:.1f}  "
                f"{row.seconds:.0f} s"
            )

    def curve(self, seed: int) -> str:
        """A letter for each evaluation of a seed, as high as its return among those of all."""
        known = [each for own in self.returns.values() for each in own]
        low, width = min(known), max(max(known) - min(known), 1e-12)
        top = len(self.LEVELS) - 1
        return "".join(self.LEVELS[round(top * (x - low) / width)] for x in self.returns[seed])


def reading(symmetry: Symmetry, amount: float) -> str:
    """`±175.0°`, `±0.02 log factor` or `p = 0.49`: an amount as it is shown."""
    if symmetry.kind == "probability":
        return f"p = {amount:.3f}"
    if symmetry.unit == "degrees":
        return f"±{amount:.1f}°"
    return f"±{amount:.3f} {symmetry.unit}"


def _bar_line(words: Text, done: int, total: int, told: str) -> Table:
    """Words, a bar, and what there is to say beside it."""
    line = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=total, completed=done, width=BAR)
    line.add_row(words, bar, Text(told, style="dim"))
    return line
