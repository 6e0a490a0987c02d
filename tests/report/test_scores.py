"""Test scores on the page of `learn`: classes with their balance, regressions with their error."""

from __future__ import annotations

from typing import Any

from report_pages import Page, learn_record, result_of, stored

from isotropy.report.pages.learn import learn_page
from isotropy.report.pages.scores import class_table, score_number
from isotropy.report.record import Learned, read

ERROR = {"test_accuracy": None, "test_rmse": 1.23456, "test_log_likelihood": -1.6}


def learned(**changes: Any) -> Learned:
    return read(Learned, result_of("learn", **changes))


def test_of_a_regression_the_error_is_shown() -> None:
    number = score_number(learned(**ERROR, test_examples=154))
    assert (number.name, number.value) == ("Test RMSE", "1.235")
    assert number.note == "154 test examples, log likelihood −1.600 nats each"


def test_the_error_over_epochs_is_drawn() -> None:
    given = stored("learn")
    given["result"] |= ERROR
    for number, row in enumerate(given["history"]):
        row |= {"test_accuracy": None, "test_rmse": 3.0 - number / 100}
    page = Page(learn_page(learn_record(given)))
    assert "Evidence and error" in page.text and "root mean squared error" in page.text
    assert "Test accuracy" not in page.text


def test_the_balance_of_classes() -> None:
    table = class_table(learned(class_counts={"cat": [30, 6], "dog": [10, 2]}))
    assert table is not None and table.titles == ("Class", "Training", "Test")
    assert [[(cell.text, cell.note) for cell in row] for row in table.rows] == [
        [("cat", ""), ("30", "75.0 %"), ("6", "75.0 %")],
        [("dog", ""), ("10", "25.0 %"), ("2", "25.0 %")],
    ]
    alone = class_table(learned(class_counts={"cat": [30], "dog": [10]}))
    assert alone is not None and alone.titles == ("Class", "Training")


def test_of_many_classes_the_largest_and_smallest_are_shown() -> None:
    counts = {f"class {number}": [number + 1] for number in range(100)}
    table = class_table(learned(class_counts=counts))
    shown = [row[0].text for row in table.rows]
    assert shown == [f"class {number}" for number in (*range(15), *range(85, 100))]


def test_a_regression_and_an_old_record_have_no_classes() -> None:
    assert class_table(learned(class_counts=None)) is None
    assert class_table(learned(class_counts={"cat": [], "dog": [1]})) is None
