"""The documents say what is there: their code runs, their tables and links match the source.

Tables that come from the source stand between `<!-- name:begin -->` and `<!-- name:end -->`. The
functions `…_table` write what belongs there; a failing test shows it whole, to be pasted.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import click
import pytest
import torch
from oracles.dense_ggn import dense_ggn_blocks, softmax_curvature
from test_architecture import OPEN_TO_ALL, ROOMS
from torch import nn

import isotropy
from isotropy.bounds.compressing import Schedule
from isotropy.cli.main import SHORT, cli
from isotropy.curvature import layer_rules
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.evidence import settings as schedule
from isotropy.evidence.objectives import OBJECTIVES
from isotropy.evidence.settings import LearnConfig
from isotropy.likelihoods import Categorical
from isotropy.networks.zoo.specification import parse_network
from isotropy.report.wording import OTHER_READING, READINGS
from isotropy.symmetry.actions.images import GENERATORS, LILA_GENERATORS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "isotropy"
README, MAP = ROOT / "README.md", ROOT / "ARCHITECTURE.md"
DOCS = ROOT / "docs"
INDEX, MANUAL, NOTATION = DOCS / "index.md", DOCS / "manual.md", DOCS / "notation.md"
HOWTO = sorted(DOCS.glob("howto/*.md"))
PAGES = [README, MAP, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
PAGES += HOWTO
LONG = ("export_augmentation", "learn_rotation", "own_layer_rule", "whole_story")
"""Scripts of the gallery that take more than ten seconds."""
EXAMPLES = {"whole_story": 200}
"""Of a script in which something has to be found: 100 rotated digits cannot tell."""
QUICK = ("own-bound", "own-group", "own-layer-rule")
"""How-to pages that take less than five seconds."""
GALLERY = sorted((ROOT / "docs" / "gallery").glob("*.py"))

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def marked(page: Path, name: str) -> str:
    """What stands between the two comments of this name."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    text = text_of(page)
    assert text.count(begin) == text.count(end) == 1, f"{page.name}: {name} is not marked once"
    return text.partition(begin)[2].partition(end)[0].strip()


def blocks(page: Path, language: str) -> list[str]:
    """The fenced code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), flags=re.M | re.S)


# --- code runs ------------------------------------------------------------------------------------


def stand_in(examples: int = 40, size: int = 28) -> dict[str, Any]:
    """Small data under the names that the documents use."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(examples, 1, size, size, generator=generator)
    labels = torch.arange(examples) % 10
    return {
        "images": images, "labels": labels, "test_images": images[:20], "test_labels": labels[:20]
    }  # fmt: skip


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to run in, since examples write into the folder they are started from."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    return tmp_path


@pytest.mark.slow
def test_readme_code_runs(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "default_epochs", lambda on_gpu: 3)
    (block,) = blocks(README, "python")
    names = stand_in(20)
    exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert all(name in printed for name in LILA_GENERATORS)
    assert names["logits"].shape == (20, 10)
    report = (elsewhere / "runs" / "learned" / "report.html").read_text(encoding="utf-8")
    assert report.startswith("<!doctype html") or report.startswith("<!DOCTYPE html")


def small_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, 10),
    )  # fmt: skip


class WithStates(nn.Module):
    """Outputs as transformers give them: logits, and hidden states of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Linear(8, 10), nn.Linear(10, 10)

    def forward(self, images: torch.Tensor) -> SimpleNamespace:
        states = self.tokens(images[:, 0]).tanh()
        return SimpleNamespace(logits=self.head(states.mean(1)), hidden_states=(states,))


def run_page(page: Path, names: dict[str, Any]) -> dict[str, Any]:
    """`names`, with those that the page's code makes, run from top to bottom."""
    found = blocks(page, "python")
    assert found
    for number, block in enumerate(found):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)
    return names


def test_index_code_runs(elsewhere: Path) -> None:
    names = run_page(INDEX, stand_in(20))
    assert names["built"].exact and names["basis"].rank == 1
    assert names["plain"](names["images"]).shape == (20, 10)


