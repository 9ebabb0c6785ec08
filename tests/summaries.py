"""Summaries whose figures stand side by side, as tests write them: `flops_source="counted"` is `flops.source`."""

from dataclasses import fields

from perf_callbacks.kernel.records.fit_records import Summary
from perf_callbacks.kernel.records.summary_parts import (
    FlopsSummary,
    GcSummary,
    MemorySummary,
    StallSummary,
    StragglerSummary,
)

KINDS = {
    "flops": FlopsSummary, "gc": GcSummary, "stalls": StallSummary, "memory": MemorySummary,
    "stragglers": StragglerSummary,
}  # fmt: skip
WHOLE = ("model_flops", "hardware_flops", "peak_flops_per_second", "peak_source", "peak_measured", "mfu_unknown")
PLACES = {
    **{f"{part}_{field.name}": (part, field.name) for part in ("flops", "gc") for field in fields(KINDS[part])},
    **{name: ("flops", name) for name in (*WHOLE, "unmasked_share")},
    "stalls": ("stalls", "count"),
    "stall_seconds": ("stalls", "seconds"),
    "memory_gb": ("memory", "parts_gb"),
    "resident_gb_per_hour": ("memory", "resident_gb_per_hour"),
    "compared_steps": ("stragglers", "steps"),
    "compared_seconds": ("stragglers", "seconds"),
    "straggler_seconds": ("stragglers", "seconds_by_cause"),
    "stragglers": ("stragglers", "costliest"),
    "compared_model": ("stragglers", "model_compared"),
    "slowdown": ("stragglers", "slowdown"),
    "backward_waiting": ("stragglers", "backward_waiting"),
}
"""Part and field of each figure, by the names that tests give them."""


def a_summary_of(**figures):
    """A summary with these figures, and without the parts of others."""
    if figures.get("gc_collections") is None:  # collections were not timed
        figures = {name: value for name, value in figures.items() if PLACES.get(name, ("",))[0] != "gc"}
    parts = {}
    for name in PLACES.keys() & figures.keys():
        part, field = PLACES[name]
        parts.setdefault(part, {})[field] = figures.pop(name)
    if "gc" in parts:
        parts["gc"] = {"seconds": 0.0, "longest": 0.0} | parts["gc"]
    return Summary(**figures, **{part: KINDS[part](**known) for part, known in parts.items()})
