"""The report of `isotropy profile`: the evidence over the amount of one symmetry, beside data.

The page says, in this order: where the evidence is largest, a table of every curvature kind against
the truth and held-out data, its profile beside that of the held-out likelihood, what the numbers
mean, and how to make the profiles again. A profile that could not be computed has only its
curvature and `error`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from isotropy.report.canvas import Drawing
from isotropy.report.figures import ProfilePanel, profile_figure
from isotropy.report.page import (
    Cell,
    KeyNumber,
    Table,
    named,
    number,
    render_page,
    settings_groups,
    time_number,
)
from isotropy.report.record import CurvatureProfile, Profiled, read
from isotropy.report.wording import (
    MISSING,
    amount_text,
    joined,
    known_text,
    number_text,
    percent_text,
    reading_of,
    spoken_name,
    worded_amount,
)


def profile_page(result: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The report as the text of an HTML page.

    result: as printed by `isotropy profile --json`; config: nested settings beside it
    """
    profiled = read(Profiled, result)
    return render_page(
        "profile",
        profiled,
        profile_sentences(profiled),
        settings_groups("profile", result, config, ("network", "generator")),
        data_name=profiled.data or "unnamed data",
        generator=_generator(profiled),
        unit=profiled.unit or "no unit",
        others=profiled.others,
        key_numbers=key_numbers(profiled),
        truth_known=math.isfinite(profiled.truth),
        maxima=maxima_table(profiled) if profiled.profiles else None,
        drawings=profile_drawings(profiled),
    )


def profile_sentences(result: Mapping[str, Any] | Profiled) -> list[str]:
    """Where the evidence is largest, then one sentence for each curvature kind."""
    profiled = read(Profiled, result)
    generator, unit, truth = _generator(profiled), profiled.unit, profiled.truth
    first = next((p for p in profiled.profiles if math.isfinite(p.maximum)), None)
    if first is not None:
        sentences = [
            f"The evidence is largest at {generator} {worded_amount(first.maximum, unit)}, by "
            f"{_curvature(first)}."
        ]
    elif profiled.profiles:
        sentences = [f"No curvature gave a profile of {generator}."]
    else:
        sentences = [f"No profile of {generator} was computed."]
    if math.isfinite(truth):
        made = f"with {generator} {worded_amount(truth, unit)}" if truth else f"without {generator}"
        sentences.append(f"The data were made {made}.")
    return sentences + [_profile_sentence(profiled, profile) for profile in profiled.profiles]


def _profile_sentence(profiled: Profiled, profile: CurvatureProfile) -> str:
    """`kfac-ggn: largest at ±178° (95 % interval 170° to 180°), 1 % from the truth; …`."""
    texts, error = _texts(profiled, profile), profile.error.rstrip(".")
    if texts["maximum"] == MISSING:
        return f"{_curvature(profile)}: no profile{f', since {error}' if error else ''}."
    phrases = {
        "interval": " (95 % interval {})",
        "distance": ", {} from the truth",
        "held_out": "; held-out likelihood is largest at {}",
        "rank_correlation": ", rank correlation {}",
    }
    told = [words.format(texts[key]) for key, words in phrases.items() if texts[key] != MISSING]
    return f"{_curvature(profile)}: largest at {texts['maximum']}{''.join(told)}."


def _texts(profiled: Profiled, profile: CurvatureProfile) -> dict[str, str]:
    """The numbers of one curvature kind; distance: |maximum − truth| in per cent of the truth."""
    unit, truth = profiled.unit, profiled.truth or math.nan
    return {
        "maximum": worded_amount(profile.maximum, unit),
        "interval": " to ".join(amount_text(end, unit) for end in profile.interval) or MISSING,
        "distance": percent_text(abs(profile.maximum - truth) / abs(truth)),
        "held_out": worded_amount(profile.held_out_maximum, unit),
        "rank_correlation": number_text(profile.rank_correlation),
    }


