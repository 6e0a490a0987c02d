"""Reports: a saved record goes in, one self-contained HTML file comes out.

    record.py          what a finished run left behind, read from its run folder and checked
    reading.py         how numbers are read: the thresholds, the units, the headline sentence
    figures.py         matplotlib drawings as inline SVG that follows light and dark mode
    flow_lines.py      the curves along which a transformation carries points
    pictures.py        arrays of pixels as PNG data URIs
    learn_drawings.py  which drawings and pictures a record gives
    learn_report.py    the page of `isotropy learn`; its words and looks are in templates/

A report loads nothing from outside, runs no script, and is the same file byte for byte when it
is written twice from the same record.
"""
