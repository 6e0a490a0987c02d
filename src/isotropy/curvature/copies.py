"""The transformed copies of each example that a network's outputs are averaged over.

    f̂(x) = Σ_s w_s f(x_s),    Σ_s w_s = 1

Rows are (batch·copies, …), copies fastest. The weights are 1/S for S random draws; a mixture over
the elements of a finite group has the elements' probabilities in them, and is exact in those. They
must add up to one, also where they are differentiated: an affine last layer is taken out of the
average (`kfac`).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from isotropy.checks import CallerError, shape_text


@dataclass(frozen=True)
class Copies:
    """How many copies an example has, and the weight of each, (count,); None: all equal."""

    count: int
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        if self.weights is not None and self.weights.shape != (self.count,):
            raise CallerError(
                f"weights of copies: expected ({self.count},), one a copy, got "
                f"{shape_text(self.weights)}"
            )

    def split(self, rows: Tensor) -> Tensor:
        """(batch·copies, …) → (batch, copies, …)."""
        return rows.unflatten(0, (-1, self.count))

    def mean(self, rows: Tensor) -> Tensor:
        """Σ_s w_s row_s: (batch·copies, …) → (batch, …).

        Equal weights scale after the sum: its gradient is then a broadcast view, where that of
        `mean` is divided and written out once per copy.
        """
        if self.weights is None:
            return self.split(rows).sum(1) * (1 / self.count)
        return (self.split(rows).movedim(1, -1) @ self.weights.to(rows.dtype)).contiguous()
