"""The fuzzer notices what it is there to notice, and draws the same case for the same seed."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest
from children import Ended
from fuzz import KINDS, RUNS, damaged, damaged_json, data_files, fault

LEARN = ["learn", "--json"]
FINE = (
    '{"command": "learn", "objective": "evidence", "log_evidence": -1, "test_log_likelihood": -1}'
)
NULL = FINE.replace('"log_evidence": -1', '"log_evidence": null')
ENDINGS = {
    "killed": (Ended(-signal.SIGSEGV, "", "", 1, 1), "ended"),
    "too long": (Ended(-signal.SIGKILL, "", "", 61, 1), "took too long"),
    "traceback": (Ended(1, "", "Traceback (most recent call last)", 1, 1), "a traceback"),
    "unexpected": (Ended(1, "", "isotropy: unexpected KeyError", 1, 1), "a mistake of ours"),
    "silent": (Ended(2, "", "", 1, 1), "no sentence"),
    "interrupted": (Ended(130, "", "", 1, 1), "by nobody"),
    "not finite": (Ended(0, NULL, "", 1, 1), "without finite log_evidence"),
}


@pytest.mark.parametrize(("ended", "wrong"), ENDINGS.values(), ids=ENDINGS)
def test_faults_are_seen(ended: Ended, wrong: str) -> None:
    assert wrong in str(fault(ended, LEARN, False))


def test_what_is_right() -> None:
    assert fault(Ended(0, FINE, "", 1, 1), LEARN, False) is None
    assert fault(Ended(2, "", "isotropy: expected this, got that", 1, 1), LEARN, False) is None
    assert fault(Ended(130, "", "", 1, 1), LEARN, True) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_draws_one_case(kind: str, tmp_path: Path) -> None:
    for files in data_files().values():
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(content)
    (tmp_path / next(iter(RUNS))).mkdir()
    config = tmp_path / next(iter(RUNS)) / "config.json"
    cases = []
    for _ in range(2):
        config.write_text(json.dumps({"a": [1, 2], "b": {"c": 3}}))
        cases.append(KINDS[kind](random.Random(5), tmp_path))
    assert cases[0] == cases[1] and cases[0][0]


def test_damage_is_damage() -> None:
    draws = [damaged(bytes(range(100)), random.Random(seed)) for seed in range(20)]
    assert sum(each != bytes(range(100)) for each in draws) > 15
    text = json.dumps({"a": 1, "b": {"c": [2]}})
    assert any(damaged_json(text, random.Random(seed)) != text for seed in range(5))
