"""How well a run of `isotropy learn` predicts its test data, and which classes there are.

Of classes the accuracy, of a regression the root mean squared error in the target's own unit. How
many examples each class has stands beside it: an accuracy means little where one class has most of
them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from isotropy.report.figures import Curve, CurvePanel, accuracy_panel
from isotropy.report.page import KeyNumber, Table, named, number
from isotropy.report.record import Epoch, Learned
from isotropy.report.wording import known_text, number_text, percent_text, title_of

MOST_CLASSES = 30
"""Classes that a table lists; of more it has the most and the least frequent."""


def score_number(learned: Learned) -> KeyNumber:
    """Test accuracy with its standard error, or the error of a regression."""
    accuracy, tested = learned.test_accuracy, learned.test_examples
    if math.isfinite(learned.test_rmse):
        note = known_text(tested, "{} test examples, ") + (
            f"log likelihood {number_text(learned.test_log_likelihood, 3)} nats each"
        )
        return KeyNumber("Test RMSE", f"{learned.test_rmse:.4g}", note)
    note = "on test data" if math.isfinite(accuracy) else "no test data"
    if math.isfinite(accuracy) and tested > 0:
        error = math.sqrt(max(accuracy * (1 - accuracy), 0.0) / tested)
        note = f"{tested:,.0f} test examples, standard error {100 * error:.1f} points"
    return KeyNumber("Test accuracy", percent_text(accuracy), note)


def score_panel(rows: Sequence[Epoch]) -> CurvePanel:
    """Accuracy over epochs, or the error of a regression."""
    if not any(math.isfinite(row.test_rmse) for row in rows):
        return accuracy_panel(rows)
    errors = Curve([row.epoch for row in rows], [row.test_rmse for row in rows], "test")
    return CurvePanel("RMSE", "root mean squared error, in the unit of the target", [errors])


def class_table(learned: Learned) -> Table | None:
    """Training and test examples of every class, with their shares; None for a regression."""
    counts = learned.class_counts
    parts = min(map(len, counts.values()), default=0)
    if not parts:
        return None
    shown = sorted(counts, key=lambda name: -counts[name][0])
    if len(shown) > MOST_CLASSES:
        half = MOST_CLASSES // 2
        shown = [*shown[:half], *shown[-half:]]
    totals = [sum(own[part] for own in counts.values()) for part in range(parts)]
    rows = [
        [
            named(name),
            *(
                number(number_text(count, 0), percent_text(count / total if total else math.nan))
                for count, total in zip(counts[name], totals, strict=False)
            ),
        ]
        for name in (name for name in counts if name in shown)
    ]
    return Table(("Class", "Training", "Test")[: 1 + parts], rows, style="dense")


def calibration_table(learned: Learned) -> Table | None:
    """Scores of the predictions on test data, one row per way of predicting."""
    rows = [
        [
            named(title_of(name)),
            number(percent_text(scores.accuracy)),
            number(number_text(scores.log_likelihood, 3)),
            number(number_text(scores.brier_score, 3)),
            number(percent_text(scores.expected_calibration_error)),
        ]
        for name, scores in learned.calibration.items()
    ]
    titles = ("Prediction", "Accuracy", "Log likelihood per example", "Brier score",
              "Calibration error")  # fmt: skip
    return Table(titles, rows) if rows else None


def calibration_examples(learned: Learned) -> str:
    """How many test examples were scored, where all ways of predicting had the same."""
    counts = {scores.examples for scores in learned.calibration.values()}
    return known_text(counts.pop(), "{} ") if len(counts) == 1 else ""
