"""`isotropy basis`: every equivariant linear map of a group, how many there are, and a picture."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from isotropy.checks import CallerError
from isotropy.cli.shared.inputs import fresh_folder
from isotropy.cli.shared.progress import LiveDisplay, tell
from isotropy.experiments.thesis.bases import PUBLISHED_RANKS, RankTables, rank_tables, table_text
from isotropy.records import RESULT, check_unused
from isotropy.symmetry.groups.catalogue import GROUPS, group_named
from isotropy.symmetry.groups.language import parse_representation
from isotropy.workflows.basis import PICTURE, BasisResult, equivariant_basis

ALL = "all"


def _table(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str]:
    if value is None:
        return []
    if value == ALL:
        return list(PUBLISHED_RANKS)
    if value not in PUBLISHED_RANKS:
        known = ", ".join(PUBLISHED_RANKS)
        raise click.BadParameter(f"expected one of {known}, got {value!r}")
    return [value]


@click.command(
    "basis",
    epilog="Groups: " + ", ".join(GROUPS) + "; direct products with x, as in 'Z(4) x Z(4)'.",
)
@click.option("--group", help="The group, such as 'SO(3)'.")
@click.option(
    "--rep",
    "representation",
    help="V, dual V', T(p), T(p,q), Scalar; products *, sums +, 3V; maps >>. Such as 'V >> V*V'.",
)
@click.option("--rank-only", is_flag=True, help="Count without vectors; for very large tensors.")
@click.option(
    "--table",
    "tables",
    is_flag=False,
    flag_value=ALL,
    callback=_table,
    metavar="[TABLE]",
    help="Ranks of Tables A.1 to A.8 of the thesis, or of one of them, computed now, beside the "
    "published numbers.",
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    help="Another place for the picture, .svg or .png. Default: in the run folder.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="Kept in the record; nothing here is random.",
)
@click.option(
    "--device", default="cpu", show_default=True, help="auto | cpu: bases are solved on the CPU."
)
@click.option("--out", type=click.Path(path_type=Path), help="Run folder. Default: runs/…")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@click.option("--quiet", is_flag=True, help="No progress on standard error.")
@click.pass_context
def basis_command(context: click.Context, /, **options: Any) -> None:
    """Find every linear map that commutes with a group, exactly.

    isotropy basis --group "SO(3)" --rep "V >> V*V"

    Says how many there are, how they were found and how long that took, and draws them: entries of
    one colour are equal in all of them.
    """
    _check(options)
    display = LiveDisplay(quiet=options["quiet"])
    command = str(context.find_root().obj)
    if options["tables"]:
        tables = _tables(options, command, display)
        if tables.mismatches:
            click.echo(f"isotropy: not as published: {'; '.join(tables.mismatches)}", err=True)
            context.exit(1)
        return
    group = group_named(options["group"])
    wanted = parse_representation(options["representation"])(group)
    words = (_slug(options["group"]), _slug(options["representation"]))
    folder = _folder(options, *words)
    display.say(f"{group}, {wanted}: {wanted.size:,} entries")
    result = equivariant_basis(
        group,
        wanted,
        options["rank_only"],
        folder=folder,
        seed=options["seed"],
        describe={"command": command},
    )
    if options["picture"] is not None:
        result.picture(options["picture"])
    last = f"Record: {folder / RESULT}"
    if result.has_vectors:
        last = f"Picture: {options['picture'] or folder / PICTURE}"
    tell(result.record, basis_sentences(result), as_json=options["as_json"], last=last)


def basis_sentences(result: BasisResult) -> list[str]:
    """What was found, in words."""
    plural = "" if result.rank == 1 else "s"
    what = "equivariant map" if " >> " in str(result.representation) else "invariant vector"
    lines = [
        f"{result.representation} of {result.group}: rank {result.rank:,}, a basis of "
        f"{result.rank:,} {what}{plural} of {result.size:,} entries."
        if result.rank
        else f"{result.representation} of {result.group}: rank 0, there is no {what} but zero."
    ]
    if len(result.parts) > 1:
        lines += [
            f"{part.text}: rank {part.basis.rank:,}"
            + (f", {part.copies:,} times" if part.copies > 1 else "")
            + f" ({part.basis.method})."
            for part in result.parts
        ]
    left = "" if result.residual is None else f", residual {result.residual:.1e}"
    lines.append(f"Solved in {result.seconds:.3g} s by {result.method}{left}.")
    return lines


def _check(options: dict[str, Any]) -> None:
    if options["device"] not in ("cpu", "auto"):
        raise CallerError(
            f"--device {options['device']}: bases are solved on the CPU; leave it out"
        )
    given = [f"--{name}" for name in ("group", "rep") if options[_FIELDS[name]] is not None]
    if options["tables"]:
        extra = given + (["--picture"] if options["picture"] is not None else [])
        if extra:
            raise CallerError(f"--table: expected neither a group nor a picture, got {extra[0]}")
        return
    if len(given) < 2:
        got = given[0] if given else "neither"
        raise CallerError(f"isotropy basis: expected --group and --rep, or --table, got {got}")
    if options["picture"] is not None:
        if options["rank_only"]:
            raise CallerError("--picture: with --rank-only there are no vectors to draw")
        if options["picture"].suffix.lower() not in (".svg", ".png"):
            name = str(options["picture"])
            raise CallerError(f"--picture: expected a name in .svg or .png, got {name!r}")


_FIELDS = {"group": "group", "rep": "representation"}


def _folder(options: dict[str, Any], first: str, second: str) -> Path:
    named = {"data": first, "variant": second, "seed": options["seed"]}
    folder = options["out"] or fresh_folder("basis", named)
    check_unused(folder, can_go_on=False)
    return Path(folder)


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text.replace(">>", "to").replace("+", "p")).strip("-")


def _tables(options: dict[str, Any], command: str, display: LiveDisplay) -> RankTables:
    folder = _folder(options, "table", "-".join(options["tables"]).replace(".", ""))
    found = rank_tables(
        options["tables"],
        folder=folder,
        seed=options["seed"],
        progress=lambda group, text: display.say(f"{group} {text}"),
        describe={"command": command},
    )
    texts = [table_text(name, found.tables[name]) + "\n" for name in options["tables"]]
    seconds = found.record["seconds"]
    texts.append(f"* computed here, blank in the thesis. {seconds:.3g} s in all.")
    last = f"Record: {folder / RESULT}"
    tell(found.record, texts, as_json=options["as_json"], last=last)
    return found
