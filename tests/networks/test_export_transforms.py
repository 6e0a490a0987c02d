"""A learned law in torchvision's and kornia's hands: the same matrices, the same pixels, the same
probabilities as the model's own, and everything else in a sample where it belongs."""

from __future__ import annotations

import builtins
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import PIL.Image
import pytest
import scipy.linalg
import torch
from torch.utils.data import DataLoader, Dataset
from user_networks import draw, seeded

from isotropy.checks import CallerError
from isotropy.networks.averaging.augmentations import Augmentation, CorrelatedRanges, UniformRanges
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.averaging.mixtures import Mixture, NoRanges, augmentation_over
from isotropy.networks.export.laws import SingleDraws, as_kornia, as_torchvision, element_matrix
from isotropy.symmetry.actions.action import Action, Generator, compose
from isotropy.symmetry.actions.finite import (
    Element,
    FiniteAction,
    MapAction,
    RandomTransform,
    channel_permutations,
    flip,
    quarter_turns,
    sign_change,
)
from isotropy.symmetry.actions.images import affine, intensity

CHANNELS, HEIGHT, WIDTH = SHAPE = (3, 9, 12)
SQUARE = (3, 9, 9)


def six(**options: Any) -> UniformRanges:
    ranges = UniformRanges(affine(**options), dtype=torch.float64)
    with torch.no_grad():
        ranges.half_widths.copy_(torch.tensor([0.3, -0.2, 1.5, 0.3, -0.1, 0.2]))
    return ranges


def correlated() -> CorrelatedRanges:
    factor = 0.6 * draw(6, 6, seed=3) - 0.3
    return CorrelatedRanges(affine(), start=factor, dtype=torch.float64)


def with_elements(*finite: FiniteAction, ranges: Augmentation | None = None) -> Mixture:
    ranges = UniformRanges(NoRanges(), dtype=torch.float64) if ranges is None else ranges
    names = [name for action in finite for name in action.names]
    chances = dict(zip(names, np.linspace(0.3, 0.1, len(names)).tolist(), strict=True))
    return Mixture(ranges, finite, start=chances)


LAWS: dict[str, tuple[Callable[[], Augmentation], tuple[int, int, int]]] = {
    "independent": (six, SHAPE),
    "edges": (lambda: six(align_corners=False, padding="border"), SHAPE),
    "correlated": (correlated, SHAPE),
    "with values": (
        lambda: augmentation_over(
            [intensity(), affine(("rotation", "translation_y"))], start=0.4, dtype=torch.float64
        ),
        SHAPE,
    ),
    "two exponentials": (
        lambda: UniformRanges(
            compose(affine(("translation_x",)), affine(("rotation",))),
            start=0.7,
            dtype=torch.float64,
        ),
        SHAPE,
    ),
    "flips": (lambda: with_elements(flip("horizontal"), flip("vertical")), SHAPE),
    "flip, then ranges": (lambda: with_elements(flip("horizontal"), ranges=six()), SHAPE),
    "turns and signs": (
        lambda: with_elements(quarter_turns(), sign_change(), ranges=correlated()),
        SQUARE,
    ),
    "channels": (lambda: with_elements(channel_permutations(3, [(2, 0, 1)])), SHAPE),
}


def combination(augmentation: Augmentation, draws: SingleDraws, noise: torch.Tensor) -> list[int]:
    """Which of a mixture's combinations of elements each row of noise chose, counted as it does."""
    if not isinstance(augmentation, Mixture):
        return [0] * len(noise)
    number = torch.zeros(len(noise), dtype=torch.long)
    for action, chosen in zip(augmentation.finite, draws.elements(noise), strict=True):
        number = number * (len(action.elements) + 1) + chosen + 1
    return number.tolist()


def moved_by_the_model(
    augmentation: Augmentation, draws: SingleDraws, data: torch.Tensor, noise: torch.Tensor
) -> torch.Tensor:
    """The model's own copy that belongs to each row of a transform's noise."""
    numbers = noise[:, noise.shape[1] - augmentation.noise(1, 1).shape[2] :]
    elements = len(augmentation.element_probabilities()) if isinstance(augmentation, Mixture) else 1
    copies = augmentation(data, numbers[:, None].expand(-1, elements, -1)).detach()
    rows = torch.arange(len(data))
    return copies[rows, torch.tensor(combination(augmentation, draws, noise))]


