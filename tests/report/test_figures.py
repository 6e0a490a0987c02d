"""Drawings and pictures: checked by their geometry and by what their text must not hold."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.image import imread

from isotropy.report.canvas import COLOUR_VARIABLES
from isotropy.report.figures import (
    Curve,
    CurvePanel,
    ProfilePanel,
    RangePanel,
    border,
    curve_drawings,
    flow_figure,
    flow_lines,
    lines_apart,
    matrix_drawing,
    profile_figure,
    range_figure,
    reliability_drawings,
    thinned,
)
from isotropy.report.page import picture_uri
from isotropy.report.pages.screen import amounts_text, gain_bars
from isotropy.report.record import CalibrationScores, ScreenedDirection, read

GRID = np.stack(np.meshgrid(np.linspace(0, 27, 7), np.linspace(0, 27, 7)), axis=-1)
CENTRE = np.array([13.5, 13.5])


def rotation(degrees: float) -> np.ndarray:
    angle = math.radians(degrees)
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


def moved(matrix: np.ndarray, shift: tuple[float, float] = (0.0, 0.0)) -> np.ndarray:
    """A flow (2, rows, columns, 2) of an affine map about the centre."""
    return np.stack([GRID, (GRID - CENTRE) @ matrix.T + CENTRE + shift])


EPOCHS = list(range(1, 21))
RISING = Curve(EPOCHS, [math.nan, *np.linspace(5, 170, 19)])
PROFILE = ProfilePanel(
    amounts=[0.0, 90.0, 180.0],
    values=[-1.0, -0.5, math.nan],
    span=(0.0, 180.0),
    beside=[-0.2, math.nan, -0.3],
    maximum=80.0,
    interval=(70.0, 90.0),
    truth=90.0,
    symbol="°",
)
BINS = [
    {"low": 0.5, "high": 0.6, "count": 2, "confidence": 0.55, "accuracy": 0.4},
    {"low": 0.9, "high": 1.0, "count": 8, "confidence": 0.96, "accuracy": 0.9},
    {"low": 0.2, "high": 0.3, "count": 0, "confidence": None, "accuracy": None},
]
TEST = Curve(EPOCHS, list(np.linspace(0, 80, 20)), "test")
MATRIX = [[1.0, -0.5], [-0.5, math.nan]]


def matrix_svg(names: list[str], matrix: list[list[float]], largest: float = 0.0) -> str:
    drawing = matrix_drawing(names, matrix, key="m", title="Matrix", note="", largest=largest)
    assert drawing is not None
    return drawing.svg


DRAWINGS: dict[str, Callable[[], str]] = {
    "range": lambda: range_figure(
        RangePanel(RISING, 180.0, 20.0, 190.0, "°"), key="range", label="a <b>"
    ),
    "curve": lambda: curve_drawings([CurvePanel("Accuracy", "", [TEST], percent=True)])[0].svg,
    "flow": lambda: flow_figure(moved(rotation(60)), (28, 28), key="flow", label="flow"),
    "m": lambda: matrix_svg(["a < b", "$c$"], MATRIX),
    "profile": lambda: profile_figure(PROFILE, key="profile", label="profile"),
    "reliability": lambda: (
        reliability_drawings({"probit": read(CalibrationScores, {"bins": BINS})})[0].svg
    ),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_svg_stands_alone_in_a_page(name: str) -> None:
    svg = DRAWINGS[name]()
    assert svg == DRAWINGS[name](), "drawn twice, the same"
    assert svg.startswith("<svg ") and svg.endswith("</svg>")
    assert 'role="img"' in svg and "aria-label=" in svg
    for unwanted in ("http", "<style", "<metadata", "<!--", "DejaVu", *COLOUR_VARIABLES):
        assert unwanted not in svg
    assert "var(--accent)" in svg
    assert not re.findall(r"(?:fill|stroke): #", svg), "a colour that would not follow the page"
    identifiers = re.findall(r' id="([^"]+)"', svg)
    references = set(re.findall(r'(?:url\(|href=")#([^")]+)', svg))
    assert set(identifiers) == references and len(identifiers) == len(references)
    assert all(identifier.startswith(f"{name}-") for identifier in identifiers)


def test_a_matrix_shows_its_numbers_and_as_much_colour_as_they_are_large() -> None:
    svg = DRAWINGS["m"]().partition(">")[2]
    assert "a &lt; b" in svg and "$c$" in svg
    assert svg.count("−0.50") == 2 and "1.00" in svg and "–" in svg
    strengths = {
        variable: {
            float(o) for o in re.findall(rf"fill: var\(--{variable}\); opacity: ([\d.]+)", svg)
        }
        for variable in ("accent", "truth")
    }
    assert strengths == {"accent": {0.5}, "truth": {0.25}}, "NaN has no colour"


def test_a_matrix_of_correlations_is_full_at_one() -> None:
    svg = matrix_svg(["a"], [[0.4]], largest=1.0)
    assert "fill: var(--accent); opacity: 0.2" in svg


def test_a_profile_marks_its_maximum_interval_and_truth() -> None:
    """The axis runs from 0° to 180° over the same pixels as the marks."""
    svg = DRAWINGS["profile"]()
    dashed = re.search(r'd="M ([\d.]+) [^"]*"[^>]*stroke-dasharray[^>]*var\(--truth\)', svg)
    upright = re.search(
        r'd="M ([\d.]+) ([\d.]+) \nL \1 ([\d.]+) \n"[^>]*stroke: var\(--accent\)', svg
    )
    band = re.search(r'd="([^"]*)"[^>]*fill: var\(--accent\); opacity: 0.2', svg)
    assert dashed and upright and band
    left, right = 52.0, 390.0 - 14.0

    def degrees(place: float) -> float:
        return 180 * (place - left) / (right - left)

    assert degrees(float(dashed.group(1))) == pytest.approx(90, abs=0.1)
    assert degrees(float(upright.group(1))) == pytest.approx(80, abs=0.1)
    places = [float(place) for place in re.findall(r"[ML] ([\d.]+) ", band.group(1))]
    assert degrees(min(places)) == pytest.approx(70, abs=0.1)
    assert degrees(max(places)) == pytest.approx(90, abs=0.1)


def test_label_is_escaped() -> None:
    assert 'aria-label="a &lt;b&gt;"' in DRAWINGS["range"]()


@pytest.mark.parametrize("matrix", [[[1.0]], [[1.0, 2.0, 3.0]] * 2, [], [[]] * 2])
def test_a_matrix_that_does_not_fit_is_left_out(matrix: list[list[float]]) -> None:
    assert matrix_drawing(["a", "b"], matrix, key="m", title="", note="") is None
    assert matrix_drawing([], [], key="m", title="", note="") is None


def test_curves_without_a_finite_value_are_left_out() -> None:
    empty = Curve([1, 2], [math.nan, math.inf], "nothing")
    (drawing,) = curve_drawings([CurvePanel("a", "", [empty]), CurvePanel("b", "", [empty, TEST])])
    assert drawing.title == "b" and "nothing" not in drawing.svg


SHEAR = np.array([[1.0, 0.4], [0.0, 1.0]])
AFFINE = {
    "rotation": moved(rotation(130)),
    "almost a half turn": moved(rotation(179)),
    "translation": moved(np.eye(2), (4.0, -2.0)),
    "scale": moved(np.diag([1.4, 0.7])),
    "shear": moved(SHEAR),
    "all at once": moved(rotation(70) @ SHEAR, (3.0, 1.0)),
}


@pytest.mark.parametrize("name", AFFINE)
def test_flow_lines_obey_the_group_law(name: str) -> None:
    """From t = 0 to ½ and from ½ to 1 a flow does the same map: half of the line, applied twice."""
    flow = AFFINE[name]
    lines = flow_lines(flow)
    np.testing.assert_allclose(lines[:, 0], flow[0].reshape(-1, 2), atol=1e-9)
    np.testing.assert_allclose(lines[:, -1], flow[1].reshape(-1, 2), atol=1e-6)
    middle = lines.shape[1] // 2
    design = np.hstack([lines[:, 0], np.ones((len(lines), 1))])
    half, *_ = np.linalg.lstsq(design, lines[:, middle], rcond=None)
    twice = np.hstack([lines[:, middle], np.ones((len(lines), 1))]) @ half
    np.testing.assert_allclose(twice, lines[:, -1], atol=1e-6)


def test_a_rotation_keeps_its_distance_from_the_centre() -> None:
    radius = np.linalg.norm(flow_lines(AFFINE["rotation"]) - CENTRE, axis=-1)
    np.testing.assert_allclose(radius, radius[:, :1].repeat(radius.shape[1], axis=1), atol=1e-6)


@pytest.mark.parametrize(
    "flow",
    [
        moved(-np.eye(2)),
        np.stack([GRID, GRID + np.sin(GRID)]),
        moved(np.diag([1.0, -1.0])),
    ],
)
def test_what_has_no_flow_is_straight(flow: np.ndarray) -> None:
    lines = flow_lines(flow)
    assert np.isfinite(lines).all()
    np.testing.assert_allclose(lines[:, lines.shape[1] // 2], flow.mean(axis=0).reshape(-1, 2))


def test_kept_lines_are_apart_and_short_ones_all_stay() -> None:
    kept = lines_apart(flow_lines(AFFINE["rotation"]), 2.0)
    assert 1 < len(kept) < GRID.size // 2
    gaps = [
        np.linalg.norm(one[:, None] - other[None], axis=-1).min()
        for index, one in enumerate(kept)
        for other in kept[:index]
    ]
    assert min(gaps) >= 2.0
    assert len(lines_apart(flow_lines(moved(np.eye(2))), 2.0)) == GRID.size // 2


def test_thinned_flow_is_even_and_still_the_same_map() -> None:
    flow = thinned(AFFINE["all at once"], 4)
    assert flow.shape == (2, 4, 4, 2)
    np.testing.assert_allclose(flow[0, 0, :, 0], np.linspace(0, 27, 4))
    matrix = rotation(70) @ SHEAR
    np.testing.assert_allclose(flow[1], (flow[0] - CENTRE) @ matrix.T + CENTRE + (3.0, 1.0))


def test_border_is_closed() -> None:
    around = border(GRID)
    np.testing.assert_array_equal(around[0], around[-1])
    assert len(np.unique(around, axis=0)) == 24


def decoded(uri: str) -> np.ndarray:
    """Oracle: matplotlib's PNG reader, (height, width[, 3 or 4]) in [0, 1]."""
    content = base64.b64decode(uri.removeprefix("data:image/png;base64,"))
    return imread(io.BytesIO(content), format="png")


