"""Live progress of a learning run on standard error: a table on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from isotropy.networks.averaging.augmentations import Augmentation, Symmetry
from isotropy.report.wording import number_text
from isotropy.workflows.learning import LearnProgress


def reading(symmetry: Symmetry, amount: float) -> str:
    """`±175.0°`, `±0.02 log factor` or `p = 0.49`: an amount as it is shown."""
    if symmetry.kind == "probability":
        return f"p = {amount:.3f}"
    if symmetry.unit == "degrees":
        return f"±{amount:.1f}°"
    return f"±{amount:.3f} {symmetry.unit}"


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

    def say(self, sentence: str) -> None:
        """A line of its own."""
        if not self.quiet:
            self.console.print(sentence, soft_wrap=True, markup=False)


class LearnDisplay(LiveDisplay):
    """Shows each epoch. Use as a context manager and call with every `LearnProgress`."""

    def __init__(
        self, augmentation: Augmentation, truth: dict[str, float], *, quiet: bool = False
    ) -> None:
        super().__init__(quiet=quiet)
        self.augmentation = augmentation
        self.symmetries = augmentation.symmetries()
        self.truth = truth
        self.started = time.monotonic()
        self.first_epoch: int | None = None

    def __call__(self, progress: LearnProgress) -> None:
        if self.quiet:
            return
        if self.is_interactive:
            self.live.update(self._table(progress))
            return
        epochs = progress.config.epochs or 1
        if progress.row.epoch % max(1, epochs // 10) == 0 or progress.row.epoch == epochs:
            self.console.print(self._line(progress), soft_wrap=True, markup=False)

    def _line(self, progress: LearnProgress) -> str:
        row = progress.row
        found = max(self.symmetries, key=lambda s: self._share(s, row.ranges), default=None)
        widest = "" if found is None else f"  {found.name} {reading(found, row.ranges[found.name])}"
        return (
            f"epoch {row.epoch}/{progress.config.epochs}  loss {row.train_loss:.3f}  "
            f"evidence/example {number_text(progress.log_evidence_per_example, 3)}{widest}  "
            f"test accuracy {_percent(progress.test_accuracy)}  {row.seconds:.0f} s"
        )

    def _table(self, progress: LearnProgress) -> Group:
        row, config = progress.row, progress.config
        epochs = config.epochs or 1
        if self.first_epoch is None:
            self.first_epoch = row.epoch - 1
        elapsed = time.monotonic() - self.started
        left = elapsed / max(1, row.epoch - self.first_epoch) * (epochs - row.epoch)
        head = epoch_line(row.epoch, epochs, elapsed, left)
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
                reading(symmetry, row.ranges[symmetry.name]),
                ProgressBar(1.0, self._share(symmetry, row.ranges), width=24),
                *([reading(symmetry, known)] if self.truth else []),
            )
        phase = "burn-in" if row.epoch <= (config.burn_in or 0) else "learning"
        scores = Text(
            f"{phase}   loss {row.train_loss:.3f}   evidence/example "
            f"{number_text(progress.log_evidence_per_example, 3)}   test accuracy "
            f"{_percent(progress.test_accuracy)}"
        )
        return Group(head, Text(), ranges, Text(), scores)

    def _share(self, symmetry: Symmetry, ranges: dict[str, float]) -> float:
        """How much of a symmetry there is, of all there can be or of one coordinate."""
        amount = ranges[symmetry.name]
        if symmetry.kind == "probability":
            return min(1.0, 2 * amount)
        generators = {each.name: each for each in self.augmentation.action.generators}
        generator = generators[symmetry.name]
        return min(1.0, abs(generator.from_units(amount)) / (generator.period or 1.0))


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def epoch_line(epoch: int, epochs: int, elapsed: float, left: float) -> Table:
    """`epoch 3/40`, a bar, and the seconds that have gone and are to come."""
    line = Table.grid(padding=(0, 2))
    line.add_row(
        Text(f"epoch {epoch}/{epochs}", style="bold"),
        ProgressBar(total=epochs, completed=epoch, width=30),
        Text(f"{elapsed:.0f} s, about {left:.0f} s left", style="dim"),
    )
    return line
