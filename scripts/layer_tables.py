"""Tables of the layer-equivariance series, from its rows in results/: for `results_page.py`.

Tables 1, 2 and 4 of van der Ouderaa, Immer and van der Wilk (2023), what hardening left, and how
all of it was made; Tables 3 and 7 are in `group_tables.py`. Published numbers stand behind ours in
brackets, a row that is missing is a dash, and below a table it is said whether what was to be shown
holds (`layer_claims.py`); what does not hold is told once more before all tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from equivariant_tables import NOT_RUN, made_with
from group_tables import forms_table, group_claims, groups_table
from layer_claims import (
    ACCURACY,
    EVIDENCE,
    HOLDS,
    NLL,
    Claim,
    alike,
    compared,
    told,
    verdict_on,
)
from layer_rows import (
    NAME,
    OBJECTIVES,
    QUICK,
    SCORES,
    Record,
    Rows,
    about,
    accuracy_cell,
    evidence_cell,
    has,
    layers_of,
    nll_cell,
    number,
    parameters_cell,
    planned_rows,
    points,
    rows_of,
    score_cells,
    table_of,
    table_text,
    words,
)

from isotropy.experiments.layer_equivariance import SIZE
from isotropy.experiments.runner import read_table
from isotropy.networks.pathways.relax import relaxed_cnn
from isotropy.report.wording import MISSING, finite, joined, number_text, part_text, percent_text

PUBLISHED_EPOCHS = {"MNIST": 1000, "CIFAR10": 4000}
COUNTED = ("fc", "fc+conv")
"""Rows of Table 2 that are counted and not run."""
LEARNED = "cifar10/original/ffc+conv/laplace"
"""The row of Table 4."""
DIGIT_BELOW, QUADRANT_ABOVE, CIFAR10_BELOW, HARDENED_OFF = 1.0, 60.0, 1.5, 0.2
"""What was to be shown, in points of accuracy."""
MOST_SHARE, FEWER = 0.9, 3.0
"""The same: the convolution's share in most layers, and parameters over those that are left."""


# -- Table 1 -----------------------------------------------------------------------------------


def toy_table(rows: Rows) -> str:
    """Accuracy and likelihood by problem, pathways and objective."""
    if not has(rows, "toy"):
        return NOT_RUN
    columns = ["problem", "pathways", "parameters"]
    columns += ["MAP: accuracy, %", "NLL", "log Z/N", "Laplace: accuracy, %", "NLL", "log Z/N"]
    lines = []
    for problem in about("toy")["problems"]:
        for pathways in about("toy")["pathways"]:
            stem = f"toy/{problem}/{pathways}"
            line = [problem, words(pathways), parameters_cell(rows, stem)]
            for objective in OBJECTIVES:
                row = f"{stem}/{objective}"
                line += [accuracy_cell(rows, row), nll_cell(rows, row), evidence_cell(rows, row)]
            lines.append(line)
    return table_text(columns, lines, told(toy_claims(rows)))


def toy_claims(rows: Rows) -> list[Claim]:
    """Whether learned layers do as well as convolutions, and better where place matters."""
    claims = []
    for problem, least, what in (
        ("digit", -DIGIT_BELOW, f"at most {DIGIT_BELOW:g} point below"),
        ("digit-quadrant", QUADRANT_ABOVE, f"at least {QUADRANT_ABOVE:g} points above"),
    ):
        stem, strict = (f"toy/{problem}/{each}" for each in ("ffc+conv", "conv"))
        said = f"on {problem} the accuracy of learned ffc + conv is {what} conv"
        pair = (f"{stem}/laplace", f"{strict}/laplace")
        claims += compared(rows, said, pair, ACCURACY, least=least)
        claims += over_map(rows, stem, f"on {problem}")
    return claims


def over_map(rows: Rows, stem: str, where: str) -> list[Claim]:
    """Learned ffc + conv beside the same network under MAP: accuracy and evidence not below."""
    pair = (f"{stem}/laplace", f"{stem}/map")
    claims = []
    for scale, name in ((ACCURACY, "accuracy"), (EVIDENCE, "log evidence per example")):
        what = f"{where} the {name} of learned ffc + conv is not below that under MAP"
        claims += compared(rows, what, pair, scale)
    return claims


