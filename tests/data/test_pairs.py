"""Samples of entities: drawing, holding out, files, distortions, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isotropy.checks import CallerError
from isotropy.data.pairs import (
    DISTORTIONS,
    Distortion,
    EntityIndex,
    distorted_triples,
    distorted_vectors,
    hold_out_entities,
    moved_copies,
    read_arrays,
    read_pairs,
    samples_of,
    triples_of,
    turned_digits,
)
from isotropy.symmetry.actions.finite import quarter_turns
from isotropy.symmetry.actions.images import affine


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def table(entities: int = 10, copies: int = 3) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    names = np.array([f"e{number}" for number in range(entities)])
    return random.normal(size=(entities * copies, 4)), np.repeat(names, copies)


# --- drawing and holding out ------------------------------------------------------------------


def test_a_draw_is_of_two_different_samples_of_different_entities() -> None:
    entities = torch.tensor([2, 0, 0, 1, 2, 1, 2, 0, 1, 1])
    index = EntityIndex(entities)
    seen = set()
    generator = drawn()
    for _ in range(200):
        chosen = index.draw(3, generator)
        assert chosen.shape == (3, 2)
        assert (entities[chosen[:, 0]] == entities[chosen[:, 1]]).all()
        assert (chosen[:, 0] != chosen[:, 1]).all()
        assert len(set(entities[chosen[:, 0]].tolist())) == 3
        seen |= {tuple(pair) for pair in chosen.tolist()}
    assert len(seen) == 3 * 2 + 4 * 3 + 3 * 2  # every ordered pair
    assert entities[index.first_two()].tolist() == [[0, 0], [1, 1], [2, 2]]


def test_entities_are_held_out_and_never_samples() -> None:
    x, names = table(entities=20)
    split = hold_out_entities(samples_of(x, names), 0.2, seed=0)
    assert split.test is not None and split.train.classes and split.test.classes
    assert len(split.test.classes) == 4 and len(split.train.classes) == 16
    assert not set(split.test.classes) & set(split.train.classes)
    for part in (split.train, split.test):
        assert part.classes is not None
        named = [part.classes[number] for number in part.targets.tolist()]
        found = dict(zip(map(tuple, part.inputs.tolist()), named, strict=True))
        assert len(found) == 3 * len(part.classes)
        for row, name in zip(x.astype(np.float32).tolist(), names, strict=True):
            assert found.get(tuple(row), name) == name


# --- files ------------------------------------------------------------------------------------


def test_npz_and_csv_hold_the_same(tmp_path: Path) -> None:
    x, names = table()
    np.savez(tmp_path / "a.npz", x=x, entity=names)
    cells = zip(names, x.tolist(), strict=True)
    rows = [f"{name},{','.join(map(repr, row))}" for name, row in cells]
    (tmp_path / "a.csv").write_text("\n".join(["who,a,b,c,d", *rows]) + "\n")
    first, second = read_pairs(tmp_path / "a.npz"), read_pairs(tmp_path / "a.csv", "who")
    assert torch.equal(first.inputs, second.inputs) and torch.equal(first.targets, second.targets)
    assert first.classes == second.classes == tuple(sorted(set(names)))


def test_triples_from_a_file(tmp_path: Path) -> None:
    x, _ = table()
    np.savez(tmp_path / "a.npz", x=x[:15], other=x[15:], distance=np.arange(15.0))
    data = read_pairs(tmp_path / "a.npz")
    assert data.inputs.shape == (15, 2, 4) and data.targets[:, 0].tolist() == list(range(15))


def test_a_file_is_named_once(tmp_path: Path) -> None:
    x, names = table()
    np.savez(tmp_path / "d.npz", x=x, other=x[::-1], distance=x[:, 0])
    with pytest.raises(CallerError, match=r"d\.npz: distances: expected at least 0"):
        read_pairs(tmp_path / "d.npz")
    np.savez(tmp_path / "d.npz", x=np.where(x > 1, np.nan, x), entity=names)
    with pytest.raises(CallerError, match=r"d\.npz: inputs: expected finite numbers"):
        read_pairs(tmp_path / "d.npz")


X, NAMES = table()
MISTAKES: dict[str, tuple[Any, str]] = {
    "few entities": (lambda: samples_of(X[:21], NAMES[:21]), "at least 8 entities, got 7"),
    "one sample": (lambda: samples_of(X[:-2], NAMES[:-2]), "got one of entity 'e9'"),
    "equal samples": (lambda: samples_of(X[::3].repeat(3, 0), NAMES), "equal ones within every"),
    "constant": (lambda: samples_of(np.ones((30, 2)), NAMES), "constant columns only"),
    "missing": (lambda: samples_of(np.where(X > 1, np.nan, X), NAMES), "finite numbers"),
    "no entity": (lambda: samples_of(X, np.where(X[:, 0] > 0, 1.0, np.nan)), "missing ones"),
    "lengths": (lambda: samples_of(X, NAMES[:-1]), "one entity for each of 30"),
    "one axis": (lambda: samples_of(X[:, 0], NAMES), "expected inputs .examples, features"),
    "negative": (lambda: triples_of(X, X, np.arange(30.0) - 1), "got -1 at index 0"),
    "all zero": (lambda: triples_of(X, X[::-1].copy(), np.zeros(30)), "got zeros alone"),
    "shapes": (lambda: triples_of(X, X[:, :2], np.ones(30)), "of one shape"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake: str) -> None:
    call, sentence = MISTAKES[mistake]
    with pytest.raises(CallerError, match=sentence):
        call()


FILES = {
    "empty cell": ("entity,a,b\nx,1,\n", "column 'b' of line 2, got a missing value"),
    "short line": (
        "entity,a,b\nx,1,2\ny,3,4\nx,1\n", "expected rows of two cells or more, separated"
    ),
    "no header": ("0,1,2\n1,3,4\n0,1,1\n", "expected an entity for each sample"),
    "text": ("entity,a,b\nx,1,two\n", "got 'two'"),
    "no entity": ("a,b\n1,2\n", "expected an entity for each sample"),
    "other name": ("who,b\nx,2\n", "'who' of line 2, got 'x'; --entity names another column"),
    "few": ("entity,b\nx,2\nx,3\n", "a.csv: expected samples of at least 8 entities, got 1"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", FILES)
def test_mistakes_in_files(mistake: str, tmp_path: Path) -> None:
    text, sentence = FILES[mistake]
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(CallerError, match=sentence):
        read_pairs(tmp_path / "a.csv")


def test_mistakes_of_paths_and_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("who,a\nx,1\n")
    with pytest.raises(CallerError, match="--entity: expected a column's name .* 'whom'"):
        read_arrays(tmp_path / "a.csv", "whom")
    with pytest.raises(CallerError, match="got a folder"):
        read_arrays(tmp_path)
    np.savez(tmp_path / "b.npz", y=np.ones(3))
    with pytest.raises(CallerError, match="an array called x"):
        read_arrays(tmp_path / "b.npz")
    (tmp_path / "c.npz").write_bytes(b"PK\x03\x04damaged")
    with pytest.raises(CallerError, match="expected an npz archive, got a damaged"):
        read_arrays(tmp_path / "c.npz")


# --- distortions ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DISTORTIONS)
def test_a_distortion_permutes_and_its_distance_is_zero(name: str) -> None:
    distortion = Distortion.named(name, 8, drawn(1))
    samples = 2 * torch.rand(40, 8, generator=drawn(2), dtype=torch.float64) - 1
    moved = distortion(samples, drawn(3))
    factor = moved.norm(dim=1, keepdim=True) / samples.norm(dim=1, keepdim=True)
    assert bool(((factor - 1).abs() > 0.01).any()) == (name == "shift-scale")
    sorted_both = [(each).sort(1).values for each in (samples, moved / factor)]
    torch.testing.assert_close(*sorted_both)
    assert float(distortion.distances(samples, moved).max()) < 1e-12
    assert float(distortion.distances(samples, samples.roll(1, 0)).min()) > 0.01
    orders = samples.argsort(1).gather(1, moved.argsort(1).argsort(1))
    assert len({tuple(order) for order in orders.tolist()}) <= {"two-part": 16}.get(name, 8)


def test_shifts_of_parts_stay_in_their_parts() -> None:
    moved = Distortion.named("two-part", 6, drawn())(torch.arange(6.0).repeat(50, 1), drawn())
    assert (moved[:, :3] < 3).all() and (moved[:, 3:] >= 3).all()
    assert len({tuple(row) for row in moved.tolist()}) == 9


def test_vectors_of_a_demo() -> None:
    split = distorted_vectors("shift", 6, 0, entities=30, held_out=10, copies=3)
    assert split.test is not None
    assert split.train.inputs.shape == (90, 6) and split.test.inputs.shape == (30, 6)
    first = split.train.inputs[split.train.targets == 4].sort(1).values
    assert torch.equal(first, first[:1].expand_as(first))


def test_triples_of_a_demo_are_same_different_and_for_parts_between() -> None:
    split = distorted_triples("two-part", 6, 0, triples=300, held_out=10)
    pairs, distances = split.train.inputs, split.train.targets[:, 0]
    same = [
        torch.tensor([torch.equal(a.sort().values, b.sort().values) for a, b in pairs[:, :, part]])
        for part in (slice(0, 3), slice(3, 6))
    ]
    assert torch.equal(distances == 0, same[0] & same[1])
    for kind in (same[0] & same[1], ~same[0] & same[1], ~same[0] & ~same[1]):
        assert 60 < int(kind.sum()) < 140


def test_copies_by_actions() -> None:
    images = torch.rand(6, 1, 5, 5, generator=drawn())
    turned = moved_copies(images, quarter_turns(), 20, drawn())
    assert turned.shape == (6, 20, 1, 5, 5)
    every = torch.stack([images.rot90(k, (2, 3)) for k in range(4)], 1)
    match = (turned[:, :, None] == every[:, None]).flatten(3).all(3)
    assert match.any(2).all() and match.any(1).all()
    moved = moved_copies(images, affine(("rotation",)), 2, drawn(), half_widths=[0.0])
    torch.testing.assert_close(moved, images[:, None].expand_as(moved), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_turned_digits() -> None:
    split, classes = turned_digits(0, copies=2, components=5)
    assert split.test is not None and split.test.classes is not None
    assert split.train.inputs.shape == (4000, 5) and split.test.inputs.shape == (2000, 5)
    covariance = split.train.inputs.T.cov()
    off = covariance - covariance.diag().diag()
    assert off.abs().max() < 1e-3 * covariance.max()
    assert (covariance.diag().diff() < 0).all()
    assert set(split.test.classes) <= set(classes) and set(classes.values()) == set("0123456789")
