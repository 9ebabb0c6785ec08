"""Rules `host` and `sync`: Python work between the stages of a step."""

from perf_callbacks.advice.facts import Facts, MachineFacts, Measured, finding
from perf_callbacks.kernel.records.fit_records import Finding


def host(_machine: MachineFacts, facts: Facts, measured: Measured | None) -> Finding | None:
    """Name the time of steps in which neither loader nor model nor optimizer works."""
    if measured is None or not measured.known or _reads(facts) is not None:
        return None
    idle = measured.unnamed
    evidence = (
        f"Python code outside of forward, backward and optimizer (callbacks, metrics, logging) took "
        f"{measured.share(idle):.0%} of the run"
    )
    evidence += f", mostly at {facts.host_line}" if facts.host_line else ""
    remedy = "running it every 50 steps, or after training"
    return finding("host", measured.share(idle), evidence, remedy)


def sync(_machine: MachineFacts, facts: Facts, measured: Measured | None) -> Finding | None:
    """Name the code that reads values from tensors in each step. The share is the time around it."""
    reads = _reads(facts)
    if measured is None or not measured.known or reads is None:
        return None
    between = measured.unnamed
    evidence = f"Reading values and logging them in each step took {measured.share(between):.0%} of the run: {reads}"
    remedy = "TrainingArguments(logging_steps=50)" if _logs(facts) else "logging every 50 steps"
    if _logs(facts) and facts.integration == "lightning":
        remedy = "Trainer(log_every_n_steps=50)"
    return finding("sync", measured.share(between), evidence, remedy)


def _logs(facts: Facts) -> bool:
    return facts.log_every == 1


def _reads(facts: Facts) -> str | None:
    """Return the place where each step reads values; None if no step reads values."""
    if _logs(facts):
        return "the trainer logs every step"
    reads = facts.work.values_read if facts.work is not None else {}
    if not reads:
        return None
    line = max(reads, key=lambda place: reads[place])
    return f"`.item()` or the like in {line.rpartition('/')[2]}"
