"""Reports: a saved record goes in, one self-contained HTML file comes out.

    record.py         what a finished run left behind
    wording.py        numbers, units and names as text
    figures.py        drawings that several pages share
    canvas.py         matplotlib drawings as inline SVG that follows light and dark mode
    page.py           what all pages share; their words and looks are in templates/
    learn/            the page of `isotropy learn`
    measure/          of `isotropy measure`
    relax/            of `isotropy relax`
    screen.py, profile.py, basis_picture.py    of the other commands
    summary.py        the finding and key numbers of any record, for notebooks
    experiments.py    figures of the documentation

A report loads nothing from outside, runs no script, and is the same file byte for byte when it
is written twice from the same record.
"""

from isotropy.report.summary import summary_html

__all__ = ["summary_html"]