# --- an oracle for matrices ---------------------------------------------------------------

FINITE_MATRICES = {
    "horizontal": [[-1, 0], [0, 1]],
    "vertical": [[1, 0], [0, -1]],
    "quarter": [[[0, 1], [-1, 0]], [[-1, 0], [0, -1]], [[0, -1], [1, 0]]],
}


def about_the_middle(linear: Any, height: int, width: int, shift: Any = (0.0, 0.0)) -> np.ndarray:
    to_middle = np.array([[1, 0, -(width - 1) / 2], [0, 1, -(height - 1) / 2], [0, 0, 1.0]])
    middle = np.eye(3)
    middle[:2, :2], middle[:2, 2] = linear, shift
    return np.linalg.inv(to_middle) @ middle @ to_middle


def from_the_law(law: dict[str, Any], epsilon: np.ndarray, height: int, width: int) -> np.ndarray:
    """exp(Σ a_k G_k) by scipy, from the numbers of the JSON alone, in pixels."""
    factor = np.array(law["factor"]) if "factor" in law else np.diag(law["noise_factors"])
    coordinates = factor @ epsilon
    amounts = dict(zip([g["name"] for g in law["generators"]], coordinates, strict=True))
    matrices = {g["name"]: g.get("matrix") for g in law["generators"]}
    total = np.eye(3)
    for part in law["actions"]:
        algebra = np.zeros((3, 3))
        for name in part["generators"]:
            if matrices[name] is not None:
                algebra[:2] += amounts[name] * np.array(matrices[name])
        element = scipy.linalg.expm(algebra)
        unit = (width - 1) / 2 if part.get("align_corners", True) else width / 2
        total = about_the_middle(element[:2, :2], height, width, unit * element[:2, 2]) @ total
    return total


@pytest.mark.parametrize(("make", "shape"), LAWS.values(), ids=LAWS)
def test_matrices_are_the_laws(make, shape) -> None:
    augmentation = make()
    draws = SingleDraws(augmentation)
    noise = draws.noise(40, generator=seeded())
    found = draws.matrix(noise, shape)
    height, width = shape[1:]
    finite = augmentation.finite if isinstance(augmentation, Mixture) else ()
    law = augmentation.law()
    law = law["ranges"] if finite else law
    chosen = draws.elements(noise)
    for row in range(len(noise)):
        total = np.eye(3)
        for action, elements in zip(finite, chosen, strict=True):
            index = int(elements[row])
            key = next((key for key in FINITE_MATRICES if key in action.name), None)
            if index >= 0 and key is not None:
                linear = FINITE_MATRICES[key]
                linear = linear[index] if key == "quarter" else linear
                total = about_the_middle(linear, height, width) @ total
        if law is not None:
            epsilon = noise[row, len(finite) :].numpy()
            total = from_the_law(law, epsilon, height, width) @ total
        assert np.abs(found[row].numpy() - total).max() < 1e-10


@pytest.mark.parametrize(("make", "shape"), LAWS.values(), ids=LAWS)
def test_pixels_are_the_models(make, shape) -> None:
    augmentation = make()
    draws = SingleDraws(augmentation)
    noise = draws.noise(20, generator=seeded())
    data = draw(20, *shape)
    moved = draws.move(data, noise)
    assert torch.equal(moved, moved_by_the_model(augmentation, draws, data, noise))
    assert (moved - data).abs().max() > 0.1


