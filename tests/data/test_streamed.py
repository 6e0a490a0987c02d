"""Streamed data: examples by their numbers as read whole, whatever they come from."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from stream_cases import (
    Columns,
    EndlessColumns,
    Items,
    as_json,
    examples,
    npy,
    png,
    shard,
    shards,
)
from torch.utils.data import Dataset, IterableDataset

import isotropy
from isotropy.checks import CallerError
from isotropy.data.readers import read
from isotropy.data.streams import streamed as module
from isotropy.data.streams.shards import shard_paths
from isotropy.data.streams.streamed import StreamedData, held, streamed
from isotropy.data.variants import vary

RANDOM = np.random.default_rng(0)
GREY = RANDOM.integers(0, 256, (30, 6, 5), dtype=np.uint8)
COLOURS = RANDOM.integers(0, 256, (30, 6, 5, 3), dtype=np.uint8)
LABELS = [int(each) for each in np.arange(30) % 3]


def assert_one_sentence(error: CallerError, words: str) -> None:
    text = str(error)
    assert words in text and "\n" not in text and len(text) < 500 and ";" in text


def pictures(images: np.ndarray) -> list[Image.Image]:
    return [Image.fromarray(each) for each in images]


CASES: dict[str, Items] = {
    "floats": Items(torch.rand(30, 1, 6, 5), LABELS),
    "bytes": Items(torch.from_numpy(GREY)[:, None], torch.tensor(LABELS)),
    "bytes without channels": Items(torch.from_numpy(GREY), LABELS),
    "channels last": Items(COLOURS, LABELS),
    "pictures": Items(pictures(COLOURS), LABELS, classes=["a", "b", "c", "d"]),
    "names": Items(torch.rand(30, 4), [("cat", "dog", "eel")[each] for each in LABELS]),
    "one-hot": Items(torch.rand(30, 4), torch.eye(3)[torch.tensor(LABELS)]),
    "regression": Items(torch.rand(30, 4), torch.rand(30)),
    "several outputs": Items(torch.rand(30, 4), torch.rand(30, 2)),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("items", CASES.values(), ids=CASES)
def test_batches_are_rows_of_the_data_in_memory(items: Items, workers: int) -> None:
    whole = read(items, hold_out_fraction=0.0)
    data = streamed(items, workers=workers, sample=12)
    assert len(data) == 30 and len(data.inputs) == 12 and not data.is_whole
    assert data.classes == whole.train.classes and data.num_outputs == whole.train.num_outputs
    assert set(data.notes) <= set(whole.notes)
    batches = [torch.tensor([3, 29, 0]), torch.tensor([], dtype=torch.int64), torch.arange(30)]
    found = list(data.read(iter(batches)))
    for batch, (inputs, targets) in zip(batches, found, strict=True):
        assert torch.equal(inputs, whole.train.inputs[batch])
        assert torch.equal(targets, whole.train.targets[batch])


def test_the_sample_is_spread_evenly_or_whole() -> None:
    numbers = torch.arange(30.0)[:, None]
    found = streamed(Items(numbers, LABELS), workers=0, sample=10).inputs[:, 0]
    assert torch.equal(found.div(3, rounding_mode="floor"), torch.arange(10.0))
    # The labels of this one repeat at the distance of even places.
    assert len(streamed(Items(numbers, LABELS), workers=0, sample=10).targets.unique()) == 3
    items = CASES["floats"]
    whole = streamed(items, workers=0)
    assert whole.is_whole and torch.equal(whole.inputs, items.inputs)


def test_a_sample_is_bounded_in_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLE_BYTES", 4 * 30 * 12)
    assert len(streamed(CASES["floats"], workers=0).inputs) == 12


def test_parts() -> None:
    items = CASES["floats"]
    whole = read(items, hold_out_fraction=0.0).train
    data = streamed(items, workers=0, sample=8)
    few = data.subset(5, 1)
    assert not isinstance(few, StreamedData) and torch.equal(few.inputs, whole.subset(5, 1).inputs)
    many = data.subset(20, 1)
    assert isinstance(many, StreamedData) and len(many) == 20 and len(many.inputs) == 8
    again = many.part(torch.tensor([19, 2]))
    assert torch.equal(again.inputs, whole.subset(20, 1).inputs[[19, 2]])
    assert torch.equal(many.in_memory().inputs, whole.subset(20, 1).inputs)
    doubled = many.mapped(lambda inputs: 2 * inputs)
    assert torch.equal(doubled.in_memory().inputs, 2 * many.in_memory().inputs)
    assert torch.equal(doubled.inputs, 2 * many.inputs)


def test_images_are_resized_as_in_memory() -> None:
    items = CASES["bytes"]
    whole = read(items, image_size=4, hold_out_fraction=0.0).train
    data = read(streamed(items, workers=0, sample=8), image_size=4, hold_out_fraction=0.0).train
    assert isinstance(data, StreamedData) and data.inputs.shape == (8, 1, 4, 4)
    assert torch.equal(data.in_memory().inputs, whole.inputs)


def test_reading_draws_nothing_from_torch() -> None:
    before = torch.get_rng_state()
    data = streamed(CASES["floats"], workers=1, sample=12)
    list(data.read([torch.arange(3)]))
    assert torch.equal(before, torch.get_rng_state())


def test_examples_are_read_when_they_are_asked_for() -> None:
    items = Items(torch.rand(30, 4), LABELS)
    data = streamed(items, workers=0, sample=12)
    items.asked.clear()
    reading = data.read(batch for batch in torch.arange(30).split(3))
    next(reading)
    assert items.asked == [0, 1, 2]


# --- what is streamed -----------------------------------------------------------------------


def test_what_takes_much_memory_is_streamed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = shards(tmp_path, GREY, LABELS)
    assert not isinstance(read(CASES["bytes"]).train, StreamedData)
    assert not isinstance(read(folder).train, StreamedData)
    monkeypatch.setattr(module, "usable_memory", lambda: 4 * 30 * 30 * 4 - 1)
    split = read(CASES["bytes"], hold_out_fraction=0.0)
    assert isinstance(split.train, StreamedData)
    assert any("read while they are used" in note for note in split.notes)
    assert isinstance(read(folder).train, StreamedData)
    pair = (torch.from_numpy(GREY)[:, None], torch.tensor(LABELS))
    assert not isinstance(read(pair).train, StreamedData)  # it is in memory already


def test_other_verbs_have_the_sample_and_say_so() -> None:
    split = held(read(streamed(CASES["bytes"], workers=0, sample=12), hold_out_fraction=0.0))
    assert not isinstance(split.train, StreamedData) and len(split.train) == 12
    assert "a sample of 12 of 30 examples" in split.notes[-1]
    data = streamed(Items(torch.rand(30, 1, 6, 6), LABELS), workers=0, sample=12)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 3))
    config = isotropy.LearnConfig(epochs=1, samples=1, batch_size=12)
    assert isotropy.screen(network, data, config=config).record["train_examples"] == 12
    isotropy.measure(network, data, actions=isotropy.affine(("rotation",)))


def test_a_large_test_set_is_a_sample() -> None:
    test = streamed(CASES["bytes"], workers=0, sample=6)
    split = read(CASES["bytes"], test)
    assert split.test is not None and len(split.test) == 6
    assert any("6 of 30 test examples are scored" in note for note in split.notes)


def test_as_many_are_held_out_as_in_memory(tmp_path: Path) -> None:
    folder = shards(tmp_path / "shards", GREY, LABELS)
    np.savez(tmp_path / "grey.npz", x=GREY, y=LABELS)
    whole = read(tmp_path / "grey.npz", seed=3)
    split = read(streamed(folder, workers=0), seed=3)
    assert isinstance(split.train, StreamedData) and split.test is not None
    assert torch.equal(split.train.in_memory().inputs, whole.train.inputs)
    assert torch.equal(split.train.in_memory().targets, whole.train.targets)
    assert whole.test is not None and torch.equal(split.test.inputs, whole.test.inputs)
    limited = read(streamed(folder, workers=0, sample=4), seed=3)
    assert limited.test is not None and len(limited.test) == 4 and len(limited.train) == 26


# --- tar shards -----------------------------------------------------------------------------


def test_shards_are_examples_in_their_order(tmp_path: Path) -> None:
    folder = shards(tmp_path / "shards", GREY, LABELS)
    (folder / "notes.txt").write_text("not a shard")
    data = streamed(folder, workers=0, sample=4)
    whole = read((GREY, LABELS), hold_out_fraction=0.0).train
    assert data.name == "shards"
    assert torch.equal(data.in_memory().inputs, whole.inputs)
    assert torch.equal(data.in_memory().targets, whole.targets)
    assert data.known_targets is not None and torch.equal(data.known_targets, whole.targets)
    assert torch.equal(read(folder, hold_out_fraction=0.0).train.inputs, whole.inputs)


@pytest.mark.parametrize(
    ("pattern", "numbers"),
    [
        ("shard-{001..002}.tar", [1, 2]),
        ("shard-{000,002}.tar", [0, 2]),
        ("shard-*.tar", [0, 1, 2]),
        ("shard-00[12].tar", [1, 2]),
        ("shard-001.tar", [1]),
        ("", [0, 1, 2]),
    ],
)
def test_patterns_of_shards(pattern: str, numbers: list[int], tmp_path: Path) -> None:
    shards(tmp_path, GREY, LABELS)
    found = shard_paths(tmp_path / pattern)
    assert found == [tmp_path / f"shard-{number:03}.tar" for number in numbers]
    assert len(read(str(tmp_path / pattern), hold_out_fraction=0.0).train) == 10 * len(numbers)


def test_labels_of_shards(tmp_path: Path) -> None:
    image = png(GREY[0])
    files = [
        *(("./a/1.png", image), ("./a/1.json", as_json({"label": "dog", "size": 3}))),
        *(("./a/2.jpg", image), ("./a/2.txt", b"a caption"), ("./a/2.cls", b"cat\n")),
        *(("./a/.3.png", b"resource fork"), ("./b/3.png", image), ("./b/3.txt", b"dog")),
        *(("./b/4.seg.png", image), ("./b/4.png", image), ("./b/4.json", as_json("eel"))),
    ]
    data = streamed(shard(tmp_path / "four.tar", files), workers=0)
    assert data.classes == ("cat", "dog", "eel") and data.targets.tolist() == [1, 0, 1, 2]
    values = [RANDOM.random((3, 4)).astype(np.float32) for _ in range(4)]
    numbers = [("0.npy", npy(values[0])), ("0.cls", b"0.5"), ("1.npy", npy(values[1]))]
    numbers += [("1.cls", b"1e-1"), ("2.npy", npy(values[2])), ("2.json", b"2.5")]
    regression = streamed(shard(tmp_path / "numbers.tar", numbers), workers=0, layout="clouds")
    assert regression.targets[:, 0].tolist() == pytest.approx([0.5, 0.1, 2.5])
    assert torch.equal(regression.inputs, torch.from_numpy(np.stack(values[:3])))
    test = shard(tmp_path / "test.tar", [("1.png", image), ("1.cls", b"eel")])
    assert streamed(test, workers=0, reference=data).targets.tolist() == [2]


def test_pictures_of_shards_get_one_size_and_colour(tmp_path: Path) -> None:
    large = RANDOM.integers(0, 256, (90, 70, 3), dtype=np.uint8)
    files = examples(GREY[:1], [0]) + examples(large[None], [1], 1) + examples(GREY[2:3], [0], 2)
    path = shard(tmp_path / "mixed.tar", files)
    with pytest.raises(CallerError, match="at item 1; .*--image-size"):
        streamed(path, workers=0)
    data = streamed(path, workers=0, image_size=8)
    assert data.inputs.shape == (3, 3, 8, 8)
    assert torch.equal(data.inputs[0, 0], data.inputs[0, 1])  # grey as colour
    first = shard(tmp_path / "large.tar", examples(np.stack([large, large]), [0, 1]))
    assert streamed(first, workers=0, image_size="auto").inputs.shape == (2, 3, 32, 32)


def damaged(path: Path, start: int, content: bytes) -> Path:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(content)
    return path


def truncated(path: Path, size: int) -> Path:
    with path.open("r+b") as file:
        file.truncate(size)
    return path


def packed(path: Path) -> Path:
    whole = path.with_suffix(".tar.gz")
    whole.write_bytes(gzip.compress(path.read_bytes()))
    return whole


IMAGE = png(GREY[0])
WRONG_SHARDS: dict[str, tuple[Any, str]] = {
    "no label": (lambda p: shard(p, [("1.png", IMAGE), ("2.png", IMAGE)]), "a label beside 1.png"),
    "labels at the end": (
        lambda p: shard(p, [("1.png", IMAGE), ("2.png", IMAGE), ("1.cls", b"0"), ("2.cls", b"1")]),
        "one after the other",
    ),
    "an empty label": (
        lambda p: shard(p, [("1.png", IMAGE), ("1.cls", b" ")]),
        "1.cls: expected a",
    ),
    "no entry": (lambda p: shard(p, [("1.png", IMAGE), ("1.json", b'{"id": 3}')]), "the entry"),
    "no JSON": (lambda p: shard(p, [("1.png", IMAGE), ("1.json", b"{")]), "expected a label in"),
    "no examples": (lambda p: shard(p, [("readme.txt", b"nothing")]), "without any"),
    "no picture": (
        lambda p: shard(
            p, [("1.png", b"text"), ("1.cls", b"0"), ("2.png", IMAGE), ("2.cls", b"1")]
        ),
        "example 0: expected a picture or an array, got a file that is damaged",
    ),
    "a picture cut off": (
        lambda p: shard(p, [*examples(GREY[:1], [0]), ("2.png", IMAGE[:-40]), ("2.cls", b"1")]),
        "example 1: expected a picture",
    ),
    "a header damaged": (
        lambda p: damaged(shard(p, examples(GREY[:3], LABELS[:3])), 2048, b"x" * 512),
        "damaged one",
    ),
    "cut off": (lambda p: truncated(shard(p, examples(GREY[:3], LABELS[:3])), 2600), "damaged one"),
    "no tar": (lambda p: (p.write_bytes(b"x" * 2000), p)[1], "damaged one"),
    "packed": (lambda p: packed(shard(p, examples(GREY[:3], LABELS[:3]))), "not compressed"),
    "a pattern of nothing": (lambda p: p.with_name("s-{0..3}.tar"), "found nothing"),
}


@pytest.mark.parametrize(("make", "words"), WRONG_SHARDS.values(), ids=WRONG_SHARDS)
def test_shards_that_are_refused(make: Any, words: str, tmp_path: Path) -> None:
    source = make(tmp_path / "one.tar")
    with pytest.raises(CallerError) as caught:
        read(str(source), hold_out_fraction=0.0)
    assert_one_sentence(caught.value, words)
    assert str(tmp_path) in str(caught.value)


def test_a_shard_that_disappears_is_named(tmp_path: Path) -> None:
    data = streamed(shards(tmp_path, GREY, LABELS), workers=0, sample=4)
    (tmp_path / "shard-001.tar").unlink()
    with pytest.raises(CallerError, match=r"shard-001\.tar: expected to read it"):
        list(data.read([torch.arange(30)]))


# --- Hugging Face ---------------------------------------------------------------------------


def test_data_sets_of_hugging_face(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"label": ["a", "b", "c"]}
    images = pictures(GREY)
    columns = Columns(names, image=images, number=list(range(30)), label=LABELS)
    whole = read(columns, hold_out_fraction=0.0).train
    assert whole.classes == ("a", "b", "c") and not isinstance(whole, StreamedData)
    data = streamed(columns, workers=0, sample=4)
    assert data.classes == whole.classes
    assert torch.equal(data.in_memory().inputs, whole.inputs)
    assert torch.equal(data.in_memory().targets, whole.targets)
    monkeypatch.setattr(module, "usable_memory", lambda: 4)
    large = read(columns, hold_out_fraction=0.0).train
    assert isinstance(large, StreamedData) and torch.equal(large.inputs, whole.inputs)
    arrays = Columns(values=[each.tolist() for each in torch.rand(5, 4)], y=[0, 1, 0, 1, 1])
    assert streamed(arrays, workers=0).inputs.shape == (5, 4)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (EndlessColumns(), "load it without streaming=True"),
        (Columns(text=["a", "b"], label=[0, 1]), "a column of pictures or arrays"),
    ],
)
def test_columns_that_are_refused(source: Any, words: str) -> None:
    with pytest.raises(CallerError) as caught:
        streamed(source)
    assert_one_sentence(caught.value, words)


def test_the_library_is_asked_for_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    (tmp_path / "dataset_info.json").write_text("{}")
    with pytest.raises(CallerError, match=r"install isotropy\[datasets\]"):
        read(tmp_path)


# --- what is refused ------------------------------------------------------------------------


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, number: int) -> Any:
        return torch.rand(4), number % 2


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        while True:
            yield torch.zeros(4), 0


class NoLength(Dataset[Any]):
    def __getitem__(self, number: int) -> Any:
        return torch.zeros(4), 0


def with_item(number: int, values: Any, label: Any = 0) -> Items:
    inputs: list[Any] = list(torch.rand(30, 4))
    inputs[number] = values
    return Items(inputs, [*LABELS[:number], label, *LABELS[number + 1 :]])


REFUSED: dict[str, tuple[Any, str]] = {
    "another shape": (with_item(16, torch.rand(5)), "got (5) of torch.float32 at item 16"),
    "another type": (with_item(16, torch.rand(4).double()), "of torch.float64 at item 16"),
    "not finite": (with_item(16, torch.full((4,), torch.nan)), "input 16"),
    "no pair": (Items([torch.rand(4)] * 3, [0, 1, 2]).inputs, "expected items (input, target)"),
    "label too large": (with_item(16, torch.rand(4), 3), "got 3 at item 16"),
    "label below zero": (with_item(16, torch.rand(4), -1), "got -1 at item 16"),
    "label of another kind": (with_item(16, torch.rand(4), 0.5), "targets as those of other"),
    "no label": (with_item(16, torch.rand(4), None), "targets"),
    "random": (Noisy(), "random transforms"),
    "iterable": (Endless(), "tar shards"),
    "no length": (NoLength(), "without __len__"),
    "empty": (Items([], []), "at least one example"),
    "several parts": ({"train": CASES["floats"]}, "take one of them"),
    "a file": (__file__, "expected tar shards"),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("source", "words"), REFUSED.values(), ids=REFUSED)
def test_one_sentence_says_what_is_wrong(source: Any, words: str, workers: int) -> None:
    with pytest.raises(CallerError) as caught:
        data = streamed(source, workers=workers, sample=12)
        list(data.read(torch.arange(30).split(5)))
    assert_one_sentence(caught.value, words)


def test_an_endless_data_set_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_memory", lambda: 100_000)
    with pytest.raises(CallerError) as caught:
        read(Endless())
    assert_one_sentence(caught.value, "tar shards")


def test_variants_are_made_in_memory_alone() -> None:
    split = read(streamed(CASES["bytes"], workers=0), hold_out_fraction=0.0)
    assert vary(split, "original") is split
    with pytest.raises(CallerError, match="expected images in memory"):
        vary(split, "rotated")
