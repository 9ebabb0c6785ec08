"""Rules `memory` about the allocator of an accelerator: settings, and requests that had to be repeated."""

from perf_callbacks.advice.facts import Facts, Machine, Measured, finding
from perf_callbacks.core.records import Finding

EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def uncached(machine: Machine, facts: Facts, _measured: Measured | None) -> Finding | None:
    """Name memory that is not cached. Needs no run."""
    if machine.accelerator is None or not facts.uncached:
        return None
    evidence = "PYTORCH_NO_CUDA_MEMORY_CACHING is set: the driver is asked for the memory of each tensor"
    return finding("memory", None, evidence, "unsetting PYTORCH_NO_CUDA_MEMORY_CACHING")


def retries(_machine: Machine, facts: Facts, measured: Measured | None) -> Finding | None:
    """Name requests for memory that succeeded only after the cache was emptied, which waits for the device."""
    if measured is None or not facts.allocator_retries:
        return None
    times = "once" if facts.allocator_retries == 1 else f"{facts.allocator_retries:,} times"
    evidence = f"Device memory ran out, and its cache was emptied, {times}"
    return finding("memory", None, evidence, "a smaller batch" if facts.expandable else EXPANDABLE)
