"""Rules `straggler` and `uneven`: slow ranks that other ranks wait for, and work that is uneven over ranks."""

from perf_callbacks.advice.facts import Facts, MachineFacts, Measured, finding
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.stragglers.text import (
    BATCH_REBALANCE,
    NAMES,
    REMEDIES,
    SYNCED_REMEDIES,
    UNEVEN_BATCHES,
    UNEVEN_STAGES,
    rank_names,
)


def straggler(_machine: MachineFacts, facts: Facts, measured: Measured | None) -> Finding | None:
    """Name the rank, or set of ranks, that costs most, and the cause. The share is the cost of all stragglers."""
    found = None if measured is None else measured.summary.stragglers
    if measured is None or not measured.known or found is None or not found.costliest:
        return None
    if found.slowdown is None or not found.seconds:  # a single process: other rules name the causes
        return None
    ranks, cause, seconds, _ = next(found.named())
    part = sum(found.seconds_by_cause.values()) / found.seconds
    evidence = (
        f"The job waited for slow ranks for {part:.0%} of its steps, longest for {rank_names(ranks)}: {NAMES[cause]}, "
        f"{seconds:,.3g} s of {found.seconds:,.3g} s"
    )
    remedy = (SYNCED_REMEDIES if facts.gc == "sync" else REMEDIES)[cause]
    share = part * measured.steps_seconds / measured.seconds
    return finding("straggler", share, evidence, remedy)


def uneven_batches(_machine: MachineFacts, facts: Facts, measured: Measured | None) -> Finding | None:
    """Report the time that ranks with small batches wait for ranks with large batches."""
    found = None if measured is None else measured.summary.stragglers
    if measured is None or not measured.known or found is None or not found.uneven_batches_seconds or not found.seconds:
        return None
    part = found.uneven_batches_seconds / found.seconds
    evidence = (
        f"Batches are uneven: ranks with less work waited for {part:.0%} of the steps, "
        f"{found.uneven_batches_seconds:,.3g} s of {found.seconds:,.3g} s"
    )
    remedy = BATCH_REBALANCE if facts.integration == "transformers" else UNEVEN_BATCHES
    return finding("uneven", part * measured.steps_seconds / measured.seconds, evidence, remedy)


def uneven_stages(_machine: MachineFacts, _facts: Facts, measured: Measured | None) -> Finding | None:
    """Report the time that the stages of a pipeline wait for the longest stage."""
    found = None if measured is None else measured.summary.stragglers
    if measured is None or not measured.known or found is None or not found.uneven_stages_seconds or not found.seconds:
        return None
    part = found.uneven_stages_seconds / found.seconds
    evidence = (
        f"Stages of the pipeline are uneven: the longest made the others wait for {part:.0%} of the steps, "
        f"{found.uneven_stages_seconds:,.3g} s of {found.seconds:,.3g} s"
    )
    return finding("uneven", part * measured.steps_seconds / measured.seconds, evidence, UNEVEN_STAGES)
