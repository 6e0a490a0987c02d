"""`isotropy basis`: its JSON, its words, its picture, tables, and every mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from learn_runs import assert_one_sentence, run_here

from isotropy.bases import solving
from isotropy.cli import basis as command
from isotropy.cli.main import cli
from isotropy.experiments.thesis import bases
from isotropy.experiments.thesis.bases import PUBLISHED_RANKS
from isotropy.symmetry.groups.catalogue import GROUPS

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to run in, and nothing solved yet."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    solving.forget()
    return tmp_path


SO3 = ("basis", "--group", "SO(3)", "--rep", "V >> V*V")


def test_json_has_the_numbers_and_the_common_fields(folder: Path, capsys: Capture) -> None:
    finished = run_here(capsys, *SO3, "--json", "--out", "run", "--seed", "3")
    record = finished.record
    assert (record["rank"], record["size"]) == (1, 27)
    assert record["method"] in solving.METHODS and 0 <= record["residual"] < 1e-8
    assert 0 < record["seconds"] < 60
    assert (record["schema"], record["command"], record["seed"]) == (1, "basis", 3)
    assert (record["device"], record["run_folder"]) == ("cpu", "run")
    assert record["isotropy"] and record["group"] == "SO(3)"
    assert record["representation"] == "V >> V*V"
    assert json.loads(Path("run/result.json").read_text()) == record
    config = json.loads(Path("run/config.json").read_text())
    assert config["command"] == "isotropy basis --group 'SO(3)' --rep 'V >> V*V' --json --out run" \
        " --seed 3"  # fmt: skip
    assert Path("run/basis.svg").read_bytes().startswith(b"<?xml")
    assert "SO(3)" in finished.stderr


def test_words(folder: Path, capsys: Capture) -> None:
    finished = run_here(capsys, *SO3)
    assert finished.status == 0, finished.stderr
    first, solved, picture = finished.stdout.splitlines()
    assert first == ("V >> V*V of SO(3): rank 1, a basis of 1 equivariant map of 27 entries.")
    assert solved.startswith("Solved in ") and " residual " in solved
    path = Path(picture.removeprefix("Picture: "))
    assert path.is_file() and path.parent.name.startswith("basis-SO-3-V-to-V-V-0-")


def test_words_of_a_sum_and_of_none(folder: Path, capsys: Capture) -> None:
    finished = run_here(capsys, "basis", "--group", "S(4)", "--rep", "2V >> V + Scalar", "--quiet")
    assert finished.stderr == ""
    lines = finished.stdout.splitlines()
    assert "rank 6, a basis of 6 equivariant maps of 40 entries" in lines[0]
    assert lines[1].startswith("V >> V: rank 2, 2 times (")
    assert lines[2].startswith("V >> Scalar: rank 1, 2 times (")
    none = run_here(capsys, "basis", "--group", "O(3)", "--rep", "T(3)").stdout
    assert none.startswith("V^3 of O(3): rank 0, there is no invariant vector but zero.")


def test_picture_elsewhere(folder: Path, capsys: Capture) -> None:
    finished = run_here(capsys, *SO3, "--picture", "mine.png")
    assert finished.stdout.splitlines()[-1] == "Picture: mine.png"
    assert Path("mine.png").read_bytes().startswith(b"\x89PNG")


def test_rank_only(folder: Path, capsys: Capture) -> None:
    words = ("basis", "--group", "O(7)", "--rep", "T(8)", "--rank-only")
    record = run_here(capsys, *words, "--json", "--out", "run").record
    assert (record["rank"], record["size"], record["residual"]) == (105, 7**8, None)
    assert not Path("run/basis.svg").exists()
    told = run_here(capsys, *words).stdout.splitlines()
    assert told[-1].startswith("Record: runs") and "residual" not in told[-2]


def test_direct_products_and_complex_groups(folder: Path, capsys: Capture) -> None:
    grid = run_here(capsys, "basis", "--group", "Z(3) x Z(3)", "--rep", "V >> V", "--json").record
    assert (grid["rank"], grid["size"]) == (9, 81)
    unitary = run_here(capsys, "basis", "--group", "SU(2)", "--rep", "T(2,2)", "--json").record
    assert (unitary["rank"], unitary["size"]) == (2, 16)


# -- tables --------------------------------------------------------------------------------------


def test_one_table_in_words_and_json(folder: Path, capsys: Capture) -> None:
    finished = run_here(capsys, "basis", "--table", "A.8", "--quiet")
    assert finished.status == 0, finished.stderr
    lines = finished.stdout.splitlines()
    assert lines[0] == "Table A.8" and lines[1].split() == list(PUBLISHED_RANKS["A.8"])
    assert lines[-1].startswith("Record: runs/basis-table-A8-0-")
    record = run_here(capsys, "basis", "--table", "A.8", "--json").record
    assert record["mismatches"] == [] and record["command"] == "basis"
    published = {
        (group, text): rank
        for group, row in PUBLISHED_RANKS["A.8"].items()
        for text, rank in row.items()
    }
    found = {(row["group"], row["representation"]): row for row in record["tables"]}
    assert {key: row["published"] for key, row in found.items()} == published
    assert all(row["rank"] == row["published"] for row in found.values() if row["published"])


def test_blanks_are_marked_and_all_tables_are_meant(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"A.1": {"Z(2)": {"T(2)": 2, "T(3)": None}}, "A.4": {"SO(2)": {"T(2)": 2}}}
    for module in (command, bases):
        monkeypatch.setattr(module, "PUBLISHED_RANKS", small)
    finished = run_here(capsys, "basis", "--table")
    assert finished.status == 0 and "Z(2) T(3)" in finished.stderr
    assert [line for line in finished.stdout.splitlines() if line.startswith("Table")] == [
        "Table A.1", "Table A.4"
    ]  # fmt: skip
    assert "4*" in finished.stdout and "* computed here, blank in the thesis." in finished.stdout


def test_a_mismatch_fails(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"A.4": {"SO(3)": {"T(4)": 4}}}
    for module in (command, bases):
        monkeypatch.setattr(module, "PUBLISHED_RANKS", wrong)
    for words in ((), ("--json",)):
        finished = run_here(capsys, "basis", "--table", "A.4", "--quiet", *words)
        assert finished.status == 1
        assert "Table A.4, SO(3) T(4): 3, published 4" in finished.stderr
    assert json.loads(finished.stdout)["mismatches"]


def test_help_names_the_groups() -> None:
    import click

    with click.Context(cli.commands["basis"]) as context:
        told = cli.commands["basis"].get_help(context)
    for name in GROUPS:
        assert name in " ".join(told.split()), name


# --- nothing, and too much ----------------------------------------------------------------------


@pytest.mark.parametrize("words", ["0", "0V", "V >> 0", "0 >> V"])
def test_nothing_has_rank_zero(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("basis", "--group", "SO(3)", "--rep", words, "--out", tmp_path / "run", "--json")
    finished = run_here(capsys, *given, "--quiet")
    assert finished.record["rank"] == 0 and not (tmp_path / "run" / "basis.svg").exists()


@pytest.mark.parametrize(
    ("group", "words", "number"),
    [
        ("SO(3)", "V^64^64", "192 factors"),
        ("S(10000000000000000000000)", "V", "10000000000000000000000"),
        ("S(999999999)", "V", "999,999,999"),
        ("Sp(500)", "V", "500,500"),
        ("O(64)", "V", "2,016"),
        ("Z(999999999)", "V", "999,999,999"),
        ("Scaling(99999999)", "V", "99,999,999"),
        ("Grid(4,99999)", "V", "39,999,200,004"),
        ("Embedded(SO(2),999999999,0)", "V", "999,999,999"),
        ("Wreath(Z(3000),Z(3000))", "V", "9,000,000"),
        (" x ".join(["Z(9)"] * 20), "V", f"{9**20:,}"),
    ],
)
def test_too_large_a_group_is_refused_before_it_is_made(
    group: str, words: str, number: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("basis", "--group", group, "--rep", words, "--out", tmp_path / "run")
    assert_one_sentence(run_here(capsys, *given, "--rank-only"), number)


def test_a_long_sum_is_drawn_in_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("basis", "--group", "Z(2)", "--rep", "999999999V", "--out", tmp_path / "run")
    finished = run_here(capsys, *given, "--json", "--quiet")
    assert finished.record["rank"] == 999_999_999
    assert (tmp_path / "run" / "basis.svg").exists()
