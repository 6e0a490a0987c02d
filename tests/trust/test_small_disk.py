"""A disk that is really full: a small tmpfs, filled by each command that writes.

The disk is a share of what an unbroken run needs, so that it is full in another write each time.
What was written is whole, and on a larger disk the run goes on to the bits of an unbroken one.
Needs the right to mount; skipped where there is none. `test_full_disk` simulates the same.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from learn_runs import run_here
from safetensors.torch import load_file
from soak import WORKS, Work, can_go_on, differences, fresh, left_by

PAGE = 4096
SHARES = (0.02, 0.2, 0.45, 0.7, 0.9)
FAST = ("learn",)
ROOM = 64 << 20

Mount = Callable[[int], Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """A disk of so many bytes, and of another size when it is called again."""
    place = tmp_path / "disk"

    def of_size(size: int) -> Path:
        again = "remount," if place.is_mount() else ""
        place.mkdir(exist_ok=True)
        words = ["mount", "-t", "tmpfs", "-o", f"{again}size={size}", "tmpfs", str(place)]
        made = subprocess.run(words, capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"a small disk cannot be mounted here: {made.stderr.strip()}")
        return place

    if shutil.which("mount") is None:
        pytest.skip("a small disk cannot be mounted here: there is no mount")
    yield of_size
    if place.is_mount():
        subprocess.run(["umount", str(place)], check=True)


def space(folder: Path) -> int:
    """Bytes that the files of a folder take on a tmpfs."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return sum(-(-size // PAGE) * PAGE for size in sizes)


def check_whole(folder: Path) -> None:
    """Every file but temporary ones can be read to its end."""
    for path in folder.rglob("*"):
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".jsonl":
            [json.loads(line) for line in path.read_text().splitlines()]
        elif path.suffix == ".safetensors":
            load_file(path)
        elif path.suffix == ".html":
            assert path.read_text().rstrip().endswith("</html>")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FAST else pytest.mark.slow)
        for name, work in WORKS.items()
        if work.exact
    ],
)
def test_a_full_disk_leaves_whole_files(
    name: str,
    mount: Mount,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ISOTROPY_SHORT", "1")
    monkeypatch.setattr("isotropy.workflows.runs.prepared.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.chdir(fresh(tmp_path / "data"))
    disk = mount(ROOM)
    place = disk / "run"
    work = Work(*([w if w != "run" else str(place) for w in words] for words in parts_of(name)))
    assert run_here(capsys, *work.words).status == 0
    expected, needed = left_by(work, disk), space(place)
    filled = 0
    for share in SHARES:
        shutil.rmtree(place, ignore_errors=True)
        mount(max(PAGE, int(share * needed) // PAGE * PAGE))
        failed = run_here(capsys, *work.words)
        if failed.status:
            filled += 1
            assert failed.status in (1, 2) and "No space left on device" in failed.stderr, share
            assert "Traceback" not in failed.stderr and "unexpected" not in failed.stderr, share
            check_whole(disk)
        mount(ROOM)
        if failed.status:
            if not work.resumed:
                shutil.rmtree(place, ignore_errors=True)
            words = work.resumed if can_go_on(place, work) else work.words
            finished = run_here(capsys, *words)
            assert finished.status == 0, (share, finished.stderr)
        assert not sorted(differences(expected, left_by(work, disk))), share
    assert filled >= len(SHARES) - 1  # a report may fit beside what was removed


def parts_of(name: str) -> tuple[list[str], list[str]]:
    return WORKS[name].words, WORKS[name].resumed
