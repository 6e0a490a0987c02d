"""The grid is followed through reshapes, permutations, attention and concatenation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from measured_networks import Between, built
from torch import Tensor, nn

from isotropy.equivariance.contributions import Row, Sweep
from isotropy.equivariance.layout_rules import read_labels
from isotropy.equivariance.layouts import Grid, Invariant, Layout, Tokens
from isotropy.equivariance.operations import watch
from isotropy.equivariance.subject import differentiable_forward
from isotropy.symmetry.actions.action import Action
from isotropy.symmetry.actions.images import affine
from isotropy.symmetry.actions.sequences import sequences

ACTION = affine(("rotation",), padding="reflection")


def swept(
    network: nn.Module | Callable[[Tensor], Tensor], data: Tensor, action: Action = ACTION
) -> tuple[dict[str, Row], Layout | None]:
    """The rows by name, and the layout the output was found to have."""
    network = network if isinstance(network, nn.Module) else Between(network)
    directions = torch.eye(action.coordinate_count, dtype=data.dtype)
    sweep = Sweep(action, directions, len(data))
    moved = data.clone()
    with torch.no_grad(), differentiable_forward(), watch(network, sweep):
        sweep.start(moved)
        output = network(moved)
    state = sweep.state_of(output)
    assert state is not None
    return {row.name: row for row in sweep.rows}, state.layout


def images(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


TOKENS = Tokens(1, (3, 3), tuple(range(9)))


def patches(x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    x = x.reshape(batch, channels, height // 4, 4, width // 4, 4)
    return x.permute(0, 2, 4, 1, 3, 5).reshape(batch, 9, channels * 16)


def with_class_token(x: Tensor) -> Tensor:
    tokens = F.avg_pool2d(x, 4).flatten(2).transpose(1, 2)
    return torch.cat([torch.ones(len(x), 1, 3, dtype=x.dtype), tokens], 1)


AFTER: dict[str, tuple[Callable[[Tensor], Tensor], Layout | None]] = {
    "pixels in a row": (lambda x: x.flatten(2), Tokens(2, (12, 12), tuple(range(144)))),
    "and turned": (
        lambda x: x.flatten(2).transpose(1, 2),
        Tokens(1, (12, 12), tuple(range(144))),
    ),
    "and back": (lambda x: x.flatten(2).transpose(1, 2).mT.unflatten(2, (12, 12)), Grid((2, 3))),
    "channels last": (lambda x: x.permute(0, 2, 3, 1), Grid((1, 2))),
    "columns before rows": (lambda x: x.mT, Grid((3, 2))),
    "column by column": (
        lambda x: x.mT.flatten(2),
        Tokens(2, (12, 12), tuple(c * 12 + r for r in range(12) for c in range(12))),
    ),
    "class token": (with_class_token, Tokens(1, (3, 3), tuple(range(1, 10)))),
    "without it again": (lambda x: with_class_token(x)[:, 1:], TOKENS),
    "the class token alone": (lambda x: with_class_token(x)[:, 0], Invariant()),
    "the class token with its axis": (lambda x: with_class_token(x)[:, :1], Invariant()),
    "heads": (
        lambda x: with_class_token(x).unflatten(2, (3, 1)).transpose(1, 2),
        Tokens(2, (3, 3), tuple(range(1, 10))),
    ),
    "a channel": (lambda x: x[:, 0], Grid((1, 2))),
    "channels split": (lambda x: x.split(1, 1)[1], Grid((2, 3))),
    "channels put together": (lambda x: torch.cat([x, 2 * x], 1), Grid((2, 3))),
    "stacked": (lambda x: torch.stack([x, x], 1), Grid((3, 4))),
    "stacked in front": (lambda x: torch.stack([x, x], 0)[1], Grid((2, 3))),
    "pooled": (lambda x: F.max_pool2d(x, 2), Grid((2, 3))),
    "flat": (lambda x: x.flatten(1), Invariant()),
    "mean": (lambda x: x.mean((2, 3)), Invariant()),
    "mean, axes kept": (lambda x: x.mean((2, 3), keepdim=True), Invariant()),
    "pixel by pixel": (lambda x: F.softmax(x.sigmoid() + 1, 1), Grid((2, 3))),
    "every second column": (lambda x: x[..., ::2], Grid((2, 3))),
    # Patches of pixels are on six axes: no layout until their cells are in a row.
    "unfolded": (
        lambda x: x.unfold(2, 4, 4),
        None,
    ),
}


@pytest.mark.parametrize("name", AFTER)
@pytest.mark.parametrize("batch", [1, 3])
def test_where_the_grid_is(name: str, batch: int) -> None:
    function, expected = AFTER[name]
    assert swept(function, images(batch, 3, 12, 12))[1] == expected


def test_patches_by_reshape_and_permute() -> None:
    """Between image and tokens there is no layout: the embedding is judged for all of it."""
    network = Between(lambda x, embed: embed(patches(x)), nn.Linear(48, 8))
    rows, layout = swept(network, images(2, 3, 12, 12))
    assert layout == TOKENS
    assert [row.layout for row in rows.values()] == ["", "", "", "tokens 3×3"]
    assert {row.judged_at for row in rows.values()} == {"layers.0", None}
    assert rows["permute"].judged_at == "layers.0"


def test_attention_moves_like_its_queries() -> None:
    def attend(x: Tensor, learned: bool) -> Tensor:
        tokens = with_class_token(x)[:, None]
        queries = torch.ones(len(x), 1, 4, 3, dtype=x.dtype) if learned else tokens
        return F.scaled_dot_product_attention(queries, tokens, tokens)

    data = images(2, 3, 12, 12)
    places = tuple(range(1, 10))
    assert swept(lambda x: attend(x, False), data)[1] == Tokens(2, (3, 3), places)
    assert swept(lambda x: attend(x, True), data)[1] == Invariant(), "learned queries stay"


@pytest.mark.parametrize("formula", [False, True])
def test_attention_written_out(formula: bool) -> None:
    """Scores move on two axes, which no layout says; the product with the values is judged."""
    network, data = built("vit by einsum" if formula else "vit")
    rows, layout = swept(network, data)
    assert layout == Invariant()
    product = "einsum" if formula else "matmul"
    where = "blocks.0.attention"
    assert rows[f"{where}: {product}"].layout == ""
    assert rows[f"{where}: softmax"].judged_at == f"{where}: {product} (2)"
    assert rows[f"{where}: {product} (2)"].layout == "tokens 3×3"
    assert rows[f"{where}.out"].layout == rows["add"].layout == "tokens 3×3"
    assert rows["cat"].layout == "tokens 3×3" and rows["getitem"].layout == "invariant"
    assert not any(row.remark for row in rows.values())


@pytest.mark.parametrize("name", ["vit", "vit of torch", "mixer", "channels last", "u-net"])
def test_rows_do_not_depend_on_the_batch(name: str) -> None:
    found = []
    for batch in (1, 2, 3, 5):
        network, data = built(name, batch=batch)
        rows, layout = swept(network, data)
        found.append(([(row.name, row.layout, row.judged_at) for row in rows.values()], layout))
    assert all(each == found[0] for each in found)


def test_the_decoder_unfolds_a_vector() -> None:
    network, data = built("autoencoder")
    rows, layout = swept(network, data)
    assert layout == Grid((2, 3))
    assert rows["unfold"].layout == "invariant" and rows["view"].layout == "image"


def test_concatenation_in_a_u_net() -> None:
    network, data = built("u-net")
    rows, layout = swept(network, data)
    assert layout == Grid((2, 3))
    assert {row.layout for row in rows.values()} == {"image"}


def test_channels_last_all_the_way() -> None:
    network, data = built("channels last")
    rows, layout = swept(network, data)
    assert layout == Invariant()
    assert [row.layout for row in rows.values() if row.layout != "image"] == ["invariant"] * 2


def test_sequences() -> None:
    network, data = built("sequence")
    rows, layout = swept(network, data, sequences(("shift",)))
    assert layout == Invariant()
    assert [row.layout for row in rows.values()][:3] == ["sequence"] * 3
    turned = swept(lambda x: x.transpose(1, 2), data, sequences(("shift",)))[1]
    assert turned == Grid((1,))


def test_what_does_not_move_stays_so() -> None:
    """Class tokens with their axis, and answers to learned queries, are no images of their own."""

    def queried(x: Tensor, linear: nn.Module) -> Tensor:
        tokens = with_class_token(x)[:, None]
        queries = torch.ones(len(x), 2, 4, 3, dtype=x.dtype)
        keys = tokens.expand(-1, 2, -1, -1)
        answers = F.scaled_dot_product_attention(queries, keys, keys)
        return F.relu(linear(answers.transpose(1, 2)))

    def token(x: Tensor, linear: nn.Module) -> Tensor:
        return torch.tanh(linear(with_class_token(x)[:, :1]))

    for function in (queried, token):
        network = Between(function, nn.Linear(3, 5))
        assert swept(network, images(2, 3, 12, 12))[1] == Invariant()


def test_a_vector_is_unfolded_in_many_ways() -> None:
    def unfold(x: Tensor, layer: nn.Module) -> Tensor:
        return layer(x.mean((2, 3), keepdim=True))

    for layer in (nn.ConvTranspose2d(3, 2, 4), nn.Upsample(scale_factor=4)):
        assert swept(Between(unfold, layer), images(2, 3, 12, 12))[1] == Grid((2, 3))


def test_a_layer_that_makes_patches_itself() -> None:
    class Patches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return patches(x)

    rows, layout = swept(nn.Sequential(Patches()), images(2, 3, 12, 12))
    assert layout == TOKENS and rows["0"].layout == "tokens 3×3"


def test_sums_of_tensors_that_move_differently_are_remarked() -> None:
    def mixed(x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).contiguous() + x

    def alike(x: Tensor) -> Tensor:
        y = x + F.avg_pool2d(x, 3, 1, 1)
        y += x
        return y - 1

    data = images(2, 8, 8, 8)
    rows, _ = swept(mixed, data)
    assert rows["add"].remark == "adds tensors that transform differently"
    rows, _ = swept(alike, data)
    assert not any(row.remark for row in rows.values())


def test_reading_labels() -> None:
    grid = torch.arange(1, 7).reshape(2, 3)
    two = torch.stack([grid, grid])
    assert read_labels(two, (2, 3)) == Grid((1, 2))
    assert read_labels(two.mT, (2, 3)) == Grid((2, 1))
    assert read_labels(two.flatten(1), (2, 3)) == Tokens(1, (2, 3), tuple(range(6)))
    assert read_labels(two.flatten(1)[:, 1:], (2, 3)) is None, "a cell is missing"
    assert read_labels(torch.zeros(2, 4, dtype=torch.int64), (2, 3)) == Invariant()
    assert read_labels(torch.stack([grid, grid.flip(0)]), (2, 3)) is None, "examples differ"
    diagonal = torch.tensor([[1, 2, 3], [5, 6, 4]])
    assert read_labels(torch.stack([diagonal, diagonal]), (2, 3)) is None, "no grid any more"


class _ClassTokens(nn.Module):
    """Puts tokens in front, or takes as many away, as one layer without layers inside."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        if self.count < 0:
            return x[:, -self.count :]
        return torch.cat([x.new_ones(len(x), self.count, x.shape[2]), x], 1)


