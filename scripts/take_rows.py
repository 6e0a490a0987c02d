"""Take records of the layer-equivariance series that were made elsewhere into results/.

    python scripts/take_rows.py NEW.jsonl [--table NAME ...] [--results results]

A table is taken as a whole, so that its rows are of one commit: its records of other commits are
superseded and removed. Without --table those tables are taken of which NEW has every row and seed;
the others are named, with what they lack.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from layer_rows import NAME, Record, planned_seeds, table_of

from isotropy.checks import CallerError
from isotropy.experiments.runner import ROWS, keep, read_rows

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("new", type=Path)
    parser.add_argument("--table", action="append", default=[], dest="tables")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    options = parser.parse_args()
    for line in take(options.new, options.results / NAME / ROWS, options.tables):
        print(line)


def take(new: Path, kept: Path, tables: Sequence[str] = ()) -> list[str]:
    """Put the tables of `new` in place of those of `kept`; what was done, a line a table."""
    planned, told = planned_seeds(), []
    found: dict[str, list[Record]] = {}
    for record in read_rows(new):
        if (record["row"], record["seed"]) in planned:
            found.setdefault(table_of(record["row"]), []).append(record)
    for name in tables:
        if name not in found:
            raise CallerError(f"expected a table that {new} has records of, got {name!r}")
    records: list[Record] = list(read_rows(kept))
    for name, own in found.items():
        wanted = [each for each in planned if table_of(each[0]) == name]
        count = f"{len(own)} of {len(wanted)} records"
        if len({record.get("commit") for record in own}) > 1:
            raise CallerError(f"table {name} of {new}: expected records of one commit, got several")
        if name not in tables and (tables or len(own) < len(wanted)):
            told.append(f"{name}: left, {count}; --table {name} takes them")
            continue
        gone = [record for record in records if table_of(record["row"]) == name]
        records = [record for record in records if table_of(record["row"]) != name] + own
        told.append(f"{name}: {count} taken, {len(gone)} earlier ones removed")
    keep(kept, records, fresh=True)
    return told


if __name__ == "__main__":
    main()
