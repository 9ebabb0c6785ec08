"""Rules `sync` about an accelerator: the host waits until the device has finished, to read a value from it."""

from perf_callbacks.advice.facts import Facts, MachineFacts, Measured, finding
from perf_callbacks.kernel.records.fit_records import Finding


def reading(machine: MachineFacts, facts: Facts, measured: Measured | None) -> Finding | None:
    """Name the line that reads most often from the device in a step. Lines of installed packages are not the user's."""
    if measured is None or machine.accelerator is None or facts.work is None:
        return None
    reads = {line: count for line, count in facts.work.reads.items() if "site-packages" not in line}
    if not reads:
        return None
    line = max(reads, key=lambda place: reads[place])
    times = "once" if reads[line] == 1 else f"{reads[line]:,} times"
    evidence = f"The host waits for the device {times} per step, to read from it in {line.rpartition('/')[2]}"
    return finding("sync", None, evidence, "keeping values on the device until they are logged")


def nan_filter(machine: MachineFacts, facts: Facts, measured: Measured | None) -> Finding | None:
    """Name the filter of the Hugging Face `Trainer` that reads each micro-batch's loss from the device."""
    if measured is None or not measured.known or machine.accelerator is None or not facts.nan_filter:
        return None
    evidence = "logging_nan_inf_filter reads the loss from the device in each micro-batch"
    return finding("sync", None, evidence, "TrainingArguments(logging_nan_inf_filter=False)")
