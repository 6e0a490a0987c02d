"""What every workflow hands back: a record, the settings behind it, a run folder and a report.

    result.record              a JSON object; the command line prints it with --json
    result.config              what config.json of its run folder holds
    result.save("runs/mine")   a run folder: settings, result, report, and files of its own
    result.report("mine.html") the report alone, one self-contained HTML file

Notebooks show a short summary of the record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from isotropy.evidence.laplace import NotFiniteError
from isotropy.kernels.ranks import ranks
from isotropy.records import (
    CONFIG,
    REPORT,
    RESULT,
    as_bytes,
    check_unused,
    make_folder,
    unwritable,
    write_bytes,
    write_json,
)

SCORES = ("log_evidence", "test_log_likelihood", "test_nll", "test_rmse", "train_loss", "noise")
"""Entries of records that are finite, or there is no result."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """What a workflow hands back; each workflow's own result adds to it.

    record: the JSON object that the command line prints
    config: what config.json of a run folder holds
    """

    SHOWN: ClassVar[tuple[str, ...]] = ()
    """Entries of the record that stand for the result where Python shows it."""

    record: dict[str, Any]
    config: dict[str, Any]

    def page(self) -> str | None:
        """The HTML of the report; None where there is no more to tell than the summary."""
        return None

    def write_own(self, path: Path) -> None:
        """Write further files of the run folder `path`, such as weights and pictures."""

    def save(self, folder: str | Path) -> Path:
        """Write a complete run folder.

        Raises CallerError for a folder that holds a run already, or that cannot be written.
        """
        check_unused(Path(folder), can_go_on=False)
        return self.write(folder)

    def write(self, folder: str | Path) -> Path:
        """The same into the folder that the run was begun in; the first rank writes."""
        path = make_folder(Path(folder))
        if not ranks().is_first:
            return path
        saved = self._of(path)
        write_json(path / CONFIG, saved.config)
        saved.write_own(path)
        write_json(path / RESULT, saved.record)
        page = saved.page()
        if page is not None:
            write_bytes(path / REPORT, as_bytes(page))
        return path

    def kept_in(self, folder: str | Path | None) -> Self:
        """The result as it was written into a run folder, where one is given.

        Raises NotFiniteError where a score is not finite: that is no result.
        """
        self._check_finite()
        if folder is not None:
            self.write(folder)
        return self if folder is None else self._of(Path(folder))

    def _check_finite(self) -> None:
        for name in SCORES:
            value = self.record.get(name)
            if isinstance(value, float) and not math.isfinite(value):
                raise NotFiniteError(
                    f"the {name.replace('_', ' ')} of the trained network is {value}; try a lower "
                    "weight rate or prior rate, or rescale inputs far from unit size"
                )

    def _of(self, path: Path) -> Self:
        return replace(self, record={**self.record, "run_folder": str(path)})

    def report(self, path: str | Path) -> Path:
        """Write the report alone: one self-contained HTML file, its folder made if need be."""
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(path, error) from error
        write_bytes(path, as_bytes(self.page() or _bare_page(self)))
        return path

    def __repr__(self) -> str:
        shown = {name: self.record.get(name) for name in (*self.SHOWN, "seconds", "run_folder")}
        told = [f"{name}={_short(value)}" for name, value in shown.items() if value is not None]
        return f"{type(self).__name__}({', '.join(told)})"

    def _repr_html_(self) -> str:
        """What a notebook shows: the finding and the key numbers."""
        from isotropy.report.summary import summary_html

        return summary_html(self.record)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def _bare_page(result: Result) -> str:
    """The summary as a page of its own."""
    title = f"isotropy {result.record['command']}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"</head>\n<body>\n{result._repr_html_()}\n</body></html>\n"
    )
