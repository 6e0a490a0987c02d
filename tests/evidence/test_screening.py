"""The screening: against evidences that are known functions of the motion, and on points."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from oracles.dense_evidence import categorical_log_likelihood, laplace_log_evidence
from oracles.dense_ggn import average_over_samples, softmax_curvature, trainable
from oracles.dense_kfac import dense_kfac
from planar_problems import (
    Push,
    Stretch,
    Turn,
    by_first,
    by_radius,
    by_sector,
    mirror,
    overfitted,
    points,
    sectors,
)
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.evidence import screening as room
from isotropy.evidence.laplace import Batch
from isotropy.evidence.screening import AMOUNTS, Screening, screen
from isotropy.evidence.settings import stream
from isotropy.evidence.training import Trainer
from isotropy.networks.averaging.augmentations import Augmentation
from isotropy.networks.averaging.mixtures import augmentation_over
from isotropy.symmetry.actions.action import Action, Generator, MatrixGenerator


def over(*actions: Any, distribution: str = "correlated", **options: Any) -> Augmentation:
    return augmentation_over(
        list(actions), distribution=distribution, dtype=torch.float64, **options
    )


# --- evidences that are known -------------------------------------------------------------------


class KnownEvidence:
    """In place of an evidence: a given function of the copies (examples, copies, 2), per example.

    value(moves, weights): how far each copy was moved, and how copies are averaged.
    """

    def __init__(self, inputs: Tensor, value: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.inputs, self.known = inputs, value
        self.seen: list[Tensor] = []

    def fit(self, batches: Iterable[Batch]) -> list[Batch]:
        return list(batches)

    def value(self, batches: list[Batch]) -> Tensor:
        parts = [batch.rows.unflatten(0, (-1, batch.copies.count)) for batch in batches]
        moves = torch.cat(parts) - self.inputs[:, None]
        self.seen.append(moves)
        weights = batches[0].copies.weights
        if weights is None:
            weights = torch.full((moves.shape[1],), 1 / moves.shape[1], dtype=moves.dtype)
        return self.known(moves, weights) * len(self.inputs)


INPUTS = points(50)


def screened(
    value: Callable[[Tensor, Tensor], Tensor],
    augmentation: Augmentation | None = None,
    inputs: Tensor = INPUTS,
    **options: Any,
) -> Screening:
    evidence: Any = KnownEvidence(inputs, value)
    labels = torch.zeros(len(inputs), dtype=torch.int64)
    chosen = augmentation or over(Push())
    return screen(evidence, chosen, inputs, labels, batch_size=20, **options)


def quadratic(matrix: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """½ aᵀ Q a, averaged over copies and examples."""
    return lambda moves, _: (
        torch.einsum("nsi,ij,nsj->", moves, matrix, moves) / (2 * moves.shape[0] * moves.shape[1])
    )


def square(*rows: tuple[float, float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


class Scaled(Push):
    """The same with generators whose matrices have the norms 2 and √2, which set the basis."""

    generators = (
        MatrixGenerator("push_x", "units", matrix=((0, 2, 0), (0, 0, 0))),
        MatrixGenerator("push_y", "units", matrix=((1, 0, 0), (0, 1, 0))),
    )


@pytest.mark.parametrize("action", [Push(), Scaled()], ids=["push", "scaled"])
def test_matrix_is_that_of_a_quadratic_evidence(action: Action) -> None:
    """M = E[ε²] Q in coordinates, whatever the basis; E[ε²] is 1/3 but for the draws."""
    wanted = square((2.0, -0.6), (-0.6, 1.0))
    found = torch.tensor(screened(quadratic(wanted), over(action)).matrix, dtype=torch.float64)
    noise = drawn(INPUTS, 2, batch_size=20)[..., 0]  # a direction alone has the first column
    torch.testing.assert_close(found, wanted * noise.square().mean(), rtol=1e-9, atol=1e-12)
    assert float(noise.square().mean()) == pytest.approx(1 / 3, rel=0.1)


def test_entries_between_what_is_not_wanted_are_not_measured() -> None:
    found = screened(quadratic(square((2.0, 0.5), (0.5, -1.0)))).matrix
    assert found[0][0] > 0 > found[1][1] and found[0][1] == found[1][0] == 0.0


def drawn(inputs: Tensor, numbers: int, *, batch_size: int, draw: int = 0) -> Tensor:
    """The screening's noise (examples, 8, numbers): stratified, antithetic, batch after batch."""
    generator = stream(0, "screening", draw)
    parts = []
    for batch in inputs.split(batch_size):
        shape = (2, len(batch), 4, numbers)
        places, order = torch.rand(shape, generator=generator, dtype=torch.float64)
        shifts = torch.rand(len(batch), 1, numbers, generator=generator, dtype=torch.float64)
        strata = order.argsort(1)
        strata[..., 0] = (torch.arange(4) + (4 * shifts[..., 0]).long()) % 4
        half = 2 * (strata + places) / 4 - 1
        parts.append(torch.cat([half, -half], 1))
    return torch.cat(parts)


