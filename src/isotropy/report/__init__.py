"""Reports: a saved record goes in, one self-contained HTML file comes out.

    record.py            records as dataclasses: JSON is read here, once
    wording.py           numbers, units and names as text
    canvas.py            matplotlib drawings as inline SVG that follows light and dark mode
    figures.py           drawings that several pages share
    page.py              what all pages share; their words and looks are in templates/
    pages/               the page of each command, and its sentences
    summary.py           the finding and key numbers of any record, for notebooks

A report loads nothing from outside, runs no script, and is the same file byte for byte when it
is written twice from the same record.
"""

from isotropy.report.summary import summary_html

__all__ = ["summary_html"]
