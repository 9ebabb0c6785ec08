"""Rules `memory` and `gc`: leaks of host memory, full or uncached device memory, and garbage collection."""

from perf_callbacks.advice.facts import Facts, Measured, finding, interrupting, timed
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.kernel.records.summary_parts import GcSummary
from perf_callbacks.kernel.units import GB, MB
from perf_callbacks.memory.use import Leak, MemoryUse

SOON_HOURS = 100
"""Only a leak that fills memory sooner gets a time."""

RARE_PER_SECOND, FREQUENT_PER_SECOND = 500_000, 4_000_000
"""Freed objects per second of collection.

Below the first, the collector mostly visits objects in use; above the second, it mostly frees garbage. In one
second, the collector of Python 3.11 either frees 8 to 15 million small objects or visits 20 to 40 million in use.
"""

CYCLES = "breaking reference cycles: gc.set_debug(gc.DEBUG_SAVEALL) shows which objects are in gc.garbage"

MANY = 100_000


def memory(facts: Facts, _measured: Measured | None) -> Finding | None:
    """Without a leak, report that the device's memory was full."""
    if facts.memory is None:
        return None
    if facts.memory.leak is not None:
        return _leak(facts.memory.leak, facts.memory_available)
    return _full(facts.memory, facts.expandable) if facts.memory.retries else None


def uncached(facts: Facts, _measured: Measured | None) -> Finding | None:
    if facts.accelerator is None or not facts.uncached:
        return None
    evidence = f"{facts.uncached} is set: torch asks the driver for the memory of each tensor"
    return finding("memory", None, evidence, f"unsetting {facts.uncached}")


@timed
def garbage(facts: Facts, measured: Measured) -> Finding | None:
    collections = measured.summary.gc
    if collections is None or not collections.seconds:
        return None
    seconds, count, scheduled = collections.seconds, sum(collections.collections), collections.scheduled_seconds or 0.0
    low, share = None, seconds / measured.seconds
    evidence = f"Garbage collection took {share:.0%} of the run ({count:,} collections)"
    if scheduled > seconds / 2:
        evidence, remedy = _scheduled(collections, evidence)
    elif facts.collect_seconds > seconds / 2:
        low, share = interrupting(share)
        remedy = "removing calls of gc.collect()"
        remedy += f", first at {facts.collect_line}" if facts.collect_line else ""
    elif facts.gc == "sync":
        return None  # these collections ran before the schedule began
    else:
        remedy = "PERF_CALLBACKS_GC=sync"
    return finding("gc", share, evidence, remedy, low=low)


def _scheduled(collections: GcSummary, evidence: str) -> tuple[str, str]:
    garbage, made = collections.scheduled_garbage, collections.scheduled_made
    evidence = evidence.replace("Garbage collection", "The callback's scheduled garbage collections", 1)
    if garbage is None or made is None:
        return evidence, CYCLES
    stayed, pace = max(0, made - garbage), garbage / collections.seconds
    evidence += f": {garbage:,} objects were garbage, and {stayed:,} new objects stayed"
    if stayed >= max(MANY, garbage / 2) and pace < FREQUENT_PER_SECOND:
        return evidence, "dropping objects that are no longer used, such as lists that grow, or a larger gc_interval"
    return evidence, CYCLES if pace >= RARE_PER_SECOND else "a larger gc_interval: the program has many objects in use"


def _leak(leak: Leak, available: int | None) -> Finding | None:
    per_step = "" if leak.gb_per_step is None else f" ({leak.gb_per_step * GB / MB:.2g} MB per step)"
    evidence = (
        f"Host memory (without pages of files) grew by {leak.gb_per_hour:.1f} GB per hour{per_step}, "
        f"from {leak.before_gb:.1f} to {leak.after_gb:.1f} GB, and didn't level off"
    )
    if available is not None:
        hours = (available / GB - leak.after_gb + leak.before_gb) / leak.gb_per_hour
        if 0 < hours < SOON_HOURS:
            evidence += f"; the memory that was free at the start lasts {hours:.2g} h more"
    return finding("memory", None, evidence, "keeping no tensor from step to step: losses.append(loss.item())")


def _full(use: MemoryUse, expandable: str | None) -> Finding | None:
    first = "" if expandable is None else f"{expandable}, or "
    times = "once" if use.retries == 1 else f"{use.retries:,} times"
    evidence = f"The memory of the device was full {times}: its allocator freed cached memory and tried again"
    parts = use.parts
    if parts is None or parts.peak_gb is None or not parts.activations_gb:
        return finding("memory", None, evidence, f"{first}a smaller batch")
    evidence += f". Activations take {parts.activations_gb:.1f} of {parts.peak_gb:.1f} GB"
    remedy = f"{first}activation checkpointing, which frees at most {parts.activations_gb:.1f} GB, or a smaller batch"
    return finding("memory", None, evidence, remedy)
