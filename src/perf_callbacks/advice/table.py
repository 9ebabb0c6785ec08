"""All rules of advice, and their findings."""

from collections.abc import Callable

from perf_callbacks.advice import (
    batch,
    compiling,
    debugging,
    garbage,
    generation,
    host,
    loading,
    memory,
    model,
    optimizer,
    precision,
    reading,
    reducing,
    shapes,
    spans,
    straggler,
    threads,
)
from perf_callbacks.advice.facts import Facts, MachineFacts, Measured
from perf_callbacks.kernel.records.fit_records import Finding, Summary

Rule = Callable[[MachineFacts, Facts, Measured | None], Finding | None]

RULES: tuple[Rule, ...] = (
    loading.data,
    loading.restarts,
    host.host,
    host.sync,
    generation.generation,
    generation.rewards,
    model.recompute,
    model.attention,
    optimizer.optimizer,
    garbage.garbage,
    memory.memory,
    spans.evaluation,
    spans.checkpoint,
    straggler.straggler,
    precision.precision,
    compiling.compiling,
    shapes.padding,
    shapes.tiles,
    reducing.reducing,
    reading.reading,
    reading.nan_filter,
    batch.small,
    memory.uncached,
    debugging.blocking,
    debugging.anomalies,
    debugging.deterministic,
    threads.too_many,
    threads.too_few,
)
"""Each rule decides by its arguments alone. Without measured times, only rules that need no run find something."""


def findings(machine: MachineFacts, facts: Facts, summary: Summary | None = None) -> tuple[Finding, ...]:
    """Apply all rules. The finding with the largest share comes first; findings without a share come last."""
    measured = None if summary is None else Measured(summary)
    found = [one for one in [rule(machine, facts, measured) for rule in RULES] if one is not None]
    return tuple(sorted(found, key=lambda one: -1.0 if one.share is None else one.share, reverse=True))
