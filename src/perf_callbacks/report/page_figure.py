"""Description of one figure of the report."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class PageFigure:
    """One number, chart or table of the report. All texts are Markdown."""

    name: str
    title: str
    meaning: str
    source: str
    """Journal records that hold its inputs."""
    left_out: str = ""
    """Work, time or values that it doesn't count."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """How each column of a table is computed, by heading."""