def test_robots_code_runs() -> None:
    for needed in ("mujoco", "stable_baselines3"):
        pytest.importorskip(needed, reason="the extra rl is not installed")
    names = run_page(DOCS / "robots.md", {})
    assert max(each.step for each in names["violation"](names["half"])) > 0.1
    inputs = torch.randn(3, 40)
    torch.testing.assert_close(names["soft"](inputs), names["network"](inputs))


@pytest.mark.slow
def test_manual_code_runs(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page(MANUAL, stand_in())
    assert capsys.readouterr().out.splitlines()[-1].startswith("2 ")
    assert names["logits"].shape == (20, 10)
    assert (elsewhere / "report.html").is_file()
    listed = re.findall(r"`(\w+)`", marked(MANUAL, "json"))
    assert listed == list(names["result"].record)


def test_build_code_runs(elsewhere: Path) -> None:
    made = {"network": small_network(), "mlp": nn.Sequential(nn.Linear(7, 8), nn.Linear(8, 9))}
    names = run_page(DOCS / "build.md", {**stand_in(4, size=12), **made})
    assert names["result"].exact and (elsewhere / "runs" / "built" / "config.json").is_file()


def test_certify_code_runs(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Schedule, "of", lambda examples, **_: Schedule(1, 100))
    data = stand_in(200, size=12)
    other = {"other_images": data["images"] ** 2, "other_labels": data["labels"]}
    network = parse_network("oriented:4").build((1, 12, 12), 10)
    given = {"isotropy": isotropy, "network": network, **data, **other}
    names = run_page(DOCS / "certify.md", given)
    assert 0 <= names["result"].train_error <= names["result"].bound <= 1


@pytest.mark.slow
def test_networks_code_runs(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "default_epochs", lambda on_gpu: 1)
    data = stand_in(20, size=8)
    given = {"isotropy": isotropy, "model": WithStates(), "data": (data["images"], data["labels"])}
    assert run_page(DOCS / "networks.md", given)["result"].symmetries


def test_pretrained_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "default_epochs", lambda on_gpu: 1)
    data = stand_in(20, size=8)
    layers = (nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 7))
    given = {"model": nn.Sequential(*layers), "data": (data["images"], data["labels"])}
    record = run_page(DOCS / "pretrained.md", {"isotropy": isotropy, **given})["result"].record
    assert record["constants"] == {"0.weight": "frozen", "0.bias": "frozen"}


def test_scale_code_runs(elsewhere: Path) -> None:
    result = run_page(DOCS / "scale.md", {})["result"]
    assert result.record["train_examples"] == 40
    assert any("read while they are used" in note for note in result.config["notes"])


def test_every_page_with_python_is_run() -> None:
    """Pages with a test of their own are in the tests of pages and of chains."""
    here = {"README.md", "build.md", "certify.md", "index.md", "manual.md", "networks.md"}
    here |= {"pretrained.md", "scale.md", "which-method.md", *(page.name for page in HOWTO)}
    others = {"bases.md", "measure.md", "relax.md", "represent.md", "robots.md", "verbs.md"}
    assert {page.name for page in PAGES if blocks(page, "python")} == here | others


@pytest.mark.slow
def test_which_method_code_runs(elsewhere: Path) -> None:
    names = run_page(DOCS / "which-method.md", {})
    assert [each.name for each in names["learned"].symmetries][-1] == "horizontal_flip"


@pytest.mark.parametrize(
    "page",
    [page if page.stem in QUICK else pytest.param(page, marks=pytest.mark.slow) for page in HOWTO],
    ids=lambda page: page.stem,
)
def test_howto_code_runs(page: Path, elsewhere: Path, own_rules: None) -> None:
    """The pages hold assertions of their own, so that running them is the test."""
    assert len(HOWTO) == 6
    names = run_page(page, {})
    if page.stem == "own-group":
        assert names["maps"].rank == 4
    if page.stem == "own-layer-rule":
        assert "Temperature" in names["refused"]


def test_represent_code_runs(elsewhere: Path) -> None:
    names = run_page(DOCS / "represent.md", {})
    assert torch.equal(names["encoder"](names["x"]), names["invariant"])


