"""How a figure of the report was computed: the registry's texts, with the values of the run."""

import re
from collections.abc import Iterable
from typing import Any

from perf_callbacks.kernel.records.term_table import TERMS
from perf_callbacks.report.figure_table import BY_FIGURE
from perf_callbacks.report.layout import clean
from perf_callbacks.report.page_figure import PageFigure

LONGEST = 300
"""Most characters of a value from a journal."""

MEANINGS = {form: term.meaning for term in TERMS for form in (term.name, *term.forms)}
"""Meaning of each form of each word in the glossary."""

Value = tuple[str, str]
"""Name and text of an input."""


def explanation(
    name: str, values: Iterable[Value] = (), *, equation: str = "", uncounted: str = "", headings: Iterable[str] = ()
) -> dict[str, Any]:
    """Explain a figure. Code stands between backticks.

    Args:
        name: The figure's name in the registry.
        values: The inputs of the figure in this run. Empty texts are left out.
        equation: The figure, and the division that it comes from.
        uncounted: What this run doesn't count, beside the registry's text.
        headings: The headings of a table's columns.
    """
    figure = BY_FIGURE[name]
    return {
        "meaning": without_links(figure.meaning),
        "equation": clean(equation, LONGEST),
        "values": [(name, clean(text, LONGEST)) for name, text in values if text],
        "columns": [(heading, column(figure, heading)) for heading in headings],
        "source": without_links(figure.source),
        "left_out": without_links(figure.left_out),
        "uncounted": clean(uncounted, LONGEST),
    }


def column(figure: PageFigure, heading: str) -> str:
    """Return the registry's explanation of a column or, if the registry has none, the glossary's."""
    return without_links(figure.columns.get(heading) or MEANINGS.get(heading, ""))


def glossary() -> dict[str, str]:
    """Return the meaning of each word of the page, by each form of the word."""
    return {form: without_links(meaning) for form, meaning in MEANINGS.items()}


def without_links(markdown: str) -> str:
    """Replace links in a text in Markdown by their words.

    >>> without_links("[tokens](#what-is-a-token) of `batch`")
    'tokens of `batch`'
    """
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown)
