"""Sphinx settings of the site. `build.py` writes the pages that these are for."""

from isotropy import __version__

project = "Isotropy"
author = "The Isotropy developers"
copyright = f"2026, {author}"
version = release = __version__

extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = "index"
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
highlight_language = "text"
# Two modules have a `Grid`; in a signature neither is the link.
suppress_warnings = ["ref.python"]
maximum_signature_line_length = 72
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_title = f"Isotropy {version}"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
# Summaries are fetched page by page, which browsers refuse for files that no server gives out.
html_show_search_summary = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5f83", "color-brand-content": "#0b5f83"},
    "dark_css_variables": {"color-brand-primary": "#7cc4e3", "color-brand-content": "#7cc4e3"},
}
pygments_style = "default"
pygments_dark_style = "github-dark"
