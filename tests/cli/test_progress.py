"""What a user sees of a command at work: tables on a terminal, lines elsewhere."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from isotropy.checks import CallerError
from isotropy.cli.shared.progress import (
    LearnDisplay,
    MeasureDisplay,
    RelaxDisplay,
    logging,
    reading,
)
from isotropy.evidence.layers.settings import RelaxConfig
from isotropy.evidence.layers.training import LayerEpoch
from isotropy.evidence.settings import LearnConfig
from isotropy.evidence.training import EpochRecord
from isotropy.networks.averaging.augmentations import Symmetry, UniformRanges
from isotropy.symmetry.actions.images import affine
from isotropy.workflows.learning import LearnProgress
from isotropy.workflows.relaxing import RelaxProgress

RANGES = UniformRanges(affine(("rotation", "scale_x")))


def learned(epoch: int, **changes: Any) -> LearnProgress:
    row = EpochRecord(
        epoch=epoch,
        train_loss=0.25,
        train_accuracy=0.5,
        log_likelihood=None,
        log_evidence=None,
        log_evidence_per_example=None,
        ranges={"rotation": 90.0, "scale_x": 0.02},
        prior_precision={"all": 1.0},
        noise=None,
        test_accuracy=None,
        test_log_likelihood=None,
        seconds=2.0 * epoch,
    )
    values = {"log_evidence_per_example": -1.5, "test_accuracy": 0.875, **changes}
    return LearnProgress(LearnConfig(epochs=40, burn_in=6), row, **values)


def relaxed(epoch: int) -> RelaxProgress:
    """Scores and layers come in some of the epochs only."""
    after = epoch > 2
    row = {
        "epoch": epoch, "train_loss": 0.25, "train_accuracy": 0.9, "seconds": 2.0 * epoch,
        "log_evidence": -150.0 if after else None,
        "test_accuracy": 0.875 if epoch % 4 == 0 else None, "test_nll": None,
        "layers": [
            {"name": "stage1", "effective": {"ffc": 1e-6, "conv": 1 - 1e-6}},
            {"name": "stage2", "effective": {"ffc": 0.4, "conv": 0.6}},
        ] if after and epoch % 3 == 0 else None,
    }  # fmt: skip
    return RelaxProgress(RelaxConfig(epochs=40), LayerEpoch(**row))


def learn_display(truth: dict[str, float] | None = None, *, quiet: bool = False) -> LearnDisplay:
    return LearnDisplay(RANGES, truth or {}, quiet=quiet)


def relax_display(*, quiet: bool = False) -> RelaxDisplay:
    return RelaxDisplay(("ffc", "conv"), 100, quiet=quiet)


def shown(display: Any, told: Iterable[Any], *, terminal: bool) -> str:
    """What a console shows of a run, without the codes that move its cursor."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)
    display.console = display.live.console = console
    with display:
        display.say("a note with [brackets]")
        for each in told:
            display(*each) if isinstance(each, tuple) else display(each)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


EPOCHS = (1, 3, 4, 5, 39, 40)
SCORES = "learning   loss 0.250   evidence/example −1.500   test accuracy 87.5 %"


def test_terminal_shows_a_table_of_ranges_with_the_truth() -> None:
    text = shown(learn_display({"rotation": 180.0}), map(learned, EPOCHS), terminal=True)
    for words in ("a note with [brackets]", "epoch 40/40", "±90.0°", "±180.0°", "in the data",
                  "scale_x", "±0.020 log factor", SCORES):  # fmt: skip
        assert words in text
    without = shown(learn_display(), map(learned, EPOCHS), terminal=True)
    assert "in the data" not in without


def test_terminal_shows_a_table_of_layers() -> None:
    text = shown(relax_display(), map(relaxed, EPOCHS), terminal=True)
    assert "a note with [brackets]" in text
    table = text[text.rindex("epoch 40/40") :]
    assert re.search(r"stage1 +< 0\.1 % +> 99\.9 % +█{30}\s", table)
    assert re.search(r"stage2 +40\.0 % +60\.0 % +█{30}\s", table)
    assert SCORES in table


