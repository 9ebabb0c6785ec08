"""Explanations of the report's figures: texts from the registry of figures, with the values of the run."""

import re
from collections.abc import Iterable
from typing import Any

from perf_callbacks.kernel.settings.config import LONGEST_TEXT
from perf_callbacks.report.figure_table import BY_FIGURE
from perf_callbacks.report.layout import clean


def without_links(markdown: str) -> str:
    """Replace each link in a Markdown text by the link's words.

    >>> without_links("[tokens](#what-is-a-token) of `batch`")
    'tokens of `batch`'
    """
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown)


Value = tuple[str, str]
"""Name and formatted value of an input of a figure."""


def explanation(
    name: str, values: Iterable[Value] = (), *, equation: str = "", uncounted: str = "", headings: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the explanation of a figure. In the texts of the explanation, code is between backticks.

    Args:
        name: The figure's name in the registry.
        values: The inputs of the figure in this run. Inputs with an empty text are left out.
        equation: Equation that gives the figure, such as "HFU 45% = MFU 40% x 1.13".
        uncounted: Work that was not counted in this run.
        headings: The headings of a table's columns.
    """
    figure = BY_FIGURE[name]
    return {
        "meaning": without_links(figure.meaning),
        "equation": clean(equation, LONGEST_TEXT),
        "values": [(name, clean(text, LONGEST_TEXT)) for name, text in values if text],
        "columns": [(heading, without_links(figure.columns.get(heading, ""))) for heading in headings],
        "source": without_links(figure.source),
        "left_out": without_links(figure.left_out),
        "uncounted": clean(uncounted, LONGEST_TEXT),
    }
