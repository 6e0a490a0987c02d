"""The picture of a basis: which entries share a colour, whatever basis was found, and the file."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import scipy.sparse as sparse

from isotropy.bases.problem import Basis
from isotropy.report.pages import basis_picture as picture
from isotropy.report.pages.basis_picture import OUTSIDE, Tile, classes, coloured


def basis_of(columns: np.ndarray | sparse.csc_array, shape: tuple[int, ...]) -> Basis:
    return Basis(columns.shape[1], columns.shape[0], shape, "by hand", 0.0, 0.0, columns)


def whole(columns: np.ndarray | sparse.csc_array, height: int, width: int) -> list[Tile]:
    return [Tile(0, 0, height, width, basis_of(columns, (height, width)))]


def deep_sets(size: int) -> np.ndarray:
    """The identity and all ones, as columns."""
    return np.stack([np.eye(size).ravel(), np.ones(size * size)], axis=1)


def generic(seed: int, rows: int, classes: int, rank: int, dtype: type = float) -> np.ndarray:
    """A basis whose rows are ± one of so many vectors, or zero."""
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(classes, rank)).astype(dtype)
    if dtype is complex:
        vectors += 1j * random.normal(size=vectors.shape)
    picked = random.integers(0, classes, rows)
    signs = random.integers(-1, 2, rows)
    return vectors[picked] * signs[:, None]


def by_comparing(columns: np.ndarray) -> list[int]:
    """Signed classes, every row compared with the first of every class so far."""
    firsts: list[np.ndarray] = []
    found = []
    for row in columns:
        if np.allclose(row, 0):
            found.append(0)
            continue
        for number, first in enumerate(firsts):
            if np.allclose(row, first) or np.allclose(row, -first):
                found.append((number + 1) * (1 if np.allclose(row, first) else -1))
                break
        else:
            firsts.append(row)
            found.append(len(firsts))
    return found


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("seed", range(4))
def test_classes_are_those_of_equal_rows(seed: int, dtype: type) -> None:
    columns = generic(seed, 60, 9, 3, dtype)
    found, count = classes((6, 10), whole(columns, 6, 10))
    assert found.ravel().tolist() == by_comparing(columns)
    assert count == max(map(abs, by_comparing(columns)))


@pytest.mark.parametrize("dtype", [float, complex])
def test_classes_do_not_depend_on_the_basis(dtype: type) -> None:
    columns = generic(7, 60, 9, 3, dtype)
    change = generic(8, 3, 50, 3, dtype) + 3 * np.eye(3)
    found, _ = classes((6, 10), whole(columns, 6, 10))
    other, _ = classes((6, 10), whole(columns @ change, 6, 10))
    assert (found == other).all() and (found < 0).any() and (found == 0).any()


def test_orbits_are_the_colours() -> None:
    expected = np.full((5, 5), 2)
    np.fill_diagonal(expected, 1)
    for columns in (deep_sets(5), sparse.csc_array(deep_sets(5))):
        found, count = classes((5, 5), whole(columns, 5, 5))
        assert (found == expected).all() and count == 2


def test_the_negative_of_a_class_is_its_darker_twin() -> None:
    rotation = np.array([[1.0, 0.0], [0.0, -1.0], [0.0, 1.0], [1.0, 0.0]])  # [[a, −b], [b, a]]
    found, count = classes((2, 2), whole(rotation, 2, 2))
    assert found.tolist() == [[1, 2], [-2, 1]] and count == 2
    shown = coloured(found, count)
    assert (shown[1, 0] < shown[0, 1]).all() and (shown[0, 0] == shown[1, 1]).all()
    assert not np.allclose(shown[0, 0], shown[0, 1])


def test_blocks_have_colours_of_their_own_and_places() -> None:
    basis = basis_of(deep_sets(2), (2, 2))
    nothing = basis_of(np.zeros((1, 0)), (1,))
    tiles = [Tile(0, 0, 2, 2, basis), Tile(0, 2, 2, 2, basis), Tile(2, 0, 1, 1, nothing)]
    found, count = classes((3, 4), tiles)
    rest = OUTSIDE
    assert found.tolist() == [[1, 2, 3, 4], [2, 1, 4, 3], [0, rest, rest, rest]] and count == 4
    shown = coloured(found, count)
    assert (shown[2, 0] == picture.ZERO).all() and (shown[2, 1:] == picture.NOTHING).all()


def test_the_corner_of_a_large_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "LARGEST", 4)
    columns = sparse.csc_array(deep_sets(3))
    tiles = [
        Tile(top, left, 3, 3, basis_of(columns, (3, 3))) for top in (0, 3, 6) for left in (0, 3, 6)
    ]
    found, count = classes((9, 9), tiles)
    assert found.tolist() == [[1, 2, 2, 3], [2, 1, 2, 4], [2, 2, 1, 4], [5, 6, 6, 7]]
    drawn = picture.basis_picture((9, 9), tiles, title="nine by nine").decode()
    assert "the first 4 × 4 entries of 9 × 9" in drawn and count == 7


def test_nothing_but_zero_is_drawn_too() -> None:
    tiles = whole(np.zeros((9, 0)), 3, 3)
    found, count = classes((3, 3), tiles)
    assert count == 0 and (found == 0).all()
    assert (coloured(found, count) == picture.ZERO).all()
    assert picture.basis_picture((3, 3), tiles, title="none").startswith(b"<?xml")


@pytest.mark.parametrize("count", [1, 2, 8, 9, 64])
def test_colours_differ(count: int) -> None:
    shown = coloured(np.arange(-count, count + 1)[None], count)[0]
    assert len(np.unique(shown.round(3), axis=0)) == 2 * count + 1
    assert shown.min() >= 0 and shown.max() <= 1


def test_svg_is_a_drawing_with_a_name_and_the_same_twice() -> None:
    title = "S(3), V >> V: rank 2"
    drawn = picture.basis_picture((3, 3), whole(deep_sets(3), 3, 3), title=title)
    assert drawn == picture.basis_picture((3, 3), whole(deep_sets(3), 3, 3), title=title)
    root = ElementTree.fromstring(drawn)
    assert root.tag.endswith("svg") and root.get("aria-label") == title
    texts = ["".join(each.itertext()).strip() for each in root.iter() if each.tag.endswith("text")]
    assert texts == [title]
    assert any(each.tag.endswith("image") for each in root.iter())
    assert len(drawn) < 5000


def test_long_titles_do_not_widen_it() -> None:
    tiles = whole(deep_sets(3), 3, 3)
    widths = []
    for length in (60, 600):
        root = ElementTree.fromstring(picture.basis_picture((3, 3), tiles, title="V" * length))
        widths.append(root.get("width"))
        assert root.get("aria-label") == "V" * length
    assert widths[0] == widths[1]


def test_png_has_the_colours() -> None:
    import io

    from matplotlib.image import imread

    drawn = picture.basis_picture((3, 3), whole(deep_sets(3), 3, 3), title="S(3)", kind="png")
    pixels = imread(io.BytesIO(drawn))[..., :3].reshape(-1, 3)
    for colour in coloured(np.array([[1, 2]]), 2)[0]:
        assert (np.abs(pixels - colour).max(axis=1) < 0.01).sum() > 1000