def test_content_goes_where_the_matrix_says() -> None:
    """A blob's centre of mass, before and after, against the matrix: direction and units."""
    height, width = 41, 61
    ranges = UniformRanges(
        affine(("rotation", "translation_x", "translation_y", "scale")),
        start={"rotation": 60, "translation_x": 0.1, "translation_y": 0.1, "scale": 0.2},
        dtype=torch.float64,
    )
    draws = SingleDraws(with_elements(flip("horizontal"), flip("vertical"), ranges=ranges))
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    spot = torch.tensor([34.0, 17.0])
    image = torch.exp(-((x - spot[0]) ** 2 + (y - spot[1]) ** 2) / 8).double()
    noise = draws.noise(30, generator=seeded(1))
    moved = draws.move(image.expand(30, 1, -1, -1), noise)[:, 0]
    mass = moved.sum((1, 2))
    centre = torch.stack([(moved * x).sum((1, 2)) / mass, (moved * y).sum((1, 2)) / mass], 1)
    matrices = draws.matrix(noise, (1, height, width))
    expected = matrices[:, :2, :2] @ spot.double() + matrices[:, :2, 2]
    assert (expected - spot).norm(dim=1).max() > 10
    assert (centre - expected).abs().max() < 0.05


# --- the law itself -----------------------------------------------------------------------


@pytest.mark.parametrize("make", [six, correlated], ids=["independent", "correlated"])
def test_ranges_are_kept_and_correlations_are_met(make) -> None:
    ranges = make()
    draws = SingleDraws(ranges)
    count = 20_000
    coordinates = draws.coordinates(draws.noise(count, generator=seeded()))
    widths = ranges.half_widths.detach().abs()
    reached = coordinates.abs().amax(0)
    assert bool((reached <= widths + 1e-12).all())
    assert bool((reached > 0.6 * widths).all())
    law = ranges.law()
    factor = torch.tensor(law["factor"]) if "factor" in law else torch.diag(widths)
    covariance = (factor @ factor.mT / 3).double()
    scale = covariance.diagonal().sqrt()
    found = torch.cov(coordinates.mT) / (scale[:, None] * scale)
    wanted = covariance / (scale[:, None] * scale)
    assert (found - wanted).abs().max() < 5 / math.sqrt(count)
    if "correlations" in law:
        assert (wanted - torch.tensor(law["correlations"])).abs().max() < 1e-6


def test_elements_come_by_their_probabilities() -> None:
    mixture = with_elements(quarter_turns(), flip("horizontal"))
    draws = SingleDraws(mixture)
    count = 20_000
    noise = draws.noise(count, generator=seeded())
    numbers = torch.tensor(combination(mixture, draws, noise))
    wanted = mixture.element_probabilities().detach()
    found = torch.bincount(numbers, minlength=len(wanted)) / count
    assert bool(((found - wanted).abs() < 5 * (wanted * (1 - wanted) / count).sqrt()).all())


def test_what_has_no_probability_never_comes() -> None:
    mixture = with_elements(quarter_turns())
    with torch.no_grad():
        mixture.probabilities[0].copy_(torch.tensor([0.0, 0.3, 0.0], dtype=torch.float64))
    draws = SingleDraws(mixture)
    edges = torch.tensor([0.0, 0.29999, 0.3, 0.5, 1 - 2**-53], dtype=torch.float64)[:, None]
    assert draws.elements(edges)[0].tolist() == [1, 1, -1, -1, -1]


def test_transform_is_a_copy_of_the_law() -> None:
    ranges = six()
    draws = SingleDraws(ranges)
    noise = draws.noise(3, generator=seeded())
    before = draws.matrix(noise, SHAPE)
    with torch.no_grad():
        ranges.half_widths.mul_(2)
    assert torch.equal(draws.matrix(noise, SHAPE), before)
    assert ranges.half_widths.requires_grad


def test_elements_that_draw_replay_and_differ() -> None:
    haze = RandomTransform(lambda images: images + torch.rand(len(images), 1, 1, 1), "haze")
    draws = SingleDraws(Mixture(six(), [haze], start={"haze": 1.0}))
    noise = draws.noise(4, generator=seeded())
    noise[:, 2:] = 0  # ranges of zero: only the haze is left
    data = torch.zeros(4, *SHAPE, dtype=torch.float64)
    moved = draws.move(data, noise)
    assert torch.equal(draws.move(data, noise), moved)
    assert len(set(moved[:, 0, 0, 0].tolist())) == 4
    with pytest.raises(CallerError, match="haze: .*draws by itself"):
        draws.matrix(noise, SHAPE)


