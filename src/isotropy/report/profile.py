"""The report of `isotropy profile`: the evidence over the amount of one symmetry, beside data.

The page says, in this order: where the evidence is largest, a table of every curvature kind against
the truth and held-out data, its profile beside that of the held-out likelihood, what the numbers
mean, and how to make the profiles again. A record is what `isotropy profile --json` printed; a
profile that could not be computed has only its curvature and `error`, and any number may be null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from isotropy.report.figures import ProfilePanel, profile_figure
from isotropy.report.page import Drawing, KeyNumber, render, settings_groups
from isotropy.report.wording import (
    MISSING,
    amount_text,
    duration_text,
    finite,
    finite_or_nan,
    joined,
    known_text,
    number_text,
    objects_of,
    pair_of,
    percent_text,
    reading_of,
    spoken_name,
)


@dataclass(frozen=True)
class ProfileRow:
    """One curvature kind in the table; error: why there is no profile, else empty."""

    curvature: str
    maximum: str
    interval: str
    distance: str
    held_out: str
    rank_correlation: str
    error: str


def profile_page(result: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The report as the text of an HTML page.

    result: as printed by `isotropy profile --json`; config: nested settings beside it
    """
    headline, *remarks = profile_sentences(result)
    profiles = objects_of(result.get("profiles"))
    return render(
        "profile.html.j2",
        headline=headline,
        remarks=remarks,
        data_name=str(result.get("data") or "unnamed data"),
        generator=_generator(result),
        unit=str(result.get("unit") or "no unit"),
        others=str(result.get("others") or ""),
        version=str(result.get("isotropy") or ""),
        key_numbers=key_numbers(result, profiles),
        truth_known=finite(result.get("truth")) is not None,
        rows=[_row(result, profile) for profile in profiles],
        drawings=_drawings(result, profiles),
        settings=settings_groups(
            {"command": "profile", **result},
            config,
            run={name: result[name] for name in ("network", "generator") if result.get(name)},
        ),
    )


def profile_sentences(result: Mapping[str, Any]) -> list[str]:
    """Where the evidence is largest, then one sentence for each curvature kind."""
    profiles = objects_of(result.get("profiles"))
    generator = _generator(result)
    peaks = [profile for profile in profiles if finite(profile.get("maximum")) is not None]
    if not profiles:
        sentences = [f"No profile of {generator} was computed."]
    elif not peaks:
        sentences = [f"No curvature gave a profile of {generator}."]
    else:
        first = peaks[0]
        sentences = [
            f"The evidence is largest at {generator} {_amount(result, first.get('maximum'))}, "
            f"by {_curvature(first)}."
        ]
    truth = finite(result.get("truth"))
    if truth is not None:
        made = f"with {generator} {_amount(result, truth)}" if truth else f"without {generator}"
        sentences.append(f"The data were made {made}.")
    return sentences + [_profile_sentence(result, profile) for profile in profiles]


def _profile_sentence(result: Mapping[str, Any], profile: Mapping[str, Any]) -> str:
    """`kfac-ggn: largest at ±178° (95 % credible: 170° to 180°), 1 % from the truth; …`."""
    row = _row(result, profile)
    if row.maximum == MISSING:
        return f"{row.curvature}: no profile{f', since {row.error}' if row.error else ''}."
    text = f"{row.curvature}: largest at {row.maximum}"
    if row.interval != MISSING:
        text += f" (95 % credible: {row.interval})"
    if row.distance != MISSING:
        text += f", {row.distance} from the truth"
    if row.held_out != MISSING:
        text += f"; held-out likelihood is largest at {row.held_out}"
    if row.rank_correlation != MISSING:
        text += f", rank correlation {row.rank_correlation}"
    return text + "."


def _row(result: Mapping[str, Any], profile: Mapping[str, Any]) -> ProfileRow:
    unit = str(result.get("unit") or "")
    interval = pair_of(profile.get("interval"))
    return ProfileRow(
        curvature=_curvature(profile),
        maximum=_amount(result, profile.get("maximum")),
        interval=MISSING
        if interval is None
        else f"{amount_text(interval[0], unit)} to {amount_text(interval[1], unit)}",
        distance=_distance_text(profile.get("maximum"), result.get("truth")),
        held_out=_amount(result, profile.get("held_out_maximum")),
        rank_correlation=number_text(profile.get("rank_correlation")),
        error=str(profile.get("error") or "").rstrip("."),
    )


