"""Description of one figure of the report."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class PageFigure:
    """One number, chart or table of the report. All texts are Markdown."""

    name: str
    """Key in the content of the page."""
    title: str
    meaning: str
    """Text that says how the figure is computed."""
    source: str
    """Journal records that hold the inputs of the figure."""
    left_out: str = ""
    """Work, time or values that the figure doesn't count."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """For each column heading of a table: a text that says how the column is computed."""
