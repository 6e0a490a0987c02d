"""A learned augmentation from its JSON, without the network it was learned with.

    augmentation = augmentation_from_law(json.loads(path.read_text()), shape=(1, 28, 28))

`Augmentation.law()` is the distribution in numbers and names: which generators share one
exponential and in what order they act, the factors of the noise, the probabilities of finite
elements. Names become Actions through the catalogue; generators of the affine group carry their
matrix and need no name. Under the same noise what is rebuilt moves data exactly as the original.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from isotropy.checks import CallerError, check_choice, check_finite, shape_text
from isotropy.networks.augmentations import Augmentation, UniformRanges, generator_records
from isotropy.networks.correlated import CorrelatedRanges
from isotropy.networks.mixtures import Mixture, NoRanges
from isotropy.symmetry.actions import Action, compose
from isotropy.symmetry.catalogue import actions_named
from isotropy.symmetry.finite_actions import FiniteAction, channel_permutations
from isotropy.symmetry.image_actions import GENERATORS, AffineAction, AffineGenerator
from isotropy.symmetry.sequence_actions import sequences

SCHEMA = 1
"""The version of augmentation.json that is written and read."""

KINDS = ("independent", "correlated", "mixture")

Actions = Sequence[Action | FiniteAction]


def augmentation_from_law(
    law: Mapping[str, Any],
    shape: Sequence[int],
    *,
    actions: Actions | None = None,
    dtype: torch.dtype = torch.float32,
) -> Augmentation:
    """The augmentation whose `law()` this is, or whose augmentation.json.

    law      a mapping as `Augmentation.law()` returns it, from JSON or not
    shape    of one example, without the batch axis: (channels, height, width), (channels, length),
             (points, dimensions)
    actions  what the law was learned over, in its order, where some of it is the caller's own
             and in no catalogue: own Actions, `RandomTransform`s
    dtype    of the parameters, and so of the noise

    Ranges are bounded by their periods alone; caps are not part of a law. Raises CallerError for a
    law of another kind or version, for names nobody knows, and where a name has come to mean
    another generator than the law's.
    """
    if law.get("schema", SCHEMA) != SCHEMA:
        raise CallerError(
            f"augmentation law: expected schema {SCHEMA}, got {law['schema']!r}; read it with the "
            "version of isotropy that wrote it"
        )
    kind = check_choice(str(_entry(law, "kind")), KINDS, what="kind of augmentation law")
    given = None if actions is None else list(actions)
    finite_given = None if given is None else [a for a in given if isinstance(a, FiniteAction)]
    ranges_given = None if given is None else [a for a in given if isinstance(a, Action)]
    if kind != "mixture":
        if finite_given:
            raise CallerError(
                f"actions: expected Actions with generators for a law of kind {kind!r}, got the "
                f"finite action {finite_given[0].name!r} as well; leave it out"
            )
        return _ranges(law, shape, ranges_given, dtype)
    inner = _entry(law, "ranges")
    if inner is None:
        ranges: Augmentation = UniformRanges(NoRanges(), dtype=dtype)
    else:
        ranges = _ranges(inner, shape, ranges_given, dtype)
    return _mixture(ranges, _entry(law, "finite"), shape, finite_given)


# --- ranges -------------------------------------------------------------------------------


def _ranges(
    law: Mapping[str, Any], shape: Sequence[int], given: list[Action] | None, dtype: torch.dtype
) -> UniformRanges | CorrelatedRanges:
    kind = check_choice(str(_entry(law, "kind")), KINDS[:2], what="kind of ranges")
    records = _entry(law, "generators")
    action = _action(law, records, shape) if given is None else compose(*given)
    _check_same_generators(action, records)
    size = len(action.generators)
    if kind == "correlated":
        correlated = CorrelatedRanges(action, dtype=dtype)
        # Copied and not handed over as a start, so that no rounding of a bound changes it.
        with torch.no_grad():
            correlated.factor.copy_(_numbers(_entry(law, "factor"), (size, size), "factor"))
        return correlated
    uniform = UniformRanges(action, dtype=dtype)
    with torch.no_grad():
        factors = _numbers(_entry(law, "noise_factors"), (size,), "noise_factors")
        uniform.half_widths.copy_(factors)
    return uniform


def _action(
    law: Mapping[str, Any], records: Sequence[Mapping[str, Any]], shape: Sequence[int]
) -> Action:
    """The Action with these generators: its parts as the law lists them, the first acts first."""
    by_name = {str(_entry(record, "name")): record for record in records}
    found: list[Action] = []
    for part in _entry(law, "actions"):
        names = list(_entry(part, "generators"))
        options = {name: value for name, value in part.items() if name != "generators"}
        for name in names:
            check_choice(name, by_name, what="generator of the law")
        if len(shape) == 3 and all("matrix" in by_name[name] for name in names) and options:
            own = [_affine_generator(by_name[name]) for name in names]
            found.append(AffineAction(own, **options))
        elif "boundary" in options:
            found.append(sequences(names, boundary=options["boundary"]))
        else:
            found += [a for a in _catalogued(names, shape) if isinstance(a, Action)]
    return compose(*found)


def _affine_generator(record: Mapping[str, Any]) -> AffineGenerator:
    known = GENERATORS.get(record["name"])
    first, second = (tuple(float(number) for number in row) for row in record["matrix"])
    matrix = ((first[0], first[1], first[2]), (second[0], second[1], second[2]))
    if known is not None and known.matrix == matrix:
        return known
    return AffineGenerator(
        record["name"],
        record["unit"],
        record["coordinate_per_unit"],
        record.get("period"),
        matrix=matrix,
    )


def _catalogued(names: Sequence[str], shape: Sequence[int]) -> list[Action | FiniteAction]:
    try:
        return actions_named(names, shape)
    except CallerError as error:
        raise CallerError(
            f"augmentation law: {error}; Actions of your own are handed in as actions=[…]"
        ) from error


def _check_same_generators(action: Action, records: Sequence[Mapping[str, Any]]) -> None:
    """Raise unless the action's generators are those of the law: names, units, matrices."""
    # Through JSON, where tuples are lists.
    rebuilt = json.loads(json.dumps(generator_records(action)))
    wanted = json.loads(json.dumps(list(records)))
    names, expected = ([_entry(each, "name") for each in given] for given in (rebuilt, wanted))
    if names != expected:
        raise CallerError(
            f"actions: expected the law's generators {', '.join(expected)}, got {', '.join(names)}"
        )
    for found, record in zip(rebuilt, wanted, strict=True):
        for key in ("unit", "coordinate_per_unit", "matrix"):
            if key in record and found.get(key) != record[key]:
                raise CallerError(
                    f"generator {record['name']!r}: expected the law's {key} {record[key]}, got "
                    f"{found.get(key)}; hand in the Action it was learned over as actions=[…]"
                )


