"""The search: on surfaces of L that are known, and on points whose symmetry is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from planar_problems import (
    CONFIG,
    Push,
    Radius,
    Stretch,
    Turn,
    by_first,
    by_radius,
    mirror,
    mlp,
    points,
)
from torch import Tensor, nn

from isotropy.evidence.search import amounts
from isotropy.evidence.search import selection as room
from isotropy.evidence.search.amounts import coarse_power
from isotropy.evidence.search.selection import (
    AROUND,
    HOPELESS,
    LEAST_ERROR,
    LEAST_GAIN,
    LOST,
    NEAR,
    PASSED_OVER,
    Candidate,
    Kind,
    Search,
    candidates_of,
    families_of,
    search,
)
from isotropy.evidence.search.trials import BLOCKS, Amounts, Trial, Trials
from isotropy.evidence.verdict import nothing_learned, word_for
from isotropy.networks.averaging.mixtures import augmentation_over
from isotropy.symmetry.actions.finite import PointPermutation, quarter_turns
from isotropy.symmetry.actions.images import affine


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Densities of amounts from fewer draws of their errors, which are small or none here."""
    monkeypatch.setattr(amounts, "DRAWS", 40)


# --- candidates -----------------------------------------------------------------------------------

ROTATION = affine(("rotation",))
TURNS = (3.6, 9, 18, 27, 36, 50.4, 67.5, 90, 135, 180)
THIRDS = tuple(amount / 3 for amount in TURNS)
FACTORS = (0.05, 0.15, 0.4, 1.0)
HALVES = tuple(amount / 2 for amount in FACTORS)
CANDIDATES = {
    "a period": (ROTATION, {}, "rotation", 180.0, TURNS, 162.0, "periodic"),
    "a period, capped": (ROTATION, {"rotation": 60.0}, "rotation", 60.0, THIRDS, 162.0, "periodic"),
    "no period": (affine(("scale_x",)), {}, "scale_x", 1.0, FACTORS, 0.4, "open"),
    "no period, capped": (
        affine(("scale_x",)), {"scale_x": 0.5}, "scale_x", 0.5, HALVES, 0.4, "open",
    ),
    "of the width": (affine(("translation_x",)), {}, "translation_x", 0.5, HALVES, 0.2, "open"),
    "a mirror": (mirror(0), {}, "mirror_x", 0.5, (0.1, 0.25, 0.375, 0.5), 0.45, "finite"),
    "a mirror, capped": (
        mirror(0), {"mirror_x": 0.3}, "mirror_x", 0.3, (0.06, 0.15, 0.225, 0.3), 0.45, "finite",
    ),
    "one of four": (
        quarter_turns(), {}, "turn_90", 0.25, (0.05, 0.125, 0.1875, 0.25), 0.225, "finite",
    ),
    "drawn": (
        PointPermutation(), {}, "point_permutation", 1.0, (0.2, 0.5, 0.75, 1.0), 0.9, "finite",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("action", "caps", "name", "largest", "grid", "whole", "kind"),
    CANDIDATES.values(),
    ids=CANDIDATES,
)
def test_candidates(action, caps, name, largest, grid, whole, kind: Kind) -> None:
    augmentation = augmentation_over(action, caps=caps, start={}, dtype=torch.float64)
    found = {candidate.name: candidate for candidate in candidates_of(augmentation)}[name]
    assert found.names == (name,) and found.largest == pytest.approx(largest)
    assert found.grid == pytest.approx(grid) and found.whole == pytest.approx(whole)
    assert found.grid[-1] == found.largest and found.kind == kind
    assert found.scale > 0 and 0 < found.floor < found.whole


@pytest.mark.parametrize("distribution", ["independent", "correlated"])
def test_what_is_capped_at_zero_is_no_candidate(distribution: str) -> None:
    actions = [affine(("rotation", "scale_x")), quarter_turns()]
    augmentation = augmentation_over(
        actions, caps={"scale_x": 0.0, "turn_180": 0.0}, distribution=distribution
    )
    names = [candidate.name for candidate in candidates_of(augmentation)]
    assert names == ["rotation", "turn_90", "turn_270"]


SHARES = (0.1, 0.3, 1.0)


def candidate(name: str, largest: float = 1.0, kind: Kind = "finite") -> Candidate:
    grid = tuple(share * largest for share in SHARES)
    return Candidate((name,), largest, grid, 0.05 * largest, 0.9 * largest, 0.05 * largest, kind)


def test_families() -> None:
    names = ("shift_x", "turn", "grow_x", "shift_y", "shift_z")
    (family,) = families_of([candidate(name, kind="open") for name in names])
    assert family.names == ("shift_x", "shift_y", "shift_z") and family.kind == "open"
    assert family.of(0.2) == {"shift_x": 0.2, "shift_y": 0.2, "shift_z": 0.2}
    assert families_of([candidate("shift_x"), candidate("shift_y", 2.0)]) == []
    assert families_of([candidate("x"), candidate("y")]) != []  # names that are axes alone


# --- surfaces that are known ----------------------------------------------------------------------


def word(found: Search, name: str) -> str:
    finding = found.findings[name]
    return word_for(
        finding.probability,
        gains=bool(finding.amount),
        whole=finding.amount >= finding.candidate.whole,
        built_in=False,
    )


class Surface:
    """In place of trials: L as a function of the amounts; log Z is not there to be looked at."""

    def __init__(
        self,
        criterion: Callable[[Mapping[str, float]], float],
        noise: Sequence[float] = (0.0,),
        examples: int = 200,
    ) -> None:
        self.criterion, self.noise, self.examples = criterion, noise, examples
        self.done: dict[tuple, Trial] = {}

    @property
    def count(self) -> int:
        return len(self.done)

    def _key(self, amounts: Amounts, replicate: int) -> tuple:
        return (*sorted((n, v) for n, v in amounts.items() if v), replicate)

    def at(self, amounts: Amounts, replicate: int = 0) -> Trial:
        value = self.criterion({n: v for n, v in amounts.items() if v})
        value += self.noise[replicate % len(self.noise)]
        blocks = torch.full((BLOCKS,), value / BLOCKS if math.isfinite(value) else 0.0)
        trial = Trial(dict(amounts), replicate, value, math.nan, blocks)
        return self.done.setdefault(self._key(amounts, replicate), trial)

    def known(self, amounts: Amounts) -> Trial | None:
        return self.done.get(self._key(amounts, 0))


def found_on(criterion, *names: str, kind: Kind = "finite", **options) -> tuple[Search, Surface]:
    surface = Surface(criterion, **options)
    candidates = [candidate(name, kind=kind) for name in names]
    return search(surface, candidates), surface  # type: ignore[arg-type]


def beside(surface: Surface, name: str, *others: str) -> list[dict[str, float]]:
    """Amounts of all trials of `name` beside just these others."""
    models = [dict(key[:-1]) for key in surface.done]
    return [model for model in models if model.keys() == {name, *others}]


def hill(amount: float, peak: float, height: float, width: float = 0.35) -> float:
    """A parabola in t = log(η + scale): zero at nothing, `height` at the peak."""

    def fall(value: float) -> float:
        return (math.log((value + 0.05) / (peak + 0.05)) / width) ** 2 / 2

    return height * (1 - fall(amount) / fall(0.0))


@pytest.mark.parametrize("peak", [0.12, 0.5, 1.0])
@pytest.mark.parametrize("height", [15.0, 400.0])
def test_the_maximum_of_a_hill(peak: float, height: float) -> None:
    found, surface = found_on(lambda a: -50 + hill(a.get("turn", 0.0), peak, height), "turn")
    turn = found.findings["turn"]
    assert turn.amount == found.amounts["turn"] == pytest.approx(peak, rel=0.05)
    low, high = turn.posterior.interval
    assert turn.interval[0] <= low <= peak <= high <= turn.interval[1]
    assert turn.gain == pytest.approx(height, rel=0.01)
    assert turn.gain_interval[0] < height < turn.gain_interval[1]
    assert turn.probability > 0.95
    assert (turn.amount >= turn.candidate.whole) == (peak == 1.0)
    assert found.log_predictive == pytest.approx(-50 + height, abs=0.01 * height)
    assert found.trials == surface.count <= 20 and found.examples == 200


def test_the_interval_holds_what_was_taken() -> None:
    found, _ = found_on(lambda a: 4 * hill(a.get("turn", 0.0), 0.06, 0.7, width=0.2), "turn")
    turn = found.findings["turn"]
    assert turn.amount == 0.0 and turn.interval[0] == 0.0
    assert turn.interval[1] == turn.coarse.interval[1] > turn.posterior.interval[1]


def test_nothing_is_taken_where_it_is_flat() -> None:
    found, _ = found_on(lambda a: -70.0, "turn", "shift_x", "shift_y")
    assert found.amounts == {"turn": 0.0, "shift_x": 0.0, "shift_y": 0.0}
    assert found.log_predictive == -70.0 and found.seed_error == LEAST_ERROR
    for finding in found.findings.values():
        assert finding.gain == 0.0 and finding.gain_interval[0] < 0 < finding.gain_interval[1]
        # The prior itself: most amounts are more than the floor.
        assert finding.probability == pytest.approx(0.95, abs=0.02)
        assert word(found, finding.candidate.name) == "cannot tell"


@pytest.mark.parametrize(
    ("height", "is_taken"), [(LEAST_GAIN - 0.4, False), (LEAST_GAIN + 0.4, True)]
)
def test_a_gain_must_be_large_enough(height: float, is_taken: bool) -> None:
    found, _ = found_on(lambda a: hill(a.get("turn", 0.0), 1.0, height), "turn")
    assert bool(found.amounts["turn"]) is is_taken


def test_a_loss_is_absent() -> None:
    found, surface = found_on(lambda a: -110 * a.get("turn", 0.0), "turn")
    turn = found.findings["turn"]
    assert turn.amount == 0.0 and turn.probability < 0.05
    assert turn.gain == pytest.approx(-11.0), "at the best amount above zero"
    assert turn.gain_interval[1] < 0
    tried = {dict(key[:-1])["turn"] for key in surface.done if len(key) > 1}
    assert tried == {0.1, 0.3, 1.0}, "the first round tries the whole grid"


def test_a_gain_that_comes_only_with_all_of_it() -> None:
    """Nothing up to half of it: a gradient at small amounts would not find it."""

    def cliff(amounts: Mapping[str, float]) -> float:
        turn = amounts.get("turn", 0.0)
        return -20 * turn if turn < 0.5 else -10 + 100 * (turn - 0.5)

    found, _ = found_on(cliff, "turn")
    assert found.amounts["turn"] == pytest.approx(1.0)


def test_two_that_do_not_depend_on_each_other() -> None:
    def two(amounts: Mapping[str, float]) -> float:
        return hill(amounts.get("turn", 0.0), 1.0, 30) + hill(amounts.get("grow", 0.0), 0.3, 80)

    found, _ = found_on(two, "turn", "grow", "shear")
    assert found.amounts["turn"] == pytest.approx(1.0, rel=0.05)
    assert found.amounts["grow"] == pytest.approx(0.3, rel=0.05)
    assert found.amounts["shear"] == 0.0
    assert found.findings["turn"].gain == pytest.approx(30, rel=0.02)
    assert found.findings["grow"].gain == pytest.approx(80, rel=0.02)


def turned_and_grown(amounts: Mapping[str, float]) -> float:
    """The best amount of turns is larger alone than beside growth."""
    turn, grow = amounts.get("turn", 0.0), amounts.get("grow", 0.0)
    return hill(turn, 0.6 - 0.25 * grow, 200) + hill(grow, 0.4, 60)


def test_two_that_change_each_others_amount() -> None:
    found, _ = found_on(turned_and_grown, "turn", "grow")
    assert found.amounts["turn"] == pytest.approx(0.5, rel=0.05)
    assert found.amounts["grow"] == pytest.approx(0.4, rel=0.05)


def test_one_stands_in_for_the_other() -> None:
    """Two names for one symmetry: one is taken, the other then adds nothing."""
    found, _ = found_on(lambda a: hill(max(a.values(), default=0.0), 1.0, 40), "turn", "spin")
    assert sorted(found.amounts.values()) == [0.0, 1.0]
    other = next(f for f in found.findings.values() if not f.amount)
    assert other.gain == pytest.approx(0.0, abs=1e-9)


def only_together(amounts: Mapping[str, float]) -> float:
    x, y = amounts.get("shift_x", 0.0), amounts.get("shift_y", 0.0)
    return hill(min(x, y), 0.3, 50) - 40 * abs(x - y)


def more_together(amounts: Mapping[str, float]) -> float:
    """All of one direction gains, and then the other has nothing left to add."""
    x, y = amounts.get("shift_x", 0.0), amounts.get("shift_y", 0.0)
    alone = 20 * max(x, y) - 10 * min(x, y)
    return max(alone, hill(min(x, y), 0.3, 60) - 100 * abs(x - y))


@pytest.mark.parametrize(("criterion", "alone"), [(only_together, 0.0), (more_together, 1.0)])
def test_directions_that_pay_together(criterion, alone: float) -> None:
    found, _ = found_on(criterion, "shift_x", "shift_y", "turn")
    both = pytest.approx(0.3, rel=0.1)
    assert found.amounts == {"shift_x": both, "shift_y": both, "turn": 0.0}
    single, _ = found_on(criterion, "shift_x", "turn")
    assert single.amounts == {"shift_x": pytest.approx(alone), "turn": 0.0}


def test_one_direction_that_pays_more_alone_comes_first() -> None:
    def apart(amounts: Mapping[str, float]) -> float:
        return hill(amounts.get("shift_x", 0.0), 1.0, 80) - 50 * amounts.get("shift_y", 0.0)

    found, surface = found_on(apart, "shift_x", "shift_y")
    assert found.amounts == {"shift_x": pytest.approx(1.0), "shift_y": 0.0}
    both = {tuple(dict(key[:-1]).values()) for key in surface.done if len(key) == 3}
    assert {(0.1, 0.1), (0.3, 0.3), (1.0, 1.0)} <= both, "the family was compared with each"


ONE_BY_ONE = {
    # What turns gain, what each direction gains alone, and whether both are tried at once.
    "nothing gains": (0.0, -2.0, True),
    "another gains more": (60.0, -2.0, False),
    "another gains less": (40.0, 25.0, True),
    "another gains more than both": (40.0, 15.0, False),
    "each loses much": (0.0, -1.1 * HOPELESS, False),
    "each loses less": (0.0, -0.9 * HOPELESS, True),
}


@pytest.mark.parametrize(("turns", "alone", "is_tried"), ONE_BY_ONE.values(), ids=ONE_BY_ONE)
def test_directions_are_tried_together_after_what_gains_more(
    turns: float, alone: float, is_tried: bool
) -> None:
    def criterion(amounts: Mapping[str, float]) -> float:
        x, y = amounts.get("shift_x", 0.0), amounts.get("shift_y", 0.0)
        shifts = hill(x, 0.2, 70) if x == y else alone
        return hill(amounts.get("turn", 0.0), 0.5, turns) + shifts

    found, surface = found_on(criterion, "shift_x", "shift_y", "turn")
    grid = {(share, share) for share in SHARES}

    def pairs(*others: str) -> set[tuple[float, float]]:
        models = beside(surface, "shift_x", "shift_y", *others)
        return {(model["shift_x"], model["shift_y"]) for model in models}

    assert (grid <= pairs()) is is_tried and (is_tried or grid.isdisjoint(pairs()))
    if turns and not is_tried:
        assert grid <= pairs("turn"), "beside what gains more"
    is_found = is_tried or turns > 0
    for name in ("shift_x", "shift_y"):
        assert found.amounts[name] == pytest.approx(0.2 if is_found else 0.0, rel=0.1)
    assert bool(found.amounts["turn"]) is (turns > 0)


# --- what is not tried ----------------------------------------------------------------------------


def losing(loss: float, at: float) -> Callable[[Mapping[str, float]], float]:
    """−70 without it; with more and more of it straight down in t, by `loss` at one amount."""

    def criterion(amounts: Mapping[str, float]) -> float:
        grow = amounts.get("grow", 0.0)
        return -70 - loss * math.log(1 + grow / 0.05) / math.log(1 + at / 0.05)

    return criterion


@pytest.mark.parametrize(("examples", "place"), [(200, 0), (5000, 1)])
@pytest.mark.parametrize(("share", "more"), [(1.01, 1), (0.99, 2)])
@pytest.mark.parametrize("kind", ["open", "periodic", "finite"])
def test_scans_stop_where_an_open_motion_has_lost_much(
    kind: Kind, share: float, more: int, examples: int, place: int
) -> None:
    """At one amount of the grid it has just lost enough, or too little: then one more is tried."""
    criterion = losing(share * LOST / coarse_power(examples), SHARES[place])
    found, surface = found_on(criterion, "grow", kind=kind, examples=examples)
    tried = [model["grow"] for model in beside(surface, "grow")]
    assert tried == list(SHARES[: place + more] if kind == "open" else SHARES)
    grow = found.findings["grow"]
    assert grow.profile.amounts == (0.0, *tried)
    assert grow.amount == 0.0 and grow.gain < 0
    assert word(found, "grow") == "absent"
    assert grow.interval[0] == 0.0 and grow.interval[1] < tried[-1]


@pytest.mark.parametrize(("kind", "amount"), [("open", 0.0), ("periodic", 1.0), ("finite", 1.0)])
def test_a_gain_behind_a_deep_valley(kind: Kind, amount: float) -> None:
    """A whole period may gain where half of it loses; an open motion is not followed so far."""

    def criterion(amounts: Mapping[str, float]) -> float:
        turn = amounts.get("turn", 0.0)
        return 60.0 if turn > 0.9 else -500 * turn

    found, _ = found_on(criterion, "turn", kind=kind)
    assert found.amounts["turn"] == pytest.approx(amount, abs=0.1)


def test_what_is_lost_is_counted_from_what_was_taken() -> None:
    """Growth loses 90 of the 100 that turns gain, which is more than there is without both."""

    def criterion(amounts: Mapping[str, float]) -> float:
        turn, grow = amounts.get("turn", 0.0), amounts.get("grow", 0.0)
        return hill(turn, 1.0, 100) - (90 if turn else 10) * (grow > 0)

    found, surface = found_on(criterion, "turn", "grow", kind="open")
    assert found.amounts == {"turn": pytest.approx(1.0), "grow": 0.0}
    assert [model["grow"] for model in beside(surface, "grow")] == list(SHARES)
    assert [model["grow"] for model in beside(surface, "grow", "turn")] == [SHARES[0]]


@pytest.mark.parametrize("names", [("turn",), ("turn", "grow")], ids=len)
def test_amounts_near_those_that_were_tried_are_not_tried(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """About what was found there are trials at or near all `AROUND`, beside the same others."""
    found, surface = found_on(turned_and_grown, *names)
    monkeypatch.setattr(room, "NEAR", 0.0)
    whole, every = found_on(turned_and_grown, *names)
    assert whole.amounts == found.amounts
    spared = 0
    for name, finding in found.findings.items():
        tried, more = set(finding.profile.amounts), set(whole.findings[name].profile.amounts)
        goals = {min(1.0, factor * finding.amount) for factor in AROUND}
        for goal in goals:
            near = {each for each in tried if abs(each - goal) < NEAR * goal}
            assert near == {goal} or (near and (goal not in near or goal == 1.0))
        assert tried <= more and more - tried <= goals
        spared += len(more - tried)
    assert surface.count == every.count - spared < every.count


# --- what was passed over -------------------------------------------------------------------------


def rivals(second: float, added: float, *, more: float = 0.0) -> Callable[..., float]:
    """Turns gain 40; spins gain `second`, and growth `added` beside these; not beside turns.

    more: what shear gains, whatever else there is; it moves the best amount of turns
    """

    def criterion(amounts: Mapping[str, float]) -> float:
        turn, spin, grow, shear = (amounts.get(n, 0.0) for n in ("turn", "spin", "grow", "shear"))
        first = hill(turn, 0.5 - 0.2 * shear, 40) - 60 * spin - 30 * grow
        other = hill(spin, 0.5, second) - 60 * turn
        other += hill(grow, 0.5, added) if spin else -30 * grow
        return max(first, other) + hill(shear, 0.4, more)

    return criterion


RIVALS = ("turn", "spin", "grow")


HALF = pytest.approx(0.5, rel=0.05)
SECOND_SEARCHES = {
    # What spins gain, growth beside them, and shear; what is taken, L, and whether spins and
    # growth are tried together.
    "wins": (35, 30, 0.0, {"spin": HALF, "grow": HALF}, 65, True),
    "in vain": (35, 3, 0.0, {"turn": HALF}, 40, True),
    # Less than `PASSED_OVER` of what the first gains.
    "little by itself": (40 * PASSED_OVER - 1, 50, 0.0, {"turn": HALF}, 40, False),
    # Turns and shear gain 80, to which the 35 of spins are little.
    "little beside all that was taken": (
        35, 50, 40.0, {"turn": pytest.approx(0.42, rel=0.05), "shear": pytest.approx(0.4, rel=0.1)},
        80, False,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("second", "added", "more", "taken", "value", "is_tried"),
    SECOND_SEARCHES.values(),
    ids=SECOND_SEARCHES,
)
def test_what_was_passed_over_starts_a_second_search(
    second: float, added: float, more: float, taken, value: float, is_tried: bool
) -> None:
    """Turns come first and leave nothing to spins and growth."""
    names = (*RIVALS, "shear") if more else RIVALS
    found, surface = found_on(rivals(second, added, more=more), *names)
    assert found.amounts == {**dict.fromkeys(names, 0.0), **taken}
    assert found.log_predictive == pytest.approx(value, rel=0.01)
    tried = any({"spin", "grow"} <= dict(key[:-1]).keys() for key in surface.done)
    assert tried is is_tried
    for name in set(RIVALS) - set(taken):
        assert found.findings[name].gain < 0, "beside the others"


def test_a_trial_that_failed_does_not_end_a_scan() -> None:
    """The network is not finite at 0.1, and at 0.3 there is a hill."""

    def criterion(amounts: Mapping[str, float]) -> float:
        push = amounts.get("push", 0.0)
        return -math.inf if push == 0.1 else hill(push, 0.3, 60)

    surface = Surface(criterion)
    found = search(surface, [candidate("push", kind="open")])  # type: ignore[arg-type]
    assert found.amounts["push"] == pytest.approx(0.3, rel=0.05)


@pytest.mark.parametrize("names", [("turn", "shear", "grow"), ("turn", "shear", *RIVALS[1:])])
def test_what_was_not_taken_is_not_scanned_again(names: tuple[str, ...]) -> None:
    """Amounts are refined beside each other in the end, and growth is as it was found before.

    Also after a second search that was in vain.
    """
    found, surface = found_on(rivals(38, 3, more=3.6), *names)
    taken = {name: amount for name, amount in found.amounts.items() if amount}
    assert taken.keys() == {"turn", "shear"}
    models = beside(surface, "grow", *taken)
    assert [model["grow"] for model in models] == [0.1, 0.3, 1.0], "its grid, once"
    (at,) = {(model["turn"], model["shear"]) for model in models}
    assert at != (taken["turn"], taken["shear"]), "refined since"
    profile = found.findings["grow"].profile
    assert profile.amounts == (0.0, 0.1, 0.3, 1.0)
    expected = [surface.criterion({**models[0], "grow": amount}) for amount in profile.amounts]
    assert profile.log_predictive == pytest.approx(expected)
    assert ("spin" in names) == bool(beside(surface, "grow", "spin", "shear"))


def test_the_error_between_replicates_is_measured() -> None:
    """As the pooled standard deviation over replicates, and it widens what is concluded."""
    noise = (0.0, 6.0, -6.0)
    found, surface = found_on(lambda a: hill(a.get("turn", 0.0), 0.5, 200), "turn", noise=noise)
    assert found.seed_error == pytest.approx(6.0)
    sure, _ = found_on(lambda a: hill(a.get("turn", 0.0), 0.5, 200), "turn")
    assert sure.seed_error == LEAST_ERROR
    widths = [
        each.findings["turn"].gain_interval[1] - each.findings["turn"].gain
        for each in (found, sure)
    ]
    assert widths[0] == pytest.approx(12 * widths[1], rel=1e-6)
    assert {key[-1] for key in surface.done} == {0, 1, 2}


def test_amounts_that_fail_are_passed_over() -> None:
    def criterion(amounts: Mapping[str, float]) -> float:
        turn, grow = amounts.get("turn", 0.0), amounts.get("grow", 0.0)
        if grow or turn == 1.0:
            return -math.inf
        return hill(turn, 0.3, 60)

    found, _ = found_on(criterion, "turn", "grow")
    assert found.amounts["turn"] == pytest.approx(0.3, rel=0.05)
    grow = found.findings["grow"]
    assert found.amounts["grow"] == 0.0 and grow.gain == -math.inf
    assert math.isfinite(found.log_predictive) and math.isfinite(grow.probability)
    assert word(found, "grow") == "cannot tell"


# --- points of the plane --------------------------------------------------------------------------


def searched(
    labels: Callable[[Tensor], Tensor],
    actions,
    *,
    network: Callable[[], nn.Module] = mlp,
    examples: int = 120,
) -> tuple[Search, Trials]:
    inputs = points(examples)
    config = CONFIG.resolved(examples=examples, on_gpu=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = network().double()
    trials = Trials(made, actions, config, (inputs, labels(inputs)))
    augmentation = augmentation_over(actions, start={}, dtype=torch.float64)
    return search(trials, candidates_of(augmentation)), trials


def is_nothing(found: Search, trials: Trials) -> bool:
    return nothing_learned(found.log_predictive, trials.null_log_predictive)


def test_labels_by_radius_turn() -> None:
    found, trials = searched(by_radius, Turn())
    assert found.amounts["turn"] > 162 and word(found, "turn") == "present"
    low, high = found.findings["turn"].posterior.interval
    assert low <= 180.0 <= high + 0.1
    assert found.findings["turn"].gain_interval[0] > 0
    assert not is_nothing(found, trials)


def by_twelfth(inputs: Tensor) -> Tensor:
    """Sectors of 30°; those of 90° are learned under wide averages as well."""
    angle = torch.atan2(inputs[:, 1], inputs[:, 0]) / (2 * math.pi)
    return (12 * (angle % 1)).long().clamp(max=11)


def test_labels_by_angle_do_not() -> None:
    found, trials = searched(by_twelfth, Turn(), network=lambda: mlp(12), examples=400)
    assert found.amounts["turn"] < 20 and word(found, "turn") != "present", "half a sector"
    assert found.findings["turn"].posterior.interval[1] < 30, "a sector"
    assert not is_nothing(found, trials)


def test_a_mirror() -> None:
    """Labels by the distance from the y axis."""
    found, trials = searched(
        lambda inputs: (inputs[:, 0].abs() > 0.7).long(), mirror(0), examples=400
    )
    assert found.amounts["mirror_x"] == pytest.approx(0.5, abs=0.05)
    assert word(found, "mirror_x") == "present" and not is_nothing(found, trials)


def test_no_mirror() -> None:
    """Rare mirrors cost little where an odd function does the same, half of them everything."""
    found, trials = searched(by_first, mirror(0))
    mirrored = found.findings["mirror_x"]
    assert mirrored.amount == 0.0 and word(found, "mirror_x") in ("absent", "cannot tell")
    assert mirrored.gain < 0 and mirrored.profile.log_predictive[-1] < found.log_predictive - 20
    assert not is_nothing(found, trials)


def test_nothing_is_claimed_of_random_labels() -> None:
    def coins(inputs: Tensor) -> Tensor:
        return torch.randint(0, 2, (len(inputs),), generator=torch.Generator().manual_seed(3))

    found, trials = searched(coins, [Turn(), mirror(0)], examples=60)
    assert is_nothing(found, trials)


def test_a_network_that_has_it_gains_nothing() -> None:
    found, trials = searched(by_radius, Turn(), network=Radius)
    assert found.amounts["turn"] == 0.0
    assert found.findings["turn"].gain == pytest.approx(0.0, abs=1e-6)
    assert not is_nothing(found, trials)
    assert word(found, "turn") == "cannot tell"  # until the network is looked at


@pytest.mark.parametrize("action", [Push(), Stretch()])
def test_small_motions_of_a_shape(action) -> None:
    """Labels by radius: no motion of either kind is whole, and nothing fails."""
    found, _ = searched(by_radius, action, examples=40)
    assert all(word(found, name) != "present" for name in found.amounts)
    assert all(math.isfinite(f.gain) for f in found.findings.values())
