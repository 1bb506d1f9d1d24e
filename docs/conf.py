"""Sphinx configuration of the documentation site: `make docs` builds dist/site, and a dead link fails it.

The first page is the README.
"""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging
from tools import forgelinks

project = "Ropeteam"
copyright = "the Ropeteam authors, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["decisions/0000-template.md"]
suppress_warnings = ["misc.highlighting_failure"]  # output of commands that is called console or yaml
myst_heading_anchors = 4
default_role = "code"  # docstrings mark code as Markdown does
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
html_theme = "pydata_sphinx_theme"
html_title = "Ropeteam"
html_copy_source = False
html_theme_options = {
    "github_url": "https://github.com/ropeteam/ropeteam",
    "navbar_align": "left",
    "navigation_with_keys": False,
}


def _linked(source: list[str], folder: Path, page: str) -> None:
    for target in forgelinks.dead(source[0], folder):
        logging.getLogger(__name__).warning("%s links to %s, which is not there", page, target)
    source[0] = forgelinks.absolute(source[0], folder)


def _page(app: Sphinx, page: str, source: list[str]) -> None:
    _linked(source, Path(app.env.doc2path(page)).parent, page)


def _included(_app: Sphinx, file: Path, _page: str, source: list[str]) -> None:
    _linked(source, (forgelinks.DOCS / file).resolve().parent, str(file))


def setup(app: Sphinx) -> None:
    app.connect("source-read", _page)
    app.connect("include-read", _included)
