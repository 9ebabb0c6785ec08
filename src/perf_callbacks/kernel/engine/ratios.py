"""Metrics from totals. Each metric is a ratio of sums."""

from collections.abc import Mapping

from perf_callbacks.kernel.engine import windows
from perf_callbacks.kernel.engine.resources import JOB_FIGURES
from perf_callbacks.kernel.engine.steps import KnownParts, Totals
from perf_callbacks.kernel.records.fit_records import Window

_DIGITS = 6


def metrics(
    totals: Totals,
    shown: KnownParts,
    window: Window | None = None,
    flops: Mapping[str, float | None] | None = None,
) -> dict[str, float]:
    """Unknown metrics are left out; without steps, all are.

    The job's rates and resources come from `window`, the newest of all ranks, or from `totals` in a job of one process.
    Rates per device always come from `totals`; a job with one device has none.
    """
    seconds = totals.step_seconds
    if not totals.steps or seconds <= 0:
        return {}
    values: dict[str, float | None] = {"step_time": seconds / totals.steps}
    values |= {name: totals.seconds[stage] / totals.steps for stage, name in shown.stages(totals.seconds)}
    amounts = {"samples": totals.samples, "tokens": totals.tokens, "useful_tokens": totals.useful_tokens}
    for name, amount in amounts.items():
        rate = None if amount is None else amount / seconds
        values[f"{name}_per_second"] = rate if shown.processes == 1 else None
        if rate is not None and shown.devices is not None and (shown.processes, shown.devices) != (1, 1):
            values[f"{name}_per_second_per_device"] = rate / shown.devices
    if shown.processes > 1 and window is not None:
        values |= windows.rates(window)
        values |= {name: window.job[name] for name in JOB_FIGURES if name in window.job}
    values |= flops or {}
    if shown.gc_timed:
        values |= {"gc_pause": totals.longest_pause, "gc_loss": totals.pause_seconds}
    return {name: float(f"{value:.{_DIGITS}g}") for name, value in values.items() if value is not None}
