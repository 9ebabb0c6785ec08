"""Summaries from figures side by side, as tests write them: `flops_source="counted"` is `flops.source`."""

from perf_callbacks.kernel.records import old_summaries
from perf_callbacks.kernel.records.fit_records import Summary
from perf_callbacks.kernel.records.summary_parts import (
    FlopsSummary,
    GcSummary,
    MemorySummary,
    StallSummary,
    StragglerSummary,
)

PARTS = {
    "flops": FlopsSummary,
    "gc": lambda **known: GcSummary(**{"collections": (), "seconds": 0.0, "longest": 0.0} | known),
    "stalls": StallSummary,
    "memory": MemorySummary,
    "stragglers": StragglerSummary,
}


def in_parts(**figures):
    """The fields of a summary with these figures."""
    found = old_summaries.converted(figures)
    return found | {name: make(**found[name]) for name, make in PARTS.items() if name in found}


def a_summary_of(**figures):
    """A summary with these figures, and without the parts of others."""
    return Summary(**in_parts(**figures))
