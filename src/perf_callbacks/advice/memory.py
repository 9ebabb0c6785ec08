"""Rules `memory`: leaks of host memory, full device memory, and device memory that is not cached."""

from perf_callbacks.advice.facts import Facts, MachineFacts, Measured, finding
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.memory.use import GB, MB, Leak, MemoryUse

EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"

SOON_HOURS = 100
"""A leak that fills memory within this many hours is reported with the hours left."""


def memory(machine: MachineFacts, facts: Facts, measured: Measured | None) -> Finding | None:
    """Report a leak of host memory, or else a device whose memory was full. Neither finding has a share."""
    if measured is None or facts.memory is None:
        return None
    if facts.memory.leak is not None:
        return _leak(facts.memory.leak, machine.memory_available)
    return _full(facts.memory, expandable=facts.expandable) if facts.memory.retries else None


def uncached(machine: MachineFacts, facts: Facts, _measured: Measured | None) -> Finding | None:
    """Name device memory that is not cached. Needs no run."""
    if machine.accelerator is None or not facts.uncached:
        return None
    evidence = "PYTORCH_NO_CUDA_MEMORY_CACHING is set: torch asks the driver for the memory of each tensor"
    return finding("memory", None, evidence, "unsetting PYTORCH_NO_CUDA_MEMORY_CACHING")


def _leak(found: Leak, available: int | None) -> Finding | None:
    per_step = "" if found.gb_per_step is None else f" ({found.gb_per_step * GB / MB:.2g} MB per step)"
    evidence = (
        f"Host memory (without pages of files) grew by {found.gb_per_hour:.1f} GB per hour{per_step}, "
        f"from {found.before_gb:.1f} to {found.after_gb:.1f} GB, and didn't level off"
    )
    if available is not None:
        hours = (available / GB - found.after_gb + found.before_gb) / found.gb_per_hour
        if 0 < hours < SOON_HOURS:
            evidence += f"; the memory that was free at the start lasts {hours:.2g} h more"
    return finding("memory", None, evidence, "keeping no tensor from step to step: losses.append(loss.item())")


def _full(use: MemoryUse, *, expandable: bool) -> Finding | None:
    first = "" if expandable else f"{EXPANDABLE}, or "
    times = "once" if use.retries == 1 else f"{use.retries:,} times"
    evidence = f"The memory of the device was full {times}: its allocator gave memory back and tried again"
    parts = use.parts
    if parts is None or parts.peak_gb is None or not parts.activations_gb:
        return finding("memory", None, evidence, f"{first}a smaller batch")
    evidence += f". Activations take {parts.activations_gb:.1f} of {parts.peak_gb:.1f} GB"
    remedy = f"{first}activation checkpointing, which frees at most {parts.activations_gb:.1f} GB, or a smaller batch"
    return finding("memory", None, evidence, remedy)
