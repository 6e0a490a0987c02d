"""Tables of the layer-equivariance series about groups, from its rows: for `layer_tables.py`.

Table 3 of van der Ouderaa, Immer and van der Wilk (2023), translations and turns offered together,
and Table 7, forms of group convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from equivariant_tables import NOT_RUN
from layer_claims import UNLIKE, Claim, alike, told, verdict_on
from layer_rows import (
    SCORES,
    Rows,
    about,
    accuracy_cell,
    has,
    nll_cell,
    parameters_cell,
    parts,
    published,
    score_cells,
    share_cell,
    table_text,
)

from isotropy.report.wording import number_text

DATA = {"MNIST": "MNIST", "CIFAR10": "CIFAR-10"}

# -- Table 3 -----------------------------------------------------------------------------------

GROUP_TABLES = ("groups-mnist", "groups-cifar10")


def groups_table(rows: Rows) -> str:
    """Scores with three pathways, and the share of each over layers, by data and version."""
    if not has(rows, *GROUP_TABLES):
        return NOT_RUN
    pathways = about(GROUP_TABLES[0])["pathways"][0]
    kinds = pathways.split("+")
    columns = [
        "data", *SCORES, *(f"share of {kind}" for kind in kinds), "gconv, published",
    ]  # fmt: skip
    lines = []
    for name in GROUP_TABLES:
        for problem in about(name)["problems"]:
            stem = f"{name}/{problem}/{pathways}"
            row = f"{stem}/laplace"
            line = [f"{DATA[about(name)['data']]}, {problem}", *score_cells(rows, stem)]
            line += [share_cell(rows, row, kind) for kind in kinds]
            lines.append([*line, number_text(published(rows, row, "gconv"), 0, " %")])
    return table_text(columns, lines, told(group_claims(rows)))


def group_claims(rows: Rows) -> list[Claim]:
    """Whether the group convolution's share is larger on rotated data, by data set."""
    return [claim for name in GROUP_TABLES for claim in _group_claim(rows, name)]


def _group_claim(rows: Rows, name: str) -> list[Claim]:
    pathways = about(name)["pathways"][0]
    pair = [f"{name}/{problem}/{pathways}/laplace" for problem in ("rotated", "original")]
    found = [parts(rows, row, "gconv") for row in pair]
    if not all(found):
        return []
    rotated, original = (100 * mean(each) for each in found)
    known = [published(rows, row, "gconv") for row in pair]
    beside = f"; published {known[0]:g} % and {known[1]:g} %" if None not in known else ""
    data = DATA[about(name)["data"]]
    what = f"on {data} the mean share of gconv is larger on rotated than on original data"
    verdict = verdict_on(rotated > original) if alike(rows, pair) else UNLIKE
    numbers = f"{rotated:.1f} % and {original:.1f} %{beside}"
    return [Claim(verdict, what, numbers, _determined(rows, pair))]


def _determined(rows: Rows, pair: Sequence[str]) -> str:
    """The parts that shares are made of, in a sentence; empty if not known."""
    said = []
    for kind in ("gconv", "conv"):
        found = [parts(rows, row, kind, "normalised") for row in pair]
        if not all(found):
            return ""
        rotated, original = (100 * mean(each) for each in found)
        said.append(f"{rotated:.0f} % and {original:.0f} % of the parameters of {kind}")
    return f" The data determine {' and '.join(said)}."


# -- Table 7 -----------------------------------------------------------------------------------


FORM_TABLES = ("group-forms", "matched-forms")


def forms_table(rows: Rows) -> str:
    """Forms of group convolution, and a plain one, on rotated CIFAR-10."""
    if not has(rows, *FORM_TABLES):
        return NOT_RUN
    lines = []
    for name in FORM_TABLES:
        own = about(name)
        for pathways in own["pathways"]:
            stem = f"{name}/{own['problems'][0]}/{pathways}"
            width = str(own.get("widths", {}).get(pathways, own["width"]))
            line = [pathways, width, parameters_cell(rows, stem)]
            lines.append([*line, accuracy_cell(rows, f"{stem}/map"), nll_cell(rows, f"{stem}/map")])
    return table_text(["pathway", "width", "parameters", "accuracy, %", "NLL"], lines, [])