def quick_table(results: Path) -> str:
    """The same problem by `--quick`, learned alone."""
    rows = rows_of(results, QUICK)
    if not rows:
        return NOT_RUN
    columns = ["problem", "pathways", "parameters", "accuracy, %", "NLL", "what layers became"]
    lines = []
    for row, records in rows.items():
        _, problem, pathways, _ = row.split("/")
        kinds = [layer.became or MISSING for layer in layers_of(records[0])]
        scores = [number_text(points(rows, row), 2), number_text(number(rows, row, "test_nll"), 3)]
        stem = row.rpartition("/")[0]
        lines.append(
            [problem, words(pathways), parameters_cell(rows, stem), *scores, ", ".join(kinds)]
        )
    every = [record for records in rows.values() for record in records]
    return table_text(columns, lines, [made_with(every)])


# -- Table 2 -----------------------------------------------------------------------------------


CIFAR10_TABLES = (
    ("cifar10", ""),
    ("lengthscales", ", +ω"),
    ("augmented", ", flips and shifts"),
)


def cifar10_table(rows: Rows) -> str:
    """CIFAR-10 by pathways; then those whose lengthscales are learned too (+ω), and runs with
    augmentation."""
    if not has(rows, *(name for name, _ in CIFAR10_TABLES)):
        return NOT_RUN
    lines = [[words(each), f"{parameter_count(each):,}", "not run", *[""] * 5] for each in COUNTED]
    for name, suffix in CIFAR10_TABLES:
        for pathways in about(name)["pathways"]:
            stem = f"{name}/original/{pathways}"
            lines.append([words(pathways) + suffix, *score_cells(rows, stem)])
    return table_text(["pathways", *SCORES], lines, told(cifar10_claims(rows)))


def parameter_count(pathways: str) -> int:
    """Of the network for CIFAR-10, of which nothing but shapes is made."""
    width = read_table(NAME)["settings"]["width"]
    with torch.device("meta"):
        network = relaxed_cnn((3, SIZE, SIZE), 10, pathways=pathways.split("+"), width=width)
    return sum(parameter.numel() for parameter in network.parameters())


def cifar10_claims(rows: Rows) -> list[Claim]:
    """Learned layers beside convolutions, and beside the same layers under MAP."""
    claims = []
    for name, where in (("cifar10", "on CIFAR-10"), ("augmented", "with flips and shifts")):
        stem = f"{name}/original/ffc+conv"
        learned, strict = f"{stem}/laplace", f"{name}/original/conv/laplace"
        what = f"{where} the accuracy of learned ffc + conv is at most {CIFAR10_BELOW:g} points"
        below = f"{what} below conv"
        claims += compared(rows, below, (learned, strict), ACCURACY, least=-CIFAR10_BELOW)
        half = f"{where} the NLL of learned ffc + conv is at most half of that under MAP"
        claims += compared(rows, half, (learned, f"{stem}/map"), NLL, weights=(-1.0, 0.5))
        claims += over_map(rows, stem, where)
    return claims


# -- Table 4 -----------------------------------------------------------------------------------


def layers_table(rows: Rows) -> str:
    """What each layer of the learned network for CIFAR-10 became; the first seed's."""
    layers = [layer for record in rows.get(LEARNED, ())[:1] for layer in layers_of(record)]
    if not layers:
        return NOT_RUN
    kinds = LEARNED.split("/")[2].split("+")
    quantities: dict[str, tuple[str, Callable[[object], str]]] = {
        "effective": ("share", part_text),
        "contribution": ("contribution", _short),
        "prior_precision": ("prior precision", _short),
        "weight_norm": ("‖θ‖²", _short),
    }
    columns = [f"{kind}: {title}" for title, _ in quantities.values() for kind in kinds]
    lines = []
    for layer in layers:
        cells = [
            show(getattr(layer, key).get(kind))
            for key, (_, show) in quantities.items()
            for kind in kinds
        ]
        lines.append([layer.name, layer.became or MISSING, *cells])
    return table_text(["layer", "became", *columns], lines, told(layers_claims(rows)))


