"""A record of any command as a short piece of HTML: what notebooks show of a result.

The finding in words, the key numbers, and where the run folder is: the head of the command's page
without its sections. It brings its own looks, loads nothing and runs no script.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from isotropy.report.learn.page import key_numbers as learn_numbers
from isotropy.report.learn.reading import finding_sentences
from isotropy.report.measure.page import key_numbers as measure_numbers
from isotropy.report.measure.page import with_code
from isotropy.report.measure.words import error_text, measure_sentences
from isotropy.report.page import KeyNumber, render
from isotropy.report.profile import key_numbers as profile_numbers
from isotropy.report.profile import profile_sentences
from isotropy.report.relax.page import key_numbers as relax_numbers
from isotropy.report.relax.page import relax_sentences
from isotropy.report.screen import key_numbers as screen_numbers
from isotropy.report.screen import screen_sentences
from isotropy.report.wording import duration_text, known_text, number_text, objects_of

Record = Mapping[str, Any]

MOST_REMARKS = 4
"""Sentences after the headline; the page has them all."""


def summary_html(record: Record) -> str:
    """A self-contained HTML fragment with the finding and the key numbers of a record.

    record: the JSON object of a command, as its `--json` prints it and its run folder keeps it;
            `kind`, or where it has none `command`, says of which. Text in it is escaped. Of a
            record of another kind only the kind, time and run folder are shown.
    """
    kind = str(record.get("kind") or record.get("command") or "")
    sentences, numbers = _KINDS.get(kind, (_unknown_sentences, _time))
    headline, *remarks = map(with_code, sentences(record))
    return render(
        "summary.html.j2",
        headline=headline,
        remarks=remarks[:MOST_REMARKS],
        key_numbers=numbers(record),
        folder=str(record.get("run_folder") or ""),
    )


def _time(record: Record) -> list[KeyNumber]:
    device = f"on {record['device']}" if record.get("device") else ""
    return [KeyNumber("Time", duration_text(record.get("seconds")), device)]


def _unknown_sentences(record: Record) -> list[str]:
    return [f"A record of isotropy {record.get('kind') or record.get('command') or ''}".strip()]


def _learn_sentences(record: Record) -> list[str]:
    return list(finding_sentences(record, {}))


def _profile_numbers(record: Record) -> list[KeyNumber]:
    return profile_numbers(record, objects_of(record.get("profiles")))


def _build_sentences(record: Record) -> list[str]:
    return [str(record.get("sentence") or "Nothing is known of what was built.")]


def _build_numbers(record: Record) -> list[KeyNumber]:
    exact = "exact up to rounding" if record.get("exact") else "not exact"
    return [
        KeyNumber("Built by", str(record.get("how") or "not known"), exact),
        KeyNumber(
            "Parameters",
            number_text(record.get("num_parameters"), 0),
            known_text(record.get("plain_parameters"), "{} in the network that was given"),
        ),
        *_time(record),
    ]


def _basis_sentences(record: Record) -> list[str]:
    what = str(record.get("representation") or "A representation")
    group = str(record.get("group") or "a group")
    return [f"{what} of {group}: rank {number_text(record.get('rank'), 0)}."]


def _basis_numbers(record: Record) -> list[KeyNumber]:
    return [
        KeyNumber("Rank", number_text(record.get("rank"), 0),
                  known_text(record.get("size"), "of {} entries")),
        KeyNumber("Largest violation", error_text(record.get("residual")),
                  f"found by {record['method']}" if record.get("method") else ""),
        *_time(record),
    ]  # fmt: skip


_KINDS: dict[str, tuple[Callable[[Record], list[str]], Callable[[Record], list[KeyNumber]]]] = {
    "learn": (_learn_sentences, learn_numbers),
    "measure": (measure_sentences, measure_numbers),
    "relax": (relax_sentences, relax_numbers),
    "build": (_build_sentences, _build_numbers),
    "screen": (screen_sentences, screen_numbers),
    "profile": (profile_sentences, _profile_numbers),
    "basis": (_basis_sentences, _basis_numbers),
}
"""Sentences and key numbers of each kind of record."""