def maxima_table(profiled: Profiled) -> Table:
    """Every curvature kind against the truth, where it is known, and held-out data."""
    titles = {
        "maximum": "Maximum",
        "interval": "95 % interval",
        "distance": "From the truth",
        "held_out": "Held-out maximum",
        "rank_correlation": "Rank correlation",
    }
    if not math.isfinite(profiled.truth):
        del titles["distance"]
    rows: list[list[Cell]] = []
    for profile in profiled.profiles:
        error, texts = profile.error.rstrip("."), _texts(profiled, profile)
        cells = [number(texts[key]) for key in titles]
        if error:
            cells = [Cell(f"not computed: {error}", columns=len(titles))]
        rows.append([named(_curvature(profile)), *cells])
    return Table(("Curvature", *titles.values()), rows)


def profile_drawings(profiled: Profiled) -> list[tuple[str, list[Drawing]]]:
    """(curvature, [evidence, likelihoods]) for each profile with at least one finite value."""
    every = [amount for profile in profiled.profiles for amount in profile.amounts]
    known = [amount for amount in [*every, profiled.truth] if math.isfinite(amount)]
    pairs: list[tuple[str, list[Drawing]]] = []
    for index, profile in enumerate(profiled.profiles):
        texts, curvature = _texts(profiled, profile), _curvature(profile)
        evidence = ProfilePanel(
            amounts=profile.amounts,
            values=profile.log_evidence_per_example,
            span=(min(known, default=0.0), max(known, default=1.0)),
            maximum=profile.maximum,
            interval=profile.interval,
            truth=profiled.truth,
            symbol=reading_of(profiled.unit).symbol,
        )
        likelihoods = replace(
            evidence,
            values=profile.test_log_likelihood,
            beside=profile.log_likelihood_per_example,
            maximum=profile.held_out_maximum,
            interval=(),
        )
        words = ("Held-out log likelihood per example", f"nats; largest at {texts['held_out']}")
        if not any(map(math.isfinite, likelihoods.values)):
            words = ("Training log likelihood per example", "nats; there are no held-out data")
        drawings: list[Drawing] = []
        for place, (title, note, panel) in enumerate(
            [
                ("Log evidence per example", f"nats; largest at {texts['maximum']}", evidence),
                (*words, likelihoods),
            ]
        ):
            if any(map(math.isfinite, [*panel.values, *panel.beside])):
                label = f"{curvature}: {title} over {_generator(profiled)}; {note}"
                svg = profile_figure(panel, key=f"profile-{index}-{place}", label=label)
                drawings.append(Drawing(title, note, svg))
        if drawings:
            pairs.append((curvature, drawings))
    return pairs


def key_numbers(profiled: Profiled) -> list[KeyNumber]:
    """Where the evidence is largest, the best accuracy, refits, and time."""
    profiles = profiled.profiles
    scores = [each for p in profiles for each in p.test_accuracy if math.isfinite(each)]
    first = next((p for p in profiles if math.isfinite(p.maximum)), None)
    names = [_curvature(profile) for profile in profiles if not profile.error]
    return [
        KeyNumber(
            "Evidence is largest at",
            MISSING if first is None else worded_amount(first.maximum, profiled.unit),
            "no profile" if first is None else f"by {_curvature(first)}",
        ),
        KeyNumber(
            "Best test accuracy",
            percent_text(max(scores, default=math.nan)),
            known_text(profiled.test_examples, "{} test examples") if scores else "no test data",
        ),
        KeyNumber(
            "Refits",
            number_text(sum(len(profile.amounts) for profile in profiles), 0),
            joined(names) or "none succeeded",
        ),
        time_number(profiled),
    ]


def _generator(profiled: Profiled) -> str:
    return spoken_name(profiled.generator or "an unnamed symmetry")


def _curvature(profile: CurvatureProfile) -> str:
    if profile.curvature == "elbo":
        return "the evidence bound"
    return profile.curvature or "unnamed curvature"