def own(function: Callable[[torch.Tensor], torch.Tensor]) -> FiniteAction:
    return MapAction("own", {Element("own"): function})


def test_matrix_of_an_own_element_is_read_off() -> None:
    transposed = element_matrix(own(lambda images: images.mT), 0, SQUARE)
    assert transposed.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    negative = element_matrix(own(lambda images: 1 - images), 0, SHAPE)
    assert torch.equal(negative, torch.eye(3, dtype=torch.float64))


NO_MAPS = {
    "columns exchanged": lambda images: images[..., [0, 2, 1, *range(3, images.shape[-1])]],
    "nothing left": torch.zeros_like,
    "one channel turned": lambda images: torch.cat([images[:, :1].flip(-1), images[:, 1:]], 1),
    "rounded": lambda images: images.round(),
}


@pytest.mark.parametrize("function", NO_MAPS.values(), ids=NO_MAPS)
def test_elements_without_a_matrix_are_refused(function) -> None:
    with pytest.raises(CallerError, match="own: expected an element that moves all pixels by one"):
        element_matrix(own(function), 0, SHAPE)


class Tint(Action):
    generators = (Generator("tint", "grey level"),)

    def act(self, coordinates, data):
        return data[:, None] + coordinates[..., 0, None, None, None]


def test_mistakes_are_named() -> None:
    with pytest.raises(CallerError, match="got InvariantModel; .*model.augmentation"):
        SingleDraws(InvariantModel(torch.nn.Identity(), six()))
    with pytest.raises(CallerError, match="got Mixture with weights"):
        SingleDraws(with_elements(flip("vertical"), ranges=with_elements(flip("horizontal"))))
    draws = SingleDraws(UniformRanges(Tint()))
    with pytest.raises(CallerError, match=r"tint: .*got Tint"):
        draws.matrix(draws.noise(1), SHAPE)
    with pytest.raises(CallerError, match=r"batch = 2, got \(3, 1\)"):
        draws.move(draw(2, *SHAPE), draws.noise(3))
    turns = SingleDraws(with_elements(quarter_turns()))
    with pytest.raises(CallerError, match="as many rows as columns"):
        turns.matrix(turns.noise(1), SHAPE)


