"""Rules `host` about the CPU threads of operations: more threads than CPUs, or far fewer."""

from perf_callbacks.advice.facts import Facts, MachineFacts, Measured, finding
from perf_callbacks.kernel.records.fit_records import Finding

COMPUTING = 0.5
"""Least share of the run in forward, backward and optimizer that gives more threads enough to do."""


def too_many(machine: MachineFacts, facts: Facts, _measured: Measured | None) -> Finding | None:
    """Advise as many threads as each process has CPUs. With an accelerator these threads have little to do."""
    cpus = machine.cpus or facts.threads
    if machine.accelerator is not None or facts.threads <= cpus:
        return None
    evidence = f"Operations use {facts.threads} threads, and each process has {_cpus(cpus)}"
    return finding("host", None, evidence, f"OMP_NUM_THREADS={cpus}")


def too_few(machine: MachineFacts, facts: Facts, measured: Measured | None) -> Finding | None:
    """Advise more threads if a model computes on fewer than half of the CPUs while the other CPUs are idle.

    The saving is unknown: small operations run in one thread in any case.
    """
    cpus, idle = machine.cpus, facts.free_cpus
    if measured is None or not measured.known or machine.accelerator is not None or cpus is None or idle is None:
        return None
    computing = sum(map(measured.stage, ("forward", "backward", "optimizer")))
    if 2 * facts.threads >= cpus or idle < cpus / 2 or measured.share(computing) < COMPUTING:
        return None
    uses = "1 thread" if facts.threads == 1 else f"{facts.threads} threads"
    evidence = f"Operations use {uses}, and {idle:.0f} of {_cpus(cpus)} were idle"
    return finding(
        "host", None, evidence, f"OMP_NUM_THREADS={min(cpus, facts.threads + int(idle))}, if the operations are large"
    )


def _cpus(number: int) -> str:
    return "1 CPU" if number == 1 else f"{number} CPUs"
