"""`equivariant_basis`: ranks of sums against dense null spaces, its record, its folder, tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg

from isotropy.checks import CallerError
from isotropy.experiments.thesis import bases
from isotropy.experiments.thesis.bases import Entry, table_text
from isotropy.symmetry.groups.catalogue import SO, S, group_named
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import Scalar, T, V
from isotropy.workflows.basis import BasisResult, equivariant_basis

# -- an oracle: the whole matrix at once, no pairs of summands ----------------------------------


def tensor(h: np.ndarray, powers: Sequence[int]) -> np.ndarray:
    """h on a sum of tensor powers."""
    blocks = []
    for power in powers:
        block = np.eye(1)
        for _ in range(power):
            block = np.kron(block, h)
        blocks.append(block)
    return scipy.linalg.block_diag(*blocks)


def rank_of_maps(
    elements: Sequence[np.ndarray], source: Sequence[int], target: Sequence[int]
) -> int:
    """How many matrices W have ρ_target(h) W = W ρ_source(h) for all these h."""
    rows = []
    for h in elements:
        left, right = tensor(h, target), tensor(h, source)
        rows.append(np.kron(left, np.eye(len(right))) - np.kron(np.eye(len(left)), right.T))
    values = np.linalg.svd(np.concatenate(rows), compute_uv=False)
    return int((values < 1e-9).sum())


def turn(axis: int, angle: float = 1.0) -> np.ndarray:
    """A rotation of space by an angle that is no part of a whole turn."""
    i, j = [k for k in range(3) if k != axis]
    found = np.eye(3)
    found[i, i] = found[j, j] = np.cos(angle)
    found[i, j], found[j, i] = -np.sin(angle), np.sin(angle)
    return found


PERMUTATIONS = [np.eye(3)[[1, 0, 2]], np.eye(3)[[1, 2, 0]]]
ROTATIONS = [turn(0), turn(2)]
REFLECTED = [*ROTATIONS, np.diag([-1.0, 1.0, 1.0])]

SUMS = [
    ("S(3)", PERMUTATIONS, "2V + Scalar >> V + T(2)", [1, 1, 0], [1, 2]),
    ("S(3)", PERMUTATIONS, "V + Scalar + V >> V", [1, 0, 1], [1]),
    ("SO(3)", ROTATIONS, "V >> V*V", [1], [2]),
    ("SO(3)", ROTATIONS, "2V + T(2) >> 2Scalar + V", [1, 1, 2], [0, 0, 1]),
    ("O(3)", REFLECTED, "V >> V*V", [1], [2]),
    ("O(3)", REFLECTED, "3V + Scalar >> T(2) + 2V", [1, 1, 1, 0], [2, 1, 1]),
]


@pytest.mark.parametrize(
    ("group", "elements", "text", "source", "target"), SUMS, ids=[f"{c[0]} {c[2]}" for c in SUMS]
)
def test_rank_is_that_of_the_whole_matrix(
    group: str,
    elements: list[np.ndarray],
    text: str,
    source: list[int],
    target: list[int],
) -> None:
    found = equivariant_basis(group, text)
    assert found.rank == rank_of_maps(elements, source, target)
    assert found.size == sum(3**power for power in source) * sum(3**power for power in target)
    assert equivariant_basis(group, text, rank_only=True).rank == found.rank
    as_vectors = " + ".join(
        f"T({p},{q})" for p in target for q in source
    )  # maps written as vectors of the product
    assert equivariant_basis(group, as_vectors).rank == found.rank


def test_words_and_objects_are_the_same() -> None:
    words = equivariant_basis("SO(3)", "V >> T(2) + Scalar")
    unbound = equivariant_basis(SO(3), V >> T(2) + Scalar)
    bound = equivariant_basis(SO(3), (V >> T(2) + Scalar)(SO(3)))
    for each in (unbound, bound):
        assert (each.rank, each.size, each.method) == (words.rank, words.size, words.method)
        assert str(each.representation) == str(words.representation)


def test_a_group_of_your_own() -> None:
    swap = Group("swap", discrete=[[1, 0, 2]])
    found = equivariant_basis(swap, V >> V)
    assert found.rank == 5 and found.group is swap  # orbits of pairs: 9 entries, one fixed


def test_totals_are_those_of_the_parts() -> None:
    found = equivariant_basis("S(4)", "2V + T(2) + V >> 3V + Scalar")
    assert [(part.text, part.copies, part.basis.rank) for part in found.parts] == [
        ("V >> V", 9, 2), ("V*V >> V", 3, 5), ("V >> Scalar", 3, 1), ("V*V >> Scalar", 1, 2)
    ]  # fmt: skip
    assert found.rank == 18 + 15 + 3 + 2
    assert found.record["seconds"] == sum(part.basis.seconds for part in found.parts)
    assert found.residual == max(part.basis.residual for part in found.parts)
    assert set(found.method.split(", ")) == {part.basis.method for part in found.parts}
    assert len(found.record["parts"]) == 4


def test_methods_and_residuals_of_several() -> None:
    def part(method: str, residual: float | None) -> object:
        from isotropy.bases.problem import Basis
        from isotropy.workflows.basis import Part

        return Part((), None, 1, Basis(1, 1, (), method, residual, 0.25))

    parts = (part("orbits", 1e-16), part("dense", 3e-12), part("orbits", 0.0))
    result = BasisResult(S(3), 3 * Scalar(S(3)), parts, record={}, config={})  # type: ignore[arg-type]
    assert (result.method, result.residual, result.seconds) == ("orbits, dense", 3e-12, 0.75)
    unknown = BasisResult(
        S(3), Scalar(S(3)), (part("a", 0.0), part("b", None)), record={}, config={}
    )  # type: ignore[arg-type]
    assert unknown.residual is None


def test_a_run_folder_has_record_and_picture(tmp_path: Path) -> None:
    found = equivariant_basis("S(3)", "V >> V", folder=tmp_path / "run", describe={"command": "c"})
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == found.record
    assert found.record["run_folder"] == str(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["command"] == "c"
    assert (tmp_path / "run" / "basis.svg").read_bytes().startswith(b"<?xml")
    assert found.picture(tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_of_a_sum_has_every_block_in_its_place() -> None:
    found = equivariant_basis("S(3)", "V + Scalar >> 2V")
    shape, tiles = found._tiles()
    assert shape == (6, 4)
    assert [(t.top, t.left, t.height, t.width) for t in tiles] == [
        (0, 0, 3, 3), (0, 3, 3, 1), (3, 0, 3, 3), (3, 3, 3, 1)
    ]  # fmt: skip
    shape, tiles = equivariant_basis("S(3)", "Scalar + T(3) + V")._tiles()
    assert shape == (1 + 9 + 3, 3)
    assert [(t.top, t.left, t.height, t.width) for t in tiles] == [
        (0, 0, 1, 1), (1, 0, 9, 3), (10, 0, 3, 1)
    ]  # fmt: skip


def test_only_a_rank_has_no_picture(tmp_path: Path) -> None:
    found = equivariant_basis("Z(6)", "T(3)", rank_only=True)
    if found.has_vectors:
        pytest.skip("no method counts without vectors")
    with pytest.raises(CallerError, match="rank_only"):
        found.picture(tmp_path / "none.svg")
    found.save(tmp_path / "run")
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["config.json", "result.json"]
    assert found.record["residual"] is None and found.rank == 36


@pytest.mark.parametrize(
    ("group", "representation", "says"),
    [
        ("SO(3", "V", "SO"),
        ("Nowhere(3)", "V", "Nowhere"),
        ("SO(3)", "V >> *V", "position"),
        (SO(3), V(S(3)) >> V, "SO|S"),
    ],
)
def test_mistakes_are_said(group: object, representation: object, says: str) -> None:
    with pytest.raises(CallerError, match=says):
        equivariant_basis(group, representation)  # type: ignore[arg-type]


def test_pictures_are_svg_or_png(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="svg or .png"):
        equivariant_basis("S(3)", "V").picture(tmp_path / "p.jpg")
    assert list(tmp_path.iterdir()) == []


# -- tables --------------------------------------------------------------------------------------


SMALL = {
    "A.1": {"Z(2)": {"T(2)": 2, "T(3)": None}, "Z(3)": {"T(2)": 3, "T(3)": 9}},
    "A.4": {"SO(2)": {"T(2)": 2}, "SO(3)": {"T(2)": 1, "T(3)": 1}},
}


def test_tables_are_computed_and_blanks_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bases, "PUBLISHED_RANKS", SMALL)
    told: list[tuple[str, str]] = []
    found = bases.rank_tables(
        ["A.1", "A.4"], folder=tmp_path / "run", progress=lambda *words: told.append(words)
    )
    assert found.mismatches == [] and len(told) == 7 and told[0] == ("Z(2)", "T(2)")
    blank = found.tables["A.1"]["Z(2)"]["T(3)"]
    assert (blank.rank, blank.published, blank.text) == (4, None, "4*")
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == found.record
    assert [row["rank"] for row in found.record["tables"]] == [2, 4, 3, 9, 2, 1, 1]
    assert found.record["seconds"] == sum(row["seconds"] for row in found.record["tables"])
    assert table_text("A.1", found.tables["A.1"]).splitlines() == [
        "Table A.1",
        "      Z(2)  Z(3)",
        "T(2)     2     3",
        "T(3)    4*     9",
    ]


def test_a_wrong_rank_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bases, "PUBLISHED_RANKS", {"A.1": {"Z(2)": {"T(2)": 3}}})
    found = bases.rank_tables(["A.1"])
    assert found.mismatches == ["Table A.1, Z(2) T(2): 2, published 3"]
    assert found.record["mismatches"] == found.mismatches
    assert "2 ≠ 3" in table_text("A.1", found.tables["A.1"])
    assert not Entry(2, 2, "orbits", 0.0).is_wrong and not Entry(2, None, "orbits", 0.0).is_wrong


def test_every_group_and_word_of_the_tables_is_known() -> None:
    from isotropy.symmetry.groups.language import parse_representation

    for groups in bases.PUBLISHED_RANKS.values():
        for group, row in groups.items():
            assert group_named(group).dimension >= 2
            for text in row:
                assert parse_representation(text)