PAIRS = {"together": (0.9, "push_x + push_y", 1.0), "against": (-0.9, "push_x − push_y", -1.0)}


@pytest.mark.parametrize(("between", "text", "sign"), PAIRS.values(), ids=PAIRS)
def test_two_that_are_wanted_together(between: float, text: str, sign: float) -> None:
    found = screened(quadratic(square((1.0, between), (between, 1.0))))
    (row,) = found.rows
    assert row.direction == text and row.wanted and set(row.names) == {"push_x", "push_y"}
    largest = AMOUNTS[-1]
    noises = [drawn(INPUTS, 2, batch_size=20, draw=draw)[..., 0] for draw in range(3)]
    gains = 0.95 * largest**2 * torch.stack([noise.square().mean() for noise in noises])
    assert row.gain == pytest.approx(float(gains.mean()))
    assert row.error == pytest.approx(float(gains.std()) / 3**0.5)
    share = largest / 2**0.5
    assert row.amounts == {"push_x": pytest.approx(share), "push_y": pytest.approx(share)}
    assert found.start == row.amounts
    assert found.factor is not None
    column = torch.tensor(found.factor)[:, 0]
    torch.testing.assert_close(column / column[0], torch.tensor([1.0, sign]))
    assert not torch.tensor(found.factor)[:, 1].any()


def test_two_that_have_little_to_do_with_each_other() -> None:
    found = screened(quadratic(square((1.0, 0.2), (0.2, 0.8))))
    assert [row.direction for row in found.rows] == ["push_x", "push_y"]
    assert found.ranking == found.wanted == ["push_x", "push_y"]


def test_independent_ranges_have_no_directions() -> None:
    wanted = quadratic(square((1.0, 0.9), (0.9, 1.0)))
    found = screened(wanted, over(Push(), distribution="independent"))
    assert {row.direction for row in found.rows} == {"push_x", "push_y"}
    assert found.factor is None and found.matrix == ((0.0, 0.0), (0.0, 0.0))


def stand_in(moves: Tensor, weights: Tensor) -> Tensor:
    """Any spread is welcome up to a limit, and x makes more of it than y."""
    return (moves.square() @ moves.new_tensor([1.0, 0.3])).mean().clamp(max=0.2)


def test_what_only_stands_in_is_dropped() -> None:
    """Alone, y gains; on top of x, which gains more, it does not."""
    found = screened(stand_in)
    assert found.wanted == ["push_x"] and found.ranking == ["push_x", "push_y"]
    first, second = found.rows
    assert first.gain == pytest.approx(0.2, abs=0.03) and first.error is not None
    assert second.gain <= 1e-3 and not second.wanted and second.error is None
    assert found.start == {"push_x": pytest.approx(0.8)}
    own = over(Push(), caps={"push_x": 0.0})
    assert screened(stand_in, own).wanted == ["push_y"]


def test_amounts_are_those_that_gain_on_top_of_what_is_taken() -> None:
    """Spread is welcome up to 0.3 and unwelcome beyond: x makes 0.21 of it, and leaves 0.09."""

    def tent(moves: Tensor, weights: Tensor) -> Tensor:
        spread = (moves.square() @ moves.new_tensor([1.0, 0.8])).mean()
        return torch.minimum(spread, 0.6 - spread)

    first, second = screened(tent).rows
    assert first.amounts == {"push_x": pytest.approx(0.8)}
    assert second.amounts == {"push_y": pytest.approx(0.4)} and second.wanted
    assert second.gain == pytest.approx(0.8 * 0.4**2 / 3, rel=0.1)
    alone = screened(tent, over(Push(), caps={"push_x": 0.0})).rows[0]
    assert alone.amounts == {"push_y": pytest.approx(0.8)}


