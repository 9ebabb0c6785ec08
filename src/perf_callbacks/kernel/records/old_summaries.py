"""Convert summaries of schema 1, in which the figures of all features were fields of the summary itself."""

from collections.abc import Mapping
from typing import Any

_PARTS: Mapping[str, Mapping[str, str]] = {
    "flops": {
        "model_flops": "model_flops",
        "hardware_flops": "hardware_flops",
        "flops_seconds": "seconds",
        "flops_steps": "steps",
        "flops_source": "source",
        "flops_checked_step": "checked_step",
        "flops_unknown": "unknown",
        "mfu_unknown": "mfu_unknown",
        "flops_coverage": "coverage",
        "flops_lower_bound": "lower_bound",
        "flops_uncounted": "uncounted",
        "unmasked_share": "unmasked_share",
        "flops_dtype": "dtype",
        "peak_flops_per_second": "peak_flops_per_second",
        "peak_source": "peak_source",
        "peak_measured": "peak_measured",
    },
    "gc": {
        "gc_collections": "collections",
        "gc_seconds": "seconds",
        "gc_longest": "longest",
        "gc_scheduled_seconds": "scheduled_seconds",
        "gc_startup_seconds": "startup_seconds",
    },
    "stalls": {"stalls": "count", "stall_seconds": "seconds"},
    "memory": {"memory_gb": "parts_gb", "resident_gb_per_hour": "resident_gb_per_hour"},
    "stragglers": {
        "compared_steps": "steps",
        "compared_seconds": "seconds",
        "compared_model": "model_compared",
        "straggler_seconds": "seconds_by_cause",
        "stragglers": "costliest",
        "slowdown": "slowdown",
        "backward_waiting": "backward_waiting",
    },
}
"""Fields of each part. The keys are the names in schema 1, and the values are the names in the current schema."""

_OLD = {name for names in _PARTS.values() for name in names} - {*_PARTS}


def is_old(summary: Mapping[str, Any]) -> bool:
    """Return True if a summary has fields of schema 1."""
    return not _OLD.isdisjoint(summary)


def converted(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the fields of a summary of schema 1 to the current parts.

    >>> converted({"step": 9, "gc_seconds": 0.5, "stalls": 1, "stall_seconds": 70.0, "gc_collections": None})
    {'step': 9, 'stalls': {'count': 1, 'seconds': 70.0}}
    """
    new = {name: value for name, value in summary.items() if name not in _OLD and name not in _PARTS}
    for part, names in _PARTS.items():
        values = {now: summary[name] for name, now in names.items() if name in summary}
        if values and (part != "gc" or values.get("collections") is not None):  # null if collections were not timed
            new[part] = values
    return new
