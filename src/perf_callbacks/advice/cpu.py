"""Rule `cpu`: the training thread was ready to run and had no CPU."""

from perf_callbacks.advice.facts import Facts, MachineFacts, Measured, finding, timed
from perf_callbacks.kernel.records.fit_records import Finding

CAUSE = "cpu"

LEAST = 0.05
"""Least share of the run without a CPU. Less is usual on a machine with other programs."""

INFLATED = frozenset({"host", "sync", "recompute", "attention", "optimizer", "gc", "evaluation", "compile"})
"""Causes whose times are longer without a CPU. Their shares are those with a CPU, and they come after this finding."""


@timed
def no_cpu(machine: MachineFacts, facts: Facts, measured: Measured) -> Finding | None:
    """Name the time without a CPU, and what took the CPUs: a quota, too many threads, workers, or other programs."""
    share = facts.starved_share
    if share is None or share < LEAST:
        return None
    why, remedy = _why(machine, facts)
    evidence = f"The training thread was ready to run and had no CPU for {share:.0%} of the run: {why}"
    return finding(CAUSE, share, evidence, remedy, low=measured.low(share))


def _why(machine: MachineFacts, facts: Facts) -> tuple[str, str]:
    cpus, workers = machine.cpus or 1, facts.workers or 0
    number = "1 CPU" if cpus == 1 else f"{cpus} CPUs"
    if facts.quota_reached:
        return "the CPU quota of the container was used up", f"a quota of more than {number}, or fewer threads"
    if machine.accelerator is None and facts.threads > cpus:
        return f"operations use {facts.threads} threads, and each process has {number}", f"OMP_NUM_THREADS={cpus}"
    if workers and workers >= cpus:
        return f"{workers} workers of the loader share {number} with it", f"num_workers={max(1, cpus - 1)}"
    return f"other programs or threads used its {number}", "more CPUs for this process, or fewer programs beside it"