@pytest.mark.parametrize("channels", [1, 3])
def test_picture_is_read_back(channels: int) -> None:
    image = np.random.default_rng(0).random((channels, 5, 8))
    pixels = decoded(picture_uri(image))
    shown = image[0] if channels == 1 else np.moveaxis(image, 0, -1)
    np.testing.assert_allclose(pixels, shown, rtol=0, atol=0.5 / 255 + 1e-6)


def test_pictures_of_odd_values_and_channels() -> None:
    odd = np.array([[[math.nan, -1.0, 2.0]]])
    np.testing.assert_array_equal(decoded(picture_uri(odd)), [[0.0, 0.0, 1.0]])
    two = np.stack([np.zeros((2, 2)), np.ones((2, 2))])
    np.testing.assert_allclose(decoded(picture_uri(two)), np.full((2, 2), 0.5), atol=0.01)
    assert decoded(picture_uri(np.ones((4, 2, 2)))).shape == (2, 2, 3)


def test_large_pictures_are_averaged_over_blocks() -> None:
    image = np.kron(np.eye(4), np.ones((16, 16)))[None]
    np.testing.assert_allclose(decoded(picture_uri(image, largest_side=4)), np.eye(4))


# --- bars of gains --------------------------------------------------------------------------------


def directions(*gains: float | None, error: float | None = None) -> list[ScreenedDirection]:
    return [read(ScreenedDirection, {"gain": gain, "error": error}) for gain in gains]