def script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"gallery_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def own_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_rules, "_RULES", dict(layer_rules._RULES))


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow) if path.stem in LONG else path for path in GALLERY],
    ids=lambda path: path.stem,
)
def test_gallery_runs(
    path: Path, elsewhere: Path, own_rules: None, request: pytest.FixtureRequest
) -> None:
    assert len(text_of(path).splitlines()) <= 50
    if "torchvision" in text_of(path) and importlib.util.find_spec("torchvision"):
        request.getfixturevalue("torchvision_imports")
    assert script(path).main(epochs=2, examples=EXAMPLES.get(path.stem, 40))
    assert list(elsewhere.iterdir()) == []


@pytest.mark.slow
def test_exports_are_what_was_learned(elsewhere: Path, torchvision_imports: None) -> None:
    found = script(ROOT / "docs/gallery/export_augmentation.py").main(epochs=2, examples=40)
    assert found.keys() == {"json", "program", "torchvision"}
    assert found["json"] == 0 and max(found.values()) < 1e-5


@pytest.mark.slow
def test_the_whole_story_ends_well() -> None:
    (plain, changed), (built, unchanged) = (
        script(ROOT / "docs/gallery/whole_story.py").main().values()
    )
    assert built > plain
    assert changed > 0.05 and unchanged == 0


@pytest.mark.slow
def test_own_transform_is_found_where_it_does_not_matter_and_only_there() -> None:
    learned = script(ROOT / "docs/gallery/own_random_transform.py").main()
    assert learned["angle"][0] > 0.5 and learned["length"][0] < 0.1
    assert 0.5 < learned["angle"][1] < 0.9  # the inputs were made with 0.7


def test_worked_examples_are_judged(elsewhere: Path) -> None:
    for name, truth in {"learn_point_clouds": 60.0, "learn_sequences": 0.2}.items():
        result = script(ROOT / f"docs/gallery/{name}.py").main(epochs=2, examples=40)
        (verdict,) = result.record["verdicts"]
        assert verdict["name"] == result.symmetries[0].name
        assert result.config["truth"] == {verdict["name"]: truth}


@pytest.mark.slow
def test_own_action_is_found_where_it_does_not_matter_and_only_there() -> None:
    learned = script(ROOT / "docs/gallery/own_action.py").main(epochs=40)
    assert learned["stripes"] > 90 and learned["colour"] < 10


def test_own_action_is_an_action() -> None:
    action = script(ROOT / "docs/gallery/own_action.py").Hue()
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, 3, 4, 5, generator=generator, dtype=torch.float64)
    angle = torch.rand(2, 6, 1, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(action.act(0 * angle, images), images[:, None].expand(2, 6, 3, 4, 5))
    there = action.act(angle, images)
    back = action.act(-angle.flatten(0, 1)[:, None], there.flatten(0, 1))
    torch.testing.assert_close(back[:, 0].unflatten(0, (2, 6)), images[:, None].expand_as(there))


class GainTwice(nn.Module):
    """A layer between two others, called twice."""

    def __init__(self, gain: nn.Module) -> None:
        super().__init__()
        self.first, self.gain, self.last = nn.Linear(4, 4), gain, nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.gain(self.gain(self.first(inputs)).tanh()))


@pytest.mark.parametrize("samples", [1, 3])
def test_own_layer_rule_is_exact(samples: int, own_rules: None) -> None:
    module = script(ROOT / "docs/gallery/own_layer_rule.py")
    layer_rules.register_rule(module.Gain, module.GainRule())
    torch.manual_seed(0)
    network = GainTwice(module.Gain(4)).double()
    rows = torch.randn(5 * samples, 4, dtype=torch.float64)
    batch = KFAC(network).batch(rows, Copies(samples), Categorical())
    found = batch.factors()["gain.gain"].dense(5)[0]
    expected = dense_ggn_blocks(network, rows, samples, softmax_curvature)["gain.gain"]
    torch.testing.assert_close(found, expected)


# --- tables are the source's ----------------------------------------------------------------------


