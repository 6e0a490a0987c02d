"""`isotropy story` in the shell: its folders are those of other commands, and it goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from learn_runs import assert_one_sentence, bars_file, run_here

from isotropy.workflows import story_steps

WORDS = ("--quick", "--model", "turnable:2", "--generators", "rotation", "--group", "C(4)",
         "--epochs", "1", "--device", "cpu")  # fmt: skip
SMALL = {
    "learn_examples": 40, "learn_epochs": 1, "learn_samples": 2, "search_examples": 20,
    "samples": 2, "test_samples": 2, "dimension": 10, "certified_epochs": 2, "measured": 6,
    "relaxed": "map",
}  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL.items():
        monkeypatch.setitem(story_steps.QUICK, name, value)


@pytest.mark.slow
def test_every_step_can_be_taken_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data without a test set: a part is held out, and commands on the folders know it."""
    data = str(bars_file(tmp_path, count=120))
    run = str(tmp_path / "story")
    command = ("story", "--data", data, *WORDS)

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(story_steps, "certify", stop)
        stopped = run_here(capsys, *command, "--out", run, "--quiet")
    assert stopped.status == 130
    assert f"continue with: isotropy story --resume {run}" in stopped.stderr
    record = run_here(capsys, "story", "--resume", run, "--json", "--quiet").record
    assert record["schema"] == 1 and record["command"] == "story" and record["run_folder"] == run
    names = [each["name"] for each in record["networks"]]
    assert {"plain", "built", "relaxed"} <= set(names)
    few = ("--examples", "4", "--generators", "rotation", "--json", "--quiet")
    for number, name in enumerate(("learned", "plain", "built", "relaxed")):
        out = str(tmp_path / f"measured {number}")
        model = str(Path(run) / name)
        found = run_here(capsys, "measure", "--model", model, *few, "--out", out).record
        assert found["actions"][0]["error"] >= 0
    for name in ("plain", "built", "relaxed"):
        folder = str(Path(run) / f"certified-{name}")
        checked = run_here(capsys, "verify", folder, "--data", data, "--json").record
        assert checked["valid"], checked
        (bound,) = (n["certified"]["bound"] for n in record["networks"] if n["name"] == name)
        assert checked["bound"] == bound
    again = run_here(capsys, "certify", "--model", str(Path(run) / "built"), "--data", data,
                     "--grid", "dimension=5 seed=0", "--epochs", "1", "--json",
                     "--out", str(tmp_path / "again")).record  # fmt: skip
    assert again["kind"] == "compression"
    built = run_here(capsys, "build", "--model", "turnable:2", "--group", "C(4)", "--data", data,
                     "--json", "--out", str(tmp_path / "built")).record  # fmt: skip
    assert built["exact"]


def test_the_digits_are_rotated_unless_asked_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def stop(split: object, **named: dict[str, dict[str, str]]) -> None:
        seen.append(named["describe"]["request"]["variant"])
        raise KeyboardInterrupt

    monkeypatch.setattr("isotropy.cli.story.story", stop)
    out = ("--subset", "20", "--quiet", "--out", str(tmp_path / "run"))
    for words in ((), ("--variant", "original"), ("--data", str(bars_file(tmp_path)))):
        run_here(capsys, "story", *words, *out)
    assert seen == ["rotated", "original", "original"]


def test_mistakes_are_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.csv"
    table.write_text("a,b,y\n" + "".join(f"{n},{n % 7},{n % 2}\n" for n in range(40)))
    out = ("--quiet", "--out", str(tmp_path / "run"))
    told = assert_one_sentence(run_here(capsys, "story", "--data", table, *out), "isotropy learn")
    assert "expected images" in told
    both = run_here(capsys, "story", "--quick", "--full", *out)
    assert_one_sentence(both, "--quick and --full")
    wrong = run_here(capsys, "story", *WORDS[:1], "--group", "SO(3)", "--subset", "60", *out)
    assert wrong.status == 2 and "SO(3)" in wrong.stderr
    assert not (tmp_path / "run" / "result.json").exists()
    config = tmp_path / "other"
    config.mkdir()
    (config / "config.json").write_text(json.dumps({"kind": "measure"}))
    assert_one_sentence(run_here(capsys, "story", "--resume", config), "other")