def layers_claims(rows: Rows) -> list[Claim]:
    """Whether most layers of the learned network became convolutions, with every seed."""
    over, holds, count = [], True, 0
    for record in rows.get(LEARNED, ()):
        layers = layers_of(record)
        over.append(sum(layer.effective.get("conv", 0.0) > MOST_SHARE for layer in layers))
        holds, count = holds and 2 * over[-1] > len(layers), len(layers)
    what = f"in most layers for CIFAR-10 the share of conv is over {100 * MOST_SHARE:.0f} %"
    if not count:
        return []
    return [Claim(verdict_on(holds), what, f"in {joined(map(str, over))} of {count}")]


def _short(value: object) -> str:
    """Three digits: 0.0123, 42.8, 3.59e+06."""
    known = finite(value)
    return MISSING if known is None else f"{known:.3g}"


# -- hardening ---------------------------------------------------------------------------------


def hardened_table(rows: Rows) -> str:
    """Every row that was hardened: accuracy and parameters before and after."""
    lines = []
    for row, records in rows.items():
        for record in records:
            pair = record, record.get("hardened") or {}
            if not pair[1]:
                continue
            scores = [percent_text(each.get("test_accuracy"), 2) for each in pair]
            counts = [number_text(each.get("num_parameters"), 0) for each in pair]
            name = f"`{row}`, seed {record['seed']}"
            lines.append([name, *scores, *counts, number_text(_factor(*pair), 1)])
    if not lines:
        return NOT_RUN
    columns = ["row", "accuracy", "hardened", "parameters", "hardened", "times fewer"]
    return table_text(columns, lines, told(hardened_claims(rows)))


def _factor(record: Record, hardened: Record) -> float | None:
    before, after = (finite(each.get("num_parameters")) for each in (record, hardened))
    return before / after if before and after else None


def hardened_claims(rows: Rows) -> list[Claim]:
    """What hardening did to every learned network; of several seeds the worst."""
    claims = []
    for row, records in rows.items():
        changes, factors = [], []
        for record in records if row.endswith("/laplace") else ():
            hardened = record.get("hardened") or {}
            before, after = (finite(each.get("test_accuracy")) for each in (record, hardened))
            factor = _factor(record, hardened)
            if before is not None and after is not None and factor is not None:
                changes.append(100 * (after - before))
                factors.append(factor)
        if not factors:
            continue
        change, factor = max(changes, key=abs), min(factors)
        what = (
            f"hardening changes `{row}` by at most {HARDENED_OFF:g} points and leaves at least "
            f"{FEWER:g} times fewer parameters"
        )
        holds = abs(change) <= HARDENED_OFF + 1e-9 and factor >= FEWER
        numbers = f"by {number_text(change, 2)}, {factor:.1f} times"
        worst = f", the worst of {len(factors)} seeds" if len(factors) > 1 else ""
        claims.append(Claim(verdict_on(holds), what, numbers + worst))
    return claims


# -- what fails --------------------------------------------------------------------------------


def failures(rows: Rows) -> str:
    """Everything that was to be shown and was not, and rows that were not run."""
    if not rows:
        return NOT_RUN
    makers = (toy_claims, cifar10_claims, layers_claims, group_claims, hardened_claims)
    claims = [claim for make in makers for claim in make(rows)]
    said = told(claim for claim in claims if claim.verdict != HOLDS)
    left = [row for row in planned_rows() if row not in rows]
    if left:
        said.append(f"- Not run: {joined(f'`{row}`' for row in left)}.")
    held = sum(claim.verdict == HOLDS for claim in claims)
    return "\n".join([*said, *[""] * bool(said), f"{held} of {len(claims)} claims hold."])


# -- how they were made ------------------------------------------------------------------------