@pytest.mark.parametrize(
    ("function", "library", "extra"),
    [(as_torchvision, "torchvision", "vision"), (as_kornia, "kornia", "kornia")],
)
def test_missing_libraries_are_named(monkeypatch, function, library, extra) -> None:
    true_import = builtins.__import__

    def refuse(name: str, *arguments: Any, **named: Any) -> Any:
        if name.split(".")[0] == "isotropy" and name.endswith(f"{library}_transforms"):
            raise ModuleNotFoundError(f"No module named {library!r}", name=library)
        return true_import(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(CallerError, match=rf"No module named '{library}'.*isotropy\[{extra}\]"):
        function(six())


# --- torchvision --------------------------------------------------------------------------


def replayed(transform: Any, *inputs: Any, seed: int = 3) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return transform(*inputs)


def noise_of(transform: Any, batch: int, seed: int = 3) -> torch.Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return transform.noise(batch)


@pytest.mark.usefixtures("torchvision_imports")
class TestTorchvision:
    @pytest.mark.parametrize(("make", "shape"), LAWS.values(), ids=LAWS)
    def test_batches_are_moved_as_by_the_model(self, make, shape) -> None:
        augmentation = make()
        transform = as_torchvision(augmentation)
        data = draw(6, *shape)
        noise = noise_of(transform, 6)
        expected = moved_by_the_model(augmentation, transform.draws, data, noise)
        assert torch.equal(replayed(transform, data), expected)

    def test_one_image_is_a_batch_of_one(self) -> None:
        transform = as_torchvision(six())
        data = draw(1, *SHAPE)
        assert torch.equal(replayed(transform, data[0]), replayed(transform, data)[0])

    def test_matrix_is_in_pixels_of_the_image(self) -> None:
        transform = as_torchvision(six())
        noise = transform.noise(3, generator=seeded())
        expected = SingleDraws(six()).matrix(noise, SHAPE)
        assert torch.equal(transform.matrix(noise, (HEIGHT, WIDTH)), expected)

    def test_labels_pass(self) -> None:
        transform = as_torchvision(six())
        image, label = draw(*SHAPE), torch.tensor(7)
        moved, other = replayed(transform, image, label)
        assert other is label
        assert torch.equal(moved, replayed(transform, image))
        nested = replayed(transform, {"picture": image, "label": 7, "name": "seven"})
        assert torch.equal(nested["picture"], moved)
        assert (nested["label"], nested["name"]) == (7, "seven")

    def test_images_of_one_sample_move_together(self) -> None:
        from torchvision import tv_tensors

        left, right = (tv_tensors.Image(draw(*SHAPE, seed=seed)) for seed in (0, 1))
        transform = as_torchvision(six())
        moved = replayed(transform, left, right)
        assert all(isinstance(image, tv_tensors.Image) for image in moved)
        for found, image in zip(moved, (left, right), strict=True):
            expected = replayed(transform, image.as_subclass(torch.Tensor))
            assert torch.equal(found.as_subclass(torch.Tensor), expected)
        with pytest.raises(CallerError, match=r"equally many in one call, got \[1, 2\]"):
            transform(left, tv_tensors.Image(draw(2, *SHAPE)))

    @pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
    def test_pictures_and_bytes(self, mode) -> None:
        channels = len(mode)
        transform = as_torchvision(
            with_elements(flip("horizontal"), ranges=UniformRanges(affine(("rotation",))))
        )
        data = (draw(channels, HEIGHT, WIDTH) * 255).round().to(torch.uint8)
        array = data.movedim(0, -1).numpy()
        picture = PIL.Image.fromarray(array[..., 0] if mode == "L" else array, mode)
        moved = replayed(transform, picture)
        assert (moved.mode, moved.size) == (mode, (WIDTH, HEIGHT))
        as_bytes = replayed(transform, data)
        assert as_bytes.dtype == torch.uint8
        found = np.asarray(moved).reshape(HEIGHT, WIDTH, channels)
        assert np.array_equal(found, as_bytes.movedim(0, -1).numpy())
        smooth = replayed(transform, data.float() / 255) * 255
        assert (as_bytes - smooth).abs().max() <= 0.5001

    def test_values_beyond_white_are_cut_and_do_not_wrap(self) -> None:
        bright = UniformRanges(intensity(("brightness",)), start={"brightness": 5})
        transform = as_torchvision(bright)
        moved = replayed(transform, torch.full((8, 1, 2, 2), 128, dtype=torch.uint8))
        wanted = (128 + 255 * 5 * noise_of(transform, 8)[:, 0]).round().clamp(0, 255)
        assert torch.equal(moved, wanted[:, None, None, None].expand(8, 1, 2, 2).to(torch.uint8))
        assert {0, 255} <= set(moved.unique().tolist())

    def test_palettes_and_boxes_are_refused(self) -> None:
        from torchvision import tv_tensors

        transform = as_torchvision(six())
        with pytest.raises(CallerError, match="got 'P'; convert"):
            transform(PIL.Image.new("P", (WIDTH, HEIGHT)))
        image = tv_tensors.Image(draw(*SHAPE))
        boxes = tv_tensors.BoundingBoxes([[0, 0, 3, 3]], format="XYXY", canvas_size=SHAPE[1:])
        for value in (boxes, tv_tensors.Mask(torch.zeros(SHAPE[1:]))):
            with pytest.raises(CallerError, match=f"{type(value).__name__}.*as_kornia"):
                transform(image, value)
        with pytest.raises(CallerError, match=r"got \(9, 12\); add a channel axis"):
            transform(draw(HEIGHT, WIDTH))

    def test_composes_and_is_pickled(self) -> None:
        from torchvision.transforms import v2

        for make, shape in LAWS.values():
            transform = as_torchvision(make())
            again = pickle.loads(pickle.dumps(transform))
            data = draw(4, *shape)
            expected = replayed(transform, data)
            assert torch.equal(replayed(again, data), expected)
            assert torch.equal(replayed(v2.Compose([transform, v2.Identity()]), data), expected)
        assert repr(as_torchvision(six())).startswith("LearnedTransform(independent: translation_x")

    def test_workers_of_a_loader_are_seeded(self) -> None:
        class Same(Dataset[torch.Tensor]):
            def __init__(self, transform: Any) -> None:
                self.transform = transform

            def __len__(self) -> int:
                return 4

            def __getitem__(self, index: int) -> torch.Tensor:
                return self.transform(draw(1, 5, 5))

        def epoch(seed: int) -> torch.Tensor:
            loader = DataLoader(
                Same(as_torchvision(six())), num_workers=2, generator=seeded(seed), batch_size=2
            )
            return torch.cat(list(loader))

        first = epoch(0)
        assert torch.equal(epoch(0), first)
        assert not torch.equal(epoch(1), first)
        assert len({tuple(image.flatten().tolist()) for image in first}) == 4

    def test_gradients_reach_the_images(self) -> None:
        data = draw(2, *SHAPE).requires_grad_()
        replayed(
            as_torchvision(with_elements(flip("horizontal"), ranges=six())), data
        ).sum().backward()
        assert data.grad is not None and data.grad.abs().max() > 0


# --- kornia -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kornia(torchvision_imports: None) -> Any:
    return pytest.importorskip("kornia")


class TestKornia:
    @pytest.mark.parametrize(("make", "shape"), LAWS.values(), ids=LAWS)
    def test_pixels_and_matrices_are_the_models(self, kornia, make, shape) -> None:
        augmentation = make()
        transform = as_kornia(augmentation)
        assert isinstance(transform, kornia.augmentation.GeometricAugmentationBase2D)
        data = draw(6, *shape)
        noise = noise_of(transform, 6)
        found = replayed(transform, data)
        expected = moved_by_the_model(augmentation, transform.draws, data, noise)
        assert torch.equal(found, expected)
        matrices = SingleDraws(augmentation).matrix(noise, shape)
        assert (transform.transform_matrix - matrices).abs().max() < 1e-12
        assert torch.equal(transform(data, params=transform._params), found)

    @pytest.mark.parametrize("name", ["independent", "correlated", "flips", "flip, then ranges"])
    def test_its_own_warp_by_our_matrix_gives_our_pixels(self, kornia, name) -> None:
        make, shape = LAWS[name]
        transform = as_kornia(make())
        data = draw(6, *shape)
        found = replayed(transform, data)
        warped = kornia.geometry.transform.warp_affine(
            data, transform.transform_matrix[:, :2], shape[1:], align_corners=True
        )
        # Exactly at the edge, where a rounding decides whether a pixel is inside, they may differ.
        difference = (found - warped).abs()
        assert (difference > 1e-9).double().mean() < 0.001

    def test_the_mean_colour_is_refused(self, kornia) -> None:
        with pytest.raises(CallerError, match="padding zeros, border or reflection, got 'mean'"):
            as_kornia(six(padding="mean", fill=[0.2, 0.4, 0.6]))

    def test_keypoints_boxes_and_masks_move_along(self, kornia) -> None:
        mixture = with_elements(flip("horizontal"), flip("vertical"))
        sequence = kornia.augmentation.AugmentationSequential(
            as_kornia(mixture), data_keys=["input", "mask", "keypoints", "bbox_xyxy"]
        )
        batch, (channels, height, width) = 8, SHAPE
        images = draw(batch, channels, height, width)
        masks = (images[:, :1] > 0.5).to(images)
        spots = torch.tensor([[2.0, 3.0], [7.0, 1.0]], dtype=torch.float64).expand(batch, 2, 2)
        boxes = torch.tensor([[1.0, 2.0, 4.0, 5.0]], dtype=torch.float64).expand(batch, 1, 4)
        outputs = replayed(sequence, images, masks, spots.clone(), boxes.clone())
        moved, moved_masks, moved_spots, moved_boxes = outputs
        assert torch.equal(moved_masks, (moved[:, :1] > 0.5).to(images))
        for row in range(batch):
            for before, after in zip(
                spots[row].long(), moved_spots[row].round().long(), strict=True
            ):
                x, y = after.tolist()
                assert torch.equal(moved[row, :, y, x], images[row, :, before[1], before[0]])
        matrices = sequence.transform_matrix
        assert not torch.equal(matrices, torch.eye(3).expand_as(matrices).to(matrices))
        corners = torch.tensor([[1.0, 2.0], [4.0, 5.0]], dtype=torch.float64)
        mapped = corners @ matrices[:, :2, :2].mT + matrices[:, None, :2, 2]
        wanted = torch.cat([mapped.amin(1), mapped.amax(1)], 1)
        assert (moved_boxes[:, 0] - wanted).abs().max() < 1e-9

    def test_masks_keep_their_labels_and_values(self, kornia) -> None:
        """Under rotations too a mask has only its own numbers, and brightness does not reach it."""
        augmentation = augmentation_over(
            [
                affine(("rotation",)),
                intensity(("brightness",)),
                channel_permutations(3, [(1, 0, 2)]),
            ],
            start=0.5,
            dtype=torch.float64,
        )
        sequence = kornia.augmentation.AugmentationSequential(
            as_kornia(augmentation), data_keys=["input", "mask"]
        )
        masks = torch.full((6, 1, HEIGHT, WIDTH), 3.0, dtype=torch.float64)
        masks[..., :4] = 7
        moved, found = replayed(sequence, draw(6, *SHAPE), masks)
        assert set(found.unique().tolist()) <= {0.0, 3.0, 7.0}
        assert not torch.equal(found, masks)
        middle = kornia.geometry.transform.warp_affine(
            masks, sequence.transform_matrix[:, :2], (HEIGHT, WIDTH), mode="nearest",
            align_corners=True,
        )  # fmt: skip
        assert torch.equal(found, middle)
        assert moved.shape == (6, *SHAPE)

    def test_it_follows_and_is_followed(self, kornia) -> None:
        """In a sequence matrices multiply, and the inverse of flips is exact."""
        first, second = (
            as_kornia(with_elements(flip("horizontal"), flip("vertical"))) for _ in range(2)
        )
        sequence = kornia.augmentation.AugmentationSequential(first, second, data_keys=["input"])
        images = draw(5, *SHAPE)
        moved = replayed(sequence, images)
        product = second.transform_matrix @ first.transform_matrix
        assert (sequence.transform_matrix - product).abs().max() < 1e-12
        assert not torch.equal(moved, images)
        assert (sequence.inverse(moved) - images).abs().max() < 1e-9

    def test_one_draw_for_a_batch_and_one_image(self, kornia) -> None:
        data = draw(1, *SHAPE).expand(4, -1, -1, -1)
        transform = as_kornia(six(), same_on_batch=True)
        moved = replayed(transform, data)
        assert all(torch.equal(image, moved[0]) for image in moved)
        assert not torch.equal(moved, data)
        assert replayed(as_kornia(six(), keepdim=True), data[0]).shape == SHAPE
        assert replayed(as_kornia(six()), data[0]).shape == (1, *SHAPE)

    def test_single_precision_and_pickle(self, kornia) -> None:
        transform = pickle.loads(pickle.dumps(as_kornia(UniformRanges(affine(), start=0.3))))
        data = draw(3, *SHAPE, dtype=torch.float32)
        moved = replayed(transform, data)
        assert moved.dtype == transform.transform_matrix.dtype == torch.float32
        warped = kornia.geometry.transform.warp_affine(
            data, transform.transform_matrix[:, :2], SHAPE[1:], align_corners=True
        )
        assert (moved - warped).abs().max() < 1e-4

    def test_laws_without_matrices_are_refused(self, kornia) -> None:
        with pytest.raises(CallerError, match="tint: expected generators that move pixels"):
            as_kornia(UniformRanges(Tint()))
        haze = RandomTransform(torch.abs, "haze")
        with pytest.raises(CallerError, match="haze: .*draws by itself"):
            as_kornia(augmentation_over(haze))