def test_nothing_is_wanted() -> None:
    found = screened(quadratic(square((-1.0, 0.0), (0.0, -2.0))))
    assert found.wanted == [] and found.start == {}
    assert found.ranking == ["push_x", "push_y"]
    assert all(row.gain < 0 for row in found.rows)


def test_a_gain_within_its_error_is_not_wanted() -> None:
    """Half of the examples gain what the others lose: what is left is chance, of either sign."""
    signs = torch.ones(50, dtype=torch.float64)
    signs[::2] = -1

    def chance(sign: float) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda moves, _: 3 * sign * (moves[..., 0].square().mean(1) * signs).mean()

    found = [screened(chance(sign)) for sign in (1.0, -1.0)]
    assert all(each.wanted == [] for each in found)
    assert max(each.rows[0].gain for each in found) > 2 * room.LEAST_GAIN


def test_amounts_end_at_the_bounds() -> None:
    """A cap, or a period, cuts the amount that is reported as it cuts the motion."""

    class Short(Push):
        generators = (Generator("push_x", "units", 2.0, period=0.3), Generator("push_y", "units"))

    wanted = quadratic(square((1.0, 0.0), (0.0, 1e-9)))
    (row, *_) = screened(wanted, over(Short())).rows
    assert row.amounts == {"push_x": pytest.approx(0.15)}  # 0.3, in a unit of two
    (row, *_) = screened(wanted, over(Push(), caps={"push_x": 0.25})).rows
    assert row.amounts == {"push_x": pytest.approx(0.25)}


# --- finite elements ----------------------------------------------------------------------------


def shrinking(moves: Tensor, weights: Tensor) -> Tensor:
    """−(x̄)², x̄ averaged over copies: averaging with anything is welcome."""
    averaged = FIRST + torch.einsum("ns,s->n", moves[..., 0], weights)
    return -averaged.square().mean()


FIRST = torch.ones(40, dtype=torch.float64)
"""x of every example, set by the two tests below."""


