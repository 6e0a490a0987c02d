"""The figure of `isotropy story`: an imposed rotation against all that is said about it.

Images are turned once by an angle ~ U[−a, a]. Each row is one angle a and one `isotropy.story` of
these images, with quarter turns built in, hard and soft, at every angle: also where they are wrong,
because a 6 is not a 9. A row keeps

    learned     the half-width in degrees that `learn` found
    interval    its 95 % interval
    trained     networks that were compared: their ranges (`amounts`), log evidence, and log
                likelihood per test example
    gain        log evidence of the largest of these less that without rotation, in nats
    networks    by name: test error, Lie derivative along rotations, error under the elements of
                C(4), certified error

The digits have a range of their own, about ±30°, which shows at small angles and adds to
what was imposed.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from isotropy.checks import CallerError
from isotropy.data.labelled import Split
from isotropy.data.readers import digits, read
from isotropy.data.variants import turned
from isotropy.experiments.runner import Job, Series, goal_lines
from isotropy.records import RESULT, read_json
from isotropy.workflows.story import StoryConfig, story
from isotropy.workflows.story_steps import LEARNED

DIGITS, ROTATION = "digits", "rotation"
PLAIN, HARD, SOFT = "plain", "built", "relaxed"
CLEAR = 2.0
"""Standard errors that two numbers may lie apart in the wrong order."""
LEAST_ANGLE = 45.0
"""From which on the imposed range must be in the learned interval."""
LEAST_FACTOR = 100.0
"""Between errors of the plain and the hard network under the elements of the group."""
NUMBERS = ("test_error", "certified")


def jobs(table: Mapping[str, Any], quick: bool) -> list[Job]:
    """A row for each angle; large angles first, which take longest."""
    own = {**table, **(table["quick"] if quick else {})}
    settings = {**table["settings"], **(table["quick"] if quick else {})}
    for name in ("angles", "seeds"):
        settings.pop(name, None)
    return [
        Job(f"{angle:g}", tuple(own["seeds"]), {**settings, "angle": float(angle)}, cost=angle)
        for angle in own["angles"]
    ]


def run(job: Job, device: torch.device) -> list[dict[str, Any]]:
    """One story a seed."""
    return [_told(job, seed, device) for seed in job.seeds]


def _data(own: Mapping[str, Any]) -> Split:
    """Images, turned."""
    name = own["data"]
    if name == DIGITS:
        split = digits()
    elif name in own.get("places", {}):
        split = read(own["places"][name], hold_out_fraction=0.0)
    else:
        raise CallerError(f"the row needs {name}; say where it is with --data {name}=FOLDER")
    return turned(split, own["angle"])


@contextmanager
def _folder(job: Job, seed: int) -> Iterator[Path]:
    """Where the steps of a row are kept until it has ended, so that it can be called again."""
    place = job.settings.get("unfinished")
    if place is None:
        with tempfile.TemporaryDirectory() as made:
            yield Path(made) / "story"
        return
    path = Path(place) / f"{job.row}-{seed}"
    yield path
    shutil.rmtree(path, ignore_errors=True)


def _told(job: Job, seed: int, device: torch.device) -> dict[str, Any]:
    started, own = time.perf_counter(), job.settings
    known = {each.name for each in fields(StoryConfig)}
    config = StoryConfig(**{name: own[name] for name in known & own.keys()} | {"seed": seed})
    with _folder(job, seed) as folder:
        record = story(
            _data(own), config=config, device=device, folder=folder, resume=True
        ).record
        found = read_json(folder / LEARNED / RESULT)["search"]
    return {
        "angle": own["angle"],
        "data": own["data"],
        **{name: own[name] for name in ("learn_examples", "train_examples")},
        **_range(found),
        "networks": {each["name"]: _numbers(each) for each in record["networks"]},
        "steps": {each["name"]: each["seconds"] for each in record["steps"]},
        "seconds": time.perf_counter() - started,
    }


def _range(found: Mapping[str, Any]) -> dict[str, Any]:
    """What `learn` says of rotation; without a gain where its search found nothing to compare."""
    own = found["symmetries"][ROTATION]
    trained = [{**each, "amounts": each["amounts"][ROTATION]} for each in found.get("trained", ())]
    without = [each["log_evidence"] for each in trained if not each["amounts"]]
    gain = max(each["log_evidence"] for each in trained) - without[0] if without else 0.0
    return {"learned": own["amount"], "interval": own["interval"], "gain": gain, "trained": trained}


def _numbers(network: Mapping[str, Any]) -> dict[str, Any]:
    (lie,) = (each for each in network["lie_derivatives"] if each["name"] == ROTATION)
    claim = network["certified"] or {}
    return {
        "num_parameters": network["num_parameters"],
        "test_error": network["test_error"],
        "lie_derivative": lie["error"],
        "lie_derivative_error": lie["standard_error"],
        "elements": network["elements"]["error"],
        "certified": claim.get("bound"),
        "certified_train_error": claim.get("train_error"),
        "certified_test_error": claim.get("test_error"),
        "bits": claim.get("bits"),
    }


# --- what they show -------------------------------------------------------------------------------

Records = Sequence[Mapping[str, Any]]


def by_angle(records: Records) -> dict[float, list[Mapping[str, Any]]]:
    """The records of every angle, angles in order."""
    grouped: dict[float, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        grouped[record["angle"]].append(record)
    return {angle: grouped[angle] for angle in sorted(grouped)}


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean over seeds and its standard error; that of one seed is not known, and zero here."""
    return mean(values), stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def range_text(record: Mapping[str, Any]) -> str:
    """`±61° (52 to 72)`: the learned range and its interval."""
    low, high = record["interval"]
    return f"±{record['learned']:.0f}° ({low:.0f} to {high:.0f})"


