"""Rule `host` about CPU threads: more of them than CPUs. Needs no run."""

from perf_callbacks.advice.facts import Facts, Machine, Measured, finding
from perf_callbacks.core.records import Finding


def threads(machine: Machine, facts: Facts, _measured: Measured | None) -> Finding | None:
    """Advise as many threads as each process has CPUs. With an accelerator these threads have little to do."""
    cpus = (machine.cpus or facts.threads) // machine.local_world_size
    if machine.accelerator is not None or facts.threads <= max(1, cpus):
        return None
    has = "1 CPU" if cpus <= 1 else f"{cpus} CPUs"
    evidence = f"Operations use {facts.threads} threads, and each process has {has}"
    return finding("host", None, evidence, f"OMP_NUM_THREADS={max(1, cpus)}")
