"""`torchrun -m isotropy`: the numbers of one process, told once; what cannot be shared, refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from learn_runs import FAST, bars_file

pytestmark = pytest.mark.slow
LEARN = ("learn", "--data", "bars.npz", *FAST, "--generators", "rotation", "--json")


def started(folder: Path, *words: str, processes: int) -> subprocess.CompletedProcess[str]:
    by = (sys.executable, "-m")
    if processes > 1:
        by = (*by, "torch.distributed.run", f"--nproc-per-node={processes}", "--rdzv-backend=c10d",
              "--rdzv-endpoint=127.0.0.1:0", "-m")  # fmt: skip
    return subprocess.run(
        [*by, "isotropy", *words],
        cwd=folder, capture_output=True, text=True, timeout=200, check=False,
        env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip


def test_two_processes_are_one_run(tmp_path: Path) -> None:
    bars_file(tmp_path)
    one, two = (
        started(tmp_path, *LEARN, "--out", f"run{count}", processes=count) for count in (1, 2)
    )
    assert one.returncode == two.returncode == 0, two.stderr
    alone, shared = json.loads(one.stdout), json.loads(two.stdout)  # one object: told once
    assert two.stderr.count("epoch 3/3") == 1
    for name in ("log_evidence", "test_log_likelihood", "train_loss"):
        if name in alone:
            assert shared[name] == pytest.approx(alone[name], rel=1e-3), name
    high = [each["symmetries"][0]["high"] for each in (alone, shared)]
    assert high[1] == pytest.approx(high[0], rel=1e-3)
    assert (tmp_path / "run2" / "report.html").exists()


def test_two_processes_relax(tmp_path: Path) -> None:
    words = ("relax", "--epochs", "1", "--width", "1", "--subset", "200", "--json")
    one, two = (
        started(tmp_path, *words, "--out", f"run{count}", processes=count) for count in (1, 2)
    )
    assert one.returncode == two.returncode == 0, two.stderr
    alone, shared = json.loads(one.stdout), json.loads(two.stdout)
    assert shared["log_evidence"] == pytest.approx(alone["log_evidence"], rel=1e-4)
    assert shared["train_loss"] == pytest.approx(alone["train_loss"], rel=1e-4)


def test_what_is_wrong_is_said_once(tmp_path: Path) -> None:
    ended = started(tmp_path, "learn", "--data", "gone.npz", processes=2)
    assert ended.returncode != 0
    assert ended.stderr.count("isotropy: gone.npz: expected a file or folder") == 1
    ended = started(tmp_path, "certify", "--out", "run", processes=2)
    assert ended.stderr.count("expected one process, got 2") == 1
