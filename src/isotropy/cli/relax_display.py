"""Live progress of `isotropy relax`: what each layer is becoming, a table or lines."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from isotropy.cli.progress import LiveDisplay, epoch_line
from isotropy.report.relax_words import part_text
from isotropy.report.wording import finite, number_text, percent_text
from isotropy.workflows.relaxing import RelaxProgress

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