@pytest.mark.parametrize("count", [1, 2])
def test_a_layer_that_puts_class_tokens_in_front(count: int) -> None:
    def network(x: Tensor, *layers: nn.Module) -> Tensor:
        x = x.flatten(2).transpose(1, 2)
        for layer in layers:
            x = layer(x)
        return x

    added = Between(network, _ClassTokens(count))
    _, layout = swept(added, images(2, 4, 3, 3))
    assert layout == Tokens(1, (3, 3), tuple(range(count, 9 + count)))
    taken_away = Between(network, _ClassTokens(count), _ClassTokens(-count))
    assert swept(taken_away, images(2, 4, 3, 3))[1] == TOKENS
    too_many = Between(network, _ClassTokens(3))
    assert swept(too_many, images(2, 4, 3, 3))[1] is None
    cut = Between(network, _ClassTokens(-count))  # cells are gone, which is another grid
    assert swept(cut, images(2, 4, 3, 3))[1] is None


def test_frequencies_have_no_places_and_what_comes_back_has() -> None:
    def network(x: Tensor) -> Tensor:
        return torch.fft.irfft2(torch.fft.rfft2(x) * 0.5, s=x.shape[-2:])

    rows, layout = swept(network, images(2, 3, 6, 6))
    assert layout == Grid((2, 3))
    assert rows["fft_rfft2"].layout == "" and rows["fft_rfft2"].judged_at == "fft_irfft2"
