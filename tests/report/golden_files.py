"""The golden files: what pages and sentences say, beside the records they are made of.

    python tests/report/golden_files.py

writes them anew from `golden/*.json` and the cases of `sentence_cases`. Read the difference before
it is committed: a change of words there should be one that was meant.
"""

from __future__ import annotations

from collections.abc import Callable

from report_pages import GOLDEN, PAGES, Outline, bound_record, learn_record, stored
from sentence_cases import CASES

from isotropy.report import summary_html
from isotropy.report.pages.learn import learn_page


def page_outline(name: str) -> str:
    if name == "learn":
        return Outline(learn_page(learn_record())).text
    return Outline(PAGES[name](stored(name))).text


def sentences_text() -> str:
    """All cases, a heading each and a sentence a line."""
    told = {name: sentences(*given) for name, (sentences, given) in CASES.items()}
    return "\n\n".join("\n".join([f"## {name}", *lines]) for name, lines in told.items()) + "\n"


def summaries_text() -> str:
    names = (*PAGES, "build", "basis")
    told = {name: Outline(summary_html(stored(name)["result"])).text for name in names}
    return "\n".join(f"## {name}\n{text}" for name, text in told.items())


FILES: dict[str, Callable[[], str]] = {
    **{f"{name}.txt": lambda name=name: page_outline(name) for name in PAGES},  # type: ignore[misc]
    "learn_bound.txt": lambda: Outline(learn_page(bound_record())).text,
    "sentences.txt": sentences_text,
    "summaries.txt": summaries_text,
}


def main() -> None:
    for name, text in FILES.items():
        (GOLDEN / name).write_text(text(), encoding="utf-8")
        print(name)


if __name__ == "__main__":
    main()
