"""Tables: what becomes of cells, headers, columns and targets, and what is refused."""

from __future__ import annotations

import gzip
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import assert_one_sentence

from isotropy.checks import CallerError
from isotropy.data.readers import read

NUMBERS = np.round(np.random.default_rng(0).normal(3, 2, (20, 3)), 3)


def written(folder: Path, text: str, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def rows_of(values: np.ndarray, delimiter: str = ",", header: str = "") -> str:
    lines = [delimiter.join(map(str, row)) for row in values.tolist()]
    return "\n".join([header, *lines] if header else lines) + "\n"


@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz", "numbers", "TABLE.CSV"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("names", ["", "a b c"])
def test_the_last_column_is_the_target(tmp_path, name, delimiter, names):
    text = rows_of(NUMBERS, delimiter, delimiter.join(names.split()))
    split = read(written(tmp_path, text, name), seed=3)
    train, test = split.train, split.test
    assert train.columns == test.columns == (("a", "b") if names else ("0", "1"))
    assert not train.is_classification and (len(train), len(test)) == (16, 4)
    scaling = train.scaling
    raw = {}
    for part, data in {"train": train, "test": test}.items():
        inputs = data.inputs.double() * torch.tensor(scaling.deviation) + torch.tensor(scaling.mean)
        targets = data.targets.double() * scaling.target_deviation[0] + scaling.target_mean[0]
        raw[part] = np.concatenate([inputs.numpy(), targets.numpy()], 1).round(3)
    both = np.concatenate([raw["train"], raw["test"]])
    np.testing.assert_allclose(sorted(both.tolist()), sorted(NUMBERS.tolist()), atol=1e-3)
    # By the moments of the training rows alone, with no correction for their number.
    np.testing.assert_allclose(scaling.mean, raw["train"][:, :2].mean(0), atol=1e-4)
    np.testing.assert_allclose(scaling.deviation, raw["train"][:, :2].std(0), atol=1e-4)
    np.testing.assert_allclose(scaling.target_deviation, raw["train"][:, 2:].std(0), atol=1e-4)
    assert "columns and target standardised" in split.notes[-1]


@pytest.mark.parametrize("target, rest", [("a", "b c"), (0, "b c"), ("1", "a c"), (-1, "a b")])
def test_target_by_name_and_number(tmp_path, target, rest):
    split = read(written(tmp_path, rows_of(NUMBERS, header="a,b,c")), target=target)
    assert " ".join(split.train.columns) == rest


@pytest.mark.parametrize(
    "values, kind",
    [
        ([0, 1, 2] * 4, ("0", "1", "2")),
        (["1.0", "2.0"] * 6, ("1", "2")),
        (["no", "yes"] * 6, ("no", "yes")),
        ([3, 4, 5] * 4, None),
        ([0, 2] * 6, None),
        ([0.5, 1.5] * 6, None),
    ],
)
def test_what_a_target_is(tmp_path, values, kind):
    rows = [[number / 7, value] for number, value in enumerate(values)]
    path = written(tmp_path, "x,y\n" + "\n".join(",".join(map(str, row)) for row in rows))
    data = read(path, hold_out_fraction=0).train
    assert data.classes == kind
    if kind is not None:
        named = [data.classes[label] for label in data.targets]
        assert named == [str(value).removesuffix(".0") for value in values]


def test_the_task_can_be_said(tmp_path):
    path = written(tmp_path, "x,y\n" + "\n".join(f"{n},{n % 3}" for n in range(12)))
    as_numbers = read(path, task="regression", hold_out_fraction=0)
    assert as_numbers.train.targets.shape == (12, 1) and as_numbers.train.classes is None
    path = written(tmp_path, "x,y\n" + "\n".join(f"{n},{3 + n % 3}" for n in range(12)))
    assert read(path, task="classes", hold_out_fraction=0).train.classes == ("3", "4", "5")


MIXED = """name,colour,size,price
first,red,1.5,10.1
second,blue,2.5,11.2
third,red,?,12.3
fourth,green,4.5,13.4
"""


def test_text_columns_empty_cells_and_long_text(tmp_path, monkeypatch):
    monkeypatch.setattr("isotropy.data.tables.MOST_WORDS", 3)
    split = read(written(tmp_path, MIXED.replace("third", "first")), hold_out_fraction=0)
    columns = ("name=first", "name=fourth", "name=second", "colour=blue", "colour=green")
    assert split.train.columns == (*columns, "colour=red", "size")
    reds = split.train.inputs[:, 5]
    assert reds[0] > 0 > reds[1] and len(split.train) == 3
    monkeypatch.setattr("isotropy.data.tables.MOST_WORDS", 2)
    split = read(written(tmp_path, MIXED), hold_out_fraction=0)
    assert split.train.columns == ("size",)
    told = " ".join(split.notes)
    assert "1 of 4 rows left out for empty cells, most of them in column 'size'" in told
    assert "column 'name' left out: text with 3 different values" in told


def test_decimal_commas_and_quotes(tmp_path):
    path = written(tmp_path, 'a;"b;c";y\n' + "\n".join(f"{n},5;-{n},25;{n}" for n in range(9)))
    data = read(path, task="regression", hold_out_fraction=0).train
    assert data.columns == ("a", "b;c")
    assert data.scaling.mean == pytest.approx((4.5, -4.25), abs=1e-6)


def test_a_constant_column_stays_finite(tmp_path):
    values = np.column_stack([np.full(20, 0.1), NUMBERS])
    data = read(written(tmp_path, rows_of(values))).train
    assert data.inputs[:, 0].abs().max() < 1e-6 and data.scaling.deviation[0] == 1


def test_a_test_file_has_the_columns_of_the_training_file(tmp_path):
    train = written(tmp_path, "colour,size,y\nred,1.5,no\nblue,2.5,yes\nred,3.5,yes\n")
    test = written(tmp_path, "y,size,colour\nyes,9.5,red\nno,2.5,green\n", "test.csv")
    split = read(train, test, target="y")
    assert split.test.columns == split.train.columns == ("colour=blue", "colour=red", "size")
    assert split.test.targets.tolist() == [1, 0]
    mean, deviation = split.train.scaling.mean[2], split.train.scaling.deviation[2]
    assert (mean, deviation) == pytest.approx((2.5, np.std([1.5, 2.5, 3.5])))
    torch.testing.assert_close(split.test.inputs[0, 2], torch.tensor((9.5 - mean) / deviation))
    assert split.test.inputs[1, 0] < 0 and split.test.inputs[1, 1] < 0  # green is neither
    headless = written(tmp_path, "red,2.5,no\nblue,1.5,yes\n", "headless.csv")
    assert read(train, headless).test.inputs[0].tolist() == pytest.approx(
        [-0.70710678, 0.70710678, 0.0]
    )


MISTAKES = {
    "one column": ("a\n1\n2\n", {}, "expected rows of two cells or more"),
    "header only": ("a,b\n", {}, "expected rows below the header"),
    "unknown target": ("a,b\n1,2\n", {"target": "c"}, "got 'c'; the columns are a, b"),
    "target out of range": ("a,b\n1,2\n", {"target": 2}, "a column's name or its number from 0"),
    "mostly empty": ("a,b,c\n,1,2\n,1,2\n1,2,3\n", {}, "most are in column 'a' .2."),
    "no numbers": (
        "x,y\n" + "\n".join(f"{chr(97 + n)},{n}" for n in range(22)), {},
        "expected columns of numbers beside the target 'y'"),
    "text regression": ("x,y\n1,a\n2,b\n", {"task": "regression"}, "got text; name another"),
    "infinite": ("x,y\n1,2.5\ninf,3.5\n", {"hold_out_fraction": 0}, "expected finite numbers"),
    "not UTF-8": ("x,y\n1,\udcff\n", {}, "text in UTF-8, got a byte 0xff at 6"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(tmp_path, case):
    text, options, sentence = MISTAKES[case]
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode("utf-8", errors="surrogateescape"))
    with pytest.raises(CallerError, match=sentence) as caught:
        read(path, **options)
    assert str(path) in str(caught.value)


def test_a_row_of_another_length_is_named(tmp_path):
    lines = ["1,2"] * 25 + ["1,2,3"]
    with pytest.raises(CallerError, match="expected 2 cells in every row, .* got 3 in row 26"):
        read(written(tmp_path, "\n".join(lines)))


def test_a_missing_column_of_a_test_file_is_named(tmp_path):
    train = written(tmp_path, rows_of(NUMBERS, header="a,b,y"))
    test = written(tmp_path, rows_of(NUMBERS, header="a,d,y"), "test.csv")
    with pytest.raises(CallerError, match="expected the column 'b' of the training data"):
        read(train, test)


# --- parquet ------------------------------------------------------------------------------


def parquet_file(folder: Path) -> Path:
    (folder / "table.parquet").write_bytes(b"PAR1 and more")
    return folder / "table.parquet"


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert_one_sentence(parquet_file(tmp_path), "table.parquet", r"install isotropy\[tables\]")


def test_parquet(tmp_path, monkeypatch):
    class Found:
        def to_pydict(self) -> dict[str, list[object]]:
            return {"a": [1.5, None, 2.5, 3.5], "b": [True, False, True, False], "y": list("pqpq")}

    pyarrow = types.ModuleType("pyarrow")
    pyarrow.ArrowException = OSError
    pyarrow.parquet = types.SimpleNamespace(read_table=lambda path: Found())
    monkeypatch.setitem(sys.modules, "pyarrow", pyarrow)
    data = read(parquet_file(tmp_path), hold_out_fraction=0).train
    assert data.columns == ("a", "b") and data.classes == ("p", "q") and len(data) == 3
    assert data.scaling.mean == pytest.approx((2.5, 2 / 3))