def values_of(records: Records, network: str, number: str) -> list[float]:
    """One number of one network, by seed."""
    return [each["networks"][network][number] for each in records]


def goals(records: Records) -> dict[str, bool]:
    """What the rows must show, and whether these records do."""
    found: dict[str, bool] = {}
    grouped = by_angle(records)
    for angle, rows in grouped.items():
        if angle >= LEAST_ANGLE:
            inside = [r["interval"][0] <= angle <= r["interval"][1] for r in rows]
            what = f"{angle:g}°: the imposed range is in the learned interval"
            found[f"{what} ({sum(inside)} of {len(inside)} seeds)"] = all(inside)
    factors = [
        r["networks"][PLAIN]["elements"] / max(r["networks"][HARD]["elements"], 1e-300)
        for r in records
    ]
    if factors:
        what = f"the hard network's error under C(4) is at least {LEAST_FACTOR:g} times below"
        found[f"{what} the plain one's (least {min(factors):.3g})"] = min(factors) >= LEAST_FACTOR
    for number in NUMBERS:
        words = number.replace("_", " ")
        if 180.0 in grouped:
            for low, high in ((HARD, SOFT), (SOFT, PLAIN)):
                what = f"180°: {words} of {low} is not above that of {high}"
                found |= _compared(what, grouped[180.0], number, low, high, strict=False)
        if 0.0 in grouped:
            for other in (SOFT, PLAIN):
                what = f"0°: {words} of {HARD} is above that of {other}"
                found |= _compared(what, grouped[0.0], number, other, HARD, strict=True)
    return found


def _compared(
    what: str, rows: Records, number: str, low: str, high: str, *, strict: bool
) -> dict[str, bool]:
    """Whether the first network has the lower number; if not strict, up to two standard errors."""
    differences = [
        upper - lower
        for lower, upper in zip(
            values_of(rows, low, number), values_of(rows, high, number), strict=True
        )
    ]
    gap, error = mean_and_error(differences)
    holds = gap > 0 if strict else gap >= -CLEAR * error
    return {f"{what} (by {100 * gap:.2f} ± {100 * error:.2f} points)": holds}


def summary(records: Records) -> list[str]:
    """Goals, and a line for each angle: what was learned, and errors of the networks."""
    lines = goal_lines(goals(records))
    for angle, rows in by_angle(records).items():
        learned = ", ".join(range_text(each) for each in rows)
        parts = [
            f"{name} {100 * mean(values_of(rows, name, 'test_error')):.1f} % test, "
            f"{100 * mean(values_of(rows, name, 'certified')):.1f} % certified"
            for name in (PLAIN, SOFT, HARD)
        ]
        lines.append(f"{angle:g}°: learned {learned}; {'; '.join(parts)}")
    return lines


SERIES = Series(jobs, run, summary, apart=True)
