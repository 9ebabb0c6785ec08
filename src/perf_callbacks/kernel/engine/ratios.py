"""Compute metrics from totals. Each metric is a ratio of sums."""

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
    """Return a dictionary of the metrics of some steps. Unknown metrics are left out.

    If the job has one process, the rates of the job come from `totals`. Rates per device always come from `totals`. A
    job with one device has no rates per device.

    Args:
        totals: Sums over the steps. Without steps, the result is empty.
        shown: Says which parts of a step are measured.
        window: The newest window of all ranks. `window` gives the rates and resources of a job with several processes.
        flops: FLOP metrics of the steps.
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
