"""`isotropy control`: the JSON, the run folder that goes on, own maps, and mistakes in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from isotropy.cli.main import main
from isotropy.cli.shared.progress import ControlDisplay
from isotropy.workflows.controlling import ControlConfig, Evaluation

TINY = "--steps 20 --evaluate-every 10 --episodes 1 --start 5 --width 8 --batch-size 8".split()
ASKED = (
    "environment", "model", "group", "violation", "steps", "seeds", "mean_return", "area", "curve",
)  # fmt: skip


def needs_rl() -> None:
    for needed in ("stable_baselines3", "mujoco", "gymnasium"):
        pytest.importorskip(needed, reason=f"{needed} is not installed")


def called(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["control", *words])
    return int(ended.value.code or 0)


@pytest.mark.slow
def test_json_progress_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs_rl()
    out = str(tmp_path / "run")
    assert called("--env", "Walker2d-v5", *TINY, "--seeds", "0-1", "--out", out, "--json") == 0
    told = capsys.readouterr()
    record = json.loads(told.out)
    assert set(ASKED) <= record.keys() and record["seeds"] == [0, 1]
    assert "seed 1  step 20/20  return" in told.err
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Returns over training" in page and "How soft each layer stayed" in page
    assert called("--resume", out, "--quiet", "--json") == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["curve"] == record["curve"] and told.err == ""
    assert called("--resume", out, "--model", "mlp") == 2
    assert "was started with --model rpp, not mlp" in capsys.readouterr().err


def test_own_maps_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs_rl()
    maps = tmp_path / "mirror.toml"
    maps.write_text("observation = [[-1, -2, -3, -4]]\naction = [[-1]]\n")
    words = ("--env", "InvertedPendulum-v5", "--maps", str(maps), *TINY)
    assert called(*words, "--out", str(tmp_path / "run"), "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["group"] == "mirror" and record["violation"] < 0.01


MISTAKES = {
    "no maps": (("--env", "Pendulum-v1"), "no maps are known that mirror it"),
    "discrete": (("--env", "CartPole-v1"), "expected actions that are vectors of numbers"),
    "seeds": (("--seeds", "few"), "--seeds: expected numbers such as 0-4"),
    "file": (("--maps", "missing.toml"), "cannot be read"),
    "words": (("--maps", "words.toml"), "action: expected [[1, -2, 3]]"),
    "order": (("--maps", "order.toml"), "expected the numbers 1 to 2 in any order"),
    "size": (("--maps", "size.toml"), "expected maps of 17 and 6 numbers"),
    "steps": (("--steps", "0"), "steps: expected at least 1"),
}


@pytest.mark.parametrize(("words", "told"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_told_in_one_line(
    words: tuple[str, ...],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    needs_rl()
    monkeypatch.chdir(tmp_path)
    Path("words.toml").write_text('observation = [[1]]\naction = [["left"]]\n')
    Path("order.toml").write_text("observation = [[1, 3]]\naction = [[1]]\n")
    Path("size.toml").write_text("observation = [[2, 1]]\naction = [[1]]\n")
    assert called(*words) == 2
    said = capsys.readouterr().err
    assert told in said and said.count("\n") == 1
    assert not Path("runs").exists()


@pytest.mark.parametrize("missing", ["stable_baselines3", "gymnasium", "mujoco"])
def test_a_missing_extra_is_named(
    missing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [each for each in sys.modules if each.split(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "isotropy.control.policies", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    assert called() == 2
    said = capsys.readouterr().err
    assert "is not installed; pip install isotropy[rl]" in said and said.count("\n") == 1


def test_curve_of_a_seed_is_as_high_as_its_returns() -> None:
    display, config = ControlDisplay(quiet=True), ControlConfig(steps=4)
    for seed, returns in ((0, (0.0, 70.0)), (1, (10.0, 40.0))):
        for steps, each in enumerate(returns):
            display(config, Evaluation(seed, steps, each, 1.0))
    assert (display.curve(0), display.curve(1)) == ("▁█", "▂▅")
