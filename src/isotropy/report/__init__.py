"""Reports: a saved record goes in, one self-contained HTML file comes out.

    record.py              what the page of `isotropy learn` is made of; samples to look at
    wording.py             numbers and names as text
    reading.py             how numbers are read: thresholds, units, verdicts, the sentences
    canvas.py              matplotlib drawings as inline SVG that follows light and dark mode
    figures.py             ranges and curves over epochs, and flows
    matrix_figure.py       a matrix between generators, as a heat map
    reliability_figure.py  how right predictions are, over how sure they are
    profile_figure.py      a value over the amount of one symmetry
    flow_lines.py          the curves along which a transformation carries points
    pictures.py            arrays of pixels as PNG data URIs
    page.py                what all pages share; their words and looks are in templates/
    learn_drawings.py      which drawings and pictures a record gives
    learn_report.py        the page of `isotropy learn`
    screening_table.py     a screening as rows and bars
    screen_report.py       the page of `isotropy screen`
    profile_report.py      the page of `isotropy profile`
    measure_words.py       equivariance errors in words
    measure_tables.py      and as rows of tables
    measure_figures.py     bars, staircases of layers, accuracy against error
    measure_drawings.py    which of them a record gives
    measure_report.py      the page of `isotropy measure`
    relax_words.py         what layers became, in words
    relax_figures.py       a bar per layer, divided among its pathways, and over the epochs
    relax_report.py        the page of `isotropy relax`
    basis_picture.py       a basis as colours on one matrix, SVG or PNG

A report loads nothing from outside, runs no script, and is the same file byte for byte when it
is written twice from the same record.
"""
