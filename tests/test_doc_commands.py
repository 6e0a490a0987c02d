"""Every command of README and docs runs as written, in a folder with stand-ins for its files.

`ISOTROPY_SHORT=1` makes the runs short, as the manual says. `LEFT_OUT` are commands that take
seconds even so and whose verb runs elsewhere; `ISOTROPY_EVERY_COMMAND=1` runs them too.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import click
import pytest
from doc_commands import Command, all_commands, all_spans, commands_of, make_files

from isotropy.cli.main import SHORT, SHORT_VARIABLE, cli, main

COMMANDS = all_commands()
BY_PAGE = {each.page: [other for other in COMMANDS if other.page == each.page] for each in COMMANDS}
LONG = "takes minutes, and its folders are those of a run that the tests make themselves"
DOWNLOADS = "needs the extra vision and downloads weights"
NOT_RUN = {"measure.md": [DOWNLOADS], "pretrained.md": [DOWNLOADS], "story.md": 9 * [LONG]}
"""Reasons that the pages give, each once for every command."""
LEFT_OUT = (
    "basis --table",
    "basis --table A.4",
    "learn --data cifar-10-batches-bin/ --model wrn:16-4 --optimiser sgd --batch-size 128 "
    "--prior-steps 4 --set prior_rate=0.1 --no-search",
    "measure --model before=runs/first --model after=runs/second --split train,test",
    "measure --model runs/mine --ood rotated --examples 200 --json",
    "relax --quick --task digit",
    "relax --data cifar-10-batches-bin/ --augment flips --epochs 120",
    "relax --data digits --variant rotated --pathways ffc,conv,gconv --group C(4)",
    "relax --data cifar-10-batches-bin/ --model resnet:8 --pathways ffc,conv",
)
FAST_PAGES = ("bases.md",)
RUNS = (
    "learn --data pictures/ --model mlp:8 --out runs/pets",
    "learn --model mlp:8 --out runs/learned",
    "build --model compact:4 --group C(4) --out runs/built",
    "relax --data pictures/ --pathways conv "
    "--out runs/relax-quadrants-original-digit-ffc-conv-0-20250101-120000",
)
"""Runs that the documents take for granted."""


def sampled(command: Command) -> bool:
    """Whether the command runs in the tests that always run."""
    return command.why_not is None and " ".join(command.words) not in LEFT_OUT


def called(words: tuple[str, ...]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files and runs that the commands name."""
    place = tmp_path_factory.mktemp("documents")
    make_files(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv(SHORT_VARIABLE, "1")
        for line in RUNS:
            assert called(tuple(line.split())) == 0, line
        for name in ("mine", "first", "second"):
            shutil.copytree("runs/learned", f"runs/{name}")
    return place


@pytest.mark.parametrize(
    "page",
    [
        page if page in FAST_PAGES else pytest.param(page, marks=pytest.mark.slow)
        for page in BY_PAGE
    ],
)
def test_commands_run_as_written(
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    if page == "robots.md":
        pytest.importorskip("stable_baselines3", reason="the extra rl is not installed")
    place = tmp_path / "place"
    if page in FAST_PAGES:
        place.mkdir()
    else:
        shutil.copytree(request.getfixturevalue("stand_ins"), place)
    monkeypatch.chdir(place)
    monkeypatch.setenv(SHORT_VARIABLE, "1")
    every = bool(os.environ.get("ISOTROPY_EVERY_COMMAND"))
    chosen = [each for each in BY_PAGE[page] if sampled(each) or (every and not each.why_not)]
    for each in chosen:  # what a page writes itself is not there before
        if "--out" in each.words:
            shutil.rmtree(each.words[each.words.index("--out") + 1], ignore_errors=True)
    for each in chosen:
        status = called(tuple(found(word) for word in each.words))
        assert status == 0, f"{each}: {capsys.readouterr().err[-500:]}"


def found(word: str) -> str:
    """A path with … in it stands for what the command before has written."""
    if "…" not in word:
        return word
    (path,) = Path().glob(word.replace("…", "*"))
    return str(path)


def test_every_command_is_parsed() -> None:
    """All of them, also those that are not run, and those in sentences and tables."""
    spans = all_spans()
    assert len(COMMANDS) >= 35 and len(spans) >= 10
    for each in (*COMMANDS, *spans):
        command = cli.commands[each.verb]
        try:
            command.make_context(each.verb, list(each.words[1:]))
        except click.UsageError as error:
            pytest.fail(f"{each}: {error.format_message()}")


def test_every_verb_of_the_documents_runs() -> None:
    assert {each.verb for each in COMMANDS} == {each.verb for each in COMMANDS if sampled(each)}
    told = {" ".join(each.words) for each in COMMANDS}
    assert [line for line in LEFT_OUT if line not in told] == []


def test_what_is_not_run_says_why() -> None:
    given = {page: [each.why_not for each in all_] for page, all_ in BY_PAGE.items()}
    reasons = {page: [why for why in found if why] for page, found in given.items()}
    assert {page: why for page, why in reasons.items() if why} == NOT_RUN


def test_commands_are_found_with_their_place_and_reason() -> None:
    text = (
        "# Head\n```sh\n.venv/bin/isotropy learn --data a.npz   # what it is\nls\n```\n"
        '<!-- not run: needs a GPU -->\n```bash\nisotropy basis --group "SO(3)"\n```\n'
        "```text\nisotropy learn\n```\n"
    )
    first, second = commands_of(text, "page.md")
    assert (first.words, first.line) == (("learn", "--data", "a.npz"), 3)
    assert (second.words, second.line) == (("basis", "--group", "SO(3)"), 8)
    assert (first.why_not, second.why_not) == (None, "needs a GPU")


def test_a_command_that_fails_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert called(("measure", "--model", "runs/missing")) == 2


# -- the variable ------------------------------------------------------------------------------


def test_short_defaults_are_options_of_their_commands() -> None:
    for verb, defaults in SHORT.items():
        known = {parameter.name for parameter in cli.commands[verb].params}
        assert set(defaults) <= known


@pytest.mark.parametrize(("given", "epochs"), [((), 2), (("--epochs", "7"), 7)])
def test_what_is_typed_counts_beside_the_variable(given: tuple[str, ...], epochs: int) -> None:
    with cli.make_context("isotropy", ["learn"], default_map=SHORT) as context:
        inner = cli.commands["learn"].make_context("learn", list(given), parent=context)
    assert (inner.params["epochs"], inner.params["search"]) == (epochs, False)
