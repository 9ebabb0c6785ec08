"""Rules `sync`: the host waits for the device, or ranks wait for each other, more often than training needs."""

from collections.abc import Mapping

from perf_callbacks.advice.facts import Facts, Measured, finding, interrupting, timed
from perf_callbacks.advice.profiled_steps import on_device, profiled, unknown_loading
from perf_callbacks.kernel.records.fit_records import Finding

NO_NAN_FILTER = "TrainingArguments(logging_nan_inf_filter=False)"

NO_SYNC = {
    "transformers": "self.model_wrapped.no_sync()",
    "lightning": "self.trainer.model.no_sync()",
    "accelerate": "accelerator.no_sync(model)",
}
"""Code in which DDP doesn't reduce gradients, in the methods of a trainer or in a loop."""

LOGGING_SAVED = 2.4
"""Largest saving from rarer logging, relative to its time: other code runs faster too.

Programs of `benchmarks/promises.py` saved up to 2.3 times the time of logging.
"""


@timed
def logging(facts: Facts, measured: Measured) -> Finding | None:
    """Code that reads values in each step, such as `.item()`. The share includes the Python code around it."""
    if not reads_each_step(facts):
        return None
    line = None if facts.log_every == 1 else _read_most(facts)
    reads = f"`.item()` or the like in {line}" if line else "the trainer logs every step"
    reading = (1 - waits_part(facts)) * (measured.unnamed - unknown_loading(facts, measured))
    share = measured.share(reading)
    evidence = f"Reading values and logging them in each step took {share:.0%} of the run: {reads}"
    remedy = "logging every 50 steps"
    if facts.log_every == 1:
        remedy = facts.option("log_every_n_steps", 50) or facts.option("logging_steps", 50) or remedy
    low, won = interrupting(measured.with_cpu(share), LOGGING_SAVED)
    return finding("sync", won, evidence, remedy, low=measured.low(low, "other"), line=line)


def reads_each_step(facts: Facts) -> bool:
    return facts.log_every == 1 or _read_most(facts) is not None


def waits_part(facts: Facts) -> float:
    wait, work = facts.host_wait, facts.work
    if wait is None:
        return 0.0
    device_reads = () if facts.accelerator is None or work is None else (*work.reads, *work.values_read)
    place = wait.line.partition(" ")[0]
    return 0.0 if place in [line.rpartition("/")[2] for line in device_reads] else wait.part


def _read_most(facts: Facts) -> str | None:
    read = None if facts.work is None else _most_frequent(facts.work.values_read)
    return None if read is None else read[0]


def reading(facts: Facts, measured: Measured | None) -> Finding | None:
    """Where a profile exists, `idle_time.waiting` reports the waits for the device instead."""
    read = most_frequent_read(facts)
    if facts.accelerator is None or read is None or on_device(facts, measured):
        return None
    line, count = read
    times = "once" if count == 1 else f"{count:,} times"
    evidence = f"The host waits for the device {times} per step, to read from it in {line}"
    return finding("sync", None, evidence, "keeping values on the device until they are logged", line=line)


def most_frequent_read(facts: Facts) -> tuple[str, int] | None:
    """Line and number of the most frequent reads from the device in a step, without installed packages."""
    reads = {} if facts.work is None else facts.work.reads
    return _most_frequent({line: count for line, count in reads.items() if "site-packages" not in line})


@timed
def nan_filter(facts: Facts, measured: Measured) -> Finding | None:
    if facts.accelerator is None or not facts.nan_filter or on_device(facts, measured):
        return None
    evidence = "logging_nan_inf_filter reads the loss from the device in each micro-batch"
    return finding("sync", None, evidence, NO_NAN_FILTER)


def reducing(facts: Facts, measured: Measured | None) -> Finding | None:
    """Advise `no_sync` if DDP sums gradients over ranks more than once per step.

    With a profile, `busy_time.collectives` gives this advice, with the time that collectives take.
    """
    if not facts.ddp or facts.work is None or facts.work.reductions <= 1:
        return None
    if measured is not None and profiled(facts, measured) is not None:
        return None
    evidence = f"DDP reduces gradients after each of {facts.work.reductions} micro-batches of a step"
    return finding("sync", None, evidence, no_sync(facts))


def no_sync(facts: Facts) -> str:
    once = facts.option("accelerator_config", '{"gradient_accumulation_kwargs": {"sync_each_batch": False}}')
    call = NO_SYNC.get(facts.integration, "model.no_sync()")
    return once or f"with {call}: around all micro-batches but the last"


def blocking(facts: Facts, _measured: Measured | None) -> Finding | None:
    if facts.blocking is None:
        return None
    return finding("sync", None, f"{facts.blocking} makes the host wait for each kernel", f"unsetting {facts.blocking}")


def _most_frequent(reads: Mapping[str, int]) -> tuple[str, int] | None:
    line = max(reads, key=reads.__getitem__, default=None)
    return None if line is None else (line.rpartition("/")[2], reads[line])
