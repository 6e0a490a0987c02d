"""Samples of which one knows only that two show the same thing: reading, holding out, drawing.

    same or not   samples (samples, …) with an entity each, as `LabelledData` whose classes are the
                  entities. A training step draws two different samples of each of B entities.
    distances     triples (x, x′, d), as `LabelledData` of inputs (triples, 2, …) and targets d
                  (triples, 1), d ≥ 0 and 0 for the same entity.

Entities, never samples, are held out. Files are .npz with `x` and `entity`, or with `x`, `other`
and `distance`; or CSV with a header, a column of entities, and numbers in all others.

`Distortion` has the four distortions of Zhang and Arodz (sections 5.1 and 5.2) and the distance d*
that the paper hands to the network; `moved_copies` distorts by any Action or FiniteAction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isotropy.checks import CallerError, check_choice, column_index, shape_text
from isotropy.data.formats import (
    ZIP_START,
    existing_path,
    open_npz,
    read_array,
    read_start,
    refused,
)
from isotropy.data.labelled import LabelledData, Split, tensor_from
from isotropy.data.readers import digits
from isotropy.data.tables import read_cells
from isotropy.symmetry.actions.action import Action
from isotropy.symmetry.actions.finite import FiniteAction
from isotropy.symmetry.actions.images import affine

FEWEST_ENTITIES = 8


# --- samples with entities, and triples -----------------------------------------------------


def samples_of(x: Any, entities: Any, *, name: str = "samples") -> LabelledData:
    """Samples x (samples, …) with an entity each (samples,), of any type that can be sorted.

    Raises CallerError for fewer than 8 entities, an entity with one sample, samples that are equal
    within every entity, or for all entities, and values that are missing.
    """
    inputs = tensor_from(x, what=name).to(torch.float32)
    labels = entities.cpu().numpy() if isinstance(entities, Tensor) else np.asarray(entities)
    if labels.shape != tuple(inputs.shape[:1]):
        raise CallerError(
            f"{name}: expected one entity for each of {len(inputs)} samples, got entities of shape "
            f"{labels.shape}"
        )
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise CallerError(
            f"{name}: expected an entity for each sample, got missing ones; leave these samples out"
        )
    names, numbers, counts = np.unique(labels.astype(str), return_inverse=True, return_counts=True)
    if len(names) < FEWEST_ENTITIES:
        raise CallerError(
            f"{name}: expected samples of at least {FEWEST_ENTITIES} entities, got {len(names)} in "
            f"{len(inputs)} sample{'s' if len(inputs) > 1 else ''}; add others to tell apart"
        )
    if counts.min() < 2:
        raise CallerError(
            f"{name}: expected two or more samples of each entity, got one of entity "
            f"{str(names[counts.argmin()])!r}; leave it out or add another"
        )
    targets = torch.from_numpy(numbers.astype(np.int64))
    data = LabelledData(inputs, targets, tuple(names.tolist()), name)
    _check_varies(inputs, name)
    if torch.equal(inputs, inputs[EntityIndex(targets).first_two()[targets, 0]]):
        raise CallerError(
            f"{name}: expected samples of an entity to differ, got equal ones within every entity; "
            "there is no distortion to ignore"
        )
    return data


def triples_of(first: Any, second: Any, distances: Any, *, name: str = "pairs") -> LabelledData:
    """Pairs x, x′ (pairs, …) with distances d (pairs,), 0 where both show the same entity.

    Raises CallerError for distances that are negative, missing or all zero, samples that do not
    vary, and shapes that differ.
    """
    given = {"samples": first, "other samples": second, "distances": distances}
    tensors = [tensor_from(each, what=what).to(torch.float32) for what, each in given.items()]
    own, other, known = tensors
    if own.shape != other.shape or known.shape != own.shape[:1]:
        raise CallerError(
            f"{name}: expected two samples of one shape and a distance for each pair, got "
            f"{shape_text(own)}, {shape_text(other)} and distances {shape_text(known)}"
        )
    data = LabelledData(torch.stack((own, other), 1), known[:, None], None, name)
    if bool((known < 0).any()):
        raise CallerError(
            f"distances: expected at least 0, got {float(known.min()):g} at index "
            f"{int(known.argmin())}; a distance is 0 for the same entity and positive otherwise"
        )
    if not bool((known > 0).any()):
        raise CallerError(
            "distances: expected some above 0, got zeros alone; without pairs of different "
            "entities all codes may be equal"
        )
    _check_varies(data.inputs.flatten(0, 1), name)
    return data


def _check_varies(inputs: Tensor, name: str) -> None:
    if torch.equal(inputs, inputs[:1].expand_as(inputs)):
        raise CallerError(
            f"{name}: expected features that vary, got constant columns only; all samples are equal"
        )


def hold_out_entities(data: LabelledData, fraction: float, seed: int) -> Split:
    """Set all samples of a random `fraction` of the entities aside, of at least two of them."""
    assert data.classes is not None
    count = max(2, round(fraction * data.num_classes))
    order = torch.randperm(data.num_classes, generator=torch.Generator().manual_seed(seed))
    train, test = (_only(data, chosen.sort().values) for chosen in (order[count:], order[:count]))
    note = (
        f"{count} of {data.num_classes} entities held out by seed {seed}; training never sees them"
    )
    return Split(train, replace(test, name=f"{data.name} (held out)"), (note,))


def _only(data: LabelledData, entities: Tensor) -> LabelledData:
    """The samples of these entities, numbered anew."""
    assert data.classes is not None
    number = torch.full((data.num_classes,), -1).scatter(0, entities, torch.arange(len(entities)))
    kept = number[data.targets] >= 0
    names = tuple(data.classes[index] for index in entities.tolist())
    return LabelledData(data.inputs[kept], number[data.targets[kept]], names, data.name)


class EntityIndex:
    """Which samples each entity has; entities: numbers (samples,), each at least twice."""

    def __init__(self, entities: Tensor) -> None:
        numbers = entities.cpu()
        self.order = numbers.argsort(stable=True)
        self.counts = numbers.bincount()
        self.starts = self.counts.cumsum(0) - self.counts

    def draw(self, entities: int, generator: torch.Generator) -> Tensor:
        """Two different samples of each of so many different entities: indices (entities, 2)."""
        chosen = torch.randperm(len(self.counts), generator=generator)[:entities]
        first, step = torch.rand(2, len(chosen), generator=generator)
        counts = self.counts[chosen]
        one = (first * counts).long().clamp(max=counts - 1)
        other = (one + 1 + (step * (counts - 1)).long().clamp(max=counts - 2)) % counts
        return self.order[self.starts[chosen, None] + torch.stack((one, other), 1)]

    def first_two(self) -> Tensor:
        """The first two samples of every entity: indices (entities, 2)."""
        return self.order[self.starts[:, None] + torch.arange(2)]


# --- files ----------------------------------------------------------------------------------


def read_pairs(source: str | Path, entity: str | None = None) -> LabelledData:
    """Samples with entities, or triples, from a file; entity: the column of a CSV file."""
    arrays, name = read_arrays(source, entity), Path(source).stem
    try:
        if "distance" in arrays and "other" in arrays:
            return triples_of(arrays["x"], arrays["other"], arrays["distance"], name=name)
        if "entity" not in arrays:
            raise CallerError(
                "expected an entity for each sample, got none; name the column with --entity, or "
                "write numpy.savez_compressed(path, x=samples, entity=entities)"
            )
        return samples_of(arrays["x"], arrays["entity"], name=name)
    except CallerError as error:
        told = str(error).removeprefix(f"{name}: ").removeprefix(f"{name}, ")
        raise CallerError(f"{source}: {told}") from None


def read_arrays(
    source: str | Path, entity: str | None = None, default: str = "entity"
) -> dict[str, Any]:
    """What a file holds: `x`, and where they are there `entity`, `other` and `distance`.

    entity: the column of a table that has the entities; None is `default`, if there is one
    """
    path = existing_path(source)
    try:
        if path.is_dir():
            raise CallerError(f"{path}: expected an .npz or CSV file, got a folder; name a file")
        is_table = not read_start(path, len(ZIP_START)).startswith(ZIP_START)
        return _read_table(path, entity, default) if is_table else _read_npz(path)
    except OSError as error:
        raise refused(path, error) from None


def _read_npz(path: Path) -> dict[str, Any]:
    with open_npz(path) as archive:
        known = {"x", "entity", "other", "distance"} & set(archive.files)
        if "x" not in known:
            raise CallerError(f"{path}: expected an array called x beside entity, got none")
        return {name: read_array(archive, [name], path) for name in known}


def _read_table(path: Path, entity: str | None, default: str) -> dict[str, Any]:
    table, entities = read_cells(path), {}
    columns = dict(table.columns)
    if entity is not None or default in columns:
        own = column_index(entity or default, [*columns], what=f"{path}, --entity")
        entities["entity"] = np.array(columns.pop([*columns][own]))
    advice = "replace it or leave this sample out" if entities else "--entity names another column"
    x = np.empty((table.rows, len(columns)), dtype=np.float32)
    for place, (name, cells) in enumerate(columns.items()):
        for row, cell in enumerate(cells):
            try:
                x[row, place] = float(cell)
            except ValueError:
                raise CallerError(
                    f"{path}: expected a number in column {name!r} of line "
                    f"{row + 1 + table.has_header}, got {repr(cell) if cell else 'a missing value'}"
                    f"; {advice}"
                ) from None
    return {"x": x, **entities}


# --- distortions ----------------------------------------------------------------------------

DISTORTIONS = ("shift", "two-part", "permutation", "shift-scale")
DIGITS = "digits"
DEMOS = (*DISTORTIONS, DIGITS)


@dataclass(frozen=True)
class Distortion:
    """A distortion of vectors (samples, size): cyclic shifts, of parts or along a cycle, scaled.

    order:  the cycle along which entries move (size,); parts: how many of equal size shift
            independently; scaled: whether samples are multiplied by a factor from U[½, 2]
    """

    order: Tensor
    parts: int = 1
    scaled: bool = False

    @classmethod
    def named(cls, name: str, size: int, generator: torch.Generator) -> Distortion:
        """One of `DISTORTIONS`; the generator draws the cycle of `permutation`."""
        check_choice(name, DISTORTIONS, what="distortion")
        order = torch.arange(size)
        if name == "permutation":
            order = torch.randperm(size, generator=generator)
        return cls(order, 2 if name == "two-part" else 1, name == "shift-scale")

    def __call__(self, samples: Tensor, generator: torch.Generator) -> Tensor:
        """Every sample distorted at random."""
        moved = []
        for part in samples[:, self.order].chunk(self.parts, 1):
            length = part.shape[1]
            shift = torch.randint(length, (len(part), 1), generator=generator)
            moved.append(part.gather(1, (torch.arange(length) - shift) % length))
        result = torch.empty_like(samples)
        result[:, self.order] = torch.cat(moved, 1)
        factor = 0.5 + 1.5 * torch.rand(len(samples), 1, generator=generator)
        return result * factor if self.scaled else result

    def distances(self, first: Tensor, second: Tensor) -> Tensor:
        """d* (samples,): between moduli of the Fourier transforms of the parts, along the cycle.

        Where samples are scaled, moduli are brought to unit norm before.
        """
        return (self._moduli(first) - self._moduli(second)).norm(dim=1)

    def _moduli(self, samples: Tensor) -> Tensor:
        parts = samples[:, self.order].chunk(self.parts, 1)
        moduli = torch.cat([torch.fft.fft(part).abs() for part in parts], 1)
        return torch.nn.functional.normalize(moduli) if self.scaled else moduli


def distorted_vectors(
    name: str,
    size: int,
    seed: int,
    *,
    entities: int = 20_000,
    held_out: int = 2000,
    copies: int = 8,
) -> Split:
    """Entities from U[−1, 1]^size, so many distorted copies of each, others held out."""
    generator = torch.Generator().manual_seed(seed)
    distortion = Distortion.named(name, size, generator)
    count = entities + held_out
    vectors = (2 * torch.rand(count, size, generator=generator) - 1).repeat_interleave(copies, 0)
    moved = distortion(vectors, generator)
    numbers = torch.arange(count).repeat_interleave(copies)
    data = LabelledData(moved, numbers, None, f"{name}, {size} features")
    train, test = (_only(data, part) for part in torch.arange(count).split([entities, held_out]))
    note = f"{entities} entities with {copies} distorted samples each, {held_out} more held out"
    return Split(train, test, (note,))


def distorted_triples(
    name: str, size: int, seed: int, *, triples: int = 60_000, held_out: int = 4000
) -> Split:
    """(x, x′, d*) of which half are the same entity, and half are independent.

    Of two parts a third each: the same, the same in one part, independent.
    """
    generator = torch.Generator().manual_seed(seed)
    distortion = Distortion.named(name, size, generator)
    count = triples + held_out
    first, other = 2 * torch.rand(2, count, size, generator=generator) - 1
    kind = torch.randint(1 + distortion.parts, (count, 1), generator=generator)
    in_part = torch.arange(size) // math.ceil(size / distortion.parts)
    second = distortion(torch.where(in_part >= kind, first, other), generator)
    distances = distortion.distances(first, second)
    data = triples_of(
        first, second, distances.where(kind[:, 0] > 0, 0.0), name=f"{name}, {size} features, d*"
    )
    train, test = (data.take(part) for part in torch.arange(count).split([triples, held_out]))
    return Split(train, test, (f"{triples} pairs with their distance, {held_out} more held out",))


def moved_copies(
    samples: Tensor,
    action: Action | FiniteAction,
    copies: int,
    generator: torch.Generator,
    half_widths: Sequence[float] | None = None,
) -> Tensor:
    """Copies (samples, copies, …) of samples (samples, …), each moved by a random element.

    half_widths: of uniform coordinates of an Action, its generators' periods by default, or 1; of a
                 FiniteAction all elements are equally likely, the identity among them
    """
    if isinstance(action, Action):
        widths = half_widths or [
            each.period or 1.0 for each in action.generators for _ in range(each.multiplicity)
        ]
        drawn = 2 * torch.rand(len(samples), copies, len(widths), generator=generator) - 1
        return action.act(drawn * torch.tensor(widths), samples)
    action.check(samples)
    drawn = torch.randint(len(action.elements) + 1, (len(samples), copies), generator=generator)
    moved = samples[:, None].repeat_interleave(copies, 1)
    for index in range(len(action.elements)):
        chosen = drawn == index
        if bool(chosen.any()):
            moved[chosen] = action.move(index, moved[chosen], generator=generator)
    return moved


def turned_digits(
    seed: int, *, copies: int = 8, components: int = 48
) -> tuple[Split, dict[str, str]]:
    """The embedded digits, turned by angles from U[−π, π], in principal components of the training
    copies; and the class of every entity."""
    generator = torch.Generator().manual_seed(seed)
    whole = digits()
    assert whole.test is not None
    classes: dict[str, str] = {}
    flat, names = [], []
    for part, data in (("train", whole.train), ("test", whole.test)):
        turned = moved_copies(data.inputs, affine(("rotation",)), copies, generator)
        flat.append(turned.flatten(0, 1).flatten(1))
        names.append(tuple(f"{part} {index}" for index in range(len(data))))
        classes |= dict(zip(names[-1], map(str, data.targets.tolist()), strict=True))
    mean = flat[0].mean(0)
    covariance = (flat[0] - mean).T.double() @ (flat[0] - mean).double()
    axes = torch.linalg.eigh(covariance).eigenvectors[:, -components:].flip(1).float()
    numbers = [torch.arange(len(own)).repeat_interleave(copies) for own in names]
    train, test = (
        LabelledData((each - mean) @ axes, number, own, "turned digits")
        for each, number, own in zip(flat, numbers, names, strict=True)
    )
    note = f"{components} principal components of digits turned by any angle, {copies} copies each"
    return Split(train, test, (note,)), classes


def demo_data(
    name: str, size: int, seed: int, *, distances: bool = False
) -> tuple[Split, dict[str, str] | None]:
    """Data by name (`DEMOS`), and classes of their entities where they have any.

    size, distances: of all but the digits, features of a vector and whether d* is told
    """
    if name == DIGITS:
        return turned_digits(seed)
    made = distorted_triples if distances else distorted_vectors
    return made(name, size, seed), None