@pytest.mark.parametrize("alternating", [True, False])
def test_an_element_must_gain_over_another_example(
    alternating: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """x ↦ −x cancels x. Where neighbours have the other sign, mixing their mirror image in does
    not; where all have one sign it does the same, and the element is nothing of its own."""
    first = torch.ones(40, dtype=torch.float64)
    first[1::2] = -1.0 if alternating else 1.0
    monkeypatch.setitem(globals(), "FIRST", first)
    inputs = torch.stack([first, torch.zeros(40).double()], 1)
    found = screened(shrinking, over(mirror(0)), inputs)
    (row,) = found.rows
    assert row.names == ("mirror_x",)
    if alternating:
        assert row.wanted and row.amounts == {"mirror_x": 0.5}
        assert row.gain == pytest.approx(1.0) and found.start == {"mirror_x": 0.5}
    else:
        assert not row.wanted and row.gain == pytest.approx(0.0, abs=1e-12)


# --- what is left behind ------------------------------------------------------------------------


def test_everything_is_left_as_it_was() -> None:
    trainer = overfitted(by_radius, epochs=2, width=4)
    augmentation = over(Turn(), mirror(0), start={"turn": 20.0, "mirror_x": 0.3})
    before = copy.deepcopy([augmentation.state_dict(), trainer.model.state_dict()])
    precisions, random = trainer.prior.log_precisions.clone(), torch.get_rng_state()
    learns = [p.requires_grad for p in (*augmentation.parameters(), *trainer.model.parameters())]
    screen(trainer.evidence, augmentation, trainer.inputs, trainer.targets, batch_size=20)
    for held, module in zip(before, (augmentation, trainer.model), strict=True):
        assert all(torch.equal(held[name], value) for name, value in module.state_dict().items())
    assert torch.equal(trainer.prior.log_precisions, precisions)
    assert torch.equal(torch.get_rng_state(), random)
    both = (*augmentation.parameters(), *trainer.model.parameters())
    assert [p.requires_grad for p in both] == learns
    assert all(p.grad is None for p in augmentation.parameters())


def test_a_failure_leaves_the_augmentation_as_it_was() -> None:
    augmentation = over(Push(), start={"push_x": 0.7})

    def fails(moves: Tensor, weights: Tensor) -> Tensor:
        if bool(moves.any()):
            raise RuntimeError("no such evidence")
        return moves.new_zeros(())

    with pytest.raises(RuntimeError, match="no such evidence"):
        screened(fails, augmentation)
    assert augmentation.symmetries()[0].high == pytest.approx(0.7)


def test_a_seed_decides_all() -> None:
    wanted = quadratic(square((1.0, 0.2), (0.2, 0.8)))
    first, again, other = (screened(wanted, seed=seed) for seed in (0, 0, 1))
    assert first == again and first != other


def test_record_is_json() -> None:
    told: list[str] = []
    found = screened(quadratic(square((1.0, 0.2), (0.2, 0.8))), progress=told.append)
    record = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert set(record) == {
        "rows", "ranking", "wanted", "generators", "matrix", "start", "log_evidence", "evaluations",
    }  # fmt: skip
    assert set(record["rows"][0]) == {"direction", "names", "gain", "error", "wanted", "amounts"}
    assert record["generators"] == ["push_x", "push_y"]
    assert record["matrix"] == [list(row) for row in found.matrix]
    assert record["log_evidence"] == 0.0 and record["evaluations"] > 10
    assert told[0].startswith("the matrix") and told[1].startswith("push_x: +")


def test_one_draw_has_no_error() -> None:
    with pytest.raises(CallerError, match="repeats: expected at least 2"):
        screened(stand_in, repeats=1)


# --- on points ----------------------------------------------------------------------------------


def screened_points(trainer: Trainer, *actions: Any) -> Screening:
    return screen(trainer.evidence, over(*actions), trainer.inputs, trainer.targets, batch_size=60)


def test_labels_by_radius_ask_for_rotation() -> None:
    found = screened_points(overfitted(by_radius), Turn(), Push())
    assert found.ranking[0] == "turn" and "turn" in found.wanted
    assert found.rows[0].gain > 0.03 and found.start["turn"] > 20.0


def test_labels_by_x_ask_for_the_mirror_of_y() -> None:
    found = screened_points(overfitted(by_first), Turn(), mirror(0), mirror(1))
    assert found.ranking[0] == "mirror_y" and "mirror_y" in found.wanted
    assert "mirror_x" not in found.wanted
    assert found.start["mirror_y"] == 0.5 and "mirror_x" not in found.start


def test_a_common_factor_is_one_direction() -> None:
    """Points on diagonals: x and y may grow together, but not one against the other."""
    trainer = overfitted(by_sector, inputs=sectors(), prior_precision=0.01)
    found = screened_points(trainer, Stretch(), Turn())
    assert found.rows[0].direction in ("stretch_x + stretch_y", "stretch_y + stretch_x")
    assert found.wanted == list(found.rows[0].names) and found.ranking[-1] == "turn"
    assert found.start["stretch_x"] == found.start["stretch_y"] > 0.1
    assert found.matrix[0][1] > 0


def dense_log_evidence(trainer: Trainer, moved: Tensor) -> float:
    """log Z per example of copies (examples, copies, 2), written out densely."""
    network, rows, copies = trainer.network, moved.flatten(0, 1), moved.shape[1]
    blocks = {
        f"{layer}.{name}": block
        for layer in ("0", "2")
        for name, block in dense_kfac(network, layer, rows, copies, softmax_curvature).items()
    }
    outputs = average_over_samples(network(rows), copies)
    value = laplace_log_evidence(
        categorical_log_likelihood(outputs, trainer.targets),
        blocks,
        trainable(network),
        {name: float(d.detach()) for name, d in trainer.prior.precisions().items()},
    )
    return float(value.detach()) / len(moved)


def test_matrix_against_dense_second_differences() -> None:
    trainer = overfitted(by_radius, inputs=points(24), width=8, prior_precision=0.01)
    found = screened_points(trainer, Push()).matrix
    noise = drawn(trainer.inputs, 2, batch_size=60)[..., :1]
    step = 0.2
    plain = dense_log_evidence(trainer, trainer.inputs[:, None])
    assert screened_points(trainer, Push()).log_evidence == pytest.approx(24 * plain)

    def gain(*direction: float) -> float:
        moves = step * noise * noise.new_tensor(direction)
        return dense_log_evidence(trainer, trainer.inputs[:, None] + moves) - plain

    along_x, along_y = gain(1.0, 0.0), gain(0.0, 1.0)
    assert along_x > 0 and along_y > 0, "the case must have an entry off the diagonal"
    half = 0.5**0.5
    between = (gain(half, half) - gain(half, -half)) / 2
    expected = [[along_x, between], [between, along_y]]
    torch.testing.assert_close(
        torch.tensor(found, dtype=torch.float64),
        2 / step**2 * torch.tensor(expected, dtype=torch.float64),
        rtol=1e-6,
        atol=1e-9,
    )
