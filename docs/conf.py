"""Configuration of the site that `make docs` builds from the pages here.

Each page is a file that reads well on its own. The site adds search, navigation, and the interface from docstrings.
"""

import os
import re
from importlib.metadata import version as installed
from pathlib import Path

from sphinx.application import Sphinx

project = "perf_callbacks"
copyright = "the perf_callbacks authors"  # noqa: A001 Sphinx reads this name
version = release = installed("perf_callbacks")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["llms.txt"]
html_theme = "furo"
html_title = f"{project} {version}"
html_extra_path = ["llms.txt"]

myst_heading_anchors = 4
myst_url_schemes = ("http", "https", "mailto", "file")
suppress_warnings = ["myst.header"]  # a page may begin with code

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
default_role = "code"

HOST = os.environ.get("READTHEDOCS_GIT_CLONE_URL", "").removesuffix(".git")
REPOSITORY = f"{HOST}/blob/main" if HOST else Path(__file__).parents[1].as_uri()
"""Address of files that aren't pages: the repository that the site is built from, or this checkout."""


def elsewhere(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Let links to files outside of this directory point to the repository."""
    source[0] = re.sub(r"(\]\(|<)\.\./", rf"\1{REPOSITORY}/", source[0])


def setup(app: Sphinx) -> None:
    """Register the change of links."""
    app.connect("source-read", elsewhere)
