"""What was learned, taken elsewhere: a law from its JSON, and one drawn element per image.

    augmentation_from_law(json, shape)   the augmentation of a saved run, without its network
    as_torchvision(augmentation)         a v2 transform, for datasets and DataLoaders
    as_kornia(augmentation)              an augmentation of kornia's: masks, boxes, keypoints too

`Augmentation.law()` is the distribution in numbers and names: which generators share one
exponential and in what order they act, the factors of the noise, the probabilities of finite
elements. Names become Actions through the catalogue; generators of the affine group carry their
matrix and need no name. Under the same noise what is rebuilt moves data exactly as the original.

A model averages over several copies of an image, and over all elements of a finite group at once.
A transform in a data pipeline makes one copy, with an element drawn from the same law:

    image  ↦  g(a) g_F … g_1 image        g_i by its probability, a = the ranges' coordinates

Everything that is drawn is one row of numbers per image, (batch, numbers), which replays it:

    one u ~ U[0, 1) for each finite action      element i if u lies in [p_1 + … + p_{i−1},
                                                p_1 + … + p_i), the identity beyond the last
    one u for elements that draw themselves     the seed of their generator, if there are any
    the noise of the ranges                     as the augmentation's own

Matrices are 3×3 and move *content*, in pixels: p_out = M p_in, with (0, 0) the centre of the upper
left pixel, x to the right and y down. With centre c and unit u (half a width in pixels, see
`warp`) the element exp(A) = (L, t) has M = [L, c + u t − L c].

Images should be what the network was trained on: where data were standardised, put the transform
behind the standardisation, because zeros are what comes in at the edges and grey levels are in the
data's own unit. torchvision and kornia are optional and imported when asked for.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isotropy.checks import CallerError, check_axes, check_choice, check_finite, shape_text
from isotropy.networks.averaging.augmentations import (
    Augmentation,
    CorrelatedRanges,
    UniformRanges,
    generator_records,
)
from isotropy.networks.averaging.mixtures import Mixture, NoRanges
from isotropy.symmetry.actions.action import Action, Composition, MatrixGenerator, compose
from isotropy.symmetry.actions.catalogue import actions_named
from isotropy.symmetry.actions.finite import FiniteAction, channel_permutations
from isotropy.symmetry.actions.images import GENERATORS, AffineAction, IntensityAction
from isotropy.symmetry.actions.sequences import sequences
from isotropy.symmetry.actions.warp import half_extent

if TYPE_CHECKING:
    from isotropy.networks.export.kornia_transforms import LearnedAugmentation
    from isotropy.networks.export.torchvision_transforms import LearnedTransform


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
    try:
        return _from_law(law, shape, actions, dtype)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        if isinstance(error, CallerError):
            raise
        raise CallerError(
            f"augmentation law: what it says does not fit together: {error}; restore the file"
        ) from error


def _from_law(
    law: Mapping[str, Any], shape: Sequence[int], actions: Actions | None, dtype: torch.dtype
) -> Augmentation:
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


def _affine_generator(record: Mapping[str, Any]) -> MatrixGenerator:
    known = GENERATORS.get(record["name"])
    first, second = (tuple(float(number) for number in row) for row in record["matrix"])
    matrix = ((first[0], first[1], first[2]), (second[0], second[1], second[2]))
    if known is not None and known.matrix == matrix:
        return known
    return MatrixGenerator(
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


# --- one element per image ----------------------------------------------------------------------


class SingleDraws:
    """One element of a learned law for each image of a batch.

    The augmentation is copied and frozen: what is learned afterwards does not change the transform.
    Noise is drawn on the CPU, where the workers of a DataLoader are seeded; images may be anywhere.
    """

    def __init__(self, augmentation: Augmentation) -> None:
        if not isinstance(augmentation, Augmentation):
            raise CallerError(
                f"augmentation: expected an Augmentation, got {type(augmentation).__name__}; that "
                "of a model is model.augmentation"
            )
        frozen = copy.deepcopy(augmentation).cpu().requires_grad_(False).eval()
        self.finite: tuple[FiniteAction, ...] = ()
        self.probabilities: list[Tensor] = []
        self.ranges: Augmentation = frozen
        if isinstance(frozen, Mixture):
            self.finite = frozen.finite
            self.probabilities = [p.detach() for p in frozen.probabilities]
            self.ranges = frozen.ranges
        if isinstance(self.ranges, Mixture) or self.ranges.copies(1).weights is not None:
            raise CallerError(
                f"augmentation: expected ranges or a Mixture, whose copies can be drawn one by "
                f"one, got {type(self.ranges).__name__} with weights of its own"
            )
        self._random = any(action.is_random for action in self.finite)
        self._placed = copy.deepcopy(self.ranges)  # follows the images from device to device
        self._elements: dict[tuple[int, int, int], list[Tensor]] = {}

    # --- drawing --------------------------------------------------------------------------

    def noise(self, batch: int, *, generator: torch.Generator | None = None) -> Tensor:
        """What is drawn for each of `batch` images, (batch, numbers), on the CPU.

        generator: where from; torch's global generator by default
        """
        ranges = self.ranges.noise(batch, 1, generator=generator)[:, 0]
        count = self._uniforms
        if not count:
            return ranges
        uniforms = torch.rand((batch, count), generator=generator, dtype=ranges.dtype)
        return torch.cat([uniforms, ranges], 1)

    def elements(self, noise: Tensor) -> list[Tensor]:
        """For each finite action the index of each image's element, (batch,); −1: the identity."""
        found = []
        for number, probabilities in enumerate(self.probabilities):
            # Between equal sums there is nothing to hit, so that what has no probability never
            # occurs, whatever the sums were rounded to.
            ends = probabilities.to(noise).cumsum(0)
            index = torch.searchsorted(ends, noise[:, number].contiguous(), right=True)
            found.append(torch.where(index == len(ends), -1, index))
        return found

    def coordinates(self, noise: Tensor) -> Tensor:
        """The coordinates of the continuous part, (batch, coordinates)."""
        return self.ranges.coordinates(noise[:, self._uniforms :].cpu())

    @property
    def _uniforms(self) -> int:
        return len(self.finite) + self._random

    # --- moving ---------------------------------------------------------------------------

    def move(self, data: Tensor, noise: Tensor) -> Tensor:
        """One transformed copy of each of `data` (batch, …), in the same shape."""
        if noise.ndim != 2 or len(noise) != len(data):
            raise CallerError(
                f"noise: expected (batch, numbers) with batch = {len(data)}, got "
                f"{shape_text(noise)}; draw it with noise({len(data)})"
            )
        for action, chosen in zip(self.finite, self.elements(noise), strict=True):
            data = self._move_by(action, chosen, data, noise)
        ranges = self._placed.to(data.device)
        return ranges(data, noise[:, None, self._uniforms :].to(data.device))[:, 0]

    def _move_by(self, action: FiniteAction, chosen: Tensor, data: Tensor, noise: Tensor) -> Tensor:
        moved = data.clone()
        for index in sorted({int(i) for i in chosen.tolist()} - {-1}):
            rows = (chosen == index).nonzero()[:, 0].to(data.device)
            if not action.is_random:
                moved[rows] = action.move(index, data[rows])
                continue
            for row in rows.tolist():
                seed = int(float(noise[row, len(self.finite)]) * 2**32)
                generator = torch.Generator().manual_seed(seed)
                moved[row] = action.move(index, data[row : row + 1], generator=generator)[0]
        return moved

    # --- as matrices ----------------------------------------------------------------------

    def matrix(self, noise: Tensor, shape: tuple[int, int, int]) -> Tensor:
        """How content moves, (batch, 3, 3) in pixels, for images (channels, height, width).

        Brightness, a change of sign and the like leave every pixel where it is: the identity.
        Raises CallerError where some part of the law is not known to be an affine map of pixels.
        """
        shape = (int(shape[0]), int(shape[1]), int(shape[2]))
        if shape not in self._elements:
            identity = torch.eye(3, dtype=torch.float64)
            self._elements[shape] = [
                torch.stack(
                    [*(element_matrix(a, i, shape) for i in range(len(a.elements))), identity]
                )
                for a in self.finite
            ]
        total = action_matrix(self.ranges.action, self.coordinates(noise).double(), shape)
        for table, chosen in reversed(
            list(zip(self._elements[shape], self.elements(noise), strict=True))
        ):
            total = total @ table[chosen.cpu()]  # the identity, −1, is the last of the table
        return total.to(noise)

    def check_matrices(self) -> None:
        """Raise unless the law is one of known maps of the plane, as far as is known early."""
        action_matrix(
            self.ranges.action, torch.zeros(1, self.ranges.action.coordinate_count), (1, 2, 2)
        )
        for action in self.finite:
            _check_not_random(action)