# --- finite elements ----------------------------------------------------------------------


def _mixture(
    ranges: Augmentation,
    records: Sequence[Mapping[str, Any]],
    shape: Sequence[int],
    given: list[FiniteAction] | None,
) -> Mixture:
    finite = [_finite(record, shape) for record in records] if given is None else given
    names = [list(_entry(record, "probabilities")) for record in records]
    if [list(action.names) for action in finite] != names:
        found = "; ".join(", ".join(action.names) for action in finite)
        raise CallerError(
            f"actions: expected finite actions with the law's elements "
            f"{'; '.join(map(', '.join, names))}, got {found or 'none'}"
        )
    mixture = Mixture(ranges, finite)
    for record, parameter in zip(records, mixture.probabilities, strict=True):
        values = list(record["probabilities"].values())
        what = f"probabilities of {record['name']!r}"
        numbers = _numbers(values, (len(values),), what)
        # Single precision may have rounded a sum of one upwards.
        if bool((numbers < 0).any()) or float(numbers.sum()) > 1 + 1e-6:
            raise CallerError(
                f"{what}: expected numbers of at least 0 whose sum is at most 1, got {values}"
            )
        with torch.no_grad():
            parameter.copy_(numbers)
    return mixture


def _finite(record: Mapping[str, Any], shape: Sequence[int]) -> FiniteAction:
    name = str(_entry(record, "name")).replace(" ", "_")
    if name == "channel_permutations":
        # Not all of them need to have been considered; the elements' names say which.
        orders = [tuple(map(int, re.findall(r"\d+", e))) for e in _entry(record, "probabilities")]
        return channel_permutations(shape[0], orders)
    action = _catalogued([name], shape)[0]
    assert isinstance(action, FiniteAction)
    return action


# --- entries ------------------------------------------------------------------------------


def _entry(mapping: Mapping[str, Any], key: str) -> Any:
    if key not in mapping:
        raise CallerError(
            f"augmentation law: expected an entry {key!r}, got only {', '.join(mapping) or 'none'}"
            "; a law is what Augmentation.law() returns and augmentation.json holds"
        )
    return mapping[key]


def _numbers(values: Any, shape: tuple[int, ...], what: str) -> Tensor:
    # Double precision holds what either precision wrote.
    numbers = torch.tensor(values, dtype=torch.float64)
    if numbers.shape != shape:
        wanted = ", ".join(map(str, shape))
        raise CallerError(f"{what}: expected shape ({wanted}), got {shape_text(numbers)}")
    check_finite(numbers, what=what)
    return numbers
