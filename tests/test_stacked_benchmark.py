"""The benchmark of stacked runs runs, on a case too small to time anything."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # where `benchmarks` stands

from benchmarks import stacked
from isotropy.data.embedded import digits

CPU = torch.device("cpu")


def test_the_report_has_what_it_claims() -> None:
    report = stacked.run(CPU, 0, runs=2, examples=60, networks=("mlp:5",), samples=2)
    assert json.loads(json.dumps(report)) == report
    assert {"benchmark", "device", "device_name", "threads", "commit", "goals"} <= report.keys()
    own = report["networks"]["mlp:5"]
    for part in stacked.PARTS:
        alone, together = (own["seconds"][f"{part}, {way}"] for way in ("alone", "stacked"))
        assert own["ratios"][part] == alone / together and math.isfinite(own["ratios"][part])
    assert report["goals"] == [], "stacking is for a GPU"
    assert "mlp:5, hyper step" in stacked.table(report)


def test_both_ways_do_the_same() -> None:
    case = stacked.Case("mlp:5", digits(), 2, CPU, samples=2)
    for trainer in (*case.alone, *case.stack.trainers):
        trainer.inputs, trainer.targets = trainer.inputs[:60], trainer.targets[:60]
    # single precision
    assert case.hyper_step_stacked() == pytest.approx(case.hyper_steps_alone(), rel=1e-4)