def _drawings(
    result: Mapping[str, Any], profiles: Sequence[Mapping[str, Any]]
) -> list[tuple[str, list[Drawing]]]:
    """(curvature, [evidence, likelihoods]) for each profile with at least one finite value."""
    truth, unit = finite(result.get("truth")), str(result.get("unit") or "")
    every = [amount for profile in profiles for amount in _numbers(profile.get("amounts"))]
    known = [value for value in [*map(finite, every), truth] if value is not None]
    span = (min(known, default=0.0), max(known, default=1.0))
    pairs: list[tuple[str, list[Drawing]]] = []
    for index, profile in enumerate(profiles):
        bare = ProfilePanel(
            amounts=_numbers(profile.get("amounts")),
            values=(),
            span=span,
            truth=truth,
            symbol=reading_of(unit).symbol,
        )
        row = _row(result, profile)
        drawings: list[Drawing] = []
        for place, (title, note, panel) in enumerate(_panels(profile, row, bare)):
            if any(map(math.isfinite, [*panel.values, *panel.beside])):
                label = f"{row.curvature}: {title} over {_generator(result)}; {note}"
                svg = profile_figure(panel, key=f"profile-{index}-{place}", label=label)
                drawings.append(Drawing(title, note, Markup(svg)))
        if drawings:
            pairs.append((row.curvature, drawings))
    return pairs


def _panels(
    profile: Mapping[str, Any], row: ProfileRow, bare: ProfilePanel
) -> list[tuple[str, str, ProfilePanel]]:
    """(title, note, panel) of the evidence and of the likelihoods, held-out where there are."""
    evidence = replace(
        bare,
        values=_numbers(profile.get("log_evidence_per_example")),
        maximum=finite(profile.get("maximum")),
        interval=pair_of(profile.get("interval")),
    )
    likelihoods = replace(
        bare,
        values=_numbers(profile.get("test_log_likelihood")),
        beside=_numbers(profile.get("log_likelihood_per_example")),
        maximum=finite(profile.get("held_out_maximum")),
    )
    words = ("Held-out log likelihood per example", f"nats; largest at {row.held_out}")
    if not any(map(math.isfinite, likelihoods.values)):
        words = ("Training log likelihood per example", "nats; there are no held-out data")
    return [
        ("Log evidence per example", f"nats; largest at {row.maximum}", evidence),
        (*words, likelihoods),
    ]


def key_numbers(
    result: Mapping[str, Any], profiles: Sequence[Mapping[str, Any]]
) -> list[KeyNumber]:
    refits = sum(len(_numbers(profile.get("amounts"))) for profile in profiles)
    device = f"on {result['device']}" if result.get("device") else ""
    scores = [
        value
        for profile in profiles
        for value in map(finite, _numbers(profile.get("test_accuracy")))
        if value is not None
    ]
    first = next((p for p in profiles if finite(p.get("maximum")) is not None), {})
    names = [_curvature(profile) for profile in profiles if not profile.get("error")]
    return [
        KeyNumber(
            "Evidence is largest at",
            _amount(result, first.get("maximum")),
            f"by {_curvature(first)}" if first else "no profile",
        ),
        KeyNumber(
            "Best test accuracy",
            percent_text(max(scores, default=None)),
            known_text(result.get("test_examples"), "{} test examples")
            if scores
            else "no test data",
        ),
        KeyNumber("Refits", number_text(refits, 0), joined(names) if names else "none succeeded"),
        KeyNumber("Time", duration_text(result.get("seconds")), device),
    ]


def _generator(result: Mapping[str, Any]) -> str:
    return spoken_name(str(result.get("generator") or "an unnamed symmetry"))


def _curvature(profile: Mapping[str, Any]) -> str:
    return str(profile.get("curvature") or "unnamed curvature")


def _amount(result: Mapping[str, Any], value: object) -> str:
    """`±178°`, or `probability ½`; a dash where there is no number."""
    number, unit = finite(value), str(result.get("unit") or "")
    if number is None:
        return MISSING
    return ("probability " if unit == "probability" else "±") + amount_text(number, unit)


def _distance_text(maximum: object, truth: object) -> str:
    """|maximum − truth| in per cent of the truth; a dash where that is zero or unknown."""
    found, true = finite(maximum), finite(truth)
    if found is None or not true:
        return MISSING
    return percent_text(abs(found - true) / abs(true))


def _numbers(value: object) -> list[float]:
    """A JSON list of numbers with NaN for null; empty where there is no list."""
    return [finite_or_nan(number) for number in value] if isinstance(value, list | tuple) else []
