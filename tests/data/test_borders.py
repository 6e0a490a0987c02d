"""What lies beyond the border: the choice from the edges, the fill, and the two warnings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from isotropy.checks import CallerError
from isotropy.data.borders import chosen_border, filled_corner_share, near_zero_share
from isotropy.data.readers import digits
from isotropy.data.variants import vary


def coloured(count: int = 12, size: int = 24, seed: int = 0) -> torch.Tensor:
    """Coloured noise about a colour of each picture's own, nowhere near black."""
    generator = torch.Generator().manual_seed(seed)
    colours = 0.3 + 0.4 * torch.rand(count, 3, 1, 1, generator=generator)
    return colours + 0.1 * torch.rand(count, 3, size, size, generator=generator)


def turned_by_pillow(images: torch.Tensor, fill: tuple[int, int, int], step: float = 17.0):
    """The pictures turned by Pillow, one angle each, with a colour in the corners."""
    turned = []
    for index, image in enumerate(images):
        pixels = (255 * image).round().byte().permute(1, 2, 0).numpy()
        picture = Image.fromarray(np.ascontiguousarray(pixels))
        done = picture.rotate(20 + step * index, Image.Resampling.BILINEAR, fillcolor=fill)
        turned.append(torch.from_numpy(np.asarray(done, dtype=np.float32) / 255).permute(2, 0, 1))
    return torch.stack(turned)


def test_digits_end_in_zeros_in_every_variant():
    for variant in ("original", "rotated", "translated"):
        border = chosen_border(vary(digits(), variant).train.inputs[:200])
        assert border.padding == "zeros" and border.fill is None
        assert len(border.notes) == 1 and "padding zeros chosen" in border.notes[0]


def test_coloured_pictures_get_their_own_border():
    border = chosen_border(coloured())
    assert border.padding == "border" and border.fill is None
    assert border.notes == ("padding border chosen: 0 % of the outermost pixels are near zero",)


def test_standardised_digits_do_not_end_in_zeros():
    images = digits().train.inputs[:100]
    assert chosen_border((images - images.mean()) / images.std()).padding == "border"


def test_the_share_is_counted_pixel_by_pixel():
    images = coloured(1, 9)
    images[:, :, 0] = 0.0  # one side of four, of 32 outermost pixels in all
    assert near_zero_share(images) == pytest.approx(9 / 32)
    images[:, 1, 0, 0] = 0.5  # one channel is enough not to be near zero
    assert near_zero_share(images) == pytest.approx(8 / 32)


def test_mean_is_the_mean_colour():
    images = coloured()
    border = chosen_border(images, "mean")
    expected = images.double().numpy().mean(axis=(0, 2, 3))
    np.testing.assert_allclose(border.fill, expected, atol=1e-5)


@pytest.mark.parametrize("padding", ["zeros", "mean"])
def test_a_seam_is_warned_of(padding):
    images = coloured()
    (note,) = chosen_border(images, padding).notes
    assert note.startswith(f"warning: padding {padding}") and "--padding border" in note


@pytest.mark.parametrize("padding", ["border", "reflection"])
def test_no_seam_no_warning(padding):
    assert chosen_border(coloured(), padding).notes == ()


@pytest.mark.parametrize("fill", [(0, 0, 0), (90, 120, 200)])
def test_corners_of_an_earlier_rotation_are_found(fill):
    images = turned_by_pillow(coloured(), fill)
    assert filled_corner_share(images) > 0.6
    assert any("earlier rotation" in note for note in chosen_border(images).notes)


def test_clean_pictures_and_pictures_on_a_background_have_no_filled_corners():
    assert filled_corner_share(coloured()) == 0
    assert filled_corner_share(digits().train.inputs[:200]) < 0.05
    assert filled_corner_share(vary(digits(), "rotated").train.inputs[:200]) < 0.05
    on_one_colour = torch.full((6, 3, 24, 24), 0.5)
    on_one_colour[:, :, 8:16, 8:16] = coloured(6, 8)
    assert filled_corner_share(on_one_colour) == 0


@pytest.mark.parametrize(
    ("images", "padding", "sentence"),
    [
        (torch.rand(4, 8, 8), "auto", r"images: expected \(examples, channels, height, width\)"),
        (torch.rand(4, 3, 8, 8), "black", "padding"),
    ],
)
def test_what_is_refused(images, padding, sentence):
    with pytest.raises(CallerError, match=sentence):
        chosen_border(images, padding)