def test_bars_share_one_axis() -> None:
    first, second = gain_bars(directions(0.8, 0.2, error=0.2))
    assert first is not None and second is not None
    assert (first.zero, first.low, first.high) == (0.0, 0.0, pytest.approx(80.0))
    assert first.error == pytest.approx((60.0, 100.0))
    assert (second.low, second.high) == (0.0, pytest.approx(20.0))


def test_a_large_loss_does_not_hide_the_gains() -> None:
    gain, loss, small = gain_bars(directions(1.0, -50.0, -0.125))
    assert gain is not None and loss is not None and small is not None
    assert gain.zero == loss.zero == pytest.approx(20.0)
    assert (gain.low, gain.high) == (pytest.approx(20.0), pytest.approx(100.0))
    assert (loss.low, loss.high) == (0.0, pytest.approx(20.0)), "cut off at the end of the axis"
    assert (small.low, small.high) == (pytest.approx(10.0), pytest.approx(20.0))


def test_only_losses_and_no_number_at_all() -> None:
    loss, nothing = gain_bars(directions(-0.5, None))
    assert nothing is None and loss is not None
    assert loss.low < loss.high == loss.zero
    assert gain_bars([]) == []


@pytest.mark.parametrize(
    ("amounts", "expected"),
    [
        ({"rotation": 32.4}, "±32°"),
        ({"flip": 0.5}, "probability ½"),
        ({"scale_x": 0.1, "scale_y": 0.3}, "scaling along x ±0.10, scaling along y ±0.30"),
        ({"scale_x": 0.1, "scale_y": 0.1}, "±0.10 each"),
        ({"scale_x": 0.1, "own": 0.1}, "scaling along x ±0.10, own ±0.10"),
        ({"rotation": math.nan}, "–"),
        ({}, "–"),
    ],
)
def test_amounts_of_a_direction(amounts: dict[str, float], expected: str) -> None:
    units = {"rotation": "degrees", "flip": "probability"}
    units |= dict.fromkeys(("scale_x", "scale_y"), "log factor")
    assert amounts_text(amounts, units) == expected
