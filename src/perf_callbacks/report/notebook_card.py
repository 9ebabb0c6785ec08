"""The table at the end of training as HTML, for notebooks."""

from html import escape

from perf_callbacks.kernel.records.fit_records import Summary
from perf_callbacks.report import cards, run_card

_CARD = '<div><b>{}</b><pre style="white-space: pre-wrap; margin: 0.5em 0 0">{}</pre></div>'
"""HTML of the verdict and the other lines. The style is inside the element, because a style sheet would change the
whole notebook."""


def html(summary: Summary) -> str | None:
    """Render a summary as HTML. Return None if values of the summary contradict each other."""
    try:
        first, *others = cards.lines(run_card.cleaned(summary))
    except (ArithmeticError, LookupError, ValueError):
        return None
    return _CARD.format(escape(first), escape("\n".join(others)))
