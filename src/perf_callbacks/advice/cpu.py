"""Rule `cpu`: the training thread was ready to run and had no CPU."""

from perf_callbacks.advice.facts import Facts, Measured, finding, timed
from perf_callbacks.kernel.plural import plural
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.kernel.records.shares import NOTABLE

CAUSE = "cpu"

THREADS = "threads"

LARGE = 0.25
"""From this part of the largest share in `INFLATED` on, `cpu` comes before those findings."""

INFLATED = frozenset(
    {"host", "sync", "recompute", "padding", "attention", "optimizer", "gc", "evaluation", "compile", "copy"}
)
"""Causes whose times become longer if the training thread lacks a CPU."""


@timed
def no_cpu(facts: Facts, _measured: Measured) -> Finding | None:
    share = facts.starved_share
    if share is None or share < NOTABLE:
        return None
    why, remedy = _why(facts)
    evidence = f"The training thread was ready to run and had no CPU for {share:.0%} of the run: {why}"
    # The host may run ahead of a device, or wait for the device. Then the lack of a CPU costs less, or nothing.
    return finding(CAUSE, share if facts.accelerator is None else None, evidence, remedy)


def surplus_threads(facts: Facts) -> tuple[str, str] | None:
    """Return evidence and remedy. Operations should use at most one thread per CPU that other programs leave free."""
    cpus = facts.cpus or facts.threads
    left = cpus if facts.left_cpus is None else min(cpus, max(1, round(facts.left_cpus)))
    if facts.accelerator is not None or facts.threads <= left:
        return None
    number = plural(cpus, "CPU")
    evidence = f"operations use {facts.threads} threads, and "
    if left < cpus:
        evidence += f"other programs leave {left} of {number}"
    else:
        evidence += f"each process has {number}"
    return evidence, facts.threads_code.format(left)


def _why(facts: Facts) -> tuple[str, str]:
    cpus, workers = facts.cpus or 1, facts.workers or 0
    number = plural(cpus, "CPU")
    if facts.quota_reached:
        return "the CPU quota of the container was used up", f"a quota of more than {number}, or fewer threads"
    threads = surplus_threads(facts)
    if threads is not None:
        return threads
    if facts.left_cpus is not None and round(facts.left_cpus) < cpus:
        workers = 0  # others took the CPUs
    left = max(1, cpus - workers)
    if facts.accelerator is None and workers and facts.threads > left:
        who = "a worker of the loader shares" if workers == 1 else f"{workers} workers of the loader share"
        return f"operations use {facts.threads} threads, and {who} {number} with them", facts.threads_code.format(left)
    if workers >= cpus > 1:
        remedy = facts.option("dataloader_num_workers", cpus - 1) or f"num_workers={cpus - 1}"
        return f"{workers} workers of the loader share {number} with it", remedy
    return f"other programs or threads used its {number}", "more CPUs for this process, or fewer programs beside it"