def test_burn_in_and_unknown_scores_are_told() -> None:
    first = learned(1, log_evidence_per_example=None, test_accuracy=None)
    texts = [
        shown(learn_display(), [first], terminal=True),
        shown(relax_display(), [relaxed(1)], terminal=True),
    ]
    for text in texts:
        assert "burn-in" in text
        assert "evidence/example –" in text and "test accuracy –" in text
    assert "stage1" not in texts[1]


LINES = {
    "learn": (learn_display, learned, "rotation ±90.0°"),
    "relax": (relax_display, relaxed, "ffc 20 %  conv 80 %"),
}


@pytest.mark.parametrize(("display", "told", "details"), LINES.values(), ids=LINES)
def test_elsewhere_every_tenth_of_the_run_is_a_line(display: Any, told: Any, details: str) -> None:
    note, *lines = shown(display(), map(told, EPOCHS), terminal=False).splitlines()
    assert note == "a note with [brackets]"
    scores = "loss 0.250  evidence/example −1.500  test accuracy 87.5 %"
    assert lines == [
        f"epoch 4/40  {scores}  {details}  8 s",
        f"epoch 40/40  {scores}  {details}  80 s",
    ]


def test_what_is_measured_is_a_bar_or_a_line_each() -> None:
    told = [("rotation", 0, 4), ("rotation", 4, 4), ("scale", 0, 0)]
    live = shown(MeasureDisplay(), told, terminal=True)
    assert "scale" in live and "0/0" in live
    lines = shown(MeasureDisplay(), told, terminal=False).splitlines()
    assert lines[1:] == ["measuring rotation", "measuring scale"]


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_displays_are_empty(terminal: bool) -> None:
    for display, told, _ in LINES.values():
        assert shown(display(quiet=True), map(told, EPOCHS), terminal=terminal) == ""


def test_bars_add_up_to_their_width() -> None:
    display = RelaxDisplay(("ffc", "conv", "gconv"), 1)
    for shares, letters in {
        (1 / 3, 1 / 3, 1 / 3): 30, (0.017, 0.017, 0.966): 30, (None, 0.5, None): 15, (0, 0, 0): 0
    }.items():  # fmt: skip
        assert display.shares_bar(shares).plain == "█" * letters


READINGS = {
    "±175.0°": (Symmetry("rotation", "range", -1.0, 1.0, "degrees"), 175.04),
    "±0.250 fraction of image width": (
        Symmetry("translation_x", "range", -1.0, 1.0, "fraction of image width"), 0.25),
    "p = 0.491": (Symmetry("horizontal_flip", "probability", 0.0, 0.5, "probability"), 0.491),
}  # fmt: skip


@pytest.mark.parametrize("text", READINGS)
def test_readings_carry_their_unit(text: str) -> None:
    assert reading(*READINGS[text]) == text


# -- loggers -----------------------------------------------------------------------------------


def test_without_tensorboard_one_sentence_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(CallerError, match=r"needs the tensorboard library; install isotropy\["):
        logging(lambda *told: None, {"log": "tensorboard", "out": "runs/none"})


def test_tensorboard_gets_every_epoch_beside_the_display(tmp_path, monkeypatch) -> None:
    told: list[tuple[Any, ...]] = []

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            told.append(("made", folder))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            told.append((name, value, step))

        def flush(self) -> None:
            told.append(("flushed",))

    module = SimpleNamespace(SummaryWriter=SummaryWriter)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    shown: list[Any] = []
    progress = logging(shown.append, {"log": "tensorboard", "out": tmp_path / "run"})
    assert told == [], "a run folder is made by the run"
    for epoch in (1, 2):
        row = SimpleNamespace(as_dict=lambda epoch=epoch: {"epoch": epoch, "train_loss": 0.5})
        progress(SimpleNamespace(row=row))
    assert len(shown) == 2
    assert told == [
        ("made", str(tmp_path / "run" / "tensorboard")),
        ("train_loss", 0.5, 1), ("flushed",), ("train_loss", 0.5, 2), ("flushed",),
    ]  # fmt: skip


def test_without_the_option_the_display_is_all_there_is() -> None:
    assert logging(print, {"log": None}) is print
