"""A record of any command as a short piece of HTML: what notebooks show of a result.

The finding in words, the key numbers, and where the run folder is: the head of the command's page
without its sections. It brings its own looks, loads nothing and runs no script.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from isotropy.report.measured import Measured
from isotropy.report.page import KeyNumber, render, time_number
from isotropy.report.pages import (
    certify,
    control,
    learn,
    measure,
    profile,
    relax,
    represent,
    screen,
    story,
)
from isotropy.report.pages.findings import finding_sentences
from isotropy.report.pages.measure import with_code
from isotropy.report.record import Built, Head, Learned, Profiled, Relaxed, Screened, Solved, read
from isotropy.report.wording import error_text, known_text, number_text

MOST_REMARKS = 4
"""Sentences after the headline; the page has them all."""


def summary_html(record: Mapping[str, Any]) -> str:
    """A self-contained HTML fragment with the finding and the key numbers of a record.

    record: the JSON object of a command, as its `--json` prints it and its run folder keeps it;
            `kind`, or where it has none `command`, says of which. Text in it is escaped. Of a
            record of another kind only the kind, time and run folder are shown.
    """
    names = [str(record.get(name) or "") for name in ("kind", "command")]
    kind = next((name for name in names if name in _KINDS), names[0] or names[1])
    own, sentences, numbers = _KINDS.get(kind, (Head, None, None))
    told: Any = read(own, record)
    headline, *remarks = sentences(told) if sentences else [f"A record of isotropy {kind}".strip()]
    return render(
        "summary.html.j2",
        headline=with_code(headline),
        remarks=[with_code(remark) for remark in remarks[:MOST_REMARKS]],
        key_numbers=numbers(told) if numbers else [time_number(told)],
        folder=str(record.get("run_folder") or ""),
    )


def _build_numbers(built: Built) -> list[KeyNumber]:
    exact = "exact up to rounding" if built.exact else "not exact"
    plain = known_text(built.plain_parameters, "{} in the network that was given")
    return [
        KeyNumber("Built by", built.how or "not known", exact),
        KeyNumber("Parameters", number_text(built.num_parameters, 0), plain),
        time_number(built),
    ]


def _basis_sentences(solved: Solved) -> list[str]:
    what, group = solved.representation or "A representation", solved.group or "a group"
    return [f"{what} of {group}: rank {number_text(solved.rank, 0)}."]


def _basis_numbers(solved: Solved) -> list[KeyNumber]:
    method = f"found by {solved.method}" if solved.method else ""
    return [
        KeyNumber("Rank", number_text(solved.rank, 0), known_text(solved.size, "of {} entries")),
        KeyNumber("Largest violation", error_text(solved.residual), method),
        time_number(solved),
    ]


_KINDS: dict[str, tuple[type, Callable[[Any], Sequence[str]], Callable[[Any], list[KeyNumber]]]] = {
    "learn": (Learned, lambda learned: finding_sentences(learned, {}), learn.key_numbers),
    "measure": (Measured, measure.measure_sentences, measure.key_numbers),
    "relax": (Relaxed, relax.relax_sentences, relax.key_numbers),
    "build": (Built, lambda built: [built.sentence or "A network was built."], _build_numbers),
    "certify": (certify.Certified, certify.certify_sentences, certify.key_numbers),
    "story": (story.Told, story.story_sentences, story.key_numbers),
    "screen": (Screened, screen.screen_sentences, screen.key_numbers),
    "profile": (Profiled, profile.profile_sentences, profile.key_numbers),
    "represent": (
        represent.Represented,
        represent.represent_sentences,
        represent.key_numbers,
    ),
    "control": (control.Controlled, control.control_sentences, control.key_numbers),
    "basis": (Solved, _basis_sentences, _basis_numbers),
}
"""The dataclass, sentences and key numbers of each kind of record."""
