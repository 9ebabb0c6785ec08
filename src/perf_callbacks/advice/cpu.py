"""Rule `cpu`: the training thread was ready to run and had no CPU."""

from perf_callbacks.advice.facts import Facts, MachineFacts, Measured, finding, timed
from perf_callbacks.kernel.records.fit_records import Finding

CAUSE = "cpu"

LEAST = 0.05
"""Least share of the run without a CPU. Less is usual on a machine with other programs."""

LARGE = 0.25
"""Least part of another finding's share that lets the lack of a CPU come before that finding."""

INFLATED = frozenset({"host", "sync", "recompute", "attention", "optimizer", "gc", "evaluation", "compile"})
"""Causes with longer times if a CPU is missing. The lack of a CPU comes before these findings."""


@timed
def no_cpu(machine: MachineFacts, facts: Facts, _measured: Measured) -> Finding | None:
    """Name the time without a CPU, and what took the CPUs: a quota, too many threads, workers, or other programs."""
    share = facts.starved_share
    if share is None or share < LEAST:
        return None
    why, remedy = _why(machine, facts)
    evidence = f"The training thread was ready to run and had no CPU for {share:.0%} of the run: {why}"
    # The host may run ahead of a device, or wait for the device. Then the lack of a CPU costs less, or nothing.
    return finding(CAUSE, share if machine.accelerator is None else None, evidence, remedy)


def _why(machine: MachineFacts, facts: Facts) -> tuple[str, str]:
    cpus, workers = machine.cpus or 1, facts.workers or 0
    number = "1 CPU" if cpus == 1 else f"{cpus} CPUs"
    if facts.quota_reached:
        return "the CPU quota of the container was used up", f"a quota of more than {number}, or fewer threads"
    if machine.accelerator is None and facts.threads > cpus:
        return f"operations use {facts.threads} threads, and each process has {number}", f"OMP_NUM_THREADS={cpus}"
    if workers >= cpus > 1:
        form = (
            "TrainingArguments(dataloader_num_workers={})" if facts.integration == "transformers" else "num_workers={}"
        )
        return f"{workers} workers of the loader share {number} with it", form.format(cpus - 1)
    return f"other programs or threads used its {number}", "more CPUs for this process, or fewer programs beside it"