def generator_table() -> str:
    lines = [
        "| default | generator | unit | factor | matrix | a positive coordinate | in the papers |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, each in GENERATORS.items():
        rows = "; ".join(" ".join(f"{entry:g}" for entry in row) for row in each.matrix)
        factor = f"{each.coordinate_per_unit:.4g}"
        default = "yes" if name in LILA_GENERATORS else ""
        cells = (default, f"`{name}`", each.unit, factor, f"[{rows}]", each.meaning, each.papers)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def default_table() -> str:
    kinds = [LearnConfig().resolved(examples=2000, on_gpu=on_gpu) for on_gpu in (False, True)]
    lines = ["| setting | CPU | GPU |", "|---|---|---|"]
    for field in dataclasses.fields(LearnConfig):
        values = [getattr(kind, field.name) for kind in kinds]
        if None not in values:
            cells = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in values]
            lines.append(f"| `{field.name}` | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def reading_table() -> str:
    lines = ["| unit | at the noise floor below | found from |", "|---|---|---|"]
    for unit, each in [*READINGS.items(), ("any other", OTHER_READING)]:
        lines.append(f"| {unit} | {each.floor:g} | {each.found:g} |")
    return "\n".join(lines)


def short_table() -> str:
    lines = ["| command | defaults |", "|---|---|"]
    for verb, defaults in SHORT.items():
        flags = {option.name: option.opts[0] for option in cli.commands[verb].params}
        told = [
            f"`--no-{name}`" if value is False else f"`{flags[name]} {value}`"
            for name, value in defaults.items()
        ]
        lines.append(f"| `{verb}` | {', '.join(told)} |")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("generators", generator_table),
        ("defaults", default_table),
        ("readings", reading_table),
        ("short", short_table),
    ],
)
def test_tables_match_the_source(name, table) -> None:
    expected = table()
    assert marked(MANUAL, name) == expected, f"the table {name!r} should be:\n{expected}"


def test_every_setting_is_told_of() -> None:
    told = set(re.findall(r"`(\w+)`", text_of(MANUAL)))
    assert {field.name for field in dataclasses.fields(LearnConfig)} - told == set()


def test_manual_names_the_layers_with_rules() -> None:
    told = re.findall(r"`(\w+)`", marked(MANUAL, "layers"))
    ours = ("torch.", "isotropy.")  # other tests may have registered layers of their own
    shipped = [kind for kind in layer_rules._RULES if kind.__module__.startswith(ours)]
    assert sorted(told) == sorted(kind.__name__ for kind in shipped)


def test_manual_names_the_objectives() -> None:
    table = text_of(MANUAL).partition("| objective |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([\w-]+)`", table, flags=re.M) == list(OBJECTIVES)


def words_of(svg: Path) -> list[str]:
    texts = ElementTree.fromstring(text_of(svg)).itertext()
    return sorted(text for each in texts if (text := each.strip()))


FIGURES = {"README.md": "story_figure.py", "docs/manual.md": "learned_figure.py"}
"""Pages with one figure, and the scripts that draw it from results/."""


@pytest.mark.parametrize("page", FIGURES)
def test_figures_show_what_the_results_say(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shown,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text_of(ROOT / page))
    monkeypatch.syspath_prepend(ROOT / "scripts")
    monkeypatch.setattr(sys, "argv", [FIGURES[page], "--out", str(tmp_path)])
    script(ROOT / "scripts" / FIGURES[page]).main()
    # Another matplotlib may write other coordinates; ranges and titles stay the same.
    kept = (ROOT / page).parent / shown
    assert words_of(tmp_path / kept.name) == words_of(kept)


def test_readme_has_a_table_of_results() -> None:
    assert marked(README, "results")


# --- the map is the house -------------------------------------------------------------------------


def rooms_on_disk(package: Path) -> set[str]:
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    return folders | {path.stem for path in package.glob("*.py") if not path.stem.startswith("_")}


def rooms_on_the_map(listing: str) -> set[str]:
    found = re.findall(r"^  (\w+)(?:/|\.py) ", listing, flags=re.M)
    assert len(found) == len(set(found))
    return set(found)


def test_rooms_are_those_on_disk() -> None:
    assert rooms_on_the_map(marked(MAP, "rooms")) == rooms_on_disk(PACKAGE)


