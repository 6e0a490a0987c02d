"""200 damaged run folders: refused with the damaged part named, or finished with the same numbers.

Damage is a byte of any file, or an entry of a JSON file. Code that a folder names never runs.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from fuzz import damaged, damaged_json
from learn_runs import FAST, bars_file, run_here

WORDS = ("--data", "bars.npz", *FAST, "--generators", "rotation", "--out", "run", "--quiet")
READ = ("config.json", "metrics.jsonl", "checkpoint.safetensors")
"""What a run is resumed from."""
TOLD = ("seconds", "run_folder", "notes", "data", "network", "padding")
"""Entries of a result that are times, places and words."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


def numbers(folder: Path) -> dict[str, Any]:
    result = json.loads((folder / "result.json").read_text())
    return {name: value for name, value in result.items() if name not in TOLD}


@pytest.mark.parametrize(
    "part", [0, 1, *(pytest.param(part, marks=pytest.mark.slow) for part in range(2, 10))]
)
def test_damaged_folders(
    part: int,
    whole: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(whole)
    if not Path("run").exists():
        bars_file(whole)
        assert run_here(capsys, "learn", *WORDS).status == 0
        shutil.copytree("run", "kept")
    expected = numbers(Path("kept"))
    for number in range(20):
        draw = random.Random(20 * part + number)
        shutil.rmtree("run")
        shutil.copytree("kept", "run")
        path = Path("run", draw.choice(READ))
        if path.suffix == ".json" and draw.random() < 0.7:
            path.write_text(damaged_json(path.read_text(), draw))
        else:
            path.write_bytes(damaged(path.read_bytes(), draw))
        finished = run_here(capsys, "learn", "--resume", "run", "--json")
        last = finished.stderr.splitlines()[-1] if finished.stderr else ""
        assert "Traceback" not in finished.stderr and "unexpected" not in last, (number, last)
        if finished.status == 0:
            assert numbers(Path("run")) == expected, (number, path)
        else:
            assert finished.status == 2 and last.startswith("isotropy: "), (number, last)


def test_a_damaged_folder_runs_no_code(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bars_file(tmp_path)
    assert run_here(capsys, "learn", *WORDS).status == 0
    Path("evil.py").write_text("open('ran', 'w')\ndef f():\n    pass\n")
    config = json.loads(Path("run/config.json").read_text())
    config["network"] = {"kind": "file", "name": "evil.py:f", "sha256": None}
    Path("run/config.json").write_text(json.dumps(config))
    for words in (("learn", "--resume", "run"), ("measure", "--model", "run", "--out", "m")):
        assert run_here(capsys, *words).status == 2
    assert not Path("ran").exists()