def action_matrix(action: Action, coordinates: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """How an Action's elements move the content of images, (batch, 3, 3) in pixels.

    coordinates (batch, coordinates), shape (channels, height, width).
    """
    identity = torch.eye(3, dtype=coordinates.dtype, device=coordinates.device)
    total = identity.expand(len(coordinates), 3, 3)
    if isinstance(action, NoRanges | IntensityAction):
        return total
    if isinstance(action, AffineAction):
        linear, shift = action.element(coordinates)
        return _in_pixels(linear, shift * half_extent(shape[2], action.align_corners), shape)
    if isinstance(action, Composition):
        parts = coordinates.split([part.coordinate_count for part in action.actions], -1)
        for part, own in zip(action.actions, parts, strict=True):
            total = action_matrix(part, own, shape) @ total
        return total
    raise CallerError(
        f"{', '.join(action.names)}: expected generators that move pixels by affine maps or leave "
        f"them in place, got {type(action).__name__}, which is not known to do either; "
        "as_torchvision needs no matrices"
    )


def element_matrix(action: FiniteAction, index: int, shape: tuple[int, int, int]) -> Tensor:
    """How a finite element moves the content of images, (3, 3) in pixels, float64.

    It is read off what the element does to an image of x, one of y, and two of one grey level each
    (which tell what becomes of values): each pixel of the result says where it came from.
    """
    _check_not_random(action)
    channels, height, width = shape
    if min(height, width) < 2:
        raise CallerError(f"images: expected at least 2×2 pixels, got {height}×{width}")
    x = torch.arange(width, dtype=torch.float64).expand(height, width) - (width - 1) / 2
    y = torch.arange(height, dtype=torch.float64)[:, None].expand(height, width) - (height - 1) / 2
    probes = torch.stack([x, y, torch.zeros_like(x), torch.ones_like(x)])
    moved = action.move(index, probes[:, None].expand(-1, channels, -1, -1).contiguous())
    check_axes(moved, ("batch", "channels", "height", "width"), what=action.name)
    values = moved[2:3]
    came = (moved[:2] - values) / (moved[3:4] - values)  # (2, channels, height, width)
    origin = came[:, 0]
    along_x = (origin[:, 0, -1] - origin[:, 0, 0]) / (width - 1)
    along_y = (origin[:, -1, 0] - origin[:, 0, 0]) / (height - 1)
    linear = torch.stack([along_x, along_y], 1)
    shift = origin[:, 0, 0] - linear @ probes[:2, 0, 0]
    fitted = torch.einsum("ij,jhw->ihw", linear, probes[:2]) + shift[:, None, None]
    error = float((came - fitted[:, None]).abs().max())
    if not error < 1e-9 or not abs(float(linear.det())) > 1e-9:  # a NaN is no map either
        raise CallerError(
            f"{action.elements[index].name}: expected an element that moves all pixels by one "
            "affine map, got one that does not; as_torchvision needs no matrices"
        )
    # An output pixel q shows what was at linear q + shift.
    inverse = linear.inverse()
    return _in_pixels(inverse, -inverse @ shift, shape)


def _in_pixels(linear: Tensor, shift: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """p ↦ linear p + shift about the image's middle, as 3×3 about the upper left pixel's centre."""
    middle = torch.tensor(
        [(shape[2] - 1) / 2, (shape[1] - 1) / 2], dtype=linear.dtype, device=linear.device
    )
    column = middle + shift - linear @ middle
    upper = torch.cat([linear, column[..., None]], -1)
    last = torch.tensor([0.0, 0.0, 1.0], dtype=linear.dtype, device=linear.device)
    return torch.cat([upper, last.expand(*linear.shape[:-2], 1, 3)], -2)


def _check_not_random(action: FiniteAction) -> None:
    if action.is_random:
        raise CallerError(
            f"{action.name}: expected elements that are the same each time, got one that draws by "
            "itself and has no matrix; as_torchvision needs no matrices"
        )


# --- other libraries ----------------------------------------------------------------------------


def as_torchvision(augmentation: Augmentation) -> LearnedTransform:
    """A transform for torchvision.transforms.v2 that draws one element per image.

    >>> transform = as_torchvision(result.model.augmentation)
    >>> image, label = transform(image, label)

    Tensors (channels, height, width), batches of them with independent draws, tv_tensors.Image and
    PIL pictures. Draws come from torch's global generator; `transform.noise` and `transform.move`
    replay them, `transform.matrix` gives them as 3×3 matrices in pixels. The law is copied as it is
    now. Raises CallerError where torchvision is not installed.
    """
    try:
        from isotropy.networks.export.torchvision_transforms import LearnedTransform
    except (ImportError, RuntimeError) as error:  # a torchvision built for another torch
        raise _not_importable("torchvision", "vision", error) from error
    return LearnedTransform(augmentation)


def as_kornia(
    augmentation: Augmentation, *, same_on_batch: bool = False, keepdim: bool = False
) -> LearnedAugmentation:
    """An augmentation for kornia, alone or in an AugmentationSequential.

    >>> both = AugmentationSequential(as_kornia(augmentation), data_keys=["input", "keypoints"])

    Images move as in training; `transform_matrix` is the homography of the drawn element, flips and
    quarter turns included, and moves masks, boxes and keypoints along. Raises CallerError where
    kornia is not installed, and for a law with a part that has no such matrix.
    """
    try:
        from isotropy.networks.export.kornia_transforms import LearnedAugmentation
    except (ImportError, RuntimeError) as error:  # a torchvision built for another torch
        raise _not_importable("kornia", "kornia", error) from error
    return LearnedAugmentation(augmentation, same_on_batch=same_on_batch, keepdim=keepdim)


def _not_importable(library: str, extra: str, error: Exception) -> CallerError:
    return CallerError(
        f"as_{library}: expected {library} to be installed and to suit this torch, got: {error}; "
        f"install it with pip install 'isotropy[{extra}]'"
    )