def test_a_room_that_is_missing_is_noticed(tmp_path: Path) -> None:
    for name in ("cellar", "attic"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "stairs.py").touch()
    assert rooms_on_disk(tmp_path) == {"cellar", "attic", "stairs"}
    assert rooms_on_the_map("src/\n  attic/    dusty\n  stairs.py  steep\n") == {"attic", "stairs"}


def test_arrows_are_those_that_are_enforced() -> None:
    steps = marked(MAP, "arrows").split("→")
    drawn = [tuple(re.findall(r"`(\w+)`", step)) for step in steps]
    assert drawn == [rooms for rooms in ROOMS if not rooms[0].startswith("__")]
    assert OPEN_TO_ALL not in text_of(MAP)


def test_files_named_on_the_map_exist() -> None:
    text = "".join(map(text_of, (MAP, DOCS / "decisions.md", DOCS / "extending.md")))
    named = re.findall(r"`((?:src|tests|docs|results|benchmarks|scripts)/[\w./]*)`", text)
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []


def notation_rows() -> Iterator[tuple[str, str]]:
    """(our names, files) of each row."""
    for line in text_of(NOTATION).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and not set(cells[0]) <= set("- ") and cells[0] != "symbol":
            assert len(cells) == 5, f"five cells expected: {line}"
            yield cells[2], cells[4]


def test_notation_names_what_is_there() -> None:
    rows = list(notation_rows())
    assert len(rows) > 25
    missing = []
    for names, files in rows:
        paths = [PACKAGE / file for file in re.findall(r"`([\w/.]+)`", files)]
        source = "".join(text_of(path) for path in paths)
        wanted = re.findall(r"`(\w+)`", names)
        assert paths and wanted
        missing += [name for name in wanted if not re.search(rf"\b{name}\b", source)]
    assert missing == []


# --- commands and links ---------------------------------------------------------------------------


def known_options() -> set[str]:
    commands = [cli, *cli.commands.values()]
    declared = [parameter for command in commands for parameter in command.params]
    names = {
        name
        for each in declared
        if isinstance(each, click.Option)
        for name in (*each.opts, *each.secondary_opts)
    }
    return names | {"--help", "-h", "--nproc-per-node"}  # the last is torchrun's


def options_of_scripts(text: str) -> set[str]:
    """Those of the scripts of this repository that a text names."""
    scripts = [ROOT / name for name in set(re.findall(r"\bscripts/\w+\.py", text))]
    return {
        name
        for script in scripts
        for name in re.findall(r"add_argument\(\s*\"(--[a-z-]+)\"", text_of(script))
    }


@every_page
def test_options_exist(page: Path) -> None:
    text = text_of(page)
    told = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))
    assert told - known_options() - options_of_scripts(text) == set()


@every_page
def test_commands_exist(page: Path) -> None:
    told = re.findall(r"(?:`|bin/)isotropy ([a-z]+)", text_of(page))
    assert set(told) <= set(cli.commands)
    makefile = text_of(ROOT / "Makefile")
    targets = re.findall(r"(?:^|`)make ([a-z-]+)", text_of(page), flags=re.M)
    assert [name for name in targets if f"\n{name}: ##" not in makefile] == []


def anchors(page: Path) -> set[str]:
    """Headings as GitHub turns them into anchors."""
    prose = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.M | re.S)
    heads = re.findall(r"^#+ (.+)$", prose, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def broken_links(page: Path) -> list[str]:
    """Links to files or headings that are not there; the world outside is not asked."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page if not name else (page.parent / name).resolve()
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@every_page
def test_links_resolve(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One head\n[a](#one-head) [b](#two) [c](page.md#one-head) [d](no.md)\n")
    assert broken_links(page) == ["#two", "no.md"]


@pytest.mark.parametrize("name", ["results_table.py", "results_page.py"])
def test_results_tables_are_what_the_results_give(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run as a program, but in this process: another would spend its time importing torch."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    monkeypatch.setattr(sys, "argv", [name, "--check"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "scripts" / name), run_name="__main__")
    assert ended.value.code == 0
