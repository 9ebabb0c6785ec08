"""Summaries from figures side by side, as tests write them: `flops_source="counted"` is `flops.source`."""

from perf_callbacks.kernel.records.fit_records import Summary
from perf_callbacks.kernel.records.summary_parts import (
    FlopsSummary,
    GcSummary,
    MemorySummary,
    StallSummary,
    StragglerSummary,
)

FIGURES = {
    FlopsSummary: {
        "model_flops": "model_flops",
        "hardware_flops": "hardware_flops",
        "peak_flops_per_second": "peak_flops_per_second",
        "peak_source": "peak_source",
        "peak_measured": "peak_measured",
        "mfu_unknown": "mfu_unknown",
        "unmasked_share": "unmasked_share",
        **{
            f"flops_{name}": name
            for name in (
                "seconds",
                "steps",
                "source",
                "checked_step",
                "unknown",
                "coverage",
                "lower_bound",
                "uncounted",
                "dtype",
            )
        },
    },
    GcSummary: {
        f"gc_{name}": name for name in ("collections", "seconds", "longest", "scheduled_seconds", "startup_seconds")
    },
    StallSummary: {"stalls": "count", "stall_seconds": "seconds"},
    MemorySummary: {"memory_gb": "parts_gb", "resident_gb_per_hour": "resident_gb_per_hour"},
    StragglerSummary: {
        "compared_steps": "steps",
        "compared_seconds": "seconds",
        "compared_model": "model_compared",
        "straggler_seconds": "seconds_by_cause",
        "stragglers": "costliest",
        "slowdown": "slowdown",
        "backward_waiting": "backward_waiting",
    },
}
"""Figures of each part, by the names that tests give them."""

PARTS = {
    FlopsSummary: "flops",
    GcSummary: "gc",
    StallSummary: "stalls",
    MemorySummary: "memory",
    StragglerSummary: "stragglers",
}


def in_parts(**figures):
    """The fields of a summary with these figures."""
    if figures.get("gc_collections") is None:  # collections were not timed
        figures = {name: value for name, value in figures.items() if name not in FIGURES[GcSummary]}
    fields = {}
    for kind, names in FIGURES.items():
        given = {now: figures.pop(name) for name, now in names.items() if name in figures}
        if given:
            usual = {"seconds": 0.0, "longest": 0.0} if kind is GcSummary else {}
            fields[PARTS[kind]] = kind(**usual | given)
    return figures | fields


def a_summary_of(**figures):
    """A summary with these figures, and without the parts of others."""
    return Summary(**in_parts(**figures))
