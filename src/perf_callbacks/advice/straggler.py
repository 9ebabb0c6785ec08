"""Rule `straggler`: ranks that other ranks wait for, or single steps that take unusually long."""

from perf_callbacks.advice.facts import Facts, MachineFacts, Measured, finding
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.stragglers.peers import GC
from perf_callbacks.stragglers.text import NAMES, REMEDIES


def straggler(_machine: MachineFacts, facts: Facts, measured: Measured | None) -> Finding | None:
    """Name the rank that costs the job most, and the cause. The share is the cost of all stragglers."""
    found = None if measured is None else measured.summary.stragglers
    if measured is None or not measured.known or found is None or not found.costliest:
        return None
    if found.slowdown is None or not found.seconds:  # one rank: the other rules name its causes
        return None
    rank, cause, seconds, _ = found.costliest[0]
    part = sum(found.seconds_by_cause.values()) / found.seconds
    evidence = (
        f"The job waited for slow ranks for {part:.0%} of its steps, longest for rank {rank}: {NAMES[cause]}, "
        f"{seconds:,.3g} s of {found.seconds:,.3g} s"
    )
    remedy = "removing calls of gc.collect()" if cause == GC and facts.gc == "sync" else REMEDIES[cause]
    share = part * measured.steps_seconds / measured.seconds
    return finding("straggler", share, evidence, remedy)