def made_table(rows: Rows) -> str:
    """By table: rows that were run, epochs, batches, examples, seconds; then all in a sentence."""
    if not rows:
        return NOT_RUN
    tables = {name: own for name, own in read_table(NAME)["tables"].items() if has(rows, name)}
    lines, shorter = [], True
    for name, own in tables.items():
        found = [r for row, records in rows.items() if table_of(row) == name for r in records]
        most = PUBLISHED_EPOCHS[own["data"]]
        epochs = sorted({record["config"]["epochs"] for record in found})
        shorter = shorter and epochs[-1] < most
        lines.append(
            [own["title"], *_made_cells(rows, name, found), f"{_listed(epochs)} ({most:,})"]
        )
    said = [made_with([record for records in rows.values() for record in records])]
    if shorter:
        said.append("All schedules are shorter than the published ones, in brackets.")
    if any(own["data"] == "CIFAR10" for own in tables.values()):
        said.append("This CIFAR-10 was compressed as JPEG once.")
    columns = [
        "table", "rows run", "seeds", "training images", "batch", "augmentation", "first δ of ffc",
        "commits", "seconds", "epochs",
    ]  # fmt: skip
    return table_text(columns, lines, [" ".join(said)])


def _made_cells(rows: Rows, name: str, records: Sequence[Record]) -> list[str]:
    run, planned = (sum(table_of(row) == name for row in every) for every in (rows, planned_rows()))
    every = {record["config"].get("free_precision") for record in records}
    free = [f"{each:,g}" for each in sorted(each for each in every if each is not None)]
    return [
        f"{run} of {planned}",
        _listed({record["seed"] for record in records}),
        _listed({record["train_examples"] for record in records}),
        _listed({record["config"]["batch_size"] for record in records}),
        joined(sorted({record["config"]["augmentation"] for record in records})),
        joined(free) if free else MISSING,
        joined(sorted({str(record.get("commit"))[:7] for record in records})),
        f"{sum(record['seconds'] for record in records):,.0f}",
    ]


def _listed(values: Sequence[int] | set[int]) -> str:
    return joined(f"{value:,}" for value in sorted(values))


# -- in a sentence each ------------------------------------------------------------------------


IN_SHORT = {
    "toy/digit": "Digits in quadrants, labelled by digit",
    "toy/digit-quadrant": "Digits in quadrants, labelled by digit and quadrant",
    "cifar10/original": "CIFAR-10 without augmentation",
}


def layers_in_short(results: Path) -> list[str]:
    """A sentence for each problem that was run with relaxed layers and with convolutions."""
    rows = rows_of(results)
    said = []
    for problem, title in IN_SHORT.items():
        kinds = ("ffc+conv/laplace", "ffc+conv/map", "conv/laplace")
        names = [f"{problem}/{kind}" for kind in kinds]
        if any(points(rows, name) is None for name in names):
            continue
        learned, fixed, strict = (ACCURACY.text(rows, name) for name in names)
        seeds = len(rows[names[0]])
        epochs = {record["config"]["epochs"] for name in names for record in rows[name]}
        how = f"{seeds} seeds" if seeds > 1 else "one seed"
        how += f", {_listed(epochs)} epochs"
        if not alike(rows, names):
            how += ", not all made alike"
        said.append(
            f"{title}: test accuracy of relaxed layers {learned} with learned precisions and "
            f"{fixed} with fixed ones, of convolutions {strict} ({how})."
        )
    return said


def _of(make: Callable[[Rows], str]) -> Callable[[Path], str]:
    return lambda results: make(rows_of(results))


TABLES: Mapping[str, Callable[[Path], str]] = {
    "layers-fails": _of(failures),
    NAME: _of(made_table),
    "layers-toy": _of(toy_table),
    "layers-quick": quick_table,
    "layers-cifar10": _of(cifar10_table),
    "layers-became": _of(layers_table),
    "layers-groups": _of(groups_table),
    "layers-forms": _of(forms_table),
    "layers-hardened": _of(hardened_table),
}
